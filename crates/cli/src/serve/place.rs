//! Where the daemon listens.

use crate::address::Address;
use crate::units;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// As written on the command line.
#[derive(Clone, Debug)]
pub enum Listen {
    /// A unix socket.
    Unix(Address),
    /// A port of the daemon's own stack.
    Tcp(SocketAddr),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        match text.strip_prefix("tcp:") {
            Some(place) => Ok(Listen::Tcp(units::place(place)?)),
            None => Ok(Listen::Unix(text.parse()?)),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Unix(address) => address.fmt(f),
            Listen::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}
