//! Memory that nobody can change, to be sent from where it lies.

use onecopy_chain::{Chain, Fragment};
use onecopy_pool::provider::LentPages;
use onecopy_sync::Mutex;
use onecopy_sys::frozen::Frozen;
use std::fmt;
use std::sync::Arc;

/// Bytes in a page of it.
const PAGE: usize = 4096;

/// The least and the most of its pages that are under way at once; each has a descriptor of 64 bytes or so.
const UNDER_WAY: (usize, usize) = (1024, 16384);

/// A memfd sealed against every change ([`Frozen`]), whose pages a stack sends by reference: once or many times, to one peer or many at once.
/// They are given back when they are acknowledged; the memory stays until the last one is.
pub struct Sealed {
    pages: Mutex<LentPages>,
    /// Slots that no page is under way in.
    free: Arc<Mutex<Vec<u32>>>,
    len: usize,
}

impl Sealed {
    /// Pages of `memory`.
    ///
    /// # Errors
    ///
    /// Where there is no memory for descriptors.
    pub fn new(memory: &Frozen) -> std::io::Result<Sealed> {
        let count = memory.mapping().len() / PAGE;
        let slots = (count * 4).clamp(UNDER_WAY.0, UNDER_WAY.1) as u32;
        let free = Arc::new(Mutex::new((0..slots).rev().collect::<Vec<_>>()));
        let back = Arc::clone(&free);
        let released = move |slot| back.lock().push(slot);
        let count = u32::try_from(count).map_err(std::io::Error::other)?;
        let pages = LentPages::new(Arc::clone(memory.mapping()), 0, count, slots, released);
        Ok(Sealed { pages: Mutex::new(pages.map_err(std::io::Error::other)?), free, len: memory.len() })
    }

    /// A chain of `len` bytes from byte `at`; of fewer where so many of its pages are under way already, none even.
    ///
    /// # Panics
    ///
    /// Where there are not so many bytes.
    pub fn chain(&self, mut at: usize, len: usize) -> Chain {
        assert!(at <= self.len && len <= self.len - at, "outside of the memory");
        let (mut chain, end) = (Chain::new(), at + len);
        let mut pages = self.pages.lock();
        while at < end {
            let Some(slot) = self.free.lock().pop() else { break };
            let (index, from) = (at / PAGE, at % PAGE);
            let part = (PAGE - from).min(end - at);
            let page = pages.adopt(slot, index as u32);
            let page =
                page.unwrap_or_else(|error| unreachable!("the slot is free, the page is there: {error}"));
            let fragment = Fragment::new(page, from, part).unwrap_or_else(|error| unreachable!("{error}"));
            chain.append(fragment).unwrap_or_else(|error| unreachable!("{error}"));
            at += part;
        }
        chain
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({} bytes)", self.len)
    }
}
