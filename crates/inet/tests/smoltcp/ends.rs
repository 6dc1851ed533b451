//! Addresses, the bytes of a stream, chance from a seed, and a link that can be told of.

use onecopy_inet::ip::Cidr;
use onecopy_inet::trace::{Last, Trace};
use onecopy_link::Link;
use onecopy_link::pair::End as PairEnd;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

pub const PORT: u16 = 80;
pub const SECOND: u64 = 1_000_000_000;
/// Packets that are told of where a case fails.
const TOLD: usize = 60;

/// Over which of the two a case goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Half of the seeds have either.
    pub fn of(seed: u64) -> Family {
        if seed.is_multiple_of(2) { Family::V4 } else { Family::V6 }
    }

    /// An end's address.
    pub fn address(self, end: usize) -> IpAddr {
        let host = end as u8 + 1;
        match self {
            Family::V4 => Ipv4Addr::new(10, 0, 0, host).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into()).into(),
        }
    }

    /// Bits of an address that both have.
    pub fn prefix(self) -> u8 {
        if self == Family::V4 { 24 } else { 64 }
    }

    pub fn subnet(self, end: usize) -> Cidr {
        Cidr::new(self.address(end), self.prefix()).expect("an address")
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
pub(crate) use ensure;

/// Numbers from a seed (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 1 to `max`, small ones as often as large ones.
    pub fn size(&mut self, max: usize) -> usize {
        let bits = 1 + self.roll() % u64::from(max.ilog2() + 1);
        1 + (self.roll() % (1 << bits)) as usize % max
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.roll().is_multiple_of(n)
    }
}

/// A prime number of bytes by chance that a stream repeats, so that no length of a piece hides a place.
const PERIOD: usize = 65_521;

/// Up to `len` bytes of an end's stream from `at` on.
pub fn bytes(end: usize, at: u64, len: u64) -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| {
        let mut dice = Dice(1);
        let once: Vec<u8> = (0..PERIOD).map(|_| (dice.roll() >> 56) as u8).collect();
        [&once[..], &once[..]].concat()
    });
    let from = (at as usize + end * 10_007) % PERIOD;
    &pattern[from..][..(len as usize).min(PERIOD)]
}

/// The link of an end: told of only where it is asked for, since that takes time.
pub enum Cable {
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
