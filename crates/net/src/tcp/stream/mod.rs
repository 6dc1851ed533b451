//! Streams.

mod options;
mod traits;

use crate::Stack;
use crate::error::of;
use crate::socket::{PIECE, Way, checked};
use crate::stack::Shard;
use crate::tcp::slot::{Slot, writer};
use crate::tcp::socket::Socket;
use crate::tcp::{Info, State};
use crate::view::{View, copy_out};
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use onecopy_copy::Hint;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp as inet;
use onecopy_inet::tcp::{Error as Cause, Received, Side};
use onecopy_socket::{Carrier, Counters, Error, Op, Path, RecvFlags, Result, SendFlags, Stats};
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
    socket: Arc<Socket>,
}

impl Stream {
    pub(in crate::tcp) fn of(socket: Socket) -> Stream {
        Stream { socket: Arc::new(socket) }
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

    /// Begins to connect and does not wait: it is non-blocking, and writable once it is connected or has failed ([`Stream::take_error`]
    /// tells).
    ///
    /// # Errors
    ///
    /// ENETUNREACH, EADDRNOTAVAIL, ENOBUFS.
    pub fn connect_nonblocking(stack: &Stack, address: SocketAddr) -> Result<Stream> {
        let stream = Stream::begin(stack, None, address)?;
        stream.socket.settings().set_nonblocking(true);
        Ok(stream)
    }

    fn begin(stack: &Stack, local: Option<SocketAddr>, address: SocketAddr) -> Result<Stream> {
        let socket = Socket::open(stack, false)?;
        let begun = socket.with(|shard, id, now| {
            if let Some(local) = local {
                shard.inet_mut().tcp_bind(id, local, true).map_err(|cause| of(Op::Bind, cause))?;
            }
            match shard.inet_mut().tcp_connect(now, id, address) {
                Ok(()) | Err(Cause::InProgress) => Ok(()),
                Err(cause) => Err(of(Op::Connect, cause)),
            }
        });
        begun.map_err(|error| error.about("address"))?;
        socket.named();
        Ok(Stream::of(socket))
    }

    /// Waits until the connection that was begun is made.
    fn connected(self, limit: Option<Duration>) -> Result<Stream> {
        let made = |shard: &mut Shard, id: Id, _: u64| {
            if let Some(cause) = shard.inet_mut().tcp_take_error(id) {
                return Err(cause);
            }
            match shard.inet().tcp_state(id) {
                Some(State::SynSent | State::SynReceived) => Err(Cause::WouldBlock),
                Some(State::Closed) | None => Err(Cause::Refused),
                Some(_) => Ok(()),
            }
        };
        self.socket.call_for(Op::Connect, limit, made).map_err(|error| error.about("address"))?;
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
        let _one = self.socket.send_alone(flags.contains(SendFlags::DONTWAIT))?;
        let hint = self.hint(flags);
        let mut done = 0;
        let mut pieces = slices.iter().flat_map(|slice| slice.chunks(PIECE)).peekable();
        while let Some(piece) = pieces.next() {
            let more = if pieces.peek().is_some() { flags | SendFlags::MORE } else { flags };
            match self.send_piece(piece, more, hint) {
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

    /// Sends bytes that are copied under one lock, as many as there is room for at a time.
    fn send_piece(&self, piece: &[u8], flags: SendFlags, hint: Hint) -> Result<usize> {
        let mut at = 0;
        let sent =
            self.socket.call(Op::Send, Way::Write, flags.contains(SendFlags::DONTWAIT), |shard, id, now| {
                let copies = shard.kernel_copies();
                let (inet, pool) = shard.parts();
                let n =
                    inet.tcp_send_bytes(now, id, &piece[at..], &writer(pool, hint), kernel_flags(flags))?;
                self.socket.copied_in(n, hint, copies);
                at += n;
                if at == piece.len() { Ok(at) } else { Err(Cause::WouldBlock) }
            });
        if sent.is_err() {
            self.socket.fell_short(Way::Write);
        }
        match sent {
            Err(_) if at > 0 => Ok(at),
            done => done,
        }
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
        let _one = self.socket.send_alone(flags.contains(SendFlags::DONTWAIT))?;
        let mut at = 0;
        if data.payload().is_empty() {
            return Ok(0);
        }
        let sent =
            self.socket.call(Op::Send, Way::Write, flags.contains(SendFlags::DONTWAIT), |shard, id, now| {
                let copies = shard.kernel_copies();
                let n = shard.inet_mut().tcp_send(now, id, data, kernel_flags(flags))?;
                self.socket.referenced(n, copies);
                at += n;
                if data.payload().is_empty() { Ok(at) } else { Err(Cause::WouldBlock) }
            });
        if sent.is_err() {
            self.socket.fell_short(Way::Write);
        }
        match sent {
            Err(_) if at > 0 => Ok(at),
            Err(error) => Err(self.signalled(error, flags)),
            done => done,
        }
    }

    /// Pages of the stack's own for `len` bytes, to be filled in place and then sent without a copy in user space.
    ///
    /// # Errors
    ///
    /// ENOBUFS where there are not so many pages.
    pub fn reserve(&self, len: usize) -> Result<Slot<'_>> {
        let pages = self.socket.with(|shard, _, _| {
            let (_, pool) = shard.parts();
            let count = len.div_ceil(pool.page_len() as usize);
            (0..count).map(|_| pool.alloc()).collect::<std::result::Result<Vec<_>, _>>()
        });
        match pages {
            Ok(pages) => Ok(Slot::new(self, pages, len)),
            Err(_) => Err(of(Op::Send, Cause::NoMemory).about("len").of_bytes(len)),
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
        if flags.contains(RecvFlags::PEEK) {
            return self.peek_with_flags(buffer, flags);
        }
        let mut done = 0;
        while done < buffer.len() {
            match self.take(buffer.len() - done, flags) {
                Ok(None) => break,
                Ok(Some(data)) => {
                    let end = done + data.payload().len();
                    let copied = copy_out(&data, &mut buffer[done..end], self.socket.counters());
                    done += copied.ok_or_else(|| {
                        Error::new(Op::Recv, Errno::FAULT)
                            .because("this CPU cannot read its memory; receive it with recv_borrowed")
                    })?;
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

    /// Takes up to `max` bytes, of one kind of memory; `None` at the end.
    fn take(&self, max: usize, flags: RecvFlags) -> Result<Option<Segment<Chain>>> {
        let dont_wait = flags.contains(RecvFlags::DONTWAIT);
        let (got, copied) = self.socket.call(Op::Recv, Way::Read, dont_wait, |shard, id, now| {
            let got = shard.inet_mut().tcp_receive(now, id, max)?;
            Ok((got, shard.kernel_copies()))
        })?;
        Ok(match got {
            Received::End => None,
            Received::Data(data) => {
                let (counters, len) = (self.socket.counters(), data.payload().len());
                counters.received.add(len);
                if copied {
                    counters.kernel_copied.add(len);
                }
                Some(data)
            }
        })
    }

    fn peek_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        let dont_wait = flags.contains(RecvFlags::DONTWAIT);
        let all = flags.contains(RecvFlags::WAITALL);
        let max = buffer.len();
        let seen = self.socket.call(Op::Recv, Way::Read, dont_wait, |shard, id, now| {
            let inet = shard.inet_mut();
            match inet.tcp_peek(id, 0, max) {
                Some(data) if !all || data.payload().len() == max => Ok(Some(data)),
                Some(data) => {
                    let ends = inet.tcp_connection(id).is_none_or(inet::Connection::peer_closed);
                    if ends { Ok(Some(data)) } else { Err(Cause::WouldBlock) }
                }
                // Nothing is there: a receive says why, and takes nothing.
                None => inet.tcp_receive(now, id, 0).map(|_| None),
            }
        })?;
        let Some(data) = seen else { return Ok(0) };
        let len = data.payload().len();
        copy_out(&data, &mut buffer[..len], self.socket.counters())
            .ok_or_else(|| Error::new(Op::Recv, Errno::FAULT))
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
            match self.recv_with_flags(slice, flags) {
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
        let data = self.take(max, flags)?.unwrap_or_else(|| Chain::new().into());
        if data.payload().len() < max {
            self.socket.fell_short(Way::Read);
        }
        self.socket.counters().referenced.add(data.payload().len());
        Ok(View::of(data))
    }

    pub(in crate::tcp) fn hint(&self, flags: SendFlags) -> Hint {
        self.socket.hint(flags)
    }

    pub(in crate::tcp) fn counters(&self) -> &Counters {
        self.socket.counters()
    }

    /// Another handle of the same socket, as std's `try_clone` gives. The last one that is dropped closes it.
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's is.
    pub fn try_clone(&self) -> Result<Stream> {
        Ok(Stream { socket: Arc::clone(&self.socket) })
    }

    /// The stack that it is a socket of.
    pub fn stack(&self) -> &Stack {
        self.socket.stack()
    }

    /// Which way the bytes take: the stack, both ways. (Behind its link the kernel may copy them: [`Stats::kernel_copied`] counts.)
    pub fn path(&self) -> Path {
        Path { send: Carrier::Stack, receive: Carrier::Stack }
    }

    /// Shuts one way down, or both (shutdown(2)).
    ///
    /// # Errors
    ///
    /// ENOTCONN.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        let side = match how {
            Shutdown::Read => Side::Read,
            Shutdown::Write => Side::Write,
            Shutdown::Both => Side::Both,
        };
        let done = self.socket.with(|shard, id, now| shard.inet_mut().tcp_shutdown(now, id, side));
        done.map_err(|cause| of(Op::Shutdown, cause))
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
    /// ENOTCONN where there is none.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        let remote = self.socket.addresses().remote;
        remote.ok_or_else(|| of(Op::Name, Cause::NotConnected))
    }

    /// Why the connection failed, once (SO_ERROR).
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's is.
    pub fn take_error(&self) -> Result<Option<Error>> {
        Ok(self.socket.take_error().map(|cause| of(Op::Connect, cause)))
    }

    /// What is known of the connection (TCP_INFO).
    pub fn info(&self) -> Info {
        self.socket.with(|shard, id, now| shard.inet().tcp_info(now, id)).unwrap_or_default()
    }

    /// Bytes that can be received without waiting (SIOCINQ).
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as that of unix sockets is.
    pub fn readable_bytes(&self) -> Result<usize> {
        Ok(self.socket.with(|shard, id, _| {
            shard.inet().tcp_connection(id).map_or(0, |connection| connection.receiver().available() as usize)
        }))
    }

    /// Bytes that were sent and are not acknowledged yet (SIOCOUTQ).
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as that of unix sockets is.
    pub fn unacknowledged_bytes(&self) -> Result<usize> {
        Ok(self.socket.with(|shard, id, _| {
            shard.inet().tcp_connection(id).map_or(0, |connection| connection.queued() as usize)
        }))
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

fn kernel_flags(flags: SendFlags) -> inet::SendFlags {
    let mut given = inet::SendFlags::empty();
    given.set(inet::SendFlags::MORE, flags.contains(SendFlags::MORE));
    given.set(inet::SendFlags::END_OF_RECORD, flags.contains(SendFlags::EOR));
    given
}
