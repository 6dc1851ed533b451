//! The methods that all kinds of sockets for tokio have in common.

/// Defines the methods that sockets and listeners for tokio have in common, over their field `io` (and others, with their
/// first values). Their names are of type `$address`; `$prepare` is called with a plain socket before anything else.
#[doc(hidden)]
#[macro_export]
macro_rules! registered_methods {
    ($socket:ident, $inner:ty, $address:ty, $op:expr, $prepare:expr $(, $field:ident: $value:expr)*) => {
        impl $socket {
            /// Makes `socket` non-blocking and registers it with the runtime.
            ///
            /// # Errors
            ///
            /// What ioctl(2) and epoll_ctl(2) say.
            ///
            /// # Panics
            ///
            /// Outside of a tokio runtime with I/O.
            pub fn new(socket: $inner) -> $crate::Result<$socket> {
                $socket::assuming(socket, &[])
            }

            /// Does as `new`, and takes these directions for ready until they are tried.
            fn assuming(
                socket: $inner,
                assumed: &[$crate::tokio::Direction],
            ) -> $crate::Result<$socket> {
                let prepare: fn(&$inner) -> $crate::Result<()> = $prepare;
                prepare(&socket)?;
                socket.set_nonblocking(true)?;
                let io = $crate::tokio::Registered::new(socket, assumed, $op)?;
                Ok($socket { io $(, $field: $value)* })
            }

            /// Does as `new`: tokio's name for it.
            ///
            /// # Errors
            ///
            /// As `new`.
            ///
            /// # Panics
            ///
            /// As `new`.
            pub fn from_std(socket: impl Into<$inner>) -> $crate::Result<$socket> {
                $socket::new(socket.into())
            }

            /// Returns the socket for threads, which is what std's is to tokio. It is still non-blocking, and
            /// no longer registered with the runtime.
            ///
            /// # Errors
            ///
            /// None: it is a `Result` as tokio's is.
            pub fn into_std(self) -> $crate::Result<$inner> {
                Ok(self.into_inner())
            }

            /// Returns the socket inside. It is still non-blocking, and no longer registered with the runtime.
            pub fn into_inner(self) -> $inner {
                self.io.into_inner()
            }

            /// Returns the socket inside, for its options and counters. Its calls may block the runtime if it
            /// is made blocking.
            pub fn get_ref(&self) -> &$inner {
                self.io.get_ref()
            }

            /// Returns the name that this end is bound to (getsockname(2)).
            ///
            /// # Errors
            ///
            /// What getsockname(2) says.
            pub fn local_addr(&self) -> $crate::Result<$address> {
                self.io.get_ref().local_addr()
            }

            /// Returns the pending error, once (SO_ERROR).
            ///
            /// # Errors
            ///
            /// What getsockopt(2) says.
            pub fn take_error(&self) -> $crate::Result<Option<$crate::Error>> {
                self.io.get_ref().take_error()
            }
        }

        impl AsRef<$socket> for $socket {
            fn as_ref(&self) -> &$socket {
                self
            }
        }

        impl TryFrom<$inner> for $socket {
            type Error = $crate::Error;

            /// As `new`.
            fn try_from(socket: $inner) -> $crate::Result<$socket> {
                $socket::new(socket)
            }
        }

        impl std::os::fd::AsFd for $socket {
            /// Returns what it is waited for at. Reading or writing it directly breaks the connection.
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.io.get_ref().as_fd()
            }
        }

        impl std::os::fd::AsRawFd for $socket {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                self.io.get_ref().as_raw_fd()
            }
        }
    };
}

/// Defines the methods that sockets for tokio have in common, and listeners have not.
#[doc(hidden)]
#[macro_export]
macro_rules! ready_methods {
    ($socket:ident, $address:ty) => {
        impl $socket {
            /// Waits until one of the states in `interest` is there, and returns those that are. A try may
            /// still find that it has to wait. The runtime knows of a state until a try has found so.
            ///
            /// # Errors
            ///
            /// When the runtime shuts down.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: it takes no state away.
            pub async fn ready(&self, interest: tokio::io::Interest) -> std::io::Result<tokio::io::Ready> {
                self.io.ready(interest).await
            }

            /// Waits until there may be something to receive, or the end. As
            /// [`ready(Interest::READABLE)`](Self::ready).
            ///
            /// # Errors
            ///
            /// When the runtime shuts down.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe, as [`Self::ready`].
            pub async fn readable(&self) -> std::io::Result<()> {
                self.io.ready(tokio::io::Interest::READABLE).await.map(drop)
            }

            /// Waits until there may be room to send, or nobody to send to. As
            /// [`ready(Interest::WRITABLE)`](Self::ready).
            ///
            /// # Errors
            ///
            /// When the runtime shuts down.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe, as [`Self::ready`].
            pub async fn writable(&self) -> std::io::Result<()> {
                self.io.ready(tokio::io::Interest::WRITABLE).await.map(drop)
            }

            /// Calls `op` if the socket may be ready, and notes if it says `WouldBlock`. It is for what a
            /// program does with the socket in other ways: by [`Self::get_ref`], or by its descriptor.
            ///
            /// # Errors
            ///
            /// What `op` says; `WouldBlock`, without a call, where nothing of `interest` is ready.
            pub fn try_io<R>(
                &self,
                interest: tokio::io::Interest,
                op: impl FnOnce() -> std::io::Result<R>,
            ) -> std::io::Result<R> {
                self.io.try_io(interest, op)
            }

            /// Calls `op` whenever the socket may be ready, until it does not say `WouldBlock`, as
            /// [`Self::try_io`].
            ///
            /// # Errors
            ///
            /// What `op` says; when the runtime shuts down.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe if a call of `op` that says `WouldBlock` has done nothing.
            pub async fn async_io<R>(
                &self,
                interest: tokio::io::Interest,
                op: impl FnMut() -> std::io::Result<R>,
            ) -> std::io::Result<R> {
                self.io.async_io(interest, op).await
            }

            /// Returns the name that the peer is bound to (getpeername(2)).
            ///
            /// # Errors
            ///
            /// ENOTCONN when it is not connected.
            pub fn peer_addr(&self) -> $crate::Result<$address> {
                self.io.get_ref().peer_addr()
            }

            /// Returns which way the bytes take at this moment, as the socket inside says it.
            pub fn path(&self) -> $crate::Path {
                self.io.get_ref().path()
            }

            /// Returns what this end has done since it was made.
            pub fn stats(&self) -> $crate::Stats {
                self.io.get_ref().stats()
            }

            /// Sets which stores copies into the peer's buffer use from here on.
            pub fn set_policy(&self, policy: $crate::Policy) {
                self.io.get_ref().set_policy(policy);
            }

            /// Returns which stores copies into the peer's buffer use.
            pub fn policy(&self) -> $crate::Policy {
                self.io.get_ref().policy()
            }

            /// Sets who reads what is sent from here on.
            pub fn set_reader(&self, reader: $crate::Reader) {
                self.io.get_ref().set_reader(reader);
            }

            /// Returns who reads what is sent.
            pub fn reader(&self) -> $crate::Reader {
                self.io.get_ref().reader()
            }
        }
    };
}
