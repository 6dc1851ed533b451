//! Whether the counters are what the pieces say: for tests.

use super::*;

impl Sender {
    /// The first thing that does not fit, for tests with peers that lie: each counter is the sum of the pieces that it counts, and the
    /// pieces follow each other without gaps from `una` to `nxt`.
    #[doc(hidden)]
    pub fn audit(&self) -> Result<(), String> {
        let Some(flight) = &self.flight else {
            return if self.una == self.nxt { Ok(()) } else { Err("outstanding, but not known".to_owned()) };
        };
        let board = &flight.board;
        let sum = |marks: Marks| -> u32 {
            board.pieces.iter().filter(|piece| piece.is(marks)).map(|piece| piece.packets).sum()
        };
        let out: u32 = board.pieces.iter().map(|piece| piece.packets).sum();
        let sacked = if self.has.contains(Has::SACK) { sum(Marks::SACKED) } else { board.sacked };
        let counted = (board.out, board.sacked, board.lost, board.resent);
        let found = (out, sacked, sum(Marks::LOST), sum(Marks::RESENT));
        if counted != found {
            return Err(format!("counted {counted:?} packets out, sacked, lost, resent; found {found:?}"));
        }
        if board.sacked + board.lost > board.out {
            return Err(format!("{} sacked and {} lost of {}", board.sacked, board.lost, board.out));
        }
        let mut at = board.pieces.front().map_or(self.nxt, |first| first.seq);
        if at.after(self.una) || self.una.after(self.nxt) {
            return Err(format!("begins at {at:?}, una {:?}, nxt {:?}", self.una, self.nxt));
        }
        for piece in &board.pieces {
            if piece.seq != at || piece.len == 0 || piece.packets == 0 {
                return Err(format!("a gap, or nothing, at {at:?}: {piece:?}"));
            }
            if piece.is(Marks::SACKED) && piece.is(Marks::LOST) {
                return Err(format!("received and lost: {piece:?}"));
            }
            if piece.awaits_resending() && !piece.end().after(board.hint) {
                return Err(format!("lost, and before the hint {:?}: {piece:?}", board.hint));
            }
            at = piece.end();
        }
        if at != self.nxt {
            return Err(format!("ends at {at:?}, nxt {:?}", self.nxt));
        }
        if board.copies.len() > 2 * board.pieces.len() + 64 {
            return Err(format!("{} copies of {} pieces", board.copies.len(), board.pieces.len()));
        }
        Ok(())
    }
}
