//! The sender: all that was sent and is not acknowledged, what of it was lost, and how much may be sent now.
//!
//! It holds no bytes: what it says is to be sent (again) is a place in the stream, and whoever owns the stream finds the bytes. It
//! behaves as Linux 6.18 does with its defaults: SACK and DSACK (RFC 2018, 2883), RACK and tail loss probes (RFC 8985), proportional rate
//! reduction (RFC 6937), F-RTO (RFC 5682), and undoing what turns out to be wrong, by timestamps (Eifel: RFC 3522, 4015) and by DSACK.
//! Where no RFC says how, its comments name the Linux function whose rule they follow (net/ipv4/tcp_input.c, if no other file is named).
//!
//! In the order to be read: `sent.rs` is the scoreboard, `sack.rs` puts SACK blocks onto it, `rack.rs` tells what is lost, `recovery.rs`
//! is the states and undoing, `timeout.rs` the timers, `ack.rs` what an acknowledgement does in which order, `resend.rs` what is sent again.
//!
//! How it is called:
//!
//! 1. [`Sender::transmitted`] for each segment that leaves for the first time; as many packets as [`Sender::quota`] says.
//! 2. [`Sender::acknowledge`] for each segment that arrives with ACK. Then, if [`AckResult::new_first`], what is new and may be sent; then
//!    [`Sender::next_retransmission`] and [`Sender::retransmitted`] until there is none; then what is new.
//! 3. [`Sender::on_timer`] when [`Sender::deadline`] has come, and as its answer says.
//!
//! The peer is not believed. What it acknowledges has to have been sent, blocks too; none of its lies makes this panic, costs more than a
//! walk over what is outstanding, or lets more be sent than if all had arrived.

mod ack;
mod audit;
mod rack;
mod recovery;
mod report;
mod resend;
mod sack;
mod sent;
mod timeout;

use super::congestion::{Algorithm, Congestion, Prr, SlowStart};
use super::rtt::Rtt;
use crate::wire::Seq;
pub use ack::{Ack, AckResult};
pub use recovery::State;
use sent::{Copy, Marks, Piece, Scoreboard, packets};
use timeout::{Armed, NEVER};
pub use timeout::{RESOURCE_WAIT, Timeout};

/// Duplicate acknowledgements that tell of a loss, until the network is seen to change the order of packets (net.ipv4.tcp_reordering).
const REORDERING: u16 = 3;
/// By how many packets it is believed to change it at most (net.ipv4.tcp_max_reordering).
const MAX_REORDERING: u32 = 300;

/// A segment that is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transmit {
    /// Its first byte, or its SYN.
    pub seq: Seq,
    /// Bytes; SYN and FIN are not among them.
    pub len: u32,
    /// It ends with FIN.
    pub fin: bool,
    /// It begins with SYN.
    pub syn: bool,
    /// In how many packets of the MSS it leaves. Of a new one [`Sender::transmitted`] counts them.
    pub packets: u32,
    /// The program ended a record with it: nothing is joined to it (Linux's MSG_EOR).
    pub eor: bool,
    /// The program ended a write with it: it leaves with PSH, again too.
    pub push: bool,
}

impl Transmit {
    /// Sequence numbers that it takes.
    pub fn span(&self) -> u32 {
        self.len + u32::from(self.syn) + u32::from(self.fin)
    }
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Has: u8 {
        /// The peer said SACK-permitted, and so did we.
        const SACK = 0x01;
        const TIMESTAMPS = 0x02;
        /// The next new data is to carry CWR.
        const CWR = 0x04;
        /// The probe that the timer asked for is to be new data.
        const PROBING = 0x08;
        /// The program waits for room in its send buffer.
        const CRAMPED = 0x10;
        /// The window of congestion stays as it is while it is not used.
        const KEEPS = 0x20;
        /// No probes of the tail.
        const NO_PROBES = 0x40;
        /// No looking whether a timeout was spurious.
        const NO_FRTO = 0x80;
    }
}

/// What a sender does that it need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Habits {
    /// It probes the tail (RFC 8985, section 7; net.ipv4.tcp_early_retrans).
    pub tail_probes: bool,
    /// It looks whether a timeout was spurious (RFC 5682; net.ipv4.tcp_frto).
    pub frto: bool,
}

/// Everything about sending but the bytes. See the module.
#[derive(Debug)]
pub struct Sender {
    una: Seq,
    nxt: Seq,
    iss: Seq,
    /// The peer's window, from `una` on.
    window: u32,
    /// The peer's sequence number with which it came (SND.WL1).
    wl1: Seq,
    /// The largest one ever.
    max_window: u32,
    mss: u16,
    reordering: u16,
    /// When `armed` goes off; [`NEVER`] if nothing is armed.
    deadline: u64,
    /// With backing off.
    rto_us: u32,
    /// When data was sent last, for idleness.
    sent_ms: u32,
    delivered: u32,
    data_segments: u32,
    /// Packets that left, whatever they were for.
    segments: u32,
    /// How long the packet took that was delivered last of those sent last (RFC 8985's RACK.rtt).
    rack_rtt_us: u32,
    bytes_acked: u64,
    backoff: u8,
    retransmits: u8,
    /// Timeouts of a SYN before they grow.
    linear: u8,
    state: State,
    armed: Armed,
    has: Has,
    rtt: Rtt,
    congestion: Congestion,
    /// Made when something is sent, given back by [`Sender::rest`].
    flight: Option<Box<Flight>>,
    /// Made when something goes wrong the first time.
    history: Option<Box<History>>,
}

/// What is known of what is outstanding.
#[derive(Debug, Default)]
struct Flight {
    board: Scoreboard,
    /// Behind the highest byte that was selected (`una` if none was).
    high_sacked: Seq,
    /// Where `nxt` was when the state began; it ends when that is acknowledged (Linux's high_seq, RFC 6582's recover).
    high: Seq,
    /// Where `una` was when the window was made smaller, as long as that may be undone.
    undo_marker: Option<Seq>,
    /// Packets sent again since that no DSACK told of. None: none were sent.
    undo_retrans: Option<u32>,
    /// When the first of them was, µs.
    first_resent: Option<u64>,
    /// When something was acknowledged last, µs.
    progress: u64,
    prr: Option<Prr>,
    tlp: Option<Tlp>,
    /// RFC 8985's RACK.xmit_ts (µs) and RACK.end_seq.
    rack_sent: u64,
    rack_end: Seq,
    /// Something was delivered since RACK looked.
    rack_advanced: bool,
    rack_dsack: bool,
    /// `delivered` when the reordering window was made wider.
    rack_delivered: u32,
    /// What a timeout found, before it doubled the wait: the wait, how often it had doubled, and how often it was not to.
    before_timeout: Option<(u32, u8, u8)>,
    /// F-RTO has not found out yet whether the timeout was right.
    frto: bool,
    /// The receiver threw away what it had selected.
    reneging: bool,
    /// When the timer ran out that began the state Loss, µs.
    loss_since: Option<u64>,
    due: Due,
    forced: Option<Forced>,
    /// Packets held to be lost, ever.
    lost_ever: u32,
}

/// A tail loss probe under way (RFC 8985, section 7).
#[derive(Clone, Copy, Debug)]
struct Tlp {
    /// Where `nxt` was after it.
    high: Seq,
    /// It was sent before.
    again: bool,
}

/// What an acknowledgement lets be sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Due {
    #[default]
    Nothing,
    Lost,
    /// New data, for F-RTO to see what becomes of it; what is lost only if there is none.
    New,
}

/// What a timer wants to be sent again, whatever the window of congestion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forced {
    First,
    Last,
}

/// What only connections in trouble have.
#[derive(Clone, Debug)]
struct History {
    total_retrans: u32,
    bytes_retrans: u64,
    dsack_dups: u32,
    reord_seen: u32,
    delivered_ce: u32,
    total_rto: u32,
    rto_recoveries: u32,
    rto_time_ms: u32,
    /// RFC 8985's RACK.reo_wnd_mult and RACK.reo_wnd_persist.
    reo_wnd_steps: u8,
    reo_wnd_persist: u8,
}

impl Default for History {
    fn default() -> History {
        History {
            total_retrans: 0,
            bytes_retrans: 0,
            dsack_dups: 0,
            reord_seen: 0,
            delivered_ce: 0,
            total_rto: 0,
            rto_recoveries: 0,
            rto_time_ms: 0,
            reo_wnd_steps: 1,
            reo_wnd_persist: 0,
        }
    }
}

fn us(now: u64) -> u64 {
    now / 1_000
}

/// µs from `then` to `now`, as far as 32 bits go.
fn since_us(now: u64, then: u64) -> u32 {
    u32::try_from(us(now).saturating_sub(then)).unwrap_or(u32::MAX)
}

impl Sender {
    /// One that has sent nothing: its SYN will be `iss`. Its window begins with `cwnd` packets.
    pub fn new(iss: Seq, algorithm: Algorithm, slow_start: SlowStart, cwnd: u32) -> Sender {
        let rtt = Rtt::new();
        Sender {
            una: iss,
            nxt: iss,
            iss,
            window: 0,
            wl1: Seq(0),
            max_window: 0,
            mss: 536,
            reordering: REORDERING,
            deadline: NEVER,
            rto_us: (rtt.rto_ns() / 1_000) as u32,
            sent_ms: 0,
            delivered: 0,
            data_segments: 0,
            segments: 0,
            rack_rtt_us: 0,
            bytes_acked: 0,
            backoff: 0,
            retransmits: 0,
            linear: 0,
            state: State::Open,
            armed: Armed::Nothing,
            has: Has::default(),
            rtt,
            congestion: Congestion::new(algorithm, cwnd).with_slow_start(slow_start),
            flight: None,
            history: None,
        }
    }

    /// The connection is established. What was lost before says nothing of data: the window begins anew with `cwnd` packets, or with one
    /// if the SYN had to be sent again more than once (RFC 6298, section 5.7, for the timeout; tcp_init_transfer, tcp_init_metrics).
    pub fn established(&mut self, algorithm: Algorithm, slow_start: SlowStart, cwnd: u32) {
        let undone = self.flight.as_ref().is_none_or(|flight| flight.undo_marker.is_none());
        let lossy = !undone && self.history.as_ref().is_some_and(|history| history.total_retrans > 1);
        let congestion = Congestion::new(algorithm, if lossy { 1 } else { cwnd });
        self.congestion = congestion.with_slow_start(slow_start);
        self.linear = 0;
        if self.rtt.srtt_us().is_none() {
            self.rto_us = 3_000_000;
        }
    }

    /// So many packets leave, with data or without (tcpi_segs_out).
    pub fn count_out(&mut self, packets: u32) {
        self.segments = self.segments.wrapping_add(packets);
    }

    /// What it does that it need not: all of it, as long as nobody says otherwise.
    pub fn set_habits(&mut self, habits: Habits) {
        self.has.set(Has::NO_PROBES, !habits.tail_probes);
        self.has.set(Has::NO_FRTO, !habits.frto);
    }

    /// The oldest that is not acknowledged (SND.UNA).
    pub fn una(&self) -> Seq {
        self.una
    }

    /// What is sent next (SND.NXT).
    pub fn nxt(&self) -> Seq {
        self.nxt
    }

    /// The SYN's number (ISS).
    pub fn iss(&self) -> Seq {
        self.iss
    }

    /// Bytes in a packet.
    pub fn mss(&self) -> u32 {
        self.mss.into()
    }

    /// From now on a packet has so many bytes (at least 48, as Linux has it). What was sent keeps its packets until it is sent again.
    pub fn set_mss(&mut self, mss: u32) {
        self.mss = mss.clamp(48, u16::MAX.into()) as u16;
    }

    /// Both ends know SACK.
    pub fn sack_ok(&mut self, yes: bool) {
        self.has.set(Has::SACK, yes);
    }

    /// Both ends send timestamps.
    pub fn timestamps(&mut self, yes: bool) {
        self.has.set(Has::TIMESTAMPS, yes);
    }

    /// The peer's window, in bytes from `una` on, and the sequence number of the segment that it came with: as the first segment says.
    /// Later ones are [`Sender::acknowledge`]'s business.
    pub fn set_window(&mut self, seq: Seq, window: u32) {
        (self.wl1, self.window) = (seq, window);
        self.max_window = self.max_window.max(window);
    }

    /// The peer's window, in bytes.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// The largest that it ever was.
    pub fn max_window(&self) -> u32 {
        self.max_window
    }

    /// Behind the last byte that the peer has room for.
    pub fn window_end(&self) -> Seq {
        self.una.plus(self.window)
    }

    /// Whether the program waits for room to write: then it is not the program that leaves the window unused, and the window stays.
    pub fn cramped(&mut self, yes: bool) {
        self.has.set(Has::CRAMPED, yes);
    }

    /// This host had no room for a segment: it is congested, as the network may be (tcp_enter_cwr()).
    pub fn congested(&mut self) {
        let mut flight = self.flight.take().unwrap_or_else(|| self.empty_flight());
        self.enter_cwr(&mut flight);
        self.flight = Some(flight);
    }

    /// The send buffer has grown: that the window was not used until now says nothing (tcp_new_space()).
    pub fn refrain(&mut self, now: u64) {
        self.congestion.stamp(now);
    }

    /// Whether the window of congestion shrinks while it is not used (net.ipv4.tcp_slow_start_after_idle).
    pub fn shrinks(&mut self, yes: bool) {
        self.has.set(Has::KEEPS, !yes);
    }

    /// So many timeouts of a SYN wait no longer than the first (net.ipv4.tcp_syn_linear_timeouts: 4, for who connects actively).
    pub fn set_linear_timeouts(&mut self, count: u8) {
        self.linear = count;
    }

    /// The round trips.
    pub fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// The round trips, to set their bounds, or to give one that was measured elsewhere (a SYN-ACK's).
    pub fn rtt_mut(&mut self) -> &mut Rtt {
        &mut self.rtt
    }

    /// A round trip that was measured elsewhere, of a SYN-ACK that was sent once.
    pub fn measured(&mut self, now: u64, rtt_us: u32) {
        self.rtt.sample_min(now, rtt_us);
        self.rtt.sample(rtt_us, self.una, self.nxt);
        self.settle_rto();
    }

    /// The SYN-ACK is sent elsewhere, and data goes behind it before it is acknowledged.
    pub fn begin_behind_syn(&mut self) {
        (self.una, self.nxt, self.bytes_acked) = (self.iss.plus(1), self.iss.plus(1), 1);
    }

    /// That SYN-ACK is acknowledged, after `rtt_us` if it was sent once. What was sent behind it has time from now on.
    pub fn syn_acknowledged(&mut self, now: u64, rtt_us: Option<u32>) {
        self.delivered = self.delivered.wrapping_add(1);
        if let (None, Some(rtt_us)) = (self.rtt.srtt_us(), rtt_us) {
            self.measured(now, rtt_us);
        }
        if self.packets_out() > 0 {
            self.arm(Armed::Timeout, now + self.rto_ns());
        }
    }

    /// A SYN and its data were one packet, and were counted as two.
    pub fn syn_data_acknowledged(&mut self) {
        if self.delivered > 1 {
            self.delivered -= 1;
        }
    }

    /// The window of congestion.
    pub fn congestion(&self) -> &Congestion {
        &self.congestion
    }

    /// The window goes by other rules from now on.
    pub fn set_algorithm(&mut self, algorithm: Algorithm, slow_start: SlowStart) {
        self.congestion.set_algorithm(algorithm, slow_start);
    }

    /// What it does at present.
    pub fn state(&self) -> State {
        self.state
    }

    /// Packets outstanding.
    pub fn packets_out(&self) -> u32 {
        self.flight.as_ref().map_or(0, |flight| flight.board.out)
    }

    /// Packets in the network: outstanding, and neither received nor lost, and those sent again.
    pub fn in_flight(&self) -> u32 {
        self.flight.as_ref().map_or(0, |flight| flight.board.in_flight())
    }

    /// Pieces of what is outstanding: each costs memory for itself.
    pub fn pieces(&self) -> usize {
        self.flight.as_ref().map_or(0, |flight| flight.board.pieces.len())
    }

    /// When the oldest that is not acknowledged was sent last, in nanoseconds.
    pub fn oldest_sent_at(&self) -> Option<u64> {
        self.flight.as_ref()?.board.pieces.front().map(|piece| piece.sent * 1000)
    }

    /// Whether anything is not acknowledged.
    pub fn has_unacked(&self) -> bool {
        self.una != self.nxt
    }

    /// How many packets the window of congestion lets go now.
    pub fn quota(&self) -> u32 {
        self.congestion.cwnd().saturating_sub(self.in_flight())
    }

    /// Whether CWR is to be on the new data that is sent now (RFC 3168, section 6.1.2); says so once.
    pub fn take_cwr(&mut self) -> bool {
        let cwr = self.has.contains(Has::CWR);
        self.has -= Has::CWR;
        cwr
    }

    /// Before the first bytes after a while are sent: an unused window says nothing of the network (RFC 5681, section 4.1;
    /// tcp_slow_start_after_idle_check).
    pub fn wake(&mut self, now: u64) {
        let idle = ((now / 1_000_000) as u32).wrapping_sub(self.sent_ms);
        if self.packets_out() == 0 && self.data_segments > 0 && u64::from(idle) * 1_000 > self.rto_us.into() {
            self.congestion.restart_after_idle(now, u64::from(idle) * 1_000_000, self.rto_ns());
        }
    }

    /// New data, SYN or FIN left, at `nxt`.
    pub fn transmitted(&mut self, now: u64, segment: Transmit) {
        debug_assert_eq!(segment.seq, self.nxt, "new data goes to the end");
        if segment.syn && segment.span() > 1 {
            // They are acknowledged apart from each other.
            self.transmitted(now, Transmit { len: 0, fin: false, eor: false, ..segment });
            return self.transmitted(now, Transmit { seq: self.nxt, syn: false, ..segment });
        }
        if segment.span() == 0 {
            return;
        }
        let mut flight = self.flight.take().unwrap_or_else(|| self.empty_flight());
        let first = flight.board.out == 0;
        if flight.board.in_flight() == 0 && segment.len > 0 && self.data_segments > 0 {
            let idle = ((now / 1_000_000) as u32).wrapping_sub(self.sent_ms);
            self.congestion.flight_begins(now, u64::from(idle) * 1_000_000);
        }
        let mut marks = Marks::default();
        marks.set(Marks::SYN, segment.syn);
        marks.set(Marks::FIN, segment.fin);
        marks.set(Marks::RECORD, segment.eor);
        marks.set(Marks::PUSHED, segment.push);
        let count = packets(segment.len, self.mss);
        flight.board.pieces.push_back(Piece {
            seq: self.nxt,
            len: segment.span(),
            sent: us(now),
            packets: count,
            delivered: self.delivered,
            mss: self.mss,
            marks,
        });
        flight.board.out += count;
        self.nxt = self.nxt.plus(segment.span());
        if segment.len > 0 {
            self.data_segments = self.data_segments.wrapping_add(count);
            self.sent_ms = (now / 1_000_000) as u32;
        }
        if first || self.armed == Armed::Probe {
            self.rearm(&flight, now);
        }
        if self.state.reduces()
            && let Some(prr) = &mut flight.prr
        {
            prr.sent(count);
        }
        if self.has.contains(Has::PROBING) {
            self.has -= Has::PROBING;
            self.probed(&mut flight, now, false);
        } else {
            self.schedule_probe(&flight, now, false);
        }
        let in_flight = flight.board.in_flight();
        let limited = in_flight >= self.congestion.cwnd();
        self.congestion.transmitted(now, flight.board.out, limited, self.una, self.nxt);
        let may_shrink = self.state == State::Open && !self.has.contains(Has::CRAMPED);
        if !self.has.contains(Has::KEEPS) {
            self.congestion.validate(now, self.rto_ns(), may_shrink);
        }
        self.flight = Some(flight);
    }

    #[cold]
    fn empty_flight(&self) -> Box<Flight> {
        let mut flight = Box::<Flight>::default();
        flight.board.hint = self.una;
        flight.board.judged = self.una;
        flight.high_sacked = self.una;
        flight.high = self.una;
        flight.rack_end = self.una;
        flight
    }

    fn history(&mut self) -> &mut History {
        self.history.get_or_insert_default()
    }

    /// Whether [`Sender::rest`] would give memory back.
    pub fn is_restless(&self) -> bool {
        self.flight.is_some() && !self.has_unacked()
    }

    /// Gives memory back if nothing is outstanding: for connections that have been quiet for a while. A reduction of the window then
    /// stands, and cannot be undone any more.
    pub fn rest(&mut self, now: u64) {
        if self.has_unacked() {
            return;
        }
        self.congestion.settle(now);
        self.congestion.rest();
        self.state = State::Open;
        self.has -= Has::PROBING;
        self.flight = None;
    }
}

/// Bytes of a piece that are acknowledged although it is one packet.
fn piece_acked(piece: &Piece, una: Seq) -> u32 {
    u32::try_from(una.since(piece.seq)).unwrap_or(0).min(piece.data())
}
