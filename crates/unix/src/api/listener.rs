//! Listening and accepting.

use crate::addr::{SocketAddr, ToSocketAddr};
use crate::api::seqpacket::SeqPacket;
use crate::api::stream::Stream;
use crate::config::Config;
use crate::core::kind::Kind;
use crate::handshake::rendezvous::{Kept, Target};
use onecopy_socket::registry::Row;
use onecopy_socket::{Error, Op, Result, Transport};
use onecopy_sys::unix_diag::Diag;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::iter::FusedIterator;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

/// Returns what the rendezvous of a listener with that name is named after.
fn target(name: &SocketAddr, kind: Kind, config: &Config) -> Option<Target> {
    match config.transport {
        Transport::Auto => Target::of(name, kind, kind.records(config)),
        Transport::Kernel => None,
    }
}

/// Whether a name that a listener was bound to is its name here and now. A path may belong to another socket
/// by now, or to another directory.
fn is_of(name: &SocketAddr, listener: &OwnedFd) -> bool {
    let Some(path) = name.as_pathname() else { return true };
    let known = || {
        let file = rustix::fs::stat(path)?;
        let known = Diag::open()?.look(rustix::fs::fstat(listener)?.st_ino)?;
        // The kernel tells the lower half.
        Ok::<_, rustix::io::Errno>(known.file == Some(file.st_ino as u32))
    };
    known().unwrap_or(false)
}

/// The connections that come in at a listener, from its `incoming`: each is what `accept` says, without the name.
#[derive(Clone, Debug)]
pub struct Incoming<'a, L> {
    listener: &'a L,
}

macro_rules! listener {
    ($(#[$doc:meta])* $listener:ident, $socket:ty, $kind:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $listener {
            /// Dropped before the listener itself.
            rendezvous: Arc<Kept>,
            fd: OwnedFd,
            config: Config,
            /// The row in the registry, which other processes can read.
            row: Arc<Row>,
        }

        impl $listener {
            /// Binds and listens, with the default configuration.
            ///
            /// # Errors
            ///
            /// What bind(2) and listen(2) say: EADDRINUSE where the name is taken, EACCES without permission.
            pub fn bind(name: impl ToSocketAddr) -> Result<$listener> {
                $listener::bind_with(name, &Config::default())
            }

            /// Does as `bind`, for callers that hold a name (std has both).
            ///
            /// # Errors
            ///
            /// As `bind`.
            pub fn bind_addr(name: &SocketAddr) -> Result<$listener> {
                $listener::bind(name)
            }

            /// Binds and listens. Accepted sockets take their buffers, policy and waits from `config`.
            ///
            /// # Errors
            ///
            /// As `bind`.
            pub fn bind_with(name: impl ToSocketAddr, config: &Config) -> Result<$listener> {
                let bind = |errno| Error::new(Op::Bind, errno);
                let name = name.to_socket_addr();
                let address = name.address(Op::Bind)?;
                let fd = $kind.socket()?;
                // These sizes are for the sockets that it accepts. Impossible sizes are an error now, not at
                // each accept.
                crate::connection::open::buffers(&fd, config)?;
                rustix::net::bind(&fd, &address).map_err(bind)?;
                if config.pass_credentials {
                    // The kernel then adds credentials to what is sent before accept, too (accept(2) hands
                    // the option on).
                    let option = |errno| Error::new(Op::Option, errno);
                    rustix::net::sockopt::set_socket_passcred(&fd, true).map_err(option)?;
                }
                // The rendezvous is there before anybody can connect.
                let rendezvous = Arc::new(Kept::open(target(&name, $kind, config)));
                let backlog = i32::try_from(config.backlog).unwrap_or(i32::MAX);
                rustix::net::listen(&fd, backlog).map_err(bind)?;
                let row = Arc::new(Row::claim(std::process::id(), &fd, $kind.into(), true));
                Ok($listener { rendezvous, fd, config: *config, row })
            }

            /// Takes a listening socket of the kernel.
            fn over(fd: OwnedFd, config: &Config) -> $listener {
                let row = Arc::new(Row::claim(std::process::id(), &fd, $kind.into(), true));
                let name = crate::connection::options::local_addr(&fd).ok().filter(|name| is_of(name, &fd));
                let target = name.and_then(|name| target(&name, $kind, config));
                let rendezvous = Arc::new(Kept::open(target));
                $listener { rendezvous, fd, config: *config, row }
            }

            /// Returns another handle of the same listener, with a descriptor of its own. Each connection is
            /// accepted by one of them. The listener is closed with the last one.
            ///
            /// # Errors
            ///
            /// EMFILE.
            pub fn try_clone(&self) -> Result<$listener> {
                let fd = crate::multiprocess::transfer::copy(&self.fd)?;
                let (rendezvous, row) = (self.rendezvous.clone(), self.row.clone());
                Ok($listener { rendezvous, fd, config: self.config, row })
            }

            /// Shares the listener with any other process, which calls `from_fds`, as for a socket's
            /// `share_fds`. The result is one descriptor: a copy of the listening socket with close-on-exec
            /// set. It may be used any number of times. Each connection is accepted by one of the processes.
            ///
            /// # Errors
            ///
            /// EMFILE.
            pub fn share_fds(&self) -> Result<Vec<OwnedFd>> {
                Ok(vec![crate::multiprocess::transfer::copy(&self.fd)?])
            }

            /// Makes a listener of a socket that another process shares by `share_fds`, or has made in any
            /// other way (systemd(1) hands such sockets to services). Accepted sockets take their buffers,
            /// policy and waits from `config`.
            ///
            /// # Errors
            ///
            /// EINVAL (not one descriptor, or not a listening socket of this kind). The descriptors are
            /// closed then.
            pub fn from_fds_with(fds: Vec<OwnedFd>, config: &Config) -> Result<$listener> {
                let fd = crate::multiprocess::transfer::listening(fds, $kind.socket_type())?;
                Ok($listener::over(fd, config))
            }

            /// Does as `from_fds_with`, with the default configuration.
            ///
            /// # Errors
            ///
            /// As `from_fds_with`.
            pub fn from_fds(fds: Vec<OwnedFd>) -> Result<$listener> {
                $listener::from_fds_with(fds, &Config::default())
            }

            /// Takes the next connection, with its client's name, and waits for one unless non-blocking. Never
            /// waits for the peer's part of the upgrade: a silent client stalls nobody. A listener of atomic records gets a client
            /// that keeps stream records ([`crate::Records`]) as a plain one, which has left.
            ///
            /// # Errors
            ///
            /// What accept(2) says: EAGAIN when non-blocking and none waits, EINVAL after shutdown, EMFILE. ECONNABORTED where the
            /// listener takes stream records and the client keeps atomic ones: go on with the next.
            pub fn accept(&self) -> Result<($socket, SocketAddr)> {
                let accepted = <$socket>::accept(&self.fd, &self.rendezvous, &self.config)?;
                self.rendezvous.accepted();
                Ok(accepted)
            }

            /// Returns an iterator over the connections that come in, without an end. `for socket in &listener`
            /// does the same.
            pub fn incoming(&self) -> Incoming<'_, $listener> {
                Incoming { listener: self }
            }

            /// Returns the pending error, once (SO_ERROR).
            ///
            /// # Errors
            ///
            /// What getsockopt(2) says.
            pub fn take_error(&self) -> Result<Option<Error>> {
                let pending = rustix::net::sockopt::socket_error(&self.fd)
                    .map_err(|errno| Error::new(Op::Option, errno))?;
                Ok(pending.err().map(|errno| Error::new(Op::Accept, errno)))
            }

            /// Sets whether accept fails with EAGAIN instead of waiting.
            ///
            /// # Errors
            ///
            /// What ioctl(2) says.
            pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
                rustix::io::ioctl_fionbio(&self.fd, nonblocking).map_err(|errno| Error::new(Op::Option, errno))
            }

            /// Returns whether accept fails with EAGAIN instead of waiting.
            ///
            /// # Errors
            ///
            /// What fcntl(2) says.
            pub fn nonblocking(&self) -> Result<bool> {
                let flags = rustix::fs::fcntl_getfl(&self.fd).map_err(|errno| Error::new(Op::Option, errno))?;
                Ok(flags.contains(rustix::fs::OFlags::NONBLOCK))
            }

            /// Makes accept fail with EINVAL from now on, and wakes the threads that wait in it.
            ///
            /// # Errors
            ///
            /// What shutdown(2) says.
            pub fn shutdown(&self) -> Result<()> {
                rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both)
                    .map_err(|errno| Error::new(Op::Shutdown, errno))
            }

            /// Returns the name that the listener is bound to.
            ///
            /// # Errors
            ///
            /// What getsockname(2) says.
            pub fn local_addr(&self) -> Result<SocketAddr> {
                crate::connection::options::local_addr(&self.fd)
            }
        }

        impl<'a> IntoIterator for &'a $listener {
            type Item = Result<$socket>;
            type IntoIter = Incoming<'a, $listener>;

            fn into_iter(self) -> Incoming<'a, $listener> {
                self.incoming()
            }
        }

        impl Iterator for Incoming<'_, $listener> {
            type Item = Result<$socket>;

            fn next(&mut self) -> Option<Result<$socket>> {
                Some(self.listener.accept().map(|(socket, _)| socket))
            }
        }

        impl FusedIterator for Incoming<'_, $listener> {}

        impl From<OwnedFd> for $listener {
            /// Takes a listening socket of the right type, which this does not check
            /// ([`from_fds`](Self::from_fds) does).
            fn from(fd: OwnedFd) -> $listener {
                $listener::over(fd, &Config::default())
            }
        }

        impl From<$listener> for OwnedFd {
            /// Gives the kernel's listening socket. Who accepts from it by other means serves plain connections.
            fn from(listener: $listener) -> OwnedFd {
                listener.fd
            }
        }

        impl AsFd for $listener {
            /// Returns the kernel socket: POLLIN when a connection waits.
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.fd.as_fd()
            }
        }

        impl AsRawFd for $listener {
            fn as_raw_fd(&self) -> RawFd {
                self.fd.as_raw_fd()
            }
        }
    };
}

listener!(
    /// A listening stream socket on a path or an abstract name.
    ///
    /// ```
    /// use onecopy_unix::{Listener, SocketAddr, Stream};
    ///
    /// # fn main() -> onecopy_unix::Result<()> {
    /// let name = SocketAddr::from_abstract_name(format!("doc-listener-{}", std::process::id()))?;
    /// let listener = Listener::bind(&name)?;
    /// let _client = Stream::connect(&name)?;
    /// for stream in listener.incoming().take(1) {
    ///     stream?.send(b"welcome")?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    Listener,
    Stream,
    Kind::Stream
);
listener!(
    /// A listening seqpacket socket on a path or an abstract name, used as a [`Listener`] is.
    SeqListener,
    SeqPacket,
    Kind::SeqPacket
);

impl From<UnixListener> for Listener {
    /// Takes std's listener. Connections accepted here can share memory.
    fn from(listener: UnixListener) -> Listener {
        Listener::from(OwnedFd::from(listener))
    }
}

impl From<Listener> for UnixListener {
    /// Gives std's listener, which accepts plain connections.
    fn from(listener: Listener) -> UnixListener {
        OwnedFd::from(listener).into()
    }
}
