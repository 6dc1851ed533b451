//! Descriptors that travel with records.
#![allow(missing_docs, reason = "a test")]

use onecopy_testing::{alone, asleep, readable};
use onecopy_unix::*;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};

fn descriptors() -> usize {
    // The first socket opens descriptors that the process then keeps.
    drop(SeqPacket::pair().unwrap());
    onecopy_testing::descriptors()
}

fn config() -> Config {
    Config { receive_buffer: Some(4096), send_buffer: Some(4096), ..Config::default() }
}

const NOW: RecvFlags = RecvFlags::DONTWAIT;
const QUIET: SendFlags = SendFlags::empty();

/// Runs the test with each configuration, and checks that nothing is left open.
fn each(configs: &[Config], test: impl Fn(&SeqPacket, &SeqPacket)) {
    for config in configs {
        let before = descriptors();
        let (a, b) = SeqPacket::pair_with(config).unwrap();
        test(&a, &b);
        drop((a, b));
        assert_eq!(
            descriptors(),
            before,
            "{:?} {:?}: nothing is left open",
            config.transport,
            config.records
        );
    }
}

/// Runs the test over shared memory, and over the kernel, which shows what is expected.
fn both(test: impl Fn(&SeqPacket, &SeqPacket)) {
    let kernel = Config { transport: Transport::Kernel, ..config() };
    each(&[kernel, config()], test);
}

fn streams(test: impl Fn(&SeqPacket, &SeqPacket)) {
    each(&[Config { records: Records::Stream, ..config() }], test);
}

fn null() -> File {
    File::open("/dev/null").unwrap()
}

fn pipe() -> (File, OwnedFd) {
    let (r, w) = rustix::pipe::pipe().unwrap();
    (File::from(r), w)
}

fn fds(got: &(Received, Ancillary)) -> (usize, usize) {
    (got.0.len, got.1.fds.len())
}

#[test]
fn a_descriptor_arrives_with_its_record_and_works() {
    alone!();
    both(|a, b| {
        let (mut r, w) = pipe();
        a.send(b"before").unwrap();
        assert_eq!(a.send_fds(b"take it", &[w.as_fd()]).unwrap(), 7);
        a.send(b"after").unwrap();
        drop(w);
        let mut buf = [0; 64];
        assert_eq!(fds(&b.recv_fds(&mut buf).unwrap()), (6, 0));
        let (got, with) = b.recv_fds(&mut buf).unwrap();
        assert_eq!((&buf[..got.len], with.fds.len(), with.truncated), (&b"take it"[..], 1, false));
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
fn a_record_of_no_bytes_brings_them_too_and_is_not_the_end() {
    alone!();
    both(|a, b| {
        let fd = null();
        a.send_fds(b"", &[fd.as_fd(), fd.as_fd()]).unwrap();
        a.send_fds(b"", &[fd.as_fd()]).unwrap();
        a.shutdown(std::net::Shutdown::Write).unwrap();
        for count in [2, 1] {
            let (got, with) = b.recv_fds(&mut [0; 8]).unwrap();
            assert_eq!((got.len, got.is_end(), with.fds.len()), (0, false, count));
        }
        assert!(b.recv_fds(&mut [0; 8]).unwrap().0.is_end());
    });
}

#[test]
fn a_short_receive_gets_all_descriptors_and_loses_the_rest_of_the_bytes() {
    alone!();
    both(|a, b| {
        a.send_fds(b"abcdef", &[null().as_fd()]).unwrap();
        let (got, with) = b.recv_fds(&mut [0; 2]).unwrap();
        assert_eq!((got.len, got.full, got.flags, with.fds.len()), (2, 6, ReceivedFlags::TRUNC, 1));
        assert!(b.recv_fds_with_flags(&mut [0; 2], NOW).unwrap_err().would_block());
    });
}

#[test]
fn who_does_not_ask_closes_them_and_is_told() {
    alone!();
    both(|a, b| {
        let (mut r, w) = pipe();
        for _ in 0..3 {
            a.send_fds(b"xy", &[w.as_fd(), w.as_fd()]).unwrap();
        }
        drop(w);
        assert_eq!(b.recv_record(&mut [0; 8]).unwrap().flags, ReceivedFlags::CTRUNC);
        assert_eq!(b.recv(&mut [0; 8]).unwrap(), 2);
        drop(b.recv_borrowed(8).unwrap());
        // Every writing end is closed.
        assert_eq!(r.read(&mut [0; 1]).unwrap(), 0);
    });
}

#[test]
fn peeks_hand_out_copies() {
    alone!();
    both(|a, b| {
        a.send_fds(b"x", &[null().as_fd()]).unwrap();
        for _ in 0..3 {
            assert_eq!(fds(&b.recv_fds_with_flags(&mut [0; 1], RecvFlags::PEEK).unwrap()), (1, 1));
        }
        assert_eq!(b.recv_with_flags(&mut [0; 1], RecvFlags::PEEK).unwrap(), 1);
        assert_eq!(fds(&b.recv_fds(&mut [0; 1]).unwrap()), (1, 1));
    });
}

#[test]
fn limits() {
    alone!();
    both(|a, b| {
        let fd = null();
        let many = vec![fd.as_fd(); 254];
        assert_eq!(a.send_fds(b"x", &many).unwrap_err().raw_os_error(), 22, "EINVAL");
        assert_eq!(a.send_fds(b"x", &many[..253]).unwrap(), 1);
        assert_eq!(fds(&b.recv_fds(&mut [0; 8]).unwrap()), (1, 253));
        let long = vec![0; a.max_record() + 1];
        assert_eq!(a.send_fds(&long, &many[..1]).unwrap_err().raw_os_error(), 90, "EMSGSIZE");
        assert_eq!(a.send_fds(&long[1..], &many[..1]).unwrap(), long.len() - 1, "no shorter for them");
        let mut buf = vec![0; long.len()];
        assert_eq!(fds(&b.recv_fds(&mut buf).unwrap()), (long.len() - 1, 1));
    });
}

#[test]
fn a_full_queue_takes_none_of_it_and_loses_nothing() {
    alone!();
    both(|a, b| {
        let (mut r, w) = pipe();
        let now = QUIET | SendFlags::DONTWAIT;
        let mut sent = 0;
        while a.send_fds_with_flags(b"x", &[w.as_fd()], now).is_ok() {
            sent += 1;
            assert!(sent < 10_000);
        }
        assert!(sent >= 8);
        assert!(a.send_fds_with_flags(b"x", &[w.as_fd()], now).unwrap_err().would_block());
        drop(w);
        for _ in 0..sent {
            assert_eq!(fds(&b.recv_fds_with_flags(&mut [0; 8], NOW).unwrap()), (1, 1));
        }
        assert!(b.recv_fds_with_flags(&mut [0; 8], NOW).unwrap_err().would_block());
        assert_eq!(r.read(&mut [0; 1]).unwrap(), 0);
        a.send_fds_with_flags(b"x", &[null().as_fd()], now).unwrap();
        assert_eq!(fds(&b.recv_fds_with_flags(&mut [0; 8], NOW).unwrap()), (1, 1));
    });
}

#[test]
fn what_nobody_received_is_closed_with_the_socket() {
    alone!();
    for transport in [Transport::Kernel, Transport::Auto] {
        let (mut r, w) = pipe();
        let (a, b) = SeqPacket::pair_with(&Config { transport, ..config() }).unwrap();
        a.send_fds(b"x", &[w.as_fd()]).unwrap();
        a.send_fds(b"y", &[w.as_fd()]).unwrap();
        assert_eq!(fds(&b.recv_fds_with_flags(&mut [0; 1], RecvFlags::PEEK).unwrap()), (1, 1));
        drop((a, b, w));
        assert_eq!(r.read(&mut [0; 1]).unwrap(), 0, "{transport:?}");
    }
}

/// The receiver finds the channel's record behind doorbells and fillers, and readiness stays right.
#[test]
fn the_channel_is_found_wherever_it_lies() {
    alone!();
    both(|a, b| {
        a.set_nonblocking(true).unwrap();
        b.set_nonblocking(true).unwrap();
        assert!(!readable(b));
        // The queue has a doorbell, a filler and its doorbell.
        let mut sent = 0;
        while a.send(&[7; 100]).is_ok() {
            sent += 1;
        }
        // Then room is made for the record that brings the channel, with the filler still there.
        let mut buf = [0; 200];
        assert_eq!(b.recv(&mut buf).unwrap(), 100);
        let mut with = 0;
        for _ in 0..2 {
            with += usize::from(a.send_fds(b"x", &[null().as_fd()]).is_ok());
        }
        let mut came = 0;
        for _ in 1..sent + with {
            assert!(readable(b));
            came += b.recv_fds(&mut buf).unwrap().1.fds.len();
        }
        assert_eq!(came, with);
        assert!(b.recv(&mut buf).unwrap_err().would_block());
        assert!(!readable(b));
        for round in 0..20 {
            a.send_fds(b"y", &[null().as_fd()]).unwrap();
            assert!(readable(b), "{round}");
            assert_eq!(fds(&b.recv_fds(&mut buf).unwrap()), (1, 1));
            assert!(b.recv(&mut buf).unwrap_err().would_block());
            assert!(!readable(b), "{round}");
        }
    });
}

/// Data is left unread, so there must be a doorbell where the channel was behind one.
#[test]
fn records_behind_the_first_descriptor_stay_announced() {
    alone!();
    both(|a, b| {
        b.set_nonblocking(true).unwrap();
        assert!(b.recv(&mut [0; 8]).unwrap_err().would_block());
        a.send(b"one").unwrap();
        a.send_fds(b"two", &[null().as_fd()]).unwrap();
        a.send(b"three").unwrap();
        for _ in 0..3 {
            assert!(readable(b));
            b.recv_fds(&mut [0; 8]).unwrap();
        }
        assert!(b.recv(&mut [0; 8]).unwrap_err().would_block());
        assert!(!readable(b));
    });
}

#[test]
fn a_sleeper_is_woken_by_the_first_descriptor() {
    alone!();
    both(|a, b| {
        std::thread::scope(|s| {
            let sleeper = asleep(s, || fds(&b.recv_fds(&mut [0; 8]).unwrap()));
            a.send_fds(b"x", &[null().as_fd()]).unwrap();
            assert_eq!(sleeper.join().unwrap(), (1, 1));
        });
    });
}

#[test]
fn many_from_many_threads_stay_with_their_records() {
    alone!();
    both(|a, b| {
        const EACH: usize = 300;
        std::thread::scope(|s| {
            for who in 0..3u8 {
                s.spawn(move || {
                    for i in 0..EACH {
                        let (r, w) = rustix::pipe::pipe().unwrap();
                        File::from(w).write_all(&[who, i as u8]).unwrap();
                        if i % 3 == 0 {
                            a.send(b"").unwrap();
                        }
                        a.send_fds(&[who, i as u8], &[r.as_fd()]).unwrap();
                    }
                });
            }
            let mut buf = [0; 8];
            let mut got = 0;
            while got < 3 * EACH {
                let (record, with) = b.recv_fds(&mut buf).unwrap();
                assert_eq!(with.fds.len(), usize::from(record.len > 0));
                for fd in with.fds {
                    let mut said = [9; 2];
                    File::from(fd).read_exact(&mut said).unwrap();
                    assert_eq!(said, buf[..2]);
                    got += 1;
                }
            }
        });
    });
}

#[test]
fn out_of_descriptors_a_receive_says_so_and_goes_on() {
    alone!();
    both(|a, b| {
        a.send_fds(b"first", &[null().as_fd()]).unwrap();
        assert_eq!(fds(&b.recv_fds(&mut [0; 5]).unwrap()), (5, 1));
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
fn a_killed_peers_descriptors_arrive() {
    alone!();
    both(|a, b| {
        a.send_fds(b"x", &[null().as_fd()]).unwrap();
        // A peer's death shuts the control socket down like this.
        rustix::net::shutdown(a.as_fd(), rustix::net::Shutdown::Both).unwrap();
        assert_eq!(fds(&b.recv_fds(&mut [0; 8]).unwrap()), (1, 1));
        assert!(b.recv_fds(&mut [0; 8]).unwrap().0.is_end());
    });
}

#[test]
fn stream_records_bring_them_with_the_first_byte_of_their_part() {
    alone!();
    streams(|a, b| {
        let (fd, mut buf) = (null(), [0; 8]);
        a.send(b"ab").unwrap();
        a.send_fds(b"cdef", &[fd.as_fd()]).unwrap();
        a.send_fds_with_flags(b"gh", &[fd.as_fd(), fd.as_fd()], QUIET | SendFlags::EOR).unwrap();
        let all = RecvFlags::WAITALL;
        for (wanted, len, count, flags) in [
            (8, 2, 0, ReceivedFlags::empty()),
            (2, 2, 1, ReceivedFlags::empty()),
            (8, 2, 0, ReceivedFlags::empty()),
            (8, 2, 2, ReceivedFlags::EOR),
        ] {
            let (peeked, with) = b.recv_fds_with_flags(&mut buf[..wanted], RecvFlags::PEEK).unwrap();
            assert_eq!((peeked.len, with.fds.len(), peeked.flags), (len, count, flags));
            drop(with);
            let (got, with) = b.recv_fds_with_flags(&mut buf[..wanted], all).unwrap();
            assert_eq!((got.len, with.fds.len(), got.flags), (len, count, flags));
        }
        // The first of these has neither a byte nor an end that descriptors could come with.
        a.send_fds(b"", &[fd.as_fd()]).unwrap();
        a.send_fds_with_flags(b"", &[fd.as_fd()], QUIET | SendFlags::EOR).unwrap();
        let (got, with) = b.recv_fds(&mut buf).unwrap();
        assert_eq!((got.len, with.fds.len(), got.flags), (0, 1, ReceivedFlags::EOR));
        assert!(b.recv_with_flags(&mut buf, NOW).unwrap_err().would_block());
    });
}

#[test]
fn a_stream_record_longer_than_the_ring_brings_them_with_its_first_bytes() {
    alone!();
    streams(|a, b| {
        const LEN: usize = 100_000;
        std::thread::scope(|s| {
            s.spawn(|| a.send_fds_with_flags(&[5; LEN], &[null().as_fd()], QUIET | SendFlags::EOR).unwrap());
            let (mut buf, mut got) = ([0; 3000], (0, 0));
            loop {
                let (part, with) = b.recv_fds(&mut buf).unwrap();
                assert!(with.fds.is_empty() || got.0 == 0);
                got = (got.0 + part.len, got.1 + with.fds.len());
                if part.flags.contains(ReceivedFlags::EOR) {
                    break;
                }
            }
            assert_eq!(got, (LEN, 1));
        });
    });
}

#[test]
fn over_the_kernel_before_the_upgrade_and_over_memory_after_it() {
    alone!();
    for records in [Records::Atomic, Records::Stream] {
        let before = descriptors();
        let config = Config { records, ..config() };
        let name =
            SocketAddr::from_abstract_name(format!("onecopy-rights-{}-{records:?}", std::process::id()))
                .unwrap();
        let listener = SeqListener::bind_with(name.clone(), &config).unwrap();
        let client = SeqPacket::connect_with(name, &config).unwrap();
        let eor = QUIET | SendFlags::EOR;
        let (fd, mut buf) = (null(), [0; 8]);
        if records == Records::Atomic {
            client.send_fds_with_flags(b"early", &[fd.as_fd()], eor).unwrap();
        }
        let (server, _) = listener.accept().unwrap();
        server.send_fds_with_flags(b"hi", &[fd.as_fd()], eor).unwrap();
        if records == Records::Atomic {
            assert_eq!(fds(&server.recv_fds(&mut buf).unwrap()), (5, 1));
        }
        assert_eq!(fds(&client.recv_fds_with_flags(&mut buf, RecvFlags::PEEK).unwrap()), (2, 1));
        assert_eq!(fds(&client.recv_fds(&mut buf).unwrap()), (2, 1));
        for round in 0..10 {
            for (from, to) in [(&client, &server), (&server, &client)] {
                from.send_fds_with_flags(b"abc", &[fd.as_fd()], eor).unwrap();
                assert_eq!(fds(&to.recv_fds(&mut buf).unwrap()), (3, 1), "{round}");
            }
        }
        assert!(client.path().is_shared_memory() && server.path().is_shared_memory());
        drop((listener, client, server, fd));
        assert_eq!(descriptors(), before);
    }
}

/// They leave no room for what the two ends send each other.
#[test]
fn as_many_descriptors_as_go_may_go_with_the_first_record() {
    alone!();
    for (records, client_first) in
        [(Records::Atomic, true), (Records::Atomic, false), (Records::Stream, true), (Records::Stream, false)]
    {
        let before = descriptors();
        let config = Config { records, ..config() };
        let name =
            SocketAddr::from_abstract_name(format!("onecopy-most-rights-{}", std::process::id())).unwrap();
        let listener = SeqListener::bind_with(name.clone(), &config).unwrap();
        let client = SeqPacket::connect_with(name, &config).unwrap();
        let (server, _) = listener.accept().unwrap();
        let (from, to) = if client_first { (&client, &server) } else { (&server, &client) };
        let eor = QUIET | SendFlags::EOR;
        let (fd, mut buf) = (null(), [0; 8]);
        assert_eq!(from.send_fds_with_flags(b"first", &vec![fd.as_fd(); 253], eor).unwrap(), 5);
        from.send_with_flags(b"2nd", eor).unwrap();
        for flags in [RecvFlags::PEEK | NOW, NOW] {
            let got = to.recv_fds_with_flags(&mut buf, flags).unwrap();
            assert_eq!((fds(&got), &buf[..5]), ((5, 253), &b"first"[..]), "{records:?} {client_first}");
            assert_eq!(got.0.flags.contains(ReceivedFlags::EOR), records == Records::Stream);
        }
        assert_eq!(fds(&to.recv_fds_with_flags(&mut buf, NOW).unwrap()), (3, 0));
        assert!(to.recv_with_flags(&mut buf, NOW).unwrap_err().would_block(), "nothing else came");
        assert!(!readable(to));
        // An atomic server attaches its rings with its first record or never.
        let shared = client_first || records == Records::Stream;
        let carrier = if shared { Carrier::SharedMemory } else { Carrier::Kernel };
        from.send_with_flags(b"3rd", eor).unwrap();
        assert_eq!(from.path().send, carrier, "{records:?} {client_first}: nothing had to come back");
        assert_eq!(fds(&to.recv_fds_with_flags(&mut buf, NOW).unwrap()), (3, 0));
        for round in 0..3 {
            for (from, to) in [(&client, &server), (&server, &client)] {
                from.send_fds_with_flags(b"abc", &[fd.as_fd()], eor).unwrap();
                assert_eq!(fds(&to.recv_fds_with_flags(&mut buf, NOW).unwrap()), (3, 1), "{round}");
            }
        }
        assert_eq!(client.path().is_shared_memory(), shared, "{records:?} {client_first}");
        assert_eq!(server.path().is_shared_memory(), shared, "{records:?} {client_first}");
        drop((listener, client, server, fd));
        assert_eq!(descriptors(), before);
    }
}

/// Only its name tells a record of no bytes from the end, once that has come too.
#[test]
fn descriptors_of_an_empty_record_come_before_the_end() {
    alone!();
    let name = SocketAddr::from_abstract_name(format!("onecopy-empty-{}", std::process::id())).unwrap();
    let listener = SeqListener::bind(name.clone()).unwrap();
    for looks in [false, true] {
        let client = SeqPacket::connect(name.clone()).unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        client.send_fds(b"", &[write.as_fd()]).unwrap();
        drop((client, write));
        let (server, _) = listener.accept().unwrap();
        if looks {
            assert_eq!(server.readable_bytes().unwrap(), 0);
        }
        let came = server.recv_fds(&mut [0; 9]).unwrap();
        assert_eq!(fds(&came), (0, 1));
        drop(came);
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Ok(0), "its last copy was that one");
        assert!(server.recv_record(&mut [0; 9]).unwrap().flags.contains(ReceivedFlags::END));
    }
}
