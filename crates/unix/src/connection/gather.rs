//! Letting small messages gather: a receiver that keeps up looks less often.
//!
//! A look at an empty ring takes the sender's cache line away from it, and the next message has to fetch it back. Where messages are small and come at once, the
//! receiver catches up again and again, both sides fetch that line for each message, and neither gets on. (A network card has the same trouble with
//! interrupts, and the same way out: rx-usecs of ethtool(8).)

use onecopy_sync::atomic::spin_loop;
use std::time::{Duration, Instant};

/// How long a receive lets messages gather.
const GATHERING: Duration = Duration::from_micros(1);
/// Looks until a message came that came at once.
const AT_ONCE: u32 = 8;
/// Bytes in the ring at most where one came: of larger messages the copies cost more than the line.
const SMALL: usize = 4096;
/// Receives in a row that caught up and had a small message at once, until it is tried to let some gather; at first and at most.
const FIRST: u16 = 4;
const LAST: u16 = 4096;
/// So many times as much has to be there then as without.
const WORTH: usize = 4;

/// What a receiving side knows of the messages that it waits for.
#[derive(Debug)]
pub struct Gather {
    /// Bytes that this side had sent at the last look: one that sends answers, and is waited for.
    sent: u64,
    /// The least that was there of those that came at once.
    least: usize,
    /// Receives in a row that caught up and had one at once.
    at_once: u16,
    /// How many it takes to try.
    needs: u16,
    /// Whether the wait under way lets some gather.
    gathers: bool,
}

impl Default for Gather {
    fn default() -> Gather {
        Gather { sent: 0, least: 0, at_once: 0, needs: FIRST, gathers: false }
    }
}

impl Gather {
    /// A wait begins, of a side that has sent so many bytes. Returns whether it should let messages gather.
    #[inline]
    pub fn begins(&mut self, sent: u64) -> bool {
        if sent != self.sent {
            (self.sent, self.at_once) = (sent, 0);
        }
        self.gathers = self.at_once >= self.needs;
        self.gathers
    }

    /// Spins for as long as messages gather.
    #[cold]
    pub fn pass() {
        let began = Instant::now();
        while began.elapsed() < GATHERING {
            for _ in 0..4 {
                spin_loop();
            }
        }
    }

    /// The wait is over: after `looks` there are `available` bytes.
    #[inline]
    pub fn ends(&mut self, looks: u32, available: usize) {
        if self.gathers {
            // It goes on for as long as it pays. Where it does not, it is tried more and more rarely.
            let pays = available >= WORTH * self.least;
            self.needs = if pays { FIRST } else { (self.needs * 2).min(LAST) };
            self.at_once = if pays { self.at_once } else { 0 };
        } else if looks <= AT_ONCE && available <= SMALL {
            self.least = if self.at_once == 0 { available } else { self.least.min(available) };
            self.at_once = self.at_once.saturating_add(1);
        } else {
            self.at_once = 0;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A wait of a side that sent nothing; whether it gathered.
    fn wait(gather: &mut Gather, looks: u32, alone: usize, gathered: usize) -> bool {
        let gathers = gather.begins(0);
        gather.ends(looks, if gathers { gathered } else { alone });
        gathers
    }

    #[test]
    fn small_messages_that_come_at_once_gather_for_as_long_as_it_pays() {
        let mut gather = Gather::default();
        let waits = (0..100).filter(|_| wait(&mut gather, 1, 72, 1000)).count();
        assert_eq!(waits, 100 - usize::from(FIRST));
        // Twice as much is not worth a microsecond.
        assert!(wait(&mut gather, 1, 72, 144));
        assert!(!wait(&mut gather, 1, 72, 144));
    }

    #[test]
    fn where_it_does_not_pay_it_is_tried_ever_more_rarely() {
        let mut gather = Gather::default();
        let waits = (0..100_000).filter(|_| wait(&mut gather, 1, 72, 72)).count();
        // Behind 4, 8, 16, ... 4096 waits without, and then behind 4096 each.
        assert!((20..=40).contains(&waits), "{waits}");
        for _ in 0..LAST {
            wait(&mut gather, 1, 72, 72);
        }
        assert!((0..2 * LAST).any(|_| wait(&mut gather, 1, 72, 1000)), "it is tried all the same");
    }

    #[test]
    fn answers_large_messages_and_those_that_take_their_time_are_waited_for() {
        let mut gather = Gather::default();
        for sent in 0..100 {
            assert!(!gather.begins(sent), "who sends answers");
            gather.ends(1, 72);
        }
        assert!((0..100).all(|_| !wait(&mut gather, AT_ONCE + 1, 72, 1000)));
        assert!((0..100).all(|_| !wait(&mut gather, 1, SMALL + 1, 1000)));
    }
}
