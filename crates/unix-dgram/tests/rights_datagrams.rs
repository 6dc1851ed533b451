//! Descriptors and credentials that are sent with datagrams.
#![allow(missing_docs, reason = "a test")]

use onecopy_testing::alone;
use onecopy_unix::*;
use onecopy_unix_dgram::Datagram;
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

fn descriptors() -> usize {
    // The first socket opens descriptors that the process then keeps.
    drop(Datagram::pair().unwrap());
    onecopy_testing::descriptors()
}

fn config(transport: Transport) -> Config {
    Config { transport, receive_buffer: Some(4096), send_buffer: Some(4096), ..Config::default() }
}

const NONE: RecvFlags = RecvFlags::empty();
const NOW: RecvFlags = RecvFlags::DONTWAIT;
const WAIT: SendFlags = SendFlags::empty();
const NO_WAIT: SendFlags = SendFlags::DONTWAIT;

/// Returns two sockets with names that are connected to each other, and share memory if they may.
fn met(transport: Transport) -> (Datagram, Datagram) {
    let name = |which| {
        SocketAddr::from_abstract_name(format!("onecopy-rights-{which}-{}", std::process::id())).unwrap()
    };
    let bound = |which| Datagram::bind_with(name(which), &config(transport)).unwrap();
    let (a, b) = (bound("a"), bound("b"));
    a.connect(name("b")).unwrap();
    b.connect(name("a")).unwrap();
    for _ in 0..if transport == Transport::Auto { 200 } else { 1 } {
        for (from, to) in [(&a, &b), (&b, &a)] {
            from.send_with_flags(b"u", NO_WAIT).unwrap();
            to.recv_with_flags(&mut [0], NOW).unwrap();
        }
    }
    (a, b)
}

/// Runs the test over the kernel, which shows what is expected, and over shared memory: with a pair, and with
/// two connected sockets. Checks that nothing is left open.
fn each(test: impl Fn(&Datagram, &Datagram)) {
    for transport in [Transport::Kernel, Transport::Auto] {
        for by_name in [false, true] {
            let before = descriptors();
            let (a, b) =
                if by_name { met(transport) } else { Datagram::pair_with(&config(transport)).unwrap() };
            let shared = transport == Transport::Auto;
            assert_eq!((a.path().is_shared_memory(), b.path().is_shared_memory()), (shared, shared));
            test(&a, &b);
            drop((a, b));
            assert_eq!(descriptors(), before, "{transport:?} {by_name}: nothing is left open");
        }
    }
}

fn null() -> File {
    File::open("/dev/null").unwrap()
}

fn pipe() -> (File, OwnedFd) {
    let (r, w) = rustix::pipe::pipe().unwrap();
    (File::from(r), w)
}

fn fds(got: &(Received, Ancillary, SocketAddr)) -> (usize, usize) {
    (got.0.len, got.1.fds.len())
}

fn send_as(from: &Datagram, who: Credentials, fds: &[BorrowedFd<'_>]) -> Result<usize> {
    from.send_msg(&[IoSlice::new(b"x")], SendAncillary { fds, credentials: Some(who) }, WAIT)
}

#[test]
fn a_descriptor_arrives_with_its_datagram_and_works() {
    alone!();
    each(|a, b| {
        let (mut r, w) = pipe();
        a.send(b"before").unwrap();
        assert_eq!(a.send_fds(b"take it", &[w.as_fd()]).unwrap(), 7);
        a.send(b"after").unwrap();
        drop(w);
        let mut buf = [0; 64];
        assert_eq!(fds(&b.recv_fds(&mut buf).unwrap()), (6, 0));
        let (got, with, from) = b.recv_fds(&mut buf).unwrap();
        assert_eq!((&buf[..got.len], with.fds.len(), with.truncated), (&b"take it"[..], 1, false));
        assert_eq!(from, b.peer_addr().unwrap());
        let cloexec = rustix::io::FdFlags::CLOEXEC;
        assert!(rustix::io::fcntl_getfd(&with.fds[0]).unwrap().contains(cloexec));
        for fd in with.fds {
            File::from(fd).write_all(b"through it").unwrap();
        }
        let mut text = String::new();
        r.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through it");
        assert_eq!(fds(&b.recv_fds(&mut buf).unwrap()), (5, 0));
    });
}

#[test]
fn limits_truncation_and_no_place() {
    alone!();
    each(|a, b| {
        let fd = null();
        let many = vec![fd.as_fd(); 254];
        assert_eq!(a.send_fds(b"x", &many).unwrap_err().raw_os_error(), 22, "EINVAL");
        assert_eq!(a.send_fds(b"", &many[..253]).unwrap(), 0);
        assert_eq!(fds(&b.recv_fds(&mut [0; 8]).unwrap()), (0, 253));
        let long = vec![0; a.max_datagram() + 1];
        assert_eq!(a.send_fds(&long, &many[..1]).unwrap_err().raw_os_error(), 90, "EMSGSIZE");
        a.send_fds(b"abcdef", &many[..2]).unwrap();
        let (got, with, _) = b.recv_fds(&mut [0; 2]).unwrap();
        assert_eq!((got.len, got.full, got.flags, with.fds.len()), (2, 6, ReceivedFlags::TRUNC, 2));
        a.send_fds(b"x", &many[..3]).unwrap();
        assert_eq!(b.recv_datagram(&mut [0; 8]).unwrap().0.flags, ReceivedFlags::CTRUNC);
        a.send_fds(b"x", &many[..3]).unwrap();
        assert_eq!(b.recv(&mut [0; 8]).unwrap(), 1);
        for _ in 0..2 {
            a.send_fds(b"x", &many[..1]).unwrap();
            assert_eq!(fds(&b.recv_fds_with_flags(&mut [0; 8], RecvFlags::PEEK).unwrap()), (1, 1));
            assert_eq!(fds(&b.recv_fds(&mut [0; 8]).unwrap()), (1, 1));
        }
        assert!(b.recv_fds_with_flags(&mut [0; 2], NOW).unwrap_err().would_block());
    });
}

#[test]
fn a_full_queue_takes_none_of_it_and_loses_nothing() {
    alone!();
    each(|a, b| {
        let (mut r, w) = pipe();
        for round in 0..3 {
            let mut sent = 0;
            while a.send_fds_with_flags(b"x", &[w.as_fd()], NO_WAIT).is_ok() {
                sent += 1;
                assert!(sent < 10_000);
            }
            assert!(sent >= 4, "round {round}");
            assert!(a.send_fds_with_flags(b"x", &[w.as_fd()], NO_WAIT).unwrap_err().would_block());
            for _ in 0..sent {
                assert_eq!(fds(&b.recv_fds_with_flags(&mut [0; 8], NOW).unwrap()), (1, 1));
            }
            assert!(b.recv_fds_with_flags(&mut [0; 8], NOW).unwrap_err().would_block());
        }
        drop(w);
        assert_eq!(r.read(&mut [0; 1]).unwrap(), 0);
    });
}

#[test]
fn out_of_descriptors_a_receive_says_so_and_goes_on() {
    alone!();
    each(|a, b| {
        a.send_fds(b"x", &[null().as_fd(), null().as_fd()]).unwrap();
        a.send(b"y").unwrap();
        let mut all = Vec::new();
        while let Ok(fd) = rustix::io::dup(a.as_fd()) {
            all.push(fd);
        }
        drop(all.pop());
        let got = b.recv_fds(&mut [0; 5]);
        drop(all);
        let got = got.unwrap();
        assert_eq!((fds(&got), got.1.truncated, got.0.flags), ((1, 1), true, ReceivedFlags::CTRUNC));
        assert_eq!(b.recv(&mut [0; 8]).unwrap(), 1);
    });
}

#[test]
fn what_nobody_received_is_closed_with_either_socket() {
    alone!();
    for transport in [Transport::Kernel, Transport::Auto] {
        for by_name in [false, true] {
            let (mut r, w) = pipe();
            let (a, b) =
                if by_name { met(transport) } else { Datagram::pair_with(&config(transport)).unwrap() };
            for (from, to) in [(&a, &b), (&b, &a)] {
                from.send_fds(b"x", &[w.as_fd()]).unwrap();
                from.send_fds(b"y", &[w.as_fd()]).unwrap();
                assert_eq!(fds(&to.recv_fds_with_flags(&mut [0; 1], RecvFlags::PEEK).unwrap()), (1, 1));
            }
            drop(a);
            // A datagram of the socket that is gone arrives, although that socket did not read its own.
            assert_eq!(fds(&b.recv_fds_with_flags(&mut [0; 8], NOW).unwrap()), (1, 1));
            // Then the kernel reports that the peer is gone, and the rest is lost.
            assert_eq!(b.send(b"?").unwrap_err().raw_os_error(), 111, "ECONNREFUSED");
            drop(w);
            assert_eq!(r.read(&mut [0; 1]).unwrap(), 0, "{transport:?} {by_name}");
            drop(b);
        }
    }
}

#[test]
fn many_from_many_threads_both_ways_stay_with_their_datagrams() {
    alone!();
    each(|a, b| {
        const EACH: usize = 200;
        let send = |from: &Datagram, who: u8| {
            for i in 0..EACH {
                let (r, w) = rustix::pipe::pipe().unwrap();
                File::from(w).write_all(&[who, i as u8]).unwrap();
                if i % 3 == 0 {
                    from.send(b"").unwrap();
                }
                from.send_fds(&[who, i as u8], &[r.as_fd()]).unwrap();
            }
        };
        let receive = |to: &Datagram| {
            let (mut buf, mut got) = ([0; 8], 0);
            while got < 2 * EACH {
                let (datagram, with, _) = to.recv_fds(&mut buf).unwrap();
                assert_eq!(with.fds.len(), usize::from(datagram.len > 0));
                for fd in with.fds {
                    let mut said = [9; 2];
                    File::from(fd).read_exact(&mut said).unwrap();
                    assert_eq!(said, buf[..2]);
                    got += 1;
                }
            }
        };
        std::thread::scope(|s| {
            for who in 0..2 {
                s.spawn(move || send(a, who));
                s.spawn(move || send(b, who));
            }
            s.spawn(move || receive(a));
            receive(b);
        });
    });
}

#[test]
fn who_sends_is_told_to_who_asks() {
    alone!();
    each(|a, b| {
        let own = Some(Credentials::own());
        let nobody = Some(Credentials { pid: 0, uid: 65534, gid: 65534 });
        let who = |flags| {
            let (got, with, _) = b.recv_fds_with_flags(&mut [0; 9], flags).unwrap();
            (got.len, with.fds.len(), with.credentials)
        };
        a.send(b"early").unwrap();
        b.set_pass_credentials(true).unwrap();
        a.send(b"asked").unwrap();
        a.send(b"").unwrap();
        a.send_fds(b"ab", &[null().as_fd()]).unwrap();
        assert_eq!(who(NONE), (5, 0, nobody));
        assert_eq!(who(RecvFlags::PEEK), (5, 0, own));
        assert_eq!(who(NONE), (5, 0, own));
        assert_eq!(who(NONE), (0, 0, own));
        assert_eq!(who(NONE), (2, 1, own));
        // The other direction did not ask for it.
        b.send(b"x").unwrap();
        assert_eq!(a.recv_fds(&mut [0; 9]).unwrap().1.credentials, None);
        b.set_pass_credentials(false).unwrap();
        a.send(b"late").unwrap();
        assert_eq!(who(NONE), (4, 0, None));
        // A process that does not exist cannot be named, and nothing is sent.
        let wrong = Credentials { pid: i32::MAX, ..Credentials::own() };
        let errno = send_as(a, wrong, &[]).unwrap_err().raw_os_error();
        assert!([1, 3].contains(&errno), "{errno}");
        send_as(a, Credentials::own(), &[null().as_fd()]).unwrap();
        assert_eq!(who(NOW), (1, 1, None));
    });
}

#[test]
fn a_pidfd_comes_where_the_kernel_gives_one() {
    alone!();
    each(|a, b| {
        if b.set_pass_pidfd(true).is_err() {
            return;
        }
        for text in [&b"x"[..], b""] {
            a.send(text).unwrap();
            assert!(b.recv_fds(&mut [0; 2]).unwrap().1.pidfd.is_some());
        }
        b.set_pass_pidfd(false).unwrap();
        a.send(b"ab").unwrap();
        assert!(b.recv_fds(&mut [0; 2]).unwrap().1.pidfd.is_none());
    });
}

/// A datagram socket that shares memory learns the peer's identity from the line between the two.
#[test]
fn who_the_peer_is() {
    alone!();
    each(|a, _| {
        if a.path().is_shared_memory() {
            let (cred, own) = (a.peer_cred().unwrap(), Credentials::own());
            assert_eq!((cred.pid, cred.uid), (own.pid, own.uid));
            a.peer_groups().unwrap();
            assert!(a.peer_pidfd().map_or_else(|error| error.raw_os_error() == 92, |_| true), "ENOPROTOOPT");
        } else {
            assert_eq!(a.peer_pidfd().unwrap_err().raw_os_error(), 107, "ENOTCONN");
            assert_eq!(a.peer_cred().unwrap_err().raw_os_error(), 107, "ENOTCONN");
        }
    });
}
