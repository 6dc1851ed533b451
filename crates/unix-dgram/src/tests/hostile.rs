//! A peer that misbehaves on a datagram socket causes EPROTO on that socket, a count, and nothing else.

use crate::Datagram;
use onecopy_ring::Header;
use onecopy_sync::atomic::Ordering::{Relaxed, Release};
use onecopy_unix::{RecvFlags, SendFlags};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::BTreeSet;

const NOW: SendFlags = SendFlags::DONTWAIT;
const LOOK: RecvFlags = RecvFlags::DONTWAIT;

/// Returns the header that the liar shares with its victim, of the ring that the victim receives from.
fn into_victim(liar: &Datagram) -> &Header {
    liar.socket().tx_ring().expect("a pair shares memory").header()
}

/// Returns the header of the ring that the victim sends into.
fn from_victim(liar: &Datagram) -> &Header {
    liar.socket().rx_ring().expect("a pair shares memory").header()
}

fn raw(liar: &Datagram, bytes: &[u8]) {
    rustix::net::send(liar.socket().fd(), bytes, rustix::net::SendFlags::DONTWAIT).unwrap();
}

/// Lets the liar misbehave, then has the victim do all its calls. An honest pair goes on beside it.
fn caught(what: &str, misbehaved: impl Fn(&Datagram)) {
    let (honest, other) = Datagram::pair().unwrap();
    let (liar, victim) = Datagram::pair().unwrap();
    // A socket that is polled looks at the kernel's queue.
    let _: BorrowedFd<'_> = victim.as_fd();
    liar.send_with_flags(b"before", NOW).unwrap();
    assert_eq!(victim.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 6);
    misbehaved(&liar);
    let mut told = BTreeSet::new();
    for _ in 0..200 {
        for error in [
            victim.send_with_flags(&[7; 2000], NOW).err(),
            victim.recv_with_flags(&mut [0; 100], LOOK | RecvFlags::PEEK).err(),
            victim.recv_from_with_flags(&mut [0; 100], LOOK).err(),
            victim.readable_bytes().err(),
        ]
        .into_iter()
        .flatten()
        {
            told.insert(error.raw_os_error());
        }
    }
    assert!(told.contains(&Errno::PROTO.raw_os_error()), "{what}: {told:?}");
    assert!(victim.stats().protocol_errors >= 1, "{what}");
    honest.send_with_flags(b"as ever", NOW).unwrap();
    assert_eq!(other.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 7);
    drop((liar, victim));
}

#[test]
fn every_lie_in_shared_memory_is_caught() {
    onecopy_testing::alone!();
    for head in [u64::MAX, 1 << 63, 1 << 40] {
        caught("head", |liar| into_victim(liar).writer.0.head.store(head, Release));
    }
    caught("head back", |liar| into_victim(liar).writer.0.head.store(0, Release));
    for tail in [u64::MAX, 1 << 40] {
        caught("tail", |liar| {
            from_victim(liar).reader.0.tail.store(tail, Release);
            // Noticed only when it is looked at, which is when the victim has filled the ring.
        });
    }
    for len in [u64::MAX, 1 << 33, 1 << 31, 257, 0xffff_ffff] {
        caught("frame", |liar| {
            let ring = liar.socket().tx_ring().unwrap();
            let head = ring.header().writer.0.head.load(Relaxed);
            ring.set_word(head as usize % ring.capacity(), len);
            ring.header().writer.0.head.store(head + 64, Release);
        });
    }
    caught("a frame of no end", |liar| {
        let ring = liar.socket().tx_ring().unwrap();
        let head = ring.header().writer.0.head.load(Relaxed);
        ring.set_word(head as usize % ring.capacity(), 8);
        ring.header().writer.0.head.store(head + 16, Release);
    });
}

/// Publishes an empty frame which says that so many descriptors, and the sender's credentials, are in the
/// line.
fn announce(liar: &Datagram, fds: u64, said: u64) {
    let ring = liar.socket().tx_ring().unwrap();
    let head = ring.header().writer.0.head.load(Relaxed);
    ring.set_word(head as usize % ring.capacity(), 1 << 32 | fds << 40 | said << 48);
    let size = onecopy_ring::record::least_with(ring.capacity()) as u64;
    ring.header().writer.0.head.store(head + size, Release);
}

/// Returns the number of the message that belongs to the next announcement.
fn next(liar: &Datagram) -> [u8; 8] {
    liar.socket().tx_ring().unwrap().header().writer.0.head.load(Relaxed).to_le_bytes()
}

fn into_line(liar: &Datagram, bytes: &[u8], count: usize) {
    let fds = vec![liar.socket().fd(); count];
    let flags = rustix::net::SendFlags::DONTWAIT;
    onecopy_sys::scm::send(liar.socket().life(), &[std::io::IoSlice::new(bytes)], &fds, None, flags).unwrap();
}

#[test]
fn what_the_line_does_not_hold_is_caught() {
    onecopy_testing::alone!();
    caught("descriptors that are not there", |liar| announce(liar, 1, 0));
    caught("more than are there", |liar| {
        into_line(liar, &next(liar), 1);
        announce(liar, 2, 0);
    });
    caught("fewer than are there", |liar| {
        into_line(liar, &next(liar), 3);
        announce(liar, 2, 0);
    });
    caught("half a number", |liar| {
        into_line(liar, &next(liar)[..4], 1);
        announce(liar, 1, 0);
    });
    caught("those of what comes later", |liar| {
        into_line(liar, &1000u64.to_le_bytes(), 1);
        announce(liar, 1, 0);
    });
    caught("a message of no bytes", |liar| {
        into_line(liar, b"", 0);
        announce(liar, 1, 0);
    });
    caught("a sender who is not there", |liar| announce(liar, 0, 1));
    caught("a line that was shut down", |liar| {
        announce(liar, 1, 0);
        rustix::net::shutdown(liar.socket().life(), rustix::net::Shutdown::Both).unwrap();
    });
    caught("too many of them", |liar| announce(liar, 254, 0));
}

/// Whatever a peer puts into the line without announcing it stays there, and goes with the socket.
#[test]
fn what_is_not_announced_harms_nobody() {
    onecopy_testing::alone!();
    let (liar, victim) = Datagram::pair().unwrap();
    let (r, w) = rustix::pipe::pipe().unwrap();
    let fds = [w.as_fd(); 9];
    let flags = rustix::net::SendFlags::DONTWAIT;
    for bytes in [&b""[..], b"", b"long and longer", b"x"] {
        onecopy_sys::scm::send(liar.socket().life(), &[std::io::IoSlice::new(bytes)], &fds, None, flags)
            .unwrap();
    }
    drop(w);
    liar.send_with_flags(b"as ever", NOW).unwrap();
    assert_eq!(victim.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 7);
    drop((liar, victim));
    assert_eq!(rustix::io::read(&r, &mut [0; 1][..]).unwrap(), 0, "all are closed");
}

#[test]
fn what_is_no_bell_is_caught() {
    onecopy_testing::alone!();
    for bytes in [&b"x"[..], b"", b"a datagram over the kernel", &[0; 60_000]] {
        caught("a datagram beside the ring", |liar| raw(liar, bytes));
    }
    caught("bells for nothing", |liar| (0..70).for_each(|_| raw(liar, b"b")));
    caught("a filler that is none", |liar| {
        into_victim(liar).reader.0.filler.store(u32::MAX, Relaxed);
        into_victim(liar).reader.0.parked.store(onecopy_ring::doorbell::PARKED, Release);
    });
}

/// A peer that says that it is gone, and is not, harms only itself: the kernel decides.
#[test]
fn a_false_farewell_leaves_the_kernel_to_tell() {
    onecopy_testing::alone!();
    let (liar, victim) = Datagram::pair().unwrap();
    from_victim(&liar).info.0.shut.store(1, Relaxed);
    assert_eq!(victim.send_with_flags(b"over the kernel", NOW).unwrap(), 15);
    assert!(!victim.path().is_shared_memory());
    drop(liar);
    assert_eq!(
        victim.send_with_flags(b"x", NOW).unwrap_err().raw_os_error(),
        Errno::CONNREFUSED.raw_os_error()
    );
}

/// A peer is killed while it parks, before it has said that there is a filler. The filler is no datagram all
/// the same.
#[test]
fn a_filler_of_a_peer_that_died_is_no_datagram() {
    onecopy_testing::alone!();
    let (dying, victim) = Datagram::pair().unwrap();
    let _: BorrowedFd<'_> = victim.as_fd();
    dying.send_with_flags(b"last", NOW).unwrap();
    into_victim(&dying).begin_parking(1);
    onecopy_unix::control::park_record(dying.socket().fd(), false, &mut None).unwrap().unwrap();
    drop(dying);
    assert_eq!(victim.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 4);
    for _ in 0..3 {
        assert_eq!(
            victim.recv_with_flags(&mut [0; 9], LOOK).unwrap_err().raw_os_error(),
            Errno::AGAIN.raw_os_error()
        );
    }
    assert_eq!(victim.stats().protocol_errors, 0);
}

/// A peer that is killed closes its socket first and its end of the lifeline later. A sender without room
/// that looks in between has had its one edge, and would wait for ever.
#[test]
fn a_peer_of_which_only_the_lifeline_is_left_refuses() {
    onecopy_testing::alone!();
    let (dying, sender) = Datagram::pair().unwrap();
    let fill =
        || std::iter::repeat_with(|| sender.send_with_flags(&[7; 2000], NOW)).find_map(Result::err).unwrap();
    assert!(fill().would_block());
    // A clone keeps the line up. The flag that says "the peer has left" is cleared: a peer that is killed
    // never sets it.
    let line = dying.socket().life().try_clone_to_owned().unwrap();
    let ring = dying.socket().rx_ring().unwrap().clone();
    drop(dying);
    ring.header().info.0.shut.store(0, Relaxed);
    assert!(!sender.socket().cannot_send());
    let refused = sender.send_with_flags(&[7; 2000], NOW).unwrap_err();
    assert_eq!(refused.raw_os_error(), Errno::CONNREFUSED.raw_os_error());
    let then = sender.send_with_flags(&[7; 2000], NOW).unwrap_err();
    assert_eq!(then.raw_os_error(), Errno::NOTCONN.raw_os_error());
    drop(line);
}

/// Datagrams in the ring of a peer that is gone have that peer's name, also after the kernel has forgotten
/// the peer.
#[test]
fn who_sent_is_known_when_the_kernel_has_forgotten() {
    onecopy_testing::alone!();
    let name = |what: &str| {
        onecopy_unix::SocketAddr::from_abstract_name(format!(
            "onecopy-forgotten-{what}-{}",
            std::process::id()
        ))
        .unwrap()
    };
    let (here, there) = (Datagram::bind(name("here")).unwrap(), Datagram::bind(name("there")).unwrap());
    here.connect(name("there")).unwrap();
    there.connect(name("here")).unwrap();
    for _ in 0..10_000 {
        there.send_with_flags(b"x", NOW).unwrap();
        assert_eq!(here.recv_from_with_flags(&mut [0; 9], LOOK).unwrap(), (1, name("there")));
        if here.socket().rx_ring().is_some() && there.socket().tx_ring().is_some() {
            break;
        }
    }
    there.send_with_flags(b"before it went", NOW).unwrap();
    drop(there);
    // One of this side's own looks does the same, and the caller is told later.
    let told = rustix::net::send(here.socket().fd(), b"", rustix::net::SendFlags::DONTWAIT);
    assert_eq!(told, Err(Errno::CONNREFUSED));
    assert!(here.peer_addr().is_err());
    assert_eq!(here.recv_from_with_flags(&mut [0; 99], LOOK).unwrap(), (14, name("there")));
}
