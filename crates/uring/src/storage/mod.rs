//! Files to memory and back, by an io_uring of their own: to a pool's pages straight, to a device's memory through pages of that pool.
//!
//! | memory | what happens |
//! |---|---|
//! | pages of [`Storage`]'s own pool | the kernel reads a file to where they lie, and writes it from there; they are registered (io_uring_register_buffers(3)), if RLIMIT_MEMLOCK lets them be |
//! | a device's | io_uring takes addresses, and there is none: the kernel reads to a page of the pool, and the device copies it from there ([`Moved::landed`]) |
//!
//! ```
//! use onecopy_pool::{DeviceId, DeviceMemory};
//! use onecopy_uring::storage::{Extent, Storage};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut storage = match Storage::new() {
//!     Err(refused) => return Ok(eprintln!("{refused}")), // io_uring is forbidden in many containers
//!     storage => storage?,
//! };
//! let file = std::fs::File::open("Cargo.toml")?;
//! let len = file.metadata()?.len();
//! let memory = DeviceMemory::opaque(64, DeviceId(0))?;
//! let moved = storage.read(&file, 0, &memory, Extent { at: 8192, len })?;
//! assert_eq!((moved.bytes, moved.landed), (len, len));
//! # Ok(())
//! # }
//! ```

mod error;
mod flights;

pub use error::StorageError;

use crate::refused::Refused;
use flights::{Flights, Way};
use onecopy_chain::{Chain, Fragment, Kind};
use onecopy_pool::provider::Heap;
use onecopy_pool::{DeviceMemory, Page, PagePool, PoolConfig};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// Bytes of a device's memory, or places in a row of such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where they begin, in bytes from the memory's beginning.
    pub at: u64,
    /// How many there are.
    pub len: u64,
}

/// What a call moved, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes.
    pub bytes: u64,
    /// Of these, by a page of the pool that the device copied from, or to.
    pub landed: u64,
    /// Requests that the kernel was given, those among them that went on where one had ended early.
    pub requests: u64,
    /// Whether the pages were registered.
    pub registered: bool,
}

/// Pages of a pool that is made for it: so many requests are under way at once.
const PAGES: u32 = 8;
/// 4096 << this: bytes of one, 256 KiB.
const ORDER: u8 = 6;

/// Every device's blocks begin at a multiple of this, or of more (open(2), O_DIRECT).
const LEAST: u64 = 512;
/// No device asks for more. Pages begin at a multiple of it.
const MOST: u64 = 4096;

/// Moves files to memory and back. See the [module](self).
///
/// A call waits until all is done. It is used by one thread at a time.
#[derive(Debug)]
pub struct Storage {
    pool: PagePool,
    flights: Flights,
}

impl Storage {
    /// With pages of its own.
    ///
    /// # Errors
    ///
    /// [`Refused`]: there is no io_uring here, or no memory.
    pub fn new() -> Result<Storage, Refused> {
        let pool = PagePool::new(PoolConfig::new().order(ORDER).limit(PAGES), Heap::new());
        Storage::with(pool.map_err(|_| Refused::NoMemory)?)
    }

    /// With pages of `pool`, which are this process' own memory. They are registered, if they may be.
    ///
    /// # Errors
    ///
    /// As [`Storage::new`]; [`Refused::NoMemory`] for a pool whose memory the CPU cannot read.
    pub fn with(pool: PagePool) -> Result<Storage, Refused> {
        let region = pool.region().ok_or(Refused::NoMemory)?;
        Ok(Storage { flights: Flights::new(region)?, pool })
    }

    /// Whether the pages are registered: not where the memory that may be locked is less (RLIMIT_MEMLOCK).
    pub fn is_registered(&self) -> bool {
        self.flights.is_registered()
    }

    /// The pool that files are read to.
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// Reads as many bytes of `file` as `to` has, from byte `from` on, and has the device copy them to `to`.
    ///
    /// A file that is open with O_DIRECT is read without the page cache: `from` is then a multiple of its device's blocks. The length need not be.
    ///
    /// # Errors
    ///
    /// [`StorageError::Outside`], [`StorageError::Unaligned`]: nothing is read. [`StorageError::Short`] where the file ends before: what there was is in
    /// the memory. [`StorageError::Io`], [`StorageError::Device`]: any part of it may be.
    pub fn read(
        &mut self,
        file: impl AsFd,
        from: u64,
        memory: &DeviceMemory,
        to: Extent,
    ) -> Result<Moved, StorageError> {
        inside(memory, to)?;
        let direct = is_direct(file.as_fd())?;
        aligned(direct, "the offset in the file", from)?;
        let mut work = Reading { file: file.as_fd(), from, direct, len: to.len, asked: 0 };
        let place = |at: u64| to.at + at;
        self.run(Way::Read, &mut work, |at, page, len| {
            let bytes = page.bytes().ok_or(StorageError::NoMemory)?;
            memory.write_at(place(at), &[std::io::IoSlice::new(&bytes[..len])]).map_err(StorageError::Device)
        })
        .map(|moved| Moved { landed: moved.bytes, ..moved })
    }

    /// Writes what lies in `extents`, one after the other, to `file`, from byte `to` on.
    ///
    /// # Errors
    ///
    /// As [`Storage::read`]. With O_DIRECT the length, too, is a multiple of the device's blocks.
    pub fn write(
        &mut self,
        memory: &DeviceMemory,
        extents: &[Extent],
        file: impl AsFd,
        to: u64,
    ) -> Result<Moved, StorageError> {
        extents.iter().try_for_each(|extent| inside(memory, *extent))?;
        let len = extents.iter().map(|extent| extent.len).sum();
        let direct = is_direct(file.as_fd())?;
        aligned(direct, "the offset in the file", to)?;
        aligned(direct, "the number of bytes", len)?;
        let mut work =
            Writing { file: file.as_fd(), to, memory, left: extents.iter(), rest: None, asked: 0, len };
        self.run(Way::Write, &mut work, |_, _, _| Ok(())).map(|moved| Moved { landed: moved.bytes, ..moved })
    }

    /// Reads `len` bytes of `file`, from byte `from` on, to pages of the pool: to be sent from where they lie. Nobody copies them in user space,
    /// and with O_DIRECT nobody at all.
    ///
    /// # Errors
    ///
    /// As [`Storage::read`]; [`StorageError::NoMemory`] where the pool has too few pages.
    pub fn read_chain(
        &mut self,
        file: impl AsFd,
        from: u64,
        len: u64,
    ) -> Result<(Chain, Moved), StorageError> {
        if len > u64::from(self.pool.limit()) * u64::from(self.pool.page_len()) {
            return Err(StorageError::NoMemory);
        }
        let direct = is_direct(file.as_fd())?;
        aligned(direct, "the offset in the file", from)?;
        let each = u64::from(self.pool.page_len());
        let mut pages: Vec<Option<Page>> = (0..len.div_ceil(each)).map(|_| None).collect();
        let mut work = Reading { file: file.as_fd(), from, direct, len, asked: 0 };
        let moved = self.run(Way::Read, &mut work, |at, page, _| {
            pages[(at / each) as usize] = Some(page.clone());
            Ok(())
        })?;
        let mut chain = Chain::new();
        for (index, page) in pages.into_iter().enumerate() {
            let part = each.min(len - index as u64 * each) as usize;
            let page = page.ok_or(StorageError::NoMemory)?;
            let fragment = Fragment::new(page, 0, part).map_err(|_| StorageError::NoMemory)?;
            chain.append(fragment).map_err(|_| StorageError::NoMemory)?;
        }
        Ok((chain, moved))
    }

    /// Writes `chain` to `file`, from byte `to` on, from where it lies: registered or not.
    ///
    /// # Errors
    ///
    /// As [`Storage::write`]; [`StorageError::Unreadable`] for bytes that the CPU cannot read.
    pub fn write_chain(&mut self, chain: &Chain, file: impl AsFd, to: u64) -> Result<Moved, StorageError> {
        if !chain.is_empty() && chain.kind() != Some(Kind::Host) {
            return Err(StorageError::Unreadable);
        }
        let direct = is_direct(file.as_fd())?;
        aligned(direct, "the offset in the file", to)?;
        let mut at = to;
        let mut moved = Moved { registered: self.is_registered(), ..Moved::default() };
        for fragment in chain.fragments() {
            aligned(direct, "the number of bytes", fragment.len() as u64)?;
            let page = fragment.page().clone();
            let flight = flights::Flight::new(file.as_fd(), page, fragment.offset(), fragment.len(), at);
            at += fragment.len() as u64;
            moved.requests += self.flights.alone(Way::Write, flight)?;
            moved.bytes += fragment.len() as u64;
        }
        Ok(moved)
    }

    /// Has several pages of `work` under way at once; `done` gets each that was read: where in the whole it begins, the page, and how many bytes of
    /// it count.
    fn run(
        &mut self,
        way: Way,
        work: &mut dyn Work,
        mut done: impl FnMut(u64, &Page, usize) -> Result<(), StorageError>,
    ) -> Result<Moved, StorageError> {
        self.flights.usable()?;
        let mut moved = Moved { registered: self.is_registered(), ..Moved::default() };
        let mut failed: Option<StorageError> = None;
        loop {
            while failed.is_none() && self.flights.has_room() {
                let Ok(page) = self.pool.alloc() else { break };
                match work.next(page) {
                    Ok(Some(flight)) => self.flights.begin(way, flight),
                    Ok(None) => break,
                    Err(error) => failed = Some(error),
                }
            }
            if self.flights.is_empty() {
                break;
            }
            // What has failed is told when nothing is under way any more: its pages are the kernel's until then.
            match self.flights.wait(way, &mut moved.requests)? {
                Ok(flight) => {
                    moved.bytes += flight.counts as u64;
                    let at = flight.at - work.begins();
                    if flight.short {
                        let had = at + flight.counts as u64;
                        failed = Some(shorter(failed, work.whole(), had));
                    }
                    if let Err(error) = done(at, &flight.page, flight.counts) {
                        failed = failed.or(Some(error));
                    }
                }
                Err(error) => failed = failed.or(Some(work.explain(error))),
            }
        }
        match failed {
            Some(error) => Err(error),
            // No page was free, though nothing is under way.
            None if moved.bytes < work.whole() => Err(StorageError::NoMemory),
            None => Ok(moved),
        }
    }
}

/// What is to be moved, page by page.
trait Work {
    /// The next request with `page`; none: there are no more.
    fn next(&mut self, page: Page) -> Result<Option<flights::Flight>, StorageError>;
    /// Where in the file it begins.
    fn begins(&self) -> u64;
    /// Bytes in all.
    fn whole(&self) -> u64;
    /// What the kernel said, for who called.
    fn explain(&self, error: StorageError) -> StorageError;
}

struct Reading<'a> {
    file: BorrowedFd<'a>,
    from: u64,
    direct: bool,
    len: u64,
    asked: u64,
}

impl Work for Reading<'_> {
    fn next(&mut self, page: Page) -> Result<Option<flights::Flight>, StorageError> {
        let len = (self.len - self.asked).min(page.len() as u64);
        if len == 0 {
            return Ok(None);
        }
        // Whole blocks; what is too many is behind the end, or not looked at.
        let asks = if self.direct { len.next_multiple_of(MOST) } else { len };
        let flight = flights::Flight::new(self.file, page, 0, asks as usize, self.from + self.asked);
        self.asked += len;
        Ok(Some(flight.counting(len as usize)))
    }

    fn begins(&self) -> u64 {
        self.from
    }

    fn whole(&self) -> u64 {
        self.len
    }

    fn explain(&self, error: StorageError) -> StorageError {
        match error {
            StorageError::Io(Errno::INVAL) if self.direct => {
                StorageError::Unaligned { what: "the offset in the file", value: self.from, by: MOST }
            }
            other => other,
        }
    }
}

struct Writing<'a> {
    file: BorrowedFd<'a>,
    to: u64,
    memory: &'a DeviceMemory,
    left: std::slice::Iter<'a, Extent>,
    rest: Option<Extent>,
    asked: u64,
    len: u64,
}

impl Work for Writing<'_> {
    fn next(&mut self, mut page: Page) -> Result<Option<flights::Flight>, StorageError> {
        let bytes = page.bytes_mut().ok_or(StorageError::NoMemory)?;
        let mut filled = 0;
        while filled < bytes.len() {
            let Some(extent) = self.rest.take().or_else(|| self.left.next().copied()) else { break };
            let len = extent.len.min((bytes.len() - filled) as u64);
            self.memory
                .read_at(extent.at, &mut bytes[filled..filled + len as usize])
                .map_err(StorageError::Device)?;
            filled += len as usize;
            if len < extent.len {
                self.rest = Some(Extent { at: extent.at + len, len: extent.len - len });
            }
        }
        if filled == 0 {
            return Ok(None);
        }
        let at = self.to + self.asked;
        self.asked += filled as u64;
        Ok(Some(flights::Flight::new(self.file, page, 0, filled, at)))
    }

    fn begins(&self) -> u64 {
        self.to
    }

    fn whole(&self) -> u64 {
        self.len
    }

    fn explain(&self, error: StorageError) -> StorageError {
        error
    }
}

/// The file ended after `had` bytes, as a request found that may have begun behind its end: one before it knows better.
fn shorter(failed: Option<StorageError>, wanted: u64, had: u64) -> StorageError {
    match failed {
        Some(StorageError::Short { had: before, .. }) => StorageError::Short { wanted, had: had.min(before) },
        Some(other) => other,
        None => StorageError::Short { wanted, had },
    }
}

fn inside(memory: &DeviceMemory, extent: Extent) -> Result<(), StorageError> {
    match extent.at.checked_add(extent.len) {
        Some(end) if end <= memory.len() => Ok(()),
        _ => Err(StorageError::Outside { at: extent.at, len: extent.len, memory: memory.len() }),
    }
}

fn is_direct(file: BorrowedFd<'_>) -> Result<bool, StorageError> {
    let flags = rustix::fs::fcntl_getfl(file).map_err(StorageError::Io)?;
    Ok(flags.contains(OFlags::DIRECT))
}

fn aligned(direct: bool, what: &'static str, value: u64) -> Result<(), StorageError> {
    match direct && !value.is_multiple_of(LEAST) {
        true => Err(StorageError::Unaligned { what, value, by: LEAST }),
        false => Ok(()),
    }
}
