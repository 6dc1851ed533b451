//! The stack's own thread, for while no other one drives.

use super::inner::Inner;
use rustix::event::Timespec;
use std::time::Duration;

impl Inner {
    /// What the thread does, until the stack ends.
    pub(super) fn run(&self) {
        let Some(sleep) = &self.sleep else { return };
        let mut shard = self.lock();
        while !self.is_stopped() {
            let mut now = self.now();
            let due = shard.deadline().is_some_and(|at| at <= now);
            if shard.leader.is_none() && shard.lease(now).is_none() || due {
                // More may be there than one batch; a peer that floods does not keep a stack that ends.
                while shard.turn(now).full && !self.is_stopped() {
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
            let until = [shard.deadline(), shard.lease(now)].into_iter().flatten().min();
            shard.runner = Some(until);
            let timeout = until.map(|at| Duration::from_nanos(at.saturating_sub(now)));
            drop(shard);
            let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
            let broken = sleep.wait(timeout.as_ref());
            shard = self.lock();
            shard.runner = None;
            if broken {
                sleep.forget(&self.link);
                shard.goes_down();
            }
        }
    }
}
