//! Bytes that arrived for a receive that raised before it had all of them. An exception takes nothing: the next receive has them first.

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use std::ops::Range;
use std::process;

/// A buffer to be filled, and how many of its bytes are there.
pub struct Partial {
    pub bytes: Vec<u8>,
    pub have: usize,
}

impl Partial {
    /// An empty one.
    ///
    /// # Errors
    ///
    /// MemoryError: a length may be a mistake, and a Vec that gets no memory would end the process.
    pub fn of(len: usize) -> PyResult<Partial> {
        // (What is asked for here is given back at once, and no page of it was touched; `vec!` gets zeroed pages without touching them, either.)
        if Vec::<u8>::new().try_reserve_exact(len).is_err() {
            return Err(PyMemoryError::new_err(format!(
                "there is no memory for a tensor of {len} bytes: ask for a smaller one"
            )));
        }
        Ok(Partial { bytes: vec![0; len], have: 0 })
    }

    pub fn is_full(&self) -> bool {
        self.have == self.bytes.len()
    }
}

/// What is kept for the next receive: nothing, mostly.
#[derive(Default)]
pub struct Kept(Option<Bytes>);

struct Bytes {
    bytes: Vec<u8>,
    /// Those that nobody has had yet: never none.
    left: Range<usize>,
    /// Who received them. A child of fork has a copy, which is not for it.
    process: u32,
}

impl Kept {
    /// How many bytes there are for this process.
    pub fn len(&mut self) -> usize {
        self.0.take_if(|kept| kept.process != process::id());
        self.0.as_ref().map_or(0, |kept| kept.left.len())
    }

    /// Copies bytes, which stay, into the buffer. Returns how many.
    pub fn peek(&mut self, buffer: &mut [u8]) -> usize {
        let len = self.len().min(buffer.len());
        if let Some(kept) = &self.0 {
            buffer[..len].copy_from_slice(&kept.bytes[kept.left.start..][..len]);
        }
        len
    }

    /// Takes up to so many bytes away. Returns how many.
    pub fn skip(&mut self, max: usize) -> usize {
        let len = self.len().min(max);
        if let Some(kept) = &mut self.0 {
            kept.left.start += len;
        }
        self.0.take_if(|kept| kept.left.is_empty());
        len
    }

    /// Takes bytes into the buffer, and returns how many.
    pub fn take(&mut self, buffer: &mut [u8]) -> usize {
        let len = self.peek(buffer);
        self.skip(len)
    }

    /// The buffer of a receive of so many bytes which was not finished, as it was. None where another one is in its place, or none.
    pub fn resume(&mut self, len: usize) -> Option<Partial> {
        self.len();
        let kept = self.0.take_if(|kept| kept.left.start == 0 && kept.bytes.len() == len)?;
        Some(Partial { bytes: kept.bytes, have: kept.left.end })
    }

    /// Keeps what is there of a receive that raises.
    pub fn put(&mut self, partial: Partial) {
        let Partial { bytes, have } = partial;
        if have == 0 {
            return;
        }
        match (self.len(), &mut self.0) {
            // Two threads received at once, and both raised.
            (1.., Some(kept)) => {
                kept.bytes.truncate(kept.left.end);
                kept.bytes.extend_from_slice(&bytes[..have]);
                kept.left.end = kept.bytes.len();
            }
            _ => self.0 = Some(Bytes { bytes, left: 0..have, process: process::id() }),
        }
    }
}
