//! Streams for tokio.

use crate::stack::Stack;
use crate::tcp::{Settings, View};
use crate::zerocopy::{NotSent, Range, Sent};
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use onecopy_socket::tokio::{Direction, Registered, refused};
use onecopy_socket::{
    Op, RecvFlags, Result, SendFlags, ready_methods, registered_methods, tokio_halves, tokio_stream,
};
use std::net::SocketAddr;
use std::time::Duration;

/// A stream in a tokio runtime, as tokio's `TcpStream`. All methods but those of `AsyncRead` and `AsyncWrite` take `&self`, and several tasks
/// may use it: whole sends never interleave.
///
/// ```no_run
/// use onecopy_net::{Stack, tcp::tokio::Stream};
/// use tokio::io::AsyncWriteExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stack = Stack::builder().tap("onecopy0").address("10.0.0.2/24").build()?;
/// let mut stream = Stream::connect(&stack, "10.0.0.1:80".parse()?).await?;
/// stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
/// let view = stream.recv_borrowed(1 << 20).await?; // where the link put it
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Stream {
    io: Registered<crate::tcp::Stream>,
}

impl Stream {
    /// Connects to `address` from an address of `stack`.
    ///
    /// # Errors
    ///
    /// As the plain stream's `connect`; EMFILE.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, the socket is closed.
    pub async fn connect(stack: &Stack, address: SocketAddr) -> Result<Stream> {
        Stream::made(crate::tcp::Stream::connect_nonblocking(stack, address)?).await
    }

    /// As [`Stream::connect`], with settings that its SYN is to go by. With `fast_open_connect`, and a cookie that an earlier connection has brought from
    /// there, it is done at once: the connection begins with the first send, whose bytes go with the SYN (RFC 7413).
    ///
    /// # Errors
    ///
    /// As the plain stream's [`connect_with`](crate::tcp::Stream::connect_with); EMFILE.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, the socket is closed.
    pub async fn connect_with(
        stack: &Stack,
        address: SocketAddr,
        change: impl Fn(&mut Settings),
    ) -> Result<Stream> {
        Stream::made(crate::tcp::Stream::connect_nonblocking_with(stack, address, change)?).await
    }

    /// Waits until one that was begun is made.
    async fn made(stream: crate::tcp::Stream) -> Result<Stream> {
        let stream = Stream::new(stream)?;
        stream.writable().await.map_err(refused(Op::Connect))?;
        match stream.take_error()? {
            Some(error) => Err(error.about("address")),
            None => Ok(stream),
        }
    }

    /// Registers an accepted stream. It can send, and most likely its client has sent something.
    pub(super) fn accepted(stream: crate::tcp::Stream) -> Result<Stream> {
        Stream::assuming(stream, &[Direction::Read, Direction::Write])
    }

    /// Waits for the first byte and takes up to `max` bytes of what is there, where it lies. Empty at the end of the stream.
    ///
    /// # Errors
    ///
    /// As the plain stream's `recv`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was taken.
    pub async fn recv_borrowed(&self, max: usize) -> Result<View> {
        let recv = |stream: &crate::tcp::Stream, flags| stream.recv_borrowed_with_flags(max, flags);
        self.io.recv(RecvFlags::empty(), recv).await
    }

    /// Waits for room and sends from the front of `data` what fits, by reference: no copy in user space. Returns how many bytes; the rest stays.
    ///
    /// # Errors
    ///
    /// As the plain stream's `send`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was sent.
    pub async fn send_some(&self, data: &mut Segment<Chain>) -> Result<usize> {
        self.io.send(SendFlags::empty(), |stream, flags| stream.send_some(data, flags)).await
    }

    /// Waits for room, and gives what fits of `chain` away to be sent without a copy in user space: it comes back by [`Sent`], which
    /// is a future. [`Sent::take_rest`] has what did not fit.
    ///
    /// # Errors
    ///
    /// As the plain stream's [`send_zerocopy`](crate::tcp::Stream::send_zerocopy).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was sent, and the chain is freed.
    pub async fn send_zerocopy(&self, chain: Chain) -> std::result::Result<Sent, NotSent> {
        let mut left = Some(chain);
        let sent = self.io.send(SendFlags::empty(), |stream, flags| {
            match stream.send_zerocopy_with_flags(left.take().unwrap_or_default(), flags) {
                Ok(sent) => Ok(sent),
                Err(NotSent { chain, error }) => {
                    left = Some(chain);
                    Err(error)
                }
            }
        });
        let sent = sent.await;
        sent.map_err(|error| NotSent { chain: left.unwrap_or_default(), error })
    }

    /// Waits for the next notice of the plain stream's [`send_numbered`](crate::tcp::Stream::send_numbered).
    ///
    /// # Errors
    ///
    /// As the plain stream's `wait_notice`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, no notice was taken. Only the last task that waits is woken.
    pub async fn notice(&self) -> Result<Range> {
        std::future::poll_fn(|context| self.get_ref().poll_notice(context)).await
    }

    /// Whether small segments leave at once (TCP_NODELAY).
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as tokio's is.
    pub fn set_nodelay(&self, nodelay: bool) -> Result<()> {
        self.get_ref().set_nodelay(nodelay)
    }

    /// See [`Stream::set_nodelay`].
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as tokio's is.
    pub fn nodelay(&self) -> Result<bool> {
        self.get_ref().nodelay()
    }

    /// Sets how long close waits for what was sent; zero resets (SO_LINGER).
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as tokio's is.
    pub fn set_linger(&self, linger: Option<Duration>) -> Result<()> {
        self.get_ref().set_linger(linger)
    }

    /// Sets the number of hops (IP_TTL).
    ///
    /// # Errors
    ///
    /// EINVAL for less than 1 or more than 255.
    pub fn set_ttl(&self, ttl: u32) -> Result<()> {
        self.get_ref().set_ttl(ttl)
    }

    /// The number of hops (IP_TTL).
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as tokio's is.
    pub fn ttl(&self) -> Result<u32> {
        self.get_ref().ttl()
    }
}

registered_methods!(Stream, crate::tcp::Stream, SocketAddr, Op::Socket, |stream| stream.poll_fd().map(drop));
ready_methods!(Stream, SocketAddr);
tokio_stream!(crate::tcp::Stream);

tokio_halves!(SocketAddr);
