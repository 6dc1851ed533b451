//! Streams: what applications hold.

use crate::end::End;
use crate::rx::{Rx, Waiting};
use crate::tx::Tx;
use crate::upgrade::{self, Invitation};
use crate::{
    Carrier, Config, Credentials, Error, Name, Op, Path, Policy, Reader, RecvFlags, Result, SendFlags, Slot,
    Stats, Transport, View, Wait, control,
};
use onecopy_ring::{Consumer, Producer, Ring};
use onecopy_sync::atomic::Ordering::{Relaxed, Release};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

/// A connected stream socket. All methods take `&self`: it may be used from several threads, whole sends never
/// interleave. Dropping it closes it.
///
/// It works as std's `UnixStream` does, over shared memory where the peer is a `Stream` too and over the kernel
/// where it is not; [`Stream::path`] tells.
#[derive(Debug)]
pub struct Stream {
    end: Arc<End>,
}

fn option(errno: Errno) -> Error {
    Error::new(Op::Option, errno)
}

fn set_buffers(fd: &OwnedFd, config: &Config) -> Result<()> {
    if let Some(bytes) = config.send_buffer {
        sockopt::set_socket_send_buffer_size(fd, bytes).map_err(option)?;
    }
    if let Some(bytes) = config.receive_buffer {
        sockopt::set_socket_recv_buffer_size(fd, bytes).map_err(option)?;
    }
    Ok(())
}

pub(crate) fn local_name(fd: &OwnedFd) -> Result<Name> {
    let address = rustix::net::getsockname(fd).map_err(option)?;
    Ok(SocketAddrUnix::try_from(address).map_or_else(|_| Name::unnamed(), |a| visible_name(&a)))
}

/// An invitation is no name that anybody gave.
fn visible_name(address: &SocketAddrUnix) -> Name {
    match address.abstract_name() {
        Some(name) if Invitation::parse(name).is_some() => Name::unnamed(),
        _ => Name::of(address),
    }
}

impl Stream {
    fn new(fd: OwnedFd, config: &Config, rx: Rx, tx: Tx) -> Result<Stream> {
        set_buffers(&fd, config)?;
        Ok(Stream { end: Arc::new(End::new(fd, config, rx, tx)) })
    }

    /// What accept gives for `fd`, whose peer is bound to `peer`.
    pub(crate) fn accepted(fd: OwnedFd, peer: Option<SocketAddrUnix>, config: &Config) -> Result<Stream> {
        let invitation = match config.transport {
            Transport::Kernel => None,
            Transport::Auto => peer.and_then(|peer| Invitation::parse(peer.abstract_name()?)),
        };
        let welcome =
            invitation.and_then(|invitation| upgrade::welcome(fd.as_fd(), &invitation, config).ok());
        let fallback = config.transport == Transport::Auto && welcome.is_none();
        let (rx, ring) = match welcome {
            Some((switching, ring)) => (Rx::Switching(switching), Some(ring)),
            None => (Rx::Plain, None),
        };
        let stream = Stream::new(fd, config, rx, Tx::Kernel { sent: 0 })?;
        if let Some(ring) = ring {
            let _ = stream.end.rx_ring.set(ring);
        }
        stream.end.counters.fallbacks.add(usize::from(fallback));
        Ok(stream)
    }

    /// Two connected streams, over shared memory from the first byte on.
    ///
    /// # Errors
    ///
    /// What socketpair(2) says.
    pub fn pair() -> Result<(Stream, Stream)> {
        Stream::pair_with(&Config::default())
    }

    /// Two connected streams, both with `config`. Where memfds are refused they run over the kernel.
    ///
    /// # Errors
    ///
    /// What socketpair(2) says.
    pub fn pair_with(config: &Config) -> Result<(Stream, Stream)> {
        let (a, b) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(|errno| Error::new(Op::Socket, errno))?;
        let rings = match config.transport {
            Transport::Kernel => None,
            Transport::Auto => {
                let wish = config.send_buffer.map_or(0, |bytes| bytes.saturating_mul(2)) as u64;
                let capacity = upgrade::capacity(config.receive_buffer, wish, config.max_ring);
                Ring::create(capacity).and_then(|one| Ok((one.0, Ring::create(capacity)?.0))).ok()
            }
        };
        let Some((to_a, to_b)) = rings else {
            let plain = |fd| Stream::new(fd, config, Rx::Plain, Tx::Kernel { sent: 0 });
            let pair = (plain(a)?, plain(b)?);
            let fallback = usize::from(config.transport == Transport::Auto);
            pair.0.end.counters.fallbacks.add(fallback);
            pair.1.end.counters.fallbacks.add(fallback);
            return Ok(pair);
        };
        let over = |fd, mine: &Ring, theirs: &Ring| -> Result<Stream> {
            let rx = Rx::ring(Consumer::new(mine.clone()));
            let stream = Stream::new(fd, config, rx, Tx::ring(Producer::new(theirs.clone())))?;
            let _ = stream.end.rx_ring.set(mine.clone());
            let _ = stream.end.tx_ring.set(theirs.clone());
            Ok(stream)
        };
        Ok((over(a, &to_a, &to_b)?, over(b, &to_b, &to_a)?))
    }

    /// Connects to a listener: of this crate, or any other that listens on a unix stream socket.
    ///
    /// # Errors
    ///
    /// What connect(2) says: ENOENT, ECONNREFUSED, EACCES, EPROTOTYPE.
    pub fn connect(name: impl Into<Name>) -> Result<Stream> {
        Stream::connect_with(name, &Config::default())
    }

    /// Connects to a listener.
    ///
    /// # Errors
    ///
    /// As [`Stream::connect`].
    pub fn connect_with(name: impl Into<Name>, config: &Config) -> Result<Stream> {
        let address = name.into().address(Op::Connect)?;
        let fd =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(|errno| Error::new(Op::Socket, errno))?;
        let invitation = match config.transport {
            Transport::Kernel => None,
            Transport::Auto => upgrade::invite(fd.as_fd(), config).ok(),
        };
        rustix::net::connect(&fd, &address).map_err(|errno| Error::new(Op::Connect, errno))?;
        let rx = invitation.map_or(Rx::Plain, |invitation| Rx::Undecided(invitation.nonce));
        let fallback = config.transport == Transport::Auto && matches!(rx, Rx::Plain);
        let stream = Stream::new(fd, config, rx, Tx::Kernel { sent: 0 })?;
        stream.end.counters.fallbacks.add(usize::from(fallback));
        Ok(stream)
    }

    /// Sends. Waits until all is sent, unless non-blocking or [`SendFlags::DONTWAIT`]: then what there is room
    /// for. Returns bytes sent, which are fewer than asked for only when it does not wait, times out, is
    /// interrupted, or loses the peer half way.
    ///
    /// # Errors
    ///
    /// EAGAIN (no room, or timed out), EPIPE (with SIGPIPE unless [`SendFlags::NOSIGNAL`]), EINTR, EPROTO.
    pub fn send(&self, bytes: &[u8], flags: SendFlags) -> Result<usize> {
        self.end.send(&[IoSlice::new(bytes)], flags)
    }

    /// Sends the slices one after the other, as one send.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn send_vectored(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        self.end.send(slices, flags)
    }

    /// Receives what is there, waiting for the first byte. Returns bytes received; 0 at the end of the stream.
    ///
    /// # Errors
    ///
    /// EAGAIN (nothing there, or timed out), ECONNRESET (once, when the peer closed without reading all that was
    /// sent to it, after all that it had sent), EINTR, EPROTO.
    pub fn recv(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        self.end.recv(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// Receives into the slices one after the other.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_vectored(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize> {
        self.end.recv(slices, flags)
    }

    /// Reserves room for `len` bytes (cut to the capacity; see [`Slot::len`]) where the peer will read them, and
    /// waits for it. The way to send with no copy of our own.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn reserve(&self, len: usize) -> Result<Slot<'_>> {
        self.reserve_with(len, SendFlags::NOSIGNAL)
    }

    /// As [`Stream::reserve`], with flags: EAGAIN under [`SendFlags::DONTWAIT`] unless there is room for all.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn reserve_with(&self, len: usize, flags: SendFlags) -> Result<Slot<'_>> {
        Slot::reserve(&self.end, len, flags).map_err(|error| match self.end.finish(Err(error), 0, flags) {
            Err(error) => error,
            Ok(_) => error,
        })
    }

    /// Borrows what is there, at most `max` bytes, waiting for the first byte. Empty at the end of the stream.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_borrowed(&self, max: usize) -> Result<View> {
        self.recv_borrowed_with(max, RecvFlags::empty())
    }

    /// As [`Stream::recv_borrowed`], with [`RecvFlags::DONTWAIT`] (other flags have no meaning here).
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_borrowed_with(&self, max: usize, flags: RecvFlags) -> Result<View> {
        View::borrow(&self.end, max, flags)
    }

    /// Which stores copies into the peer's buffer use from here on.
    pub fn set_policy(&self, policy: Policy) {
        self.end.settings.set_policy(policy);
    }

    /// Who reads what is sent from here on, which [`Policy::Auto`] takes into account.
    pub fn set_reader(&self, reader: Reader) {
        self.end.settings.set_reader(reader);
    }

    /// How blocking calls wait from here on.
    pub fn set_wait(&self, wait: Wait) {
        self.end.settings.set_wait(wait);
    }

    /// Whether calls fail with EAGAIN instead of waiting (O_NONBLOCK).
    ///
    /// # Errors
    ///
    /// What ioctl(2) says.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        rustix::io::ioctl_fionbio(&self.end.fd, nonblocking).map_err(option)?;
        self.end.settings.set_nonblocking(nonblocking);
        if nonblocking { self.reflect() } else { Ok(()) }
    }

    /// Longest wait of a receive (SO_RCVTIMEO); None: for ever.
    ///
    /// # Errors
    ///
    /// EINVAL for a zero duration.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> Result<()> {
        sockopt::set_socket_timeout(&self.end.fd, sockopt::Timeout::Recv, limit).map_err(option)?;
        self.end.settings.set_read_timeout(limit);
        Ok(())
    }

    /// Longest wait of a send (SO_SNDTIMEO); None: for ever.
    ///
    /// # Errors
    ///
    /// EINVAL for a zero duration.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> Result<()> {
        sockopt::set_socket_timeout(&self.end.fd, sockopt::Timeout::Send, limit).map_err(option)?;
        self.end.settings.set_write_timeout(limit);
        Ok(())
    }

    /// Shuts one or both directions down (shutdown(2)): after `Write` the peer reads what was sent, then the end;
    /// after `Read` the peer's sends fail with EPIPE, and what is queued here can still be received.
    ///
    /// # Errors
    ///
    /// What shutdown(2) says.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        let kernel = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        rustix::net::shutdown(&self.end.fd, kernel).map_err(|errno| Error::new(Op::Shutdown, errno))?;
        if how != Shutdown::Read {
            self.end.send_shut.store(1, Relaxed);
        }
        if how != Shutdown::Write
            && let Some(ring) = self.end.rx_ring.get()
        {
            // Release pairs with nothing that matters: a sender that sees it asks the kernel.
            ring.header().writer.0.shut.store(1, Release);
            // A sender asleep for room sees no shutdown in poll(2), but that its filler is gone.
            if let Rx::Ring(rx) = &mut *self.end.rx.lock() {
                rx.unpark_now(&self.end).map_err(|lie| self.end.lie(Op::Shutdown, lie))?;
            }
        }
        Ok(())
    }

    /// Bytes that can be received now without waiting (SIOCINQ).
    ///
    /// # Errors
    ///
    /// What ioctl(2) says; EPROTO.
    pub fn readable_bytes(&self) -> Result<usize> {
        let end = &self.end;
        let mut guard = end.rx.lock();
        end.decide(&mut guard, Op::Option)?;
        match &mut *guard {
            Rx::Ring(rx) => rx.consumer.available(usize::MAX).map_err(|lie| end.lie(Op::Option, lie)),
            Rx::Switching(switching) => {
                let queued = control::queued(&end.fd).map_err(option)?;
                let left = switching.left().map_err(|lie| end.lie(Op::Option, lie))?;
                let left = left.map_or(queued, |left| usize::try_from(left).unwrap_or(usize::MAX));
                let in_ring = end.rx_ring.get().map_or(0, waiting_in);
                Ok(queued.min(left) + in_ring)
            }
            Rx::Plain | Rx::Undecided(_) => control::queued(&end.fd).map_err(option),
        }
    }

    /// Bytes sent that the peer has not received yet (SIOCOUTQ, but in bytes). Over the kernel an upper bound:
    /// the kernel counts memory, about 768 bytes for one small send.
    ///
    /// # Errors
    ///
    /// What ioctl(2) says.
    pub fn unread_bytes(&self) -> Result<usize> {
        if self.end.tx_ring.get().is_some() {
            return Ok(self.end.unread_in_ring() as usize);
        }
        onecopy_sys::socket::unread_memory(&self.end.fd).map_err(option)
    }

    /// Bytes of buffer for what is sent, and for what is received: of the rings, or what SO_SNDBUF and SO_RCVBUF
    /// say where the kernel carries the direction.
    pub fn capacity(&self) -> (usize, usize) {
        let end = &self.end;
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

    /// Who is at the other end.
    ///
    /// # Errors
    ///
    /// What getsockopt(2) says.
    pub fn peer_cred(&self) -> Result<Credentials> {
        let cred = sockopt::socket_peercred(&self.end.fd).map_err(option)?;
        Ok(Credentials {
            pid: cred.pid.as_raw_nonzero().get(),
            uid: cred.uid.as_raw(),
            gid: cred.gid.as_raw(),
        })
    }

    /// The name this end is bound to.
    ///
    /// # Errors
    ///
    /// What getsockname(2) says.
    pub fn local_name(&self) -> Result<Name> {
        local_name(&self.end.fd)
    }

    /// The name the peer is bound to.
    ///
    /// # Errors
    ///
    /// ENOTCONN when it is not connected.
    pub fn peer_name(&self) -> Result<Name> {
        let address = rustix::net::getpeername(&self.end.fd).map_err(option)?;
        Ok(address
            .and_then(|a| SocketAddrUnix::try_from(a).ok())
            .map_or_else(Name::unnamed, |a| visible_name(&a)))
    }

    /// The pending error, once (SO_ERROR).
    ///
    /// # Errors
    ///
    /// What getsockopt(2) says.
    pub fn take_error(&self) -> Result<Option<Error>> {
        let errno = match sockopt::socket_error(&self.end.fd).map_err(option)? {
            Ok(()) if self.end.reset.swap(0, Relaxed) != 0 => Errno::CONNRESET,
            Ok(()) => return Ok(None),
            Err(errno) => errno,
        };
        if errno == Errno::CONNRESET && !self.end.was_reset(&self.end.rx.lock()) {
            return Ok(None);
        }
        Ok(Some(Error::new(Op::Recv, errno)))
    }

    /// Which way the bytes take at this moment. A connection begins over the kernel and is upgraded by its first
    /// calls, so ask after the first bytes went both ways.
    pub fn path(&self) -> Path {
        let carrier = |shared| if shared { Carrier::SharedMemory } else { Carrier::Kernel };
        Path {
            send: carrier(self.end.tx_ring.get().is_some()),
            receive: carrier(matches!(&*self.end.rx.lock(), Rx::Ring(_))),
        }
    }

    /// What this end has done since it was made.
    pub fn stats(&self) -> Stats {
        self.end.counters.read()
    }

    /// From here on the control socket's readiness mirrors the ring's.
    fn reflect(&self) -> Result<()> {
        if self.end.mirror.swap(1, Relaxed) == 0
            && let Rx::Ring(rx) = &mut *self.end.rx.lock()
        {
            self.end.mirror_empty(rx)?;
        }
        Ok(())
    }
}

/// Bytes that a sender has put into a ring that nobody reads yet.
fn waiting_in(ring: &Ring) -> usize {
    use onecopy_sync::atomic::Ordering::Acquire;
    let head = ring.header().writer.0.head.load(Acquire);
    usize::try_from(head).unwrap_or(usize::MAX).min(ring.capacity())
}

impl Drop for Stream {
    fn drop(&mut self) {
        let end = &self.end;
        if end.maker != std::process::id() {
            // A forked child: the queue, the ring and the connection are somebody else's too.
            return;
        }
        // A bell or a hello that nobody took would make the kernel tell the peer ECONNRESET although all was read.
        let mut rx = end.rx.lock();
        match &mut *rx {
            Rx::Plain => {}
            Rx::Ring(ring) => {
                if ring.consumer.available(1) == Ok(0) {
                    let _ = ring.settle(end);
                }
            }
            Rx::Undecided(_) | Rx::Switching(_) => {
                drop(rx);
                // A look whether there is something to receive takes a hello, and what follows it.
                let _ = end.ready(RecvFlags::DONTWAIT, &mut Waiting::new());
            }
        }
        if let Some(ring) = end.rx_ring.get() {
            // A sender with room need not wait until it looks at the kernel again.
            ring.header().writer.0.shut.store(1, Release);
        }
        if Arc::strong_count(&self.end) > 1 {
            // Views keep the descriptor; the peer is told all the same.
            let _ = rustix::net::shutdown(&self.end.fd, rustix::net::Shutdown::Both);
        }
    }
}

impl AsFd for Stream {
    /// The control socket, for poll and epoll: POLLIN, POLLOUT, POLLRDHUP and POLLHUP, level and edge. Reading
    /// or writing it directly breaks the stream. From the first call on, readiness costs a system call on each
    /// change between empty and not empty.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // A lie that is found here is told by the next call.
        let _ = self.reflect();
        self.end.fd()
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv(buffer, RecvFlags::empty())?)
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(self.recv_vectored(slices, RecvFlags::empty())?)
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.send(bytes, SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(self.send_vectored(slices, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(slices)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
