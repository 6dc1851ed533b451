//! ICMP for IPv6 (RFC 4443). Its checksum covers a pseudo-header, too.

use super::icmp::Layout;
use super::malformed::Malformed;
use onecopy_chain::Sum;
use onecopy_link::{Head, HeadTooLong};
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmpv6 {
    /// It cannot be brought there. Type 1.
    Unreachable(Unreachable),
    /// It is longer than the next link takes. Type 2.
    TooLong {
        /// What that takes.
        mtu: u32,
    },
    /// It was under way for too long. Type 3.
    TimeExceeded {
        /// 0: too many hops; 1: fragments were missing.
        code: u8,
    },
    /// Something in its headers is wrong. Type 4.
    ParameterProblem {
        /// 0: a field; 1: a header is not known; 2: an option is not.
        code: u8,
        /// Which byte.
        pointer: u32,
    },
    /// Is anybody there? Type 128.
    Echo {
        /// Who asks.
        id: u16,
        /// Which of his questions.
        seq: u16,
    },
    /// Yes, with the question's payload. Type 129.
    EchoReply {
        /// Who asked.
        id: u16,
        /// Which of his questions.
        seq: u16,
    },
    /// Who has an address? Type 135 ([`Ndp`](super::Ndp)).
    Solicitation,
    /// Somebody has. Type 136.
    Advertisement {
        /// Routers set the highest bit, answers the next one, and who takes the place of what is known the third (RFC 4861, section 4.4).
        flags: u8,
    },
    /// Any other one.
    Other {
        /// Its type: an error's is below 128.
        kind: u8,
        /// Its code.
        code: u8,
        /// The four bytes behind the checksum.
        rest: [u8; 4],
    },
}

/// Why a packet could not be brought there: the code of type 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unreachable(pub u8);

impl Unreachable {
    /// No route leads there.
    pub const NO_ROUTE: Unreachable = Unreachable(0);
    /// Somebody does not want it there.
    pub const PROHIBITED: Unreachable = Unreachable(1);
    /// The address is not good there: beyond its scope.
    pub const SCOPE: Unreachable = Unreachable(2);
    /// Nobody has the address.
    pub const ADDRESS: Unreachable = Unreachable(3);
    /// Nobody has this port.
    pub const PORT: Unreachable = Unreachable(4);
}

impl Icmpv6 {
    /// Bytes.
    pub const LEN: usize = size_of::<Layout>();
    /// Where the checksum is.
    pub const CHECKSUM: usize = 2;

    /// Reads a header, and gives what is behind it.
    ///
    /// # Errors
    ///
    /// [`Malformed::Short`].
    pub fn parse(bytes: &[u8]) -> Result<(Icmpv6, &[u8]), Malformed> {
        let (layout, behind) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Short)?;
        let Layout { kind, code, rest, .. } = *layout;
        let [a, b, c, d] = rest;
        let (id, seq) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        // Unused bytes that are not zero make it another one, so that nothing is lost; but for type 1 to 4, where they are to be ignored.
        let icmp = match (kind, code) {
            (1, code) if rest == [0; 4] => Icmpv6::Unreachable(Unreachable(code)),
            (2, 0) => Icmpv6::TooLong { mtu: u32::from_be_bytes(rest) },
            (3, code) if rest == [0; 4] => Icmpv6::TimeExceeded { code },
            (4, code) => Icmpv6::ParameterProblem { code, pointer: u32::from_be_bytes(rest) },
            (128, 0) => Icmpv6::Echo { id, seq },
            (129, 0) => Icmpv6::EchoReply { id, seq },
            (135, 0) if rest == [0; 4] => Icmpv6::Solicitation,
            (136, 0) if [b, c, d] == [0; 3] => Icmpv6::Advertisement { flags: a },
            (kind, code) => Icmpv6::Other { kind, code, rest },
        };
        Ok((icmp, behind))
    }

    /// The same without what receivers are to ignore.
    #[must_use]
    pub fn heard(self) -> Icmpv6 {
        match self {
            Icmpv6::Other { kind: 1, code, .. } => Icmpv6::Unreachable(Unreachable(code)),
            Icmpv6::Other { kind: 2, rest, .. } => Icmpv6::TooLong { mtu: u32::from_be_bytes(rest) },
            Icmpv6::Other { kind: 3, code, .. } => Icmpv6::TimeExceeded { code },
            Icmpv6::Other { kind: 135, code: 0, .. } => Icmpv6::Solicitation,
            Icmpv6::Other { kind: 136, code: 0, rest: [flags, ..] } => Icmpv6::Advertisement { flags },
            other => other,
        }
    }

    /// Whether it is a complaint, which nobody complains about.
    pub fn is_error(&self) -> bool {
        match self {
            Icmpv6::Unreachable(_)
            | Icmpv6::TooLong { .. }
            | Icmpv6::TimeExceeded { .. }
            | Icmpv6::ParameterProblem { .. } => true,
            Icmpv6::Other { kind, .. } => *kind < 128,
            _ => false,
        }
    }

    /// Puts it in front, its checksum to be finished: `pseudo` is the sum of its pseudo-header.
    ///
    /// # Errors
    ///
    /// [`HeadTooLong`].
    pub fn write(&self, head: &mut Head, pseudo: Sum) -> Result<(), HeadTooLong> {
        let two = |first: u16, second: u16| {
            let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
            [a, b, c, d]
        };
        let (kind, code, rest) = match *self {
            Icmpv6::Unreachable(code) => (1, code.0, [0; 4]),
            Icmpv6::TooLong { mtu } => (2, 0, mtu.to_be_bytes()),
            Icmpv6::TimeExceeded { code } => (3, code, [0; 4]),
            Icmpv6::ParameterProblem { code, pointer } => (4, code, pointer.to_be_bytes()),
            Icmpv6::Echo { id, seq } => (128, 0, two(id, seq)),
            Icmpv6::EchoReply { id, seq } => (129, 0, two(id, seq)),
            Icmpv6::Solicitation => (135, 0, [0; 4]),
            Icmpv6::Advertisement { flags } => (136, 0, [flags, 0, 0, 0]),
            Icmpv6::Other { kind, code, rest } => (kind, code, rest),
        };
        let layout = Layout { kind, code, checksum: U16::new(pseudo.folded()), rest };
        head.push(Icmpv6::LEN)?.copy_from_slice(layout.as_bytes());
        Ok(())
    }
}
