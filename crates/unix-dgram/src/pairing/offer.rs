//! The rings of two sockets that pair: the peer's, offered to the sending side, and the one that this side
//! will receive from.

use crate::wire::proof;
use onecopy_ring::Ring;
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release};
use onecopy_unix::generation::forks;
use onecopy_unix::handshake::invitation::nonce;
use onecopy_unix::handshake::upgrade::Nonce;
use rustix::fd::OwnedFd;
use rustix::io::{self};

/// The most proofs, where datagrams that go to names have to be counted anew.
pub const MOST: u32 = 64;

/// The peer's ring, and the proof that the peer must find before anything is sent there.
#[derive(Debug)]
pub struct OfferedRing {
    pub(super) ring: Ring,
    /// The peer knows it by its cookie.
    pub(super) token: OwnedFd,
    /// Known only to a process that reads the peer's queue.
    pub(super) secret: Nonce,
    /// The number of the last proof; 0 before the first.
    pub(super) number: u32,
    /// Datagrams that went over the kernel since the last proof, including the one with the proof.
    pub(super) since: u64,
    /// It is not known how many of those went to the peer.
    pub(super) uncounted: bool,
    /// What [`forks`] returned at first: once it changes, another process sends too.
    pub(super) forks: u32,
}

impl OfferedRing {
    pub fn new(ring: Ring, token: OwnedFd) -> io::Result<OfferedRing> {
        Ok(OfferedRing {
            ring,
            token,
            secret: nonce()?,
            number: 0,
            since: 0,
            uncounted: false,
            forks: forks(),
        })
    }

    /// Whether another proof is to be sent.
    pub(super) fn is_due(&self) -> bool {
        proof::is_due(self.number, self.since) || (self.uncounted && self.number < MOST)
    }

    /// Whether the peer has found the last proof. If so it receives from the ring, from the datagram on that
    /// this side names.
    pub(super) fn is_taken(&self) -> bool {
        let info = &self.ring.header().info.0;
        // Acquire pairs with the Release store in `read_proof`: the secret is there.
        let taken = self.number != 0 && !self.uncounted && info.joined.load(Acquire) == self.number;
        taken
            && halves(&self.secret)
                .iter()
                .zip(&info.nonce)
                .all(|(half, control)| control.load(Relaxed) == *half)
    }
}

/// This side's ring, which the peer has.
#[derive(Debug)]
pub struct Incoming {
    pub(super) ring: Ring,
    /// Datagrams that came over the kernel since the peer's last proof, including the one with the proof;
    /// None before the first.
    pub(super) count: Option<u64>,
    pub(super) forks: u32,
}

impl Incoming {
    pub fn new(ring: Ring) -> Incoming {
        Incoming { ring, count: None, forks: forks() }
    }

    /// Tells the peer that this side receives no more.
    pub fn leave(&self) {
        self.ring.header().info.0.shut.store(1, Release);
    }
}

pub fn halves(nonce: &Nonce) -> [u64; 2] {
    let (one, other) = nonce.split_at(8);
    [one, other].map(|half| half.try_into().map_or(0, u64::from_le_bytes))
}
