//! The two halves of a stream, borrowed or owned: of any family's.

/// Defines them in the file of a `Stream` for tokio, which makes them of itself, and whose names have type `$address`.
#[doc(hidden)]
#[macro_export]
macro_rules! tokio_halves {
    ($address:ty) => {
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
            stream: std::sync::Arc<Stream>,
        }

        /// The half of a [`Stream`] that writes, from [`Stream::into_split`]. Its `shutdown` shuts the stream down for
        /// writing, and so does dropping it. Other ways to send are those of the stream: `half.as_ref().reserve(len)`.
        #[derive(Debug)]
        pub struct OwnedWriteHalf {
            stream: std::sync::Arc<Stream>,
            shuts_down: bool,
        }

        fn halves(stream: &mut Stream) -> (ReadHalf<'_>, WriteHalf<'_>) {
            (ReadHalf { stream }, WriteHalf { stream })
        }

        fn owned_halves(stream: Stream) -> (OwnedReadHalf, OwnedWriteHalf) {
            let stream = std::sync::Arc::new(stream);
            (OwnedReadHalf { stream: stream.clone() }, OwnedWriteHalf { stream, shuts_down: true })
        }

        /// Two halves that are not of one stream, from `reunite`.
        #[derive(Debug)]
        pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

        impl std::fmt::Display for ReuniteError {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
                if !std::sync::Arc::ptr_eq(&self.stream, &other.stream) {
                    return Err(ReuniteError(self, other));
                }
                let OwnedReadHalf { stream } = self;
                other.forget();
                // There are no more than these two, and one is gone.
                Ok(std::sync::Arc::try_unwrap(stream).expect("a stream has two halves"))
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

        $crate::tokio_read_half!(ReadHalf<'_>, $address);
        $crate::tokio_read_half!(OwnedReadHalf, $address);
        $crate::tokio_write_half!(WriteHalf<'_>, $address);
        $crate::tokio_write_half!(OwnedWriteHalf, $address);
    };
}

/// What both halves have.
#[doc(hidden)]
#[macro_export]
macro_rules! tokio_half {
    ($half:ident $(<$life:lifetime>)?, $address:ty) => {
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
            pub async fn ready(&self, interest: tokio::io::Interest) -> std::io::Result<tokio::io::Ready> {
                self.stream.ready(interest).await
            }

            /// Returns the name that the peer is bound to: as [`Stream::peer_addr`].
            ///
            /// # Errors
            ///
            /// What getpeername(2) says.
            pub fn peer_addr(&self) -> $crate::Result<$address> {
                self.stream.peer_addr()
            }

            /// Returns the name that this end is bound to: as [`Stream::local_addr`].
            ///
            /// # Errors
            ///
            /// What getsockname(2) says.
            pub fn local_addr(&self) -> $crate::Result<$address> {
                self.stream.local_addr()
            }
        }
    };
}

/// What halves that read have.
#[doc(hidden)]
#[macro_export]
macro_rules! tokio_read_half {
    ($half:ident $(<$life:lifetime>)?, $address:ty) => {
        $crate::tokio_half!($half $(<$life>)?, $address);

        impl $half $(<$life>)? {
            /// Waits until there may be something to receive: as [`Stream::readable`], cancel safe.
            ///
            /// # Errors
            ///
            /// When the runtime shuts down.
            pub async fn readable(&self) -> std::io::Result<()> {
                self.stream.readable().await
            }

            /// Receives what is there now: as [`Stream::try_read`].
            ///
            /// # Errors
            ///
            /// As [`Stream::try_read`].
            pub fn try_read(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
                self.stream.try_read(buffer)
            }

            /// Receives what is there now: as [`Stream::try_read_buf`].
            ///
            /// # Errors
            ///
            /// As [`Stream::try_read`].
            pub fn try_read_buf<B: bytes::BufMut>(&self, buffer: &mut B) -> std::io::Result<usize> {
                self.stream.try_read_buf(buffer)
            }

            /// Receives what is there now: as [`Stream::try_read_vectored`].
            ///
            /// # Errors
            ///
            /// As [`Stream::try_read`].
            pub fn try_read_vectored(&self, slices: &mut [std::io::IoSliceMut<'_>]) -> std::io::Result<usize> {
                self.stream.try_read_vectored(slices)
            }
        }

        impl tokio::io::AsyncRead for $half $(<$life>)? {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.stream.poll_recv(context, buffer)
            }
        }
    };
}

/// What halves that write have.
#[doc(hidden)]
#[macro_export]
macro_rules! tokio_write_half {
    ($half:ident $(<$life:lifetime>)?, $address:ty) => {
        $crate::tokio_half!($half $(<$life>)?, $address);

        impl $half $(<$life>)? {
            /// Waits until there may be room to send: as [`Stream::writable`], cancel safe.
            ///
            /// # Errors
            ///
            /// When the runtime shuts down.
            pub async fn writable(&self) -> std::io::Result<()> {
                self.stream.writable().await
            }

            /// Sends what there is room for now: as [`Stream::try_write`].
            ///
            /// # Errors
            ///
            /// As [`Stream::try_write`].
            pub fn try_write(&self, bytes: &[u8]) -> std::io::Result<usize> {
                self.stream.try_write(bytes)
            }

            /// Sends what there is room for now: as [`Stream::try_write_vectored`].
            ///
            /// # Errors
            ///
            /// As [`Stream::try_write`].
            pub fn try_write_vectored(&self, slices: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
                self.stream.try_write_vectored(slices)
            }
        }

        impl tokio::io::AsyncWrite for $half $(<$life>)? {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                bytes: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.stream.poll_send(context, &[std::io::IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                slices: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.stream.poll_send(context, slices)
            }

            fn is_write_vectored(&self) -> bool {
                self.stream.is_write_vectored()
            }

            fn poll_flush(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<std::io::Result<()>> {
                std::task::Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<std::io::Result<()>> {
                std::task::Poll::Ready(self.stream.end_sending())
            }
        }
    };
}
