//! Memory that is all atomics.

use crate::atomic::{AtomicU32, AtomicU64};
use onecopy_sys::map::Mapping;
use std::mem::ManuallyDrop;

/// The words of a mapping that stays for as long as the process does.
///
/// # Panics
///
/// When it is not writable: a store would end the process.
pub fn words(mapping: Mapping) -> &'static [AtomicU64] {
    assert!(mapping.span(0, 0).is_writable(), "counters need memory that can be written");
    let mapping = ManuallyDrop::new(mapping); // never unmapped
    // SAFETY:
    // - the mapping begins at a page, is `len()` bytes long, readable and writable, and never unmapped: aligned, in
    //   bounds and `'static`; its file can neither shrink nor fault (the invariant of `Mapping`);
    // - `AtomicU64` has the layout of the integer (repr(transparent) on std's): every bit pattern is one, and whoever
    //   else writes the memory races with atomics only. No other view of it is made into a reference.
    unsafe { std::slice::from_raw_parts(mapping.base().as_ptr().cast::<AtomicU64>(), mapping.len() / 8) }
}

/// The words of a mapping that is shared with the kernel, as long as they are kept: of 32 bits in front, and of 64 bits behind. (So no word is looked at as one of
/// either size, which no memory model has an answer for.)
#[derive(Debug)]
pub struct Table {
    mapping: Mapping,
    /// Where those of 64 bits begin. Invariant: a multiple of 8, inside the mapping.
    behind: usize,
}

impl Table {
    /// Of all of `mapping`, in which words of 64 bits begin at byte `behind`.
    ///
    /// # Panics
    ///
    /// When that is no multiple of 8 or not inside, and when the mapping is not writable: a store would end the process.
    pub fn new(mapping: Mapping, behind: usize) -> Table {
        assert!(mapping.span(0, 0).is_writable(), "a table needs memory that can be written");
        assert!(
            behind.is_multiple_of(8) && behind <= mapping.len(),
            "a table of {} bytes has none at {behind}",
            mapping.len()
        );
        Table { mapping, behind }
    }

    /// The word of 32 bits at a byte.
    ///
    /// # Panics
    ///
    /// When there is none: no multiple of 4, or behind the place where those of 64 bits begin.
    #[inline]
    pub fn short(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at < self.behind, "no word of 32 bits at {at}");
        // SAFETY:
        // - `behind` is a multiple of 8, so four bytes from `at` on end before it, inside the mapping, which begins at a page, is readable and writable, and
        //   stays as long as `self` is borrowed: aligned, in bounds and alive;
        // - `AtomicU32` has the layout of the integer (repr(transparent) on std's): every bit pattern is one, and the kernel writes the memory with atomic
        //   instructions of this size. No other view of it is made into a reference, and none of another size.
        unsafe { &*self.mapping.base().as_ptr().add(at).cast::<AtomicU32>() }
    }

    /// Word number `index` of those of 64 bits.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[inline]
    pub fn long(&self, index: usize) -> &AtomicU64 {
        assert!(index < (self.mapping.len() - self.behind) / 8, "no word {index} of 64 bits");
        // SAFETY: as above: so many whole words lie behind `behind`, which is a multiple of 8.
        unsafe { &*self.mapping.base().as_ptr().add(self.behind + index * 8).cast::<AtomicU64>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::Ordering::Relaxed;

    #[test]
    fn words_of_either_size_lie_where_they_are_said_to() {
        let memory = || onecopy_sys::memfd::create_owned("onecopy-test", 4096).unwrap();
        let (memfd, mapping) = memory();
        let table = Table::new(mapping, 64);
        table.short(60).store(0x0102_0304, Relaxed);
        table.long(0).store(5, Relaxed);
        table.long(503).store(6, Relaxed);
        let mut bytes = [0; 12];
        rustix::io::pread(&memfd, &mut bytes, 60).unwrap();
        assert_eq!(
            (&bytes[..4], &bytes[4..]),
            (&0x0102_0304_u32.to_ne_bytes()[..], &5_u64.to_ne_bytes()[..])
        );
        rustix::io::pread(&memfd, &mut bytes[..8], 4088).unwrap();
        assert_eq!(bytes[..8], 6_u64.to_ne_bytes());
        let none = |look: &dyn Fn(&Table)| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| look(&table))).is_err()
        };
        assert!(none(&|table| _ = table.short(64)), "it is one of 64 bits");
        assert!(none(&|table| _ = table.short(2)));
        assert!(none(&|table| _ = table.long(504)));
        assert!(none(&|_| drop(Table::new(memory().1, 4))));
        assert!(none(&|_| drop(Table::new(memory().1, 4104))));
    }

    #[test]
    fn words_lie_in_the_file() {
        let (memfd, mapping) = onecopy_sys::memfd::create_owned("onecopy-test", 8192).unwrap();
        let words = words(mapping);
        assert_eq!(words.len(), 1024);
        words[3].store(0x0102_0304, Relaxed);
        let mut bytes = [0; 8];
        rustix::io::pread(&memfd, &mut bytes, 24).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 0x0102_0304);
        assert!(rustix::io::pwrite(&memfd, &bytes, 0).is_err(), "others only read");
    }
}
