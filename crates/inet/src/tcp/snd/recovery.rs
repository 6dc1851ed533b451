//! The states of a sender that loses packets, and how it takes back what it did for nothing.

use super::ack::{Flags, Round};
use super::rack::REO_WND_PERSISTS;
use super::*;

/// What a sender does (Linux's tcp_ca_state).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// Nothing is dubious.
    #[default]
    Open = 0,
    /// Something arrived out of order, or twice.
    Disorder = 1,
    /// The window becomes smaller since the network is congested: it said so, or a probe repaired a loss.
    Cwr = 2,
    /// The window becomes smaller since packets were lost; they are sent again.
    Recovery = 3,
    /// The timer ran out: what was outstanding is held to be lost.
    Loss = 4,
}

impl State {
    /// Whether the window becomes smaller, packet by packet.
    pub(super) fn reduces(self) -> bool {
        matches!(self, State::Cwr | State::Recovery)
    }
}

impl Sender {
    pub(super) fn set_state(&mut self, state: State) {
        self.state = state;
    }

    /// Takes a dubious acknowledgement: finds losses, and changes the state (tcp_fastretrans_alert). `duplicates` is how many duplicate
    /// acknowledgements it counts as.
    pub(super) fn alert(&mut self, f: &mut Flight, round: &mut Round, prior_una: Seq, duplicates: u32) {
        let sack = self.has.contains(Has::SACK);
        let ece = round.flags.contains(Flags::ECE);
        if f.board.out == 0 {
            f.board.sacked = 0;
        }
        if ece {
            self.congestion.forget_undo();
        }
        if self.wait_for_reneging(round) {
            return;
        }
        if self.state == State::Open {
            f.first_resent = None;
        } else if !self.una.before(f.high) {
            match self.state {
                // CWR is to have reached the receiver.
                State::Cwr if self.una != f.high => {
                    self.congestion.settle(round.now);
                    self.set_state(State::Open);
                }
                State::Recovery => {
                    if !sack {
                        f.board.sacked = 0;
                    }
                    let held = self.try_undo_recovery(f, round);
                    if held {
                        return;
                    }
                    self.congestion.settle(round.now);
                }
                _ => {}
            }
        }
        match self.state {
            State::Recovery => {
                if !round.flags.contains(Flags::ADVANCED) {
                    if !sack {
                        self.add_duplicates(f, duplicates);
                    }
                } else if self.try_undo_partial(f, round, prior_una) {
                    return;
                }
                if self.try_undo_dsack(f, round) {
                    self.try_to_open(f, round);
                }
                self.identify_losses(f, round);
                if self.state != State::Recovery {
                    if f.board.lost == 0 {
                        return;
                    }
                    self.enter_recovery(f, ece);
                }
                f.due = Due::Lost;
                return;
            }
            State::Loss => {
                self.process_loss(f, round, duplicates);
                if self.state != State::Loss {
                    self.loss_ends(f, round.now);
                }
                self.identify_losses(f, round);
                if self.state != State::Open && !round.flags.contains(Flags::COPY_LOST) {
                    return;
                }
            }
            _ => {}
        }
        if !sack {
            if round.flags.contains(Flags::ADVANCED) {
                f.board.sacked = 0;
            }
            self.add_duplicates(f, duplicates);
        }
        if self.state <= State::Disorder {
            self.try_undo_dsack(f, round);
        }
        self.identify_losses(f, round);
        if f.board.lost == 0 {
            self.try_to_open(f, round);
            return;
        }
        self.enter_recovery(f, ece);
        f.due = Due::Lost;
    }

    /// An acknowledgement that ends at something selected says that the receiver threw it away. It gets some time to correct itself
    /// before the timer believes it (tcp_check_sack_reneging).
    fn wait_for_reneging(&mut self, round: &mut Round) -> bool {
        if !round.flags.contains(Flags::RENEGING | Flags::ADVANCED) {
            return false;
        }
        let wait = (self.rtt.srtt_us().unwrap_or(0) / 2).max(10_000);
        self.arm(Armed::Timeout, round.now + u64::from(wait) * 1_000);
        round.flags -= Flags::SET_TIMER;
        true
    }

    /// The window begins to shrink (tcp_init_cwnd_reduction).
    pub(super) fn begin_reduction(&mut self, f: &mut Flight, undoable: bool) {
        f.high = self.nxt;
        f.tlp = None;
        f.prr = Some(Prr::new(self.congestion.cwnd()));
        self.congestion.reduce(undoable);
        self.has |= Has::CWR;
    }

    /// The window after an acknowledgement while it shrinks (tcp_cwnd_reduction).
    pub(super) fn reduce_step(&mut self, f: &mut Flight, delivered: u32, lost: u32, advanced: bool) {
        let Some(prr) = &mut f.prr else { return };
        let in_flight = f.board.in_flight();
        if let Some(cwnd) = prr.step(delivered, lost, in_flight, self.congestion.ssthresh(), advanced) {
            self.congestion.set_cwnd(cwnd);
        }
    }

    /// The network says that it is congested. That cannot be undone (tcp_enter_cwr).
    pub(super) fn enter_cwr(&mut self, f: &mut Flight) {
        self.congestion.forget_undo();
        if self.state < State::Cwr {
            f.undo_marker = None;
            self.begin_reduction(f, false);
            self.set_state(State::Cwr);
        }
    }

    /// Something is lost (tcp_enter_recovery).
    pub(super) fn enter_recovery(&mut self, f: &mut Flight, ece: bool) {
        if !any_resent(f) {
            f.first_resent = None;
        }
        self.congestion.forget_undo();
        self.begin_undo(f);
        if !self.state.reduces() {
            self.begin_reduction(f, !ece);
        }
        self.set_state(State::Recovery);
    }

    /// From here on it is counted what may show that this was for nothing (tcp_init_undo).
    pub(super) fn begin_undo(&mut self, f: &mut Flight) {
        f.undo_marker = Some(self.una);
        let probe = u32::from(f.tlp.is_some_and(|tlp| tlp.again));
        // None, since 0 would mean that all of them were for nothing.
        f.undo_retrans = Some(f.board.resent + probe).filter(|count| *count > 0);
    }

    /// Whether the acknowledgement is for something that was sent before anything was sent again (tcp_packet_delayed). Who says so is
    /// the echo of our timestamp (Eifel, RFC 3522); or nothing has been sent again.
    fn was_delayed(&self, f: &Flight, round: &Round) -> bool {
        if let Some(first) = f.first_resent {
            return round.echo_before(first);
        }
        let kept_by_reno = !self.has.contains(Has::SACK) && !self.una.before(f.high);
        !kept_by_reno && !round.flags.contains(Flags::SYN_ACKED)
    }

    fn may_undo(&self, f: &Flight, round: &Round) -> bool {
        f.undo_marker.is_some() && (f.undo_retrans == Some(0) || self.was_delayed(f, round))
    }

    /// Takes a reduction of the window back (tcp_undo_cwnd_reduction).
    fn undo(&mut self, f: &mut Flight, round: &Round, unmark: bool) {
        if unmark {
            f.board.unmark_lost();
        }
        if self.congestion.undo(round.now) {
            self.has -= Has::CWR;
        }
        f.undo_marker = None;
        f.rack_advanced = true;
    }

    /// Without SACK the state stays until more than `high` is acknowledged: what is acknowledged again may be what was sent again
    /// (RFC 6582, section 6; tcp_is_non_sack_preventing_reopen).
    fn held_by_reno(&mut self, f: &mut Flight) -> bool {
        let held = self.una == f.high && !self.has.contains(Has::SACK);
        if held && !any_resent(f) {
            f.first_resent = None;
        }
        held
    }

    /// All that was outstanding when it began is acknowledged (tcp_try_undo_recovery). Says whether the state stays.
    fn try_undo_recovery(&mut self, f: &mut Flight, round: &Round) -> bool {
        if self.may_undo(f, round) {
            self.undo(f, round, false);
        } else if let Some(history) = &mut self.history {
            history.reo_wnd_persist = history.reo_wnd_persist.saturating_sub(1);
        }
        if self.held_by_reno(f) {
            return true;
        }
        self.set_state(State::Open);
        f.reneging = false;
        false
    }

    /// DSACKs told that all that was sent again had arrived before (tcp_try_undo_dsack).
    fn try_undo_dsack(&mut self, f: &mut Flight, round: &Round) -> bool {
        if f.undo_marker.is_none() || f.undo_retrans != Some(0) {
            return false;
        }
        let history = self.history();
        history.reo_wnd_persist = (history.reo_wnd_persist + 1).min(REO_WND_PERSISTS);
        self.undo(f, round, false);
        true
    }

    /// What the timer held to be lost was not (tcp_try_undo_loss). `original`: F-RTO has seen something arrive that was sent once.
    fn try_undo_loss(&mut self, f: &mut Flight, round: &Round, original: bool) -> bool {
        if !original && !self.may_undo(f, round) {
            return false;
        }
        self.undo(f, round, true);
        self.retransmits = 0;
        if !self.held_by_reno(f) && (original || self.has.contains(Has::SACK)) {
            self.set_state(State::Open);
            f.reneging = false;
        }
        true
    }

    /// The first hole was filled by what was late, not by what was sent again (tcp_try_undo_partial). Says whether to send nothing again.
    fn try_undo_partial(&mut self, f: &mut Flight, round: &Round, prior_una: Seq) -> bool {
        if f.undo_marker.is_some() && self.was_delayed(f, round) {
            self.note_reordering(f, prior_una);
            if f.board.resent > 0 {
                return true;
            }
            if !any_resent(f) {
                f.first_resent = None;
            }
            self.undo(f, round, true);
            self.keep_open(f);
        }
        false
    }

    /// Nothing is lost, but maybe something is missing (tcp_try_keep_open).
    pub(super) fn keep_open(&mut self, f: &mut Flight) {
        let dubious = f.board.left() > 0 || any_resent(f);
        let state = if dubious { State::Disorder } else { State::Open };
        if self.state != state {
            self.set_state(state);
            f.high = self.nxt;
        }
    }

    /// As [`Sender::keep_open`], unless the network says that it is congested (tcp_try_to_open).
    fn try_to_open(&mut self, f: &mut Flight, round: &Round) {
        if !any_resent(f) {
            f.first_resent = None;
        }
        if round.flags.contains(Flags::ECE) {
            self.enter_cwr(f);
        }
        if self.state != State::Cwr {
            self.keep_open(f);
        }
    }

    /// After the timer ran out (tcp_process_loss): was that right (F-RTO, RFC 5682, section 3.1), and what is to be sent?
    fn process_loss(&mut self, f: &mut Flight, round: &mut Round, duplicates: u32) {
        let recovered = !self.una.before(f.high);
        let advanced = round.flags.contains(Flags::ADVANCED);
        if advanced && self.try_undo_loss(f, round, false) {
            return;
        }
        if f.frto {
            // Step 3.b: what was sent once has arrived.
            if round.flags.contains(Flags::ORIGINAL) && self.try_undo_loss(f, round, true) {
                return;
            }
            if self.nxt.after(f.high) {
                // Step 3.a: what was sent since arrived, and there are holes before it.
                if round.flags.contains(Flags::DATA_SACKED) || duplicates > 0 {
                    f.frto = false;
                }
            } else if advanced && !recovered {
                // Step 2.b: new data will tell.
                f.high = self.nxt;
                if round.unsent && self.window_end().after(self.nxt) {
                    f.due = Due::New;
                    return;
                }
                f.frto = false;
            }
        }
        if recovered {
            self.try_undo_recovery(f, round);
            return;
        }
        if !self.has.contains(Has::SACK) {
            if self.nxt.after(f.high) && duplicates > 0 {
                self.add_duplicates(f, duplicates);
            } else if advanced {
                f.board.sacked = 0;
            }
        }
        f.due = Due::Lost;
    }

    fn loss_ends(&mut self, f: &mut Flight, now: u64) {
        if let Some(since) = f.loss_since.take() {
            let history = self.history();
            history.rto_time_ms = history.rto_time_ms.saturating_add(since_us(now, since) / 1_000);
        }
    }

    /// Without SACK each duplicate stands for a packet that left the network (tcp_add_reno_sack).
    fn add_duplicates(&mut self, f: &mut Flight, duplicates: u32) {
        if duplicates == 0 {
            return;
        }
        let before = f.board.sacked;
        f.board.sacked += duplicates;
        self.limit_duplicates(f, 0);
        self.delivered = self.delivered.wrapping_add(f.board.sacked.saturating_sub(before));
    }

    /// `acked` packets were acknowledged without SACK: one filled the hole, the others had been duplicates (tcp_remove_reno_sacks).
    pub(super) fn remove_duplicates(&mut self, f: &mut Flight, acked: u32) {
        if acked > 0 {
            self.delivered = self.delivered.wrapping_add(acked.saturating_sub(f.board.sacked).max(1));
            f.board.sacked = f.board.sacked.saturating_sub(acked - 1);
        }
        self.limit_duplicates(f, acked);
    }

    /// More duplicates than packets behind the hole: their order was changed (tcp_check_reno_reordering).
    fn limit_duplicates(&mut self, f: &mut Flight, more: u32) {
        let holes = f.board.lost.max(1).min(f.board.out);
        if f.board.sacked + holes <= f.board.out {
            return;
        }
        f.board.sacked = f.board.out - holes;
        self.reordering = (f.board.out + more).min(MAX_REORDERING) as u16;
        let history = self.history();
        history.reord_seen = history.reord_seen.saturating_add(1);
    }
}

/// Whether something outstanding was sent again (tcp_any_retrans_done).
pub(super) fn any_resent(f: &Flight) -> bool {
    f.board.resent > 0 || f.board.pieces.front().is_some_and(|first| first.is(Marks::EVER_RESENT))
}
