//! What travels with datagrams of the program until two sockets share memory, since nothing of ours may be a
//! datagram of its own.
//!
//! A *slip* is a control message ([`ControlMessage`]) in a small sealed memfd. It goes as a descriptor behind
//! those of the program, and the receiver takes it off. Its maker may write to a slip at any time, even when
//! it is in a queue already, so a slip proves nothing about when it was sent. A *token* does: it is a socket
//! that the receiver has made and given away. The receiver knows it by its cookie (SO_COOKIE), which the
//! kernel never gives to another socket. What comes with a token was sent after the token was made.

use crate::wire::control_message::{CONTROL_LEN, ControlMessage};
use onecopy_sys::memfd;
use onecopy_unix::ancillary::channel::Fds;
use onecopy_unix::core::kind::Kind;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::sockopt;

/// The most proofs and join requests that are sent. Some may be lost at a receiver without room for
/// descriptors.
const TRIES: u32 = 4;

/// Whether another one is to be sent, after so many of them and so many datagrams since the last.
pub fn is_due(sent: u32, since: u64) -> bool {
    sent == 0 || (sent < TRIES && since >= 1 << (4 * sent))
}

/// Makes a descriptor that holds `control`.
///
/// # Errors
///
/// What memfd_create(2) and pwrite(2) return.
pub fn slip(control: &ControlMessage) -> io::Result<OwnedFd> {
    let fd = memfd::create("onecopy-slip", CONTROL_LEN)?;
    if rustix::io::pwrite(&fd, &control.encode(), 0)? == CONTROL_LEN { Ok(fd) } else { Err(Errno::IO) }
}

/// Reads the control message in a descriptor, if it is a slip. Anybody may have made it, so it is read only
/// if reading can neither block nor fault.
pub fn read(fd: impl AsFd) -> Option<ControlMessage> {
    memfd::verify(&fd, CONTROL_LEN).ok()?;
    let mut wire = [0; CONTROL_LEN];
    if rustix::io::pread(&fd, &mut wire, 0).ok()? != CONTROL_LEN {
        return None;
    }
    ControlMessage::decode(&wire)
}

/// Makes a token, and returns its cookie with it.
///
/// # Errors
///
/// What socket(2) returns.
pub fn token() -> io::Result<(OwnedFd, u64)> {
    let token = Kind::Datagram.socket().map_err(|_| Errno::MFILE)?;
    let cookie = sockopt::socket_cookie(&token)?;
    Ok((token, cookie))
}

pub fn is_token(fd: impl AsFd, cookie: u64) -> bool {
    sockopt::socket_cookie(fd) == Ok(cookie)
}

/// Whether it may be somebody's token. This keeps a socket from being made to send anything worse on.
pub fn may_be_token(fd: impl AsFd) -> bool {
    let unix = sockopt::socket_domain(&fd) == Ok(rustix::net::AddressFamily::UNIX);
    unix && sockopt::socket_type(&fd) == Ok(rustix::net::SocketType::DGRAM)
}

impl ControlMessage {
    /// Takes the control message out of the descriptors that came with a datagram. That is a proof with the
    /// `token` of this socket, or a join request if `joins`.
    pub fn take_from(fds: &mut Fds, token: u64, joins: bool) -> Option<ControlMessage> {
        let last = fds.list.last()?;
        if token != 0 && is_token(last, token) {
            fds.list.pop();
            return fds
                .list
                .pop()
                .and_then(read)
                .filter(|control| matches!(control, ControlMessage::Proof { .. }));
        }
        // If there was room for only half of a proof, the other half is nobody's.
        let halved = token != 0 && fds.truncated;
        if !joins && !halved {
            return None;
        }
        let control = read(last)?;
        match control {
            ControlMessage::Join { .. } if joins => {
                fds.list.pop();
                Some(control)
            }
            ControlMessage::Proof { .. } if halved => {
                fds.list.pop();
                None
            }
            _ => None,
        }
    }
}
