//! What all sockets that the kernel carries share, whichever shard they are of.

use super::config::Config;
use super::devices::Devices;
use super::nic::Interface;
use onecopy_chain::notify::zerocopy::{Account, Allowance};
use onecopy_pool::provider::Heap;
use onecopy_pool::{CommonPool, OpenError, PagePool, PoolConfig};
use onecopy_socket::Wait;
use onecopy_sync::atomic::{AtomicU64, Ordering::Relaxed};
use onecopy_uring::Refused;
use rustix::io::Errno;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// What all sockets share, whichever thread makes their requests.
pub(crate) struct Shared {
    /// Where datagrams are received that are not copied; made with the first.
    received: OnceLock<CommonPool>,
    pub(super) config: Config,
    /// Memory of devices' that connections receive into, and send from.
    pub(crate) devices: Arc<Devices>,
    /// Sends without a copy that are told of.
    pub(super) account: Account,
    /// How its sockets wait unless they say otherwise.
    pub(super) wait: Wait,
    begun: Instant,
    names: AtomicU64,
    /// Who made it: in a child of a fork there are no threads.
    pid: u32,
}

impl Shared {
    pub fn new(config: Config, wait: Wait, zerocopy: Allowance, interface: Option<Interface>) -> Shared {
        Shared {
            received: OnceLock::new(),
            config,
            devices: Arc::new(Devices::new(interface)),
            account: Account::new(zerocopy),
            wait,
            begun: Instant::now(),
            names: AtomicU64::new(0),
            pid: std::process::id(),
        }
    }

    /// A name for a new socket.
    pub(super) fn name(&self) -> u64 {
        self.names.fetch_add(1, Relaxed)
    }

    /// Pages of 4 KiB for datagrams that are not copied: as many bytes as the rings have to receive into.
    pub(super) fn received(&self) -> Result<&CommonPool, Errno> {
        if let Some(pool) = self.received.get() {
            return Ok(pool);
        }
        let pool = PagePool::new(PoolConfig::new().limit(self.received_limit()), Heap::new())
            .map_err(|_| Errno::NOBUFS)?;
        Ok(self.received.get_or_init(|| CommonPool::new(pool)))
    }

    /// How many those are.
    pub(super) fn received_limit(&self) -> u32 {
        self.config.receive_pages.max(1).saturating_mul(8)
    }

    /// Nanoseconds of a clock of its own.
    pub(super) fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Whether this is the process whose threads they are.
    pub(super) fn is_here(&self) -> bool {
        self.pid == std::process::id()
    }
}

/// Why there is none.
pub(crate) enum Failed {
    Refused(Refused),
    Pages(OpenError),
    System(Errno),
}
