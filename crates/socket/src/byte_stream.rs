//! Streams of any family, for code that takes either.

use crate::{Error, Path, Policy, Reader, RecvFlags, Result, SendFlags, Stats, Wait};
use rustix::fd::AsFd;
use std::fmt::Debug;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

/// A connected stream of bytes: of unix sockets, or of TCP on a stack. Each method does what the stream's own of that name does, which says
/// it in full; what only one family has (descriptors, credentials, TCP's options) is not here.
pub trait ByteStream: Read + Write + AsFd + Debug + Send + Sync + Sized {
    /// Received bytes, where they lie.
    type View: ByteView;
    /// Room for bytes to be sent, to be written in place.
    type Slot<'a>: ByteSlot
    where
        Self: 'a;
    /// What ends are called.
    type Address: Debug + Clone;

    /// Sends `bytes`, waiting for room until all are taken. Returns how many.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn send(&self, bytes: &[u8]) -> Result<usize> {
        self.send_with_flags(bytes, SendFlags::empty())
    }

    /// As [`ByteStream::send`], with flags.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn send_with_flags(&self, bytes: &[u8], flags: SendFlags) -> Result<usize> {
        self.send_vectored_with_flags(&[IoSlice::new(bytes)], flags)
    }

    /// As [`ByteStream::send`], of several slices, as one.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn send_vectored(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        self.send_vectored_with_flags(slices, SendFlags::empty())
    }

    /// As [`ByteStream::send_vectored`], with flags.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn send_vectored_with_flags(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize>;

    /// Receives up to `buffer.len()` bytes: what is there, and waits where there is nothing. 0 is the end.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn recv(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::empty())
    }

    /// As [`ByteStream::recv`], with flags.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn recv_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize>;

    /// Copies what is there without taking it (MSG_PEEK).
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn peek(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::PEEK)
    }

    /// As [`ByteStream::recv`], into several buffers, one after the other.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn recv_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> Result<usize> {
        self.recv_vectored_with_flags(slices, RecvFlags::empty())
    }

    /// As [`ByteStream::recv_vectored`], with flags.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn recv_vectored_with_flags(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize>;

    /// Receives up to `max` bytes where they lie: no copy. An empty view is the end.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn recv_borrowed(&self, max: usize) -> Result<Self::View> {
        self.recv_borrowed_with_flags(max, RecvFlags::empty())
    }

    /// As [`ByteStream::recv_borrowed`], with [`RecvFlags::DONTWAIT`].
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn recv_borrowed_with_flags(&self, max: usize, flags: RecvFlags) -> Result<Self::View>;

    /// Room for `len` bytes, to be filled in place and then sent; it may be cut ([`ByteSlot::len`]).
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn reserve(&self, len: usize) -> Result<Self::Slot<'_>>;

    /// Sets which stores copies of what is sent use from here on.
    fn set_policy(&self, policy: Policy);

    /// Which stores copies use.
    fn policy(&self) -> Policy;

    /// Sets who reads what is sent from here on.
    fn set_reader(&self, reader: Reader);

    /// Who reads what is sent.
    fn reader(&self) -> Reader;

    /// Sets how calls wait from here on.
    fn set_wait_mode(&self, wait: Wait);

    /// How calls wait.
    fn wait_mode(&self) -> Wait;

    /// Sets whether calls fail with EAGAIN instead of waiting.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn set_nonblocking(&self, nonblocking: bool) -> Result<()>;

    /// Whether calls fail with EAGAIN instead of waiting.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn nonblocking(&self) -> Result<bool>;

    /// Sets the longest wait of a receive; `None`: for ever.
    ///
    /// # Errors
    ///
    /// EINVAL for no time at all.
    fn set_read_timeout(&self, limit: Option<Duration>) -> Result<()>;

    /// The longest wait of a receive.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn read_timeout(&self) -> Result<Option<Duration>>;

    /// Sets the longest wait of a send; `None`: for ever.
    ///
    /// # Errors
    ///
    /// EINVAL for no time at all.
    fn set_write_timeout(&self, limit: Option<Duration>) -> Result<()>;

    /// The longest wait of a send.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn write_timeout(&self) -> Result<Option<Duration>>;

    /// Shuts one way down, or both (shutdown(2)).
    ///
    /// # Errors
    ///
    /// ENOTCONN.
    fn shutdown(&self, how: Shutdown) -> Result<()>;

    /// Why it failed, once (SO_ERROR).
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn take_error(&self) -> Result<Option<Error>>;

    /// Its own name.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn local_addr(&self) -> Result<Self::Address>;

    /// The peer's name.
    ///
    /// # Errors
    ///
    /// ENOTCONN where there is none.
    fn peer_addr(&self) -> Result<Self::Address>;

    /// Bytes that can be received without waiting.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn readable_bytes(&self) -> Result<usize>;

    /// Which way the bytes take at this moment.
    fn path(&self) -> Path;

    /// What it has done so far, each copy counted.
    fn stats(&self) -> Stats;

    /// Another handle of the same socket.
    ///
    /// # Errors
    ///
    /// As the stream's own.
    fn try_clone(&self) -> Result<Self>;
}

/// A listener for streams of any family.
pub trait ByteListener: AsFd + Debug + Send + Sync + Sized {
    /// What it accepts.
    type Stream: ByteStream;

    /// Waits for the next connection, and says who it is with.
    ///
    /// # Errors
    ///
    /// EAGAIN where it is not to wait, EINVAL after [`ByteListener::shutdown`].
    fn accept(&self) -> Result<(Self::Stream, <Self::Stream as ByteStream>::Address)>;

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// As the listener's own.
    fn local_addr(&self) -> Result<<Self::Stream as ByteStream>::Address>;

    /// Accepts no more, and wakes whoever waits in [`ByteListener::accept`].
    ///
    /// # Errors
    ///
    /// As the listener's own.
    fn shutdown(&self) -> Result<()>;

    /// Sets whether accept fails with EAGAIN instead of waiting.
    ///
    /// # Errors
    ///
    /// As the listener's own.
    fn set_nonblocking(&self, nonblocking: bool) -> Result<()>;

    /// Whether accept fails with EAGAIN instead of waiting.
    ///
    /// # Errors
    ///
    /// As the listener's own.
    fn nonblocking(&self) -> Result<bool>;

    /// Why it failed, once (SO_ERROR).
    ///
    /// # Errors
    ///
    /// As the listener's own.
    fn take_error(&self) -> Result<Option<Error>>;

    /// Another handle of the same listener.
    ///
    /// # Errors
    ///
    /// As the listener's own.
    fn try_clone(&self) -> Result<Self>;
}

/// Received bytes, where they lie.
pub trait ByteView: Debug + Send {
    /// Bytes in it.
    fn len(&self) -> usize;

    /// Whether there are none: the peer sends no more.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies what fits into `buffer`; returns how many bytes.
    fn copy_to(&self, buffer: &mut [u8]) -> usize;

    /// Writes from where they lie, without a copy in user space. Returns bytes written; [`ByteView::advance`] drops them.
    ///
    /// # Errors
    ///
    /// What writev(2) says.
    fn write_to(&self, fd: impl AsFd) -> io::Result<usize>;

    /// Drops its first `count` bytes.
    ///
    /// # Panics
    ///
    /// Where there are fewer.
    fn advance(&mut self, count: usize);
}

/// Room for bytes to be sent. Dropping it sends nothing.
#[expect(
    clippy::len_without_is_empty,
    reason = "whether room is empty says nothing that its length does not"
)]
pub trait ByteSlot: Debug {
    /// Bytes that it takes.
    fn len(&self) -> usize;

    /// Bytes that it has.
    fn filled(&self) -> usize;

    /// Copies what fits of `bytes` behind what it has. Returns how many.
    fn copy_from(&mut self, bytes: &[u8]) -> usize;

    /// Reads from `file` at `offset` behind what it has: pread(2), one copy by the kernel. Returns how many bytes.
    ///
    /// # Errors
    ///
    /// What pread(2) says.
    fn read_from(&mut self, file: impl AsFd, offset: u64) -> io::Result<usize>;

    /// Sends what it has. Returns how many bytes.
    ///
    /// # Errors
    ///
    /// As the stream's `send`.
    fn commit(self) -> Result<usize>;
}

/// Has the streams of a family be [`ByteStream`]s: by their own methods of the same names.
#[doc(hidden)]
#[macro_export]
macro_rules! byte_stream {
    ($stream:ty, $listener:ty, $view:ty, $slot:ident, $address:ty) => {
        impl $crate::ByteStream for $stream {
            type View = $view;
            type Slot<'a> = $slot<'a>;
            type Address = $address;

            $crate::forward!($stream {
                send_with_flags(bytes: &[u8], flags: $crate::SendFlags) -> $crate::Result<usize>;
                send_vectored_with_flags(
                    slices: &[std::io::IoSlice<'_>], flags: $crate::SendFlags
                ) -> $crate::Result<usize>;
                recv_with_flags(buffer: &mut [u8], flags: $crate::RecvFlags) -> $crate::Result<usize>;
                recv_vectored_with_flags(
                    slices: &mut [std::io::IoSliceMut<'_>], flags: $crate::RecvFlags
                ) -> $crate::Result<usize>;
                recv_borrowed_with_flags(max: usize, flags: $crate::RecvFlags) -> $crate::Result<$view>;
                reserve(len: usize) -> $crate::Result<$slot<'_>>;
                set_policy(policy: $crate::Policy) -> ();
                policy() -> $crate::Policy;
                set_reader(reader: $crate::Reader) -> ();
                reader() -> $crate::Reader;
                set_wait_mode(wait: $crate::Wait) -> ();
                wait_mode() -> $crate::Wait;
                set_nonblocking(nonblocking: bool) -> $crate::Result<()>;
                nonblocking() -> $crate::Result<bool>;
                set_read_timeout(limit: Option<std::time::Duration>) -> $crate::Result<()>;
                read_timeout() -> $crate::Result<Option<std::time::Duration>>;
                set_write_timeout(limit: Option<std::time::Duration>) -> $crate::Result<()>;
                write_timeout() -> $crate::Result<Option<std::time::Duration>>;
                shutdown(how: std::net::Shutdown) -> $crate::Result<()>;
                take_error() -> $crate::Result<Option<$crate::Error>>;
                local_addr() -> $crate::Result<$address>;
                peer_addr() -> $crate::Result<$address>;
                readable_bytes() -> $crate::Result<usize>;
                path() -> $crate::Path;
                stats() -> $crate::Stats;
                try_clone() -> $crate::Result<Self>;
            });
        }

        $crate::read_and_write!(&$stream, $stream);

        impl $crate::ByteListener for $listener {
            type Stream = $stream;

            $crate::forward!($listener {
                accept() -> $crate::Result<($stream, $address)>;
                local_addr() -> $crate::Result<$address>;
                shutdown() -> $crate::Result<()>;
                set_nonblocking(nonblocking: bool) -> $crate::Result<()>;
                nonblocking() -> $crate::Result<bool>;
                take_error() -> $crate::Result<Option<$crate::Error>>;
                try_clone() -> $crate::Result<Self>;
            });
        }

        impl $crate::ByteView for $view {
            fn len(&self) -> usize {
                <$view>::len(self)
            }

            fn copy_to(&self, buffer: &mut [u8]) -> usize {
                <$view>::copy_to(self, buffer)
            }

            fn write_to(&self, fd: impl std::os::fd::AsFd) -> std::io::Result<usize> {
                <$view>::write_to(self, fd)
            }

            fn advance(&mut self, count: usize) {
                <$view>::advance(self, count);
            }
        }

        impl $crate::ByteSlot for $slot<'_> {
            fn len(&self) -> usize {
                $slot::len(self)
            }

            fn filled(&self) -> usize {
                $slot::filled(self)
            }

            fn copy_from(&mut self, bytes: &[u8]) -> usize {
                $slot::copy_from(self, bytes)
            }

            fn read_from(&mut self, file: impl std::os::fd::AsFd, offset: u64) -> std::io::Result<usize> {
                $slot::read_from(self, file, offset)
            }

            fn commit(self) -> $crate::Result<usize> {
                $slot::commit(self)
            }
        }
    };
}

/// Has a stream, and a reference to one, be what std reads from and writes to: each method does what the stream's own does.
#[doc(hidden)]
#[macro_export]
macro_rules! read_and_write {
    ($($stream:ty),*) => {
        $(
            impl std::io::Read for $stream {
                fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                    Ok(self.recv(buffer)?)
                }

                fn read_vectored(&mut self, slices: &mut [std::io::IoSliceMut<'_>]) -> std::io::Result<usize> {
                    Ok(self.recv_vectored(slices)?)
                }
            }

            impl std::io::Write for $stream {
                fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                    Ok(self.send(bytes)?)
                }

                fn write_vectored(&mut self, slices: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
                    Ok(self.send_vectored(slices)?)
                }

                fn flush(&mut self) -> std::io::Result<()> {
                    Ok(())
                }
            }
        )*
    };
}

/// Defines methods of a trait by a type's own of the same names.
#[doc(hidden)]
#[macro_export]
macro_rules! forward {
    ($type:ty { $($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)* }) => {
        $(
            fn $name(&self, $($argument: $kind),*) -> $result {
                <$type>::$name(self, $($argument),*)
            }
        )*
    };
}
