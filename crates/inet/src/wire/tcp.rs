//! TCP (RFC 9293), and its options.

use super::malformed::Malformed;
use onecopy_chain::Sum;
use onecopy_link::{Head, HeadTooLong};
use std::fmt;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RFC 9293, section 3.1, without options.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    from: U16,
    to: U16,
    seq: U32,
    ack: U32,
    /// The header's length in words of 4 bytes, 3 bits that are nobody's, and [`Flags`].
    len_and_flags: U16,
    window: U16,
    checksum: U16,
    urgent: U16,
}

bitflags::bitflags! {
    /// What a segment says beside its numbers (RFC 9293, section 3.1; RFC 3168; RFC 9768 for AE).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u16 {
        /// The sender sends no more.
        const FIN = 0x001;
        /// Sequence numbers begin here.
        const SYN = 0x002;
        /// There is no such connection.
        const RST = 0x004;
        /// Hand it to the program.
        const PSH = 0x008;
        /// The acknowledgement counts.
        const ACK = 0x010;
        /// The urgent pointer counts.
        const URG = 0x020;
        /// There was congestion on the way here.
        const ECE = 0x040;
        /// The sender has slowed down for it.
        const CWR = 0x080;
        /// Accurate ECN's third bit (once a nonce's, RFC 3540).
        const AE = 0x100;
    }
}

/// A place in a stream of bytes: 32 bits, which wrap. Which of two is before the other is told by their difference, and makes sense for
/// places less than 2 GiB apart (RFC 9293, section 3.4).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// `n` bytes on.
    #[must_use]
    pub fn plus(self, n: u32) -> Seq {
        Seq(self.0.wrapping_add(n))
    }

    /// `n` bytes back.
    #[must_use]
    pub fn minus(self, n: u32) -> Seq {
        Seq(self.0.wrapping_sub(n))
    }

    /// Bytes from `earlier` to here; less than 0 where it is behind.
    pub fn since(self, earlier: Seq) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// Whether it is before `other`.
    pub fn before(self, other: Seq) -> bool {
        self.since(other) < 0
    }

    /// Whether it is behind `other`.
    pub fn after(self, other: Seq) -> bool {
        self.since(other) > 0
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A segment's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tcp {
    /// The sender's port.
    pub from: u16,
    /// The port that it is for.
    pub to: u16,
    /// Of its first byte, or of its SYN.
    pub seq: Seq,
    /// The next byte that the sender wants; counts with [`Flags::ACK`].
    pub ack: Seq,
    /// What it says.
    pub flags: Flags,
    /// What the sender has room for, as it is written: to be scaled.
    pub window: u16,
    /// Where urgent bytes end, from `seq` on; counts with [`Flags::URG`].
    pub urgent: u16,
    /// What stands behind the fixed part.
    pub options: Options,
}

impl Tcp {
    /// Bytes without options.
    pub const LEN: usize = size_of::<Layout>();
    /// Where the checksum is.
    pub const CHECKSUM: usize = 16;

    /// Reads a header, and gives what is behind it and its options.
    ///
    /// # Errors
    ///
    /// [`Malformed::Short`], [`Malformed::Length`]. Options that make no sense are no error: see [`Options::parse`].
    pub fn parse(bytes: &[u8]) -> Result<(Tcp, &[u8]), Malformed> {
        let (layout, behind) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Short)?;
        let word = layout.len_and_flags.get();
        let options_len = (usize::from(word >> 12) * 4).checked_sub(Tcp::LEN).ok_or(Malformed::Length)?;
        let (options, rest) = behind.split_at_checked(options_len).ok_or(Malformed::Short)?;
        let tcp = Tcp {
            from: layout.from.get(),
            to: layout.to.get(),
            seq: Seq(layout.seq.get()),
            ack: Seq(layout.ack.get()),
            flags: Flags::from_bits_truncate(word),
            window: layout.window.get(),
            urgent: layout.urgent.get(),
            options: Options::parse(options),
        };
        Ok((tcp, rest))
    }

    /// Bytes that it has as it is written.
    pub fn len(&self) -> usize {
        Tcp::LEN + self.options.len()
    }

    /// Never: it has a fixed part.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Puts it in front, its checksum to be finished: `pseudo` is the sum of its pseudo-header, for [`Tcp::len`] bytes and the payload.
    ///
    /// # Errors
    ///
    /// [`NotWritten`], with nothing done.
    pub fn write(&self, head: &mut Head, pseudo: Sum) -> Result<(), NotWritten> {
        let options = self.options.len();
        if options > Options::MAX {
            return Err(NotWritten::Options { len: options });
        }
        let room = head.push(Tcp::LEN + options).map_err(NotWritten::Head)?;
        let words = ((Tcp::LEN + options) / 4) as u16;
        let layout = Layout {
            from: U16::new(self.from),
            to: U16::new(self.to),
            seq: U32::new(self.seq.0),
            ack: U32::new(self.ack.0),
            len_and_flags: U16::new(words << 12 | self.flags.bits()),
            window: U16::new(self.window),
            checksum: U16::new(pseudo.folded()),
            urgent: U16::new(self.urgent),
        };
        let (fixed, behind) = room.split_at_mut(Tcp::LEN);
        fixed.copy_from_slice(layout.as_bytes());
        let mut out = Writer { room: behind, at: 0 };
        self.options.write(&mut out);
        debug_assert_eq!(out.at, options, "they are as long as was said");
        Ok(())
    }
}

/// Why a header was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotWritten {
    /// More options than a header has room for.
    Options {
        /// Bytes that they would have.
        len: usize,
    },
    /// No room in front of what the head has.
    Head(HeadTooLong),
}

impl fmt::Display for NotWritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotWritten::Options { len } => write!(
                f,
                "options of {len} bytes, where {} fit; leave out blocks that were received out of order",
                Options::MAX
            ),
            NotWritten::Head(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NotWritten {}

/// Kinds of options (IANA's TCP parameters).
pub(crate) mod kind {
    pub const END: u8 = 0;
    pub const NOP: u8 = 1;
    pub const MSS: u8 = 2;
    pub const WINDOW_SCALE: u8 = 3;
    pub const SACK_PERMITTED: u8 = 4;
    pub const SACK: u8 = 5;
    pub const TIMESTAMPS: u8 = 8;
    pub const USER_TIMEOUT: u8 = 28;
    pub const FAST_OPEN: u8 = 34;
    pub const EXPERIMENT: u8 = 254;
}

/// What a Fast Open option of before its number was given begins with (RFC 6994).
pub(crate) const FAST_OPEN_MAGIC: [u8; 2] = [0xf9, 0x89];

/// What a header's options say.
///
/// They are written as Linux writes them (net/ipv4/tcp_output.c, tcp_options_write): each kind in its place and filled up to words of 4
/// bytes in front, so that what reads them fast finds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The longest segment that the sender takes (RFC 9293, section 3.7.1); in a SYN.
    pub mss: Option<u16>,
    /// By how many bits its windows are to be shifted (RFC 7323, section 2); in a SYN. As it was said: more than 14 count as 14.
    pub window_scale: Option<u8>,
    /// It understands [`Options::sack`] (RFC 2018, section 2); in a SYN.
    pub sack_permitted: bool,
    /// Its clock, and the last that it saw of the other one (RFC 7323, section 3).
    pub timestamps: Option<Timestamps>,
    /// What it has received out of order (RFC 2018, section 3), the latest first; one that was received twice before them (RFC 2883).
    pub sack: Blocks,
    /// Fast Open (RFC 7413): a cookie, or that it asks for one.
    pub fast_open: Option<Cookie>,
    /// How long it waits for an acknowledgement, as it is written: RFC 5482.
    pub user_timeout: Option<u16>,
    /// Options of other kinds that there were. They are not written.
    pub unknown: u8,
    /// They end in what is none: what came before it counts.
    pub damaged: bool,
}

/// RFC 7323, section 3.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock (TSval).
    pub value: u32,
    /// What it echoes (TSecr); counts with [`Flags::ACK`].
    pub echo: u32,
}

/// Up to 4 blocks of bytes, each from its first one to the one behind its last.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Blocks {
    list: [(Seq, Seq); Blocks::MAX],
    count: u8,
}

impl Blocks {
    /// How many fit a header without other options.
    pub const MAX: usize = 4;

    /// Puts one at the end; false where there is no room.
    pub fn push(&mut self, from: Seq, until: Seq) -> bool {
        let place = self.list.get_mut(usize::from(self.count));
        let room = place.map(|place| *place = (from, until)).is_some();
        self.count += u8::from(room);
        room
    }

    /// They in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Seq, Seq)> + '_ {
        self.list.iter().copied().take(self.count.into())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Keeps the first `count`.
    pub fn truncate(&mut self, count: usize) {
        while self.len() > count {
            self.count -= 1;
            self.list[self.len()] = Default::default();
        }
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// What proves that a client has been here before: RFC 7413, section 4.1.1. Without bytes it asks for one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Cookie {
    bytes: [u8; Cookie::MAX],
    len: u8,
    /// In the option of before its number was given.
    pub experimental: bool,
}

impl Cookie {
    /// The longest one.
    pub const MAX: usize = 16;

    /// What asks for one.
    pub const REQUEST: Cookie = Cookie { bytes: [0; Cookie::MAX], len: 0, experimental: false };

    /// One of 4 to 16 bytes, an even number of them, or none, which asks for one.
    pub fn new(bytes: &[u8]) -> Option<Cookie> {
        let right =
            bytes.is_empty() || ((4..=Cookie::MAX).contains(&bytes.len()) && bytes.len().is_multiple_of(2));
        let mut cookie = Cookie::REQUEST;
        if right {
            cookie.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
            cookie.len = bytes.len() as u8;
        }
        right.then_some(cookie)
    }

    /// The same, in the option of before its number was given, or not.
    #[must_use]
    pub fn in_experiment(self, experimental: bool) -> Cookie {
        Cookie { experimental, ..self }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(Cookie::MAX)]
    }
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It is a secret between two hosts.
        write!(f, "Cookie({} bytes)", self.len)
    }
}

impl Options {
    /// Bytes that a header has room for.
    pub const MAX: usize = 40;

    /// Reads what stands behind the fixed part. As Linux does (net/ipv4/tcp_input.c, tcp_parse_options), it stops where something makes no
    /// sense, and what came before counts; an option that is longer or shorter than its kind is passed over. Of two of a kind the last
    /// one counts.
    pub fn parse(mut bytes: &[u8]) -> Options {
        let mut options = Options::default();
        if let [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10, data @ ..] = bytes
            && data.len() == 8
        {
            // As most segments have it (tcp_parse_aligned_timestamp()).
            options.take(kind::TIMESTAMPS, data);
            return options;
        }
        while let [kind, rest @ ..] = bytes {
            match *kind {
                kind::END => break,
                kind::NOP => bytes = rest,
                kind => {
                    // The length counts kind and length as well.
                    let Some(len) = rest.first().and_then(|len| usize::from(*len).checked_sub(2)) else {
                        options.damaged = true;
                        break;
                    };
                    let Some((data, behind)) = rest.get(1..).and_then(|rest| rest.split_at_checked(len))
                    else {
                        options.damaged = true;
                        break;
                    };
                    options.take(kind, data);
                    bytes = behind;
                }
            }
        }
        options
    }

    fn take(&mut self, kind: u8, data: &[u8]) {
        let word = |a: u8, b: u8| u16::from_be_bytes([a, b]);
        match (kind, data) {
            (kind::MSS, &[a, b]) => self.mss = Some(word(a, b)),
            (kind::WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift),
            (kind::SACK_PERMITTED, []) => self.sack_permitted = true,
            (kind::TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                let (value, echo) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
                self.timestamps = Some(Timestamps { value, echo });
            }
            (kind::SACK, blocks) if !blocks.is_empty() && blocks.len().is_multiple_of(8) => {
                self.sack = Blocks::default();
                for block in blocks.chunks_exact(8) {
                    let seq = |at: usize| {
                        Seq(u32::from_be_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]))
                    };
                    self.sack.push(seq(0), seq(4));
                }
            }
            (kind::USER_TIMEOUT, &[a, b]) => self.user_timeout = Some(word(a, b)),
            (kind::FAST_OPEN, cookie) => match Cookie::new(cookie) {
                Some(cookie) => self.fast_open = Some(cookie),
                None => self.unknown = self.unknown.saturating_add(1),
            },
            (kind::EXPERIMENT, [a, b, cookie @ ..]) if [*a, *b] == FAST_OPEN_MAGIC => {
                match Cookie::new(cookie) {
                    Some(cookie) => self.fast_open = Some(Cookie { experimental: true, ..cookie }),
                    None => self.unknown = self.unknown.saturating_add(1),
                }
            }
            _ => self.unknown = self.unknown.saturating_add(1),
        }
    }

    /// Bytes that they have as they are written: a multiple of 4, maybe more than [`Options::MAX`].
    pub fn len(&self) -> usize {
        let word = |there: bool| if there { 4 } else { 0 };
        let clock = if self.timestamps.is_some() { 12 } else { word(self.sack_permitted) };
        let cookie = |cookie: &Cookie| cookie.bytes().len() + if cookie.experimental { 4 } else { 2 };
        let cookie = self.fast_open.as_ref().map_or(0, |of| cookie(of).next_multiple_of(4));
        let rest =
            word(self.mss.is_some()) + word(self.window_scale.is_some()) + word(self.user_timeout.is_some());
        rest + clock + self.blocks_len() + cookie
    }

    /// Bytes of [`Options::sack`].
    fn blocks_len(&self) -> usize {
        if self.sack.is_empty() { 0 } else { 4 + 8 * self.sack.len() }
    }

    /// Whether there is nothing to be written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many blocks fit beside the other options.
    pub fn room_for_blocks(&self) -> usize {
        let others = self.len() - self.blocks_len();
        // Each has 8 bytes, all together 4.
        (Options::MAX.saturating_sub(others + 4) / 8).min(Blocks::MAX)
    }

    fn write(&self, out: &mut Writer<'_>) {
        if let Some(mss) = self.mss {
            let [a, b] = mss.to_be_bytes();
            out.put(&[kind::MSS, 4, a, b]);
        }
        let permitted = [kind::SACK_PERMITTED, 2];
        if let Some(Timestamps { value, echo }) = self.timestamps {
            out.put(if self.sack_permitted { &permitted } else { &[kind::NOP; 2] });
            out.put(&[kind::TIMESTAMPS, 10]);
            out.put(&value.to_be_bytes());
            out.put(&echo.to_be_bytes());
        } else if self.sack_permitted {
            out.put(&[kind::NOP; 2]);
            out.put(&permitted);
        }
        if let Some(shift) = self.window_scale {
            out.put(&[kind::NOP, kind::WINDOW_SCALE, 3, shift]);
        }
        if !self.sack.is_empty() {
            out.put(&[kind::NOP, kind::NOP, kind::SACK, 2 + 8 * self.sack.count]);
            for (from, until) in self.sack.iter() {
                out.put(&from.0.to_be_bytes());
                out.put(&until.0.to_be_bytes());
            }
        }
        if let Some(timeout) = self.user_timeout {
            let [a, b] = timeout.to_be_bytes();
            out.put(&[kind::USER_TIMEOUT, 4, a, b]);
        }
        if let Some(cookie) = self.fast_open {
            if cookie.experimental {
                out.put(&[kind::EXPERIMENT, 4 + cookie.len]);
                out.put(&FAST_OPEN_MAGIC);
            } else {
                out.put(&[kind::FAST_OPEN, 2 + cookie.len]);
            }
            out.put(cookie.bytes());
            while !out.at.is_multiple_of(4) {
                out.put(&[kind::NOP]);
            }
        }
    }
}

/// Writes as far as there is room, and counts.
struct Writer<'a> {
    room: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.room.get_mut(self.at..self.at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        self.at += bytes.len();
    }
}
