//! Whose turn it is, and what is known of each lane.

use crate::fan_in::receiver::{FanIn, FanInReceiver, Member};
use crate::socket::Socket;
use onecopy_ring::{PeerMisbehaved, Ring};
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed};
use onecopy_unix::connection::rx::Rx;
use onecopy_unix::multiprocess::patience::BRIEFLY;

/// What is known of a lane.
pub enum Look {
    Something,
    Nothing,
    /// And never again.
    Over,
    /// The sender lied.
    Lied,
}

impl Member {
    /// Whether there is something to be received, or to be found out.
    pub fn has_some(&self) -> bool {
        matches!(self.look(), Look::Something | Look::Lied)
    }

    pub(super) fn look(&self) -> Look {
        if !self.live || self.is_renamed() {
            // Until what comes over the kernel before it is received.
            return Look::Nothing;
        }
        // Acquire, and before the look into the ring: what was sent before the sender left is found there.
        let left = self.end.tx_ring.get().is_some_and(|back| back.header().info.0.shut.load(Acquire) != 0);
        if !left && !self.dead && self.is_as_empty() {
            return Look::Nothing;
        }
        let Some(mut rx) = self.end.rx.lock_within(|| BRIEFLY) else { return Look::Nothing };
        let Rx::Ring(ring) = &mut *rx else { return Look::Over };
        match ring.consumer.available(1) {
            Ok(0) if left || self.dead => Look::Over,
            Ok(0) => {
                self.empty_at.set(ring.consumer.position());
                Look::Nothing
            }
            // (An honest sender's rings are not even full of what it was just sending when it was told.)
            Ok(_) if self.until.is_some_and(|until| ring.consumer.position() > until) => Look::Lied,
            Ok(_) => Look::Something,
            Err(_) => Look::Lied,
        }
    }

    /// Whether nothing was put into its ring since that was seen empty: a receive looks at all lanes until it finds something, and most of
    /// many have nothing, so this takes no lock. (Whatever else a sender writes there is found out with the lock.)
    pub(super) fn is_as_empty(&self) -> bool {
        // Relaxed: nothing is looked at that it would publish. What makes sure that a sender rings is `arm`, which asks for itself.
        let head = |ring: &Ring| ring.header().writer.0.head.load(Relaxed);
        self.end.rx_ring.get().map(head) == Some(self.empty_at.get())
    }

    /// Has its sender ring with the next datagram. Whether there is one.
    pub(super) fn arm(&self) -> std::result::Result<bool, PeerMisbehaved> {
        let Some(mut rx) = self.end.rx.lock_within(|| BRIEFLY) else { return Ok(false) };
        let Rx::Ring(ring) = &mut *rx else { return Ok(false) };
        ring.settle(&self.end)
    }

    /// This process has no room for the descriptors of the datagram at the front: it comes without them, as one of the kernel's
    /// does (MSG_CTRUNC). Whether it can.
    #[cold]
    pub(super) fn forgo(&self) -> bool {
        let Some(mut rx) = self.end.rx.lock_within(|| BRIEFLY) else { return false };
        let Rx::Ring(ring) = &mut *rx else { return false };
        let available = ring.consumer.available(1);
        available.and_then(|available| ring.atomic_frame(available)).is_ok_and(|frame| ring.forgo(frame.with))
    }
}

impl FanIn {
    /// The lane whose turn it is, of those that have something.
    pub(super) fn next(&mut self, end: &Socket) -> Option<usize> {
        let mut i = 0;
        while i < self.lanes.len() {
            let at = (self.cursor + i) % self.lanes.len();
            match self.lanes[at].look() {
                Look::Something => return Some(at),
                Look::Nothing => i += 1,
                Look::Over => self.close(at),
                Look::Lied => {
                    end.counters.protocol_errors.add(1);
                    self.close(at);
                }
            }
        }
        None
    }

    /// Lets go of a lane: of an honest sender it is empty.
    pub(super) fn close(&mut self, at: usize) {
        self.lanes.remove(at);
        self.cursor -= usize::from(self.cursor > at);
    }

    /// Lets go of the lanes of senders that are gone, and of which nothing is left.
    pub fn remove_dead(&mut self) {
        self.lanes.retain(|member| !matches!(member.look(), Look::Over));
        self.cursor = 0;
    }

    /// All lanes seem to be empty: has their senders ring. Whether there is something after all.
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
                    end.counters.protocol_errors.add(1);
                    self.close(at);
                }
            }
        }
        some
    }

    /// Nobody will send any more, and what was sent was received: each lane was armed before its line is closed, so that a sender
    /// whose datagram has come too late is told.
    pub(super) fn end(&mut self, fan_in: &FanInReceiver) {
        if self.closing {
            self.lanes.clear();
            self.closing = false;
            fan_in.left_over.store(0, Relaxed);
        }
    }
}
