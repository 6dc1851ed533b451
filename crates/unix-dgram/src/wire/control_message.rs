//! What datagram sockets say to each other that is no datagram: in slips, which go with datagrams of the program's
//! ([`super::proof`]), and, to a receiver of many, among its datagrams, once there is something in a lane.
//!
//! All have the same length, so that a datagram of any other is known for one at once, and none of those that lie among
//! datagrams says anything without a nonce that only those have whom it is from and for: a datagram that looks like one of these is
//! one.

use onecopy_unix::handshake::upgrade::Nonce;

/// Bytes of each.
pub const CONTROL_LEN: usize = 64;
const MAGIC: [u8; 8] = *b"onecopy\x04";

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    /// Of two that are connected to each other: who this is, in a slip, with the other one's token.
    Proof {
        /// What only who reads the queue can know.
        secret: Nonce,
        /// Of the sender's end of the line.
        cookie: u64,
        /// How many there were, with this one.
        number: u32,
    },
    /// A sender has come to the rendezvous listener, and this is where it sends from: in a slip.
    Join {
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
    Switched { fan_in: Nonce, lane: Nonce },
    /// Something lies in some lane.
    Doorbell(Nonce),
    /// The same, said by the receiver itself.
    Token(Nonce),
}

impl ControlMessage {
    /// On the wire: magic and version, what it is, two nonces, two numbers (little-endian), zeroes.
    pub fn encode(&self) -> [u8; CONTROL_LEN] {
        let none = Nonce::default();
        let (what, one, other, cookie, inode) = match *self {
            ControlMessage::Join { hello, secret, cookie, inode } => (1u64, hello, secret, cookie, inode),
            ControlMessage::Switched { fan_in, lane } => (2, fan_in, lane, 0, 0),
            ControlMessage::Doorbell(fan_in) => (3, fan_in, none, 0, 0),
            ControlMessage::Token(fan_in) => (4, fan_in, none, 0, 0),
            ControlMessage::Proof { secret, cookie, number } => (5, secret, none, cookie, u64::from(number)),
        };
        let mut wire = [0; CONTROL_LEN];
        wire[..8].copy_from_slice(&MAGIC);
        wire[8..16].copy_from_slice(&what.to_le_bytes());
        wire[16..32].copy_from_slice(&one);
        wire[32..48].copy_from_slice(&other);
        wire[48..56].copy_from_slice(&cookie.to_le_bytes());
        wire[56..64].copy_from_slice(&inode.to_le_bytes());
        wire
    }

    /// What those bytes say, if they may be one of these.
    pub fn decode(wire: &[u8]) -> Option<ControlMessage> {
        let wire: &[u8; CONTROL_LEN] = wire.try_into().ok()?;
        if wire[..8] != MAGIC {
            return None;
        }
        let number = |at: usize| wire[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let (one, other): (Nonce, Nonce) = (wire[16..32].try_into().ok()?, wire[32..48].try_into().ok()?);
        match number(8)? {
            1 => Some(ControlMessage::Join {
                hello: one,
                secret: other,
                cookie: number(48)?,
                inode: number(56)?,
            }),
            2 => Some(ControlMessage::Switched { fan_in: one, lane: other }),
            3 => Some(ControlMessage::Doorbell(one)),
            4 => Some(ControlMessage::Token(one)),
            5 => Some(ControlMessage::Proof {
                secret: one,
                cookie: number(48)?,
                number: number(56)?.try_into().ok()?,
            }),
            _ => None,
        }
    }
}

/// What a receiver answers on the line, with the memfds of both rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What was in the join request.
    pub secret: Nonce,
    pub fan_in: Nonce,
    pub lane: Nonce,
    /// Bytes of data room of the ring to send into, and of the other one.
    pub capacity: u64,
    pub back: u64,
}

impl Answer {
    pub fn encode(&self) -> [u8; CONTROL_LEN] {
        let mut wire = [0; CONTROL_LEN];
        wire[..16].copy_from_slice(&self.secret);
        wire[16..32].copy_from_slice(&self.fan_in);
        wire[32..48].copy_from_slice(&self.lane);
        wire[48..56].copy_from_slice(&self.capacity.to_le_bytes());
        wire[56..64].copy_from_slice(&self.back.to_le_bytes());
        wire
    }

    pub fn decode(wire: &[u8]) -> Option<Answer> {
        let wire: &[u8; CONTROL_LEN] = wire.try_into().ok()?;
        let number = |at: usize| wire[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        Some(Answer {
            secret: wire[..16].try_into().ok()?,
            fan_in: wire[16..32].try_into().ok()?,
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
        let controls = [
            ControlMessage::Join { hello: one, secret: other, cookie: 7, inode: 9 },
            ControlMessage::Switched { fan_in: one, lane: other },
            ControlMessage::Doorbell(one),
            ControlMessage::Token(other),
            ControlMessage::Proof { secret: one, cookie: u64::MAX, number: 3 },
        ];
        for control in controls {
            assert_eq!(ControlMessage::decode(&control.encode()), Some(control));
            assert_eq!(ControlMessage::decode(&control.encode()[..63]), None);
        }
        assert_eq!(ControlMessage::decode(&[0; CONTROL_LEN]), None);
        assert_eq!(ControlMessage::decode(&[MAGIC; 8].concat()), None);
        let answer = Answer { secret: one, fan_in: other, lane: one, capacity: 1, back: 2 };
        assert_eq!(Answer::decode(&answer.encode()), Some(answer));
    }
}
