//! What leaves, and when (the kernel's tcp_write_xmit()).

use super::limited::By;
use super::segment::{HEADERS, TIMESTAMPS_LEN};
use super::unsent::Piece;
use super::{Connection, NEVER, Traits, microseconds};
use crate::tcp::emit::{Context, Sent};
use crate::tcp::snd::{State as Recovery, Transmit};
use crate::tcp::state::State;
use crate::wire::{Flags, Seq};
use onecopy_link::Packet;

/// How long a connection keeps what it would need if it went on.
pub(super) const RESTS_AFTER: u64 = 1_000_000_000;

/// What is known of small segments' reasons to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Small {
    /// RFC 9293, section 3.7.4, as Minshall has it: they wait as long as another small one is unacknowledged.
    Nagle,
    /// They wait until there is more (TCP_CORK, MSG_MORE).
    Wait,
    /// They leave (TCP_NODELAY).
    Leave,
}

/// How much of what waits may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Most {
    All,
    /// One packet, as large as it can be.
    One,
    /// One segment, whatever the window of congestion is: RFC 8985's probe.
    Probe,
}

impl Connection {
    fn small(&self) -> Small {
        match (self.settings.cork, self.settings.nodelay) {
            (true, _) => Small::Wait,
            (false, true) => Small::Leave,
            (false, false) => Small::Nagle,
        }
    }

    /// Sends what may leave. Whether anything did.
    pub(super) fn push_pending(&mut self, ctx: &mut Context<'_>) -> bool {
        self.write(ctx, self.small(), Most::All)
    }

    /// Sends what may leave, small segments too.
    pub(super) fn push_all(&mut self, ctx: &mut Context<'_>) -> bool {
        self.write(ctx, Small::Leave, Most::All)
    }

    /// As [`Connection::push_pending`], where the program says that more comes.
    pub(super) fn push_full(&mut self, ctx: &mut Context<'_>) -> bool {
        self.write(ctx, Small::Wait, Most::All)
    }

    /// Sends one packet of a piece that is full.
    pub(super) fn push_one(&mut self, ctx: &mut Context<'_>) -> bool {
        self.write(ctx, Small::Leave, Most::One)
    }

    /// Asks by new data for an ACK of what may be lost. Whether there was any.
    pub(super) fn push_probe(&mut self, ctx: &mut Context<'_>) -> bool {
        self.write(ctx, Small::Leave, Most::Probe)
    }

    fn write(&mut self, ctx: &mut Context<'_>, small: Small, most: Most) -> bool {
        if !matches!(
            self.state,
            State::Established | State::CloseWait | State::FinWait1 | State::LastAck | State::Closing
        ) && !self.opens_early()
            || self.out.unsent().is_empty()
        {
            return false;
        }
        let mss = self.segment_len(ctx);
        self.snd.set_mss(mss);
        let mut longest = None;
        let (mut sent, mut by_cwnd, mut by_window) = (0, false, false);
        let paced = self.traits.contains(Traits::PACED);
        while let Some(piece) = self.out.unsent().first() {
            // A probe of the tail is not before its time, either: what it is to be leaves then, and asks as much (tcp_send_loss_probe(), tcp_write_xmit()).
            if self.is_paced(ctx.now) {
                break;
            }
            let mut quota = self.snd.quota();
            if quota == 0 {
                // The last FIN needs no room in the window of congestion (tcp_cwnd_test()).
                if most != Most::Probe && !(piece.fin && piece.len <= mss) {
                    by_cwnd = true;
                    break;
                }
                quota = 1;
            }
            if self.window_left() == 0 {
                // A program that writes on while the window is shut need not pay for what is not sent.
                by_window = true;
                break;
            }
            let longest = *longest.get_or_insert_with(|| self.longest(ctx, mss));
            // Never all at once, so that ACKs keep coming (tcp_cwnd_test()).
            let packets = if most == Most::Probe {
                1
            } else {
                quota.min((self.snd.congestion().cwnd() >> 1).max(1)).min(longest)
            };
            self.out.unsent_mut().grow_first(packets.saturating_mul(mss));
            let piece = self.out.unsent().first().unwrap_or(piece);
            let room = self.window_left();
            // FIN takes a number, too.
            let first = piece.len.min(mss) + u32::from(piece.fin && piece.len <= mss);
            if first > room {
                by_window = true;
                break;
            }
            let last = self.out.unsent().is_last();
            if piece.len <= mss {
                let rule = if last { small } else { Small::Leave };
                if self.holds_back(piece, mss, rule) {
                    break;
                }
            } else if most == Most::All && self.defers(ctx, &piece, mss, longest, last, &mut by_cwnd) {
                break;
            }
            let rule = if last { small } else { Small::Leave };
            let len = self.split_point(piece, mss, packets, room, rule, last);
            if self.send_piece(ctx, len, mss) == Sent::Refused {
                break;
            }
            sent += 1;
            if most != Most::All {
                break;
            }
        }
        // All has left, the program has more, and the network would have taken it (tcp_cwnd_validate()).
        let starves = sent > 0
            && !by_cwnd
            && self.out.unsent().is_empty()
            && self.traits.contains(Traits::WANTS_ROOM)
            && !self.snd.congestion().is_limited();
        let by = match (by_window, self.snd.has_unacked() || !self.out.unsent().is_empty()) {
            // It lasts until there is room again.
            _ if starves || self.limited.by() == By::Buffer && self.traits.contains(Traits::WANTS_ROOM) => {
                By::Buffer
            }
            (true, _) => By::Window,
            (false, true) => By::Busy,
            (false, false) => By::Idle,
        };
        self.limited.set(ctx.now, by);
        // What is lost waits for the same time, and what has left now may have put it off.
        if self.snd.awaits_resending() && (paced || self.out.pace_at() > ctx.now) {
            self.traits |= Traits::PACED;
        }
        self.arm_probe(ctx);
        sent > 0
    }

    /// Bytes of the peer's window that nothing was sent into.
    pub(super) fn window_left(&self) -> u32 {
        self.snd.window().saturating_sub(self.flight())
    }

    /// Packets that one super-segment has at most (tcp_tso_autosize()): what a millisecond carries, and more on short ways. Not where the program bounds the
    /// rate, which Linux makes no difference for: on a short way it would be bursts of whole super-segments.
    fn longest(&self, ctx: &Context<'_>, mss: u32) -> u32 {
        let headers = HEADERS + TIMESTAMPS_LEN;
        let whole = ctx.super_segment.saturating_sub(headers + 14);
        if whole <= mss {
            return 1;
        }
        let mut bytes = self.pacing_rate(ctx) >> 10;
        let round = self.snd.rtt().min_us().unwrap_or(u32::MAX) >> ctx.config.tso_rtt_log.min(31);
        if round < 32 && self.settings.max_pacing_rate.is_none() {
            bytes = bytes.saturating_add(u64::from(ctx.super_segment) >> round);
        }
        let packets = (bytes.min(whole.into()) as u32 / mss.max(1)).max(ctx.config.min_tso_segments.into());
        packets.min(whole / mss).max(1)
    }

    /// Bytes of a second that the window of congestion comes to, and more as it is to grow, but no more than the program says
    /// (tcp_update_pacing_rate()). It bounds the length of super-segments; packets are held back by it only where the program has said something.
    pub(super) fn pacing_rate(&self, ctx: &Context<'_>) -> u64 {
        let congestion = self.snd.congestion();
        let most = self.settings.max_pacing_rate.unwrap_or(u64::MAX);
        let Some(srtt_us) = self.snd.rtt().srtt_us().filter(|us| *us > 0) else { return most };
        let percent = match congestion.cwnd() < congestion.ssthresh() / 2 {
            true => ctx.config.pacing_slow_start,
            false => ctx.config.pacing_avoidance,
        };
        let packets = u64::from(congestion.cwnd().max(self.snd.packets_out()));
        most.min(u64::from(self.snd.mss()) * packets * u64::from(percent) * 10_000 / u64::from(srtt_us))
    }

    /// Whether what waits has to wait for its time (tcp_pacing_check()): then it has a timer.
    pub(super) fn is_paced(&mut self, now: u64) -> bool {
        let waits = self.settings.max_pacing_rate.is_some() && self.out.pace_at() > now;
        self.traits.set(Traits::PACED, waits);
        waits
    }

    /// So many bytes have left: the next ones wait until these would have at the rate (tcp_update_skb_after_send()).
    fn pace(&mut self, ctx: &Context<'_>, len: u32) {
        if self.settings.max_pacing_rate.is_none() {
            return;
        }
        let rate = u128::from(self.pacing_rate(ctx).max(1));
        let takes = u64::try_from(u128::from(len) * 1_000_000_000 / rate).unwrap_or(u64::MAX);
        let before = self.out.pace_at();
        let from = before.max(ctx.now);
        // Who drives the stack may be late: half of a packet's time at most is made up for.
        let late = from - before;
        self.out.set_pace_at(from.saturating_add(takes - late.min(takes / 2)).min(NEVER - 1));
    }

    /// The time has come for what pacing held back.
    pub(super) fn paced_due(&mut self, ctx: &mut Context<'_>) {
        if self.traits.contains(Traits::PACED) && self.out.pace_at() <= ctx.now {
            self.traits.remove(Traits::PACED);
            self.retransmit_lost(ctx);
            self.push_pending(ctx);
            // Where nothing waited any more, nothing was armed while this did.
            self.arm_probe(ctx);
        }
    }

    /// The rate is another one than that which what is owed was counted by: none, or as much as there was in another time. It holds from the next packet on.
    pub(super) fn repace(&mut self, ctx: &mut Context<'_>, before: u64) {
        let owed = self.out.pace_at().saturating_sub(ctx.now);
        let after = u128::from(self.pacing_rate(ctx).max(1));
        let owed = match self.settings.max_pacing_rate {
            Some(_) => {
                u64::try_from(u128::from(owed) * u128::from(before.max(1)) / after).unwrap_or(u64::MAX)
            }
            None => 0,
        };
        self.out.set_pace_at(ctx.now.saturating_add(owed).min(NEVER - 1));
        self.paced_due(ctx);
    }

    /// Bytes that a piece is filled up to (tcp_xmit_size_goal()).
    pub(super) fn piece_goal(&self, ctx: &Context<'_>, mss: u32) -> u32 {
        let whole = ctx.super_segment.saturating_sub(HEADERS + TIMESTAMPS_LEN + 14);
        let largest = self.snd.max_window();
        let half = if largest > 536 { largest >> 1 } else { largest };
        let goal = if half > 0 { whole.min(half.max(68 - 20)) } else { whole };
        (goal / mss * mss).max(mss)
    }

    /// Whether the piece, no longer than a segment, waits (tcp_nagle_test()).
    fn holds_back(&self, piece: Piece, mss: u32, rule: Small) -> bool {
        !piece.fin && self.waits(piece.len < mss, rule)
    }

    /// tcp_nagle_check().
    fn waits(&self, partial: bool, rule: Small) -> bool {
        partial
            && match rule {
                Small::Wait => true,
                Small::Leave => false,
                Small::Nagle => {
                    self.snd.has_unacked()
                        && self.small_end.after(self.snd.una())
                        && !self.small_end.after(self.snd.nxt())
                }
            }
    }

    /// Whether a super-segment waits to become a longer one (tcp_tso_should_defer()).
    fn defers(
        &mut self,
        ctx: &Context<'_>,
        piece: &Piece,
        mss: u32,
        longest: u32,
        last: bool,
        by_cwnd: &mut bool,
    ) -> bool {
        if self.snd.state() >= Recovery::Recovery || piece.fin || piece.closed {
            return false;
        }
        // Only while the program writes.
        if microseconds(ctx.now).wrapping_sub(self.sent_at) > 1_000 {
            return false;
        }
        let by_window = self.window_left();
        let cwnd = self.snd.congestion().cwnd();
        let by_congestion = cwnd.saturating_sub(self.snd.in_flight()).saturating_mul(mss);
        let limit = by_window.min(by_congestion);
        if limit >= longest.saturating_mul(mss) || (!last && limit >= piece.len) {
            return false;
        }
        let share = self.snd.window().min(cwnd.saturating_mul(mss));
        let enough = share.checked_div(ctx.config.tso_window_divisor.into()).unwrap_or(3 * mss + 1);
        if limit >= enough {
            return false;
        }
        let (Some(oldest), Some(srtt_us)) = (self.snd.oldest_sent_at(), self.snd.rtt().srtt_us()) else {
            return false;
        };
        // An ACK that comes late would find nothing under way.
        let srtt = u64::from(srtt_us) * 1000;
        let soon = oldest.saturating_add(srtt).saturating_sub(ctx.now);
        if soon > (srtt >> 1).min(1_000_000) {
            return false;
        }
        if by_congestion < by_window && by_congestion <= piece.len {
            *by_cwnd = true;
        }
        true
    }

    /// How much of the piece goes into one packet (tcp_mss_split_point()).
    fn split_point(&self, piece: Piece, mss: u32, packets: u32, room: u32, rule: Small, last: bool) -> u32 {
        if piece.len <= mss {
            return piece.len;
        }
        let most = mss.saturating_mul(packets);
        if most <= room && !last {
            return most.min(piece.len);
        }
        let needed = piece.len.min(room);
        if most <= needed {
            return most;
        }
        let partial = needed % mss;
        if self.waits(partial != 0, rule) && needed > partial { needed - partial } else { needed }
    }

    /// Sends the first `len` bytes that wait, whatever the window of congestion is.
    pub(super) fn send_waiting(&mut self, ctx: &mut Context<'_>, len: u32) -> Sent {
        let mss = self.snd.mss();
        self.send_piece(ctx, len, mss)
    }

    /// Sends the first `len` bytes of the first piece. What does not leave this host goes on waiting.
    fn send_piece(&mut self, ctx: &mut Context<'_>, len: u32, mss: u32) -> Sent {
        let seq = self.snd.nxt();
        // FIN comes last, so nothing but bytes is under way.
        let offset = u64::from(self.flight());
        let mut len = self.out.unsent().first().map_or(0, |first| first.len.min(len));
        // No more fragments than the link takes; and pushed there, as the kernel does where an sk_buff has no more place for one.
        let (packet, full) = self.packet(ctx, offset, len);
        if full {
            len = packet.len() as u32;
        }
        // It ends, too, where memory of another kind begins that no chain has both of, and is not joined to that when it is sent again.
        let ends = packet.len() as u32;
        let mut piece = self.out.unsent_mut().take(len.min(ends));
        let taken = piece;
        piece.push |= full;
        piece.closed |= ends < len;
        let packets = piece.len.div_ceil(mss).max(1);
        let mut flags = Flags::ACK;
        flags.set(Flags::PSH, (piece.push && piece.len > 0) || packets > 1);
        flags.set(Flags::FIN, piece.fin);
        if self.traits.contains(Traits::ECN) && self.snd.take_cwr() {
            flags |= Flags::CWR;
        }
        let cut = (packets > 1).then_some(mss.min(u32::from(u16::MAX)) as u16);
        let transmit = Transmit {
            seq,
            len: piece.len,
            fin: piece.fin,
            syn: false,
            packets,
            eor: piece.closed,
            push: piece.push,
        };
        let header = self.header(ctx.now, flags, seq);
        self.rcv.data_sent(ctx.now);
        let sent = self.emit_with(ctx, header, packet, cut, true);
        if sent == Sent::Refused {
            self.out.unsent_mut().put_back(taken);
            return sent;
        }
        if piece.len < mss {
            self.small_end = seq.plus(piece.len);
        }
        self.snd.transmitted(ctx.now, transmit);
        self.sent_at = microseconds(ctx.now);
        self.pace(ctx, piece.len);
        sent
    }

    /// A packet of up to `len` bytes from byte `at` of what is queued, by reference: fewer where memory of another kind begins, and where the link takes
    /// no more fragments; whether it is that.
    fn packet(&self, ctx: &Context<'_>, at: u64, len: u32) -> (Packet, bool) {
        let (packet, most) = (self.out.packet(at, len as usize), ctx.fragments.max(1));
        let payload = packet.payload().payload();
        if payload.fragment_count() <= most {
            return (packet, false);
        }
        let fits = payload.fragments().take(most).map(|fragment| fragment.len()).sum();
        (self.out.packet(at, fits), true)
    }

    /// Sends again what was lost, as far as the window of congestion lets it.
    pub(super) fn retransmit_lost(&mut self, ctx: &mut Context<'_>) {
        if !self.snd.awaits_resending() {
            return;
        }
        // What has come out of order since takes room in each segment (tcp_current_mss()).
        self.snd.set_mss(self.segment_len(ctx));
        let longest = self.longest(ctx, self.snd.mss());
        while !self.is_paced(ctx.now)
            && let Some(transmit) = self.snd.next_retransmission(longest)
        {
            if self.retransmit(ctx, transmit) == Sent::Refused {
                break;
            }
        }
    }

    /// Sends it again.
    fn retransmit(&mut self, ctx: &mut Context<'_>, mut transmit: Transmit) -> Sent {
        let mss = self.snd.mss();
        let at = transmit.seq.since(self.snd.una()).max(0) as u64;
        let (packet, _) = self.packet(ctx, at, transmit.len);
        let ends = packet.len() as u32;
        if ends < transmit.len {
            // Small pieces were joined that are of two kinds of memory, or more fragments than the link takes: the rest goes next.
            let packets = ends.div_ceil(mss).max(1);
            transmit = Transmit { len: ends, fin: false, push: true, packets, ..transmit };
        }
        let mut flags = Flags::ACK;
        flags.set(Flags::PSH, transmit.packets > 1 || transmit.len > 0 && transmit.push);
        flags.set(Flags::FIN, transmit.fin);
        let cut = (transmit.packets > 1).then_some(mss.min(u32::from(u16::MAX)) as u16);
        let header = self.header(ctx.now, flags, transmit.seq);
        ctx.stats.retransmitted += u64::from(transmit.packets);
        let sent = self.emit_with(ctx, header, packet, cut, false);
        match sent {
            Sent::Left => {
                self.snd.retransmitted(ctx.now, &transmit);
                self.pace(ctx, transmit.len);
            }
            Sent::Refused => self.snd.not_retransmitted(ctx.now, &transmit),
        }
        sent
    }

    /// An empty segment of a place that the peer has: it answers what it has room for (the kernel's tcp_xmit_probe_skb()).
    pub(super) fn send_probe(&mut self, ctx: &mut Context<'_>) -> Sent {
        let seq: Seq = self.snd.una().minus(1);
        ctx.stats.probes += 1;
        let header = self.header(ctx.now, Flags::ACK, seq);
        self.emit(ctx, header)
    }

    /// Whether [`Connection::arm_probe`] would change anything.
    pub(super) fn probe_moves(&self) -> bool {
        match self.probe_at {
            NEVER => !self.snd.has_unacked() && (!self.out.unsent().is_empty() || self.is_restless()),
            _ if self.snd.has_unacked() => true,
            _ => !self.out.unsent().is_empty() && self.traits.contains(Traits::RESTING),
        }
    }

    /// Where something waits and nothing is under way whose ACK would let it go, the peer's window is asked for in time. Where nothing waits,
    /// memory is given back after a while.
    pub(super) fn arm_probe(&mut self, ctx: &Context<'_>) {
        if self.snd.has_unacked() || self.traits.contains(Traits::PACED) {
            self.probe_at = NEVER;
        } else if !self.out.unsent().is_empty() {
            if self.probe_at == NEVER || self.traits.contains(Traits::RESTING) {
                self.probe_at = ctx.now.saturating_add(self.probe_wait(ctx.config));
                self.traits.remove(Traits::RESTING);
            }
        } else if self.probe_at == NEVER && self.is_restless() {
            self.probe_at = ctx.now.saturating_add(RESTS_AFTER);
            self.traits |= Traits::RESTING;
        }
    }
}
