//! Which lane has its turn, and what is known of each.

use crate::fan_in::receiver::{FanIn, FanInReceiver, Member};
use crate::socket::Socket;
use onecopy_ring::{PeerMisbehaved, Ring};
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed};
use onecopy_unix::connection::rx::Rx;
use onecopy_unix::members::patience::BRIEFLY;

/// What is known of a lane.
pub enum Look {
    Something,
    Nothing,
    /// Nothing, and nothing will come any more.
    Over,
    /// The sender misbehaved.
    Lied,
}

impl Member {
    /// Whether the lane has something to receive, or misbehaviour to find.
    pub fn has_some(&self) -> bool {
        matches!(self.look(), Look::Something | Look::Lied)
    }

    pub(super) fn look(&self) -> Look {
        if !self.live || self.is_renamed() {
            // What comes over the kernel is received before it.
            return Look::Nothing;
        }
        // Acquire, and before the look into the ring: what was sent before the sender left is found there.
        let left = self.end.tx_ring().is_some_and(|back| back.header().info.0.shut.load(Acquire) != 0);
        if !left && !self.dead && self.is_as_empty() {
            return Look::Nothing;
        }
        let Some(mut rx) = self.end.rx().lock_within(|| BRIEFLY) else { return Look::Nothing };
        let Rx::Ring(ring) = &mut *rx else { return Look::Over };
        match ring.is_empty() {
            Ok(true) if left || self.dead => Look::Over,
            Ok(true) => {
                self.empty_at.set(ring.position());
                Look::Nothing
            }
            // An honest sender does not get that far: what it was just sending when it was told does not even
            // fill its ring.
            Ok(_) if self.until.is_some_and(|until| ring.position() > until) => Look::Lied,
            Ok(_) => Look::Something,
            Err(_) => Look::Lied,
        }
    }

    /// Whether nothing was put into the ring since it was seen empty. This takes no lock: a receive looks at
    /// all lanes until it finds something, and most of many have nothing. Whatever else a sender writes there
    /// is found under the lock.
    pub(super) fn is_as_empty(&self) -> bool {
        // Relaxed: nothing is read that this load would publish. `arm`, which looks for itself, makes sure
        // that a sender rings.
        let head = |ring: &Ring| ring.header().writer.0.head.load(Relaxed);
        self.end.rx_ring().map(head) == Some(self.empty_at.get())
    }

    /// Makes the sender ring with its next datagram. Returns whether there is one already.
    pub(super) fn arm(&self) -> std::result::Result<bool, PeerMisbehaved> {
        let Some(mut rx) = self.end.rx().lock_within(|| BRIEFLY) else { return Ok(false) };
        let Rx::Ring(ring) = &mut *rx else { return Ok(false) };
        ring.settle(&self.end)
    }

    /// Lets the next datagram come without its descriptors, which this process has no room for. A datagram of
    /// the kernel's does the same (MSG_CTRUNC). Returns whether that is possible.
    #[cold]
    pub(super) fn forgo(&self) -> bool {
        let Some(mut rx) = self.end.rx().lock_within(|| BRIEFLY) else { return false };
        let Rx::Ring(ring) = &mut *rx else { return false };
        ring.forgo_next()
    }
}

impl FanIn {
    /// Returns the lane whose turn it is, of those that have something.
    pub(super) fn next(&mut self, end: &Socket) -> Option<usize> {
        for at in self.turns.few(self.lanes.len()) {
            // One that is over is found as one that has something, and closed.
            self.turns.saw(at, !matches!(self.lanes[at].look(), Look::Nothing));
        }
        while let Some(at) = self.turns.known(self.lanes.len()) {
            if self.look_at(at, end) {
                return Some(at);
            }
        }
        // Any of the rest.
        let mut i = 0;
        while i < self.lanes.len() {
            let (at, lanes) = (self.turns.nth(i, self.lanes.len()), self.lanes.len());
            if self.look_at(at, end) {
                return Some(at);
            }
            i += usize::from(self.lanes.len() == lanes);
        }
        None
    }

    /// Looks whether a lane has something. One that is over, or whose sender has misbehaved, is closed.
    fn look_at(&mut self, at: usize, end: &Socket) -> bool {
        let look = self.lanes[at].look();
        self.turns.saw(at, matches!(look, Look::Something));
        match look {
            Look::Something => return true,
            Look::Nothing => {}
            Look::Over => self.close(at),
            Look::Lied => {
                end.counters().protocol_errors.add(1);
                self.close(at);
            }
        }
        false
    }

    /// A lane has had its turn.
    pub(super) fn had_its_turn(&mut self, at: usize) {
        self.turns.had(at, self.lanes.len());
    }

    /// Closes a lane. If its sender is honest, it is empty.
    pub(super) fn close(&mut self, at: usize) {
        self.lanes.remove(at);
        self.turns.closed(at);
    }

    /// Closes all lanes but those that are to be kept.
    pub(super) fn keep(&mut self, keeps: impl Fn(&Member) -> bool) {
        for at in (0..self.lanes.len()).rev() {
            if !keeps(&self.lanes[at]) {
                self.close(at);
            }
        }
    }

    /// Closes the lanes of senders that are gone, once they are empty.
    pub fn remove_dead(&mut self) {
        self.keep(|member| !matches!(member.look(), Look::Over));
    }

    /// Makes all senders ring with their next datagrams, since all lanes seem to be empty. Returns whether
    /// there is something after all.
    pub(super) fn arm(&mut self, end: &Socket) -> bool {
        let mut some = false;
        let mut at = 0;
        while at < self.lanes.len() {
            let member = &self.lanes[at];
            match if member.live && !member.is_renamed() { member.arm() } else { Ok(false) } {
                Ok(more) => {
                    some |= more;
                    at += 1;
                }
                Err(_) => {
                    end.counters().protocol_errors.add(1);
                    self.close(at);
                }
            }
        }
        some
    }

    /// Closes all lanes if the receiver is closing, since nobody will send and everything was received. Each
    /// lane was armed before its line is closed, so a sender whose datagram comes too late is told.
    pub(super) fn end(&mut self, fan_in: &FanInReceiver) {
        if self.closing {
            self.lanes.clear();
            self.closing = false;
            fan_in.left_over.store(0, Relaxed);
        }
    }
}
