//! A stack of the program's own whose pages for what is sent are all in use.

use onecopy_link::Tap;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{Driver, SendFlags, Stack, udp};
use onecopy_testing::{LONG, asleep, writable};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// Pages of the stack that sends: fewer than a connection may have waiting.
const PAGES: u32 = 8;

/// Two stacks that nobody drives but this thread; and so many connections from the first to the second.
struct World {
    a: Stack,
    b: Stack,
    clients: Vec<Stream>,
    _servers: Vec<Stream>,
}

impl World {
    fn new(connections: usize) -> World {
        let (a, b) = Tap::cable(1500).unwrap();
        let build = |tap, address, pages| {
            let builder = Stack::builder().link(tap).address(address).driver(Driver::Caller);
            builder.pages(pages).linger(Duration::ZERO).build().unwrap()
        };
        let (a, b) = (build(a, "10.0.0.1/24", PAGES), build(b, "10.0.0.2/24", 1 << 10));
        let at = SocketAddr::from(([10, 0, 0, 2], 80));
        let listener = Listener::bind(&b, at).unwrap();
        let connect = |_| Stream::connect_nonblocking(&a, at).unwrap();
        let clients: Vec<_> = (0..connections).map(connect).collect();
        let mut world = World { a, b, clients, _servers: Vec::new() };
        world.settle();
        world._servers = (0..connections).map(|_| listener.accept().unwrap().0).collect();
        world
    }

    /// Until neither has anything to do.
    fn settle(&self) {
        while self.a.drive(Duration::ZERO).unwrap() | self.b.drive(Duration::ZERO).unwrap() {}
    }

    /// Has the first connection take all pages: nobody acknowledges.
    fn exhaust(&self) {
        let sent = self.clients[0].send_with_flags(&[7; 1 << 20], SendFlags::DONTWAIT).unwrap();
        assert!(sent.div_ceil(4096) == PAGES as usize, "{sent} bytes");
    }
}

/// What a send says that does not wait.
fn tried(stream: &Stream) -> Result<usize, ErrorKind> {
    stream.send_with_flags(b"x", SendFlags::DONTWAIT).map_err(|error| error.kind())
}

#[test]
fn who_finds_no_page_is_not_writable_until_there_is_one() {
    let world = World::new(3);
    world.exhaust();
    let others = &world.clients[1..];
    assert!(others.iter().all(writable));
    for other in others {
        for _ in 0..3 {
            assert_eq!(tried(other), Err(ErrorKind::WouldBlock));
        }
    }
    while world.a.drive(Duration::ZERO).unwrap() {}
    assert!(!others.iter().any(writable));
    world.settle();
    assert!(others.iter().all(writable));
    assert!(others.iter().all(|other| tried(other) == Ok(1)));
}

/// Of UDP as well: its packets leave at once, but TCP's bytes wait for the peer.
#[test]
fn a_datagram_that_finds_no_page_waits_as_well() {
    let world = World::new(1);
    let socket = udp::Socket::bind(&world.a, "10.0.0.1:53".parse().unwrap()).unwrap();
    let to = SocketAddr::from(([10, 0, 0, 2], 53));
    let send = || socket.send_to_with_flags(b"x", to, SendFlags::DONTWAIT).map_err(|error| error.kind());
    assert_eq!(send(), Ok(1));
    let fd = socket.poll_fd().unwrap();
    world.exhaust();
    assert!(writable(fd));
    assert_eq!(send(), Err(ErrorKind::WouldBlock));
    assert!(!writable(fd));
    world.settle();
    assert!(writable(fd));
    assert_eq!(send(), Ok(1));
}

/// Pages that the program has come home without a word.
#[test]
fn pages_that_the_program_gives_back_are_found() {
    let world = World::new(2);
    let [first, other] = &world.clients[..] else { panic!() };
    let slot = first.reserve((PAGES as usize) << 12).unwrap();
    assert_eq!(tried(other), Err(ErrorKind::WouldBlock));
    assert!(!writable(other));
    drop(slot);
    let begun = Instant::now();
    while !writable(other) {
        assert!(begun.elapsed() < LONG, "nobody finds them");
        let left = world.a.next_deadline().expect("it looks again");
        assert!(left <= Duration::from_millis(5), "{left:?}");
        world.a.drive(left).unwrap();
    }
    assert_eq!(tried(other), Ok(1));
}

#[test]
fn who_waits_is_woken_when_pages_are_home() {
    let world = World::new(2);
    world.exhaust();
    let other = &world.clients[1];
    other.set_nonblocking(false).unwrap();
    thread::scope(|scope| {
        // It drives its own stack meanwhile.
        let sends = asleep(scope, || other.send(&[7; 10_000]).unwrap());
        let begun = Instant::now();
        while !sends.is_finished() {
            assert!(begun.elapsed() < LONG, "nobody tells it");
            world.b.drive(Duration::from_millis(1)).unwrap();
        }
        assert_eq!(sends.join().unwrap(), 10_000);
    });
}

/// A socket that is closed while it waits takes no page from the next one.
#[test]
fn who_is_over_takes_no_page() {
    let mut world = World::new(4);
    world.exhaust();
    assert!(world.clients[1..].iter().all(|other| tried(other) == Err(ErrorKind::WouldBlock)));
    drop(world.clients.drain(1..3));
    world.settle();
    assert!(writable(&world.clients[1]));
    assert_eq!(tried(&world.clients[1]), Ok(1));
}
