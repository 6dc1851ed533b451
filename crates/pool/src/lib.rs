//! Page pools: what a byte lies in between sockets.
//!
//! A pool hands out pages of one size, takes them back from any thread and hands them out again, without asking
//! anybody in the common case. The shape is that of the kernel's page pool (net/core/page_pool.c), and so are the
//! names: a cache of [`CACHE`] pages that only the owner touches, a ring through which all others return pages, and
//! behind them a [`MemoryProvider`], who is asked for up to [`BULK`] pages at a time.
//!
//! ```
//! use onecopy_pool::{PagePool, PoolConfig, provider::Heap};
//!
//! let pool = PagePool::new(PoolConfig::new(), Heap::new())?;
//! let mut page = pool.alloc()?;
//! page.bytes_mut().expect("ours alone").fill(7);
//! let reader = page.clone(); // a second reference: nobody writes any more
//! assert!(page.bytes_mut().is_none());
//! std::thread::spawn(move || assert_eq!(reader.bytes().expect("host memory")[0], 7)).join().unwrap();
//! pool.recycle(page); // straight into the cache; dropping it would have done, too
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Kinds of memory
//!
//! | kind | who writes | what one can do |
//! |---|---|---|
//! | host | this process alone | [`Page::bytes`], [`Page::bytes_mut`], [`Page::span`] |
//! | peer | another process, at any time | [`Page::span`]: copy from it, or hand it to the kernel; never a slice |
//! | device | a device | its number; the CPU cannot read it, so there is no accessor at all |
//!
//! # Who may do what
//!
//! A [`PagePool`] is the owner's handle: it can be sent to another thread, not shared, so that its cache needs no
//! atomic instruction. A [`Page`] goes anywhere. Its last reference returns it: through the ring; or, given to
//! [`PagePool::recycle`], or dropped on the thread to which the pool is bound ([`PagePool::bind`]), into the cache.
//! Threads that own no pool draw pages in batches from a [`CommonPool`], each into a [`Reservoir`] of its own.
//! The pool's memory lives until its last page has come home, whoever drops what first.

mod cache;
mod claim;
mod config;
mod debug;
mod desc;
mod device;
mod error;
mod hold;
mod home;
mod many;
mod memory;
#[cfg(all(test, loom))]
mod models;
mod netmem;
mod page;
mod part;
mod pool;
pub mod provider;
mod region;
mod reservoir;
mod ring;
mod runs;
mod shared;
mod shares;
mod stats;
mod thread;

pub use cache::{BULK, CACHE};
pub use claim::{Claim, Purpose};
pub use config::PoolConfig;
pub use device::{Copied, Device, DeviceMemory};
pub use error::{AdoptError, AllocError, AreaError, Damage, Lie, OpenError, ReturnError};
pub use hold::Hold;
pub use many::{Clones, drop_parts};
pub use memory::{Area, HostMemory};
pub use netmem::{DeviceId, Netmem};
pub use page::Page;
pub use part::Part;
pub use pool::{BoundPool, Monitor, PagePool};
pub use provider::{About, Batch, MemoryProvider, Need, ProviderError};
pub use region::Region;
pub use reservoir::{CommonPool, Pages, Reservoir};
pub use shares::{Piece, Shares};
pub use stats::{AllocStats, RecycleStats, Stats, TroubleStats};
