//! Pages that wait for what is received.

use io_uring::types::BufRingEntry;
use onecopy_pool::Page;
use onecopy_sync::atomic::{AtomicU16, Ordering};
use onecopy_sys::map::Mapping;

/// A ring of entries that the kernel takes pages from (io_uring_register_buf_ring(3)).
///
/// Invariant: a page is in `pages` from before its entry is published until the kernel has said that it used it, so nobody else has it
/// while the kernel may write it.
pub(crate) struct Buffers {
    entries: Mapping,
    mask: u16,
    tail: u16,
    /// By the number that the kernel calls them by.
    pages: Vec<Option<Page>>,
    free: Vec<u16>,
}

impl Buffers {
    /// Room for `count` pages, a power of two.
    pub fn new(count: u16) -> rustix::io::Result<Buffers> {
        assert!(count.is_power_of_two());
        let entries = Mapping::inherited(usize::from(count) * size_of::<BufRingEntry>())?;
        Ok(Buffers {
            entries,
            mask: count - 1,
            tail: 0,
            pages: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
        })
    }

    pub fn address(&self) -> u64 {
        self.entries.base().as_ptr().addr() as u64
    }

    pub fn count(&self) -> u16 {
        self.mask + 1
    }

    /// How many more it takes.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.pages.len() - self.free.len()
    }

    /// Gives `page` to the kernel. It has no other holder, and there is room.
    pub fn offer(&mut self, mut page: Page) {
        let len = page.len() as u32;
        let (Some(bytes), Some(id)) = (page.bytes_mut(), self.free.pop()) else {
            unreachable!("a fresh page of our own memory, and room for it")
        };
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        let base = self.entries.base().as_ptr().cast::<BufRingEntry>();
        // SAFETY: the mapping has `mask + 1` entries, is aligned to pages, and written by us alone: the kernel only reads. Behind the tail
        // it does not even read. The three fields leave alone the fourth of the first entry, which is the tail itself.
        let entry = unsafe { &mut *base.add(usize::from(self.tail & self.mask)) };
        entry.set_addr(address);
        entry.set_len(len);
        entry.set_bid(id);
        self.pages[usize::from(id)] = Some(page);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: inside of the first entry, and aligned; it lives as long as the mapping. It is read by the kernel, and written nowhere else.
        let tail = unsafe { &*BufRingEntry::tail(base).cast::<AtomicU16>() };
        // Release pairs with the kernel's smp_load_acquire() of the tail (io_ring_buffer_select()): it sees the entry.
        tail.store(self.tail, Ordering::Release);
    }

    /// The page that the kernel has used.
    pub fn take(&mut self, id: u16) -> Option<Page> {
        let page = self.pages.get_mut(usize::from(id))?.take()?;
        self.free.push(id);
        Some(page)
    }
}
