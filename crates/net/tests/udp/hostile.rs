//! A neighbour that lies, and one that floods.

use crate::world::*;
use onecopy_link::{Gso, Link, Packet, Tap, Train};
use onecopy_net::udp::Socket;
use onecopy_net::{Mac, Stack};
use rustix::event::{PollFd, PollFlags, poll};

const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// The stack at 10.0.0.1, and the other end of its cable.
fn alone() -> (Stack, Tap) {
    let (ours, theirs) = Tap::cable(MTU).unwrap();
    (Stack::builder().link(ours).mac(OURS).address("10.0.0.1/24").build().unwrap(), theirs)
}

fn sum(bytes: &[u8]) -> u16 {
    let total: u32 =
        bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(*two.get(1).unwrap_or(&0))).sum();
    let folded = (total & 0xFFFF) + (total >> 16);
    !(((folded & 0xFFFF) + (folded >> 16)) as u16)
}

/// A datagram from 10.0.0.2, whose header says that UDP's part is `says` bytes long.
fn datagram(port: u16, payload: &[u8], says: u16) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
    ip[2..4].copy_from_slice(&((28 + payload.len()) as u16).to_be_bytes());
    let checksum = sum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = OURS.0.to_vec();
    frame.extend([2, 0, 0, 0, 0, 2, 8, 0]);
    frame.extend(ip);
    // No checksum of UDP's own (RFC 768 allows it).
    frame.extend([0x30, 0x39]);
    frame.extend(port.to_be_bytes());
    frame.extend(says.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// Has it be sent, waiting for room.
fn send(tap: &mut Tap, frame: &[u8], gso: Option<Gso>) {
    let (head, payload) = frame.split_at(frame.len().min(42));
    let mut chain = onecopy_chain::Chain::new();
    let pool = onecopy_pool::PagePool::new(Default::default(), onecopy_pool::provider::Heap::new()).unwrap();
    onecopy_chain::Writer::new(&pool).append(&mut chain, payload).unwrap();
    let mut packet = Packet::new(head, chain).unwrap();
    packet.set_gso(gso);
    while tap.room(0) == 0 {
        poll(&mut [PollFd::new(&*tap, PollFlags::OUT)], None).unwrap();
        // It looks whether it can go on.
        let _ = tap.receive(0);
    }
    tap.transmit(0, packet);
}

#[test]
fn what_lies_of_its_length_reaches_nobody() {
    let (stack, mut tap) = alone();
    let socket = Socket::bind(&stack, a(7000)).unwrap();
    socket.set_gro(true).unwrap();
    let payload = pattern(100);
    for says in [0, 7, 109, u16::MAX] {
        send(&mut tap, &datagram(7000, &payload, says), None);
    }
    // Trains of nothing, of no end of datagrams, and of another protocol.
    for (train, size) in [(Train::Udp, 0), (Train::Tcp, 10)] {
        send(&mut tap, &datagram(7000, &payload, 108), Some(Gso { train, size, network: 14 }));
    }
    let long = pattern(1000);
    send(&mut tap, &datagram(7000, &long, 1008), Some(Gso { train: Train::Udp, size: 1, network: 14 }));
    // Cut short, in the middle of a header.
    for len in [15, 30, 41] {
        send(&mut tap, &datagram(7000, &payload, 108)[..len], None);
    }
    // What is right comes through behind all that, and a header may say less than there is: the rest is no part of it.
    send(&mut tap, &datagram(7000, &payload, 28), None);
    send(&mut tap, &datagram(7000, b"the last", 16), None);
    let mut buffer = [0; 2000];
    let meta = socket.recv_segments(&mut buffer).unwrap();
    let first = (meta.len, meta.datagrams());
    if meta.len != 8 {
        assert_eq!(first, (20, 1), "{meta:?}");
        assert_eq!(buffer[..20], payload[..20]);
        assert_eq!(socket.recv(&mut buffer).unwrap(), 8);
    }
    assert_eq!(&buffer[..8], b"the last");
    assert!(stack.is_up());
}

#[test]
fn a_flood_fills_one_buffer_and_no_more() {
    let (stack, mut tap) = alone();
    let (full, other) = (Socket::bind(&stack, a(7000)).unwrap(), Socket::bind(&stack, a(7001)).unwrap());
    full.set_recv_buffer_size(100_000).unwrap();
    let flood = datagram(7000, &pattern(64), 72);
    for _ in 0..2000 {
        send(&mut tap, &flood, None);
    }
    send(&mut tap, &datagram(7001, b"through", 15), None);
    assert_eq!(other.recv(&mut [0; 10]).unwrap(), 7);
    let fit = 200_000 / (768 + 4096);
    assert_eq!(full.drops(), 2000 - fit);
    full.set_nonblocking(true).unwrap();
    let mut got = 0;
    while full.recv(&mut [0; 100]).is_ok() {
        got += 1;
    }
    assert_eq!(got, fit);
    // There is room again.
    full.set_nonblocking(false).unwrap();
    send(&mut tap, &flood, None);
    assert_eq!(full.recv(&mut [0; 100]).unwrap(), 64);
}
