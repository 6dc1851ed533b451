//! Streams.

mod device;
mod frags;
mod options;
mod traits;
mod zerocopy;

use crate::carrier::tcp::{Connection, Options, Taking};
use crate::carrier::{PIECE, Way, checked, leave_unfinished};
use crate::error::{of, unreadable};
use crate::stack::Stack;
use crate::tcp::slot::Slot;
use crate::view::{View, copy_out};
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use onecopy_copy::Hint;
use onecopy_inet::tcp::{Error as Cause, Info, Settings};
use onecopy_socket::{Counters, Error, Op, Path, RecvFlags, Result, SendFlags, Stats};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// A connected stream of TCP. It works as std's `TcpStream` does, and all methods take `&self`: it may be used from several threads, and
/// whole sends never interleave. Dropping it closes it; what was sent is still delivered, as long as the stack lives.
#[derive(Debug)]
pub struct Stream {
    socket: Arc<dyn Connection>,
    /// Behind the socket, which is closed before its stack ends.
    stack: Stack,
}

impl Stream {
    pub(in crate::tcp) fn of(socket: Arc<dyn Connection>, stack: &Stack) -> Stream {
        Stream { socket, stack: stack.clone() }
    }

    /// Connects to `address` from an address of `stack`, and waits until that is done.
    ///
    /// # Errors
    ///
    /// ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, EADDRNOTAVAIL, EINTR.
    pub fn connect(stack: &Stack, address: SocketAddr) -> Result<Stream> {
        Stream::begin(stack, None, address)?.connected(None)
    }

    /// As [`Stream::connect`], and gives up after `limit`.
    ///
    /// # Errors
    ///
    /// As [`Stream::connect`]; ETIMEDOUT when the limit has come, EINVAL for none at all.
    pub fn connect_timeout(stack: &Stack, address: SocketAddr, limit: Duration) -> Result<Stream> {
        checked(Some(limit))?;
        Stream::begin(stack, None, address)?.connected(Some(limit))
    }

    /// As [`Stream::connect`], from `local`: an address of the stack's, or 0.0.0.0 for any, and a port, or 0 for any.
    ///
    /// # Errors
    ///
    /// As [`Stream::connect`]; EADDRINUSE.
    pub fn connect_from(stack: &Stack, local: SocketAddr, address: SocketAddr) -> Result<Stream> {
        Stream::begin(stack, Some(local), address)?.connected(None)
    }

    /// As [`Stream::connect`], with settings that its SYN is to go by: `max_segment`, `receive_buffer` (and so the window's scale), `window_clamp`, `syn_retries`,
    /// `congestion`, or any others. (`change` is called once for each shard that is tried.)
    ///
    /// With `fast_open_connect` (TCP_FASTOPEN_CONNECT; RFC 7413), and a cookie that an earlier connection has brought from there, it returns at once: the
    /// connection begins with the first send, whose bytes go with the SYN.
    ///
    /// # Errors
    ///
    /// As [`Stream::connect`], and as [`Stream::set`]: EOPNOTSUPP for `fast_open_connect` where the stack has no
    /// [`Use::CLIENT`](crate::tcp::fast_open::Use::CLIENT), or over the kernel where net.ipv4.tcp_fastopen lacks the bit 1.
    pub fn connect_with(
        stack: &Stack,
        address: SocketAddr,
        change: impl Fn(&mut Settings),
    ) -> Result<Stream> {
        Stream::of(stack.tcp_connect(None, address, Some(&change))?, stack).connected(None)
    }

    /// Begins to connect and does not wait: it is non-blocking, and writable once it is connected or has failed ([`Stream::take_error`]
    /// tells).
    ///
    /// # Errors
    ///
    /// ENETUNREACH, EADDRNOTAVAIL, ENOBUFS.
    pub fn connect_nonblocking(stack: &Stack, address: SocketAddr) -> Result<Stream> {
        Stream::nonblocking_from_birth(Stream::begin(stack, None, address)?)
    }

    /// As [`Stream::connect_nonblocking`], from `local`, as of [`Stream::connect_from`].
    ///
    /// # Errors
    ///
    /// As [`Stream::connect_nonblocking`]; EADDRINUSE.
    pub fn connect_nonblocking_from(stack: &Stack, local: SocketAddr, address: SocketAddr) -> Result<Stream> {
        Stream::nonblocking_from_birth(Stream::begin(stack, Some(local), address)?)
    }

    /// As [`Stream::connect_nonblocking`], with settings that its SYN is to go by, as of [`Stream::connect_with`]. With `fast_open_connect` and a
    /// cookie it is writable at once, and begins with the first send.
    ///
    /// # Errors
    ///
    /// As [`Stream::connect_nonblocking`], and as [`Stream::set`].
    pub fn connect_nonblocking_with(
        stack: &Stack,
        address: SocketAddr,
        change: impl Fn(&mut Settings),
    ) -> Result<Stream> {
        Stream::nonblocking_from_birth(Stream::of(stack.tcp_connect(None, address, Some(&change))?, stack))
    }

    fn nonblocking_from_birth(stream: Stream) -> Result<Stream> {
        stream.socket.settings().set_nonblocking(true);
        Ok(stream)
    }

    fn begin(stack: &Stack, local: Option<SocketAddr>, address: SocketAddr) -> Result<Stream> {
        Ok(Stream::of(stack.tcp_connect(local, address, None)?, stack))
    }

    /// Waits until the connection that was begun is made.
    fn connected(self, limit: Option<Duration>) -> Result<Stream> {
        self.socket.connected(limit).map_err(|error| error.about("address"))?;
        Ok(self)
    }

    /// Sends `bytes`, waiting for room until all are taken. Returns how many: fewer only where a limit, a signal or the peer's end came
    /// in between.
    ///
    /// # Errors
    ///
    /// EPIPE, ECONNRESET, ETIMEDOUT and what else ended the connection; EAGAIN where it is not to wait and there is no room.
    pub fn send(&self, bytes: &[u8]) -> Result<usize> {
        self.send_with_flags(bytes, SendFlags::empty())
    }

    /// As [`Stream::send`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn send_with_flags(&self, bytes: &[u8], flags: SendFlags) -> Result<usize> {
        self.send_vectored_with_flags(&[IoSlice::new(bytes)], flags)
    }

    /// As [`Stream::send`], of several slices, as one.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn send_vectored(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        self.send_vectored_with_flags(slices, SendFlags::empty())
    }

    /// As [`Stream::send_vectored`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn send_vectored_with_flags(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        let _one = self.socket.common().send_alone(flags.contains(SendFlags::DONTWAIT))?;
        let hint = self.hint(flags);
        let mut done = 0;
        let mut pieces = slices.iter().flat_map(|slice| slice.chunks(PIECE)).peekable();
        while let Some(piece) = pieces.next() {
            let more = if pieces.peek().is_some() { flags | SendFlags::MORE } else { flags };
            match self.send_piece(piece, more, hint, done > 0) {
                Ok(n) => {
                    done += n;
                    if n < piece.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(self.signalled(error, flags)),
            }
        }
        Ok(done)
    }

    /// Sends bytes that are copied under one lock, as many as there is room for at a time. Where bytes before them have been `sent`, an error
    /// stays for the next call.
    fn send_piece(&self, piece: &[u8], flags: SendFlags, hint: Hint, sent: bool) -> Result<usize> {
        let sent = self.socket.send_bytes(piece, flags, hint, sent);
        if !matches!(sent, Ok(n) if n == piece.len()) {
            self.socket.fell_short(Way::Write);
        }
        sent
    }

    /// Raises SIGPIPE where that was asked for.
    fn signalled(&self, error: Error, flags: SendFlags) -> Error {
        if flags.contains(SendFlags::SIGPIPE) && error.raw_os_error() == Errno::PIPE.raw_os_error() {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::PIPE);
        }
        error
    }

    /// Sends a chain by reference: no copy in user space. Returns how many bytes; it waits as [`Stream::send`] does, and what was not taken is
    /// dropped ([`Stream::send_some`] keeps it).
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn send_chain(&self, chain: Chain) -> Result<usize> {
        self.send_all(&mut chain.into(), SendFlags::empty())
    }

    /// As [`Stream::send_chain`], with what waits for its bytes to be acknowledged, and flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn send_segment(&self, mut segment: Segment<Chain>, flags: SendFlags) -> Result<usize> {
        self.send_all(&mut segment, flags)
    }

    /// As [`Stream::send_segment`], without waiting: takes what there is room for from the front of `segment`, and leaves the rest there.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`]; EAGAIN where there is no room at all.
    pub fn send_some(&self, segment: &mut Segment<Chain>, flags: SendFlags) -> Result<usize> {
        self.send_all(segment, flags | SendFlags::DONTWAIT)
    }

    pub(in crate::tcp) fn send_all(&self, data: &mut Segment<Chain>, flags: SendFlags) -> Result<usize> {
        let _one = self.socket.common().send_alone(flags.contains(SendFlags::DONTWAIT))?;
        if data.payload().is_empty() {
            return Ok(0);
        }
        leave_unfinished(data.payload_mut());
        let sent = self.socket.send_segment(data, flags);
        if sent.is_err() || !data.payload().is_empty() {
            self.socket.fell_short(Way::Write);
        }
        sent.map_err(|error| self.signalled(error, flags))
    }

    /// Pages of the stack's own for `len` bytes, to be filled in place and then sent without a copy in user space.
    ///
    /// # Errors
    ///
    /// ENOBUFS where there are not so many pages.
    pub fn reserve(&self, len: usize) -> Result<Slot<'_>> {
        match self.socket.pages(len) {
            Ok(pages) => Ok(Slot::new(self, pages, len)),
            Err(error) => Err(error.about("len").of_bytes(len)),
        }
    }

    /// Receives up to `buffer.len()` bytes: what is there, and waits where there is nothing. 0 is the end: the peer sends no more.
    ///
    /// # Errors
    ///
    /// ECONNRESET, ETIMEDOUT and what else ended the connection; EAGAIN where it is not to wait and there is nothing.
    pub fn recv(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::empty())
    }

    /// As [`Stream::recv`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        self.recv_into(buffer, flags, false)
    }

    /// As [`Stream::recv_with_flags`]. Where bytes before these have been `received`, an error stays for the next call.
    fn recv_into(&self, buffer: &mut [u8], flags: RecvFlags, received: bool) -> Result<usize> {
        // (A receive of no bytes waits for one, as the kernel's does, and takes none.)
        if flags.contains(RecvFlags::PEEK) || buffer.is_empty() {
            return self.peek_with_flags(buffer, flags);
        }
        let mut done = 0;
        while done < buffer.len() {
            let dont_wait = flags.contains(RecvFlags::DONTWAIT);
            let how = Taking { dont_wait, before: received || done > 0, device: false, least: usize::MAX };
            match self.socket.take(buffer.len() - done, how) {
                Ok(None) => break,
                Ok(Some(data)) if flags.contains(RecvFlags::TRUNC) => done += data.payload().len(),
                Ok(Some(data)) => {
                    let end = done + data.payload().len();
                    let copied = copy_out(&data, &mut buffer[done..end], &self.socket.counters());
                    done += copied.ok_or_else(unreadable)?;
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
            if !flags.contains(RecvFlags::WAITALL) {
                break;
            }
        }
        if done < buffer.len() {
            self.socket.fell_short(Way::Read);
        }
        Ok(done)
    }

    fn peek_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        let all = flags.contains(RecvFlags::WAITALL);
        let seen = self.socket.peek(buffer.len(), all, flags.contains(RecvFlags::DONTWAIT))?;
        let Some(data) = seen else { return Ok(0) };
        let len = data.payload().len();
        if flags.contains(RecvFlags::TRUNC) {
            return Ok(len);
        }
        copy_out(&data, &mut buffer[..len], &self.socket.counters()).ok_or_else(unreadable)
    }

    /// Copies what is there without taking it (MSG_PEEK).
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn peek(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::PEEK)
    }

    /// As [`Stream::recv`], into several buffers, one after the other.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> Result<usize> {
        self.recv_vectored_with_flags(slices, RecvFlags::empty())
    }

    /// As [`Stream::recv_vectored`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_vectored_with_flags(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize> {
        let mut done = 0;
        for slice in slices.iter_mut().filter(|slice| !slice.is_empty()) {
            let waits = done == 0 || flags.contains(RecvFlags::WAITALL);
            let flags = if waits { flags } else { flags | RecvFlags::DONTWAIT };
            match self.recv_into(slice, flags, done > 0) {
                Ok(n) => {
                    done += n;
                    if n < slice.len() || flags.contains(RecvFlags::PEEK) {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Receives up to `max` bytes where they lie: no copy. An empty view is the end.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_borrowed(&self, max: usize) -> Result<View> {
        self.recv_borrowed_with_flags(max, RecvFlags::empty())
    }

    /// As [`Stream::recv_borrowed`], with flags ([`RecvFlags::DONTWAIT`]; others have no meaning here).
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_borrowed_with_flags(&self, max: usize, flags: RecvFlags) -> Result<View> {
        self.borrow(max, flags, true, usize::MAX)
    }

    /// As [`Stream::recv_borrowed_with_flags`], of bytes that the CPU can read, for who wants them in one piece: where the first piece of them has `least` bytes or
    /// more, it is all that is received. (usize::MAX: they may lie in any number of pieces.)
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`]; EFAULT where bytes of a device's memory are next, which stay ([`Stream::recv_frags`] receives them).
    pub fn recv_piece_with_flags(&self, max: usize, least: usize, flags: RecvFlags) -> Result<View> {
        self.borrow(max, flags, false, least)
    }

    fn borrow(&self, max: usize, flags: RecvFlags, device: bool, least: usize) -> Result<View> {
        let how = Taking { dont_wait: flags.contains(RecvFlags::DONTWAIT), before: false, device, least };
        let data = self.socket.take(max, how)?.unwrap_or_else(|| Chain::new().into());
        if data.payload().len() < max {
            self.socket.fell_short(Way::Read);
        }
        self.socket.counters().referenced.add(data.payload().len());
        Ok(View::of(data, self.socket.counts()))
    }

    pub(in crate::tcp) fn hint(&self, flags: SendFlags) -> Hint {
        self.socket.common().hint(flags)
    }

    pub(in crate::tcp) fn counters(&self) -> Counters {
        self.socket.counters()
    }

    /// Another handle of the same socket, as std's `try_clone` gives. The last one that is dropped closes it.
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's is.
    pub fn try_clone(&self) -> Result<Stream> {
        Ok(Stream::of(Arc::clone(&self.socket), &self.stack))
    }

    /// The stack that it is a socket of.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Which way the bytes take: the stack or the kernel, both ways. (Behind a stack's link the kernel may copy them, and does behind its own
    /// sockets, but for sends without a copy: [`Stats::kernel_copied`] counts.)
    pub fn path(&self) -> Path {
        let carrier = self.socket.carrier();
        Path { send: carrier, receive: carrier }
    }

    /// Shuts one way down, or both (shutdown(2)).
    ///
    /// # Errors
    ///
    /// ENOTCONN.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        self.socket.shutdown(how)
    }

    /// Its own address.
    ///
    /// # Errors
    ///
    /// ENOTCONN where it has none.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let local = self.socket.addresses().local;
        local.ok_or_else(|| of(Op::Name, Cause::NotConnected))
    }

    /// The peer's.
    ///
    /// # Errors
    ///
    /// ENOTCONN where there is none: before the connection is made, and after it is over (getpeername(2); net/ipv4/af_inet.c:
    /// inet_getname).
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        self.socket.peer().ok_or_else(|| of(Op::Name, Cause::NotConnected))
    }

    /// Why the connection failed, once (SO_ERROR).
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's is.
    pub fn take_error(&self) -> Result<Option<Error>> {
        Ok(self.socket.take_error(Op::Connect))
    }

    /// What is known of the connection (TCP_INFO); where the kernel carries its bytes, what this kernel tells.
    pub fn info(&self) -> Info {
        self.socket.info()
    }

    /// Bytes that can be received without waiting (SIOCINQ).
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as that of unix sockets is.
    pub fn readable_bytes(&self) -> Result<usize> {
        Ok(self.socket.readable_bytes())
    }

    /// Bytes that were sent and are not acknowledged yet (SIOCOUTQ).
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as that of unix sockets is.
    pub fn unacknowledged_bytes(&self) -> Result<usize> {
        Ok(self.socket.unacknowledged_bytes())
    }

    /// What it has done so far, each copy counted.
    pub fn stats(&self) -> Stats {
        self.socket.counters().read()
    }

    /// The descriptor to wait at, with poll(2), epoll or a runtime. It is made with the first call.
    ///
    /// # Errors
    ///
    /// EMFILE.
    pub fn poll_fd(&self) -> Result<BorrowedFd<'_>> {
        self.socket.fd()
    }
}
