//! What the stack's own thread sleeps on.

use super::inbox::Mesh;
use super::interest::Interest;
use onecopy_sys::eventfd::EventFd;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

const WAKE: u64 = 0;
const LINK: u64 = 1;
const INBOX: u64 = 2;

/// What the thread sleeps on: the link, unless another thread drives, and a descriptor to wake it with.
#[derive(Debug)]
pub(super) struct Sleep {
    epoll: OwnedFd,
    wake: EventFd,
}

impl Sleep {
    /// For a thread that nothing of `link`, nor of what other shards hand over, wakes yet.
    pub fn new(link: impl AsFd, mesh: Option<&Mesh>) -> rustix::io::Result<Sleep> {
        let (epoll, wake) = (epoll::create(CreateFlags::CLOEXEC)?, EventFd::new()?);
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        epoll::add(&epoll, &link, EventData::new_u64(LINK), EventFlags::empty())?;
        if let Some(mesh) = mesh {
            epoll::add(&epoll, mesh.bell(), EventData::new_u64(INBOX), EventFlags::empty())?;
        }
        Ok(Sleep { epoll, wake })
    }

    /// Wakes it.
    pub fn ring(&self) {
        self.wake.ring();
    }

    /// From here on this of the link wakes it; what other shards hand over does as what comes by the link.
    pub fn watch(&self, link: impl AsFd, mesh: Option<&Mesh>, interest: Interest) {
        // Nothing that it can fail of applies but a link that was forgotten, which is not watched any more.
        let _ = epoll::modify(&self.epoll, link, EventData::new_u64(LINK), interest.flags());
        if let Some(mesh) = mesh {
            let interest = Interest { write: false, ..interest };
            let _ = epoll::modify(&self.epoll, mesh.bell(), EventData::new_u64(INBOX), interest.flags());
        }
    }

    /// Sleeps until something wakes it, at most for `limit`. Returns whether the link is gone.
    pub fn wait(&self, limit: Option<&Timespec>) -> bool {
        let mut buffer = [MaybeUninit::<Event>::uninit(); 3];
        let mut broken = false;
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut buffer, limit) {
            for event in events {
                let flags = event.flags;
                match event.data.u64() {
                    WAKE => drop(self.wake.drain()),
                    // Whoever takes out what is there silences it.
                    INBOX => {}
                    _ => broken |= flags.intersects(EventFlags::ERR | EventFlags::HUP),
                }
            }
        }
        broken
    }

    /// The link is gone: it would wake the thread for ever.
    pub fn forget(&self, link: impl AsFd) {
        let _ = epoll::delete(&self.epoll, link);
    }
}
