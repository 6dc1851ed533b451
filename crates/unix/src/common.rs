//! What all kinds of sockets have in common: options, names, shutting down, closing.

use crate::end::{BRIEFLY, End, PASS_CREDENTIALS, PASS_PIDFD, stuck};
use crate::making::Kind;
use crate::rx::{Rx, Waiting};
use crate::seqpacket::records_in;
use crate::upgrade::Invitation;
use crate::{Carrier, Credentials, Error, Name, Op, Path, RecvFlags, Result, control};
use onecopy_ring::{Consumer, Ring};
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use onecopy_sync::atomic::fence;
use onecopy_sys::scm;
use onecopy_sys::socket::unix_address;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, sockopt};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

fn option(errno: Errno) -> Error {
    Error::new(Op::Option, errno)
}

fn timeout(limit: Option<Duration>) -> impl Fn(Errno) -> Error {
    move |errno| match limit {
        Some(Duration::ZERO) => {
            let why = "a wait is longer than nothing; give None for one without a limit, or set O_NONBLOCK";
            option(errno).about("limit").because(why)
        }
        _ => option(errno).about("limit"),
    }
}

pub(crate) fn local_name(fd: &OwnedFd) -> Result<Name> {
    let address = rustix::net::getsockname(fd).map_err(option)?;
    Ok(unix_address(address).map_or_else(Name::unnamed, |a| visible_name(&a)))
}

/// An invitation is no name that anybody gave.
fn visible_name(address: &SocketAddrUnix) -> Name {
    match address.abstract_name() {
        Some(name) if Invitation::parse(name).is_some() => Name::unnamed(),
        _ => Name::of(address),
    }
}

impl End {
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        rustix::io::ioctl_fionbio(&self.fd, nonblocking).map_err(option)?;
        self.settings.set_nonblocking(nonblocking);
        if nonblocking { self.reflect() } else { Ok(()) }
    }

    /// Whether O_NONBLOCK is set, which others may do, and undo, on the descriptor or a copy of it (fcntl(2), FIONBIO): so the
    /// kernel is asked. That is a system call, and made where a call is about to sleep, or to say EAGAIN by what it
    /// remembers: nowhere else.
    #[cold]
    pub fn is_nonblocking(&self) -> bool {
        let remembered = self.settings.nonblocking();
        let now = rustix::fs::fcntl_getfl(&self.fd)
            .map_or(remembered, |flags| flags.contains(rustix::fs::OFlags::NONBLOCK));
        if now != remembered {
            self.settings.set_nonblocking(now);
        }
        now
    }

    pub fn set_read_timeout(&self, limit: Option<Duration>) -> Result<()> {
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Recv, limit).map_err(timeout(limit))?;
        self.settings.set_read_timeout(limit);
        Ok(())
    }

    pub fn set_write_timeout(&self, limit: Option<Duration>) -> Result<()> {
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Send, limit).map_err(timeout(limit))?;
        self.settings.set_write_timeout(limit);
        Ok(())
    }

    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        let kernel = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        rustix::net::shutdown(&self.fd, kernel).map_err(|errno| Error::new(Op::Shutdown, errno))?;
        if how != Shutdown::Read {
            self.send_shut.store(1, Relaxed);
            if let Some(sharing) = self.sharing.get() {
                sharing.words().about.0.send_shut.store(1, Relaxed);
            }
        }
        if how != Shutdown::Write {
            self.recv_shut.store(1, Relaxed);
            // Pairs with the fence in `set_rx_ring`.
            fence(SeqCst);
        }
        if how != Shutdown::Write {
            if let Some(meeting) = self.meet.get() {
                meeting.leave();
            }
            self.shut_lanes();
        }
        if how != Shutdown::Write
            && let Some(ring) = self.rx_ring.get()
        {
            // Release pairs with nothing that matters: a sender that sees it asks the kernel.
            ring.header().info.0.shut.store(1, Release);
            // A sender asleep for room sees no shutdown in poll(2), but that its filler is gone.
            if let Some(mut rx) = self.rx.lock_within(|| BRIEFLY)
                && let Rx::Ring(rx) = &mut *rx
            {
                rx.unpark_now(self).map_err(|lie| self.lie(Op::Shutdown, lie))?;
            }
        }
        Ok(())
    }

    pub fn readable_bytes(&self) -> Result<usize> {
        let end = self;
        let mut guard = end.rx.lock_within(|| BRIEFLY).ok_or_else(|| stuck(Op::Option))?;
        end.decide(&mut guard, Op::Option)?;
        if end.kind == Kind::Datagram {
            end.leave_empty_ring(&mut guard).map_err(|lie| end.lie(Op::Option, lie))?;
        }
        match &mut *guard {
            Rx::Ring(rx) if end.kind == Kind::Datagram => {
                rx.next_datagram().map_err(|lie| end.lie(Op::Option, lie))
            }
            Rx::Ring(rx) if end.kind == Kind::SeqPacket => {
                rx.readable().map_err(|lie| end.lie(Op::Option, lie))
            }
            Rx::Ring(rx) => rx.payload().map_err(|lie| end.lie(Op::Option, lie)),
            Rx::Switching(switching) => {
                let queued = control::queued(&end.fd).map_err(option)?;
                let left = switching.left().map_err(|lie| end.lie(Op::Option, lie))?;
                // What the peer has put into the ring that nobody reads yet; what is wrong there is found out by who does.
                let mut consumer = end.rx_ring.get().map(|ring| Consumer::new(ring.clone()));
                if end.kind.has_records() {
                    let in_ring = consumer.as_mut().and_then(|ring| records_in(ring, 0).ok()).unwrap_or(0);
                    // Once the peer has switched, its bells lie there too: an upper bound.
                    let queued = if left == Some(0) { 0 } else { queued };
                    return Ok(queued.saturating_sub(switching.carry.past()) + in_ring);
                }
                let left = left.map_or(queued, |left| usize::try_from(left).unwrap_or(usize::MAX));
                let in_ring = consumer.as_mut().and_then(|ring| ring.payload().ok()).unwrap_or(0);
                let in_ring = usize::try_from(in_ring).unwrap_or(usize::MAX);
                Ok(queued.min(left).saturating_add(in_ring))
            }
            Rx::Plain if end.crowd().is_some() => match end.next_in_lanes() {
                Some(bytes) => Ok(bytes),
                None => control::queued(&end.fd).map_err(option),
            },
            Rx::Plain | Rx::Undecided(_) => control::queued(&end.fd).map_err(option),
        }
    }

    pub fn unread_bytes(&self) -> Result<usize> {
        if let Some(ring) = self.tx_ring.get().filter(|_| self.parted.load(Relaxed) == 0) {
            let header = ring.header();
            // Acquire, and the tail first: as in `unread_in_ring`.
            let tail = header.reader.0.tail.load(Acquire);
            let head = header.writer.0.head.load(Acquire);
            let unread = match self.kind {
                Kind::Stream => header.unread_payload(tail, head, ring.capacity()),
                Kind::SeqPacket | Kind::Datagram => self.unread_in_ring(),
            };
            return Ok(usize::try_from(unread).unwrap_or(usize::MAX));
        }
        if let Some(lane) = self.lane() {
            return lane.end.unread_bytes();
        }
        onecopy_sys::socket::unread_memory(&self.fd).map_err(option)
    }

    pub fn capacity(&self) -> (usize, usize) {
        let end = self;
        let kernel = || {
            end.config.send_buffer.map_or_else(
                || sockopt::socket_send_buffer_size(&end.fd).unwrap_or(0),
                |bytes| bytes.saturating_mul(2),
            )
        };
        (
            end.tx_ring.get().map_or_else(kernel, Ring::capacity),
            end.rx_ring
                .get()
                .map_or_else(|| sockopt::socket_recv_buffer_size(&end.fd).unwrap_or(0), Ring::capacity),
        )
    }

    /// What knows who the peer is.
    fn knows_peer(&self) -> Result<BorrowedFd<'_>> {
        if self.kind == Kind::Datagram && self.life.get().is_none() {
            // The kernel notes nothing of who connects datagram sockets.
            return Err(
                option(Errno::NOTCONN).because("only a datagram socket that shares memory knows its peer")
            );
        }
        Ok(self.life())
    }

    pub fn peer_cred(&self) -> Result<Credentials> {
        Ok(scm::peer_credentials(self.knows_peer()?).map_err(option)?.into())
    }

    pub fn peer_groups(&self) -> Result<Vec<u32>> {
        scm::peer_groups(self.knows_peer()?).map_err(option)
    }

    pub fn peer_pidfd(&self) -> Result<OwnedFd> {
        scm::peer_pidfd(self.knows_peer()?).map_err(option)
    }

    pub fn set_pass_credentials(&self, on: bool) -> Result<()> {
        self.pass(PASS_CREDENTIALS, on).map_err(option)
    }

    pub fn set_pass_pidfd(&self, on: bool) -> Result<()> {
        self.pass(PASS_PIDFD, on).map_err(option)
    }

    pub fn local_name(&self) -> Result<Name> {
        local_name(&self.fd)
    }

    pub fn peer_name(&self) -> Result<Name> {
        let address = rustix::net::getpeername(&self.fd).map_err(option)?;
        Ok(address.and_then(unix_address).map_or_else(Name::unnamed, |a| visible_name(&a)))
    }

    pub fn take_error(&self) -> Result<Option<Error>> {
        let errno = match sockopt::socket_error(&self.fd).map_err(option)? {
            Ok(()) if self.reset.swap(0, Relaxed) != 0 => Errno::CONNRESET,
            Ok(()) => return Ok(None),
            Err(errno) => errno,
        };
        if self.kind == Kind::Datagram
            && let Rx::Ring(rx) = &mut *self.lock_rx(Op::Option)?
        {
            // While it was pending, bells could not be taken.
            self.mirror_empty(rx)?;
        }
        if errno == Errno::CONNRESET && !self.was_reset() {
            return Ok(None);
        }
        Ok(Some(Error::new(Op::Recv, errno)))
    }

    pub fn path(&self) -> Path {
        let carrier = |shared| if shared { Carrier::SharedMemory } else { Carrier::Kernel };
        Path {
            send: carrier(
                (self.tx_ring.get().is_some() && self.parted.load(Relaxed) == 0) || self.lane().is_some(),
            ),
            receive: carrier(match self.rx.lock_within(|| BRIEFLY) {
                Some(rx) => matches!(&*rx, Rx::Ring(_)) || self.has_lanes(),
                // Whoever keeps it: once there is a ring, it is where bytes come from, or soon.
                None => self.rx_ring.get().is_some(),
            }),
        }
    }

    /// From here on the control socket's readiness mirrors the ring's.
    pub fn reflect(&self) -> Result<()> {
        if self.mirror.swap(1, Relaxed) != 0 {
            return Ok(());
        }
        // (Whoever sends now has a look himself, when done.)
        if let Some(mut tx) = self.tx.try_lock() {
            if self.park_if_full(&mut tx).is_err_and(|error| error.is_refused()) {
                self.was_refused(&mut tx);
            }
            tx.unlock_fenced();
            self.welcome_back();
        }
        if let Some(mut rx) = self.rx.lock_within(|| BRIEFLY) {
            // (Where another process keeps it, it finds the word when it lets go, at its next look.)
            match &mut *rx {
                Rx::Ring(rx) => drop(self.mirror_empty(rx)?),
                _ => self.reflect_crowd(),
            }
        }
        Ok(())
    }

    /// Closes one end that an application held, of which views may be left.
    pub fn close(self: &Arc<Self>) {
        let end = self;
        if !end.leave() {
            // The queue, the ring and the connection are another process's too.
            return;
        }
        // A bell that nobody took would make the kernel tell the peer ECONNRESET although all was read.
        let Some(mut rx) = end.rx.lock_within(|| BRIEFLY) else { return };
        match &mut *rx {
            Rx::Plain => end.before_connecting(),
            Rx::Ring(ring) => {
                if ring.consumer.available(1) == Ok(0) {
                    if end.kind == Kind::SeqPacket && end.peer_left() {
                        // (Which settling would leave to be polled.)
                        ring.drain(end);
                    } else {
                        let _ = ring.settle(end);
                    }
                }
            }
            Rx::Undecided(_) | Rx::Switching(_) => {
                if let Rx::Undecided(undecided) = &*rx
                    && let Some(ring) = undecided.attached()
                {
                    // (As below, of rings that the peer may still join.)
                    ring.header().info.0.shut.store(1, Release);
                }
                drop(rx);
                // A look whether there is something to receive takes the bells that follow the kernel's bytes.
                let _ = end.ready(RecvFlags::DONTWAIT, &mut Waiting::new(0));
            }
        }
        if let Some(ring) = end.rx_ring.get() {
            // A sender with room need not wait until it looks at the kernel again.
            ring.header().info.0.shut.store(1, Release);
        }
        if let Some(meeting) = self.meet.get() {
            meeting.leave();
        }
        if Arc::strong_count(self) > 1 {
            // Views keep the descriptor; the peer is told all the same.
            let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
            self.end_life();
        }
    }
}

/// The methods that all kinds of sockets have in common, over their field `end`.
macro_rules! socket_methods {
    ($socket:ty) => {
        impl $socket {
            /// Which stores copies into the peer's buffer use from here on.
            pub fn set_policy(&self, policy: crate::Policy) {
                self.end.settings.set_policy(policy);
            }

            /// Who reads what is sent from here on, which [`Policy::Auto`](crate::Policy::Auto) takes into account.
            pub fn set_reader(&self, reader: crate::Reader) {
                self.end.settings.set_reader(reader);
            }

            /// How blocking calls wait from here on.
            pub fn set_wait(&self, wait: crate::Wait) {
                self.end.settings.set_wait(wait);
            }

            /// Whether calls fail with EAGAIN instead of waiting (O_NONBLOCK). Who sets or clears it on the descriptor, by fcntl(2)
            /// or FIONBIO, is heeded as well.
            ///
            /// # Errors
            ///
            /// What ioctl(2) says.
            pub fn set_nonblocking(&self, nonblocking: bool) -> crate::Result<()> {
                self.end.set_nonblocking(nonblocking)
            }

            /// Longest wait of a receive (SO_RCVTIMEO); None: for ever.
            ///
            /// # Errors
            ///
            /// EINVAL for a zero duration.
            pub fn set_read_timeout(&self, limit: Option<std::time::Duration>) -> crate::Result<()> {
                self.end.set_read_timeout(limit)
            }

            /// Longest wait of a send (SO_SNDTIMEO); None: for ever.
            ///
            /// # Errors
            ///
            /// EINVAL for a zero duration.
            pub fn set_write_timeout(&self, limit: Option<std::time::Duration>) -> crate::Result<()> {
                self.end.set_write_timeout(limit)
            }

            /// Shuts one or both directions down (shutdown(2)): after `Write` the peer reads what was sent, then the end;
            /// after `Read` the peer's sends fail with EPIPE, and what is queued here can still be received.
            ///
            /// # Errors
            ///
            /// What shutdown(2) says.
            pub fn shutdown(&self, how: std::net::Shutdown) -> crate::Result<()> {
                self.end.shutdown(how)
            }

            /// Bytes that can be received now without waiting (SIOCINQ).
            ///
            /// # Errors
            ///
            /// What ioctl(2) says; EPROTO.
            pub fn readable_bytes(&self) -> crate::Result<usize> {
                self.end.readable_bytes()
            }

            /// Bytes sent that the peer has not received yet (SIOCOUTQ, but in bytes). Over the kernel an upper bound:
            /// the kernel counts memory, about 768 bytes for one small send.
            ///
            /// # Errors
            ///
            /// What ioctl(2) says.
            pub fn unread_bytes(&self) -> crate::Result<usize> {
                self.end.unread_bytes()
            }

            /// Bytes of buffer for what is sent, and for what is received: of the rings, or what SO_SNDBUF and SO_RCVBUF
            /// say where the kernel carries the direction.
            pub fn capacity(&self) -> (usize, usize) {
                self.end.capacity()
            }

            /// Who was at the other end at connect, listen or pair (SO_PEERCRED). Who *sends* may be another process:
            /// `set_pass_credentials` tells.
            ///
            /// # Errors
            ///
            /// What getsockopt(2) says; ENOTCONN for a datagram socket that does not share memory, whose peer the kernel
            /// does not note.
            pub fn peer_cred(&self) -> crate::Result<crate::Credentials> {
                self.end.peer_cred()
            }

            /// The name this end is bound to.
            ///
            /// # Errors
            ///
            /// What getsockname(2) says.
            pub fn local_name(&self) -> crate::Result<crate::Name> {
                self.end.local_name()
            }

            /// The name the peer is bound to.
            ///
            /// # Errors
            ///
            /// ENOTCONN when it is not connected.
            pub fn peer_name(&self) -> crate::Result<crate::Name> {
                self.end.peer_name()
            }

            /// The pending error, once (SO_ERROR).
            ///
            /// # Errors
            ///
            /// What getsockopt(2) says.
            pub fn take_error(&self) -> crate::Result<Option<crate::Error>> {
                self.end.take_error()
            }

            /// Which way the bytes take at this moment. A connection begins over the kernel and is upgraded by its first
            /// calls, so ask after the first bytes went both ways: a direction that nothing was sent in since may still say Kernel.
            pub fn path(&self) -> crate::Path {
                self.end.path()
            }

            /// What this end has done since it was made.
            pub fn stats(&self) -> crate::Stats {
                self.end.counters.read()
            }
        }

        impl Drop for $socket {
            fn drop(&mut self) {
                self.end.close();
            }
        }

        impl rustix::fd::AsFd for $socket {
            /// The control socket, for poll and epoll: POLLIN, POLLOUT, POLLRDHUP and POLLHUP, level and edge.
            /// Reading or writing it directly breaks the connection; O_NONBLOCK may be set on it, as runtimes do. From the first
            /// call on, readiness costs a system call on each change between empty and not empty.
            fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
                // A lie that is found here is told by the next call.
                let _ = self.end.reflect();
                self.end.fd()
            }
        }

        impl rustix::fd::AsRawFd for $socket {
            fn as_raw_fd(&self) -> rustix::fd::RawFd {
                rustix::fd::AsFd::as_fd(self).as_raw_fd()
            }
        }
    };
}
pub(crate) use socket_methods;

/// What connections have besides: who the peer is, and who sends.
macro_rules! credential_methods {
    ($socket:ty) => {
        impl $socket {
            /// The supplementary groups of the same process (SO_PEERGROUPS).
            ///
            /// # Errors
            ///
            /// As `peer_cred`.
            pub fn peer_groups(&self) -> crate::Result<Vec<u32>> {
                self.end.peer_groups()
            }

            /// A descriptor of the same process (SO_PEERPIDFD, Linux 6.5), which no other process can take the place of:
            /// for pidfd_send_signal(2), and readable once the process has ended.
            ///
            /// # Errors
            ///
            /// As `peer_cred`; ENOPROTOOPT on an older kernel; ESRCH or EINVAL where the process is gone.
            pub fn peer_pidfd(&self) -> crate::Result<rustix::fd::OwnedFd> {
                self.end.peer_pidfd()
            }

            /// Whether receives tell who sent (SO_PASSCRED, unix(7)): [`Ancillary::credentials`](crate::Ancillary::credentials)
            /// of `recv_with`. Then no receive merges bytes of two senders. What was sent before this was asked comes from
            /// nobody, as in the kernel: process 0, user and group 65534.
            ///
            /// Over the kernel it verifies each send: who says that he is somebody else needs a privilege. **Over shared memory
            /// this tells the user, and not which of his processes it was**; to authenticate a process use `peer_cred` and
            /// `peer_pidfd`, or [`Transport::Kernel`](crate::Transport::Kernel). For the kernel verifies who wrote a message
            /// that says who sends, but the peer chooses the socket on which it comes, and may choose one on which another
            /// process has answered it. So what is said is held against `peer_cred`: unless that was root, user and group must
            /// be the same, or the peer has lied (EPROTO, and the connection is lost). What can be named is another process
            /// of the same user and group, by a peer that was root when it connected anybody, and of users that are not mapped
            /// in this user namespace any as any (all are 65534).
            ///
            /// That holds honest senders to what they were at connect, listen or pair, too: they say their effective ids
            /// (over the kernel it is the real ones), and who was not root then and has changed them since, or claims others by
            /// a capability, is refused so. Said is it before a sender's first byte and whenever it has changed: a process
            /// that gives its end to another one by unknown means lends it its name as well. Where processes share the
            /// receiving end, bytes behind what another one received come from nobody until their sender says it again.
            ///
            /// # Errors
            ///
            /// What setsockopt(2) says.
            pub fn set_pass_credentials(&self, on: bool) -> crate::Result<()> {
                self.end.set_pass_credentials(on)
            }

            /// Whether receives bring a descriptor of the sender's process (SO_PASSPIDFD, Linux 6.5):
            /// [`Ancillary::pidfd`](crate::Ancillary::pidfd).
            ///
            /// # Errors
            ///
            /// What setsockopt(2) says: ENOPROTOOPT on an older kernel.
            pub fn set_pass_pidfd(&self, on: bool) -> crate::Result<()> {
                self.end.set_pass_pidfd(on)
            }
        }
    };
}
pub(crate) use credential_methods;
