//! Records by reference: a frame that lists pages instead of holding bytes ([`onecopy_ring::record::Parts`]).
//!
//! One chain is one record. A record's first bytes may be in the frame itself: those that the sender gives
//! beside the chain, and those of fragments that are in no pool of this socket's. A record is sent whole or
//! not at all, so the sender takes places for all pages before it lends the first one. A receive that asks
//! for bytes copies them out of the pages. It makes no difference to that receive, to MSG_TRUNC and to
//! MSG_PEEK which of a record's bytes were where.

use crate::byref::listed::{Contents, Listed};
use crate::config::Records;
use crate::connection::call::{Call, scatter};
use crate::connection::rx::RxRing;
use crate::core::Core;
use crate::core::kind::Kind;
use onecopy_ring::PeerMisbehaved;
use onecopy_ring::record::{Frame, Parts};
use onecopy_socket::{Op, Result};
use std::io::IoSliceMut;

impl RxRing {
    /// Reads the list in the next frame, once: a peer that changes it afterwards changes nothing.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved`]. What was adopted before goes back.
    pub fn meet_list(&mut self, frame: Frame) -> std::result::Result<(), PeerMisbehaved> {
        let at = self.consumer.position();
        if self.pending.has_list_at(at) {
            return Ok(());
        }
        let parts = self.consumer.parts(0, frame)?;
        let mut pieces = Vec::with_capacity(parts.references);
        for i in 0..parts.references {
            let reference = self.consumer.part(0, parts, i)?;
            pieces.push(self.pending.adopt(reference)?);
        }
        self.pending.keep_list(Listed::new(at, parts.bytes, pieces));
        Ok(())
    }

    /// Copies the first bytes of a list's record to the slices, as many as there is room for. Returns how
    /// many.
    pub fn copy_list(&self, listed: &Listed, slices: &mut [IoSliceMut<'_>]) -> usize {
        let room: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut done = listed.bytes().min(room);
        scatter(slices, 0, done, |at, part| self.consumer.copy_out(Parts::BYTES_AT + at, part));
        for piece in listed.pieces() {
            let n = piece.len().min(room - done);
            scatter(slices, done, n, |at, part| piece.copy_out_from(at, part));
            done += n;
        }
        done
    }

    /// Maps the pool that the next frame tells of, and goes on behind that frame.
    fn meet_pool_frame(&mut self, core: &Core, frame: Frame) -> Result<()> {
        let misbehaved = |misbehaved| core.misbehaved(Op::Recv, misbehaved);
        let pool = self.consumer.pool(frame).map_err(misbehaved)?;
        self.meet_pool(core, pool)?;
        self.consumer.take(frame.size(self.consumer.ring().capacity()));
        Ok(())
    }
}

impl RxRing {
    /// Looks at what comes with the next frame.
    #[cold]
    pub fn find(&mut self, core: &Core, frame: Frame, call: &mut Call<'_>, peek: bool) -> Result<Contents> {
        let listed = frame.with.is_pool() || frame.with.has_parts();
        if listed && (core.kind() != Kind::SeqPacket || core.config().records == Records::Stream) {
            return Err(core.misbehaved(Op::Recv, PeerMisbehaved::Reference));
        }
        if frame.with.is_pool() {
            self.meet_pool_frame(core, frame)?;
            return Ok(Contents::Again);
        }
        let said = self.receive_with(core, frame.with, call, peek)?;
        if !listed {
            return Ok(Contents::Bytes(said));
        }
        self.expect_pools(core)?;
        self.meet_list(frame).map_err(|misbehaved| core.misbehaved(Op::Recv, misbehaved))?;
        Ok(Contents::List(said))
    }
}
