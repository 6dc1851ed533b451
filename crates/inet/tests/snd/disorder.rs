//! Packets that arrive in another order: tolerated, measured, and not taken for lost ones.

use crate::script::Script;
use onecopy_inet::tcp::snd::{State, Timeout, Transmit};
use onecopy_inet::wire::tcp::Blocks;

#[test]
fn one_that_is_late_for_a_quarter_of_a_round_trip_is_waited_for() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    assert!(tcp.sack(0, &[2..=2]).is_dup);
    assert_eq!(tcp.resent(), []);
    assert_eq!(tcp.state(), State::Disorder);
    // 25 ms, and what a timer takes at least.
    assert_eq!(tcp.sender.deadline(), Some(227_000_000));
    tcp.at(210);
    let result = tcp.ack(3);
    assert_eq!((result.acked, result.packets), (3_000, 3));
    assert_eq!(tcp.resent(), []);
    assert_eq!(tcp.state(), State::Open);
    assert_eq!(tcp.info().reord_seen, 1);
    assert_eq!(tcp.info().total_retrans, 0);
}

#[test]
fn one_that_is_later_is_sent_again() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    tcp.sack(0, &[2..=2]);
    assert_eq!(tcp.fires(227), [1..=1]);
    assert_eq!(tcp.state(), State::Recovery);
    assert_eq!((tcp.counts(), tcp.ssthresh()), ((10, 1, 1, 1), 5));
}

#[test]
fn where_order_was_seen_to_change_three_duplicates_prove_nothing() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    tcp.sack(0, &[2..=2]);
    tcp.ack(2);
    tcp.sack(2, &[4..=10]);
    assert_eq!(tcp.resent(), [], "7 duplicates, but it may only be late");
    tcp.at(205);
    tcp.ack(10);
    assert_eq!((tcp.state(), tcp.info().total_retrans), (State::Open, 0));
    // Between 3 and 10 there were 7 others.
    assert_eq!(tcp.info().reordering, 8);
}

#[test]
fn each_duplicate_lets_a_new_packet_go() {
    // RFC 3042, limited transmit.
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    assert_eq!(tcp.sender.quota(), 0);
    tcp.sack(0, &[2..=2]);
    assert_eq!(tcp.sender.quota(), 1);
    tcp.send(1);
    assert_eq!(tcp.sender.quota(), 0);
    tcp.sack(0, &[2..=3]);
    assert_eq!(tcp.sender.quota(), 1);
    assert_eq!(tcp.cwnd(), 10);
}

#[test]
fn what_was_sent_at_once_is_cut_between_packets() {
    let mut tcp = Script::new();
    tcp.send_at_once(10).at(200);
    assert_eq!(tcp.counts(), (10, 0, 0, 0));
    tcp.sack(0, &[4..=5]);
    assert_eq!(tcp.counts(), (10, 2, 0, 0));
    tcp.sack(0, &[7..=7, 4..=5]);
    assert_eq!(tcp.resent(), [1..=1], "one was delivered, one goes");
    assert_eq!(tcp.counts(), (10, 3, 4, 1), "1 to 3, and 6");
    tcp.sack(0, &[7..=9, 4..=5]);
    assert_eq!(tcp.resent(), [2..=3], "two for two, and at once as before");
    tcp.sack(0, &[7..=10, 4..=5]);
    assert_eq!(tcp.resent(), [6..=6]);
    assert_eq!(tcp.counts(), (10, 6, 4, 4));
}

#[test]
fn less_than_a_packet_of_a_segment_is_not_selected() {
    let mut tcp = Script::new();
    tcp.send_at_once(10).at(200);
    let mut sack = Blocks::default();
    sack.push(Script::seq(3).minus(1), Script::seq(4).plus(999));
    tcp.tell(Script::seq(1), &sack, |_| {});
    assert_eq!(tcp.counts(), (10, 1, 0, 0), "3 whole, 2 and 4 in part");
}

#[test]
fn a_wider_window_for_reordering_is_learned_from_dsacks() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    // Order changes: seen.
    tcp.sack(0, &[2..=2]);
    tcp.ack(10);
    tcp.at(300).send(10).at(400);
    tcp.sack(10, &[12..=12]);
    assert_eq!(tcp.fires(427), [11..=11]);
    // It was later than 25 ms, but it comes: and again, the second copy, 100 ms later.
    tcp.at(440);
    tcp.ack(20);
    assert_eq!(tcp.info().reord_seen, 1, "what was sent twice is no witness");
    tcp.at(527);
    tcp.sack(20, &[11..=11]);
    assert_eq!(tcp.info().dsack_dups, 1);
    tcp.send(3).at(627);
    tcp.ack(23);
    tcp.send(10).at(727);
    tcp.sack(23, &[25..=25]);
    // Two quarters now.
    assert_eq!(tcp.sender.deadline(), Some(tcp.ns() + 52_000_000));
}

#[test]
fn small_records_are_joined_when_they_are_sent_again() {
    let mut tcp = Script::new();
    for (len, eor) in [(100, false), (200, false), (300, true), (50, false), (900, false)] {
        let piece = Transmit { seq: tcp.sender.nxt(), len, eor, ..Transmit::default() };
        tcp.sender.transmitted(tcp.ns(), piece);
    }
    // The probe is the last one, alone.
    assert_eq!(tcp.fire().1, Timeout::Retransmit);
    let last = tcp.sender.next_retransmission(64).unwrap();
    assert_eq!(last.len, 900);
    tcp.sender.retransmitted(tcp.ns(), &last);
    assert_eq!(tcp.fire().1, Timeout::Retransmit);
    // The timeout's is as much as was not parted by a record's end.
    let first = tcp.sender.next_retransmission(64).unwrap();
    assert_eq!((first.len, first.packets, first.eor), (600, 1, true));
    tcp.sender.retransmitted(tcp.ns(), &first);
    assert_eq!(tcp.counts().0, 3);
    assert_eq!(tcp.sender.audit(), Ok(()));
}
