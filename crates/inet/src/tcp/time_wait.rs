//! A connection that is over, kept so that nothing old is taken for new (RFC 9293, section 3.6.1; RFC 1337; RFC 6191; the kernel's
//! tcp_timewait_state_process()).

use super::config::Config;
use super::connection::Connection;
use super::emit::{Emit, Outgoing};
use super::stats::Stats;
use crate::wire::tcp::Timestamps;
use crate::wire::{Flags, Seq, Tcp};
use onecopy_link::Packet;

/// All that is left of it.
#[derive(Debug)]
pub struct TimeWait {
    nxt: Seq,
    expected: Seq,
    window: u16,
    service: u8,
    ttl: u8,
    /// The peer's clock, if both have one.
    ts_recent: Option<u32>,
    clock_offset: u32,
    scolded_at: u64,
    deadline: u64,
}

/// What a segment means for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fresh {
    /// Nothing more.
    Nothing,
    /// It has ended.
    Ended,
    /// A new connection may begin with the SYN that came, its numbers here.
    Begin(Seq),
}

impl TimeWait {
    /// What is left of `connection`.
    pub fn new(now: u64, config: &Config, connection: &mut Connection) -> TimeWait {
        let (header, clock_offset) = connection.last_words(now);
        TimeWait {
            nxt: header.seq,
            expected: header.ack,
            window: header.window,
            service: connection.settings().service,
            ttl: connection.settings().ttl,
            ts_recent: header.options.timestamps.map(|times| times.echo),
            clock_offset,
            scolded_at: 0,
            deadline: now.saturating_add(config.time_wait.as_nanos() as u64),
        }
    }

    /// When it is over.
    pub fn deadline(&self) -> u64 {
        self.deadline
    }

    /// A segment of `len` bytes has come.
    pub fn arrive(
        &mut self,
        now: u64,
        config: &Config,
        header: &Tcp,
        len: u32,
        stats: &mut Stats,
        out: &mut dyn Emit,
    ) -> Fresh {
        stats.time_wait_segments += 1;
        let flags = header.flags;
        let (syn, reset) = (flags.contains(Flags::SYN), flags.contains(Flags::RST));
        let end = header.seq.plus(len + u32::from(syn) + u32::from(flags.contains(Flags::FIN)));
        let times = header.options.timestamps;
        let newer = |recent: u32| times.map(|times| times.value.wrapping_sub(recent) as i32);
        let since = self.ts_recent.and_then(newer);
        let old = since.is_some_and(|since| since < 0) && !reset;
        if !old && header.seq == self.expected && (header.seq == end || reset) {
            if reset {
                return if config.rfc1337 { Fresh::Nothing } else { Fresh::Ended };
            }
            self.stay(now, config);
            if let Some(times) = times.filter(|_| self.ts_recent.is_some()) {
                self.ts_recent = Some(times.value);
            }
            return Fresh::Nothing;
        }
        let later = header.seq.after(self.expected) || since.is_some_and(|since| since > 0);
        if syn && !reset && !flags.contains(Flags::ACK) && !old && later {
            stats.time_wait_recycled += 1;
            // Behind all that the old one may have sent.
            return Fresh::Begin(self.nxt.plus(65535 + 2));
        }
        if old {
            stats.paws += 1;
        }
        if !reset {
            if old || flags.contains(Flags::ACK) {
                self.stay(now, config);
            }
            self.answer(now, config, stats, out);
        }
        Fresh::Nothing
    }

    fn stay(&mut self, now: u64, config: &Config) {
        self.deadline = now.saturating_add(config.time_wait.as_nanos() as u64);
    }

    fn answer(&mut self, now: u64, config: &Config, stats: &mut Stats, out: &mut dyn Emit) {
        let limit = config.invalid_ratelimit.as_nanos() as u64;
        if self.scolded_at != 0 && now.saturating_sub(self.scolded_at) < limit {
            stats.rate_limited += 1;
            return;
        }
        self.scolded_at = now.max(1);
        let mut header = Tcp {
            seq: self.nxt,
            ack: self.expected,
            flags: Flags::ACK,
            window: self.window,
            ..Tcp::default()
        };
        let value = ((now / 1_000_000) as u32).wrapping_add(self.clock_offset);
        header.options.timestamps = self.ts_recent.map(|echo| Timestamps { value, echo });
        stats.segments_out += 1;
        let (service, ttl) = (self.service, self.ttl);
        out.emit(Outgoing { header: &mut header, packet: Packet::default(), cut: None, service, ttl });
    }
}
