//! How the two come together: by an upgrade, as client or server, or as two datagram sockets do.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use onecopy::unix::{self, Config, Datagram, Listener, Records, SeqListener, SeqPacket, Stream};
use onecopy::{RecvFlags, SendFlags};
use onecopy_conformance::impls::kernel::{Kernel, address};
use onecopy_conformance::impls::{Kind, Name, Socket as _};
use onecopy_conformance::liar::{Field, Liar, Memory, SEALS, Wishes};
use onecopy_conformance::tools::Dice;
use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags as Raw, SendFlags as RawSend,
    SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::peer::value;
use crate::{Peer, Socket, pairs};

/// Two that are connected, of whatever kind, and of which (as [`crate::Tally::kinds`] has them).
///
/// # Errors
///
/// The sockets'.
pub fn meet(dice: &mut Dice) -> io::Result<(Peer, Socket, usize)> {
    let name = format!("onecopy-fuzz-{}-{:x}", std::process::id(), dice.roll());
    let sizes = [None, Some(4 << 10), Some(50_001), Some(1 << 20)];
    let config = Config {
        receive_buffer: sizes[(dice.roll() % 4) as usize],
        send_buffer: sizes[(dice.roll() % 4) as usize],
        max_ring: if dice.one_in(10) { 64 << 10 } else { 1 << 24 },
        records: if dice.one_in(2) { Records::Stream } else { Records::Atomic },
        pass_credentials: dice.one_in(5),
        ..Config::default()
    };
    let kind = [Kind::SeqPacket, Kind::Stream, Kind::Dgram, Kind::Dgram][(dice.roll() % 4) as usize];
    if kind == Kind::Dgram {
        if dice.one_in(2) && pairs::can_be_taken_apart() {
            let (peer, socket) = pairs::pair(dice, &config)?;
            return Ok((peer, socket, 4));
        }
        let (peer, socket) = connect(dice, &name, &config)?;
        return Ok((peer, socket, 3));
    }
    let which = match (kind, config.records) {
        (Kind::SeqPacket, Records::Stream) => 2,
        (Kind::SeqPacket, _) => 1,
        _ => 0,
    };
    let (at, ours) =
        (Name::Abstract(name.clone().into_bytes()), unix::SocketAddr::from_abstract_name(&name)?);
    let peer_kind = if which == 2 { Kind::Pieces } else { kind };
    if dice.one_in(2) {
        let mut wish = || [0, 4 << 10, 100_000, 1 << 20][(dice.roll() % 4) as usize];
        let wishes = Wishes { send_buffer: wish(), receive_buffer: wish(), max_ring: wish().max(64) };
        let call = || Liar::call_wishing(peer_kind, &at, wishes);
        if kind == Kind::Stream {
            let listener = Listener::bind_with(ours, &config)?;
            let liar = call()?;
            return Ok((Peer::new(liar), Socket::Bytes(listener.accept()?.0), which));
        }
        let listener = SeqListener::bind_with(ours, &config)?;
        let liar = call()?;
        Ok((Peer::new(liar), Socket::Records(listener.accept()?.0), which))
    } else {
        let server = Liar::listen(peer_kind, &at)?;
        // (Nobody keeps stream records with a listener that is not known to.)
        let rendezvous = match which == 2 || dice.one_in(2) {
            true => Some(Liar::rendezvous(peer_kind, &at)?),
            false => None,
        };
        let socket = match kind {
            Kind::Stream => Socket::Bytes(Stream::connect_with(ours, &config)?),
            _ => Socket::Records(SeqPacket::connect_with(ours, &config)?),
        };
        Ok((Peer::known_by(rendezvous, Liar::accept(&server)?), socket, which))
    }
}

/// Two datagram sockets, connected to each other by their names.
fn connect(dice: &mut Dice, name: &str, config: &Config) -> io::Result<(Peer, Socket)> {
    let (ours, theirs) = (format!("{name}-o"), format!("{name}-t"));
    let victim = Datagram::bind_with(unix::SocketAddr::from_abstract_name(&ours)?, config)?;
    let socket = Kernel::open(Kind::Dgram)?;
    socket.bind(&Name::Abstract(theirs.clone().into_bytes()))?;
    victim.connect(unix::SocketAddr::from_abstract_name(&theirs)?)?;
    rustix::net::connect(&socket.0, &address(&Name::Abstract(ours.into_bytes()))?)?;
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&dice.roll().to_le_bytes());
    Ok((Peer::new(of_grams(socket.0, nonce)), Socket::Grams(victim)))
}

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
