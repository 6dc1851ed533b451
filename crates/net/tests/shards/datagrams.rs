//! UDP.

use crate::world::{Spread, World, any, at, at_six, pattern, world};
use onecopy_net::udp::Socket;
use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::thread;

fn receives(socket: &Socket, bytes: &[u8]) -> SocketAddr {
    let mut buffer = vec![0; bytes.len() + 1];
    let (n, from) = socket.recv_from(&mut buffer).unwrap();
    assert!(buffer[..n] == *bytes, "{n} bytes of {}", bytes.len());
    from
}

#[test]
fn sockets_of_all_ports_get_what_is_theirs() {
    for (count, here, there) in
        [(2, at(1, 0), at(2, 0)), (4, at(1, 0), at(2, 0)), (4, at_six(1, 0), at_six(2, 0))]
    {
        let World { sharded, peer, .. } = &world(count, Spread::Chance);
        let other = Socket::bind(peer, there).unwrap();
        let there = other.local_addr().unwrap();
        // Ports that were asked for, that were chosen, and that come with the first send.
        let asked = (7000..7016).map(|port| Socket::bind(sharded, SocketAddr::new(here.ip(), port)).unwrap());
        let chosen = (0..16).map(|_| Socket::bind(sharded, here).unwrap());
        let sent = (0..16).map(|_| Socket::unbound(sharded).unwrap());
        let connected = (0..16).map(|_| {
            let socket = Socket::unbound(sharded).unwrap();
            socket.connect(there).unwrap();
            socket
        });
        let sockets: Vec<Socket> = asked.chain(chosen).chain(sent).chain(connected).collect();
        let mut ports = HashSet::new();
        for (number, socket) in sockets.iter().enumerate() {
            let bytes = pattern(number * 20);
            socket.send_to(&bytes, there).unwrap();
            let from = receives(&other, &bytes);
            assert!(ports.insert(from.port()), "{from} is another one's");
            assert_eq!(socket.local_addr().unwrap().port(), from.port());
            other.send_to(&bytes, from).unwrap();
            assert_eq!(receives(socket, &bytes), there);
        }
        // Among themselves, too.
        for pair in sockets[..48].windows(2) {
            pair[0]
                .send_to(b"neighbour", SocketAddr::new(here.ip(), pair[1].local_addr().unwrap().port()))
                .unwrap();
            receives(&pair[1], b"neighbour");
        }
    }
}

#[test]
fn a_port_is_one_sockets_or_shared() {
    let World { sharded, peer, .. } = &world(4, Spread::Chance);
    let sender = Socket::bind(peer, at(2, 0)).unwrap();
    for port in 7000..7008 {
        let first = Socket::bind_reusing(sharded, any(port)).unwrap();
        assert_eq!(Socket::bind(sharded, any(port)).unwrap_err().kind(), ErrorKind::AddrInUse);
        let last = Socket::bind_reusing(sharded, any(port)).unwrap();
        sender.send_to(b"to the last", at(1, port)).unwrap();
        receives(&last, b"to the last");
        drop(last);
        sender.send_to(b"to the first", at(1, port)).unwrap();
        receives(&first, b"to the first");
        // The other family's is another port.
        let six = Socket::bind(sharded, at_six(1, port)).unwrap();
        let other = Socket::bind(peer, at_six(2, 0)).unwrap();
        other.send_to(b"six", at_six(1, port)).unwrap();
        receives(&six, b"six");
    }
}

#[test]
fn a_complaint_is_told_to_who_is_connected() {
    for there in [at(2, 9), at_six(2, 9), at(1, 9), at_six(1, 9)] {
        let World { sharded, .. } = &world(4, Spread::Chance);
        for _ in 0..8 {
            let socket = Socket::unbound(sharded).unwrap();
            socket.connect(there).unwrap();
            socket.send(b"anybody?").unwrap();
            let refused = socket.recv(&mut [0; 8]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{there}");
        }
    }
}

#[test]
fn datagrams_in_parts_are_put_together() {
    for (here, there) in [(at(1, 0), at(2, 0)), (at_six(1, 0), at_six(2, 0))] {
        let World { sharded, peer, .. } = &world(4, Spread::Chance);
        let other = Socket::bind(peer, there).unwrap();
        other.set(|settings| settings.dont_fragment = false).unwrap();
        let there = other.local_addr().unwrap();
        for number in 0..16 {
            let socket = Socket::bind(sharded, here).unwrap();
            socket.set(|settings| settings.dont_fragment = false).unwrap();
            let bytes = pattern(20_000 + number);
            let here = SocketAddr::new(here.ip(), socket.local_addr().unwrap().port());
            other.send_to(&bytes, here).unwrap();
            assert_eq!(receives(&socket, &bytes), there);
            socket.send_to(&bytes, there).unwrap();
            assert_eq!(receives(&other, &bytes), here);
        }
    }
}

#[test]
fn many_threads_use_one_stack() {
    let World { sharded, peer, .. } = &world(4, Spread::Flow);
    thread::scope(|scope| {
        for number in 0..8_u16 {
            scope.spawn(move || {
                let here = Socket::bind(sharded, any(7000 + number)).unwrap();
                let there = Socket::bind(peer, any(7000 + number)).unwrap();
                for round in 0..200_u32 {
                    here.send_to(&round.to_le_bytes(), at(2, 7000 + number)).unwrap();
                    receives(&there, &round.to_le_bytes());
                    there.send_to(&round.to_be_bytes(), at(1, 7000 + number)).unwrap();
                    receives(&here, &round.to_be_bytes());
                }
            });
        }
    });
}
