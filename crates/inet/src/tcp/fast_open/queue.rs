//! How many connections of a listener may have begun early and not be through: who floods it from addresses that are not his costs it no
//! more than that (RFC 7413, section 5.1; the kernel's fastopen_queue).

use std::collections::VecDeque;

/// How long one that was reset counts: a spoofed address answers our SYN-ACK by a reset, and an attacker is not to have a new one for it.
const RESET_COUNTS: u64 = 60_000_000_000;

/// Those of one listener.
#[derive(Debug, Default)]
pub struct Queue {
    /// Without the program's word (TCP_FASTOPEN).
    usual: u32,
    /// Those whose handshake is not over, and those that were reset lately.
    pending: u32,
    /// Of these, until when those count that were reset.
    reset: VecDeque<u64>,
}

impl Queue {
    /// For a listener that takes so many without its program's word.
    pub fn new(usual: u32) -> Queue {
        Queue { usual, ..Queue::default() }
    }

    /// How many there are.
    pub fn pending(&self) -> u32 {
        self.pending
    }

    /// Whether listeners take part at all: `chosen` is what the program said.
    pub fn is_on(&self, chosen: Option<u32>) -> bool {
        chosen.unwrap_or(self.usual) > 0
    }

    /// Whether one more may begin early (tcp_fastopen_queue_check()).
    pub fn has_room(&mut self, now: u64, chosen: Option<u32>) -> bool {
        let most = chosen.unwrap_or(self.usual);
        if most > 0
            && self.pending >= most
            && let Some(until) = self.reset.front()
            && *until <= now
        {
            self.reset.pop_front();
            self.pending -= 1;
        }
        self.pending < most
    }

    /// One begins.
    pub fn begin(&mut self) {
        self.pending += 1;
    }

    /// One is through, or was given up. `penalty`: it was reset (reqsk_fastopen_remove()).
    pub fn end(&mut self, now: u64, penalty: bool) {
        if penalty {
            self.reset.push_back(now.saturating_add(RESET_COUNTS));
        } else {
            self.pending = self.pending.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reset_counts_for_a_minute() {
        let mut queue = Queue::new(2);
        for _ in 0..2 {
            assert!(queue.has_room(0, None));
            queue.begin();
        }
        assert!(!queue.has_room(0, None));
        queue.end(5, true);
        queue.end(7, false);
        assert!(queue.has_room(10, None));
        queue.begin();
        assert!(!queue.has_room(RESET_COUNTS + 4, None));
        assert!(queue.has_room(RESET_COUNTS + 5, None));
        assert_eq!(queue.pending(), 1);
    }

    #[test]
    fn the_programs_word_counts() {
        let mut queue = Queue::new(0);
        assert!(!queue.is_on(None) && queue.is_on(Some(1)));
        assert!(!queue.has_room(0, None));
        assert!(queue.has_room(0, Some(1)));
    }
}
