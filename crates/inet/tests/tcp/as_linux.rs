//! What leaves, and when, where Linux's own scripts (packetdrill) say how it is to be.

use crate::net::{A, B, Net, receive, send};
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Writer};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::congestion::Algorithm;
use onecopy_inet::tcp::{SendFlags, Side};
use onecopy_link::pair::Path;
use onecopy_link::{Capabilities, Medium};
use std::time::Duration;

/// A wire on which an ACK takes 100 ms.
fn slow() -> Path {
    Path::new().delay(Duration::from_millis(50))
}

fn pair(net: &mut Net) -> (Id, Id) {
    let listener = net.listen(80);
    net.connect(listener, 80)
}

/// What b has received.
fn got(net: &mut Net, b: Id) -> usize {
    let mut into = Vec::new();
    let now = net.now();
    receive(&mut net.b, now, b, &mut into);
    into.len()
}

#[test]
fn a_send_buffer_that_a_listener_chose_is_its_connections() {
    let mut net = Net::new(slow(), 1);
    let listener = net.listen(80);
    let now = net.now();
    net.b.stack.tcp_set(now, listener, |settings| settings.send_buffer = Some(100_000)).unwrap();
    let (_, b) = net.connect(listener, 80);
    let now = net.now();
    assert_eq!(send(&mut net.b, &net.pool, now, b, &[7; 1000]), 1000);
}

#[test]
fn the_mss_that_was_announced_is_told() {
    let mut net = Net::new(slow(), 2);
    let (a, _) = pair(&mut net);
    let told = |net: &Net| net.a.stack.tcp_info(net.now(), a).unwrap();
    assert_eq!((told(&net).advmss, told(&net).pmtu), (1460, 1500));
    let now = net.now();
    net.a.stack.tcp_set(now, a, |settings| settings.max_segment = Some(1100)).unwrap();
    assert_eq!(told(&net).advmss, 1100);
}

#[test]
fn a_packet_has_no_more_fragments_than_the_link_takes() {
    let of = Capabilities { fragments: 3, ..Capabilities::all(Medium::Ethernet, 1500) };
    let mut net = Net::with(slow(), 3, of, |_, _| ());
    let (a, b) = pair(&mut net);
    let mut chain = Chain::new();
    for byte in 0..20 {
        let mut part = Chain::new();
        Writer::new(&net.pool).append(&mut part, &[byte]).unwrap();
        chain.concat(&mut part).unwrap();
    }
    assert_eq!(chain.fragment_count(), 20);
    let (now, mut data) = (net.now(), Segment::from(chain));
    assert_eq!(net.a.stack.tcp_send(now, a, &mut data, SendFlags::empty()), Ok(20));
    net.run(10_000_000_000);
    assert_eq!(got(&mut net, b), 20);
    assert_eq!(net.a.stack.interface().stats().dropped_out(), 0);
}

#[test]
fn the_last_fin_waits_for_no_room_in_the_window_of_congestion() {
    let mut net = Net::new(slow(), 4);
    let (a, _) = pair(&mut net);
    let now = net.now();
    let mss = net.a.stack.tcp_info(now, a).unwrap().snd_mss as usize;
    assert_eq!(send(&mut net.a, &net.pool, now, a, &vec![7; 10 * mss]), 10 * mss);
    let before = net.a.stack.tcp_info(now, a).unwrap();
    assert_eq!((before.unacked, before.snd_cwnd), (10, 10));
    net.a.stack.tcp_shutdown(now, a, Side::Write).unwrap();
    assert_eq!(net.a.stack.tcp_info(now, a).unwrap().unacked, 11);
}

#[test]
fn nodelay_sends_what_is_corked_each_time_it_is_set() {
    let mut net = Net::new(slow(), 5);
    let (a, b) = pair(&mut net);
    let now = net.now();
    net.a.stack.tcp_set(now, a, |settings| settings.cork = true).unwrap();
    send(&mut net.a, &net.pool, now, a, &[7; 40]);
    net.run(60_000_000);
    assert_eq!(got(&mut net, b), 0);
    let now = net.now();
    net.a.stack.tcp_set(now, a, |settings| settings.nodelay = true).unwrap();
    net.run(60_000_000);
    assert_eq!(got(&mut net, b), 40);
    // Corked still.
    net.run(300_000_000);
    let now = net.now();
    send(&mut net.a, &net.pool, now, a, &[7; 50]);
    net.run(60_000_000);
    assert_eq!(got(&mut net, b), 0);
    let now = net.now();
    net.a.stack.tcp_push(now, a).unwrap();
    net.run(60_000_000);
    assert_eq!(got(&mut net, b), 50);
}

#[test]
fn after_a_pause_slow_start_begins_again_unless_that_is_off() {
    for (seed, shrinks) in [(6, true), (7, false)] {
        let all = Capabilities::all(Medium::Ethernet, 1500);
        let mut net = Net::with(slow(), seed, all, |_, config| config.tcp.slow_start_after_idle = shrinks);
        let (a, b) = pair(&mut net);
        for _ in 0..3 {
            let now = net.now();
            send(&mut net.a, &net.pool, now, a, &[7; 40_000]);
            net.run(1_000_000_000);
            got(&mut net, b);
        }
        let cwnd = |net: &Net| net.a.stack.tcp_info(net.now(), a).unwrap().snd_cwnd;
        let before = cwnd(&net);
        assert!(before > 10);
        net.run(20_000_000_000);
        let now = net.now();
        send(&mut net.a, &net.pool, now, a, &[7; 1000]);
        assert_eq!(cwnd(&net), if shrinks { 10 } else { before });
    }
}

#[test]
fn a_closed_window_is_asked_for_in_time_though_nothing_waited_before() {
    let mut net = Net::with(
        Path::new().delay(Duration::from_millis(1)),
        8,
        Capabilities::all(Medium::Ethernet, 1500),
        |side, config| {
            if side == onecopy_link::pair::Side::B {
                config.tcp.rmem = [4096, 8192, 8192];
            }
        },
    );
    let (a, b) = pair(&mut net);
    // What b does not read closes its window just as nothing is left at a.
    let mut given = 0;
    while net.a.stack.tcp_connection(a).unwrap().sender().window() > 0 && given < 100_000 {
        let now = net.now();
        let room = net.a.stack.tcp_connection(a).unwrap().sender().window() as usize;
        given += send(&mut net.a, &net.pool, now, a, &vec![7; room]);
        net.run(100_000_000);
    }
    let probes = |net: &Net| net.a.stack.tcp_stats().probes;
    let (now, before) = (net.now(), probes(&net));
    assert_eq!(net.a.stack.tcp_connection(a).unwrap().unsent(), 0, "{given} given");
    send(&mut net.a, &net.pool, now, a, &[7; 1000]);
    let rto = u64::from(net.a.stack.tcp_info(now, a).unwrap().rto) * 1000;
    net.run(rto + 1_000_000);
    assert_eq!(probes(&net), before + 1, "after {rto} ns");
    got(&mut net, b);
    net.run(1_000_000_000);
    assert_eq!(got(&mut net, b), 1000);
}

#[test]
fn congestion_control_is_changed_on_the_way() {
    let mut net = Net::new(slow(), 1);
    let (a, _) = pair(&mut net);
    let goes_by = |net: &Net| net.a.stack.tcp_connection(a).unwrap().sender().congestion().algorithm();
    assert_eq!(goes_by(&net), Algorithm::Cubic);
    let now = net.now();
    net.a.stack.tcp_set(now, a, |settings| settings.congestion = Some(Algorithm::Reno)).unwrap();
    assert_eq!(goes_by(&net), Algorithm::Reno);
}

#[test]
fn an_ack_that_waits_leaves_when_it_is_to_be_quick() {
    let mut net = Net::new(Path::new(), 1);
    let (a, b) = pair(&mut net);
    let now = net.now();
    net.b.stack.tcp_quick_ack(now, b, false).unwrap();
    send(&mut net.a, &net.pool, now, a, &[7; 100]);
    net.settle();
    net.settle();
    assert_eq!(got(&mut net, b), 100);
    net.settle();
    let unacked = |net: &Net| net.a.stack.tcp_info(net.now(), a).unwrap().unacked;
    assert_eq!(unacked(&net), 1, "it waits for an answer to go with");
    net.b.stack.tcp_quick_ack(now, b, true).unwrap();
    net.settle();
    net.settle();
    assert_eq!((unacked(&net), net.now()), (0, now));
}

#[test]
fn only_an_ack_that_counts_says_that_the_way_to_the_neighbour_is_good() {
    use onecopy_inet::wire::{EtherType, Ethernet, Flags, Ipv4, Mac, Protocol, Seq, Tcp, checksum};
    use onecopy_link::Packet;
    let mut net = Net::new(Path::new().delay(Duration::from_millis(1)), 1);
    let listener = net.listen(80);
    let (a, b) = net.connect(listener, 80);
    let fresh = |net: &Net| net.a.stack.interface().neighbours().is_reachable(net.now(), B.into());
    assert!(fresh(&net));
    net.run(60_000_000_000);
    assert!(!fresh(&net), "it may have moved");
    // Somebody who knows the ports alone: what it acknowledges, and where it says it is, cannot be.
    let Some(local) = net.a.stack.tcp_addresses(a).local else { panic!("it is bound") };
    let nxt = net.a.stack.tcp_connection(a).unwrap().receiver().nxt();
    for seq in [nxt.plus(1 << 30), nxt] {
        let mut packet = Packet::default();
        let ack = Seq(net.a.stack.tcp_connection(a).unwrap().sender().nxt().0.wrapping_add(1 << 20));
        let tcp = Tcp { from: 80, to: local.port(), seq, ack, flags: Flags::ACK, ..Tcp::default() };
        let pseudo = checksum::pseudo_v4(B, A, Protocol::TCP, Tcp::LEN as u32);
        tcp.write(packet.head_mut(), pseudo).unwrap();
        checksum::leave_unfinished(&mut packet, 0, Tcp::CHECKSUM).unwrap();
        packet.finish().unwrap();
        Ipv4::new(B, A, Protocol::TCP, Tcp::LEN as u16).write(packet.head_mut()).unwrap();
        let (to, from) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        Ethernet { to, from, kind: EtherType::IPV4 }.write(packet.head_mut()).unwrap();
        let now = net.now();
        let before = net.a.stack.interface().stats().tcp;
        net.a.stack.receive(now, packet);
        assert_eq!(net.a.stack.interface().stats().tcp, before + 1);
        assert!(!fresh(&net));
    }
    // What it sent is acknowledged.
    let now = net.now();
    assert_eq!(send(&mut net.a, &net.pool, now, a, b"hello"), 5);
    net.run(100_000_000);
    assert!(fresh(&net));
    let _ = b;
}
