//! What datagram sockets say to each other that is no datagram.

pub mod hello;
pub mod sign;
pub mod words;
