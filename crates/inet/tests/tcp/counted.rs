//! Each segment that is thrown away is counted by its reason, once: those that come while a connection is made.

use crate::net::config;
use crate::strangers;
use onecopy_inet::stack::Stack;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::fast_open::{Keys, Use};
use onecopy_inet::tcp::{Error, State, Stats};
use onecopy_inet::wire::tcp::Options;
use onecopy_inet::wire::{Flags, Seq, Tcp};
use onecopy_link::{Capabilities, Medium};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const KEY: &str = "1-2-3-4";
const FIRST: Seq = Seq(1000);

/// Counters each of which is a reason to throw a segment away. (The others tell what it was answered by, or of connections.)
const REASONS: [&str; 16] = [
    "malformed",
    "no_socket",
    "stray",
    "paws",
    "outside_window",
    "no_ack",
    "ack_unsent",
    "ack_too_old",
    "invalid_ack",
    "deferred",
    "data_after_close",
    "syn_queue_full",
    "accept_queue_full",
    "duplicate",
    "behind_fin",
    "no_memory",
];

/// A stack, and a peer made by hand whose first number is [`FIRST`].
struct Host {
    stack: Stack,
    pool: PagePool,
    id: Id,
    /// Behind its SYN.
    next: Seq,
}

impl Host {
    fn new() -> Host {
        let mut config = config(Capabilities::all(Medium::Ip, 1500), HERE, 2);
        config.tcp.fast_open = Use::SERVER;
        config.tcp.fast_open_keys = Keys::parse(KEY);
        let mut stack = Stack::new(config).unwrap();
        let id = stack.tcp_open().unwrap();
        stack.tcp_bind(id, SocketAddr::new(HERE.into(), 80), false).unwrap();
        Host { stack, pool: PagePool::new(PoolConfig::new(), Heap::new()).unwrap(), id, next: Seq(0) }
    }

    fn hear(&mut self, tcp: Tcp, payload: &[u8]) {
        let from = SocketAddrV4::new(THERE, 5000);
        self.stack.receive(0, strangers::packet(&self.pool, from, HERE, tcp, payload));
    }

    fn said(&mut self) -> Vec<Tcp> {
        strangers::said(&mut self.stack)
    }

    /// The SYN, or SYN-ACK, that has left.
    fn note_syn(&mut self) {
        let said = self.said();
        assert!(said.len() == 1 && said[0].flags.contains(Flags::SYN), "{said:?}");
        self.next = said[0].seq.plus(1);
    }

    /// One in SYN-SENT.
    fn asking() -> Host {
        let mut host = Host::new();
        let peer = SocketAddr::new(THERE.into(), 5000);
        assert_eq!(host.stack.tcp_connect(0, host.id, peer), Err(Error::InProgress));
        host.note_syn();
        assert_eq!(host.stack.tcp_state(host.id), Some(State::SynSent));
        host
    }

    /// One whose SYN has met the peer's.
    fn crossed() -> Host {
        let mut host = Host::asking();
        host.hear(Tcp { seq: FIRST, flags: Flags::SYN, ..Tcp::default() }, &[]);
        host.note_syn();
        assert_eq!(host.stack.tcp_state(host.id), Some(State::SynReceived));
        host
    }

    /// A listener, of whom the peer wants something.
    fn listening(defer: Option<Duration>, data: &[u8]) -> Host {
        let mut host = Host::new();
        host.stack.tcp_listen(host.id, 8).unwrap();
        host.stack.tcp_set(0, host.id, |set| set.defer_accept = defer).unwrap();
        host.stack.tcp_set(0, host.id, |set| set.fast_open_queue = Some(8)).unwrap();
        let mut options = Options { mss: Some(1460), ..Options::default() };
        if !data.is_empty() {
            options.fast_open = Some(Keys::parse(KEY).unwrap().cookie(THERE.into(), HERE.into()));
        }
        host.hear(Tcp { seq: FIRST, flags: Flags::SYN, options, ..Tcp::default() }, data);
        host.note_syn();
        host
    }

    fn half_open() -> Host {
        Host::listening(None, &[])
    }

    fn deferring() -> Host {
        Host::listening(Some(Duration::from_secs(5)), &[])
    }

    /// One that was accepted with its SYN.
    fn early() -> Host {
        let host = Host::listening(None, b"data");
        assert_eq!(host.stack.tcp_early(host.id), Some(1));
        host
    }

    /// One that the peer has reset, and whom the program has not let go of.
    fn over() -> Host {
        let mut host = Host::asking();
        let (seq, ack) = (FIRST, host.next);
        host.hear(Tcp { seq, ack, flags: Flags::SYN | Flags::ACK, ..Tcp::default() }, &[]);
        host.hear(Tcp { seq: FIRST.plus(1), flags: Flags::RST, ..Tcp::default() }, &[]);
        host.said();
        assert_eq!(host.stack.tcp_state(host.id), Some(State::Closed));
        host
    }
}

fn by_name(stats: &Stats, wanted: &str) -> u64 {
    stats.each().find(|(name, _)| *name == wanted).unwrap().1
}

/// Which reasons have counted, and how often, since `before`.
fn reasons(stats: &Stats, before: &Stats) -> Vec<(&'static str, u64)> {
    let more = REASONS.map(|name| (name, by_name(stats, name) - by_name(before, name)));
    more.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// How a host comes to where it is.
type Make = fn() -> Host;

/// What comes: which flags, and how far its ACK lies behind our SYN.
type Coming = (Flags, i32);

#[test]
fn each_segment_of_a_handshake_that_is_thrown_away_is_counted_once() {
    let (ack, reset) = (Flags::ACK, Flags::ACK | Flags::RST);
    let made: [(&str, Make, &[Coming], &str); 7] = [
        ("SYN-SENT", Host::asking, &[(ack, -1), (ack, 1), (reset, -1), (reset, 1)], "invalid_ack"),
        (
            "SYN-SENT, a SYN-ACK",
            Host::asking,
            &[(ack | Flags::SYN, -1), (ack | Flags::SYN, 7)],
            "invalid_ack",
        ),
        ("crossed", Host::crossed, &[(ack, -1), (ack, 9)], "invalid_ack"),
        ("half open", Host::half_open, &[(ack, -1), (ack, 1), (reset, 4)], "invalid_ack"),
        ("early", Host::early, &[(ack, -1), (ack, 1)], "invalid_ack"),
        ("deferring", Host::deferring, &[(ack, 0)], "deferred"),
        ("over", Host::over, &[(ack, 0), (reset, 0)], "no_socket"),
    ];
    for (name, make, all, reason) in made {
        for (flags, off) in all {
            let mut host = make();
            let data = if name == "early" { 4 } else { 0 };
            let before = *host.stack.tcp_stats();
            let acked = Seq(host.next.0.wrapping_add_signed(*off));
            let synchronizes = flags.contains(Flags::SYN);
            let seq = if synchronizes { FIRST } else { FIRST.plus(1 + data) };
            host.hear(Tcp { seq, ack: acked, flags: *flags, ..Tcp::default() }, &[]);
            let after = *host.stack.tcp_stats();
            let what = format!("{name}: {flags:?} {off}");
            assert_eq!(after.segments_in, before.segments_in + 1, "{what}");
            assert_eq!(reasons(&after, &before), [(reason, 1)], "{what}");
            // It is answered by a reset of the number that it said; a reset, and what is waited with, by nothing.
            let said = host.said();
            if flags.contains(Flags::RST) || reason == "deferred" {
                assert_eq!(said, [], "{what}");
            } else {
                assert_eq!((said.len(), said[0].seq, said[0].flags), (1, acked, Flags::RST), "{what}");
            }
        }
    }
}

/// What is right is no drop.
#[test]
fn what_makes_a_connection_is_counted_as_no_drop() {
    let made: [(Make, Flags, &[u8]); 5] = [
        (Host::asking, Flags::SYN | Flags::ACK, &[]),
        (Host::crossed, Flags::ACK, &[]),
        (Host::half_open, Flags::ACK, &[]),
        (Host::deferring, Flags::ACK, b"more"),
        (Host::early, Flags::ACK, &[]),
    ];
    for (number, (make, flags, payload)) in made.into_iter().enumerate() {
        let mut host = make();
        let before = *host.stack.tcp_stats();
        let data = if number == 4 { 4 } else { 0 };
        let seq = if flags.contains(Flags::SYN) { FIRST } else { FIRST.plus(1 + data) };
        let ack = host.next;
        host.hear(Tcp { seq, ack, flags, ..Tcp::default() }, payload);
        assert_eq!(reasons(host.stack.tcp_stats(), &before), [], "{number}");
        let id = host.stack.tcp_accept(host.id).map_or(host.id, |(id, _)| id);
        assert_eq!(host.stack.tcp_state(id), Some(State::Established), "{number}");
    }
}

/// Who waits for data takes the peer's end for some, as the kernel does (tcp_check_req()).
#[test]
fn the_end_makes_a_connection_that_waits_for_data() {
    let mut host = Host::deferring();
    let before = *host.stack.tcp_stats();
    let ack = host.next;
    host.hear(Tcp { seq: FIRST.plus(1), ack, flags: Flags::ACK | Flags::FIN, ..Tcp::default() }, &[]);
    assert_eq!(reasons(host.stack.tcp_stats(), &before), []);
    let (id, _) = host.stack.tcp_accept(host.id).unwrap();
    assert_eq!(host.stack.tcp_state(id), Some(State::CloseWait));
}
