//! What happens when nothing does: timeouts, probes, deadlines.

use super::transmit::RESTS_AFTER;
use super::{After, Connection, NEVER, Traits, microseconds};
use crate::tcp::config::Config;
use crate::tcp::emit::{Context, Sent};
use crate::tcp::error::Error;
use crate::tcp::rcv::AckWhen;
use crate::tcp::snd::{RESOURCE_WAIT, Timeout};
use crate::tcp::state::State;
use std::time::Duration;

impl Connection {
    /// When [`Connection::advance`] has something to do; `None` when nothing waits.
    pub fn deadline(&self) -> Option<u64> {
        if matches!(self.state, State::Closed | State::TimeWait) {
            return None;
        }
        let ack = match self.rcv.ack_due() {
            AckWhen::At(at) => at,
            AckWhen::Now => 0,
            AckWhen::No => NEVER,
        };
        let paced = if self.traits.contains(Traits::PACED) { self.out.pace_at() } else { NEVER };
        let first = ack.min(self.sender_deadline()).min(self.probe_at).min(self.keep_at).min(paced);
        (first != NEVER).then_some(first)
    }

    /// When what was sent is looked after: no later than the program lets the peer be silent (tcp_clamp_rto_to_user_timeout()).
    fn sender_deadline(&self) -> u64 {
        let at = self.sent_deadline().unwrap_or(NEVER);
        let limit = self.settings.user_timeout.filter(|limit| !limit.is_zero());
        // A peer that took its window back and answers is not silent: nothing would be due then.
        let counts = self.snd.timeout_is_next()
            && self.snd.retries() > 0
            && self.handshake.is_none()
            && self.snd.window() > 0;
        match limit.zip(self.snd.first_unanswered_at().filter(|_| counts)) {
            Some((limit, first)) => at.min(first.saturating_add(nanos(limit))),
            None => at,
        }
    }

    /// Does what is due.
    pub fn advance(&mut self, ctx: &mut Context<'_>) -> After {
        if self.sender_deadline() <= ctx.now {
            let after = match self.handshake {
                _ if self.opens_early() => self.early_timeout(ctx),
                Some(_) => self.syn_timeout(ctx),
                None => self.sender_due(ctx),
            };
            if after != After::Keep {
                return after;
            }
        }
        if self.probe_at <= ctx.now {
            let after = self.probe_due(ctx);
            if after != After::Keep {
                return after;
            }
        }
        self.paced_due(ctx);
        if self.keep_at <= ctx.now {
            let after = self.keepalive_due(ctx);
            if after != After::Keep {
                return after;
            }
        }
        let moment = self.moment(ctx.now);
        if self.rcv.on_timer(&moment) == AckWhen::Now && self.state.is_synchronized() {
            self.send_ack(ctx);
        }
        // What is sent takes more memory than what waits, and leaves less that waits.
        self.tell_room(ctx);
        After::Keep
    }

    /// Nothing was heard of what was sent.
    fn sender_due(&mut self, ctx: &mut Context<'_>) -> After {
        let expires = self.snd.timeout_is_next();
        if expires && self.has_timed_out(ctx) {
            return self.give_up(ctx);
        }
        let fresh = self
            .out
            .unsent()
            .first()
            .is_some_and(|piece| piece.len.min(self.snd.mss()) <= self.window_left());
        match self.snd.on_timer(ctx.now, fresh) {
            Timeout::Nothing => {}
            Timeout::ProbeNew => match self.push_probe(ctx) {
                true => ctx.stats.loss_probes += 1,
                false => self.snd.not_probed(),
            },
            Timeout::Retransmit => {
                if expires {
                    ctx.stats.timeouts += 1;
                } else {
                    ctx.stats.loss_probes += 1;
                }
                // The first of them leaves now (tcp_retransmit_timer()), and what was owed is owed still.
                let owed = self.out.pace_at().saturating_sub(ctx.now);
                self.out.set_pace_at(self.out.pace_at().min(ctx.now));
                self.retransmit_lost(ctx);
                self.out.set_pace_at(self.out.pace_at().saturating_add(owed).min(NEVER - 1));
                if owed > 0 {
                    // New bytes may wait for it.
                    self.is_paced(ctx.now);
                }
            }
        }
        After::Keep
    }

    /// Whether the peer has been silent for too long (the kernel's tcp_write_timeout()).
    fn has_timed_out(&self, ctx: &Context<'_>) -> bool {
        let most = if self.is_orphan() { self.orphan_limit(ctx.config) } else { ctx.config.retries };
        let limit = self.settings.user_timeout.filter(|limit| !limit.is_zero());
        if self.snd.window() == 0 && !self.is_orphan() {
            // The peer has taken its window back: as long as it says anything, it lives (the kernel's tcp_rtx_probe0_timed_out()). What
            // nobody holds does not wait for that.
            let limit = limit.map_or(2 * LONGEST_RTO, nanos);
            let first = self.snd.first_unanswered_at().unwrap_or(ctx.now);
            return self.silent(ctx.now).min(ctx.now.saturating_sub(first)) > limit;
        }
        let first_us = ctx.config.rto_min.as_micros() as u32;
        self.snd.timed_out(ctx.now, most.into(), first_us, limit.map(nanos))
    }

    fn orphan_limit(&self, config: &Config) -> u8 {
        match config.orphan_retries {
            _ if self.soft_error.is_some() => 0,
            0 => 8,
            limit => limit,
        }
    }

    /// The peer does not answer.
    pub(super) fn give_up(&mut self, ctx: &mut Context<'_>) -> After {
        ctx.stats.timed_out += 1;
        if self.is_orphan() {
            ctx.stats.orphans_ended += 1;
        }
        let error = self.soft_error.unwrap_or(Error::TimedOut);
        self.end(ctx, Some(error));
        After::Ended
    }

    /// How long the peer is not asked for its window.
    pub(super) fn probe_wait(&self, config: &Config) -> u64 {
        self.backed_off(config, self.probe_backoff)
    }

    fn backed_off(&self, config: &Config, backoff: u8) -> u64 {
        let rto = self.snd.rtt().rto_ns().max(nanos(config.rto_min));
        rto.saturating_mul(1 << backoff.min(20)).min(LONGEST_RTO)
    }

    /// Something waits, and nothing is under way (the kernel's tcp_probe_timer(), tcp_send_probe0(), tcp_write_wakeup()).
    fn probe_due(&mut self, ctx: &mut Context<'_>) -> After {
        self.probe_at = NEVER;
        self.traits.remove(Traits::RESTING);
        if self.snd.has_unacked() {
            return After::Keep;
        }
        let Some(piece) = self.out.unsent().first() else {
            (self.probes, self.probe_backoff) = (0, 0);
            let since_sent = u64::from(microseconds(ctx.now).wrapping_sub(self.sent_at)) * 1_000;
            if self.silent(ctx.now).min(since_sent) < RESTS_AFTER / 2 {
                self.probe_at = ctx.now.saturating_add(RESTS_AFTER);
                self.traits |= Traits::RESTING;
            } else {
                self.rest(ctx.now);
            }
            return After::Keep;
        };
        // Answers without room do not count: what the program waits for is that its bytes go. The waits since the first question say
        // for how long it has been asked.
        let asking: u64 = (1..=self.probe_backoff).map(|backoff| self.backed_off(ctx.config, backoff)).sum();
        let waited = u128::from(self.silent(ctx.now).max(asking));
        let late =
            self.settings.user_timeout.is_some_and(|limit| !limit.is_zero() && waited >= limit.as_nanos());
        let most = if self.is_orphan() { self.orphan_limit(ctx.config) } else { ctx.config.retries };
        // A peer may answer for ever, and never open its window: what nobody holds does not wait for that.
        let kept =
            self.is_orphan() && self.probe_backoff >= most && self.probe_wait(ctx.config) >= LONGEST_RTO;
        if late || kept || self.probes >= most {
            return self.give_up(ctx);
        }
        let room = self.window_left();
        let sent = if room > 0 {
            // A small segment has waited long enough.
            self.snd.set_mss(self.segment_len(ctx));
            let mss = self.snd.mss();
            self.out.unsent_mut().push_first(piece.len.min(room).min(mss));
            self.send_waiting(ctx, piece.len.min(room).min(mss.max(1)))
        } else {
            self.send_probe(ctx)
        };
        if sent == Sent::Refused || room == 0 {
            self.probes = self.probes.saturating_add(1);
        }
        if sent == Sent::Left && room == 0 {
            self.probe_backoff = self.probe_backoff.saturating_add(1);
        }
        if !self.snd.has_unacked() {
            // Where this host is what holds it back, nobody has been waited for in vain (tcp_send_probe0()).
            let wait = if sent == Sent::Refused { RESOURCE_WAIT } else { self.probe_wait(ctx.config) };
            self.probe_at = ctx.now.saturating_add(wait);
        } else if room > 0 {
            // What little there was room for has gone: the next time is no repetition (tcp_send_probe0()).
            (self.probes, self.probe_backoff) = (0, 0);
        }
        After::Keep
    }

    /// Begins to count how long the peer is silent.
    pub(super) fn arm_keepalive(&mut self, ctx: &Context<'_>) {
        if self.is_orphan() {
            return;
        }
        let time = self.settings.keepalive_time.unwrap_or(ctx.config.keepalive_time).max(LEAST_WAIT);
        self.keep_at = match self.settings.keepalive {
            true => ctx.now.saturating_add(nanos(time)),
            false => NEVER,
        };
    }

    /// The peer was silent for long (RFC 9293, section 3.8.4), or nobody holds what waits for its FIN.
    fn keepalive_due(&mut self, ctx: &mut Context<'_>) -> After {
        self.keep_at = NEVER;
        if self.is_orphan() {
            if self.state != State::FinWait2 {
                return After::Keep;
            }
            ctx.stats.orphans_ended += 1;
            if self.settings.fin_wait.is_some_and(|limit| limit.is_zero()) {
                self.send_reset(ctx);
            }
            self.end(ctx, None);
            return After::Ended;
        }
        if !self.settings.keepalive || !self.state.is_synchronized() {
            return After::Keep;
        }
        let waits = |set: Option<Duration>, usual: Duration| nanos(set.unwrap_or(usual).max(LEAST_WAIT));
        let time = waits(self.settings.keepalive_time, ctx.config.keepalive_time);
        let interval = waits(self.settings.keepalive_interval, ctx.config.keepalive_interval);
        // Who has something under way hears of the peer by that.
        if self.snd.has_unacked() || !self.out.unsent().is_empty() {
            self.keep_at = ctx.now.saturating_add(time);
            return After::Keep;
        }
        let silent = self.silent(ctx.now);
        if silent < time {
            self.keep_at = ctx.now.saturating_add(time - silent);
            return After::Keep;
        }
        let most = self.settings.keepalive_probes.unwrap_or(ctx.config.keepalive_probes);
        let late = match self.settings.user_timeout.filter(|limit| !limit.is_zero()) {
            Some(limit) => u128::from(silent) >= limit.as_nanos() && self.probes > 0,
            None => self.probes >= most,
        };
        if late {
            self.send_reset(ctx);
            return self.give_up(ctx);
        }
        let wait = match self.send_probe(ctx) {
            Sent::Left => {
                self.probes = self.probes.saturating_add(1);
                interval
            }
            Sent::Refused => RESOURCE_WAIT,
        };
        self.keep_at = ctx.now.saturating_add(wait);
        After::Keep
    }

    /// The program has changed what it wants of keep-alive.
    pub(super) fn keepalive_changed(&mut self, ctx: &Context<'_>) {
        if self.state.is_synchronized() && !self.is_orphan() {
            self.arm_keepalive(ctx);
        }
    }
}

/// The shortest wait before an idle peer is asked, whatever was set: none at all would ask for ever.
const LEAST_WAIT: Duration = Duration::from_millis(50);

/// As a span of the clock, as long as that can be.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The longest wait between two probes (TCP_RTO_MAX).
const LONGEST_RTO: u64 = 120_000_000_000;
