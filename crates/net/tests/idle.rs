//! What an idle connection costs, after traffic: a test by itself, since it counts all that its thread allocates.

use onecopy_link::Tap;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{Driver, Stack};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// So many ends, each a socket of its own stack's, as one program may have them.
const ENDS: usize = 100_000;
/// Connections that are made at once, and those of a listener.
const BATCH: usize = 100;
const OF_A_LISTENER: usize = 10_000;
/// The bytes of one end: its socket, and its part of the tables of the stack. (Rows of the registry lie in memory that all processes see.)
const MOST: u64 = 1024;

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

    /// Connections, after a request and its answer.
    fn connect(&self, listener: &Listener, count: usize, ends: &mut Vec<(Stream, Stream)>) {
        let to = listener.local_addr().unwrap();
        let mut clients: Vec<_> =
            (0..count).map(|_| Stream::connect_nonblocking(&self.a, to).unwrap()).collect();
        // They come in any order: each client is found by its address.
        clients.sort_by_key(|client| client.local_addr().unwrap().port());
        let mut servers = Vec::with_capacity(count);
        self.until(|| {
            while let Ok((server, from)) = listener.accept() {
                server.set_nonblocking(true).unwrap();
                servers.push((from.port(), server));
            }
            (servers.len() == count).then_some(())
        });
        servers.sort_by_key(|(port, _)| *port);
        clients.iter_mut().for_each(|client| client.write_all(&[7; 3000]).unwrap());
        for (_, server) in &mut servers {
            self.read(server, 3000);
            server.write_all(&[8; 2000]).unwrap();
        }
        for (mut client, (port, server)) in clients.into_iter().zip(servers) {
            assert_eq!(client.local_addr().unwrap().port(), port);
            self.read(&mut client, 2000);
            ends.push((client, server));
        }
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
fn an_idle_connection_costs_a_kibibyte_at_most() {
    let hosts = Hosts::new();
    let listen = |port: usize| {
        let address = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), port as u16);
        let listener = Listener::bind(&hosts.b, address).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    };
    let listeners: Vec<_> = (0..ENDS / 2 / OF_A_LISTENER).map(|number| listen(80 + number)).collect();
    // What is made once, is made.
    let mut first = Vec::new();
    hosts.connect(&listeners[0], 1, &mut first);
    hosts.rest();
    let mut ends = Vec::with_capacity(ENDS / 2);
    let counted = allocation_counter::measure(|| {
        for listener in &listeners {
            for _ in 0..OF_A_LISTENER / BATCH {
                hosts.connect(listener, BATCH, &mut ends);
            }
        }
        hosts.rest();
    });
    assert_eq!(2 * ends.len(), ENDS);
    let each = counted.bytes_current.unsigned_abs() / ENDS as u64;
    println!("an idle connection's end has {each} bytes");
    assert!(each <= MOST, "{each} bytes");
    // They are idle, and not gone.
    for at in [0, ENDS / 4, ENDS / 2 - 1] {
        let (client, server) = &mut ends[at];
        client.write_all(&[9; 100]).unwrap();
        hosts.read(server, 100);
    }
    drop(first);
}
