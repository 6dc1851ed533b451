//! What an acknowledgement does, in the order that Linux does it (tcp_ack).

use super::*;
use crate::tcp::congestion::Acked;
use crate::wire::tcp::Blocks;

/// A segment with ACK that arrived, as far as the sender is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Ack<'a> {
    /// The segment's own number (SEG.SEQ).
    pub seq: Seq,
    /// What it acknowledges (SEG.ACK).
    pub ack: Seq,
    /// The peer's window, in bytes: scaled, where windows are.
    pub window: u32,
    /// Its SACK blocks, a DSACK among them.
    pub sack: &'a Blocks,
    /// It carries data or FIN: then it is no duplicate.
    pub data: bool,
    /// It has ECE, and the connection uses ECN.
    pub ece: bool,
    /// What it echoes of our timestamps (TSecr). 0 counts as none.
    pub echo: Option<u32>,
    /// Our timestamp (TSval) of `now`, in ms: what is sent now would carry it.
    pub clock: u32,
    /// Data waits to be sent the first time.
    pub unsent: bool,
}

/// What an acknowledgement came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckResult {
    /// Bytes that are acknowledged now and were not, without SYN and FIN: the stream may let go of them.
    pub acked: u32,
    /// Packets that they were.
    pub packets: u32,
    /// The SYN is acknowledged now.
    pub syn_acked: bool,
    /// The FIN is acknowledged now.
    pub fin_acked: bool,
    /// It counts as a duplicate.
    pub is_dup: bool,
    /// It acknowledges what was never sent: nothing of it counts, and it is answered with a challenge ACK (RFC 5961, section 5.2).
    pub too_new: bool,
    /// It is older than any that could still be under way: as `too_new`.
    pub too_old: bool,
    /// It is older than others that came before; only its blocks count.
    pub old: bool,
    /// It acknowledges something new, by number or by block.
    pub progress: bool,
    /// It says what the peer's window is now. More may be sent, maybe.
    pub window_update: bool,
    /// New data goes before what is to be sent again.
    pub new_first: bool,
}

bitflags::bitflags! {
    /// What was found out about one acknowledgement (Linux's FLAG_*).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct Flags: u16 {
        const DATA = 0x0001;
        const WINDOW_UPDATE = 0x0002;
        const DATA_ACKED = 0x0004;
        const SYN_ACKED = 0x0008;
        /// Of what was sent more than once.
        const RESENT_ACKED = 0x0010;
        const DATA_SACKED = 0x0020;
        const ECE = 0x0040;
        /// What was sent again was lost again.
        const COPY_LOST = 0x0080;
        /// What was sent once, before `high`, arrived.
        const ORIGINAL = 0x0100;
        const ADVANCED = 0x0200;
        const DSACK = 0x0400;
        const RENEGING = 0x0800;
        const SET_TIMER = 0x1000;
        /// The peer may have waited before it sent it.
        const MAYBE_DELAYED = 0x2000;
        /// The DSACK is for a probe.
        const DSACK_PROBE = 0x4000;

        const ACKED = Flags::DATA_ACKED.bits() | Flags::SYN_ACKED.bits();
        const NOT_DUP = Flags::DATA.bits() | Flags::WINDOW_UPDATE.bits() | Flags::ACKED.bits();
        const ALERT = Flags::DATA_SACKED.bits() | Flags::ECE.bits() | Flags::DSACK.bits();
        const PROGRESS = Flags::ACKED.bits() | Flags::DATA_SACKED.bits();
    }
}

/// One acknowledgement, and what was found out about it.
#[derive(Debug)]
pub(super) struct Round {
    pub now: u64,
    pub flags: Flags,
    /// The lowest that arrived after what was sent later.
    pub reordered: Seq,
    /// Packets delivered, by SACK and DSACK.
    pub delivered: u32,
    /// When the first and the last of those selected now were sent that were sent once.
    pub first_selected: Option<u64>,
    pub last_selected: u64,
    /// Of those delivered that was sent last: when, where it ends, and what had been delivered then.
    rate: Option<(u64, Seq, u32)>,
    echo: Option<u32>,
    clock: u32,
    pub unsent: bool,
}

impl Round {
    fn new(now: u64, ack: &Ack<'_>) -> Round {
        Round {
            now,
            flags: Flags::default(),
            reordered: Seq(0),
            delivered: 0,
            first_selected: None,
            last_selected: 0,
            rate: None,
            echo: ack.echo.filter(|echo| *echo != 0),
            clock: ack.clock,
            unsent: ack.unsent,
        }
    }

    /// Whether what it echoes was sent before a time (µs).
    pub fn echo_before(&self, then: u64) -> bool {
        let ago = ((us(self.now) / 1_000) as u32).wrapping_sub((then / 1_000) as u32);
        self.echo.is_some_and(|echo| Seq(echo).before(Seq(self.clock).minus(ago)))
    }

    pub fn note_rate(&mut self, piece: &Piece) {
        let later = |(sent, end, _): (u64, Seq, u32)| {
            piece.sent > sent || (piece.sent == sent && piece.end().after(end))
        };
        if self.rate.is_none_or(later) {
            self.rate = Some((piece.sent, piece.end(), piece.delivered));
        }
    }
}

/// What was taken off the scoreboard.
#[derive(Debug, Default)]
struct Cleaned {
    packets: u32,
    syn: bool,
    fin: bool,
    /// Of what was delivered last, for the window of congestion.
    rtt_us: Option<u32>,
}

impl Sender {
    /// Takes the acknowledgement of a segment that was acceptable.
    pub fn acknowledge(&mut self, now: u64, ack: &Ack<'_>) -> AckResult {
        let prior_una = self.una;
        let mut result = AckResult::default();
        if ack.ack.before(prior_una) {
            let reach = u64::from(self.max_window).min(self.bytes_acked) as u32;
            if ack.ack.before(prior_una.minus(reach)) {
                result.too_old = true;
            } else {
                result.old = true;
                self.late(now, ack, &mut result);
            }
            return result;
        }
        if ack.ack.after(self.nxt) {
            result.too_new = true;
            return result;
        }
        let mut round = Round::new(now, ack);
        let mut bytes = ack.ack.since(prior_una) as u32;
        if bytes > 0 {
            round.flags |= Flags::ADVANCED;
            self.retransmits = 0;
        }
        round.flags.set(Flags::DATA, ack.data);
        self.take_window(&mut round, ack);
        result.window_update = round.flags.contains(Flags::WINDOW_UPDATE);
        let sacks = self.has.contains(Has::SACK) && !ack.sack.is_empty();
        let Some(mut flight) = self.flight.take() else { return result };
        let f = &mut *flight;
        let prior_high = match self.has.contains(Has::SACK) && f.board.sacked > 0 {
            true => f.high_sacked,
            false => prior_una,
        };
        if bytes > 0 {
            f.progress = us(now);
        }
        self.bytes_acked += u64::from(bytes);
        self.una = ack.ack;
        (f.due, f.forced) = (Due::Nothing, None);
        self.has -= Has::PROBING;

        let outstanding = f.board.out > 0;
        let (delivered_before, lost_before) = (self.delivered, f.lost_ever);
        if sacks {
            self.select(f, &mut round, ack.sack, ack.ack, prior_una);
        }
        round.flags.set(Flags::ECE, ack.ece);
        self.count_delivered(round.delivered, ack.ece);
        if outstanding {
            let cleaned = self.clean(f, &mut round, prior_high, prior_una);
            result.packets = cleaned.packets;
            (result.syn_acked, result.fin_acked) = (cleaned.syn, cleaned.fin);
            bytes -= u32::from(cleaned.syn) + u32::from(cleaned.fin);
            result.acked = bytes;
            self.widen_reordering_window(f, round.rate.map(|rate| rate.2));
            self.probe_answered(f, &round, ack.ack);
            let ordinary = round.flags.intersects(Flags::NOT_DUP) && !round.flags.intersects(Flags::ALERT);
            if !ordinary || self.state != State::Open {
                result.is_dup = !round.flags.intersects(Flags::ADVANCED | Flags::NOT_DUP | Flags::DSACK);
                self.alert(f, &mut round, prior_una, result.is_dup.into());
            }
            if round.flags.contains(Flags::SET_TIMER) {
                self.set_timer(f, now);
            }
            let delivered = self.delivered.wrapping_sub(delivered_before);
            let lost = f.lost_ever.wrapping_sub(lost_before);
            self.control(f, &round, delivered, lost, cleaned.rtt_us);
        } else {
            if round.flags.contains(Flags::DSACK) {
                self.alert(f, &mut round, prior_una, 0);
            }
            self.probe_answered(f, &round, ack.ack);
        }
        f.board.tidy();
        result.progress = round.flags.intersects(Flags::PROGRESS);
        result.new_first = f.due == Due::New;
        self.flight = Some(flight);
        result
    }

    /// An acknowledgement that was overtaken by others: its blocks may be news.
    fn late(&mut self, now: u64, ack: &Ack<'_>, result: &mut AckResult) {
        if ack.sack.is_empty() || !self.has.contains(Has::SACK) {
            return;
        }
        let Some(mut flight) = self.flight.take() else { return };
        let mut round = Round::new(now, ack);
        let una = self.una;
        self.select(&mut flight, &mut round, ack.sack, ack.ack, una);
        self.alert(&mut flight, &mut round, una, 0);
        flight.board.tidy();
        result.progress = round.flags.intersects(Flags::PROGRESS);
        result.new_first = flight.due == Due::New;
        self.flight = Some(flight);
    }

    /// The peer's window, if the segment is no older than the one that told of it last (RFC 9293, section 3.10.7.4;
    /// tcp_may_update_window).
    fn take_window(&mut self, round: &mut Round, ack: &Ack<'_>) {
        let newer = ack.ack.after(self.una)
            || ack.seq.after(self.wl1)
            || (ack.seq == self.wl1 && (ack.window > self.window || ack.window == 0));
        if newer {
            round.flags |= Flags::WINDOW_UPDATE;
            self.set_window(ack.seq, ack.window);
        }
    }

    fn count_delivered(&mut self, packets: u32, ece: bool) {
        self.delivered = self.delivered.wrapping_add(packets);
        if ece && packets > 0 {
            let history = self.history();
            history.delivered_ce = history.delivered_ce.wrapping_add(packets);
        }
    }

    /// Takes what is acknowledged off the scoreboard, and measures round trips (tcp_clean_rtx_queue).
    fn clean(&mut self, f: &mut Flight, round: &mut Round, prior_high: Seq, prior_una: Seq) -> Cleaned {
        let sack = self.has.contains(Has::SACK);
        let prior_sacked = f.board.sacked;
        let ece = round.flags.contains(Flags::ECE);
        let mut cleaned = Cleaned::default();
        let mut reordered = self.nxt;
        let mut sent: Option<(u64, u64)> = None;
        let mut whole = true;
        while let Some(piece) = f.board.pieces.front().copied() {
            let count = if piece.end().after(self.una) {
                if piece.packets == 1 || !self.una.after(piece.seq) {
                    break;
                }
                whole = false;
                f.board.trim(0, self.una)
            } else {
                piece.packets
            };
            if count == 0 {
                break;
            }
            if piece.is(Marks::RESENT | Marks::EVER_RESENT) {
                if piece.is(Marks::RESENT) {
                    f.board.resent -= count;
                }
                round.flags |= Flags::RESENT_ACKED;
            } else if !piece.is(Marks::SACKED) {
                sent = Some((sent.map_or(piece.sent, |(first, _)| first), piece.sent));
                if piece.seq.before(reordered) {
                    reordered = piece.seq;
                }
                if !piece.end().after(f.high) {
                    round.flags |= Flags::ORIGINAL;
                }
            }
            if piece.is(Marks::SACKED) {
                f.board.sacked -= count;
            } else {
                round.note_rate(&piece);
                if sack {
                    self.count_delivered(count, ece);
                    let spurious =
                        piece.is(Marks::RESENT | Marks::EVER_RESENT) && round.echo_before(piece.sent);
                    if !spurious {
                        self.rack_advance(f, round, &piece);
                    }
                }
            }
            if piece.is(Marks::LOST) {
                f.board.lost -= count;
            }
            f.board.out -= count;
            cleaned.packets += count;
            if piece.is(Marks::SYN) {
                cleaned.syn = true;
                round.flags |= Flags::SYN_ACKED;
                f.first_resent = None;
            } else {
                round.flags |= Flags::DATA_ACKED;
            }
            if !whole {
                break;
            }
            cleaned.fin |= piece.is(Marks::FIN);
            f.board.pieces.pop_front();
        }
        let first = f.board.pieces.front().copied();
        if first.is_none() {
            f.board.copies.clear();
        } else if first.is_some_and(|first| first.is(Marks::SACKED)) {
            round.flags |= Flags::RENEGING;
        }
        if f.board.hint.before(self.una) {
            f.board.hint = self.una;
        }
        if f.board.judged.before(self.una) {
            f.board.judged = self.una;
        }
        if f.high_sacked.before(self.una) {
            f.high_sacked = self.una;
        }

        let (mut rtt, mut last) = (None, None);
        if let Some((first, latest)) = sent.filter(|_| !round.flags.contains(Flags::RESENT_ACKED)) {
            (rtt, last) = (Some(since_us(round.now, first)), Some(since_us(round.now, latest)));
            let small = (self.una.since(prior_una) as u32) < self.mss();
            let alone = round.rate.is_some_and(|rate| rate.2.wrapping_add(1) == self.delivered);
            let one = cleaned.packets == 1 && whole && prior_sacked == 0;
            if one && small && alone && !round.flags.contains(Flags::SYN_ACKED) {
                round.flags |= Flags::MAYBE_DELAYED;
            }
        }
        let selected = round.first_selected.map(|first| since_us(round.now, first));
        if selected.is_some() {
            last = Some(since_us(round.now, round.last_selected));
        }
        let measured = self.measure(round, rtt.or(selected), &mut last);
        cleaned.rtt_us = last;

        if round.flags.intersects(Flags::ACKED) {
            round.flags |= Flags::SET_TIMER;
            if !sack {
                self.remove_duplicates(f, cleaned.packets);
                // Which of the two copies it was, nobody tells without SACK.
                if round.flags.contains(Flags::RESENT_ACKED) {
                    round.flags -= Flags::ORIGINAL;
                }
            } else if reordered.before(prior_high) {
                self.note_reordering(f, reordered);
            }
        } else if let (Some(first), Some(selected), true) = (first, selected, measured)
            && selected > since_us(round.now, first.sent)
        {
            // What was selected was sent before the first piece was sent last: the timeout of that one need not wait longer otherwise.
            round.flags |= Flags::SET_TIMER;
        }
        cleaned
    }

    /// Takes a round trip (tcp_ack_update_rtt): of what was sent once, else by timestamp. Says whether there was one.
    fn measure(&mut self, round: &Round, rtt: Option<u32>, last: &mut Option<u32>) -> bool {
        let mut rtt = rtt;
        if let (None, Some(echo)) = (rtt, round.echo)
            && round.flags.intersects(Flags::ACKED)
        {
            let ms = round.clock.wrapping_sub(echo);
            if ms < i32::MAX as u32 / 1_000 {
                rtt = Some(ms.max(1) * 1_000);
                *last = rtt;
            }
        }
        let Some(rtt) = rtt else { return false };
        if let Some(last) = *last {
            let late =
                round.flags.contains(Flags::MAYBE_DELAYED) && self.rtt.min_us().is_some_and(|min| last > min);
            if !late {
                self.rtt.sample_min(round.now, last);
            }
        }
        self.rtt.sample(rtt, self.una, self.nxt);
        self.settle_rto();
        true
    }

    /// The window of congestion after it (tcp_cong_control).
    fn control(&mut self, f: &mut Flight, round: &Round, delivered: u32, lost: u32, rtt_us: Option<u32>) {
        if self.state.reduces() {
            self.reduce_step(f, delivered, lost, round.flags.contains(Flags::ADVANCED));
        }
        // Where order means little, what arrives out of order is as good.
        let grows = if self.reordering > REORDERING { Flags::PROGRESS } else { Flags::DATA_ACKED };
        let grows = !self.state.reduces() && round.flags.intersects(grows);
        let acked = Acked {
            packets: if grows { delivered } else { 0 },
            rtt_us,
            srtt_us: self.rtt.srtt_us(),
            mss: self.mss(),
            una: self.una,
            nxt: self.nxt,
        };
        self.congestion.acked(round.now, &acked);
    }
}
