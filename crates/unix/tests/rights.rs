//! Descriptors that travel with the bytes of a stream.
#![allow(missing_docs, reason = "a test")]

use onecopy_testing::alone;
use onecopy_unix::*;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

fn descriptors() -> usize {
    // The first socket opens descriptors that the process then keeps.
    drop(Stream::pair().unwrap());
    onecopy_testing::descriptors()
}

fn small() -> Config {
    Config { receive_buffer: Some(4096), send_buffer: Some(4096), ..Config::default() }
}

/// Runs the test over shared memory, and over the kernel, which shows what is expected.
fn both(test: impl Fn(&Stream, &Stream)) {
    for transport in [Transport::Kernel, Transport::Auto] {
        let before = descriptors();
        let (a, b) = Stream::pair_with(&Config { transport, ..small() }).unwrap();
        test(&a, &b);
        drop((a, b));
        assert_eq!(descriptors(), before, "{transport:?}: nothing is left open");
    }
}

fn null() -> File {
    File::open("/dev/null").unwrap()
}

fn flags() -> (SendFlags, RecvFlags) {
    (SendFlags::empty(), RecvFlags::empty())
}

/// Returns a pipe: the reading end as a file, and the writing end.
fn pipe() -> (File, OwnedFd) {
    let (r, w) = rustix::pipe::pipe().unwrap();
    (File::from(r), w)
}

#[test]
fn a_descriptor_arrives_and_works() {
    alone!();
    both(|a, b| {
        let (mut r, w) = pipe();
        assert_eq!(a.send_fds_with_flags(b"take it", &[w.as_fd()], flags().0).unwrap(), 7);
        drop(w);
        let mut buf = [0; 64];
        let (n, with) = b.recv_fds_with_flags(&mut buf, flags().1).unwrap();
        assert_eq!((&buf[..n], with.fds.len(), with.truncated), (&b"take it"[..], 1, false));
        assert!(
            rustix::io::fcntl_getfd(&with.fds[0]).unwrap().contains(rustix::io::FdFlags::CLOEXEC),
            "close-on-exec is set"
        );
        for fd in with.fds {
            File::from(fd).write_all(b"through it").unwrap();
        }
        let mut text = String::new();
        r.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through it");
    });
}

#[test]
fn data_before_may_merge_data_after_never_does() {
    alone!();
    both(|a, b| {
        let fd = null();
        a.send_with_flags(b"before ", flags().0).unwrap();
        a.send_fds_with_flags(b"with", &[fd.as_fd(), fd.as_fd()], flags().0).unwrap();
        a.send_with_flags(b" after", flags().0).unwrap();
        let mut buf = [0; 64];
        let (n, with) = b.recv_fds_with_flags(&mut buf, flags().1).unwrap();
        assert_eq!((&buf[..n], with.fds.len()), (&b"before with"[..], 2));
        let (n, with) = b.recv_fds_with_flags(&mut buf, flags().1).unwrap();
        assert_eq!((&buf[..n], with.fds.len()), (&b" after"[..], 0));
    });
}

#[test]
fn descriptors_of_two_sends_never_merge() {
    alone!();
    both(|a, b| {
        let fd = null();
        a.send_fds_with_flags(b"one", &[fd.as_fd()], flags().0).unwrap();
        a.send_fds_with_flags(b"two", &[fd.as_fd(), fd.as_fd()], flags().0).unwrap();
        let mut buf = [0; 64];
        for (text, count) in [("one", 1), ("two", 2)] {
            let (n, with) = b.recv_fds_with_flags(&mut buf, RecvFlags::DONTWAIT).unwrap();
            assert_eq!((&buf[..n], with.fds.len()), (text.as_bytes(), count));
        }
        assert!(b.recv_fds_with_flags(&mut buf, RecvFlags::DONTWAIT).unwrap_err().would_block());
    });
}

#[test]
fn they_come_with_the_first_byte_and_once() {
    alone!();
    both(|a, b| {
        a.send_fds_with_flags(b"abcdef", &[null().as_fd()], flags().0).unwrap();
        let mut two = [0; 2];
        assert_eq!(b.recv_fds_with_flags(&mut two, flags().1).unwrap().1.fds.len(), 1);
        assert_eq!(b.recv_fds_with_flags(&mut two, flags().1).unwrap().1.fds.len(), 0);
        a.send_with_flags(b"ghij", flags().0).unwrap();
        let mut buf = [0; 64];
        let (n, with) = b.recv_fds_with_flags(&mut buf, flags().1).unwrap();
        assert_eq!((&buf[..n], with.fds.len()), (&b"efghij"[..], 0), "the rest is bytes like others");
    });
}

#[test]
fn a_wait_for_all_ends_behind_descriptors() {
    alone!();
    both(|a, b| {
        a.send_with_flags(b"12", flags().0).unwrap();
        a.send_fds_with_flags(b"34", &[null().as_fd()], flags().0).unwrap();
        a.send_with_flags(b"56", flags().0).unwrap();
        let mut buf = [0; 6];
        let (n, with) = b.recv_fds_with_flags(&mut buf, RecvFlags::WAITALL).unwrap();
        assert_eq!((&buf[..n], with.fds.len()), (&b"1234"[..], 1));
    });
}

#[test]
fn who_does_not_ask_for_them_closes_them() {
    alone!();
    both(|a, b| {
        let before = descriptors();
        for _ in 0..100 {
            a.send_fds_with_flags(b"xy", &[null().as_fd(); 3], flags().0).unwrap();
            let mut buf = [0; 2];
            assert_eq!(b.recv_with_flags(&mut buf, flags().1).unwrap(), 2);
        }
        // The channel's two ends are open, if there is a channel.
        assert!(descriptors() <= before + 2, "{} of {before}", descriptors());
    });
}

#[test]
fn undelivered_ones_are_closed_with_the_end() {
    alone!();
    both(|a, b| {
        let (mut r, w) = pipe();
        a.send_fds_with_flags(b"x", &[w.as_fd()], flags().0).unwrap();
        drop(w);
        // A peek reaches the descriptors without taking them.
        b.recv_with_flags(&mut [0; 1], RecvFlags::PEEK).unwrap();
        let (c, d) = Stream::pair_with(&small()).unwrap();
        let (mut r2, w2) = pipe();
        c.send_fds_with_flags(b"x", &[w2.as_fd()], flags().0).unwrap();
        drop((c, d, w2));
        assert_eq!(r2.read(&mut [0; 1]).unwrap(), 0, "nobody can write any more");
        let (_, with) = b.recv_fds_with_flags(&mut [0; 1], flags().1).unwrap();
        assert_eq!(with.fds.len(), 1);
        drop(with);
        assert_eq!(r.read(&mut [0; 1]).unwrap(), 0);
    });
}

#[test]
fn a_peek_hands_out_copies() {
    alone!();
    both(|a, b| {
        a.send_fds_with_flags(b"x", &[null().as_fd()], flags().0).unwrap();
        for _ in 0..2 {
            assert_eq!(b.recv_fds_with_flags(&mut [0; 1], RecvFlags::PEEK).unwrap().1.fds.len(), 1);
        }
        assert_eq!(b.recv_fds_with_flags(&mut [0; 1], flags().1).unwrap().1.fds.len(), 1);
    });
}

#[test]
fn limits_are_those_of_the_kernel() {
    alone!();
    both(|a, b| {
        let fd = null();
        let many = vec![fd.as_fd(); 254];
        let errno = |r: Result<usize>| r.unwrap_err().raw_os_error();
        assert_eq!(errno(a.send_fds_with_flags(b"x", &many, flags().0)), 22, "EINVAL");
        assert_eq!(
            a.send_fds_with_flags(b"", &[fd.as_fd()], flags().0).unwrap(),
            0,
            "dropped, as nothing travels"
        );
        assert_eq!(a.send_fds_with_flags(b"x", &many[..253], flags().0).unwrap(), 1);
        let (n, with) = b.recv_fds_with_flags(&mut [0; 8], flags().1).unwrap();
        assert_eq!((n, with.fds.len(), with.truncated), (1, 253, false));
    });
}

#[test]
fn a_sender_that_does_not_wait_is_told_before_anything_is_sent() {
    alone!();
    let (a, b) = Stream::pair_with(&small()).unwrap();
    while a.send_with_flags(&[0; 500], SendFlags::DONTWAIT).is_ok() {}
    let before = descriptors();
    for _ in 0..10 {
        assert!(
            a.send_fds_with_flags(b"x", &[null().as_fd()], SendFlags::DONTWAIT).unwrap_err().would_block()
        );
    }
    assert!(descriptors() <= before + 2);
    let mut buf = vec![0; 1 << 16];
    while b.recv_with_flags(&mut buf, RecvFlags::DONTWAIT).is_ok() {}
    a.send_fds_with_flags(b"x", &[null().as_fd()], SendFlags::DONTWAIT).unwrap();
    assert_eq!(b.recv_fds_with_flags(&mut buf, flags().1).unwrap().1.fds.len(), 1);
}

#[test]
fn a_process_without_room_for_them_loses_them_and_is_told() {
    alone!();
    both(|a, b| {
        let (mut r, w) = pipe();
        a.send_fds_with_flags(b"first", &[null().as_fd()], flags().0).unwrap();
        assert_eq!(b.recv_fds_with_flags(&mut [0; 5], flags().1).unwrap().1.fds.len(), 1);
        a.send_fds_with_flags(b"x", &[w.as_fd(), w.as_fd()], flags().0).unwrap();
        drop(w);
        let mut hoard: Vec<File> = Vec::new();
        let old = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let low = rustix::process::Rlimit {
            current: Some(onecopy_testing::descriptors() as u64 + 4),
            maximum: old.maximum,
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, low).unwrap();
        while let Ok(file) = File::open("/dev/null") {
            hoard.push(file);
        }
        hoard.pop();
        let (n, with) = b.recv_fds_with_flags(&mut [0; 8], flags().1).unwrap();
        rustix::process::setrlimit(rustix::process::Resource::Nofile, old).unwrap();
        assert_eq!((n, with.truncated), (1, true));
        assert!(with.fds.len() <= 1);
        drop((with, hoard));
        assert_eq!(r.read(&mut [0; 1]).unwrap(), 0, "what was lost is closed");
    });
}

#[test]
fn thousands_travel_in_order_with_their_bytes() {
    alone!();
    for wait in [Wait::Adaptive, Wait::Block] {
        let (a, b) = Stream::pair_with(&Config { wait, ..small() }).unwrap();
        let sender = std::thread::spawn(move || {
            for i in 0..2000u32 {
                let (r, w) = rustix::pipe::pipe().unwrap();
                rustix::io::write(&w, &i.to_le_bytes()).unwrap();
                let bytes = vec![i as u8; 1 + (i as usize * 37) % 3000];
                a.send_fds(&bytes, &[r.as_fd()]).unwrap();
                if i % 3 == 0 {
                    a.send(&[i as u8; 7]).unwrap();
                }
            }
        });
        let mut next = 0u32;
        let mut buf = [0; 1000];
        loop {
            let (n, with) = b.recv_fds(&mut buf).unwrap();
            if n == 0 {
                break;
            }
            assert!(with.fds.len() <= 1);
            for fd in with.fds {
                let mut number = [0; 4];
                File::from(fd).read_exact(&mut number).unwrap();
                assert_eq!(u32::from_le_bytes(number), next);
                assert_eq!(buf[n - 1], next as u8, "the last byte of the receive belongs to its send");
                next += 1;
            }
        }
        assert_eq!(next, 2000);
        sender.join().unwrap();
    }
}

#[test]
fn readiness_is_exact_while_descriptors_travel() {
    alone!();
    let (a, b) = Stream::pair_with(&small()).unwrap();
    let readable = |fd: BorrowedFd<'_>| {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
        let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&zero)).unwrap() > 0
    };
    b.set_nonblocking(true).unwrap();
    assert!(!readable(b.as_fd()));
    for round in 0..200 {
        a.send_fds_with_flags(b"ab", &[null().as_fd()], flags().0).unwrap();
        assert!(readable(b.as_fd()), "{round}");
        if round % 2 == 0 {
            assert_eq!(b.recv_fds_with_flags(&mut [0; 1], flags().1).unwrap().1.fds.len(), 1);
            assert!(readable(b.as_fd()), "{round}: a byte is left");
            assert_eq!(b.recv_with_flags(&mut [0; 8], flags().1).unwrap(), 1);
        } else {
            assert_eq!(b.recv_fds_with_flags(&mut [0; 8], flags().1).unwrap().1.fds.len(), 1);
        }
        assert!(b.recv_with_flags(&mut [0; 8], flags().1).unwrap_err().would_block());
        assert!(!readable(b.as_fd()), "{round}: all was taken ({})", b.as_fd().as_raw_fd());
    }
}

#[test]
fn a_peek_behind_a_send_that_was_cut_short_ends_at_the_next_mark() {
    alone!();
    let (a, b) = Stream::pair_with(&small()).unwrap();
    let null = null();
    let capacity = a.capacity().0;
    let fill = vec![b'f'; capacity / 2];
    assert_eq!(a.send_with_flags(&fill, flags().0).unwrap(), fill.len());
    let short = a.send_fds_with_flags(&vec![b's'; capacity], &[null.as_fd()], SendFlags::DONTWAIT).unwrap();
    assert!(short < capacity, "it was cut short");
    // Makes room for another mark, among the bytes that came with the first one.
    let mut buffer = vec![0; 2 * capacity];
    let taken = b.recv_with_flags(&mut buffer[..fill.len() - 10], flags().1).unwrap();
    assert_eq!(a.send_fds_with_flags(b"next", &[null.as_fd()], flags().0).unwrap(), 4);
    let peeked = b.recv_with_flags(&mut buffer, RecvFlags::PEEK).unwrap();
    let mut got = Vec::new();
    let mut rest = [0; 1 << 12];
    while got.len() < fill.len() - taken + short + 4 {
        let n = b.recv_with_flags(&mut rest, flags().1).unwrap();
        got.extend_from_slice(&rest[..n]);
    }
    assert!(peeked > 10, "it went behind the first descriptors: {peeked}");
    assert!(buffer[..peeked] == got[..peeked], "what was peeked at comes");
}
