//! The things that the stream has brought besides bytes, for the next receive: part of a reference,
//! descriptors, pools, the sender's identity.

use crate::ancillary::channel::Fds;
use crate::byref::listed::Listed;
use crate::byref::piece::Piece;
use crate::core::Core;
use onecopy_pool::provider::LentPages;
use onecopy_ring::{Mark, PeerMisbehaved};
use onecopy_sys::scm::{self, Ucred};
use rustix::fd::OwnedFd;

/// The things that were met at marks and are not received yet.
#[derive(Debug, Default)]
pub struct Pending {
    /// The reference at the next mark, and how much of it was received. Its mark is taken with its last byte.
    piece: Option<Piece>,
    /// The list of the next record, once it was looked at (seqpacket sockets only).
    listed: Option<Listed>,
    /// Descriptors for the process that receives the next byte.
    fds: Option<Arrived>,
    /// The sender of what comes next, as far as it was stated.
    who: Option<Sender>,
    /// One more than the position of the frame whose descriptors these are; 0 for none.
    met: u64,
    /// Pools of the peer that its references point into. The index is the pool's number in a reference.
    pools: Vec<LentPages>,
    /// The process that has mapped pools of the peer while this one shared the end with it, and how many.
    pools_of: Option<(u32, u32)>,
}

/// How many words processes that share an end use to tell each other what one of them has met and not
/// received. [`Pending::save`] writes them.
pub const TOLD: usize = 4;

/// Set in the first of these words if descriptors are among what was met.
const WITH_FDS: u64 = 1 << 32;
/// Set if they are in the channel still. Their count begins at bit [`COUNT`].
const IN_CHANNEL: u64 = 1 << 33;
const COUNT: u32 = 40;

impl Pending {
    /// Whether what comes besides bytes at that position was taken already.
    #[inline]
    pub fn has_met(&self, at: u64) -> bool {
        self.met == at
    }

    /// Notes that what comes besides bytes at that position was taken.
    pub fn note_met(&mut self, at: u64) {
        self.met = at;
    }

    /// Adds a pool that the peer has brought.
    pub fn add_pool(&mut self, pool: LentPages) {
        self.pools.push(pool);
    }

    /// Returns the pools that the peer has brought.
    pub fn pools(&self) -> &[LentPages] {
        &self.pools
    }

    /// Returns which other process has the peer's pools, and how many these are.
    pub fn pools_of(&self) -> Option<(u32, u32)> {
        self.pools_of
    }

    /// Forgets what was met: the ring has moved on from there.
    pub fn move_on(&mut self) {
        (self.piece, self.listed, self.fds, self.met) = (None, None, None, 0);
    }

    /// Returns whether another process could go on with it. It cannot if this process alone has descriptors,
    /// or pages of pools, whose references are counted in one process.
    pub fn can_be_shared(&self) -> bool {
        let here = self.fds.as_ref().is_some_and(|arrived| matches!(arrived.fds, Descriptors::Here(_)));
        !here && self.pools.is_empty()
    }

    /// Writes down what this process, number `me`, has at that position and others do not have.
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

    /// Takes over what the process that received last has written down.
    pub fn load(&mut self, me: u32, position: u64, [found, until, number, pools]: [u64; TOLD]) {
        let (member, count) = (pools as u32, (pools >> 32) as u32);
        self.pools_of = Some((member, count)).filter(|_| count > 0 && member != me);
        if self.pools_of.is_some() && !self.pools.is_empty() {
            // Inherited from the parent, which gives back itself what it has mapped.
            (self.piece, self.listed) = (None, None);
            self.pools.clear();
        }
        let (member, until) = (found as u32, until.max(position + 1));
        if found & IN_CHANNEL != 0 {
            let fds = Descriptors::InChannel { number, count: (found >> COUNT) as u8 };
            self.fds = Some(Arrived { fds, until });
        } else if found != 0 && member != me {
            // They were taken out of the channel, so nobody looks for them there again.
            self.met = position + 1;
            self.fds = (found & WITH_FDS != 0).then_some(Arrived { fds: Descriptors::With(member), until });
        }
    }
}

impl Pending {
    /// Checks that a process that is no child could go on with it, at that position.
    ///
    /// # Errors
    ///
    /// The reason why it could not.
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
struct Arrived {
    fds: Descriptors,
    /// Position in the ring.
    until: u64,
}

/// Where the descriptors are, once their mark or frame was met.
#[derive(Debug)]
pub enum Descriptors {
    /// So many are in the channel still, since no byte of theirs was there. The process that receives that
    /// byte takes them.
    InChannel { number: u64, count: u8 },
    /// This process has them.
    Here(Fds),
    /// The process with this number, which shares the end, has peeked at them.
    With(u32),
}

impl Descriptors {
    /// Returns whether some are lost.
    fn are_cut(&self) -> bool {
        match self {
            Descriptors::InChannel { .. } => false,
            Descriptors::Here(fds) => fds.truncated,
            Descriptors::With(_) => true,
        }
    }
}

/// The descriptors for the next byte.
impl Pending {
    /// Whether there are any, wherever they are.
    #[inline]
    pub fn has_fds(&self) -> bool {
        self.fds.is_some()
    }

    /// Returns where they are.
    pub fn where_fds_are(&self) -> Option<&Descriptors> {
        self.fds.as_ref().map(|arrived| &arrived.fds)
    }

    /// Returns the position up to which a receive may go with them. Without any it may go as far as it likes.
    pub fn fds_until(&self) -> u64 {
        self.fds.as_ref().map_or(u64::MAX, |arrived| arrived.until)
    }

    /// Whether some of them are lost.
    pub fn fds_are_cut(&self) -> bool {
        self.fds.as_ref().is_some_and(|arrived| arrived.fds.are_cut())
    }

    /// Notes `count` descriptors in the channel's message with that number. They belong to the bytes up to `until`.
    pub fn expect_fds(&mut self, number: u64, count: u8, until: u64) {
        self.fds = Some(Arrived { fds: Descriptors::InChannel { number, count }, until });
    }

    /// Notes what came with the next frame.
    pub fn came_with_frame(&mut self, fds: Option<Fds>) {
        self.fds = fds.map(|fds| Arrived { fds: Descriptors::Here(fds), until: u64::MAX });
    }

    /// Notes that the descriptors that were expected are here.
    pub fn brought_fds(&mut self, fds: Fds) {
        if let Some(arrived) = &mut self.fds {
            arrived.fds = Descriptors::Here(fds);
        }
    }

    /// Returns those that are here.
    pub fn fds_here(&self) -> Option<&Fds> {
        match self.where_fds_are() {
            Some(Descriptors::Here(fds)) => Some(fds),
            _ => None,
        }
    }

    /// Takes those that are here, and forgets the others.
    pub fn take_fds(&mut self) -> Option<Fds> {
        match self.fds.take()?.fds {
            Descriptors::Here(fds) => Some(fds),
            _ => None,
        }
    }

    /// Drops them, or forgets those that are not here.
    pub fn drop_fds(&mut self) {
        self.fds = None;
    }
}

/// The pages that come next.
impl Pending {
    /// Returns the reference that comes next.
    pub fn piece(&self) -> Option<&Piece> {
        self.piece.as_ref()
    }

    /// Returns the reference that comes next, to receive a part of it.
    pub fn piece_mut(&mut self) -> Option<&mut Piece> {
        self.piece.as_mut()
    }

    /// Notes the reference at the next mark.
    ///
    /// # Errors
    ///
    /// Those of [`Pending::adopt`].
    #[inline]
    pub fn meet_reference(&mut self, reference: Mark) -> std::result::Result<(), PeerMisbehaved> {
        self.piece = Some(self.adopt(reference)?);
        Ok(())
    }

    /// Takes `max` bytes of the reference at most. The rest of it stays.
    #[inline]
    pub fn take_piece(&mut self, max: usize) -> Option<Piece> {
        match self.piece.take() {
            Some(piece) if piece.len() > max => {
                let (first, rest) = piece.split(max);
                self.piece = Some(rest);
                Some(first)
            }
            piece => piece,
        }
    }

    /// Whether the list of the frame at that position was looked at.
    pub fn has_list_at(&self, at: u64) -> bool {
        self.listed.as_ref().is_some_and(|listed| listed.is_at(at))
    }

    /// Keeps the list of the next frame.
    pub fn keep_list(&mut self, listed: Listed) {
        self.listed = Some(listed);
    }

    /// Takes the list of the next frame, which was looked at.
    pub fn take_list(&mut self) -> Option<Listed> {
        self.listed.take()
    }
}

/// The identity of a sender.
#[derive(Debug)]
pub struct Sender {
    who: Ucred,
    pidfd: Option<OwnedFd>,
}

/// The sender of bytes for which no identity was stated (net/core/scm.c: no pid, and INVALID_UID shown as the
/// overflow id).
const NOBODY: Ucred = Ucred { pid: 0, uid: 65534, gid: 65534 };

impl Pending {
    /// Returns the sender of what comes next, as far as it was stated.
    pub fn sender(&self) -> Ucred {
        self.who.as_ref().map_or(NOBODY, |sender| sender.who)
    }

    /// Returns whether another process has, or had, pools of the peer that this one cannot map.
    pub fn lacks_pools(&self) -> bool {
        self.pools_of.is_some()
    }

    /// Adds the sender's identity to what a receive got.
    pub fn tell(&self, to: &mut Fds, pidfd: bool) {
        if to.who.is_none() {
            to.who = Some(self.sender());
            let mine = self.who.as_ref().and_then(|sender| sender.pidfd.as_ref()).filter(|_| pidfd);
            to.pidfd = mine.and_then(|pidfd| pidfd.try_clone().ok());
        }
    }

    /// Returns the part of a page that a reference names.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Reference`] if there is no such part.
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
        Ok(Piece::new(page, at, len))
    }

    /// Forgets the sender, as another process has received: this one does not know the sender of what comes
    /// next.
    pub fn forget_sender(&mut self) {
        self.who = None;
    }

    /// Notes the identity of the sender from here on.
    ///
    /// The kernel vouches for the process that has put the message into the channel. But the peer has chosen
    /// which socket the channel is, and others may have written to that socket. So an identity is believed
    /// only if the peer could have it.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Channel`] if the peer could not have it and this end asks for identities.
    pub fn hear(&mut self, core: &Core, said: &mut Fds) -> std::result::Result<(), PeerMisbehaved> {
        let (who, pidfd) = (said.who.take(), said.pidfd.take());
        self.who = None;
        match who {
            None | Some(NOBODY) => Ok(()),
            Some(who) if may_be(core, who) => {
                self.who = Some(Sender { who, pidfd });
                Ok(())
            }
            // Nobody asks for it.
            Some(_) if !core.passes_identity() => Ok(()),
            Some(_) => Err(PeerMisbehaved::Channel),
        }
    }
}

/// Returns whether the peer could be that user. Its ids must be those that it had when it connected
/// (SO_PEERCRED, which the kernel notes once and nobody can change). Or it was root then, which may claim any
/// identity.
///
/// This compares the effective ids, as the kernel notes no others; senders of this crate state those. All
/// users that are not mapped in this user namespace look like one, 65534.
fn may_be(core: &Core, who: Ucred) -> bool {
    scm::peer_credentials(core.life())
        .is_ok_and(|peer| peer.uid == 0 || (peer.uid, peer.gid) == (who.uid, who.gid))
}

/// The next thing in the stream, after a mark was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Part of a page: [`Pending::piece`].
    Reference,
    /// Something else than at the last look, or nothing any more.
    Again,
}
