//! How an end is made: by pair, by connect, by accept.

use crate::addr::SocketAddr;
use crate::config::{Config, Records};
use crate::connection::Connection;
use crate::connection::options::visible_name;
use crate::connection::rx::Rx;
use crate::connection::tx::Tx;
use crate::control;
use crate::core::kind::Kind;
use crate::handshake::invitation::{Invitation, capacity_for, invite, wish};
use crate::handshake::rendezvous::{Found, Rendezvous, Target};
use crate::handshake::undecided::{Meets, Undecided};
use crate::handshake::upgrade;
use crate::handshake::visit::Process;
use onecopy_ring::{Consumer, Producer, Ring};
use onecopy_socket::registry::Type;
use onecopy_socket::{Error, Op, Result, Transport};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, sockopt};
use std::sync::Arc;

impl From<Kind> for Type {
    fn from(kind: Kind) -> Type {
        match kind {
            Kind::Stream => Type::Stream,
            Kind::SeqPacket => Type::SeqPacket,
            Kind::Datagram => Type::Datagram,
        }
    }
}

/// Returns the error of stream records without shared memory, which they need: the kernel's own records are
/// atomic.
fn needs_memory(op: Op) -> Error {
    Error::new(op, Errno::PROTONOSUPPORT)
        .about("Config::records")
        .because("stream records need shared memory, which is refused here; use atomic records")
}

/// Returns the error where a listener is not known to keep stream records. It is taken for one that does not.
fn no_agreement() -> Error {
    Error::new(Op::Connect, Errno::PROTONOSUPPORT).about("Config::records").because(
        "the listener is not known to keep stream records; have it listen with them, in this network namespace \
         and as the user that it was bound by, or use atomic records",
    )
}

/// Sets the sizes of a socket's buffers that `config` asks for.
pub fn buffers(fd: impl AsFd, config: &Config) -> Result<()> {
    let refused = |argument| {
        move |errno| {
            let error = Error::new(Op::Option, errno).about(argument);
            match errno {
                Errno::INVAL => {
                    error.because("the kernel counts to 2^31 - 1 bytes here; ask for less, or None")
                }
                _ => error,
            }
        }
    };
    if let Some(bytes) = config.send_buffer {
        sockopt::set_socket_send_buffer_size(&fd, bytes).map_err(refused("Config::send_buffer"))?;
    }
    if let Some(bytes) = config.receive_buffer {
        sockopt::set_socket_recv_buffer_size(&fd, bytes).map_err(refused("Config::receive_buffer"))?;
    }
    Ok(())
}

/// Makes the rings of a pair: the first end receives from the first. None where memory is refused, or not
/// wanted.
pub fn rings(kind: Kind, config: &Config) -> Option<(Ring, Ring)> {
    if config.transport == Transport::Kernel {
        return None;
    }
    let wish = wish(config.send_buffer);
    let capacity = capacity_for(kind, config.receive_buffer, wish, config.max_ring);
    let ring = || upgrade::new_ring(capacity, config).map(|(ring, _)| ring);
    ring().and_then(|one| Ok((one, ring()?))).ok()
}

/// A socket that is about to connect. connect(2) waits while the listener's backlog is full, which a caller in
/// a runtime must not; so it is a step of its own.
#[derive(Debug)]
pub struct Connecting {
    fd: OwnedFd,
    kind: Kind,
    name: SocketAddr,
    address: SocketAddrUnix,
    config: Config,
    invitation: Option<Invitation>,
    target: Option<Target>,
    /// Whose rendezvous was there before the socket was connected, if that matters.
    before: Option<Process>,
}

impl Connecting {
    /// Makes the socket, and what it shows the listener of itself.
    ///
    /// # Errors
    ///
    /// What bind(2) says; EPROTONOSUPPORT for stream records where no invitation can be made.
    pub fn new(
        kind: Kind,
        local: Option<SocketAddr>,
        name: SocketAddr,
        config: &Config,
    ) -> Result<Connecting> {
        let fd = kind.socket()?;
        if let Some(local) = &local {
            let address = local.address(Op::Bind)?;
            rustix::net::bind(&fd, &address).map_err(|errno| Error::new(Op::Bind, errno))?;
        }
        Connecting::over(fd, kind, local.is_some(), name, config)
    }

    /// Does as [`Connecting::new`], over a socket that is there, and may have a name.
    ///
    /// # Errors
    ///
    /// EPROTONOSUPPORT for stream records where no invitation can be made.
    pub fn over(
        fd: OwnedFd,
        kind: Kind,
        is_bound: bool,
        name: SocketAddr,
        config: &Config,
    ) -> Result<Connecting> {
        let address = name.address(Op::Connect)?;
        if config.pass_credentials {
            // This comes before the server can send.
            sockopt::set_socket_passcred(&fd, true).map_err(|errno| Error::new(Op::Option, errno))?;
        }
        let records = kind.records(config);
        let invitation = match config.transport {
            _ if is_bound => None,
            Transport::Kernel => None,
            Transport::Auto => invite(fd.as_fd(), records, config).ok(),
        };
        if records == Records::Stream && invitation.is_none() {
            return Err(if is_bound { no_agreement() } else { needs_memory(Op::Connect) });
        }
        let target = invitation.as_ref().and_then(|_| Target::of(&name, kind, records));
        Ok(Connecting { fd, kind, name, address, config: *config, invitation, target, before: None })
    }

    /// Has [`Connecting::attempt`] fail with EAGAIN instead of waiting for room in the backlog.
    ///
    /// # Errors
    ///
    /// What ioctl(2) says.
    #[cfg(any(feature = "mio", feature = "tokio"))]
    pub fn set_nonblocking(&self) -> Result<()> {
        rustix::io::ioctl_fionbio(&self.fd, true).map_err(|errno| Error::new(Op::Option, errno))
    }

    /// Connects. After EAGAIN it may be called again: the socket is as it was.
    ///
    /// # Errors
    ///
    /// What connect(2) says.
    pub fn attempt(&mut self) -> Result<()> {
        self.before = self.target.as_ref().and_then(Target::owner_before);
        rustix::net::connect(&self.fd, &self.address).map_err(|errno| Error::new(Op::Connect, errno))
    }

    /// Makes the end, once connected.
    ///
    /// # Errors
    ///
    /// With stream records: EPROTONOSUPPORT where the listener does not keep them, ECONNREFUSED where it has
    /// just gone, EAGAIN where its rendezvous is full.
    pub fn finish(self) -> Result<Arc<Connection>> {
        let Connecting { fd, kind, name, config, invitation, target, before, .. } = self;
        let records = kind.records(&config);
        let found = target.as_ref().map_or(Found::Missing, |target| target.look(&name, fd.as_fd()));
        // A server may close its listener as soon as it has accepted. Then the rendezvous is gone, too.
        let was_ours = || before.is_some_and(|owner| owner.is_across(fd.as_fd()));
        let is_ours = found == Found::Ours || found == Found::Missing && was_ours();
        if records == Records::Stream && !is_ours && control::gone(fd.as_fd()) {
            return Err(Error::new(Op::Connect, Errno::CONNREFUSED).because("the listener has just gone"));
        }
        if records == Records::Stream && found == Found::Full {
            return Err(Error::new(Op::Connect, Errno::AGAIN));
        }
        if records == Records::Stream && !is_ours {
            // Nothing was sent: the listener sees a connection that was closed again.
            return Err(no_agreement());
        }
        let meets = target.filter(|_| is_ours).map_or(Meets::Nowhere, Meets::At);
        let rx = invitation.map_or(Rx::Plain, |invitation| {
            Rx::Undecided(Undecided::client(&invitation, is_ours).meeting(meets))
        });
        let fallback = config.transport == Transport::Auto && matches!(rx, Rx::Plain);
        let end = Connection::make(fd, kind, &config, rx, Tx::Kernel { sent: 0 })?;
        end.counters().fallbacks.add(usize::from(fallback));
        Ok(end)
    }
}

impl Connection {
    pub fn make(fd: OwnedFd, kind: Kind, config: &Config, rx: Rx, tx: Tx) -> Result<Arc<Connection>> {
        buffers(&fd, config)?;
        let config = Config { records: kind.records(config), ..*config };
        let end = Arc::new(Connection::new(fd, kind, &config, rx, tx));
        end.look_after();
        if config.pass_credentials {
            end.set_pass_credentials(true)?;
        }
        Ok(end)
    }

    /// Takes a connected socket of the kernel, which stays one.
    pub fn plain(fd: OwnedFd, kind: Kind) -> Arc<Connection> {
        let config = Config { transport: Transport::Kernel, ..Config::default() };
        let end = Arc::new(Connection::new(fd, kind, &config, Rx::Plain, Tx::Kernel { sent: 0 }));
        end.look_after();
        // A descriptor that is no socket says so in its first call.
        let _ = end.settle_settings();
        end
    }

    /// Makes two connected ends, over shared memory from the first byte on. They stay with the kernel where
    /// memfds are refused.
    ///
    /// # Errors
    ///
    /// What socketpair(2) says; EPROTONOSUPPORT for stream records without memfds.
    pub fn pair(kind: Kind, config: &Config) -> Result<(Arc<Connection>, Arc<Connection>)> {
        let (a, b) =
            rustix::net::socketpair(AddressFamily::UNIX, kind.socket_type(), SocketFlags::CLOEXEC, None)
                .map_err(|errno| Error::new(Op::Socket, errno))?;
        let Some((to_a, to_b)) = rings(kind, config) else {
            if kind.records(config) == Records::Stream {
                return Err(needs_memory(Op::Socket));
            }
            let plain = |fd| Connection::make(fd, kind, config, Rx::Plain, Tx::Kernel { sent: 0 });
            let pair = (plain(a)?, plain(b)?);
            let fallback = usize::from(config.transport == Transport::Auto);
            pair.0.counters().fallbacks.add(fallback);
            pair.1.counters().fallbacks.add(fallback);
            return Ok(pair);
        };
        let over = |fd, mine: &Ring, theirs: &Ring| -> Result<Arc<Connection>> {
            let rx = Rx::ring(Consumer::new(mine.clone()));
            let end = Connection::make(fd, kind, config, rx, Tx::ring(Producer::new(theirs.clone())))?;
            end.set_rx_ring(mine.clone());
            end.set_tx_ring(theirs.clone());
            Ok(end)
        };
        Ok((over(a, &to_a, &to_b)?, over(b, &to_b, &to_a)?))
    }

    /// Connects to a listener, of this crate or any other. An end with a name of its own, `local`, stays with
    /// the kernel: a listener knows an end that can be upgraded by its name.
    ///
    /// # Errors
    ///
    /// What bind(2) and connect(2) say; EPROTONOSUPPORT for stream records where no invitation can be made.
    pub fn connect(
        kind: Kind,
        local: Option<SocketAddr>,
        name: SocketAddr,
        config: &Config,
    ) -> Result<Arc<Connection>> {
        let mut connecting = Connecting::new(kind, local, name, config)?;
        connecting.attempt()?;
        connecting.finish()
    }

    /// Takes the next connection of a listener, with its client's name. One whose client keeps its records as a stream, where this side does not, is a
    /// plain one: its client leaves at once by itself.
    ///
    /// # Errors
    ///
    /// What accept(2) says; EPROTONOSUPPORT for stream records where memfds are refused; ECONNABORTED where this side keeps stream records and the
    /// client does not: neither could understand what the other would send. (The listener was readable for it, so the call does not wait for another one.)
    pub fn accept(
        listener: &OwnedFd,
        kind: Kind,
        rendezvous: &Arc<Rendezvous>,
        config: &Config,
    ) -> Result<(Arc<Connection>, SocketAddr)> {
        let (fd, peer) = rustix::net::acceptfrom_with(listener, SocketFlags::CLOEXEC)
            .map_err(|errno| Error::new(Op::Accept, errno))?;
        let peer = peer.and_then(onecopy_sys::socket::unix_address);
        let invitation = peer.as_ref().and_then(|peer| Invitation::parse(peer.abstract_name()?));
        let (mine, theirs) =
            (kind.records(config), invitation.map_or(Records::Atomic, |invitation| invitation.records));
        if mine == Records::Stream && theirs != mine {
            return Err(Error::new(Op::Accept, Errno::CONNABORTED)
                .about("Config::records")
                .because("the client keeps its records atomic and this listener takes stream records; accept the next one"));
        }
        let invitation = invitation.filter(|_| config.transport == Transport::Auto && theirs == mine);
        let attaches = upgrade::is_believed(listener.as_fd(), fd.as_fd());
        let name = peer.map_or_else(SocketAddr::unnamed, |peer| visible_name(&peer));
        let meets = Meets::Here(Arc::downgrade(rendezvous));
        let end = Connection::accepted(fd, kind, invitation, attaches, meets, config)?;
        Ok((end, name))
    }

    fn accepted(
        fd: OwnedFd,
        kind: Kind,
        invitation: Option<Invitation>,
        attaches: bool,
        meets: Meets,
        config: &Config,
    ) -> Result<Arc<Connection>> {
        if kind.records(config) == Records::Stream && invitation.is_none() {
            return Err(needs_memory(Op::Accept));
        }
        let fallback = config.transport == Transport::Auto && invitation.is_none();
        let rx = invitation.map_or(Rx::Plain, |invitation| {
            Rx::Undecided(Undecided::server(invitation, attaches).meeting(meets))
        });
        let end = Connection::make(fd, kind, config, rx, Tx::Kernel { sent: 0 })?;
        end.counters().fallbacks.add(usize::from(fallback));
        Ok(end)
    }
}
