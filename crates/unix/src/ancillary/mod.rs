//! The things that travel besides bytes: descriptors, credentials, pools and references.
//!
//! | file | what |
//! |---|---|
//! | `channel.rs` | the socket of its own that carries descriptors and credentials, both ends of it |
//! | `attached.rs` | what a send takes along, and what a receive returns besides bytes |
//! | `said.rs` | what the receiver was told of that identity |
//! | `pending.rs` | what was met at marks and is not received yet |

pub mod attached;
pub mod channel;
pub mod pending;
pub mod said;
