//! TCP (RFC 9293), split by job.

pub mod congestion;
mod info;
pub mod rcv;
pub mod rtt;
pub mod snd;

pub use info::Info;
