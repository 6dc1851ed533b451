//! Streams and listeners for mio: a server and its clients in one loop of events.

use mio::{Events, Interest, Poll, Token};
use onecopy_link::Tap;
use onecopy_net::Stack;
use onecopy_net::tcp::mio::{Listener, Stream};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};

fn stacks(shards: usize) -> (Stack, Stack) {
    // (Each queue of one is joined to one of the other, which seldom is the right one's.)
    let (a, b): (Vec<_>, Vec<_>) = (0..shards).map(|_| Tap::cable(1500).unwrap()).unzip();
    let build = |taps, address| Stack::builder().links::<Tap>(taps).address(address).build().unwrap();
    (build(a, "10.0.0.1/24"), build(b, "10.0.0.2/24"))
}

/// An end: what it has to send, and what has come.
struct End {
    stream: Stream,
    out: Vec<u8>,
    sent: usize,
    came: Vec<u8>,
    ended: bool,
    echoes: bool,
}

impl End {
    /// Sends and receives until nothing more can be done, as mio asks for. Returns whether it is over.
    fn go_on(&mut self) -> bool {
        loop {
            let mut buffer = [0; 3000];
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(n) if self.echoes => self.out.extend_from_slice(&buffer[..n]),
                Ok(n) => self.came.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) => panic!("{error}"),
            }
        }
        if !self.echoes || self.ended {
            match self.stream.shutdown(Shutdown::Write) {
                Err(error) if error.kind() != ErrorKind::NotConnected => panic!("{error}"),
                _ => {}
            }
        }
        self.ended
    }
}

#[test]
fn a_loop_of_edges_moves_everything() {
    moves_everything(1);
}

#[test]
fn over_shards_too() {
    moves_everything(2);
    moves_everything(4);
}

fn moves_everything(shards: usize) {
    const CLIENTS: usize = 8;
    let (a, b) = stacks(shards);
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(64);
    let mut listener = Listener::bind(&b, SocketAddr::from(([10, 0, 0, 2], 80))).unwrap();
    poll.registry().register(&mut listener, Token(0), Interest::READABLE).unwrap();
    let both = Interest::READABLE | Interest::WRITABLE;
    let mut ends = HashMap::new();
    let mut next = 1;
    let data: Vec<u8> = (0..1_500_000_u32).map(|n| ((n * 7) >> 3) as u8).collect();
    for _ in 0..CLIENTS {
        let mut stream = Stream::connect(&a, listener.local_addr().unwrap()).unwrap();
        poll.registry().register(&mut stream, Token(next), both).unwrap();
        let (out, came) = (data.clone(), Vec::new());
        ends.insert(next, End { stream, out, sent: 0, came, ended: false, echoes: false });
        next += 1;
    }
    let mut done = 0;
    while done < CLIENTS {
        poll.poll(&mut events, None).unwrap();
        for event in &events {
            let token = event.token().0;
            if token == 0 {
                loop {
                    match listener.accept() {
                        Ok((mut stream, _)) => {
                            poll.registry().register(&mut stream, Token(next), both).unwrap();
                            let (out, came) = (Vec::new(), Vec::new());
                            ends.insert(next, End { stream, out, sent: 0, came, ended: false, echoes: true });
                            next += 1;
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        Err(error) => panic!("{error}"),
                    }
                }
            } else if let Some(end) = ends.get_mut(&token)
                && end.go_on()
            {
                if !end.echoes {
                    assert!(end.came == data);
                    assert!(end.stream.take_error().unwrap().is_none());
                    done += 1;
                }
                ends.remove(&token);
            }
        }
    }
}

#[test]
fn a_refused_connection_is_an_event() {
    let (a, _b) = stacks(1);
    let mut poll = Poll::new().unwrap();
    let mut stream = Stream::connect(&a, SocketAddr::from(([10, 0, 0, 2], 9))).unwrap();
    poll.registry().register(&mut stream, Token(0), Interest::WRITABLE).unwrap();
    let mut events = Events::with_capacity(4);
    loop {
        poll.poll(&mut events, None).unwrap();
        if let Some(event) = events.iter().next() {
            assert!(event.is_writable() && event.is_error());
            break;
        }
    }
    let error = stream.take_error().unwrap().unwrap();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(stream.take_error().unwrap().is_none());
}
