//! Segments made by hand, and what a stack says to them.

use onecopy_chain::notify::{Fate, Segment};
use onecopy_chain::{Chain, Writer};
use onecopy_inet::stack::Stack;
use onecopy_inet::wire::{Ipv4, Protocol, Tcp, checksum};
use onecopy_link::{Head, Packet};
use onecopy_pool::PagePool;
use std::net::{Ipv4Addr, SocketAddrV4};

/// A packet of IP's from a stranger to `to`, port 80.
pub fn packet(pool: &PagePool, from: SocketAddrV4, to: Ipv4Addr, tcp: Tcp, payload: &[u8]) -> Packet {
    let chain = |bytes: &[u8]| {
        let mut chain = Chain::new();
        Writer::new(pool).append(&mut chain, bytes).unwrap();
        Packet::from(Segment::from(chain))
    };
    let mut packet = chain(payload);
    let tcp = Tcp { from: from.port(), to: 80, window: 60_000, ..tcp };
    let len = tcp.len() + payload.len();
    let sum = checksum::pseudo_v4(*from.ip(), to, Protocol::TCP, len as u32);
    tcp.write(packet.head_mut(), sum).unwrap();
    checksum::leave_unfinished(&mut packet, 0, Tcp::CHECKSUM).unwrap();
    packet.finish().unwrap();
    let mut head = Head::new();
    Ipv4::new(*from.ip(), to, Protocol::TCP, len as u16).write(&mut head).unwrap();
    let whole = chain(&[&head[..], &packet.to_vec().unwrap()].concat());
    packet.free(Fate::Copied);
    whole
}

/// What it says, segment by segment.
pub fn said(stack: &mut Stack) -> Vec<Tcp> {
    let mut said = Vec::new();
    while let Some(mut packet) = stack.transmit() {
        packet.finish().unwrap();
        said.push(Tcp::parse(&packet.to_vec().unwrap()[20..]).unwrap().0);
        packet.free(Fate::Copied);
    }
    said
}
