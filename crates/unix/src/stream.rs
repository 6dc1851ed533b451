//! Streams.

use crate::{
    Carrier, Config, Credentials, Error, Name, Op, Path, Policy, Reader, RecvFlags, Result, SendFlags, Stats,
    Wait,
};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::sync::Mutex;
use std::time::Duration;

/// A connected stream socket. All methods take `&self`; dropping it closes it.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
    config: Mutex<Config>,
    stats: Mutex<Stats>,
}

fn option(errno: rustix::io::Errno) -> Error {
    Error::new(Op::Option, errno)
}

fn new_socket() -> Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| Error::new(Op::Socket, errno))
}

pub(crate) fn local_name(fd: &OwnedFd) -> Result<Name> {
    let address = rustix::net::getsockname(fd).map_err(option)?;
    SocketAddrUnix::try_from(address).map(|a| Name::of(&a)).or(Ok(Name::unnamed()))
}

impl Stream {
    pub(crate) fn over_kernel(fd: OwnedFd, config: &Config) -> Result<Stream> {
        if let Some(bytes) = config.send_buffer {
            sockopt::set_socket_send_buffer_size(&fd, bytes).map_err(option)?;
        }
        if let Some(bytes) = config.receive_buffer {
            sockopt::set_socket_recv_buffer_size(&fd, bytes).map_err(option)?;
        }
        Ok(Stream { fd, config: Mutex::new(*config), stats: Mutex::default() })
    }

    /// Two connected streams.
    ///
    /// # Errors
    ///
    /// What socketpair(2) says.
    pub fn pair() -> Result<(Stream, Stream)> {
        Stream::pair_with(&Config::default())
    }

    /// Two connected streams.
    ///
    /// # Errors
    ///
    /// What socketpair(2) says.
    pub fn pair_with(config: &Config) -> Result<(Stream, Stream)> {
        let (a, b) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(|errno| Error::new(Op::Socket, errno))?;
        Ok((Stream::over_kernel(a, config)?, Stream::over_kernel(b, config)?))
    }

    /// Connects to a listener.
    ///
    /// # Errors
    ///
    /// What connect(2) says.
    pub fn connect(name: impl Into<Name>) -> Result<Stream> {
        Stream::connect_with(name, &Config::default())
    }

    /// Connects to a listener.
    ///
    /// # Errors
    ///
    /// What connect(2) says.
    pub fn connect_with(name: impl Into<Name>, config: &Config) -> Result<Stream> {
        let address = name.into().address(Op::Connect)?;
        let fd = new_socket()?;
        rustix::net::connect(&fd, &address).map_err(|errno| Error::new(Op::Connect, errno))?;
        Stream::over_kernel(fd, config)
    }

    /// Sends. Blocking streams wait until all is sent.
    ///
    /// # Errors
    ///
    /// EAGAIN, EPIPE, EINTR as send(2).
    pub fn send(&self, bytes: &[u8], flags: SendFlags) -> Result<usize> {
        self.send_vectored(&[IoSlice::new(bytes)], flags)
    }

    /// Sends the slices one after the other.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn send_vectored(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        let mut kernel = rustix::net::SendFlags::empty();
        kernel.set(rustix::net::SendFlags::DONTWAIT, flags.contains(SendFlags::DONTWAIT));
        kernel.set(rustix::net::SendFlags::NOSIGNAL, flags.contains(SendFlags::NOSIGNAL));
        let n = rustix::net::sendmsg(&self.fd, slices, &mut Default::default(), kernel)
            .map_err(|errno| Error::new(Op::Send, errno))?;
        let mut stats = self.stats.lock().unwrap_or_else(|e| e.into_inner());
        stats.sent += n as u64;
        stats.kernel_copied += n as u64;
        Ok(n)
    }

    /// Receives; 0 at the end of the stream.
    ///
    /// # Errors
    ///
    /// EAGAIN, ECONNRESET, EINTR as recv(2).
    pub fn recv(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        self.recv_vectored(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// Receives into the slices one after the other.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_vectored(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize> {
        let mut kernel = rustix::net::RecvFlags::empty();
        kernel.set(rustix::net::RecvFlags::DONTWAIT, flags.contains(RecvFlags::DONTWAIT));
        kernel.set(rustix::net::RecvFlags::PEEK, flags.contains(RecvFlags::PEEK));
        kernel.set(rustix::net::RecvFlags::WAITALL, flags.contains(RecvFlags::WAITALL));
        let n = rustix::net::recvmsg(&self.fd, slices, &mut Default::default(), kernel)
            .map_err(|errno| Error::new(Op::Recv, errno))?
            .bytes;
        let mut stats = self.stats.lock().unwrap_or_else(|e| e.into_inner());
        stats.kernel_copied += n as u64;
        if !flags.contains(RecvFlags::PEEK) {
            stats.received += n as u64;
        }
        Ok(n)
    }

    /// Room to write `len` bytes where the peer will read them.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn reserve(&self, len: usize) -> Result<Slot<'_>> {
        self.reserve_with(len, SendFlags::NOSIGNAL)
    }

    /// As [`Stream::reserve`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn reserve_with(&self, len: usize, flags: SendFlags) -> Result<Slot<'_>> {
        Ok(Slot { stream: self, flags, bytes: vec![0; len.min(1 << 20)], filled: 0 })
    }

    /// What came, where it lies.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_borrowed(&self, max: usize) -> Result<View> {
        self.recv_borrowed_with(max, RecvFlags::empty())
    }

    /// As [`Stream::recv_borrowed`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_borrowed_with(&self, max: usize, flags: RecvFlags) -> Result<View> {
        let mut bytes = vec![0; max.min(256 << 10)];
        let n = self.recv(&mut bytes, flags)?;
        bytes.truncate(n);
        Ok(View { bytes, start: 0 })
    }

    /// Which stores copies into the peer's buffer use from here on.
    pub fn set_policy(&self, policy: Policy) {
        self.config.lock().unwrap_or_else(|e| e.into_inner()).policy = policy;
    }

    /// Who reads what is sent from here on.
    pub fn set_reader(&self, reader: Reader) {
        self.config.lock().unwrap_or_else(|e| e.into_inner()).reader = reader;
    }

    /// How blocking calls wait from here on.
    pub fn set_wait(&self, wait: Wait) {
        self.config.lock().unwrap_or_else(|e| e.into_inner()).wait = wait;
    }

    /// Whether calls fail with EAGAIN instead of waiting.
    ///
    /// # Errors
    ///
    /// What ioctl(2) says.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        rustix::io::ioctl_fionbio(&self.fd, nonblocking).map_err(option)
    }

    /// Longest wait of a receive (SO_RCVTIMEO).
    ///
    /// # Errors
    ///
    /// EINVAL for a zero duration.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> Result<()> {
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Recv, limit).map_err(option)
    }

    /// Longest wait of a send (SO_SNDTIMEO).
    ///
    /// # Errors
    ///
    /// EINVAL for a zero duration.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> Result<()> {
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Send, limit).map_err(option)
    }

    /// Shuts one or both directions down.
    ///
    /// # Errors
    ///
    /// What shutdown(2) says.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        rustix::net::shutdown(&self.fd, how).map_err(|errno| Error::new(Op::Shutdown, errno))
    }

    /// Bytes that a receive could take now (SIOCINQ).
    ///
    /// # Errors
    ///
    /// What ioctl(2) says.
    pub fn readable_bytes(&self) -> Result<usize> {
        rustix::io::ioctl_fionread(&self.fd).map(|n| n as usize).map_err(option)
    }

    /// Bytes sent that the peer has not received yet.
    ///
    /// # Errors
    ///
    /// What ioctl(2) says.
    pub fn unread_bytes(&self) -> Result<usize> {
        Ok(0)
    }

    /// Bytes of buffer for what is sent, and for what is received.
    pub fn capacity(&self) -> (usize, usize) {
        let send = sockopt::socket_send_buffer_size(&self.fd).unwrap_or(0);
        (send, send)
    }

    /// Who is at the other end.
    ///
    /// # Errors
    ///
    /// What getsockopt(2) says.
    pub fn peer_cred(&self) -> Result<Credentials> {
        let cred = sockopt::socket_peercred(&self.fd).map_err(option)?;
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
        local_name(&self.fd)
    }

    /// The name the peer is bound to.
    ///
    /// # Errors
    ///
    /// ENOTCONN when it is not connected.
    pub fn peer_name(&self) -> Result<Name> {
        let address = rustix::net::getpeername(&self.fd).map_err(option)?;
        Ok(address
            .and_then(|a| SocketAddrUnix::try_from(a).ok())
            .map_or_else(Name::unnamed, |a| Name::of(&a)))
    }

    /// The pending error, once (SO_ERROR).
    ///
    /// # Errors
    ///
    /// What getsockopt(2) says.
    pub fn take_error(&self) -> Result<Option<Error>> {
        let error = sockopt::socket_error(&self.fd).map_err(option)?;
        Ok(error.err().map(|errno| Error::new(Op::Recv, errno)))
    }

    /// Which way the bytes take at this moment.
    pub fn path(&self) -> Path {
        Path { send: Carrier::Kernel, receive: Carrier::Kernel }
    }

    /// What this end has done since it was made.
    pub fn stats(&self) -> Stats {
        *self.stats.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl AsFd for Stream {
    /// The kernel socket, for poll and epoll.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
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

/// Room in the peer's buffer.
#[derive(Debug)]
pub struct Slot<'a> {
    stream: &'a Stream,
    flags: SendFlags,
    bytes: Vec<u8>,
    filled: usize,
}

impl Slot<'_> {
    /// Bytes of room in all.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is no room.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes filled so far.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Copies as many of `bytes` as there is room left for. Returns how many.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.bytes.len() - self.filled);
        self.bytes[self.filled..][..n].copy_from_slice(&bytes[..n]);
        self.filled += n;
        n
    }

    /// pread(2) from byte `offset` of `file` into the room left. Returns bytes read, 0 at the end of the file.
    ///
    /// # Errors
    ///
    /// What pread(2) says.
    pub fn read_from(&mut self, file: impl AsFd, offset: u64) -> io::Result<usize> {
        let n = rustix::io::pread(file, &mut self.bytes[self.filled..], offset)?;
        self.filled += n;
        Ok(n)
    }

    /// Publishes what is filled. Returns bytes sent.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn commit(self) -> Result<usize> {
        let mut sent = 0;
        while sent < self.filled {
            sent += self.stream.send(&self.bytes[sent..self.filled], self.flags)?;
        }
        Ok(sent)
    }
}

/// Received bytes, where they lie.
#[derive(Debug)]
pub struct View {
    bytes: Vec<u8>,
    start: usize,
}

impl View {
    /// Bytes in view.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether nothing is in view: at the end of the stream.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies from the front, without giving anything back. Returns bytes copied.
    pub fn copy_to(&self, buffer: &mut [u8]) -> usize {
        let n = buffer.len().min(self.len());
        buffer[..n].copy_from_slice(&self.bytes[self.start..][..n]);
        n
    }

    /// writev(2) of what is in view. Returns bytes written; `advance` gives them back.
    ///
    /// # Errors
    ///
    /// What writev(2) says.
    pub fn write_to(&self, fd: impl AsFd) -> io::Result<usize> {
        Ok(rustix::io::write(fd, &self.bytes[self.start..])?)
    }

    /// sendmsg(2) of what is in view, with MSG_ `flags`. Returns bytes sent; `advance` gives them back.
    ///
    /// # Errors
    ///
    /// What sendmsg(2) says.
    pub fn send_to(&self, fd: impl AsFd, flags: i32) -> io::Result<usize> {
        let flags = rustix::net::SendFlags::from_bits_retain(flags as u32);
        Ok(rustix::net::send(fd, &self.bytes[self.start..], flags)?)
    }

    /// Gives the first `count` bytes back to the sender.
    pub fn advance(&mut self, count: usize) {
        self.start = (self.start + count).min(self.bytes.len());
    }
}
