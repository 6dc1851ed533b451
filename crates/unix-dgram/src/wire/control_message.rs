//! The control messages of datagram sockets. Proofs and join requests go in slips, with datagrams of the
//! program ([`super::proof`]). The others are messages in the queue of a fan-in receiver, among its
//! datagrams, once there is something in a lane.
//!
//! All have the same length, so a message of any other length is known for a datagram at once. A control
//! message among datagrams takes effect only with a nonce that only its sender and its receiver have. So a
//! message with the right nonce is a control message, and one without it is a datagram.

use onecopy_unix::handshake::upgrade::Nonce;

/// The length of each, in bytes.
pub const CONTROL_LEN: usize = 64;
const MAGIC: [u8; 8] = *b"onecopy\x04";

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    /// Says which line is the sender's, between two sockets that are connected to each other. Goes in a slip,
    /// with the other side's token.
    Proof {
        /// Known only to a process that reads the queue.
        secret: Nonce,
        /// The cookie of the sender's end of the line.
        cookie: u64,
        /// The number of proofs sent, including this one.
        number: u32,
    },
    /// Says that a sender has come to the rendezvous listener, and which socket it sends from. Goes in a
    /// slip.
    Join {
        /// The nonce of its hello there.
        hello: Nonce,
        /// Known only to a process that reads this queue.
        secret: Nonce,
        /// The cookie of its end of that line.
        cookie: u64,
        /// The inode of the socket that sends it.
        inode: u64,
    },
    /// From a sender: what follows is in its lane, and the name that this message comes from is its name now.
    /// From the receiver itself: everything that was in the queue before this is received.
    Switched { fan_in: Nonce, lane: Nonce },
    /// Something is in some lane.
    Doorbell(Nonce),
    /// The same, from the receiver itself.
    Token(Nonce),
}

impl ControlMessage {
    /// Returns the bytes on the wire: magic and version, the kind of message, two nonces, two numbers
    /// (little-endian). A field that a kind does not use is zero.
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

    /// Returns the control message in those bytes, if they may be one.
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

/// A receiver's answer on the line, which comes with the memfds of both rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The secret of the join request.
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
