//! What a program sets of one socket, and what holds for all.

use super::error::Error;
use crate::tcp::settings::LEAST_RECEIVE_BUFFER;

/// Socket options, with the names of setsockopt(2) beside them. (Checksums are always sent: UDP_NO_CHECK6_TX and SO_NO_CHECK have no place here.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Datagrams may be sent to everybody (SO_BROADCAST).
    pub broadcast: bool,
    /// Trains that come whole are handed over whole (UDP_GRO).
    pub gro: bool,
    /// What is sent is a train, of datagrams of so many bytes, where the envelope says nothing else; 0: it is none (UDP_SEGMENT).
    pub gso: u16,
    /// The type of service (IP_TOS).
    pub service: u8,
    /// Hops (IP_TTL), 1 at least.
    pub ttl: u8,
    /// No router may cut what is sent (IP_MTU_DISCOVER: IP_PMTUDISC_DO, else IP_PMTUDISC_DONT), nor this side: what is too long is refused.
    pub dont_fragment: bool,
    /// Errors are told that may pass: a router's that sees no way just now (IP_RECVERR has them come to a connected socket).
    pub all_errors: bool,
    /// Bytes of the receive buffer, if the program chose (SO_RCVBUF, doubled as Linux does): 2304 at least.
    pub receive_buffer: Option<u32>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            broadcast: false,
            gro: false,
            gso: 0,
            service: 0,
            ttl: 64,
            dont_fragment: true,
            all_errors: false,
            receive_buffer: None,
        }
    }
}

impl Settings {
    /// Makes of it what setsockopt(2) does.
    ///
    /// # Errors
    ///
    /// [`Error::BadTtl`].
    pub fn settle(&mut self) -> Result<(), Error> {
        self.receive_buffer = self.receive_buffer.map(|bytes| bytes.max(LEAST_RECEIVE_BUFFER));
        if self.ttl == 0 { Err(Error::BadTtl) } else { Ok(()) }
    }
}

/// What holds for all of a stack's sockets, with Linux's names and defaults where it has them. It may be changed at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Sockets, at most. They count among the stack's, too.
    pub sockets: usize,
    /// Bytes of a receive buffer where the program chose none (net.core.rmem_default).
    pub receive_buffer: u32,
    /// Bytes of all that waits to be received, at most (net.ipv4.udp_mem, there in pages).
    pub memory: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config { sockets: 1 << 16, receive_buffer: 212_992, memory: 256 << 20 }
    }
}
