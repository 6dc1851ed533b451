//! What goes without a copy: room in the peer's buffer, views, loans, chains.

use super::*;

impl Stream {
    /// Waits for room for `len` bytes (cut to the capacity; see [`Slot::len`]) where the peer will read them,
    /// and reserves it.
    ///
    /// The slot holds the sending side: other tasks that send wait until it is committed or dropped.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing is reserved.
    pub async fn reserve(&self, len: usize) -> Result<Slot<'_>> {
        self.reserve_with_flags(len, SendFlags::empty()).await
    }

    /// Does as [`Stream::reserve`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`Stream::reserve`].
    pub async fn reserve_with_flags(&self, len: usize, flags: SendFlags) -> Result<Slot<'_>> {
        self.io.send(flags, |_, flags| self.get_ref().reserve_with_flags(len, flags)).await
    }

    /// Waits for the first byte and borrows what is there, at most `max` bytes. Empty at the end of the
    /// stream.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was taken.
    pub async fn recv_borrowed(&self, max: usize) -> Result<View> {
        self.recv_borrowed_with_flags(max, RecvFlags::empty()).await
    }

    /// Does as [`Stream::recv_borrowed`], with [`RecvFlags::DONTWAIT`] (other flags have no meaning here).
    ///
    /// # Errors
    ///
    /// As [`Stream::recv_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`Stream::recv_borrowed`].
    pub async fn recv_borrowed_with_flags(&self, max: usize, flags: RecvFlags) -> Result<View> {
        self.io.recv(flags, |stream, flags| stream.recv_borrowed_with_flags(max, flags)).await
    }

    /// Waits for the first byte and receives what is there, at most `max` bytes, as a chain, as
    /// [`crate::Stream::recv_chain`] does. Empty at the end of the stream.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`]; ENOBUFS while received chains hold 16 MiB of copies.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was received.
    pub async fn recv_chain(&self, max: usize) -> Result<Chain> {
        self.recv_chain_with_flags(max, RecvFlags::empty()).await
    }

    /// Does as [`Stream::recv_chain`], with [`RecvFlags::DONTWAIT`] (other flags have no meaning here).
    ///
    /// # Errors
    ///
    /// As [`Stream::recv_chain`]; EAGAIN with DONTWAIT.
    ///
    /// # Cancel safety
    ///
    /// As [`Stream::recv_chain`].
    pub async fn recv_chain_with_flags(&self, max: usize, flags: RecvFlags) -> Result<Chain> {
        self.io.recv(flags, |stream, flags| stream.recv_chain_with_flags(max, flags)).await
    }

    /// Waits for a place and sends a page of a [`crate::SharedPool`] by reference, as
    /// [`crate::Stream::send_loan`] does. Returns how many bytes were sent: all of them.
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::send_loan`], with the loan, cut to what was not sent. EAGAIN where its bytes are
    /// copied, because the peer is plain or maps no pools, and only a part of them had room: send the rest.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was sent, and the loan has gone back to its pool.
    pub async fn send_loan(&self, loan: Loan) -> std::result::Result<usize, Box<NotSent>> {
        self.send_loan_with_flags(loan, SendFlags::empty()).await
    }

    /// Does as [`Stream::send_loan`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send_loan`]; EAGAIN with DONTWAIT, with the loan.
    ///
    /// # Cancel safety
    ///
    /// As [`Stream::send_loan`].
    pub async fn send_loan_with_flags(
        &self,
        loan: Loan,
        flags: SendFlags,
    ) -> std::result::Result<usize, Box<NotSent>> {
        let len = loan.len();
        let mut left = Some(loan);
        let send = |stream: &crate::api::stream::Stream, flags| {
            let Some(loan) = left.take() else { return Ok(Ok(len)) };
            stream.send_loan_with_flags(loan, flags).map(Ok).or_else(|not| {
                let began = not.loan.len() < len;
                left = Some(not.loan);
                // To wait from here on would lose with the future what was sent.
                if began { Ok(Err(not.error)) } else { Err(not.error) }
            })
        };
        let done = self.io.send(flags, send).await;
        match (done, left) {
            (Ok(Err(error)) | Err(error), Some(loan)) => Err(Box::new(NotSent { error, loan })),
            _ => Ok(len),
        }
    }

    /// Waits for a place and sends what fits of a chain, as [`crate::Stream::send_chain`] does: pages of a
    /// [`crate::SharedPool`] by reference. Cuts off what was sent, and returns how many bytes that were. So
    /// the whole chain is sent by
    ///
    /// ```
    /// # use onecopy_chain::{Chain, notify::Segment};
    /// # async fn all(stream: &onecopy_unix::tokio::Stream, chain: Chain) -> onecopy_unix::Result<()> {
    /// let mut chain = Segment::from(chain);
    /// while !chain.payload().is_empty() {
    ///     stream.send_chain(&mut chain).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::send_chain`]; then nothing was sent by this call.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was sent, and the chain is as it was.
    pub async fn send_chain(&self, chain: &mut Segment<Chain>) -> Result<usize> {
        self.send_chain_with_flags(chain, SendFlags::empty()).await
    }

    /// Does as [`Stream::send_chain`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send_chain`]; EAGAIN with DONTWAIT.
    ///
    /// # Cancel safety
    ///
    /// As [`Stream::send_chain`].
    pub async fn send_chain_with_flags(&self, chain: &mut Segment<Chain>, flags: SendFlags) -> Result<usize> {
        let send = |stream: &crate::api::stream::Stream, flags| {
            let len = chain.payload().len();
            stream.send_chain_with_flags(std::mem::take(chain), flags).or_else(|not| {
                *chain = not.loan;
                match len - chain.payload().len() {
                    0 => Err(not.error),
                    // What stopped it is told by the next call.
                    sent => Ok(sent),
                }
            })
        };
        self.io.send(flags, send).await
    }
}
