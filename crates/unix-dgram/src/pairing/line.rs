//! Rendezvous listeners, the lines to them, and the hellos that both sides exchange before they trust each
//! other.

use crate::wire::hello::Hello;
use crate::wire::{hello, proof};
use onecopy_ring::Ring;
use onecopy_sys::scm;
use onecopy_sys::unix_diag::Diag;
use onecopy_unix::Config;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io::IoSlice;

/// The version of this protocol: part of a rendezvous listener's name.
const VERSION: u32 = 4;

/// Returns the name of the rendezvous listener of the socket with that inode.
pub fn rendezvous_name(inode: u64) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("onecopy-dgram-{VERSION}-{inode:x}").as_bytes())
}

pub fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Whether the other end of `line` belongs to that user.
pub fn is_user(line: &OwnedFd, uid: u32) -> bool {
    sockopt::socket_peercred(line).is_ok_and(|cred| cred.uid.as_raw() == uid)
}

pub fn say(line: &OwnedFd, hello: &Hello) -> io::Result<()> {
    rustix::net::send(line, &hello.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
}

/// Says hello, and gives a ring to send into and a token to send with the proof.
pub fn give(line: &OwnedFd, hello: &Hello, memfd: &OwnedFd, token: &OwnedFd) -> io::Result<()> {
    let fds = [memfd.as_fd(), token.as_fd()];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    scm::send(line, &[IoSlice::new(&hello.encode())], &fds, None, flags).map(drop)
}

/// Takes the ring and the token that came with a hello.
pub fn given(hello: &Hello, fds: Vec<OwnedFd>, config: &Config) -> Option<(Ring, OwnedFd)> {
    let [memfd, token]: [OwnedFd; 2] = fds.try_into().ok()?;
    let capacity = usize::try_from(hello.capacity).ok()?;
    let fits = capacity <= config.max_ring.max(onecopy_ring::MIN_CAPACITY) && proof::may_be_token(&token);
    Ring::open(memfd, capacity).ok().filter(|_| fits).map(|ring| (ring, token))
}

/// Connects to a rendezvous listener. Returns None if that user has none there.
pub fn ask(rendezvous: &SocketAddrUnix, uid: u32) -> io::Result<Option<OwnedFd>> {
    let line = seqpacket()?;
    let there = rustix::net::connect(&line, rendezvous).is_ok();
    Ok(Some(line).filter(|line| there && is_user(line, uid)))
}

/// Returns the cookie of the socket that `line` is connected to. The kernel never gives that cookie to
/// another socket.
pub fn other_end(line: &OwnedFd) -> io::Result<u64> {
    let diag = Diag::open()?;
    let me = rustix::fs::fstat(line)?.st_ino;
    let other = diag.look(diag.look(me)?.peer.ok_or(Errno::NOTCONN)?);
    // It may be closed between the two looks.
    let known = other.map_err(|errno| if errno == Errno::NOENT { Errno::NOTCONN } else { errno })?;
    if known.peer == Some(me) { Ok(known.cookie) } else { Err(Errno::PROTO) }
}

/// Receives the next hello from a line, if it is there. The other side is not trusted yet, so nonsense only
/// ends the line. Returns EPIPE if the other side has gone.
pub fn hear(line: BorrowedFd<'_>) -> io::Result<Option<(Hello, Vec<OwnedFd>)>> {
    match hello::receive_hello(line) {
        Ok((Some(hello), fds)) => Ok(Some((hello, fds))),
        Ok((None, _)) => Err(Errno::PROTO),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno),
    }
}
