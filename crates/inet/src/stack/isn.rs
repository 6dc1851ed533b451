//! Where sequence numbers and timestamps begin, so that nobody guesses them who has not seen the connection.

use super::demux::Ends;
use crate::key::{Key, Seed};
use crate::wire::Seq;
use std::net::Ipv4Addr;

/// First sequence numbers (RFC 6528), and offsets of timestamps (RFC 7323, section 5.4).
#[derive(Debug)]
pub struct Isn {
    numbers: Key,
    stamps: Key,
}

impl Isn {
    /// Nanoseconds after which the next connection's number is one more: RFC 9293, section 3.4.1.
    const TICK: u64 = 4_000;

    /// Whose secrets come from `seed`.
    pub fn new(seed: &Seed) -> Isn {
        Isn { numbers: Key::derive(seed, "sequence numbers"), stamps: Key::derive(seed, "timestamps") }
    }

    /// Where a connection's numbers begin that is opened now. With the same ends they go up with time, so that an old connection's segments
    /// are none of a new one's.
    pub fn sequence(&self, now: u64, ends: &Ends) -> Seq {
        let clock = (now / Isn::TICK) as u32;
        Seq((self.numbers.secret(&ends.bytes()) as u32).wrapping_add(clock))
    }

    /// What is added to the clock in timestamps between two addresses: the same for all their ports, since a host compares those of a
    /// connection with those of the one before (RFC 7323, appendix B.2; RFC 6191), as the kernel does.
    pub fn timestamp(&self, local: Ipv4Addr, remote: Ipv4Addr) -> u32 {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&local.octets());
        bytes[4..].copy_from_slice(&remote.octets());
        self.stamps.secret(&bytes) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddrV4;

    fn ends(port: u16) -> Ends {
        let at = |host, port| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, host), port);
        Ends { local: at(1, port), remote: at(2, 80) }
    }

    #[test]
    fn numbers_go_up_by_one_each_four_microseconds_and_are_each_connections_own() {
        let isn = Isn::new(&[3; 16]);
        let first = isn.sequence(0, &ends(1000));
        assert_eq!(isn.sequence(3_999, &ends(1000)), first);
        assert_eq!(isn.sequence(4_000, &ends(1000)), first.plus(1));
        // They wrap, after 4.77 hours.
        assert_eq!(isn.sequence(4_000 << 32, &ends(1000)), first);
        assert_ne!(isn.sequence(0, &ends(1001)), first);
        assert_ne!(Isn::new(&[4; 16]).sequence(0, &ends(1000)), first);
        assert_eq!(Isn::new(&[3; 16]).sequence(0, &ends(1000)), first);
    }

    #[test]
    fn timestamps_are_a_pair_of_hosts_own() {
        let isn = Isn::new(&[3; 16]);
        let (a, b, c) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 3));
        assert_eq!(isn.timestamp(a, b), isn.timestamp(a, b));
        assert_ne!(isn.timestamp(a, b), isn.timestamp(a, c));
        assert_ne!(isn.timestamp(a, b), isn.timestamp(b, a));
    }
}
