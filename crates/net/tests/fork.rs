//! A child of a fork has a copy of a stack of the program's own, and the wire is its parent's.

use onecopy_link::Tap;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{Driver, Stack, udp};
use onecopy_testing::{LONG, alone};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

/// All of one process: two stacks, and sockets of each kind.
struct World {
    stacks: [Stack; 2],
    listener: Listener,
    streams: [Stream; 2],
    datagrams: udp::Socket,
}

const AT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), 80);

impl World {
    /// Whoever drops a stack of it waits until all was acknowledged.
    fn new(shards: u32, driver: Driver) -> World {
        let (a, b): (Vec<_>, Vec<_>) = (0..shards).map(|_| Tap::cable(1500).unwrap()).unzip();
        let build = |taps, address| {
            let builder = Stack::builder().links::<Tap>(taps).address(address).driver(driver);
            builder.linger(Duration::MAX).build().unwrap()
        };
        let stacks = [build(a, "10.0.0.1/24"), build(b, "10.0.0.2/24")];
        let listener = Listener::bind(&stacks[1], AT).unwrap();
        let streams = thread::scope(|scope| {
            let server = scope.spawn(|| listener.accept().unwrap().0);
            [Stream::connect(&stacks[0], AT).unwrap(), server.join().unwrap()]
        });
        let datagrams = udp::Socket::bind(&stacks[0], "10.0.0.1:53".parse().unwrap()).unwrap();
        World { stacks, listener, streams, datagrams }
    }

    fn says(&mut self, bytes: &[u8]) {
        let [client, server] = &mut self.streams;
        thread::scope(|scope| {
            scope.spawn(|| client.write_all(bytes).unwrap());
            let mut back = vec![0; bytes.len()];
            server.read_exact(&mut back).unwrap();
            assert_eq!(back, bytes);
        });
    }

    /// Which of the calls that would put something on the wire, or take something from it, is not refused.
    fn allows(&mut self) -> Option<&'static str> {
        let World { stacks: [a, b], listener, streams: [client, server], datagrams } = self;
        let calls = [
            ("send", client.send(b"the child's").err()),
            ("recv", server.recv(&mut [0; 5]).err()),
            ("accept", listener.accept().err()),
            ("connect", Stream::connect(a, AT).err()),
            ("connect_nonblocking", Stream::connect_nonblocking(a, AT).err()),
            ("bind", Listener::bind(b, "10.0.0.2:81".parse().unwrap()).err()),
            ("udp bind", udp::Socket::bind(b, "10.0.0.2:54".parse().unwrap()).err()),
            ("send_to", datagrams.send_to(b"the child's", AT).err()),
            ("recv_from", datagrams.recv_from(&mut [0; 5]).err()),
            ("shutdown", client.shutdown(std::net::Shutdown::Both).err()),
        ];
        let refused = |error: &onecopy_net::Error| error.raw_os_error() == 130;
        calls.into_iter().find(|(_, error)| !error.as_ref().is_some_and(refused)).map(|(call, _)| call)
    }

    /// Ends it in order: both ends of what is under way are there until it is over.
    fn end(self) {
        let World { stacks: [a, b], listener, streams, datagrams } = self;
        drop((listener, streams, datagrams));
        thread::scope(|scope| {
            scope.spawn(|| drop(a));
            drop(b);
        });
    }
}

/// What the child of a fork returns that has a copy of `world`.
fn forked(world: World, work: impl FnOnce(World) -> i32) -> World {
    let mine = RefCell::new(Some(world));
    let child = onecopy_sys::fork::child(|| mine.take().map_or(100, work)).unwrap();
    let fd = pidfd_open(Pid::from_raw(child.pid()).unwrap(), PidfdFlags::empty()).unwrap();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let ended = poll(&mut fds, Some(&Timespec::try_from(LONG).unwrap())).unwrap();
    assert_eq!(ended, 1, "the child waits for what is its parent's");
    assert_eq!(child.wait(), onecopy_sys::fork::Ended::Returned(0));
    mine.take().unwrap()
}

fn child_drops_all(shards: u32, driver: Driver) {
    let mut world = World::new(shards, driver);
    world.says(b"before");
    let mut world = forked(world, |world| {
        drop(world);
        0
    });
    // A FIN of the child's would be here by now: it was sent before these bytes.
    world.says(b"behind");
    world.end();
}

#[test]
fn what_a_childs_stack_drops_is_its_parents_still() {
    alone!();
    child_drops_all(1, Driver::Thread);
}

#[test]
fn nor_does_a_child_drive_what_its_parent_drives() {
    alone!();
    child_drops_all(1, Driver::Caller);
}

#[test]
fn nor_is_a_shard_of_several_a_childs() {
    alone!();
    child_drops_all(2, Driver::Thread);
}

#[test]
fn a_childs_calls_are_refused_and_nothing_of_them_leaves() {
    alone!();
    let mut world = World::new(1, Driver::Caller);
    world.says(b"before");
    let mut world = forked(world, |mut world| {
        let allowed = world.allows();
        let driven = world.stacks[0].drive(Duration::ZERO).is_ok();
        if allowed.is_some() || driven {
            eprintln!("the child may: {allowed:?}, drive: {driven}");
            return 1;
        }
        0
    });
    world.says(b"behind");
    world.end();
}
