//! Doorbells: when they are rung, and the accounting of what is in the control socket's queue.
//!
//! | file | what |
//! |---|---|
//! | `ringing.rs` | when a sender rings: for a receiver that has armed |
//! | `accounting.rs` | which doorbells and fillers are taken, owed or unexplained |

pub mod accounting;
pub mod ringing;
