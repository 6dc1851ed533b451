//! For tasks that poll or try, as tokio's `UnixDatagram` has it.

use super::*;

impl Datagram {
    /// Does as [`Datagram::readable`], for a task that polls. Only the last task that polled for receiving is
    /// woken.
    ///
    /// # Errors
    ///
    /// When the runtime shuts down.
    pub fn poll_recv_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_ready(context, Direction::Read)
    }

    /// Does as [`Datagram::writable`], for a task that polls. Only the last task that polled for sending is
    /// woken.
    ///
    /// # Errors
    ///
    /// When the runtime shuts down.
    pub fn poll_send_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_ready(context, Direction::Write)
    }

    /// Sends as [`Datagram::send`] does, for a task that polls. Only the last one is woken.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send`].
    pub fn poll_send(&self, context: &mut Context<'_>, datagram: &[u8]) -> Poll<io::Result<usize>> {
        let send = |socket: &crate::Datagram| socket.send_with_flags(datagram, SendFlags::DONTWAIT);
        self.io.poll(context, Direction::Write, send)
    }

    /// Sends as [`Datagram::send_to`] does, for a task that polls. Only the last one is woken.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send_to`].
    ///
    /// # Panics
    ///
    /// As [`Datagram::send_to`].
    pub fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        datagram: &[u8],
        name: impl ToSocketAddr,
    ) -> Poll<io::Result<usize>> {
        let name = named(name)?;
        loop {
            match self.get_ref().send_to_with_flags(datagram, &name, SendFlags::DONTWAIT) {
                Err(error) if error.would_block() => {
                    let kept = self.pause.lock().take();
                    let mut pause = kept.unwrap_or_else(|| Box::pin(tokio::time::sleep(PAUSE)));
                    if pause.as_mut().poll(context).is_pending() {
                        // Wakers are code of others: neither woken nor dropped under the lock.
                        let other = self.pause.lock().replace(pause);
                        drop(other);
                        return Poll::Pending;
                    }
                }
                done => return Poll::Ready(Ok(done?)),
            }
        }
    }

    /// Receives as [`Datagram::recv`] does, for a task that polls. Only the last one is woken.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn poll_recv(&self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let unfilled = buffer.initialize_unfilled();
        let recv = |socket: &crate::Datagram| socket.recv_with_flags(unfilled, RecvFlags::DONTWAIT);
        let n = ready!(self.io.poll(context, Direction::Read, recv))?;
        buffer.advance(n);
        Poll::Ready(Ok(()))
    }

    /// Receives as [`Datagram::recv_from`] does, for a task that polls. Only the last one is woken.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        let unfilled = buffer.initialize_unfilled();
        let recv = |socket: &crate::Datagram| socket.recv_from_with_flags(unfilled, RecvFlags::DONTWAIT);
        let (n, from) = ready!(self.io.poll(context, Direction::Read, recv))?;
        buffer.advance(n);
        Poll::Ready(Ok(from))
    }

    /// Sends one datagram to the peer if there is room now.
    ///
    /// # Errors
    ///
    /// EAGAIN (`WouldBlock`) if there is none; as [`Datagram::send`].
    pub fn try_send(&self, datagram: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT;
        Ok(self.io.attempt(Direction::Write, |socket| socket.send_with_flags(datagram, flags))?)
    }

    /// Sends one datagram to the socket of that name if there is room now. (No readiness tells of room at a
    /// receiver that this socket is not connected to: [`Datagram::send_to`] waits for it.)
    ///
    /// # Errors
    ///
    /// EAGAIN (`WouldBlock`) if there is none; as [`Datagram::send_to`].
    pub fn try_send_to(&self, datagram: &[u8], name: impl ToSocketAddr) -> io::Result<usize> {
        let (name, flags) = (named(name)?, SendFlags::DONTWAIT);
        let send = |socket: &crate::Datagram| socket.send_to_with_flags(datagram, &name, flags);
        Ok(self.io.attempt(Direction::Write, send)?)
    }

    /// Receives the datagram that is there now.
    ///
    /// # Errors
    ///
    /// EAGAIN (`WouldBlock`) if there is none; as [`Datagram::recv`].
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let flags = RecvFlags::DONTWAIT;
        Ok(self.io.attempt(Direction::Read, |socket| socket.recv_with_flags(buffer, flags))?)
    }

    /// Receives the datagram that is there now, with its sender's name.
    ///
    /// # Errors
    ///
    /// As [`Datagram::try_recv`].
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let flags = RecvFlags::DONTWAIT;
        Ok(self.io.attempt(Direction::Read, |socket| socket.recv_from_with_flags(buffer, flags))?)
    }

    /// Receives the datagram that is there now into the free space of `buffer`, and advances it.
    ///
    /// # Errors
    ///
    /// As [`Datagram::try_recv`].
    pub fn try_recv_buf<B: BufMut>(&self, buffer: &mut B) -> io::Result<usize> {
        let flags = RecvFlags::DONTWAIT;
        let recv = |socket: &crate::Datagram| fill(buffer, |bytes| socket.recv_with_flags(bytes, flags));
        Ok(self.io.attempt(Direction::Read, recv)?)
    }

    /// Does as [`Datagram::try_recv_buf`], and returns the sender's name.
    ///
    /// # Errors
    ///
    /// As [`Datagram::try_recv`].
    pub fn try_recv_buf_from<B: BufMut>(&self, buffer: &mut B) -> io::Result<(usize, SocketAddr)> {
        Ok(self.io.attempt(Direction::Read, |socket| fill_from(socket, buffer))?)
    }
}
