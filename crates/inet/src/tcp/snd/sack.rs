//! SACK and DSACK: what the peer says it has (RFC 2018, RFC 2883).

use super::ack::{Flags, Round};
use super::*;
use crate::wire::tcp::Blocks;

/// A block: its first byte, and the one behind its last.
type Block = (Seq, Seq);

impl Sender {
    /// Puts the blocks of an acknowledgement onto the scoreboard (tcp_sacktag_write_queue). `prior_una` is `una` as it was before.
    pub(super) fn select(
        &mut self,
        f: &mut Flight,
        round: &mut Round,
        blocks: &Blocks,
        ack: Seq,
        prior_una: Seq,
    ) {
        round.reordered = self.nxt;
        if f.board.sacked == 0 {
            f.high_sacked = self.una;
        }
        let duplicate = self.duplicate(f, round, blocks, ack, prior_una);
        if ack.before(prior_una.minus(self.max_window)) || f.board.out == 0 {
            return;
        }
        let mut used: [Option<Block>; Blocks::MAX] = [None; Blocks::MAX];
        let mut dup: Option<Block> = None;
        for (index, block) in blocks.iter().enumerate() {
            let is_dup = duplicate && index == 0;
            if self.valid(f, is_dup, block) && block.1.after(prior_una) {
                used[index] = Some(block);
                if is_dup {
                    dup = Some(block);
                }
            }
        }
        used.sort_by_key(|block| block.map_or(i32::MAX, |(from, _)| from.since(self.una)));
        // Blocks may overlap; what was walked over for one counts once.
        let mut walked = f.board.pieces.front().map_or(self.una, |first| first.seq);
        let used = used.into_iter().flatten();
        for (from, until) in used {
            let is_dup = dup == Some((from, until));
            let from_here = if from.before(walked) { walked } else { from };
            let ahead = |dup: &Block| dup.1.after(from_here) && !dup.0.before(from) && dup.0.before(until);
            let inner = dup.filter(|dup| !is_dup && ahead(dup));
            walked = self.walk(f, round, (from, until), from_here, is_dup, inner);
        }
        if self.state != State::Loss || f.undo_marker.is_some() {
            self.note_reordering(f, round.reordered);
        }
    }

    /// Whether the first block is a DSACK: what was received twice (tcp_check_dsack, tcp_dsack_seen). One that tells of more than was
    /// ever sent again is no work of ours, but of a network that duplicates, or of a liar.
    fn duplicate(
        &mut self,
        f: &mut Flight,
        round: &mut Round,
        blocks: &Blocks,
        ack: Seq,
        prior_una: Seq,
    ) -> bool {
        let mut blocks = blocks.iter();
        let Some((from, until)) = blocks.next() else { return false };
        if !from.before(ack) {
            let Some(outer) = blocks.next() else { return false };
            if until.after(outer.1) || from.before(outer.0) {
                return false;
            }
        }
        if !from.before(until) {
            return false;
        }
        let len = until.since(from) as u32;
        if len > self.max_window {
            return false;
        }
        let mut segments = 1;
        if len > self.mss() {
            segments = len.div_ceil(self.mss());
        } else if f.tlp.is_some_and(|tlp| tlp.high == until) {
            round.flags |= Flags::DSACK_PROBE;
        }
        let history = self.history();
        history.dsack_dups = history.dsack_dups.saturating_add(segments);
        if history.dsack_dups > history.total_retrans {
            return false;
        }
        // RFC 8985, section 6.2, step 4: what a probe caused says nothing of the order of packets.
        if history.reord_seen > 0 && !round.flags.contains(Flags::DSACK_PROBE) {
            f.rack_dsack = true;
        }
        round.flags |= Flags::DSACK;
        round.delivered += segments;
        // Of what is acknowledged already nothing more is known than this.
        if let (Some(marker), Some(open)) = (f.undo_marker, &mut f.undo_retrans)
            && !until.after(prior_una)
            && until.after(marker)
        {
            *open = open.saturating_sub(segments);
        }
        true
    }

    /// Whether a block lies in what was sent, behind `una`; a DSACK may lie before it, as far as undoing goes back
    /// (tcp_is_sackblock_valid).
    fn valid(&self, f: &Flight, duplicate: bool, (from, until): Block) -> bool {
        if until.after(self.nxt) || !from.before(until) || !from.before(self.nxt) {
            return false;
        }
        if from.after(self.una) {
            return true;
        }
        let Some(marker) = f.undo_marker.filter(|_| duplicate && !until.after(self.una)) else {
            return false;
        };
        !from.before(marker) || (until.after(marker) && !from.before(until.minus(self.max_window)))
    }

    /// Marks what lies in a block, from `here` on, and says how far it came. `inner` is the part of it that was received twice.
    fn walk(
        &mut self,
        f: &mut Flight,
        round: &mut Round,
        block: Block,
        here: Seq,
        duplicate: bool,
        inner: Option<Block>,
    ) -> Seq {
        let first = f.board.at(here);
        let mut index = first;
        let mut end = here;
        while let Some(piece) = f.board.pieces.get(index).filter(|piece| piece.seq.before(block.1)) {
            let mut dup = duplicate;
            let mut covered = false;
            if let Some(inner) = inner.filter(|inner| piece.seq.before(inner.1)) {
                covered = self.cover(f, index, inner) == Some(true);
                dup |= covered;
            }
            if !covered {
                match self.cover(f, index, block) {
                    Some(yes) => covered = yes,
                    None => break,
                }
            }
            if covered {
                self.mark_selected(f, round, index, dup);
            }
            end = f.board.pieces.get(index).map_or(end, Piece::end);
            index += 1;
        }
        f.board.join_sacked(first, index);
        end
    }

    /// Whether a block has a piece; the piece is cut, between packets, where only a part is (tcp_match_skb_to_sack). None where the block
    /// has less than a packet of it.
    fn cover(&mut self, f: &mut Flight, index: usize, (from, until): Block) -> Option<bool> {
        let piece = f.board.pieces.get(index)?;
        let begun = !from.after(piece.seq);
        if begun && !until.before(piece.end()) {
            return Some(true);
        }
        if piece.packets == 1 || !piece.end().after(from) {
            return Some(false);
        }
        let mss = u32::from(piece.mss);
        let to = if begun { until } else { from };
        let mut len = to.since(piece.seq) as u32;
        if len < mss {
            if begun {
                return None;
            }
            len = mss;
        }
        len = if begun { len / mss * mss } else { len.div_ceil(mss) * mss };
        if len >= piece.data() && !begun {
            return Some(false);
        }
        let len = len + u32::from(piece.is(Marks::SYN));
        let mss = piece.mss;
        f.board.split(index, len, mss, false);
        Some(begun)
    }

    /// The peer has a piece (tcp_sacktag_one), and had it before where `duplicate`.
    fn mark_selected(&mut self, f: &mut Flight, round: &mut Round, index: usize, duplicate: bool) {
        let Some(mut piece) = f.board.pieces.get(index).copied() else { return };
        if duplicate && piece.is(Marks::RESENT | Marks::EVER_RESENT) {
            if let (Some(marker), Some(open)) = (f.undo_marker, &mut f.undo_retrans)
                && piece.end().after(marker)
            {
                *open = open.saturating_sub(piece.packets);
            }
            if piece.is(Marks::SACKED) && piece.seq.before(round.reordered) {
                round.reordered = piece.seq;
            }
        }
        if !piece.end().after(self.una) {
            return;
        }
        if !piece.is(Marks::SACKED) {
            self.rack_advance(f, round, &piece);
            round.note_rate(&piece);
            if piece.is(Marks::RESENT) {
                // If it was not held to be lost, the copy is still under way.
                if piece.is(Marks::LOST) {
                    piece.marks -= Marks::LOST | Marks::RESENT;
                    f.board.lost -= piece.packets;
                    f.board.resent -= piece.packets;
                }
            } else {
                if !piece.is(Marks::EVER_RESENT) {
                    // A hole is filled by what was sent once: it was overtaken.
                    if piece.seq.before(f.high_sacked) && piece.seq.before(round.reordered) {
                        round.reordered = piece.seq;
                    }
                    if !piece.end().after(f.high) {
                        round.flags |= Flags::ORIGINAL;
                    }
                    round.first_selected.get_or_insert(piece.sent);
                    round.last_selected = piece.sent;
                }
                if piece.is(Marks::LOST) {
                    piece.marks -= Marks::LOST;
                    f.board.lost -= piece.packets;
                }
            }
            piece.marks |= Marks::SACKED | Marks::JUDGED;
            round.flags |= Flags::DATA_SACKED;
            f.board.sacked += piece.packets;
            round.delivered += piece.packets;
        }
        if duplicate && piece.is(Marks::RESENT) {
            piece.marks -= Marks::RESENT;
            f.board.resent -= piece.packets;
        }
        if piece.end().after(f.high_sacked) {
            f.high_sacked = piece.end();
        }
        if let Some(place) = f.board.pieces.get_mut(index) {
            *place = piece;
        }
    }

    /// What begins at `low` was overtaken by what is selected: so far apart are packets that arrive in another order than they were sent
    /// (tcp_check_sack_reordering).
    pub(super) fn note_reordering(&mut self, f: &Flight, low: Seq) {
        let high = if f.board.sacked == 0 { self.una } else { f.high_sacked };
        if !low.before(high) {
            return;
        }
        let distance = (high.since(low) as u32).div_ceil(self.mss());
        if distance > self.reordering.into() {
            self.reordering = distance.min(MAX_REORDERING) as u16;
        }
        let history = self.history();
        history.reord_seen = history.reord_seen.saturating_add(1);
    }
}
