//! What tests need to know of processes and threads: that one has nothing else to do ([`alone!`], [`descriptors`],
//! [`mappings`]), that one sleeps ([`asleep`]), how long to wait for what must come ([`LONG`]), what poll(2) says ([`readable`],
//! [`writable`]), and what a checksum must be ([`internet_sum`]).

#![forbid(unsafe_code)]

mod internet;
mod poll;
mod process;
mod sleep;
mod time;

pub use internet::internet_sum;
pub use poll::{readable, writable};
pub use process::{descriptors, has_run_elsewhere, mappings};
pub use sleep::{asleep, begun, falls_asleep, this_thread, wait_asleep};
pub use time::{LONG, slept};
