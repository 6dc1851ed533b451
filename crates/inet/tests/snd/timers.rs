//! Which timer is armed when; probes of the tail.

use crate::script::{MSS, Script};
use onecopy_inet::tcp::Info;
use onecopy_inet::tcp::congestion::{Congestion, Prr};
use onecopy_inet::tcp::rtt::Rtt;
use onecopy_inet::tcp::snd::{Sender, State, Timeout, Transmit};

#[test]
fn a_probe_is_new_data_if_there_is_any() {
    let mut tcp = Script::new();
    tcp.send(10);
    tcp.unsent = true;
    assert_eq!(tcp.sender.quota(), 0);
    assert_eq!(tcp.fire(), (302, Timeout::ProbeNew));
    tcp.send(1);
    assert_eq!(tcp.resent(), []);
    assert_eq!(tcp.sender.deadline(), Some(602_000_000), "then the timeout, from now on");
    tcp.at(402);
    // It made the receiver tell what it lacks.
    tcp.sack(9, &[11..=11]);
    assert_eq!(tcp.resent(), []);
    assert_eq!(tcp.fires(429), [10..=10], "unless it is only late");
}

#[test]
fn a_probe_for_a_single_packet_waits_for_delayed_answers() {
    let mut tcp = Script::new();
    tcp.send(1);
    // Two round trips and 200 ms are more than the timeout has.
    assert_eq!(tcp.sender.deadline(), Some(400_000_000));
    assert_eq!(tcp.fires(400), [1..=1]);
    assert_eq!(tcp.state(), State::Open, "it is a probe nevertheless");
}

#[test]
fn a_probe_that_repairs_a_loss_makes_the_window_smaller() {
    let mut tcp = Script::new();
    tcp.send(10);
    assert_eq!(tcp.fires(302), [10..=10]);
    tcp.at(402);
    tcp.ack(10);
    // Whether it was the copy shows when nobody has had it twice.
    assert_eq!(tcp.cwnd(), 20);
    tcp.send(1).at(502);
    tcp.ack(11);
    assert_eq!((tcp.state(), tcp.cwnd(), tcp.ssthresh()), (State::Open, 10, 10));
}

#[test]
fn a_probe_that_was_for_nothing_does_not() {
    let mut tcp = Script::new();
    tcp.send(10);
    assert_eq!(tcp.fires(302), [10..=10]);
    tcp.at(303);
    tcp.ack(10);
    tcp.at(402);
    tcp.sack(10, &[10..=10]);
    let cwnd = tcp.cwnd();
    tcp.send(1).at(502);
    tcp.ack(11);
    assert!(tcp.cwnd() >= cwnd, "{} {}", tcp.cwnd(), cwnd);
    assert_eq!(tcp.ssthresh(), i32::MAX as u32);
}

#[test]
fn there_is_one_probe_for_a_tail() {
    let mut tcp = Script::new();
    tcp.send(2);
    assert_eq!(tcp.fires(302), [2..=2]);
    assert_eq!(tcp.fires(602), [1..=1], "and then the timeout");
    assert_eq!(tcp.state(), State::Loss);
}

#[test]
fn new_data_puts_the_timeout_off_but_brings_no_second_probe() {
    let mut tcp = Script::new();
    tcp.send(2);
    assert_eq!(tcp.fires(302), [2..=2]);
    tcp.at(500).send(1);
    assert_eq!(tcp.fire(), (702, Timeout::Nothing));
    assert_eq!(tcp.resent(), []);
    assert_eq!(tcp.fires(703), [1..=1]);
}

#[test]
fn a_plain_duplicate_says_that_the_probe_was_for_nothing() {
    let mut tcp = Script::new();
    tcp.send(10);
    assert_eq!(tcp.fires(302), [10..=10]);
    tcp.at(303);
    tcp.ack(10);
    tcp.at(402);
    tcp.ack(10);
    tcp.send(1).at(502);
    tcp.ack(11);
    assert_eq!(tcp.ssthresh(), i32::MAX as u32);
}

#[test]
fn without_sack_there_is_none() {
    let mut tcp = Script::with(false);
    tcp.send(10);
    assert_eq!(tcp.sender.deadline(), Some(400_000_000));
    assert!(tcp.sender.timeout_is_next());
}

#[test]
fn each_answer_lets_the_timeout_begin_anew() {
    let mut tcp = Script::with(false);
    tcp.send(10).at(200);
    tcp.ack(1);
    let rto = u64::from(tcp.info().rto) / 1_000;
    assert_eq!(tcp.sender.deadline(), Some((200 + rto) * 1_000_000));
    tcp.at(250);
    tcp.ack(1);
    assert_eq!(tcp.sender.deadline(), Some((200 + rto) * 1_000_000), "a duplicate does not");
    tcp.at(260);
    tcp.ack(10);
    assert_eq!(tcp.sender.deadline(), None);
}

#[test]
fn too_early_is_no_time() {
    let mut tcp = Script::new();
    tcp.send(2).at(301);
    assert_eq!(tcp.sender.on_timer(tcp.ns(), true), Timeout::Nothing);
    assert_eq!(tcp.sender.deadline(), Some(302_000_000));
}

#[test]
fn the_window_shrinks_over_an_idle_time() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    tcp.ack(10);
    assert_eq!(tcp.cwnd(), 20);
    tcp.at(10_000);
    tcp.sender.wake(tcp.ns());
    assert_eq!(tcp.cwnd(), 10);
}

#[test]
fn syn_with_data_and_fin_count_one_each() {
    use onecopy_inet::tcp::congestion::{Algorithm, SlowStart};
    use onecopy_inet::tcp::snd::Ack;
    use onecopy_inet::wire::{Seq, tcp::Blocks};
    let mut sender = Sender::new(Seq(5), Algorithm::Reno, SlowStart::HyStart, 10);
    sender.set_mss(MSS);
    sender.transmitted(0, Transmit { seq: Seq(5), len: 1_500, syn: true, ..Transmit::default() });
    assert_eq!((sender.packets_out(), sender.nxt()), (3, Seq(1_506)));
    let sack = Blocks::default();
    let mut ack = Ack {
        seq: Seq(0),
        ack: Seq(6),
        window: 9_000,
        sack: &sack,
        data: false,
        ece: false,
        echo: None,
        clock: 0,
        unsent: false,
    };
    let result = sender.acknowledge(1_000_000, &ack);
    assert_eq!((result.syn_acked, result.acked, result.packets), (true, 0, 1));
    sender.transmitted(2_000_000, Transmit { seq: Seq(1_506), len: 100, fin: true, ..Transmit::default() });
    ack.ack = Seq(1_606);
    let result = sender.acknowledge(3_000_000, &ack);
    assert_eq!((result.fin_acked, result.acked), (false, 1_600), "the bytes, not the FIN");
    assert!(sender.has_unacked());
    ack.ack = Seq(1_607);
    let result = sender.acknowledge(4_000_000, &ack);
    assert_eq!((result.fin_acked, result.acked), (true, 0));
    let mut info = Info::default();
    sender.fill_info(4_000_000, &mut info);
    assert_eq!((info.unacked, info.bytes_acked), (0, 1_602));
}

#[test]
fn memory_is_given_back() {
    let mut tcp = Script::new();
    tcp.send(10).at(200);
    tcp.sender.rest(tcp.ns());
    assert_eq!(tcp.counts().0, 10, "not while something is outstanding");
    tcp.sack(0, &[2..=4]);
    assert_eq!(tcp.resent(), [1..=1]);
    tcp.at(300);
    tcp.ack(10);
    tcp.sender.rest(tcp.ns());
    tcp.sack(10, &[1..=1]);
    assert_eq!(tcp.cwnd(), 6, "it cannot be undone any more");
    tcp.send(5).at(400);
    tcp.ack(15);
    assert_eq!((tcp.state(), tcp.info().total_retrans), (State::Open, 1));
}

#[test]
fn a_sender_is_small() {
    let sizes = (size_of::<Sender>(), size_of::<Rtt>(), size_of::<Congestion>(), size_of::<Prr>());
    assert!(sizes.0 <= 224, "{sizes:?}");
}
