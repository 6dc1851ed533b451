//! Whatever comes in whatever order.

use crate::flow::MS;
use onecopy_inet::tcp::congestion::{Acked, Algorithm, Congestion, Prr, SlowStart};
use onecopy_inet::wire::Seq;
use proptest::prelude::*;

fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop_oneof![Just(Algorithm::Reno), Just(Algorithm::Cubic)]
}

#[derive(Clone, Debug)]
enum Step {
    Acked { packets: u32, rtt: Option<u32>, mss: u32 },
    Sent { out: u32, full: bool },
    Validate { rto: u64 },
    Reduce { undoable: bool },
    Prr { delivered: u32, lost: u32, in_flight: u32 },
    Settle,
    Timeout { in_flight: u32, anew: bool },
    Undo,
    Idle { idle: u64, rto: u64 },
    Begin { idle: u64 },
    Switch(Algorithm),
    Rest,
    Set(u32),
}

fn count() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0u32..100, 1 => any::<u32>()]
}

fn step() -> impl Strategy<Value = Step> {
    let span = || prop_oneof![0..400 * MS, any::<u64>()];
    prop_oneof![
        6 => (count(), prop::option::of(count()), any::<u16>())
            .prop_map(|(packets, rtt, mss)| Step::Acked { packets, rtt, mss: mss.into() }),
        4 => (count(), any::<bool>()).prop_map(|(out, full)| Step::Sent { out, full }),
        1 => span().prop_map(|rto| Step::Validate { rto }),
        1 => any::<bool>().prop_map(|undoable| Step::Reduce { undoable }),
        2 => (count(), count(), count())
            .prop_map(|(delivered, lost, in_flight)| Step::Prr { delivered, lost, in_flight }),
        1 => Just(Step::Settle),
        1 => (count(), any::<bool>()).prop_map(|(in_flight, anew)| Step::Timeout { in_flight, anew }),
        1 => Just(Step::Undo),
        1 => (span(), span()).prop_map(|(idle, rto)| Step::Idle { idle, rto }),
        1 => span().prop_map(|idle| Step::Begin { idle }),
        1 => algorithm().prop_map(Step::Switch),
        1 => Just(Step::Rest),
        1 => count().prop_map(Step::Set),
    ]
}

proptest! {
    /// Whatever comes in whatever order: a window is never 0, and grows by an acknowledgement only if it is the limit, and by no more
    /// than it acknowledges.
    #[test]
    fn no_window_is_ever_empty_or_grows_for_nothing(
        start in algorithm(),
        plus: bool,
        initial: u32,
        steps in prop::collection::vec((step(), 0..3_000 * MS), 1..200),
    ) {
        let mut window = Congestion::new(start, initial);
        if plus {
            window = window.with_slow_start(SlowStart::HyStartPlusPlus);
        }
        let mut prr = Prr::new(window.cwnd());
        let (mut now, mut una, mut nxt) = (u64::MAX / 2, Seq(u32::MAX - 9), Seq(0));
        for (step, wait) in steps {
            now += wait;
            let (before, limited) = (window.cwnd(), window.is_limited() && !window.is_reducing());
            match step {
                Step::Acked { packets, rtt, mss } => {
                    una = una.plus(packets);
                    let acked = Acked { packets, rtt_us: rtt, srtt_us: rtt, mss, una, nxt };
                    window.acked(now, &acked);
                    let most = if limited { packets.saturating_add(1) } else { 0 };
                    prop_assert!(window.cwnd() - before <= most, "{before} {}", window.cwnd());
                }
                Step::Sent { out, full } => {
                    nxt = nxt.plus(out);
                    window.transmitted(now, out, full, una, nxt);
                    prop_assert_eq!(window.cwnd(), before);
                }
                Step::Validate { rto } => {
                    window.validate(now, rto, true);
                    prop_assert!(window.cwnd() <= before);
                }
                Step::Reduce { undoable } => {
                    window.reduce(undoable);
                    prr = Prr::new(window.cwnd());
                    prop_assert!(window.ssthresh() >= 2 && window.ssthresh() <= before.max(2));
                }
                Step::Prr { delivered, lost, in_flight } => {
                    if let Some(cwnd) = prr.step(delivered, lost, in_flight, window.ssthresh(), lost == 0) {
                        prop_assert!(cwnd >= in_flight);
                        prr.sent(cwnd - in_flight);
                        window.set_cwnd(cwnd);
                    }
                }
                Step::Settle => window.settle(now),
                Step::Timeout { in_flight, anew } => window.timeout(now, in_flight, nxt, anew),
                Step::Undo => {
                    let threshold = window.ssthresh();
                    window.undo(now);
                    prop_assert!(window.cwnd() >= before && window.ssthresh() >= threshold);
                }
                Step::Idle { idle, rto } => {
                    window.restart_after_idle(now, idle, rto);
                    prop_assert!(window.cwnd() <= before);
                }
                Step::Begin { idle } => window.flight_begins(now, idle),
                Step::Switch(to) => {
                    window.set_algorithm(to, SlowStart::HyStart);
                    prop_assert_eq!(window.algorithm(), to);
                }
                Step::Rest => window.rest(),
                Step::Set(cwnd) => window.set_cwnd(cwnd),
            }
            prop_assert!(window.cwnd() >= 1);
        }
    }

    /// What a reduction or a timeout took is given back exactly, whatever recovery made of the window meanwhile.
    #[test]
    fn an_undone_reduction_leaves_no_trace(
        start in algorithm(),
        cwnd in 2u32..1_000_000,
        first in prop::option::of(2u32..1_000_000),
        timeout: bool,
        settled: bool,
        meanwhile in 1u32..1_000,
    ) {
        let mut window = Congestion::new(start, 10);
        if let Some(first) = first {
            // So that ssthresh is that of an earlier loss.
            window.set_cwnd(first);
            window.reduce(true);
            window.settle(0);
            window.forget_undo();
        }
        window.set_cwnd(cwnd);
        // Linux has three quarters of the window where ssthresh was less: the window was above it already.
        let threshold = window.ssthresh().max(cwnd / 2 + cwnd / 4);
        if timeout {
            window.timeout(1, meanwhile.min(cwnd) - 1, Seq(0), true);
        } else {
            window.reduce(true);
            window.set_cwnd(meanwhile.min(cwnd));
        }
        prop_assert!(window.ssthresh() < threshold.max(3));
        if settled {
            window.settle(2);
        }
        prop_assert!(window.can_undo());
        window.undo(3);
        prop_assert_eq!((window.cwnd(), window.ssthresh()), (cwnd, threshold));
        window.settle(4);
        prop_assert_eq!(window.cwnd(), cwnd, "undone, it is not settled any more");
    }
}
