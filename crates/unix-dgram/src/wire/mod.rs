//! What datagram sockets say to each other that is no datagram.

pub mod control_message;
pub mod hello;
pub mod proof;
