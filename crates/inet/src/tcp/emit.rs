//! What a connection needs of who drives it, and how segments leave.

use super::config::Config;
use super::fast_open::News;
use super::memory::Pressure;
use super::stats::Stats;
use crate::wire::Tcp;
use onecopy_link::Packet;
use onecopy_pool::Pages;

/// A segment on its way down.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// Its header; the ports are the layer's below to write.
    pub header: &'a mut Tcp,
    /// Its bytes, in a packet without headers.
    pub packet: Packet,
    /// It is a super-segment, to be cut into parts of so many bytes.
    pub cut: Option<u16>,
    /// The network's type of service, with ECT where the connection says so.
    pub service: u8,
    /// Hops.
    pub ttl: u8,
}

/// What became of a segment below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way; whether it arrives nobody knows.
    Left,
    /// There is no room on this host: it was dropped, and counted (the kernel's NET_XMIT_DROP).
    Refused,
}

/// Takes segments of one connection.
pub trait Emit {
    /// One more, behind those before.
    fn emit(&mut self, segment: Outgoing<'_>) -> Sent;
}

/// What a call on a connection is made with.
pub struct Context<'a> {
    /// The time, in nanoseconds of any steady clock.
    pub now: u64,
    /// What holds for all connections.
    pub config: &'a Config,
    /// What is counted for all connections.
    pub stats: &'a mut Stats,
    /// Where segments go.
    pub out: &'a mut dyn Emit,
    /// What whoever waits for the socket should hear of.
    pub wake: Wake,
    /// The peer has acknowledged something that it had to get to do so: the way there is good (sk_dst_confirm()).
    pub heard: bool,
    /// What was learned of the peer's host, for the next connection.
    pub news: Option<News>,
    /// How short memory is for all connections together.
    pub pressure: Pressure,
    /// Bytes of it until there is none.
    pub memory_left: u64,
    /// What each connection may have while it is short: as many bytes as all others.
    pub memory_share: u64,
    /// Pages that what has arrived is copied together in when memory is short; without them more of it is given up.
    pub pages: Option<&'a dyn Pages>,
    /// The longest packet of the way to the peer, headers of network and transport and all.
    pub mtu: u32,
    /// The longest super-segment, likewise; 0 where the link cuts none.
    pub super_segment: u32,
    /// Fragments of payload that a packet may have.
    pub fragments: usize,
}

bitflags::bitflags! {
    /// Something has happened to a socket (the kernel's sk_data_ready, sk_write_space, sk_state_change, sk_error_report).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Wake: u8 {
        /// There is something to receive, or to accept.
        const READ = 1;
        /// There is room to send.
        const WRITE = 2;
        /// The connection was made, shut down or ended.
        const STATE = 4;
        /// There is an error.
        const ERROR = 8;
    }
}
