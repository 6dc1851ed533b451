//! A datagram socket: a connection to its peer once it has one, and the senders that it receives from
//! besides.

use crate::fan_in::receiver::FanInReceiver;
use crate::pairing::state::Pairing;
use crate::slots::Slots;
use onecopy_ring::{Consumer, Producer, Ring};
use onecopy_sync::atomic::AtomicU32;
use onecopy_sync::atomic::Ordering::{Relaxed, Release};
use onecopy_unix::ancillary::attached::Ancillary;
use onecopy_unix::ancillary::channel::{Fds, Inlet};
use onecopy_unix::connection::Connection;
use onecopy_unix::connection::call::Call;
use onecopy_unix::connection::open::{buffers, rings};
use onecopy_unix::connection::rx::{Rx, RxRing};
use onecopy_unix::connection::tx::Tx;
use onecopy_unix::control;
use onecopy_unix::core::kind::Kind;
use onecopy_unix::core::{PASS_CREDENTIALS, PASS_PIDFD};
use onecopy_unix::members::fork::{Place, register};
use onecopy_unix::members::patience::{BRIEFLY, STUCK, stuck};
use onecopy_unix::{Carrier, Config, Error, Op, Path, Received, RecvFlags, Result, SocketAddr, Transport};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io::IoSliceMut;
use std::net::Shutdown;
use std::ops::Deref;
use std::sync::{Arc, OnceLock, Weak};

/// A datagram socket. It *has* a connection, in which its own ring and its peer's are once the two share
/// memory.
#[derive(Debug)]
pub struct Socket {
    end: Connection,
    /// How a socket that is or was connected comes to share memory with its peer.
    pairing_state: OnceLock<Box<Pairing>>,
    /// The senders of a socket that receives from many.
    fan_in: OnceLock<Box<FanInReceiver>>,
    /// 1 once this socket has tried to become a fan-in receiver.
    fan_in_tried: AtomicU32,
    /// 1 once a socket that asks for its senders' identity is known to have a name.
    named: AtomicU32,
    /// Room that was reserved.
    slots: Slots,
    /// Where a fork finds this socket.
    place: Place,
}

impl Deref for Socket {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.end
    }
}

impl AsRef<Connection> for Socket {
    fn as_ref(&self) -> &Connection {
        &self.end
    }
}

impl AsFd for Socket {
    /// The kernel's datagram socket.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl Socket {
    fn make(fd: OwnedFd, config: &Config, rx: Rx, tx: Tx) -> Result<Arc<Socket>> {
        buffers(&fd, config)?;
        let socket = Socket::over(fd, config, rx, tx);
        if config.pass_credentials {
            socket.set_pass_credentials(true)?;
        }
        Ok(socket)
    }

    fn over(fd: OwnedFd, config: &Config, rx: Rx, tx: Tx) -> Arc<Socket> {
        let config = Config { records: Kind::Datagram.records(config), ..*config };
        let socket = Arc::new(Socket {
            end: Connection::new(fd, Kind::Datagram, &config, rx, tx),
            pairing_state: OnceLock::new(),
            fan_in: OnceLock::new(),
            fan_in_tried: AtomicU32::new(0),
            named: AtomicU32::new(0),
            slots: Slots::default(),
            place: Place::default(),
        });
        let one: Weak<Socket> = Arc::downgrade(&socket);
        register(one, &socket.place);
        socket
    }

    /// Returns what this socket knows of its peer, once it was connected.
    #[inline]
    pub fn known_pairing(&self) -> Option<&Pairing> {
        self.pairing_state.get().map(|pairing| &**pairing)
    }

    /// Returns what this socket knows of its peer, which is nothing if it is connected now for the first time.
    pub fn pairing_of_any(&self) -> &Pairing {
        self.pairing_state.get_or_init(Box::default)
    }

    /// Returns the senders that this socket receives from in turns, once it does.
    #[inline]
    pub fn fan_in(&self) -> Option<&FanInReceiver> {
        self.fan_in.get().map(|fan_in| &**fan_in)
    }

    /// Makes the socket receive from many senders, once.
    pub fn set_fan_in(&self, fan_in: FanInReceiver) {
        let _ = self.fan_in.set(Box::new(fan_in));
    }

    /// Whether this socket tries now, for the first time, to receive from many senders.
    pub fn is_first_fan_in(&self) -> bool {
        self.fan_in_tried.swap(1, Relaxed) == 0
    }

    /// Whether this call is the first one that finds the socket in need of a name.
    pub fn is_first_to_name(&self) -> bool {
        self.named.swap(1, Relaxed) == 0
    }

    /// Returns the room that was reserved.
    #[inline]
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Makes a socket without a name and without a peer.
    ///
    /// # Errors
    ///
    /// What socket(2) returns.
    pub fn unbound(config: &Config) -> Result<Arc<Socket>> {
        Socket::make(Kind::Datagram.socket()?, config, Rx::Plain, Tx::Kernel { sent: 0 })
    }

    /// Takes a socket of the kernel, which stays one.
    pub fn plain(fd: OwnedFd) -> Arc<Socket> {
        let config = Config { transport: Transport::Kernel, ..Config::default() };
        let socket = Socket::over(fd, &config, Rx::Plain, Tx::Kernel { sent: 0 });
        // A descriptor that is no socket says so in its first call.
        let _ = socket.settle_settings();
        socket
    }

    /// Checks that the socket is the kernel's alone, now and from here on.
    ///
    /// # Errors
    ///
    /// EAGAIN: it may still share memory with a peer, or shared some. EOPNOTSUPP: it does.
    pub fn is_plain(&self) -> Result<()> {
        self.end.is_plain()?;
        if self.fan_in().is_some() || self.known_pairing().is_some() {
            return Err(Error::new(Op::Pass, Errno::AGAIN).because(
                "it was connected or received from many, and may share memory with its peers at any time; make it \
                 with Transport::Kernel",
            ));
        }
        Ok(())
    }

    /// Makes two sockets that are connected to each other. They share memory from the first datagram on, and
    /// use the kernel where memfds are refused.
    ///
    /// # Errors
    ///
    /// What socketpair(2) returns.
    pub fn pair(config: &Config) -> Result<(Arc<Socket>, Arc<Socket>)> {
        let pair = |kind, flags| {
            rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)
                .map_err(|errno| Error::new(Op::Socket, errno))
        };
        let (a, b) = pair(SocketType::DGRAM, SocketFlags::CLOEXEC)?;
        let Some((to_a, to_b)) = rings(Kind::Datagram, config) else {
            let plain = |fd| Socket::make(fd, config, Rx::Plain, Tx::Kernel { sent: 0 });
            let pair = (plain(a)?, plain(b)?);
            let fallback = usize::from(config.transport == Transport::Auto);
            pair.0.counters().fallbacks.add(fallback);
            pair.1.counters().fallbacks.add(fallback);
            return Ok(pair);
        };
        let (line_a, line_b) = pair(SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        let over = |fd, mine: &Ring, theirs: &Ring, line: OwnedFd| -> Result<Arc<Socket>> {
            let line = Arc::new(line);
            let rx = Rx::ring_with(Consumer::new(mine.clone()), Inlet::over(line.clone()));
            let tx = Tx::ring_with(Producer::new(theirs.clone()), Some(line.clone()));
            let socket = Socket::make(fd, config, rx, tx)?;
            socket.set_lifeline(line);
            socket.set_rx_ring(mine.clone());
            socket.set_tx_ring(theirs.clone());
            Ok(socket)
        };
        Ok((over(a, &to_a, &to_b, line_a)?, over(b, &to_b, &to_a, line_b)?))
    }

    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        self.end.set_nonblocking_only(nonblocking)?;
        if nonblocking { self.reflect() } else { Ok(()) }
    }

    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        // Whoever is told that nothing is received here is told so even where the peer has misbehaved.
        let result = self.end.shutdown(how);
        if how != Shutdown::Write {
            if let Some(pairing) = self.known_pairing() {
                pairing.leave();
            }
            self.shut_lanes();
        }
        result
    }

    /// Returns the bytes of the next datagram, 0 if there is none (FIONREAD, unix(7)).
    ///
    /// # Errors
    ///
    /// EBUSY, EPROTO; what ioctl(2) returns.
    pub fn readable_bytes(&self) -> Result<usize> {
        let queued = || control::queued(self.fd()).map_err(|errno| Error::new(Op::Option, errno));
        let misbehaved = |misbehaved| self.misbehaved(Op::Option, misbehaved);
        let mut guard = self.rx().lock_within(|| BRIEFLY).ok_or_else(|| stuck(Op::Option))?;
        self.leave_empty_ring(&mut guard).map_err(misbehaved)?;
        match &mut *guard {
            Rx::Ring(rx) => rx.next_datagram().map_err(misbehaved),
            _ if self.fan_in().is_some() => self.next_in_lanes().map_or_else(queued, Ok),
            _ => queued(),
        }
    }

    /// Returns how many bytes were sent and not yet received.
    ///
    /// # Errors
    ///
    /// What ioctl(2) returns.
    pub fn unread_bytes(&self) -> Result<usize> {
        match self.lane() {
            Some(lane) if !self.sends_into_ring() => lane.connection().unread_bytes(),
            _ => self.end.unread_bytes(),
        }
    }

    pub fn path(&self) -> Path {
        let carrier = |shared| if shared { Carrier::SharedMemory } else { Carrier::Kernel };
        let Path { send, receive } = self.end.path();
        Path {
            send: carrier(send == Carrier::SharedMemory || self.lane().is_some()),
            receive: carrier(receive == Carrier::SharedMemory || self.has_lanes()),
        }
    }

    pub fn set_pass_credentials(&self, on: bool) -> Result<()> {
        self.pass(PASS_CREDENTIALS, on)
    }

    pub fn set_pass_pidfd(&self, on: bool) -> Result<()> {
        self.pass(PASS_PIDFD, on)
    }

    /// Passes `which` or no longer, from lanes as from the kernel. The lanes are asked under the lock: where two
    /// threads ask for opposite things, all of them do what one thread said.
    fn pass(&self, which: u32, on: bool) -> Result<()> {
        let option = |errno| Error::new(Op::Option, errno);
        let rx = self.rx().lock_within(|| STUCK).ok_or_else(|| stuck(Op::Option))?;
        self.pass_under_lock(&rx, which, on).map_err(option)?;
        point!("passing");
        self.ask_lanes(which, on).map_err(option)
    }

    /// Makes the kernel socket's readiness mirror that of the ring and of the lanes from here on.
    ///
    /// # Errors
    ///
    /// EPROTO.
    pub fn reflect(&self) -> Result<()> {
        if self.begin_mirror() {
            return Ok(());
        }
        // A thread that is sending now looks at `mirror` itself when it is done.
        if let Some(mut tx) = self.tx().try_lock() {
            if tx.park_if_full(self).is_err_and(|error| error.is_refused()) {
                // The program has sent nothing: its next send is told.
                self.was_refused(&mut tx, false);
            }
            tx.unlock_fenced();
            self.welcome_back();
        }
        if let Some(mut rx) = self.rx().lock_within(|| BRIEFLY) {
            match &mut *rx {
                Rx::Ring(rx) => drop(rx.mirror_empty(self)?),
                _ => self.reflect_fan_in(),
            }
        }
        Ok(())
    }

    /// Receives a datagram, the descriptors that came with it, and its sender's name.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv_datagram`].
    pub fn recv_ancillary(
        &self,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<(Received, Ancillary, SocketAddr)> {
        let (mut fds, mut from) = (Fds::default(), SocketAddr::unnamed());
        let received = self.recv_datagram(slices, flags, Some(&mut from), &mut Call::with(&mut fds))?;
        Ok((received, Ancillary::of(fds, self), from))
    }

    /// Whether no other process can be using a copy of this socket. After a fork this is not known. Then the
    /// peer finds out when the last copy is closed: the lifeline hangs up, and the kernel refuses.
    fn leaves_last(&self) -> bool {
        !self.is_orphan() && self.is_here_alone()
    }

    /// Takes what is no datagram from the kernel's queue before this socket leaves its peer, if everything that
    /// the peer has sent was received: a doorbell, or the filler of a peer that waits for room which views hold.
    pub fn clear_queue(&self, ring: &mut RxRing) {
        if ring.is_empty() == Ok(true) {
            let _ = ring.settle(self);
            if ring.is_borrowed() {
                let _ = ring.unpark_now(self);
            }
        }
    }

    /// Closes the socket, as the application has.
    pub fn close(&self) {
        if !self.leaves_last() {
            // The queue, the ring and the connection belong to another process too.
            return;
        }
        // An untaken doorbell would make the kernel tell the peer ECONNRESET although everything was read.
        let Some(mut rx) = self.rx().lock_within(|| BRIEFLY) else { return };
        match &mut *rx {
            Rx::Ring(ring) => self.clear_queue(ring),
            _ => self.before_connecting(),
        }
        if let Some(ring) = self.rx_ring() {
            // Tells a sender with room at once, before it looks at the kernel again.
            ring.header().info.0.shut.store(1, Release);
        }
        if let Some(pairing) = self.known_pairing() {
            pairing.leave();
        }
    }
}
