//! The only way to the bytes of a chain: a view that exists just for memory that nobody else can write.

use crate::chain::Chain;
use crate::checksum::Checksum;
use crate::error::ChainError;
use crate::frags::Iter;
use crate::kind::Kind;
use crate::sum::Sum;
use onecopy_copy::{Hint, Store};
use std::io::{self, IoSlice, Read};

/// The bytes of a chain of our own host memory, to be looked at where they lie. From [`Chain::host`].
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// Invariant: empty, or of [`Kind::Host`].
    chain: &'a Chain,
}

impl Chain {
    /// The view that has slices.
    ///
    /// # Errors
    ///
    /// [`ChainError::Unreadable`] for memory of a peer or a device.
    pub fn host(&self) -> Result<Host<'_>, ChainError> {
        match self.kind() {
            None | Some(Kind::Host) => Ok(Host { chain: self }),
            Some(kind) => Err(ChainError::Unreadable { index: 0, kind, device: self.device() }),
        }
    }

    /// As [`Chain::advance`], but a [`Checksum::Known`] stays known: the sum of the bytes passed is taken off, for which they are
    /// read, as skb_pull_rcsum() does with a header that was just read anyway.
    ///
    /// # Errors
    ///
    /// As [`Chain::split_to`], and [`ChainError::Unreadable`] where the sum is known but the bytes cannot be read.
    pub fn pull(&mut self, n: usize) -> Result<(), ChainError> {
        self.inside(n)?;
        let rest = match self.checksum {
            Checksum::Known(sum) => Some(sum.without_front(self.host()?.sum(0, n)?, n)),
            _ => None,
        };
        self.advance(n)?;
        if let Some(sum) = rest {
            self.checksum = Checksum::Known(sum);
        }
        Ok(())
    }

    /// Whether the bytes, the checksum's field among them, are intact: with `pseudo`, the sum of the pseudo-header (RFC 9293,
    /// section 3.1), or [`Sum::ZERO`]. Bytes are read only where nothing is known; a right sum makes it [`Checksum::Verified`]. One that
    /// is still to be finished comes from this machine and has been on no wire: it counts as right.
    ///
    /// # Errors
    ///
    /// [`ChainError::Unreadable`] where nothing is known and the bytes cannot be read.
    pub fn verify(&mut self, pseudo: Sum) -> Result<bool, ChainError> {
        let sum = match self.checksum {
            Checksum::Verified | Checksum::Partial { .. } => return Ok(true),
            Checksum::Known(sum) => sum,
            Checksum::None => self.host()?.sum(0, self.len())?,
        };
        let right = pseudo.then(sum, 0).is_valid();
        if right {
            self.checksum = Checksum::Verified;
        }
        Ok(right)
    }
}

impl<'a> Host<'a> {
    /// The pieces in order, none of them empty.
    pub fn slices(self) -> Slices<'a> {
        Slices { fragments: self.chain.fragments(), skip: 0, left: self.chain.len() }
    }

    /// The pieces that `len` bytes from byte `offset` on lie in.
    ///
    /// # Errors
    ///
    /// [`ChainError::BeyondEnd`].
    pub fn slices_of(self, offset: usize, len: usize) -> Result<Slices<'a>, ChainError> {
        self.chain.inside(offset.saturating_add(len))?;
        let (index, skip) = self.chain.locate(offset);
        Ok(Slices { fragments: self.chain.frags.iter_from(index), skip, left: len })
    }

    /// The first `n` bytes, if they lie in one piece; else [`crate::Writer::pull_up`] brings them together.
    pub fn first(self, n: usize) -> Option<&'a [u8]> {
        self.slices().next().unwrap_or_default().get(..n)
    }

    /// Fills `out` with the pieces from byte `offset` on, for writev(2). Returns how many entries are in use.
    ///
    /// # Errors
    ///
    /// [`ChainError::BeyondEnd`].
    pub fn gather(self, offset: usize, out: &mut [IoSlice<'a>]) -> Result<usize, ChainError> {
        let left = self.chain.len().saturating_sub(offset);
        let slices = self.slices_of(offset, left)?;
        Ok(out.iter_mut().zip(slices).map(|(entry, slice)| *entry = IoSlice::new(slice)).count())
    }

    /// Copies `out.len()` bytes from byte `offset` on: the one copy that who wants them in a buffer of his own pays. Says
    /// which stores were used (of the last piece).
    ///
    /// # Errors
    ///
    /// [`ChainError::BeyondEnd`].
    pub fn copy_to(self, offset: usize, out: &mut [u8], hint: Hint) -> Result<Store, ChainError> {
        let mut store = Store::Cached;
        let mut rest = out;
        for slice in self.slices_of(offset, rest.len())? {
            let (piece, after) = rest.split_at_mut(slice.len());
            store = onecopy_copy::copy(piece, slice, hint);
            rest = after;
        }
        Ok(store)
    }

    /// A copy of all of it.
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.chain.len());
        self.slices().for_each(|slice| bytes.extend_from_slice(slice));
        bytes
    }

    /// The sum of `len` bytes from byte `offset` on. Reads them.
    ///
    /// # Errors
    ///
    /// [`ChainError::BeyondEnd`].
    pub fn sum(self, offset: usize, len: usize) -> Result<Sum, ChainError> {
        let (mut sum, mut at) = (Sum::ZERO, 0);
        for slice in self.slices_of(offset, len)? {
            sum = sum.then(Sum::of(slice), at);
            at += slice.len();
        }
        Ok(sum)
    }

    /// Reads it from the front, for what takes a [`Read`]. A copy.
    pub fn reader(self) -> Reader<'a> {
        Reader { view: self, at: 0 }
    }
}

/// Pieces of a chain's bytes, from [`Host::slices`].
#[derive(Clone)]
pub struct Slices<'a> {
    fragments: Iter<'a>,
    /// Bytes of the next fragment that come before the first one wanted.
    skip: usize,
    /// Bytes wanted.
    left: usize,
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let bytes = &self.fragments.next()?.host_bytes()[std::mem::take(&mut self.skip)..];
        let bytes = &bytes[..bytes.len().min(self.left)];
        self.left -= bytes.len();
        Some(bytes)
    }
}

/// Copies a chain out piece by piece, from [`Host::reader`].
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    view: Host<'a>,
    at: usize,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = buffer.len().min(self.view.chain.len() - self.at);
        self.view.copy_to(self.at, &mut buffer[..n], Hint::AUTO)?;
        self.at += n;
        Ok(n)
    }
}
