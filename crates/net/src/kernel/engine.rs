//! The kernel as a transport: all its shards, and the threads that make their requests.

use super::config::Config;
use super::nic::Interface;
use super::shared::{Failed, Shared};
use super::submitter::{RINGS, Submitter, Submitters};
use onecopy_chain::notify::zerocopy::{Account, Allowance};
use onecopy_socket::Wait;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Shards of a stack, at most.
pub(crate) const MOST_SHARDS: u32 = 64;

/// The kernel as a transport: ended with its last handle.
pub(crate) struct Kernel {
    shared: Arc<Shared>,
    submitters: Arc<Submitters>,
    threads: Vec<JoinHandle<()>>,
    linger: Duration,
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
        let shared = Arc::new(Shared::new(config, wait, zerocopy, interface));
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
