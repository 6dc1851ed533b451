//! Fast Open, and who means ill: SYNs with data in floods, from addresses that are not his, with cookies that are not his.

use crate::net::config;
use crate::strangers;
use onecopy_inet::stack::Stack;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::State;
use onecopy_inet::tcp::fast_open::{Keys, Use};
use onecopy_inet::wire::tcp::{Cookie, Options};
use onecopy_inet::wire::{Flags, Seq, Tcp};
use onecopy_link::{Capabilities, Medium};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use std::net::{Ipv4Addr, SocketAddrV4};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const KEY: &str = "1-2-3-4";

struct Host {
    stack: Stack,
    pool: PagePool,
    listener: Id,
}

impl Host {
    /// Whose listener lets `queue` connections begin early.
    fn new(queue: u32) -> Host {
        let mut config = config(Capabilities::all(Medium::Ip, 1500), SERVER, 2);
        config.tcp.fast_open = Use::SERVER;
        config.tcp.fast_open_keys = Keys::parse(KEY);
        let mut stack = Stack::new(config).unwrap();
        let listener = stack.tcp_open().unwrap();
        stack.tcp_bind(listener, SocketAddrV4::new(SERVER, 80).into(), false).unwrap();
        stack.tcp_listen(listener, 64).unwrap();
        stack.tcp_set(0, listener, |set| set.fast_open_queue = Some(queue)).unwrap();
        Host { stack, pool: PagePool::new(PoolConfig::new(), Heap::new()).unwrap(), listener }
    }

    /// A segment from a stranger.
    fn hear(&mut self, now: u64, from: SocketAddrV4, tcp: Tcp, payload: &[u8]) {
        self.stack.receive(now, strangers::packet(&self.pool, from, SERVER, tcp, payload));
    }

    /// A SYN with data, and the cookie of `owner`.
    fn syn(&mut self, now: u64, from: SocketAddrV4, owner: Ipv4Addr, data: &[u8]) {
        let cookie = Keys::parse(KEY).unwrap().cookie(owner.into(), SERVER.into());
        self.syn_with(now, from, Some(cookie), data);
    }

    fn syn_with(&mut self, now: u64, from: SocketAddrV4, cookie: Option<Cookie>, data: &[u8]) {
        let options = Options { mss: Some(1460), fast_open: cookie, ..Options::default() };
        self.hear(now, from, Tcp { seq: Seq(1000), flags: Flags::SYN, options, ..Tcp::default() }, data);
    }

    fn said(&mut self) -> Vec<Tcp> {
        strangers::said(&mut self.stack)
    }
}

fn stranger(number: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(0x0a00_000a + number % 200), 1024 + number as u16)
}

#[test]
fn a_flood_of_good_cookies_costs_the_queue_and_no_more() {
    let mut host = Host::new(8);
    for number in 0..40 {
        let from = stranger(number);
        host.syn(0, from, *from.ip(), &[7; 1000]);
    }
    let said = host.said();
    assert_eq!(said.len(), 40, "each is answered");
    let early = said.iter().filter(|tcp| tcp.ack == Seq(2001)).count();
    assert_eq!((early, said.iter().filter(|tcp| tcp.ack == Seq(1001)).count()), (8, 32));
    assert_eq!(host.stack.tcp_early(host.listener), Some(8));
    assert_eq!(host.stack.tcp_stats().fast_open_overflows, 32);
    // Nobody answers: all of them go, in time.
    while let Some(at) = host.stack.deadline() {
        host.stack.advance(at);
        host.said();
    }
    assert_eq!(host.stack.tcp_early(host.listener), Some(0));
    for _ in 0..8 {
        let (id, _) = host.stack.tcp_accept(host.listener).unwrap();
        assert_eq!(host.stack.tcp_state(id), Some(State::Closed));
        host.stack.tcp_close(u64::MAX / 2, id);
    }
    assert_eq!(host.stack.len(), 1, "the listener is left");
}

#[test]
fn another_hosts_cookie_is_refused_and_the_right_one_given() {
    let mut host = Host::new(8);
    let (owner, thief) = (stranger(1), stranger(2));
    host.syn(0, thief, *owner.ip(), b"mine");
    let said = host.said();
    let right = Keys::parse(KEY).unwrap().cookie((*thief.ip()).into(), SERVER.into());
    assert_eq!((said[0].ack, said[0].options.fast_open), (Seq(1001), Some(right)));
    assert_eq!(host.stack.tcp_early(host.listener), Some(0));
    assert!(host.stack.tcp_accept(host.listener).is_err());
    assert_eq!(host.stack.tcp_stats().fast_open_wrong_cookies, 1);
    // Nor is one of another length, or data without any.
    host.syn_with(0, stranger(3), Cookie::new(&[0; 16]), b"mine");
    host.syn_with(0, stranger(4), None, b"mine");
    let said = host.said();
    assert!(said.iter().all(|tcp| tcp.ack == Seq(1001)));
    assert_eq!(said[1].options.fast_open, None, "who does not ask gets none");
    // In the option that it came in.
    host.syn_with(0, stranger(5), Some(Cookie::REQUEST.in_experiment(true)), b"");
    assert!(host.said()[0].options.fast_open.is_some_and(|cookie| cookie.experimental));
}

#[test]
fn one_that_is_reset_keeps_its_place_for_a_minute() {
    const MINUTE: u64 = 60_000_000_000;
    let mut host = Host::new(1);
    let from = stranger(1);
    host.syn(0, from, *from.ip(), b"hello");
    let (id, _) = host.stack.tcp_accept(host.listener).unwrap();
    // A reset that does not know the place is none.
    for (seq, state) in [(1500, State::SynReceived), (1006, State::Closed)] {
        host.hear(5, from, Tcp { seq: Seq(seq), flags: Flags::RST, ..Tcp::default() }, b"");
        assert_eq!(host.stack.tcp_state(id), Some(state));
    }
    host.said();
    let next = stranger(2);
    host.syn(MINUTE, next, *next.ip(), b"hello");
    assert_eq!(host.said()[0].ack, Seq(1001), "no room");
    let next = stranger(3);
    host.syn(MINUTE + 5, next, *next.ip(), b"hello");
    assert_eq!(host.said()[0].ack, Seq(1006));
}

#[test]
fn the_same_syn_again_makes_no_second_connection() {
    let mut host = Host::new(8);
    let (from, now) = (stranger(1), 1_000_000_000);
    for _ in 0..100 {
        host.syn(now, from, *from.ip(), b"hello");
    }
    assert_eq!(host.stack.len(), 2);
    let said = host.said();
    assert!(said.iter().all(|tcp| tcp.flags == Flags::SYN | Flags::ACK && tcp.ack == Seq(1006)));
    assert!(said.len() <= 2, "answers are rate-limited");
    // An ACK of what was never sent is none, and hurts nobody.
    let iss = said[0].seq;
    let ack = |ack| Tcp { seq: Seq(1006), ack, flags: Flags::ACK, ..Tcp::default() };
    host.hear(now, from, ack(iss.plus(2)), b"");
    assert!(host.said()[0].flags.contains(Flags::RST));
    assert_eq!(host.stack.tcp_early(host.listener), Some(1));
    host.hear(now, from, ack(iss.plus(1)), b"");
    assert_eq!(host.stack.tcp_early(host.listener), Some(0));
    let (id, _) = host.stack.tcp_accept(host.listener).unwrap();
    assert_eq!(host.stack.tcp_state(id), Some(State::Established));
}
