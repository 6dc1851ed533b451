//! What a receive of bytes does at a mark: it takes what the mark announces, or ends there.

use crate::ancillary::pending::Next;
use crate::connection::call::{Call, copy_ahead, rest};
use crate::connection::rx::RxRing;
use crate::core::Core;
use onecopy_ring::Mark;
use onecopy_socket::{Op, Result};
use std::io::IoSliceMut;

/// What a receive from the ring may take next.
pub enum Part {
    /// So many bytes.
    Bytes(usize),
    /// Bytes of the page in [`crate::ancillary::pending::Pending::piece`].
    Reference,
    /// Nothing yet: look again.
    Again,
    /// Nothing more in this call.
    Stop,
}

impl RxRing {
    /// Returns what this receive may take where `n` bytes come before the next mark, or something came with bytes
    /// before.
    #[cold]
    pub(super) fn part_at_mark(
        &mut self,
        core: &Core,
        n: usize,
        call: &mut Call<'_>,
        peek: bool,
        got: usize,
    ) -> Result<Part> {
        let left = call.until.saturating_sub(self.consumer.position());
        if left == 0 {
            return Ok(Part::Stop);
        }
        if n == 0 {
            let who = |mark| matches!(mark, Mark::Identity { .. });
            if got > 0 && core.passes_identity() && self.consumer.mark().is_ok_and(who) {
                // Bytes of two senders never merge (net/unix/af_unix.c: unix_skb_scm_eq).
                return Ok(Part::Stop);
            }
            return Ok(match self.meet_mark(core)? {
                Next::Reference => Part::Reference,
                Next::Again => Part::Again,
            });
        }
        let mut n = (n as u64).min(left) as usize;
        if self.pending.has_fds() {
            if call.until != u64::MAX {
                // Descriptors of two sends never merge.
                return Ok(Part::Stop);
            }
            call.until = self.take_fds(core, call, peek)?;
            n = (n as u64).min(call.until.saturating_sub(self.consumer.position())) as usize;
        }
        Ok(if n > 0 { Part::Bytes(n) } else { Part::Stop })
    }

    /// Gives the pending descriptors to this receive. Returns the position up to which it may go with them.
    pub fn take_fds(&mut self, core: &Core, call: &mut Call<'_>, peek: bool) -> Result<u64> {
        self.bring_fds(core)?;
        let until = self.pending.fds_until();
        if peek {
            if let (Some(fds), Some(to)) = (self.pending.fds_here(), &mut call.fds) {
                fds.copy_to(to)?;
            }
        } else if let (Some(fds), Some(to)) = (self.pending.take_fds(), &mut call.fds) {
            (to.list, to.truncated) = (fds.list, fds.truncated);
        }
        Ok(until)
    }

    /// Copies the bytes that came with the descriptors `at` bytes ahead, if these are there. Takes nothing.
    pub(super) fn peek_behind_fds(
        &mut self,
        core: &Core,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        at: usize,
    ) -> Result<usize> {
        let misbehaved = |misbehaved| core.misbehaved(Op::Recv, misbehaved);
        if rest(slices, skip).next().is_none() || !self.consumer.mark_at(at) {
            return Ok(0);
        }
        let available = self.consumer.available(usize::MAX).map_err(misbehaved)?;
        Ok(match self.consumer.behind_fds(available).map_err(misbehaved)? {
            Some((behind, len)) => copy_ahead(&self.consumer, slices, skip, behind, len),
            None => 0,
        })
    }

    /// Copies from the page that comes next. Its sender gets the page back once all of it was received.
    pub(super) fn copy_reference(&mut self, slices: &mut [IoSliceMut<'_>], skip: usize, peek: bool) -> usize {
        let Some(piece) = self.pending.piece_mut() else { return 0 };
        let mut got = 0;
        let (mut left, len) = (piece.len(), piece.len());
        for slice in rest(slices, skip) {
            let n = slice.len().min(left);
            if n == 0 {
                break;
            }
            piece.copy_out_from(got, &mut slice[..n]);
            got += n;
            left -= n;
        }
        if !peek && got == len {
            self.take_reference();
        } else if !peek {
            piece.advance(got);
        }
        got
    }
}
