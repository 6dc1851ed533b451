//! What goes without a copy: room in the peer's buffer, views, loans, chains.

use super::*;

impl SeqPacket {
    /// Waits for room for a record of at most `len` bytes where the peer will read it, and reserves it. The
    /// record is what is filled when the slot is committed.
    ///
    /// The slot holds the sending side: other tasks that send wait until it is committed or dropped.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing is reserved.
    pub async fn reserve(&self, len: usize) -> Result<Slot<'_>> {
        self.reserve_with_flags(len, SendFlags::empty()).await
    }

    /// Does as [`SeqPacket::reserve`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::reserve`].
    pub async fn reserve_with_flags(&self, len: usize, flags: SendFlags) -> Result<Slot<'_>> {
        self.io.send(flags, |_, flags| self.get_ref().reserve_with_flags(len, flags)).await
    }

    /// Waits for the next record and borrows at most `max` bytes of it, as
    /// [`crate::SeqPacket::recv_borrowed`] does.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was taken.
    pub async fn recv_borrowed(&self, max: usize) -> Result<(View, ReceivedFlags)> {
        self.recv_borrowed_with_flags(max, RecvFlags::empty()).await
    }

    /// Does as [`SeqPacket::recv_borrowed`], with [`RecvFlags::DONTWAIT`] (other flags have no meaning here).
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::recv_borrowed`].
    pub async fn recv_borrowed_with_flags(
        &self,
        max: usize,
        flags: RecvFlags,
    ) -> Result<(View, ReceivedFlags)> {
        self.io.recv(flags, |socket, flags| socket.recv_borrowed_with_flags(max, flags)).await
    }

    /// Waits for one record and receives it: what was sent as bytes into `head`, what was sent by reference as
    /// a chain, as [`crate::SeqPacket::recv_chain`] does.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`]; EOVERFLOW for pages of 4 GiB and more, which a buffer can take.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was received.
    pub async fn recv_chain(&self, head: &mut [u8]) -> Result<(Received, Chain)> {
        self.recv_chain_with_flags(head, RecvFlags::empty()).await
    }

    /// Does as [`SeqPacket::recv_chain`], with [`RecvFlags::DONTWAIT`] (other flags have no meaning here).
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv_chain`]; EAGAIN with DONTWAIT.
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::recv_chain`].
    pub async fn recv_chain_with_flags(
        &self,
        head: &mut [u8],
        flags: RecvFlags,
    ) -> Result<(Received, Chain)> {
        self.io.recv(flags, |socket, flags| socket.recv_chain_with_flags(head, flags)).await
    }

    /// Waits for room and sends a page of a [`crate::SharedPool`] by reference, as one record, as
    /// [`crate::SeqPacket::send_loan`] does. Returns its length.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::send_loan`], with the loan as a chain, of which nothing was sent.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was sent, and the loan has gone back to its pool.
    pub async fn send_loan(&self, loan: Loan) -> std::result::Result<usize, Box<NotSent<Segment<Chain>>>> {
        self.send_loan_with_flags(loan, SendFlags::empty()).await
    }

    /// Does as [`SeqPacket::send_loan`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send_loan`]; EAGAIN with DONTWAIT, with the loan.
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::send_loan`].
    pub async fn send_loan_with_flags(
        &self,
        loan: Loan,
        flags: SendFlags,
    ) -> std::result::Result<usize, Box<NotSent<Segment<Chain>>>> {
        let mut chain = Segment::from(loan);
        match self.send_chain_with_flags(&[], &mut chain, flags).await {
            Err(error) => Err(Box::new(NotSent { error, loan: chain })),
            Ok(sent) => Ok(sent),
        }
    }

    /// Waits for room and sends one record: the bytes of `head`, which are copied, and behind them those of a
    /// chain, pages of a [`crate::SharedPool`] by reference, as [`crate::SeqPacket::send_chain`] does. All is
    /// sent, or nothing. Returns the record's length, and leaves the chain empty.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::send_chain`]. The chain is then as it was.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was sent, and the chain is as it was.
    pub async fn send_chain(&self, head: &[u8], chain: &mut Segment<Chain>) -> Result<usize> {
        self.send_chain_with_flags(head, chain, SendFlags::empty()).await
    }

    /// Does as [`SeqPacket::send_chain`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send_chain`]; EAGAIN with DONTWAIT.
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::send_chain`].
    pub async fn send_chain_with_flags(
        &self,
        head: &[u8],
        chain: &mut Segment<Chain>,
        flags: SendFlags,
    ) -> Result<usize> {
        let send = |socket: &crate::api::seqpacket::SeqPacket, flags| {
            socket.send_chain_with_flags(head, std::mem::take(chain), flags).map_err(|not| {
                *chain = not.loan;
                not.error
            })
        };
        self.io.send(flags, send).await
    }
}
