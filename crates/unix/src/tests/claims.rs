//! Unexpected contents of the channel: another process's identity, and too many messages.

use super::alone;
use crate::ancillary::attached::SendAncillary;
use crate::connection::Connection;
use crate::connection::tx::Tx;
use crate::control;
use crate::core::kind::Kind;
use crate::core::{PASS_CREDENTIALS, PASS_PIDFD};
use crate::{Config, Credentials, RecvFlags, Result, SendFlags};
use onecopy_copy::{Hint, Policy, Reader};
use onecopy_ring::Mark;
use onecopy_ring::record::{Frame, HEADER, Identity, With};
use onecopy_sync::atomic::Ordering::{Relaxed, Release};
use onecopy_sys::fork::{Ended, child};
use onecopy_testing::writable;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

const KINDS: [Kind; 2] = [Kind::Stream, Kind::SeqPacket];
const NOW: SendFlags = SendFlags::DONTWAIT;
/// The attacker's user id, which is not root's.
const HIM: u32 = 4711;

fn small() -> Config {
    Config { send_buffer: Some(2048), receive_buffer: Some(2048), ..Config::default() }
}

fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
    result.unwrap_err().raw_os_error()
}

/// Makes this thread that user and group from here on.
fn become_user(uid: u32, gid: u32) {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
}

/// Runs `work` in a thread of that user.
fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| {
        let thread = s.spawn(|| {
            become_user(uid, uid);
            work()
        });
        thread.join().unwrap()
    })
}

/// Makes two ends as [`HIM`]. The second one asks for the sender's identity.
fn his_pair(kind: Kind) -> (Arc<Connection>, Arc<Connection>) {
    let (a, b) = as_user(HIM, || Connection::pair(kind, &small()).unwrap());
    b.pass(PASS_CREDENTIALS, true).unwrap();
    // Before Linux 6.5 this option does not exist.
    let _ = b.pass(PASS_PIDFD, true);
    (a, b)
}

fn recv(b: &Connection) -> Result<(usize, Option<Credentials>)> {
    let (mut buffer, flags) = ([0; 9], RecvFlags::DONTWAIT);
    match b.kind() {
        Kind::Stream => b
            .recv_ancillary(&mut [IoSliceMut::new(&mut buffer)], flags)
            .map(|(n, with)| (n, with.credentials)),
        _ => b
            .recv_record_ancillary(&mut [IoSliceMut::new(&mut buffer)], flags)
            .map(|(got, with)| (got.len, with.credentials)),
    }
}

/// Returns a socket on which a process of that user and group has answered, and the process's id.
fn answered(uid: u32, gid: u32) -> (OwnedFd, i32) {
    let (his, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    sockopt::set_socket_passcred(&his, true).unwrap();
    let victim = child(|| {
        become_user(uid, gid);
        // The answer happens to be the number of a first message.
        i32::from(rustix::net::send(&theirs, &[0; 8], rustix::net::SendFlags::NOSIGNAL) != Ok(8))
    })
    .unwrap();
    let pid = victim.pid();
    assert_eq!(victim.wait(), Ended::Returned(0));
    (his, pid)
}

/// Sends "abc" with the identity of the process that answered on that socket.
fn send_as_whom_answered(a: &Connection, socket: &OwnedFd) {
    control::send_fd(a.fd(), &[0], socket.as_fd()).unwrap();
    let mut tx = a.tx().lock();
    let Tx::Ring(ring) = &mut *tx else { panic!("a pair begins with rings") };
    let hint = Hint { policy: Policy::Cached, footprint: 3, reader: Reader::Unknown };
    if a.kind() == Kind::Stream {
        let producer = ring.producer();
        producer.mark(0, Mark::Identity { said: true });
        let stride = producer.stride();
        producer.publish_marks(stride);
        producer.copy_in(0, b"abc", hint);
        producer.publish(3);
    } else {
        ring.producer().copy_in(HEADER, b"abc", hint);
        ring.producer().publish_frame(Frame { len: 3, end: true, with: With::new(0, Identity::Said) });
    }
}

#[test]
fn another_users_answer_is_not_taken_for_who_sends() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    alone!();
    for kind in KINDS {
        for (uid, gid) in [(0, 0), (65534, 65534), (HIM, 0), (0, HIM), (HIM + 1, HIM)] {
            let (socket, _) = answered(uid, gid);
            let (a, b) = his_pair(kind);
            send_as_whom_answered(&a, &socket);
            assert_eq!(errno(recv(&b)), Errno::PROTO.raw_os_error(), "{kind:?} {uid} {gid}");
            assert_eq!(b.counters().read().protocol_errors, 1);
            assert_eq!(errno(recv(&b)), Errno::PROTO.raw_os_error(), "it is over");
        }
        // A receiver that asks for no identity gets none, and loses nothing.
        let (socket, _) = answered(0, 0);
        let (a, b) = his_pair(kind);
        let _ = b.pass(PASS_PIDFD, false);
        b.pass(PASS_CREDENTIALS, false).unwrap();
        send_as_whom_answered(&a, &socket);
        assert_eq!(recv(&b).unwrap(), (3, None));
    }
}

/// This is possible, and documented: a user may name any of its own processes as the sender.
#[test]
fn a_process_of_the_same_user_can_be_named() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    alone!();
    for kind in KINDS {
        let (socket, _) = answered(HIM, HIM);
        let (a, b) = his_pair(kind);
        send_as_whom_answered(&a, &socket);
        let (n, who) = recv(&b).unwrap();
        assert_eq!((n, who.map(|who| (who.uid, who.gid))), (3, Some((HIM, HIM))), "{kind:?}");
    }
}

#[test]
fn who_sends_as_itself_is_believed_whether_it_is_so_really_or_effectively() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    alone!();
    let own = |uid| Some(Credentials { uid, gid: uid, ..Credentials::own() });
    for kind in KINDS {
        let send = |a: &Connection| match kind {
            Kind::Stream => a.send_msg(&[IoSlice::new(b"abc")], SendAncillary::default(), NOW),
            _ => a.send_record(&[IoSlice::new(b"abc")], NOW),
        };
        let (a, b) = his_pair(kind);
        as_user(HIM, || send(&a).unwrap());
        assert_eq!(recv(&b).unwrap(), (3, own(HIM)));
        std::thread::scope(|s| {
            s.spawn(|| {
                let (real, his) =
                    ((Uid::from_raw(1), Gid::from_raw(1)), (Uid::from_raw(HIM), Gid::from_raw(HIM)));
                rustix::thread::set_thread_res_gid(real.1, his.1, his.1).unwrap();
                rustix::thread::set_thread_res_uid(real.0, his.0, his.0).unwrap();
                send(&a).unwrap();
            });
        });
        assert_eq!(recv(&b).unwrap(), (3, own(HIM)));
        // Root may state any identity, and so may a process that was root when it connected.
        let (a, b) = Connection::pair(kind, &small()).unwrap();
        b.pass(PASS_CREDENTIALS, true).unwrap();
        as_user(HIM, || send(&a).unwrap());
        assert_eq!(recv(&b).unwrap(), (3, own(HIM)));
    }
}

fn fds<'a>(fd: &'a [rustix::fd::BorrowedFd<'a>]) -> SendAncillary<'a> {
    SendAncillary::fds(fd)
}

fn send_fd(a: &Connection, flags: SendFlags) -> Result<usize> {
    let fd = [a.fd()];
    match a.kind() {
        Kind::Stream => a.send_msg(&[IoSlice::new(b"x")], fds(&fd), flags),
        _ => a.send_record_with(&[IoSlice::new(b"x")], fds(&fd), flags),
    }
}

/// Makes the channel narrow: it has room for a few messages only, as where the limit for sockets' memory is
/// low.
fn narrow(a: &Connection) {
    let mut tx = a.tx().lock();
    let Tx::Ring(ring) = &mut *tx else { panic!("a pair begins with rings") };
    let channel = ring.channel(a).unwrap();
    sockopt::set_socket_send_buffer_size(&*channel, 1).unwrap();
}

#[test]
fn a_full_channel_is_waited_for_as_room_is() {
    alone!();
    for kind in KINDS {
        let (a, b) = Connection::pair(kind, &small()).unwrap();
        a.settings().set_write_timeout(Some(super::PATIENCE));
        narrow(&a);
        let sent = (0..).take_while(|_| send_fd(&a, NOW).is_ok()).count();
        assert!((1..40).contains(&sent), "{kind:?}: the channel was to be full, not the ring: {sent}");
        assert_eq!(errno(send_fd(&a, NOW)), Errno::AGAIN.raw_os_error());
        assert!(!writable(a.fd()), "{kind:?}: an epoll loop would spin");
        let got = (0..).take_while(|_| recv(&b).is_ok()).count();
        assert_eq!(got, sent);
        assert!(writable(a.fd()));
        // A sender that may block sleeps, however often the channel is full.
        std::thread::scope(|s| {
            s.spawn(|| (0..200).for_each(|_| assert_eq!(send_fd(&a, SendFlags::empty()).unwrap(), 1)));
            let mut got = 0;
            while got < 200 {
                match recv(&b) {
                    Ok(_) => got += 1,
                    Err(_) => std::thread::sleep(Duration::from_micros(100)),
                }
            }
        });
        assert_eq!((a.counters().read().protocol_errors, b.counters().read().protocol_errors), (0, 0));
    }
}

#[test]
fn who_takes_marks_and_leaves_their_messages_is_a_liar() {
    alone!();
    for kind in KINDS {
        for flags in [NOW, SendFlags::empty()] {
            let (a, _b) = Connection::pair(kind, &small()).unwrap();
            a.settings().set_write_timeout(Some(super::PATIENCE));
            let ring = a.tx_ring().unwrap();
            let mut sent = 0;
            let error = loop {
                // The misbehaving receiver asks again each time, and gives all room back.
                sent += 1;
                ring.header().info.0.asks_identity.store(sent, Relaxed);
                let result = match kind {
                    Kind::Stream => a.send_msg(&[IoSlice::new(b"x")], SendAncillary::default(), flags),
                    _ => a.send_record(&[IoSlice::new(b"x")], flags),
                };
                let head = match &*a.tx().lock() {
                    Tx::Ring(ring) => ring.handover().positions[0],
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
            assert_eq!(a.counters().read().protocol_errors, 1);
        }
    }
}
