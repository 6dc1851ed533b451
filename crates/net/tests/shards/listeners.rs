//! Listeners: one to the program, and one in each shard.

use crate::world::{Spread, World, any, at, until, world, world_with};
use onecopy_net::Wait;
use onecopy_net::tcp::{Listener, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashSet;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

/// What poll(2) says now.
fn polled(listener: &Listener) -> PollFlags {
    let mut fds = [PollFd::new(&listener, PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP)];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    fds[0].revents()
}

#[test]
fn all_who_accept_are_woken() {
    for wait in [Wait::Block, Wait::Adaptive, Wait::Spin] {
        let World { sharded, peer, .. } = &world_with(4, Spread::Flow, |builder| builder.wait(wait));
        let listener = &Listener::bind(sharded, any(80)).unwrap();
        thread::scope(|scope| {
            // Each accepts one: whoever was not woken would hang.
            let accepters: Vec<_> = (0..24).map(|_| scope.spawn(|| listener.accept().unwrap())).collect();
            let clients: Vec<_> = (0..24).map(|_| Stream::connect(peer, at(1, 80)).unwrap()).collect();
            let accepted: HashSet<_> = accepters.into_iter().map(|one| one.join().unwrap().1).collect();
            let made: HashSet<_> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
            assert_eq!(accepted, made);
        });
    }
}

#[test]
fn nothing_to_accept() {
    let World { sharded, .. } = &world(2, Spread::Flow);
    let listener = Listener::bind(sharded, any(80)).unwrap();
    listener.set_accept_timeout(Some(Duration::from_millis(20))).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    listener.set_accept_timeout(None).unwrap();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(listener.take_error().unwrap().is_none());
}

#[test]
fn its_descriptor_says_what_any_shard_has() {
    let World { sharded, peer, .. } = &world(4, Spread::Chance);
    let listener = Listener::bind(sharded, any(80)).unwrap();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(polled(&listener), PollFlags::empty());
    for round in 1..=8 {
        let clients: Vec<_> = (0..round).map(|_| Stream::connect(peer, at(1, 80)).unwrap()).collect();
        let mut accepted = Vec::new();
        while accepted.len() < clients.len() {
            until("nobody says that there is a connection", || onecopy_testing::readable(&listener));
            accepted.push(listener.accept().unwrap());
        }
        assert_eq!(polled(&listener), PollFlags::empty());
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    // One that is made late says at once what there is.
    let late = Listener::bind(sharded, any(81)).unwrap();
    let _client = Stream::connect(peer, at(1, 81)).unwrap();
    until("nothing came", || {
        late.as_fd().try_clone_to_owned().is_ok() && polled(&late).contains(PollFlags::IN)
    });
}

#[test]
fn shut_down_it_ends_all_waits() {
    let World { sharded, peer, .. } = &world(4, Spread::Flow);
    let listener = &Listener::bind(sharded, any(80)).unwrap();
    thread::scope(|scope| {
        let waits: Vec<_> = (0..4).map(|_| scope.spawn(|| listener.accept().unwrap_err())).collect();
        listener.shutdown().unwrap();
        for wait in waits {
            assert_eq!(wait.join().unwrap().kind(), ErrorKind::InvalidInput);
        }
    });
    assert!(polled(listener).contains(PollFlags::HUP));
    for _ in 0..8 {
        assert_eq!(Stream::connect(peer, at(1, 80)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}

#[test]
fn dropped_it_leaves_nothing() {
    let World { sharded, peer, .. } = &world(4, Spread::Chance);
    for _ in 0..4 {
        let listener = Listener::bind(sharded, at(1, 80)).unwrap();
        let clients: Vec<_> = (0..8).map(|_| Stream::connect(peer, at(1, 80)).unwrap()).collect();
        drop(listener);
        // Those that waited to be accepted are reset.
        for client in clients {
            assert_eq!(client.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        assert_eq!(Stream::connect(peer, at(1, 80)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
    for shard in 0..4 {
        let census = sharded.with_shard(shard, |inet| inet.census());
        assert_eq!((census.listeners, census.sockets, census.ports), (0, 0, 0));
    }
}

#[test]
fn a_port_is_one_listeners_in_all_shards() {
    let World { sharded, peer, .. } = &world(4, Spread::Flow);
    // So many connections, each of which has a port of its own that a listener without one must not get.
    let there = Listener::bind(peer, any(80)).unwrap();
    let streams: Vec<_> = (0..64).map(|_| Stream::connect(sharded, at(2, 80)).unwrap()).collect();
    let mut ports: HashSet<u16> = streams.iter().map(|stream| stream.local_addr().unwrap().port()).collect();
    let listeners: Vec<_> = (0..64).map(|_| Listener::bind(sharded, at(1, 0)).unwrap()).collect();
    for listener in &listeners {
        let address = listener.local_addr().unwrap();
        assert!(ports.insert(address.port()), "{address} is somebody's");
        let taken = Listener::bind(sharded, address).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        let taken = Listener::bind(sharded, any(address.port())).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }
    // A port of a connection is not to be had, whichever shard has it, and nothing of the try is left.
    for stream in &streams {
        let port = stream.local_addr().unwrap().port();
        assert_eq!(Listener::bind(sharded, any(port)).unwrap_err().kind(), ErrorKind::AddrInUse);
    }
    drop(listeners);
    for shard in 0..4 {
        assert_eq!(sharded.with_shard(shard, |inet| inet.census().listeners), 0);
    }
    drop((there, streams));
}

#[test]
fn what_is_set_of_it_those_have_that_come() {
    let World { sharded, peer, .. } = &world(4, Spread::Flow);
    let listener = Listener::bind(sharded, any(80)).unwrap();
    listener.set(|settings| settings.ttl = 33).unwrap();
    for _ in 0..16 {
        let _client = Stream::connect(peer, at(1, 80)).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert_eq!(server.ttl().unwrap(), 33);
    }
    let refused = listener.set(|settings| settings.ttl = 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    listener.set(|settings| assert_eq!(settings.ttl, 33)).unwrap();
}

#[test]
fn a_backlog_is_shared_out() {
    let World { sharded, peer, .. } = &world(4, Spread::Flow);
    let _listener = Listener::bind_with_backlog(sharded, any(80), 8).unwrap();
    let clients: Vec<_> = (0..64).map(|_| Stream::connect_nonblocking(peer, at(1, 80)).unwrap()).collect();
    let waiting = || -> Vec<u32> {
        let of = |shard| {
            sharded.with_shard(shard, |inet| {
                (inet.tcp_stats().passive_opens - inet.tcp_stats().resets_out) as u32
            })
        };
        (0..4).map(of).collect()
    };
    // Two, and one more, as each has it.
    until("not full", || waiting().iter().all(|n| *n == 3));
    drop(clients);
}
