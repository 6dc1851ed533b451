//! How the two come together: by an upgrade, as client or server, or as two datagram sockets do.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use onecopy::unix::{self, Config, Datagram, Listener, Records, RecvFlags, SeqListener, SeqPacket, Stream};
use onecopy_conformance::impls::kernel::{Kernel, address};
use onecopy_conformance::impls::{Kind, Name, Socket as _};
use onecopy_conformance::liar::{Liar, Memory, Wishes};
use onecopy_conformance::tools::Dice;
use rustix::net::{
    AddressFamily, RecvFlags as Raw, SendFlags as RawSend, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::line::{HELLO_LEN, Hello, receive_hello};
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
    let (at, ours) = (Name::Abstract(name.clone().into_bytes()), unix::Name::abstract_(&name));
    let peer_kind = if which == 2 { Kind::Pieces } else { kind };
    if dice.one_in(2) {
        let mut wish = || [0, 4 << 10, 100_000, 1 << 20][(dice.roll() % 4) as usize];
        let wishes = Wishes { send_buffer: wish(), receive_buffer: wish(), max_ring: wish().max(64) };
        let call = || Liar::call_wishing(peer_kind, &at, wishes);
        if kind == Kind::Stream {
            let listener = Listener::bind_with(ours, &config)?;
            let liar = call()?;
            return Ok((Peer::new(liar), Socket::Bytes(listener.accept()?), which));
        }
        let listener = SeqListener::bind_with(ours, &config)?;
        let liar = call()?;
        Ok((Peer::new(liar), Socket::Records(listener.accept()?), which))
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
    let victim = Datagram::bind_with(unix::Name::abstract_(&ours), config)?;
    let socket = Kernel::open(Kind::Dgram)?;
    socket.bind(&Name::Abstract(theirs.clone().into_bytes()))?;
    victim.connect(unix::Name::abstract_(&theirs))?;
    rustix::net::connect(&socket.0, &address(&Name::Abstract(ours.into_bytes()))?)?;
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&dice.roll().to_le_bytes());
    Ok((Peer::new(of_grams(socket.0, nonce)), Socket::Grams(victim)))
}

/// What a sign says: who I am; and that what I send lies in the ring from here on.
const PRESENT: u64 = 1;
const SWITCHED: u64 = 2;

fn beacon(of: impl AsFd) -> io::Result<SocketAddrUnix> {
    let inode = rustix::fs::fstat(of)?.st_ino;
    Ok(SocketAddrUnix::new_abstract_name(format!("onecopy-dgram-3-{inode:x}").as_bytes())?)
}

fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Meets the victim over a line of its own, honestly mostly; returns the peer's end of that line, which is its life.
pub fn share(liar: &mut Liar, dice: &mut Dice, victim: &Socket, capacity: u64) -> io::Result<OwnedFd> {
    // Now and then something is wrong with what is said.
    let mut lies = |odds: u64| dice.one_in(odds);
    let listens = lies(2);
    let nudge = || {
        for _ in 0..20 {
            let _ = victim.recv(&mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        }
    };
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    let nonce = liar.nonce;
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
    let line = line.ok_or_else(late)?;
    let hello = |nonce, capacity| Hello { nonce, capacity, send_buffer: 0 };
    if !listens {
        rustix::net::send(&line, &hello(nonce, 0).encode(), RawSend::NOSIGNAL)?;
        nudge();
    }
    // Its hello, which has its nonce; where it asked, its ring comes later.
    let mut first = [0; HELLO_LEN];
    let flags = if listens { Raw::DONTWAIT } else { Raw::DONTWAIT | Raw::PEEK };
    rustix::net::recv(&line, &mut first[..], flags)?;
    let said: [u8; 16] = first[8..24].try_into().unwrap_or_default();
    let mut channel = of_grams(line, said);
    let memory = if lies(40) { Memory::unsealed(capacity)? } else { Memory::honest(capacity)? };
    let announced = if lies(40) { capacity + 64 } else { capacity };
    let give = |channel: &Liar| channel.send_with(&hello(nonce, announced).encode(), &[memory.file.as_fd()]);
    if listens {
        give(&channel)?;
        nudge();
        receive_hello(&mut channel)?;
    } else {
        receive_hello(&mut channel)?;
        give(&channel)?;
    }
    let cookie = if lies(40) { 1 } else { sockopt::socket_cookie(&channel.fd)? };
    let to = if lies(40) { nonce } else { said };
    for what in [PRESENT, SWITCHED] {
        // Who was asked says at once that it has switched.
        if what == SWITCHED || !listens {
            let sign = Hello { nonce: to, capacity: cookie, send_buffer: what };
            rustix::net::send(&liar.fd, &sign.encode(), RawSend::DONTWAIT | RawSend::NOSIGNAL)?;
            nudge();
        }
    }
    liar.theirs = channel.theirs.take();
    liar.mine = Some(memory);
    Ok(channel.fd)
}

/// One that has nothing yet but a datagram socket, or the line of one.
pub fn of_grams(fd: OwnedFd, nonce: [u8; 16]) -> Liar {
    Liar { records: true, patience: Duration::from_millis(3), ..Liar::over(fd, nonce, true) }
}
