//! Sending records: one frame each, or in pieces where records are streams.

use crate::channel::MAX_FDS;
use crate::end::End;
use crate::making::Kind;
use crate::receive::{IOV_MAX, chunk};
use crate::rights::Attached;
use crate::tx::{Cursor, Tx, TxRing};
use crate::upgrade::offered;
use crate::{Error, Op, Records, Result, SendFlags, control};
use onecopy_copy::Store;
use onecopy_ring::record::{self, Frame, HEADER};
use onecopy_sync::atomic::Ordering::Relaxed;
use rustix::io::Errno;
use std::io::IoSlice;

/// Longest piece of a stream record that goes over the kernel, before the ring is there.
const KERNEL_PIECE: usize = 16 << 10;

impl End {
    /// Sends the slices one after the other, as one record or as a part of one.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::send`].
    #[inline]
    pub fn send_record(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        self.send_record_with(slices, Attached::default(), flags)
    }

    /// As [`End::send_record`], with something besides bytes.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::send_with`].
    pub fn send_record_with(
        &self,
        slices: &[IoSlice<'_>],
        attached: Attached<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        attached.check()?;
        let mut cursor = Cursor::new(slices);
        let total = cursor.left;
        let result = self.lock_tx(flags).and_then(|mut tx| {
            let result = self.send_record_locked(&mut tx, &mut cursor, attached, flags);
            self.mirror_full(&mut tx);
            tx.unlock_fenced();
            self.welcome_back();
            let nothing = match self.config.records {
                Records::Atomic => result.is_err(),
                Records::Stream => total == 0 && !flags.contains(SendFlags::EOR),
            };
            if nothing {
                return result;
            }
            // It was published without a look at the bell: unlocking is the fence that it wants.
            self.ring_if_armed().and(result)
        });
        match result {
            Ok(()) => Ok(total),
            // Of an atomic record nothing was sent.
            Err(_) => self.finish(result, total - cursor.left, flags),
        }
    }

    pub fn send_record_locked(
        &self,
        tx: &mut Tx,
        cursor: &mut Cursor<'_, '_>,
        mut attached: Attached<'_>,
        flags: SendFlags,
    ) -> Result<()> {
        match (self.config.records, tx) {
            (Records::Atomic, tx) => loop {
                match tx {
                    Tx::Ring(ring) => return self.send_frame(ring, cursor, attached, flags),
                    Tx::Kernel { sent } => {
                        if self.send_kernel_record(cursor, attached, flags)? {
                            point!("sent over the kernel");
                            *sent = sent.saturating_add(1);
                            return Ok(());
                        }
                    }
                }
                // (Where it may not switch even now somebody has filled the queue since, or the peer is just going, and what lies there
                // is not thrown away yet: the kernel says which.)
                self.adopt(tx);
            },
            (Records::Stream, tx) => {
                let mut first = true;
                while first || cursor.left > 0 {
                    self.adopt(tx);
                    match tx {
                        Tx::Ring(ring) => return self.send_parts(ring, cursor, attached, flags),
                        Tx::Kernel { sent } => {
                            // Of nothing no record is sent: one that was counted would be waited for at the switch.
                            let some = cursor.left > 0 || flags.contains(SendFlags::EOR);
                            if some && attached.fds.len() == MAX_FDS {
                                self.send_rings_ahead(sent, flags)?;
                            }
                            if !self.send_kernel_part(cursor, attached, flags)? {
                                continue;
                            }
                            attached = Attached::default();
                            *sent = sent.saturating_add(u64::from(some));
                        }
                    }
                    first = false;
                }
                Ok(())
            }
        }
    }

    /// An atomic record, as one frame.
    #[inline]
    pub fn send_frame(
        &self,
        ring: &mut TxRing,
        cursor: &mut Cursor<'_, '_>,
        attached: Attached<'_>,
        flags: SendFlags,
    ) -> Result<()> {
        let capacity = ring.producer.ring().capacity();
        let len = cursor.left;
        if len > record::largest(capacity) {
            return Err(self.too_long());
        }
        let saying = self.saying(ring, attached.who);
        let frame = Frame { len, end: true, with: attached.with(saying.who) };
        self.room_for_frame(ring, frame.size(capacity), flags)?;
        if !frame.with.is_nothing() {
            self.put(ring, attached.fds, saying, flags)?;
        }
        self.copy_in(ring, cursor, len, flags);
        self.counters.sent.add_exclusive(len);
        point!("copied in");
        ring.producer.publish_frame(frame);
        point!("published");
        Ok(())
    }

    /// Waits for room for a frame of `need` bytes.
    #[inline]
    pub fn room_for_frame(&self, ring: &mut TxRing, need: usize, flags: SendFlags) -> Result<()> {
        self.check_peer(ring)?;
        let room = ring.producer.room(need).map_err(|lie| self.lie(Op::Send, lie))?;
        if room >= need {
            return Ok(());
        }
        // Who has to wait waits for a little more than one record: a look at the tail takes its line from the receiver.
        let want = need.max(ring.producer.ring().capacity() / 8);
        self.room(ring, want, need, flags, &mut None).map(drop)
    }

    /// Copies the next `len` bytes behind where a header will be.
    #[inline]
    fn copy_in(&self, ring: &mut TxRing, cursor: &mut Cursor<'_, '_>, len: usize, flags: SendFlags) {
        let hint = self.hint(flags, ring.producer.ring().capacity());
        let mut at = 0;
        while at < len {
            let piece = cursor.next(len - at);
            if ring.producer.copy_in(HEADER + at, piece, hint) == Store::NonTemporal {
                self.counters.user_copied_nt.add_exclusive(piece.len());
            }
            at += piece.len();
        }
        self.counters.user_copied_in.add_exclusive(len);
    }

    /// A part of a stream record, in as many frames as there is room for at a time.
    fn send_parts(
        &self,
        ring: &mut TxRing,
        cursor: &mut Cursor<'_, '_>,
        mut attached: Attached<'_>,
        flags: SendFlags,
    ) -> Result<()> {
        let end = flags.contains(SendFlags::EOR);
        if cursor.left == 0 && !end {
            return if self.cannot_send() { Err(self.gone(Op::Send)) } else { Ok(()) };
        }
        let capacity = ring.producer.ring().capacity();
        let chunk = chunk(capacity);
        let mut start = None;
        let mut unrung = 0;
        let mut saying = self.saying(ring, attached.who);
        loop {
            let with = attached.with(saying.who);
            let size = |len: usize| Frame { len, end, with }.size(capacity);
            let (want, least) = (size(cursor.left.min(chunk)), size(cursor.left.min(1)));
            let room = self.room(ring, want, least, flags, &mut start)?;
            let len = cursor.left.min(chunk).min((room - HEADER) & !7);
            if !with.is_nothing() {
                self.put(ring, attached.fds, saying, flags)?;
                (attached, saying) = Default::default();
            }
            self.copy_in(ring, cursor, len, flags);
            self.counters.sent.add_exclusive(len);
            point!("copied in");
            ring.producer.publish_frame(Frame { len, end: end && cursor.left == 0, with });
            point!("published");
            if cursor.left == 0 {
                return Ok(());
            }
            unrung += len;
            if unrung >= capacity / 2 {
                // An early look, as for streams.
                self.ring_under_lock()?;
                unrung = 0;
            }
        }
    }

    /// Whether it was sent: else the ring is there now.
    fn send_kernel_record(
        &self,
        cursor: &mut Cursor<'_, '_>,
        attached: Attached<'_>,
        flags: SendFlags,
    ) -> Result<bool> {
        let len = cursor.left;
        let pieces = cursor.pieces(usize::MAX);
        if pieces.len() == IOV_MAX && pieces.iter().map(|piece| piece.len()).sum::<usize>() < len {
            return Err(too_long());
        }
        if !self.kernel_send(&pieces, attached, flags)? {
            return Ok(false);
        }
        cursor.advance(len);
        self.counters.sent.add_exclusive(len);
        Ok(true)
    }

    /// A piece of a stream record over the kernel: one of the kernel's records, whose first byte says whether the
    /// stream record ends with it. Whether it was sent: else the ring is there now.
    fn send_kernel_part(
        &self,
        cursor: &mut Cursor<'_, '_>,
        attached: Attached<'_>,
        flags: SendFlags,
    ) -> Result<bool> {
        if self.offered.load(Relaxed) == offered::NONE && self.rx_ring.get().is_none() {
            return Err(self.no_agreement(Op::Send));
        }
        let end = flags.contains(SendFlags::EOR);
        if cursor.left == 0 && !end {
            return Ok(true);
        }
        // (A small buffer takes less, and a byte goes in front.)
        let most = KERNEL_PIECE.min(self.max_kernel_record().saturating_sub(1)).max(1);
        let mut pieces = cursor.pieces(most);
        pieces.truncate(IOV_MAX - 1);
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let head = [u8::from(end && len == cursor.left)];
        pieces.insert(0, IoSlice::new(&head));
        if !self.kernel_send(&pieces, attached, flags)? {
            return Ok(false);
        }
        cursor.advance(len);
        self.counters.sent.add_exclusive(len);
        Ok(true)
    }

    /// Where a piece's descriptors leave no room for the rings that go with it: those go ahead of it, with a piece that has no bytes.
    /// (Stream records can't do without rings, and a client only looks for them in the first message.)
    #[cold]
    fn send_rings_ahead(&self, sent: &mut u64, flags: SendFlags) -> Result<()> {
        if self.offered.load(Relaxed) == offered::ATTACH
            && self.kernel_send(&[IoSlice::new(&[0])], Attached::default(), flags)?
        {
            point!("rings sent ahead");
            *sent = sent.saturating_add(1);
        }
        Ok(())
    }

    /// Whether it was sent: else it is time to switch.
    fn kernel_send(&self, pieces: &[IoSlice<'_>], attached: Attached<'_>, flags: SendFlags) -> Result<bool> {
        let sent = match self.send_message(pieces, attached, self.kernel_flags(flags)) {
            Err(Errno::AGAIN) if self.waits_to_switch() => return self.wait_to_switch(flags).map(|()| false),
            other => other,
        };
        let n = sent.map_err(|errno| {
            match errno {
                Errno::TOOMANYREFS => self.no_channel(errno),
                Errno::PERM if attached.who.is_some() => self.no_channel(errno),
                Errno::MSGSIZE => too_long(),
                // The reset was told while it was not known what the peer is, and kept.
                Errno::PIPE if self.reset.swap(0, Relaxed) != 0 && self.counters.sent.get() > 0 => {
                    Error::new(Op::Send, Errno::CONNRESET)
                }
                errno => Error::new(Op::Send, errno),
            }
        })?;
        self.counters.kernel_copied.add(n);
        Ok(true)
    }

    /// The peer does not keep stream records, or has left before it could say.
    #[cold]
    pub fn no_agreement(&self, op: Op) -> Error {
        if op == Op::Send && (control::gone(self.fd()) || control::hung_up(self.fd())) {
            return Error::new(op, Errno::PIPE);
        }
        Error::new(op, Errno::PROTONOSUPPORT)
            .about("Config::records")
            .because("the peer does not keep stream records; use atomic ones, or set the same at both ends")
    }

    pub fn max_record(&self) -> usize {
        match self.tx_ring.get() {
            Some(ring) => record::largest(ring.capacity()),
            None => self.max_kernel_record(),
        }
    }

    /// The longest that the kernel takes (net/unix/af_unix.c: unix_dgram_sendmsg).
    pub fn max_kernel_record(&self) -> usize {
        rustix::net::sockopt::socket_send_buffer_size(&self.fd).unwrap_or(0).saturating_sub(32)
    }
}

impl End {
    /// What a send of a record says that is longer than the ring. A pending error comes before it (net/unix/af_unix.c:
    /// unix_seqpacket_sendmsg), but not of a datagram socket (unix_dgram_sendmsg).
    #[cold]
    pub fn too_long(&self) -> Error {
        let reset = self.kind == Kind::SeqPacket && self.take_reset();
        if reset { Error::new(Op::Send, Errno::CONNRESET) } else { too_long() }
    }
}

#[cold]
pub fn too_long() -> Error {
    Error::new(Op::Send, Errno::MSGSIZE).about("bytes").because(
        "the record is longer than the buffer takes whole; raise the send buffer, or send less at once",
    )
}
