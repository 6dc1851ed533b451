//! The kernel as a transport: what all its sockets share, and the threads that make their requests.

use super::config::Config;
use super::devices::Devices;
use super::nic::Interface;
use super::submitter::{RINGS, Submitter, Submitters};
use onecopy_chain::notify::zerocopy::{Account, Allowance};
use onecopy_pool::provider::Heap;
use onecopy_pool::{CommonPool, OpenError, PagePool, PoolConfig};
use onecopy_socket::Wait;
use onecopy_sync::atomic::{AtomicU64, Ordering::Relaxed};
use onecopy_uring::Refused;
use rustix::io::Errno;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Shards of a stack, at most.
pub(crate) const MOST_SHARDS: u32 = 64;

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
    /// A name for a new socket.
    pub(super) fn name(&self) -> u64 {
        self.names.fetch_add(1, Relaxed)
    }

    /// Pages of 4 KiB for datagrams that are not copied: as many bytes as the rings have to receive into.
    pub(super) fn received(&self) -> Result<&CommonPool, Errno> {
        if let Some(pool) = self.received.get() {
            return Ok(pool);
        }
        let limit = self.config.receive_pages.max(1).saturating_mul(8);
        let pool = PagePool::new(PoolConfig::new().limit(limit), Heap::new()).map_err(|_| Errno::NOBUFS)?;
        Ok(self.received.get_or_init(|| CommonPool::new(pool)))
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

/// The kernel as a transport: ended with its last handle.
pub(crate) struct Kernel {
    shared: Arc<Shared>,
    submitters: Arc<Submitters>,
    threads: Vec<JoinHandle<()>>,
    linger: Duration,
}

/// Why there is none.
pub(crate) enum Failed {
    Refused(Refused),
    Pages(OpenError),
    System(Errno),
}

impl Kernel {
    /// With so many shards, each of which has a ring and the thread that makes its requests.
    pub fn start(
        config: Config,
        shards: u32,
        wait: Wait,
        linger: Duration,
        zerocopy: Allowance,
        interface: Option<Interface>,
    ) -> Result<Kernel, Failed> {
        let shared = Arc::new(Shared {
            received: OnceLock::new(),
            config,
            devices: Arc::new(Devices::new(interface)),
            account: Account::new(zerocopy),
            wait,
            begun: Instant::now(),
            names: AtomicU64::new(0),
            pid: std::process::id(),
        });
        let (mut all, mut threads) = (Vec::new(), Vec::new());
        for _ in 0..shards {
            match Submitter::start(&shared) {
                Ok((submitter, thread)) => {
                    all.push(submitter);
                    threads.push(thread);
                }
                Err(failed) => {
                    // Those that there are end.
                    drop(Kernel { shared, submitters: Arc::new(Submitters::new(all)), threads, linger });
                    return Err(failed);
                }
            }
        }
        Ok(Kernel { shared, submitters: Arc::new(Submitters::new(all)), threads, linger })
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn submitters(&self) -> &Arc<Submitters> {
        &self.submitters
    }

    /// What is charged for sends without a copy.
    pub fn account(&self) -> &Account {
        &self.shared.account
    }

    pub fn wait_mode(&self) -> Wait {
        self.shared.wait
    }

    /// Whether all threads are there.
    pub fn is_up(&self) -> bool {
        self.shared.is_here() && self.threads.iter().all(|thread| !thread.is_finished())
    }

    pub fn shards(&self) -> u32 {
        self.submitters.all().len() as u32
    }

    /// What the rings have counted, all together.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all: Vec<_> = RINGS.into_iter().map(|name| (name, 0)).collect();
        for submitter in self.submitters.all() {
            all.iter_mut().zip(submitter.counters()).for_each(|(sum, (_, count))| sum.1 += count);
        }
        all.push(("gathered_bytes", self.shared.devices.gathered()));
        all.extend(self.shared.devices.by_nic());
        all
    }

    /// What the ring of one shard has counted; None where there is no such shard.
    pub fn counters_of(&self, shard: u32) -> Option<Vec<(&'static str, u64)>> {
        Some(self.submitters.all().get(shard as usize)?.counters().collect())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let threads = std::mem::take(&mut self.threads);
        if !self.shared.is_here() {
            // The child of a fork: the threads, the rings and what they hold are the parent's.
            std::mem::forget(threads);
            return;
        }
        let until = Instant::now() + self.linger;
        for submitter in self.submitters.all() {
            submitter.stop(until);
        }
        // What is freed on one of them may hold the last handle; they then end by themselves.
        if threads.iter().all(|one| one.thread().id() != thread::current().id()) {
            for thread in threads {
                // A panic of it has been told already.
                let _ = thread.join();
            }
        }
    }
}
