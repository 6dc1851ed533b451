//! Many connections at once.

use crate::programs::{Clients, Echo, check, kernel_echo, pattern};
use crate::world::{Host, KERNEL, Kernel, Program, Setup, World, ours};
use onecopy_inet::ip::Reason;
use onecopy_inet::stack::Event;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::Error;
use std::io::ErrorKind;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier};

const COUNT: usize = 500;
const THREADS: usize = 10;
/// Bytes of each.
const LEN: u64 = 20_000;

/// Connects many times, and goes on when all others have, too.
fn many(first: u64, all: &Barrier) {
    let mut sockets: Vec<TcpStream> =
        (0..COUNT / THREADS).map(|_| TcpStream::connect(ours(7)).unwrap()).collect();
    all.wait();
    for (stream, socket) in (first..).zip(&mut sockets) {
        socket.write_all(pattern(stream, 0, LEN / 2)).unwrap();
    }
    for (stream, socket) in (first..).zip(&mut sockets) {
        let sent = pattern(stream, 0, LEN / 2).len() as u64;
        let rest = pattern(stream, sent, LEN - sent);
        socket.write_all(rest).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let mut back = Vec::new();
        socket.read_to_end(&mut back).unwrap();
        check(stream, 0, &back);
        assert_eq!(back.len() as u64, sent + rest.len() as u64);
    }
}

#[test]
fn the_kernel_has_many_connections() {
    let Some(mut world) = World::new(Setup::all(1500)) else { return };
    let mut echo = Echo::listen(&mut world.host, ours(7), COUNT);
    let all = Arc::new(Barrier::new(THREADS));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let all = all.clone();
            world.kernel(move || many((thread * COUNT / THREADS) as u64, &all))
        })
        .collect();
    world.run(&mut echo);
    assert_eq!(echo.most, COUNT, "connections at once");
    world.finish();
    threads.into_iter().for_each(|thread| thread.join());
}

#[test]
fn we_have_many_connections() {
    let Some(mut world) = World::new(Setup::all(1500)) else { return };
    let at = SocketAddr::new(KERNEL.into(), 7);
    let listener = world.namespace.run(|| TcpListener::bind(at).unwrap()).unwrap();
    // std asks for 128: of more at once the kernel resets some whose cookies it cannot place.
    rustix::net::listen(&listener, 2 * COUNT as i32).unwrap();
    let server = world.kernel(|| kernel_echo(listener, COUNT));
    let mut clients = Clients::connect(&mut world.host, at, COUNT as u64, LEN);
    world.run(&mut clients);
    world.finish();
    server.join();
}

#[test]
fn who_begins_at_once_waits_for_the_neighbour_once() {
    let Some(mut world) = World::new(Setup::all(1500)) else { return };
    let at = SocketAddr::new(KERNEL.into(), 7);
    let listener = world.namespace.run(|| TcpListener::bind(at).unwrap()).unwrap();
    let server = world.kernel(|| kernel_echo(listener, 100));
    let mut clients = Clients::connect(&mut world.host, at, 100, LEN);
    world.run(&mut clients);
    assert_eq!(world.host.stack.interface().stats().dropped(Reason::NeighbourQueue), 0);
    world.finish();
    server.join();
}

#[test]
fn nobody_listens() {
    let Some(mut world) = World::new(Setup::all(1500)) else { return };
    let client = world.kernel(|| TcpStream::connect(ours(9)).unwrap_err().kind());
    let mut refused = Refused { client: Some(client), own: None };
    let id = world.host.stack.tcp_open().unwrap();
    let begun = world.host.stack.tcp_connect(0, id, SocketAddr::new(KERNEL.into(), 9));
    assert_eq!(begun, Err(Error::InProgress));
    refused.own = Some(id);
    world.run(&mut refused);
    world.finish();
}

/// Waits until both sides' connections are refused.
struct Refused {
    client: Option<Kernel<ErrorKind>>,
    own: Option<Id>,
}

impl Program for Refused {
    fn turn(&mut self, host: &mut Host, events: &[Event]) -> bool {
        if let Some(id) = self.own.take_if(|id| events.iter().any(|event| event.id == *id)) {
            assert_eq!(host.stack.tcp_take_error(id), Some(Error::Refused));
            host.stack.tcp_close(host.now, id);
        }
        if let Some(error) = Kernel::take(&mut self.client) {
            assert_eq!(error, ErrorKind::ConnectionRefused);
        }
        self.own.is_none() && self.client.is_none()
    }
}
