//! Packets by hand.

use crate::world::{A6, B6};
use onecopy_chain::{Chain, Writer};
use onecopy_inet::wire::{EtherType, Ethernet, Icmpv6, Ip, Ipv6, Mac, Ndp, Protocol, Udp};
use onecopy_link::{Head, Packet};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use std::net::Ipv6Addr;

thread_local! {
    static POOL: PagePool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
}

pub const MAC_A: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const MAC_B: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub const STRANGER: Mac = Mac([2, 0, 0, 0, 0, 0x66]);

/// The bytes behind a header, their checksum right: `field` is where that is.
fn summed(mut bytes: Vec<u8>, ip: &Ipv6, field: usize) -> Vec<u8> {
    bytes[field..field + 2].fill(0);
    let sum = Ip::V6(Ipv6 { payload_len: 0, ..*ip }).pseudo(bytes.len() as u32);
    let sum = sum.then(onecopy_chain::Sum::of(&bytes), 0).checksum();
    bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// A message from B's host to A's, with all hops left.
pub fn icmp(from: Ipv6Addr, to: Ipv6Addr, icmp: Icmpv6, body: &[u8]) -> Vec<u8> {
    let mut head = Head::new();
    let ip = Ipv6 { ttl: 255, ..Ipv6::new(from, to, Protocol::ICMPV6, 0) };
    icmp.write(&mut head, onecopy_chain::Sum::ZERO).unwrap();
    let bytes = summed([&head, body].concat(), &ip, Icmpv6::CHECKSUM);
    whole(ip, &[], &bytes)
}

/// A question or an answer about `ndp`'s target.
pub fn ndp(from: Ipv6Addr, to: Ipv6Addr, what: Icmpv6, ndp: Ndp) -> Vec<u8> {
    let mut body = Head::new();
    ndp.write(&mut body).unwrap();
    icmp(from, to, what, &body)
}

/// A datagram from B to A, behind these extension headers, the first of which is `next`.
pub fn udp(next: Protocol, between: &[&[u8]], port: u16, payload: &[u8]) -> Vec<u8> {
    let ip = Ipv6::new(B6, A6, Protocol::UDP, 0);
    let mut head = Head::new();
    let header = Udp { from: 53, to: port, payload_len: payload.len() as u16 };
    header.write(&mut head, onecopy_chain::Sum::ZERO).unwrap();
    let bytes = summed([&head, payload].concat(), &ip, Udp::CHECKSUM);
    whole(Ipv6 { protocol: next, ..ip }, between, &bytes)
}

/// All of it, with IPv6's header in front.
pub fn whole(ip: Ipv6, between: &[&[u8]], bytes: &[u8]) -> Vec<u8> {
    let behind = [&between.concat(), bytes].concat();
    let mut head = Head::new();
    Ipv6 { payload_len: behind.len() as u16, ..ip }.write(&mut head).unwrap();
    [&head[..], &behind].concat()
}

/// A frame, or a packet where nobody is said, most of it in the payload as it comes from a link that knows nothing.
pub fn packet(frame: Option<(Mac, Mac)>, bytes: &[u8]) -> Packet {
    let mut head = Head::new();
    if let Some((to, from)) = frame {
        Ethernet { to, from, kind: EtherType::IPV6 }.write(&mut head).unwrap();
    }
    let bytes = [&head[..], bytes].concat();
    let (front, rest) = bytes.split_at(bytes.len().min(100));
    if rest.is_empty() {
        return Packet::new(front, Chain::new()).unwrap();
    }
    let mut chain = Chain::new();
    POOL.with(|pool| Writer::new(pool).append(&mut chain, rest)).unwrap();
    Packet::new(front, chain).unwrap()
}
