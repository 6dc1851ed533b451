//! What TCP_INFO says of packets: as many as the kernel's would.

use crate::net::{Net, receive, send};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::config::EcnUse;
use onecopy_inet::tcp::{Info, Side};
use onecopy_link::pair::{Path, Side as From};
use onecopy_link::{Capabilities, Medium};
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

/// What both ends say.
fn told(net: &Net, (a, b): (Id, Id)) -> (Info, Info) {
    let now = net.now();
    (net.a.stack.tcp_info(now, a).unwrap(), net.b.stack.tcp_info(now, b).unwrap())
}

/// Packets out and in, of these with data.
fn packets(info: Info) -> [u32; 4] {
    [info.segs_out, info.segs_in, info.data_segs_out, info.data_segs_in]
}

/// The figures are those of Linux 6.18 over its loopback, which counts no SYN-ACK where it is sent: there is no connection yet.
#[test]
fn each_packet_is_counted_once_at_either_end() {
    let mut net = Net::new(Path::new().delay(Duration::from_millis(1)), 1);
    let listener = net.listen(80);
    let ends = net.connect(listener, 80);
    net.run(SECOND);
    let (a, b) = told(&net, ends);
    assert_eq!((packets(a), packets(b)), ([2, 1, 0, 0], [0, 2, 0, 0]));
    let now = net.now();
    assert_eq!(send(&mut net.a, &net.pool, now, ends.0, b"x"), 1);
    net.run(SECOND);
    let (a, b) = told(&net, ends);
    assert_eq!((packets(a), packets(b)), ([3, 2, 1, 0], [1, 3, 0, 1]));
    let now = net.now();
    net.b.stack.tcp_shutdown(now, ends.1, Side::Write).unwrap();
    net.run(SECOND);
    let (a, b) = told(&net, ends);
    assert_eq!((packets(a), packets(b)), ([4, 3, 1, 0], [2, 4, 0, 1]));
}

#[test]
fn a_super_segment_counts_as_what_it_is_cut_to() {
    // The wire takes it whole, so it comes as one.
    let mut net = Net::new(Path::new().delay(Duration::from_millis(1)).whole(true), 1);
    let listener = net.listen(80);
    let ends = net.connect(listener, 80);
    let now = net.now();
    let mss = told(&net, ends).0.snd_mss as usize;
    let before = net.wire.stats(From::A).transmitted;
    assert_eq!(send(&mut net.a, &net.pool, now, ends.0, &vec![7; 3 * mss + 1]), 3 * mss + 1);
    net.run(SECOND);
    let (a, b) = told(&net, ends);
    assert_eq!((a.data_segs_out, b.data_segs_in), (4, 4));
    assert_eq!((a.segs_out, b.segs_in), (6, 6));
    assert!(net.wire.stats(From::A).transmitted - before < 4, "nothing was sent whole");
}

/// Of a wire that loses, doubles and reorders packets, and cuts none: all that it was given is counted where it came from, and all that it
/// brought where it went.
#[test]
fn what_is_sent_again_and_what_comes_out_of_order_is_counted() {
    let path = Path::new().delay(Duration::from_millis(5)).loss(0.05).duplicate(0.02);
    let path = path.reorder(0.05, Duration::from_millis(3));
    let mut net = Net::with(path, 7, Capabilities::none(Medium::Ip, 1500), |_, _| ());
    let listener = net.listen(80);
    let (a, b) = net.connect(listener, 80);
    let data: Vec<u8> = (0..300_000_u32).map(|n| (n / 3) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < data.len() {
        let now = net.now();
        sent += send(&mut net.a, &net.pool, now, a, &data[sent..]);
        receive(&mut net.b, now, b, &mut got);
        net.run(1_000_000);
    }
    net.run(SECOND);
    assert!(got == data);
    let (at_a, at_b) = told(&net, (a, b));
    let (from_a, from_b) = (net.wire.stats(From::A), net.wire.stats(From::B));
    assert_eq!(u64::from(at_a.segs_out), from_a.transmitted);
    assert_eq!(u64::from(at_b.segs_in), from_a.received);
    assert_eq!(u64::from(at_a.segs_in), from_b.received);
    // (Its SYN-ACK, once or more often.)
    let syn_acks = from_b.transmitted - u64::from(at_b.segs_out);
    assert!((1..=3).contains(&syn_acks), "{syn_acks}");
    assert!(at_a.total_retrans > 5 && at_b.rcv_ooopack > 20, "{at_a:?} {at_b:?}");
    assert!(at_b.data_segs_in > at_a.data_segs_out - at_a.total_retrans, "{at_a:?} {at_b:?}");
    // What came out of order came with data.
    assert!(at_b.rcv_ooopack < at_b.data_segs_in);
}

#[test]
fn that_the_peer_takes_part_in_ecn_is_seen_by_its_data() {
    let (path, capabilities) =
        (Path::new().delay(Duration::from_millis(1)), Capabilities::all(Medium::Ethernet, 1500));
    let mut net = Net::with(path, 1, capabilities, |_, config| config.tcp.ecn = EcnUse::Ask);
    let listener = net.listen(80);
    let ends = net.connect(listener, 80);
    net.run(SECOND);
    let options = |net: &Net| (told(net, ends).0.options & 24, told(net, ends).1.options & 24);
    assert_eq!(options(&net), (8, 8));
    let now = net.now();
    assert_eq!(send(&mut net.a, &net.pool, now, ends.0, b"x"), 1);
    net.run(SECOND);
    assert_eq!(options(&net), (8, 8 | 16));
}
