//! Faults that were found, each with the shortest story that shows it.

use crate::net::{B, Net, send};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::{Error, Readiness, State};
use onecopy_link::pair::{Path, Side};
use std::net::SocketAddrV4;
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
    assert_eq!(net.a.stack.tcp_connect(now, id, SocketAddrV4::new(B, 80)), Err(Error::InProgress));
    // Each SYN is answered, and each answer is lost. The last one was answered a moment ago, when the listener's own patience ends.
    net.run(6 * SECOND);
    net.wire.set_path(Side::B, quiet);
    net.run(2 * SECOND);
    assert_eq!(net.a.stack.tcp_state(id), Some(State::Established));
    assert_eq!(net.a.stack.tcp_take_error(id), None);
    assert_eq!(net.b.stack.tcp_stats().timed_out, 0);
}
