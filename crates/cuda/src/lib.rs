//! A CUDA device's memory as a provider of pages, and the copies into it.
//!
//! The driver (libcuda.so.1) is loaded at run time: a program with this in it runs on machines without one, and [`Cuda::open`] says there what is
//! missing. Nothing else of CUDA's is needed, no toolkit and no compiler: the one kernel is PTX text in this crate, which the driver compiles for its device.
//!
//! ```no_run
//! use onecopy_cuda::{Cuda, Settings};
//! use onecopy_pool::{DeviceMemory, PoolConfig};
//!
//! let cuda = Cuda::open(Settings::new(0))?;
//! let memory = DeviceMemory::new(PoolConfig::new().limit(16384), cuda.clone())?; // 64 MiB
//! // stack.bind_rx(&memory, &[1])?; a fragment lies at cuda.address() + frag.offset
//! println!("{}", cuda.report());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How bytes get there
//!
//! A packet's payload has landed in pages of the host's. These are pinned, their pool as a whole when its first page comes (cuMemHostRegister), and pieces
//! of them wait until there are [some](Way) of them, or until somebody receives. Then one of these ways takes all, without any
//! copy by the CPU:
//!
//! | way | what the device is asked | good for |
//! |---|---|---|
//! | [`Way::Copies`] | a copy for each piece, in one stream (cuMemcpyHtoDAsync) | few pieces, large ones |
//! | [`Way::Gather`] | a kernel that reads all pieces over the bus | many pieces, small ones |
//! | [`Way::Batch`] | the same copies, by one call (cuMemcpyBatchAsync, CUDA 12.8) | many pieces, where a launch is dear |
//! | [`Way::Span`] | one copy of all that lies from the first piece to the last, and a kernel that puts the pieces in place from there | many pieces that lie close together |
//!
//! Which is the fastest for how many pieces of which size is measured when a device is opened first ([`Cuda::report`] shows it). Pages that cannot be
//! pinned are copied all the same, by the driver's own staging; that is counted apart. Pieces of one batch that share a place (TCP has thrown the
//! first one's bytes away) are copied, too, one behind the other: a kernel would write there in any order.
//!
//! A page goes home when the event behind its copies has completed, and not before. What fails on the device is done again, in
//! order, from the pages that are still there. If that fails, too, the memory is lost: each call says so, and no page that the
//! device may still read is given back, but kept for good (`kept` in the [`Report`]).
//!
//! # A program's own streams
//!
//! `recv_frags` returns when the bytes are there. Work on a program's stream that reads fragments has to be done before their tokens are given
//! back, or [`Cuda::order_after`] is told of the stream before: then what lands in these pages next waits for it, on the device. [`Cuda::order_before`] is
//! the other direction.

mod api;
mod calibrate;
mod context;
mod driver;
mod error;
mod landing;
mod lane;
mod memory;
mod queue;
mod report;
mod way;

pub use driver::{Driver, MINIMUM};
pub use error::Error;
pub use memory::{Cuda, Settings};
pub use report::Report;
pub use way::{Costs, Shape, Way};

/// The kernel, as the driver compiles it.
pub const GATHER: &str = include_str!("gather.ptx");
