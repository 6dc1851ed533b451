//! Devices' memory that a NIC receives into by itself, by one of the kernel's two ways: device memory TCP (Documentation/networking/devmem.rst), or, where that is refused,
//! io_uring's zero copy Rx (`zcrx`).
//!
//! For the former the memory's dma-buf is bound to receive queues of the NIC by a netlink socket, and is bound as long as that is open. What is set of the NIC otherwise
//! (that it splits headers, which flows come to which queue) is its administrator's, by ethtool. What comes of it to a connection is in `placed`.

use super::zcrx::{self, Hub};
use crate::carrier::{NicSays, NotByNic};
use onecopy_pool::provider::Heap;
use onecopy_pool::{CommonPool, DeviceMemory, Page, PagePool, Pages, PoolConfig};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use onecopy_sys::netdev::{Netdev, Queue};
use onecopy_uring::zcrx::{NotMade, Zcrx};
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Bytes that one receive takes: its buffer is as long, and untouched where all of them are in the device's memory.
pub(super) const BUFFER: usize = 4096 << BUFFER_ORDER;
const BUFFER_ORDER: u8 = 8;
/// Buffers with bytes that a program has not let go of, all connections of a binding together.
const BUFFERS: u32 = 64;
/// Bytes of one receive up to which they are copied to a page of about their size, so that their buffer is free at once.
pub(super) const SHORT: usize = 64 << 10;
/// Such pages: their orders, and how many there are at most, 64 MiB of each.
const SHORTS: [(u8, u32); 3] = [(0, 16384), (2, 4096), (4, 1024)];

/// A network interface, whose NIC is asked.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    index: u32,
}

impl Interface {
    /// The one called `name`, in the network namespace of who asks.
    ///
    /// # Errors
    ///
    /// ENODEV where there is none; what socket(2) says.
    pub fn named(name: &str) -> Result<Interface, Errno> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Interface { index: name_to_index(socket, name)? })
    }
}

impl Interface {
    /// What its driver says. Asked are a file that is no dma-buf, and a queue that there is not, so that none begins anew.
    pub fn says(&self) -> NicSays {
        let ring = Zcrx::might(self.index).err().map(|why| match why {
            NotMade::Ring(errno) => NotByNic::NoRing(errno),
            NotMade::Refused(errno) => NotByNic::RingRefused(errno),
        });
        let devmem = match (Netdev::open(), std::fs::File::open("/dev/null")) {
            (Err(refusal), _) => Some(NotByNic::Unasked(refusal.errno)),
            (_, Err(_)) => None,
            (Ok(netdev), Ok(file)) => match netdev.bind_rx(self.index, file.as_fd(), &[Queue::Rx(0)]) {
                // The file was looked at (dma_buf_get()): before the driver, which both ways ask for the same (net_mp_open_rxq()).
                Err(refusal) if refusal.errno == Errno::INVAL => match ring {
                    Some(NotByNic::RingRefused(errno @ Errno::OPNOTSUPP)) => {
                        Some(NotByNic::Refused { errno, says: None })
                    }
                    _ => None,
                },
                Err(refusal) => Some(NotByNic::Refused { errno: refusal.errno, says: refusal.says }),
                // Not to be; and with the socket it is unbound.
                Ok(_) => None,
            },
        };
        NicSays { devmem, ring }
    }
}

/// Memory that a NIC receives into.
pub(super) struct Nic {
    memory: DeviceMemory,
    /// The kernel's number for it.
    dmabuf: u32,
    /// None once it is unbound.
    bound: Mutex<Option<Bound>>,
    /// Where connections ask, if a ring tells of what has come.
    hub: Option<Arc<Hub>>,
    /// All of the memory's, which are nobody else's while the NIC may write there, or anybody has a fragment.
    pages: ManuallyDrop<Vec<Page>>,
    /// Not for as long as it may still write there though it is unbound; then the pages stay in memory for ever.
    let_go: AtomicU32,
    buffers: CommonPool,
    shorts: [CommonPool; SHORTS.len()],
    counts: Arc<Counts>,
}

/// By what it is bound.
enum Bound {
    Netlink(#[expect(dead_code, reason = "open, it binds")] Netdev),
    Ring(zcrx::Bound),
}

/// What has come by NICs, all bindings of a stack together.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Fragments in the memory, and their bytes.
    pub frags: AtomicU64,
    pub bytes: AtomicU64,
    /// Of these, the bytes that a ring told of.
    pub by_ring: AtomicU64,
    /// Bytes that were in the host's memory.
    pub linear: AtomicU64,
    /// Tokens that the kernel did not take back.
    pub kept: AtomicU64,
}

impl Counts {
    pub fn all(&self) -> [(&'static str, u64); 5] {
        let of = |word: &AtomicU64| word.load(Relaxed);
        [
            ("nic_frags", of(&self.frags)),
            ("nic_bytes", of(&self.bytes)),
            ("nic_ring_bytes", of(&self.by_ring)),
            ("nic_linear_bytes", of(&self.linear)),
            ("nic_tokens_kept", of(&self.kept)),
        ]
    }
}

impl Nic {
    /// Binds `memory` to queues of an interface's NIC, by device memory TCP or else by a ring. Where it is the latter, it says why not the former.
    ///
    /// # Errors
    ///
    /// [`NotByNic`]; then nothing is bound.
    pub fn bind(
        interface: &Interface,
        memory: &DeviceMemory,
        queues: &[u32],
        counts: &Arc<Counts>,
    ) -> Result<(Nic, Option<NotByNic>), NotByNic> {
        let devmem = match Nic::bind_devmem(interface, memory, queues, counts) {
            Ok(nic) => return Ok((nic, None)),
            Err(why @ (NotByNic::Shared | NotByNic::NoMemory)) => return Err(why),
            Err(why) => why,
        };
        match Nic::bind_ring(interface, memory, queues, counts) {
            Ok(nic) => Ok((nic, Some(devmem))),
            Err(why @ (NotByNic::Shared | NotByNic::NoMemory)) => Err(why),
            Err(ring) => Err(NotByNic::Neither { devmem: Box::new(devmem), ring: Box::new(ring) }),
        }
    }

    /// By device memory TCP.
    fn bind_devmem(
        interface: &Interface,
        memory: &DeviceMemory,
        queues: &[u32],
        counts: &Arc<Counts>,
    ) -> Result<Nic, NotByNic> {
        let dma_buf = memory.dma_buf().map_err(NotByNic::Memory)?;
        let netdev = Netdev::open().map_err(|refusal| NotByNic::Unasked(refusal.errno))?;
        // Before the NIC writes there.
        let pages = memory.alloc_all().map_err(|_| NotByNic::Shared)?;
        let queues: Vec<Queue> = queues.iter().copied().map(Queue::Rx).collect();
        let dmabuf = netdev
            .bind_rx(interface.index, dma_buf.as_fd(), &queues)
            .map_err(|refusal| NotByNic::Refused { errno: refusal.errno, says: refusal.says })?;
        Nic::around(memory, dmabuf, pages, Some(Bound::Netlink(netdev)), counts)
    }

    /// By a ring, of one queue: each has memory of its own (io_zcrx_create_area()).
    fn bind_ring(
        interface: &Interface,
        memory: &DeviceMemory,
        queues: &[u32],
        counts: &Arc<Counts>,
    ) -> Result<Nic, NotByNic> {
        let &[queue] = queues else { return Err(NotByNic::Queues(queues.len())) };
        // Before the NIC writes there.
        let pages = memory.alloc_all().map_err(|_| NotByNic::Shared)?;
        let bound = zcrx::Bound::new(interface.index, queue, memory)?;
        Nic::around(memory, 0, pages, Some(Bound::Ring(bound)), counts)
    }

    fn around(
        memory: &DeviceMemory,
        dmabuf: u32,
        pages: Vec<Page>,
        bound: Option<Bound>,
        counts: &Arc<Counts>,
    ) -> Result<Nic, NotByNic> {
        let pool = |order, limit| {
            let config = PoolConfig::new().order(order).limit(limit);
            PagePool::new(config, Heap::new()).map(CommonPool::new).map_err(|_| NotByNic::NoMemory)
        };
        let buffers = pool(BUFFER_ORDER, BUFFERS)?;
        let [a, b, c] = SHORTS.map(|(order, limit)| pool(order, limit));
        let hub = match &bound {
            Some(Bound::Ring(bound)) => Some(Arc::clone(bound.hub())),
            _ => None,
        };
        Ok(Nic {
            memory: memory.clone(),
            dmabuf,
            bound: Mutex::new(bound),
            hub,
            pages: ManuallyDrop::new(pages),
            let_go: AtomicU32::new(1),
            buffers,
            shorts: [a?, b?, c?],
            counts: Arc::clone(counts),
        })
    }

    /// One whose memory the kernel knows nothing of, for tests.
    #[cfg(test)]
    pub fn pretended(memory: &DeviceMemory, dmabuf: u32, counts: &Arc<Counts>) -> Nic {
        let pages = memory.alloc_all().unwrap();
        Nic::around(memory, dmabuf, pages, None, counts).unwrap()
    }

    /// The same with a ring of a test's.
    #[cfg(test)]
    pub fn pretended_by_ring(memory: &DeviceMemory, bound: zcrx::Bound, counts: &Arc<Counts>) -> Nic {
        let pages = memory.alloc_all().unwrap();
        Nic::around(memory, 0, pages, Some(Bound::Ring(bound)), counts).unwrap()
    }

    /// The NIC puts nothing more there; what it has put there stays.
    pub fn unbind(&self) {
        let bound = self.bound.lock().take();
        // Without the lock: the NIC's queues begin anew.
        if let Some(Bound::Ring(bound)) = bound
            && !bound.end()
        {
            // Relaxed: looked at by the last who has this.
            self.let_go.store(0, Relaxed);
        }
    }

    /// Where connections ask, if a ring tells of what has come.
    pub fn hub(&self) -> Option<&Arc<Hub>> {
        self.hub.as_ref()
    }

    /// Has whoever unbinds it wait, for tests.
    #[cfg(test)]
    pub fn held(&self) -> impl Sized + '_ {
        self.bound.lock()
    }

    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    pub fn dmabuf(&self) -> u32 {
        self.dmabuf
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// A page of [`BUFFER`] bytes to receive into; none where views keep all of them.
    pub fn buffer(&self) -> Option<Page> {
        self.buffers.reservoir(1).alloc().ok()
    }

    /// The same bytes, up to [`SHORT`] of them, in a page of about their size. None where views keep all of those.
    pub fn shortened(&self, bytes: &[u8]) -> Option<Page> {
        let fitting = self.shorts.iter().filter(|pool| pool.reservoir(1).page_len() as usize >= bytes.len());
        let mut page = fitting.into_iter().find_map(|pool| pool.reservoir(1).alloc().ok())?;
        page.bytes_mut()?.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(page)
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.unbind();
        // What may be written to still stays, rather than be used twice.
        if self.let_go.load(Relaxed) == 1 {
            drop(std::mem::take(&mut *self.pages));
        }
    }
}
