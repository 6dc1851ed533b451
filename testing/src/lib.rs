//! What tests need to know of their process: that it has nothing else to do ([`alone!`]), and what it holds
//! ([`descriptors`], [`mappings`]).

#![forbid(unsafe_code)]

mod process;

pub use process::{descriptors, has_run_elsewhere, mappings};
