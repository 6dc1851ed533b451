//! Memory that is all atomics.

use crate::atomic::AtomicU64;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::Ordering::Relaxed;

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
