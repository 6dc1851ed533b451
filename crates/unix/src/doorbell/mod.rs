//! The control socket, and the accounting of what is in its queue.
//!
//! | file | what |
//! |---|---|
//! | `control.rs` | the calls on the control socket: peek, ring, park, wait |
//! | `ringing.rs` | when a sender rings: for a receiver that has armed |
//! | `accounting.rs` | which doorbells and fillers are taken, owed or unexplained |
//! | `elsewhere.rs` | the second socket at which a sender of datagrams rings |

pub mod accounting;
pub mod control;
pub mod elsewhere;
pub mod ringing;
