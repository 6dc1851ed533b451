//! IPv6 (RFC 8200): its header, and the extension headers that may stand between it and a transport's.

use super::ipv4::{Ecn, Protocol};
use super::malformed::Malformed;
use onecopy_link::{Head, HeadTooLong};
use std::net::Ipv6Addr;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RFC 8200, section 3.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    /// Version, traffic class, flow label.
    first: U32,
    payload_len: U16,
    next: u8,
    hops: u8,
    from: [u8; 16],
    to: [u8; 16],
}

const FLOW: u32 = 0xf_ffff;

/// A packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Who sent it.
    pub from: Ipv6Addr,
    /// Whom it is for.
    pub to: Ipv6Addr,
    /// What comes next: a transport, or an extension header.
    pub protocol: Protocol,
    /// Hops that are left.
    pub ttl: u8,
    /// The traffic class: differentiated services, and [`Ecn`].
    pub service: u8,
    /// The flow label; 0 where nobody gave one.
    pub flow: u32,
    /// Bytes behind the header. What is there beyond that is the link's padding.
    pub payload_len: u16,
}

impl Ipv6 {
    /// Bytes.
    pub const LEN: usize = size_of::<Layout>();
    /// Every link takes packets of so many bytes (section 5).
    pub const MIN_MTU: u16 = 1280;

    /// One with 64 hops (net.ipv6.conf.all.hop_limit), and nothing particular.
    pub fn new(from: Ipv6Addr, to: Ipv6Addr, protocol: Protocol, payload_len: u16) -> Ipv6 {
        Ipv6 { from, to, protocol, ttl: 64, service: 0, flow: 0, payload_len }
    }

    /// Reads a header, and gives what is behind it. Whether `payload_len` bytes are there is the caller's to see.
    ///
    /// # Errors
    ///
    /// [`Malformed::Short`], [`Malformed::Version`].
    pub fn parse(bytes: &[u8]) -> Result<(Ipv6, &[u8]), Malformed> {
        let (layout, rest) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Short)?;
        let first = layout.first.get();
        if first >> 28 != 6 {
            return Err(Malformed::Version);
        }
        let ip = Ipv6 {
            from: layout.from.into(),
            to: layout.to.into(),
            protocol: Protocol(layout.next),
            ttl: layout.hops,
            service: (first >> 20) as u8,
            flow: first & FLOW,
            payload_len: layout.payload_len.get(),
        };
        Ok((ip, rest))
    }

    /// Congestion on the way.
    pub fn ecn(&self) -> Ecn {
        Ecn::of(self.service)
    }

    /// Puts it in front.
    ///
    /// # Errors
    ///
    /// [`HeadTooLong`].
    pub fn write(&self, head: &mut Head) -> Result<(), HeadTooLong> {
        let layout = Layout {
            first: U32::new(6 << 28 | u32::from(self.service) << 20 | self.flow & FLOW),
            payload_len: U16::new(self.payload_len),
            next: self.protocol.0,
            hops: self.ttl,
            from: self.from.octets(),
            to: self.to.octets(),
        };
        head.push(Ipv6::LEN)?.copy_from_slice(layout.as_bytes());
        Ok(())
    }
}

/// Which part of a packet a fragment is (section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Where its bytes begin in what was cut; a multiple of 8.
    pub offset: u16,
    /// It is not the last one.
    pub more: bool,
    /// What the fragments of one packet have in common.
    pub id: u32,
}

impl Fragment {
    /// Bytes of its header.
    pub const LEN: usize = 8;

    /// Reads a header, and gives what comes next.
    ///
    /// # Errors
    ///
    /// [`Malformed::Short`].
    pub fn parse(bytes: &[u8]) -> Result<(Fragment, Protocol), Malformed> {
        let Some(&[next, _, a, b, c, d, e, f]) = bytes.first_chunk() else { return Err(Malformed::Short) };
        let word = u16::from_be_bytes([a, b]);
        let id = u32::from_be_bytes([c, d, e, f]);
        Ok((Fragment { offset: word & !7, more: word & 1 != 0, id }, Protocol(next)))
    }

    /// Puts it in front of what `next` is.
    ///
    /// # Errors
    ///
    /// [`HeadTooLong`].
    pub fn write(&self, head: &mut Head, next: Protocol) -> Result<(), HeadTooLong> {
        let room = head.push(Fragment::LEN)?;
        room[0] = next.0;
        room[2..4].copy_from_slice(&(self.offset & !7 | u16::from(self.more)).to_be_bytes());
        room[4..].copy_from_slice(&self.id.to_be_bytes());
        Ok(())
    }
}

/// What is behind the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// What it is. (Of a fragment that is not the first, what the first one has.)
    pub protocol: Protocol,
    /// Where it begins, counted from IPv6's header on.
    pub at: usize,
    /// The packet is a part of one.
    pub fragment: Option<Fragment>,
    /// Where the header is that says what comes next: what a complaint points to.
    pub says: usize,
}

/// Why the headers between are not passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// They are longer than what is at hand.
    Short,
    /// An option that is not known wants the packet dropped, and nobody told.
    Silently,
    /// The sender is to be told: a Parameter Problem (RFC 4443, section 3.4).
    Problem {
        /// 0: a field is wrong; 1: a header is not known; 2: an option is not.
        code: u8,
        /// Which byte, counted from IPv6's header on.
        pointer: u32,
        /// He is told even where the packet was for many.
        even_if_many: bool,
    },
}

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// Where `next` is said in IPv6's header.
const NEXT_AT: usize = 6;

/// Passes over the extension headers of a packet that begins with `bytes`, up to a fragment's, or to what is none of them: whether that is
/// spoken here is the caller's to see. It looks at each byte once, at most.
///
/// # Errors
///
/// [`Stopped`].
pub fn walk(ip: &Ipv6, bytes: &[u8]) -> Result<Behind, Stopped> {
    let (mut next, mut at, mut says) = (ip.protocol.0, Ipv6::LEN, NEXT_AT);
    loop {
        match next {
            // Section 4.3: right behind IPv6's header, or nowhere.
            HOP_BY_HOP if at == Ipv6::LEN => {}
            HOP_BY_HOP => return Err(problem(1, says)),
            ROUTING | DESTINATION => {}
            FRAGMENT => {
                let rest = bytes.get(at..).unwrap_or_default();
                let (fragment, protocol) = Fragment::parse(rest).map_err(|_| Stopped::Short)?;
                let (fragment, says, at) = (Some(fragment), at, at + Fragment::LEN);
                return Ok(Behind { protocol, at, fragment, says });
            }
            other => return Ok(Behind { protocol: Protocol(other), at, fragment: None, says }),
        }
        let Some(&[following, units, _, left]) = bytes.get(at..).and_then(|rest| rest.first_chunk()) else {
            return Err(Stopped::Short);
        };
        let end = at + (usize::from(units) + 1) * 8;
        let header = bytes.get(at..end).ok_or(Stopped::Short)?;
        match next {
            // Section 4.4, and RFC 5095: no way through this host is known; one that is at its end does not matter.
            ROUTING if left == 0 => {}
            ROUTING => return Err(problem(0, at + 2)),
            _ => options(&header[2..], at + 2)?,
        }
        (next, says, at) = (following, at, end);
    }
}

fn problem(code: u8, pointer: usize) -> Stopped {
    Stopped::Problem { code, pointer: pointer as u32, even_if_many: false }
}

/// Looks at options that nothing is known of but how to pass over them (section 4.2). `at` is where they are in the packet.
fn options(mut bytes: &[u8], mut at: usize) -> Result<(), Stopped> {
    while let Some((&kind, rest)) = bytes.split_first() {
        // Pad1 has no length.
        let len = match (kind, rest.first()) {
            (0, _) => 1,
            (_, Some(len)) => usize::from(*len) + 2,
            (_, None) => return Err(problem(0, at)),
        };
        bytes = bytes.get(len..).ok_or(problem(0, at + 1))?;
        match kind >> 6 {
            0 => {}
            1 => return Err(Stopped::Silently),
            must => {
                let pointer = at as u32;
                return Err(Stopped::Problem { code: 2, pointer, even_if_many: must == 2 });
            }
        }
        at += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(next: u8, rest: &[&[u8]]) -> (Ipv6, Vec<u8>) {
        let rest = rest.concat();
        let (from, to) = (Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        let ip = Ipv6::new(from, to, Protocol(next), rest.len() as u16);
        let mut head = Head::new();
        ip.write(&mut head).unwrap();
        (ip, [&head[..], &rest].concat())
    }

    #[test]
    fn headers_between_are_passed_over_as_their_options_say() {
        let hop: &[u8] = &[60, 0, 5, 2, 0, 0, 1, 0];
        let destination: &[u8] = &[6, 1, 1, 4, 0, 0, 0, 0, 0, 0, 0x1e, 3, 1, 2, 3, 0];
        let routed: &[u8] = &[17, 0, 4, 0, 0, 0, 0, 0];
        let part: &[u8] = &[17, 0, 0, 9, 1, 2, 3, 4];
        let walked = |next, rest: &[&[u8]]| {
            let (ip, bytes) = packet(next, rest);
            walk(&ip, &bytes)
        };
        let behind = |protocol, at, says| Behind { protocol: Protocol(protocol), at, fragment: None, says };
        assert_eq!(walked(6, &[]), Ok(behind(6, 40, 6)));
        assert_eq!(walked(0, &[hop, destination]), Ok(behind(6, 64, 48)));
        assert_eq!(walked(43, &[routed]), Ok(behind(17, 48, 40)));
        let fragment = Some(Fragment { offset: 8, more: true, id: 0x0102_0304 });
        assert_eq!(walked(44, &[part]), Ok(Behind { fragment, ..behind(17, 48, 40) }));
        assert_eq!(walked(132, &[]), Ok(behind(132, 40, 6)), "whether it is known is not asked here");
        // What is wrong.
        let problem = |code, pointer, even_if_many| Err(Stopped::Problem { code, pointer, even_if_many });
        let (twice, through) = ([0, 0, 1, 4, 0, 0, 0, 0], [17, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(walked(0, &[&twice, hop]), problem(1, 40, false));
        assert_eq!(walked(43, &[&through]), problem(0, 42, false));
        assert_eq!(walked(60, &[&[6, 0, 0x80, 0, 1, 2, 0, 0]]), problem(2, 42, true));
        assert_eq!(walked(60, &[&[6, 0, 0, 0xc2, 0, 1, 1, 0]]), problem(2, 43, false));
        assert_eq!(walked(60, &[&[6, 0, 0x40, 0, 1, 2, 0, 0]]), Err(Stopped::Silently));
        assert_eq!(walked(60, &[&[6, 0, 1, 200, 0, 0, 0, 0]]), problem(0, 43, false));
        assert_eq!(walked(60, &[&[6, 0, 1, 3, 0, 0, 0, 7]]), problem(0, 47, false));
        for short in [&hop[..1], &hop[..7], &[60, 1, 1, 4, 0, 0, 0, 0]] {
            assert_eq!(walked(60, &[short]), Err(Stopped::Short));
        }
        assert_eq!(walked(44, &[&part[..7]]), Err(Stopped::Short));
    }
}
