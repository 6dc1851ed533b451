//! Memory of a device's that connections of the kernel's receive into.

use super::nic::Nic;
use crate::carrier::{Event, Frag, Hunger};
use onecopy_link::Registered;
use onecopy_pool::{DeviceMemory, Part};
use onecopy_sync::Mutex;
use onecopy_uring::MOST_PLACES;
use rustix::io::Errno;
use rustix::net;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes that one read takes.
const MOST: usize = 1 << 20;
/// Events that nobody has asked for.
const EVENTS: usize = 64;

/// Memory that is bound.
pub(super) struct Landing {
    id: u32,
    memory: DeviceMemory,
    queues: Vec<u32>,
    /// Where pages come from that programs have given back without a call.
    hunger: Arc<Hunger>,
    /// None once it is unbound. Held while the kernel copies.
    pub(super) pages: Mutex<Option<Registered>>,
    /// Who puts payload there instead of the kernel's copy.
    nic: Option<Arc<Nic>>,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    starved: bool,
    events: VecDeque<Event>,
}

/// Why nothing was read.
pub(super) enum NotRead {
    /// It is bound no more.
    Unbound,
    /// None of its pages is free.
    Starved,
    /// The connection's program has as many of its fragments as it may; others' may go on.
    Held,
    Errno(Errno),
    /// The kernel does not tell of what a NIC has received.
    Untold(Errno),
    /// Nothing yet: a ring receives, and its thread tells whoever waits.
    Coming,
    /// A NIC has put it into memory that is bound no more, and nobody tells where.
    Lost,
}

/// What puts payload into memory.
pub(super) enum Way {
    /// The receive's own copy.
    Copy(Box<Registered>),
    Nic(Nic),
}

impl Landing {
    /// Bound to these queues, by number `id`.
    pub fn new(id: u32, way: Way, queues: &[u32], hunger: Arc<Hunger>) -> Landing {
        let (memory, pages, nic) = match way {
            Way::Copy(registered) => (registered.memory().clone(), Some(*registered), None),
            Way::Nic(nic) => (nic.memory().clone(), None, Some(Arc::new(nic))),
        };
        let (pages, told) = (Mutex::new(pages), Mutex::default());
        Landing { id, memory, queues: queues.to_vec(), hunger, pages, nic, told }
    }

    /// Who puts payload there, if it is a NIC.
    pub fn nic(&self) -> Option<&Arc<Nic>> {
        self.nic.as_ref()
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn queues(&self) -> &[u32] {
        &self.queues
    }

    /// It is bound no more, behind a read that is under way.
    pub fn unbind(&self) {
        if let Some(nic) = &self.nic {
            nic.unbind();
        }
        let pages = self.pages.lock().take();
        drop(pages);
    }

    /// What has happened to it.
    pub fn event(&self) -> Option<Event> {
        self.told.lock().events.pop_front()
    }

    /// Without a wait for who reads, who shows that it is. What a NIC has put there is received so for good: what the socket has may be there, whatever is bound by now.
    pub fn is_bound(&self) -> bool {
        self.nic.is_some() || self.pages.try_lock().is_none_or(|pages| pages.is_some())
    }

    /// Reads up to `n` bytes of what a socket has into at most `most` parts.
    pub fn read(&self, fd: &OwnedFd, n: usize, most: usize) -> std::result::Result<Vec<Part>, NotRead> {
        let mut pages = self.pages.lock();
        let Some(registered) = &mut *pages else { return Err(NotRead::Unbound) };
        // No more than there is something for: others draw from the same memory.
        let there = rustix::io::ioctl_fionread(fd).map_or(MOST, |there| there as usize);
        let n = n.min(there.max(1).next_multiple_of(self.memory.page_len() as usize));
        let Some(mut parts) = self.draw(n, most) else {
            // The end, and nothing at all, take no page.
            return match look(fd).map_err(NotRead::Errno)? {
                0 => Ok(Vec::new()),
                _ => {
                    self.tell(true);
                    Err(NotRead::Starved)
                }
            };
        };
        self.tell(false);
        let len = loop {
            match registered.read(fd, &parts) {
                Err(Errno::INTR) => {}
                read => break read.map_err(NotRead::Errno)?,
            }
        };
        // Before anybody looks at what is free.
        self.memory.trim(&mut parts, len);
        Ok(parts)
    }

    /// Pages for up to `n` bytes, or for fewer where no more are free.
    fn draw(&self, n: usize, most: usize) -> Option<Vec<Part>> {
        let each = self.memory.page_len() as usize;
        let mut room = n.min(MOST).next_multiple_of(each);
        let mut rings = Some(&self.hunger);
        let mut parts = loop {
            match self.memory.alloc(room) {
                Ok(parts) => break parts,
                // (The caller looks again if it was too little.)
                Err(_) if rings.take().is_some_and(|rings| rings.take() > 0) => {}
                Err(_) if room == each => return None,
                Err(_) => room = (room / 2).next_multiple_of(each),
            }
        };
        parts.truncate(most.min(MOST_PLACES));
        self.memory.trim(&mut parts, n);
        Some(parts)
    }

    /// Tells whoever asks for events that something waits for a page, or does no more.
    pub(super) fn tell(&self, starved: bool) {
        let mut told = self.told.lock();
        if told.starved != starved {
            told.starved = starved;
            let event = if starved { Event::Starved } else { Event::Fed };
            if told.events.len() < EVENTS {
                told.events.push_back(event);
            }
        }
    }

    /// Calls what takes from a socket otherwise, or looks at it, while the ring does not.
    pub fn while_bound<R>(
        &self,
        call: impl FnOnce() -> std::result::Result<R, Errno>,
    ) -> std::result::Result<R, NotRead> {
        let pages = self.pages.lock();
        if pages.is_none() {
            return Err(NotRead::Unbound);
        }
        call().map_err(NotRead::Errno)
    }

    pub fn frag(&self, part: &Part) -> Frag {
        let offset = self.memory.place(part).unwrap_or_default();
        Frag { offset, len: part.len() as u32, token: 0, binding: self.id }
    }
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Landing({} of {:?})", self.id, self.memory)
    }
}

/// Whether a socket has something: 1, or 0 at the end.
pub(super) fn look(fd: &OwnedFd) -> std::result::Result<usize, Errno> {
    let how = net::RecvFlags::PEEK | net::RecvFlags::DONTWAIT;
    net::recv(fd, &mut [0; 1], how).map(|(len, _)| len)
}
