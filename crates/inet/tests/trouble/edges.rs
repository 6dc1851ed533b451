//! Where something runs out: places, ports, patience; and what begins where something else has just ended.

use crate::net::{A, B, Host, Net, receive, send};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Census, Config};
use onecopy_inet::tcp::{Error, Readiness, Side as Way, State};
use onecopy_link::pair::{Path, Side};
use onecopy_link::{Capabilities, Medium};
use std::net::SocketAddr;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

fn net(change: impl Fn(Side, &mut Config)) -> Net {
    let path = Path::new().delay(Duration::from_micros(50));
    Net::with(path, 1, Capabilities::all(Medium::Ethernet, 1500), change)
}

fn call(host: &mut Host, now: u64, from: Option<u16>, to: u16) -> (Id, Result<(), Error>) {
    let id = host.stack.tcp_open().unwrap();
    if let Some(port) = from {
        host.stack.tcp_bind(id, SocketAddr::new(A.into(), port), true).unwrap();
    }
    (id, host.stack.tcp_connect(now, id, SocketAddr::new(B.into(), to)))
}

#[test]
fn a_new_connection_takes_the_place_of_one_that_is_over() {
    let mut net = net(|_, _| ());
    let listener = net.listen(80);
    for round in 0..5 {
        let now = net.now();
        let (a, begun) = call(&mut net.a, now, Some(4000), 80);
        assert_eq!(begun, Err(Error::InProgress));
        net.run(SECOND);
        let (b, _) = net.b.stack.tcp_accept(listener).unwrap();
        let now = net.now();
        assert_eq!(send(&mut net.a, &net.pool, now, a, b"hello"), 5);
        net.run(SECOND);
        let (now, mut got) = (net.now(), Vec::new());
        assert!(!receive(&mut net.b, now, b, &mut got));
        assert_eq!(got, b"hello");
        // The listener's side ends it first, and keeps what is left.
        net.b.stack.tcp_close(now, b);
        net.run(SECOND);
        let now = net.now();
        net.a.stack.tcp_close(now, a);
        net.run(SECOND);
        assert_eq!(net.a.stack.census(), Census::default());
        assert_eq!(net.b.stack.census().over, 1);
        assert_eq!(net.b.stack.tcp_stats().time_wait_recycled, round);
    }
    net.run(60 * SECOND);
    assert_eq!(net.b.stack.census(), Census { sockets: 1, listeners: 1, ports: 1, ..Census::default() });
}

#[test]
fn ports_run_out_and_come_back() {
    let mut net = net(|_, config| config.ports = 5000..=5001);
    let listener = net.listen(80);
    let now = net.now();
    let (a, b) = (call(&mut net.a, now, None, 80), call(&mut net.a, now, None, 80));
    assert_eq!((a.1, b.1), (Err(Error::InProgress), Err(Error::InProgress)));
    let (c, none) = call(&mut net.a, now, None, 80);
    assert_eq!(none, Err(Error::AddressNotAvailable));
    net.run(SECOND);
    let now = net.now();
    net.a.stack.tcp_close(now, a.0);
    net.run(SECOND);
    // It lingers on the other side's end, then in TIME-WAIT: its port is not free yet.
    let again = SocketAddr::new(B.into(), 80);
    assert_eq!(net.a.stack.tcp_connect(now, c, again), Err(Error::AddressNotAvailable));
    let now = net.now();
    while let Ok((id, _)) = net.b.stack.tcp_accept(listener) {
        net.b.stack.tcp_close(now, id);
    }
    net.run(70 * SECOND);
    let now = net.now();
    assert_eq!(net.a.stack.tcp_connect(now, c, again), Err(Error::InProgress));
}

#[test]
fn places_run_out_and_come_back() {
    let mut net = net(|side, config| {
        if side == Side::B {
            config.sockets = 4;
        }
    });
    let listener = net.listen(80);
    let now = net.now();
    let all: Vec<_> = (0..8).map(|_| call(&mut net.a, now, None, 80).0).collect();
    net.run(SECOND / 2);
    assert_eq!(net.b.stack.len(), 4);
    assert_eq!(net.b.stack.tcp_open(), Err(Error::NoMemory));
    let made =
        |net: &Net| all.iter().filter(|id| net.a.stack.tcp_state(**id) == Some(State::Established)).count();
    assert_eq!(made(&net), 3);
    // Whoever comes again finds room once some have gone.
    while let Ok((id, _)) = net.b.stack.tcp_accept(listener) {
        let now = net.now();
        net.b.stack.tcp_abort(now, id);
        net.b.stack.tcp_close(now, id);
    }
    net.run(10 * SECOND);
    assert_eq!(made(&net), 3);
    for id in all {
        let now = net.now();
        net.a.stack.tcp_close(now, id);
    }
    let now = net.now();
    net.b.stack.tcp_close(now, listener);
    net.run(400 * SECOND);
    assert_eq!((net.a.stack.census(), net.b.stack.census()), (Census::default(), Census::default()));
}

#[test]
fn no_place_for_what_is_over_leaves_nothing_behind() {
    let mut net = net(|_, config| config.tcp.max_time_wait = 1);
    let listener = net.listen(80);
    let pairs: Vec<_> = (0..3).map(|_| net.connect(listener, 80)).collect();
    let now = net.now();
    for (a, _) in &pairs {
        // One whose program holds it still, and reads what came.
        net.a.stack.tcp_shutdown(now, *a, Way::Write).unwrap();
    }
    for (_, b) in &pairs {
        send(&mut net.b, &net.pool, now, *b, b"hello");
        net.b.stack.tcp_close(now, *b);
    }
    net.run(SECOND);
    assert_eq!(net.a.stack.census().over, 1);
    assert_eq!(net.a.stack.tcp_stats().time_wait_overflow, 2);
    let now = net.now();
    for (a, _) in &pairs {
        let mut got = Vec::new();
        assert!(receive(&mut net.a, now, *a, &mut got));
        assert_eq!(got, b"hello");
        net.a.stack.tcp_close(now, *a);
    }
    net.run(70 * SECOND);
    assert_eq!(net.a.stack.census(), Census::default());
}

#[test]
fn who_calls_nobody_is_told_so() {
    let mut net = net(|_, _| ());
    net.listen(80);
    // Nobody listens there.
    let now = net.now();
    let (id, _) = call(&mut net.a, now, None, 81);
    net.run(SECOND);
    let event = net.a.stack.event().unwrap();
    assert_eq!(event.id, id);
    let all = Readiness::READ | Readiness::WRITE | Readiness::HUNG_UP | Readiness::ERROR;
    assert!(net.a.stack.tcp_readiness(id).contains(all));
    assert_eq!(net.a.stack.tcp_take_error(id), Some(Error::Refused));
    assert_eq!(net.a.stack.tcp_take_error(id), None);
    // Nobody answers.
    net.wire.set_path(Side::B, Path::new().loss(1.0));
    let now = net.now();
    let (id, _) = call(&mut net.a, now, None, 80);
    net.run(300 * SECOND);
    let error = net.a.stack.tcp_take_error(id);
    assert!(matches!(error, Some(Error::TimedOut | Error::HostUnreachable)), "{error:?}");
    assert_eq!(net.a.stack.event().map(|event| event.id), Some(id));
    // Its own address is nobody's on the link.
    let now = net.now();
    let id = net.a.stack.tcp_open().unwrap();
    let _ = net.a.stack.tcp_connect(now, id, SocketAddr::new(A.into(), 80));
    net.run(300 * SECOND);
    assert_eq!(net.a.stack.tcp_state(id), Some(State::Closed));
}

#[test]
fn what_was_reset_before_it_was_accepted_is_accepted_and_says_so() {
    let mut net = net(|_, _| ());
    let listener = net.listen(80);
    let now = net.now();
    let (a, _) = call(&mut net.a, now, None, 80);
    net.run(SECOND);
    let now = net.now();
    send(&mut net.a, &net.pool, now, a, b"hello");
    net.run(SECOND);
    let now = net.now();
    net.a.stack.tcp_abort(now, a);
    net.run(SECOND);
    let (b, _) = net.b.stack.tcp_accept(listener).unwrap();
    let (now, mut got) = (net.now(), Vec::new());
    assert!(net.b.stack.tcp_readiness(b).contains(Readiness::READ | Readiness::ERROR));
    assert_eq!(net.b.stack.tcp_receive(now, b, 0).err(), Some(Error::Reset));
    assert!(receive(&mut net.b, now, b, &mut got));
    net.b.stack.tcp_close(now, b);
    net.b.stack.tcp_close(now, listener);
    net.a.stack.tcp_close(now, a);
    assert_eq!((net.a.stack.census(), net.b.stack.census()), (Census::default(), Census::default()));
}
