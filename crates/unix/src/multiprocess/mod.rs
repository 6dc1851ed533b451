//! One end of a connection in several processes: after a fork, shared with another process, or passed on to
//! one.
//!
//! | file | what |
//! |---|---|
//! | `holding.rs` | locks an end during a fork, and shares it with the child |
//! | `snapshot.rs` | saves and loads the state of both directions; recovery after a member's death |
//! | `share.rs` | `share_fds`: one more process holds the end |
//! | `transfer.rs` | `into_fds`: another process goes on with the end |
//! | `arrival.rs` | `from_fds`: goes on with an end that was passed on, or joins those that share one |
//! | `wire.rs` | the layouts of what is said of a connection in both cases |
//! | `refusal.rs` | errors of sharing and passing on |

pub mod arrival;
pub mod holding;
pub mod refusal;
pub mod share;
pub mod snapshot;
pub mod transfer;
pub mod wire;
