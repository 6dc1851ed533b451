//! What one stack sends, moved to the other by hand.

use crate::net::Net;
use onecopy_chain::notify::{Completion, Config, Context, Lane, Queue, Segment};
use onecopy_chain::{Chain, Fragment, Writer};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::{Error, Received, SendFlags};
use onecopy_inet::wire::{Flags, Ipv4, Ipv6, Seq, Tcp};
use onecopy_link::pair::Path;
use onecopy_link::{Capabilities, Medium, Packet};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// Two stacks without a link between them: what `a` sends is moved by hand.
pub struct Hands {
    pub net: Net,
    pub a: Id,
    pub b: Id,
    listener: Id,
    lane: Lane,
    pub queue: Queue,
    next: u64,
    /// What the stream begins with.
    base: Option<Seq>,
    /// Bytes that `a` was told `b` has.
    pub acked: u64,
}

/// Bytes of the stream that a packet has.
pub type Bytes = std::ops::Range<u64>;

impl Hands {
    pub fn new(of: Capabilities, seed: u64) -> Hands {
        Hands::of(Net::with(Path::new(), seed, of, |_, _| ()))
    }

    pub fn of(mut net: Net) -> Hands {
        let listener = net.listen(80);
        let (a, b) = net.connect(listener, 80);
        let now = net.now();
        net.a.stack.tcp_set(now, a, |settings| settings.nodelay = true).unwrap();
        let (context, queue) = Context::new();
        let lane = context.lane(Config::default()).unwrap();
        Hands { net, a, b, listener, lane, queue, next: 0, base: None, acked: 0 }
    }

    /// A chain of so many bytes in fragments of its own.
    pub fn lent(&self, len: usize) -> Chain {
        let mut chain = Chain::new();
        let mut left = len;
        while left > 0 {
            let part = left.min(4096);
            chain.append(Fragment::new(self.net.pool.alloc().unwrap(), 0, part).unwrap()).unwrap();
            left -= part;
        }
        chain
    }

    /// A send that is told of; its number.
    pub fn zerocopy(&mut self, len: usize, flags: SendFlags) -> (u64, Result<usize, Error>, Segment<Chain>) {
        self.zerocopy_of(self.lent(len), flags)
    }

    /// One of this chain.
    pub fn zerocopy_of(
        &mut self,
        chain: Chain,
        flags: SendFlags,
    ) -> (u64, Result<usize, Error>, Segment<Chain>) {
        let mut data = Segment::new(chain);
        self.lane.send_there(&mut data, self.next, 0).unwrap();
        self.next += 1;
        let now = self.net.now();
        let sent = self.net.a.stack.tcp_send(now, self.a, &mut data, flags);
        (self.next - 1, sent, data)
    }

    /// One that all of it goes of.
    pub fn send(&mut self, len: usize) -> u64 {
        let (number, sent, rest) = self.zerocopy(len, SendFlags::empty());
        assert_eq!((sent, rest.payload().len()), (Ok(len), 0));
        number
    }

    /// A send whose bytes are copied, and which nobody waits for.
    pub fn copied(&mut self, len: usize) {
        let Hands { net, a, .. } = self;
        let (now, writer) = (net.wire.now(), Writer::new(&net.pool));
        let sent = net.a.stack.tcp_send_bytes(now, *a, &vec![3; len], &writer, SendFlags::empty());
        assert_eq!(sent, Ok(len));
    }

    /// What `a` transmits now, and which bytes it has.
    pub fn leave(&mut self) -> Vec<(Packet, Bytes)> {
        let mut all = Vec::new();
        while let Some(packet) = self.net.a.stack.transmit() {
            let (tcp, _) = Tcp::parse(&packet.head()[header(packet.head())..]).unwrap();
            let len = packet.payload().payload().len() as u64;
            if tcp.flags.contains(Flags::SYN) {
                continue;
            }
            let base = *self.base.get_or_insert(tcp.seq);
            // A probe lies before it.
            let at = u64::from(tcp.seq.0.wrapping_sub(base.0));
            all.push((packet, at..at + len));
        }
        all
    }

    /// `b` gets a copy of a packet, as over a wire.
    pub fn deliver(&mut self, packet: &Packet) {
        let mut copy = packet.share();
        copy.finish().unwrap();
        let mut chain = Chain::new();
        Writer::new(&self.net.pool).append(&mut chain, &copy.to_vec().unwrap()).unwrap();
        let now = self.net.now();
        self.net.b.stack.receive(now, Packet::from(Segment::new(chain)));
        while let Ok(Received::Data(_)) = self.net.b.stack.tcp_receive(now, self.b, usize::MAX) {}
    }

    /// `a` gets all that `b` says.
    pub fn answer(&mut self) {
        self.answer_as(|packet| packet);
    }

    /// The same, each packet as `change` makes it.
    pub fn answer_as(&mut self, mut change: impl FnMut(Packet) -> Packet) {
        let now = self.net.now();
        while let Some(packet) = self.net.b.stack.transmit() {
            let (tcp, _) = Tcp::parse(&packet.head()[header(packet.head())..]).unwrap();
            if let Some(base) = self.base.filter(|_| tcp.flags.contains(Flags::ACK)) {
                let ack = u64::from(tcp.ack.0.wrapping_sub(base.0));
                self.acked = self.acked.max(if ack < 1 << 31 { ack } else { 0 });
            }
            self.net.a.stack.receive(now, change(packet));
        }
    }

    pub fn pass_time(&mut self, ns: u64) {
        let now = self.net.now() + ns;
        self.net.wire.advance(now);
        self.net.a.stack.advance(now);
        self.net.b.stack.advance(now);
    }

    /// Goes on to when either stack has something to do.
    pub fn wait(&mut self) {
        let next = [self.net.a.stack.deadline(), self.net.b.stack.deadline()];
        let at = next.into_iter().flatten().min().unwrap_or(self.net.now());
        self.pass_time(at.saturating_sub(self.net.now()));
    }

    /// Waits until `a` transmits, and gives what.
    pub fn wait_to_leave(&mut self) -> Vec<(Packet, Bytes)> {
        for _ in 0..10 {
            self.wait();
            let left = self.leave();
            if !left.is_empty() {
                return left;
            }
        }
        panic!("it transmits nothing")
    }

    /// What is told: which, whether copied, whether dropped.
    pub fn told(&mut self) -> Vec<(u64, bool, bool)> {
        let all = self.queue.reap_all();
        all.iter().map(|Completion { user_data, how, .. }| (*user_data, how.copied, how.dropped)).collect()
    }

    /// Nothing of the pool is missing once both are gone.
    pub fn over(mut self) {
        let now = self.net.now();
        self.net.a.stack.tcp_abort(now, self.a);
        self.net.a.stack.tcp_close(now, self.a);
        self.net.b.stack.tcp_abort(now, self.b);
        self.net.b.stack.tcp_close(now, self.b);
        self.net.b.stack.tcp_close(now, self.listener);
        while self.net.a.stack.transmit().is_some() || self.net.b.stack.transmit().is_some() {}
        let stats = self.net.pool.stats();
        assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring, "{stats:?}");
    }
}

/// How long IP's header is.
pub fn header(packet: &[u8]) -> usize {
    if packet[0] >> 4 == 6 { Ipv6::LEN } else { Ipv4::LEN }
}

pub fn packets() -> Capabilities {
    Capabilities::none(Medium::Ip, 1500)
}

pub fn supers() -> Capabilities {
    Capabilities::all(Medium::Ip, 1500)
}
