//! Who may bind, what is refused, and what becomes of what is bound.

use crate::world::{World, errno, pattern};
use onecopy_link::{Capabilities, Link, Packet, Tap};
use onecopy_net::{Port, Stack, Transport};
use onecopy_pool::provider::Opaque;
use onecopy_pool::{DeviceId, DeviceMemory, PoolConfig};
use std::os::fd::{AsFd, BorrowedFd};

#[test]
fn what_the_kernel_refuses_is_refused_alike() {
    for world in World::each(64) {
        let stack = &world.far;
        let restarts = stack.queue_stats(1).unwrap().restarts;
        let bind = |queues: &[u32]| stack.bind_rx(&world.memory, queues);
        assert_eq!(errno(bind(&[])), 22, "no queue");
        assert_eq!(errno(bind(&[2])), 34, "out of range");
        assert_eq!(errno(bind(&[1, 7])), 34, "one of them out of range");
        assert_eq!(errno(bind(&[1, 1])), 17, "twice");
        assert_eq!(errno(bind(&[0, 1])), 22, "none would be left");
        stack.set_header_split(false).unwrap();
        assert_eq!(errno(bind(&[1])), 22, "headers not split");
        stack.set_header_split(true).unwrap();
        let large =
            DeviceMemory::new(PoolConfig::new().order(1).limit(64), Opaque::new(DeviceId(1))).unwrap();
        assert_eq!(errno(stack.bind_rx(&large, &[1])), 7, "pages of 8 KiB");
        let small = DeviceMemory::opaque(15, DeviceId(1)).unwrap();
        assert_eq!(errno(stack.bind_rx(&small, &[1])), 22, "too small");
        assert_eq!(world.far.queue_stats(1).unwrap().restarts, restarts, "nothing was touched");

        let binding = bind(&[1]).unwrap();
        assert_eq!(errno(bind(&[1])), 17, "bound");
        assert_eq!(errno(stack.set_queues(1)), 22, "a bound queue would go");
        assert_eq!(errno(stack.set_queues(0)), 22);
        assert_eq!(errno(stack.set_queues(u32::MAX)), 22, "no memory holds as many");
        assert_eq!(errno(stack.set_header_split(false)), 22, "bound");
        assert_eq!(errno(stack.steer(world.at, 2)), 34);
        stack.set_queues(4).unwrap();
        let both = DeviceMemory::opaque(64, DeviceId(2)).unwrap();
        let second = stack.bind_rx(&both, &[2, 3]).unwrap();
        assert_eq!(second.id(), binding.id() + 1);
        drop(second);
        drop(binding);
        assert_eq!(errno(stack.set_queues(1)), 22, "flows are steered there");
        assert!(stack.unsteer(world.at));
        assert!(!stack.unsteer(world.at));
        stack.set_queues(1).unwrap();
        assert_eq!((stack.queues(), stack.queue_stats(1)), (1, None));
    }
}

/// A link that leaves headers where they are.
pub struct Whole(pub Tap);

impl Link for Whole {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn room(&self, now: u64) -> usize {
        self.0.room(now)
    }
    fn transmit(&mut self, now: u64, packet: Packet) {
        self.0.transmit(now, packet);
    }
    fn receive(&mut self, now: u64) -> Option<Packet> {
        self.0.receive(now)
    }
    fn deadline(&self) -> Option<u64> {
        self.0.deadline()
    }
}

impl AsFd for Whole {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Port for Whole {}

#[test]
fn a_link_that_splits_nothing_and_one_that_is_gone_are_refused() {
    let memory = DeviceMemory::opaque(64, DeviceId(1)).unwrap();
    let (a, b) = Tap::cable(1500).unwrap();
    let whole = Stack::builder().link(Whole(a)).address("10.0.0.1/24").build().unwrap();
    whole.set_queues(2).unwrap();
    assert_eq!(errno(whole.bind_rx(&memory, &[1])), 95);
    let gone = Stack::builder().link(b).address("10.0.0.2/24").build().unwrap();
    gone.set_queues(2).unwrap();
    drop(whole);
    while gone.is_up() {
        gone.drive(std::time::Duration::from_millis(1)).unwrap();
    }
    assert_eq!(errno(gone.bind_rx(&memory, &[1])), 19);
}

#[test]
fn bound_queues_are_left_out_of_the_spread_and_others_share_it() {
    let world = World::new(64);
    world.far.set_queues(4).unwrap();
    let _binding = world.bind();
    let listener = onecopy_net::tcp::Listener::bind(&world.far, "10.0.0.2:90".parse().unwrap()).unwrap();
    for _ in 0..64 {
        let sender = onecopy_net::tcp::Stream::connect(&world.near, listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        sender.send(b"x").unwrap();
        assert_eq!(receiver.recv(&mut [0; 4]).unwrap(), 1);
    }
    let packets = |queue| world.far.queue_stats(queue).unwrap().packets;
    assert_eq!(packets(1), 0);
    assert!([0, 2, 3].iter().all(|queue| packets(*queue) > 0), "64 flows come to all three");
}

#[test]
fn unbound_the_queue_goes_on_and_what_is_out_stays_valid() {
    for world in World::each(64) {
        let binding = world.bind();
        let (sender, receiver) = world.connect();
        let data = pattern(9000);
        sender.send(&data).unwrap();
        let mut held = Vec::new();
        while held.iter().map(|frag: &onecopy_net::devmem::Frag| frag.len as usize).sum::<usize>()
            < data.len()
        {
            held.extend(receiver.recv_frags(data.len()).unwrap().into_device());
        }
        let (placed, restarts) = {
            let stats = world.far.queue_stats(1).unwrap();
            (stats.placed, stats.restarts)
        };
        drop(binding);
        sender.send(b"ordinary").unwrap();
        let mut buffer = [0; 64];
        assert_eq!(receiver.recv(&mut buffer).unwrap(), 8);
        let stats = world.far.queue_stats(1).unwrap();
        assert_eq!((stats.placed, stats.restarts), (placed, restarts + 1));
        assert!(world.read(&held) == data, "what is held is as it was");
        assert!(!world.all_home());
        let ranges: Vec<_> = held.iter().map(|frag| (*frag).into()).collect();
        assert_eq!(receiver.dont_need(&ranges).unwrap(), held.len());
        assert!(world.all_home());
    }
}

#[test]
fn a_closed_socket_gives_back_what_its_program_did_not() {
    for world in World::each(64) {
        let _binding = world.bind();
        let (sender, receiver) = world.connect();
        sender.send(&pattern(9000)).unwrap();
        let first = receiver.recv_frags(4000).unwrap();
        let forgotten = receiver.recv_frags(100).unwrap().into_device();
        assert!(!forgotten.is_empty() && receiver.tokens_held() > 0);
        // Some of it was not even received.
        drop(receiver);
        assert!(world.all_home());
        drop(first);
        assert!(world.all_home());
    }
}

#[test]
fn memory_that_one_stack_sends_from_no_other_receives_into_nor_the_other_way_round() {
    const EBUSY: i32 = 16;
    let (world, other) = (World::new(64), World::new(64));
    let kernel = Stack::builder().transport(Transport::Kernel).build().ok();
    let steered = |stack: &Stack| stack.set_queues(2).unwrap();
    kernel.iter().for_each(steered);
    other.near.set_queues(2).unwrap();
    let receivers = [&other.near, &other.far].into_iter().chain(&kernel);
    let memory = &world.memory;
    for receiver in receivers {
        let tx = world.near.bind_tx(memory).unwrap();
        assert_eq!(errno(receiver.bind_rx(memory, &[1])), EBUSY);
        drop(tx);
        let rx = match receiver.bind_rx(memory, &[1]) {
            Ok(rx) => rx,
            Err(error) => {
                // Where the kernel registers no memory.
                assert_eq!(error.raw_os_error(), 95, "{error}");
                continue;
            }
        };
        assert_eq!(errno(world.near.bind_tx(memory)), EBUSY);
        // Others may receive into it, too.
        let second = world.far.bind_rx(memory, &[1]).unwrap();
        drop(rx);
        assert_eq!(errno(world.near.bind_tx(memory)), EBUSY);
        drop(second);
        // A queue that is bound already claims nothing.
        let first = receiver.bind_rx(&DeviceMemory::opaque(64, DeviceId(2)).unwrap(), &[1]).unwrap();
        assert_eq!(errno(receiver.bind_rx(memory, &[1])), 17);
        drop(first);
    }
    drop(world.near.bind_tx(memory).unwrap());
}
