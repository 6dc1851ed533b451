//! The name of a unix socket as written on a command line: `unix:/path` or `unix:@name`.

use anyhow::{Context, anyhow};
use std::fmt;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

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

    /// Whether a process has a stream socket there that this one may connect to. It hears nothing of that, and nothing waits
    /// for it: who asks is of another type, and the kernel says so only where there is a socket (unix_find_bsd and
    /// unix_find_abstract in net/unix/af_unix.c).
    ///
    /// # Errors
    ///
    /// As of connect(2): ENOENT, ECONNREFUSED where there is no socket, or one that nobody has; EACCES.
    pub fn probe(&self) -> io::Result<()> {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
        let path = match self {
            Address::Path(path) => path,
            // These are looked up by type.
            Address::Abstract(name) => {
                let all = std::fs::read_to_string("/proc/net/unix");
                let there = |all: String| all.lines().any(|line| line.ends_with(&format!(" @{name}")));
                return match all.is_ok_and(|all| !there(all)) {
                    true => Err(rustix::io::Errno::CONNREFUSED.into()),
                    false => Ok(()),
                };
            }
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        match connect(&socket, &SocketAddrUnix::new(path.as_path())?) {
            Err(rustix::io::Errno::PROTOTYPE) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(()) => Err(rustix::io::Errno::PROTOTYPE.into()),
        }
    }

    /// Binds a plain kernel listener.
    pub fn bind(&self) -> anyhow::Result<(UnixListener, Place)> {
        let bind = || {
            UnixListener::bind_addr(&self.socket_addr()?).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => anyhow!("the folder of that path does not exist; make it first"),
                _ => error.into(),
            })
        };
        self.claim(|| bind().with_context(|| format!("cannot listen on {self}")))
    }

    /// Makes a socket here with `bind`, in the place of one that a killed process left behind.
    pub fn claim<T>(&self, bind: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, Place)> {
        let Address::Path(path) = self else { return Ok((bind()?, Place(None))) };
        let _turn = Turn::take(path);
        self.clear()?;
        let socket = bind()?;
        Ok((socket, Place(identity(path).map(|made| (path.clone(), made)))))
    }

    /// Whether this is where `other` is, perhaps by another path.
    pub fn is_same(&self, other: &Address) -> bool {
        match (self, other) {
            (Address::Path(this), Address::Path(other)) => {
                let file = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
                this == other || file(this).is_some_and(|this| file(other) == Some(this))
            }
            _ => self == other,
        }
    }

    /// The file of a socket that another process made here, and has left to this one.
    pub fn adopt(&self) -> Place {
        match self {
            Address::Path(path) => Place(identity(path).map(|made| (path.clone(), made))),
            Address::Abstract(_) => Place(None),
        }
    }

    /// Removes a socket file that a killed process left behind. One that somebody has, or that is something
    /// else than a socket, is left alone and is an error.
    fn clear(&self) -> anyhow::Result<()> {
        let Address::Path(path) = self else { return Ok(()) };
        match std::fs::symlink_metadata(path) {
            Err(_) => Ok(()), // nothing there, or bind will say what is wrong
            Ok(meta) if !meta.file_type().is_socket() => {
                anyhow::bail!("{self}: there is a file of that name that is not a socket; name another path")
            }
            Ok(_) => match self.probe() {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)
                    .with_context(|| format!("{self}: cannot remove the stale socket")),
                Ok(()) => {
                    anyhow::bail!("{self}: another process listens there; stop it or name another path")
                }
                Err(error) => Err(error).with_context(|| format!("{self} is in the way")),
            },
        }
    }
}

/// The file of a socket that this process made. Dropped, it is removed, unless another process has put its own there meanwhile:
/// a leaving daemon takes nothing from the one that follows it.
///
/// To be dropped before the socket: that keeps the file's number from being given to another one. What is left is a moment
/// between the look and the removal in which a program that does not take its [`Turn`] replaces the file.
#[derive(Debug)]
pub struct Place(Option<(PathBuf, (u64, u64))>);

impl Place {
    /// Leaves the file where it is: it is another process's from now on.
    pub fn leave(mut self) {
        self.0 = None;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((path, made)) = &self.0 {
            let _turn = Turn::take(path);
            if identity(path) == Some(*made) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// The device and the number of what lies there.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// One process at a time looks what lies under a path and then replaces or removes it. It holds an abstract name meanwhile,
/// which leaves nothing behind. (A flock(2) on the folder may be somebody else's sign of something else.) Any user may take
/// that name, so nobody waits for it for long; who does not get it goes on without, and so does another network namespace.
struct Turn(#[expect(dead_code, reason = "closing it gives it back")] Option<UnixDatagram>);

/// How long who has the name may take, and how often it is asked for.
const LONGEST_TURN: Duration = Duration::from_secs(1);
const ASK_AGAIN: Duration = Duration::from_millis(5);

impl Turn {
    fn take(path: &Path) -> Turn {
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        let (Ok(folder), Some(file)) = (std::fs::metadata(folder), path.file_name()) else {
            return Turn(None); // bind will say what is wrong
        };
        let mut name = format!("onecopy-turn-{:x}-{:x}-", folder.dev(), folder.ino()).into_bytes();
        // As much of it as fits a name: two that are not told apart only wait for each other.
        name.extend(file.as_bytes().iter().rev().take(107 - name.len()));
        let deadline = Instant::now() + LONGEST_TURN;
        loop {
            match SocketAddr::from_abstract_name(&name).and_then(|name| UnixDatagram::bind_addr(&name)) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                    std::thread::sleep(ASK_AGAIN);
                }
                taken => return Turn(taken.ok()),
            }
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
