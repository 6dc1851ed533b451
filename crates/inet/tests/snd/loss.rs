//! The retransmission timeout, and F-RTO.

use crate::script::Script;
use onecopy_inet::tcp::snd::{State, Timeout, Transmit};

/// Sends 10, and lets the probe and the timeout pass. It is 100 + 202 + 300 ms then.
fn timed_out() -> Script {
    let mut tcp = Script::new();
    tcp.send(10);
    assert_eq!(tcp.fires(302), [10..=10], "the probe, after two round trips");
    assert_eq!(tcp.fires(602), [1..=1], "the timeout: a round trip and 200 ms");
    assert_eq!((tcp.state(), tcp.cwnd(), tcp.ssthresh()), (State::Loss, 1, 5));
    assert_eq!(tcp.counts(), (10, 0, 10, 1));
    tcp
}

#[test]
fn each_timeout_is_twice_the_one_before_until_there_is_an_answer() {
    let mut tcp = timed_out();
    assert_eq!(tcp.sender.retries(), 1);
    assert_eq!(tcp.fires(1_202), [1..=1]);
    assert_eq!(tcp.fires(2_402), [1..=1]);
    assert_eq!((tcp.info().backoff, tcp.info().rto), (3, 2_400_000));
    assert_eq!(tcp.sender.first_unanswered_at(), Some(602_000_000));
    assert!(!tcp.sender.timed_out(tcp.ns(), 3, 200_000, None), "3 s have not passed");
    assert!(tcp.sender.timed_out(tcp.ns(), 2, 200_000, None));
    assert!(tcp.sender.timed_out(tcp.ns(), 15, 200_000, Some(1_800_000_000)));
    tcp.at(2_502);
    tcp.ack(1);
    // Nothing is known of round trips from what was sent twice: it stays backed off (Karn).
    assert_eq!((tcp.sender.retries(), tcp.info().rto), (0, 2_400_000));
    assert_eq!(tcp.resent(), [2..=2, 3..=3], "slow start");
    tcp.at(2_602);
    tcp.ack(10);
    assert_eq!((tcp.state(), tcp.counts(), tcp.sender.deadline()), (State::Open, (0, 0, 0, 0), None));
    assert_eq!(tcp.info().rto, 2_400_000, "some of it was sent twice");
}

#[test]
fn an_answer_with_a_timestamp_measures_all_the_same() {
    let mut tcp = timed_out();
    tcp.sender.timestamps(true);
    tcp.at(702);
    tcp.say(1, &[], |ack| ack.echo = Script::stamp(602));
    assert_eq!(tcp.info().backoff, 0);
    assert!(tcp.info().rto < 400_000, "{}", tcp.info().rto);
}

#[test]
fn a_late_original_makes_the_timeout_undone() {
    // RFC 5682, section 3.1, step 3.b: 2 was sent once, and it arrived.
    let mut tcp = timed_out();
    tcp.at(610);
    tcp.ack(2);
    assert_eq!((tcp.state(), tcp.cwnd()), (State::Open, 12));
    assert_eq!(tcp.resent(), []);
    assert_eq!(tcp.counts(), (8, 0, 0, 0));
}

#[test]
fn new_data_is_sent_to_see_whether_the_timeout_was_right() {
    let mut tcp = timed_out();
    tcp.unsent = true;
    tcp.at(702);
    // Step 2.b: maybe the copy, maybe not.
    assert!(tcp.ack(1).new_first);
    assert_eq!(tcp.cwnd(), 2);
    tcp.send(2);
    assert_eq!(tcp.resent(), []);
    tcp.at(802);
    // Step 3.a: what is new arrived, and nothing of what was before it.
    tcp.sack(1, &[11..=11]);
    assert_eq!(tcp.state(), State::Loss);
    assert_eq!(tcp.resent(), [2..=2]);
}

#[test]
fn what_is_lost_is_sent_again_if_there_is_nothing_new() {
    let mut tcp = timed_out();
    tcp.unsent = true;
    tcp.at(702);
    assert!(tcp.ack(1).new_first);
    // The program says that data waits, but Nagle holds it, say.
    assert_eq!(tcp.resent(), [2..=2, 3..=3]);
}

#[test]
fn a_timestamp_makes_the_timeout_undone() {
    let mut tcp = timed_out();
    tcp.sender.timestamps(true);
    tcp.at(610);
    tcp.say(1, &[], |ack| ack.echo = Script::stamp(100));
    assert_eq!((tcp.state(), tcp.cwnd(), tcp.ssthresh()), (State::Open, 11, i32::MAX as u32));
    assert_eq!(tcp.counts().2, 0);
    assert!(!tcp.sender.take_cwr());
}

#[test]
fn a_dsack_makes_the_timeout_undone() {
    let mut tcp = timed_out();
    tcp.at(702);
    tcp.say(1, &[], |_| {});
    assert_eq!(tcp.resent(), [2..=2, 3..=3]);
    // All had arrived: 10 twice, for the probe, and 1 to 3.
    tcp.at(703);
    tcp.sack(10, &[10..=10]);
    tcp.sack(10, &[1..=1]);
    tcp.sack(10, &[2..=2]);
    assert!(tcp.cwnd() < 10);
    tcp.sack(10, &[3..=3]);
    assert_eq!((tcp.state(), tcp.cwnd(), tcp.ssthresh()), (State::Open, 10, i32::MAX as u32));
}

#[test]
fn what_was_sent_less_than_a_round_trip_ago_is_not_lost_by_the_timeout() {
    let mut tcp = Script::with(false);
    tcp.send(2);
    tcp.at(200);
    tcp.ack(0);
    tcp.at(390).send(1);
    assert_eq!(tcp.fires(400), [1..=1]);
    assert_eq!(tcp.counts(), (3, 0, 3, 1), "without SACK there is no such time");
    let mut tcp = Script::new();
    tcp.send(1).at(200);
    tcp.ack(1);
    tcp.send(2);
    assert_eq!(tcp.fires(402), [3..=3]);
    let (at, _) = tcp.fire();
    assert_eq!(tcp.resent(), [2..=2]);
    tcp.at(at + 550).send(1);
    let (_, _) = tcp.fire();
    assert_eq!(tcp.resent(), [2..=2]);
    assert_eq!(tcp.counts(), (3, 0, 2, 1), "4 is on its way, maybe");
}

#[test]
fn a_syn_is_sent_again_and_the_window_begins_with_one() {
    use onecopy_inet::tcp::congestion::{Algorithm, SlowStart};
    use onecopy_inet::tcp::snd::{Ack, Sender};
    use onecopy_inet::wire::{Seq, tcp::Blocks};
    let mut sender = Sender::new(Seq(u32::MAX), Algorithm::Cubic, SlowStart::HyStart, 10);
    sender.set_linear_timeouts(4);
    sender.transmitted(0, Transmit { seq: Seq(u32::MAX), syn: true, ..Transmit::default() });
    let mut now = 0;
    for (timeout, at) in [1, 2, 3, 4, 5, 7, 11].into_iter().enumerate() {
        now = at * 1_000_000_000;
        assert_eq!(sender.deadline(), Some(now));
        assert_eq!(sender.on_timer(now, false), Timeout::Retransmit);
        let syn = sender.next_retransmission(64).unwrap();
        assert_eq!((syn.syn, syn.len, syn.packets), (true, 0, 1));
        sender.retransmitted(now, &syn);
        assert_eq!(sender.next_retransmission(64), None);
        assert_eq!(sender.retries(), timeout as u32 + 1);
    }
    let sack = Blocks::default();
    let (seq, ack) = (Seq(9), Seq(0));
    let ack = Ack {
        seq,
        ack,
        window: 65_535,
        sack: &sack,
        data: false,
        ece: false,
        echo: None,
        clock: 0,
        unsent: false,
    };
    assert!(sender.acknowledge(now + 1, &ack).syn_acked);
    sender.established(Algorithm::Cubic, SlowStart::HyStart, 10);
    assert_eq!((sender.congestion().cwnd(), sender.rto_ns()), (1, 3_000_000_000));
    assert_eq!((sender.has_unacked(), sender.deadline()), (false, None));
}

#[test]
fn a_closed_window_still_lets_the_first_packet_go_and_counts_no_tries() {
    let mut tcp = Script::new();
    tcp.send(3).at(200);
    tcp.window = 0;
    tcp.ack(1);
    let (_, probe) = tcp.fire();
    assert_eq!((probe, tcp.resent()), (Timeout::Retransmit, vec![]), "the last one lies beyond the window");
    assert_eq!(tcp.fires(403), [2..=2]);
    assert_eq!(tcp.sender.retries(), 0);
}
