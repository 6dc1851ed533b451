//! One host, several stacks: each has a share of its flows, and knows whose the others are.
//!
//! What stacks of one host share is an address, a seed and this rule. A stack that gets what is another one's hands it over, by whoever drives
//! both ([`Stack::handed`](crate::stack::Stack::handed), [`Stack::take_handed`](crate::stack::Stack::take_handed)): a packet behind its network
//! header, a part of one, a complaint, or what a neighbour has said, which all are told.
//!
//! | what | whose it is |
//! |---|---|
//! | TCP | of its two ends, by a secret hash: whichever end is ours, so that a connection to an address of ours stays in one stack |
//! | UDP | of its local port: all sockets of a port meet in one stack, and who is not connected gets what comes from everywhere |
//! | parts of a packet | of the packet, by a secret hash; put together, it is handed on |
//! | ARP, NDP, ping | of who gets them: he answers, and tells the others |

use crate::ip::Complaint;
use crate::key::{self, Key, Seed};
use crate::stack::demux::{Ends, Place};
use crate::wire::{Ip, Mac};
use onecopy_link::Packet;
use std::collections::VecDeque;
use std::net::IpAddr;

/// Which share of a host's flows a stack has.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    me: u16,
    count: u16,
    key: Key,
}

impl Share {
    /// As many as there may be: each has so many of the 16 bits of a packet's number that no train of packets spans two of them.
    pub const MOST: u16 = 64;

    /// That of number `me` of `count`, whose seed is the same; None where there is no such.
    pub fn new(me: u16, count: u16, seed: &Seed) -> Option<Share> {
        let key = Key::derive(seed, "shards");
        (me < count && count <= Share::MOST).then_some(Share { me, count, key })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count.into()
    }

    /// Which this one is.
    pub fn me(&self) -> usize {
        self.me.into()
    }

    /// Of 32 bits that are as good as random.
    fn pick(&self, bits: u32) -> usize {
        ((u64::from(bits) * u64::from(self.count)) >> 32) as usize
    }

    /// Whose a connection of TCP is.
    pub fn of_ends(&self, ends: &Ends) -> usize {
        let order = |place: &Place| (place.ip, place.port);
        let Ends { local, remote } = *ends;
        // The same from both ends.
        let swapped = order(&local) > order(&remote);
        let ends = if swapped { Ends { local: remote, remote: local } } else { *ends };
        self.pick(ends.bytes(|bytes| self.key.secret(bytes)) as u32)
    }

    /// Whose a port of UDP is.
    pub fn of_port(&self, port: u16) -> usize {
        // Neighbouring ports, and every other one, are spread evenly (Fibonacci hashing). Who it is need be no secret: a port is.
        self.pick(u32::from(port).wrapping_mul(0x9E37_79B1))
    }

    /// Who puts a packet together that comes in parts.
    pub(crate) fn of_parts(&self, from: IpAddr, to: IpAddr, id: u32) -> usize {
        let number = key::of_pair(from, to, id.to_be_bytes(), |bytes| self.key.secret(bytes));
        self.pick(number as u32)
    }

    /// One of the numbers of packets that are this one's: the highest of 16 bits say whose they are, so that no two stacks give out the same one
    /// at a time.
    pub(crate) fn number(&self, counted: u32) -> u32 {
        let below = self.below();
        let mine = u32::from(self.me) << below;
        (counted >> below) << 16 | mine | counted & ((1 << below) - 1)
    }

    /// From where on to count, so that `count` numbers in a row (as the parts of a train have) are all this one's.
    pub(crate) fn fit(&self, counted: u32, count: u16) -> u32 {
        let all = 1 << self.below();
        let left = all - counted % all;
        if u32::from(count) > left { counted.wrapping_add(left) } else { counted }
    }

    /// How many bits of a packet's number do not say whose it is.
    fn below(&self) -> u32 {
        16 - (u16::BITS - (self.count - 1).leading_zeros())
    }
}

/// What a neighbour has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub address: IpAddr,
    /// None: where it is known to be.
    pub mac: Option<Mac>,
    /// To us, as who was asked does.
    pub answer: bool,
    /// It takes the place of what is known.
    pub overrides: bool,
}

/// Something for another stack of the same host.
#[derive(Debug)]
pub struct Handed(pub(crate) What);

/// What it is.
#[derive(Debug)]
pub(crate) enum What {
    /// A part of a packet, from IP's header on.
    Part(Packet),
    /// A segment, or a datagram: what was behind this header.
    Transport(Ip, Packet),
    Complaint(Complaint),
    Said(Said),
}

impl Handed {
    /// Whether nothing is lost with it: a neighbour is asked again.
    pub fn is_news(&self) -> bool {
        matches!(self.0, What::Said(_))
    }

    /// Bytes of the pages that it keeps.
    pub fn memory(&self) -> usize {
        match &self.0 {
            What::Part(packet) | What::Transport(_, packet) => packet.payload().payload().true_size(),
            What::Complaint(_) | What::Said(_) => 0,
        }
    }
}

/// What waits to be handed over, and by which rule.
#[derive(Debug)]
pub(crate) struct Others {
    share: Share,
    handed: VecDeque<(usize, Handed)>,
}

impl Others {
    pub fn new(share: Share) -> Others {
        Others { share, handed: VecDeque::new() }
    }

    pub fn share(&self) -> &Share {
        &self.share
    }

    /// The other one that `whose` says; none where that is this one.
    pub fn other(&self, whose: impl FnOnce(&Share) -> usize) -> Option<usize> {
        Some(whose(&self.share)).filter(|owner| *owner != self.share.me())
    }

    pub fn hand(&mut self, to: usize, what: What) {
        self.handed.push_back((to, Handed(what)));
    }

    /// Tells all of them.
    pub fn tell(&mut self, said: Said) {
        for to in (0..self.share.count()).filter(|to| *to != self.share.me()) {
            self.handed.push_back((to, Handed(What::Said(said))));
        }
    }

    pub fn next(&mut self) -> Option<(usize, Handed)> {
        self.handed.pop_front()
    }

    pub fn rest(&mut self) {
        self.handed.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn share(me: u16, count: u16) -> Share {
        Share::new(me, count, &[7; 16]).unwrap()
    }

    fn ends(port: u16) -> Ends {
        let at = |host, port| SocketAddr::from(([10, 0, 0, host], port));
        Ends::new(at(1, port), at(2, 80))
    }

    #[test]
    fn there_is_no_share_beyond_the_last() {
        assert!(Share::new(0, 0, &[7; 16]).is_none());
        assert!(Share::new(2, 2, &[7; 16]).is_none());
        assert!(Share::new(0, Share::MOST + 1, &[7; 16]).is_none());
        assert!(Share::new(Share::MOST - 1, Share::MOST, &[7; 16]).is_some());
    }

    #[test]
    fn all_have_about_as_much_and_both_ends_say_the_same() {
        for count in [1, 2, 3, 4, 7] {
            let share = share(0, count);
            let (mut flows, mut ports) = (vec![0; count.into()], vec![0; count.into()]);
            for port in 32768..=60999 {
                let owner = share.of_ends(&ends(port));
                let Ends { local, remote } = ends(port);
                assert_eq!(owner, share.of_ends(&Ends { local: remote, remote: local }));
                flows[owner] += 1;
                // Those between, too: what a search tries comes in steps of two.
                ports[share.of_port(port & !1)] += 1;
            }
            let even = (60999 - 32768) / i32::from(count);
            for (at, n) in flows.into_iter().chain(ports).enumerate() {
                assert!((n - even).abs() < even / 8, "{count} shares: {n} of {even} at {at}");
            }
        }
    }

    #[test]
    fn numbers_of_packets_are_one_stacks_own() {
        for count in [1_u16, 2, 3, 4, Share::MOST] {
            let mut seen = std::collections::HashMap::new();
            for me in (0..count).step_by((usize::from(count) / 4).max(1)) {
                let share = share(me, count);
                let mut last = None;
                for counted in (0..300).chain(65_500..66_000) {
                    let number = share.number(counted);
                    assert_ne!(last, Some(number), "the next one is another one");
                    last = Some(number);
                    let whose = *seen.entry(number as u16).or_insert(me);
                    assert_eq!(whose, me, "{count}: {number:#x}");
                }
            }
            let most = share(1, Share::MOST);
            for counted in 0..3000 {
                // A super-segment has at most 64 parts.
                let first = most.number(most.fit(counted, 64)) as u16;
                assert_eq!(first >> 10, (first + 63) >> 10, "all of a train's are one stack's");
            }
            assert_eq!(share(0, 1).number(0x1234_5678), 0x1234_5678, "alone, all of them are its own");
        }
    }
}
