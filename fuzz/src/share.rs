//! How two datagram sockets come to share memory: over a line, with a ring, a token and a slip each, all of which may lie.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use onecopy::{RecvFlags, SendFlags};
use onecopy_conformance::liar::{Field, Liar, Memory, SEALS};
use onecopy_conformance::tools::Dice;
use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags as Raw, SendFlags as RawSend,
    SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::Socket;
use crate::values::value;

/// The first bytes of what two datagram sockets say to each other, and how much of it there is.
const MAGIC: [u8; 8] = *b"onecopy\x04";
const SAID: usize = 64;
/// What a slip is that says who is at the other end of the line.
const SIGN: u64 = 5;
/// Where a receiver writes what the sign has said, and which sign that was.
const SECRET: u64 = 288;
const JOINED: u64 = 304;

fn beacon(of: impl AsFd) -> io::Result<SocketAddrUnix> {
    let inode = rustix::fs::fstat(of)?.st_ino;
    Ok(SocketAddrUnix::new_abstract_name(format!("onecopy-dgram-4-{inode:x}").as_bytes())?)
}

fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn hello(capacity: u64) -> [u8; SAID] {
    let mut wire = [0; SAID];
    wire[..8].copy_from_slice(&MAGIC);
    wire[24..32].copy_from_slice(&capacity.to_le_bytes());
    wire
}

/// Memory that says who this is.
fn slip(secret: [u8; 16], cookie: u64, number: u64, seals: bool) -> io::Result<File> {
    let mut wire = [0; SAID];
    wire[..8].copy_from_slice(&MAGIC);
    wire[8..16].copy_from_slice(&SIGN.to_le_bytes());
    wire[16..32].copy_from_slice(&secret);
    wire[48..56].copy_from_slice(&cookie.to_le_bytes());
    wire[56..64].copy_from_slice(&number.to_le_bytes());
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("onecopy-liar", flags)?;
    rustix::io::pwrite(&fd, &wire, 0)?;
    if seals {
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    }
    Ok(File::from(fd))
}

/// The next message, and the descriptors that came with it.
fn take(from: &OwnedFd, wire: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = Raw::DONTWAIT | Raw::CMSG_CLOEXEC;
    let came = rustix::net::recvmsg(from, &mut [IoSliceMut::new(wire)], &mut control, flags)?;
    let fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    });
    Ok((came.bytes, fds.collect()))
}

/// Meets the victim over a line of its own, honestly mostly; returns the peer's end of that line, which is its life.
pub fn share(liar: &mut Liar, dice: &mut Dice, victim: &Socket, capacity: u64) -> io::Result<OwnedFd> {
    // Now and then something is wrong with what is said.
    let mut lies = |odds: u64| dice.one_in(odds);
    let listens = lies(2);
    let nudge = || {
        for _ in 0..20 {
            let _ = victim.recv_with_flags(&mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        }
    };
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    let mut line = None;
    if listens {
        let listener = seqpacket()?;
        rustix::net::bind(&listener, &beacon(&liar.fd)?)?;
        rustix::net::listen(&listener, 4)?;
        for _ in 0..50 {
            nudge();
            line = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok();
            if line.is_some() {
                break;
            }
        }
    } else {
        let there = beacon(victim)?;
        for _ in 0..50 {
            nudge();
            let mine = seqpacket()?;
            if rustix::net::connect(&mine, &there).is_ok() {
                line = Some(mine);
                break;
            }
        }
    }
    let channel = of_grams(line.ok_or_else(late)?, liar.nonce);
    let memory = if lies(40) { Memory::unsealed(capacity)? } else { Memory::honest(capacity)? };
    let announced = if lies(40) { capacity + 64 } else { capacity };
    let mine = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let given = [memory.file.as_fd(), if lies(40) { liar.fd.as_fd() } else { mine.as_fd() }];
    let mut give =
        || channel.send_with(&hello(announced), if dice.one_in(40) { &given[..1] } else { &given });
    let mut wire = [0; SAID];
    if listens {
        // Its hello, and then what it gives.
        rustix::net::recv(&channel.fd, &mut wire[..], Raw::DONTWAIT)?;
        give()?;
        nudge();
    } else {
        rustix::net::send(&channel.fd, &hello(0), RawSend::NOSIGNAL)?;
        nudge();
    }
    let (_, fds) = take(&channel.fd, &mut wire)?;
    let theirs = wire[24..32].try_into().map(u64::from_le_bytes).unwrap_or_default();
    let [ring, token]: [OwnedFd; 2] = fds.try_into().map_err(|_| late())?;
    if !listens {
        give()?;
        nudge();
    }
    let mut lies = |odds: u64| dice.one_in(odds);
    let cookie = if lies(40) { 1 } else { sockopt::socket_cookie(&channel.fd)? };
    let number = if lies(40) { u64::from(u32::MAX) + 1 } else { 1 };
    let slip = slip([7; 16], cookie, number, !lies(40))?;
    let sign = [slip.as_fd(), if lies(40) { mine.as_fd() } else { token.as_fd() }];
    // Each direction goes by itself.
    let into = Memory { file: File::from(ring), at: 0, capacity: theirs };
    for _ in 0..=usize::from(lies(4)) {
        liar.send_with(b"k", if lies(40) { &sign[1..] } else { &sign })?;
        let _ = victim.recv_with_flags(&mut [0], RecvFlags::DONTWAIT);
    }
    into.set(Field::SwitchAt, if lies(40) { value(dice, 2, 2) } else { 2 })?;
    let _ = victim.send_with_flags(b"k", SendFlags::DONTWAIT);
    let (_, fds) = take(&liar.fd, &mut wire)?;
    if let [slip, back] = &fds[..]
        && sockopt::socket_cookie(back) == sockopt::socket_cookie(&mine)
    {
        rustix::io::pread(slip, &mut wire, 0)?;
        let number = if dice.one_in(40) { 2u32 } else { 1 };
        memory.file.write_all_at(&wire[16..32], SECRET)?;
        memory.file.write_all_at(&number.to_le_bytes(), JOINED)?;
    }
    let _ = victim.send_with_flags(b"k", SendFlags::DONTWAIT);
    liar.theirs = Some(into);
    liar.mine = Some(memory);
    Ok(channel.fd)
}

/// One that has nothing yet but a datagram socket, or the line of one.
pub fn of_grams(fd: OwnedFd, nonce: [u8; 16]) -> Liar {
    Liar { records: true, patience: Duration::from_millis(3), ..Liar::over(fd, nonce, true) }
}
