//! A segment, as packetdrill writes it (packet_to_string.c, tcp_options_to_string.c).

use crate::wire::tcp::{FAST_OPEN_MAGIC, kind};
use crate::wire::{Flags, Seq, Tcp};
use std::fmt::{self, Display, Formatter};

/// One letter each, in packetdrill's order.
const LETTERS: [(Flags, char); 9] = [
    (Flags::FIN, 'F'),
    (Flags::SYN, 'S'),
    (Flags::RST, 'R'),
    (Flags::PSH, 'P'),
    (Flags::ACK, '.'),
    (Flags::URG, 'U'),
    (Flags::ECE, 'E'),
    (Flags::CWR, 'W'),
    (Flags::AE, 'A'),
];

/// What a segment says.
pub(super) struct Segment<'a> {
    pub tcp: &'a Tcp,
    /// Its options as they lie there.
    pub options: &'a [u8],
    /// Bytes behind the header.
    pub len: usize,
    /// From where on the sender's numbers count, and the other one's.
    pub bases: (Seq, Seq),
}

impl Display for Segment<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Segment { tcp, options, len, bases: (own, others) } = *self;
        for (_, letter) in LETTERS.iter().filter(|(flag, _)| tcp.flags.contains(*flag)) {
            write!(f, "{letter}")?;
        }
        if tcp.flags.is_empty() {
            f.write_str("-")?;
        }
        let first = relative(tcp.seq, own);
        write!(f, " {first}:{}({len})", first.wrapping_add(len as u32))?;
        if tcp.flags.contains(Flags::ACK) {
            write!(f, " ack {}", relative(tcp.ack, others))?;
        }
        write!(f, " win {}", tcp.window)?;
        if tcp.flags.contains(Flags::URG) {
            write!(f, " urg {}", tcp.urgent)?;
        }
        if !options.is_empty() {
            f.write_str(" <")?;
            write_options(f, options, others)?;
            f.write_str(">")?;
        }
        Ok(())
    }
}

pub(super) fn relative(seq: Seq, base: Seq) -> u32 {
    seq.minus(base.0).0
}

/// All of them in their order, with what fills them up: [`crate::wire::Options`] keeps only what they mean.
fn write_options(f: &mut Formatter<'_>, mut bytes: &[u8], base: Seq) -> fmt::Result {
    let mut comma = "";
    while let [kind, rest @ ..] = bytes {
        f.write_str(std::mem::replace(&mut comma, ","))?;
        match *kind {
            // What is behind it is filling.
            kind::END => return f.write_str("eol"),
            kind::NOP => {
                f.write_str("nop")?;
                bytes = rest;
            }
            kind => {
                // The length counts kind and length as well.
                let parts = rest.split_first().and_then(|(len, rest)| {
                    usize::from(*len).checked_sub(2).and_then(|len| rest.split_at_checked(len))
                });
                let Some((data, behind)) = parts else { return f.write_str("[bad opt]") };
                write_option(f, kind, data, base)?;
                bytes = behind;
            }
        }
    }
    Ok(())
}

fn write_option(f: &mut Formatter<'_>, kind: u8, data: &[u8], base: Seq) -> fmt::Result {
    let word = |a: u8, b: u8| u16::from_be_bytes([a, b]);
    match (kind, data) {
        (kind::MSS, &[a, b]) => write!(f, "mss {}", word(a, b)),
        (kind::WINDOW_SCALE, [shift]) => write!(f, "wscale {shift}"),
        (kind::SACK_PERMITTED, []) => f.write_str("sackOK"),
        (kind::TIMESTAMPS, &[a, b, c, d, e, g, h, i]) => {
            let (value, echo) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, g, h, i]));
            write!(f, "TS val {value} ecr {echo}")
        }
        (kind::SACK, blocks) if !blocks.is_empty() && blocks.len().is_multiple_of(8) => {
            f.write_str("sack")?;
            for block in blocks.chunks_exact(8) {
                let seq = |at: usize| {
                    let place = [block[at], block[at + 1], block[at + 2], block[at + 3]];
                    relative(Seq(u32::from_be_bytes(place)), base)
                };
                write!(f, " {}:{}", seq(0), seq(4))?;
            }
            Ok(())
        }
        (kind::USER_TIMEOUT, &[a, b]) => {
            let unit = if a & 0x80 == 0 { "s" } else { "min" };
            write!(f, "uto {} {unit}", word(a & 0x7f, b))
        }
        (kind::FAST_OPEN, cookie) => write_bytes(f, "FO", " ", cookie),
        (kind::EXPERIMENT, [a, b, cookie @ ..]) if [*a, *b] == FAST_OPEN_MAGIC => {
            write_bytes(f, "FOEXP", " ", cookie)
        }
        (kind, data) => {
            write!(f, "unknown-{kind}")?;
            write_bytes(f, "", " 0x", data)
        }
    }
}

fn write_bytes(f: &mut Formatter<'_>, name: &str, before: &str, bytes: &[u8]) -> fmt::Result {
    f.write_str(name)?;
    if !bytes.is_empty() {
        f.write_str(before)?;
    }
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}
