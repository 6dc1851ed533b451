//! Streams and listeners for mio, whoever carries the bytes: a server and its clients in one loop of events.

mod carriers;

use carriers::World;
use mio::{Events, Interest, Poll, Token};
use onecopy_net::Carrier;
use onecopy_net::tcp::mio::{Listener, Stream};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;

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
    moves_everything(Carrier::Stack, 1);
}

#[test]
fn over_shards_too() {
    moves_everything(Carrier::Stack, 2);
    moves_everything(Carrier::Stack, 4);
}

#[test]
fn over_the_kernel() {
    moves_everything(Carrier::Kernel, 1);
}

#[test]
fn over_rings_of_the_kernels() {
    moves_everything(Carrier::Kernel, 2);
    moves_everything(Carrier::Kernel, 4);
}

fn moves_everything(carrier: Carrier, shards: u32) {
    const CLIENTS: usize = 8;
    let Some(world) = World::new(carrier, shards) else { return };
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(64);
    let mut listener = Listener::bind(&world.b, world.at(0)).unwrap();
    poll.registry().register(&mut listener, Token(0), Interest::READABLE).unwrap();
    let both = Interest::READABLE | Interest::WRITABLE;
    let mut ends = HashMap::new();
    let mut next = 1;
    let data: Vec<u8> = (0..1_500_000_u32).map(|n| ((n * 7) >> 3) as u8).collect();
    for _ in 0..CLIENTS {
        let mut stream = Stream::connect(&world.a, listener.local_addr().unwrap()).unwrap();
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
    assert!(carrier != Carrier::Kernel || world.all_took_part());
}

#[test]
fn a_refused_connection_is_an_event() {
    for (carrier, shards) in [(Carrier::Stack, 1), (Carrier::Kernel, 1), (Carrier::Kernel, 2)] {
        let Some(world) = World::new(carrier, shards) else { continue };
        let mut poll = Poll::new().unwrap();
        // A port that somebody had until now.
        let nobody = Listener::bind(&world.b, world.at(0)).unwrap().local_addr().unwrap();
        let mut stream = Stream::connect(&world.a, nobody).unwrap();
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
}
