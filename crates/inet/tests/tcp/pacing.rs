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
        // Two segments, or what a millisecond carries (and what is added for short ways).
        let longest = 65_536.min(2 * 1_460 + rate as usize / 256);
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
fn what_is_lost_is_sent_again_at_the_rate_too() {
    let (mut net, a, b) = paced(Some(500_000), delayed().loss(0.02));
    let went = run(&mut net, (a, b), 4 * SECOND);
    assert!(net.a.stack.tcp_stats().retransmitted > 5);
    let seconds = went.bytes / 4;
    assert!((250_000..=550_000).contains(&seconds), "{seconds} bytes a second");
    // Nothing is left behind once the wire is good.
    net.wire.set_path(Side::A, delayed());
    let went = run(&mut net, (a, b), SECOND);
    assert!((400_000..=600_000).contains(&went.bytes), "{} bytes", went.bytes);
}

#[test]
fn a_rate_that_is_slower_than_any_timeout_still_sends_and_a_higher_one_is_followed_at_once() {
    let (mut net, a, b) = paced(Some(1_000), delayed());
    let went = run(&mut net, (a, b), 10 * SECOND);
    assert!(
        (8_000..=16_000).contains(&went.bytes) && went.steps < 200,
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
