//! SO_MAX_PACING_RATE: packets leave at their time, and not when there is room for them.

use crate::net::{Net, receive, send};
use onecopy_inet::stack::slab::Id;
use onecopy_link::pair::{Path, Side};
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

/// A connection over a wire of a round trip of 10 ms, bounded to `rate` bytes a second.
fn paced(rate: Option<u64>, path: Path) -> (Net, Id, Id) {
    let mut net = Net::new(Path::new().delay(Duration::from_millis(5)), 5);
    let listener = net.listen(80);
    let (a, b) = net.connect(listener, 80);
    let now = net.now();
    net.a.stack.tcp_set(now, a, |set| set.max_pacing_rate = rate).unwrap();
    net.wire.set_path(Side::A, path);
    (net, a, b)
}

/// What went in a time.
struct Went {
    bytes: u64,
    packets: u64,
    /// How often time went on to the next event.
    steps: u64,
    /// The most that came at one moment.
    burst: usize,
}

/// Sends as much as there is room for, for `ns`.
fn run(net: &mut Net, (a, b): (Id, Id), ns: u64) -> Went {
    let (data, mut got) = (vec![7; 1 << 18], Vec::new());
    let packets = |net: &Net| u64::from(net.a.stack.tcp_info(net.now(), a).unwrap().data_segs_out);
    let (until, before) = (net.now() + ns, packets(net));
    let mut went = Went { bytes: 0, packets: 0, steps: 0, burst: 0 };
    let mut goes_on = true;
    while goes_on {
        let now = net.now();
        while send(&mut net.a, &net.pool, now, a, &data) > 0 {}
        got.clear();
        receive(&mut net.b, now, b, &mut got);
        went.bytes += got.len() as u64;
        went.burst = went.burst.max(got.len());
        goes_on = net.step(until);
        went.steps += 1;
    }
    net.wire.advance(until);
    went.packets = packets(net) - before;
    went
}

fn delayed() -> Path {
    Path::new().delay(Duration::from_millis(5))
}

#[test]
fn the_rate_is_kept_and_packets_are_spread_over_the_second() {
    for rate in [50_000, 1_000_000, 10_000_000] {
        let (mut net, a, b) = paced(Some(rate), delayed());
        // Slow start is over soon.
        run(&mut net, (a, b), SECOND);
        let went = run(&mut net, (a, b), SECOND);
        let (least, most) = (rate * 9 / 10, rate * 11 / 10);
        assert!((least..=most).contains(&went.bytes), "{rate}: {} bytes", went.bytes);
        // Two segments, or what a millisecond carries.
        let longest = (2 * 1_460).max(rate as usize / 1_024);
        assert!(went.burst <= longest, "{rate}: {} bytes at once", went.burst);
        // A packet of a segment or more leaves, comes, and is acknowledged: no timer goes off for nothing.
        let storm = 3 * went.packets + 100;
        assert!(went.steps <= storm, "{rate}: {} steps for {} packets", went.steps, went.packets);
        assert_eq!(net.a.stack.tcp_stats().retransmitted, 0);
    }
}

#[test]
fn without_a_rate_nothing_is_held_back() {
    let (mut net, a, b) = paced(None, delayed());
    run(&mut net, (a, b), SECOND);
    assert!(run(&mut net, (a, b), SECOND).bytes > 50_000_000);
}

#[test]
fn on_a_short_way_packets_are_spread_as_well() {
    let rate = 2_000_000;
    let mut net = Net::new(Path::new().delay(Duration::from_micros(50)), 5);
    let listener = net.listen(80);
    let (a, b) = net.connect(listener, 80);
    let now = net.now();
    net.a.stack.tcp_set(now, a, |set| set.max_pacing_rate = Some(rate)).unwrap();
    let went = run(&mut net, (a, b), SECOND);
    assert!((rate * 9 / 10..=rate * 11 / 10).contains(&went.bytes), "{} bytes", went.bytes);
    assert!(went.burst <= 2 * 1_460, "{} bytes at once", went.burst);
}

#[test]
fn another_rate_forgives_nothing() {
    let (mut net, a, b) = paced(Some(100_000), delayed());
    run(&mut net, (a, b), SECOND);
    let mut bytes = 0;
    for change in 0..1_000 {
        let now = net.now();
        net.a.stack.tcp_set(now, a, |set| set.max_pacing_rate = Some(100_000 + change % 2)).unwrap();
        bytes += run(&mut net, (a, b), SECOND / 1_000).bytes;
    }
    assert!((90_000..=110_000).contains(&bytes), "{bytes} bytes");
    // What is owed takes as much less time: a packet of 2920 bytes, 29 s at a rate of 100.
    let now = net.now();
    net.a.stack.tcp_set(now, a, |set| set.max_pacing_rate = Some(100)).unwrap();
    run(&mut net, (a, b), 10 * SECOND);
    let now = net.now();
    net.a.stack.tcp_set(now, a, |set| set.max_pacing_rate = Some(100_000)).unwrap();
    let went = run(&mut net, (a, b), SECOND);
    assert!((90_000..=110_000).contains(&went.bytes), "{} bytes", went.bytes);
}

#[test]
fn what_is_lost_is_sent_again_at_the_rate_too() {
    const RATE: u64 = 500_000;
    let slow = || Path::new().delay(Duration::from_millis(200));
    let (mut net, a, b) = paced(Some(RATE), slow());
    run(&mut net, (a, b), 4 * SECOND);
    // All of a while is lost, much at once.
    net.wire.set_path(Side::A, slow().loss(1.0));
    run(&mut net, (a, b), 3 * SECOND / 10);
    net.wire.set_path(Side::A, slow());
    let mut most = 0;
    let mut last = net.wire.stats(Side::A).bytes;
    for _ in 0..150 {
        run(&mut net, (a, b), SECOND / 50);
        let left = net.wire.stats(Side::A).bytes;
        most = most.max(left - last);
        last = left;
    }
    let again = net.a.stack.tcp_stats().retransmitted;
    assert!(again > 20, "{again} sent again");
    // Headers are not counted, nor when a packet of two segments begins.
    let bound = RATE / 50 * 11 / 10 + 2 * 1_514;
    assert!(most <= bound, "{most} bytes left in a fiftieth of a second, {bound} may");
}

/// Has one more send leave whenever pacing lets something go, before what is lost has its turn.
#[test]
fn who_sends_meanwhile_takes_no_time_from_what_is_lost() {
    let slow = || Path::new().delay(Duration::from_millis(200));
    let (mut net, a, b) = paced(Some(100_000), slow());
    let now = net.now();
    net.a.stack.tcp_set(now, a, |set| set.nodelay = true).unwrap();
    let (mut got, mut given) = (Vec::new(), 0);
    for lost in [false, false, true] {
        net.wire.set_path(Side::A, if lost { slow().loss(1.0) } else { slow() });
        let now = net.now();
        given += send(&mut net.a, &net.pool, now, a, &[7; 40_000]);
        net.run(6 * SECOND / 10);
    }
    assert_eq!(given, 120_000);
    net.wire.set_path(Side::A, slow());
    let (before, until) = (net.a.stack.tcp_stats().retransmitted, net.now() + 30 * SECOND);
    let mut put_off = 0;
    while got.len() < given && net.step(until) {
        let now = net.now();
        if net.a.stack.deadline().is_some_and(|at| at <= now)
            && net.a.stack.tcp_stats().retransmitted > before
        {
            let out = net.wire.stats(Side::A).bytes;
            given += send(&mut net.a, &net.pool, now, a, &[8; 10]);
            net.settle();
            if net.wire.stats(Side::A).bytes > out {
                // It has put off what is lost, for as long as ten bytes take: no ACK has to come for that.
                let due = net.a.stack.deadline();
                assert!(due.is_some_and(|at| at < now + SECOND / 200), "{due:?} at {now}");
                put_off += 1;
            }
        }
        receive(&mut net.b, now, b, &mut got);
    }
    assert_eq!(got.len(), given);
    assert!(net.a.stack.tcp_stats().retransmitted >= before + 20);
    assert!(put_off > 3, "{put_off}");
}

/// What waits for its time is no probe of what may be lost before that: only what is sent again by a timer is (tcp_send_loss_probe()).
#[test]
fn the_probe_of_a_tail_takes_no_new_bytes_before_their_time() {
    const RATE: u64 = 2_000;
    let (mut net, a, b) = paced(Some(RATE), delayed().loss(1.0));
    let (begun, mut given) = (net.now(), 0);
    given += send(&mut net.a, &net.pool, begun, a, &[7; 20_000]);
    net.settle();
    let first = net.wire.stats(Side::A).bytes;
    // A probe would be due in some round trips; a timeout takes 200 ms at least.
    net.run(SECOND / 6);
    assert_eq!((net.wire.stats(Side::A).bytes, net.a.stack.tcp_stats().loss_probes), (first, 0));
    // The timeout's copy leaves at once, alone.
    net.run(SECOND / 3);
    let again = net.wire.stats(Side::A).bytes - first;
    assert!((1_000..=1_600).contains(&again), "{again} bytes");
    assert_eq!(net.a.stack.tcp_stats().retransmitted, 1);
    net.wire.set_path(Side::A, delayed());
    let (mut got, until) = (Vec::new(), begun + 60 * SECOND);
    while got.len() < given && net.step(until) {
        let now = net.now();
        receive(&mut net.b, now, b, &mut got);
        // (Two segments leave at once, and one of a timeout's.)
        let most = (now - begun) * RATE / SECOND * 11 / 10 + 3 * 1_514;
        let left = net.wire.stats(Side::A).bytes - first;
        assert!(left <= most, "{left} bytes after {} ms, {most} may", (now - begun) / 1_000_000);
    }
    assert_eq!(got.len(), given);
}

#[test]
fn a_connection_that_was_paced_last_gives_its_memory_back() {
    let (mut net, a, b) = paced(Some(1_000), delayed().loss(1.0));
    let now = net.now();
    assert_eq!(send(&mut net.a, &net.pool, now, a, &[7; 1_000]), 1_000);
    net.run(SECOND / 100);
    // The one that is sent again is heard of sooner than its time is over, and nothing comes after.
    net.wire.set_path(Side::A, delayed());
    let (mut got, until) = (Vec::new(), now + 10 * SECOND);
    while got.is_empty() && net.step(until) {
        let now = net.now();
        receive(&mut net.b, now, b, &mut got);
    }
    assert_eq!((got.len(), net.a.stack.tcp_stats().retransmitted), (1_000, 1));
    net.run(2 * SECOND);
    // Its time is over now, and it will rest in a second.
    let (due, now) = (net.a.stack.deadline(), net.now());
    assert!(due.is_some_and(|at| at <= now + SECOND), "{due:?} at {now}");
    net.run(3 * SECOND);
    assert!(net.a.stack.deadline().is_none_or(|at| at > net.now() + SECOND), "it rests");
}

#[test]
fn the_first_packet_of_a_long_send_waits_as_well() {
    let (mut net, a, b) = paced(Some(10_000), delayed());
    let now = net.now();
    assert_eq!(send(&mut net.a, &net.pool, now, a, &[7; 2_896]), 2_896);
    net.run(SECOND / 20);
    // Nothing waits, but its time is not over.
    let now = net.now();
    assert!(send(&mut net.a, &net.pool, now, a, &vec![7; 1 << 18]) > 65_536);
    net.run(SECOND / 20);
    let (mut got, now) = (Vec::new(), net.now());
    receive(&mut net.b, now, b, &mut got);
    assert_eq!(got.len(), 2_896);
}

#[test]
fn a_rate_that_is_slower_than_any_timeout_still_sends_and_a_higher_one_is_followed_at_once() {
    let (mut net, a, b) = paced(Some(1_000), delayed());
    let went = run(&mut net, (a, b), 10 * SECOND);
    assert!(
        (8_000..=13_000).contains(&went.bytes) && went.steps < 200,
        "{} bytes, {} steps",
        went.bytes,
        went.steps
    );
    assert_eq!(net.a.stack.tcp_stats().probes, 0, "the peer's window is open");
    let now = net.now();
    net.a.stack.tcp_set(now, a, |set| set.max_pacing_rate = None).unwrap();
    let went = run(&mut net, (a, b), SECOND);
    assert!(went.bytes > 1_000_000, "{} bytes", went.bytes);
}
