//! What the peer is told: that its bytes came, what is missing, and how much more it may send.

use super::ack::{AckWhen, Owed, QUICK};
use super::memory::FEW;
use super::{Is, Moment, Receiver};
use crate::wire::tcp::{Blocks, Seq};

impl Receiver {
    /// Decides whether what came is acknowledged now, once whatever there is to send has been sent (tcp_ack_snd_check).
    pub fn check_ack(&mut self, moment: &Moment) -> AckWhen {
        if !self.acks.owed.contains(Owed::ACK) {
            return self.ack_due();
        }
        let full = self.nxt.since(self.windows.told()) as u32 > self.acks.mss();
        // Who reads sends an ACK himself, as soon as there is room again.
        let now = (full
            && (self.available() < self.low_water.into() || self.select_window() >= self.windows.size()))
            || self.acks.in_hurry()
            || self.acks.owed.contains(Owed::AT_ONCE);
        let now = now
            || match &mut self.behind {
                None => {
                    self.acks.later(moment);
                    false
                }
                Some(behind) => {
                    !self.is.contains(Is::SACK) || behind.duplicate(moment, self.nxt, self.windows.trips())
                }
            };
        if now {
            self.acks.owed |= Owed::DUE;
        }
        self.ack_due()
    }

    /// Whether an ACK is due, as far as it is decided.
    pub fn ack_due(&self) -> AckWhen {
        if self.acks.owed.contains(Owed::DUE) {
            return AckWhen::Now;
        }
        let left_out = self.behind.as_ref().and_then(|behind| behind.deadline());
        match self.acks.deadline().into_iter().chain(left_out).min() {
            Some(at) => AckWhen::At(at),
            None => AckWhen::No,
        }
    }

    /// Looks at the clock: what waited long enough is due.
    pub fn on_timer(&mut self, moment: &Moment) -> AckWhen {
        self.acks.expired(moment);
        let left_out = self.behind.as_ref().and_then(|behind| behind.deadline());
        if left_out.is_some_and(|at| at <= moment.now) {
            self.acks.owed |= Owed::DUE;
        }
        self.ack_due()
    }

    /// The ACK that ends the handshake may wait for data to go with it; those that follow leave at once.
    pub fn delay_ack(&mut self, moment: &Moment) {
        self.acks.hurry(QUICK, self.windows.size());
        self.acks.wait(moment);
    }

    /// What has come came with the SYN, and goes with its ACK (tcp_fastopen_add_skb()).
    pub fn took_syn_data(&mut self) {
        self.acks.begin_anew();
    }

    /// TCP_QUICKACK. True if an ACK was waiting, and leaves now.
    pub fn set_quick_ack(&mut self, on: bool) -> bool {
        self.acks.set_quick(on);
        if !on || !self.acks.owed.contains(Owed::ACK) {
            return false;
        }
        self.acks.owed |= Owed::PUSHED;
        let waits = self.window_update_due(1);
        if waits {
            self.acks.owed |= Owed::DUE;
        }
        waits
    }

    /// TCP_QUICKACK as getsockopt says it.
    pub fn quick_ack(&self) -> bool {
        !self.acks.in_turns()
    }

    /// From now on who receives answers: ACKs wait (what a FIN in established state makes Linux expect, and a defer-accept).
    pub fn expect_turns(&mut self) {
        self.acks.set_quick(false);
    }

    /// Data leaves: is it an answer?
    pub fn data_sent(&mut self, now: u64) {
        self.acks.answered(now);
    }

    pub(super) fn select_window(&mut self) -> u32 {
        let (mut window, cramped) = self.windows.select(self.held(), self.acks.mss());
        if cramped {
            self.acks.no_hurry();
            if self.is.contains(Is::SHORT) {
                self.windows.shrink(FEW);
                window = self.windows.select(self.held(), self.acks.mss()).0;
            }
        }
        self.limit_to_room(window)
    }

    /// The window to write into what leaves with an ACK, shifted; the peer is taken to know it then.
    pub fn window(&mut self) -> u16 {
        if self.acks.owed.contains(Owed::NO_MEMORY) {
            self.windows.shut(self.nxt);
            return 0;
        }
        let window = self.select_window();
        self.windows.say(window, self.nxt)
    }

    /// What left had an ACK: nothing is owed any more.
    pub fn ack_sent(&mut self) {
        self.acks.sent();
        if let Some(behind) = &mut self.behind {
            behind.acknowledged();
        }
    }

    /// Up to `room` blocks to write into what leaves: first what came twice, said once (RFC 2883), then what is behind a hole, the
    /// latest first (RFC 2018).
    pub fn sack_blocks(&mut self, room: usize) -> Blocks {
        let mut blocks = Blocks::default();
        if !self.is.contains(Is::SACK) || room == 0 {
            return blocks;
        }
        if self.is.contains(Is::DUPLICATE) {
            self.is -= Is::DUPLICATE;
            blocks.push(self.duplicate.0, self.duplicate.1);
        }
        if let Some(behind) = &self.behind {
            behind.report(&mut blocks, room);
        }
        blocks
    }

    /// How many blocks there would be to write: what leaves has less room for data.
    pub fn sack_count(&self) -> usize {
        let mut blocks = Blocks::default();
        if let Some(behind) = self.behind.as_ref().filter(|_| self.is.contains(Is::SACK)) {
            behind.report(&mut blocks, Blocks::MAX);
        }
        (blocks.len() + usize::from(self.is.contains(Is::DUPLICATE))).min(Blocks::MAX)
    }

    /// The end of the last block that is reported, where a reset may stand as well as at [`Receiver::nxt`].
    pub fn rightmost_sack(&self) -> Option<Seq> {
        let behind = self.behind.as_ref().filter(|_| self.is.contains(Is::SACK));
        behind.and_then(|behind| behind.rightmost())
    }
}
