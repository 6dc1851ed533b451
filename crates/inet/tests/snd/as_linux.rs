//! Whole stories with the figures that Linux has in them, as packetdrill's scripts expect them of it (gtests/net/tcp: sack, fast_recovery).

use crate::script::Script;
use onecopy_inet::tcp::congestion::{Algorithm, SlowStart};
use onecopy_inet::tcp::snd::{State, Transmit};

#[test]
fn selections_that_fill_up_step_by_step() {
    // sack/sack-shift-sacked-2-6-8-3-9-nofack, whose packets are counted from 0.
    let mut tcp = Script::new();
    tcp.sender.established(Algorithm::Cubic, SlowStart::HyStart, 10);
    tcp.send_at_once(10).at(200);
    tcp.sack(0, &[3..=3]);
    tcp.at(201);
    tcp.sack(0, &[3..=3, 7..=7]);
    tcp.at(202);
    tcp.sack(0, &[3..=3, 7..=7, 9..=9]);
    assert_eq!(tcp.resent(), [1..=1]);
    assert_eq!((tcp.state(), tcp.counts().2), (State::Recovery, 6));
    tcp.at(209);
    tcp.sack(0, &[3..=4, 7..=7, 9..=9]);
    assert_eq!(tcp.resent(), [2..=2]);
    assert_eq!((tcp.counts().2, tcp.info().reordering), (5, 6), "from 9 back to 4");
    tcp.at(219);
    tcp.sack(0, &[3..=4, 7..=7, 9..=10]);
    let mut resent = tcp.resent();
    assert_eq!(tcp.counts().2, 5);
    tcp.at(302);
    tcp.sack(1, &[3..=4, 7..=7, 9..=10]);
    resent.extend(tcp.resent());
    assert_eq!(tcp.counts().2, 4);
    tcp.at(319);
    tcp.sack(4, &[7..=7, 9..=10]);
    resent.extend(tcp.resent());
    assert_eq!(tcp.counts().2, 3);
    tcp.at(329);
    tcp.sack(7, &[9..=10]);
    resent.extend(tcp.resent());
    assert_eq!(resent, [5..=5, 6..=6, 8..=8]);
    tcp.at(429);
    tcp.ack(10);
    assert_eq!((tcp.state(), tcp.counts()), (State::Open, (0, 0, 0, 0)));
}

#[test]
fn an_acknowledgement_that_was_overtaken_brings_its_selection() {
    // fast_recovery/prr-ss-ack-below-snd_una-cubic, with round trips ten times as long.
    let mut tcp = Script::new();
    tcp.sender.established(Algorithm::Cubic, SlowStart::HyStart, 10);
    tcp.send_at_once(10).at(200);
    tcp.sack(0, &[2..=2]);
    tcp.sack(0, &[2..=3]);
    tcp.sack(0, &[2..=3, 9..=9]);
    assert_eq!(tcp.resent(), [1..=1]);
    tcp.at(320);
    tcp.sack(4, &[9..=9]);
    assert_eq!(tcp.resent(), [5..=7], "slow start on good news");
    tcp.unsent = true;
    tcp.at(340);
    let result = tcp.sack(3, &[6..=7]);
    assert!(result.old && !result.too_old);
    assert_eq!(tcp.resent(), [8..=8]);
    assert_eq!(tcp.sender.quota(), 1, "and one that is new");
}

#[test]
fn four_packets_of_which_the_first_is_lost() {
    // fast_retransmit/fr-4pkt-sack and fr-4pkt.
    for sack in [true, false] {
        let mut tcp = Script::with(sack);
        tcp.send_at_once(4).at(200);
        for last in 2..=4 {
            assert_eq!(tcp.resent(), []);
            tcp.sack(0, &[2..=last]);
        }
        assert_eq!(tcp.resent(), [1..=1]);
        tcp.at(300);
        assert_eq!(tcp.ack(4).packets, 4);
        assert_eq!((tcp.counts(), tcp.resent()), ((0, 0, 0, 0), vec![]));
        let fin = Transmit { seq: tcp.sender.nxt(), fin: true, ..Transmit::default() };
        tcp.at(400).sender.transmitted(400_000_000, fin);
        tcp.at(500);
        assert!(tcp.tell(fin.seq.plus(1), &Default::default(), |_| {}).fin_acked);
    }
}

#[test]
fn a_lost_packet_of_ten_with_prr() {
    // fast_recovery/prr-ss-10pkt-lost-1, by cubic: 7 of 10 are the goal.
    let mut tcp = Script::new();
    tcp.sender.established(Algorithm::Cubic, SlowStart::HyStart, 10);
    tcp.send_at_once(10).at(200);
    tcp.sack(0, &[2..=2]);
    tcp.sack(0, &[2..=3]);
    tcp.sack(0, &[2..=4]);
    assert_eq!(tcp.resent(), [1..=1]);
    assert_eq!((tcp.ssthresh(), tcp.cwnd()), (7, 7));
    let mut new = Vec::new();
    for last in 5..=10 {
        tcp.sack(0, &[2..=last]);
        new.push(tcp.sender.quota());
        tcp.send(tcp.sender.quota());
    }
    // At the goal: as many as are delivered.
    assert_eq!(new, [1, 1, 1, 1, 1, 1]);
    assert_eq!(tcp.sender.in_flight(), 7);
}
