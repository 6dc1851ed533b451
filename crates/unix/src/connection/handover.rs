//! What a process tells the next one of a ring, where several processes use the connection one after the other.
//!
//! `multiprocess/` writes an [`RxHandover`] and a [`TxHandover`] down as words, in the page that the processes
//! share or pass on. What is in them, and what may be believed of them, is known here. A connection that one
//! process holds comes to none of this.

use crate::ancillary::pending::TOLD;
use crate::ancillary::said::Said;
use crate::config::Records;
use crate::connection::received::Rest;
use crate::connection::rx::{Rx, RxRing};
use crate::connection::tx::TxRing;
use crate::core::Core;
use crate::core::kind::Kind;
use crate::doorbell::accounting::Balance;
use crate::members::others::MAX_LENT;
use onecopy_ring::consumer::{BorrowId, Lent, Reached};
use onecopy_ring::record::HEADER;
use onecopy_ring::{Mark, PeerMisbehaved};
use onecopy_socket::Op;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sync::clock::coarse_ms;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Records begin at multiples of this ([`onecopy_ring::record`]).
const FRAMES: u64 = HEADER as u64;

/// How often a process checks whether those that have borrowed still live, in milliseconds.
const LOOK_MS: u64 = 20;

/// What the next process that receives needs to know of the ring. The views that are out come besides.
#[derive(Clone, Copy, Debug)]
pub struct RxHandover {
    /// How far the ring was read.
    pub reached: Reached,
    /// The rest of a frame that was received in part.
    pub rest: Option<Rest>,
    /// The account of the control socket's queue.
    pub balance: Balance,
    /// The process that has met the channel, if any has.
    pub met: Option<u32>,
    /// The state of the channels ([`crate::ancillary::channel::Inlet::known`]).
    pub known: [u64; 2],
    /// What was met and not received ([`TOLD`]).
    pub told: [u64; TOLD],
}

/// What the next process that sends needs to know of the ring.
#[derive(Clone, Copy, Debug)]
pub struct TxHandover {
    /// The positions of the producer ([`onecopy_ring::Producer::state`]).
    pub positions: [u64; 3],
    /// How many channels were made.
    pub channels: u32,
}

impl Rx {
    /// Returns whether another process could go on with it. It cannot if the side needs what only this
    /// process has on its heap.
    pub fn can_be_shared(&self, core: &Core) -> bool {
        match self {
            Rx::Plain | Rx::Undecided(_) | Rx::Switching(_) => core.config().records == Records::Atomic,
            Rx::Ring(ring) => ring.can_be_shared(),
        }
    }

    /// Begins to share the side with other processes, as member `me`.
    pub fn begin_sharing(&mut self, core: &Core, me: u32) {
        self.settle(core);
        if let Rx::Ring(ring) = self {
            ring.consumer.share(me);
        }
        if let Some(ring) = core.rx_ring() {
            // Pools that come from here on would be in one process only. With this the peer copies instead.
            ring.header().info.0.max_shared.store(0, Relaxed);
        }
    }
}

impl RxRing {
    /// Writes down what the next process needs to know. `me`: the number of this one.
    #[inline]
    pub fn handover(&self, me: u32) -> RxHandover {
        let reached = self.consumer.reached();
        let channel = self.doorbells.channel();
        // The process that received last, not the first one: a child that has inherited the channel may outlive
        // the process that met it.
        let lost = channel.is_met().then_some(me);
        RxHandover {
            reached,
            rest: self.rest,
            balance: self.doorbells.balance(),
            met: channel.has_channel().then_some(me).or(self.elsewhere).or(lost),
            known: channel.known(),
            told: self.pending.save(me, reached.read),
        }
    }

    /// Lists what is lent, in stream order.
    pub fn lent(&self) -> impl Iterator<Item = Lent> {
        self.consumer.lent()
    }

    /// Goes on, as member `me`, where another process has left off.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved`]: no honest process says that.
    pub fn resume(
        &mut self,
        core: &Core,
        me: u32,
        left: RxHandover,
        lent: impl Iterator<Item = Lent>,
    ) -> Result<(), PeerMisbehaved> {
        let RxHandover { reached, rest, balance, met, known, told } = left;
        if reached.read != self.consumer.position() {
            // Another process has gone past what this one had met.
            self.pending.move_on();
        }
        self.consumer.resume(me, reached, lent)?;
        self.pending.forget_sender();
        self.rest = None;
        if rest.is_some() && core.config().records != Records::Stream {
            return Err(PeerMisbehaved::Member); // only stream records are received in part
        }
        if let Some(rest) = rest {
            // The peer publishes whole frames, so all of the rest must be there.
            let there = self.consumer.available(rest.size().max(1))?;
            if rest.size() > there {
                return Err(PeerMisbehaved::Member);
            }
            self.rest = Some(rest);
        }
        let at = reached.read.wrapping_add(rest.map_or(0, |rest| rest.size()) as u64);
        if core.kind().has_records() && !at.is_multiple_of(FRAMES) {
            return Err(PeerMisbehaved::Member);
        }
        self.elsewhere = met;
        self.doorbells.channel_mut().learn(known);
        self.pending.load(me, reached.read, told);
        self.doorbells.resume(balance)
    }

    /// Whether another process could go on with the ring. It cannot if this process alone has something of it on
    /// its heap, or if more views are out than processes can know of.
    fn can_be_shared(&self) -> bool {
        self.pending.can_be_shared() && self.consumer.lent().count() <= MAX_LENT
    }

    /// Checks that a process that is no child could go on with the ring, and no other one after it.
    ///
    /// # Errors
    ///
    /// The reason why it could not.
    pub fn can_be_passed(&self) -> Result<(), &'static str> {
        self.keeps_no_pool()?;
        self.pending.can_be_passed(self.consumer.position())
    }

    /// Checks that processes besides could begin to use the ring. `shared`: whether some do already.
    ///
    /// # Errors
    ///
    /// The reason why they could not.
    pub fn can_be_joined(&self, shared: bool) -> Result<(), &'static str> {
        self.keeps_no_pool()?;
        if !shared && !self.pending.can_be_shared() {
            let why = self.pending.can_be_passed(self.consumer.position());
            return Err(why.err().unwrap_or("descriptors came that were not received"));
        }
        if !shared && !self.can_be_shared() {
            return Err("more views are left than processes can know of; drop some first");
        }
        Ok(())
    }

    fn keeps_no_pool(&self) -> Result<(), &'static str> {
        if self.doorbells.channel().keeps_pool() {
            return Err("the peer's pool came when it could not be mapped; receive what lies in it first");
        }
        Ok(())
    }

    /// Ends the sharing: no other process uses the ring any more, and what they had borrowed is free.
    pub fn end_sharing(&mut self, core: &Core) {
        let freed = self.consumer.unshare();
        self.doorbells.notes_room(freed);
        self.tell_of_room(core);
    }

    /// Gives the sender the room of what was taken, since that was saved.
    pub fn give_back_saved(&mut self, core: &Core) {
        self.consumer.flush();
        point!("flushed");
        self.tell_of_room(core);
    }

    /// Takes the filler of a sender that waits for room, if some was made.
    fn tell_of_room(&mut self, core: &Core) {
        if self.doorbells.takes_note_of_room()
            && let Err(misbehaved) = self.unpark(core)
        {
            // The next call on the socket reports it.
            let _ = core.misbehaved(Op::Recv, misbehaved);
        }
    }

    /// Frees what members had borrowed that are `gone`.
    pub fn free_lent_of(&mut self, gone: impl Fn(u32) -> bool) {
        let freed = self.consumer.release_all_of(gone);
        self.doorbells.notes_room(freed);
    }

    /// Does as [`RxRing::free_lent_of`], now and then. `me`: the number of this process.
    pub fn free_lent_now_and_then(&mut self, me: u32, gone: impl Fn(u32) -> bool) {
        if self.consumer.lent().any(|lent| lent.member != me) {
            let now = coarse_ms();
            if now.wrapping_sub(self.looked) >= LOOK_MS {
                self.looked = now;
                self.free_lent_of(gone);
            }
        }
    }

    /// Gives back bytes of a borrow that a thread of this process was done with while another process had the
    /// side.
    pub fn release_late(&mut self, id: BorrowId, len: usize) {
        let freed = self.consumer.release(id, len);
        self.doorbells.notes_room(freed);
    }

    /// Recovers after the process that held the receiving side was killed. What it had taken and not saved is
    /// received again. What it left in the doorbells' queue, and nothing explains, is no misbehaviour.
    pub fn recover_from_death(&mut self, core: &Core) {
        self.consumer.recover();
        self.doorbells.forgive_queued(core);
    }

    /// Whether another process has, or had, pools of the peer that this one cannot map.
    pub fn lacks_pools(&self) -> bool {
        self.pending.lacks_pools()
    }

    /// Returns the end of the channel to give away, if this process has it.
    pub fn channel_to_give(&self) -> Option<Arc<OwnedFd>> {
        self.doorbells.channel().keep()
    }

    /// Whether the channel came when this process had no descriptor left.
    pub fn has_lost_channel(&self) -> bool {
        self.doorbells.channel().is_lost()
    }

    /// Takes up the channel, if this process was given it, and whether the giver had lost it.
    pub fn take_up_channel(&mut self, channel: Option<OwnedFd>, lost: bool) {
        if channel.is_some() {
            self.elsewhere = None;
        }
        self.doorbells.channel_mut().take_up(channel, lost);
    }
}

impl TxRing {
    /// Writes down what the next process needs to know.
    #[inline]
    pub fn handover(&self) -> TxHandover {
        TxHandover { positions: self.producer.state(), channels: self.made }
    }

    /// Goes on where another process has left off.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved`]: no honest process says that.
    pub fn resume(&mut self, kind: Kind, left: TxHandover) -> Result<(), PeerMisbehaved> {
        if kind.has_records() && !left.positions[0].is_multiple_of(FRAMES) {
            return Err(PeerMisbehaved::Member);
        }
        self.producer.resume(left.positions)?;
        self.learn_channels(left.channels);
        // The peer was told the identity of another process.
        self.said = Said::default();
        self.part_from_the_dead(kind);
        Ok(())
    }

    /// Learns how many channels were made. What this process has is the last one, or none any more.
    fn learn_channels(&mut self, made: u32) {
        if self.made != made {
            (self.channel, self.made) = (None, made);
        }
    }

    /// Learns that a process has made so many channels, or was about to.
    pub fn hear_of_channels(&mut self, made: u32) {
        self.learn_channels(self.made.max(made));
    }

    /// Recovers what the process that held the sending side had published when it was killed.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved`]: it left what cannot be.
    pub fn recover_from_death(&mut self) -> Result<(), PeerMisbehaved> {
        self.producer.recover()
    }

    /// Separates this sender's bytes from the descriptors of a dead one. If the mark that was published last
    /// is for descriptors, the process that laid it was killed before its first byte. Another mark behind it
    /// says that the descriptors belong to no byte that follows.
    pub fn part_from_the_dead(&mut self, kind: Kind) {
        if kind == Kind::Stream && matches!(self.producer.ends_with_mark(), Some(Mark::Fds { .. })) {
            self.said = Said::anew();
        }
    }

    /// Returns the end of the channel to give away, if this process has it, and its number among all that were
    /// made.
    pub fn channel_to_give(&self) -> Option<(BorrowedFd<'_>, u32)> {
        self.channel.as_ref().map(|channel| (channel.as_fd(), self.made))
    }

    /// Takes up the channel with the number `made`, if this process was given one.
    pub fn take_up_channel(&mut self, channel: Option<OwnedFd>, made: u32) {
        if channel.is_some() {
            (self.channel, self.made) = (channel.map(Arc::new), made);
        }
    }
}
