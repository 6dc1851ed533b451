//! A record that lies in pages: what its list came to.

use crate::ReceivedFlags;
use crate::byref::piece::Piece;

/// What the list in the frame at the front came to: its pages are ours until they are dropped.
#[derive(Debug)]
pub struct Listed {
    /// Where the frame is.
    pub(super) at: u64,
    /// Bytes of the record in the frame.
    pub bytes: usize,
    /// Those behind them.
    pub pieces: Vec<Piece>,
}

impl Listed {
    /// Bytes of the record.
    pub fn len(&self) -> usize {
        self.bytes + self.referenced()
    }

    pub fn referenced(&self) -> usize {
        // At most MAX_PARTS times what 32 bits count.
        self.pieces.iter().map(Piece::len).sum()
    }

    /// Bytes of the pages that a chain of it would count.
    pub fn true_size(&self) -> usize {
        self.pieces.iter().map(Piece::page_len).sum()
    }
}

/// What a receive finds in a frame that something comes with.
pub enum Contents {
    /// Bytes, and that was said of what came with them.
    Bytes(ReceivedFlags),
    /// As above, of a list.
    List(ReceivedFlags),
    /// No record: look again.
    Again,
}
