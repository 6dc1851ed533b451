//! What an idle connection costs, after traffic: a test by itself, since it counts all that its thread allocates.

use onecopy_link::Tap;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{Driver, Stack};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const CONNECTIONS: usize = 4000;
/// The bytes of one end: its socket, and its part of the tables of the stack, which are little more than half full. (Rows of the registry lie in
/// memory that all processes see.)
const MOST: u64 = 1280;

/// Two hosts that this thread drives.
struct Hosts {
    a: Stack,
    b: Stack,
}

impl Hosts {
    fn new() -> Hosts {
        let (a, b) = Tap::cable(1500).unwrap();
        let build = |tap, address| {
            let builder = Stack::builder().link(tap).address(address).linger(Duration::ZERO);
            builder.driver(Driver::Caller).build().unwrap()
        };
        Hosts { a: build(a, "10.0.0.1/24"), b: build(b, "10.0.0.2/24") }
    }

    /// Drives both until `done` says so.
    fn until<R>(&self, mut done: impl FnMut() -> Option<R>) -> R {
        let began = Instant::now();
        loop {
            if let Some(done) = done() {
                return done;
            }
            self.a.drive(Duration::ZERO).unwrap();
            self.b.drive(Duration::ZERO).unwrap();
            assert!(began.elapsed() < onecopy_testing::LONG, "nothing comes of it");
        }
    }

    /// What was sent comes, whole.
    fn read(&self, stream: &mut Stream, len: usize) {
        let (mut buffer, mut got) = ([0; 4096], 0);
        self.until(|| {
            match stream.read(&mut buffer) {
                Ok(n) => got += n,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            (got == len).then_some(())
        });
    }

    /// A connection, after a request and its answer.
    fn connect(&self, listener: &Listener, to: SocketAddr) -> (Stream, Stream) {
        let mut client = Stream::connect_nonblocking(&self.a, to).unwrap();
        let (mut server, _) = self.until(|| listener.accept().ok());
        server.set_nonblocking(true).unwrap();
        client.write_all(&[7; 3000]).unwrap();
        self.read(&mut server, 3000);
        server.write_all(&[8; 2000]).unwrap();
        self.read(&mut client, 2000);
        (client, server)
    }

    /// Until nobody waits for anything: delayed ACKs, probes of the tail, memory that is kept in case that more comes.
    fn rest(&self) {
        self.until(|| {
            let due = [self.a.next_deadline(), self.b.next_deadline()];
            due.iter().all(Option::is_none).then_some(())
        });
    }
}

#[test]
fn an_idle_connection_costs_little() {
    let hosts = Hosts::new();
    let listener = Listener::bind(&hosts.b, "10.0.0.2:80".parse().unwrap()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let to = listener.local_addr().unwrap();
    // What is made once, is made.
    let first = hosts.connect(&listener, to);
    hosts.rest();
    let mut ends = Vec::with_capacity(CONNECTIONS);
    let counted = allocation_counter::measure(|| {
        for _ in 0..CONNECTIONS {
            ends.push(hosts.connect(&listener, to));
        }
        hosts.rest();
    });
    let each = counted.bytes_current.unsigned_abs() / (2 * CONNECTIONS as u64);
    println!("an idle connection's end has {each} bytes");
    assert!(each <= MOST, "{each} bytes");
    // They are idle, and not gone.
    let (mut client, mut server) = ends.swap_remove(CONNECTIONS / 2);
    client.write_all(&[9; 100]).unwrap();
    hosts.read(&mut server, 100);
    drop(first);
}
