//! The sender's identity, as the kernel has verified it.
#![allow(missing_docs, reason = "a test")]

use onecopy_unix::*;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsFd;

const NONE: RecvFlags = RecvFlags::empty();
const QUIET: SendFlags = SendFlags::empty();
const NOBODY: Credentials = Credentials { pid: 0, uid: 65534, gid: 65534 };

fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Another identity, which a privileged process may state.
fn other() -> Credentials {
    Credentials { uid: 4711, gid: 4712, ..Credentials::own() }
}

fn transports(test: impl Fn(&Config)) {
    for transport in [Transport::Kernel, Transport::Auto] {
        test(&Config { transport, receive_buffer: Some(4096), send_buffer: Some(4096), ..Config::default() });
    }
}

fn streams(test: impl Fn(&Stream, &Stream)) {
    transports(|config| {
        let (a, b) = Stream::pair_with(config).unwrap();
        test(&a, &b);
    });
}

fn packets(test: impl Fn(&SeqPacket, &SeqPacket)) {
    transports(|config| {
        let (a, b) = SeqPacket::pair_with(config).unwrap();
        test(&a, &b);
    });
}

/// Returns how much was received, and from whom.
fn recv(b: &Stream, max: usize, flags: RecvFlags) -> (usize, Option<Credentials>) {
    let (n, with) = b.recv_fds_with_flags(&mut vec![0; max], flags).unwrap();
    (n, with.credentials)
}

fn record(b: &SeqPacket, flags: RecvFlags) -> (usize, Option<Credentials>) {
    let (got, with) = b.recv_fds_with_flags(&mut [0; 100], flags).unwrap();
    (got.len, with.credentials)
}

/// Sends as somebody.
macro_rules! send_as {
    ($from:expr, $bytes:expr, $who:expr) => {
        $from.send_msg(
            &[IoSlice::new($bytes)],
            SendAncillary { credentials: Some($who), ..SendAncillary::default() },
            QUIET,
        )
    };
}

#[test]
fn they_come_once_asked_for_and_not_before_nor_after() {
    let own = Some(Credentials::own());
    streams(|a, b| {
        a.send(b"early").unwrap();
        b.set_pass_credentials(true).unwrap();
        a.send(b"asked").unwrap();
        // Bytes with an identity never merge with bytes without one.
        assert_eq!(recv(b, 100, RecvFlags::PEEK), (5, Some(NOBODY)));
        assert_eq!(recv(b, 100, NONE), (5, Some(NOBODY)));
        assert_eq!(recv(b, 2, RecvFlags::PEEK), (2, own));
        for len in [2, 3] {
            assert_eq!(recv(b, len, NONE), (len, own));
        }
        for _ in 0..3 {
            a.send(b"again").unwrap();
            a.send(b"again").unwrap();
            assert_eq!(recv(b, 100, NONE), (10, own));
        }
        b.set_pass_credentials(false).unwrap();
        a.send(b"late").unwrap();
        a.send(b"later").unwrap();
        assert_eq!(recv(b, 100, NONE), (9, None));
    });
    packets(|a, b| {
        a.send(b"early").unwrap();
        b.set_pass_credentials(true).unwrap();
        a.send(b"asked").unwrap();
        a.send(b"").unwrap();
        assert_eq!(record(b, NONE), (5, Some(NOBODY)));
        assert_eq!(record(b, RecvFlags::PEEK), (5, own));
        assert_eq!(record(b, NONE), (5, own));
        assert_eq!(record(b, NONE), (0, own));
        b.set_pass_credentials(false).unwrap();
        a.send(b"late").unwrap();
        assert_eq!(record(b, NONE), (4, None));
    });
}

#[test]
fn whoever_sends_whichever_way() {
    streams(|a, b| {
        b.set_pass_credentials(true).unwrap();
        let own = Some(Credentials::own());
        let mut slot = a.reserve(3).unwrap();
        slot.copy_from(b"abc");
        slot.commit().unwrap();
        assert_eq!(recv(b, 9, NONE), (3, own));
        let fd = File::open("/dev/null").unwrap();
        a.send_fds(b"de", &[fd.as_fd()]).unwrap();
        let (n, with) = b.recv_fds(&mut [0; 9]).unwrap();
        assert_eq!((n, with.fds.len(), with.credentials), (2, 1, own));
        assert_eq!(b.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).unwrap_err().raw_os_error(), 11);
    });
    packets(|a, b| {
        b.set_pass_credentials(true).unwrap();
        let own = Some(Credentials::own());
        let mut slot = a.reserve(3).unwrap();
        slot.copy_from(b"ab");
        slot.commit().unwrap();
        assert_eq!(record(b, NONE), (2, own));
        b.set_pass_credentials(true).unwrap();
        let fd = File::open("/dev/null").unwrap();
        a.send_fds(b"de", &[fd.as_fd()]).unwrap();
        let (got, with) = b.recv_fds(&mut [0; 9]).unwrap();
        assert_eq!((got.len, with.fds.len(), with.credentials), (2, 1, own));
    });
}

#[test]
fn who_asks_and_does_not_look_loses_nothing() {
    streams(|a, b| {
        b.set_pass_credentials(true).unwrap();
        for _ in 0..3 {
            a.send(b"abc").unwrap();
            assert_eq!(b.recv(&mut [0; 9]).unwrap(), 3);
            a.send(b"abc").unwrap();
            assert_eq!(b.recv_borrowed(9).unwrap().len(), 3);
        }
    });
    packets(|a, b| {
        b.set_pass_credentials(true).unwrap();
        for _ in 0..3 {
            a.send(b"abc").unwrap();
            assert_eq!(b.recv(&mut [0; 9]).unwrap(), 3);
            a.send(b"abc").unwrap();
            assert_eq!(b.recv_borrowed(9).unwrap().0.len(), 3);
        }
    });
}

#[test]
fn a_claim_holds_for_its_send_alone() {
    if !root() {
        return;
    }
    let (own, other) = (Some(Credentials::own()), other());
    streams(|a, b| {
        b.set_pass_credentials(true).unwrap();
        a.send(b"own").unwrap();
        send_as!(a, b"other", other).unwrap();
        a.send(b"own").unwrap();
        let all = RecvFlags::WAITALL;
        assert_eq!(recv(b, 11, all), (3, own));
        assert_eq!(recv(b, 11, all), (5, Some(other)));
        assert_eq!(recv(b, 3, all), (3, own));
        // This message fills the room more than once. It states another identity, and the receiver does not
        // ask for one.
        b.set_pass_credentials(false).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| send_as!(a, &[1; 50_000], other).unwrap());
            let mut buf = vec![0; 50_000];
            assert_eq!(b.recv_with_flags(&mut buf, all).unwrap(), 50_000);
        });
        a.send(b"own").unwrap();
        b.set_pass_credentials(true).unwrap();
        assert_eq!(recv(b, 9, NONE), (3, Some(NOBODY)));
    });
    packets(|a, b| {
        b.set_pass_credentials(true).unwrap();
        send_as!(a, b"other", other).unwrap();
        a.send(b"own").unwrap();
        assert_eq!(record(b, NONE), (5, Some(other)));
        assert_eq!(record(b, NONE), (3, own));
    });
}

#[test]
fn a_process_that_is_not_there_cannot_be_claimed_and_nothing_is_sent() {
    let wrong = Credentials { pid: i32::MAX, ..Credentials::own() };
    let refused = |error: Error| assert!([1, 3].contains(&error.raw_os_error()), "{error}");
    streams(|a, b| {
        refused(send_as!(a, b"x", wrong).unwrap_err());
        assert!(b.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).unwrap_err().would_block());
        a.send(b"y").unwrap();
        assert_eq!(b.recv(&mut [0; 9]).unwrap(), 1);
    });
    packets(|a, b| {
        refused(send_as!(a, b"x", wrong).unwrap_err());
        assert!(b.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).unwrap_err().would_block());
        a.send(b"y").unwrap();
        assert_eq!(b.recv(&mut [0; 9]).unwrap(), 1);
    });
}

#[test]
fn a_pidfd_comes_where_the_kernel_gives_one() {
    let same = |fd: &std::os::fd::OwnedFd| {
        use std::os::fd::AsRawFd;
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap();
        assert!(info.contains(&format!("Pid:\t{}\n", std::process::id())), "{info}");
    };
    streams(|a, b| {
        if b.set_pass_pidfd(true).is_err() {
            return;
        }
        a.send(b"abcd").unwrap();
        for _ in 0..2 {
            let (n, with) = b.recv_fds(&mut [0; 2]).unwrap();
            assert_eq!((n, with.credentials), (2, None));
            same(&with.pidfd.unwrap());
        }
        b.set_pass_pidfd(false).unwrap();
        a.send(b"ab").unwrap();
        assert!(b.recv_fds(&mut [0; 2]).unwrap().1.pidfd.is_none());
        same(&a.peer_pidfd().unwrap());
        assert_eq!(a.peer_groups().unwrap(), b.peer_groups().unwrap());
    });
    packets(|a, b| {
        if b.set_pass_pidfd(true).is_err() {
            return;
        }
        a.send(b"ab").unwrap();
        same(&b.recv_fds(&mut [0; 2]).unwrap().1.pidfd.unwrap());
    });
}

#[test]
fn a_listener_asks_from_the_first_byte_on() {
    let config = Config { pass_credentials: true, ..Config::default() };
    let own = Some(Credentials::own());
    let name = SocketAddr::from_abstract_name(format!("onecopy-credentials-{}", std::process::id())).unwrap();
    let listener = Listener::bind_with(name.clone(), &config).unwrap();
    let client = Stream::connect_with(name.clone(), &config).unwrap();
    client.send(b"early").unwrap();
    let (server, _) = listener.accept().unwrap();
    for round in 0..6 {
        server.send(b"hello").unwrap();
        assert_eq!((recv(&client, 5, NONE), recv(&server, 5, NONE)), ((5, own), (5, own)), "{round}");
        client.send(b"again").unwrap();
    }
    assert!(client.path().is_shared_memory() && server.path().is_shared_memory());
    drop((listener, client, server));
    let listener = SeqListener::bind_with(name.clone(), &config).unwrap();
    let client = SeqPacket::connect_with(name, &config).unwrap();
    client.send(b"early").unwrap();
    let (server, _) = listener.accept().unwrap();
    for round in 0..6 {
        server.send(b"hello").unwrap();
        assert_eq!((record(&client, NONE), record(&server, NONE)), ((5, own), (5, own)), "{round}");
        client.send(b"again").unwrap();
    }
    assert!(client.path().is_shared_memory() && server.path().is_shared_memory());
}

#[test]
fn stream_records_of_two_senders_never_merge() {
    let config = Config { records: Records::Stream, ..Config::default() };
    let (a, b) = SeqPacket::pair_with(&config).unwrap();
    a.send(b"early").unwrap();
    b.set_pass_credentials(true).unwrap();
    a.send_with_flags(b"asked", QUIET | SendFlags::EOR).unwrap();
    let all = RecvFlags::WAITALL;
    assert_eq!(record(&b, all), (5, Some(NOBODY)));
    assert_eq!(record(&b, all), (5, Some(Credentials::own())));
}
