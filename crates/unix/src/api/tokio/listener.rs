//! Listeners for tokio.

use crate::addr::{SocketAddr, ToSocketAddr, named};
use crate::api::tokio::{SeqPacket, Stream};
use crate::config::Config;
use onecopy_socket::tokio::{Direction, Registered};
use onecopy_socket::{Op, Result};
use std::io;
use std::task::{Context, Poll, ready};

macro_rules! listener {
    ($(#[$doc:meta])* $listener:ident, $inner:ty, $socket:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $listener {
            io: Registered<$inner>,
        }

        impl $listener {
            /// Binds and listens, with the default configuration. A path that begins with a zero byte is an
            /// abstract name, as with tokio.
            ///
            /// # Errors
            ///
            /// What bind(2) and listen(2) say: EADDRINUSE where the name is taken, EACCES without permission.
            ///
            /// # Panics
            ///
            /// Outside of a tokio runtime with I/O.
            pub fn bind(name: impl ToSocketAddr) -> Result<$listener> {
                $listener::bind_with(name, &Config::default())
            }

            /// Does as `bind`, by a name that was made before.
            ///
            /// # Errors
            ///
            /// As `bind`.
            ///
            /// # Panics
            ///
            /// As `bind`.
            pub fn bind_addr(address: &SocketAddr) -> Result<$listener> {
                $listener::bind(address)
            }

            /// Binds and listens. Accepted sockets take their buffers, policy and waits from `config`.
            ///
            /// # Errors
            ///
            /// As `bind`.
            ///
            /// # Panics
            ///
            /// As `bind`.
            pub fn bind_with(name: impl ToSocketAddr, config: &Config) -> Result<$listener> {
                $listener::new(<$inner>::bind_with(named(name)?, config)?)
            }

            /// Waits for a connection and takes it, with its client's name.
            ///
            /// # Errors
            ///
            /// What accept(2) says: EMFILE, EINVAL after shutdown. A connection that cannot be registered with
            /// the runtime is closed.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: if it is dropped, no connection was taken.
            pub async fn accept(&self) -> Result<($socket, SocketAddr)> {
                let (socket, name) = self.io.wait(Direction::Read, |listener| listener.accept()).await?;
                Ok(($socket::accepted(socket)?, name))
            }

            /// Does as `accept`, for a task that polls. Only the last task that polled is woken.
            ///
            /// # Errors
            ///
            /// As `accept`.
            pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<($socket, SocketAddr)>> {
                let accept = |listener: &$inner| listener.accept();
                let (socket, name) = ready!(self.io.poll(context, Direction::Read, accept))?;
                Poll::Ready(Ok(($socket::accepted(socket)?, name)))
            }
        }

        onecopy_socket::registered_methods!($listener, $inner, SocketAddr, Op::Accept, |_| Ok(()));
    };
}

listener!(
    /// A listening stream socket in a tokio runtime, as tokio's `UnixListener`.
    ///
    /// ```
    /// use onecopy_unix::tokio::{Listener, Stream};
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let listener = Listener::bind("\0onecopy-doc-tokio-listener")?; // or a path: "/run/store.sock"
    /// let client = tokio::spawn(async {
    ///     let mut client = Stream::connect("\0onecopy-doc-tokio-listener").await?;
    ///     client.write_all(b"hello").await
    /// });
    /// let (mut server, _) = listener.accept().await?;
    /// let mut said = String::new();
    /// server.read_to_string(&mut said).await?;
    /// assert_eq!(said, "hello");
    /// # client.await??;
    /// # Ok(())
    /// # }
    /// ```
    Listener,
    crate::api::listener::Listener,
    Stream
);
listener!(
    /// A listening seqpacket socket in a tokio runtime.
    ///
    /// ```
    /// use onecopy_unix::tokio::{SeqListener, SeqPacket};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onecopy_unix::Result<()> {
    /// let listener = SeqListener::bind("\0onecopy-doc-tokio-seqlistener")?;
    /// let client = SeqPacket::connect("\0onecopy-doc-tokio-seqlistener").await?;
    /// let (server, _) = listener.accept().await?;
    /// client.send(b"one record").await?;
    /// assert_eq!(server.recv(&mut [0; 100]).await?, 10);
    /// # Ok(())
    /// # }
    /// ```
    SeqListener,
    crate::api::listener::SeqListener,
    SeqPacket
);
