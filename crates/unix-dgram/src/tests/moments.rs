//! Faults that came from an event at one certain moment. Each test makes the event happen there.

use crate::Datagram;
use crate::tests::lane_tests::{laned, receiver};
use onecopy_sys::fork::{Ended, child};
use onecopy_testing::alone;
use onecopy_unix::failpoint;
use onecopy_unix::{RecvFlags, SendFlags, SocketAddr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::rc::Rc;

/// Makes two sockets that are connected to each other and have sent nothing, and lets them look for a while.
fn pairing(what: &str) -> [Rc<Datagram>; 2] {
    let name = |end: &str| {
        SocketAddr::from_abstract_name(format!("onecopy-test-{what}-{end}-{}", std::process::id())).unwrap()
    };
    let (a, b) = (Datagram::bind(name("a")).unwrap(), Datagram::bind(name("b")).unwrap());
    a.connect(name("b")).unwrap();
    b.connect(name("a")).unwrap();
    let (a, b) = (Rc::new(a), Rc::new(b));
    for round in 0..100u32 {
        // One of them finds nothing while the other goes on with the pairing; then the other way round.
        for (waits, goes_on) in [(&a, &b), (&b, &a)] {
            let other = Rc::clone(goes_on);
            failpoint::at("about to receive", move || {
                let _ = other.recv_with_flags(&mut [0; 99], RecvFlags::DONTWAIT);
            });
            let mut buffer = [0; 99];
            let got = waits.recv_with_flags(&mut buffer, RecvFlags::DONTWAIT);
            failpoint::at("", || ()); // an action that was not called still holds a socket
            assert!(got.is_err_and(|error| error.would_block()), "round {round}: {:?}", &buffer[..16]);
            let there = rustix::io::ioctl_fionread(waits.as_fd()).unwrap();
            assert_eq!((there, waits.readable_bytes().unwrap()), (0, 0), "round {round}");
        }
    }
    [a, b]
}

/// A socket that has nothing to send says nothing. What there is to say goes with the first datagrams of
/// each.
#[test]
fn a_meeting_of_two_that_send_nothing_puts_nothing_into_their_queues() {
    alone!();
    let [a, b] = pairing("says-nothing");
    for _ in 0..2 {
        for (one, other) in [(&a, &b), (&b, &a)] {
            one.send(b"hello").unwrap();
            assert_eq!(other.recv(&mut [0; 99]).unwrap(), 5);
        }
    }
    assert!(a.path().is_shared_memory() && b.path().is_shared_memory(), "{:?} {:?}", a.path(), b.path());
}

/// A peer goes away before this side sends its proof. The send that was to carry the proof is told, and
/// nothing else was sent.
#[test]
fn a_peer_that_goes_before_a_sign_is_told_of_to_the_send() {
    alone!();
    let [a, b] = pairing("goes");
    drop(b);
    let told = [(); 3].map(|()| a.send_with_flags(b"x", SendFlags::DONTWAIT).unwrap_err().raw_os_error());
    let [refused, none] = [Errno::CONNREFUSED, Errno::NOTCONN].map(Errno::raw_os_error);
    assert_eq!(told, [refused, none, none]);
}

/// What each of some sends is told.
fn told(sender: &Datagram, sends: usize) -> Vec<Errno> {
    let send = || sender.send_with_flags(b"x", SendFlags::DONTWAIT).unwrap_err().raw_os_error();
    std::iter::repeat_with(|| Errno::from_raw_os_error(send())).take(sends).collect()
}

/// Sends datagrams of a byte until there is no room for another one.
fn fill_to_the_brim(sender: &Datagram) {
    let capacity = sender.socket().tx_ring().unwrap().capacity() as u64;
    while sender.socket().unread_in_ring() < capacity {
        sender.send_with_flags(b"x", SendFlags::DONTWAIT).unwrap();
    }
}

/// A filler and the doorbell that follows it are two sends. The kernel says once that the peer is gone, and then
/// forgets it: what it says to the doorbell, the program is told.
#[test]
fn a_peer_that_goes_behind_a_filler_is_told_of_to_the_send() {
    alone!();
    for mirrored in [false, true] {
        let (a, b) = Datagram::pair().unwrap();
        a.set_nonblocking(mirrored).unwrap();
        failpoint::at("filler sent", move || drop(b));
        let sends = std::iter::repeat_with(|| a.send_with_flags(b"x", SendFlags::DONTWAIT));
        let first = sends.filter_map(Result::err).find(|error| !error.would_block()).unwrap();
        assert_eq!(
            Errno::from_raw_os_error(first.raw_os_error()),
            Errno::CONNREFUSED,
            "mirrored: {mirrored}"
        );
        assert_eq!(told(&a, 2), [Errno::NOTCONN; 2], "mirrored: {mirrored}");
    }
}

/// Nobody has sent anything when a socket becomes non-blocking, and a filler goes all the same.
#[test]
fn a_peer_that_goes_before_the_filler_of_no_send_is_told_of_to_the_next_one() {
    alone!();
    let full = || {
        let (a, b) = Datagram::pair().unwrap();
        fill_to_the_brim(&a);
        failpoint::at("parking", move || drop(b));
        a.set_nonblocking(true).unwrap();
        a
    };
    assert_eq!(told(&full(), 3), [Errno::CONNREFUSED, Errno::NOTCONN, Errno::NOTCONN]);

    // What comes first for the kernel comes first here.
    let a = full();
    let long = a.send_with_flags(&vec![0; 1 << 24], SendFlags::DONTWAIT).unwrap_err();
    assert_eq!(Errno::from_raw_os_error(long.raw_os_error()), Errno::MSGSIZE);
    assert_eq!(told(&a, 2), [Errno::CONNREFUSED, Errno::NOTCONN]);

    // Room is not reserved for nobody.
    let a = full();
    let room = a.reserve_with_flags(1, SendFlags::DONTWAIT).unwrap_err();
    assert_eq!(Errno::from_raw_os_error(room.raw_os_error()), Errno::CONNREFUSED);
    assert_eq!(told(&a, 1), [Errno::NOTCONN]);

    // And another peer has nothing to do with it.
    let (a, (_b, name)) = (full(), receiver("another"));
    a.connect(&name).unwrap();
    a.send_with_flags(b"x", SendFlags::DONTWAIT).unwrap();
}

/// A sender with a lane tells its new name before its next datagram.
#[test]
fn a_receiver_that_goes_before_a_new_name_is_told_of_to_the_send() {
    alone!();
    let (receiver, name) = receiver("renamed");
    let a = laned(&receiver, &name);
    a.autobind().unwrap();
    drop(receiver);
    assert_eq!(told(&a, 3), [Errno::CONNREFUSED, Errno::NOTCONN, Errno::NOTCONN]);
}

#[test]
fn a_socket_that_another_thread_drops_while_a_fork_lists_it_stops_nobody() {
    alone!();
    let (hears, tells) = rustix::pipe::pipe().unwrap();
    // In a child, since the fault is a fork that never returns.
    let forker = child(|| {
        let sockets = Datagram::pair().unwrap();
        failpoint::at("listed", move || drop(sockets));
        assert_eq!(child(|| 0).unwrap().wait(), Ended::Returned(0));
        drop(Datagram::pair().unwrap());
        rustix::io::write(&tells, &[1]).unwrap();
        0
    });
    let forker = forker.unwrap();
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    let spoke = poll(&mut [PollFd::new(&hears, PollFlags::IN)], Some(&limit));
    assert_eq!(spoke, Ok(1), "the fork waits for itself");
    assert_eq!(forker.wait(), Ended::Returned(0));
}
