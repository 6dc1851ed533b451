//! What was given to be sent, and has not left: in pieces, as the program gave them.

use std::collections::VecDeque;

/// Bytes that leave together if they can: what the kernel has as one sk_buff. A segment ends where a piece does that is pushed, or that
/// nothing may be joined to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes.
    pub len: u32,
    /// The program's write ended here: PSH.
    pub push: bool,
    /// Nothing is put into one segment with its last byte (MSG_EOR).
    pub closed: bool,
    /// FIN comes behind it.
    pub fin: bool,
}

/// Invariant: no piece is empty but one with `fin`, which is the last; `len` is the sum of theirs.
#[derive(Debug, Default)]
pub struct Unsent {
    pieces: VecDeque<Piece>,
    len: u32,
    since_push: u32,
}

impl Unsent {
    /// Nothing.
    pub const fn new() -> Unsent {
        Unsent { pieces: VecDeque::new(), len: 0, since_push: 0 }
    }

    /// Bytes; FIN does not count.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether nothing waits, a FIN neither.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The next one.
    pub fn first(&self) -> Option<Piece> {
        self.pieces.front().copied()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Bytes that were put here since the last push, those that have left among them (write_seq - pushed_seq).
    pub fn since_push(&self) -> u32 {
        self.since_push
    }

    /// The first `n` bytes are a piece of their own, and pushed.
    pub fn push_first(&mut self, n: u32) {
        let Some(first) = self.pieces.front_mut() else { return };
        if n >= first.len {
            first.push = true;
            return;
        }
        first.len -= n;
        self.pieces.push_front(Piece { len: n, push: true, closed: false, fin: false });
    }

    /// Whether there is but one.
    pub fn is_last(&self) -> bool {
        self.pieces.len() == 1
    }

    /// Bytes that the last one may still take until it has `goal`; none where it is closed.
    pub fn room(&self, goal: u32) -> u32 {
        match self.pieces.back() {
            Some(last) if !last.closed && !last.fin => goal.saturating_sub(last.len),
            _ => 0,
        }
    }

    /// Puts `n` bytes into the last one, of which there is [`Unsent::room`], or into a new one.
    pub fn put(&mut self, n: u32, goal: u32) {
        self.len += n;
        self.since_push = self.since_push.saturating_add(n);
        if self.room(goal) >= n
            && let Some(last) = self.pieces.back_mut()
        {
            last.len += n;
            return;
        }
        self.pieces.push_back(Piece { len: n, push: false, closed: false, fin: false });
    }

    /// The last byte is pushed.
    pub fn push(&mut self) {
        if let Some(last) = self.pieces.back_mut() {
            last.push = true;
            self.since_push = 0;
        }
    }

    /// Nothing joins what is there.
    pub fn close_last(&mut self) {
        if let Some(last) = self.pieces.back_mut() {
            last.closed = true;
        }
    }

    /// FIN comes behind all.
    pub fn fin(&mut self) {
        match self.pieces.back_mut() {
            Some(last) => last.fin = true,
            None => self.pieces.push_back(Piece { len: 0, push: false, closed: false, fin: true }),
        }
    }

    /// Lets the first one grow to `len` bytes by what comes behind it, where nothing stands between.
    pub fn grow_first(&mut self, len: u32) {
        while let (Some(first), Some(next)) = (self.pieces.front().copied(), self.pieces.get(1).copied()) {
            let part = len.saturating_sub(first.len).min(next.len);
            if first.closed || part == 0 {
                break;
            }
            let whole = part == next.len;
            if whole {
                self.pieces.remove(1);
            } else if let Some(next) = self.pieces.get_mut(1) {
                next.len -= part;
            }
            if let Some(first) = self.pieces.front_mut() {
                first.len += part;
                // What was pushed stays so (tcp_grow_skb(), tcp_eat_one_skb()).
                first.push |= whole && next.push;
                first.closed = whole && next.closed;
                first.fin = whole && next.fin;
            }
        }
    }

    /// What was taken did not leave: it is the first again.
    pub fn put_back(&mut self, piece: Piece) {
        self.len += piece.len;
        self.pieces.push_front(piece);
    }

    /// Takes the first `n` bytes, all of one piece, and says what ends with them.
    pub fn take(&mut self, n: u32) -> Piece {
        let Some(first) = self.pieces.front_mut() else {
            return Piece { len: 0, push: false, closed: false, fin: false };
        };
        let n = n.min(first.len);
        self.len -= n;
        if n < first.len {
            first.len -= n;
            return Piece { len: n, push: false, closed: false, fin: false };
        }
        self.pieces.pop_front().unwrap_or(Piece { len: n, push: false, closed: false, fin: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_left_counts_until_the_next_push() {
        let mut unsent = Unsent::new();
        unsent.put(10, 10);
        unsent.take(10);
        unsent.put(7, 10);
        assert_eq!(unsent.since_push(), 17);
        unsent.push();
        assert_eq!(unsent.since_push(), 0);
    }

    #[test]
    fn a_pushed_piece_that_grows_is_pushed_at_its_end() {
        let mut unsent = Unsent::new();
        unsent.put(10, 10);
        unsent.push();
        unsent.put(10, 10);
        unsent.grow_first(15);
        assert!(unsent.take(15).push);
        assert!(!unsent.take(5).push);
    }
}
