//! What a program sets of one socket.

use super::congestion::Algorithm;
use std::time::Duration;

/// Socket options, with the names of setsockopt(2) beside them. A connection that is accepted begins with its listener's.
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
    /// How long sent bytes may go without being acknowledged (TCP_USER_TIMEOUT).
    pub user_timeout: Option<Duration>,
    /// How long close waits; zero resets (SO_LINGER).
    pub linger: Option<Duration>,
    /// How long FIN-WAIT-2 lasts; none where it is negative (TCP_LINGER2).
    pub fin_wait: Option<Duration>,
    /// The longest segment, both ways (TCP_MAXSEG).
    pub max_segment: Option<u16>,
    /// SYNs that are sent again (TCP_SYNCNT).
    pub syn_retries: Option<u8>,
    /// A connection is accepted when its first bytes are there, or this long after (TCP_DEFER_ACCEPT).
    pub defer_accept: Option<Duration>,
    /// Bytes of the send buffer, if the program chose (SO_SNDBUF, doubled as Linux does).
    pub send_buffer: Option<u32>,
    /// Bytes of the receive buffer, likewise (SO_RCVBUF).
    pub receive_buffer: Option<u32>,
    /// Bytes that make it readable (SO_RCVLOWAT).
    pub receive_low_water: u32,
    /// Bytes that may wait to be sent before it stops being writable (TCP_NOTSENT_LOWAT).
    pub notsent_lowat: Option<u32>,
    /// The largest window that is offered (TCP_WINDOW_CLAMP).
    pub window_clamp: Option<u32>,
    /// The type of service (IP_TOS), without the bits of congestion.
    pub service: u8,
    /// Hops (IP_TTL).
    pub ttl: u8,
    /// TCP_CONGESTION.
    pub congestion: Option<Algorithm>,
    /// Connections that may have begun early and not be through; 0 for none, the stack's rule where it is none (TCP_FASTOPEN).
    pub fast_open_queue: Option<u32>,
    /// What its cookies are made of; the stack's where there is none (TCP_FASTOPEN_KEY).
    pub fast_open_keys: Option<super::fast_open::Keys>,
    /// connect waits for the first bytes where they may go with the SYN (TCP_FASTOPEN_CONNECT).
    pub fast_open_connect: bool,
    /// No cookie is needed, nor asked for (TCP_FASTOPEN_NO_COOKIE).
    pub fast_open_no_cookie: bool,
    /// Bytes of a second that it is paced at, at most (SO_MAX_PACING_RATE).
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
