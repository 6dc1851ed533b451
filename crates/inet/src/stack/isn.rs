//! Where sequence numbers and timestamps begin, so that nobody guesses them who has not seen the connection.

use super::demux::Ends;
use crate::key::{self, Key, Seed};
use crate::wire::Seq;
use std::net::IpAddr;

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
        Seq(ends.bytes(|bytes| self.numbers.secret(bytes) as u32).wrapping_add(clock))
    }

    /// What is added to the clock in timestamps between two addresses: the same for all their ports, since a host compares those of a
    /// connection with those of the one before (RFC 7323, appendix B.2; RFC 6191), as the kernel does.
    pub fn timestamp(&self, local: IpAddr, remote: IpAddr) -> u32 {
        key::of_pair(local, remote, [], |bytes| self.stamps.secret(bytes) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn ends(port: u16) -> Ends {
        let at = |host, port| SocketAddr::from(([10, 0, 0, host], port));
        Ends::new(at(1, port), at(2, 80))
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
        let [a, b, c] = [1, 2, 3].map(|host| IpAddr::from([10, 0, 0, host]));
        assert_eq!(isn.timestamp(a, b), isn.timestamp(a, b));
        assert_ne!(isn.timestamp(a, b), isn.timestamp(a, c));
        assert_ne!(isn.timestamp(a, b), isn.timestamp(b, a));
    }
}
