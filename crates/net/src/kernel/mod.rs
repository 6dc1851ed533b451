//! The kernel's own TCP as a transport of the same sockets, through io_uring: for programs without a TAP device or root.
//!
//! One thread makes all requests (`engine`), for two reasons: the kernel stacks notifications of one ring and one task only, and it cancels
//! what a thread has asked for when that thread ends. Programs' threads never touch the ring. They put bytes into pages that the ring then
//! sends, and take pages that it received, under the lock of their socket (`connection`), and sleep there.
//!
//! | module | what |
//! |---|---|
//! | `engine` | the thread, and who wants its attention |
//! | `config` | [`Config`]: pages, when not to copy |
//! | `socket`, `listener` | what programs hold |
//! | `connection`, `listening` | what the ring does for each |
//! | `wait` | how calls wait, and what they say when they fail |
//! | `options` | what is set, by setsockopt(2) |

mod config;
mod connection;
mod engine;
mod listener;
mod listening;
mod options;
mod socket;
mod wait;

pub use config::{Config, ZeroCopy};
pub(crate) use engine::{Failed, Kernel};
pub(crate) use listener::listen;
pub(crate) use socket::connect;
