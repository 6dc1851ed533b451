//! A pair of datagram sockets, where each of two processes keeps one half.

use onecopy_sys::fork::{Ended, child};
use onecopy_testing::{alone, readable};
use onecopy_unix::{RecvFlags, SendFlags, SocketAddr};
use onecopy_unix_dgram::Datagram;
use rustix::io::Errno;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

const DATAGRAMS: u32 = 1000;

fn to_and_fro(half: &Datagram, first: bool) {
    for i in 0..DATAGRAMS {
        let mut buffer = [0; 99];
        for sends in [first, !first] {
            if sends {
                half.send(&i.to_le_bytes()).unwrap();
            } else {
                assert_eq!(half.recv(&mut buffer).unwrap(), 4);
                assert_eq!(buffer[..4], i.to_le_bytes());
            }
        }
        assert!(half.path().is_shared_memory(), "datagram {i}");
    }
}

/// Each process closes its copy of the other's half, at once or after everything was sent. The other's half
/// works all the time.
#[test]
fn each_process_keeps_one_half_of_a_pair() {
    alone!();
    for (mine_at_once, theirs_at_once) in [(true, true), (true, false), (false, true), (false, false)] {
        let (a, b) = Datagram::pair().unwrap();
        let (mut a, mut b) = (Some(a), Some(b));
        let child = child(|| {
            let other = a.take();
            let kept = if theirs_at_once { None } else { other };
            to_and_fro(&b.take().unwrap(), false);
            drop(kept);
            7
        })
        .unwrap();
        let other = b.take();
        let kept = if mine_at_once { None } else { other };
        let a = a.take().unwrap();
        to_and_fro(&a, true);
        drop(kept);
        assert_eq!(child.wait(), Ended::Returned(7));
        // No process has the other half any more. A sender with room sees that when it looks.
        let start = Instant::now();
        while a.send_with_flags(b"x", SendFlags::DONTWAIT).is_ok() {
            assert!(start.elapsed() < onecopy_testing::LONG);
        }
    }
}

fn busy<T: std::fmt::Debug>(result: onecopy_unix::Result<T>) -> bool {
    result.is_err_and(|error| {
        error.raw_os_error() == Errno::BUSY.raw_os_error() && error.to_string().contains("another process")
    })
}

/// A half belongs to the process that uses it first, and every call of the other process reports that. Here
/// it is the child's.
#[test]
fn a_half_that_the_child_uses_is_the_childs() {
    alone!();
    let (a, b) = Datagram::pair().unwrap();
    a.send(b"before").unwrap();
    let mut buffer = [0; 9];
    let child = child(|| {
        let got = b.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT);
        let sent = a.send(b"child");
        i32::from(!matches!((got, sent), (Ok(6), Ok(5))))
    });
    assert_eq!(child.unwrap().wait(), Ended::Returned(0));
    for _ in 0..3 {
        assert!(busy(a.send_with_flags(b"parent", SendFlags::DONTWAIT)));
        assert!(busy(b.recv_with_flags(&mut buffer, RecvFlags::DONTWAIT)));
    }
}

/// Here the half is the parent's: one of its threads sleeps in a receive while it forks. The same holds at
/// the next fork.
#[test]
fn a_half_that_the_parent_uses_is_the_parents() {
    alone!();
    let (a, b) = Datagram::pair().unwrap();
    for round in 0..3 {
        let (mut go, mut wait) = UnixStream::pair().unwrap();
        std::thread::scope(|s| {
            let reader = s.spawn(|| b.recv(&mut [0; 9]));
            if round > 0 {
                while b.stats().sleeps < round {
                    std::thread::yield_now();
                }
            }
            let child = child(|| {
                let _ = wait.read(&mut [0]);
                // The reader may have begun its receive only after the fork, but it began before this.
                i32::from(!busy(b.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT)))
                    + 2 * i32::from(!busy(a.send_with_flags(b"child", SendFlags::DONTWAIT)))
            })
            .unwrap();
            a.send(b"parent").unwrap();
            assert_eq!(reader.join().unwrap().unwrap(), 6);
            go.write_all(b"!").unwrap();
            assert_eq!(child.wait(), Ended::Returned(0), "round {round}");
        });
    }
}

/// Sockets over the kernel belong to every process, as the kernel's own sockets do.
#[test]
fn sockets_over_the_kernel_are_not_claimed() {
    alone!();
    let name =
        || SocketAddr::from_abstract_name(format!("onecopy-test-forked-{}", std::process::id())).unwrap();
    let receiver = Datagram::bind(name()).unwrap();
    let sender = Datagram::unbound().unwrap();
    sender.connect(name()).unwrap();
    let child = child(|| i32::from(sender.send(b"child").is_err()));
    assert_eq!(child.unwrap().wait(), Ended::Returned(0));
    sender.send(b"parent").unwrap();
    let mut buffer = [0; 9];
    assert_eq!(receiver.recv(&mut buffer).unwrap(), 5);
    assert_eq!(receiver.recv(&mut buffer).unwrap(), 6);
}

/// A sender to a fan-in receiver may be forked: both processes send, each in order.
#[test]
fn both_processes_send_on_one_lane() {
    alone!();
    let name =
        SocketAddr::from_abstract_name(format!("onecopy-test-fork-lane-{}", std::process::id())).unwrap();
    let (b, a) = (Datagram::bind(&name).unwrap(), Datagram::unbound().unwrap());
    b.set_read_timeout(Some(onecopy_testing::LONG)).unwrap();
    a.connect(&name).unwrap();
    let mut buffer = [0; 99];
    for i in 0..60 {
        a.send(&[0, i]).unwrap();
        assert_eq!((b.recv(&mut buffer).unwrap(), buffer[1]), (2, i));
    }
    let shared = onecopy_unix::Carrier::SharedMemory;
    assert_eq!(a.path().send, shared);
    let send = |who: u8| {
        for i in 0..DATAGRAMS {
            a.send(&[&[who][..], &i.to_le_bytes()].concat()).unwrap();
        }
    };
    let child = child(|| {
        send(1);
        assert_eq!(a.path().send, shared);
        7
    })
    .unwrap();
    std::thread::scope(|s| {
        s.spawn(|| send(0));
        let mut next = [0u32; 2];
        for _ in 0..2 * DATAGRAMS {
            assert_eq!(b.recv(&mut buffer).unwrap(), 5);
            let who = usize::from(buffer[0]);
            assert_eq!(buffer[1..5], next[who].to_le_bytes(), "of {who}");
            next[who] += 1;
        }
    });
    assert_eq!(child.wait(), Ended::Returned(7));
    // The child has closed its copy, and the parent's still works.
    a.send(b"x").unwrap();
    assert_eq!(b.recv(&mut buffer).unwrap(), 1);
}

/// After a fork, a receiver with lanes belongs to one process: the one that uses it first.
#[test]
fn a_receiver_of_many_is_for_one_process() {
    alone!();
    let name =
        SocketAddr::from_abstract_name(format!("onecopy-test-fork-many-{}", std::process::id())).unwrap();
    let (b, a) = (Datagram::bind(&name).unwrap(), Datagram::unbound().unwrap());
    a.connect(&name).unwrap();
    let mut buffer = [0; 99];
    for i in 0..60 {
        a.send(&[i]).unwrap();
        assert_eq!((b.recv(&mut buffer).unwrap(), buffer[0]), (1, i));
    }
    a.send(b"mine").unwrap();
    let (mut go, wait) = UnixStream::pair().unwrap();
    let child = child(|| {
        (&wait).read_exact(&mut [0]).unwrap();
        i32::from(busy(b.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT)))
    })
    .unwrap();
    assert_eq!(b.recv(&mut buffer).unwrap(), 4);
    go.write_all(&[0]).unwrap();
    assert_eq!(child.wait(), Ended::Returned(1));
    for i in 0..60 {
        a.send(&[i]).unwrap();
        assert_eq!((b.recv(&mut buffer).unwrap(), buffer[0]), (1, i));
    }
}

/// After a fork, only the kernel reports that a socket is closed, at the next send. That send may be just a
/// doorbell or a filler. The kernel has then thrown away what the peer had sent.
#[test]
fn who_is_refused_has_nothing_to_receive() {
    alone!();
    let refused = |socket: &Datagram| {
        let start = Instant::now();
        loop {
            match socket.send_with_flags(b"x", SendFlags::DONTWAIT) {
                Ok(_) => assert!(start.elapsed() < onecopy_testing::LONG),
                Err(error) => break Errno::from_raw_os_error(error.raw_os_error()),
            }
        }
    };
    for fills in [false, true] {
        let (a, b) = Datagram::pair().unwrap();
        assert!(!readable(&a));
        assert_eq!(child(|| 0).unwrap().wait(), Ended::Returned(0));
        assert!(b.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).unwrap_err().would_block());
        b.send_with_flags(b"lost", SendFlags::DONTWAIT).unwrap();
        a.send_with_flags(b"lost", SendFlags::DONTWAIT).unwrap();
        drop(b);
        assert!(readable(&a));
        if fills {
            // This goes behind the other one. Each has a header of eight bytes.
            a.send_with_flags(&vec![7; a.max_datagram() - 16], SendFlags::DONTWAIT).unwrap();
            assert!(readable(&a));
        }
        assert_eq!(refused(&a), Errno::CONNREFUSED, "{fills}");
        assert!(!readable(&a));
        assert!(a.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).unwrap_err().would_block());
        assert_eq!(refused(&a), Errno::NOTCONN);
    }
}
