//! Receives what marks and frames announce besides bytes. What one of them means is learnt when it comes
//! next.

use crate::ancillary::channel::{Announced, Fds};
use crate::ancillary::pending::{Descriptors, Next};
use crate::byref::lender::MAX_POOLS;
use crate::byref::piece::Piece;
use crate::connection::rx::RxRing;
use crate::core::Core;
use crate::generation::generation;
use onecopy_pool::provider::LentPages;
use onecopy_ring::record::{Identity, With};
use onecopy_ring::{Mark, PeerMisbehaved, shared};
use onecopy_socket::{Error, Op, Result};
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::memfd::Refused;
use rustix::io::Errno;
use std::sync::Arc;

/// Makes the error for what only another process has, which shares the end since a fork.
fn busy(why: &'static str) -> Error {
    Error::new(Op::Recv, Errno::BUSY).because(why)
}

impl RxRing {
    /// Learns what the mark means that comes next in the stream.
    ///
    /// # Errors
    ///
    /// EPROTO. EMFILE or ENOMEM if this process lacks what it takes: the mark stays.
    pub fn meet_mark(&mut self, core: &Core) -> Result<Next> {
        let misbehaved = |misbehaved| core.misbehaved(Op::Recv, misbehaved);
        if self.pending.piece().is_some() {
            return Ok(Next::Reference);
        }
        match self.consumer.mark().map_err(misbehaved)? {
            reference @ Mark::Reference { .. } => {
                self.expect_pools(core)?;
                self.pending.meet_reference(reference).map_err(misbehaved)?;
                Ok(Next::Reference)
            }
            pool @ Mark::Pool { .. } => {
                self.meet_pool(core, pool)?;
                self.consumer.take_mark();
                Ok(Next::Again)
            }
            Mark::Identity { said } => {
                self.drop_fds();
                self.pending.forget_sender();
                if said
                    && let Some(mut who) = self.receive_announced(core, self.consumer.position(), 0, true)?
                {
                    self.pending.hear(core, &mut who).map_err(misbehaved)?;
                }
                self.consumer.take_mark();
                Ok(Next::Again)
            }
            Mark::Fds { count, len } => {
                let number = self.consumer.position();
                let count = u8::try_from(count).ok().filter(|count| *count > 0 && len > 0);
                let Some(count) = count else {
                    return Err(misbehaved(PeerMisbehaved::Mark { position: number, kind: 0 }));
                };
                // The mark stays if another process has the channel.
                self.expect_channel(core)?;
                self.drop_fds();
                self.consumer.take_mark();
                let until = self.consumer.position().saturating_add(len);
                self.pending.expect_fds(number, count, until);
                Ok(Next::Again)
            }
        }
    }

    /// Maps a pool that the peer announces.
    ///
    /// # Errors
    ///
    /// EPROTO. EMFILE or ENOMEM if this process lacks what it takes: nothing was done.
    pub fn meet_pool(&mut self, core: &Core, pool: Mark) -> Result<()> {
        let misbehaved = |misbehaved| core.misbehaved(Op::Recv, misbehaved);
        let Mark::Pool { pool, page_len, pages } = pool else { return Err(misbehaved(PeerMisbehaved::Pool)) };
        self.expect_pools(core)?;
        let opened = self.open_pool(core, pool, page_len, pages)?;
        self.pending.add_pool(opened.map_err(misbehaved)?);
        Ok(())
    }

    /// Receives the descriptor of a pool from the channel, or takes the one that was kept since it could not
    /// be mapped, and maps it.
    fn open_pool(
        &mut self,
        core: &Core,
        pool: u32,
        page_len: u64,
        pages: u64,
    ) -> Result<std::result::Result<LentPages, PeerMisbehaved>> {
        let pools = self.pending.pools();
        let mapped: usize = pools.iter().map(|pool| pool.pages() as usize * pool.page_len()).sum();
        let left = core.config().max_shared.saturating_sub(mapped);
        let fits = shared::size(page_len, pages).is_some_and(|size| size <= left);
        // The length of every pool's pages is 4096 << order.
        let order = page_len.trailing_zeros().checked_sub(12).filter(|_| page_len.is_power_of_two());
        let (true, Some(order), Ok(count)) = (fits, order, u32::try_from(pages)) else {
            return Ok(Err(PeerMisbehaved::Pool));
        };
        if pool as usize != pools.len() || pools.len() == MAX_POOLS {
            return Ok(Err(PeerMisbehaved::Pool));
        }
        let announced = self.announced(core, self.consumer.position(), 1, false);
        let memfd = match self
            .expect_channel(core)?
            .then(|| self.doorbells.channel_mut().receive_pool(announced))
            .transpose()?
        {
            Some(Ok(Some(memfd))) => memfd,
            Some(Err(misbehaved)) => return Ok(Err(misbehaved)),
            Some(Ok(None)) | None => return Err(lost_pool()),
        };
        let (Some(ring), Some(channel)) = (core.rx_ring(), self.doorbells.channel().keep()) else {
            return Ok(Err(PeerMisbehaved::Channel));
        };
        let mapping = match shared::open(&memfd, page_len, pages) {
            Ok(mapping) => Arc::new(mapping),
            Err(Refused::NoMapping(errno)) => {
                self.doorbells.channel_mut().keep_pool(announced.number(), memfd);
                return Err(Error::new(Op::Recv, errno).because(
                    "the peer's pool could not be mapped; free memory or address space and receive again",
                ));
            }
            Err(_) => return Ok(Err(PeerMisbehaved::Pool)),
        };
        let ring = ring.clone();
        let opened = generation();
        let give_back = move |slot| {
            if opened != generation() {
                return; // what a forked child inherits is its parent's to give back
            }
            // While any process may look at a page, the peer finds its end of the channel open.
            let _open = &channel;
            if ring.header().give_back_slot(slot) {
                ring.header().wake_lender();
            }
        };
        let slots = onecopy_ring::lend::SLOTS as u32;
        Ok(LentPages::new(mapping, order as u8, count, slots, give_back).map_err(|_| PeerMisbehaved::Pool))
    }

    /// Drops descriptors that belong to no byte. Nothing comes between a mark for descriptors and their first
    /// byte, unless the sender that laid the mark was killed before that byte. What is in the channel still
    /// is closed when a later message is looked for there, or was closed already.
    fn drop_fds(&mut self) {
        self.pending.drop_fds();
    }

    /// Receives the pending descriptors, as far as they are not gone.
    ///
    /// # Errors
    ///
    /// EBUSY if another process that shares the end has peeked at them, or has the channel. EPROTO, EMFILE.
    pub fn bring_fds(&mut self, core: &Core) -> Result<()> {
        let fds = match self.pending.where_fds_are() {
            Some(&Descriptors::InChannel { number, count }) => {
                self.receive_announced(core, number, count.into(), false)?.unwrap_or_else(Fds::gone)
            }
            Some(Descriptors::With(member)) if core.others().has(*member) => {
                return Err(busy(
                    "what comes next brings descriptors, and another process that shares this socket since a fork has \
                     peeked at them; receive there",
                ));
            }
            Some(Descriptors::With(_)) => Fds::gone(),
            Some(Descriptors::Here(_)) | None => return Ok(()),
        };
        self.pending.brought_fds(fds);
        Ok(())
    }

    /// Returns what the mark or the frame at position `number` announces.
    fn announced(&self, core: &Core, number: u64, fds: usize, who: bool) -> Announced {
        let may_be_gone =
            core.others().were_there() || self.elsewhere.is_some() || self.doorbells.channel().is_lost();
        Announced::new(number, fds, who, may_be_gone)
    }

    /// Receives what is announced there, from the channel. Returns `None` if a process that died has taken
    /// it, or the channel.
    fn receive_announced(&mut self, core: &Core, number: u64, fds: usize, who: bool) -> Result<Option<Fds>> {
        if !self.expect_channel(core)? {
            return Ok(None);
        }
        let announced = self.announced(core, number, fds, who);
        let received = self.doorbells.channel_mut().receive(announced, who && core.passes_pidfd())?;
        received.map_err(|misbehaved| core.misbehaved(Op::Recv, misbehaved))
    }

    /// Meets the channel, since a mark or a frame says that something is in it. Returns whether it is there,
    /// and has not gone with a process that shared the end.
    ///
    /// # Errors
    ///
    /// EBUSY if another process that shares the end has the channel. Then the peer does not misbehave, and
    /// what was met stays for that process. EMFILE.
    fn expect_channel(&mut self, core: &Core) -> Result<bool> {
        let made = self.consumer.header().reader.0.channels.load(Relaxed);
        if let Some(member) = self.elsewhere
            && !self.doorbells.channel().is_met()
            // If there is a new channel, its sender has found that nobody had the last one, whichever
            // processes live.
            && !self.doorbells.channel().has_new(made)
        {
            if core.others().has(member) {
                return Err(busy(
                    "what comes next brings descriptors, or says who sends, and another process that shares this socket \
                     since a fork has the channel that they come through; receive there, or get the first of them before \
                     forking",
                ));
            }
            // The channel has gone with that process. Is there a new one?
            if !self.doorbells.channel().may_meet(made) {
                return Ok(false);
            }
        }
        if !self.doorbells.channel().is_met() || self.doorbells.channel().may_meet(made) {
            self.doorbells.meet_channel(core, &mut self.consumer)?;
            if (self.elsewhere.is_some() || self.doorbells.channel().is_lost())
                && !self.doorbells.channel().has_channel()
            {
                self.doorbells.channel_mut().has_missed(made);
            }
        }
        Ok(self.doorbells.channel().is_met() || !core.others().were_there())
    }

    /// Checks that the peer's pools are here, since what comes next is in a page of the peer's, or announces
    /// a pool.
    ///
    /// # Errors
    ///
    /// EBUSY if another process that shares the end has mapped them: what was met stays for that one.
    /// EOWNERDEAD if that process is gone.
    #[inline]
    pub fn expect_pools(&self, core: &Core) -> Result<()> {
        self.pending.pools_of().map_or(Ok(()), |(member, _)| pools_elsewhere(core, member))
    }

    /// Receives from the channel, once, what comes with the next frame.
    ///
    /// # Errors
    ///
    /// EPROTO. EMFILE if this process lacks what it takes: the frame stays.
    #[cold]
    pub fn meet_frame(&mut self, core: &Core, with: With) -> Result<()> {
        let at = self.consumer.position() + 1;
        if self.pending.has_met(at) {
            return Ok(());
        }
        if with.is_in_channel() {
            let (fds, said) = (usize::from(with.fds()), with.who() == Identity::Said);
            let mut came = self.receive_announced(core, self.consumer.position(), fds, said)?;
            if said {
                self.pending.forget_sender();
            }
            if let Some(came) = came.as_mut().filter(|_| said) {
                self.pending.hear(core, came).map_err(|misbehaved| core.misbehaved(Op::Recv, misbehaved))?;
            }
            self.pending.came_with_frame((fds > 0).then(|| came.unwrap_or_else(Fds::gone)));
        }
        if with.who() == Identity::Unsaid {
            self.pending.forget_sender();
        }
        self.pending.note_met(at);
        Ok(())
    }

    /// Lets the next frame, if there is one, go without its descriptors, for which this process has no room. Returns
    /// false if it has them already. It also returns false if the channel may still tell the sender's identity, of
    /// this frame and of all later ones.
    #[cold]
    pub fn forgo_next(&mut self) -> bool {
        let available = self.consumer.available(1);
        available.and_then(|available| self.atomic_frame(available)).is_ok_and(|frame| self.forgo(frame.with))
    }

    fn forgo(&mut self, with: With) -> bool {
        let at = self.consumer.position() + 1;
        let said = with.who() == Identity::Said;
        if self.pending.has_met(at) || !with.is_in_channel() || (said && !self.doorbells.channel().is_lost())
        {
            return false;
        }
        self.pending.came_with_frame((with.fds() > 0).then(Fds::gone));
        if said {
            self.pending.forget_sender();
        }
        self.pending.note_met(at);
        true
    }

    /// Returns how many bytes can be received now.
    pub fn payload(&mut self) -> std::result::Result<usize, PeerMisbehaved> {
        let bytes = self.consumer.payload()?;
        // Of a page that was received in part, only the rest counts.
        let of_piece = self.pending.piece().map_or(0, Piece::received);
        Ok(usize::try_from(bytes.saturating_sub(of_piece as u64)).unwrap_or(usize::MAX))
    }

    /// Takes the next reference, which was received.
    pub fn take_reference(&mut self) -> Option<Piece> {
        let piece = self.pending.take_piece(usize::MAX)?;
        self.consumer.take_mark();
        Some(piece)
    }
}

#[cold]
fn pools_elsewhere(core: &Core, member: u32) -> Result<()> {
    if !core.others().has(member) {
        return Err(lost_pool());
    }
    Err(busy(
        "what comes next is in memory of the peer's that another process has mapped, which shares this socket since a fork; \
         receive there, or with Config::max_shared 0, so that it comes as a copy",
    ))
}

/// Makes the error for memory that no process here can look at any more.
#[cold]
fn lost_pool() -> Error {
    Error::new(Op::Recv, Errno::OWNERDEAD).because(
        "what comes next is in memory of the peer's that a process had mapped which shared this socket and has ended; \
         connect again",
    )
}
