//! Fast retransmit, and taking it back.

use crate::script::Script;
use onecopy_inet::tcp::snd::State;

#[test]
fn three_duplicates_send_the_first_again() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    tcp.sack(0, &[2..=2]);
    tcp.sack(0, &[2..=3]);
    assert_eq!(tcp.resent(), []);
    tcp.sack(0, &[2..=4]);
    assert_eq!(tcp.resent(), [1..=1]);
    assert_eq!((tcp.state(), tcp.ssthresh()), (State::Recovery, 5));
    assert_eq!(tcp.counts(), (10, 3, 1, 1));
    // While the window shrinks, each other acknowledgement lets something out.
    let mut new = 0;
    for last in 5..=10 {
        tcp.sack(0, &[2..=last]);
        new += tcp.sender.quota();
        let quota = tcp.sender.quota();
        tcp.send(quota);
    }
    assert_eq!(new, 4);
    tcp.at(300);
    let result = tcp.ack(10);
    assert_eq!((result.acked, result.packets), (10_000, 10));
    assert_eq!((tcp.state(), tcp.cwnd()), (State::Open, 5));
    assert_eq!(tcp.counts(), (new, 0, 0, 0));
}

#[test]
fn holes_are_sent_again_and_nothing_else() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    tcp.sack(0, &[3..=4]);
    assert_eq!(tcp.resent(), []);
    tcp.sack(0, &[8..=8, 3..=4]);
    assert_eq!(tcp.resent(), [1..=1], "6 are in flight, 5 are the goal: one goes for two delivered");
    let mut resent = Vec::new();
    for last in 9..=10 {
        tcp.sack(0, &[8..=last, 3..=4]);
        resent.extend(tcp.resent());
    }
    for (at, ack) in [(300, 2), (301, 4), (302, 5), (303, 6)] {
        tcp.at(at);
        tcp.sack(ack, &[8..=10]);
        resent.extend(tcp.resent());
    }
    assert_eq!(resent, [2..=2, 5..=5, 6..=6, 7..=7]);
    tcp.at(400);
    tcp.ack(10);
    assert_eq!((tcp.state(), tcp.counts()), (State::Open, (0, 0, 0, 0)));
    assert_eq!(tcp.info().total_retrans, 5);
}

#[test]
fn a_copy_that_is_lost_is_sent_a_third_time() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    tcp.sack(0, &[2..=4]);
    assert_eq!(tcp.resent(), [1..=1]);
    tcp.at(210);
    tcp.sack(0, &[2..=10]);
    let quota = tcp.sender.quota();
    assert!(quota > 0);
    tcp.send(quota).at(300);
    assert_eq!(tcp.resent(), []);
    // What was sent after the copy arrives: the copy did not.
    tcp.at(311);
    tcp.sack(0, &[2..=11]);
    assert_eq!(tcp.resent(), [1..=1]);
    assert_eq!(tcp.info().total_retrans, 2);
}

#[test]
fn a_dsack_takes_it_back() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    tcp.sack(0, &[2..=4]);
    assert_eq!(tcp.resent(), [1..=1]);
    assert!(tcp.sender.take_cwr(), "the window became smaller");
    tcp.at(250);
    tcp.ack(10);
    // 5, and one for the 7 that this one acknowledges.
    assert_eq!((tcp.state(), tcp.cwnd()), (State::Open, 6));
    // Then the copy arrives: the first had only been late.
    tcp.at(300);
    tcp.sack(10, &[1..=1]);
    assert_eq!((tcp.state(), tcp.cwnd()), (State::Open, 10));
    assert_eq!(tcp.ssthresh(), i32::MAX as u32);
    assert_eq!(tcp.info().dsack_dups, 1);
}

#[test]
fn a_dsack_for_something_else_takes_nothing_back() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    tcp.sack(0, &[3..=5]);
    assert_eq!(tcp.resent(), [1..=1]);
    tcp.sack(0, &[3..=10]);
    assert_eq!(tcp.resent(), [2..=2]);
    tcp.at(300);
    tcp.ack(10);
    assert_eq!(tcp.cwnd(), 5);
    tcp.sack(10, &[1..=1]);
    assert_eq!(tcp.cwnd(), 5, "2 was sent again as well, and nobody had it twice");
}

#[test]
fn a_timestamp_from_before_takes_it_back_at_once() {
    // Eifel, RFC 3522 and 4015.
    let mut tcp = Script::new();
    tcp.sender.timestamps(true);
    tcp.send(10).at(200);
    tcp.sack(0, &[2..=4]);
    tcp.at(201);
    assert_eq!(tcp.resent(), [1..=1]);
    tcp.at(202);
    tcp.say(10, &[], |ack| ack.echo = Script::stamp(100));
    assert_eq!(
        (tcp.state(), tcp.cwnd(), tcp.ssthresh()),
        (State::Open, 17, i32::MAX as u32),
        "slow start goes on"
    );
    assert!(!tcp.sender.take_cwr(), "nor is the peer told");
}

#[test]
fn a_timestamp_from_after_does_not() {
    let mut tcp = Script::new();
    tcp.sender.timestamps(true);
    tcp.send(10).at(200);
    tcp.sack(0, &[2..=4]);
    tcp.at(201);
    assert_eq!(tcp.resent(), [1..=1]);
    tcp.at(301);
    tcp.say(10, &[], |ack| ack.echo = Script::stamp(201));
    assert_eq!((tcp.state(), tcp.cwnd(), tcp.ssthresh()), (State::Open, 6, 5));
}

#[test]
fn while_copies_are_out_a_late_original_only_stops_sending_again() {
    let mut tcp = Script::new();
    tcp.sender.timestamps(true);
    tcp.send(10).at(200);
    tcp.sack(0, &[3..=10]);
    tcp.at(201);
    assert_eq!(tcp.resent(), [1..=1, 2..=2]);
    tcp.at(205);
    tcp.say(1, &[3..=10], |ack| ack.echo = Script::stamp(100));
    assert_eq!((tcp.state(), tcp.ssthresh(), tcp.resent()), (State::Recovery, 5, vec![]));
    tcp.at(206);
    tcp.say(10, &[], |ack| ack.echo = Script::stamp(100));
    assert_eq!((tcp.state(), tcp.ssthresh()), (State::Open, i32::MAX as u32));
}

#[test]
fn a_dsack_within_another_block_counts_once() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    tcp.sack(0, &[4..=10]);
    assert_eq!(tcp.resent(), [1..=1, 2..=2, 3..=3]);
    tcp.at(250);
    tcp.sack(0, &[2..=10]);
    tcp.sack(0, &[2..=2, 2..=10]);
    tcp.ack(10);
    tcp.sack(10, &[3..=3]);
    assert!(tcp.cwnd() < 10, "of 1 nobody said that it came twice");
    tcp.sack(10, &[1..=1]);
    assert_eq!(tcp.cwnd(), 10);
}

#[test]
fn blocks_of_what_was_never_sent_or_of_what_is_acknowledged_are_nothing() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    tcp.ack(2);
    for lie in [5..=11, 11..=20, 1..=2, 2..=4, 3..=5] {
        tcp.sack(2, std::slice::from_ref(&lie));
        assert_eq!((tcp.counts(), tcp.state()), ((8, 0, 0, 0), State::Open), "{lie:?}");
    }
    let delivered = tcp.info().delivered;
    // And who sent nothing twice believes nobody who received it twice.
    tcp.sack(2, &[1..=1]);
    assert_eq!(tcp.info().delivered, delivered);
}

#[test]
fn without_sack_duplicates_are_counted_and_partial_answers_go_on() {
    let mut tcp = Script::with(false);
    tcp.send(10).at(200);
    for _ in 0..2 {
        assert!(tcp.ack(0).is_dup);
        assert_eq!(tcp.resent(), []);
    }
    tcp.ack(0);
    assert_eq!(tcp.resent(), [1..=1]);
    assert_eq!((tcp.state(), tcp.counts()), (State::Recovery, (10, 3, 1, 1)));
    for _ in 0..4 {
        tcp.ack(0);
    }
    tcp.at(300);
    // 5 is missing, too.
    assert_eq!(tcp.ack(4).packets, 4);
    assert_eq!(tcp.resent(), [5..=5]);
    tcp.at(400).send(1);
    tcp.ack(10);
    assert_eq!(tcp.resent(), [], "11 is not missing: it was sent after");
    // It ends with more than that (RFC 6582), so that late duplicates begin no new one.
    assert_eq!(tcp.state(), State::Recovery);
    tcp.at(500);
    tcp.ack(11);
    assert_eq!((tcp.state(), tcp.cwnd(), tcp.counts()), (State::Open, 5, (0, 0, 0, 0)));
}

#[test]
fn ece_makes_the_window_smaller_once_for_each_window() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    tcp.say(1, &[], |ack| ack.ece = true);
    assert_eq!((tcp.state(), tcp.ssthresh()), (State::Cwr, 5));
    assert!(tcp.sender.take_cwr());
    assert!(!tcp.sender.take_cwr(), "once");
    for packet in 2..=10 {
        tcp.say(packet, &[], |ack| ack.ece = true);
        let quota = tcp.sender.quota();
        tcp.send(quota);
    }
    assert_eq!((tcp.state(), tcp.ssthresh()), (State::Cwr, 5));
    assert!(!tcp.sender.take_cwr());
    tcp.at(300);
    tcp.ack(11);
    assert_eq!((tcp.state(), tcp.cwnd()), (State::Open, 5));
    assert_eq!(tcp.info().delivered_ce, 10);
    // The next window may be congested again.
    tcp.say(12, &[], |ack| ack.ece = true);
    assert_eq!((tcp.state(), tcp.ssthresh()), (State::Cwr, 2));
    assert!(tcp.sender.take_cwr());
}

#[test]
fn what_was_selected_and_thrown_away_is_sent_again_after_a_while() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    tcp.sack(0, &[3..=10]);
    assert_eq!(tcp.resent(), [1..=1, 2..=2]);
    tcp.at(300);
    // It ends where it said that it has more.
    tcp.ack(2);
    assert_eq!(tcp.counts().1, 8);
    assert_eq!(tcp.sender.deadline(), Some(350_000_000), "half a round trip");
    assert_eq!(tcp.fires(350), [3..=3]);
    assert_eq!((tcp.state(), tcp.counts()), (State::Loss, (8, 0, 8, 1)));
    tcp.at(450);
    tcp.ack(3);
    assert_eq!(tcp.resent(), [4..=5], "slow start");
}

#[test]
fn or_not_if_it_corrects_itself() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    tcp.sack(0, &[3..=10]);
    assert_eq!(tcp.resent(), [1..=1, 2..=2]);
    tcp.at(300);
    tcp.ack(2);
    tcp.at(310);
    tcp.ack(10);
    assert_eq!((tcp.state(), tcp.counts(), tcp.sender.deadline()), (State::Open, (0, 0, 0, 0), None));
}
