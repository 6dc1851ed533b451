//! The layouts of what one process tells another of a connection, and the checks of what it says. There are
//! two: the page in which a connection is passed on (`into_fds`), and the message of a token by which it is
//! shared (`share_fds`).
//!
//! Both processes run on this machine, so words have its byte order. Each layout has a number of its own in
//! its first word ([`PAGE`], [`TOKEN`]). The number changes with each change of any word. The state of the
//! two directions is in [`snapshot`](super::snapshot).

use crate::config::Records;
use crate::core::kind::Kind;
use crate::multiprocess::refusal::{invalid, wrong};
use onecopy_ring::page::PASS_WORDS;
use onecopy_socket::Result;

/// Marks a page in which a connection is passed on, and gives the version of its layout.
pub const PAGE: u64 = u64::from_le_bytes(*b"1cpyend\x04");
/// Marks the message of a token, and gives the version of its layout.
pub const TOKEN: u64 = u64::from_le_bytes(*b"1cpytkn\x02");

/// Indices of the words of [`onecopy_ring::page::PassPage`].
pub mod word {
    /// Which of the descriptors after the first two are present.
    pub const HAS: usize = 0;
    pub const KIND: usize = 1;
    pub const RECORDS: usize = 2;
    /// The control socket's cookie. The inodes and cookies of the other descriptors follow, in the order of
    /// these.
    pub const NAMES: usize = 3;
    /// Where the rings are in their memfds, and how large they are: two words for each ring.
    pub const PLACES: usize = 8;
    pub const KERNEL_SENT: usize = 12;
    pub const RESET: usize = 13;
    pub const SEND_SHUT: usize = 14;
    pub const RECV_SHUT: usize = 15;
    pub const PASSES: usize = 16;
    pub const ASKED: usize = 17;
    /// The channel came when the process that had the end could open no more descriptors.
    pub const LOST: usize = 18;
    /// The number of the outlet's channel, of all that were made.
    pub const MADE: usize = 19;
    /// The connection may still attach rings.
    pub const MAY_ATTACH: usize = 20;
}

/// Bits of [`word::HAS`], in the order of the descriptors.
mod has {
    /// The ring that this end receives from.
    pub const RX_RING: u64 = 1;
    /// The ring that it sends into.
    pub const TX_RING: u64 = 2;
    /// The channel's end that descriptors come from.
    pub const INLET: u64 = 4;
    /// The channel's end that descriptors go to.
    pub const OUTLET: u64 = 8;
    pub const ALL: u64 = 15;
}

/// Where a process that maps a ring finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAt {
    /// The inode of its memfd.
    pub inode: u64,
    /// Where it begins in the memfd, in bytes.
    pub place: u64,
    /// Bytes of data room.
    pub capacity: u64,
}

/// The state of a connection, except for that of its two directions. The cookies and inodes tell that the
/// descriptors belong together. They help against mistakes, not against a sender that means ill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionState {
    /// The kind of the socket.
    pub kind: Kind,
    /// How it keeps its records.
    pub records: Records,
    /// The control socket's cookie (SO_COOKIE).
    pub control: u64,
    /// The ring that it receives from.
    pub rx_ring: Option<RingAt>,
    /// The ring that it sends into.
    pub tx_ring: Option<RingAt>,
    /// The cookie of the channel's end that descriptors come from.
    pub inlet: Option<u64>,
    /// The cookie of the channel's end that descriptors go to.
    pub outlet: Option<u64>,
    /// Bytes or records that were sent over the kernel before the switch.
    pub kernel_sent: u64,
    /// The kernel reported ECONNRESET, and the program was not told yet.
    pub reset: bool,
    /// It was shut down for sending.
    pub send_shut: bool,
    /// It was shut down for receiving.
    pub recv_shut: bool,
    /// Which of SO_PASSCRED and SO_PASSPIDFD are on.
    pub passes: u32,
    /// How often the identity of senders was asked for.
    pub asked: u32,
    /// The channel came when the process that had the connection could open no more descriptors.
    pub channel_lost: bool,
    /// The number of the outlet's channel, of all that were made.
    pub channels_made: u32,
    /// It may still attach rings.
    pub may_attach: bool,
}

impl ConnectionState {
    /// Encodes the state as words.
    pub fn encode(&self) -> [u64; PASS_WORDS] {
        let mut words = [0; PASS_WORDS];
        words[word::KIND] = match self.kind {
            Kind::Stream => 1,
            Kind::SeqPacket => 2,
            Kind::Datagram => 3,
        };
        words[word::RECORDS] = match self.records {
            Records::Atomic => 1,
            Records::Stream => 2,
        };
        words[word::NAMES] = self.control;
        let names = [
            self.rx_ring.map(|ring| ring.inode),
            self.tx_ring.map(|ring| ring.inode),
            self.inlet,
            self.outlet,
        ];
        for (at, name) in names.into_iter().enumerate() {
            if let Some(name) = name {
                words[word::HAS] |= 1 << at;
                words[word::NAMES + 1 + at] = name;
            }
        }
        for (at, ring) in [self.rx_ring, self.tx_ring].into_iter().enumerate() {
            if let Some(ring) = ring {
                words[word::PLACES + 2 * at..][..2].copy_from_slice(&[ring.place, ring.capacity]);
            }
        }
        words[word::KERNEL_SENT] = self.kernel_sent;
        words[word::RESET] = self.reset.into();
        words[word::SEND_SHUT] = self.send_shut.into();
        words[word::RECV_SHUT] = self.recv_shut.into();
        words[word::PASSES] = self.passes.into();
        words[word::ASKED] = self.asked.into();
        words[word::LOST] = self.channel_lost.into();
        words[word::MADE] = self.channels_made.into();
        words[word::MAY_ATTACH] = self.may_attach.into();
        words
    }

    /// Checks that the words are about a socket of that `kind`.
    ///
    /// # Errors
    ///
    /// EINVAL if not.
    pub fn is_of(words: &[u64; PASS_WORDS], kind: Kind) -> Result<()> {
        match (words[word::KIND], kind) {
            (1, Kind::Stream) | (2, Kind::SeqPacket) => Ok(()),
            _ => Err(wrong("this is another kind of socket (stream, seqpacket)")),
        }
    }

    /// Decodes what another process says of a socket of that `kind`.
    ///
    /// # Errors
    ///
    /// EINVAL if the words are about another kind, or say what cannot be.
    pub fn decode(words: &[u64; PASS_WORDS], kind: Kind) -> Result<ConnectionState> {
        ConnectionState::is_of(words, kind)?;
        let has = words[word::HAS];
        if has & !has::ALL != 0 {
            return Err(too_many_or_few());
        }
        let records = match words[word::RECORDS] {
            1 => Records::Atomic,
            2 if kind == Kind::SeqPacket => Records::Stream,
            _ => return Err(invalid()),
        };
        let name =
            |bit: u64| (has & bit != 0).then(|| words[word::NAMES + 1 + bit.trailing_zeros() as usize]);
        let ring = |bit: u64| {
            let at = word::PLACES + 2 * bit.trailing_zeros() as usize;
            name(bit).map(|inode| RingAt { inode, place: words[at], capacity: words[at + 1] })
        };
        Ok(ConnectionState {
            kind,
            records,
            control: words[word::NAMES],
            rx_ring: ring(has::RX_RING),
            tx_ring: ring(has::TX_RING),
            inlet: name(has::INLET),
            outlet: name(has::OUTLET),
            kernel_sent: words[word::KERNEL_SENT],
            reset: words[word::RESET] != 0,
            send_shut: words[word::SEND_SHUT] != 0,
            recv_shut: words[word::RECV_SHUT] != 0,
            passes: words[word::PASSES] as u32,
            asked: words[word::ASKED] as u32,
            channel_lost: words[word::LOST] != 0,
            channels_made: words[word::MADE] as u32,
            may_attach: words[word::MAY_ATTACH] != 0,
        })
    }

    /// Returns how many descriptors go with it, besides the control socket and the page.
    pub fn descriptors(&self) -> usize {
        let rings = usize::from(self.rx_ring.is_some()) + usize::from(self.tx_ring.is_some());
        rings + usize::from(self.inlet.is_some()) + usize::from(self.outlet.is_some())
    }
}

/// Makes the error for a number of descriptors other than was said.
pub fn too_many_or_few() -> onecopy_socket::Error {
    wrong("too many descriptors, or too few; pass all that `into_fds` or `share_fds` gave")
}

/// The message of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The inode of the page's file.
    pub page: u64,
    /// The place among the members that is reserved.
    pub place: u64,
    /// The number of the guest for whom it is reserved.
    pub guest: u64,
    /// The state of the connection: an encoded [`ConnectionState`].
    pub state: [u64; PASS_WORDS],
}

/// Words before the state.
pub const BEFORE: usize = 4;
/// Bytes of the message.
pub const TOKEN_LEN: usize = (BEFORE + PASS_WORDS) * 8;

impl Token {
    /// Encodes the message: [`TOKEN`], then the fields in their order.
    pub fn encode(&self) -> Vec<u8> {
        let head = [TOKEN, self.page, self.place, self.guest];
        head.iter().chain(&self.state).flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Decodes a message. Returns `None` if it is no token of this version.
    pub fn decode(bytes: &[u8; TOKEN_LEN]) -> Option<Token> {
        let word = |i: usize| bytes[i * 8..][..8].try_into().map_or(0, u64::from_ne_bytes);
        let state = std::array::from_fn(|i| word(BEFORE + i));
        (word(0) == TOKEN).then(|| Token { page: word(1), place: word(2), guest: word(3), state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state(kind: Kind, stream: bool, numbers: [u64; 8], has: u8, flags: u8) -> ConnectionState {
        let [control, one, two, three, four, five, six, seven] = numbers;
        let ring = |bit: u8, inode| (has & bit != 0).then_some(RingAt { inode, place: six, capacity: seven });
        ConnectionState {
            kind,
            records: if stream && kind == Kind::SeqPacket { Records::Stream } else { Records::Atomic },
            control,
            rx_ring: ring(1, one),
            tx_ring: ring(2, two),
            inlet: (has & 4 != 0).then_some(three),
            outlet: (has & 8 != 0).then_some(four),
            kernel_sent: five,
            reset: flags & 1 != 0,
            send_shut: flags & 2 != 0,
            recv_shut: flags & 4 != 0,
            passes: one as u32,
            asked: two as u32,
            channel_lost: flags & 8 != 0,
            channels_made: three as u32,
            may_attach: flags & 16 != 0,
        }
    }

    proptest! {
        #[test]
        fn a_state_comes_back_as_it_went_and_is_of_its_kind_only(
            seqpacket: bool, stream: bool, numbers: [u64; 8], has: u8, flags: u8,
        ) {
            let (kind, other) = match seqpacket {
                true => (Kind::SeqPacket, Kind::Stream),
                false => (Kind::Stream, Kind::SeqPacket),
            };
            let state = state(kind, stream, numbers, has, flags);
            let words = state.encode();
            prop_assert_eq!(ConnectionState::decode(&words, kind).unwrap(), state.clone());
            prop_assert!(ConnectionState::decode(&words, other).is_err());
            let token = Token { page: numbers[0], place: numbers[1], guest: numbers[2], state: words };
            let bytes = token.encode();
            prop_assert_eq!(Token::decode(bytes.as_slice().try_into().unwrap()), Some(token));
        }

        #[test]
        fn what_anybody_says_is_a_state_or_refused(words: [u64; PASS_WORDS]) {
            let mut words = words;
            for kind in 0..4 {
                words[word::KIND] = kind;
                words[word::HAS] %= 32;
                words[word::RECORDS] %= 4;
                for of in [Kind::Stream, Kind::SeqPacket] {
                    if let Ok(state) = ConnectionState::decode(&words, of) {
                        prop_assert_eq!(ConnectionState::decode(&state.encode(), of).unwrap(), state);
                    }
                }
            }
        }
    }
}
