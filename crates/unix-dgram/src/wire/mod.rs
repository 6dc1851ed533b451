//! The fixed layouts of what datagram sockets tell each other beside their datagrams.

pub mod control_message;
pub mod hello;
pub mod proof;
