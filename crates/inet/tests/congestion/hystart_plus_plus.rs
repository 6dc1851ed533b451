//! HyStart++ (RFC 9406).

use crate::flow::Flow;
use onecopy_inet::tcp::congestion::{Algorithm, Congestion, INFINITE, SlowStart};

fn plus() -> Flow {
    let mut flow =
        Flow::new(Congestion::new(Algorithm::Cubic, 10).with_slow_start(SlowStart::HyStartPlusPlus), 100);
    flow.write(1_000_000);
    flow
}

/// A round in which the first packet comes back after `ms` and the others at once, two at a time.
fn round(flow: &mut Flow, ms: u64) {
    flow.wait(ms);
    for _ in 0..flow.out.len() / 2 {
        flow.ack(2);
    }
}

#[test]
fn long_round_trips_slow_down_hystart_plus_plus_for_five_rounds_and_end_it() {
    let mut flow = plus();
    round(&mut flow, 100);
    round(&mut flow, 100);
    assert_eq!(flow.cwnd(), 40);
    // The eighth of 20 acknowledgements finds the round too long: 16 packets are worth 14 (the eighth acknowledgement counts as slow
    // already), and 24 are worth 6.
    round(&mut flow, 120);
    let mut before = flow.cwnd();
    assert_eq!(before, 40 + 14 + 6);
    for _ in 0..4 {
        round(&mut flow, 120);
        assert!(flow.window.in_slow_start());
        assert!((before / 4 - 1..=before / 4 + 1).contains(&(flow.cwnd() - before)), "{before}");
        before = flow.cwnd();
    }
    round(&mut flow, 120);
    assert_eq!(flow.window.ssthresh(), before);
}

#[test]
fn jitter_does_not_end_hystart_plus_plus() {
    let mut flow = plus();
    round(&mut flow, 100);
    round(&mut flow, 100);
    round(&mut flow, 120);
    assert_eq!(flow.cwnd(), 60);
    // Round trips are short again: after eight of them slow start goes on.
    round(&mut flow, 100);
    assert!(flow.cwnd() > 100, "{}", flow.cwnd());
    for _ in 0..3 {
        let before = flow.cwnd();
        round(&mut flow, 100);
        assert_eq!(flow.cwnd(), before * 2);
    }
    assert_eq!(flow.window.ssthresh(), INFINITE);
}

#[test]
fn hystart_plus_plus_counts_eight_packets_of_an_acknowledgement() {
    let mut flow = plus();
    flow.wait(100).ack(10);
    assert_eq!(flow.cwnd(), 18);
}
