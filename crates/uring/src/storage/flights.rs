//! Requests under way, each of which owns its page until the kernel's last word.

use super::error::StorageError;
use crate::refused::{Refused, errno};
use io_uring::squeue::Entry;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use onecopy_pool::{Page, Region};
use rustix::io::Errno;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// Requests at once; a power of two.
const ENTRIES: u32 = 8;

/// Where bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the file to the page.
    Read,
    /// From the page to the file.
    Write,
}

/// A request: bytes of a page, and where they are in the file.
pub(super) struct Flight {
    file: RawFd,
    pub page: Page,
    /// Where in the page they begin.
    offset: usize,
    /// How many the kernel is asked for.
    asks: usize,
    /// How many have to come; what is beyond may.
    pub counts: usize,
    /// Where in the file they begin.
    pub at: u64,
    done: usize,
    /// The file ended before: `counts` is what there was.
    pub short: bool,
}

impl Flight {
    /// All of `len` bytes have to come. Invariant: they are inside of the page.
    pub fn new(file: BorrowedFd<'_>, page: Page, offset: usize, len: usize, at: u64) -> Flight {
        assert!(offset.checked_add(len).is_some_and(|end| end <= page.len()), "inside of the page");
        Flight { file: file.as_raw_fd(), page, offset, asks: len, counts: len, at, done: 0, short: false }
    }

    /// Of which the first `counts` have to come.
    pub fn counting(self, counts: usize) -> Flight {
        Flight { counts: counts.min(self.asks), ..self }
    }
}

/// An io_uring for files, and what is under way on it. Every call of its user ends with nothing under way, but where the kernel refuses to say how
/// a request ended.
pub(super) struct Flights {
    uring: ManuallyDrop<IoUring>,
    under_way: ManuallyDrop<Vec<Option<Flight>>>,
    /// What is registered, held as long as the ring is.
    region: ManuallyDrop<Region>,
    fixed: bool,
}

impl Flights {
    pub fn new(region: Region) -> Result<Flights, Refused> {
        let uring =
            IoUring::builder().dontfork().build(ENTRIES).map_err(|error| Refused::Setup(errno(&error)))?;
        let all = libc::iovec { iov_base: region.base().as_ptr().cast(), iov_len: region.len() };
        // SAFETY: the memory stays mapped as long as the region does, which is kept until the ring is gone. The kernel reads and writes what
        // requests name, and each of these owns the page that it names.
        let fixed = unsafe { uring.submitter().register_buffers(&[all]) }.is_ok();
        Ok(Flights {
            uring: ManuallyDrop::new(uring),
            under_way: ManuallyDrop::new((0..ENTRIES).map(|_| None).collect()),
            region: ManuallyDrop::new(region),
            fixed,
        })
    }

    pub fn is_registered(&self) -> bool {
        self.fixed
    }

    pub fn has_room(&self) -> bool {
        self.under_way.iter().any(Option::is_none)
    }

    pub fn is_empty(&self) -> bool {
        self.under_way.iter().all(Option::is_none)
    }

    /// Begins a request. There is room.
    pub fn begin(&mut self, way: Way, flight: Flight) {
        let slot = self.under_way.iter().position(Option::is_none);
        let slot = slot.unwrap_or_else(|| unreachable!("its caller looked for room"));
        self.under_way[slot] = Some(flight);
        self.push(way, slot);
    }

    /// Asks for what is left of the request in `slot`.
    fn push(&mut self, way: Way, slot: usize) {
        let fixed = self.fixed;
        let Some(flight) = &mut self.under_way[slot] else { return };
        let (from, left) = (flight.offset + flight.done, flight.asks - flight.done);
        // For a write the page may be shared: it is only read. One to be read to has no other holder, which makes sure that nobody looks at it.
        let address = match way {
            Way::Read => flight.page.bytes_mut().map(|bytes| bytes[from..].as_mut_ptr()),
            Way::Write => flight.page.bytes().map(|bytes| bytes[from..].as_ptr().cast_mut()),
        };
        let Some(address) = address else {
            unreachable!("a page of our own memory, that nobody else has if it is read to")
        };
        let fixed = fixed && self.region.offset_of(&flight.page).is_some();
        let (fd, len, at) = (Fd(flight.file), left as u32, flight.at + flight.done as u64);
        let entry: Entry = match (way, fixed) {
            (Way::Read, true) => opcode::ReadFixed::new(fd, address, len, 0).offset(at).build(),
            (Way::Read, false) => opcode::Read::new(fd, address, len).offset(at).build(),
            (Way::Write, true) => opcode::WriteFixed::new(fd, address, len, 0).offset(at).build(),
            (Way::Write, false) => opcode::Write::new(fd, address, len).offset(at).build(),
        };
        let entry = entry.user_data(slot as u64);
        // SAFETY: the address is inside of the flight's page, with `left` bytes behind it (`Flight::new`). The flight owns the page, and stays in its
        // slot until its completion has come (`wait`), or for ever (`drop`). The file is open until the call that has it ends, which is not before.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the ring has an entry for each slot");
    }

    /// Waits for a request to end; what ended early goes on. `requests` counts them. Outer errors: the kernel does not say, and its pages stay its own.
    pub fn wait(
        &mut self,
        way: Way,
        requests: &mut u64,
    ) -> Result<Result<Flight, StorageError>, StorageError> {
        loop {
            let Some(entry) = self.uring.completion().next() else {
                if let Err(error) = self.uring.submit_and_wait(1) {
                    match Errno::from_io_error(&error) {
                        Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                        errno => return Err(StorageError::Io(errno.unwrap_or(Errno::IO))),
                    }
                }
                continue;
            };
            *requests += 1;
            let (slot, result) = (entry.user_data() as usize, entry.result());
            let Some(flight) = self.under_way.get_mut(slot).and_then(Option::as_mut) else { continue };
            let came = match usize::try_from(result) {
                Ok(came) => came,
                Err(_) => match Errno::from_raw_os_error(-result) {
                    Errno::INTR | Errno::AGAIN => {
                        self.push(way, slot);
                        continue;
                    }
                    errno => {
                        self.under_way[slot] = None;
                        return Ok(Err(StorageError::Io(errno)));
                    }
                },
            };
            flight.done += came;
            if flight.done >= flight.counts {
                let flight = self.under_way[slot].take();
                return Ok(flight.ok_or(StorageError::Io(Errno::IO)));
            }
            if came == 0 {
                let Some(mut flight) = self.under_way[slot].take() else { continue };
                (flight.counts, flight.short) = (flight.done, true);
                return Ok(match way {
                    Way::Read => Ok(flight),
                    // It takes no more.
                    Way::Write => Err(StorageError::Io(Errno::NOSPC)),
                });
            }
            self.push(way, slot);
        }
    }

    /// That nothing is left under way of a call whose ring failed.
    pub fn usable(&self) -> Result<(), StorageError> {
        if self.is_empty() { Ok(()) } else { Err(StorageError::Io(Errno::IO)) }
    }

    /// One request by itself; returns how many it took.
    pub fn alone(&mut self, way: Way, flight: Flight) -> Result<u64, StorageError> {
        self.usable()?;
        let mut requests = 0;
        self.begin(way, flight);
        self.wait(way, &mut requests)??;
        Ok(requests)
    }
}

impl Drop for Flights {
    /// What is still the kernel's stays in memory for ever, rather than be used twice.
    fn drop(&mut self) {
        let over = self.is_empty();
        // SAFETY: each is dropped once, here, and used no more: this is the drop. The ring goes first, and lets go of the region. What the kernel may
        // still use is not freed.
        unsafe {
            ManuallyDrop::drop(&mut self.uring);
            if over {
                ManuallyDrop::drop(&mut self.under_way);
                ManuallyDrop::drop(&mut self.region);
            }
        }
    }
}

impl fmt::Debug for Flights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let under_way = self.under_way.iter().flatten().count();
        write!(f, "Flights({under_way} under way, registered: {})", self.fixed)
    }
}
