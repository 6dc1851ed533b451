//! What tests need to know of processes and threads: that one has nothing else to do ([`alone!`], [`descriptors`],
//! [`mappings`]), and that one sleeps ([`asleep`]).

#![forbid(unsafe_code)]

mod process;
mod sleep;

pub use process::{descriptors, has_run_elsewhere, mappings};
pub use sleep::{asleep, this_thread, wait_asleep};
