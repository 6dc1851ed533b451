//! What streams for tokio have, of any family.

/// Defines how a `Stream` sends and receives, over its field `io` of plain streams `$inner`, with the halves of the module `split` beside it.
#[doc(hidden)]
#[macro_export]
macro_rules! tokio_stream {
    ($inner:ty) => {
        impl Stream {
            /// Waits for room and sends what fits: at least one byte of a slice that is not empty. Returns how many
            /// bytes were sent.
            ///
            /// # Errors
            ///
            /// EPIPE, EPROTO, as the plain stream's `send`.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: if it is dropped, nothing was sent.
            pub async fn send(&self, bytes: &[u8]) -> $crate::Result<usize> {
                self.send_with_flags(bytes, $crate::SendFlags::empty()).await
            }

            /// Does as [`Stream::send`], with flags. With DONTWAIT it does not wait.
            ///
            /// # Errors
            ///
            /// As [`Stream::send`]; EAGAIN with DONTWAIT where there is no room.
            ///
            /// # Cancel safety
            ///
            /// As [`Stream::send`].
            pub async fn send_with_flags(
                &self,
                bytes: &[u8],
                flags: $crate::SendFlags,
            ) -> $crate::Result<usize> {
                self.io.send(flags, |stream, flags| stream.send_with_flags(bytes, flags)).await
            }

            /// Sends the slices one after the other, as one send, as [`Stream::send`] does.
            ///
            /// # Errors
            ///
            /// As [`Stream::send`].
            ///
            /// # Cancel safety
            ///
            /// As [`Stream::send`].
            pub async fn send_vectored(&self, slices: &[std::io::IoSlice<'_>]) -> $crate::Result<usize> {
                self.send_vectored_with_flags(slices, $crate::SendFlags::empty()).await
            }

            /// Does as [`Stream::send_vectored`], with flags.
            ///
            /// # Errors
            ///
            /// As [`Stream::send_with_flags`].
            ///
            /// # Cancel safety
            ///
            /// As [`Stream::send`].
            pub async fn send_vectored_with_flags(
                &self,
                slices: &[std::io::IoSlice<'_>],
                flags: $crate::SendFlags,
            ) -> $crate::Result<usize> {
                self.io.send(flags, |stream, flags| stream.send_vectored_with_flags(slices, flags)).await
            }

            /// Waits for the first byte and receives what is there. Returns how many bytes were received; 0 at the
            /// end of the stream.
            ///
            /// # Errors
            ///
            /// ECONNRESET, EPROTO, as the plain stream's `recv`.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: if it is dropped, nothing was received.
            pub async fn recv(&self, buffer: &mut [u8]) -> $crate::Result<usize> {
                self.recv_with_flags(buffer, $crate::RecvFlags::empty()).await
            }

            /// Does as [`Stream::recv`], with flags. With DONTWAIT it does not wait. With
            /// WAITALL it takes what is there, since nothing waits in the call.
            ///
            /// # Errors
            ///
            /// As [`Stream::recv`]; EAGAIN with DONTWAIT where nothing is there.
            ///
            /// # Cancel safety
            ///
            /// As [`Stream::recv`].
            pub async fn recv_with_flags(
                &self,
                buffer: &mut [u8],
                flags: $crate::RecvFlags,
            ) -> $crate::Result<usize> {
                self.io.recv(flags, |stream, flags| stream.recv_with_flags(buffer, flags)).await
            }

            /// Does as [`Stream::recv`], and leaves the bytes there for the next receive (MSG_PEEK).
            ///
            /// # Errors
            ///
            /// As [`Stream::recv`].
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: it takes nothing.
            pub async fn peek(&self, buffer: &mut [u8]) -> $crate::Result<usize> {
                self.recv_with_flags(buffer, $crate::RecvFlags::PEEK).await
            }

            /// Receives as [`Stream::recv`] does, into the slices one after the other.
            ///
            /// # Errors
            ///
            /// As [`Stream::recv`].
            ///
            /// # Cancel safety
            ///
            /// As [`Stream::recv`].
            pub async fn recv_vectored(
                &self,
                slices: &mut [std::io::IoSliceMut<'_>],
            ) -> $crate::Result<usize> {
                self.recv_vectored_with_flags(slices, $crate::RecvFlags::empty()).await
            }

            /// Does as [`Stream::recv_vectored`], with flags.
            ///
            /// # Errors
            ///
            /// As [`Stream::recv_with_flags`].
            ///
            /// # Cancel safety
            ///
            /// As [`Stream::recv`].
            pub async fn recv_vectored_with_flags(
                &self,
                slices: &mut [std::io::IoSliceMut<'_>],
                flags: $crate::RecvFlags,
            ) -> $crate::Result<usize> {
                self.io.recv(flags, |stream, flags| stream.recv_vectored_with_flags(slices, flags)).await
            }
        }

        /// What tokio's own has besides.
        impl Stream {
            /// Does as [`ready(Interest::READABLE)`](Stream::ready), for a task that polls. Only the last task that
            /// polled for reading is woken.
            ///
            /// # Errors
            ///
            /// When the runtime shuts down.
            pub fn poll_read_ready(
                &self,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.io.poll_ready(context, $crate::tokio::Direction::Read)
            }

            /// Does as [`ready(Interest::WRITABLE)`](Stream::ready), for a task that polls. Only the last task that
            /// polled for writing is woken.
            ///
            /// # Errors
            ///
            /// When the runtime shuts down.
            pub fn poll_write_ready(
                &self,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.io.poll_ready(context, $crate::tokio::Direction::Write)
            }

            /// Receives what is there now, 0 bytes at the end of the stream.
            ///
            /// # Errors
            ///
            /// EAGAIN (`WouldBlock`) if nothing is there; as the plain stream's `recv`.
            pub fn try_read(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let flags = $crate::RecvFlags::DONTWAIT;
                Ok(self.io.attempt($crate::tokio::Direction::Read, |stream| {
                    stream.recv_with_flags(buffer, flags)
                })?)
            }

            /// Receives as [`Stream::try_read`] does, into the slices one after the other.
            ///
            /// # Errors
            ///
            /// As [`Stream::try_read`].
            pub fn try_read_vectored(
                &self,
                slices: &mut [std::io::IoSliceMut<'_>],
            ) -> std::io::Result<usize> {
                let flags = $crate::RecvFlags::DONTWAIT;
                Ok(self.io.attempt($crate::tokio::Direction::Read, |stream| {
                    stream.recv_vectored_with_flags(slices, flags)
                })?)
            }

            /// Receives as [`Stream::try_read`] does, into the free space of `buffer`, and advances it.
            ///
            /// # Errors
            ///
            /// As [`Stream::try_read`].
            pub fn try_read_buf<B: bytes::BufMut>(&self, buffer: &mut B) -> std::io::Result<usize> {
                let flags = $crate::RecvFlags::DONTWAIT;
                let recv = |stream: &$inner| {
                    $crate::tokio::fill(buffer, |bytes| stream.recv_with_flags(bytes, flags))
                };
                Ok(self.io.attempt($crate::tokio::Direction::Read, recv)?)
            }

            /// Sends what there is room for now.
            ///
            /// # Errors
            ///
            /// EAGAIN (`WouldBlock`) if there is no room; as the plain stream's `send`.
            pub fn try_write(&self, bytes: &[u8]) -> std::io::Result<usize> {
                self.try_write_vectored(&[std::io::IoSlice::new(bytes)])
            }

            /// Sends as [`Stream::try_write`] does: the slices one after the other, as one send.
            ///
            /// # Errors
            ///
            /// As [`Stream::try_write`].
            pub fn try_write_vectored(&self, slices: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
                let flags = $crate::SendFlags::DONTWAIT;
                Ok(self.io.attempt($crate::tokio::Direction::Write, |stream| {
                    stream.send_vectored_with_flags(slices, flags)
                })?)
            }

            /// Splits it into a half that reads and a half that writes, which borrow it.
            pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
                halves(self)
            }

            /// Splits it into a half that reads and a half that writes, for two tasks. When the half that writes is
            /// dropped, the peer reads the end.
            pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
                owned_halves(self)
            }

            pub(super) fn poll_recv(
                &self,
                context: &mut std::task::Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                let unfilled = buffer.initialize_unfilled();
                let recv = |stream: &$inner| stream.recv_with_flags(unfilled, $crate::RecvFlags::DONTWAIT);
                let n = std::task::ready!(self.io.poll(context, $crate::tokio::Direction::Read, recv))?;
                buffer.advance(n);
                std::task::Poll::Ready(Ok(()))
            }

            pub(super) fn poll_send(
                &self,
                context: &mut std::task::Context<'_>,
                slices: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                let send =
                    |stream: &$inner| stream.send_vectored_with_flags(slices, $crate::SendFlags::DONTWAIT);
                self.io.poll(context, $crate::tokio::Direction::Write, send)
            }

            pub(super) fn end_sending(&self) -> std::io::Result<()> {
                Ok(self.get_ref().shutdown(std::net::Shutdown::Write)?)
            }
        }

        impl tokio::io::AsyncRead for Stream {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.poll_recv(context, buffer)
            }
        }

        impl tokio::io::AsyncWrite for Stream {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                bytes: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.poll_send(context, &[std::io::IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                slices: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.poll_send(context, slices)
            }

            /// A program that has many pieces need not put them together: they are copied once, to where the peer
            /// reads.
            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                std::task::Poll::Ready(Ok(()))
            }

            fn poll_shutdown(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                std::task::Poll::Ready(self.end_sending())
            }
        }
    };
}
