//! Memory that the CPU side of the API cannot read: the stand-in for a device on machines without one.

use super::free::Free;
use super::{About, Batch, MemoryProvider, Need, ProviderError};
use crate::device::{Copied, Device};
use crate::memory::Area;
use crate::netmem::DeviceId;
use crate::page::Page;
use onecopy_sync::Mutex;
use onecopy_sync::atomic::AtomicU64;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::{dmabuf, memfd, signal};
use rustix::fd::OwnedFd;
use rustix::io::{self, Errno};
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

/// A device of which the CPU sees nothing: its memory is a memfd that no process maps, not even this one. Bytes get in and
/// out by pread(2) and pwrite(2): by a copy worker, a thread that does one request after the other as a device's copy
/// queue would; or by the thread that asks ([`Device`]), as a driver copies what a NIC without header split has put into
/// the host's memory. Or the kernel puts them there itself, in pages that were registered with it ([`Device::file`]), as a NIC with
/// header split does. So code that must never touch a payload is held to it: there is
/// no address to touch, and a stray pointer finds nothing either. (A mapping in a worker's own process would be as
/// well hidden, but a library cannot start a process without knowing a program for it. While pages are registered they are mapped, before
/// any packet is put there.)
///
/// A worker's request keeps its page: it comes home only when the copy is done, as a GPU's buffer may be used again only
/// after the copy's event.
pub struct Opaque {
    device: DeviceId,
    free: Free,
    worker: Mutex<Option<Worker>>,
    /// Bytes that were copied in, and out.
    copied: [AtomicU64; 2],
}

struct Worker {
    pool_id: u64,
    queue: mpsc::Sender<Job>,
    thread: JoinHandle<()>,
    memory: Arc<OwnedFd>,
    len: u64,
}

/// Why a copy was not accepted, or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// The page is not this device's.
    Foreign {
        /// The page's pool.
        pool_id: u64,
    },
    /// The bytes would not lie inside of the page.
    Outside {
        /// Where they begin.
        offset: usize,
        /// How many they are.
        len: usize,
        /// Bytes in the page.
        page_len: usize,
    },
    /// The copy failed.
    Io(Errno),
    /// The CPU has no way to the memory: the driver of its dma-buf maps it for nobody, and said this.
    Unmapped(Errno),
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyError::Foreign { pool_id } => {
                write!(f, "the page is of pool {pool_id}, not on this device; copy within one pool")
            }
            CopyError::Outside { offset, len, page_len } => {
                write!(
                    f,
                    "{len} bytes from {offset} are not inside of a page of {page_len}; cut the copy at its end"
                )
            }
            CopyError::Io(errno) => write!(f, "the copy failed: {errno}"),
            CopyError::Unmapped(errno) => write!(
                f,
                "the memory's driver does not map it for the CPU ({errno}); leave its bytes to devices, or take memory that is mapped"
            ),
        }
    }
}

impl std::error::Error for CopyError {}

enum Way {
    In,
    Out,
}

struct Job {
    way: Way,
    page: Page,
    offset: usize,
    bytes: Vec<u8>,
    done: mpsc::Sender<Result<Vec<u8>, CopyError>>,
}

/// A copy under way.
#[derive(Debug)]
pub struct Ticket(mpsc::Receiver<Result<Vec<u8>, CopyError>>);

impl Ticket {
    /// Waits for the copy, and gives the buffer back: what was copied out, or what was copied in.
    ///
    /// # Errors
    ///
    /// [`CopyError::Io`].
    pub fn wait(self) -> Result<Vec<u8>, CopyError> {
        // A worker that is gone without an answer has panicked.
        self.0.recv().unwrap_or(Err(CopyError::Io(Errno::IO)))
    }
}

impl Opaque {
    /// One for a pool, that says it is device `device`.
    #[allow(clippy::new_ret_no_self, reason = "pools take it shared")]
    pub fn new(device: DeviceId) -> Arc<Opaque> {
        Arc::new(Opaque {
            device,
            free: Free::default(),
            worker: Mutex::new(None),
            copied: Default::default(),
        })
    }

    /// Copies `bytes` into the page, from `offset` on.
    ///
    /// # Errors
    ///
    /// [`CopyError`]: it is not a page of this device, or they do not fit.
    pub fn copy_in(&self, page: &Page, offset: usize, bytes: Vec<u8>) -> Result<Ticket, CopyError> {
        self.submit(Way::In, page, offset, bytes)
    }

    /// Copies `len` bytes out of the page, from `offset` on.
    ///
    /// # Errors
    ///
    /// As [`Opaque::copy_in`].
    pub fn copy_out(&self, page: &Page, offset: usize, len: usize) -> Result<Ticket, CopyError> {
        if len > page.len() {
            return Err(CopyError::Outside { offset, len, page_len: page.len() });
        }
        self.submit(Way::Out, page, offset, vec![0; len])
    }

    /// Its memory, if `len` bytes from `at` on are inside of it.
    fn memory(&self, at: u64, len: usize) -> Result<Arc<OwnedFd>, CopyError> {
        let worker = self.worker.lock();
        let worker = worker.as_ref().ok_or(CopyError::Io(Errno::NXIO))?;
        match at.checked_add(len as u64) {
            Some(end) if end <= worker.len => Ok(Arc::clone(&worker.memory)),
            _ => Err(CopyError::Outside { offset: at as usize, len, page_len: worker.len as usize }),
        }
    }

    fn submit(&self, way: Way, page: &Page, offset: usize, bytes: Vec<u8>) -> Result<Ticket, CopyError> {
        let (page_len, len) = (page.len(), bytes.len());
        if offset > page_len || len > page_len - offset {
            return Err(CopyError::Outside { offset, len, page_len });
        }
        let worker = self.worker.lock();
        let worker = worker.as_ref().filter(|worker| worker.pool_id == page.pool_id());
        let worker = worker.ok_or(CopyError::Foreign { pool_id: page.pool_id() })?;
        let (done, ticket) = mpsc::channel();
        let job = Job { way, page: page.clone(), offset, bytes, done };
        worker.queue.send(job).map_err(|_| CopyError::Io(Errno::IO))?;
        Ok(Ticket(ticket))
    }
}

/// Until the pool is gone. All that this thread knows of the memory is a descriptor.
fn work(memory: &OwnedFd, jobs: &mpsc::Receiver<Job>) {
    for Job { way, page, offset, mut bytes, done } in jobs {
        let at = page.place() + offset as u64;
        let copied = match way {
            Way::In => all(bytes.len(), |from| io::pwrite(memory, &bytes[from..], at + from as u64)),
            Way::Out => {
                let len = bytes.len();
                all(len, |from| io::pread(memory, &mut bytes[from..], at + from as u64))
            }
        };
        // First the page, so that who waits finds it home.
        drop(page);
        // Who does not wait does not want to know.
        let _ = done.send(copied.map(|()| bytes).map_err(CopyError::Io));
    }
}

/// Calls `part` from where it came to until all `len` bytes are done.
fn all(len: usize, mut part: impl FnMut(usize) -> io::Result<usize>) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match part(done) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

impl MemoryProvider for Opaque {
    fn init(&self, need: &Need) -> Result<Area, ProviderError> {
        let len = need.bytes()?;
        self.free.start(need)?;
        let start = || {
            let memory = memfd::create("onecopy-opaque", len).map_err(|errno| {
                ProviderError::new(errno, format!("a memfd of {len} bytes was refused; lower the limit"))
            })?;
            let (queue, jobs) = mpsc::channel();
            let memory = Arc::new(memory);
            let theirs = Arc::clone(&memory);
            let thread = thread::Builder::new().name("onecopy-opaque".to_owned());
            let thread = signal::blocked(|| thread.spawn(move || work(&theirs, &jobs)));
            let thread = thread.map_err(|error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
                ProviderError::new(errno, "the copy worker's thread was refused; see RLIMIT_NPROC")
            })?;
            Ok(Worker { pool_id: need.pool_id, queue, thread, memory, len: len as u64 })
        };
        *self.worker.lock() = Some(start().inspect_err(|_| self.free.stop())?);
        Ok(Area::device(self.device, len))
    }

    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        self.free.give(batch)
    }

    fn release_netmem(&self, index: u32) {
        self.free.take_back(index);
    }

    fn destroy(&self) {
        let worker = self.worker.lock().take();
        if let Some(Worker { queue, thread, .. }) = worker {
            // No job is left: each would hold a page. The last page may have been a job's, on the worker itself.
            drop(queue);
            if thread.thread().id() != thread::current().id() {
                // It can only have panicked, and then its tickets have said so.
                let _ = thread.join();
            }
        }
        self.free.stop();
    }

    fn about(&self) -> About {
        About {
            name: "opaque",
            how: "a memfd that nobody maps, behind a copy worker".to_owned(),
            readable: false,
            pinned: false,
            shareable: false,
            device: Some(self.device),
        }
    }

    fn as_device(&self) -> Option<&dyn Device> {
        Some(self)
    }
}

/// By the thread that calls. The kernel copies; nothing of this process lies in between.
impl Device for Opaque {
    fn write_at(&self, at: u64, from: &[IoSlice<'_>]) -> Result<(), CopyError> {
        let memory = self.memory(at, from.iter().map(|slice| slice.len()).sum())?;
        let mut at = at;
        for group in from.chunks(MOST_SLICES) {
            let (len, mut done) = (group.iter().map(|slice| slice.len()).sum::<usize>(), 0);
            while done < len {
                let (index, within) = locate(group.iter().map(|slice| slice.len()), done);
                // What is left of a slice that was cut goes alone: a memfd takes all but where memory runs out.
                let written = match within {
                    0 => io::pwritev(&*memory, &group[index..], at),
                    _ => io::pwrite(&*memory, &group[index][within..], at),
                };
                match written {
                    Ok(0) => return Err(CopyError::Io(Errno::IO)),
                    Ok(count) => (done, at) = (done + count, at + count as u64),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(CopyError::Io(errno)),
                }
            }
            // Relaxed: it counts, and nothing hangs on it.
            self.copied[0].fetch_add(len as u64, Relaxed);
        }
        Ok(())
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), CopyError> {
        let memory = self.memory(at, into.len())?;
        let len = into.len();
        all(len, |from| io::preadv(&*memory, &mut [IoSliceMut::new(&mut into[from..])], at + from as u64))
            .map_err(CopyError::Io)?;
        self.copied[1].fetch_add(len as u64, Relaxed);
        Ok(())
    }

    fn file(&self) -> Option<Arc<OwnedFd>> {
        self.worker.lock().as_ref().map(|worker| Arc::clone(&worker.memory))
    }

    /// By /dev/udmabuf: each call makes another one, of the same pages.
    fn dma_buf(&self) -> Result<OwnedFd, ProviderError> {
        let (memory, len) = {
            let worker = self.worker.lock();
            let worker = worker.as_ref().ok_or(ProviderError::new(Errno::NXIO, "it serves no pool"))?;
            (Arc::clone(&worker.memory), worker.len)
        };
        // Without the lock: it takes all pages.
        dmabuf::of_memfd(&*memory, len).map_err(|why| ProviderError::new(why.errno(), why.to_string()))
    }

    fn copied(&self) -> Copied {
        let [into, out] = &self.copied;
        Copied { into: into.load(Relaxed), out: out.load(Relaxed) }
    }
}

/// Slices that one call takes (IOV_MAX).
const MOST_SLICES: usize = 1024;

/// In which of slices of these lengths byte `at` is, and where in it.
fn locate(lengths: impl Iterator<Item = usize>, mut at: usize) -> (usize, usize) {
    let mut index = 0;
    for len in lengths {
        if at < len {
            break;
        }
        (at, index) = (at - len, index + 1);
    }
    (index, at)
}

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opaque({})", self.device)
    }
}
