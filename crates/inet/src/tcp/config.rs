//! What holds for all of a stack's connections: Linux's sysctls under net.ipv4, with Linux's defaults.

use super::settings::{LEAST_RECEIVE_BUFFER, LEAST_SEND_BUFFER};
use std::time::Duration;

/// The name of each sysctl stands beside it (Documentation/networking/ip-sysctl.rst). It may be changed at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// SYNs that are sent again before connect gives up (tcp_syn_retries).
    pub syn_retries: u8,
    /// Of these, how many come one after another without doubling the wait (tcp_syn_linear_timeouts).
    pub syn_linear_timeouts: u8,
    /// SYN-ACKs that are sent again (tcp_synack_retries).
    pub synack_retries: u8,
    /// Timeouts in a row after which a connection is given up (tcp_retries2).
    pub retries: u8,
    /// Those of a connection that no program holds any more; 0 is Linux's rule of 8 (tcp_orphan_retries).
    pub orphan_retries: u8,
    /// How long FIN-WAIT-2 waits for the peer when no program holds it (tcp_fin_timeout).
    pub fin_timeout: Duration,
    /// How long TIME-WAIT lasts (TCP_TIMEWAIT_LEN, 60 s; RFC 9293 says twice the longest life of a segment).
    pub time_wait: Duration,
    /// Idle time before the first probe (tcp_keepalive_time).
    pub keepalive_time: Duration,
    /// Time between probes (tcp_keepalive_intvl).
    pub keepalive_interval: Duration,
    /// Probes without an answer (tcp_keepalive_probes).
    pub keepalive_probes: u8,
    /// Whether SACK is offered and taken (tcp_sack).
    pub sack: bool,
    /// Whether timestamps are offered and taken (tcp_timestamps).
    pub timestamps: bool,
    /// Whether timestamps begin at a place that is secret for each pair of hosts (tcp_timestamps = 1), or at the stack's start (2).
    pub timestamp_offsets: bool,
    /// Whether windows are scaled (tcp_window_scaling).
    pub window_scaling: bool,
    /// Explicit congestion notification (tcp_ecn).
    pub ecn: EcnUse,
    /// Receive buffer: least, default, most, in bytes (tcp_rmem).
    pub rmem: [u32; 3],
    /// Send buffer, likewise (tcp_wmem).
    pub wmem: [u32; 3],
    /// What all connections together may keep, in bytes of pages: below the first number memory is enough, above the second it is short,
    /// at the third there is none (tcp_mem, which counts pages; Linux takes it from the machine's memory, this is what 8 GiB come to).
    pub memory: [u64; 3],
    /// Connections that no program holds any more; beyond it, they are reset at once (tcp_max_orphans).
    pub max_orphans: u32,
    /// The most that a program may ask for by SO_RCVBUF (net.core.rmem_max).
    pub rmem_max: u32,
    /// Likewise by SO_SNDBUF (net.core.wmem_max).
    pub wmem_max: u32,
    /// Whether receive buffers grow as needed (tcp_moderate_rcvbuf).
    pub moderate_rcvbuf: bool,
    /// Whether cwnd shrinks while nothing is sent (tcp_slow_start_after_idle).
    pub slow_start_after_idle: bool,
    /// Whether timeouts are looked at for being spurious (tcp_frto).
    pub frto: bool,
    /// Whether the tail is probed (TLP, tcp_early_retrans >= 3).
    pub tail_loss_probe: bool,
    /// Reordering that is assumed at first, in packets (tcp_reordering).
    pub reordering: u8,
    /// Bytes that may wait to be sent before the socket stops being writable (tcp_notsent_lowat).
    pub notsent_lowat: u32,
    /// The fewest packets of a super-segment (tcp_min_tso_segs).
    pub min_tso_segments: u8,
    /// A super-segment is held back until it is as large as the window divided by this (tcp_tso_win_divisor).
    pub tso_window_divisor: u8,
    /// By how many bits a round trip's least time is shifted for the bonus in a super-segment's length (tcp_tso_rtt_log).
    pub tso_rtt_log: u8,
    /// What slow start paces at, in percent of cwnd a round trip (tcp_pacing_ss_ratio).
    pub pacing_slow_start: u16,
    /// What congestion avoidance paces at (tcp_pacing_ca_ratio).
    pub pacing_avoidance: u16,
    /// SYNs of a listener that may be half open (tcp_max_syn_backlog).
    pub max_syn_backlog: u32,
    /// The most that a listener's backlog is (net.core.somaxconn).
    pub somaxconn: u32,
    /// Whether a full accept queue is answered by a reset (tcp_abort_on_overflow).
    pub abort_on_overflow: bool,
    /// The least time between two answers to segments that should not be (tcp_invalid_ratelimit).
    pub invalid_ratelimit: Duration,
    /// Connections in TIME-WAIT (tcp_max_tw_buckets); beyond it, they end at once.
    pub max_time_wait: u32,
    /// Whether a reset ends TIME-WAIT only where its number is right (tcp_rfc1337).
    pub rfc1337: bool,
    /// Data in SYNs: who may, and how (tcp_fastopen).
    pub fast_open: super::fast_open::Use,
    /// What cookies are made of (tcp_fastopen_key); of the stack's seed where there is none.
    pub fast_open_keys: Option<super::fast_open::Keys>,
    /// How long nothing of it is tried after SYNs seem to have been swallowed; longer each time, 0 for not at all
    /// (tcp_fastopen_blackhole_timeout_sec).
    pub fast_open_pause: Duration,
    /// The congestion control of new connections (tcp_congestion_control).
    pub congestion: super::congestion::Algorithm,
    /// How CUBIC's slow start ends but by loss. (Linux has HyStart alone.)
    pub slow_start: super::congestion::SlowStart,
    /// Packets that are sent at first (RFC 6928; `ip route ... initcwnd`).
    pub initial_window: u8,
    /// The shortest timeout (tcp_rto_min_us).
    pub rto_min: Duration,
}

impl Config {
    /// The send buffer of a program that asks for `bytes` (SO_SNDBUF): [`Settings::send_buffer`](super::Settings::send_buffer).
    pub fn send_buffer(&self, bytes: u32) -> u32 {
        bytes.min(self.wmem_max).saturating_mul(2).max(LEAST_SEND_BUFFER)
    }

    /// The receive buffer, likewise (SO_RCVBUF).
    pub fn receive_buffer(&self, bytes: u32) -> u32 {
        bytes.min(self.rmem_max).saturating_mul(2).max(LEAST_RECEIVE_BUFFER)
    }
}

/// tcp_ecn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnUse {
    /// 0.
    Never,
    /// 1: asked for, and taken.
    Ask,
    /// 2: taken, when the peer asks.
    #[default]
    Accept,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            syn_retries: 6,
            syn_linear_timeouts: 4,
            synack_retries: 5,
            retries: 15,
            orphan_retries: 0,
            fin_timeout: Duration::from_secs(60),
            time_wait: Duration::from_secs(60),
            keepalive_time: Duration::from_secs(7200),
            keepalive_interval: Duration::from_secs(75),
            keepalive_probes: 9,
            sack: true,
            timestamps: true,
            timestamp_offsets: true,
            window_scaling: true,
            ecn: EcnUse::Accept,
            rmem: [4096, 131_072, 6_291_456],
            wmem: [4096, 16_384, 4_194_304],
            memory: [384 << 20, 512 << 20, 768 << 20],
            max_orphans: 32_768,
            rmem_max: 212_992,
            wmem_max: 212_992,
            moderate_rcvbuf: true,
            slow_start_after_idle: true,
            frto: true,
            tail_loss_probe: true,
            reordering: 3,
            notsent_lowat: u32::MAX,
            min_tso_segments: 2,
            tso_window_divisor: 3,
            tso_rtt_log: 9,
            pacing_slow_start: 200,
            pacing_avoidance: 120,
            max_syn_backlog: 4096,
            somaxconn: 4096,
            abort_on_overflow: false,
            invalid_ratelimit: Duration::from_millis(500),
            max_time_wait: 262_144,
            rfc1337: false,
            fast_open: super::fast_open::Use::default(),
            fast_open_keys: None,
            fast_open_pause: Duration::ZERO,
            congestion: super::congestion::Algorithm::Cubic,
            slow_start: super::congestion::SlowStart::HyStart,
            initial_window: 10,
            rto_min: Duration::from_millis(200),
        }
    }
}
