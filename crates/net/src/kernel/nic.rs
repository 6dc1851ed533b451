//! Devices' memory that a NIC receives into by itself: the kernel's own device memory TCP (Documentation/networking/devmem.rst).
//!
//! The memory's dma-buf is bound to receive queues of the NIC by a netlink socket, and is bound as long as that is open. What is set of the NIC otherwise
//! (that it splits headers, which flows come to which queue) is its administrator's, by ethtool. What comes of it to a connection is in `placed`.

use crate::carrier::NotByNic;
use onecopy_pool::provider::Heap;
use onecopy_pool::{CommonPool, DeviceMemory, Page, PagePool, Pages, PoolConfig};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU64, Ordering::Relaxed};
use onecopy_sys::netdev::{Netdev, Queue};
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
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

/// Memory that a NIC receives into.
pub(super) struct Nic {
    memory: DeviceMemory,
    /// The kernel's number for it.
    dmabuf: u32,
    /// None once it is unbound.
    bound: Mutex<Option<Netdev>>,
    /// All of the memory's, which are nobody else's while the NIC may write there, or anybody has a fragment.
    _pages: Vec<Page>,
    buffers: CommonPool,
    shorts: [CommonPool; SHORTS.len()],
    counts: Arc<Counts>,
}

/// What has come by NICs, all bindings of a stack together.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Fragments in the memory, and their bytes.
    pub frags: AtomicU64,
    pub bytes: AtomicU64,
    /// Bytes that were in the host's memory.
    pub linear: AtomicU64,
    /// Tokens that the kernel did not take back.
    pub kept: AtomicU64,
}

impl Counts {
    pub fn all(&self) -> [(&'static str, u64); 4] {
        let of = |word: &AtomicU64| word.load(Relaxed);
        [
            ("nic_frags", of(&self.frags)),
            ("nic_bytes", of(&self.bytes)),
            ("nic_linear_bytes", of(&self.linear)),
            ("nic_tokens_kept", of(&self.kept)),
        ]
    }
}

impl Nic {
    /// Binds `memory` to queues of an interface's NIC.
    ///
    /// # Errors
    ///
    /// [`NotByNic`]; then nothing is bound.
    pub fn bind(
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
        Nic::around(memory, dmabuf, pages, Some(netdev), counts)
    }

    fn around(
        memory: &DeviceMemory,
        dmabuf: u32,
        pages: Vec<Page>,
        bound: Option<Netdev>,
        counts: &Arc<Counts>,
    ) -> Result<Nic, NotByNic> {
        let pool = |order, limit| {
            let config = PoolConfig::new().order(order).limit(limit);
            PagePool::new(config, Heap::new()).map(CommonPool::new).map_err(|_| NotByNic::NoMemory)
        };
        let buffers = pool(BUFFER_ORDER, BUFFERS)?;
        let [a, b, c] = SHORTS.map(|(order, limit)| pool(order, limit));
        let (memory, bound, counts) = (memory.clone(), Mutex::new(bound), Arc::clone(counts));
        Ok(Nic { memory, dmabuf, bound, _pages: pages, buffers, shorts: [a?, b?, c?], counts })
    }

    /// One whose memory the kernel knows nothing of, for tests.
    #[cfg(test)]
    pub fn pretended(memory: &DeviceMemory, dmabuf: u32, counts: &Arc<Counts>) -> Nic {
        let pages = memory.alloc_all().unwrap();
        Nic::around(memory, dmabuf, pages, None, counts).unwrap()
    }

    /// The NIC puts nothing more there; what it has put there stays.
    pub fn unbind(&self) {
        let bound = self.bound.lock().take();
        // Closed without the lock: the NIC's queues begin anew.
        drop(bound);
    }

    /// Has whoever unbinds it wait, for tests.
    #[cfg(test)]
    pub fn held(&self) -> onecopy_sync::MutexGuard<'_, Option<Netdev>> {
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
