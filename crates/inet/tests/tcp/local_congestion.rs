//! A host that has no room for what its own connections send: nothing is taken for lost on the way that never left.

use crate::net::{Net, receive, send};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::{Error, Info, State};
use onecopy_link::pair::Path;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

fn connected() -> (Net, Id, Id) {
    let mut net = Net::new(Path::new().delay(Duration::from_millis(10)), 1);
    let listener = net.listen(80);
    let (a, b) = net.connect(listener, 80);
    let now = net.now();
    net.a.stack.tcp_set(now, a, |set| set.nodelay = true).unwrap();
    (net, a, b)
}

fn info(net: &Net, id: Id) -> Info {
    net.a.stack.tcp_info(net.now(), id).unwrap()
}

#[test]
fn new_data_that_finds_no_room_waits_and_the_window_shrinks_as_by_ecn() {
    let (mut net, a, b) = connected();
    net.a.stack.interface_mut().set_queue(0);
    let now = net.now();
    assert_eq!(send(&mut net.a, &net.pool, now, a, b"hello"), 5);
    let before = info(&net, a);
    // (TCP_CA_CWR.)
    assert_eq!((before.unacked, before.notsent_bytes, before.ca_state), (0, 5, 2));
    // Each half a second it is tried again; that it was not sent says nothing of the peer.
    net.run(3 * SECOND);
    let waits = info(&net, a);
    assert_eq!((waits.backoff, waits.retrans, waits.lost, waits.notsent_bytes), (0, 0, 0, 5));
    assert!((5..=7).contains(&waits.probes), "{}", waits.probes);
    assert_eq!(net.a.stack.tcp_stats().retransmitted, 0);
    assert!(net.a.stack.tcp_stats().refused >= 6);

    net.a.stack.interface_mut().set_queue(100);
    net.run(SECOND);
    let (now, mut got) = (net.now(), Vec::new());
    assert!(!receive(&mut net.b, now, b, &mut got));
    assert_eq!(got, b"hello");
    assert_eq!((info(&net, a).unacked, info(&net, a).probes), (0, 0));
}

#[test]
fn a_timeout_whose_copy_finds_no_room_is_tried_again_soon_and_does_not_grow() {
    let (mut net, a, b) = connected();
    // It is lost; then there is no room.
    net.wire.set_path(onecopy_link::pair::Side::A, Path::new().loss(1.0));
    let now = net.now();
    assert_eq!(send(&mut net.a, &net.pool, now, a, b"hello"), 5);
    net.settle();
    net.a.stack.tcp_config_mut().tail_loss_probe = false;
    net.wire.set_path(onecopy_link::pair::Side::A, Path::new().delay(Duration::from_millis(10)));
    net.a.stack.interface_mut().set_queue(0);
    net.run(5 * SECOND);
    let waits = info(&net, a);
    assert_eq!((waits.backoff, waits.retrans), (0, 0));
    // Without that it would be the fourth, after 200, 400, 800 and 1600 ms.
    assert!(waits.retransmits >= 8, "{}", waits.retransmits);
    net.a.stack.interface_mut().set_queue(100);
    net.run(SECOND);
    let (now, mut got) = (net.now(), Vec::new());
    assert!(!receive(&mut net.b, now, b, &mut got));
    assert_eq!(got, b"hello");
    assert_eq!((info(&net, a).unacked, info(&net, a).retransmits), (0, 0));
}

#[test]
fn the_user_timeout_ends_what_never_finds_room() {
    let (mut net, a, _) = connected();
    let now = net.now();
    net.a.stack.tcp_set(now, a, |set| set.user_timeout = Some(Duration::from_secs(3))).unwrap();
    net.a.stack.interface_mut().set_queue(0);
    send(&mut net.a, &net.pool, now, a, b"hello");
    net.run(2 * SECOND);
    assert_eq!(net.a.stack.tcp_state(a), Some(State::Established));
    net.run(3 * SECOND);
    assert_eq!(net.a.stack.tcp_take_error(a), Some(Error::TimedOut));
}

#[test]
fn a_queue_of_one_brings_every_byte_in_order() {
    let (mut net, a, b) = connected();
    net.a.stack.interface_mut().set_queue(1);
    let bytes: Vec<u8> = (0..300_000).map(|at| (at * 7 + at / 251) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < bytes.len() {
        let now = net.now();
        sent += send(&mut net.a, &net.pool, now, a, &bytes[sent..]);
        receive(&mut net.b, now, b, &mut got);
        assert!(net.step(600 * SECOND), "{} bytes came", got.len());
    }
    assert!(got == bytes);
    assert!(net.a.stack.tcp_stats().refused > 0);
    net.a.stack.tcp_connection(a).unwrap().sender().audit().unwrap();
}
