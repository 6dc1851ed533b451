//! Timers: one deadline, which is that of the retransmission timeout (RFC 6298), of a probe of the tail or of RACK's reordering window.

use super::recovery::any_resent;
use super::*;

/// No deadline.
pub(super) const NEVER: u64 = u64::MAX;

/// After that what this host had no room for is tried again (TCP_RESOURCE_PROBE_INTERVAL).
pub const RESOURCE_WAIT: u64 = 500_000_000;

/// Which timer is armed; there is one at a time (Linux's icsk_pending).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Armed {
    #[default]
    Nothing,
    Timeout,
    Probe,
    Reordering,
}

/// What is to be done after [`Sender::on_timer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Nothing, or it is too early.
    Nothing,
    /// One packet of new data is to be sent now, though the window of congestion be full.
    ProbeNew,
    /// [`Sender::next_retransmission`] says what is to be sent again, if anything.
    Retransmit,
}

impl Sender {
    /// When [`Sender::on_timer`] is to be called.
    pub fn deadline(&self) -> Option<u64> {
        (self.deadline != NEVER).then_some(self.deadline)
    }

    /// Whether what comes next is the retransmission timeout: before it is told to [`Sender::on_timer`], a connection may be given up.
    pub fn timeout_is_next(&self) -> bool {
        self.armed == Armed::Timeout
    }

    /// How often the timer ran out since something was acknowledged.
    pub fn retries(&self) -> u32 {
        self.retransmits.into()
    }

    /// When something was sent again first, of what was not acknowledged since. (Linux's retrans_stamp stays as it is while a recovery lasts: a peer
    /// that takes little at a time, for longer than all retries last, is given up though it takes something each time.)
    pub fn first_unanswered_at(&self) -> Option<u64> {
        let flight = self.flight.as_ref()?;
        flight.first_resent.map(|at| at.max(flight.progress) * 1_000)
    }

    /// Whether the connection has waited as long as `retries` timeouts last, each twice the one before from `first_us` on (200 ms; 1 s for
    /// a SYN), up to two minutes (retransmits_timed_out, tcp_model_timeout in net/ipv4/tcp_timer.c), or for `user_timeout`.
    pub fn timed_out(&self, now: u64, retries: u32, first_us: u32, user_timeout: Option<u64>) -> bool {
        // What is sent into a closed window does not count as a retry, but takes its time.
        let counts = self.retransmits > 0 || self.window == 0;
        let Some(first) = self.first_unanswered_at().filter(|_| counts) else { return false };
        let limit = user_timeout.unwrap_or_else(|| {
            let max = self.rtt.rto_max_ns();
            let first = u64::from(first_us.max(1)) * 1_000;
            let doubled = (max / first).checked_ilog2().unwrap_or(0);
            let grown = retries.min(doubled);
            ((2u64 << grown) - 1) * first + u64::from(retries - grown) * max
        });
        now.saturating_sub(first) >= limit
    }

    /// The retransmission timeout, backed off.
    pub fn rto_ns(&self) -> u64 {
        u64::from(self.rto_us) * 1_000
    }

    /// The timeout is what the round trips say, without backing off.
    pub(super) fn settle_rto(&mut self) {
        self.rto_us = u32::try_from(self.rtt.rto_ns() / 1_000).unwrap_or(u32::MAX);
        self.backoff = 0;
    }

    pub(super) fn arm(&mut self, what: Armed, at: u64) {
        (self.armed, self.deadline) = (what, at);
    }

    /// The timeout comes as soon as a timer can (TCP_TIMEOUT_MIN).
    pub fn hasten(&mut self, now: u64) {
        self.arm(Armed::Timeout, now + u64::from(super::rack::TIMER_MIN_US) * 1_000);
    }

    fn disarm(&mut self) {
        self.arm(Armed::Nothing, NEVER);
    }

    /// µs until the first piece has waited for the timeout, if that is to come.
    pub(super) fn rto_left_us(&self, f: &Flight, now: u64) -> Option<u32> {
        let Some(first) = f.board.pieces.front() else { return Some(self.rto_us) };
        let left = (first.sent + u64::from(self.rto_us)).checked_sub(us(now))?;
        u32::try_from(left).ok().filter(|left| *left > 0)
    }

    /// Arms the timeout, if anything is outstanding (tcp_rearm_rto): from now on, or, after another timer, from when the first piece was
    /// sent.
    pub(super) fn rearm(&mut self, f: &Flight, now: u64) {
        if f.board.out == 0 {
            self.disarm();
            return;
        }
        let left = match self.armed {
            Armed::Probe | Armed::Reordering => self.rto_left_us(f, now).unwrap_or(1),
            Armed::Nothing | Armed::Timeout => self.rto_us,
        };
        self.arm(Armed::Timeout, now + u64::from(left) * 1_000);
    }

    /// After progress: a probe, or else the timeout (tcp_set_xmit_timer).
    pub(super) fn set_timer(&mut self, f: &Flight, now: u64) {
        if !self.schedule_probe(f, now, true) {
            self.rearm(f, now);
        }
    }

    /// The deadline has come; `fresh` says whether there is new data of which the window of the peer takes a packet.
    pub fn on_timer(&mut self, now: u64, fresh: bool) -> Timeout {
        if now < self.deadline {
            return Timeout::Nothing;
        }
        let Some(mut flight) = self.flight.take() else {
            self.disarm();
            return Timeout::Nothing;
        };
        let timeout = match self.armed {
            Armed::Nothing => {
                self.disarm();
                Timeout::Nothing
            }
            Armed::Reordering => {
                self.reordering_over(&mut flight, now);
                if self.armed != Armed::Timeout {
                    self.rearm(&flight, now);
                }
                if flight.due == Due::Nothing { Timeout::Nothing } else { Timeout::Retransmit }
            }
            Armed::Probe => self.probe(&mut flight, now, fresh),
            Armed::Timeout => self.timeout(&mut flight, now),
        };
        self.flight = Some(flight);
        timeout
    }

    /// Nothing was heard for too long (tcp_retransmit_timer in net/ipv4/tcp_timer.c).
    fn timeout(&mut self, f: &mut Flight, now: u64) -> Timeout {
        self.disarm();
        if f.board.out == 0 {
            return Timeout::Nothing;
        }
        self.enter_loss(f, now);
        // A peer whose window is closed is there, maybe: it does not count towards giving up.
        let closed = self.window == 0 && !f.board.pieces.front().is_some_and(|first| first.is(Marks::SYN));
        if !closed {
            let first = self.retransmits == 0;
            self.retransmits = self.retransmits.saturating_add(1);
            let history = self.history();
            history.total_rto = history.total_rto.saturating_add(1);
            if first {
                history.rto_recoveries = history.rto_recoveries.saturating_add(1);
                f.loss_since = Some(us(now));
            }
        }
        f.forced = Some(Forced::First);
        f.due = Due::Nothing;
        f.before_timeout = Some((self.rto_us, self.backoff, self.linear));
        if self.linear > 0 {
            self.linear -= 1;
        } else {
            self.backoff = self.backoff.saturating_add(1);
            let max = u32::try_from(self.rtt.rto_max_ns() / 1_000).unwrap_or(u32::MAX);
            self.rto_us = self.rto_us.saturating_mul(2).min(max);
        }
        self.arm(Armed::Timeout, now + self.rto_ns());
        Timeout::Retransmit
    }

    /// What is outstanding is held to be lost (tcp_enter_loss, tcp_timeout_mark_lost), but for what was sent less than a round trip ago.
    fn enter_loss(&mut self, f: &mut Flight, now: u64) {
        let new = self.state < State::Recovery;
        let sacked_before = f.board.sacked;
        let reneging = f.board.pieces.front().is_some_and(|first| first.is(Marks::SACKED));
        if reneging {
            f.reneging = true;
            f.board.sacked = 0;
        } else if !self.has.contains(Has::SACK) {
            f.board.sacked = 0;
        }
        for index in 0..f.board.pieces.len() {
            let Some(piece) = f.board.pieces.get_mut(index) else { break };
            if reneging {
                piece.marks -= Marks::SACKED;
            } else if index > 0 && self.rack_left(now, piece.sent, 0).is_some() {
                continue;
            }
            f.lost_ever = f.lost_ever.wrapping_add(f.board.mark_lost(index));
        }
        f.board.hint = self.una;
        let anew = self.state <= State::Disorder
            || !f.high.after(self.una)
            || (self.state == State::Loss && self.retransmits == 0);
        self.congestion.timeout(now, f.board.in_flight(), self.nxt, anew);
        if anew {
            self.begin_undo(f);
        }
        // So many duplicates, and a timeout for all that: reordering is not as bad as believed.
        let sacked = if self.has.contains(Has::SACK) && !reneging { sacked_before } else { 0 };
        if self.state <= State::Disorder && sacked >= REORDERING.into() {
            self.reordering = self.reordering.min(REORDERING);
        }
        self.set_state(State::Loss);
        f.high = self.nxt;
        f.tlp = None;
        self.has |= Has::CWR;
        f.frto = !self.has.contains(Has::NO_FRTO) && (new || self.retransmits > 0);
    }

    /// The MSS became smaller, as the path takes no packets of the size that was sent: they are lost, and that says nothing of congestion
    /// (tcp_simple_retransmit).
    pub fn packets_too_big(&mut self) {
        let Some(mut flight) = self.flight.take() else { return };
        let f = &mut *flight;
        for index in 0..f.board.pieces.len() {
            let Some(piece) = f.board.pieces.get(index) else { break };
            let size = if piece.packets == 1 { piece.data() } else { piece.mss.into() };
            if size > self.mss() {
                f.lost_ever = f.lost_ever.wrapping_add(f.board.mark_lost(index));
            }
        }
        self.lost_without_congestion(f);
        self.flight = Some(flight);
    }

    /// The peer has our SYN and not all of its data: that was thrown away, and is to be sent again at once (tcp_rcv_fastopen_synack()). Before
    /// its answer: the way takes no packet as long as the SYN with it (tcp_simple_retransmit()).
    pub fn syn_data_lost(&mut self) {
        let Some(mut flight) = self.flight.take() else { return };
        let f = &mut *flight;
        for index in 0..f.board.pieces.len() {
            f.lost_ever = f.lost_ever.wrapping_add(f.board.mark_lost(index));
        }
        f.frto = false;
        self.lost_without_congestion(f);
        self.flight = Some(flight);
    }

    /// tcp_non_congestion_loss_retransmit().
    fn lost_without_congestion(&mut self, f: &mut Flight) {
        if f.board.lost > 0 {
            if !self.has.contains(Has::SACK) {
                f.board.sacked = f.board.sacked.min(f.board.out - f.board.lost.min(f.board.out));
            }
            if self.state != State::Loss {
                f.high = self.nxt;
                f.undo_marker = None;
                self.congestion.forget_undo();
                self.set_state(State::Loss);
            }
            if !any_resent(f) {
                f.first_resent = None;
            }
            f.due = Due::Lost;
        }
    }
}
