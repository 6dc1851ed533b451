//! Sends that are stacked before a link, and never wait there for longer than they may.

use crate::link::Link;
use crate::packet::Packet;
use onecopy_chain::notify::{Lane, Queue, Refused, Segment};
use onecopy_chain::{Chain, Checksum};
use std::time::Duration;

/// One socket's sends, stacked on a segment that is kept back for more of them, and the link it goes to: when it is full, and
/// when its first send has waited for as long as the lane's [`Limits`](onecopy_chain::notify::Limits) allow, whether or not
/// another send comes.
///
/// A link without room keeps it back for longer, until there is; so a send may be refused ([`Refused::NoRoom`]).
///
/// Time comes from the caller, in nanoseconds of any steady clock. After each send, and whenever something else wakes him, he
/// asks [`Stacked::due`] when to come back, and comes back with [`Stacked::poll`]; or he lets [`Stacked::wait`] do both while it
/// waits for completions.
#[derive(Debug)]
pub struct Stacked<L> {
    lane: Lane,
    link: L,
    kept: Segment<Chain>,
}

impl<L: Link> Stacked<L> {
    /// Sends of `lane`, that go to `link`.
    pub fn new(lane: Lane, link: L) -> Stacked<L> {
        Stacked { lane, link, kept: Segment::default() }
    }

    /// Sends `chain` behind what is kept back, or alone where it may not be stacked on that. Returns the send's number; one
    /// completion follows.
    ///
    /// # Errors
    ///
    /// The chain, and why: [`Refused::Full`], [`Refused::Closed`], and [`Refused::NoRoom`] where it may not be stacked on what the link has
    /// no room for. What was kept back may have been transmitted.
    pub fn send(&mut self, mut chain: Chain, user_data: u64, now_ns: u64) -> Result<u64, (Chain, Refused)> {
        // What is there may have to go before this one comes.
        self.poll(now_ns);
        // A chain has at most 4 GiB - 1.
        let bytes = chain.len() as u32;
        if self.kept.notif().is_some() {
            match self.stack(&mut chain, user_data, now_ns) {
                Err(why) if why.wants_fresh_segment() => {
                    if !self.flush(now_ns) {
                        return Err((chain, Refused::NoRoom));
                    }
                }
                done => return done.map_err(|why| (chain, why)),
            }
        }
        match self.lane.send(&mut self.kept, user_data, bytes, now_ns) {
            Ok(id) => {
                // It is empty, so it takes the chain.
                *self.kept.payload_mut() = chain;
                Ok(id)
            }
            Err(why) => Err((chain, why)),
        }
    }

    /// Puts `chain` behind what is kept back. Where that may not be, both are as they were.
    fn stack(&mut self, chain: &mut Chain, user_data: u64, now_ns: u64) -> Result<u64, Refused> {
        let (bytes, kept) = (chain.len() as u32, self.kept.payload_mut());
        let (before, sums) = (kept.len(), (kept.checksum(), chain.checksum()));
        if matches!(sums, (Checksum::Partial { .. }, _) | (_, Checksum::Partial { .. })) {
            // Each is a segment's own.
            return Err(Refused::Payload);
        }
        // The bytes first: whether they can be there is not known before.
        kept.concat(chain).map_err(|_| Refused::Payload)?;
        let sent = self.lane.send_at(&mut self.kept, before as u32, user_data, bytes, now_ns);
        if sent.is_err() {
            let kept = self.kept.payload_mut();
            // Nothing is in the way of a cut: no checksum is to be finished.
            *chain = kept.split_off(before).unwrap_or_default();
            let _ = (kept.set_checksum(sums.0), chain.set_checksum(sums.1));
        }
        sent
    }

    /// Transmits what is kept back, if anything is. False where the link has no room for it.
    pub fn flush(&mut self, now_ns: u64) -> bool {
        if self.kept.notif().is_none() && self.kept.payload().is_empty() {
            return true;
        }
        let room = self.link.room(now_ns) > 0;
        if room {
            self.link.transmit(now_ns, Packet::from(std::mem::take(&mut self.kept)));
        }
        room
    }

    /// When [`Stacked::poll`] has to be called at the latest; None while nothing is kept back.
    pub fn due(&self) -> Option<u64> {
        self.lane.due(&self.kept)
    }

    /// Transmits what is kept back, if it is time, and the link has room. Whether it did.
    pub fn poll(&mut self, now_ns: u64) -> bool {
        self.due().is_some_and(|due| due <= now_ns) && self.flush(now_ns)
    }

    /// Waits for completions at most `limit`, and transmits meanwhile what is kept back when it is time. `now_ns` is the clock of
    /// the sends. Whether there are completions, as [`Queue::wait`].
    pub fn wait(&mut self, queue: &mut Queue, limit: Option<Duration>, now_ns: impl Fn() -> u64) -> bool {
        let began = now_ns();
        loop {
            let now = now_ns();
            self.poll(now);
            let left =
                limit.map(|limit| limit.saturating_sub(Duration::from_nanos(now.saturating_sub(began))));
            // What is due is kept back by the link.
            let until = match self.due() {
                Some(due) if due <= now => {
                    Some(self.link.deadline().map_or(1, |room| room.saturating_sub(now)))
                }
                due => due.map(|due| due - now),
            };
            let nap = [left, until.map(Duration::from_nanos)].into_iter().flatten().min();
            if queue.wait(nap) {
                return true;
            }
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
        }
    }

    /// The link.
    pub fn link(&self) -> &L {
        &self.link
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sink;
    use onecopy_chain::notify::{Completion, Config, Context, Limits};
    use onecopy_chain::{Sum, Writer};
    use onecopy_pool::{PagePool, PoolConfig, provider::Heap};
    use std::time::Instant;

    const MS: u64 = 1_000_000;

    fn stacked(limits: Limits) -> (Stacked<Sink>, Queue) {
        let (context, queue) = Context::new();
        let lane = context.lane(Config { capacity: 7, limits }).unwrap();
        (Stacked::new(lane, Sink::new()), queue)
    }

    fn pool() -> PagePool {
        PagePool::new(PoolConfig::new(), Heap::new()).unwrap()
    }

    fn chain(pool: &PagePool, bytes: &[u8]) -> Chain {
        let mut chain = Chain::new();
        Writer::new(pool).append(&mut chain, bytes).unwrap();
        chain
    }

    fn numbers(queue: &mut Queue) -> Vec<u64> {
        let mut all = Vec::new();
        queue.reap(|Completion { user_data, how, .. }| {
            assert!(!how.dropped);
            all.push(user_data);
        });
        all
    }

    #[test]
    fn nothing_is_kept_back_for_longer_than_it_may_be() {
        let (mut stacked, mut queue) = stacked(Limits { age: Duration::from_millis(1), ..Limits::default() });
        let pool = pool();
        assert_eq!((stacked.due(), stacked.poll(u64::MAX)), (None, false));
        stacked.send(chain(&pool, b"one"), 1, 10 * MS).unwrap();
        stacked.send(chain(&pool, b"two"), 2, 10 * MS + 900_000).unwrap();
        // The age is the first one's, and no further send has to come.
        assert_eq!(stacked.due(), Some(11 * MS));
        assert!(!stacked.poll(11 * MS - 1));
        assert_eq!((numbers(&mut queue), stacked.link().sunk().segments), (vec![], 0));
        assert!(stacked.poll(11 * MS));
        assert_eq!((numbers(&mut queue), stacked.link().sunk().segments), (vec![1, 2], 1));
        assert_eq!(stacked.due(), None);
        // One that comes too late to be stacked sends off what is there.
        stacked.send(chain(&pool, b"three"), 3, 20 * MS).unwrap();
        stacked.send(chain(&pool, b"four"), 4, 22 * MS).unwrap();
        assert_eq!((numbers(&mut queue), stacked.due()), (vec![3], Some(23 * MS)));
    }

    #[test]
    fn who_waits_for_completions_need_not_send_to_have_them() {
        let (mut stacked, mut queue) =
            stacked(Limits { age: Duration::from_millis(20), ..Limits::default() });
        let start = Instant::now();
        let clock = || start.elapsed().as_nanos() as u64;
        let sent = clock();
        stacked.send(chain(&pool(), b"the only one"), 1, sent).unwrap();
        // Not before it is time (which it may be when this thread next has a CPU)...
        assert!(!stacked.wait(&mut queue, Some(Duration::ZERO), || sent));
        // ... and then without anybody else: without a limit it would wait for ever.
        assert!(stacked.wait(&mut queue, None, clock));
        assert!(clock() >= 20 * MS);
        assert_eq!(numbers(&mut queue), [1]);
        assert!(!stacked.wait(&mut queue, Some(Duration::from_millis(1)), clock));
    }

    #[test]
    fn what_may_not_be_stacked_goes_alone_and_what_is_refused_comes_back() {
        let (mut stacked, mut queue) = stacked(Limits { bytes: 10, ..Limits::default() });
        let (pool, other) = (pool(), pool());
        let sent = |stacked: &Stacked<Sink>| stacked.link().sunk();
        stacked.send(chain(&pool, &[1; 6]), 1, 0).unwrap();
        stacked.send(chain(&other, &[2; 4]), 2, 0).unwrap();
        assert_eq!(sent(&stacked).segments, 0);
        stacked.send(chain(&pool, &[3; 1]), 3, 0).unwrap();
        assert_eq!((sent(&stacked).segments, sent(&stacked).bytes), (1, 10));
        // A checksum that covers one of them only.
        let mut partial = chain(&pool, &[4; 8]);
        partial.set_checksum(Checksum::Partial { start: 0, offset: 2 }).unwrap();
        stacked.send(partial, 4, 0).unwrap();
        assert_eq!(sent(&stacked).segments, 2);
        stacked.send(chain(&pool, &[5; 1]), 5, 0).unwrap();
        assert_eq!(sent(&stacked).segments, 3);
        // A lane of 7 is full with two more; nothing was reaped.
        for number in [6, 7] {
            stacked.send(chain(&pool, &[6; 1]), number, 0).unwrap();
        }
        let mut known = chain(&pool, &[8; 2]);
        known.set_checksum(Checksum::Known(Sum::of(&[8; 2]))).unwrap();
        let (back, why) = stacked.send(known, 8, 0).unwrap_err();
        assert_eq!((why, back.len()), (Refused::Full { capacity: 7 }, 2));
        assert_eq!(back.checksum(), Checksum::Known(Sum::of(&[8; 2])));
        assert!(stacked.flush(0));
        assert_eq!((sent(&stacked).segments, sent(&stacked).bytes), (4, 22), "the refused one is not there");
        assert_eq!(numbers(&mut queue), [1, 2, 3, 4, 5, 6, 7]);
        stacked.send(back, 8, 0).unwrap();
        // Dropped, what is kept back is not transmitted, and told so.
        drop(stacked);
        let mut dropped = false;
        queue.reap(|completion| dropped = completion.how.dropped);
        assert!(dropped);
    }

    #[test]
    fn a_link_without_room_keeps_back_what_is_due() {
        use crate::pair::{Pair, PairConfig, Path};
        use crate::{Capabilities, Link, Medium};
        let path = Path::new().in_flight(1).delay(Duration::from_millis(5));
        let config = PairConfig::new().capabilities(Capabilities::none(Medium::Ip, 1500)).both(path);
        let Pair { a, mut b, wire: _wire } = Pair::new(config);
        let (context, mut queue) = Context::new();
        let limits = Limits { bytes: 10, age: Duration::from_millis(1), ..Limits::default() };
        let lane = context.lane(Config { capacity: 7, limits }).unwrap();
        let (mut stacked, pool) = (Stacked::new(lane, a), pool());
        stacked.send(chain(&pool, b"one"), 1, 0).unwrap();
        assert!(stacked.poll(MS), "it goes");
        stacked.send(chain(&pool, b"two"), 2, MS).unwrap();
        assert!(!stacked.poll(2 * MS), "the link has no room");
        // What is still young may be stacked on it, and nothing else goes in its place.
        let (back, why) = stacked.send(chain(&pool, b"much more"), 3, 2 * MS).unwrap_err();
        assert_eq!((back.len(), why, why.wants_fresh_segment()), (9, Refused::NoRoom, false));
        stacked.send(chain(&pool, b"three"), 3, 2 * MS).unwrap();
        assert_eq!(stacked.link().deadline(), Some(6 * MS), "one is on its way");
        drop(b.receive(6 * MS).expect("the first"));
        assert_eq!(numbers(&mut queue), [1]);
        assert!(stacked.poll(6 * MS));
        assert_eq!(b.receive(11 * MS).expect("both").to_vec().unwrap(), b"twothree");
        assert_eq!(numbers(&mut queue), [2, 3]);
    }
}
