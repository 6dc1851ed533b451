//! What is lost: RACK, by time (RFC 8985); without SACK NewReno, by counting (RFC 6582). And probes of the tail (RFC 8985, section 7).

use super::ack::{Flags, Round};
use super::*;

/// A timer takes at least so long (Linux's TCP_TIMEOUT_MIN_US).
pub(super) const TIMER_MIN_US: u32 = 2_000;
/// What a probe waits longer for a single packet, whose acknowledgement may be delayed (Linux's tcp_rto_min).
const DELAYED_ACK_US: u32 = 200_000;
/// For so many recoveries a wider reordering window stays.
pub(super) const REO_WND_PERSISTS: u8 = 16;

/// Whether something was sent after something else. Of what was sent at once, the bytes behind count as later.
fn sent_after(a: (u64, Seq), b: (u64, Seq)) -> bool {
    a.0 > b.0 || (a.0 == b.0 && a.1.after(b.1))
}

/// What RACK found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Detected {
    /// Something was held to be lost that was not before.
    pub lost: bool,
    /// In so many µs something else will be.
    pub again_in_us: Option<u32>,
}

impl Sender {
    /// A piece was delivered (tcp_rack_advance).
    pub(super) fn rack_advance(&mut self, f: &mut Flight, round: &Round, piece: &Piece) {
        let rtt = since_us(round.now, piece.sent);
        // Sooner than the path allows: it was the first copy that arrived.
        if piece.is(Marks::RESENT | Marks::EVER_RESENT) && self.rtt.min_us().is_none_or(|min| rtt < min) {
            return;
        }
        f.rack_advanced = true;
        self.rack_rtt_us = rtt;
        if sent_after((piece.sent, piece.end()), (f.rack_sent, f.rack_end)) {
            (f.rack_sent, f.rack_end) = (piece.sent, piece.end());
        }
    }

    /// How long something may arrive later than what was sent after it (tcp_rack_reo_wnd; RFC 8985, section 6.2, step 4).
    fn reordering_window_us(&self, f: &Flight) -> u32 {
        let (seen, steps) = self.history.as_ref().map_or((0, 1), |h| (h.reord_seen, h.reo_wnd_steps));
        if seen == 0 && (self.state >= State::Recovery || f.board.sacked >= self.reordering.into()) {
            return 0;
        }
        let step = self.rtt.min_us().unwrap_or(u32::MAX) / 4;
        step.saturating_mul(steps.into()).min(self.rtt.srtt_us().unwrap_or(0))
    }

    /// In how many µs a piece is lost (tcp_rack_skb_timeout).
    pub(super) fn rack_left(&self, now: u64, sent: u64, window_us: u32) -> Option<u32> {
        let until = u64::from(self.rack_rtt_us) + u64::from(window_us);
        let left = until.checked_sub(us(now).saturating_sub(sent)).filter(|left| *left > 0)?;
        u32::try_from(left).ok()
    }

    /// Whatever was sent so long before something that was delivered is lost (tcp_rack_detect_loss). It looks at what was sent once in
    /// the order of numbers, which is that of time, and at what was sent again in the order of time; both only as far as needed.
    pub(super) fn rack_detect(&mut self, f: &mut Flight, now: u64) -> Detected {
        let window = self.reordering_window_us(f);
        let mut found = Detected::default();
        let rack = (f.rack_sent, f.rack_end);

        let mut index = f.board.at(f.board.judged);
        let mut gapless = true;
        while let Some(piece) = f.board.pieces.get(index).copied() {
            let copy = piece.is(Marks::EVER_RESENT);
            if !copy && !piece.is(Marks::JUDGED) && !piece.awaits_resending() {
                if !sent_after(rack, (piece.sent, piece.end())) {
                    break;
                }
                gapless &= self.judge(f, now, index, window, &mut found);
            } else {
                gapless &= copy || piece.is(Marks::JUDGED);
            }
            if gapless {
                f.board.judged = piece.end();
            }
            index += 1;
        }

        let mut next = 0;
        while let Some(copy) = f.board.copies.get(next).copied() {
            if !sent_after(rack, (copy.sent, copy.from.plus(1))) {
                break;
            }
            let mut flies = false;
            let mut index = f.board.at(copy.from);
            while let Some(piece) = f.board.pieces.get(index).filter(|piece| piece.seq.before(copy.until)) {
                if piece.sent == copy.sent && !piece.is(Marks::JUDGED) {
                    let later = piece.awaits_resending() || !sent_after(rack, (piece.sent, piece.end()));
                    flies |= later || !self.judge(f, now, index, window, &mut found);
                }
                index += 1;
            }
            if !flies && next == 0 {
                f.board.copies.pop_front();
            } else {
                next += 1;
            }
        }
        found
    }

    /// Whether a piece has had its time. If so, it is lost.
    fn judge(&mut self, f: &mut Flight, now: u64, index: usize, window: u32, found: &mut Detected) -> bool {
        let Some(piece) = f.board.pieces.get_mut(index) else { return true };
        if let Some(left) = self.rack_left(now, piece.sent, window) {
            found.again_in_us = Some(found.again_in_us.unwrap_or(0).max(left));
            return false;
        }
        piece.marks |= Marks::JUDGED;
        f.lost_ever = f.lost_ever.wrapping_add(f.board.mark_lost(index));
        found.lost = true;
        true
    }

    /// What is lost after an acknowledgement (tcp_identify_packet_loss).
    pub(super) fn identify_losses(&mut self, f: &mut Flight, round: &mut Round) {
        if f.board.pieces.is_empty() {
            return;
        }
        if !self.has.contains(Has::SACK) {
            self.newreno_mark_lost(f, round.flags.contains(Flags::ADVANCED));
            return;
        }
        let resent = f.board.resent;
        if std::mem::take(&mut f.rack_advanced) {
            let found = self.rack_detect(f, round.now);
            if let Some(left) = found.again_in_us {
                let at = round.now + u64::from(left.saturating_add(TIMER_MIN_US).min(self.rto_us)) * 1_000;
                self.arm(Armed::Reordering, at);
                round.flags -= Flags::SET_TIMER;
            }
        }
        if resent > f.board.resent {
            round.flags |= Flags::COPY_LOST;
        }
    }

    /// Without SACK: three duplicates say that the first packet is lost, and in recovery each partial acknowledgement says it of the next
    /// (RFC 6582; tcp_newreno_mark_lost).
    fn newreno_mark_lost(&mut self, f: &mut Flight, advanced: bool) {
        let begins = self.state < State::Recovery && f.board.sacked >= self.reordering.into();
        let goes_on = self.state == State::Recovery && advanced;
        if !begins && !goes_on {
            return;
        }
        let Some(first) = f.board.pieces.front().filter(|first| !first.is(Marks::LOST)) else { return };
        let mss = first.mss;
        if first.packets > 1 && first.data() > mss.into() {
            let len = u32::from(mss) + u32::from(first.is(Marks::SYN));
            f.board.split(0, len, mss, true);
        }
        f.lost_ever = f.lost_ever.wrapping_add(f.board.mark_lost(0));
    }

    /// The time for reordering is over (tcp_rack_reo_timeout).
    pub(super) fn reordering_over(&mut self, f: &mut Flight, now: u64) {
        let before = f.board.in_flight();
        self.rack_detect(f, now);
        if f.board.in_flight() != before {
            if self.state != State::Recovery {
                self.enter_recovery(f, false);
                self.reduce_step(f, 1, 0, false);
            }
            f.due = Due::Lost;
        }
    }

    /// The window for reordering grows with DSACKs that came although it was waited, once for each round trip, and stays so for 16
    /// recoveries (tcp_rack_update_reo_wnd).
    pub(super) fn widen_reordering_window(&mut self, f: &mut Flight, delivered_before: Option<u32>) {
        let Some(before) = delivered_before.filter(|before| *before > 0) else { return };
        if (before.wrapping_sub(f.rack_delivered) as i32) < 0 {
            f.rack_dsack = false;
        }
        let delivered = self.delivered;
        let Some(history) = &mut self.history else { return };
        if std::mem::take(&mut f.rack_dsack) {
            history.reo_wnd_steps = history.reo_wnd_steps.saturating_add(1);
            history.reo_wnd_persist = REO_WND_PERSISTS;
            f.rack_delivered = delivered;
        } else if history.reo_wnd_persist == 0 {
            history.reo_wnd_steps = 1;
        }
    }

    /// Arms the probe of the tail: after two round trips, and longer if a single packet is out; no later than the timeout
    /// (tcp_schedule_loss_probe in net/ipv4/tcp_output.c). Says whether it did. `anew`: the timeout counts from now.
    pub(super) fn schedule_probe(&mut self, f: &Flight, now: u64, anew: bool) -> bool {
        let may = matches!(self.state, State::Open | State::Cwr)
            && self.has.contains(Has::SACK)
            && !self.has.contains(Has::NO_PROBES);
        if !may || f.board.out == 0 {
            return false;
        }
        let mut wait = match self.rtt.srtt_us() {
            Some(srtt) if f.board.out == 1 => srtt.saturating_mul(2).saturating_add(DELAYED_ACK_US),
            Some(srtt) => srtt.saturating_mul(2).saturating_add(TIMER_MIN_US),
            None => 1_000_000,
        };
        let timeout = if anew { Some(self.rto_us) } else { self.rto_left_us(f, now) };
        if let Some(timeout) = timeout {
            wait = wait.min(timeout);
        }
        self.arm(Armed::Probe, now + u64::from(wait) * 1_000);
        true
    }

    /// The time of the probe has come (tcp_send_loss_probe). `fresh` says whether new data could be sent.
    pub(super) fn probe(&mut self, f: &mut Flight, now: u64, fresh: bool) -> Timeout {
        let timeout = if f.tlp.is_some() || f.board.out == 0 {
            Timeout::Nothing
        } else if fresh {
            self.has |= Has::PROBING;
            Timeout::ProbeNew
        } else {
            f.forced = Some(Forced::Last);
            Timeout::Retransmit
        };
        self.rearm(f, now);
        timeout
    }

    /// The probe was sent: `again` says whether it had been before.
    pub(super) fn probed(&mut self, f: &mut Flight, now: u64, again: bool) {
        f.tlp = Some(Tlp { high: self.nxt, again });
        // The timeout counts from now.
        self.armed = Armed::Nothing;
        self.rearm(f, now);
    }

    /// What an acknowledgement says of the probe (tcp_process_tlp_ack): if it was sent a second time, and nobody tells of having got it
    /// twice, it repaired a loss, which has to count as one.
    pub(super) fn probe_answered(&mut self, f: &mut Flight, round: &Round, ack: Seq) {
        let Some(tlp) = f.tlp.filter(|tlp| !ack.before(tlp.high)) else { return };
        if !tlp.again || round.flags.contains(Flags::DSACK_PROBE) {
            f.tlp = None;
        } else if ack.after(tlp.high) {
            self.begin_reduction(f, false);
            self.set_state(State::Cwr);
            self.congestion.settle(round.now);
            self.keep_open(f);
        } else if !round.flags.intersects(Flags::ADVANCED | Flags::NOT_DUP | Flags::DATA_SACKED) {
            // Both arrived.
            f.tlp = None;
        }
    }
}
