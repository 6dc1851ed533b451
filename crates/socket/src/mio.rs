//! What sockets for mio of all families have in common. None of it is for programs; they hold the families' own types.

/// Defines a type for mio over a plain socket or listener, and what all of them have.
#[doc(hidden)]
#[macro_export]
macro_rules! mio_type {
    ($(#[$doc:meta])* $name:ident, $plain:ty, $address:ty) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name($plain);

        impl $name {
            /// Makes a plain one non-blocking, and takes it.
            ///
            /// # Errors
            ///
            /// What ioctl(2) says.
            pub fn new(plain: $plain) -> std::io::Result<$name> {
                plain.set_nonblocking(true)?;
                Ok($name(plain))
            }

            /// Takes a plain one, or what becomes one: of unix sockets, one of std's or an `OwnedFd`, whose connection stays with the
            /// kernel. It must be non-blocking already, as for mio's: this does not look.
            pub fn from_std(plain: impl Into<$plain>) -> $name {
                $name(plain.into())
            }

            /// Returns the plain one, which stays non-blocking.
            pub fn into_inner(self) -> $plain {
                self.0
            }

            /// Returns the name that it is bound to (getsockname(2)).
            ///
            /// # Errors
            ///
            /// What getsockname(2) says.
            pub fn local_addr(&self) -> std::io::Result<$address> {
                Ok(self.0.local_addr()?)
            }

            /// Returns the pending error, once (SO_ERROR).
            ///
            /// # Errors
            ///
            /// What getsockopt(2) says.
            pub fn take_error(&self) -> std::io::Result<Option<std::io::Error>> {
                Ok(self.0.take_error()?.map(std::io::Error::from))
            }
        }

        impl std::ops::Deref for $name {
            type Target = $plain;

            fn deref(&self) -> &$plain {
                &self.0
            }
        }

        impl std::os::fd::AsFd for $name {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.0.as_fd()
            }
        }

        impl std::os::fd::AsRawFd for $name {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                self.0.as_raw_fd()
            }
        }

        $crate::mio_source!($name);
        $crate::mio_source!($plain);
    };
}

/// Has a type be registered by its descriptor.
#[doc(hidden)]
#[macro_export]
macro_rules! mio_source {
    ($name:ty) => {
        impl ::mio::event::Source for $name {
            fn register(
                &mut self,
                registry: &::mio::Registry,
                token: ::mio::Token,
                interests: ::mio::Interest,
            ) -> std::io::Result<()> {
                ::mio::unix::SourceFd(&std::os::fd::AsRawFd::as_raw_fd(self))
                    .register(registry, token, interests)
            }

            fn reregister(
                &mut self,
                registry: &::mio::Registry,
                token: ::mio::Token,
                interests: ::mio::Interest,
            ) -> std::io::Result<()> {
                ::mio::unix::SourceFd(&std::os::fd::AsRawFd::as_raw_fd(self))
                    .reregister(registry, token, interests)
            }

            fn deregister(&mut self, registry: &::mio::Registry) -> std::io::Result<()> {
                ::mio::unix::SourceFd(&std::os::fd::AsRawFd::as_raw_fd(self)).deregister(registry)
            }
        }
    };
}

/// Defines what the sockets have that send and receive.
#[doc(hidden)]
#[macro_export]
macro_rules! mio_socket {
    ($name:ident, $address:ty) => {
        impl $name {
            /// Returns the name that the peer is bound to (getpeername(2)).
            ///
            /// # Errors
            ///
            /// ENOTCONN when it is not connected.
            pub fn peer_addr(&self) -> std::io::Result<$address> {
                Ok(self.0.peer_addr()?)
            }

            /// Shuts one or both directions down (shutdown(2)).
            ///
            /// # Errors
            ///
            /// What shutdown(2) says.
            pub fn shutdown(&self, how: std::net::Shutdown) -> std::io::Result<()> {
                Ok(self.0.shutdown(how)?)
            }

            /// Calls `io` and returns what it returns. With mio's sockets, input and output that they do not know
            /// go through this on some systems; here it is for programs that are written so.
            ///
            /// # Errors
            ///
            /// What `io` says.
            pub fn try_io<R>(&self, io: impl FnOnce() -> std::io::Result<R>) -> std::io::Result<R> {
                io()
            }
        }
    };
}

/// Defines how a stream for mio reads and writes.
#[doc(hidden)]
#[macro_export]
macro_rules! mio_stream {
    ($name:ident) => {
        impl std::io::Read for &$name {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                std::io::Read::read(&mut &self.0, buffer)
            }

            fn read_vectored(&mut self, slices: &mut [std::io::IoSliceMut<'_>]) -> std::io::Result<usize> {
                std::io::Read::read_vectored(&mut &self.0, slices)
            }
        }

        impl std::io::Write for &$name {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                std::io::Write::write(&mut &self.0, bytes)
            }

            fn write_vectored(&mut self, slices: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
                std::io::Write::write_vectored(&mut &self.0, slices)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }

        impl std::io::Read for $name {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                std::io::Read::read(&mut &*self, buffer)
            }

            fn read_vectored(&mut self, slices: &mut [std::io::IoSliceMut<'_>]) -> std::io::Result<usize> {
                std::io::Read::read_vectored(&mut &*self, slices)
            }
        }

        impl std::io::Write for $name {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                std::io::Write::write(&mut &*self, bytes)
            }

            fn write_vectored(&mut self, slices: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
                std::io::Write::write_vectored(&mut &*self, slices)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
    };
}
