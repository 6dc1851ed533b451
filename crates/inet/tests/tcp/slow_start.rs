//! Slow start into a queue that grows: HyStart++ (RFC 9406) sees it by the round trips.

use crate::net::{Net, receive, send};
use onecopy_inet::tcp::congestion::{Algorithm, INFINITE, SlowStart};
use onecopy_link::pair::{Path, Side};
use onecopy_link::{Capabilities, Medium};
use std::time::Duration;

const MS: u64 = 1_000_000;
/// A round trip without a queue, in milliseconds.
const TRIP: u64 = 60;
/// Packets that the wire itself holds: 20 Mbit/s for a round trip.
const WIRE: u32 = 20_000_000 / 8 * TRIP as u32 / 1000 / 1514;

/// What was seen of a climb.
struct Climb {
    /// The window at the end of each round trip's time.
    windows: Vec<u32>,
    /// What slow start ended at.
    ssthresh: u32,
    lost: u64,
}

/// Sends for three seconds over a bottleneck with room for all that waits, so that the queue grows with the window.
fn climb(algorithm: Algorithm, slow_start: SlowStart) -> Climb {
    let of = Capabilities::all(Medium::Ethernet, 1500);
    let delay = Path::new().delay(Duration::from_millis(TRIP / 2));
    let mut net = Net::with(delay.clone(), 3, of, |_, config| {
        (config.tcp.congestion, config.tcp.slow_start) = (algorithm, slow_start);
        config.tcp.wmem[1] = 4 << 20;
    });
    net.wire.set_path(Side::A, delay.rate(20_000_000).queue(u64::MAX));
    let listener = net.listen(80);
    let (a, b) = net.connect(listener, 80);
    let (bytes, mut got) = (vec![7; 1 << 20], Vec::new());
    let mut windows = Vec::new();
    for _ in 0..3_000 / TRIP {
        let until = net.now() + TRIP * MS;
        let mut goes_on = true;
        while goes_on {
            let now = net.now();
            while send(&mut net.a, &net.pool, now, a, &bytes) > 0 {}
            receive(&mut net.b, now, b, &mut got);
            got.clear();
            goes_on = net.step(until);
        }
        net.wire.advance(until);
        windows.push(net.a.stack.tcp_info(net.now(), a).unwrap().snd_cwnd);
    }
    let ssthresh = net.a.stack.tcp_info(net.now(), a).unwrap().snd_ssthresh;
    Climb { windows, ssthresh, lost: net.a.stack.tcp_stats().retransmitted }
}

/// By how much each window is larger than the one before, of those between `from` and `to`.
fn growth(windows: &[u32], from: u32, to: u32) -> Vec<u32> {
    let both = windows.windows(2).filter(|two| two[0] >= from && two[1] < to);
    both.map(|two| two[1] - two[0]).collect()
}

#[test]
fn hystart_plus_plus_slows_down_and_leaves_slow_start_as_the_queue_grows() {
    let seen = climb(Algorithm::Cubic, SlowStart::HyStartPlusPlus);
    let (windows, ssthresh) = (&seen.windows, seen.ssthresh);
    assert!(ssthresh > 2 * WIRE && ssthresh < 16 * WIRE, "{ssthresh}: {windows:?}");
    // In the time of an empty round trip the wire acknowledges what it holds. A quarter of that is what the window grows by, for five rounds.
    let slow = growth(windows, 4 * WIRE, ssthresh);
    assert!(slow.len() > 10 && slow.iter().all(|more| more.abs_diff(WIRE / 4) <= 4), "{slow:?}: {windows:?}");
    // Then it is CUBIC's.
    let left = growth(windows, ssthresh + WIRE / 8, u32::MAX);
    assert!(!left.is_empty() && left.iter().all(|more| *more < WIRE / 8), "{left:?}: {windows:?}");
    assert_eq!(seen.lost, 0);
}

#[test]
fn without_it_the_queue_grows_on() {
    let seen = climb(Algorithm::Reno, SlowStart::default());
    assert_eq!(seen.ssthresh, INFINITE);
    let fast = growth(&seen.windows, 4 * WIRE, u32::MAX);
    assert!(
        fast.len() > 3 && fast.iter().all(|more| more.abs_diff(WIRE) <= 12),
        "{fast:?}: {:?}",
        seen.windows
    );
}
