//! Names of unix sockets: a path, or a name in the abstract namespace.

use onecopy_socket::{Error, Op};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The name of a socket (unix(7), "Address format").
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(Kind);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Path(PathBuf),
    Abstract(Vec<u8>),
    Unnamed,
}

impl Name {
    /// A path of 1 to 108 bytes. (An empty or a longer one is EINVAL where it is used, as with bind(2).)
    pub fn path(path: impl AsRef<Path>) -> Name {
        Name(Kind::Path(path.as_ref().to_owned()))
    }

    /// A name of 1 to 107 bytes in the abstract namespace (without the leading NUL). It lives as long as the
    /// socket, and leaves no file behind.
    pub fn abstract_(name: impl AsRef<[u8]>) -> Name {
        Name(Kind::Abstract(name.as_ref().to_owned()))
    }

    /// Returns the path, if it is one.
    pub fn as_path(&self) -> Option<&Path> {
        match &self.0 {
            Kind::Path(path) => Some(path),
            _ => None,
        }
    }

    /// Returns the abstract name, if it is one.
    pub fn as_abstract(&self) -> Option<&[u8]> {
        match &self.0 {
            Kind::Abstract(name) => Some(name),
            _ => None,
        }
    }

    #[doc(hidden)]
    pub fn unnamed() -> Name {
        Name(Kind::Unnamed)
    }

    #[doc(hidden)]
    pub fn of(address: &SocketAddrUnix) -> Name {
        if let Some(name) = address.abstract_name().filter(|name| !name.is_empty()) {
            return Name(Kind::Abstract(name.to_owned()));
        }
        match onecopy_sys::socket::path(address) {
            Some(path) if !path.is_empty() => Name::path(OsStr::from_bytes(path)),
            _ => Name(Kind::Unnamed),
        }
    }

    #[doc(hidden)]
    pub fn address(&self, op: Op) -> Result<SocketAddrUnix, Error> {
        // EINVAL whatever is wrong, as bind(2) says of an invalid address (net/unix/af_unix.c:
        // unix_validate_addr).
        let wrong = |why| Error::new(op, Errno::INVAL).about("name").because(why);
        let refused = |why| Err(wrong(why));
        let (address, len, long) = match &self.0 {
            Kind::Path(path) if path.as_os_str().is_empty() => {
                return refused("it is empty; a path has 1 to 108 bytes (unix(7))");
            }
            Kind::Path(path) if path.as_os_str().as_bytes().contains(&0) => {
                return refused("no path has a zero byte; Name::abstract_ is for the abstract namespace");
            }
            Kind::Path(path) => (
                SocketAddrUnix::new(path.as_path()),
                path.as_os_str().len(),
                "a socket path has at most 108 bytes (unix(7)); choose a shorter one",
            ),
            Kind::Abstract(name) if name.is_empty() => {
                return refused("it is empty; an abstract name has 1 to 107 bytes (unix(7))");
            }
            Kind::Abstract(name) => (
                SocketAddrUnix::new_abstract_name(name),
                name.len(),
                "an abstract name has at most 107 bytes (unix(7)); choose a shorter one",
            ),
            Kind::Unnamed => {
                return refused("that socket has no name, and cannot be reached by one; have it bound");
            }
        };
        address.map_err(|_| wrong(long).of_bytes(len))
    }
}

impl FromStr for Name {
    type Err = Error;

    /// Parses `unix:/path`, `unix:@name`, `/path` or `@name`, where `@` stands for the abstract namespace.
    fn from_str(text: &str) -> Result<Name, Error> {
        let text = text.strip_prefix("unix:").unwrap_or(text);
        let name = match text.strip_prefix('@') {
            Some(name) => Name::abstract_(name),
            None => Name::path(text),
        };
        name.address(Op::Name)?;
        Ok(name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Path(path) => write!(f, "unix:{}", path.display()),
            Kind::Abstract(name) => write!(f, "unix:@{}", name.escape_ascii()),
            Kind::Unnamed => f.write_str("unix:(unnamed)"),
        }
    }
}

impl AsRef<Name> for Name {
    fn as_ref(&self) -> &Name {
        self
    }
}

impl From<&Path> for Name {
    fn from(path: &Path) -> Name {
        Name::path(path)
    }
}

impl From<PathBuf> for Name {
    fn from(path: PathBuf) -> Name {
        Name(Kind::Path(path))
    }
}

impl From<&str> for Name {
    /// Takes a path, as std's `UnixStream::connect` does. For the `unix:` notation use `parse()`.
    fn from(path: &str) -> Name {
        Name::path(path)
    }
}

impl From<&Name> for Name {
    fn from(name: &Name) -> Name {
        name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notation_goes_both_ways() {
        for text in ["unix:/run/store.sock", "unix:@jobs"] {
            assert_eq!(text.parse::<Name>().unwrap().to_string(), text);
        }
        assert_eq!("/a/b".parse::<Name>().unwrap(), Name::path("/a/b"));
    }

    #[test]
    fn names_that_no_socket_can_have_are_refused() {
        for text in ["", "unix:", &"x".repeat(109)] {
            let error = text.parse::<Name>().unwrap_err();
            assert_eq!(error.raw_os_error(), Errno::INVAL.raw_os_error());
            assert!(error.to_string().contains("108"), "{error}");
        }
        for text in ["@", "unix:@", &format!("@{}", "x".repeat(108))] {
            let error = text.parse::<Name>().unwrap_err();
            assert_eq!(error.raw_os_error(), Errno::INVAL.raw_os_error());
            assert!(error.to_string().contains("107"), "{error}");
        }
    }

    #[test]
    fn the_longest_names_are_taken_and_longer_ones_told_by_how_much() {
        for text in ["x".repeat(108), format!("@{}", "x".repeat(107))] {
            text.parse::<Name>().unwrap();
        }
        for (text, bytes) in
            [("x".repeat(120), "has 120 bytes"), (format!("@{}", "x".repeat(300)), "has 300 bytes")]
        {
            let error = text.parse::<Name>().unwrap_err();
            assert!(error.to_string().contains(bytes), "{error}");
        }
    }
}
