//! The stack's own thread, for while no other one drives.

use super::Inner;
use super::inbox::Mesh;
use super::shard::Interest;
use onecopy_sys::eventfd::EventFd;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

const WAKE: u64 = 0;
const LINK: u64 = 1;
const INBOX: u64 = 2;

/// What the thread sleeps on: the link, unless another thread drives, and a descriptor to wake it with.
#[derive(Debug)]
pub(super) struct Sleep {
    epoll: OwnedFd,
    wake: EventFd,
}

pub(super) fn flags(interest: Interest) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, interest.read);
    flags.set(EventFlags::OUT, interest.write);
    flags
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
        let _ = epoll::modify(&self.epoll, link, EventData::new_u64(LINK), flags(interest));
        if let Some(mesh) = mesh {
            let interest = Interest { write: false, ..interest };
            let _ = epoll::modify(&self.epoll, mesh.bell(), EventData::new_u64(INBOX), flags(interest));
        }
    }

    /// The link is gone: it would wake the thread for ever.
    pub fn forget(&self, link: impl AsFd) {
        let _ = epoll::delete(&self.epoll, link);
    }
}

impl Inner {
    /// What the thread does, until the stack ends.
    pub(super) fn run(&self) {
        let Some(sleep) = &self.sleep else { return };
        let mut buffer = [MaybeUninit::<Event>::uninit(); 3];
        let mut shard = self.lock();
        while !self.is_stopped() {
            let mut now = self.now();
            let due = shard.inet().deadline().is_some_and(|at| at <= now);
            if shard.leader.is_none() && shard.lease(now).is_none() || due {
                // More may be there than one batch.
                while shard.turn(now).full {
                    self.finish(&mut shard, now);
                    shard = shard.give_way();
                    // Others had the lock, and a later time: with the one from before, timestamps would go back, and the peer
                    // drop what has them (PAWS).
                    now = self.now();
                }
            }
            self.finish(&mut shard, now);
            // While another thread drives, that one sees to what is due. This one wakes then all the same: else each thread that stops
            // driving would have to wake it, to tell it of a timer.
            let until = [shard.inet().deadline(), shard.lease(now)].into_iter().flatten().min();
            shard.runner = Some(until);
            let timeout = until.map(|at| Duration::from_nanos(at.saturating_sub(now)));
            drop(shard);
            let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
            let mut broken = false;
            if let Ok((events, _)) = epoll::wait(&sleep.epoll, &mut buffer, timeout.as_ref()) {
                for event in events {
                    let flags = event.flags;
                    match event.data.u64() {
                        WAKE => drop(sleep.wake.drain()),
                        // Whoever takes out what is there silences it.
                        INBOX => {}
                        _ => broken |= flags.intersects(EventFlags::ERR | EventFlags::HUP),
                    }
                }
            }
            shard = self.lock();
            shard.runner = None;
            if broken {
                sleep.forget(&self.link);
                shard.goes_down();
            }
        }
    }
}
