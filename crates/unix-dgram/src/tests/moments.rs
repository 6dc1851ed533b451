//! Faults that came from an event at one certain moment. Each test makes the event happen there.

use crate::Datagram;
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
