//! The formulas of the RFCs.

use crate::flow::{Flow, MSS};
use onecopy_inet::tcp::congestion::{Acked, Algorithm, Congestion};
use onecopy_inet::wire::Seq;

/// A flow that is acknowledged two packets at a time, evenly over each round trip, and loses one packet of each `per`.
/// The first loss is at a window of `first`, and the average is taken of the second half of `losses`.
fn saw(algorithm: Algorithm, first: f64, rtt_ms: u64, per: u64, losses: u32) -> f64 {
    let mut window = Congestion::new(algorithm, 10);
    window.set_cwnd(first as u32);
    window.reduce(true);
    window.settle(0);
    let (mut una, mut now_us) = (Seq(0), 1_000_000u64);
    let (mut sum, mut rounds, mut until_loss, mut seen) = (0.0, 0u32, per, 0);
    loop {
        let cwnd = window.cwnd();
        let round_end = now_us + rtt_ms * 1_000;
        let acks = cwnd.div_ceil(2);
        if seen > losses / 2 {
            sum += f64::from(cwnd);
            rounds += 1;
        }
        for ack in 0..acks {
            let now = (now_us + u64::from(ack) * rtt_ms * 1_000 / u64::from(acks)) * 1_000;
            let packets = (cwnd - ack * 2).min(2);
            una = una.plus(packets * MSS);
            let nxt = una.plus(window.cwnd() * MSS);
            window.transmitted(now, window.cwnd(), true, una, nxt);
            let rtt_us = Some(rtt_ms as u32 * 1_000);
            window.acked(now, &Acked { packets, rtt_us, srtt_us: rtt_us, mss: MSS, una, nxt });
            match until_loss.checked_sub(packets.into()) {
                Some(left) if left > 0 => until_loss = left,
                _ => {
                    seen += 1;
                    if seen == losses {
                        return sum / f64::from(rounds);
                    }
                    window.reduce(true);
                    window.settle(now);
                    until_loss = per;
                    break;
                }
            }
        }
        now_us = round_end;
    }
}

/// RFC 9438, section 5.1, tables 1 and 2: average windows of Reno and CUBIC. (Table 1's column for CUBIC is of C = 0.4.)
#[test]
fn average_windows_are_those_of_the_rfcs_tables() {
    for (rtt_ms, per, reno, cubic) in [
        (100, 10_000, 120.0, 187.0),
        (100, 100_000, 379.0, 1_054.0),
        (100, 1_000_000, 1_200.0, 5_926.0),
        (10, 100_000, 379.0, 187.0),
        (10, 1_000_000, 1_200.0, 1_054.0),
    ] {
        let got = saw(Algorithm::Reno, reno, rtt_ms, per, 4);
        assert!((got / reno - 1.0f64).abs() < 0.04, "reno, {rtt_ms} ms, 1 of {per}: {got}, not {reno}");
        // Not less than Reno, by the RFC's own rule; the table has the curve alone, also where that is less.
        let cubic = f64::max(cubic, reno);
        let got = saw(Algorithm::Cubic, cubic, rtt_ms, per, 6);
        assert!((got / cubic - 1.0f64).abs() < 0.08, "cubic, {rtt_ms} ms, 1 of {per}: {got}, not {cubic}");
    }
}

#[test]
fn reno_grows_by_one_a_round() {
    let mut flow = Flow::new(Congestion::new(Algorithm::Reno, 10), 100);
    flow.window.set_cwnd(20);
    flow.window.reduce(true);
    flow.window.settle(flow.now);
    assert_eq!((flow.cwnd(), flow.window.ssthresh()), (10, 10));
    flow.write(100_000);
    for round in 1..=50 {
        flow.wait(100);
        for _ in 0..flow.out.len() {
            flow.ack(1);
        }
        assert_eq!(flow.cwnd(), 10 + round);
    }
}

/// Round by round after a loss at 2,000 packets: W(t) of RFC 9438, figure 1, one round trip ahead.
#[test]
fn cubic_follows_its_curve() {
    let mut flow = Flow::new(Congestion::new(Algorithm::Cubic, 10), 100);
    flow.window.set_cwnd(2_000);
    flow.window.reduce(true);
    flow.window.settle(flow.now);
    assert_eq!(flow.cwnd(), 1_400);
    flow.write(4_000_000);
    let k = (600.0f64 / 0.4).cbrt();
    flow.wait(100);
    let start = flow.now;
    for _ in 0..250 {
        for _ in 0..10 {
            let tenth = flow.out.len() as u32 / 10;
            for _ in 0..tenth / 2 {
                flow.ack(2);
            }
            flow.wait(10);
        }
        let t = (flow.now - start) as f64 / 1e9;
        let want = 0.4 * (t - k).powi(3) + 2_000.0;
        // Beyond, half a window a round trip may be less than the curve wants.
        let got = f64::from(flow.cwnd());
        assert!((got / want - 1.0).abs() < 0.02, "after {t} s: {got}, not {want}");
    }
    assert!(flow.cwnd() > 2_500, "{}", flow.cwnd());
}
