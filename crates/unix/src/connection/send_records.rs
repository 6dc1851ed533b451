//! Sending records: one frame each, or in parts where records are streams.

use crate::ancillary::attached::SendAncillary;
use crate::ancillary::channel::MAX_FDS;
use crate::config::Records;
use crate::connection::Connection;
use crate::connection::call::{Cursor, IOV_MAX, chunk};
use crate::connection::tx::{Tx, TxRing};
use crate::core::Core;
use crate::core::failure::too_long;
use crate::handshake::upgrade::offered;
use onecopy_copy::Store;
use onecopy_ring::record::{self, Frame, HEADER};
use onecopy_socket::{Error, Op, Result, SendFlags};
use rustix::io::Errno;
use std::io::IoSlice;

/// The longest piece of a stream record that goes over the kernel, before the ring is there.
const KERNEL_PIECE: usize = 16 << 10;

impl Connection {
    /// Sends the slices one after the other, as one record or as a part of one.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::send`].
    #[inline]
    pub fn send_record(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        self.send_record_with(slices, SendAncillary::default(), flags)
    }

    /// Does as [`Connection::send_record`], with something besides bytes.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::send_with`].
    pub fn send_record_with(
        &self,
        slices: &[IoSlice<'_>],
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        attached.check()?;
        let mut cursor = Cursor::new(slices);
        let total = cursor.left();
        let result = self.lock_tx(flags).and_then(|mut tx| {
            let result = self.send_record_locked(&mut tx, &mut cursor, attached, flags);
            tx.mirror_full(self);
            tx.unlock_fenced();
            self.welcome_back();
            let nothing = match self.config().records {
                Records::Atomic => result.is_err(),
                Records::Stream => total == 0 && !flags.contains(SendFlags::EOR),
            };
            if nothing {
                return result;
            }
            // The record was published without a look at the doorbell: unlocking is the fence that the look
            // needs.
            self.ring_if_armed().and(result)
        });
        match result {
            Ok(()) => Ok(total),
            // If the record is atomic, nothing of it was sent.
            Err(_) => self.finish(result, total - cursor.left(), flags),
        }
    }

    pub fn send_record_locked(
        &self,
        tx: &mut Tx,
        cursor: &mut Cursor<'_, '_>,
        mut attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<()> {
        match (self.config().records, tx) {
            (Records::Atomic, tx) => loop {
                match tx {
                    Tx::Ring(ring) => return ring.send_frame(self, cursor, attached, flags),
                    Tx::Kernel { sent } => {
                        if self.send_kernel_record(cursor, attached, flags)? {
                            point!("sent over the kernel");
                            *sent = sent.saturating_add(1);
                            return Ok(());
                        }
                    }
                }
                // It may be that this end cannot switch even now. Then somebody has filled the queue since,
                // or the peer is just going and its queue is not thrown away yet. The kernel says which.
                self.adopt(tx);
            },
            (Records::Stream, tx) => {
                let mut first = true;
                while first || cursor.left() > 0 {
                    self.adopt(tx);
                    match tx {
                        Tx::Ring(ring) => return ring.send_parts(self, cursor, attached, flags),
                        Tx::Kernel { sent } => {
                            // Of no bytes, no record is sent: if one were counted, the switch would wait for
                            // it.
                            let some = cursor.left() > 0 || flags.contains(SendFlags::EOR);
                            if some && attached.fds.len() == MAX_FDS {
                                self.send_rings_ahead(sent, flags)?;
                            }
                            if !self.send_kernel_part(cursor, attached, flags)? {
                                continue;
                            }
                            attached = SendAncillary::default();
                            *sent = sent.saturating_add(u64::from(some));
                        }
                    }
                    first = false;
                }
                Ok(())
            }
        }
    }

    /// Returns whether the record was sent. If not, the ring is there now.
    fn send_kernel_record(
        &self,
        cursor: &mut Cursor<'_, '_>,
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<bool> {
        let len = cursor.left();
        let pieces = cursor.pieces(usize::MAX);
        if pieces.len() == IOV_MAX && pieces.iter().map(|piece| piece.len()).sum::<usize>() < len {
            return Err(too_long());
        }
        if !self.kernel_send(&pieces, attached, flags)? {
            return Ok(false);
        }
        cursor.advance(len);
        self.counters().sent.add_exclusive(len);
        Ok(true)
    }

    /// Sends a piece of a stream record over the kernel, as one of the kernel's records. Its first byte says
    /// whether the stream record ends with it. Returns whether it was sent. If not, the ring is there now.
    fn send_kernel_part(
        &self,
        cursor: &mut Cursor<'_, '_>,
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<bool> {
        if self.handshake.offered() == offered::NONE && self.rx_ring().is_none() {
            return Err(self.no_agreement(Op::Send));
        }
        let end = flags.contains(SendFlags::EOR);
        if cursor.left() == 0 && !end {
            return Ok(true);
        }
        // A small buffer takes less, and a byte goes in front.
        let most = KERNEL_PIECE.min(self.max_kernel_record().saturating_sub(1)).max(1);
        let mut pieces = cursor.pieces(most);
        pieces.truncate(IOV_MAX - 1);
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let head = [u8::from(end && len == cursor.left())];
        pieces.insert(0, IoSlice::new(&head));
        if !self.kernel_send(&pieces, attached, flags)? {
            return Ok(false);
        }
        cursor.advance(len);
        self.counters().sent.add_exclusive(len);
        Ok(true)
    }

    /// Sends the rings ahead of a piece whose descriptors leave no room for them, with a piece that has no
    /// bytes. (Stream records cannot do without rings, and a client only looks for them in the first
    /// message.)
    #[cold]
    fn send_rings_ahead(&self, sent: &mut u64, flags: SendFlags) -> Result<()> {
        if self.handshake.offered() == offered::ATTACH
            && self.kernel_send(&[IoSlice::new(&[0])], SendAncillary::default(), flags)?
        {
            point!("rings sent ahead");
            *sent = sent.saturating_add(1);
        }
        Ok(())
    }

    /// Returns whether the pieces were sent. If not, it is time to switch.
    fn kernel_send(
        &self,
        pieces: &[IoSlice<'_>],
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<bool> {
        let sent = match self.handshake.send_message(self, pieces, attached, self.kernel_flags(flags)) {
            Err(Errno::AGAIN) if self.handshake.waits_to_switch() => {
                return self.wait_to_switch(flags).map(|()| false);
            }
            other => other,
        };
        let n = sent.map_err(|errno| {
            match errno {
                Errno::TOOMANYREFS => self.no_channel(errno),
                Errno::PERM if attached.credentials.is_some() => self.no_channel(errno),
                Errno::MSGSIZE => too_long(),
                // The kernel reported the reset while it was not known what the peer is, and it was kept.
                Errno::PIPE if self.take_noted_reset() => Error::new(Op::Send, Errno::CONNRESET),
                errno => Error::new(Op::Send, errno),
            }
        })?;
        self.counters().kernel_copied.add(n);
        Ok(true)
    }
}

impl TxRing {
    /// Sends an atomic record, as one frame.
    #[inline]
    pub fn send_frame(
        &mut self,
        core: &Core,
        cursor: &mut Cursor<'_, '_>,
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<()> {
        let capacity = self.producer.ring().capacity();
        let len = cursor.left();
        if len > record::largest(capacity) {
            return Err(core.too_long());
        }
        let saying = self.saying(core, attached.ucred());
        let frame = Frame { len, end: true, with: attached.with(saying.who) };
        self.room_for_frame(core, frame.size(capacity), flags)?;
        if !frame.with.is_nothing() {
            self.put(core, attached.fds, saying, flags)?;
        }
        self.copy_in(core, cursor, len, flags);
        core.counters().sent.add_exclusive(len);
        point!("copied in");
        self.producer.publish_frame(frame);
        point!("published");
        self.sent();
        Ok(())
    }

    /// Waits for room for a frame of `need` bytes.
    #[inline]
    pub fn room_for_frame(&mut self, core: &Core, need: usize, flags: SendFlags) -> Result<()> {
        self.check_peer(core)?;
        let room = self.producer.room(need).map_err(|misbehaved| core.misbehaved(Op::Send, misbehaved))?;
        if room >= need {
            return Ok(());
        }
        // A send that has to wait waits for a little more than one record: a look at the tail takes its cache
        // line from the receiver.
        let want = need.max(self.producer.ring().capacity() / 8);
        self.room(core, want, need, flags, &mut None).map(drop)
    }

    /// Copies the next `len` bytes to where they belong behind the header.
    #[inline]
    fn copy_in(&mut self, core: &Core, cursor: &mut Cursor<'_, '_>, len: usize, flags: SendFlags) {
        let mut at = 0;
        while at < len {
            let piece = cursor.next(len - at);
            let hint = self.hint(core, flags, piece.len());
            if self.producer.copy_in(HEADER + at, piece, hint) == Store::NonTemporal {
                core.counters().user_copied_nt.add_exclusive(piece.len());
            }
            at += piece.len();
        }
        core.counters().user_copied_in.add_exclusive(len);
    }

    /// Sends a part of a stream record, in as many frames as there is room for at a time.
    fn send_parts(
        &mut self,
        core: &Core,
        cursor: &mut Cursor<'_, '_>,
        mut attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<()> {
        let end = flags.contains(SendFlags::EOR);
        if cursor.left() == 0 && !end {
            return if core.cannot_send() { Err(core.gone(Op::Send)) } else { Ok(()) };
        }
        let capacity = self.producer.ring().capacity();
        let chunk = chunk(capacity);
        let mut start = None;
        let mut unrung = 0;
        let mut saying = self.saying(core, attached.ucred());
        loop {
            let with = attached.with(saying.who);
            let size = |len: usize| Frame { len, end, with }.size(capacity);
            let (want, least) = (size(cursor.left().min(chunk)), size(cursor.left().min(1)));
            let room = self.room(core, want, least, flags, &mut start)?;
            let len = cursor.left().min(chunk).min((room - HEADER) & !7);
            if !with.is_nothing() {
                self.put(core, attached.fds, saying, flags)?;
                (attached, saying) = Default::default();
            }
            self.copy_in(core, cursor, len, flags);
            core.counters().sent.add_exclusive(len);
            point!("copied in");
            self.producer.publish_frame(Frame { len, end: end && cursor.left() == 0, with });
            point!("published");
            if cursor.left() == 0 {
                self.sent();
                return Ok(());
            }
            unrung += len;
            if unrung >= capacity / 2 {
                // This is an early look, as for streams.
                core.ring_under_lock()?;
                unrung = 0;
            }
        }
    }
}
