//! Receiving chains.

use crate::ancillary::channel::Fds;
use crate::ancillary::pending::Next;
use crate::byref::piece::Piece;
use crate::connection::rx::RxRing;
use crate::core::Core;
use onecopy_chain::{Chain, Mark};
use onecopy_socket::{Error, Op, Result};
use rustix::io::Errno;

/// Takes the next reference, or as much of it as is asked for.
#[inline]
pub fn take_piece(rx: &mut RxRing, max: usize) -> Option<Piece> {
    let piece = rx.pending.take_piece(max);
    if rx.pending.piece().is_none() {
        rx.consumer.take_mark();
    }
    piece
}

impl RxRing {
    /// Takes the references that are there, one after the other, in place.
    pub fn chain_of_references(&mut self, core: &Core, max: usize) -> Result<Chain> {
        let mut chain = Chain::new();
        let said = core.passes_identity().then(|| self.pending.sender());
        Fds { who: said, ..Fds::default() }.attach_to(&mut chain, core);
        loop {
            let Some(piece) = take_piece(self, max - chain.len()) else { break };
            let referenced = piece.len();
            // There is room: `take_piece` and the look at the true size below ensure it.
            let Some(Ok(())) = piece.into_fragment().map(|fragment| chain.append(fragment)) else {
                return Err(Error::new(Op::Recv, Errno::OVERFLOW));
            };
            core.counters().received.add_exclusive(referenced);
            core.counters().referenced.add_exclusive(referenced);
            if chain.len() == max || !self.reference_follows(core) {
                break;
            }
            if said.is_some_and(|said| said != self.pending.sender()) {
                // Bytes of different senders never merge (unix(7)).
                break;
            }
            let next = self.pending.piece().map_or(0, Piece::page_len);
            if chain.true_size().saturating_add(next) > u32::MAX as usize {
                break;
            }
        }
        Ok(chain)
    }

    /// Whether a reference comes next, without waiting. The next call tells of any misbehaviour there.
    pub fn reference_follows(&mut self, core: &Core) -> bool {
        loop {
            let there = self.consumer.available(1);
            if !matches!(there, Ok(1..)) || !matches!(there.and_then(|n| self.consumer.before_mark(n)), Ok(0))
            {
                return false;
            }
            match self.meet_mark(core) {
                Ok(Next::Reference) => return !self.pending.has_fds(),
                Ok(Next::Again) => {}
                Err(_) => return false,
            }
        }
    }
}

impl Fds {
    /// Attaches what came with the bytes that are appended next: the sender's credentials, and descriptors.
    pub fn attach_to(self, chain: &mut Chain, core: &Core) {
        if let Some(who) = self.who.filter(|_| core.passes_credentials()) {
            chain.attach(Mark::Credentials(who.into()));
        }
        if !self.list.is_empty() {
            chain.attach(Mark::Rights(self.list));
        }
    }
}
