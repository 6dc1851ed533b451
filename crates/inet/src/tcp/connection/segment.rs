//! How a segment's header is made.

use super::{Connection, Traits, milliseconds};
use crate::tcp::emit::{Context, Outgoing, Sent};
use crate::wire::tcp::Timestamps;
use crate::wire::{Flags, Seq, Tcp};
use onecopy_link::Packet;

/// Bytes of the fixed headers of IPv4 and TCP.
pub(super) const HEADERS: u32 = 40;
/// The option of timestamps, filled up.
pub(super) const TIMESTAMPS_LEN: u32 = 12;
/// ECT(0) in the network's type of service (RFC 3168, section 5).
pub(super) const ECT0: u8 = 2;

impl Connection {
    /// Bytes of payload that a segment has now: what the way and the peer take, less the options, and not more than half of the largest
    /// window that the peer ever had (the kernel's tcp_sync_mss(), tcp_bound_to_half_wnd()).
    pub(super) fn segment_len(&self, ctx: &Context<'_>) -> u32 {
        let way = ctx.mtu.saturating_sub(HEADERS);
        let mut mss = way.min(self.peer_mss.into());
        if let Some(most) = self.settings.max_segment {
            mss = mss.min(most.into());
        }
        let options = if self.traits.contains(Traits::TIMESTAMPS) { TIMESTAMPS_LEN } else { 0 };
        mss = mss.saturating_sub(options).max(48);
        let largest = self.snd.max_window();
        let half = if largest > 536 { largest >> 1 } else { largest };
        if half > 0 && mss > half {
            mss = half.max(68 - 20 - options);
        }
        // What was received out of order is said in each segment.
        let blocks = (self.rcv.sack_count() as u32).min(if options > 0 { 3 } else { 4 });
        if blocks > 0 { mss.saturating_sub(4 + 8 * blocks).max(8) } else { mss }
    }

    /// A header that says what all say: what has arrived, the window, the time.
    pub(super) fn header(&mut self, now: u64, flags: Flags, seq: Seq) -> Tcp {
        let mut header = Tcp { seq, flags, ..Tcp::default() };
        if self.traits.contains(Traits::TIMESTAMPS) {
            let echo = self.rcv.ts_recent().unwrap_or(0);
            header.options.timestamps = Some(Timestamps { value: self.clock(now), echo });
        }
        if flags.contains(Flags::ACK) {
            header.ack = self.rcv.nxt();
            header.window = self.rcv.window();
            if self.traits.contains(Traits::SACK) {
                header.options.sack = self.rcv.sack_blocks(header.options.room_for_blocks());
            }
            if self.rcv.echoes_congestion() && !flags.contains(Flags::RST) {
                header.flags |= Flags::ECE;
            }
        }
        header
    }

    /// Sends a segment without data; says whether it left.
    pub(super) fn emit(&mut self, ctx: &mut Context<'_>, header: Tcp) -> Sent {
        self.emit_with(ctx, header, Packet::default(), None, false)
    }

    /// As [`Connection::emit`], of the bytes in `packet`; `fresh` data takes part in ECN (RFC 3168, section 6.1.5: what is sent again does not).
    pub(super) fn emit_with(
        &mut self,
        ctx: &mut Context<'_>,
        mut header: Tcp,
        packet: Packet,
        cut: Option<u16>,
        fresh: bool,
    ) -> Sent {
        let ect = if fresh && self.traits.contains(Traits::ECN) { ECT0 } else { 0 };
        if header.flags.contains(Flags::ACK) {
            self.rcv.ack_sent();
        }
        // (Nor does the kernel count the answer to a SYN that opens one early.)
        if !(header.flags.contains(Flags::SYN) && self.opens_early()) {
            let packets = cut.map_or(1, |cut| (packet.len() as u32).div_ceil(cut.max(1).into()));
            self.snd.count_out(packets);
        }
        ctx.stats.segments_out += 1;
        let (service, ttl) = (self.settings.service & !3 | ect, self.settings.ttl);
        let sent = ctx.out.emit(Outgoing { header: &mut header, packet, cut, service, ttl });
        if sent == Sent::Refused {
            ctx.stats.refused += 1;
            if self.state.is_synchronized() {
                // This host is congested, as any other on the way may be (tcp_transmit_skb()).
                self.snd.congested();
            }
        }
        sent
    }

    /// Says what has arrived.
    pub(super) fn send_ack(&mut self, ctx: &mut Context<'_>) {
        let seq = self.acceptable_seq();
        let header = self.header(ctx.now, Flags::ACK, seq);
        self.emit(ctx, header);
    }

    /// A place that the peer takes for one in its window, even where it has shrunk that (the kernel's tcp_acceptable_seq()).
    pub(super) fn acceptable_seq(&self) -> Seq {
        let (end, nxt) = (self.snd.window_end(), self.snd.nxt());
        let close = self.traits.contains(Traits::SCALED) && nxt.since(end) < 1 << self.peer_shift;
        if !end.before(nxt) || close { nxt } else { end }
    }

    /// Ends it for the peer.
    pub(super) fn send_reset(&mut self, ctx: &mut Context<'_>) {
        let seq = self.acceptable_seq();
        let header = self.header(ctx.now, Flags::RST | Flags::ACK, seq);
        ctx.stats.resets_out += 1;
        self.emit(ctx, header);
    }

    /// Answers what should not have come, unless that was done not long ago (the kernel's tcp_oow_rate_limited()).
    pub(super) fn may_scold(&mut self, ctx: &mut Context<'_>) -> bool {
        let (limit, now) = (ctx.config.invalid_ratelimit.as_millis(), milliseconds(ctx.now));
        if self.scolded_at != 0 && u128::from(now.wrapping_sub(self.scolded_at)) < limit {
            ctx.stats.rate_limited += 1;
            return false;
        }
        self.scolded_at = now.max(1);
        true
    }

    /// An ACK by which who really is the peer shows itself (RFC 5961).
    pub(super) fn challenge(&mut self, ctx: &mut Context<'_>) {
        if self.may_scold(ctx) {
            ctx.stats.challenges += 1;
            self.send_ack(ctx);
        }
    }
}
