//! What the kernel's sockets do, and ours do alike: each case runs over the kernel's first.

use crate::world::*;
use onecopy_net::udp::Socket;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

macro_rules! cases {
    ($($name:ident)+) => {
        mod kernel {
            $(#[test]
            fn $name() {
                super::$name::<super::UdpSocket>(&super::sides());
            })+
        }
        mod ours {
            $(#[test]
            fn $name() {
                super::$name::<super::Socket>(&super::our_sides());
            })+
        }
        mod by_the_kernel {
            $(#[test]
            fn $name() {
                if let Some(sides) = super::carried_sides() {
                    super::$name::<super::Socket>(&sides);
                }
            })+
        }
    };
}

cases! {
    datagrams_go_both_ways
    an_empty_datagram_is_one
    what_does_not_fit_is_lost
    the_whole_length_is_told_where_asked
    peeked_datagrams_stay
    who_is_connected_hears_of_the_peer_alone
    a_refusal_is_told_once
    a_refusal_is_told_by_take_error
    nothing_there_is_said
    nobody_is_said_whom_it_is_for
    what_is_too_long_is_refused
    addresses_are_given_once
    hops_are_set
    a_receive_buffer_is_doubled
    poll_tells_of_what_came
}

fn two<S: Udp>((left, right): &(Side, Side)) -> (S, S) {
    (S::bind(left, 0).unwrap(), S::bind(right, 0).unwrap())
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Errno {
    Errno::from_io_error(&result.unwrap_err()).unwrap()
}

fn datagrams_go_both_ways<S: Udp>(sides: &(Side, Side)) {
    let (a, b) = two::<S>(sides);
    let mut buffer = [0; 2000];
    for len in [1, 8, 64, 1472] {
        let data = pattern(len);
        assert_eq!(a.send_to(&data, b.local_addr()).unwrap(), len);
        let (n, from) = b.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..n], from), (&*data, a.local_addr()));
        assert_eq!(b.send_to(&buffer[..n], from).unwrap(), len);
        assert_eq!(a.recv(&mut buffer).unwrap(), len);
        assert_eq!(buffer[..len], data);
    }
}

fn an_empty_datagram_is_one<S: Udp>(sides: &(Side, Side)) {
    let (a, b) = two::<S>(sides);
    assert_eq!(a.send_to(b"", b.local_addr()).unwrap(), 0);
    a.send_to(b"next", b.local_addr()).unwrap();
    let mut buffer = [7; 10];
    assert_eq!(b.recv_from(&mut buffer).unwrap(), (0, a.local_addr()));
    assert_eq!(b.recv(&mut buffer).unwrap(), 4);
}

fn what_does_not_fit_is_lost<S: Udp>(sides: &(Side, Side)) {
    let (a, b) = two::<S>(sides);
    a.send_to(b"0123456789", b.local_addr()).unwrap();
    a.send_to(b"next", b.local_addr()).unwrap();
    a.send_to(b"last", b.local_addr()).unwrap();
    let mut buffer = [0; 4];
    assert_eq!(b.recv(&mut buffer).unwrap(), 4);
    assert_eq!(&buffer, b"0123");
    // Into no buffer, one is taken too.
    assert_eq!(b.recv(&mut []).unwrap(), 0);
    assert_eq!(b.recv(&mut buffer).unwrap(), 4);
    assert_eq!(&buffer, b"last");
}

fn the_whole_length_is_told_where_asked<S: Udp>(sides: &(Side, Side)) {
    let (a, b) = two::<S>(sides);
    a.send_to(&pattern(1000), b.local_addr()).unwrap();
    let mut buffer = [0; 4];
    assert_eq!(b.recv_trunc(&mut buffer, true).unwrap(), 1000);
    assert_eq!(b.recv_trunc(&mut buffer, false).unwrap(), 1000);
    assert_eq!(buffer, pattern(4)[..]);
    b.set_nonblocking(true).unwrap();
    assert_eq!(errno(b.recv_trunc(&mut buffer, false)), Errno::AGAIN);
}

fn peeked_datagrams_stay<S: Udp>(sides: &(Side, Side)) {
    let (a, b) = two::<S>(sides);
    a.send_to(b"first", b.local_addr()).unwrap();
    a.send_to(b"second", b.local_addr()).unwrap();
    let mut buffer = [0; 10];
    for _ in 0..2 {
        assert_eq!(b.peek_from(&mut buffer).unwrap(), (5, a.local_addr()));
    }
    assert_eq!(b.peek_from(&mut buffer[..2]).unwrap().0, 2);
    assert_eq!(b.recv(&mut buffer).unwrap(), 5);
    assert_eq!(b.recv(&mut buffer).unwrap(), 6);
}

fn who_is_connected_hears_of_the_peer_alone<S: Udp>(sides: &(Side, Side)) {
    let (a, b) = two::<S>(sides);
    let stranger = S::bind(&sides.0, 0).unwrap();
    assert_eq!(errno(b.peer_addr()), Errno::NOTCONN);
    b.connect(a.local_addr()).unwrap();
    assert_eq!(b.peer_addr().unwrap(), a.local_addr());
    stranger.send_to(b"not for you", b.local_addr()).unwrap();
    a.send_to(b"for you", b.local_addr()).unwrap();
    let mut buffer = [0; 20];
    assert_eq!(b.recv(&mut buffer).unwrap(), 7);
    assert_eq!(b.send(b"back").unwrap(), 4);
    assert_eq!(a.recv_from(&mut buffer).unwrap(), (4, b.local_addr()));
    // Another peer, and to somebody else in between.
    b.connect(stranger.local_addr()).unwrap();
    b.send(b"hello").unwrap();
    assert_eq!(stranger.recv(&mut buffer).unwrap(), 5);
    b.send_to(b"you, too", a.local_addr()).unwrap();
    assert_eq!(a.recv(&mut buffer).unwrap(), 8);
}

/// An address at which nobody is.
fn nobody<S: Udp>(side: &Side) -> SocketAddr {
    S::bind(side, 0).unwrap().local_addr()
}

fn a_refusal_is_told_once<S: Udp>(sides: &(Side, Side)) {
    let a = S::bind(&sides.0, 0).unwrap();
    a.connect(nobody::<S>(&sides.1)).unwrap();
    a.send(b"anybody?").unwrap();
    assert_eq!(errno(a.recv(&mut [0; 10])), Errno::CONNREFUSED);
    a.set_nonblocking(true).unwrap();
    assert_eq!(errno(a.recv(&mut [0; 10])), Errno::AGAIN);
}

fn a_refusal_is_told_by_take_error<S: Udp>(sides: &(Side, Side)) {
    let a = S::bind(&sides.0, 0).unwrap();
    a.connect(nobody::<S>(&sides.1)).unwrap();
    assert!(a.take_error().unwrap().is_none());
    a.send(b"anybody?").unwrap();
    // It wakes who polls.
    let mut fds = [PollFd::new(&a, PollFlags::IN)];
    assert_eq!(poll(&mut fds, None).unwrap(), 1);
    let told = a.take_error().unwrap().unwrap();
    assert_eq!(Errno::from_io_error(&told), Some(Errno::CONNREFUSED));
    assert!(a.take_error().unwrap().is_none());
    let mut fds = [PollFd::new(&a, PollFlags::IN | PollFlags::OUT)];
    assert_eq!(poll(&mut fds, None).unwrap(), 1);
    assert_eq!(fds[0].revents(), PollFlags::OUT);
    // One who is not connected hears nothing of it.
    let b = S::bind(&sides.0, 0).unwrap();
    b.send_to(b"anybody?", nobody::<S>(&sides.1)).unwrap();
    a.send(b"anybody?").unwrap();
    assert_eq!(errno(a.recv(&mut [0; 10])), Errno::CONNREFUSED);
    assert!(b.take_error().unwrap().is_none());
}

fn nothing_there_is_said<S: Udp>(sides: &(Side, Side)) {
    let (a, _) = two::<S>(sides);
    a.set_nonblocking(true).unwrap();
    assert_eq!(errno(a.recv(&mut [0; 10])), Errno::AGAIN);
    assert_eq!(errno(a.peek_from(&mut [0; 10])), Errno::AGAIN);
    a.set_nonblocking(false).unwrap();
    a.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    assert_eq!(errno(a.recv(&mut [0; 10])), Errno::AGAIN);
    assert_eq!(a.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

fn nobody_is_said_whom_it_is_for<S: Udp>(sides: &(Side, Side)) {
    let (a, b) = two::<S>(sides);
    assert_eq!(errno(a.send(b"whom?")), Errno::DESTADDRREQ);
    let mut to = b.local_addr();
    to.set_port(0);
    assert_eq!(errno(a.send_to(b"whom?", to)), Errno::INVAL);
}

fn what_is_too_long_is_refused<S: Udp>(sides: &(Side, Side)) {
    let (a, b) = two::<S>(sides);
    assert_eq!(errno(a.send_to(&[0; 65_508], b.local_addr())), Errno::MSGSIZE);
}

fn addresses_are_given_once<S: Udp>(sides: &(Side, Side)) {
    let a = S::bind(&sides.0, 0).unwrap();
    let port = a.local_addr().port();
    assert_ne!(port, 0);
    assert_eq!(errno(S::bind(&sides.0, port).map(drop)), Errno::ADDRINUSE);
    assert_eq!(errno(S::bind_elsewhere(&sides.0).map(drop)), Errno::ADDRNOTAVAIL);
    drop(a);
    assert_eq!(S::bind(&sides.0, port).unwrap().local_addr().port(), port);
}

fn hops_are_set<S: Udp>(sides: &(Side, Side)) {
    let (a, _) = two::<S>(sides);
    assert_eq!(a.ttl().unwrap(), 64);
    a.set_ttl(3).unwrap();
    assert_eq!(a.ttl().unwrap(), 3);
    for wrong in [0, 256] {
        assert_eq!(errno(a.set_ttl(wrong)), Errno::INVAL);
    }
}

fn a_receive_buffer_is_doubled<S: Udp>(sides: &(Side, Side)) {
    let (a, _) = two::<S>(sides);
    a.set_recv_buffer_size(50_000).unwrap();
    assert_eq!(a.recv_buffer_size().unwrap(), 100_000);
    a.set_recv_buffer_size(1).unwrap();
    assert_eq!(a.recv_buffer_size().unwrap(), 2304);
}

fn poll_tells_of_what_came<S: Udp>(sides: &(Side, Side)) {
    let (a, b) = two::<S>(sides);
    let ready = |socket: &S| {
        let mut fds = [PollFd::new(socket, PollFlags::IN | PollFlags::OUT)];
        poll(&mut fds, None).unwrap();
        fds[0].revents()
    };
    assert_eq!(ready(&b), PollFlags::OUT);
    a.send_to(b"one", b.local_addr()).unwrap();
    a.send_to(b"two", b.local_addr()).unwrap();
    poll(&mut [PollFd::new(&b, PollFlags::IN)], None).unwrap();
    assert_eq!(ready(&b), PollFlags::IN | PollFlags::OUT);
    b.recv(&mut [0; 10]).unwrap();
    poll(&mut [PollFd::new(&b, PollFlags::IN)], None).unwrap();
    b.recv(&mut [0; 10]).unwrap();
    assert_eq!(ready(&b), PollFlags::OUT);
}
