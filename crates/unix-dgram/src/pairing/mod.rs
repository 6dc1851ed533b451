//! How two sockets that are connected to each other come to share memory.

pub mod line;
pub mod offer;
pub mod state;
pub mod steps;
pub mod switch;
