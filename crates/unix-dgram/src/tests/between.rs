//! Programs of the same user that stand between two sockets, and follow the protocol.

use crate::Datagram;
use crate::pairing::line::{give, say};
use crate::wire::hello::{Hello, receive_hello};
use crate::wire::proof;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::scm::{self, Space};
use onecopy_unix::failpoint;
use onecopy_unix::handshake::upgrade::new_ring;
use onecopy_unix::{Config, RecvFlags, SendFlags, SocketAddr};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::IoSliceMut;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixDatagram};
use std::sync::Arc;

const NOW: SendFlags = SendFlags::DONTWAIT;
const LOOK: RecvFlags = RecvFlags::DONTWAIT;

fn name(what: &str) -> String {
    format!("onecopy-between-{what}-{}", std::process::id())
}

fn abstract_(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(name(what)).unwrap()
}

fn rendezvous(of: impl AsFd) -> SocketAddrUnix {
    crate::pairing::line::rendezvous_name(rustix::fs::fstat(of).unwrap().st_ino).unwrap()
}

fn seqpacket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap()
}

fn squat(of: impl AsFd) -> OwnedFd {
    let squatter = seqpacket();
    rustix::net::bind(&squatter, &rendezvous(of)).unwrap();
    rustix::net::listen(&squatter, 4).unwrap();
    squatter
}

fn visitor(squatter: &OwnedFd) -> Option<OwnedFd> {
    rustix::net::accept_with(squatter, SocketFlags::NONBLOCK).ok()
}

fn hello(line: &OwnedFd) -> Option<(Hello, Vec<OwnedFd>)> {
    let (hello, fds) = receive_hello(line.as_fd()).ok()?;
    Some((hello?, fds))
}

/// A program squats the rendezvous listener of a plain peer, and answers as one of ours would. It gets
/// nothing of what is sent to that peer. The peer gets all of it and nothing else, except that two
/// descriptors come with some of it.
#[test]
fn who_sits_on_a_rendezvous_gets_nothing() {
    onecopy_testing::alone!();
    let address = |what: &str| net::SocketAddr::from_abstract_name(name(what)).unwrap();
    let ours = Datagram::bind(abstract_("squat-ours")).unwrap();
    let plain = UnixDatagram::bind_addr(&address("squat")).unwrap();
    let squatter = squat(&plain);
    ours.connect(abstract_("squat")).unwrap();
    plain.connect_addr(&address("squat-ours")).unwrap();
    let (ring, memfd) = new_ring(1 << 16, &Config::default()).unwrap();
    let (token, _) = proof::token().unwrap();
    let (mut line, mut answered, mut with, mut given) = (None, false, 0, false);
    for i in 0..2000u32 {
        ours.send_with_flags(&i.to_le_bytes(), NOW).unwrap();
        let mut buffer = [0; 99];
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let came = scm::recv(&plain, &mut [IoSliceMut::new(&mut buffer)], Space::All, flags).unwrap();
        assert_eq!((came.bytes, &buffer[..4]), (4, &i.to_le_bytes()[..]));
        with += usize::from(came.fds.len() == 2);
        line = line.or_else(|| visitor(&squatter));
        let Some(line) = &line else { continue };
        if !answered && hello(line).is_some() {
            let answer = Hello { nonce: [7; 16], capacity: ring.capacity() as u64, send_buffer: 0 };
            give(line, &answer, &memfd, &token).unwrap();
            answered = true;
        } else if answered {
            given |= hello(line).is_some_and(|(_, fds)| fds.len() == 2);
        }
    }
    assert!(answered && given, "the squatter was believed as far as it goes");
    assert!((1..=4).contains(&with), "{with}");
    assert!(!ours.path().is_shared_memory() && ours.socket().tx_ring().is_none());
    assert_eq!(ring.header().writer.0.head.load(Relaxed), 0);
}

/// Two sockets of ours, and a program between them that hands on what each says, with rings of its own.
#[test]
fn who_stands_between_two_gets_nothing() {
    onecopy_testing::alone!();
    let a = Datagram::bind(abstract_("relay-a")).unwrap();
    let b = Datagram::bind(abstract_("relay-b")).unwrap();
    let mut squatter = Some(squat(b.socket().fd()));
    a.connect(abstract_("relay-b")).unwrap();
    b.connect(abstract_("relay-a")).unwrap();
    let (ring, memfd) = new_ring(1 << 16, &Config::default()).unwrap();
    let (mut to_a, mut to_b, mut asked) = (None, None, None);
    let (mut one, mut two) = (false, false);
    let mut buffer = [0; 99];
    for i in 0..2000u32 {
        a.send_with_flags(&i.to_le_bytes(), NOW).unwrap();
        if let Some(squatter) = &squatter {
            to_a = to_a.or_else(|| visitor(squatter));
        }
        if let (Some(line), None) = (&to_a, &asked) {
            asked = hello(line).map(|(hello, _)| hello);
            // From now on b may listen there.
            squatter = None;
        }
        if squatter.is_none() {
            assert_eq!(b.recv_with_flags(&mut buffer, LOOK).unwrap(), 4);
            assert_eq!(buffer[..4], i.to_le_bytes());
        } else {
            let _ = rustix::net::recv(b.socket().fd(), &mut buffer[..], rustix::net::RecvFlags::DONTWAIT)
                .unwrap();
        }
        if let (Some(said), None) = (asked, &to_b) {
            let line = seqpacket();
            if rustix::net::connect(&line, &rendezvous(b.socket().fd())).is_ok() {
                rustix::net::send(&line, &said.encode(), rustix::net::SendFlags::NOSIGNAL).unwrap();
                to_b = Some(line);
            }
        }
        let (Some(to_a), Some(to_b)) = (&to_a, &to_b) else { continue };
        for (from, to, done) in [(to_b, to_a, &mut one), (to_a, to_b, &mut two)] {
            if let Some((said, fds)) = hello(from)
                && let [_, token] = &fds[..]
            {
                let said = Hello { capacity: ring.capacity() as u64, ..said };
                give(to, &said, &memfd, token).unwrap();
                *done = true;
            }
        }
    }
    assert!(one && two, "both believed who stood between, as far as it goes");
    for end in [a.socket(), b.socket()] {
        assert!(end.tx_ring().is_none() && end.rx_ring().is_none());
    }
    assert_eq!(b.stats().fallbacks, 1, "the sign came from somebody else's line");
    assert_eq!(ring.header().writer.0.head.load(Relaxed), 0);
}

/// A caller that says nothing is sent away, and the peer, which comes later, is not.
#[test]
fn a_silent_visitor_does_not_keep_the_peer_away() {
    onecopy_testing::alone!();
    let a = Datagram::bind(abstract_("silent-a")).unwrap();
    let b = Datagram::bind_with(abstract_("silent-b"), &Config::default()).unwrap();
    a.connect(abstract_("silent-b")).unwrap();
    b.connect(abstract_("silent-a")).unwrap();
    let mut silent = None;
    let mut buffer = [0; 99];
    for i in 0..4000u32 {
        a.send_with_flags(&i.to_le_bytes(), NOW).unwrap();
        if silent.is_none() {
            let line = seqpacket();
            if rustix::net::connect(&line, &rendezvous(a.socket().fd())).is_ok() {
                silent = Some(line);
            }
            rustix::net::recv(b.socket().fd(), &mut buffer[..], rustix::net::RecvFlags::DONTWAIT).unwrap();
        } else {
            assert_eq!(b.recv_with_flags(&mut buffer, LOOK).unwrap(), 4);
            let _ = b.send_with_flags(&buffer[..4], NOW).unwrap();
            assert_eq!(a.recv_with_flags(&mut buffer, LOOK).unwrap(), 4);
            assert_eq!(buffer[..4], i.to_le_bytes());
        }
    }
    assert!(silent.is_some() && a.path().is_shared_memory() && b.path().is_shared_memory());
}

/// Makes two sockets of ours that are connected to each other.
fn connected(what: &str) -> (Arc<Datagram>, Datagram) {
    let (one, other) = (abstract_(&format!("{what}-a")), abstract_(&format!("{what}-b")));
    let (a, b) = (Datagram::bind(&one).unwrap(), Datagram::bind(&other).unwrap());
    a.connect(&other).unwrap();
    b.connect(&one).unwrap();
    (Arc::new(a), b)
}

/// Looks often enough for everything that a socket does in its calls.
fn look(end: &Datagram) {
    (0..2000).for_each(|_| assert!(end.recv_with_flags(&mut [0], LOOK).is_err()));
}

/// Checks that both come to share memory, and that no datagram is lost or changes its place.
fn come_together(a: &Datagram, b: &Datagram) {
    for i in 0..2000u32 {
        for (from, to) in [(a, b), (b, a)] {
            from.send_with_flags(&i.to_le_bytes(), NOW).unwrap();
            let mut buffer = [0; 9];
            assert_eq!(to.recv_with_flags(&mut buffer, LOOK).unwrap(), 4);
            assert_eq!(buffer[..4], i.to_le_bytes());
        }
    }
    assert!(a.path().is_shared_memory() && b.path().is_shared_memory());
    assert_eq!((a.stats().fallbacks, b.stats().fallbacks), (0, 0));
}

/// A peer that has no CPU between connecting to the rendezvous listener and its hello is sent away, and comes
/// again.
#[test]
fn a_peer_that_is_sent_away_before_its_hello_comes_again() {
    onecopy_testing::alone!();
    let (a, b) = connected("slow");
    // From here on a listens.
    look(&a);
    let (came, there) = (Arc::new(()), a.clone());
    let mark = came.clone();
    failpoint::at("connected to a rendezvous", move || {
        look(&there);
        drop(mark);
    });
    come_together(&a, &b);
    assert_eq!(Arc::strong_count(&came), 1, "nobody was sent away");
}

/// Two sockets pair later if a squatter of the rendezvous listener goes away, with what it was told or
/// without having accepted.
#[test]
fn a_squatter_that_goes_leaves_the_two_to_each_other() {
    onecopy_testing::alone!();
    for listens in [false, true] {
        let (a, b) = connected(&format!("goes-{listens}"));
        let squatter = squat(b.socket().fd());
        look(&a);
        let line = visitor(&squatter).expect("it has asked");
        if listens {
            assert!(hello(&line).is_some());
        }
        drop((line, squatter));
        come_together(&a, &b);
    }
}

/// A caller that says hello and goes does not keep the peer away.
#[test]
fn a_visitor_that_goes_does_not_keep_the_peer_away() {
    onecopy_testing::alone!();
    let (a, b) = connected("visit");
    look(&a);
    let line = seqpacket();
    rustix::net::connect(&line, &rendezvous(a.socket().fd())).unwrap();
    say(&line, &Hello { nonce: [0; 16], capacity: 0, send_buffer: 0 }).unwrap();
    drop(line);
    look(&a);
    come_together(&a, &b);
}
