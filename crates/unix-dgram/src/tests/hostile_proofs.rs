//! Programs of the same user that attach proofs which they made up, and peers that misbehave about where they
//! switch.

use crate::Datagram;
use crate::pairing::line::{give, rendezvous_name, say, seqpacket};
use crate::wire::control_message::ControlMessage;
use crate::wire::hello::{Hello, receive_hello};
use crate::wire::proof;
use onecopy_ring::Ring;
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release};
use onecopy_sys::scm;
use onecopy_unix::handshake::upgrade::{Nonce, new_ring};
use onecopy_unix::{Config, RecvFlags, SendFlags, SocketAddr};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;
use std::io::IoSlice;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixDatagram};

const LOOK: RecvFlags = RecvFlags::DONTWAIT;
const RAW: rustix::net::SendFlags = rustix::net::SendFlags::DONTWAIT;
const SECRET: Nonce = *b"nobody else know";

fn text(what: &str) -> String {
    format!("onecopy-signs-{what}-{}", std::process::id())
}

fn victim(what: &str) -> Datagram {
    Datagram::bind(SocketAddr::from_abstract_name(text(what)).unwrap()).unwrap()
}

fn plain(what: &str) -> UnixDatagram {
    UnixDatagram::bind_addr(&net::SocketAddr::from_abstract_name(text(what)).unwrap()).unwrap()
}

fn to(what: &str) -> net::SocketAddr {
    net::SocketAddr::from_abstract_name(text(what)).unwrap()
}

/// What a caller has that came to the victim's rendezvous listener, and was believed as far as that goes.
struct Come {
    line: OwnedFd,
    /// The victim's ring, and its token.
    ring: Ring,
    token: OwnedFd,
    /// Memory that the victim may come to send into.
    mine: Ring,
}

impl Come {
    /// Comes to a victim that is connected to a socket which is connected to it.
    fn to(victim: &Datagram) -> Come {
        let rendezvous = rendezvous_name(rustix::fs::fstat(victim.socket().fd()).unwrap().st_ino).unwrap();
        let line = seqpacket().unwrap();
        for look in 0.. {
            assert!(look < 5000, "it has no rendezvous");
            assert!(victim.recv_with_flags(&mut [0; 9], LOOK | RecvFlags::PEEK).map_or(true, |n| n < 9));
            if rustix::net::connect(&line, &rendezvous).is_ok() {
                break;
            }
        }
        say(&line, &Hello { nonce: [0; 16], capacity: 0, send_buffer: 0 }).unwrap();
        for _ in 0..5000 {
            let _ = victim.recv_with_flags(&mut [0; 9], LOOK | RecvFlags::PEEK);
            if let Ok((Some(hello), fds)) = receive_hello(line.as_fd()) {
                let [memfd, token]: [OwnedFd; 2] = fds.try_into().unwrap();
                let ring = Ring::open(memfd, hello.capacity as usize).unwrap();
                let (mine, memfd) = new_ring(1 << 16, &Config::default()).unwrap();
                let hello = Hello { nonce: [0; 16], capacity: mine.capacity() as u64, send_buffer: 0 };
                give(&line, &hello, &memfd, &proof::token().unwrap().0).unwrap();
                return Come { line, ring, token, mine };
            }
        }
        panic!("it does not answer");
    }

    fn proof(&self, number: u32) -> ControlMessage {
        ControlMessage::Proof { secret: SECRET, cookie: socket_cookie(&self.line).unwrap(), number }
    }

    /// Returns the number of the proof that the victim has believed.
    fn believed(&self) -> u32 {
        self.ring.header().info.0.joined.load(Acquire)
    }
}

fn send(from: &UnixDatagram, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    scm::send(from, &[IoSlice::new(bytes)], fds, None, RAW).unwrap();
}

/// Returns the bytes of the next datagram, and how many descriptors came with it.
fn next(victim: &Datagram) -> (usize, usize) {
    let (received, with, _) = victim.recv_fds_with_flags(&mut [0; 9], LOOK).unwrap();
    assert!(!with.truncated);
    (received.len, with.fds.len())
}

/// Connects a victim and a raw socket to each other.
fn met(what: &str) -> (Datagram, UnixDatagram) {
    let (ours, theirs) = (format!("{what}-ours"), format!("{what}-theirs"));
    let (victim, peer) = (victim(&ours), plain(&theirs));
    victim.connect(SocketAddr::from_abstract_name(text(&theirs)).unwrap()).unwrap();
    peer.connect_addr(&to(&ours)).unwrap();
    (victim, peer)
}

/// A program attached a slip before the victim was connected, and writes the right proof into it once it
/// knows that. It is not the victim's peer.
#[test]
fn what_was_queued_before_the_connection_is_no_sign_whatever_it_says_by_now() {
    onecopy_testing::alone!();
    let victim = victim("queued");
    let stranger = UnixDatagram::unbound().unwrap();
    stranger.connect_addr(&to("queued")).unwrap();
    let slip = proof::slip(&ControlMessage::Doorbell([0; 16])).unwrap();
    let (token, _) = proof::token().unwrap();
    for i in 1..4 {
        send(&stranger, &[7; 9][..i], &[slip.as_fd(), token.as_fd()]);
    }
    let honest = plain("queued-peer");
    honest.connect_addr(&to("queued")).unwrap();
    victim.connect(SocketAddr::from_abstract_name(text("queued-peer")).unwrap()).unwrap();
    let come = Come::to(&victim);
    let filled = rustix::io::pwrite(&slip, &come.proof(1).encode(), 0);
    assert_eq!(filled, Ok(64), "what is said in it can be said late");
    for i in 1..4 {
        assert_eq!(next(&victim), (i, 2), "it is the stranger's datagram, and all that came with it");
    }
    assert_eq!(come.believed(), 0);
    assert!(victim.socket().rx_ring().is_none() && victim.socket().lifeline().is_none());
}

/// A token of another connection, or none, makes no proof of what comes with it.
#[test]
fn a_token_is_for_one_connection() {
    onecopy_testing::alone!();
    let ((victim, peer), (other, _third)) = (met("replay"), met("replay-other"));
    let (come, elsewhere) = (Come::to(&victim), Come::to(&other));
    let slip = proof::slip(&come.proof(1)).unwrap();
    let made_up = proof::token().unwrap().0;
    let strangers = [elsewhere.token.as_fd(), made_up.as_fd(), come.line.as_fd(), slip.as_fd()];
    for token in strangers {
        send(&peer, b"x", &[slip.as_fd(), token]);
        assert_eq!(next(&victim), (1, 2));
        send(&peer, b"y", &[token, slip.as_fd()]);
        assert_eq!(next(&victim), (1, 2));
    }
    assert_eq!((come.believed(), victim.stats().fallbacks), (0, 0));
    // The right token is taken off, and what the program sends comes.
    send(&peer, b"z", &[peer.as_fd(), slip.as_fd(), come.token.as_fd()]);
    assert_eq!(next(&victim), (1, 1));
    assert_eq!(come.believed(), 1);
}

/// What comes with the right token may be anything.
#[test]
fn a_slip_that_is_none_is_closed_and_the_next_may_be_one() {
    onecopy_testing::alone!();
    let (victim, peer) = met("slips");
    let come = Come::to(&victim);
    let memfd = |bytes: &[u8], size: u64, seals| {
        let fd = rustix::fs::memfd_create("liar", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::io::pwrite(&fd, bytes, 0).unwrap();
        rustix::fs::ftruncate(&fd, size).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let (wire, all) = (come.proof(1).encode(), onecopy_sys::memfd::REQUIRED_SEALS);
    let (pipe, _keep) = rustix::pipe::pipe().unwrap();
    let wrong = [
        memfd(&wire, 64, SealFlags::empty()),
        memfd(&wire, 64, SealFlags::SHRINK | SealFlags::GROW),
        memfd(&wire, 1 << 40, all),
        memfd(&wire[..63], 63, all),
        memfd(&[0; 64], 64, all),
        memfd(&ControlMessage::Join { hello: SECRET, secret: SECRET, cookie: 1, inode: 1 }.encode(), 64, all),
        pipe,
        come.line.try_clone().unwrap(),
    ];
    for wrong in &wrong {
        send(&peer, b"x", &[wrong.as_fd(), come.token.as_fd()]);
        assert_eq!(next(&victim), (1, 0));
    }
    send(&peer, b"x", &[come.token.as_fd()]);
    assert_eq!(next(&victim), (1, 0));
    assert_eq!((come.believed(), victim.stats().protocol_errors), (0, 0));
    send(&peer, b"x", &[memfd(&wire, 64, all).as_fd(), come.token.as_fd()]);
    // A peek changes nothing.
    for flags in [LOOK | RecvFlags::PEEK, LOOK] {
        assert_eq!(come.believed(), 0);
        assert_eq!(victim.recv_fds_with_flags(&mut [0; 9], flags).unwrap().1.fds.len(), 0);
    }
    assert_eq!(come.believed(), 1);
}

/// A proof names another line than the one that the token went over: another program stands before this peer.
#[test]
fn a_sign_of_another_line_ends_it() {
    onecopy_testing::alone!();
    let (victim, peer) = met("line");
    let come = Come::to(&victim);
    let proof = ControlMessage::Proof { secret: SECRET, cookie: socket_cookie(&peer).unwrap(), number: 1 };
    for proof in [proof, come.proof(2)] {
        send(&peer, b"x", &[proof::slip(&proof).unwrap().as_fd(), come.token.as_fd()]);
        assert_eq!(next(&victim), (1, 0));
        assert_eq!((come.believed(), victim.stats().fallbacks), (0, 1));
    }
}

/// Datagrams are counted from the last proof on. What is behind the switch is no datagram, and a switch in
/// the past is misbehaviour.
#[test]
fn a_switch_is_where_the_last_sign_and_the_count_say() {
    onecopy_testing::alone!();
    for (at, lies) in [(3, false), (2, true), (1, true)] {
        let (victim, peer) = met(&format!("switch-{at}"));
        let come = Come::to(&victim);
        send(&peer, b"before", &[]);
        for (number, more) in [(1, 5), (7, 2)] {
            send(&peer, b"sign", &[proof::slip(&come.proof(number)).unwrap().as_fd(), come.token.as_fd()]);
            (0..more).for_each(|_| send(&peer, b"xyz", &[]));
            (0..1 + more + usize::from(number == 1)).for_each(|_| assert_eq!(next(&victim).1, 0));
            assert_eq!(come.believed(), number);
        }
        assert_eq!(
            victim.recv_with_flags(&mut [0; 9], LOOK).unwrap_err().raw_os_error(),
            Errno::AGAIN.raw_os_error()
        );
        let header = come.ring.header();
        header.writer.0.switch_at.store(at + 1, Release);
        // A doorbell, with nothing in the ring for it.
        send(&peer, b"b", &[]);
        header.writer.0.armed.store(onecopy_ring::doorbell::RUNG, Relaxed);
        let told = victim.recv_with_flags(&mut [0; 9], LOOK).unwrap_err().raw_os_error();
        let expected = if lies { Errno::PROTO } else { Errno::AGAIN };
        assert_eq!((told, victim.stats().protocol_errors), (expected.raw_os_error(), u64::from(lies)));
        assert_eq!(victim.socket().rx_ring().is_some(), !lies);
    }
}

/// A victim that sends believes a peer that knows the secret of its proof, and none that guesses.
#[test]
fn who_does_not_know_the_secret_gets_nothing() {
    onecopy_testing::alone!();
    let (victim, peer) = met("secret");
    let come = Come::to(&victim);
    (0..40).for_each(|_| assert!(victim.recv_with_flags(&mut [0; 9], LOOK).is_err()));
    assert!(victim.socket().pairing().is_some_and(|pairing| pairing.rides()));
    for number in 0..2000u32 {
        come.mine.header().info.0.joined.store(number % 5, Release);
        victim.send_with_flags(b"x", SendFlags::DONTWAIT).unwrap();
        assert_eq!(peer.recv(&mut [0; 9]).unwrap(), 1);
    }
    assert!(!victim.path().is_shared_memory() && victim.socket().lifeline().is_none());
}
