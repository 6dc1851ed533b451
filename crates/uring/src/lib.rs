//! One io_uring whose requests own the memory that the kernel uses for them.
//!
//! The kernel reads and writes a request's memory at times of its own, until it says that the request is over. So no memory of a caller
//! is ever given to it: a [`Ring`] takes a chain to be sent, or pages to be received into, keeps them in its table, and gives them back
//! or frees them when the last completion has come. A ring that is dropped cancels what is under way and waits for it. What the kernel
//! does not give back in time stays in memory for ever, rather than be used twice.
//!
//! | module | what |
//! |---|---|
//! | `ring` | [`Ring`]: what is asked of the kernel, and what it says |
//! | `table` | requests under way, and what they own |
//! | `message` | where a send's bytes lie, in the shape of sendmsg(2) |
//! | `buffers` | pages that wait for what is received (io_uring_register_buf_ring(3)) |
//! | `unmapped` | [`Unmapped`]: packets into memory that nothing maps |
//! | [`zcrx`] | a device's queue that receives into memory of ours |
//! | `config` | [`Config`], [`Send`], [`Counters`]: how a ring is to be, how a send is to go, what was counted |
//! | `event` | [`Event`]: what has happened |
//! | `refused` | [`Refused`]: why there is no ring, and what to do |
//! | `storage` | [`storage::Storage`]: files to memory and back, on a ring of their own |

mod buffers;
mod config;
mod event;
mod message;
mod refused;
mod ring;
pub mod storage;
mod table;
mod unmapped;
pub mod zcrx;

pub use config::{Config, Counters, Send};
pub use event::{End, Event, Usage};
pub use refused::Refused;
pub use ring::Ring;
pub use table::Key;
pub use unmapped::{MOST_PACKETS, MOST_PLACES, Unmapped};
