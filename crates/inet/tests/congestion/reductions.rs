//! Proportional rate reduction, reductions and their undoing.

use crate::flow::Flow;
use onecopy_inet::tcp::congestion::{Acked, Algorithm, Congestion, INFINITE, Prr};
use onecopy_inet::wire::Seq;

/// RFC 6937, section 3, first example: 20 packets, of which the first is lost. Recovery begins with the third acknowledgement. The row
/// `pipe` from the fourth on is what is in flight after each one was answered. (The row `sent` contradicts it at the 17th and 18th.)
#[test]
fn prr_sends_for_every_other_acknowledgement() {
    let pipe = [18, 18, 17, 17, 16, 16, 15, 15, 14, 14, 13, 13, 12, 12, 11, 10];
    let mut prr = Prr::new(20);
    let mut in_flight = 18;
    let mut retransmission = prr.step(1, 1, in_flight, 10, false).unwrap() - in_flight;
    assert_eq!(retransmission, 1);
    for (at, want) in pipe.into_iter().enumerate() {
        prr.sent(retransmission);
        in_flight += retransmission;
        in_flight -= 1;
        retransmission = prr.step(1, 0, in_flight, 10, false).unwrap() - in_flight;
        assert_eq!(in_flight + retransmission, want, "acknowledgement {}", at + 4);
    }
}

/// The second example: the first 15 of 20 are lost. Two new ones were sent; 5 acknowledgements come. One packet for each (CRB) while
/// they move nothing forward, two (SSRB) where they do.
#[test]
fn prr_after_heavy_loss_sends_what_is_delivered() {
    for (good_news, pipe, sent) in [(false, [4, 4, 4], 1), (true, [4, 5, 6], 2)] {
        let mut prr = Prr::new(20);
        let mut in_flight = 22 - 15 - 2;
        for want in pipe {
            in_flight -= 1;
            assert_eq!(in_flight, want);
            let send = prr.step(1, 0, in_flight, 10, good_news).unwrap() - in_flight;
            assert_eq!(send, sent);
            prr.sent(send);
            in_flight += send;
        }
    }
    // Good news with more losses is none.
    assert_eq!(Prr::new(20).step(1, 3, 4, 10, true), Some(5));
}

#[test]
fn prr_begins_with_a_retransmission_and_asks_for_deliveries() {
    let mut prr = Prr::new(10);
    assert_eq!(prr.step(0, 1, 9, 5, false), None);
    // Even at the goal.
    assert_eq!(prr.step(1, 1, 5, 5, false), Some(6));
    prr.sent(1);
    assert_eq!(prr.step(1, 1, 5, 5, false), Some(5));
    // What a program that had nothing to send has left out comes later.
    let mut prr = Prr::new(10);
    for _ in 0..4 {
        let _ = prr.step(1, 0, 3, 8, false);
    }
    assert_eq!(prr.step(1, 0, 3, 8, false), Some(8));
    let mut largest = Prr::new(1);
    assert_eq!(largest.step(u32::MAX, 0, u32::MAX, u32::MAX - 1, true), Some(u32::MAX));
}

// Reductions and their undoing.

#[test]
fn a_reduction_leaves_seven_tenths_or_a_half() {
    for (algorithm, left) in [(Algorithm::Cubic, 70), (Algorithm::Reno, 50)] {
        let mut window = Congestion::new(algorithm, 10);
        window.set_cwnd(100);
        window.reduce(true);
        assert_eq!((window.cwnd(), window.ssthresh()), (100, left));
        window.set_cwnd(80);
        window.settle(0);
        assert_eq!((window.cwnd(), window.ssthresh()), (left, left));
    }
}

#[test]
fn what_ecn_reduced_stays_so() {
    let mut window = Congestion::new(Algorithm::Cubic, 10);
    window.set_cwnd(100);
    window.reduce(false);
    assert!(!window.can_undo());
    assert!(!window.undo(0));
    window.settle(0);
    assert_eq!((window.cwnd(), window.ssthresh()), (100, 70), "undone is no more under way");
    window.reduce(true);
    window.forget_undo();
    assert!(!window.can_undo());
}

#[test]
fn nothing_grows_in_a_reduction() {
    let mut window = Congestion::new(Algorithm::Reno, 10);
    window.transmitted(0, 10, true, Seq(0), Seq(10_000));
    window.reduce(true);
    window.set_cwnd(3);
    window.acked(0, &Acked { packets: 10, una: Seq(5_000), nxt: Seq(10_000), ..Acked::default() });
    assert_eq!(window.cwnd(), 3);
}

#[test]
fn a_timeout_in_a_reduction_does_not_reduce_again() {
    let mut window = Congestion::new(Algorithm::Cubic, 10);
    window.set_cwnd(100);
    window.reduce(true);
    window.set_cwnd(60);
    window.timeout(0, 3, Seq(0), false);
    assert_eq!((window.cwnd(), window.ssthresh()), (4, 70));
    assert!(window.undo(0));
    assert_eq!((window.cwnd(), window.ssthresh()), (100, INFINITE));
}

#[test]
fn a_second_reduction_on_top_of_one_is_undone_to_the_first() {
    let mut window = Congestion::new(Algorithm::Reno, 10);
    window.set_cwnd(100);
    window.reduce(true);
    window.set_cwnd(90);
    window.timeout(0, 0, Seq(0), true);
    assert_eq!((window.cwnd(), window.ssthresh()), (1, 45));
    window.undo(0);
    assert_eq!((window.cwnd(), window.ssthresh()), (90, 50));
}

/// A window is below its threshold in a reduction, too, and round trips are long then: that is no end of slow start.
#[test]
fn hystart_does_not_look_in_a_reduction() {
    let mut flow = Flow::cubic();
    flow.write(1_000);
    flow.wait(200).ack(10);
    flow.window.set_cwnd(100);
    flow.window.reduce(true);
    flow.window.set_cwnd(40);
    flow.wait(400);
    for _ in 0..15 {
        flow.wait(1).ack(1);
    }
    assert_eq!((flow.cwnd(), flow.window.ssthresh()), (40, 70));
}

/// Between the limit of one window of data and the next, the window may grow; behind it, what was out then counts no more.
#[test]
fn what_was_out_counts_for_its_window_of_data() {
    let mut window = Congestion::new(Algorithm::Reno, 10);
    window.transmitted(0, 10, true, Seq(0), Seq(10_000));
    window.transmitted(0, 1, false, Seq(9_000), Seq(11_000));
    assert!(window.is_limited());
    window.transmitted(0, 1, false, Seq(10_000), Seq(12_000));
    assert!(!window.is_limited());
}
