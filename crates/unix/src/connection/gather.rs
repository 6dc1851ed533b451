//! Letting small messages gather: a receiver that keeps up looks less often.
//!
//! A look at an empty ring takes the sender's cache line away from it, and the next message has to fetch it back. Where messages are small and come at once, the
//! receiver catches up again and again, both sides fetch that line for each message, and neither gets on. (A network card has the same trouble with
//! interrupts, and the same way out: rx-usecs of ethtool(8).)

use onecopy_sync::atomic::spin_loop;
use std::time::{Duration, Instant};

/// Half of the time for which a receive lets messages gather. (Behind the first half it looks: a sender that has stopped by then is not waited for again.)
const HALF: Duration = Duration::from_nanos(500);
/// Looks until a message came that came at once.
const AT_ONCE: u32 = 8;
/// Bytes in the ring at most where one came: of larger messages the copies cost more than the line.
const SMALL: usize = 4096;
/// Receives in a row that caught up and had a small message at once, until it is tried to let some gather; at first and at most.
const FIRST: u16 = 4;
const LAST: u16 = 4096;
/// So many times as much has to be there then as without.
const WORTH: usize = 4;
/// Waits with gathering until it is looked again what comes without.
const ANEW: u16 = 256;

/// What a receiving side knows of the messages that it waits for.
#[derive(Debug)]
pub struct Gather {
    /// Bytes that this side had sent at the last look: one that sends answers, and is waited for.
    sent: u64,
    /// The most that was there of those that came at once.
    most: usize,
    /// Receives in a row that caught up and had one at once.
    at_once: u16,
    /// How many it takes to try.
    needs: u16,
    /// Waits in a row that have let some gather.
    gathered: u16,
    /// The wait under way lets some gather: bytes that were there behind the first half, and at the end.
    there: Option<[usize; 2]>,
}

impl Default for Gather {
    fn default() -> Gather {
        Gather { sent: 0, most: 0, at_once: 0, needs: FIRST, gathered: 0, there: None }
    }
}

impl Gather {
    /// A wait begins, of a side that has sent so many bytes. Returns whether it should let messages gather.
    #[inline]
    pub fn begins(&mut self, sent: u64) -> bool {
        self.there = None;
        if sent != self.sent {
            (self.sent, self.at_once) = (sent, 0);
        }
        self.at_once >= self.needs
    }

    /// Lets messages gather. `look` says how many bytes there are, and looks again if there are no more than so many.
    #[cold]
    pub fn pass<E>(&mut self, mut look: impl FnMut(usize) -> Result<usize, E>) -> Result<(), E> {
        spin();
        let half = look(0)?;
        spin();
        self.there = Some([half, look(half)?]);
        Ok(())
    }

    /// The wait is over: after `looks` there are `available` bytes.
    #[inline]
    pub fn ends(&mut self, looks: u32, available: usize) {
        if let Some([half, all]) = self.there {
            // It goes on for as long as it pays. Where it does not, it is tried more and more rarely.
            let pays = half > 0 && all > half && all >= WORTH * self.most;
            self.gathered = if pays { self.gathered + 1 } else { 0 };
            self.needs = if pays { FIRST } else { (self.needs * 2).min(LAST) };
            if !pays || self.gathered == ANEW {
                (self.at_once, self.gathered) = (0, 0);
            }
        } else if looks <= AT_ONCE && available <= SMALL {
            self.most = if self.at_once == 0 { available } else { self.most.max(available) };
            self.at_once = self.at_once.saturating_add(1);
        } else {
            self.at_once = 0;
        }
    }

    /// The wait was in vain.
    pub fn in_vain(&mut self) {
        self.ends(u32::MAX, 0);
    }
}

/// Spins for half of the time.
fn spin() {
    let began = Instant::now();
    while began.elapsed() < HALF {
        for _ in 0..4 {
            spin_loop();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// A wait of a side that sent nothing, with what is there without gathering, after half of it, and in the end. Whether it gathered.
    fn wait(gather: &mut Gather, looks: u32, alone: usize, there: [usize; 2]) -> bool {
        let gathers = gather.begins(0);
        if gathers {
            let look = |than: usize| Ok::<_, Infallible>(if there[0] > than { there[0] } else { there[1] });
            gather.pass(look).unwrap();
        }
        gather.ends(looks, if gathers { there[1] } else { alone });
        gathers
    }

    #[test]
    fn small_messages_that_come_at_once_gather_for_as_long_as_it_pays() {
        let mut gather = Gather::default();
        let waits = (0..1000).filter(|_| wait(&mut gather, 1, 72, [500, 1000])).count();
        // What comes without is looked at again now and then.
        assert_eq!(waits, 1000 - 4 * usize::from(FIRST));
        // Twice as much is not worth a microsecond.
        assert!(wait(&mut gather, 1, 72, [72, 144]));
        assert!(!wait(&mut gather, 1, 72, [72, 144]));
    }

    #[test]
    fn where_it_does_not_pay_it_is_tried_ever_more_rarely() {
        // One message by the end; one that is longer than others; a sender that has stopped by half of the time; nothing at all.
        for there in [[72, 72], [0, 2000], [2000, 2000], [0, 0]] {
            let mut gather = Gather::default();
            let waits = (0..100_000).filter(|_| wait(&mut gather, 1, 72, there)).count();
            // Behind 4, 8, 16, ... 4096 waits without, and then behind 4096 each.
            assert!((20..=40).contains(&waits), "{there:?}: {waits}");
            for _ in 0..LAST {
                wait(&mut gather, 1, 72, there);
            }
            assert!((0..2 * LAST).any(|_| wait(&mut gather, 1, 72, [500, 1000])), "it is tried all the same");
        }
    }

    #[test]
    fn what_is_long_by_itself_has_not_gathered() {
        let mut gather = Gather::default();
        let mut waits = 0;
        for i in 0..10_000 {
            let alone = if i % 4 == 0 { 16 } else { 136 };
            waits += usize::from(wait(&mut gather, 1, alone, [alone, alone + 136]));
        }
        assert!(waits <= 20, "{waits}");
    }

    #[test]
    fn answers_large_messages_and_those_that_take_their_time_are_waited_for() {
        let mut gather = Gather::default();
        for sent in 0..100 {
            assert!(!gather.begins(sent), "who sends answers");
            gather.ends(1, 72);
        }
        let there = [500, 1000];
        assert!((0..100).all(|_| !wait(&mut gather, AT_ONCE + 1, 72, there)));
        assert!((0..100).all(|_| !wait(&mut gather, 1, SMALL + 1, there)));
        (0..FIRST).for_each(|_| assert!(!wait(&mut gather, 1, 72, there)));
        gather.in_vain();
        assert!(!gather.begins(0), "nothing came at once any more");
    }
}
