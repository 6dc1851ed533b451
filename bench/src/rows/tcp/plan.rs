//! What a worker is to do.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::Result;
use onecopy_sys::netns::Namespace;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The peer's address, the kernel's.
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The engine's.
pub const ENGINE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Bits of their network.
pub const PREFIX: u8 = 24;
/// The peer listens at this port for the first stream, and at one more for each other one.
const PORT: u16 = 5001;

/// What goes on, seen from the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// It sends, the peer receives.
    #[default]
    Send,
    /// It receives.
    Recv,
    /// It sends messages, each when the one before has come back.
    RoundTrips,
}

/// Parameters of the peer and of the engine, the same ones.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Which way bytes go.
    pub way: Way,
    /// How many connections at once.
    pub streams: usize,
    /// Seconds before the clock starts: for slow start, caches, and the waiting to settle.
    pub warm: f64,
    /// Seconds that are measured.
    pub seconds: f64,
    /// If this is to verify: bytes of each stream, whose end follows.
    pub verify: Option<u64>,
    /// Bytes that a program gives or takes at a time.
    pub piece: usize,
    /// What is asked for as send and receive buffer.
    pub buffer: usize,
    /// Both sides ask again and again instead of sleeping.
    pub spin: bool,
    /// Where the peer's network namespace is found.
    pub peers: String,
    /// Where the engine's is, if it has one.
    pub engines: Option<String>,
    /// The TAP in the peer's namespace, or the end of a veth in the engine's.
    pub device: String,
    /// Its MTU.
    pub mtu: u32,
    /// For engines that can do without, too: super-segments go over whole.
    pub segmentation: bool,
    /// Of how many shards our stack is; 0 is one, and nothing said of it.
    pub shards: u16,
}

impl Plan {
    /// Reads it from a worker's parameters.
    pub fn from_job(job: &Value) -> Result<Plan> {
        Ok(Plan::deserialize(job)?)
    }

    /// Where the peer listens for that stream.
    pub fn address(&self, stream: usize) -> SocketAddrV4 {
        SocketAddrV4::new(PEER, PORT + stream as u16)
    }

    /// The peer's namespace.
    pub fn peers(&self) -> Result<Namespace> {
        Ok(Namespace::open(&self.peers)?)
    }

    /// Whether small messages leave at once (TCP_NODELAY): those that an answer is waited for.
    pub fn nodelay(&self) -> bool {
        self.way == Way::RoundTrips
    }

    /// How long a sender sends. The reader's clock may have started a little later.
    pub fn sending(&self) -> f64 {
        self.warm + self.seconds + 0.03
    }
}
