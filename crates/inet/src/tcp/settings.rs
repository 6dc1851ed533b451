//! What a program sets of one socket.

use super::congestion::Algorithm;
use std::fmt;
use std::time::Duration;

/// The smallest send buffer, and receive buffer, with which anything moves: the kernel's SOCK_MIN_SNDBUF, SOCK_MIN_RCVBUF.
pub const LEAST_SEND_BUFFER: u32 = 4608;
/// See [`LEAST_SEND_BUFFER`].
pub const LEAST_RECEIVE_BUFFER: u32 = 2304;
/// The smallest TCP_WINDOW_CLAMP.
const LEAST_CLAMP: u32 = LEAST_RECEIVE_BUFFER / 2;
/// The longest TCP_LINGER2 (TCP_FIN_TIMEOUT_MAX).
const LONGEST_FIN_WAIT: Duration = Duration::from_secs(120);
/// What TCP_KEEPIDLE and TCP_KEEPINTVL take (MAX_TCP_KEEPIDLE, MAX_TCP_KEEPINTVL).
const KEEPALIVE: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(32_767);
/// What TCP_KEEPCNT and TCP_SYNCNT take (MAX_TCP_KEEPCNT, MAX_TCP_SYNCNT).
const COUNTS: std::ops::RangeInclusive<u8> = 1..=127;
/// What TCP_MAXSEG takes (TCP_MIN_MSS, MAX_TCP_WINDOW).
const SEGMENTS: std::ops::RangeInclusive<u16> = 88..=32_767;

/// Socket options, with the names of setsockopt(2) beside them. A connection that is accepted begins with its listener's.
///
/// What is set is made what Linux makes of it, or refused ([`BadSetting`]), by [`Stack::tcp_set`](crate::stack::Stack::tcp_set).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Small segments leave at once (TCP_NODELAY).
    pub nodelay: bool,
    /// Partial segments wait (TCP_CORK).
    pub cork: bool,
    /// An idle peer is asked whether it lives (SO_KEEPALIVE).
    pub keepalive: bool,
    /// TCP_KEEPIDLE; the stack's where it is none.
    pub keepalive_time: Option<Duration>,
    /// TCP_KEEPINTVL.
    pub keepalive_interval: Option<Duration>,
    /// TCP_KEEPCNT.
    pub keepalive_probes: Option<u8>,
    /// How long sent bytes may go without being acknowledged (TCP_USER_TIMEOUT); none where it is zero.
    pub user_timeout: Option<Duration>,
    /// How long close waits; zero resets (SO_LINGER).
    pub linger: Option<Duration>,
    /// How long FIN-WAIT-2 lasts, at most 120 s; not at all where it is zero (TCP_LINGER2, there by -1).
    pub fin_wait: Option<Duration>,
    /// The longest segment, both ways, of 88 to 32767 bytes (TCP_MAXSEG); 0 is none. Where the kernel carries the bytes, it counts for
    /// connections that are made after: a listener's.
    pub max_segment: Option<u16>,
    /// SYNs that are sent again (TCP_SYNCNT).
    pub syn_retries: Option<u8>,
    /// A connection is accepted when its first bytes are there, or this long after (TCP_DEFER_ACCEPT).
    pub defer_accept: Option<Duration>,
    /// Bytes of the send buffer, if the program chose: what SO_SNDBUF makes of its number ([`Config::send_buffer`](super::Config::send_buffer)), or
    /// SO_SNDBUFFORCE. At least [`LEAST_SEND_BUFFER`].
    pub send_buffer: Option<u32>,
    /// Bytes of the receive buffer, likewise (SO_RCVBUF, SO_RCVBUFFORCE).
    pub receive_buffer: Option<u32>,
    /// Bytes that make it readable (SO_RCVLOWAT).
    pub receive_low_water: u32,
    /// Bytes that may wait to be sent before it stops being writable (TCP_NOTSENT_LOWAT). Where the kernel carries the bytes, those
    /// that wait in it: up to 256 KiB wait before it besides.
    pub notsent_lowat: Option<u32>,
    /// The largest window that is offered (TCP_WINDOW_CLAMP): at least 1152 bytes.
    pub window_clamp: Option<u32>,
    /// The type of service (IP_TOS), without the bits of congestion.
    pub service: u8,
    /// Hops (IP_TTL), 1 at least.
    pub ttl: u8,
    /// TCP_CONGESTION; the stack's own where it is none ([`Config::congestion`](super::Config::congestion)).
    ///
    /// Where the kernel carries the bytes, none is what the system or the route has for it. One that was chosen can't be taken back, only replaced, and
    /// what is told then is what the kernel really uses: none for one that has no name here. A connection that began with one that paces, such as
    /// bbr, stays paced, at the rate of the new one.
    pub congestion: Option<Algorithm>,
    /// Connections that may have begun early and not be through; 0 for none, the stack's rule where it is none (TCP_FASTOPEN).
    pub fast_open_queue: Option<u32>,
    /// What its cookies are made of; the stack's where there is none (TCP_FASTOPEN_KEY).
    pub fast_open_keys: Option<super::fast_open::Keys>,
    /// connect waits for the first bytes where they may go with the SYN (TCP_FASTOPEN_CONNECT).
    pub fast_open_connect: bool,
    /// No cookie is needed, nor asked for (TCP_FASTOPEN_NO_COOKIE).
    pub fast_open_no_cookie: bool,
    /// Bytes of the stream that leave in a second, at most (SO_MAX_PACING_RATE). Each packet leaves when those before it would have at this rate, or at what the
    /// window of congestion comes to if that is less, as Linux paces by itself (tcp_pacing_check()). A super-segment is no longer than what
    /// a millisecond carries, or two segments, on short ways, too, where Linux makes it longer. So at rates below some kilobytes a second these two leave at once, each second or less
    /// often; [`Settings::max_segment`] makes them smaller. Another rate holds at once: what is owed by the one before is owed still, in the time that it takes by the new one. None:
    /// nothing is held back. 0 counts as 1.
    ///
    /// As in Linux, what a timer has sent again does not wait: the first segment after a timeout, the last one as a probe of the tail where nothing new waits. What comes behind
    /// them waits for their time, too. ACKs without data do not count.
    pub max_pacing_rate: Option<u64>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            nodelay: false,
            cork: false,
            keepalive: false,
            keepalive_time: None,
            keepalive_interval: None,
            keepalive_probes: None,
            user_timeout: None,
            linger: None,
            fin_wait: None,
            max_segment: None,
            syn_retries: None,
            defer_accept: None,
            send_buffer: None,
            receive_buffer: None,
            receive_low_water: 1,
            notsent_lowat: None,
            window_clamp: None,
            service: 0,
            ttl: 64,
            congestion: None,
            fast_open_queue: None,
            fast_open_keys: None,
            fast_open_connect: false,
            fast_open_no_cookie: false,
            max_pacing_rate: None,
        }
    }
}

/// An option has a value that it does not take (EINVAL).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BadSetting {
    /// [`Settings::max_segment`].
    MaxSegment,
    /// [`Settings::keepalive_time`].
    KeepaliveTime,
    /// [`Settings::keepalive_interval`].
    KeepaliveInterval,
    /// [`Settings::keepalive_probes`].
    KeepaliveProbes,
    /// [`Settings::syn_retries`].
    SynRetries,
    /// [`Settings::user_timeout`].
    UserTimeout,
    /// [`Settings::window_clamp`], of what is connected or listens.
    WindowClamp,
    /// [`Settings::ttl`], or UDP's.
    Ttl,
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadSetting::MaxSegment => "a longest segment has 88 to 32767 bytes, or 0 for none",
            BadSetting::KeepaliveTime => "keep-alive begins after 1 to 32767 seconds",
            BadSetting::KeepaliveInterval => "between two probes of keep-alive are 1 to 32767 seconds",
            BadSetting::KeepaliveProbes => "keep-alive asks 1 to 127 times",
            BadSetting::SynRetries => "a SYN is sent again 1 to 127 times",
            BadSetting::UserTimeout => "a user timeout is at most 2147483647 milliseconds, 0 for none",
            BadSetting::WindowClamp => {
                "a window can be limited to no bytes before there is a connection alone"
            }
            BadSetting::Ttl => "a packet makes 1 to 255 hops",
        })
    }
}

impl Settings {
    /// Makes of it what setsockopt(2) does (sk_setsockopt(), do_tcp_setsockopt(), do_ip_setsockopt()); `closed`: there is no connection, and it
    /// does not listen.
    ///
    /// # Errors
    ///
    /// What it refuses.
    pub fn settle(&mut self, closed: bool) -> Result<(), BadSetting> {
        self.max_segment = self.max_segment.filter(|most| *most != 0);
        if self.max_segment.is_some_and(|most| !SEGMENTS.contains(&most)) {
            return Err(BadSetting::MaxSegment);
        }
        let bad = |set: Option<Duration>| set.is_some_and(|time| !KEEPALIVE.contains(&time));
        if bad(self.keepalive_time) {
            return Err(BadSetting::KeepaliveTime);
        }
        if bad(self.keepalive_interval) {
            return Err(BadSetting::KeepaliveInterval);
        }
        if self.keepalive_probes.is_some_and(|count| !COUNTS.contains(&count)) {
            return Err(BadSetting::KeepaliveProbes);
        }
        if self.syn_retries.is_some_and(|count| !COUNTS.contains(&count)) {
            return Err(BadSetting::SynRetries);
        }
        if self.user_timeout.is_some_and(|limit| limit.as_millis() > i32::MAX as u128) {
            return Err(BadSetting::UserTimeout);
        }
        if self.ttl == 0 {
            return Err(BadSetting::Ttl);
        }
        if self.window_clamp == Some(0) {
            if !closed {
                return Err(BadSetting::WindowClamp);
            }
            self.window_clamp = None;
        }
        self.window_clamp = self.window_clamp.map(|clamp| clamp.max(LEAST_CLAMP));
        self.send_buffer = self.send_buffer.map(|bytes| bytes.max(LEAST_SEND_BUFFER));
        self.receive_buffer = self.receive_buffer.map(|bytes| bytes.max(LEAST_RECEIVE_BUFFER));
        self.fin_wait = self.fin_wait.map(|limit| limit.min(LONGEST_FIN_WAIT));
        self.service &= !3;
        Ok(())
    }
}
