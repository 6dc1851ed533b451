//! Who waits for connections, and those that are half open (RFC 9293, section 3.10.7.2; the kernel's tcp_conn_request(), tcp_check_req()).

use super::config::{Config, EcnUse};
use super::connection::{Agreed, DEFAULT_MSS, Offer};
use super::emit::{Context, Emit, Outgoing};
use super::settings::Settings;
use super::stats::Stats;
use crate::wire::tcp::Cookie;
use crate::wire::{Flags, Seq, Tcp};
use onecopy_link::Packet;

/// Connections that are half open: what a listener keeps of each until its last ACK comes. (The kernel's request_sock.)
#[derive(Debug)]
pub struct Request {
    agreed: Agreed,
    /// What our SYN-ACK says.
    service: u8,
    ttl: u8,
    /// When it is sent again, and how long the wait was.
    deadline: u64,
    wait: u64,
    /// How often nobody had answered in time. (A SYN that comes once more is answered, and counts among [`Agreed::retries`] alone: who
    /// sends it lives.)
    timeouts: u8,
    /// ACKs came, but data is waited for (TCP_DEFER_ACCEPT), or there was no room to be accepted.
    acknowledged: bool,
    /// When the last ACK went out for what should not have come.
    scolded_at: u64,
}

/// What a segment means for a half-open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing more.
    Nothing,
    /// It is answered by a reset.
    Refuse,
    /// The connection is made.
    Complete,
    /// It will not be; the segment is answered by a reset if it is told so.
    Gone {
        /// Whether it is.
        refuse: bool,
    },
}

/// The first wait for the last ACK.
const FIRST_WAIT: u64 = 1_000_000_000;
/// The longest (TCP_RTO_MAX).
const LONGEST_WAIT: u64 = 120_000_000_000;

impl Request {
    /// For a SYN that came with `ecn_ip` (whether its packet said ECT or CE). `number` is our first.
    pub fn new(
        now: u64,
        config: &Config,
        settings: &Settings,
        syn: &Tcp,
        mtu: u32,
        number: Seq,
        clock_offset: u32,
    ) -> Request {
        let asks = syn.flags.contains(Flags::ECE | Flags::CWR);
        let agreed = Agreed {
            iss: number,
            irs: syn.seq,
            offer: Offer::new(config, settings, mtu).answer(config, settings, &syn.options),
            peer_window: syn.window,
            peer_mss: syn.options.mss.filter(|mss| *mss > 0).unwrap_or(DEFAULT_MSS),
            peer_scale: syn.options.window_scale.unwrap_or(0).min(14),
            ts_recent: syn.options.timestamps.map_or(0, |times| times.value),
            clock_offset,
            ecn: asks && config.ecn != EcnUse::Never,
            sent_at: now,
            retries: 0,
        };
        Request {
            agreed,
            service: settings.service,
            ttl: settings.ttl,
            deadline: now + FIRST_WAIT,
            wait: FIRST_WAIT,
            timeouts: 0,
            acknowledged: false,
            scolded_at: 0,
        }
    }

    /// What was agreed on.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Says no larger window than that in the SYN-ACK; the scale stays. Before it is sent.
    pub fn limit_window(&mut self, bytes: u64) {
        let window = &mut self.agreed.offer.window.window;
        *window = u64::from(*window).min(bytes) as u32;
    }

    /// When [`Request::advance`] has something to do.
    pub fn deadline(&self) -> u64 {
        self.deadline
    }

    fn clock(&self, now: u64) -> u32 {
        ((now / 1_000_000) as u32).wrapping_add(self.agreed.clock_offset)
    }

    /// Sends the SYN-ACK, with a cookie if the peer is to have one.
    pub fn send(&mut self, now: u64, cookie: Option<Cookie>, stats: &mut Stats, out: &mut dyn Emit) {
        let mut header = Tcp {
            seq: self.agreed.iss,
            ack: self.agreed.irs.plus(1),
            flags: Flags::SYN | Flags::ACK,
            window: self.agreed.offer.said(),
            ..Tcp::default()
        };
        header.options = self.agreed.offer.options(self.clock(now), self.agreed.ts_recent);
        header.options.fast_open = cookie;
        header.flags.set(Flags::ECE, self.agreed.ecn);
        self.emit(header, stats, out);
    }

    fn emit(&self, mut header: Tcp, stats: &mut Stats, out: &mut dyn Emit) {
        stats.segments_out += 1;
        let (service, ttl) = (self.service, self.ttl);
        out.emit(Outgoing { header: &mut header, packet: Packet::default(), cut: None, service, ttl });
    }

    /// Says what has arrived, to who should not have sent what it did.
    fn scold(&mut self, now: u64, config: &Config, stats: &mut Stats, out: &mut dyn Emit) {
        let limit = config.invalid_ratelimit.as_nanos() as u64;
        if self.scolded_at != 0 && now.saturating_sub(self.scolded_at) < limit {
            stats.rate_limited += 1;
            return;
        }
        self.scolded_at = now.max(1);
        let shift = if self.agreed.offer.scales { self.agreed.offer.window.shift } else { 0 };
        let mut header = Tcp {
            seq: self.agreed.iss.plus(1),
            ack: self.agreed.irs.plus(1),
            flags: Flags::ACK,
            window: self.agreed.offer.said() >> shift,
            ..Tcp::default()
        };
        if self.agreed.offer.timestamps {
            let (value, echo) = (self.clock(now), self.agreed.ts_recent);
            header.options.timestamps = Some(crate::wire::tcp::Timestamps { value, echo });
        }
        self.emit(header, stats, out);
    }

    /// A segment has come for it; `len` are its bytes.
    pub fn arrive(&mut self, ctx: &mut Context<'_>, settings: &Settings, header: &Tcp, len: u32) -> Answer {
        let (now, config) = (ctx.now, ctx.config);
        let (stats, out) = (&mut *ctx.stats, &mut *ctx.out);
        let flags = header.flags;
        let first = self.agreed.irs;
        let times = header.options.timestamps.filter(|_| self.agreed.offer.timestamps);
        let old = times.is_some_and(|times| (times.value.wrapping_sub(self.agreed.ts_recent) as i32) < 0)
            && !flags.contains(Flags::RST);
        if header.seq == first && flags & (Flags::SYN | Flags::ACK | Flags::RST) == Flags::SYN && !old {
            // The SYN once more: our answer was lost.
            let limit = config.invalid_ratelimit.as_nanos() as u64;
            if now.saturating_sub(self.agreed.sent_at) >= limit.min(self.wait) || self.agreed.retries == 0 {
                self.again(now, stats, out);
                self.deadline = now.saturating_add(self.wait);
            } else {
                stats.rate_limited += 1;
            }
            return Answer::Nothing;
        }
        let end = header
            .seq
            .plus(len + u32::from(flags.contains(Flags::SYN)) + u32::from(flags.contains(Flags::FIN)));
        let next = first.plus(1);
        let window = u32::from(self.agreed.offer.said());
        let inside = if header.seq == end {
            header.seq == next || (!header.seq.before(next) && header.seq.before(next.plus(window)))
        } else {
            end.after(next) && header.seq.before(next.plus(window)) || header.seq == next
        };
        if old || !inside {
            if old {
                stats.paws += 1;
            } else {
                stats.outside_window += 1;
            }
            if !flags.contains(Flags::RST) {
                self.scold(now, config, stats, out);
            }
            return Answer::Nothing;
        }
        if let Some(times) = times.filter(|_| !header.seq.after(next)) {
            self.agreed.ts_recent = times.value;
        }
        if flags.contains(Flags::ACK) && header.ack != self.agreed.iss.plus(1) {
            stats.invalid_ack += 1;
            return Answer::Refuse;
        }
        if flags.contains(Flags::RST) {
            stats.attempts_failed += 1;
            return Answer::Gone { refuse: false };
        }
        if flags.contains(Flags::SYN) {
            stats.attempts_failed += 1;
            return Answer::Gone { refuse: true };
        }
        if !flags.contains(Flags::ACK) {
            stats.no_ack += 1;
            return Answer::Nothing;
        }
        // (A FIN is more than an ACK, too: tcp_check_req() compares where the segment ends.)
        if end == next && settings.defer_accept.is_some_and(|limit| self.may_wait_for_data(limit)) {
            self.acknowledged = true;
            stats.deferred += 1;
            return Answer::Nothing;
        }
        Answer::Complete
    }

    /// Whether an ACK without data waits for some: as many retries as take `limit` (the kernel's secs_to_retrans()).
    fn may_wait_for_data(&self, limit: std::time::Duration) -> bool {
        let (mut period, mut wait, mut retries) = (1, 1, 1u8);
        while limit.as_secs() > period && retries < u8::MAX {
            retries += 1;
            wait = (wait * 2u64).min(120);
            period += wait;
        }
        self.timeouts < retries
    }

    /// There is no room to accept it: it stays half open.
    pub fn wait(&mut self) {
        self.acknowledged = true;
    }

    fn again(&mut self, now: u64, stats: &mut Stats, out: &mut dyn Emit) {
        self.agreed.retries = self.agreed.retries.saturating_add(1);
        self.agreed.sent_at = now;
        stats.retransmitted += 1;
        self.send(now, None, stats, out);
    }

    /// Nobody has answered: sends the SYN-ACK again. False when it is given up.
    pub fn advance(&mut self, ctx: &mut Context<'_>, settings: &Settings) -> bool {
        let now = ctx.now;
        let (stats, out) = (&mut *ctx.stats, &mut *ctx.out);
        if now < self.deadline {
            return true;
        }
        let most = settings.syn_retries.unwrap_or(ctx.config.synack_retries);
        let waits =
            self.acknowledged && settings.defer_accept.is_some_and(|limit| self.may_wait_for_data(limit));
        if self.timeouts >= most && !waits {
            stats.attempts_failed += 1;
            stats.timed_out += 1;
            return false;
        }
        self.timeouts = self.timeouts.saturating_add(1);
        // Where data is waited for, the peer believes that it is connected: it is not asked before its time is over.
        if !waits {
            self.again(now, stats, out);
        }
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        self.deadline = now.saturating_add(self.wait);
        true
    }
}
