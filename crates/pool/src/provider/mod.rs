//! Where pools get their memory.
//!
//! A provider gives one [`Area`] when its pool is made, and from then on decides which pages of it the pool may have:
//! the kernel's `memory_provider_ops` (include/net/page_pool/memory_provider.h). It speaks in page numbers, so nothing
//! that it says can make two pages overlap or lie outside of the area; a number that is foreign, in use already or
//! more than was asked for is refused, counted and reported. So the trait is safe to implement.
//!
//! | provider | memory |
//! |---|---|
//! | [`Heap`] | the process' own, 4 KiB pages |
//! | [`Hugepage`] | the process' own, reserved huge pages, or transparent ones, or plain ones; it says which |
//! | [`Memfd`] | sealed so that others can map it only to read: for pages that go to a peer by reference |
//! | [`Opaque`] | unreadable, behind a copy worker: the stand-in for a device |
//! | [`DmaBuf`] | what a driver shares by a descriptor |
//! | [`LentPages`] | the other side of a `Memfd`: pages that a peer lends in slots, one page maybe in several (a pool of its own kind) |

mod dma_buf;
mod free;
mod heap;
mod hugepage;
mod lent;
mod memfd;
mod opaque;

pub use dma_buf::DmaBuf;
pub use free::Free;
pub use heap::Heap;
pub use hugepage::{Got, Hugepage};
pub use lent::LentPages;
pub use memfd::Memfd;
pub use opaque::{CopyError, Opaque, Ticket};

use crate::device::Device;
use crate::error::Lie;
use crate::memory::Area;
use crate::netmem::DeviceId;
use crate::shared::Shared;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::any::Any;
use std::fmt;

/// What a pool needs of its provider.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// The pool.
    pub pool_id: u64,
    /// Bytes in a page.
    pub page_len: u32,
    /// The most pages that it will ever have at once.
    pub pages: u32,
}

impl Need {
    /// Bytes in all pages.
    ///
    /// # Errors
    ///
    /// ENOMEM when no address space is that large.
    pub fn bytes(&self) -> Result<usize, ProviderError> {
        (self.page_len as usize).checked_mul(self.pages as usize).ok_or(ProviderError::new(
            Errno::NOMEM,
            "the limit times the size of a page is beyond any address",
        ))
    }
}

/// Why a provider did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderError {
    errno: Errno,
    what: String,
}

impl ProviderError {
    /// An errno, and in words what failed and what to do about it.
    pub fn new(errno: Errno, what: impl Into<String>) -> ProviderError {
        ProviderError { errno, what: what.into() }
    }

    /// The errno for it.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// For a provider that is given a second pool while it serves one.
    pub fn busy() -> ProviderError {
        ProviderError::new(Errno::BUSY, "it serves another pool; make a provider for each")
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, self.errno)
    }
}

impl std::error::Error for ProviderError {}

/// What a provider says of its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// One word, as in tables.
    pub name: &'static str,
    /// What it is made of, in words, with the fallbacks that were taken.
    pub how: String,
    /// Whether the CPU can read it.
    pub readable: bool,
    /// Whether it stays where it is, in RAM.
    pub pinned: bool,
    /// Whether it can be mapped by another process ([`MemoryProvider::fd`]).
    pub shareable: bool,
    /// The device that it lies on.
    pub device: Option<DeviceId>,
}

/// Gives pools their memory. One provider serves one pool, and is dropped with its last page, which may be under a stack's lock: what it holds is no socket and no
/// stack, and no method of it calls one. (`Any`: who knows the kind of a page's provider gets back to it, [`Page::provider`](crate::Page::provider).)
pub trait MemoryProvider: Any + Send + Sync {
    /// The memory for a pool, asked for once, when it is made. A smaller area than needed lowers the pool's limit.
    ///
    /// # Errors
    ///
    /// Why there is none; the pool is then not made.
    fn init(&self, need: &Need) -> Result<Area, ProviderError>;

    /// Hands out pages ([`Batch::push`]) until the batch is full or there are no more. The owner's thread calls it.
    ///
    /// # Errors
    ///
    /// Why no more were given. The pages given before are in the pool's hands all the same.
    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError>;

    /// Takes page number `index` back. Any thread may call it, each page once for each time it was handed out.
    fn release_netmem(&self, index: u32);

    /// The last page has come home and the pool is gone. No call follows, and the area is freed next.
    fn destroy(&self) {}

    /// What it says of its memory. After `init` it is what was really got.
    fn about(&self) -> About;

    /// The file that the area is a mapping of, where there is one: page `i` lies at `i * page_len` of it.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Itself, where its memory is a device's: the way for bytes in and out.
    fn as_device(&self) -> Option<&dyn Device> {
        None
    }
}

/// Where a provider puts the pages it hands out.
pub struct Batch<'a> {
    shared: &'a Shared,
    wanted: u32,
    taken: u32,
    lied: u32,
    first_lie: Option<Lie>,
    out: &'a mut [u32],
}

impl<'a> Batch<'a> {
    pub(crate) fn new(shared: &'a Shared, out: &'a mut [u32]) -> Batch<'a> {
        Batch { shared, wanted: out.len() as u32, taken: 0, lied: 0, first_lie: None, out }
    }

    /// How many more pages are wanted.
    pub fn wanted(&self) -> u32 {
        self.wanted - self.taken
    }

    /// Hands out page number `index`.
    ///
    /// # Errors
    ///
    /// [`Lie`]: the pool does not take it. It is reported to the pool's user, too.
    pub fn push(&mut self, index: u32) -> Result<(), Lie> {
        let outcome = if self.taken == self.wanted {
            Err(Lie::Surplus { index, asked: self.wanted })
        } else {
            self.shared.claim(index)
        };
        match outcome {
            Ok(()) => {
                self.out[self.taken as usize] = index;
                self.taken += 1;
                Ok(())
            }
            Err(lie) => {
                self.lied += 1;
                self.first_lie.get_or_insert(lie);
                Err(lie)
            }
        }
    }

    /// How many pages are the pool's now, how many were refused, and why the first of them was.
    pub(crate) fn outcome(self) -> (u32, u32, Option<Lie>) {
        let outcome = (self.taken, self.lied, self.first_lie);
        std::mem::forget(self);
        outcome
    }
}

impl Drop for Batch<'_> {
    /// Only where the provider panics: what it gave before is the pool's all the same, as where it fails, and lies ready.
    /// (With the provider it would be lost, who thinks that it is out.)
    fn drop(&mut self) {
        self.shared.count(self.taken);
        for &index in &self.out[..self.taken as usize] {
            self.shared.keep(index);
        }
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} of {} pages)", self.taken, self.wanted)
    }
}
