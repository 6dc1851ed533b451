//! A record in pages: what its list came to.

use crate::byref::piece::Piece;
use onecopy_socket::ReceivedFlags;

/// What the list in the next frame came to. Its pages are ours until they are dropped.
#[derive(Debug)]
pub struct Listed {
    /// The frame's position.
    at: u64,
    /// Bytes of the record that are in the frame.
    bytes: usize,
    /// The bytes behind them, in pages.
    pieces: Vec<Piece>,
}

impl Listed {
    /// Makes the list of the frame at that position.
    pub fn new(at: u64, bytes: usize, pieces: Vec<Piece>) -> Listed {
        Listed { at, bytes, pieces }
    }

    /// Whether it is the list of the frame at that position.
    pub fn is_at(&self, at: u64) -> bool {
        self.at == at
    }
}

impl Listed {
    /// Returns the bytes of the record.
    pub fn len(&self) -> usize {
        self.bytes + self.referenced()
    }

    /// Returns how many bytes of the record are in the frame.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes behind those, in pages.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Whether all bytes of the record are in one page.
    pub fn is_one_piece(&self) -> bool {
        self.bytes == 0 && self.pieces.len() == 1
    }

    /// Takes the pages.
    pub fn take_pieces(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.pieces)
    }

    /// Returns how many bytes of the record are in pages.
    pub fn referenced(&self) -> usize {
        // At most MAX_PARTS times what 32 bits count.
        self.pieces.iter().map(Piece::len).sum()
    }

    /// Returns the bytes of the pages that a chain of the record would count.
    pub fn true_size(&self) -> usize {
        self.pieces.iter().map(Piece::page_len).sum()
    }
}

/// What a receive finds in a frame that something comes with.
pub enum Contents {
    /// Bytes, and what was said of what came with them.
    Bytes(ReceivedFlags),
    /// The same, with a list.
    List(ReceivedFlags),
    /// No record: look again.
    Again,
}
