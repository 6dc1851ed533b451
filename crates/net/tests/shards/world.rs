//! A stack of several shards, a peer that knows nothing of them, and a switch between that brings packets by any queue.

use onecopy_link::{Link, Packet, Tap};
use onecopy_net::{Builder, Stack};
use rustix::event::{PollFd, PollFlags, poll};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

/// How packets for the stack are spread over its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// A flow's all come by one, which is seldom its shard's.
    Flow,
    /// Any by any.
    Chance,
}

pub struct World {
    /// 10.0.0.1, fd00::1.
    pub sharded: Stack,
    /// 10.0.0.2, fd00::2.
    pub peer: Stack,
    pub switch: Switch,
}

pub fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], port))
}

pub fn at_six(host: u8, port: u16) -> SocketAddr {
    (IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, host.into()]), port).into()
}

pub fn any(port: u16) -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], port))
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

fn addressed(host: u8) -> Builder {
    let builder = Stack::builder().address(&format!("10.0.0.{host}/24")).address(&format!("fd00::{host}/64"));
    builder.seed([host; 16])
}

pub fn world(count: usize, spread: Spread) -> World {
    world_with(count, spread, |builder| builder)
}

pub fn world_with(count: usize, spread: Spread, change: impl FnOnce(Builder) -> Builder) -> World {
    let (outer, inner): (Vec<Tap>, Vec<Tap>) = (0..count).map(|_| Tap::cable(1500).unwrap()).unzip();
    let (end, peer) = Tap::cable(1500).unwrap();
    World {
        sharded: change(addressed(1)).links(outer).build().unwrap(),
        peer: addressed(2).link(peer).build().unwrap(),
        switch: Switch::new(inner, end, spread),
    }
}

/// What a counter of the stack's link says.
pub fn counter(stack: &Stack, name: &str) -> u64 {
    let all = stack.link_counters();
    all.iter().find(|(one, _)| *one == name).unwrap_or_else(|| panic!("{all:?}")).1
}

/// Waits for what others bring about.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !done() {
        assert!(begun.elapsed() < onecopy_testing::LONG, "{what}");
        thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Waits until no shard has a socket but in TIME-WAIT.
pub fn until_over(stack: &Stack) {
    for shard in 0..stack.shards() {
        until("sockets are left", || {
            let census = stack.with_shard(shard, |inet| inet.census());
            census.sockets == census.over
        });
    }
}

pub struct Switch {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Switch {
    fn new(queues: Vec<Tap>, peer: Tap, spread: Spread) -> Switch {
        let (stop, stopped) = UnixStream::pair().unwrap();
        let thread = thread::spawn(move || switch(queues, peer, spread, &stopped));
        Switch { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking(), "the switch panicked");
    }
}

fn switch(mut queues: Vec<Tap>, mut peer: Tap, spread: Spread, stopped: &UnixStream) {
    let mut chance = 1_u64;
    loop {
        {
            let mut fds = vec![PollFd::new(stopped, PollFlags::IN), PollFd::new(&peer, PollFlags::IN)];
            fds.extend(queues.iter().map(|queue| PollFd::new(queue, PollFlags::IN)));
            poll(&mut fds, None).unwrap();
            if !fds[0].revents().is_empty() {
                return;
            }
            // Whose stack is gone needs no switch.
            let over = PollFlags::HUP | PollFlags::ERR;
            if fds[1..].iter().any(|fd| fd.revents().intersects(over)) {
                return;
            }
        }
        while let Some(packet) = peer.receive(0) {
            let number = match spread {
                Spread::Chance => {
                    chance = chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    chance >> 33
                }
                Spread::Flow => flow(&packet),
            };
            let at = number as usize % queues.len();
            pass(&mut queues[at], packet);
        }
        for queue in &mut queues {
            while let Some(packet) = queue.receive(0) {
                pass(&mut peer, packet);
            }
        }
    }
}

/// A number of a flow: of the bytes that its addresses and ports are, whatever else there is.
fn flow(packet: &Packet) -> u64 {
    let bytes = packet.head().get(26..38).unwrap_or_default();
    bytes.iter().fold(7, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add((*byte).into())) >> 3
}

/// As a queue of the kernel's: what it has no room for is dropped.
fn pass(to: &mut Tap, packet: Packet) {
    to.transmit(0, packet);
}
