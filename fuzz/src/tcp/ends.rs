//! What both kinds of cases have: addresses, the bytes of a stream, and a link that can be told of.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use onecopy_conformance::tools::Dice;
use onecopy_inet::ip::Cidr;
use onecopy_inet::trace::{Last, Trace};
use onecopy_link::Link;
use onecopy_link::pair::End as PairEnd;

pub(super) const PORT: u16 = 80;
/// Of whom no neighbour is to lie.
pub(super) const INNOCENT_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);
pub(super) const SECOND: u64 = 1_000_000_000;
/// Packets that are told of where a case fails.
const TOLD: usize = 60;

/// Over which of the two a case goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Half of the seeds have either.
    pub fn of(seed: u64) -> Family {
        if seed.is_multiple_of(2) { Family::V4 } else { Family::V6 }
    }

    /// An end's address.
    pub(super) fn address(self, end: usize) -> IpAddr {
        let host = end as u8 + 1;
        match self {
            Family::V4 => Ipv4Addr::new(10, 0, 0, host).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into()).into(),
        }
    }

    /// Bits of an address that both have.
    pub(super) fn prefix(self) -> u8 {
        match self {
            Family::V4 => 24,
            Family::V6 => 64,
        }
    }

    pub(super) fn subnet(self, end: usize) -> Cidr {
        Cidr::new(self.address(end), self.prefix()).expect("an address")
    }

    /// What every link carries (RFC 791, section 3.1; RFC 8200, section 5).
    pub(super) fn least_mtu(self) -> u32 {
        match self {
            Family::V4 => 68,
            Family::V6 => 1280,
        }
    }
}

/// As assert!, for what is told with its case.
macro_rules! ensure {
    ($held:expr, $($why:tt)+) => {
        if !$held {
            return Err(format!($($why)+));
        }
    };
}
pub(super) use ensure;

/// Bytes by chance that a stream repeats: a prime number of them, so that no length of a piece hides a place.
fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut dice = Dice(1);
        let once: Vec<u8> = (0..PERIOD).map(|_| (dice.roll() >> 56) as u8).collect();
        [&once[..], &once[..]].concat()
    })
}

const PERIOD: usize = 65_521;

/// Up to `len` bytes of an end's stream from `at` on.
pub(super) fn bytes(end: usize, at: u64, len: u64) -> &'static [u8] {
    let from = (at as usize + end * 10_007) % PERIOD;
    &pattern()[from..][..(len as usize).min(PERIOD)]
}

/// The link of an end: told of only where it is asked for, since that takes time.
pub(super) enum Cable {
    Plain(PairEnd),
    Told(Box<Trace<PairEnd, Last>>),
}

impl Cable {
    pub fn new(link: PairEnd, tell: bool) -> Cable {
        match tell {
            true => Cable::Told(Box::new(Trace::new(link, Last::new(TOLD)))),
            false => Cable::Plain(link),
        }
    }

    /// Its last packets.
    pub fn told(&self) -> String {
        match self {
            Cable::Told(link) => link.watch().to_string(),
            Cable::Plain(_) => String::new(),
        }
    }

    pub fn link(&mut self) -> &mut dyn Link {
        match self {
            Cable::Plain(link) => link,
            Cable::Told(link) => &mut **link,
        }
    }
}
