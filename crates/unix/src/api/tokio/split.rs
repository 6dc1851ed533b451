//! The two halves of a stream, borrowed or owned.

use crate::addr::SocketAddr;
use crate::api::tokio::stream::Stream;
use bytes::BufMut;
use onecopy_socket::Result;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

/// The half of a [`Stream`] that reads, from [`Stream::split`]. Other ways to receive are those of the stream:
/// `half.as_ref().recv_borrowed(max)`.
#[derive(Debug)]
pub struct ReadHalf<'a> {
    stream: &'a Stream,
}

/// The half of a [`Stream`] that writes, from [`Stream::split`]. Its `shutdown` shuts the stream down for
/// writing; dropping it does not. Other ways to send are those of the stream: `half.as_ref().reserve(len)`.
#[derive(Debug)]
pub struct WriteHalf<'a> {
    stream: &'a Stream,
}

/// The half of a [`Stream`] that reads, from [`Stream::into_split`]. Other ways to receive are those of the
/// stream: `half.as_ref().recv_borrowed(max)`.
#[derive(Debug)]
pub struct OwnedReadHalf {
    stream: Arc<Stream>,
}

/// The half of a [`Stream`] that writes, from [`Stream::into_split`]. Its `shutdown` shuts the stream down for
/// writing, and so does dropping it. Other ways to send are those of the stream: `half.as_ref().reserve(len)`.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: Arc<Stream>,
    shuts_down: bool,
}

pub(super) fn split(stream: &mut Stream) -> (ReadHalf<'_>, WriteHalf<'_>) {
    (ReadHalf { stream }, WriteHalf { stream })
}

pub(super) fn into_split(stream: Stream) -> (OwnedReadHalf, OwnedWriteHalf) {
    let stream = Arc::new(stream);
    (OwnedReadHalf { stream: stream.clone() }, OwnedWriteHalf { stream, shuts_down: true })
}

/// Two halves that are not of one stream, from `reunite`.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the two halves are of different streams; reunite those of one `into_split`")
    }
}

impl std::error::Error for ReuniteError {}

impl OwnedReadHalf {
    /// Puts the two halves of one stream together again.
    ///
    /// # Errors
    ///
    /// Gives both back if they are of different streams.
    pub fn reunite(self, other: OwnedWriteHalf) -> std::result::Result<Stream, ReuniteError> {
        if !Arc::ptr_eq(&self.stream, &other.stream) {
            return Err(ReuniteError(self, other));
        }
        let OwnedReadHalf { stream } = self;
        other.forget();
        // There are no more than these two, and one is gone.
        Ok(Arc::try_unwrap(stream).expect("a stream has two halves"))
    }
}

impl OwnedWriteHalf {
    /// Puts the two halves of one stream together again.
    ///
    /// # Errors
    ///
    /// Gives both back if they are of different streams.
    pub fn reunite(self, other: OwnedReadHalf) -> std::result::Result<Stream, ReuniteError> {
        other.reunite(self)
    }

    /// Drops this half, and does not shut the stream down for writing. It is closed with the other half.
    pub fn forget(mut self) {
        self.shuts_down = false;
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.shuts_down {
            let _ = self.stream.end_sending();
        }
    }
}

macro_rules! half {
    ($half:ident $(<$life:lifetime>)?) => {
        impl AsRef<Stream> for $half $(<$life>)? {
            fn as_ref(&self) -> &Stream {
                &self.stream
            }
        }

        impl $half $(<$life>)? {
            /// Waits until one of the states in `interest` is there: as [`Stream::ready`], cancel safe.
            ///
            /// # Errors
            ///
            /// When the runtime shuts down.
            pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
                self.stream.ready(interest).await
            }

            /// Returns the name that the peer is bound to: as [`Stream::peer_addr`].
            ///
            /// # Errors
            ///
            /// What getpeername(2) says.
            pub fn peer_addr(&self) -> Result<SocketAddr> {
                self.stream.peer_addr()
            }

            /// Returns the name that this end is bound to: as [`Stream::local_addr`].
            ///
            /// # Errors
            ///
            /// What getsockname(2) says.
            pub fn local_addr(&self) -> Result<SocketAddr> {
                self.stream.local_addr()
            }
        }
    };
}

macro_rules! read_half {
    ($half:ident $(<$life:lifetime>)?) => {
        half!($half $(<$life>)?);

        impl $half $(<$life>)? {
            /// Waits until there may be something to receive: as [`Stream::readable`], cancel safe.
            ///
            /// # Errors
            ///
            /// When the runtime shuts down.
            pub async fn readable(&self) -> io::Result<()> {
                self.stream.readable().await
            }

            /// Receives what is there now: as [`Stream::try_read`].
            ///
            /// # Errors
            ///
            /// As [`Stream::try_read`].
            pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
                self.stream.try_read(buffer)
            }

            /// Receives what is there now: as [`Stream::try_read_buf`].
            ///
            /// # Errors
            ///
            /// As [`Stream::try_read`].
            pub fn try_read_buf<B: BufMut>(&self, buffer: &mut B) -> io::Result<usize> {
                self.stream.try_read_buf(buffer)
            }

            /// Receives what is there now: as [`Stream::try_read_vectored`].
            ///
            /// # Errors
            ///
            /// As [`Stream::try_read`].
            pub fn try_read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.stream.try_read_vectored(slices)
            }
        }

        impl AsyncRead for $half $(<$life>)? {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                self.stream.poll_recv(context, buffer)
            }
        }
    };
}

macro_rules! write_half {
    ($half:ident $(<$life:lifetime>)?) => {
        half!($half $(<$life>)?);

        impl $half $(<$life>)? {
            /// Waits until there may be room to send: as [`Stream::writable`], cancel safe.
            ///
            /// # Errors
            ///
            /// When the runtime shuts down.
            pub async fn writable(&self) -> io::Result<()> {
                self.stream.writable().await
            }

            /// Sends what there is room for now: as [`Stream::try_write`].
            ///
            /// # Errors
            ///
            /// As [`Stream::try_write`].
            pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
                self.stream.try_write(bytes)
            }

            /// Sends what there is room for now: as [`Stream::try_write_vectored`].
            ///
            /// # Errors
            ///
            /// As [`Stream::try_write`].
            pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
                self.stream.try_write_vectored(slices)
            }
        }

        impl AsyncWrite for $half $(<$life>)? {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.stream.poll_send(context, &[IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.stream.poll_send(context, slices)
            }

            fn is_write_vectored(&self) -> bool {
                self.stream.is_write_vectored()
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(self.stream.end_sending())
            }
        }
    };
}

read_half!(ReadHalf<'_>);
read_half!(OwnedReadHalf);
write_half!(WriteHalf<'_>);
write_half!(OwnedWriteHalf);
