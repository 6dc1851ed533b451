//! The name of a unix socket as written on a command line: `unix:/path` or `unix:@name`.

use anyhow::Context;
use std::fmt;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;

/// Where a unix socket is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A path in the file system.
    Path(PathBuf),
    /// An abstract name: gone when its socket is closed.
    Abstract(String),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        match text.strip_prefix("unix:") {
            Some("" | "@") | None => Err(format!("{text:?}: write unix:/path/to/socket or unix:@name")),
            Some(rest) => {
                let address = match rest.strip_prefix('@') {
                    Some(name) => Address::Abstract(name.to_owned()),
                    None => Address::Path(PathBuf::from(rest)),
                };
                address.socket_addr().map_err(|error| error.to_string())?;
                Ok(address)
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Path(path) => write!(f, "unix:{}", path.display()),
            Address::Abstract(name) => write!(f, "unix:@{name}"),
        }
    }
}

impl Address {
    /// The address with `suffix` added, for a second socket beside the first.
    pub fn beside(&self, suffix: &str) -> Address {
        match self {
            Address::Path(path) => {
                let mut path = path.clone().into_os_string();
                path.push(suffix);
                Address::Path(path.into())
            }
            Address::Abstract(name) => Address::Abstract(format!("{name}{suffix}")),
        }
    }

    /// The same for onecopy's sockets.
    ///
    /// # Errors
    ///
    /// EINVAL for a name that no socket can have: one that a suffix made too long.
    pub fn name(&self) -> onecopy::Result<onecopy::unix::SocketAddr> {
        match self {
            Address::Path(path) => onecopy::unix::SocketAddr::from_pathname(path),
            Address::Abstract(name) => onecopy::unix::SocketAddr::from_abstract_name(name),
        }
    }

    fn socket_addr(&self) -> io::Result<SocketAddr> {
        let long = |why: &str| {
            let advice = "a socket's name has at most 107 bytes (unix(7)); choose a shorter one";
            io::Error::new(io::ErrorKind::InvalidInput, format!("{why}: {advice}"))
        };
        match self {
            Address::Path(path) => SocketAddr::from_pathname(path),
            Address::Abstract(name) => SocketAddr::from_abstract_name(name),
        }
        .map_err(|_| long(&format!("{self} can't be a socket's name")))
    }

    /// Connects a plain kernel socket.
    pub fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect_addr(&self.socket_addr()?)
    }

    /// Connects a plain kernel socket that never makes the caller wait; EAGAIN when the backlog is full.
    pub fn connect_nonblocking(&self) -> io::Result<UnixStream> {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let to = match self {
            Address::Path(path) => SocketAddrUnix::new(path.as_path())?,
            Address::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        };
        connect(&socket, &to)?;
        Ok(socket.into())
    }

    /// Binds a plain kernel listener, after [`Address::clear`].
    pub fn bind(&self) -> anyhow::Result<UnixListener> {
        self.clear()?;
        UnixListener::bind_addr(&self.socket_addr()?).with_context(|| format!("cannot listen on {self}"))
    }

    /// Removes a socket file that a killed process left behind. One that still answers, or that is something
    /// else than a socket, is left alone and is an error.
    pub fn clear(&self) -> anyhow::Result<()> {
        let Address::Path(path) = self else { return Ok(()) };
        match std::fs::symlink_metadata(path) {
            Err(_) => Ok(()), // nothing there, or bind will say what is wrong
            Ok(meta) if !meta.file_type().is_socket() => {
                anyhow::bail!("{self}: there is a file of that name that is not a socket; name another path")
            }
            Ok(_) => match self.connect() {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)
                    .with_context(|| format!("{self}: cannot remove the stale socket")),
                Ok(_) => anyhow::bail!("{self}: another process listens there; stop it or name another path"),
                Err(error) => Err(error).with_context(|| format!("{self} is in the way")),
            },
        }
    }

    /// Removes the socket file, when the listener is done with.
    pub fn remove(&self) {
        if let Address::Path(path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_and_writes() {
        for text in ["unix:/run/x.sock", "unix:@jobs", "unix:rel.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "/run/x.sock", "unix:", "unix:@", "tcp:1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        for (start, fits) in [("unix:/", 106), ("unix:@", 107)] {
            assert!((start.to_owned() + &"x".repeat(fits)).parse::<Address>().is_ok());
            let long = (start.to_owned() + &"x".repeat(fits + 1)).parse::<Address>();
            assert!(long.is_err_and(|why| why.contains("at most 107 bytes")));
        }
    }

    proptest! {
        #[test]
        fn what_is_an_address_is_written_as_it_was_read(text in prop_oneof![".{0,130}", "unix:@?/?.{0,110}"]) {
            match text.parse::<Address>() {
                Ok(address) => {
                    prop_assert_eq!(address.to_string(), text);
                    prop_assert!(address.name().is_ok());
                }
                Err(error) => prop_assert!(error.contains("unix:"), "{}", error),
            }
        }
    }
}
