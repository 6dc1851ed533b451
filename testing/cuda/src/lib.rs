//! A stand-in for libcuda.so.1, for machines without a GPU: a shared object that exports the functions of the driver API which `crates/cuda`
//! loads, and plays the device. It is held to what is hard about the real one:
//!
//! - A device's addresses lead nowhere: they are mapped PROT_NONE, and the bytes lie in another mapping of the same memory, which only this knows.
//!   Pinned memory has other addresses on the device than on the host.
//! - Nothing is done when it is asked for. Copies and kernels lie in their streams until somebody asks or waits, and what runs then
//!   is drawn from a seed: events complete late, and those of two streams in any order. Pageable memory is read at once, as the driver stages it.
//!   The legacy default stream (null) and all that were not made apart from it wait for each other.
//! - What a copy or a kernel is still to read is watched until its event has completed: a page that was written over is counted (`torn`).
//! - Kernels are read from their PTX text and interpreted, thread by thread ([`ptx`]), their blocks in an order that is drawn.
//! - Any function can be told to fail, and so can what was accepted: by [`Control`], or by the environment.
//!
//! # The environment
//!
//! `ONECOPY_STAND_IN` has settings, parted by commas: `seed=7,version=10020,fail.cuMemAlloc_v2=0:1:2` (after no call, once, with CUresult
//! 2). The settings are those of [`Control::set`].

mod control;
mod exports;
mod faults;
mod machine;
mod memory;
pub mod ptx;

pub use control::Control;
