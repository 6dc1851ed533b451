//! Whose a segment is, and what it does.

use super::demux::{Ends, Place};
use super::lower::Lower;
use super::memory::Charge;
use super::room::Claim;
use super::slab::Id;
use super::socket::{Asked, Connected, Pending, Slot};
use super::{Stack, context, lengths};
use crate::ip::{Complaint, Input, Trouble};
use crate::shard::{Handed, What};
use crate::tcp::listener::{Answer, Request};
use crate::tcp::time_wait::Fresh;
use crate::tcp::{After, Connection, Emit, Error, Outgoing, Wake};
use crate::wire::icmp::Unreachable;
use crate::wire::{Ecn, Flags, Ipv6, Protocol, Seq, Tcp};
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use onecopy_link::Packet;

/// A segment that has come.
pub(super) struct Arrived<'a> {
    pub(super) header: &'a Tcp,
    /// Where its packet has it: it moves once, to where it waits to be read.
    pub(super) payload: &'a mut Segment<Chain>,
    /// How long the segments were that it was put together of; 0 where it came as it is.
    cut: u16,
    ecn: Ecn,
}

impl Arrived<'_> {
    pub(super) fn len(&self) -> u32 {
        // A chain has less than 4 GiB.
        self.payload.payload().len() as u32
    }
}

/// What a peer takes over IPv6 that does not say (RFC 9293, section 3.7.1).
const DEFAULT_MSS_V6: u16 = Ipv6::MIN_MTU - (Ipv6::LEN + Tcp::LEN) as u16;

impl Stack {
    /// A packet has come.
    pub fn receive(&mut self, now: u64, mut packet: Packet) {
        let input = self.ip.input(now, &mut packet);
        self.take(now, packet, input);
    }

    /// What this side has sent to its own addresses comes in: no more than there is now, though it may be answered by more.
    pub(super) fn receive_own(&mut self, now: u64) {
        for _ in 0..self.ip.looped() {
            let Some((packet, input)) = self.ip.input_looped(now) else { break };
            self.take(now, packet, input);
        }
    }

    /// The next thing that is another stack's of this host, and which one's ([`Share`](crate::shard::Share)): its [`Stack::take_handed`] is to
    /// have it.
    #[inline]
    pub fn handed(&mut self) -> Option<(usize, Handed)> {
        self.ip.handed()
    }

    /// Another stack of this host got what is ours.
    pub fn take_handed(&mut self, now: u64, handed: Handed) {
        match handed.0 {
            What::Part(mut packet) => {
                let input = self.ip.input_part(now, &mut packet);
                self.take(now, packet, input);
            }
            What::Transport(ip, packet) if ip.protocol() == Protocol::TCP => {
                self.take(now, packet, Input::Tcp(ip));
            }
            What::Transport(ip, packet) => self.take(now, packet, Input::Udp(ip)),
            What::Complaint(complaint) => self.complaint(now, &complaint),
            What::Said(said) => {
                let _ = self.ip.learn(now, said);
                self.hear_complaints(now);
            }
        }
    }

    /// The other stack of this host that a connection is of; none, where it is this one's.
    fn other_of(&self, ends: &Ends) -> Option<usize> {
        self.ip.others.as_ref()?.other(|share| share.of_ends(ends))
    }

    /// Hands something to another stack.
    pub(super) fn hand(&mut self, other: usize, what: What) {
        if let Some(others) = &mut self.ip.others {
            others.hand(other, what);
        }
    }

    fn take(&mut self, now: u64, mut packet: Packet, input: Input) {
        self.take_back();
        match input {
            Input::Tcp(ip) => {
                let Ok((mut header, _)) = Tcp::parse(packet.head()) else {
                    self.stats.malformed += 1;
                    return;
                };
                let ends = Ends {
                    local: Place { ip: ip.to(), port: header.to },
                    remote: Place { ip: ip.from(), port: header.from },
                };
                let says_nothing = header.options.mss.is_none_or(|mss| mss == 0);
                if header.flags.contains(Flags::SYN) && says_nothing && ends.remote.ip.is_ipv6() {
                    // TCP knows of no addresses, and takes IPv4's (RFC 9293, section 3.7.1).
                    header.options.mss = Some(DEFAULT_MSS_V6);
                }
                // (Whose connection is here need not be asked.)
                let id = self.connection(&ends);
                if id.is_none()
                    && let Some(other) = self.other_of(&ends)
                {
                    return self.hand(other, What::Transport(ip, packet));
                }
                let cut = packet.gso().map_or(0, |gso| gso.size);
                let payload = packet.payload_mut();
                self.segment(now, ends, id, Arrived { header: &header, payload, cut, ecn: ip.ecn() });
            }
            Input::Udp(ip) => self.datagram(now, &ip, packet),
            Input::Complaint(complaint) => self.complaint(now, &complaint),
            _ => {}
        }
        self.hear_complaints(now);
    }

    /// What was found out on this side of the link.
    pub(super) fn hear_complaints(&mut self, now: u64) {
        while let Some(complaint) = self.ip.complaint() {
            self.complaint(now, &complaint);
        }
    }

    /// `id` is the connection of these ends, if there is one.
    fn segment(&mut self, now: u64, ends: Ends, id: Option<Id>, arrived: Arrived<'_>) {
        self.stats.segments_in += 1;
        let Some(id) = id else {
            return self.without_connection(now, ends, arrived, None);
        };
        match self.sockets.get_mut(id) {
            Some(Slot::Connection(_)) => self.for_connection(now, id, ends, arrived),
            Some(Slot::Request(_)) => self.for_request(now, id, ends, arrived),
            Some(Slot::TimeWait(over)) => {
                let mut lower = Lower { ip: &mut self.ip, ends, now };
                let (header, len) = (arrived.header, arrived.len());
                let fresh = over.rest.arrive(now, &self.config, header, len, &mut self.stats, &mut lower);
                match fresh {
                    Fresh::Nothing => self.timers.set(id.index(), over.rest.deadline()),
                    Fresh::Ended => self.forget(id),
                    Fresh::Begin(number) => {
                        if self.demux.listener(ends.local).is_some() {
                            self.forget(id);
                        }
                        self.without_connection(now, ends, arrived, Some(number));
                    }
                }
            }
            _ => {
                self.stats.no_socket += 1;
                self.refuse(now, ends, arrived.header, arrived.len());
            }
        }
    }

    fn for_connection(&mut self, now: u64, id: Id, ends: Ends, arrived: Arrived<'_>) {
        let len = arrived.len();
        let Arrived { header, payload, cut, ecn } = arrived;
        self.comes_to_room(id);
        let after = self.with(now, id, |connection, ctx| connection.arrive(ctx, header, payload, cut, ecn));
        let Some(after) = after else { return };
        if matches!(after, After::Refuse | After::EndedRefuse) {
            self.refuse(now, ends, header, len);
        }
        self.follow(now, id, after);
    }

    /// For who is half open.
    fn for_request(&mut self, now: u64, id: Id, ends: Ends, arrived: Arrived<'_>) {
        let (header, len) = (arrived.header, arrived.len());
        let Some(Slot::Request(pending)) = self.sockets.get(id) else { return };
        let parent = pending.listener;
        let Some(Slot::Listener(listener)) = self.sockets.get(parent) else {
            self.stats.stray += 1;
            return self.forget(id);
        };
        let (settings, full) = (listener.settings.clone(), listener.is_full());
        let Some(Slot::Request(pending)) = self.sockets.get_mut(id) else { return };
        let mut lower = Lower { ip: &mut self.ip, ends, now };
        let mut ctx = context(now, &self.config, &mut self.stats, &mut lower, &self.spare, (0, 0, 0));
        let answer = pending.request.arrive(&mut ctx, &settings, header, len);
        match answer {
            Answer::Nothing => self.timers.set(id.index(), pending.request.deadline()),
            Answer::Refuse => self.refuse(now, ends, header, len),
            Answer::Gone { refuse } => {
                self.forget(id);
                if refuse {
                    self.refuse(now, ends, header, len);
                }
            }
            Answer::Complete if full => {
                self.stats.accept_queue_full += 1;
                if self.config.abort_on_overflow {
                    self.forget(id);
                    self.refuse(now, ends, header, len);
                } else {
                    pending.request.wait();
                }
            }
            Answer::Complete => self.complete(now, id, arrived),
        }
    }

    /// A connection is made of one that was half open.
    fn complete(&mut self, now: u64, id: Id, arrived: Arrived<'_>) {
        let Some(Slot::Request(pending)) = self.sockets.get_mut(id) else { return };
        let (ends, parent, agreed) = (pending.ends, pending.listener, *pending.request.agreed());
        let Some(Slot::Listener(listener)) = self.sockets.get_mut(parent) else { return };
        let settings = listener.settings.clone();
        listener.half_open -= 1;
        listener.ready.push_back(id);
        let hold = self.ports.inherit(&listener.hold, ends.local.ip);
        let lengths = lengths(&self.ip, now, &ends);
        let mut lower = Lower { ip: &mut self.ip, ends, now };
        let mut ctx = context(now, &self.config, &mut self.stats, &mut lower, &self.spare, lengths);
        let connection = Connection::accepted(&mut ctx, settings, &agreed, arrived.header);
        let connected = Connected {
            connection,
            ends,
            hold: Some(hold),
            asked: Asked::default(),
            listener: Some(parent),
            early: None,
            wake: Wake::empty(),
            charge: Charge::default(),
            claim: Claim::default(),
        };
        if let Some(slot) = self.sockets.get_mut(id) {
            *slot = Slot::Connection(Box::new(connected));
        }
        self.for_connection(now, id, ends, arrived);
        self.wake_listener(parent, Wake::READ);
    }

    /// For nobody, or for who waits for connections. `number` is our first, where an old connection has given way.
    fn without_connection(&mut self, now: u64, ends: Ends, arrived: Arrived<'_>, number: Option<Seq>) {
        let (header, flags, len) = (arrived.header, arrived.header.flags, arrived.len());
        let Some(parent) = self.demux.listener(ends.local) else {
            self.stats.no_socket += 1;
            return self.refuse(now, ends, header, len);
        };
        if flags.contains(Flags::RST) {
            self.stats.stray += 1;
        } else if flags.contains(Flags::ACK) {
            self.stats.no_socket += 1;
            self.refuse(now, ends, header, len);
        } else if flags.contains(Flags::SYN) && !flags.contains(Flags::FIN) {
            self.half_open(now, parent, ends, arrived, number);
        } else {
            self.stats.stray += 1;
        }
    }

    /// Somebody wants to be connected (the kernel's tcp_conn_request()).
    fn half_open(&mut self, now: u64, parent: Id, ends: Ends, arrived: Arrived<'_>, number: Option<Seq>) {
        let Some(Slot::Listener(listener)) = self.sockets.get_mut(parent) else { return };
        if listener.is_full() {
            self.stats.accept_queue_full += 1;
            return;
        }
        // As many as may wait to be accepted, and one more (inet_csk_reqsk_queue_is_full()).
        let many = listener.half_open > listener.backlog || listener.half_open >= self.config.max_syn_backlog;
        if many || self.sockets.is_full() {
            self.stats.syn_queue_full += 1;
            return;
        }
        let Some(Slot::Listener(listener)) = self.sockets.get_mut(parent) else { return };
        let settings = listener.settings.clone();
        let number = number.unwrap_or_else(|| self.numbers.sequence(now, &ends));
        let offset = self.clock_offset(&ends);
        let (mtu, ..) = lengths(&self.ip, now, &ends);
        let mut request = Request::new(now, &self.config, &settings, arrived.header, mtu, number, offset);
        let opening = self.opening(now, parent, &ends, &arrived);
        if opening.early {
            return self.begin_early(now, parent, ends, &request, arrived, opening.cookie);
        }
        if let Some(Slot::Listener(listener)) = self.sockets.get_mut(parent) {
            listener.half_open += 1;
        }
        if let Some(left) = self.arriving.and_then(|room| self.rooms.left_in(room)) {
            request.limit_window(left);
        }
        let mut lower = Lower { ip: &mut self.ip, ends, now };
        request.send(now, opening.cookie, &mut self.stats, &mut lower);
        let deadline = request.deadline();
        let pending = Box::new(Pending { request, ends, listener: parent });
        let Some(id) = self.sockets.insert_with(|_| Slot::Request(pending)) else { return };
        self.connect(&ends, id);
        self.timers.set(id.index(), deadline);
    }

    /// What a connection's clock begins with.
    pub(super) fn clock_offset(&self, ends: &Ends) -> u32 {
        match self.config.timestamp_offsets {
            true => self.numbers.timestamp(ends.local.ip, ends.remote.ip),
            false => 0,
        }
    }

    pub(super) fn request_due(&mut self, now: u64, id: Id) {
        let Some(Slot::Request(pending)) = self.sockets.get(id) else { return };
        let ends = pending.ends;
        let Some(Slot::Listener(listener)) = self.sockets.get(pending.listener) else {
            return self.forget(id);
        };
        let settings = listener.settings.clone();
        let Some(Slot::Request(pending)) = self.sockets.get_mut(id) else { return };
        let mut lower = Lower { ip: &mut self.ip, ends, now };
        let mut ctx = context(now, &self.config, &mut self.stats, &mut lower, &self.spare, (0, 0, 0));
        if pending.request.advance(&mut ctx, &settings) {
            self.timers.set(id.index(), pending.request.deadline());
        } else {
            self.forget(id);
        }
    }

    /// Answers a segment that nobody wants by a reset (RFC 9293, section 3.10.7.1).
    fn refuse(&mut self, now: u64, ends: Ends, header: &Tcp, len: u32) {
        if header.flags.contains(Flags::RST) {
            return;
        }
        let mut reset = Tcp { flags: Flags::RST, ..Tcp::default() };
        if header.flags.contains(Flags::ACK) {
            reset.seq = header.ack;
        } else {
            let (syn, fin) = (header.flags.contains(Flags::SYN), header.flags.contains(Flags::FIN));
            reset.flags |= Flags::ACK;
            reset.ack = header.seq.plus(len + u32::from(syn) + u32::from(fin));
        }
        self.stats.segments_out += 1;
        self.stats.resets_out += 1;
        let mut lower = Lower { ip: &mut self.ip, ends, now };
        let (header, packet) = (&mut reset, Packet::default());
        lower.emit(Outgoing { header, packet, cut: None, service: 0, ttl: 64 });
    }

    /// A router, or the peer's host, complains about a segment of ours.
    fn complaint(&mut self, now: u64, complaint: &Complaint) {
        if complaint.protocol != Protocol::TCP {
            // Of none but these two.
            return self.datagram_complaint(now, complaint);
        }
        let ends = Ends::new(complaint.local, complaint.remote);
        let Some(id) = self.connection(&ends) else {
            if let Some(other) = self.other_of(&ends) {
                self.hand(other, What::Complaint(*complaint));
            }
            return;
        };
        match self.sockets.get_mut(id) {
            Some(Slot::Connection(connected)) => {
                if !connected.connection.has_sent(complaint.seq) {
                    // Who does not know the numbers made it up (RFC 5927).
                    self.stats.stray += 1;
                    return;
                }
                if let Trouble::TooLong { mtu } = complaint.trouble {
                    // Where another connection has heard of it before, this one's segments are too long all the same.
                    self.ip.path_shrunk(now, ends.remote.ip, mtu);
                    if u32::from(mtu) < self.ip.mtu() {
                        self.with(now, id, |connection, ctx| connection.path_shrunk(ctx));
                    }
                    return;
                }
                let error = meaning(complaint.trouble);
                // One that was begun early and accepted is as good as made.
                let made = connected.connection.opens_early() && connected.listener.is_none();
                let after = self.with(now, id, |connection, ctx| connection.unreachable(ctx, error, made));
                if let Some(after) = after {
                    self.follow(now, id, after);
                }
            }
            Some(Slot::Request(pending))
                if pending.request.agreed().iss == complaint.seq
                    && !matches!(complaint.trouble, Trouble::TooLong { .. }) =>
            {
                self.stats.attempts_failed += 1;
                self.forget(id);
            }
            _ => {}
        }
    }
}

/// What a complaint says to a connection (the kernel's icmp_err_convert).
fn meaning(trouble: Trouble) -> Error {
    match trouble {
        Trouble::Unreachable(Unreachable::NETWORK) => Error::NetUnreachable,
        Trouble::Unreachable(Unreachable::HOST) => Error::HostUnreachable,
        Trouble::Unreachable(Unreachable::PROTOCOL) => Error::NoProtocol,
        Trouble::Unreachable(Unreachable::PORT) => Error::Refused,
        Trouble::Unreachable(_) => Error::HostUnreachable,
        Trouble::TooLong { .. } => Error::TooLong,
        Trouble::TimeExceeded(_) => Error::HostUnreachable,
        Trouble::Parameter(_) => Error::Invalid,
    }
}
