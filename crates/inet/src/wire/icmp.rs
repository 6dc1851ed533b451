//! ICMP for IPv4 (RFC 792): questions and answers, and complaints that quote the packet that they are about.

use super::ip::Ip;
use super::malformed::Malformed;
use onecopy_link::{Head, HeadTooLong};
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Layout {
    pub(super) kind: u8,
    pub(super) code: u8,
    pub(super) checksum: U16,
    /// What the kind makes of it.
    pub(super) rest: [u8; 4],
}

/// A message's header. Its checksum covers the whole message, and no pseudo-header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmp {
    /// Is anybody there? Type 8.
    Echo {
        /// Who asks.
        id: u16,
        /// Which of his questions.
        seq: u16,
    },
    /// Yes, with the question's payload. Type 0.
    EchoReply {
        /// Who asked.
        id: u16,
        /// Which of his questions.
        seq: u16,
    },
    /// It cannot be brought there. Type 3.
    Unreachable {
        /// Why.
        code: Unreachable,
        /// With [`Unreachable::TOO_LONG`]: the MTU of the next link, or 0 where the router does not say (RFC 1191, section 4).
        mtu: u16,
    },
    /// It was under way for too long. Type 11.
    TimeExceeded {
        /// 0: too many hops; 1: fragments were missing.
        code: u8,
    },
    /// Something in its header is wrong. Type 12.
    ParameterProblem {
        /// 0: the pointer says what.
        code: u8,
        /// Which byte.
        pointer: u8,
    },
    /// Any other one.
    Other {
        /// Its type.
        kind: u8,
        /// Its code.
        code: u8,
        /// The four bytes behind the checksum.
        rest: [u8; 4],
    },
}

/// Why a packet could not be brought there: the code of type 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unreachable(pub u8);

impl Unreachable {
    /// The network.
    pub const NETWORK: Unreachable = Unreachable(0);
    /// The host.
    pub const HOST: Unreachable = Unreachable(1);
    /// Nobody speaks this protocol there.
    pub const PROTOCOL: Unreachable = Unreachable(2);
    /// Nobody has this port.
    pub const PORT: Unreachable = Unreachable(3);
    /// It is longer than the next link's MTU, and may not be cut.
    pub const TOO_LONG: Unreachable = Unreachable(4);
}

/// What a complaint says of the packet that it is about: enough to find whose it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// Its header.
    pub ip: Ip,
    /// The sender's port, and the other one: the first four bytes of the transport's header.
    pub ports: (u16, u16),
    /// The next four: TCP's sequence number, by which a stranger's complaint is told from a true one (RFC 5927, section 4.1).
    pub seq: u32,
}

impl Quoted {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Quoted, Malformed> {
        let (ip, transport) = Ip::parse_quoted(bytes)?;
        let Some(&[a, b, c, d, e, f, g, h]) = transport.first_chunk() else {
            return Err(Malformed::Short);
        };
        let ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Ok(Quoted { ip, ports, seq: u32::from_be_bytes([e, f, g, h]) })
    }
}

impl Icmp {
    /// Bytes.
    pub const LEN: usize = size_of::<Layout>();
    /// Where the checksum is.
    pub const CHECKSUM: usize = 2;

    /// Reads a header, and gives what is behind it.
    ///
    /// # Errors
    ///
    /// [`Malformed::Short`].
    pub fn parse(bytes: &[u8]) -> Result<(Icmp, &[u8]), Malformed> {
        let (layout, rest) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Short)?;
        let Layout { kind, code, rest: word, .. } = *layout;
        let (first, second) =
            (u16::from_be_bytes([word[0], word[1]]), u16::from_be_bytes([word[2], word[3]]));
        // Unused bytes that are not zero make it another one, so that nothing is lost.
        let icmp = match (kind, code) {
            (8, 0) => Icmp::Echo { id: first, seq: second },
            (0, 0) => Icmp::EchoReply { id: first, seq: second },
            (3, code) if first == 0 => Icmp::Unreachable { code: Unreachable(code), mtu: second },
            (11, code) if word == [0; 4] => Icmp::TimeExceeded { code },
            (12, code) if word[1..] == [0; 3] => Icmp::ParameterProblem { code, pointer: word[0] },
            (kind, code) => Icmp::Other { kind, code, rest: word },
        };
        Ok((icmp, rest))
    }

    /// What a complaint quotes, `rest` being what is behind its header. None for a message that is no complaint.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    pub fn quoted(&self, rest: &[u8]) -> Option<Result<Quoted, Malformed>> {
        let quotes = match self {
            Icmp::Unreachable { .. } | Icmp::TimeExceeded { .. } | Icmp::ParameterProblem { .. } => true,
            // Source quench, redirect, and the three above with bytes that are to be ignored.
            Icmp::Other { kind, .. } => matches!(kind, 3 | 4 | 5 | 11 | 12),
            Icmp::Echo { .. } | Icmp::EchoReply { .. } => false,
        };
        quotes.then(|| {
            let quoted = Quoted::parse(rest)?;
            if matches!(quoted.ip, Ip::V4(_)) { Ok(quoted) } else { Err(Malformed::Version) }
        })
    }

    /// Puts it in front, its checksum to be finished.
    ///
    /// # Errors
    ///
    /// [`HeadTooLong`].
    pub fn write(&self, head: &mut Head) -> Result<(), HeadTooLong> {
        let two = |first: u16, second: u16| {
            let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
            [a, b, c, d]
        };
        let (kind, code, rest) = match *self {
            Icmp::Echo { id, seq } => (8, 0, two(id, seq)),
            Icmp::EchoReply { id, seq } => (0, 0, two(id, seq)),
            Icmp::Unreachable { code, mtu } => (3, code.0, two(0, mtu)),
            Icmp::TimeExceeded { code } => (11, code, [0; 4]),
            Icmp::ParameterProblem { code, pointer } => (12, code, [pointer, 0, 0, 0]),
            Icmp::Other { kind, code, rest } => (kind, code, rest),
        };
        let layout = Layout { kind, code, checksum: U16::ZERO, rest };
        head.push(Icmp::LEN)?.copy_from_slice(layout.as_bytes());
        Ok(())
    }
}
