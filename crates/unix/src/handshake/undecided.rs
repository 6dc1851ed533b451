//! A connection before its rings are in use: what it may still do, and where it switches.

use crate::connection::carry::Carry;
use crate::handshake::invitation::Invitation;
use onecopy_ring::index::FARTHEST;
use onecopy_ring::memory::Nonce;
use onecopy_ring::{PeerMisbehaved, Ring};
use onecopy_sync::atomic::Ordering::Acquire;
use onecopy_sys::socket::unix_address;
use rustix::fd::BorrowedFd;

/// A connection that has no rings yet.
#[derive(Debug)]
pub struct Undecided {
    /// With which its rings will be labelled.
    pub(super) nonce: Nonce,
    pub(super) role: Role,
    /// Bytes of the stream, or records, that came over the kernel so far.
    pub received: u64,
    /// The next message of the peer's may have rings with it.
    pub(super) looks: bool,
    /// Larger rings than the client's were asked for.
    pub(super) larger: bool,
    /// Of a client: the rings that it has sent. The first one is the server's to receive from.
    pub(super) attached: Option<[Ring; 2]>,
}

/// Which side this is.
#[derive(Debug)]
pub enum Role {
    /// Whether it may attach: its listener is known as one of ours, and rings can be made.
    Client(bool),
    /// What its client asks for, as long as rings can be made.
    Server(Option<Invitation>),
}

/// What is left of one where this side will attach and join nothing any more.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub enum Settled {
    /// The peer is plain.
    Plain,
    /// Nothing was attached.
    Undecided(Undecided),
    /// What was attached stays.
    Switching(Switching),
}

impl Undecided {
    /// Of a client that has invited the server, whose listener is known as one of `ours` or not.
    pub fn client(invitation: &Invitation, ours: bool) -> Undecided {
        Undecided::new(invitation.nonce, Role::Client(ours))
    }

    /// Of a server that was invited, and attaches rings or leaves that to its client.
    pub fn server(invitation: Invitation, attaches: bool) -> Undecided {
        Undecided::new(invitation.nonce, Role::Server(Some(invitation).filter(|_| attaches)))
    }

    fn new(nonce: Nonce, role: Role) -> Undecided {
        Undecided { nonce, role, received: 0, looks: true, larger: false, attached: None }
    }

    /// Of a connection that another process has passed on, in which it might still have attached rings or not.
    /// None where no side has invited the other.
    pub fn of(socket: BorrowedFd<'_>, may_attach: bool) -> Option<Undecided> {
        let mine = rustix::net::getsockname(socket).ok().and_then(unix_address);
        if let Some(invitation) = Invitation::of(mine) {
            return Some(Undecided::client(&invitation, may_attach));
        }
        let peer = rustix::net::getpeername(socket).ok().flatten().and_then(unix_address);
        Invitation::of(peer).map(|invitation| Undecided::server(invitation, may_attach))
    }

    /// With which its rings will be labelled.
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Whether it may attach rings, where so many bytes were `sent`.
    pub fn may_attach(&self, sent: u64) -> bool {
        match &self.role {
            Role::Client(may) => *may,
            // With its first bytes, or never: what comes later a client does not look at.
            Role::Server(invitation) => invitation.is_some() && sent == 0,
        }
    }

    /// What a client that has attached rings will receive from, if its server joins.
    pub fn attached(&self) -> Option<&Ring> {
        self.attached.as_ref().map(|[_, mine]| mine)
    }

    /// Whether the next message of the peer's may have rings with it.
    pub fn looks(&self) -> bool {
        self.looks
    }

    /// Goes on where another process has left off.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Member`]: more than anybody ever has.
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

    /// What this side is at where it will attach and join nothing any more, since several processes are to go on with it: what
    /// was attached stays.
    pub fn settled(self) -> Settled {
        let Undecided { nonce, received, looks, .. } = self;
        match self.attached {
            Some([_, mine]) => {
                let strips = if looks { Strips::One } else { Strips::No };
                Settled::Switching(Switching::new(mine, received, nonce).stripping(strips))
            }
            // (Where no rings can come any more, the peer is plain.)
            None if !looks => Settled::Plain,
            None => Settled::Undecided(self),
        }
    }
}

/// Before the peer's switch.
#[derive(Debug)]
pub struct Switching {
    ring: Ring,
    /// Bytes of the stream, or records, that came over the kernel so far.
    received: u64,
    /// With which rings of this connection are labelled.
    nonce: Nonce,
    /// Which messages over the kernel may have such with them, that are nobody's.
    strips: Strips,
    /// A process that shared the end was killed while it received: what it left in the queue of doorbells is to be forgiven.
    pub recovered: bool,
    /// Of stream records: what came over the kernel and was not received yet.
    pub carry: Carry,
}

/// Which of the messages that come over the kernel may have rings with them that are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strips {
    No,
    /// One, of those that come next.
    One,
    /// Any.
    All,
}

impl Strips {
    /// Of a word that another process wrote.
    pub fn of(word: u64) -> Strips {
        match word {
            0 => Strips::No,
            1 => Strips::One,
            _ => Strips::All,
        }
    }
}

impl Switching {
    /// Of a connection over which `received` came so far.
    pub fn new(ring: Ring, received: u64, nonce: Nonce) -> Switching {
        Switching { ring, received, nonce, strips: Strips::No, recovered: false, carry: Carry::default() }
    }

    /// The peer may have sent rings of its own.
    pub fn stripping(mut self, strips: Strips) -> Switching {
        self.strips = strips;
        self
    }

    /// One of the messages in the queue still has the rings with it that were joined, and not always the first: a peek of a stream
    /// looks on for descriptors behind the bytes that it has room for (net/unix/af_unix.c: unix_stream_read_generic).
    pub fn strip_one(&mut self) {
        self.strips = Strips::One;
    }

    /// Rings were stripped.
    pub fn stripped(&mut self) {
        if self.strips == Strips::One {
            self.strips = Strips::No;
        }
    }

    pub fn strips(&self) -> Strips {
        self.strips
    }

    pub fn received(&self) -> u64 {
        self.received
    }

    /// With which rings of this connection are labelled.
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Another process has received so much.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Member`]: more than anybody ever has.
    pub fn resume(&mut self, received: u64, strips: Strips) -> std::result::Result<(), PeerMisbehaved> {
        if received > FARTHEST {
            return Err(PeerMisbehaved::Member);
        }
        (self.received, self.strips) = (received, strips);
        Ok(())
    }

    /// Where the bytes after the switch come.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// That many bytes of the stream, or records, came over the kernel.
    pub fn count(&mut self, count: u64) {
        self.received += count;
    }

    /// Bytes that may still be received over the kernel; None while the peer has not switched.
    pub fn left(&self) -> std::result::Result<Option<u64>, PeerMisbehaved> {
        // Acquire pairs with the Release store in `Connection::adopt`.
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
