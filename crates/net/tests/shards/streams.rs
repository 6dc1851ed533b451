//! Connections.

use crate::world::{Spread, World, any, at, at_six, counter, pattern, until_over, world, world_with};
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{RecvFlags, SendFlags, Stack, Wait};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::Duration;

const CASES: [(usize, Spread); 4] =
    [(2, Spread::Flow), (2, Spread::Chance), (4, Spread::Flow), (4, Spread::Chance)];

/// Gives back what comes, connection by connection.
fn echo(listener: &Listener, connections: usize) {
    thread::scope(|scope| {
        for _ in 0..connections {
            let (mut stream, _) = listener.accept().unwrap();
            scope.spawn(move || {
                let mut buffer = vec![0; 30_000];
                loop {
                    match stream.read(&mut buffer).unwrap() {
                        0 => return stream.shutdown(Shutdown::Write).unwrap(),
                        n => stream.write_all(&buffer[..n]).unwrap(),
                    }
                }
            });
        }
    });
}

fn talks(from: &Stack, to: SocketAddr, bytes: &[u8]) {
    let mut stream = Stream::connect(from, to).unwrap();
    let mut reader = stream.try_clone().unwrap();
    let back = thread::scope(|scope| {
        let back = scope.spawn(move || {
            let mut back = Vec::new();
            reader.read_to_end(&mut back).unwrap();
            back
        });
        stream.write_all(bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        back.join().unwrap()
    });
    assert!(back == bytes);
}

/// Many connections at once, from `from` to `to`.
fn crowd(from: &Stack, to: &Stack, address: SocketAddr) {
    let listener = Listener::bind(to, any_like(address)).unwrap();
    let bytes = pattern(100_000);
    thread::scope(|scope| {
        scope.spawn(|| echo(&listener, 32));
        for _ in 0..8 {
            scope.spawn(|| (0..4).for_each(|_| talks(from, address, &bytes)));
        }
    });
}

fn any_like(address: SocketAddr) -> SocketAddr {
    if address.is_ipv4() { any(address.port()) } else { SocketAddr::new([0_u16; 8].into(), address.port()) }
}

fn of_each<R>(stack: &Stack, look: impl Fn(&mut onecopy_inet::stack::Stack) -> R) -> Vec<R> {
    (0..stack.shards()).map(|shard| stack.with_shard(shard, &look)).collect()
}

#[test]
fn many_connections_come_to_all_shards() {
    for (count, spread) in CASES {
        let World { sharded, peer, .. } = &world(count, spread);
        crowd(peer, sharded, at(1, 80));
        let taken = of_each(sharded, |inet| inet.tcp_stats().passive_opens);
        assert_eq!(taken.iter().sum::<u64>(), 32);
        assert!(taken.iter().all(|n| *n > 0), "{taken:?}");
        assert!(counter(sharded, "handed_over") > 0);
        assert_eq!(counter(sharded, "handed_over_dropped"), 0);
        until_over(sharded);
        until_over(peer);
    }
}

#[test]
fn many_connections_are_made_from_all_shards() {
    for (count, spread) in CASES {
        let World { sharded, peer, .. } = &world(count, spread);
        crowd(sharded, peer, at(2, 80));
        let made = of_each(sharded, |inet| inet.tcp_stats().active_opens);
        assert_eq!(made, vec![32 / count as u64; count], "one after the other");
        until_over(sharded);
    }
}

#[test]
fn ipv6_is_the_same() {
    let World { sharded, peer, .. } = &world(4, Spread::Chance);
    crowd(peer, sharded, at_six(1, 80));
    crowd(sharded, peer, at_six(2, 80));
}

#[test]
fn a_stack_talks_to_itself() {
    let World { sharded, .. } = &world(4, Spread::Flow);
    crowd(sharded, sharded, at(1, 80));
}

#[test]
fn all_ways_of_waiting_do() {
    for wait in [Wait::Block, Wait::Adaptive, Wait::Spin] {
        let World { sharded, peer, .. } = &world_with(2, Spread::Chance, |builder| builder.wait(wait));
        crowd(peer, sharded, at(1, 80));
    }
}

#[test]
fn from_where_it_was_asked_for() {
    let World { sharded, peer, .. } = &world(4, Spread::Flow);
    let listener = Listener::bind(peer, any(80)).unwrap();
    for port in [5000, 5001, 5002, 5003, 5004, 0, 0, 0, 0] {
        for from in [at(1, port), any(port)] {
            let from = if port == 0 || from.ip().is_unspecified() { from } else { at(1, port + 100) };
            let stream = Stream::connect_from(sharded, from, at(2, 80)).unwrap();
            let (server, seen) = listener.accept().unwrap();
            assert_eq!((seen, seen.ip()), (stream.local_addr().unwrap(), at(1, 0).ip()));
            assert!(port == 0 || seen.port() == from.port());
            // The same twice is no other connection.
            if port != 0 {
                let twice = Stream::connect_from(sharded, from, at(2, 80)).unwrap_err();
                assert_eq!(twice.kind(), ErrorKind::AddrNotAvailable, "{twice}");
            }
            stream.send(b"x").unwrap();
            assert_eq!(server.recv(&mut [0; 8]).unwrap(), 1);
        }
    }
    let strange = Stream::connect_from(sharded, at(9, 0), at(2, 80)).unwrap_err();
    assert_eq!(strange.kind(), ErrorKind::AddrNotAvailable, "{strange}");
    // A listener has its port in all of them.
    let _listener = Listener::bind(sharded, any(6000)).unwrap();
    for _ in 0..4 {
        let taken = Stream::connect_from(sharded, any(6000), at(2, 80)).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse, "{taken}");
    }
}

#[test]
fn resets_and_refusals_find_their_sockets() {
    let World { sharded, peer, .. } = &world(4, Spread::Chance);
    let listener = Listener::bind(sharded, any(80)).unwrap();
    for _ in 0..16 {
        let refused = Stream::connect(sharded, at(2, 81)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let refused = Stream::connect(peer, at(1, 81)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let client = Stream::connect(peer, at(1, 80)).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        let reset = server.recv(&mut [0; 8]).unwrap_err();
        assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
        let client = Stream::connect(peer, at(1, 80)).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_linger(Some(Duration::ZERO)).unwrap();
        drop(server);
        let reset = client.recv(&mut [0; 8]).unwrap_err();
        assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_host_that_is_not_there_is_told_to_who_asked() {
    let World { sharded, .. } = &world(4, Spread::Flow);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let error = Stream::connect(sharded, at(77, 80)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{error}");
            });
        }
    });
}

#[test]
fn what_was_sent_arrives_though_the_stack_goes() {
    let world = world(4, Spread::Chance);
    let listener = Listener::bind(&world.peer, any(80)).unwrap();
    let bytes = pattern(300_000);
    let streams: Vec<Stream> = (0..8).map(|_| Stream::connect(&world.sharded, at(2, 80)).unwrap()).collect();
    let mut keeps = None;
    thread::scope(|scope| {
        for _ in 0..8 {
            let (mut server, _) = listener.accept().unwrap();
            let bytes = &bytes;
            scope.spawn(move || {
                let mut all = Vec::new();
                server.read_to_end(&mut all).unwrap();
                assert!(all == *bytes);
            });
        }
        for stream in &streams {
            assert_eq!(stream.send(&bytes).unwrap(), bytes.len());
        }
        let World { sharded, peer, switch } = world;
        drop(streams);
        // The last handle: it waits until all is acknowledged.
        drop(sharded);
        keeps = Some((peer, switch));
    });
    drop(keeps);
}

#[test]
fn bytes_in_place_and_given_away_are_as_in_one_shard() {
    let World { sharded, peer, .. } = &world(2, Spread::Chance);
    let listener = Listener::bind(sharded, any(80)).unwrap();
    for _ in 0..8 {
        let client = Stream::connect(peer, at(1, 80)).unwrap();
        let (server, _) = listener.accept().unwrap();
        let bytes = pattern(50_000);
        let mut slot = client.reserve(bytes.len()).unwrap();
        assert_eq!(slot.copy_from(&bytes), bytes.len());
        slot.commit().unwrap();
        let mut got = Vec::new();
        while got.len() < bytes.len() {
            let view = server.recv_borrowed(bytes.len() - got.len()).unwrap();
            view.slices().for_each(|slice| got.extend_from_slice(slice));
            server.send_segment(view.into_segment(), SendFlags::empty()).unwrap();
        }
        assert!(got == bytes);
        let mut back = vec![0; bytes.len()];
        assert_eq!(client.recv_with_flags(&mut back, RecvFlags::WAITALL).unwrap(), bytes.len());
        assert!(back == bytes);
    }
}
