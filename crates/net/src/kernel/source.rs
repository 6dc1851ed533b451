//! Device memory under the kernel's TCP, the other way: what a connection sends of bound memory is taken from there by the send's own copy, and by
//! nothing else.
//!
//! The ring's thread makes the write (IORING_OP_WRITEV_FIXED) when it is the bytes' turn, by the ring that the pages are registered with. It does not
//! wait for room: where there is none the thread's own ring tells of some. (A write to a peer that is gone makes SIGPIPE, too, where a send says
//! MSG_NOSIGNAL. All signals of that thread are blocked.)

use onecopy_chain::{Chain, Kind};
use onecopy_link::Registered;
use onecopy_sync::Mutex;
use onecopy_uring::MOST_PLACES;
use rustix::io::Errno;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Memory that is sent from: as long as it is bound, or some of it is under way.
pub(super) struct Source {
    memory: u64,
    /// Held while the kernel copies.
    pages: Mutex<Registered>,
}

impl Source {
    pub fn new(registered: Registered) -> Source {
        Source { memory: registered.memory().id(), pages: Mutex::new(registered) }
    }

    /// Its pool.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Writes what is at the front of `data` to a socket, as much as it takes now: how many bytes.
    pub fn write(&self, fd: &OwnedFd, data: &Chain) -> Result<usize, Errno> {
        self.pages.lock().write(fd, data)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({})", self.memory)
    }
}

/// What a connection sends from.
#[derive(Debug, Default)]
pub(super) struct Sources(Vec<Arc<Source>>);

impl Sources {
    /// Those of the bytes of `chain`, none for the host's, as `bound` has them. None where some lie in memory that is not bound.
    pub fn of(chain: &Chain, bound: impl Fn(u64) -> Option<Arc<Source>>) -> Option<Sources> {
        let mut sources = Sources::default();
        if chain.kind() == Some(Kind::Device) {
            for fragment in chain.fragments() {
                let memory = fragment.page().pool_id();
                if sources.find(memory).is_none() {
                    sources.0.push(bound(memory)?);
                }
            }
        }
        Some(sources)
    }

    pub fn find(&self, memory: u64) -> Option<&Arc<Source>> {
        self.0.iter().find(|source| source.memory == memory)
    }

    /// Keeps those of `other` as well.
    pub fn keep(&mut self, other: &Sources) {
        for source in &other.0 {
            if self.find(source.memory).is_none() {
                self.0.push(Arc::clone(source));
            }
        }
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Bytes at the front of `chains` that one write takes, where they lie in one memory.
pub(super) fn one_write<'a>(chains: impl Iterator<Item = &'a Chain>) -> u64 {
    let parts = chains.flat_map(Chain::fragments).take(MOST_PLACES);
    parts.map(|part| part.len() as u64).sum()
}
