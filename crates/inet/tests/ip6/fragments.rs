//! Packets in parts, of both families: put together, or dropped for a reason that is counted, and never more of them than there may be.

use crate::bytes::{packet, whole};
use crate::world::{A, A6, B, B6, Net, six};
use onecopy_chain::Writer;
use onecopy_inet::ip::{Input, Interface, Outgoing, Reason};
use onecopy_inet::udp::{Envelope, Settings};
use onecopy_inet::wire::ipv6::Fragment;
use onecopy_inet::wire::{Icmp, Icmpv6, Ipv4, Ipv6, Protocol};
use onecopy_link::pair::Path;
use onecopy_link::{Capabilities, Head, Medium, Packet};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use std::net::{IpAddr, SocketAddr};

const SECOND: u64 = 1_000_000_000;

fn net(of: Capabilities) -> Net {
    six(Path::new(), 1, of)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 255) as u8).collect()
}

/// A part of a packet from B to A: what is at `offset`, and whether more follows.
#[derive(Clone, Copy)]
struct Part<'a> {
    v6: bool,
    id: u16,
    offset: u16,
    more: bool,
    bytes: &'a [u8],
}

impl Part<'_> {
    /// As bytes of IP.
    fn whole(self) -> Vec<u8> {
        let mut head = Head::new();
        if self.v6 {
            let fragment = Fragment { offset: self.offset, more: self.more, id: self.id.into() };
            fragment.write(&mut head, Protocol::UDP).unwrap();
            return whole(Ipv6::new(B6, A6, Protocol::FRAGMENT, 0), &[&head], self.bytes);
        }
        let ip = Ipv4 {
            id: self.id,
            dont_fragment: false,
            more_fragments: self.more,
            offset: self.offset,
            ..Ipv4::new(B, A, Protocol::UDP, self.bytes.len() as u16)
        };
        ip.write(&mut head).unwrap();
        [&head[..], self.bytes].concat()
    }
}

/// A datagram's bytes; its checksum is IPv4's to leave out, or right over IPv6.
fn datagram(v6: bool, len: usize) -> Vec<u8> {
    let udp = crate::bytes::udp(Protocol::UDP, &[], 9, &pattern(len));
    let mut bytes = udp[Ipv6::LEN..].to_vec();
    if !v6 {
        bytes[6..8].fill(0);
    }
    bytes
}

fn hear(ip: &mut Interface, now: u64, bytes: &[u8]) -> (Input, Packet) {
    let mut came = packet(None, bytes);
    (ip.input(now, &mut came), came)
}

fn assert_balanced(ip: &Interface) {
    let stats = ip.stats();
    let counted = stats.tcp + stats.udp + stats.icmp + stats.arp + stats.fragments + stats.dropped_in();
    assert_eq!(stats.received, counted, "{stats:?}");
}

#[test]
fn what_is_longer_than_the_link_goes_in_parts_and_comes_whole() {
    for medium in [Medium::Ethernet, Medium::Ip] {
        for of in [Capabilities::all(medium, 1500), Capabilities::none(medium, 1280)] {
            for server in [IpAddr::from(B), IpAddr::from(B6)] {
                let mut net = net(of);
                let (a, b) = (net.a.stack.udp_open().unwrap(), net.b.stack.udp_open().unwrap());
                let at = SocketAddr::new(server, 53);
                net.b.stack.udp_bind(b, at, false).unwrap();
                for (stack, id) in [(&mut net.a.stack, a), (&mut net.b.stack, b)] {
                    let room = Some(4 << 20);
                    let change = |settings: &mut Settings| {
                        (settings.dont_fragment, settings.receive_buffer) = (false, room);
                    };
                    stack.udp_set(id, change).unwrap();
                }
                let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
                let (now, writer) = (net.now(), Writer::new(&pool));
                let lens = [1_500, 8_000, 8_001, 65_507];
                for len in lens {
                    let sent = net.a.stack.udp_send_bytes(now, a, &pattern(len), &writer, &Envelope::to(at));
                    assert_eq!(sent, Ok(len));
                }
                net.run(3 * SECOND);
                let now = net.now();
                for len in lens {
                    let mut got = net.b.stack.udp_receive(b).unwrap();
                    assert_eq!(got.data.payload().len(), len, "{server}");
                    let bytes: Vec<u8> =
                        got.data.payload().host().unwrap().slices().flatten().copied().collect();
                    assert!(bytes == pattern(len));
                    // And back, as it came.
                    let back = Envelope::to(got.from);
                    net.b.stack.udp_send(now, b, &mut got.data, &back).unwrap();
                }
                net.run(3 * SECOND);
                for len in lens {
                    assert_eq!(net.a.stack.udp_receive(a).unwrap().data.payload().len(), len);
                }
                let stats = [net.a.stack.interface().stats(), net.b.stack.interface().stats()];
                for stats in stats {
                    assert_eq!((stats.fragmented, stats.reassembled, stats.dropped_in()), (4, 4, 0));
                }
                // What may not be cut is not.
                net.a.stack.udp_set(a, |settings| settings.dont_fragment = true).unwrap();
                let now = net.now();
                let sent = net.a.stack.udp_send_bytes(now, a, &pattern(1500), &writer, &Envelope::to(at));
                assert_eq!(sent, Err(onecopy_inet::udp::Error::TooLong));
                // A long question, and its answer.
                let protocol = if server.is_ipv4() { Protocol::ICMP } else { Protocol::ICMPV6 };
                let from = if server.is_ipv4() { IpAddr::from(A) } else { A6.into() };
                let about = Outgoing { dont_fragment: false, ..Outgoing::new(from, server, protocol) };
                let mut chain = onecopy_chain::Chain::new();
                writer.append(&mut chain, &pattern(8000)).unwrap();
                let question = Packet::from(onecopy_chain::notify::Segment::new(chain));
                net.a.stack.interface_mut().ping(now, &about, (1, 1), question).unwrap();
                net.run(3 * SECOND);
                assert_eq!(net.b.stack.interface().stats().echoes, 1);
                assert_eq!(net.a.stack.interface().stats().reassembled, 5);
            }
        }
    }
}

#[test]
fn parts_are_put_together_in_whatever_order_they_come() {
    for v6 in [false, true] {
        let bytes = datagram(v6, 3000);
        let part = |id, at: usize, len: usize| {
            let more = at + len < bytes.len();
            let part = Part { v6, id, offset: at as u16, more, bytes: &bytes[at..at + len] };
            part.whole()
        };
        let mut net = net(Capabilities::all(Medium::Ip, 1500));
        let ip = net.a.stack.interface_mut();
        let cuts = [(0, 1000), (1000, 1008), (2008, 1000)];
        for (id, order) in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]].into_iter().enumerate() {
            let id = id as u16;
            for (nth, cut) in order.into_iter().enumerate() {
                let (at, len) = cuts[cut];
                let (input, came) = hear(ip, 0, &part(id, at, len));
                match nth {
                    2 => {
                        let Input::Udp(header) = input else { panic!("{:?}", ip.stats()) };
                        assert_eq!(usize::from(header.payload_len()), bytes.len());
                        assert_eq!(came.to_vec().unwrap(), bytes);
                    }
                    _ => assert_eq!(input, Input::Done),
                }
            }
        }
        // One that is whole, though it says that it is a part, waits for nobody.
        let alone = Part { v6, id: 9, offset: 0, more: false, bytes: &bytes };
        if v6 {
            assert!(matches!(hear(ip, 0, &alone.whole()).0, Input::Udp(_)));
        }
        // One comes twice.
        assert_eq!(hear(ip, 0, &part(20, 0, 1000)).0, Input::Done);
        assert_eq!(hear(ip, 0, &part(20, 0, 1000)).0, Input::Done);
        assert_eq!(hear(ip, 0, &part(20, 1000, 1008)).0, Input::Done);
        assert!(matches!(hear(ip, 0, &part(20, 2008, 1000)).0, Input::Udp(_)));
        assert_eq!(ip.stats().dropped(Reason::FragmentTwice), 1);
        assert_balanced(ip);
        assert_eq!(ip.deadline(), None, "nothing is waited for");
    }
}

#[test]
fn parts_that_do_not_go_together_are_dropped_with_all_others() {
    for v6 in [false, true] {
        let zeros = [0; 2000];
        let part = |id, offset, len: usize, more| Part { v6, id, offset, more, bytes: &zeros[..len] };
        let cases: [&[Part<'_>]; 6] = [
            // The second one begins in the first, or before its end; the first is in the second; all the same, cut otherwise.
            &[part(1, 0, 1000, true), part(1, 992, 1000, true), part(1, 1992, 8, false)],
            &[part(2, 0, 1000, true), part(2, 8, 8, true), part(2, 1000, 8, false)],
            &[part(3, 8, 16, true), part(3, 0, 1000, true), part(3, 1000, 8, false)],
            // It ends twice, or goes on behind its end, or ends before it.
            &[part(4, 1000, 8, false), part(4, 1008, 8, false), part(4, 0, 1000, true)],
            &[part(5, 1000, 8, false), part(5, 1008, 8, true), part(5, 0, 1000, true)],
            &[part(6, 1000, 8, true), part(6, 8, 8, false), part(6, 16, 984, true)],
        ];
        for parts in cases {
            let mut net = net(Capabilities::all(Medium::Ip, 1500));
            let ip = net.a.stack.interface_mut();
            for part in parts {
                assert_eq!(hear(ip, 0, &part.whole()).0, Input::Done);
            }
            // Also what would have made it whole.
            let stats = ip.stats();
            assert_eq!(stats.dropped(Reason::FragmentOverlap), parts.len() as u64, "{}", parts[0].id);
            assert_eq!((stats.fragments, stats.reassembled), (0, 0));
            assert_balanced(ip);
        }
        let mut net = net(Capabilities::all(Medium::Ip, 1500));
        let ip = net.a.stack.interface_mut();
        let cannot = [part(7, 0, 1001, true), part(7, 65528, 100, false), part(7, 8, 0, true)];
        for part in cannot {
            assert_eq!(hear(ip, 0, &part.whole()).0, Input::Done);
        }
        assert_eq!(ip.stats().dropped(Reason::Fragment), 3);
        let told = std::iter::from_fn(|| ip.transmit()).map(|packet| packet.to_vec().unwrap());
        let told: Vec<_> = told.map(|bytes| Icmpv6::parse(&bytes[Ipv6::LEN..]).unwrap().0).collect();
        let problem = |pointer| Icmpv6::ParameterProblem { code: 0, pointer };
        // The length, and where it is (RFC 8200, section 4.5).
        assert_eq!(told, if v6 { vec![problem(4), problem(42)] } else { vec![] });
        assert_eq!(ip.deadline(), None);
    }
}

#[test]
fn what_does_not_come_whole_is_waited_for_in_vain_and_the_sender_told() {
    for (v6, seconds) in [(false, 30), (true, 60)] {
        let zeros = [0; 1000];
        let mut net = net(Capabilities::all(Medium::Ip, 1500));
        let ip = net.a.stack.interface_mut();
        let part = |id, offset| Part { v6, id, offset, more: true, bytes: &zeros }.whole();
        for bytes in [part(1, 0), part(1, 1000), part(2, 1000)] {
            let _ = hear(ip, SECOND, &bytes);
        }
        let end = (seconds + 1) * SECOND;
        assert_eq!(ip.deadline(), Some(end));
        ip.advance(end - 1);
        assert_eq!((ip.stats().fragments, ip.stats().dropped(Reason::FragmentTimeout)), (3, 0));
        ip.advance(end);
        assert_eq!((ip.stats().fragments, ip.stats().dropped(Reason::FragmentTimeout)), (0, 3));
        assert_eq!(ip.deadline(), None);
        // Of the one whose beginning is known.
        let told = std::iter::from_fn(|| ip.transmit()).map(|packet| packet.to_vec().unwrap());
        let told: Vec<_> = told.collect();
        assert_eq!(told.len(), 1);
        match v6 {
            true => {
                let said = Icmpv6::parse(&told[0][Ipv6::LEN..]).unwrap().0;
                assert_eq!(said, Icmpv6::TimeExceeded { code: 1 });
            }
            false => {
                let said = Icmp::parse(&told[0][Ipv4::LEN..]).unwrap().0;
                assert_eq!(said, Icmp::TimeExceeded { code: 1 });
            }
        }
        assert_balanced(ip);
    }
}

#[test]
fn a_flood_of_parts_keeps_so_much_memory_and_no_more() {
    let mut net = net(Capabilities::all(Medium::Ip, 1500));
    let ip = net.a.stack.interface_mut();
    let zeros = [0; 1400];
    // Of packets that never come whole.
    for id in 0..20_000_u16 {
        let v6 = id % 2 == 0;
        let _ = hear(ip, id.into(), &Part { v6, id, offset: 8, more: true, bytes: &zeros }.whole());
    }
    assert_eq!((ip.stats().fragments, ip.stats().dropped(Reason::FragmentMemory)), (256, 20_000 - 256));
    // The latest are among them: one becomes whole.
    let bytes = datagram(false, 1000);
    let part = |at: usize, len: usize, more| {
        Part { v6: false, id: 30_000, offset: at as u16, more, bytes: &bytes[at..at + len] }.whole()
    };
    let _ = hear(ip, 30_000, &part(0, 504, true));
    assert!(matches!(hear(ip, 30_000, &part(504, 504, false)).0, Input::Udp(_)));
    // Of very many parts.
    for at in 0..1000_u16 {
        let part = Part { v6: true, id: 40_000, offset: at * 16, more: true, bytes: &zeros[..8] };
        let _ = hear(ip, 40_000, &part.whole());
    }
    let stats = ip.stats();
    assert!(stats.fragments <= 256, "{stats:?}");
    assert_eq!(
        stats.dropped(Reason::FragmentMemory) + stats.dropped(Reason::FragmentOverlap),
        20_002 - 257 + 1000
    );
    assert_balanced(ip);
    ip.advance(200 * SECOND);
    // The one that became part of a packet.
    assert_eq!((ip.stats().fragments, ip.deadline()), (1, None));
}

#[test]
fn congestion_on_the_way_of_one_part_is_that_of_the_whole() {
    let bytes = datagram(true, 1000);
    let came = |first: u8, second: u8| {
        let mut net = net(Capabilities::all(Medium::Ip, 1500));
        let ip = net.a.stack.interface_mut();
        let part = |at: usize, len: usize, ecn: u8| {
            let part =
                Part { v6: true, id: 1, offset: at as u16, more: at == 0, bytes: &bytes[at..at + len] };
            let mut whole = part.whole();
            whole[1] |= ecn << 4;
            whole
        };
        let _ = hear(ip, 0, &part(0, 504, first));
        match hear(ip, 0, &part(504, 504, second)).0 {
            Input::Udp(ip) => Some(ip.ecn() as u8),
            _ => None,
        }
    };
    assert_eq!([came(2, 2), came(2, 3), came(3, 1), came(0, 0)], [Some(2), Some(3), Some(3), Some(0)]);
    assert_eq!([came(0, 3), came(3, 0)], [None, None]);
}

#[test]
fn large_pages_make_room_for_each_other_and_the_oldest_goes_first() {
    let pool = PagePool::new(PoolConfig::new().order(4), Heap::new()).unwrap();
    let mut net = net(Capabilities::all(Medium::Ip, 1500));
    let ip = net.a.stack.interface_mut();
    // Longer than what is brought to the head, and moved.
    let zeros = [0; 504];
    let mut hear = |now: u64, part: Part<'_>| {
        let bytes = part.whole();
        let mut chain = onecopy_chain::Chain::new();
        Writer::new(&pool).copy_break(0).append(&mut chain, &bytes).unwrap();
        let _ = ip.input(now, &mut Packet::new(&[], chain).unwrap());
    };
    // One packet alone keeps more than there may be, of 64 KiB for each part.
    for at in 0..120 {
        hear(0, Part { v6: true, id: 1, offset: at * 504, more: true, bytes: &zeros });
    }
    // Others, of both families: those that came first make room, though IPv6's are waited for longer.
    for id in 10..100 {
        hear(1_000, Part { v6: true, id, offset: 8, more: true, bytes: &zeros });
    }
    hear(2_000, Part { v6: false, id: 200, offset: 8, more: true, bytes: &zeros });
    for id in 300..320 {
        hear(3_000, Part { v6: true, id, offset: 8, more: true, bytes: &zeros });
    }
    let ip = net.a.stack.interface();
    assert_balanced(ip);
    let stats = ip.stats();
    let kept = 4 * 16;
    assert!(stats.fragments <= kept && stats.fragments > 20, "{stats:?}");
    assert_eq!(stats.fragments + stats.dropped(Reason::FragmentMemory), 120 + 90 + 1 + 20);
    // The one of IPv4 is among them still: its time is over first.
    assert_eq!(ip.deadline(), Some(30 * SECOND + 2_000));
}
