//! Packets.

use super::{Reader, Wrong};
use crate::lex::Kind;
use crate::script::{Body, Packet};
use crate::segment::{Choice, Cookie, Ecn, Flags, Segment};

/// The codes of "destination unreachable" (RFC 792, RFC 1122), by packetdrill's names.
const UNREACHABLE: [(&str, u8); 8] = [
    ("net_unreachable", 0),
    ("host_unreachable", 1),
    ("protocol_unreachable", 2),
    ("port_unreachable", 3),
    ("frag_needed", 4),
    ("source_route_failed", 5),
    ("net_prohibited", 9),
    ("host_prohibited", 10),
];

impl Reader<'_> {
    pub(super) fn packet(&mut self) -> Result<Packet, Wrong> {
        let incoming = self.mark("<");
        if !incoming {
            self.expect(">")?;
        }
        let ecn = self.ecn()?;
        if self.word("icmp") {
            return Ok(Packet { incoming, ports: None, body: self.unreachable()? });
        }
        let ports = match self.peek() {
            Some(Kind::Number(_)) => {
                let from = self.number("a port")?;
                self.expect(">")?;
                Some((from, self.number("a port")?))
            }
            _ => None,
        };
        let flags = self.flags()?;
        let mut segment = self.range(flags)?;
        segment.ecn = ecn;
        if self.word("ack") {
            segment.ack = Some(self.number("a number")?);
        }
        if segment.ack.is_some() != flags.has(Flags::ACK) {
            return self.wrong("an ack with flag '.', and none without,");
        }
        if self.word("win") {
            segment.window = Some(self.number("a window")?);
        }
        if self.word("urg") {
            segment.urgent = Some(self.number("an urgent pointer")?);
        }
        segment.options = self.options()?;
        Ok(Packet { incoming, ports, body: Body::Tcp(segment) })
    }

    fn ecn(&mut self) -> Result<Option<Ecn>, Wrong> {
        let close = match (self.mark("["), self.mark("(")) {
            (true, _) => "]",
            (_, true) => ")",
            _ => return Ok(None),
        };
        let ecn = match self.peek() {
            Some(Kind::Word(word)) => match word.as_str() {
                "noecn" => Ecn::None,
                "ect0" => Ecn::Ect0,
                "ect1" => Ecn::Ect1,
                "ce" => Ecn::Ce,
                _ => return self.wrong("noecn, ect0, ect1 or ce"),
            },
            _ => return self.wrong("noecn, ect0, ect1 or ce"),
        };
        self.at += 1;
        self.expect(close)?;
        Ok(Some(ecn))
    }

    fn flags(&mut self) -> Result<Flags, Wrong> {
        if self.mark("-") {
            return Ok(Flags::default());
        }
        let mut flags = Flags::default();
        if let Some(Kind::Word(word)) = self.peek() {
            for letter in word.chars() {
                match Flags::of(letter) {
                    Some(flag) => flags = flags.with(flag),
                    None => return self.wrong("flags (of FSRPUEW.)"),
                }
            }
            self.at += 1;
        }
        if self.mark(".") {
            flags = flags.with(Flags::ACK);
        }
        if flags == Flags::default() { self.wrong("flags (of FSRPUEW.)") } else { Ok(flags) }
    }

    /// `1:1001(1000)`
    fn range(&mut self, flags: Flags) -> Result<Segment, Wrong> {
        let line = self.line();
        let seq: u32 = self.number("a sequence number")?;
        self.expect(":")?;
        let end: u32 = self.number("a sequence number")?;
        self.expect("(")?;
        let len: u32 = self.number("a length")?;
        self.expect(")")?;
        if seq.wrapping_add(len) != end {
            return Err((line, format!("{seq}:{end}({len}): {len} bytes do not end there")));
        }
        let (ack, window, urgent, options) = (None, None, None, Some(Vec::new()));
        Ok(Segment { ecn: None, flags, seq, len, ack, window, urgent, options })
    }

    fn options(&mut self) -> Result<Option<Vec<Choice>>, Wrong> {
        if !self.mark("<") {
            return Ok(Some(Vec::new()));
        }
        // (An ellipsis right behind, or a packet of the next event: that begins with a time.)
        if self.mark("...") {
            self.expect(">")?;
            return Ok(None);
        }
        let line = self.line();
        let mut list = Vec::new();
        loop {
            list.push(self.option()?);
            if !self.mark(",") {
                break;
            }
        }
        self.expect(">")?;
        let len: usize = list.iter().map(Choice::len).sum();
        if !len.is_multiple_of(4) || len > 40 {
            return Err((
                line,
                format!("options of {len} bytes: make it a multiple of 4, at most 40, by nop"),
            ));
        }
        Ok(Some(list))
    }

    fn option(&mut self) -> Result<Choice, Wrong> {
        const WHAT: &str = "an option (mss, wscale, sackOK, sack, TS val N ecr N, FO, nop, eol)";
        let Some(Kind::Word(name)) = self.peek() else { return self.wrong(WHAT) };
        self.at += 1;
        Ok(match name.as_str() {
            "nop" => Choice::Nop,
            "eol" => Choice::End,
            "mss" => Choice::Mss(self.number("an MSS")?),
            "wscale" => Choice::WindowScale(self.number("a shift")?),
            "sackOK" => Choice::SackOk,
            "sack" => {
                let mut blocks = Vec::new();
                while matches!(self.peek(), Some(Kind::Number(_))) {
                    let from = self.number("a sequence number")?;
                    self.expect(":")?;
                    blocks.push((from, self.number("a sequence number")?));
                }
                Choice::Sack(blocks)
            }
            "TS" => {
                if !self.word("val") {
                    return self.wrong("'val'");
                }
                let value = self.number("a timestamp")?;
                if !self.word("ecr") {
                    return self.wrong("'ecr'");
                }
                Choice::Timestamps { value, echo: self.number("a timestamp")? }
            }
            "FO" => Choice::FastOpen(self.cookie()?),
            _ => {
                self.at -= 1;
                return self.wrong(WHAT);
            }
        })
    }

    /// `abcd1234`, `TFO_COOKIE`, or nothing where one is asked for.
    fn cookie(&mut self) -> Result<Cookie, Wrong> {
        let Some(Kind::Word(word)) = self.peek() else { return Ok(Cookie::Bytes(Vec::new())) };
        if word == "TFO_COOKIE" {
            self.at += 1;
            return Ok(Cookie::Given);
        }
        let digits: Option<Vec<u32>> = word.chars().map(|digit| digit.to_digit(16)).collect();
        match digits {
            // (RFC 7413, section 4.1.1: 4 to 16 bytes.)
            Some(digits) if digits.len().is_multiple_of(2) && (8..=32).contains(&digits.len()) => {
                self.at += 1;
                Ok(Cookie::Bytes(digits.chunks(2).map(|two| (two[0] << 4 | two[1]) as u8).collect()))
            }
            _ => self.wrong("a cookie (4 to 16 bytes in hexadecimal digits, or TFO_COOKIE)"),
        }
    }

    /// `unreachable frag_needed mtu 1200 [1:1461(1460)]`
    fn unreachable(&mut self) -> Result<Body, Wrong> {
        if !self.word("unreachable") {
            return self.wrong("'unreachable'");
        }
        let code = match self.peek() {
            Some(Kind::Word(word)) => {
                UNREACHABLE.iter().find(|(name, _)| name == word).map(|(_, code)| *code)
            }
            _ => None,
        };
        let Some(code) = code else { return self.wrong("what is unreachable") };
        self.at += 1;
        let mtu = if self.word("mtu") { self.number("an MTU")? } else { 0 };
        self.expect("[")?;
        let about = self.range(Flags::ACK)?;
        self.expect("]")?;
        Ok(Body::Unreachable { code, mtu, about })
    }
}
