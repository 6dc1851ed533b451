//! A socket and its registration with the runtime: how calls wait for readiness, and keep their errors.

use crate::{Error, Op, RecvFlags, Result, SendFlags};
use bytes::BufMut;
use onecopy_sync::atomic::AtomicU32;
use onecopy_sync::atomic::Ordering::Relaxed;
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, Interest, ReadBuf, Ready};

/// The way that a call moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It receives, or accepts.
    Read,
    /// It sends.
    Write,
}

impl Direction {
    fn interest(self) -> Interest {
        match self {
            Direction::Read => Interest::READABLE,
            Direction::Write => Interest::WRITABLE,
        }
    }

    fn bit(self) -> u32 {
        match self {
            Direction::Read => 1,
            Direction::Write => 2,
        }
    }

    fn op(self) -> Op {
        match self {
            Direction::Read => Op::Recv,
            Direction::Write => Op::Send,
        }
    }
}

/// Returns the error of an operation that the runtime, or epoll(7), has refused.
pub fn refused(op: Op) -> impl Fn(io::Error) -> Error {
    move |error| match Errno::from_io_error(&error) {
        Some(errno) => Error::new(op, errno),
        None => Error::new(op, Errno::CANCELED).because("the tokio runtime is shutting down"),
    }
}

/// A socket that is registered with the runtime's epoll.
#[derive(Debug)]
pub struct Registered<T: AsRawFd> {
    fd: AsyncFd<T>,
    /// The directions that are taken for ready, although epoll has not said so yet: what a new pair can send,
    /// and what an accepted socket has most likely received. The first attempt ends it.
    assumed: AtomicU32,
}

impl<T: AsRawFd> Registered<T> {
    /// Registers a socket, which is non-blocking.
    ///
    /// # Errors
    ///
    /// What epoll_ctl(2) says.
    #[allow(
        deprecated,
        reason = "`new` is deprecated for types whose descriptor may change; ours own one for life"
    )]
    pub fn new(socket: T, assumed: &[Direction], op: Op) -> Result<Registered<T>> {
        let assumed = assumed.iter().fold(0, |bits, direction| bits | direction.bit());
        Ok(Registered { fd: AsyncFd::new(socket).map_err(refused(op))?, assumed: AtomicU32::new(assumed) })
    }

    /// Returns the socket.
    pub fn get_ref(&self) -> &T {
        self.fd.get_ref()
    }

    /// Returns the socket, which is no longer registered.
    pub fn into_inner(self) -> T {
        self.fd.into_inner()
    }

    fn assumes(&self, direction: Direction) -> bool {
        self.assumed.load(Relaxed) & direction.bit() != 0
    }

    fn takes_assumed(&self, direction: Direction) -> bool {
        self.assumes(direction) && self.assumed.fetch_and(!direction.bit(), Relaxed) & direction.bit() != 0
    }

    /// Waits until one of the states is there, as far as is known.
    ///
    /// # Errors
    ///
    /// When the runtime shuts down.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        let mut assumed = Ready::EMPTY;
        if interest.is_readable() && self.assumes(Direction::Read) {
            assumed |= Ready::READABLE;
        }
        if interest.is_writable() && self.assumes(Direction::Write) {
            assumed |= Ready::WRITABLE;
        }
        match assumed.is_empty() {
            true => Ok(self.fd.ready(interest).await?.ready()),
            false => Ok(assumed),
        }
    }

    /// As [`Registered::ready`], for a task that polls. Only the last task that polled a direction is woken.
    pub fn poll_ready(&self, context: &mut Context<'_>, direction: Direction) -> Poll<io::Result<()>> {
        if self.assumes(direction) {
            return Poll::Ready(Ok(()));
        }
        let ready = match direction {
            Direction::Read => self.fd.poll_read_ready(context),
            Direction::Write => self.fd.poll_write_ready(context),
        };
        ready.map_ok(drop)
    }

    /// Calls `op` now, and notes if it would have to wait. (It is called even if epoll has not told of
    /// anything: what lies in shared memory may be there before the runtime has looked.)
    pub fn attempt<R>(&self, direction: Direction, mut op: impl FnMut(&T) -> Result<R>) -> Result<R> {
        self.takes_assumed(direction);
        let mut result = None;
        let _ = self.fd.try_io(direction.interest(), |socket| {
            let done = result.insert(op(socket));
            // The runtime forgets the readiness that it knew of.
            if waits(done) { Err(io::Error::from(io::ErrorKind::WouldBlock)) } else { Ok(()) }
        });
        result.unwrap_or_else(|| op(self.get_ref()))
    }

    /// Calls `op` until it does not have to wait any more. Awaits nothing after that.
    ///
    /// # Errors
    ///
    /// What `op` says; ECANCELED when the runtime shuts down.
    pub async fn wait<R>(&self, direction: Direction, mut op: impl FnMut(&T) -> Result<R>) -> Result<R> {
        if self.takes_assumed(direction) {
            let done = op(self.get_ref());
            if !waits(&done) {
                return done;
            }
        }
        let mut why = None;
        let done = self
            .fd
            .async_io(direction.interest(), |socket| {
                op(socket).map_err(|error| io::Error::from(*why.insert(error)))
            })
            .await;
        done.map_err(|error| match (error.raw_os_error(), why) {
            (Some(_), Some(why)) => why,
            _ => refused(direction.op())(error),
        })
    }

    /// As [`Registered::wait`], for a task that polls.
    pub fn poll<R>(
        &self,
        context: &mut Context<'_>,
        direction: Direction,
        mut op: impl FnMut(&T) -> Result<R>,
    ) -> Poll<io::Result<R>> {
        if self.takes_assumed(direction) {
            let done = op(self.get_ref());
            if !waits(&done) {
                return Poll::Ready(done.map_err(io::Error::from));
            }
        }
        loop {
            let mut guard = match direction {
                Direction::Read => ready!(self.fd.poll_read_ready(context))?,
                Direction::Write => ready!(self.fd.poll_write_ready(context))?,
            };
            match op(self.get_ref()) {
                done if waits(&done) => guard.clear_ready(),
                done => return Poll::Ready(done.map_err(io::Error::from)),
            }
        }
    }

    /// Sends by `op`, which gets the flags with DONTWAIT, and waits for room unless the caller asked not to.
    ///
    /// # Errors
    ///
    /// As [`Registered::wait`].
    pub async fn send<R>(
        &self,
        flags: SendFlags,
        mut op: impl FnMut(&T, SendFlags) -> Result<R>,
    ) -> Result<R> {
        if flags.contains(SendFlags::DONTWAIT) {
            return self.attempt(Direction::Write, |socket| op(socket, flags));
        }
        self.wait(Direction::Write, |socket| op(socket, flags | SendFlags::DONTWAIT)).await
    }

    /// Receives by `op`, which gets the flags with DONTWAIT, and waits unless the caller asked not to.
    ///
    /// # Errors
    ///
    /// As [`Registered::wait`].
    pub async fn recv<R>(
        &self,
        flags: RecvFlags,
        mut op: impl FnMut(&T, RecvFlags) -> Result<R>,
    ) -> Result<R> {
        if flags.contains(RecvFlags::DONTWAIT) {
            return self.attempt(Direction::Read, |socket| op(socket, flags));
        }
        self.wait(Direction::Read, |socket| op(socket, flags | RecvFlags::DONTWAIT)).await
    }

    /// Calls what the program wants to do with the socket, if it may be ready.
    ///
    /// # Errors
    ///
    /// What `op` says; `WouldBlock` without a call where nothing is ready.
    pub fn try_io<R>(&self, interest: Interest, op: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        let assumed = (interest.is_readable() && self.takes_assumed(Direction::Read))
            | (interest.is_writable() && self.takes_assumed(Direction::Write));
        if assumed { op() } else { self.fd.try_io(interest, |_| op()) }
    }

    /// Calls what the program wants to do with the socket whenever it may be ready, until it does not say
    /// `WouldBlock`.
    ///
    /// # Errors
    ///
    /// What `op` says.
    pub async fn async_io<R>(
        &self,
        interest: Interest,
        mut op: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        self.fd.async_io(interest, |_| op()).await
    }
}

fn waits<R>(done: &Result<R>) -> bool {
    matches!(done, Err(error) if error.would_block())
}

/// A source that `read_buf` of tokio can read from: it knows how to advance a [`BufMut`], which takes unsafe
/// code.
struct Source<F>(F);

impl<F: FnMut(&mut [u8]) -> io::Result<usize> + Unpin> AsyncRead for Source<F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let n = (self.0)(buffer.initialize_unfilled())?;
        buffer.advance(n);
        Poll::Ready(Ok(()))
    }
}

/// Receives by `recv` into the next free chunk of `buffer`, straight and without another copy. Without free
/// space it calls nothing, and returns 0.
///
/// # Errors
///
/// What `recv` says.
pub fn fill(buffer: &mut impl BufMut, mut recv: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<usize> {
    let mut why = None;
    let mut source =
        Source(|bytes: &mut [u8]| recv(bytes).map_err(|error| io::Error::from(*why.insert(error))));
    match pin!(source.read_buf(buffer)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(n)) => Ok(n),
        // The source is ready always.
        Poll::Ready(Err(_)) | Poll::Pending => Err(why.unwrap_or(Error::new(Op::Recv, Errno::AGAIN))),
    }
}
