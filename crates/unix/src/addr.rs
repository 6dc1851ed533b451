//! Names of unix sockets: a path, or a name in the abstract namespace.

use onecopy_socket::{Error, Op};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use std::ffi::OsStr;
use std::fmt;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The name of a unix socket (unix(7), "Address format"): as std's, with what std has in `SocketAddrExt`.
///
/// Whatever takes a name takes a path as well, in all forms: `"/run/store.sock"`, `&path`, a `String`.
///
/// ```
/// # fn main() -> onecopy_unix::Result<()> {
/// use onecopy_unix::{Listener, SocketAddr, Stream};
/// let name = SocketAddr::from_abstract_name("onecopy-doc-addr")?;
/// let listener = Listener::bind(&name)?;
/// let client = Stream::connect(&name)?;
/// let (server, from) = listener.accept()?;
/// assert!(from.is_unnamed());
/// assert_eq!(client.peer_addr()?.as_abstract_name(), Some(&b"onecopy-doc-addr"[..]));
/// assert_eq!(listener.local_addr()?, "unix:@onecopy-doc-addr".parse()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SocketAddr(Kind);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Kind {
    Path(PathBuf),
    Abstract(Vec<u8>),
    Unnamed,
}

impl SocketAddr {
    /// Takes a path of 1 to 108 bytes.
    ///
    /// # Errors
    ///
    /// EINVAL for a path that no socket can have: empty, too long, or with a zero byte.
    pub fn from_pathname(path: impl AsRef<Path>) -> Result<SocketAddr, Error> {
        SocketAddr::from(path.as_ref()).checked()
    }

    /// Takes a name of 1 to 107 bytes in the abstract namespace (without the leading zero byte). It lives as
    /// long as the socket, and leaves no file behind.
    ///
    /// # Errors
    ///
    /// EINVAL for an empty name, or a longer one.
    pub fn from_abstract_name(name: impl AsRef<[u8]>) -> Result<SocketAddr, Error> {
        SocketAddr(Kind::Abstract(name.as_ref().to_owned())).checked()
    }

    fn checked(self) -> Result<SocketAddr, Error> {
        self.address(Op::Name)?;
        Ok(self)
    }

    /// Whether it is no name: of a socket that is not bound.
    pub fn is_unnamed(&self) -> bool {
        matches!(self.0, Kind::Unnamed)
    }

    /// Returns the path, if it is one.
    pub fn as_pathname(&self) -> Option<&Path> {
        match &self.0 {
            Kind::Path(path) => Some(path),
            _ => None,
        }
    }

    /// Returns the abstract name, if it is one.
    pub fn as_abstract_name(&self) -> Option<&[u8]> {
        match &self.0 {
            Kind::Abstract(name) => Some(name),
            _ => None,
        }
    }

    #[doc(hidden)]
    pub fn unnamed() -> SocketAddr {
        SocketAddr(Kind::Unnamed)
    }

    #[doc(hidden)]
    pub fn of(address: &SocketAddrUnix) -> SocketAddr {
        if let Some(name) = address.abstract_name().filter(|name| !name.is_empty()) {
            return SocketAddr(Kind::Abstract(name.to_owned()));
        }
        match onecopy_sys::socket::path(address) {
            Some(path) if !path.is_empty() => SocketAddr::from(Path::new(OsStr::from_bytes(path))),
            _ => SocketAddr(Kind::Unnamed),
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
                return refused("no path has a zero byte; SocketAddr::from_abstract_name is for other names");
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

/// Returns a name as mio and tokio take names: a path that begins with a zero byte is an abstract name.
///
/// # Errors
///
/// EINVAL for an abstract name that no socket can have.
#[cfg(any(feature = "mio", feature = "tokio"))]
#[doc(hidden)]
pub fn named(name: impl ToSocketAddr) -> Result<SocketAddr, Error> {
    let name = name.to_socket_addr();
    match name.as_pathname().and_then(|path| path.as_os_str().as_bytes().strip_prefix(&[0])) {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => Ok(name),
    }
}

impl FromStr for SocketAddr {
    type Err = Error;

    /// Parses `unix:/path`, `unix:@name`, `/path` or `@name`, where `@` stands for the abstract namespace.
    fn from_str(text: &str) -> Result<SocketAddr, Error> {
        let text = text.strip_prefix("unix:").unwrap_or(text);
        match text.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(text),
        }
    }
}

impl fmt::Display for SocketAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Path(path) => write!(f, "unix:{}", path.display()),
            Kind::Abstract(name) => write!(f, "unix:@{}", name.escape_ascii()),
            Kind::Unnamed => f.write_str("unix:(unnamed)"),
        }
    }
}

impl fmt::Debug for SocketAddr {
    /// Writes it as std does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (net::SocketAddr::try_from(self), &self.0) {
            (Ok(std), _) => std.fmt(f),
            // A path that std has no room for.
            (Err(_), Kind::Path(path)) => write!(f, "{path:?} (pathname)"),
            (Err(_), _) => fmt::Display::fmt(self, f),
        }
    }
}

/// What a socket may be bound or connected to: a [`SocketAddr`], or a path in any form.
///
/// A path that no socket can have is refused by the call that uses it (EINVAL).
pub trait ToSocketAddr {
    /// Returns the name.
    fn to_socket_addr(&self) -> SocketAddr;
}

impl<P: AsRef<Path> + ?Sized> ToSocketAddr for P {
    fn to_socket_addr(&self) -> SocketAddr {
        SocketAddr::from(self.as_ref())
    }
}

impl ToSocketAddr for SocketAddr {
    fn to_socket_addr(&self) -> SocketAddr {
        self.clone()
    }
}

impl ToSocketAddr for &SocketAddr {
    fn to_socket_addr(&self) -> SocketAddr {
        SocketAddr::clone(self)
    }
}

impl From<PathBuf> for SocketAddr {
    fn from(path: PathBuf) -> SocketAddr {
        SocketAddr(Kind::Path(path))
    }
}

impl From<&Path> for SocketAddr {
    fn from(path: &Path) -> SocketAddr {
        SocketAddr::from(path.to_owned())
    }
}

impl From<&SocketAddr> for SocketAddr {
    fn from(name: &SocketAddr) -> SocketAddr {
        name.clone()
    }
}

impl From<&net::SocketAddr> for SocketAddr {
    fn from(name: &net::SocketAddr) -> SocketAddr {
        match (name.as_pathname(), name.as_abstract_name()) {
            (Some(path), _) => SocketAddr::from(path),
            (_, Some(name)) => SocketAddr(Kind::Abstract(name.to_owned())),
            _ => SocketAddr::unnamed(),
        }
    }
}

impl From<net::SocketAddr> for SocketAddr {
    fn from(name: net::SocketAddr) -> SocketAddr {
        SocketAddr::from(&name)
    }
}

impl TryFrom<&SocketAddr> for net::SocketAddr {
    type Error = std::io::Error;

    /// Gives std's. That has no paths of 108 bytes, and makes a name that is no name from an empty path.
    fn try_from(name: &SocketAddr) -> std::io::Result<net::SocketAddr> {
        match &name.0 {
            Kind::Path(path) => net::SocketAddr::from_pathname(path),
            Kind::Abstract(name) => net::SocketAddr::from_abstract_name(name),
            Kind::Unnamed => net::SocketAddr::from_pathname(""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notation_goes_both_ways() {
        for text in ["unix:/run/store.sock", "unix:@jobs"] {
            assert_eq!(text.parse::<SocketAddr>().unwrap().to_string(), text);
        }
        assert_eq!("/a/b".parse::<SocketAddr>().unwrap(), SocketAddr::from_pathname("/a/b").unwrap());
    }

    #[test]
    fn every_form_of_a_path_is_taken() {
        let path = PathBuf::from("/run/store.sock");
        let same = SocketAddr::from_pathname(&path).unwrap();
        let is = |name: &dyn ToSocketAddr| assert_eq!(name.to_socket_addr(), same);
        is(&path);
        is(&&path);
        is(&path.as_path());
        is(&"/run/store.sock");
        is(&String::from("/run/store.sock"));
        is(&path.as_os_str());
        is(&path.clone().into_os_string());
        is(&std::borrow::Cow::from(&path));
        is(&same);
        is(&&same);
    }

    #[test]
    fn it_is_shown_as_std_shows_it() {
        let path = net::SocketAddr::from_pathname("/a \"b\"").unwrap();
        let name = net::SocketAddr::from_abstract_name(b"\0x\x01y").unwrap();
        let unnamed = net::UnixDatagram::unbound().unwrap().local_addr().unwrap();
        for std in [path, name, unnamed] {
            assert_eq!(format!("{:?}", SocketAddr::from(&std)), format!("{std:?}"));
        }
    }

    #[test]
    fn names_of_std_go_both_ways() {
        let abstract_name = net::SocketAddr::from_abstract_name(b"x\0y").unwrap();
        let path = net::SocketAddr::from_pathname("/a").unwrap();
        let unnamed = net::UnixDatagram::unbound().unwrap().local_addr().unwrap();
        for std in [abstract_name, path, unnamed] {
            let ours = SocketAddr::from(std.clone());
            assert_eq!(ours.as_pathname(), std.as_pathname());
            assert_eq!(ours.as_abstract_name(), std.as_abstract_name());
            assert_eq!(ours.is_unnamed(), std.is_unnamed());
            let again = net::SocketAddr::try_from(&ours).unwrap();
            assert_eq!(SocketAddr::from(again), ours);
        }
    }

    #[test]
    fn names_that_no_socket_can_have_are_refused() {
        for text in ["", "unix:", &"x".repeat(109)] {
            let error = text.parse::<SocketAddr>().unwrap_err();
            assert_eq!(error.raw_os_error(), Errno::INVAL.raw_os_error());
            assert!(error.to_string().contains("108"), "{error}");
        }
        for text in ["@", "unix:@", &format!("@{}", "x".repeat(108))] {
            let error = text.parse::<SocketAddr>().unwrap_err();
            assert_eq!(error.raw_os_error(), Errno::INVAL.raw_os_error());
            assert!(error.to_string().contains("107"), "{error}");
        }
    }

    #[test]
    fn the_longest_names_are_taken_and_longer_ones_told_by_how_much() {
        for text in ["x".repeat(108), format!("@{}", "x".repeat(107))] {
            text.parse::<SocketAddr>().unwrap();
        }
        for (text, bytes) in
            [("x".repeat(120), "has 120 bytes"), (format!("@{}", "x".repeat(300)), "has 300 bytes")]
        {
            let error = text.parse::<SocketAddr>().unwrap_err();
            assert!(error.to_string().contains(bytes), "{error}");
        }
    }
}
