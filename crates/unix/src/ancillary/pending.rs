//! What the stream has brought besides bytes, for who receives next: part of a reference, descriptors, pools.

use crate::ancillary::channel::Fds;
use crate::byref::listed::Listed;
use crate::byref::piece::Piece;
use crate::connection::core::Core;
use onecopy_pool::provider::LentPages;
use onecopy_ring::{Mark, PeerMisbehaved};
use onecopy_sys::scm::{self, Ucred};
use rustix::fd::OwnedFd;

/// What was met at marks and is not received yet.
#[derive(Debug, Default)]
pub struct Pending {
    /// The reference at the next mark, as far as it was not received. Its mark is taken with its last byte.
    pub piece: Option<Piece>,
    /// The list of the record at the front, once it was looked at (seqpacket sockets only).
    pub listed: Option<Listed>,
    /// Descriptors for who receives the next byte.
    pub fds: Option<Arrived>,
    /// Who sends what comes next, as far as that was said.
    pub(super) who: Option<Sender>,
    /// Behind the beginning of the frame whose descriptors these are; 0 for none.
    pub(super) met: u64,
    /// Pools of the peer, what its references point into: by the names that these use.
    pub(super) pools: Vec<LentPages>,
    /// The process that has mapped pools of the peer while this one shared the end with it, and how many.
    pub(super) pools_of: Option<(u32, u32)>,
}

/// What processes that share an end tell each other of what one of them has found at the front: words, as [`Pending::save`]
/// writes them.
pub const TOLD: usize = 4;

/// In the first of these: descriptors are among what was found.
const WITH_FDS: u64 = 1 << 32;
/// They lie in the channel still, and this is how many.
const IN_CHANNEL: u64 = 1 << 33;
const COUNT: u32 = 40;

impl Pending {
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
            Some(Descriptors::With(member)) => (u64::from(*member) | WITH_FDS, 0),
            Some(Descriptors::InChannel { number, count }) => {
                (IN_CHANNEL | WITH_FDS | u64::from(*count) << COUNT, *number)
            }
            None if self.met == position + 1 => (me.into(), 0),
            None => (0, 0),
        };
        let until = self.fds.as_ref().map_or(0, |arrived| arrived.until);
        let count = u32::try_from(self.pools.len()).unwrap_or(u32::MAX);
        let (member, count) = if count > 0 { (me, count) } else { self.pools_of.unwrap_or_default() };
        [found, until, number, u64::from(member) | u64::from(count) << 32]
    }

    /// What the one who received last said of this.
    pub fn load(&mut self, me: u32, position: u64, [found, until, number, pools]: [u64; TOLD]) {
        let (member, count) = (pools as u32, (pools >> 32) as u32);
        self.pools_of = Some((member, count)).filter(|_| count > 0 && member != me);
        if self.pools_of.is_some() && !self.pools.is_empty() {
            // Inherited: what the parent has mapped it gives back itself.
            (self.piece, self.listed) = (None, None);
            self.pools.clear();
        }
        let (member, until) = (found as u32, until.max(position + 1));
        if found & IN_CHANNEL != 0 {
            let fds = Descriptors::InChannel { number, count: (found >> COUNT) as u8 };
            self.fds = Some(Arrived { fds, until });
        } else if found != 0 && member != me {
            // Taken out of the channel, so it is not looked for there again.
            self.met = position + 1;
            self.fds = (found & WITH_FDS != 0).then_some(Arrived { fds: Descriptors::With(member), until });
        }
    }
}

impl Pending {
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

/// Who sends.
#[derive(Debug)]
pub struct Sender {
    who: Ucred,
    pidfd: Option<OwnedFd>,
}

/// Who sent where nobody said it (net/core/scm.c: no pid, and INVALID_UID shown as the overflow id).
const NOBODY: Ucred = Ucred { pid: 0, uid: 65534, gid: 65534 };

impl Pending {
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
    /// [`PeerMisbehaved::Reference`].
    #[inline]
    pub fn adopt(&mut self, reference: Mark) -> std::result::Result<Piece, PeerMisbehaved> {
        let Mark::Reference { slot, pool, page, offset, len } = reference else {
            return Err(PeerMisbehaved::Reference);
        };
        let known = self.pools.get_mut(pool as usize).ok_or(PeerMisbehaved::Reference)?;
        let (at, len) = (offset as usize, len as usize);
        if len == 0 || at > known.page_len() || len > known.page_len() - at {
            return Err(PeerMisbehaved::Reference);
        }
        let page = known.adopt(slot, page).map_err(|_| PeerMisbehaved::Reference)?;
        Ok(Piece { page, at, len, received: 0 })
    }

    /// Another process has received: who sent what comes next is not known here.
    pub fn forget_sender(&mut self) {
        self.who = None;
    }

    /// Who sends from here on. The kernel vouches for who has put the message into the channel, but which socket the
    /// channel is the peer has chosen: what others have written to it may lie in there. So nobody is believed that the peer
    /// could not be.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Channel`].
    pub(super) fn hear(&mut self, core: &Core, said: &mut Fds) -> std::result::Result<(), PeerMisbehaved> {
        let (who, pidfd) = (said.who.take(), said.pidfd.take());
        self.who = None;
        match who {
            None | Some(NOBODY) => Ok(()),
            Some(who) if may_be(core, who) => {
                self.who = Some(Sender { who, pidfd });
                Ok(())
            }
            // Nobody asks.
            Some(_) if !core.passes_identity() => Ok(()),
            Some(_) => Err(PeerMisbehaved::Channel),
        }
    }
}

/// Whether the peer could be that user: its ids are those that it had when it connected (SO_PEERCRED, which the kernel notes
/// once and nobody can change), or it was root then, who may claim anybody. The effective ids are compared, as the kernel
/// notes no others; senders of this crate say them. Users that are not mapped in this user namespace are one, 65534.
fn may_be(core: &Core, who: Ucred) -> bool {
    scm::peer_credentials(core.life())
        .is_ok_and(|peer| peer.uid == 0 || (peer.uid, peer.gid) == (who.uid, who.gid))
}

/// What comes next in the stream, where a mark was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Part of a page, in [`Pending::piece`].
    Reference,
    /// Something else than at the last look, or nothing any more.
    Again,
}
