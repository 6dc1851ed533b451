//! Who is meant: what the words of the command line name.

use crate::address::Address;
use crate::failure::Usage;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

/// Whom to connect to, or where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A host by name or address, and a port.
    Net(String, u16),
    /// A unix socket.
    Unix(Address),
}

impl Target {
    /// Of `HOST:PORT`, `HOST PORT`, `unix:PATH`, or where `listen` also `PORT` alone; or of what stood behind `--unix`.
    pub fn of(words: &[String], unix: Option<&str>, listen: bool) -> Result<Target, Usage> {
        if let Some(path) = unix {
            if !words.is_empty() {
                return Err(Usage("--unix says who is meant: leave out the other address".into()));
            }
            let text = if path.starts_with("unix:") { path.to_owned() } else { format!("unix:{path}") };
            return text.parse().map(Target::Unix).map_err(Usage);
        }
        match words {
            [one] if one.starts_with("unix:") => one.parse().map(Target::Unix).map_err(Usage),
            [port] if listen && !port.contains(':') => Ok(Target::Net("0.0.0.0".into(), number(port)?)),
            [one] => match one.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() => {
                    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
                    Ok(Target::Net(host.to_owned(), number(port)?))
                }
                _ => Err(Usage(format!("{one:?}: write HOST:PORT, as in 10.0.0.1:9000, or unix:/path"))),
            },
            [host, port] => Ok(Target::Net(host.clone(), number(port)?)),
            _ => Err(Usage(
                match listen {
                    true => "where to listen? name a port, as in `onecopy nc -l 9000`, or --unix PATH",
                    false => {
                        "whom to connect to? name HOST:PORT, as in `onecopy nc 10.0.0.1:9000`, or --unix PATH"
                    }
                }
                .into(),
            )),
        }
    }
}

fn number(text: &str) -> Result<u16, Usage> {
    text.parse().map_err(|_| Usage(format!("{text:?} is no port: write a number from 0 to 65535")))
}

/// The addresses of `host`, as this system's resolver has them.
pub fn resolve(host: &str, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|error| {
            anyhow::anyhow!("{host} has no address: {error}; check the name, or write the address")
        })?
        .collect();
    anyhow::ensure!(!found.is_empty(), "{host} has no address; check the name, or write the address");
    Ok(found)
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Net(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Target::Net(host, port) => write!(f, "{host}:{port}"),
            Target::Unix(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str, listen: bool) -> Result<String, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Target::of(&words, None, listen).map(|target| target.to_string()).map_err(|usage| usage.to_string())
    }

    #[test]
    fn words_that_name_somebody() {
        for (line, listen, meant) in [
            ("10.0.0.1:9000", false, "10.0.0.1:9000"),
            ("10.0.0.1 9000", false, "10.0.0.1:9000"),
            ("host.example:80", false, "host.example:80"),
            ("[::1]:80", false, "[::1]:80"),
            ("::1 80", false, "[::1]:80"),
            ("9000", true, "0.0.0.0:9000"),
            ("127.0.0.1:0", true, "127.0.0.1:0"),
            ("unix:@jobs", true, "unix:@jobs"),
        ] {
            assert_eq!(of(line, listen).as_deref(), Ok(meant), "{line}");
        }
        for path in ["/run/x", "unix:/run/x"] {
            let target = Target::of(&[], Some(path), true).unwrap();
            assert_eq!(target.to_string(), "unix:/run/x");
        }
    }

    #[test]
    fn words_that_name_nobody() {
        for (line, listen, why) in [
            ("", false, "whom to connect to?"),
            ("", true, "where to listen?"),
            ("9000", false, "write HOST:PORT"),
            (":80", false, "write HOST:PORT"),
            ("host:x", false, "no port"),
            ("host 65536", false, "no port"),
            ("70000", true, "no port"),
            ("unix:", false, "unix:/path/to/socket"),
        ] {
            assert!(of(line, listen).is_err_and(|said| said.contains(why)), "{line}");
        }
        assert!(Target::of(&["a:1".into()], Some("/x"), false).is_err());
    }
}
