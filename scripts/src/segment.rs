//! A segment, as scripts write it.

use std::fmt;

/// Bits of the header, in the order that they have there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(pub u16);

impl Flags {
    pub const FIN: Flags = Flags(0x001);
    pub const SYN: Flags = Flags(0x002);
    pub const RST: Flags = Flags(0x004);
    pub const PSH: Flags = Flags(0x008);
    pub const ACK: Flags = Flags(0x010);
    pub const URG: Flags = Flags(0x020);
    pub const ECE: Flags = Flags(0x040);
    pub const CWR: Flags = Flags(0x080);
    const LETTERS: [(char, Flags); 9] = [
        ('S', Flags::SYN),
        ('F', Flags::FIN),
        ('R', Flags::RST),
        ('P', Flags::PSH),
        ('U', Flags::URG),
        ('E', Flags::ECE),
        ('W', Flags::CWR),
        ('A', Flags(0x100)),
        ('.', Flags::ACK),
    ];

    pub fn of(letter: char) -> Option<Flags> {
        Flags::LETTERS.iter().find(|(name, _)| *name == letter).map(|(_, flag)| *flag)
    }

    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    pub fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("-");
        }
        Flags::LETTERS
            .iter()
            .filter(|(_, flag)| self.has(*flag))
            .try_for_each(|(letter, _)| write!(f, "{letter}"))
    }
}

/// Of Fast Open (RFC 7413, section 4.1.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cookie {
    /// These bytes; none of them asks for a cookie.
    Bytes(Vec<u8>),
    /// The one that the host under test has given out (`TFO_COOKIE`): the first of them is learned, later ones have to be the same.
    Given,
}

impl Cookie {
    /// How long the host's own are.
    pub const GIVEN: usize = 8;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Nop,
    End,
    Mss(u16),
    WindowScale(u8),
    SackOk,
    Sack(Vec<(u32, u32)>),
    Timestamps { value: u32, echo: u32 },
    FastOpen(Cookie),
    Other { kind: u8, data: Vec<u8> },
}

impl Choice {
    pub fn len(&self) -> usize {
        match self {
            Choice::Nop | Choice::End => 1,
            Choice::Mss(_) => 4,
            Choice::WindowScale(_) => 3,
            Choice::SackOk => 2,
            Choice::Sack(blocks) => 2 + 8 * blocks.len(),
            Choice::Timestamps { .. } => 10,
            Choice::FastOpen(Cookie::Given) => 2 + Cookie::GIVEN,
            Choice::FastOpen(Cookie::Bytes(data)) | Choice::Other { data, .. } => 2 + data.len(),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Nop => f.write_str("nop"),
            Choice::End => f.write_str("eol"),
            Choice::Mss(mss) => write!(f, "mss {mss}"),
            Choice::WindowScale(shift) => write!(f, "wscale {shift}"),
            Choice::SackOk => f.write_str("sackOK"),
            Choice::Sack(blocks) => {
                f.write_str("sack")?;
                blocks.iter().try_for_each(|(from, until)| write!(f, " {from}:{until}"))
            }
            Choice::Timestamps { value, echo } => write!(f, "TS val {value} ecr {echo}"),
            Choice::FastOpen(Cookie::Given) => f.write_str("FO TFO_COOKIE"),
            Choice::FastOpen(Cookie::Bytes(bytes)) => {
                f.write_str(if bytes.is_empty() { "FO" } else { "FO " })?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Choice::Other { kind, data } => write!(f, "option {kind} of {} bytes", data.len()),
        }
    }
}

/// The two bits of the network's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ecn {
    None,
    Ect1,
    Ect0,
    Ce,
}

impl Ecn {
    pub fn of(bits: u8) -> Ecn {
        match bits & 3 {
            0 => Ecn::None,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }
}

impl fmt::Display for Ecn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ecn::None => "noecn",
            Ecn::Ect1 => "ect1",
            Ecn::Ect0 => "ect0",
            Ecn::Ce => "ce",
        })
    }
}

/// What is `None` in a script is not looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub ecn: Option<Ecn>,
    pub flags: Flags,
    pub seq: u32,
    pub len: u32,
    pub ack: Option<u32>,
    pub window: Option<u16>,
    pub urgent: Option<u16>,
    /// None: whatever they are.
    pub options: Option<Vec<Choice>>,
}

impl Segment {
    pub fn timestamps(&self) -> Option<(u32, u32)> {
        self.options.iter().flatten().find_map(|choice| match choice {
            Choice::Timestamps { value, echo } => Some((*value, *echo)),
            _ => None,
        })
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ecn) = self.ecn.filter(|ecn| *ecn != Ecn::None) {
            write!(f, "[{ecn}] ")?;
        }
        write!(f, "{} {}:{}({})", self.flags, self.seq, self.seq.wrapping_add(self.len), self.len)?;
        if let Some(ack) = self.ack {
            write!(f, " ack {ack}")?;
        }
        if let Some(window) = self.window {
            write!(f, " win {window}")?;
        }
        if let Some(urgent) = self.urgent.filter(|urgent| *urgent != 0) {
            write!(f, " urg {urgent}")?;
        }
        match self.options.as_deref() {
            None => f.write_str(" <...>"),
            Some([]) => Ok(()),
            Some(list) => {
                let list: Vec<String> = list.iter().map(Choice::to_string).collect();
                write!(f, " <{}>", list.join(","))
            }
        }
    }
}
