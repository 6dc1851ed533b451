//! TCP (RFC 9293), without addresses, clock or link.
//!
//! | room | what lives there |
//! |---|---|
//! | [`connection`] | one connection: what segments, calls and the time do to it |
//! | [`snd`] | all that was sent and is not acknowledged: what is lost, what is sent again, when |
//! | [`rcv`] | all that has arrived: in order or not, windows, when to acknowledge |
//! | [`congestion`], [`rtt`] | how much may be under way, and how long an answer takes |
//! | [`listener`], [`time_wait`] | what there is of a connection before, and after |
//! | [`memory`] | what all connections may keep together |
//! | [`fast_open`] | cookies, and what is remembered of servers: data in the SYN |
//!
//! Where the RFCs leave a choice, this does what Linux does: its peers expect that, and its tests say so.

pub mod config;
pub mod congestion;
pub mod connection;
pub mod emit;
mod error;
pub mod fast_open;
mod info;
pub mod listener;
pub mod memory;
pub mod rcv;
pub mod rtt;
pub mod settings;
pub mod snd;
mod state;
mod stats;
pub mod time_wait;

pub use config::Config;
pub use connection::{After, Connection, Readiness, Received, SendFlags, Side};
pub use emit::{Context, Emit, Outgoing, Sent, Wake};
pub use error::Error;
pub use info::Info;
pub use settings::{BadSetting, Settings};
pub use state::State;
pub use stats::Stats;
