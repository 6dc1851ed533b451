//! A socket of UDP in a tokio runtime, with the calls of tokio's `UdpSocket`.
//!
//! Somebody has to drive the stack while tasks wait: its own thread ([`Driver::Thread`](crate::Driver::Thread)), or the program.
//!
//! Every future may be dropped at any point: no method awaits anything after it has sent or received something.

use super::{Envelope, Message, Meta};
use crate::stack::Stack;
use crate::view::View;
use crate::zerocopy::{NotSent, Range, Sent};
use onecopy_chain::Chain;
use onecopy_socket::{Error, Op, RecvFlags, Result, SendFlags};
use rustix::io::Errno;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, ReadBuf, Ready};

/// A socket of UDP in a tokio runtime. All methods take `&self`, and several tasks may use it.
///
/// ```no_run
/// use onecopy_net::{Stack, udp::tokio::Socket};
///
/// # async fn talk() -> Result<(), Box<dyn std::error::Error>> {
/// let stack = Stack::builder().tap("onecopy0").address("10.0.0.2/24").build()?;
/// let socket = Socket::bind(&stack, "10.0.0.2:7000".parse()?).await?;
/// let mut buffer = [0; 2048];
/// loop {
///     let (n, from) = socket.recv_from(&mut buffer).await?;
///     socket.send_to(&buffer[..n], from).await?;
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Socket {
    io: AsyncFd<Polled>,
}

/// What is registered with the runtime: a socket whose descriptor was made already.
#[derive(Debug)]
struct Polled(super::Socket);

impl AsRawFd for Polled {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Socket {
    /// As [`udp::Socket::bind`](super::Socket::bind). It waits for nothing, and is `async` as tokio's is.
    ///
    /// # Errors
    ///
    /// The same, and EMFILE.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    pub async fn bind(stack: &Stack, address: SocketAddr) -> Result<Socket> {
        Socket::new(super::Socket::bind(stack, address)?)
    }

    /// Takes `socket` into the runtime, and makes it non-blocking.
    ///
    /// # Errors
    ///
    /// EMFILE, and what epoll_ctl(2) says.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    #[allow(
        deprecated,
        reason = "`new` is deprecated for types whose descriptor may change; ours have one for life"
    )]
    pub fn new(socket: super::Socket) -> Result<Socket> {
        socket.set_nonblocking(true)?;
        socket.poll_fd()?;
        let io = AsyncFd::new(Polled(socket)).map_err(|error| refused(Op::Socket, &error))?;
        Ok(Socket { io })
    }

    /// The socket, which stays non-blocking.
    pub fn into_inner(self) -> super::Socket {
        self.io.into_inner().0
    }

    /// The socket: its addresses, options, counters.
    pub fn get_ref(&self) -> &super::Socket {
        &self.io.get_ref().0
    }

    /// As [`udp::Socket::connect`](super::Socket::connect). It waits for nothing, and is `async` as tokio's is.
    ///
    /// # Errors
    ///
    /// The same.
    pub async fn connect(&self, to: SocketAddr) -> Result<()> {
        self.get_ref().connect(to)
    }

    /// As [`udp::Socket::local_addr`](super::Socket::local_addr).
    ///
    /// # Errors
    ///
    /// The same.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.get_ref().local_addr()
    }

    /// As [`udp::Socket::peer_addr`](super::Socket::peer_addr).
    ///
    /// # Errors
    ///
    /// The same.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        self.get_ref().peer_addr()
    }

    /// As [`udp::Socket::take_error`](super::Socket::take_error).
    ///
    /// # Errors
    ///
    /// The same.
    pub fn take_error(&self) -> Result<Option<Error>> {
        self.get_ref().take_error()
    }

    /// Waits until `op` does not say EAGAIN any more.
    async fn wait<R>(
        &self,
        (op, interest): (Op, Interest),
        mut call: impl FnMut(&super::Socket) -> Result<R>,
    ) -> Result<R> {
        let mut why = None;
        let done = self
            .io
            .async_io(interest, |polled| call(&polled.0).map_err(|error| io::Error::from(*why.insert(error))))
            .await;
        done.map_err(|error| match (error.raw_os_error(), why) {
            (Some(_), Some(why)) => why,
            _ => refused(op, &error),
        })
    }

    /// Waits for room and sends `bytes` as one datagram to whom the socket is connected to.
    ///
    /// # Errors
    ///
    /// As [`udp::Socket::send`](super::Socket::send).
    pub async fn send(&self, bytes: &[u8]) -> Result<usize> {
        self.send_with_flags(bytes, SendFlags::empty()).await
    }

    /// As [`Socket::send`], with flags ([`SendFlags::NTCOPY`]).
    ///
    /// # Errors
    ///
    /// As [`Socket::send`].
    pub async fn send_with_flags(&self, bytes: &[u8], flags: SendFlags) -> Result<usize> {
        self.send_msg(&[IoSlice::new(bytes)], &Envelope::CONNECTED, flags).await
    }

    /// As [`Socket::send`], to `to`.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`].
    pub async fn send_to(&self, bytes: &[u8], to: SocketAddr) -> Result<usize> {
        self.send_msg(&[IoSlice::new(bytes)], &Envelope::to(to), SendFlags::empty()).await
    }

    /// As [`udp::Socket::send_segments`](super::Socket::send_segments).
    ///
    /// # Errors
    ///
    /// The same.
    pub async fn send_segments(
        &self,
        bytes: &[u8],
        segment_size: u16,
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        self.wait(SEND, |socket| socket.send_segments(bytes, segment_size, to)).await
    }

    /// As [`udp::Socket::send_msg`](super::Socket::send_msg).
    ///
    /// # Errors
    ///
    /// The same.
    pub async fn send_msg(
        &self,
        slices: &[IoSlice<'_>],
        envelope: &Envelope,
        flags: SendFlags,
    ) -> Result<usize> {
        self.wait(SEND, |socket| socket.send_msg(slices, envelope, flags)).await
    }

    /// Waits for room and sends as many of `messages` as there is room for; returns how many, at least one.
    ///
    /// # Errors
    ///
    /// As [`udp::Socket::send_many`](super::Socket::send_many).
    pub async fn send_many(&self, messages: &[Message<'_>], flags: SendFlags) -> Result<usize> {
        self.wait(SEND, |socket| socket.send_many(messages, flags)).await
    }

    /// Waits for a datagram and copies it into `buffer`; what does not fit is lost.
    ///
    /// # Errors
    ///
    /// As [`udp::Socket::recv`](super::Socket::recv).
    pub async fn recv(&self, buffer: &mut [u8]) -> Result<usize> {
        self.wait(RECV, |socket| socket.recv(buffer)).await
    }

    /// As [`Socket::recv`], and says who sent it.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub async fn recv_from(&self, buffer: &mut [u8]) -> Result<(usize, SocketAddr)> {
        self.wait(RECV, |socket| socket.recv_from(buffer)).await
    }

    /// As [`Socket::recv`], and leaves it there.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub async fn peek(&self, buffer: &mut [u8]) -> Result<usize> {
        self.wait(RECV, |socket| socket.peek(buffer)).await
    }

    /// As [`Socket::recv_from`], and leaves it there.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub async fn peek_from(&self, buffer: &mut [u8]) -> Result<(usize, SocketAddr)> {
        self.wait(RECV, |socket| socket.peek_from(buffer)).await
    }

    /// As [`udp::Socket::recv_msg`](super::Socket::recv_msg).
    ///
    /// # Errors
    ///
    /// The same.
    pub async fn recv_msg(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<Meta> {
        self.wait(RECV, |socket| socket.recv_msg(slices, flags)).await
    }

    /// As [`udp::Socket::recv_segments`](super::Socket::recv_segments).
    ///
    /// # Errors
    ///
    /// The same.
    pub async fn recv_segments(&self, buffer: &mut [u8]) -> Result<Meta> {
        self.wait(RECV, |socket| socket.recv_segments(buffer)).await
    }

    /// As [`udp::Socket::recv_borrowed`](super::Socket::recv_borrowed).
    ///
    /// # Errors
    ///
    /// The same.
    pub async fn recv_borrowed(&self) -> Result<(View, Meta)> {
        self.wait(RECV, super::Socket::recv_borrowed).await
    }

    /// As [`udp::Socket::recv_many`](super::Socket::recv_many).
    ///
    /// # Errors
    ///
    /// The same.
    pub async fn recv_many(&self, buffers: &mut [IoSliceMut<'_>], meta: &mut [Meta]) -> Result<usize> {
        self.wait(RECV, |socket| socket.recv_many(buffers, meta, RecvFlags::empty())).await
    }

    /// As [`udp::Socket::send_zerocopy`](super::Socket::send_zerocopy).
    ///
    /// # Errors
    ///
    /// The same.
    pub async fn send_zerocopy(
        &self,
        chain: Chain,
        envelope: &Envelope,
    ) -> std::result::Result<Sent, NotSent> {
        let mut left = Some(chain);
        let sent =
            self.wait(SEND, |socket| match socket.send_zerocopy(left.take().unwrap_or_default(), envelope) {
                Ok(sent) => Ok(sent),
                Err(NotSent { chain, error }) => {
                    left = Some(chain);
                    Err(error)
                }
            });
        let sent = sent.await;
        sent.map_err(|error| NotSent { chain: left.unwrap_or_default(), error })
    }

    /// Waits for the next notice of [`udp::Socket::send_numbered`](super::Socket::send_numbered).
    ///
    /// # Errors
    ///
    /// As the plain socket's `wait_notice`.
    pub async fn notice(&self) -> Result<Range> {
        std::future::poll_fn(|context| self.get_ref().poll_notice(context)).await
    }

    /// As [`Socket::send`], without waiting.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`]; `WouldBlock` where there is no room.
    pub fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_io(Interest::WRITABLE, || Ok(self.get_ref().send(bytes)?))
    }

    /// As [`Socket::send_to`], without waiting.
    ///
    /// # Errors
    ///
    /// As [`Socket::try_send`].
    pub fn try_send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.try_io(Interest::WRITABLE, || Ok(self.get_ref().send_to(bytes, to)?))
    }

    /// As [`Socket::recv`], without waiting.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`]; `WouldBlock` where nothing is there.
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.try_io(Interest::READABLE, || Ok(self.get_ref().recv(buffer)?))
    }

    /// As [`Socket::recv_from`], without waiting.
    ///
    /// # Errors
    ///
    /// As [`Socket::try_recv`].
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.try_io(Interest::READABLE, || Ok(self.get_ref().recv_from(buffer)?))
    }

    /// As [`Socket::send`], for a task that polls. Only the last task that polled to send is woken.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`].
    pub fn poll_send(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_to_send(context, |socket| socket.send(bytes))
    }

    /// As [`Socket::send_to`], for a task that polls, as [`Socket::poll_send`] does.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`].
    pub fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
        to: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.poll_to_send(context, |socket| socket.send_to(bytes, to))
    }

    /// As [`Socket::recv`], for a task that polls. Only the last task that polled to receive is woken.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub fn poll_recv(&self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_recv_from(context, buffer).map_ok(drop)
    }

    /// As [`Socket::recv_from`], for a task that polls, as [`Socket::poll_recv`] does.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        let (n, from) =
            ready!(self.poll_to_recv(context, |socket| { socket.recv_from(buffer.initialize_unfilled()) }))?;
        buffer.advance(n);
        Poll::Ready(Ok(from))
    }

    /// As [`Socket::recv_many`], for a task that polls, as [`Socket::poll_recv`] does.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub fn poll_recv_many(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [Meta],
    ) -> Poll<io::Result<usize>> {
        self.poll_to_recv(context, |socket| socket.recv_many(buffers, meta, RecvFlags::empty()))
    }

    fn poll_to_send<R>(
        &self,
        context: &mut Context<'_>,
        mut call: impl FnMut(&super::Socket) -> Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            let mut guard = ready!(self.io.poll_write_ready(context))?;
            if let Ok(done) = guard.try_io(|io| Ok(call(&io.get_ref().0)?)) {
                return Poll::Ready(done);
            }
        }
    }

    fn poll_to_recv<R>(
        &self,
        context: &mut Context<'_>,
        mut call: impl FnMut(&super::Socket) -> Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            let mut guard = ready!(self.io.poll_read_ready(context))?;
            if let Ok(done) = guard.try_io(|io| Ok(call(&io.get_ref().0)?)) {
                return Poll::Ready(done);
            }
        }
    }

    /// Waits until there may be something to receive, or an error.
    ///
    /// # Errors
    ///
    /// When the runtime shuts down.
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(drop)
    }

    /// Waits until there may be room to send, or an error.
    ///
    /// # Errors
    ///
    /// When the runtime shuts down.
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    /// Waits until one of the states may be there.
    ///
    /// # Errors
    ///
    /// When the runtime shuts down.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        Ok(self.io.ready(interest).await?.ready())
    }

    /// As [`Socket::readable`], for a task that polls, as [`Socket::poll_recv`] does.
    ///
    /// # Errors
    ///
    /// When the runtime shuts down.
    pub fn poll_recv_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_read_ready(context).map_ok(drop)
    }

    /// As [`Socket::writable`], for a task that polls, as [`Socket::poll_send`] does.
    ///
    /// # Errors
    ///
    /// When the runtime shuts down.
    pub fn poll_send_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_write_ready(context).map_ok(drop)
    }

    /// Calls what the program wants to do with the socket ([`Socket::get_ref`]), if it may be ready; `WouldBlock` of it says that it is not.
    ///
    /// # Errors
    ///
    /// What `call` says; `WouldBlock` without a call where nothing is ready.
    pub fn try_io<R>(&self, interest: Interest, call: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        self.io.try_io(interest, |_| call())
    }

    /// Calls what the program wants to do with the socket whenever it may be ready, until it does not say `WouldBlock`.
    ///
    /// # Errors
    ///
    /// What `call` says.
    pub async fn async_io<R>(
        &self,
        interest: Interest,
        mut call: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        self.io.async_io(interest, |_| call()).await
    }
}

const SEND: (Op, Interest) = (Op::Send, Interest::WRITABLE);
const RECV: (Op, Interest) = (Op::Recv, Interest::READABLE);

/// What the runtime, or epoll(7), has refused.
fn refused(op: Op, error: &io::Error) -> Error {
    match Errno::from_io_error(error) {
        Some(errno) => Error::new(op, errno),
        None => Error::new(op, Errno::CANCELED).because("the tokio runtime is shutting down"),
    }
}

/// As [`udp::Socket::poll_fd`](super::Socket::poll_fd).
impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.get_ref().as_fd()
    }
}
