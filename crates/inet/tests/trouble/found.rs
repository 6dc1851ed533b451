//! Faults that were found, each with the shortest story that shows it.

use crate::net::{A, B, Net, receive, send};
use onecopy_inet::stack::Stack;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::{Error, Readiness, Side as Way, State};
use onecopy_link::pair::{Path, Side};
use std::net::SocketAddr;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

fn connected() -> (Net, Id, Id, Id) {
    let mut net = Net::new(Path::new().delay(Duration::from_micros(50)), 1);
    let listener = net.listen(80);
    let (a, b) = net.connect(listener, 80);
    while net.a.stack.event().is_some() || net.b.stack.event().is_some() {}
    (net, a, b, listener)
}

#[test]
fn who_has_closed_is_told_of_nothing() {
    let (mut net, a, b, _) = connected();
    let now = net.now();
    send(&mut net.b, &net.pool, now, b, b"x");
    net.run(SECOND);
    // One event waits already, and its end is another one.
    let now = net.now();
    net.a.stack.tcp_close(now, a);
    net.run(SECOND);
    assert_eq!(net.a.stack.event(), None);
    // In order, likewise.
    let (mut net, a, b, _) = connected();
    let now = net.now();
    net.a.stack.tcp_close(now, a);
    net.run(SECOND);
    let now = net.now();
    net.b.stack.tcp_close(now, b);
    net.run(SECOND);
    assert_eq!((net.a.stack.event(), net.b.stack.event()), (None, None));
}

#[test]
fn who_filled_the_buffer_just_so_is_told_when_there_is_room() {
    let (mut net, a, ..) = connected();
    let now = net.now();
    // All of it is taken, so no send says that there is no room; but poll(2) does.
    while net.a.stack.tcp_readiness(a).contains(Readiness::WRITE) {
        assert_eq!(send(&mut net.a, &net.pool, now, a, &[7; 1000]), 1000);
    }
    while net.a.stack.event().is_some() {}
    net.run(SECOND);
    assert!(net.a.stack.tcp_readiness(a).contains(Readiness::WRITE));
    assert_eq!(net.a.stack.event().map(|event| event.id), Some(a));
}

#[test]
fn who_waits_for_fewer_bytes_is_told_of_those_that_are_there() {
    let (mut net, a, b, _) = connected();
    let now = net.now();
    net.b.stack.tcp_set(now, b, |settings| settings.receive_low_water = 1000).unwrap();
    send(&mut net.a, &net.pool, now, a, &[7; 500]);
    net.run(SECOND);
    assert_eq!(net.b.stack.event(), None);
    assert_eq!(net.b.stack.tcp_readiness(b) & Readiness::READ, Readiness::empty());
    let now = net.now();
    net.b.stack.tcp_set(now, b, |settings| settings.receive_low_water = 500).unwrap();
    assert_eq!(net.b.stack.tcp_readiness(b) & Readiness::READ, Readiness::READ);
    assert_eq!(net.b.stack.event().map(|event| event.id), Some(b));
}

#[test]
fn who_asks_again_is_not_given_up_the_sooner() {
    let (mut net, ..) = connected();
    let now = net.now();
    let id = net.a.stack.tcp_open().unwrap();
    let quiet = Path::new().delay(Duration::from_micros(50));
    net.wire.set_path(Side::B, quiet.clone().loss(1.0));
    assert_eq!(net.a.stack.tcp_connect(now, id, SocketAddr::new(B.into(), 80)), Err(Error::InProgress));
    // Each SYN is answered, and each answer is lost. The last one was answered a moment ago, when the listener's own patience ends.
    net.run(6 * SECOND);
    net.wire.set_path(Side::B, quiet);
    net.run(2 * SECOND);
    assert_eq!(net.a.stack.tcp_state(id), Some(State::Established));
    assert_eq!(net.a.stack.tcp_take_error(id), None);
    assert_eq!(net.b.stack.tcp_stats().timed_out, 0);
}

/// Both call each other at once; each has the other's SYN, and neither an answer yet.
fn crossed() -> (Net, Id, Id) {
    let mut net = Net::new(Path::new().delay(Duration::from_millis(10)), 1);
    // So that both know each other's neighbour.
    let listener = net.listen(80);
    net.connect(listener, 80);
    let now = net.now();
    let ends = [SocketAddr::new(A.into(), 1000), SocketAddr::new(B.into(), 2000)];
    let call = |stack: &mut Stack, from, to| {
        let id = stack.tcp_open().unwrap();
        stack.tcp_bind(id, from, false).unwrap();
        assert_eq!(stack.tcp_connect(now, id, to), Err(Error::InProgress));
        id
    };
    let (a, b) = (call(&mut net.a.stack, ends[0], ends[1]), call(&mut net.b.stack, ends[1], ends[0]));
    net.run(15_000_000);
    assert_eq!(net.a.stack.tcp_state(a), Some(State::SynReceived));
    assert_eq!(net.b.stack.tcp_state(b), Some(State::SynReceived));
    (net, a, b)
}

#[test]
fn both_call_at_once() {
    let (mut net, a, b) = crossed();
    net.run(SECOND);
    for (host, id) in [(&mut net.a, a), (&mut net.b, b)] {
        assert_eq!(host.stack.tcp_state(id), Some(State::Established));
        assert_eq!(send(host, &net.pool, net.wire.now(), id, b"hello"), 5);
    }
    net.run(SECOND);
    let now = net.now();
    for (host, id) in [(&mut net.a, a), (&mut net.b, b)] {
        let mut got = Vec::new();
        assert!(!receive(host, now, id, &mut got));
        assert_eq!(got, b"hello");
    }
}

#[test]
fn who_has_enough_before_both_calls_are_answered_ends_in_order() {
    let (mut net, a, b) = crossed();
    let now = net.now();
    net.a.stack.tcp_shutdown(now, a, Way::Write).unwrap();
    net.run(SECOND);
    assert_eq!(net.a.stack.tcp_state(a), Some(State::FinWait2));
    assert_eq!(net.b.stack.tcp_state(b), Some(State::CloseWait));
    let now = net.now();
    assert_eq!(send(&mut net.b, &net.pool, now, b, b"hello"), 5);
    net.b.stack.tcp_shutdown(now, b, Way::Write).unwrap();
    net.run(SECOND);
    let (now, mut got) = (net.now(), Vec::new());
    assert!(receive(&mut net.a, now, a, &mut got));
    assert_eq!(got, b"hello");
    // Without a program.
    let (mut net, a, b) = crossed();
    let now = net.now();
    net.a.stack.tcp_close(now, a);
    net.run(SECOND);
    assert_eq!(net.b.stack.tcp_state(b), Some(State::CloseWait));
    let now = net.now();
    net.b.stack.tcp_close(now, b);
    net.run(100 * SECOND);
    assert_eq!((net.a.stack.tcp_state(a), net.b.stack.tcp_state(b)), (None, None));
    // And where the other one is gone.
    let (mut net, a, _) = crossed();
    net.wire.set_path(Side::B, Path::new().loss(1.0));
    net.wire.set_path(Side::A, Path::new().loss(1.0));
    let now = net.now();
    net.a.stack.tcp_close(now, a);
    net.run(200 * SECOND);
    assert_eq!(net.a.stack.tcp_state(a), None);
}

#[test]
fn who_has_enough_before_both_calls_are_answered_says_so_again() {
    let (mut net, a, b) = crossed();
    let quiet = Path::new().delay(Duration::from_millis(10));
    net.wire.set_path(Side::A, quiet.clone().loss(1.0));
    let now = net.now();
    net.a.stack.tcp_shutdown(now, a, Way::Write).unwrap();
    net.run(100_000_000);
    // Its SYN arrives once more, a second after the first, and FIN is lost again.
    net.wire.set_path(Side::A, quiet.clone());
    let begun = net.now() - 115_000_000;
    net.run(begun + SECOND + 10_000_000 - net.now());
    net.wire.set_path(Side::A, quiet.clone().loss(1.0));
    net.run(SECOND / 2);
    net.wire.set_path(Side::A, quiet);
    net.run(20 * SECOND);
    assert_eq!(net.a.stack.tcp_state(a), Some(State::FinWait2));
    assert_eq!(net.b.stack.tcp_state(b), Some(State::CloseWait));
}

#[test]
fn who_waits_for_a_listener_hears_that_it_listens_no_more() {
    let (mut net, .., listener) = connected();
    while net.b.stack.event().is_some() {}
    let now = net.now();
    net.b.stack.tcp_shutdown(now, listener, Way::Both).unwrap();
    assert!(net.b.stack.tcp_readiness(listener).contains(Readiness::HUNG_UP));
    assert_eq!(net.b.stack.event().map(|event| event.id), Some(listener));
    assert_eq!(net.b.stack.event(), None);
}

#[test]
fn no_time_before_a_probe_is_a_little_time() {
    let (mut net, a, ..) = connected();
    net.wire.set_path(Side::A, Path::new().loss(1.0));
    let now = net.now();
    let config = net.a.stack.tcp_config_mut();
    (config.keepalive_time, config.keepalive_interval) = (Duration::ZERO, Duration::ZERO);
    net.a.stack.tcp_set(now, a, |settings| settings.keepalive = true).unwrap();
    send(&mut net.a, &net.pool, now, a, b"hello");
    let until = net.now() + SECOND;
    let mut steps = 0;
    while net.step(until) {
        steps += 1;
    }
    assert!(steps < 100, "{steps}");
}

#[test]
fn who_waits_for_much_hears_of_less_where_no_more_can_come() {
    let (mut net, a, b, _) = connected();
    let now = net.now();
    net.a.stack.tcp_set(now, a, |settings| settings.nodelay = true).unwrap();
    net.b
        .stack
        .tcp_set(now, b, |settings| {
            settings.receive_buffer = Some(6_000);
            settings.receive_low_water = 3_000;
        })
        .unwrap();
    // Each takes a page.
    for _ in 0..20 {
        let now = net.now();
        send(&mut net.a, &net.pool, now, a, &[7; 100]);
        net.run(SECOND / 10);
    }
    assert!(net.b.stack.tcp_readiness(b).contains(Readiness::READ));
    assert_eq!(net.b.stack.event().map(|event| event.id), Some(b));
    let mut got = Vec::new();
    while got.len() < 2000 {
        let (now, before) = (net.now(), got.len());
        receive(&mut net.b, now, b, &mut got);
        assert!(got.len() > before, "{before}");
        net.run(100 * SECOND);
    }
}

/// Both send small pieces into small buffers, and wait for each other.
fn both_send(gone: bool) {
    let (mut net, a, b, _) = connected();
    let now = net.now();
    let small = |settings: &mut onecopy_inet::tcp::Settings| settings.receive_buffer = Some(25_000);
    net.a.stack.tcp_set(now, a, small).unwrap();
    net.b.stack.tcp_set(now, b, small).unwrap();
    // Each takes a page.
    for _ in 0..40 {
        assert_eq!(send(&mut net.a, &net.pool, now, a, &[7; 400]), 400);
        assert_eq!(send(&mut net.b, &net.pool, now, b, &[7; 400]), 400);
    }
    if gone {
        for host in [&mut net.a, &mut net.b] {
            host.stack.tcp_config_mut().memory = [0, 0, 1];
        }
    }
    let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        net.run(SECOND);
        let now = net.now();
        receive(&mut net.a, now, a, &mut at_a);
        receive(&mut net.b, now, b, &mut at_b);
    }
    for host in [&net.a, &net.b] {
        let stats = host.stack.tcp_stats();
        // (What asks for a delayed ACK counts as sent again.)
        let again = stats.retransmitted > stats.loss_probes;
        assert_eq!((stats.no_memory > 0, again), (gone, gone), "{stats:?}");
    }
    assert_eq!((at_a.len(), at_b.len()), (16_000, 16_000));
}

/// Memory is gone for all, and both take their windows back: their ACKs stand behind these.
#[test]
fn two_that_take_their_windows_back_at_once_still_hear_each_other() {
    both_send(true);
}

/// Each segment was inside of a window: none is dropped, though each keeps a page and there is no room for as many.
#[test]
fn two_that_have_small_buffers_keep_what_their_windows_promised() {
    both_send(false);
}

/// As the kernel has it: a reset behind the FIN is an error of who sends.
#[test]
fn who_has_heard_of_the_end_hears_of_it_again_though_a_reset_came() {
    let (mut net, a, b, _) = connected();
    let now = net.now();
    send(&mut net.a, &net.pool, now, a, b"hello");
    net.a.stack.tcp_shutdown(now, a, Way::Write).unwrap();
    net.run(SECOND);
    let now = net.now();
    net.a.stack.tcp_set(now, a, |settings| settings.linger = Some(Duration::ZERO)).unwrap();
    net.a.stack.tcp_close(now, a);
    net.run(SECOND);
    assert!(net.b.stack.tcp_readiness(b).contains(Readiness::READ | Readiness::ERROR));
    let (now, mut got) = (net.now(), Vec::new());
    assert!(receive(&mut net.b, now, b, &mut got));
    assert_eq!(got, b"hello");
    assert_eq!(net.b.stack.tcp_take_error(b), Some(Error::BrokenPipe));
}

#[test]
fn who_shut_both_ways_down_resets_what_comes() {
    let (mut net, a, b, _) = connected();
    let now = net.now();
    net.a.stack.tcp_shutdown(now, a, Way::Both).unwrap();
    net.run(SECOND);
    let now = net.now();
    send(&mut net.b, &net.pool, now, b, b"hello");
    net.run(SECOND);
    assert_eq!(net.a.stack.tcp_take_error(a), Some(Error::Reset));
    assert_eq!(net.b.stack.tcp_take_error(b), Some(Error::BrokenPipe));
}
