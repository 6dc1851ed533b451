//! What a socket has received, and nobody has fetched yet.

use crate::wire::Ecn;
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// A datagram, or a train of them, with what is known of it (recvmsg(2)).
#[derive(Debug)]
pub struct Received {
    /// Its bytes: none, where the datagram has none.
    pub data: Segment<Chain>,
    /// Who sent it.
    pub from: SocketAddr,
    /// Where it was sent to: an address of this side, or that of everybody (IP_PKTINFO).
    pub to: SocketAddr,
    /// It is a train, of datagrams of so many bytes each, of which the last one may be shorter (UDP_GRO).
    pub size: Option<u16>,
    /// The type of service (IP_RECVTOS).
    pub service: u8,
    /// Hops that were left (IP_RECVTTL).
    pub ttl: u8,
}

impl Received {
    /// Congestion on the way.
    pub fn ecn(&self) -> Ecn {
        Ecn::of(self.service)
    }

    /// How many datagrams it is.
    pub fn datagrams(&self) -> u64 {
        match self.size {
            Some(size) => self.data.payload().len().div_ceil(usize::from(size.max(1))).max(1) as u64,
            None => 1,
        }
    }
}

/// What a datagram counts beside its pages, an end to those without bytes, too: as the kernel's least sk_buff.
const COST: u64 = 768;
const _: () = assert!(size_of::<Received>() as u64 <= COST);

/// Places that an empty list keeps.
const IDLE: usize = 64;

/// Why a datagram is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The socket has as much as it may.
    Socket,
    /// All together have.
    All,
}

/// Datagrams in the order in which they came.
///
/// Invariant: `cost` is the sum of theirs.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Each with its cost.
    list: VecDeque<(Received, u64)>,
    cost: u64,
}

impl Inbox {
    /// Puts it behind the others, where they are within `limit` with it; an empty one takes any (as Linux 6.18 does), so that no datagram is
    /// too long for a socket. `pages` is what it keeps of memory; `all` is what all together have, `most` what they may.
    pub fn push(
        &mut self,
        received: Received,
        pages: u64,
        limit: u64,
        (all, most): (&mut u64, u64),
    ) -> Result<(), Full> {
        let cost = pages + COST;
        if !self.list.is_empty() && self.cost + cost > limit {
            return Err(Full::Socket);
        }
        if *all + cost > most {
            return Err(Full::All);
        }
        self.cost += cost;
        *all += cost;
        self.list.push_back((received, cost));
        Ok(())
    }

    /// The next one.
    pub fn first(&self) -> Option<&Received> {
        self.list.front().map(|(received, _)| received)
    }

    /// Takes the next one out.
    pub fn pop(&mut self, all: &mut u64) -> Option<Received> {
        let (received, cost) = self.list.pop_front()?;
        self.cost -= cost;
        *all -= cost;
        if self.list.is_empty() && self.list.capacity() > IDLE {
            self.list = VecDeque::new();
        }
        Some(received)
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What it counts.
    pub fn cost(&self) -> u64 {
        self.cost
    }
}
