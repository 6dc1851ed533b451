//! What the stream has brought besides bytes, for who receives next: part of a reference, descriptors, pools.

use crate::channel::{Announced, Fds};
use crate::end::End;
use crate::holders::generation;
use crate::rx::RxRing;
use crate::seqpacket::Listed;
use crate::{Error, Op, Result};
use onecopy_chain::Fragment;
use onecopy_copy::{Hint, Policy, Reader};
use onecopy_pool::Page;
use onecopy_pool::provider::LentPages;
use onecopy_ring::record::{Who, With};
use onecopy_ring::{Lie, Mark, shared};
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::map::Span;
use onecopy_sys::memfd::Refused;
use onecopy_sys::scm::{self, Ucred};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::Arc;

/// Most pools of one peer on one stream.
pub const MAX_POOLS: usize = 16;

/// What was met at marks and is not received yet.
#[derive(Debug, Default)]
pub struct Front {
    /// The reference at the next mark, as far as it was not received. Its mark is taken with its last byte.
    pub piece: Option<Piece>,
    /// The list of the record at the front, once it was looked at (seqpacket sockets only).
    pub listed: Option<Listed>,
    /// Descriptors for who receives the next byte.
    pub fds: Option<Arrived>,
    /// Who sends what comes next, as far as that was said.
    pub who: Option<Sender>,
    /// Behind the beginning of the frame whose descriptors these are; 0 for none.
    met: u64,
    /// Pools of the peer, what its references point into: by the names that these use.
    pools: Vec<LentPages>,
    /// The process that has mapped pools of the peer while this one shared the end with it, and how many.
    pools_of: Option<(u32, u32)>,
}

/// What processes that share an end tell each other of what one of them has found at the front: words, as [`Front::save`]
/// writes them.
pub const TOLD: usize = 4;

/// In the first of these: descriptors are among what was found.
const WITH_FDS: u64 = 1 << 32;
/// They lie in the channel still, and this is how many.
const IN_CHANNEL: u64 = 1 << 33;
const COUNT: u32 = 40;

impl Front {
    /// What was found in front of where the ring was at is not what comes next.
    pub fn move_on(&mut self) {
        (self.piece, self.listed, self.fds, self.met) = (None, None, None, 0);
    }

    /// Whether another process could go on with it: not with descriptors that only this one has, nor with pages of pools,
    /// whose references are counted in one process.
    pub fn can_be_shared(&self) -> bool {
        let here = self.fds.as_ref().is_some_and(|arrived| matches!(arrived.fds, Descriptors::Here(_)));
        !here && self.pools.is_empty()
    }

    /// What this process, number `me`, has at that position that others have not.
    pub fn save(&self, me: u32, position: u64) -> [u64; TOLD] {
        let (found, number) = match self.fds.as_ref().map(|arrived| &arrived.fds) {
            Some(Descriptors::Here(_)) => (u64::from(me) | WITH_FDS, 0),
            Some(Descriptors::With(holder)) => (u64::from(*holder) | WITH_FDS, 0),
            Some(Descriptors::InChannel { number, count }) => {
                (IN_CHANNEL | WITH_FDS | u64::from(*count) << COUNT, *number)
            }
            None if self.met == position + 1 => (me.into(), 0),
            None => (0, 0),
        };
        let until = self.fds.as_ref().map_or(0, |arrived| arrived.until);
        let count = u32::try_from(self.pools.len()).unwrap_or(u32::MAX);
        let (holder, count) = if count > 0 { (me, count) } else { self.pools_of.unwrap_or_default() };
        [found, until, number, u64::from(holder) | u64::from(count) << 32]
    }

    /// What the one who received last said of this.
    pub fn load(&mut self, me: u32, position: u64, [found, until, number, pools]: [u64; TOLD]) {
        let (holder, count) = (pools as u32, (pools >> 32) as u32);
        self.pools_of = Some((holder, count)).filter(|_| count > 0 && holder != me);
        if self.pools_of.is_some() && !self.pools.is_empty() {
            // Inherited: what the parent has mapped it gives back itself.
            (self.piece, self.listed) = (None, None);
            self.pools.clear();
        }
        let (holder, until) = (found as u32, until.max(position + 1));
        if found & IN_CHANNEL != 0 {
            let fds = Descriptors::InChannel { number, count: (found >> COUNT) as u8 };
            self.fds = Some(Arrived { fds, until });
        } else if found != 0 && holder != me {
            // Taken out of the channel, so it is not looked for there again.
            self.met = position + 1;
            self.fds = (found & WITH_FDS != 0).then_some(Arrived { fds: Descriptors::With(holder), until });
        }
    }
}

impl Front {
    /// Whether a process that is no child could go on with it, at that position.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn can_be_passed(&self, position: u64) -> std::result::Result<(), &'static str> {
        if self.fds.is_some() {
            return Err("descriptors came that were not received; receive them first");
        }
        if self.met == position + 1 {
            return Err("a record was peeked at that says who sends; receive it first");
        }
        if self.pools.is_empty() {
            return Ok(());
        }
        Err(
            "pages of the peer's were received here by reference, which this process maps; with Config::max_shared 0 \
             they come as copies",
        )
    }
}

/// Descriptors, and how far a receive with them may go.
#[derive(Debug)]
pub struct Arrived {
    pub fds: Descriptors,
    /// Position in the ring.
    pub until: u64,
}

/// Where descriptors are whose mark or frame was met.
#[derive(Debug)]
pub enum Descriptors {
    /// So many are in the channel still, since no byte of theirs was there: whoever receives that takes them.
    InChannel { number: u64, count: u8 },
    /// Here.
    Here(Fds),
    /// That process, which shares the end, has peeked at them.
    With(u32),
}

impl Descriptors {
    /// Whether some are lost.
    pub fn are_cut(&self) -> bool {
        match self {
            Descriptors::InChannel { .. } => false,
            Descriptors::Here(fds) => fds.truncated,
            Descriptors::With(_) => true,
        }
    }
}

/// What only another process has, that shares the end since a fork.
fn busy(why: &'static str) -> Error {
    Error::new(Op::Recv, Errno::BUSY).because(why)
}

/// Who sends.
#[derive(Debug)]
pub struct Sender {
    who: Ucred,
    pidfd: Option<OwnedFd>,
}

/// Who sent where nobody said it (net/core/scm.c: no pid, and INVALID_UID shown as the overflow id).
const NOBODY: Ucred = Ucred { pid: 0, uid: 65534, gid: 65534 };

impl Front {
    /// Who sent what comes next, as far as it was said.
    pub fn sender(&self) -> Ucred {
        self.who.as_ref().map_or(NOBODY, |sender| sender.who)
    }

    /// Whether another process has, or had, pools of the peer that this one cannot map.
    pub fn lacks_pools(&self) -> bool {
        self.pools_of.is_some()
    }

    /// Tells a receive who sent what it got.
    pub fn tell(&self, to: &mut Fds, pidfd: bool) {
        if to.who.is_none() {
            to.who = Some(self.sender());
            let mine = self.who.as_ref().and_then(|sender| sender.pidfd.as_ref()).filter(|_| pidfd);
            to.pidfd = mine.and_then(|pidfd| pidfd.try_clone().ok());
        }
    }

    /// The part of a page that a reference names.
    ///
    /// # Errors
    ///
    /// [`Lie::Reference`].
    #[inline]
    pub fn adopt(&mut self, reference: Mark) -> std::result::Result<Piece, Lie> {
        let Mark::Reference { slot, pool, page, offset, len } = reference else { return Err(Lie::Reference) };
        let known = self.pools.get_mut(pool as usize).ok_or(Lie::Reference)?;
        let (at, len) = (offset as usize, len as usize);
        if len == 0 || at > known.page_len() || len > known.page_len() - at {
            return Err(Lie::Reference);
        }
        let page = known.adopt(slot, page).map_err(|_| Lie::Reference)?;
        Ok(Piece { page, at, len, received: 0 })
    }

    /// Another process has received: who sent what comes next is not known here.
    pub fn forget_who(&mut self) {
        self.who = None;
    }

    /// Who sends from here on. The kernel vouches for who has put the message into the channel, but which socket the
    /// channel is the peer has chosen: what others have written to it may lie in there. So nobody is believed that the peer
    /// could not be.
    ///
    /// # Errors
    ///
    /// [`Lie::Channel`].
    fn hear(&mut self, end: &End, said: &mut Fds) -> std::result::Result<(), Lie> {
        let (who, pidfd) = (said.who.take(), said.pidfd.take());
        self.who = None;
        match who {
            None | Some(NOBODY) => Ok(()),
            Some(who) if may_be(end, who) => {
                self.who = Some(Sender { who, pidfd });
                Ok(())
            }
            // Nobody asks.
            Some(_) if !end.passes_who() => Ok(()),
            Some(_) => Err(Lie::Channel),
        }
    }
}

/// Whether the peer could be that user: its ids are those that it had when it connected (SO_PEERCRED, which the kernel notes
/// once and nobody can change), or it was root then, who may claim anybody. The effective ids are compared, as the kernel
/// notes no others; senders of this crate say them. Users that are not mapped in this user namespace are one, 65534.
fn may_be(end: &End, who: Ucred) -> bool {
    scm::peer_credentials(end.life())
        .is_ok_and(|peer| peer.uid == 0 || (peer.uid, peer.gid) == (who.uid, who.gid))
}

/// Bytes that a peer has lent, or the part of them that is not received yet. Its page goes back when all that shares it is
/// dropped.
#[derive(Debug)]
pub struct Piece {
    page: Page,
    /// Where they begin in the page. Invariant: `at + len` is inside.
    at: usize,
    len: usize,
    /// Bytes of the reference that were received before these.
    received: usize,
}

impl Piece {
    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies from `from` bytes behind the front on. There are enough.
    #[inline]
    pub fn copy_out_from(&self, from: usize, buffer: &mut [u8]) {
        debug_assert!(from + buffer.len() <= self.len);
        // Whoever asks for the bytes in a buffer of his own reads them next, on this core.
        let hint = Hint { policy: Policy::Cached, footprint: buffer.len(), reader: Reader::SameCore };
        onecopy_copy::copy_out(buffer, self.part(self.at + from, buffer.len()), hint);
    }

    /// A view of the first `max` bytes.
    pub fn span(&self, max: usize) -> Span<'_> {
        self.part(self.at, self.len.min(max))
    }

    #[inline]
    fn part(&self, at: usize, len: usize) -> Span<'_> {
        self.page.span(at, len).expect("inside of a page that a peer shares")
    }

    /// Goes on behind the first `count` bytes (which it has).
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.at += count;
        self.len -= count;
        self.received += count;
    }

    /// Cuts off the first `count` bytes (of more).
    pub fn split(self, count: usize) -> (Piece, Piece) {
        let first = Piece { page: self.page.clone(), len: count, ..self };
        let mut rest = self;
        rest.advance(count);
        (first, rest)
    }

    /// Bytes of the reference that were received before these.
    pub fn received(&self) -> usize {
        self.received
    }

    /// Bytes of its page.
    pub fn page_len(&self) -> usize {
        self.page.len()
    }

    /// Of a chain. None where nothing is left of it.
    pub fn into_fragment(self) -> Option<Fragment> {
        Fragment::new(self.page, self.at, self.len).ok()
    }
}

/// What comes next in the stream, where a mark was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Part of a page, in [`Front::piece`].
    Reference,
    /// Something else than at the last look, or nothing any more.
    Again,
}

impl RxRing {
    /// Learns what the mark means that comes next in the stream.
    ///
    /// # Errors
    ///
    /// EPROTO; EMFILE, ENOMEM where this process lacks what it takes, and the mark stays.
    pub fn meet_mark(&mut self, end: &End) -> Result<Next> {
        let lie = |lie| end.lie(Op::Recv, lie);
        if self.front.piece.is_some() {
            return Ok(Next::Reference);
        }
        match self.consumer.mark().map_err(lie)? {
            reference @ Mark::Reference { .. } => {
                self.expect_pools(end)?;
                self.front.piece = Some(self.front.adopt(reference).map_err(lie)?);
                Ok(Next::Reference)
            }
            pool @ Mark::Pool { .. } => {
                self.meet_pool(end, pool)?;
                self.consumer.take_mark();
                Ok(Next::Again)
            }
            Mark::Who { said } => {
                self.drop_fds();
                self.front.who = None;
                if said
                    && let Some(mut who) = self.receive_announced(end, self.consumer.position(), 0, true)?
                {
                    self.front.hear(end, &mut who).map_err(lie)?;
                }
                self.consumer.take_mark();
                Ok(Next::Again)
            }
            Mark::Fds { count, len } => {
                let number = self.consumer.position();
                let count = u8::try_from(count).ok().filter(|count| *count > 0 && len > 0);
                let Some(count) = count else { return Err(lie(Lie::Mark { position: number, kind: 0 })) };
                // The mark stays where another process has the channel.
                self.expect_channel(end)?;
                self.drop_fds();
                self.consumer.take_mark();
                let until = self.consumer.position().saturating_add(len);
                self.front.fds = Some(Arrived { fds: Descriptors::InChannel { number, count }, until });
                Ok(Next::Again)
            }
        }
    }

    /// Maps a pool that the peer tells of.
    ///
    /// # Errors
    ///
    /// EPROTO; EMFILE, ENOMEM where this process lacks what it takes, and nothing was done.
    pub fn meet_pool(&mut self, end: &End, pool: Mark) -> Result<()> {
        let lie = |lie| end.lie(Op::Recv, lie);
        let Mark::Pool { pool, page_len, pages } = pool else { return Err(lie(Lie::Pool)) };
        self.expect_pools(end)?;
        let opened = self.open_pool(end, pool, page_len, pages)?;
        self.front.pools.push(opened.map_err(lie)?);
        Ok(())
    }

    /// The descriptor of a pool is in the channel, or kept since it could not be mapped.
    fn open_pool(
        &mut self,
        end: &End,
        pool: u32,
        page_len: u64,
        pages: u64,
    ) -> Result<std::result::Result<LentPages, Lie>> {
        let pools = &self.front.pools;
        let mapped: usize = pools.iter().map(|pool| pool.pages() as usize * pool.page_len()).sum();
        let left = end.config.max_shared.saturating_sub(mapped);
        let fits = shared::size(page_len, pages).is_some_and(|size| size <= left);
        // As all pools have them: 4096 << order.
        let order = page_len.trailing_zeros().checked_sub(12).filter(|_| page_len.is_power_of_two());
        let (true, Some(order), Ok(count)) = (fits, order, u32::try_from(pages)) else {
            return Ok(Err(Lie::Pool));
        };
        if pool as usize != pools.len() || pools.len() == MAX_POOLS {
            return Ok(Err(Lie::Pool));
        }
        let announced = self.announced(end, self.consumer.position(), 1, false);
        let memfd = match self.expect_channel(end)?.then(|| self.inlet.receive_pool(announced)).transpose()? {
            Some(Ok(Some(memfd))) => memfd,
            Some(Err(lie)) => return Ok(Err(lie)),
            Some(Ok(None)) | None => return Err(lost_pool()),
        };
        let (Some(ring), Some(channel)) = (end.rx_ring.get(), self.inlet.keep()) else {
            return Ok(Err(Lie::Channel));
        };
        let mapping = match shared::open(&memfd, page_len, pages) {
            Ok(mapping) => Arc::new(mapping),
            Err(Refused::NoMapping(errno)) => {
                self.inlet.keep_pool(announced.number, memfd);
                return Err(Error::new(Op::Recv, errno).because(
                    "the peer's pool could not be mapped; free memory or address space and receive again",
                ));
            }
            Err(_) => return Ok(Err(Lie::Pool)),
        };
        let ring = ring.clone();
        let opened = generation();
        let give_back = move |slot| {
            if opened != generation() {
                return; // what a forked child inherits is its parent's to give back
            }
            // As long as somebody may look at a page, the peer finds its end of the channel open.
            let _open = &channel;
            if ring.header().give_back_slot(slot) {
                ring.header().wake_lender();
            }
        };
        let slots = onecopy_ring::lend::SLOTS as u32;
        Ok(LentPages::new(mapping, order as u8, count, slots, give_back).map_err(|_| Lie::Pool))
    }

    /// Between a mark for descriptors and their first byte nothing comes, unless who laid it was killed before that byte: then they
    /// are nobody's. What is in the channel still is closed when a later message is looked for there, or was.
    fn drop_fds(&mut self) {
        self.front.fds = None;
    }

    /// The descriptors at the front are here from now on, as far as they are not gone.
    ///
    /// # Errors
    ///
    /// EBUSY where several processes share the end, and another one has peeked at them, or has the channel. EPROTO, EMFILE.
    pub fn bring_fds(&mut self, end: &End) -> Result<()> {
        let fds = match self.front.fds.as_ref().map(|arrived| &arrived.fds) {
            Some(&Descriptors::InChannel { number, count }) => {
                self.receive_announced(end, number, count.into(), false)?.unwrap_or_else(Fds::gone)
            }
            Some(Descriptors::With(holder)) if end.is_held_by(*holder) => {
                return Err(busy(
                    "what comes next brings descriptors, and another process that shares this socket since a fork has \
                     peeked at them; receive there",
                ));
            }
            Some(Descriptors::With(_)) => Fds::gone(),
            Some(Descriptors::Here(_)) | None => return Ok(()),
        };
        if let Some(arrived) = &mut self.front.fds {
            arrived.fds = Descriptors::Here(fds);
        }
        Ok(())
    }

    /// What the mark or the frame at position `number` says that there is.
    fn announced(&self, end: &End, number: u64, fds: usize, who: bool) -> Announced {
        let may_be_gone = end.sharing.get().is_some() || self.elsewhere.is_some() || self.inlet.is_lost();
        Announced { number, fds, who, may_be_gone }
    }

    /// That, from the channel. None where a process that died has taken it, or the channel.
    fn receive_announced(&mut self, end: &End, number: u64, fds: usize, who: bool) -> Result<Option<Fds>> {
        if !self.expect_channel(end)? {
            return Ok(None);
        }
        let announced = self.announced(end, number, fds, who);
        let received = self.inlet.receive(announced, who && end.passes_pidfd())?;
        received.map_err(|lie| end.lie(Op::Recv, lie))
    }

    /// A mark or a frame says that something lies in the channel, so the channel must be there: whether it is, and has not gone
    /// with a process that shared the end.
    ///
    /// # Errors
    ///
    /// EBUSY where several processes share the end and it is another one that has the channel: no lie of the peer's, and what
    /// was met stays for that one. EMFILE.
    fn expect_channel(&mut self, end: &End) -> Result<bool> {
        let made = self.consumer.header().reader.0.channels.load(Relaxed);
        if let Some(holder) = self.elsewhere
            && !self.inlet.is_met()
            // (Where there is a new one, its sender has found that nobody had the last, whoever lives.)
            && !self.inlet.has_new(made)
        {
            if end.is_held_by(holder) {
                return Err(busy(
                    "what comes next brings descriptors, or says who sends, and another process that shares this socket \
                     since a fork has the channel that they come through; receive there, or get the first of them before \
                     forking",
                ));
            }
            // It has gone with that one. Is there a new one?
            if !self.inlet.may_meet(made) {
                return Ok(false);
            }
        }
        if !self.inlet.is_met() || self.inlet.may_meet(made) {
            self.meet_channel(end)?;
            if (self.elsewhere.is_some() || self.inlet.is_lost()) && !self.inlet.has_channel() {
                self.inlet.has_missed(made);
            }
        }
        Ok(self.inlet.is_met() || end.sharing.get().is_none())
    }

    /// What comes next is in a page of the peer's, or tells of a pool: the pools must be here.
    ///
    /// # Errors
    ///
    /// EBUSY where several processes share the end and another one has mapped them: what was met stays for that one.
    /// EOWNERDEAD where that one is gone.
    #[inline]
    pub fn expect_pools(&self, end: &End) -> Result<()> {
        self.front.pools_of.map_or(Ok(()), |(holder, _)| pools_elsewhere(end, holder))
    }

    /// What comes with the frame at the front is received from the channel, once.
    ///
    /// # Errors
    ///
    /// EPROTO; EMFILE where this process lacks what it takes, and the frame stays.
    #[cold]
    pub fn meet_frame(&mut self, end: &End, with: With) -> Result<()> {
        let at = self.consumer.position() + 1;
        if self.front.met == at {
            return Ok(());
        }
        if with.is_in_channel() {
            let (fds, said) = (usize::from(with.fds()), with.who() == Who::Said);
            let mut came = self.receive_announced(end, self.consumer.position(), fds, said)?;
            if said {
                self.front.who = None;
            }
            if let Some(came) = came.as_mut().filter(|_| said) {
                self.front.hear(end, came).map_err(|lie| end.lie(Op::Recv, lie))?;
            }
            let fds = (fds > 0).then(|| Descriptors::Here(came.unwrap_or_else(Fds::gone)));
            self.front.fds = fds.map(|fds| Arrived { fds, until: u64::MAX });
        }
        if with.who() == Who::Unsaid {
            self.front.who = None;
        }
        self.front.met = at;
        Ok(())
    }

    /// The frame at the front goes without its descriptors, for which this process has no room. False where it has them already, or
    /// where the channel may still tell who sends it, and of all that come later.
    #[cold]
    pub fn forgo(&mut self, with: With) -> bool {
        let at = self.consumer.position() + 1;
        let said = with.who() == Who::Said;
        if self.front.met == at || !with.is_in_channel() || (said && !self.inlet.is_lost()) {
            return false;
        }
        let gone = (with.fds() > 0).then(|| Descriptors::Here(Fds::gone()));
        self.front.fds = gone.map(|fds| Arrived { fds, until: u64::MAX });
        if said {
            self.front.who = None;
        }
        self.front.met = at;
        true
    }

    /// Bytes that can be received now.
    pub fn payload(&mut self) -> std::result::Result<usize, Lie> {
        let bytes = self.consumer.payload()?;
        // Of a page that was received in part, what is left.
        let of_piece = self.front.piece.as_ref().map_or(0, Piece::received);
        Ok(usize::try_from(bytes.saturating_sub(of_piece as u64)).unwrap_or(usize::MAX))
    }

    /// The reference at the front was received.
    pub fn take_reference(&mut self) -> Option<Piece> {
        let piece = self.front.piece.take()?;
        self.consumer.take_mark();
        Some(piece)
    }
}

#[cold]
fn pools_elsewhere(end: &End, holder: u32) -> Result<()> {
    if !end.is_held_by(holder) {
        return Err(lost_pool());
    }
    Err(busy(
        "what comes next is in memory of the peer's that another process has mapped, which shares this socket since a fork; \
         receive there, or with Config::max_shared 0, so that it comes as a copy",
    ))
}

/// What comes next lies in memory that nobody here can look at any more.
#[cold]
fn lost_pool() -> Error {
    Error::new(Op::Recv, Errno::OWNERDEAD).because(
        "what comes next is in memory of the peer's that a process had mapped which shared this socket and has ended; \
         connect again",
    )
}
