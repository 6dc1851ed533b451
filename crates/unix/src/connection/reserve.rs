//! Room in the peer's ring that a program writes in place.
//!
//! [`TxRing::reserve`] waits for the room. The program writes through an [`InPlace`] as often as it likes. Then
//! [`TxRing::publish_reserved`] shows the peer what was written.

use crate::config::Records;
use crate::connection::credentials::Saying;
use crate::connection::tx::TxRing;
use crate::core::Core;
use onecopy_copy::Store;
use onecopy_ring::record::{self, Frame, Identity, With};
use onecopy_ring::{PeerMisbehaved, Producer};
use onecopy_socket::{Result, SendFlags};
use onecopy_sys::map::{Span, slice};

/// What a reservation came to.
#[derive(Clone, Copy, Debug)]
pub struct Reserved {
    /// Bytes in front of the room, for the header of a record, or a mark.
    pub base: usize,
    /// Bytes of the room.
    pub len: usize,
    /// What must be stated of the sender's identity before the bytes.
    pub saying: Saying,
}

/// Bytes behind the head of a ring, which a program writes where they lie. It publishes nothing.
pub struct InPlace<'a>(&'a mut Producer);

impl<'a> InPlace<'a> {
    /// Makes the room of a producer that publishes nothing itself.
    #[inline]
    pub fn over(producer: &'a mut Producer) -> InPlace<'a> {
        InPlace(producer)
    }

    /// Copies `bytes` in, `at` bytes behind the head, with the stores that the socket's policy asks for. Returns
    /// which stores that were.
    #[inline]
    pub fn copy_in(&mut self, core: &Core, at: usize, bytes: &[u8], flags: SendFlags) -> Store {
        let hint = core.hint_of(flags, self.0.ring().capacity(), bytes.len());
        self.0.copy_in(at, bytes, hint)
    }

    /// Returns where the bytes lie from `from` up to `to`, counted from the head.
    #[inline]
    pub fn spans(self, from: usize, to: usize) -> [Span<'a>; 2] {
        slice(&self.0.spans(to), from, usize::MAX)
    }
}

impl TxRing {
    /// Waits for room for `len` bytes that are written in place. A stream gets less where the ring is smaller, and
    /// so does a record that may be sent in parts.
    ///
    /// # Errors
    ///
    /// Those of [`TxRing::room`]; EMSGSIZE for a record that never fits.
    #[inline]
    pub fn reserve(&mut self, core: &Core, len: usize, flags: SendFlags) -> Result<Reserved> {
        let capacity = self.producer.ring().capacity();
        if core.kind().has_records() {
            let len = match core.config().records {
                Records::Atomic => len,
                Records::Stream => len.min(record::largest(capacity)),
            };
            let saying = self.saying(core, None);
            self.reserve_record(core, len, &saying, flags)?;
            return Ok(Reserved { base: record::HEADER, len, saying });
        }
        // The identity goes before the first byte, and is published with it: a mark alone would be nothing to
        // receive.
        let saying = self.saying(core, None);
        let base = if saying.who == Identity::AsBefore { 0 } else { self.producer.stride() };
        let len = len.min(capacity - base);
        self.room(core, base + len, base + len, flags, &mut None)?;
        Ok(Reserved { base, len, saying })
    }

    /// Waits for room for a record of `len` bytes that are written in place behind its header, and for what `saying`
    /// takes.
    ///
    /// # Errors
    ///
    /// Those of [`TxRing::room`]; EMSGSIZE for a record that never fits.
    #[inline]
    pub fn reserve_record(
        &mut self,
        core: &Core,
        len: usize,
        saying: &Saying,
        flags: SendFlags,
    ) -> Result<()> {
        let capacity = self.producer.ring().capacity();
        if len > record::largest(capacity) {
            return Err(core.too_long());
        }
        let frame = Frame { len, end: true, with: With::new(0, saying.who) };
        self.room_for_frame(core, frame.size(capacity), flags)
    }

    /// Returns the room that was reserved, to be written.
    #[inline]
    pub fn in_place(&mut self) -> InPlace<'_> {
        InPlace(&mut self.producer)
    }

    /// Makes a producer of the room that comes next, for a program that writes there without holding this side. It
    /// publishes nothing.
    ///
    /// # Errors
    ///
    /// Those of [`Producer::resume`].
    #[inline]
    pub fn room_apart(&self) -> std::result::Result<Producer, PeerMisbehaved> {
        let mut room = Producer::new(self.producer.ring().clone());
        room.resume(self.producer.state())?;
        Ok(room)
    }

    /// Whether the next bytes belong where that room begins.
    #[inline]
    pub fn begins_at(&self, room: &Producer) -> bool {
        // The room keeps its ring mapped, so no other ring has that address.
        std::ptr::eq(room.header(), self.producer.header()) && room.head() == self.producer.head()
    }

    /// Publishes `len` bytes that were written where the next bytes belong, as a frame where there are records.
    /// There is room for them, with what `saying` takes. Publishes nothing if the peer is known to have gone
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// EPIPE, ECONNRESET; those of [`TxRing::put`].
    #[inline]
    pub fn publish_reserved(
        &mut self,
        core: &Core,
        len: usize,
        end: bool,
        saying: Saying,
        flags: SendFlags,
    ) -> Result<()> {
        self.check_peer(core)?;
        let says = saying.who != Identity::AsBefore;
        if core.kind().has_records() {
            if says {
                self.put(core, &[], saying, flags)?;
            }
            core.counters().sent.add_exclusive(len);
            self.producer.publish_frame(Frame { len, end, with: With::new(0, saying.who) });
        } else {
            if says {
                self.lay(core, saying, flags)?;
            }
            core.counters().sent.add_exclusive(len);
            self.producer.publish(len);
        }
        Ok(())
    }
}
