//! Connections that are being made or refused, and listeners.

use crate::worlds::{AGAIN, Cable, End, eventually, polled};
use onecopy_net::tcp::{Listener, Stream};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

const ERR: PollFlags = PollFlags::ERR;

/// Begins to connect.
fn kernel_connect(to: SocketAddr) -> TcpStream {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    let begun = net::connect(&socket, &to);
    assert!(matches!(begun, Ok(()) | Err(Errno::INPROGRESS)), "{begun:?}");
    TcpStream::from(socket)
}

/// What both say, one call after the other.
fn agree(cable: &Cable, our: &Stream, kernel: &TcpStream) {
    cable.settle();
    eventually("poll", polled(our), || polled(kernel));
}

#[test]
fn a_refused_connection_is_ready_for_all_and_has_an_error_once() {
    let cable = Cable::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let our = Stream::connect_nonblocking(&cable.a, Cable::at(9)).unwrap();
    // Made before it fails, and looked at only then.
    assert_eq!(polled(&our), PollFlags::empty());
    let kernel = kernel_connect(free);
    agree(&cable, &our, &kernel);
    assert!(polled(&our).contains(ERR));
    assert_eq!(our.error(), kernel.error());
    agree(&cable, &our, &kernel);
    assert!(!polled(&our).contains(ERR));
    assert_eq!((our.error(), our.give(b"x")), (kernel.error(), kernel.give(b"x")));
    assert_eq!(our.take(&mut [0; 4], false), kernel.take(&mut [0; 4], false));
    agree(&cable, &our, &kernel);

    // One that is first polled when it has failed; and a call takes the error, too.
    let our = Stream::connect_nonblocking(&cable.a, Cable::at(9)).unwrap();
    let kernel = kernel_connect(free);
    agree(&cable, &our, &kernel);
    assert_eq!(our.take(&mut [0; 4], false), kernel.take(&mut [0; 4], false));
    agree(&cable, &our, &kernel);
    assert!(!polled(&our).contains(ERR));
}

/// A listener of the kernel that answers nobody any more: its backlog is full.
fn full() -> (TcpListener, SocketAddr, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    net::listen(&listener, 0).unwrap();
    let to = listener.local_addr().unwrap();
    let first = TcpStream::connect(to).unwrap();
    (listener, to, vec![first])
}

#[test]
fn a_connection_that_is_being_made_is_ready_for_nothing() {
    let (_listener, to, _held) = full();
    for how in [None, Some(Shutdown::Write), Some(Shutdown::Read), Some(Shutdown::Both)] {
        // Nobody drives the other stack, so nobody answers.
        let cable = Cable::new();
        let listener = Listener::bind(&cable.b, Cable::at(80)).unwrap();
        let our = Stream::connect_nonblocking(&cable.a, Cable::at(80)).unwrap();
        let kernel = kernel_connect(to);
        assert_eq!((polled(&our), polled(&kernel)), (PollFlags::empty(), PollFlags::empty()));
        assert_eq!(our.take(&mut [0; 4], false), Err(AGAIN));
        assert_eq!(kernel.take(&mut [0; 4], false), Err(AGAIN));
        assert_eq!((our.give(b"x"), kernel.give(b"x")), (Err(AGAIN), Err(AGAIN)));
        assert_eq!((our.error(), kernel.error()), (None, None));
        let Some(how) = how else {
            cable.settle();
            assert_eq!(polled(&our), PollFlags::OUT);
            assert_eq!(listener.accept().unwrap().1, our.local_addr().unwrap());
            continue;
        };
        assert_eq!(our.shut(how), kernel.shut(how), "{how:?}");
        // What the kernel does not say of it is that a receive would not wait, either.
        let besides = PollFlags::IN | PollFlags::RDHUP;
        assert_eq!(polled(&our), polled(&kernel) | besides, "{how:?}");
        assert_eq!(our.error(), kernel.error(), "{how:?}");
        assert_eq!(polled(&our), polled(&kernel) | besides, "{how:?}");
        assert_eq!(our.give(b"x"), kernel.give(b"x"), "{how:?}");
        assert_eq!(our.take(&mut [0; 4], false), kernel.take(&mut [0; 4], false), "{how:?}");
    }
}

/// What a listener says, beside what accept finds.
fn accepts(cable: &Cable, listener: &Listener, kernel: &TcpListener) -> bool {
    cable.settle();
    let said = polled(listener.as_fd());
    eventually("poll", said, || polled(kernel));
    let (our, kernel) = (listener.accept(), kernel.accept());
    assert_eq!(our.is_ok(), kernel.is_ok());
    assert_eq!(our.is_ok(), said.contains(PollFlags::IN), "{said:?}");
    our.is_ok()
}

#[test]
fn a_listener_is_readable_while_somebody_waits() {
    let cable = Cable::new();
    let listener = Listener::bind(&cable.b, Cable::at(80)).unwrap();
    let kernel = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    kernel.set_nonblocking(true).unwrap();
    assert!(!accepts(&cable, &listener, &kernel));
    let mut held = Vec::new();
    for count in [1, 3, 0, 2] {
        for _ in 0..count {
            let to = kernel.local_addr().unwrap();
            held.push((Stream::connect_nonblocking(&cable.a, Cable::at(80)).unwrap(), kernel_connect(to)));
            cable.settle();
        }
        for _ in 0..count {
            assert!(accepts(&cable, &listener, &kernel));
        }
        assert!(!accepts(&cable, &listener, &kernel));
    }
    listener.shutdown().unwrap();
    net::shutdown(&kernel, net::Shutdown::Read).unwrap();
    let besides = PollFlags::IN | PollFlags::RDHUP;
    assert_eq!(polled(listener.as_fd()), polled(&kernel) | besides);
    let errno = |error: std::io::Error| error.raw_os_error();
    let our = listener.accept().map(|_| ()).map_err(|error| errno(error.into()));
    assert_eq!(our, kernel.accept().map(|_| ()).map_err(errno));
}
