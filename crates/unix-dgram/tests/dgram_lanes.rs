//! Lanes under bad conditions: more senders than there is room for, names that mean another socket by now,
//! rings that are too small, processes that have no descriptors left.

use onecopy_testing::{alone, writable};
use onecopy_unix::{Carrier, Config, RecvFlags, SendFlags, SocketAddr};
use onecopy_unix_dgram::Datagram;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::path::PathBuf;

const NOW: SendFlags = SendFlags::DONTWAIT;

fn abstract_(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("onecopy-test-lanes-{what}-{}", std::process::id())).unwrap()
}

fn receiver(name: &SocketAddr, config: &Config) -> Datagram {
    let receiver = Datagram::bind_with(name, config).unwrap();
    receiver.set_read_timeout(Some(onecopy_testing::LONG)).unwrap();
    receiver
}

fn recv(socket: &Datagram) -> Vec<u8> {
    let mut buffer = vec![0; 4000];
    let n = socket.recv(&mut buffer).unwrap();
    buffer.truncate(n);
    buffer
}

/// Many senders begin at once, and more of them say hello than the receiver remembers. Even so, their join
/// requests never become datagrams.
#[test]
fn more_senders_begin_at_once_than_are_kept_in_mind() {
    alone!();
    let name = abstract_("many");
    let b = receiver(&name, &Config::default());
    let senders: Vec<Datagram> = (0..200)
        .map(|_| {
            let sender = Datagram::unbound().unwrap();
            sender.connect(&name).unwrap();
            sender
        })
        .collect();
    for round in 0..40u8 {
        for (who, sender) in senders.iter().enumerate() {
            sender.send_with_flags(&[who as u8, round], NOW).unwrap();
            assert_eq!(recv(&b), [who as u8, round]);
        }
    }
    let laned = senders.iter().filter(|sender| sender.path().send == Carrier::SharedMemory).count();
    assert!(laned > 0, "nobody");
    assert_eq!(b.stats().protocol_errors, 0);
}

fn path(what: &str) -> PathBuf {
    std::env::temp_dir().join(format!("onecopy-test-lanes-{what}-{}", std::process::id()))
}

/// Returns a sender with a lane. What it sends to get the lane is received.
fn laned(receiver: &Datagram, name: &SocketAddr) -> Datagram {
    let sender = Datagram::unbound().unwrap();
    sender.connect(name).unwrap();
    for i in 0..60 {
        sender.send_with_flags(&[i], NOW).unwrap();
        assert_eq!(recv(receiver), [i]);
    }
    assert_eq!(sender.path().send, Carrier::SharedMemory);
    sender
}

fn poll(socket: &Datagram, events: PollFlags) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), events)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    fds[0].revents().contains(events)
}

/// A receiver whose name was removed is readable as before.
#[test]
fn a_receiver_without_its_name_stays_readable() {
    alone!();
    let path = path("unlinked");
    let name = SocketAddr::from_pathname(&path).unwrap();
    let b = receiver(&name, &Config::default());
    let a = laned(&b, &name);
    std::fs::remove_file(&path).unwrap();
    assert!(!poll(&b, PollFlags::IN));
    for _ in 0..20 {
        for i in 0..9 {
            a.send_with_flags(&[i], NOW).unwrap();
        }
        for i in 0..9 {
            assert!(poll(&b, PollFlags::IN), "datagram {i}");
            assert_eq!(recv(&b), [i]);
        }
        assert!(!poll(&b, PollFlags::IN));
    }
}

/// A receiver gets what is sent to any of its names, and keeps its lane when another socket has the name.
#[test]
fn other_names_of_a_receiver_are_its_own() {
    alone!();
    let (path, other) = (path("names"), path("names-other"));
    let name = SocketAddr::from_pathname(&path).unwrap();
    let b = receiver(&name, &Config::default());
    std::os::unix::fs::symlink(&path, &other).unwrap();
    let a = laned(&b, &name);
    for round in 0..30u8 {
        a.send_with_flags(&[round, 1], NOW).unwrap();
        a.send_to_with_flags(&[round, 2], SocketAddr::from_pathname(&other).unwrap(), NOW).unwrap();
        a.send_to_with_flags(&[round, 3], &name, NOW).unwrap();
        a.send_with_flags(&[round, 4], NOW).unwrap();
        for i in 1..5 {
            assert_eq!(recv(&b), [round, i]);
        }
    }
    assert_eq!(a.path().send, Carrier::SharedMemory);
    std::fs::remove_file(&path).unwrap();
    let successor = receiver(&name, &Config::default());
    a.send_to_with_flags(b"new", &name, NOW).unwrap();
    a.send_with_flags(b"old", NOW).unwrap();
    assert_eq!((recv(&successor), recv(&b)), (b"new".to_vec(), b"old".to_vec()));
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&other).unwrap();
    assert_eq!(
        a.send_to_with_flags(b"x", &name, NOW).unwrap_err().raw_os_error(),
        Errno::NOENT.raw_os_error()
    );
}

/// A sender can always send what the kernel takes, however little room the receiver asks for.
#[test]
fn a_lane_takes_what_the_kernel_takes() {
    alone!();
    let small = |receive, max| Config { receive_buffer: receive, max_ring: max, ..Config::default() };
    for (config, carrier) in [
        (small(Some(4096), Config::default().max_ring), Carrier::SharedMemory),
        (small(None, 16 << 10), Carrier::Kernel),
    ] {
        let name = abstract_("small");
        let b = receiver(&name, &config);
        let a = Datagram::unbound().unwrap();
        a.connect(&name).unwrap();
        let mut buffer = vec![0; 150_000];
        for i in 0..60 {
            assert_eq!(a.send_with_flags(&vec![i; 150_000], NOW).unwrap(), 150_000);
            assert_eq!(b.recv(&mut buffer).unwrap(), 150_000);
            assert_eq!(buffer, vec![i; 150_000]);
        }
        assert_eq!(a.path().send, carrier);
    }
}

/// A sender that was refused is not writable, whenever it got its lane.
#[test]
fn who_is_refused_on_a_lane_is_told_to_wait() {
    alone!();
    let name = abstract_("refused");
    let b = receiver(&name, &Config::default());
    let mut shared = 0;
    // The receiver's queue holds ten datagrams. What it receives later, it answers later.
    for before in 0..9 {
        let a = Datagram::unbound_with(&Config { send_buffer: Some(4096), ..Config::default() }).unwrap();
        a.connect(&name).unwrap();
        assert!(writable(&a));
        (0..before).for_each(|_| assert_eq!(a.send_with_flags(b"x", NOW).unwrap(), 1));
        (0..before).for_each(|_| assert_eq!(recv(&b), b"x"));
        for round in 0..4 {
            while a.send_with_flags(&[7; 4096], NOW).is_ok() {}
            recv(&b);
            while a.send_with_flags(b"x", NOW).is_ok() {}
            assert!(!writable(&a), "after {before}, round {round}");
            while b.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).is_ok() {}
            assert!(writable(&a), "after {before}, round {round}: all are received");
        }
        shared += usize::from(a.path().send == Carrier::SharedMemory);
    }
    assert_eq!(shared, 9);
}
