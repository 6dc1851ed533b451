//! What comes through the channel besides what is announced: too much.

use crate::end::End;
use crate::making::Kind;
use crate::rights::Attached;
use crate::tx::Tx;
use crate::{Config, Credentials, RecvFlags, Result, SendFlags};
use onecopy_sync::atomic::Ordering::{Relaxed, Release};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::time::Duration;

const KINDS: [Kind; 2] = [Kind::Stream, Kind::SeqPacket];
const NOW: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

fn small() -> Config {
    Config { send_buffer: Some(2048), receive_buffer: Some(2048), ..Config::default() }
}

fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
    result.unwrap_err().raw_os_error()
}

fn recv(b: &End) -> Result<(usize, Option<Credentials>)> {
    let (mut buffer, flags) = ([0; 9], RecvFlags::DONTWAIT);
    match b.kind {
        Kind::Stream => b.recv_ancillary(&mut buffer, flags).map(|(n, with)| (n, with.credentials)),
        _ => b.recv_record_ancillary(&mut buffer, flags).map(|(got, with)| (got.len, with.credentials)),
    }
}

fn fds<'a>(fd: &'a [rustix::fd::BorrowedFd<'a>]) -> Attached<'a> {
    Attached::fds(fd)
}

fn send_fd(a: &End, flags: SendFlags) -> Result<usize> {
    let fd = [a.fd()];
    match a.kind {
        Kind::Stream => a.send_with(b"x", fds(&fd), flags),
        _ => a.send_record_with(&[std::io::IoSlice::new(b"x")], fds(&fd), flags),
    }
}

fn writable(a: &End) -> bool {
    let mut socket = [PollFd::new(&a.fd, PollFlags::OUT)];
    poll(&mut socket, Some(&Default::default())).unwrap() > 0
}

/// A channel that has room for a few messages only: where the limit for sockets' memory is low.
fn narrow(a: &End) {
    let mut tx = a.tx.lock();
    let Tx::Ring(ring) = &mut *tx else { panic!("a pair begins with rings") };
    let channel = a.channel(ring).unwrap();
    sockopt::set_socket_send_buffer_size(&*channel, 1).unwrap();
}

#[test]
fn a_full_channel_is_waited_for_as_room_is() {
    for kind in KINDS {
        let (a, b) = End::pair(kind, &small()).unwrap();
        a.settings.set_write_timeout(Some(Duration::from_secs(10)));
        narrow(&a);
        let sent = (0..).take_while(|_| send_fd(&a, NOW).is_ok()).count();
        assert!((1..40).contains(&sent), "{kind:?}: the channel was to be full, not the ring: {sent}");
        assert_eq!(errno(send_fd(&a, NOW)), Errno::AGAIN.raw_os_error());
        assert!(!writable(&a), "{kind:?}: an epoll loop would spin");
        let got = (0..).take_while(|_| recv(&b).is_ok()).count();
        assert_eq!(got, sent);
        assert!(writable(&a));
        // And who blocks sleeps, however often it is full.
        std::thread::scope(|s| {
            s.spawn(|| (0..200).for_each(|_| assert_eq!(send_fd(&a, SendFlags::NOSIGNAL).unwrap(), 1)));
            let mut got = 0;
            while got < 200 {
                match recv(&b) {
                    Ok(_) => got += 1,
                    Err(_) => std::thread::sleep(Duration::from_micros(100)),
                }
            }
        });
        assert_eq!((a.counters.read().protocol_errors, b.counters.read().protocol_errors), (0, 0));
    }
}

#[test]
fn who_takes_marks_and_leaves_their_messages_is_a_liar() {
    for kind in KINDS {
        for flags in [NOW, SendFlags::NOSIGNAL] {
            let (a, _b) = End::pair(kind, &small()).unwrap();
            a.settings.set_write_timeout(Some(Duration::from_secs(10)));
            let ring = a.tx_ring.get().unwrap();
            let mut sent = 0;
            let error = loop {
                // The liar asks again each time, and gives all room back.
                sent += 1;
                ring.header().info.0.asks_who.store(sent, Relaxed);
                let result = match kind {
                    Kind::Stream => a.send_with(b"x", Attached::default(), flags),
                    _ => a.send_record(&[std::io::IoSlice::new(b"x")], flags),
                };
                let head = match &*a.tx.lock() {
                    Tx::Ring(ring) => ring.producer.head(),
                    Tx::Kernel { .. } => panic!("a pair begins with rings"),
                };
                ring.header().reader.0.tail.store(head, Release);
                match result {
                    Ok(_) => assert!(sent < 100_000, "a channel without end"),
                    Err(error) => break error,
                }
            };
            assert!(sent > 64, "{kind:?}: {sent}");
            assert_eq!(error.raw_os_error(), Errno::PROTO.raw_os_error(), "{kind:?}: {error}");
            assert_eq!(a.counters.read().protocol_errors, 1);
        }
    }
}
