//! A stack's descriptor for a program that has a poll loop of its own, and drives the stack from there.

use super::interest::Interest;
use super::shard::Shard;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Readable while there is something to receive, or something is due: the link, and a timer.
#[derive(Debug)]
pub(super) struct Descriptor {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Descriptor {
    pub fn new(link: impl AsFd) -> rustix::io::Result<Descriptor> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &timer, EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&epoll, &link, EventData::new_u64(1), EventFlags::empty())?;
        Ok(Descriptor { epoll, timer })
    }

    /// Readable from `left` on; none: not by time.
    fn arm(&self, left: Option<Duration>) {
        let zero = Timespec::default();
        // (Zero would mean never.)
        let left =
            left.map_or(zero, |left| Timespec::try_from(left.max(Duration::from_nanos(1))).unwrap_or(zero));
        // It fails for times that are none, which this is not.
        let _ = timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: zero, it_value: left },
        );
    }

    /// Has it tell what there is to do from here on. While another thread drives, that is nothing.
    pub fn describe(&self, link: &OwnedFd, shard: &mut Shard, now: u64) {
        if shard.is_down() {
            // It would be readable for ever.
            let _ = epoll::delete(&self.epoll, link);
            shard.watched = Interest::default();
        } else {
            let taken = shard.leader.is_some();
            let wanted = if taken { Interest::default() } else { shard.interest(now) };
            if wanted != shard.watched {
                shard.watched = wanted;
                let _ = epoll::modify(&self.epoll, link, EventData::new_u64(1), wanted.flags());
            }
        }
        // A timer that rings too early costs a call that finds nothing; to set it anew each time that one moves back, as those of a connection in
        // use do with each ACK, would cost a system call each.
        if let Some(due) = shard.deadline()
            && shard.armed.is_none_or(|at| due < at)
        {
            shard.armed = Some(due);
            self.arm(Some(Duration::from_nanos(due.saturating_sub(now))));
        }
    }

    /// Somebody looks: what the timer rang for is seen to, and a link that is gone.
    pub fn looked_at(&self, link: &OwnedFd, shard: &mut Shard, now: u64) {
        if shard.armed.is_some_and(|at| at <= now) {
            shard.armed = None;
            self.arm(None);
        }
        let mut fds = [PollFd::new(link, PollFlags::empty())];
        if !shard.is_down()
            && poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
        {
            shard.goes_down();
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
