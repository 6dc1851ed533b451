//! What travels with datagrams of the program's until two sockets share memory: nothing of ours is a datagram of its own.
//!
//! A *slip* is a control message ([`ControlMessage`]) in a small sealed memfd. It goes as a descriptor behind those of the program, and who
//! receives takes it off. What a slip says its maker may write as late as he likes, also when it lies in a queue already: so it
//! proves nothing of when it was sent. A *token* does: a socket that the receiver has made and given away, and knows again by its
//! cookie (SO_COOKIE), which the kernel gives to no other one, ever. What comes with it was sent after it was made.

use crate::wire::control_message::{CONTROL_LEN, ControlMessage};
use onecopy_sys::memfd;
use onecopy_unix::ancillary::channel::Fds;
use onecopy_unix::connection::kind::Kind;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::sockopt;

/// Proofs and join requests that are sent at most, of which some may be lost with who has no room for descriptors.
const TRIES: u32 = 4;

/// Whether another one is to go, where so many were sent, and so many datagrams since the last.
pub fn is_due(sent: u32, since: u64) -> bool {
    sent == 0 || (sent < TRIES && since >= 1 << (4 * sent))
}

/// A descriptor that says `control message`.
///
/// # Errors
///
/// What memfd_create(2) and pwrite(2) say.
pub fn slip(control: &ControlMessage) -> io::Result<OwnedFd> {
    let fd = memfd::create("onecopy-slip", CONTROL_LEN)?;
    if rustix::io::pwrite(&fd, &control.encode(), 0)? == CONTROL_LEN { Ok(fd) } else { Err(Errno::IO) }
}

/// What a descriptor says, if it is a slip. Whoever made it: it is read from only where that can neither block nor fault.
pub fn read(fd: impl AsFd) -> Option<ControlMessage> {
    memfd::verify(&fd, CONTROL_LEN).ok()?;
    let mut wire = [0; CONTROL_LEN];
    if rustix::io::pread(&fd, &mut wire, 0).ok()? != CONTROL_LEN {
        return None;
    }
    ControlMessage::decode(&wire)
}

/// Something that nobody else has made, and how it is known again.
///
/// # Errors
///
/// What socket(2) says.
pub fn token() -> io::Result<(OwnedFd, u64)> {
    let token = Kind::Datagram.socket().map_err(|_| Errno::MFILE)?;
    let cookie = sockopt::socket_cookie(&token)?;
    Ok((token, cookie))
}

pub fn is_token(fd: impl AsFd, cookie: u64) -> bool {
    sockopt::socket_cookie(fd) == Ok(cookie)
}

/// Whether it may be somebody's token, and is nothing worse to be made to send on.
pub fn may_be_token(fd: impl AsFd) -> bool {
    let unix = sockopt::socket_domain(&fd) == Ok(rustix::net::AddressFamily::UNIX);
    unix && sockopt::socket_type(&fd) == Ok(rustix::net::SocketType::DGRAM)
}

impl ControlMessage {
    /// Takes what is not the program's out of what came with a datagram: with the `token` of this socket, or from who wants a
    /// lane where there are some.
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
        // (Where there was room for half of a proof only, the other half is nobody's.)
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
