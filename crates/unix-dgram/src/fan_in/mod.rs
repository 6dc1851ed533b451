//! How a receiver takes from many senders in turns, each of which sends over a lane of its own.

pub mod admit;
pub mod lane;
pub mod readiness;
pub mod receiver;
pub mod schedule;
pub mod sender;
mod turns;
