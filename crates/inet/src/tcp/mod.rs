//! TCP (RFC 9293), split by job.

pub mod congestion;
pub mod rcv;
pub mod rtt;
