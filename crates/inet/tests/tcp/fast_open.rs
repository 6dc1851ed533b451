//! Fast Open (RFC 7413) between two stacks.

use crate::net::{A, B, Net, receive};
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Writer};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::fast_open::{Fail, Keys, Use};
use onecopy_inet::tcp::{Error, Readiness, Received, SendFlags, Side, State};
use onecopy_link::pair::{Path, Side as End};
use onecopy_link::{Capabilities, Medium};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const MS: u64 = 1_000_000;
const TO: SocketAddr = SocketAddr::new(IpAddr::V4(B), 80);
/// `TCPI_OPT_SYN_DATA`.
const SYN_DATA: u8 = 32;

/// A wire on which an answer takes 100 ms.
fn slow() -> Path {
    Path::new().delay(Duration::from_millis(50))
}

fn net(server: Use) -> Net {
    Net::with(slow(), 7, Capabilities::all(Medium::Ethernet, 1500), move |side, config| {
        config.tcp.fast_open = if side == End::B { server } else { Use::CLIENT };
    })
}

fn both() -> Net {
    net(Use::SERVER | Use::ALL_LISTENERS)
}

fn bytes(net: &Net, bytes: &[u8]) -> Segment<Chain> {
    let mut chain = Chain::new();
    Writer::new(&net.pool).append(&mut chain, bytes).unwrap();
    chain.into()
}

/// Connects with bytes.
fn open(net: &mut Net, data: &[u8]) -> (Id, Result<usize, Error>) {
    let (now, id) = (net.now(), net.a.stack.tcp_open().unwrap());
    let mut data = bytes(net, data);
    (id, net.a.stack.tcp_connect_with(now, id, TO, &mut data, SendFlags::empty()))
}

/// Has a get a cookie of b's.
fn warm(net: &mut Net, listener: Id) {
    let (a, begun) = open(net, b"");
    assert_eq!(begun, Err(Error::InProgress));
    // (They have to find each other on the link first.)
    net.run(400 * MS);
    let (b, _) = net.b.stack.tcp_accept(listener).unwrap();
    for (host, id) in [(&mut net.a, a), (&mut net.b, b)] {
        host.stack.tcp_close(net.wire.now(), id);
    }
    net.run(200 * MS);
}

/// What b's connection has received.
fn got(net: &mut Net, id: Id) -> Vec<u8> {
    let (mut into, now) = (Vec::new(), net.now());
    receive(&mut net.b, now, id, &mut into);
    into
}

fn options(net: &Net, id: Id) -> u8 {
    net.a.stack.tcp_info(net.now(), id).unwrap().options
}

#[test]
fn a_cookie_is_asked_for_and_then_data_comes_with_the_syn_and_is_answered_before_the_ack() {
    let mut net = both();
    let listener = net.listen(80);
    let (first, begun) = open(&mut net, b"hello");
    assert_eq!(begun, Err(Error::InProgress), "without a cookie no data goes");
    let info = net.a.stack.tcp_info(net.now(), first).unwrap();
    assert_eq!(info.fast_open_fail, Fail::NoCookie as u8);
    net.run(400 * MS);
    assert_eq!(net.b.stack.tcp_stats().fast_open_asked, 1);
    net.b.stack.tcp_accept(listener).unwrap();

    let (a, begun) = open(&mut net, b"hello");
    assert_eq!(begun, Ok(5));
    // The SYN alone is there; its ACK's ACK cannot be.
    net.run(60 * MS);
    let (b, peer) = net.b.stack.tcp_accept(listener).unwrap();
    assert_eq!(peer.ip(), A);
    assert_eq!(net.b.stack.tcp_state(b), Some(State::SynReceived));
    assert!(net.b.stack.tcp_readiness(b).contains(Readiness::READ | Readiness::WRITE));
    assert_eq!(got(&mut net, b), b"hello");
    let now = net.now();
    assert!(matches!(net.b.stack.tcp_receive(now, b, 10), Err(Error::WouldBlock)));
    let mut answer = bytes(&net, b"world");
    assert_eq!(net.b.stack.tcp_send(now, b, &mut answer, SendFlags::empty()), Ok(5));
    assert_eq!(net.b.stack.tcp_early(listener), Some(1));
    net.run(60 * MS);
    let mut into = Vec::new();
    let now = net.now();
    receive(&mut net.a, now, a, &mut into);
    assert_eq!(into, b"world", "one round trip");
    assert_eq!(options(&net, a) & SYN_DATA, SYN_DATA);
    net.run(200 * MS);
    assert_eq!(net.b.stack.tcp_state(b), Some(State::Established));
    assert_eq!(net.b.stack.tcp_early(listener), Some(0));
    assert_eq!(net.a.stack.tcp_stats().fast_open_taken, 1);
    assert_eq!(net.b.stack.tcp_stats().fast_open_begun, 1);
    assert_eq!(net.a.stack.tcp_stats().retransmitted + net.b.stack.tcp_stats().retransmitted, 0);
}

#[test]
fn a_wrong_cookie_is_answered_by_the_right_one_and_data_is_sent_again_at_once() {
    let mut net = both();
    let listener = net.listen(80);
    warm(&mut net, listener);
    net.b.stack.tcp_config_mut().fast_open_keys = Keys::parse("1-2-3-4");
    let before = net.now();
    let (a, begun) = open(&mut net, b"hello");
    assert_eq!(begun, Ok(5));
    net.run(160 * MS);
    let (b, _) = net.b.stack.tcp_accept(listener).unwrap();
    assert_eq!(got(&mut net, b), b"hello");
    assert!(net.now() - before < 200 * MS, "no timeout was waited for");
    assert_eq!(options(&net, a) & SYN_DATA, 0);
    let info = net.a.stack.tcp_info(net.now(), a).unwrap();
    assert_eq!(info.fast_open_fail, Fail::NotAcknowledged as u8);
    assert_eq!(net.b.stack.tcp_stats().fast_open_wrong_cookies, 1);
    assert_eq!(net.a.stack.tcp_stats().fast_open_not_taken, 1);
    // It has the right one now.
    let (a, _) = open(&mut net, b"again");
    net.run(200 * MS);
    assert_eq!(options(&net, a) & SYN_DATA, SYN_DATA);
}

#[test]
fn a_cookie_of_the_backup_key_is_taken_and_replaced() {
    let mut net = both();
    net.b.stack.tcp_config_mut().fast_open_keys = Keys::parse("1-2-3-4");
    let listener = net.listen(80);
    warm(&mut net, listener);
    net.b.stack.tcp_config_mut().fast_open_keys = Keys::parse("5-6-7-8,1-2-3-4");
    let (a, _) = open(&mut net, b"hello");
    net.run(200 * MS);
    assert_eq!(options(&net, a) & SYN_DATA, SYN_DATA);
    assert_eq!(net.b.stack.tcp_stats().fast_open_old_keys, 1);
    // The listener's own key stands above the stack's.
    let now = net.now();
    net.b.stack.tcp_set(now, listener, |set| set.fast_open_keys = Keys::parse("5-6-7-8")).unwrap();
    net.b.stack.tcp_config_mut().fast_open_keys = None;
    let (a, _) = open(&mut net, b"hello");
    net.run(200 * MS);
    assert_eq!(options(&net, a) & SYN_DATA, SYN_DATA);
}

#[test]
fn a_syn_that_is_lost_goes_again_without_data_and_option() {
    let mut net = both();
    let listener = net.listen(80);
    warm(&mut net, listener);
    net.wire.set_path(End::A, slow().loss(1.0));
    let (a, begun) = open(&mut net, b"hello");
    assert_eq!(begun, Ok(5));
    net.run(100 * MS);
    net.wire.set_path(End::A, slow());
    net.run(1_200 * MS);
    let (b, _) = net.b.stack.tcp_accept(listener).unwrap();
    assert_eq!(got(&mut net, b), b"hello");
    let info = net.a.stack.tcp_info(net.now(), a).unwrap();
    assert_eq!((info.options & SYN_DATA, info.fast_open_fail), (0, Fail::Retransmitted as u8));
    assert_eq!(net.b.stack.tcp_stats().fast_open_begun, 0);
}

#[test]
fn a_syn_ack_that_is_lost_is_sent_again_and_nothing_else_is() {
    let mut net = both();
    let listener = net.listen(80);
    warm(&mut net, listener);
    net.wire.set_path(End::B, slow().loss(1.0));
    open(&mut net, b"hello").1.unwrap();
    net.run(60 * MS);
    let (b, _) = net.b.stack.tcp_accept(listener).unwrap();
    let (now, mut answer) = (net.now(), bytes(&net, b"world"));
    net.b.stack.tcp_send(now, b, &mut answer, SendFlags::empty()).unwrap();
    net.b.stack.tcp_shutdown(now, b, Side::Write).unwrap();
    assert_eq!(net.b.stack.tcp_state(b), Some(State::FinWait1));
    net.run(800 * MS);
    assert_eq!(net.b.stack.tcp_stats().retransmitted, 0);
    net.wire.set_path(End::B, slow());
    net.run(5_000 * MS);
    assert_eq!(net.b.stack.tcp_state(b), Some(State::FinWait2));
    assert_eq!(net.b.stack.tcp_early(listener), Some(0));
    assert_eq!(got(&mut net, b), b"hello");
}

#[test]
fn a_listener_that_closes_resets_what_has_begun() {
    let mut net = both();
    let listener = net.listen(80);
    warm(&mut net, listener);
    let (a, _) = open(&mut net, b"hello");
    net.run(60 * MS);
    let now = net.now();
    net.b.stack.tcp_close(now, listener);
    net.run(200 * MS);
    assert_eq!(net.a.stack.tcp_state(a), Some(State::Closed));
    // What is left of the connection that `warm` made is in TIME-WAIT.
    net.run(130_000 * MS);
    assert!(net.b.stack.is_empty());
}

/// Of what is given, no more is copied than goes with the SYN.
#[test]
fn the_first_bytes_take_a_page_however_many_they_are() {
    let mut net = both();
    let listener = net.listen(80);
    let mut socket = || {
        let (now, id) = (net.now(), net.a.stack.tcp_open().unwrap());
        net.a.stack.tcp_set(now, id, |set| set.fast_open_connect = true).unwrap();
        let begun = net.a.stack.tcp_connect(now, id, TO);
        net.run(400 * MS);
        (id, begun)
    };
    assert_eq!(socket().1, Err(Error::InProgress));
    let (id, begun) = socket();
    assert_eq!(begun, Ok(()));
    net.b.stack.tcp_accept(listener).unwrap();
    let pages = PagePool::new(PoolConfig::new().limit(1), Heap::new()).unwrap();
    let (now, writer) = (net.now(), Writer::new(&pages));
    let sent = net.a.stack.tcp_send_bytes(now, id, &[7; 100_000], &writer, SendFlags::empty());
    assert_eq!(sent, Ok(1420));
}

#[test]
fn connect_waits_for_the_first_bytes() {
    let mut net = both();
    let listener = net.listen(80);
    let socket = |net: &mut Net| {
        let (now, id) = (net.now(), net.a.stack.tcp_open().unwrap());
        net.a.stack.tcp_set(now, id, |set| set.fast_open_connect = true).unwrap();
        (id, net.a.stack.tcp_connect(now, id, TO))
    };
    // Without a cookie there is nothing to wait for.
    let (_, begun) = socket(&mut net);
    assert_eq!(begun, Err(Error::InProgress));
    net.run(400 * MS);
    net.b.stack.tcp_accept(listener).unwrap();

    let (id, begun) = socket(&mut net);
    assert_eq!(begun, Ok(()));
    assert!(net.a.stack.tcp_is_deferred(id));
    assert_eq!(net.a.stack.tcp_readiness(id), Readiness::WRITE);
    let now = net.now();
    assert_eq!(net.a.stack.tcp_info(now, id).unwrap().state, State::SynSent as u8);
    assert_eq!(net.a.stack.tcp_connect(now, id, TO), Err(Error::Connected));
    assert!(matches!(net.a.stack.tcp_receive(now, id, 1), Err(Error::WouldBlock)));
    let mut data = bytes(&net, &[7; 3000]);
    assert_eq!(net.a.stack.tcp_send(now, id, &mut data, SendFlags::empty()), Ok(1420));
    assert_eq!(data.payload().len(), 3000 - 1420);
    assert_eq!(net.a.stack.tcp_send(now, id, &mut data, SendFlags::empty()), Err(Error::WouldBlock));
    net.run(200 * MS);
    let (b, _) = net.b.stack.tcp_accept(listener).unwrap();
    assert_eq!(got(&mut net, b).len(), 1420);
    // One that never sends leaves nothing.
    let (id, _) = socket(&mut net);
    let (now, before) = (net.now(), net.a.stack.len());
    net.a.stack.tcp_close(now, id);
    assert_eq!(net.a.stack.len(), before - 1);
}

#[test]
fn who_may_not_is_told() {
    let mut net = both();
    net.a.stack.tcp_config_mut().fast_open = Use::empty();
    let (id, begun) = open(&mut net, b"hello");
    assert_eq!(begun, Err(Error::NotSupported));
    assert_eq!(Error::NotSupported.errno(), 95);
    let now = net.now();
    assert_eq!(net.a.stack.tcp_connect(now, id, TO), Err(Error::InProgress), "it is a socket as before");
}

#[test]
fn without_cookies_both_sides_have_to_agree() {
    let mut net = net(Use::SERVER | Use::ALL_LISTENERS | Use::SERVER_NO_COOKIE);
    net.a.stack.tcp_config_mut().fast_open |= Use::CLIENT_NO_COOKIE;
    let listener = net.listen(80);
    let (a, begun) = open(&mut net, b"hello");
    assert_eq!(begun, Ok(5));
    net.run(160 * MS);
    let (b, _) = net.b.stack.tcp_accept(listener).unwrap();
    assert_eq!(got(&mut net, b), b"hello");
    net.run(300 * MS);
    assert_eq!(options(&net, a) & SYN_DATA, SYN_DATA);
    // A listener that did not ask for it takes none; the data is sent again.
    net.b.stack.tcp_config_mut().fast_open = Use::SERVER;
    let now = net.now();
    net.b.stack.tcp_set(now, listener, |set| set.fast_open_queue = Some(0)).unwrap();
    let (a, _) = open(&mut net, b"hello");
    net.run(200 * MS);
    let (b, _) = net.b.stack.tcp_accept(listener).unwrap();
    assert_eq!(got(&mut net, b), b"hello");
    assert_eq!(options(&net, a) & SYN_DATA, 0);
}

#[test]
fn every_byte_arrives_once_over_a_bad_wire() {
    for seed in 0..30 {
        let path = slow().loss(0.2).duplicate(0.1).reorder(0.2, Duration::from_millis(30));
        let of = Capabilities::all(Medium::Ethernet, 1500);
        let mut net = Net::with(slow(), seed, of, |side, config| {
            config.tcp.fast_open = match side {
                End::A => Use::CLIENT,
                End::B => Use::SERVER | Use::ALL_LISTENERS,
            };
        });
        let listener = net.listen(80);
        warm(&mut net, listener);
        net.wire.set_path(End::A, path.clone());
        net.wire.set_path(End::B, path);
        let whole: Vec<u8> = (0..20_000u32).map(|byte| (byte % 251) as u8).collect();
        let (now, a) = (net.now(), net.a.stack.tcp_open().unwrap());
        let mut data = bytes(&net, &whole);
        net.a.stack.tcp_connect_with(now, a, TO, &mut data, SendFlags::empty()).unwrap();
        let (mut b, mut into) = (None, Vec::new());
        let mut closed = false;
        for _ in 0..4_000 {
            net.run(50 * MS);
            let now = net.now();
            let sent =
                if closed { Ok(0) } else { net.a.stack.tcp_send(now, a, &mut data, SendFlags::empty()) };
            match sent {
                Ok(_) | Err(Error::WouldBlock) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
            if data.payload().is_empty() && !closed && net.a.stack.tcp_state(a) == Some(State::Established) {
                net.a.stack.tcp_shutdown(now, a, Side::Write).unwrap();
                closed = true;
            }
            b = b.or_else(|| net.b.stack.tcp_accept(listener).ok().map(|(id, _)| id));
            let Some(b) = b else { continue };
            match net.b.stack.tcp_receive(now, b, usize::MAX) {
                Ok(Received::Data(part)) => {
                    part.payload().host().unwrap().slices().for_each(|slice| into.extend_from_slice(slice));
                }
                Ok(Received::End) => break,
                Err(Error::WouldBlock) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        assert!(into == whole, "seed {seed}: {} bytes", into.len());
    }
}
