//! One end of a connection in several processes: after a fork, shared with another process, or passed on to
//! one.
//!
//! | file | what |
//! |---|---|
//! | `fork.rs` | the handlers around fork(2), for all kinds of sockets |
//! | `holding.rs` | locks an end during a fork, and shares it with the child |
//! | `membership.rs` | what one process has of a shared end: page, number, which members live |
//! | `snapshot.rs` | saves and loads the state of both directions; recovery after a member's death |
//! | `share.rs` | `share_fds`: one more process holds the end |
//! | `transfer.rs` | `into_fds` and `from_fds`: another process goes on with the end |
//! | `wire.rs` | the layouts of what is said of a connection in both cases |
//! | `claim.rs` | ends that only one process may use after a fork |
//! | `refusal.rs` | errors of sharing and passing on |

pub mod claim;
pub mod fork;
pub mod holding;
pub mod membership;
pub mod refusal;
pub mod share;
pub mod snapshot;
pub mod transfer;
pub mod wire;
