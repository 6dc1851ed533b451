//! The processes that hold an end: the seam to them, on which connections stand.
//!
//! A connection that one process holds has a null pointer here, and looks at nothing else. What is done to whole connections
//! stands above them, in `multiprocess/`.
//!
//! | file | what |
//! |---|---|
//! | `others.rs` | what a connection tells the others that hold it, and asks about them |
//! | `membership.rs` | what one process has of a shared end: page, number, which members live |
//! | `fork.rs` | the handlers around fork(2), for all kinds of sockets |
//! | `claim.rs` | ends that only one process may use after a fork |
//! | `patience.rs` | how long calls wait for a lock that another process may keep |

pub mod claim;
pub mod fork;
pub mod membership;
pub mod others;
pub mod patience;
