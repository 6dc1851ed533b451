//! A connection before its rings are in use: what it may still do, and where it switches.

use crate::connection::carry::Carry;
use crate::handshake::invitation::Invitation;
use crate::handshake::rendezvous::{Rendezvous, Target};
use onecopy_ring::index::FARTHEST;
use onecopy_ring::memory::Nonce;
use onecopy_ring::{PeerMisbehaved, Ring};
use onecopy_sync::atomic::Ordering::Acquire;
use onecopy_sys::socket::unix_address;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

/// A connection that has no rings yet.
#[derive(Debug)]
pub struct Undecided {
    /// The label of its rings.
    pub(super) nonce: Nonce,
    pub(super) role: Role,
    /// Bytes of the stream, or records, that came over the kernel so far.
    pub(super) received: u64,
    /// Whether the peer's next message may have rings with it.
    pub(super) looks: bool,
    /// Whether rings larger than the client's were asked for.
    pub(super) larger: bool,
    /// The rings that this side has sent, if it is a client. The server receives from the first one.
    pub(super) attached: Option<[Ring; 2]>,
    /// Where a client can bring its rings before its first bytes.
    pub(super) meets: Meets,
    /// The client's visit there, which hangs up once it is over. There is one at a time, however often the program
    /// waits: each takes a place in the rendezvous' queue, and has a descriptor on its way.
    visit: Option<Arc<OwnedFd>>,
}

/// Where the two sides can meet besides the connection itself.
#[derive(Clone, Debug, Default)]
pub enum Meets {
    /// The client, at its listener's rendezvous.
    At(Target),
    /// The server, at its own listener's. It is gone once that is closed.
    Here(Weak<Rendezvous>),
    #[default]
    Nowhere,
}

/// Which side this is.
#[derive(Debug)]
pub enum Role {
    /// Whether the client may attach: its listener is known for one of ours, and rings can be made.
    Client(bool),
    /// What the client asks for, while rings can be made.
    Server(Option<Invitation>),
}

/// What is left of an undecided connection once this side will neither attach nor join rings.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub enum Settled {
    /// Nothing was attached.
    Plain,
    /// Nothing was attached.
    Undecided(Undecided),
    /// What was attached stays.
    Switching(Switching),
}

impl Undecided {
    /// Begins for a client that has invited the server, whose listener is known for one of `ours` or not.
    pub fn client(invitation: &Invitation, ours: bool) -> Undecided {
        Undecided::new(invitation.nonce, Role::Client(ours))
    }

    /// Begins for a server that was invited, and that attaches rings or leaves that to its client.
    pub fn server(invitation: Invitation, attaches: bool) -> Undecided {
        Undecided::new(invitation.nonce, Role::Server(Some(invitation).filter(|_| attaches)))
    }

    fn new(nonce: Nonce, role: Role) -> Undecided {
        Undecided {
            nonce,
            role,
            received: 0,
            looks: true,
            larger: false,
            attached: None,
            meets: Meets::Nowhere,
            visit: None,
        }
    }

    /// Notes where the two sides can meet.
    pub fn meeting(mut self, meets: Meets) -> Undecided {
        self.meets = meets;
        self
    }

    /// Returns where the two sides can meet.
    pub fn meets(&self) -> Meets {
        self.meets.clone()
    }

    /// Notes that the two sides cannot meet.
    pub fn meets_nowhere(&mut self) {
        self.meets = Meets::Nowhere;
    }

    /// Returns the client's visit, if there was one.
    pub fn visit(&self) -> Option<&Arc<OwnedFd>> {
        self.visit.as_ref()
    }

    /// Notes the client's visit.
    pub fn visits(&mut self, line: Arc<OwnedFd>) {
        self.visit = Some(line);
    }

    /// Goes on with a connection that another process has passed on, and in which this side may still attach
    /// rings or not. Returns None if no side has invited the other.
    pub fn of(socket: BorrowedFd<'_>, may_attach: bool) -> Option<Undecided> {
        let mine = rustix::net::getsockname(socket).ok().and_then(unix_address);
        if let Some(invitation) = Invitation::of(mine) {
            return Some(Undecided::client(&invitation, may_attach));
        }
        let peer = rustix::net::getpeername(socket).ok().flatten().and_then(unix_address);
        Invitation::of(peer).map(|invitation| Undecided::server(invitation, may_attach))
    }

    /// Returns the label of its rings.
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Returns how many bytes of the stream, or records, came over the kernel so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether this side may attach rings, after it has `sent` so many bytes.
    pub fn may_attach(&self, sent: u64) -> bool {
        match &self.role {
            Role::Client(may) => *may,
            // With its first bytes or never: a client does not look at those that come later.
            Role::Server(invitation) => invitation.is_some() && sent == 0,
        }
    }

    /// Returns the ring that a client that has attached rings will receive from, if its server joins.
    pub fn attached(&self) -> Option<&Ring> {
        self.attached.as_ref().map(|[_, mine]| mine)
    }

    /// Whether the peer's next message may have rings with it.
    pub fn looks(&self) -> bool {
        self.looks
    }

    /// Goes on where another process has left off.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Member`]: more than any connection ever has.
    pub fn resume(&mut self, received: u64, looks: bool) -> std::result::Result<(), PeerMisbehaved> {
        if received > FARTHEST {
            return Err(PeerMisbehaved::Member);
        }
        (self.received, self.looks) = (received, looks);
        Ok(())
    }

    pub(super) fn is_server(&self) -> bool {
        matches!(self.role, Role::Server(_))
    }

    /// Returns the state in which this side will neither attach nor join rings, since several processes are
    /// to go on with the connection. What was attached stays.
    pub fn settled(self) -> Settled {
        let Undecided { nonce, received, looks, .. } = self;
        match self.attached {
            Some([_, mine]) => {
                let strips = if looks { Strips::One } else { Strips::No };
                Settled::Switching(Switching::new(mine, received, nonce).stripping(strips))
            }
            // If no rings can come any more, the peer is plain.
            None if !looks => Settled::Plain,
            None => Settled::Undecided(self),
        }
    }
}

/// A receiving side that has a ring, before the peer's switch.
#[derive(Debug)]
pub struct Switching {
    ring: Ring,
    /// Bytes of the stream, or records, that came over the kernel so far.
    received: u64,
    /// The label of this connection's rings.
    nonce: Nonce,
    /// Which messages over the kernel may have such rings with them that nobody uses.
    strips: Strips,
    /// A process that shared the end was killed while it received. What it left in the queue of doorbells is
    /// to be forgiven.
    recovered: bool,
    /// For stream records: what came over the kernel and was not received yet.
    carry: Carry,
}

/// Which of the messages that come over the kernel may have unused rings with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strips {
    No,
    /// One of those that come next.
    One,
    /// Any.
    All,
}

impl Strips {
    /// Decodes a word that another process wrote.
    pub fn of(word: u64) -> Strips {
        match word {
            0 => Strips::No,
            1 => Strips::One,
            _ => Strips::All,
        }
    }
}

impl Switching {
    /// Begins for a connection over which `received` came so far.
    pub fn new(ring: Ring, received: u64, nonce: Nonce) -> Switching {
        Switching { ring, received, nonce, strips: Strips::No, recovered: false, carry: Carry::default() }
    }

    /// Notes that the peer may have sent rings of its own.
    pub fn stripping(mut self, strips: Strips) -> Switching {
        self.strips = strips;
        self
    }

    /// Notes that one message in the queue still has the joined rings with it. It is not always the first: a
    /// peek of a stream looks for descriptors beyond the bytes that it has room for (net/unix/af_unix.c:
    /// unix_stream_read_generic).
    pub fn strip_one(&mut self) {
        self.strips = Strips::One;
    }

    /// Notes that any message may have the joined rings with it: they were brought in another way, and may be
    /// under way besides.
    pub fn strip_all(&mut self) {
        self.strips = Strips::All;
    }

    /// Notes that rings were stripped.
    pub fn stripped(&mut self) {
        if self.strips == Strips::One {
            self.strips = Strips::No;
        }
    }

    /// Notes that a process that shared the end was killed while it received, and may have been further than it
    /// had saved.
    pub fn note_death(&mut self) {
        self.recovered = true;
    }

    /// Whether a process that shared the end was killed while it received.
    pub fn is_recovered(&self) -> bool {
        self.recovered
    }

    /// Returns the piece of a stream record that is being received.
    pub fn carry(&self) -> &Carry {
        &self.carry
    }

    /// Returns the piece of a stream record, to receive from, or to put the next one in its place.
    pub fn carry_mut(&mut self) -> &mut Carry {
        &mut self.carry
    }

    pub fn strips(&self) -> Strips {
        self.strips
    }

    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the label of this connection's rings.
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Notes what another process has received, and whether it had `recovered` from the death of one before it.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Member`]: more than any connection ever has.
    pub fn resume(
        &mut self,
        received: u64,
        strips: Strips,
        recovered: bool,
    ) -> std::result::Result<(), PeerMisbehaved> {
        self.recovered = recovered;
        if received > FARTHEST {
            return Err(PeerMisbehaved::Member);
        }
        (self.received, self.strips) = (received, strips);
        Ok(())
    }

    /// Returns the ring that has the bytes after the switch.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Counts bytes of the stream, or records, that came over the kernel.
    pub fn count(&mut self, count: u64) {
        self.received += count;
    }

    /// Returns how many bytes may still be received over the kernel; None while the peer has not switched.
    pub fn left(&self) -> std::result::Result<Option<u64>, PeerMisbehaved> {
        // Acquire pairs with the Release store in `Handshake::adopt`.
        match self.ring.header().writer.0.switch_at.load(Acquire) {
            0 => Ok(None),
            at if at - 1 < self.received => {
                Err(PeerMisbehaved::Switch { at: at - 1, received: self.received })
            }
            at => Ok(Some(at - 1 - self.received)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Records};

    #[test]
    fn nobody_has_received_more_than_anybody_ever_has() {
        let invitation = Invitation::new(Records::Atomic, &Config::default()).unwrap();
        let mut undecided = Undecided::client(&invitation, true);
        assert_eq!(undecided.resume(FARTHEST, false), Ok(()));
        assert_eq!(undecided.resume(FARTHEST + 1, false), Err(PeerMisbehaved::Member));
        assert_eq!(undecided.received, FARTHEST);
    }
}
