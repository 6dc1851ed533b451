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
        match text.split_once(':') {
            Some(("tcp", _)) => Ok(Listen::Tcp(units::tcp_place(text)?)),
            Some(("unix", _)) => Ok(Listen::Unix(text.parse()?)),
            _ => {
                Err(format!("{text:?}: write unix:/path/to/socket or unix:@name, or tcp:IP:PORT with --tap"))
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_listen_is_named_where_none_is_meant() {
        let said = "127.0.0.1:80".parse::<Listen>().unwrap_err();
        assert!(said.contains("unix:/path") && said.contains("tcp:IP:PORT with --tap"), "{said}");
        for text in ["unix:/run/a.sock", "unix:@a", "tcp:10.0.0.2:80"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        assert!("unix:".parse::<Listen>().is_err());
        assert!("tcp:10.0.0.2".parse::<Listen>().is_err());
    }
}
