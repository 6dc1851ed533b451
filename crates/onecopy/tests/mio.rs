//! Sockets for mio: non-blocking from birth, and their events, by edges, over shared memory and over the kernel.
#![allow(missing_docs, reason = "a test")]

use mio::event::Source;
use mio::{Events, Interest, Poll, Token};
use onecopy::unix::mio::{Datagram, Listener, SeqListener, SeqPacket, Stream};
use onecopy::unix::{self, Config, SocketAddr};
use onecopy::{Carrier, Transport};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

const A: Token = Token(1);
const B: Token = Token(2);
const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);

/// A poll that remembers what it was told.
struct Ear {
    poll: Poll,
    events: Events,
    readable: Vec<Token>,
    writable: Vec<Token>,
    closed: Vec<Token>,
}

impl Ear {
    fn new() -> Ear {
        let (poll, events) = (Poll::new().unwrap(), Events::with_capacity(16));
        Ear { poll, events, readable: Vec::new(), writable: Vec::new(), closed: Vec::new() }
    }

    fn of(source: &mut impl Source, token: Token) -> Ear {
        let ear = Ear::new();
        ear.poll.registry().register(source, token, BOTH).unwrap();
        ear
    }

    fn listen(&mut self, limit: Duration) {
        self.poll.poll(&mut self.events, Some(limit)).unwrap();
        for event in &self.events {
            let told = [
                (event.is_readable(), &mut self.readable),
                (event.is_writable(), &mut self.writable),
                (event.is_read_closed(), &mut self.closed),
            ];
            told.into_iter().filter(|(is, _)| *is).for_each(|(_, list)| list.push(event.token()));
        }
    }

    /// Waits until `token` was told in the list, and empties the lists.
    fn until(&mut self, list: fn(&Ear) -> &Vec<Token>, token: Token) {
        let began = Instant::now();
        while !list(self).contains(&token) {
            assert!(began.elapsed() < onecopy_testing::LONG, "no event");
            self.listen(Duration::from_secs(1));
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.readable.clear();
        self.writable.clear();
        self.closed.clear();
    }

    fn readable(&mut self, token: Token) {
        self.until(|ear| &ear.readable, token);
    }

    fn writable(&mut self, token: Token) {
        self.until(|ear| &ear.writable, token);
    }

    fn silent(&mut self) {
        self.listen(Duration::ZERO);
        let told = (&self.readable, &self.writable, &self.closed);
        assert!(told.0.is_empty() && told.1.is_empty() && told.2.is_empty(), "{told:?}");
    }
}

fn blocks<T: std::fmt::Debug>(result: std::io::Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::WouldBlock);
}

fn never_waits(socket: impl AsFd) {
    let flags = rustix::fs::fcntl_getfl(&socket).unwrap();
    assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
}

fn name(of: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("onecopy-mio-{of}-{}", std::process::id())).unwrap()
}

fn kernel() -> Config {
    Config { transport: Transport::Kernel, ..Config::default() }
}

/// Streams over shared memory, over the kernel, and with a peer of std's.
fn streams() -> Vec<(Stream, Box<dyn Peer>)> {
    let (a, b) = Stream::pair().unwrap();
    assert_eq!(b.path().send, Carrier::SharedMemory);
    let (c, d) = Stream::pair_with(&kernel()).unwrap();
    assert_eq!(d.path().send, Carrier::Kernel);
    let (e, f) = UnixStream::pair().unwrap();
    e.set_nonblocking(true).unwrap();
    f.set_nonblocking(true).unwrap();
    vec![(a, Box::new(b)), (c, Box::new(d)), (Stream::from_std(e), Box::new(f))]
}

trait Peer: Read + Write {}
impl<T: Read + Write> Peer for T {}

#[test]
fn a_stream_tells_each_edge_once() {
    for (mut stream, mut peer) in streams() {
        let mut ear = Ear::of(&mut stream, A);
        ear.listen(onecopy_testing::LONG);
        assert_eq!((&ear.readable, &ear.writable), (&vec![], &vec![A]), "there is room, and nothing to read");
        ear.forget();
        ear.silent();
        let mut buffer = [0; 64];
        blocks(stream.read(&mut buffer));

        for round in 0..3 {
            assert_eq!(peer.write(b"some bytes").unwrap(), 10);
            ear.readable(A);
            assert_eq!(stream.read(&mut buffer).unwrap(), 10);
            blocks(stream.read(&mut buffer));
            ear.silent();

            // Fill it, until there is no room; then take it all away again.
            let sent = fill(&mut stream);
            ear.silent();
            assert_eq!(drain(&mut peer), sent, "round {round}");
            ear.writable(A);
            assert!(stream.write_vectored(&[IoSlice::new(b"a"), IoSlice::new(b"b")]).unwrap() == 2);
            assert_eq!(drain(&mut peer), 2);
            ear.listen(Duration::ZERO);
            ear.forget();
        }

        drop(peer);
        ear.until(|ear| &ear.closed, A);
        assert_eq!(stream.read(&mut buffer).unwrap(), 0);
    }
}

fn fill(stream: &mut impl Write) -> usize {
    let mut sent = 0;
    loop {
        match stream.write(&[7; 10_000]) {
            Ok(n) => sent += n,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return sent;
            }
        }
    }
}

fn drain(stream: &mut impl Read) -> usize {
    let mut all = Vec::new();
    blocks(stream.read_to_end(&mut all));
    all.len()
}

/// A connection that begins in the kernel moves to shared memory, and its events mean the same all the while.
#[test]
fn a_connection_that_moves_to_memory_tells_nothing_but_its_bytes() {
    let name = name("moves");
    let mut listener = Listener::bind_addr(&name).unwrap();
    let mut ear = Ear::of(&mut listener, Token(0));
    let mut client = Stream::connect(&name).unwrap();
    ear.readable(Token(0));
    let (mut server, from) = listener.accept().unwrap();
    assert!(from.is_unnamed());
    blocks(listener.accept());
    ear.poll.registry().register(&mut client, A, BOTH).unwrap();
    ear.poll.registry().register(&mut server, B, BOTH).unwrap();
    ear.writable(A);
    ear.listen(Duration::ZERO);
    ear.forget();
    ear.silent();
    let mut buffer = [0; 64];
    for _ in 0..4 {
        assert_eq!(server.write(b"down").unwrap(), 4);
        ear.readable(A);
        assert_eq!(client.read(&mut buffer).unwrap(), 4);
        blocks(client.read(&mut buffer));
        assert_eq!(client.write(b"upwards").unwrap(), 7);
        ear.readable(B);
        assert_eq!(server.read(&mut buffer).unwrap(), 7);
        blocks(server.read(&mut buffer));
        ear.listen(Duration::ZERO);
        assert!(ear.readable.is_empty(), "{:?}", ear.readable);
        ear.forget();
    }
    assert_eq!((client.path().send, server.path().send), (Carrier::SharedMemory, Carrier::SharedMemory));
    client.shutdown(Shutdown::Write).unwrap();
    ear.until(|ear| &ear.closed, B);
    assert_eq!(server.read(&mut buffer).unwrap(), 0);
}

#[test]
fn records_tell_their_edges() {
    for (mut a, b) in [SeqPacket::pair().unwrap(), SeqPacket::pair_with(&kernel()).unwrap()] {
        let mut ear = Ear::of(&mut a, A);
        ear.writable(A);
        ear.silent();
        for _ in 0..3 {
            b.send(b"one").unwrap();
            b.send(b"and two").unwrap();
            ear.readable(A);
            let mut buffer = [0; 64];
            assert_eq!((a.recv(&mut buffer).unwrap(), a.recv(&mut buffer).unwrap()), (3, 7));
            blocks(a.recv(&mut buffer).map_err(Into::into));
            ear.silent();
        }
        let mut sent = 0;
        while a.send(&[1; 1000]).is_ok() {
            sent += 1;
        }
        ear.listen(Duration::ZERO);
        ear.forget();
        for _ in 0..sent {
            assert_eq!(b.recv(&mut [0; 1000]).unwrap(), 1000);
        }
        ear.writable(A);
        assert_eq!(a.send(b"again").unwrap(), 5);
    }
}

#[test]
fn datagrams_tell_their_edges() {
    let (one, two) = (Datagram::bind(name("one")).unwrap(), Datagram::bind_addr(name("two")).unwrap());
    one.connect(name("two")).unwrap();
    two.connect_addr(name("one")).unwrap();
    let pairs = [Datagram::pair().unwrap(), Datagram::pair_with(&kernel()).unwrap(), (one, two)];
    for (mut a, b) in pairs {
        never_waits(&a);
        let mut ear = Ear::of(&mut a, A);
        ear.writable(A);
        ear.silent();
        let mut buffer = [0; 64];
        for _ in 0..4 {
            b.send(b"one").unwrap();
            b.send(b"").unwrap();
            ear.readable(A);
            assert_eq!((a.recv(&mut buffer).unwrap(), a.recv_from(&mut buffer).unwrap().0), (3, 0));
            blocks(a.recv(&mut buffer));
            ear.listen(Duration::ZERO);
            assert!(ear.readable.is_empty());
            ear.forget();
            assert_eq!(a.send(b"back").unwrap(), 4);
            assert_eq!(b.recv(&mut buffer).unwrap(), 4);
            blocks(b.recv(&mut buffer));
        }
    }
}

#[test]
fn who_is_no_longer_registered_is_told_nothing() {
    for (mut stream, mut peer) in streams() {
        let mut ear = Ear::of(&mut stream, A);
        ear.writable(A);
        ear.poll.registry().reregister(&mut stream, B, Interest::READABLE).unwrap();
        peer.write_all(b"x").unwrap();
        ear.readable(B);
        ear.poll.registry().deregister(&mut stream).unwrap();
        peer.write_all(b"y").unwrap();
        ear.silent();
        let mut buffer = [0; 8];
        assert_eq!(stream.read(&mut buffer).unwrap(), 2);
        // And again, with what is there already.
        peer.write_all(b"z").unwrap();
        ear.poll.registry().register(&mut stream, A, Interest::READABLE).unwrap();
        ear.readable(A);
    }
}

#[test]
fn plain_sockets_register_too() {
    let name = name("plain");
    let mut listener = unix::Listener::bind(&name).unwrap();
    let mut ear = Ear::of(&mut listener, Token(0));
    let client = unix::Stream::connect(&name).unwrap();
    ear.readable(Token(0));
    let (mut server, _) = listener.accept().unwrap();
    server.set_nonblocking(true).unwrap();
    ear.poll.registry().register(&mut server, A, Interest::READABLE).unwrap();
    client.send(b"hello").unwrap();
    ear.readable(A);
    assert_eq!(server.recv(&mut [0; 8]).unwrap(), 5);
    let (mut a, b) = unix::SeqPacket::pair().unwrap();
    ear.poll.registry().register(&mut a, B, Interest::READABLE).unwrap();
    b.send(b"").unwrap();
    ear.readable(B);
    let (mut a, b) = unix::Datagram::pair().unwrap();
    ear.poll.registry().register(&mut a, Token(3), Interest::READABLE).unwrap();
    b.send(b"").unwrap();
    ear.readable(Token(3));
}

#[test]
fn all_are_non_blocking_from_birth() {
    let name = name("birth");
    let listener = Listener::bind(&name).unwrap();
    never_waits(&listener);
    blocks(listener.accept());
    let client = Stream::connect(&name).unwrap();
    never_waits(&client);
    let (server, _) = listener.accept().unwrap();
    never_waits(&server);
    assert_eq!(client.peer_addr().unwrap(), name);
    assert_eq!((listener.local_addr().unwrap(), server.take_error().unwrap().is_none()), (name, true));
    assert_eq!(server.try_io(|| (&server).write(b"x")).unwrap(), 1);
    // Back to a plain one, which waits again only when told to.
    let plain = client.into_inner();
    assert!(plain.nonblocking().unwrap());
    assert_eq!(plain.recv(&mut [0; 2]).unwrap(), 1);
    never_waits(Stream::new(plain).unwrap());
    never_waits(Datagram::unbound().unwrap());

    let listener = SeqListener::bind("\0onecopy-mio-records").unwrap();
    let client = SeqPacket::connect("\0onecopy-mio-records").unwrap();
    let (server, _) = listener.accept().unwrap();
    never_waits(&listener);
    never_waits(&client);
    never_waits(&server);
    assert_eq!(client.peer_addr().unwrap().as_abstract_name(), Some(&b"onecopy-mio-records"[..]));
    blocks(client.recv(&mut [0; 1]).map_err(Into::into));
}

#[test]
fn a_connect_does_not_wait_for_room_at_the_listener() {
    let name = name("full");
    let config = Config { backlog: 1, ..Config::default() };
    let listener = Listener::bind_with(&name, &config).unwrap();
    let mut connected = Vec::new();
    let refused = loop {
        match Stream::connect(&name) {
            Ok(stream) => connected.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    assert!(!connected.is_empty());
    listener.accept().unwrap();
    Stream::connect(&name).unwrap();
}

#[test]
fn peers_of_std_are_served() {
    let name = name("std");
    let std_name = std::os::unix::net::SocketAddr::try_from(&name).unwrap();
    let std_listener = UnixListener::bind_addr(&std_name).unwrap();
    std_listener.set_nonblocking(true).unwrap();
    let mut listener = Listener::from_std(std_listener);
    let mut ear = Ear::of(&mut listener, A);
    let mut theirs = UnixStream::connect_addr(&std_name).unwrap();
    ear.readable(A);
    let (mut ours, _) = listener.accept().unwrap();
    ear.poll.registry().register(&mut ours, B, BOTH).unwrap();
    theirs.write_all(b"hello").unwrap();
    ear.readable(B);
    let mut buffer = [0; 8];
    assert_eq!(ours.read(&mut buffer).unwrap(), 5);
    let mut client = Stream::connect_addr(&std_name).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"x").unwrap();
    assert_eq!(server.read(&mut buffer).unwrap(), 1);
}
