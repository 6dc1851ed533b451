//! What a receiver does when its ring is empty.
//!
//! In this order: it takes the filler of a sender that waits for room, spins, takes doorbells and arms. Then
//! it asks the kernel whether a byte is left that nothing explains: such a byte means that the peer
//! misbehaves.

use crate::connection::rx::RxRing;
use crate::connection::waiting::Waiting;
use crate::control::Peek;
use crate::core::Core;
use crate::core::kind::Kind;
use onecopy_ring::PeerMisbehaved;
use onecopy_socket::{Op, Result, Wait};
use onecopy_sync::spin;
use std::time::Instant;

/// How often one call believes a doorbell for which there was no data.
const MAX_EMPTY_DOORBELLS: u32 = 64;

/// What a receive does next when there is nothing to receive.
pub enum Idle {
    /// Looks again.
    Again,
    /// Sleeps on the control socket, then looks again.
    Sleep,
    /// Sleeps on the clock: the queue is readable for a reason that does not go away by itself.
    Nap,
    /// Asks the kernel, which has the last word.
    Ask,
    /// Goes on without the ring: the peer of a datagram socket has left, and all that it had sent here was
    /// received.
    Over,
}

impl RxRing {
    /// Returns what to do next, after the steps that the module names. The ring was empty at the last look.
    pub fn ring_idle(
        &mut self,
        core: &Core,
        waiting: &mut Waiting,
        wait: bool,
    ) -> std::result::Result<Idle, PeerMisbehaved> {
        self.unpark(core)?;
        if wait && self.spin(core, waiting)? {
            return Ok(Idle::Again);
        }
        if self.settle(core)? {
            return Ok(Idle::Again);
        }
        if core.kind() == Kind::Datagram && core.peer_left() {
            // None of its doorbells and fillers may be left behind: what comes from here on are other
            // sockets' datagrams.
            let more = self.settle(core)?;
            self.clear_away(core)?;
            return Ok(if more { Idle::Again } else { Idle::Over });
        }
        if core.kind() == Kind::SeqPacket && core.peer_left() {
            // In the queue are only doorbells and fillers that nobody needs any more.
            self.doorbells.drain(core);
            return Ok(if self.consumer.available(1)? > 0 { Idle::Again } else { Idle::Ask });
        }
        if !waiting.slept && wait && core.settings().wait() != Wait::Spin {
            return Ok(Idle::Sleep);
        }
        // A filler that was under way at the first look may be there by now. The sender looks for an armed doorbell
        // once it is (`room.rs`), and the fence in here pairs with the one before that.
        let parked = self.consumer.header().is_parking();
        if parked {
            self.unpark(core)?;
            if !self.consumer.header().is_parking() {
                return Ok(Idle::Again);
            }
        }
        // The receive was woken for nothing, or must not wait. Is there a byte that nothing explains?
        if core.ask() != Peek::Byte {
            return Ok(if self.consumer.available(1)? > 0 { Idle::Again } else { Idle::Ask });
        }
        if self.consumer.available(1)? > 0 {
            return Ok(Idle::Again);
        }
        if self.doorbells.explain(&mut self.consumer).is_err() {
            if self.doorbells.forgive(core) {
                return Ok(Idle::Again);
            }
            match self.doorbells.find_channel(core) {
                Ok(true) => return Ok(Idle::Again),
                // The channel stays in the queue until this process has room for a descriptor.
                Err(_) => return Ok(Idle::Nap),
                Ok(false) => {}
            }
            // A sender that was killed while it parked leaves bytes that nothing explains.
            if !core.hung_up() {
                return Err(PeerMisbehaved::Doorbells);
            }
            self.doorbells.drain(core);
            return Ok(Idle::Ask);
        }
        waiting.empty_doorbells += 1;
        let late = self.doorbells.is_in_debt() || self.consumer.header().is_rung();
        if late && waiting.empty_doorbells < MAX_EMPTY_DOORBELLS {
            return Ok(Idle::Again);
        }
        // The filler cannot be taken yet. This is rare: the program holds a view, and asks for more.
        Ok(Idle::Nap)
    }

    /// Lets readiness say that the ring is empty after a receive, where somebody may look. Returns whether
    /// there is data after all. A caller with room for it must not get a short count then: epoll(7) lets it
    /// wait for the next edge after one, and no doorbell will make that edge.
    #[inline]
    pub fn mirror_empty(&mut self, core: &Core) -> Result<bool> {
        if !core.is_mirrored() {
            return Ok(false);
        }
        let misbehaved = |misbehaved| core.misbehaved(Op::Recv, misbehaved);
        Ok(self.consumer.available(1).map_err(misbehaved)? > 0 || self.settle(core).map_err(misbehaved)?)
    }
}

/// How long a receive that spins goes without a look at the control socket, in nanoseconds.
pub const LONGEST_SPIN: u32 = 1_000_000;

impl RxRing {
    /// Spins for data as far as the settings and experience allow. Returns whether it came.
    pub fn spin(&mut self, core: &Core, waiting: &mut Waiting) -> std::result::Result<bool, PeerMisbehaved> {
        let budget = match core.settings().wait() {
            Wait::Block => return Ok(false),
            Wait::Spin => LONGEST_SPIN,
            // After a sleep there is nothing to be gained.
            Wait::Adaptive if waiting.slept => return Ok(false),
            Wait::Adaptive => self.spin.budget(),
        };
        if budget == 0 {
            waiting.start.get_or_insert_with(Instant::now);
            return Ok(false);
        }
        let mut misbehaved = None;
        let consumer = &mut self.consumer;
        if consumer.is_shared() {
            // No spinning with a lock that other processes want: `spin_unlocked` does it.
            return Ok(false);
        }
        let spun = spin::until(budget, || match consumer.available(1) {
            Ok(0) => {
                consumer.prefetch();
                false
            }
            Ok(_) => true,
            Err(found) => {
                misbehaved = Some(found);
                true
            }
        });
        if let Some(misbehaved) = misbehaved {
            return Err(misbehaved);
        }
        match spun {
            Ok(took) => {
                self.spin.paid(took);
                core.counters().spins.add_exclusive(1);
                Ok(true)
            }
            Err(start) => {
                self.spin.in_vain();
                waiting.start.get_or_insert(start);
                // A socket that is set to spin looks at the control socket now and then, and goes on.
                Ok(false)
            }
        }
    }
}
