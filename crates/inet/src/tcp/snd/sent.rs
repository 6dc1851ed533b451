//! What was sent and is not acknowledged: the scoreboard.

use super::Seq;
use std::collections::VecDeque;

bitflags::bitflags! {
    /// What is known of a piece. Where Linux has a tag (net/ipv4/tcp_input.c, before tcp_sacktag_one), its letter is told.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct Marks: u16 {
        /// S: the receiver has it, out of order.
        const SACKED = 0x01;
        /// L: it is held to be lost.
        const LOST = 0x02;
        /// R: a copy of it is under way.
        const RESENT = 0x04;
        /// It was sent more than once: whose acknowledgement comes cannot be told (Karn).
        const EVER_RESENT = 0x08;
        /// The program ended a record here: nothing is joined to it.
        const RECORD = 0x10;
        /// It ends with FIN, which counts one.
        const FIN = 0x20;
        /// It begins with SYN, which counts one.
        const SYN = 0x40;
        /// RACK has judged it, and looks at it again only after it was sent again.
        const JUDGED = 0x80;
        /// The program ended a write here: it leaves with PSH.
        const PUSHED = 0x100;
    }
}

/// Bytes that were sent at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Its first byte, or its SYN.
    pub seq: Seq,
    /// Sequence numbers that it takes: its bytes, and one each for SYN and FIN.
    pub len: u32,
    /// When it was sent last, in µs.
    pub sent: u64,
    /// Packets of `mss` bytes that it left as.
    pub packets: u32,
    /// Packets that had been delivered when it was sent last.
    pub delivered: u32,
    pub mss: u16,
    pub marks: Marks,
}

impl Piece {
    pub fn end(&self) -> Seq {
        self.seq.plus(self.len)
    }

    /// Bytes, without SYN and FIN.
    pub fn data(&self) -> u32 {
        self.len - u32::from(self.is(Marks::SYN)) - u32::from(self.is(Marks::FIN))
    }

    /// Whether it has one of them.
    pub fn is(&self, marks: Marks) -> bool {
        self.marks.intersects(marks)
    }

    /// Lost, and no copy of it is under way.
    pub fn awaits_resending(&self) -> bool {
        self.marks & (Marks::LOST | Marks::RESENT | Marks::SACKED) == Marks::LOST
    }

    /// Received, and nothing else is to be known of it but that it was.
    fn settled(&self) -> bool {
        self.marks & (Marks::SACKED | Marks::LOST | Marks::RESENT) == Marks::SACKED
    }

    /// Counts its packets anew, and says by how many they became more.
    fn count(&mut self, mss: u16) -> i32 {
        let before = self.packets;
        self.mss = mss;
        self.packets = packets(self.data(), mss);
        self.packets as i32 - before as i32
    }
}

/// In how many packets so many bytes leave. Even none of them take one: SYN and FIN.
pub(super) fn packets(bytes: u32, mss: u16) -> u32 {
    bytes.div_ceil(mss.max(1).into()).max(1)
}

/// A copy that was sent, for RACK, which wants them in the order of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub sent: u64,
    pub from: Seq,
    pub until: Seq,
}

/// The pieces, in order and without gaps between them, and how many packets of them are what.
///
/// Invariant: `out` is the sum of all pieces' packets; with SACK, `sacked`, `lost` and `resent` are those of the pieces with the mark.
/// Without SACK, `sacked` counts duplicate acknowledgements, and `sacked + lost <= out`.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    pub pieces: VecDeque<Piece>,
    /// Copies under way, the one sent first in front. Some are out of date: the piece's own time says so.
    pub copies: VecDeque<Copy>,
    pub out: u32,
    pub sacked: u32,
    pub lost: u32,
    pub resent: u32,
    /// Nothing before it is to be sent again.
    pub hint: Seq,
    /// RACK has judged, or found to be received, what was sent once and is before it.
    pub judged: Seq,
}

impl Scoreboard {
    /// The piece that has `seq`, or the first behind it.
    pub fn at(&self, seq: Seq) -> usize {
        self.pieces.partition_point(|piece| !piece.end().after(seq))
    }

    /// Packets in the network (RFC 6675's pipe).
    pub fn in_flight(&self) -> u32 {
        (self.out + self.resent).saturating_sub(self.sacked + self.lost)
    }

    /// Packets that have left the network, for better or worse.
    pub fn left(&self) -> u32 {
        self.sacked + self.lost
    }

    /// A piece with these marks now has so many packets more.
    fn recount(&mut self, marks: Marks, more: i32, reno: bool) {
        self.out = self.out.wrapping_add_signed(more);
        for (mark, count) in [
            (Marks::SACKED, &mut self.sacked),
            (Marks::LOST, &mut self.lost),
            (Marks::RESENT, &mut self.resent),
        ] {
            if marks.contains(mark) {
                *count = count.wrapping_add_signed(more);
            }
        }
        if reno && more < 0 {
            self.sacked = self.sacked.saturating_sub(more.unsigned_abs());
        }
    }

    /// Cuts a piece in two, the first with `len` sequence numbers; both are counted in packets of `mss`.
    pub fn split(&mut self, index: usize, len: u32, mss: u16, reno: bool) {
        let Some(first) = self.pieces.get_mut(index) else { return };
        if len == 0 || len >= first.len {
            return;
        }
        let mut second = *first;
        second.seq = first.seq.plus(len);
        second.len -= len;
        second.marks -= Marks::SYN;
        first.len = len;
        first.marks -= Marks::FIN | Marks::RECORD | Marks::PUSHED;
        let (marks, before) = (second.marks, first.packets as i32);
        first.count(mss);
        second.count(mss);
        let more = (first.packets + second.packets) as i32 - before;
        self.pieces.insert(index + 1, second);
        self.recount(marks, more, reno);
    }

    /// Counts a piece's packets anew.
    pub fn resize(&mut self, index: usize, mss: u16, reno: bool) {
        if let Some(piece) = self.pieces.get_mut(index) {
            let (more, marks) = (piece.count(mss), piece.marks);
            self.recount(marks, more, reno);
        }
    }

    /// Forgets what is before `una` of a piece that begins before it, and says how many packets that were.
    pub fn trim(&mut self, index: usize, una: Seq) -> u32 {
        let Some(piece) = self.pieces.get_mut(index) else { return 0 };
        let cut = una.since(piece.seq);
        if cut <= 0 || cut as u32 >= piece.len {
            return 0;
        }
        piece.seq = una;
        piece.len -= cut as u32;
        piece.marks -= Marks::SYN;
        let before = piece.packets;
        // One that was joined of small ones may have more packets than its bytes need.
        piece.packets = packets(piece.data(), piece.mss).min(before);
        before - piece.packets
    }

    /// Joins the piece behind to this one, as to be sent again in one packet.
    pub fn join(&mut self, index: usize, reno: bool) {
        let Some(next) = self.pieces.remove(index + 1) else { return };
        self.recount(next.marks, -(next.packets as i32), reno);
        if let Some(piece) = self.pieces.get_mut(index) {
            piece.len += next.len;
            piece.marks |= next.marks & (Marks::EVER_RESENT | Marks::FIN | Marks::RECORD | Marks::PUSHED);
        }
    }

    /// Joins neighbours between two indices, and the ones beside them, that the receiver has: who selects again what was selected passes
    /// over one piece. It is done at once for all of a block, since each removal from the middle moves what is behind.
    pub fn join_sacked(&mut self, from: usize, until: usize) {
        let (from, until) = (from.saturating_sub(1), (until + 1).min(self.pieces.len()));
        let mut kept = from;
        for next in from + 1..until {
            let (a, b) = (self.pieces[kept], self.pieces[next]);
            if a.settled() && b.settled() && !a.is(Marks::RECORD | Marks::FIN) {
                let joined = &mut self.pieces[kept];
                joined.len += b.len;
                joined.packets += b.packets;
                joined.mss = a.mss.max(b.mss);
                joined.marks |= b.marks;
            } else {
                kept += 1;
                self.pieces[kept] = b;
            }
        }
        if until > kept + 1 {
            self.pieces.drain(kept + 1..until);
        }
    }

    /// Holds a piece to be lost. Says how many packets that were news.
    pub fn mark_lost(&mut self, index: usize) -> u32 {
        let Some(piece) = self.pieces.get_mut(index) else { return 0 };
        if piece.is(Marks::SACKED) {
            return 0;
        }
        if piece.seq.before(self.hint) {
            self.hint = piece.seq;
        }
        if !piece.is(Marks::LOST) {
            piece.marks |= Marks::LOST;
            self.lost += piece.packets;
            piece.packets
        } else if piece.is(Marks::RESENT) {
            piece.marks -= Marks::RESENT;
            self.resent -= piece.packets;
            piece.packets
        } else {
            0
        }
    }

    /// Holds nothing to be lost any more.
    pub fn unmark_lost(&mut self) {
        for piece in &mut self.pieces {
            piece.marks -= Marks::LOST;
        }
        self.lost = 0;
    }

    /// Forgets copies that are out of date when they have become many. Of the others there are no more than pieces, as each piece has the
    /// time of one of them; so this pays for itself.
    pub fn tidy(&mut self) {
        if self.copies.len() > 2 * self.pieces.len() + 16 {
            let mut copies = std::mem::take(&mut self.copies);
            copies.retain(|copy| self.flies(copy));
            self.copies = copies;
        }
    }

    /// Whether some of what a copy had has not come to an end otherwise.
    pub fn flies(&self, copy: &Copy) -> bool {
        let from = self.at(copy.from);
        let of = self.pieces.range(from..).take_while(|piece| piece.seq.before(copy.until));
        of.into_iter().any(|piece| piece.sent == copy.sent && !piece.is(Marks::JUDGED))
    }
}
