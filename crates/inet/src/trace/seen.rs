//! What is kept of a packet, to be told later.

use onecopy_chain::{Chain, ChainError, Kind};
use onecopy_link::{Gso, Head, Medium, Packet};

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// It was transmitted.
    Out,
    /// It was received.
    In,
}

/// A packet that passed: its first bytes, as many as headers may have, and what is known beside them. It holds none of the packet's memory.
#[derive(Clone, Debug)]
pub struct Seen {
    at_ns: u64,
    way: Way,
    medium: Medium,
    len: usize,
    gso: Option<Gso>,
    unreadable: bool,
    front: Head,
}

impl Seen {
    /// What is to be kept of `packet`, which begins as `medium` has it. Copies at most [`Head::MAX`] bytes; a peer's are as they were at this moment.
    pub fn of(at_ns: u64, way: Way, medium: Medium, packet: &Packet) -> Seen {
        let chain = packet.payload().payload();
        let mut bytes = [0; Head::MAX];
        let mut known = packet.head().len();
        // A head has at most so many.
        bytes[..known].copy_from_slice(packet.head());
        let more = chain.len().min(Head::MAX - known);
        let read = front(chain, more, |piece| {
            bytes[known..known + piece.len()].copy_from_slice(piece);
            known += piece.len();
        });
        Seen {
            at_ns,
            way,
            medium,
            len: packet.len(),
            gso: packet.gso(),
            unreadable: read.is_err(),
            front: Head::of(&bytes[..known]).unwrap_or_default(),
        }
    }

    /// When it passed, by the clock of whoever said so.
    pub fn at_ns(&self) -> u64 {
        self.at_ns
    }

    /// Which way.
    pub fn way(&self) -> Way {
        self.way
    }

    /// What it begins with.
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// Its bytes, as many as it had.
    pub fn packet_len(&self) -> usize {
        self.len
    }

    /// The first of them.
    pub fn front(&self) -> &[u8] {
        &self.front
    }

    /// How it was to be cut.
    pub fn gso(&self) -> Option<Gso> {
        self.gso
    }

    /// Whether its payload is memory that the CPU cannot read.
    pub fn is_unreadable(&self) -> bool {
        self.unreadable
    }
}

/// Shows the first `most` bytes of `chain`, which are there.
fn front(chain: &Chain, most: usize, mut look: impl FnMut(&[u8])) -> Result<(), ChainError> {
    match chain.kind() {
        Some(Kind::Peer) => chain.range(0, most)?.peer()?.for_each_chunk(&mut look),
        _ => chain.host()?.slices_of(0, most)?.for_each(&mut look),
    }
    Ok(())
}
