//! Bytes that another process can still write: copied out, or handed to the kernel, never looked at in place.

use crate::chain::Chain;
use crate::error::ChainError;
use crate::kind::Kind;
use crate::sum::Sum;
use onecopy_copy::{Hint, Store};
use onecopy_sys::map::Span;

/// The bytes of a chain of memory that a peer can write. From [`Chain::peer`]. Whoever has to understand them copies them
/// out once, and looks at the copy.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// Invariant: empty, or of [`Kind::Peer`] (some of it may be our own).
    chain: &'a Chain,
}

impl Chain {
    /// The view of a peer's memory.
    ///
    /// # Errors
    ///
    /// [`ChainError::Unreadable`] for other memory: a device's cannot be copied by this CPU, and ours has slices
    /// ([`Chain::host`]).
    pub fn peer(&self) -> Result<Peer<'_>, ChainError> {
        match self.kind() {
            None | Some(Kind::Peer) => Ok(Peer { chain: self }),
            Some(kind) => Err(ChainError::Unreadable { index: 0, kind, device: self.device() }),
        }
    }
}

impl<'a> Peer<'a> {
    /// The pieces in order, none of them empty: addresses and lengths for the kernel ([`onecopy_sys::spans`]).
    #[doc(hidden)]
    pub fn spans(self) -> impl Iterator<Item = Span<'a>> {
        self.chain.fragments().map(|fragment| fragment.span())
    }

    /// Fills `out` with the pieces from byte `offset` on. Returns how many entries are in use.
    ///
    /// # Errors
    ///
    /// [`ChainError::BeyondEnd`].
    #[doc(hidden)]
    pub fn gather(self, offset: usize, out: &mut [Span<'a>]) -> Result<usize, ChainError> {
        self.chain.inside(offset)?;
        let (index, mut skip) = self.chain.locate(offset);
        let mut count = 0;
        for (entry, fragment) in out.iter_mut().zip(self.chain.frags.iter_from(index)) {
            *entry = fragment.span().slice(std::mem::take(&mut skip), usize::MAX);
            count += 1;
        }
        Ok(count)
    }

    /// Copies `out.len()` bytes from byte `offset` on. The peer may be writing them at this moment: what arrives may be
    /// torn, but does not change any more. Says which stores were used (of the last piece).
    ///
    /// # Errors
    ///
    /// [`ChainError::BeyondEnd`].
    pub fn copy_to(self, offset: usize, out: &mut [u8], hint: Hint) -> Result<Store, ChainError> {
        self.chain.inside(offset.saturating_add(out.len()))?;
        let (index, mut skip) = self.chain.locate(offset);
        let mut store = Store::Cached;
        let mut rest = out;
        for fragment in self.chain.frags.iter_from(index) {
            if rest.is_empty() {
                break;
            }
            let from = fragment.span().slice(std::mem::take(&mut skip), rest.len());
            let (piece, after) = rest.split_at_mut(from.len());
            store = onecopy_copy::copy_out(piece, from, hint);
            rest = after;
        }
        Ok(store)
    }

    /// The sum of all bytes, as they were when they were looked at: where the peer writes them meanwhile, what is received with it is refused
    /// like anything that was damaged on its way. Reads them.
    pub fn sum(self) -> Sum {
        let (mut sum, mut at) = (Sum::ZERO, 0);
        self.for_each_chunk(|chunk| {
            sum = sum.then(Sum::of(chunk), at);
            at += chunk.len();
        });
        sum
    }

    /// Most bytes that [`Peer::for_each_chunk`] shows at once.
    pub const CHUNK: usize = 8 << 10;

    /// Shows all the bytes to `look`, in order and in pieces of at most [`Peer::CHUNK`] bytes: for who looks once, to parse,
    /// hash or add up. Each piece is a copy that does not change any more; it stays in the first-level cache, so that all
    /// of it costs about one pass over the memory.
    pub fn for_each_chunk(self, mut look: impl FnMut(&[u8])) {
        let mut chunk = [0; Self::CHUNK];
        for mut span in self.spans() {
            while !span.is_empty() {
                let piece = &mut chunk[..span.len().min(Self::CHUNK)];
                onecopy_copy::copy_out(piece, span.slice(0, piece.len()), Hint::AUTO);
                look(piece);
                span = span.slice(piece.len(), usize::MAX);
            }
        }
    }
}
