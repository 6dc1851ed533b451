//! What datagram sockets say to each other that is no datagram: in slips, which go with datagrams of the program's
//! ([`super::sign`]), and, to a receiver of many, among its datagrams, once there is something in a lane.
//!
//! All have the same length, so that a datagram of any other is known for one at once, and none of those that lie among
//! datagrams says anything without a nonce that only those have whom it is from and for: a datagram that looks like one of these is
//! one.

use onecopy_unix::internals::handshake::upgrade::Nonce;

/// Bytes of each.
pub const WORD: usize = 64;
const MAGIC: [u8; 8] = *b"onecopy\x04";

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Of two that are connected to each other: who this is, in a slip, with the other one's token.
    Sign {
        /// What only who reads the queue can know.
        secret: Nonce,
        /// Of the sender's end of the line.
        cookie: u64,
        /// How many there were, with this one.
        number: u32,
    },
    /// A sender has come to the beacon, and this is where it sends from: in a slip.
    Knock {
        /// What it has said there.
        hello: Nonce,
        /// What only who reads this queue can say to it.
        secret: Nonce,
        /// Of its end of that line.
        cookie: u64,
        /// Of the socket that sends it.
        inode: u64,
    },
    /// Of a sender: what follows lies in its lane, and this is its name now. Of the receiver itself: all that lay before this is
    /// received.
    Switched { crowd: Nonce, lane: Nonce },
    /// Something lies in some lane.
    Bell(Nonce),
    /// The same, said by the receiver itself.
    Token(Nonce),
}

impl Word {
    /// On the wire: magic and version, what it is, two nonces, two numbers (little-endian), zeroes.
    pub fn encode(&self) -> [u8; WORD] {
        let none = Nonce::default();
        let (what, one, other, cookie, inode) = match *self {
            Word::Knock { hello, secret, cookie, inode } => (1u64, hello, secret, cookie, inode),
            Word::Switched { crowd, lane } => (2, crowd, lane, 0, 0),
            Word::Bell(crowd) => (3, crowd, none, 0, 0),
            Word::Token(crowd) => (4, crowd, none, 0, 0),
            Word::Sign { secret, cookie, number } => (5, secret, none, cookie, u64::from(number)),
        };
        let mut wire = [0; WORD];
        wire[..8].copy_from_slice(&MAGIC);
        wire[8..16].copy_from_slice(&what.to_le_bytes());
        wire[16..32].copy_from_slice(&one);
        wire[32..48].copy_from_slice(&other);
        wire[48..56].copy_from_slice(&cookie.to_le_bytes());
        wire[56..64].copy_from_slice(&inode.to_le_bytes());
        wire
    }

    /// What those bytes say, if they may be one of these.
    pub fn decode(wire: &[u8]) -> Option<Word> {
        let wire: &[u8; WORD] = wire.try_into().ok()?;
        if wire[..8] != MAGIC {
            return None;
        }
        let number = |at: usize| wire[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let (one, other): (Nonce, Nonce) = (wire[16..32].try_into().ok()?, wire[32..48].try_into().ok()?);
        match number(8)? {
            1 => Some(Word::Knock { hello: one, secret: other, cookie: number(48)?, inode: number(56)? }),
            2 => Some(Word::Switched { crowd: one, lane: other }),
            3 => Some(Word::Bell(one)),
            4 => Some(Word::Token(one)),
            5 => Some(Word::Sign { secret: one, cookie: number(48)?, number: number(56)?.try_into().ok()? }),
            _ => None,
        }
    }
}

/// What a receiver answers on the line, with the memfds of both rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What was in the knock.
    pub secret: Nonce,
    pub crowd: Nonce,
    pub lane: Nonce,
    /// Bytes of data room of the ring to send into, and of the other one.
    pub capacity: u64,
    pub back: u64,
}

impl Answer {
    pub fn encode(&self) -> [u8; WORD] {
        let mut wire = [0; WORD];
        wire[..16].copy_from_slice(&self.secret);
        wire[16..32].copy_from_slice(&self.crowd);
        wire[32..48].copy_from_slice(&self.lane);
        wire[48..56].copy_from_slice(&self.capacity.to_le_bytes());
        wire[56..64].copy_from_slice(&self.back.to_le_bytes());
        wire
    }

    pub fn decode(wire: &[u8]) -> Option<Answer> {
        let wire: &[u8; WORD] = wire.try_into().ok()?;
        let number = |at: usize| wire[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        Some(Answer {
            secret: wire[..16].try_into().ok()?,
            crowd: wire[16..32].try_into().ok()?,
            lane: wire[32..48].try_into().ok()?,
            capacity: number(48)?,
            back: number(56)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_as_they_went_and_nothing_else_is_one() {
        let (one, other) = (*b"0123456789abcdef", *b"fedcba9876543210");
        let words = [
            Word::Knock { hello: one, secret: other, cookie: 7, inode: 9 },
            Word::Switched { crowd: one, lane: other },
            Word::Bell(one),
            Word::Token(other),
            Word::Sign { secret: one, cookie: u64::MAX, number: 3 },
        ];
        for word in words {
            assert_eq!(Word::decode(&word.encode()), Some(word));
            assert_eq!(Word::decode(&word.encode()[..63]), None);
        }
        assert_eq!(Word::decode(&[0; WORD]), None);
        assert_eq!(Word::decode(&[MAGIC; 8].concat()), None);
        let answer = Answer { secret: one, crowd: other, lane: one, capacity: 1, back: 2 };
        assert_eq!(Answer::decode(&answer.encode()), Some(answer));
    }
}
