//! The plain fallback: the C library's own copy, in pieces short enough that it keeps its stores cached.

use super::Kernel;

/// glibc's memcpy goes non-temporal by a threshold that the user can set (glibc.cpu.x86_non_temporal_threshold)
/// but never below 0x4040 bytes: pieces shorter than that are cached on every setting, as [`crate::Policy::Cached`]
/// promises.
const PIECE: usize = 0x4000;

pub(crate) const KERNEL: Kernel = Kernel {
    name: "generic",
    about: "the C library's copy in pieces of 16 KiB; no non-temporal stores",
    available: || true,
    copy_cached,
    copy_stream: None,
    fill_cached,
    fill_stream: None,
};

/// # Safety
///
/// See [`super::CopyFn`].
unsafe fn copy_cached(dst: *mut u8, src: *const u8, len: usize) {
    let mut done = 0;
    while done < len {
        let piece = PIECE.min(len - done);
        // SAFETY: done + piece <= len, inside the regions that the caller vouches for.
        unsafe { core::ptr::copy_nonoverlapping(src.add(done), dst.add(done), piece) };
        done += piece;
    }
}

/// # Safety
///
/// See [`super::FillFn`].
unsafe fn fill_cached(dst: *mut u8, value: u8, len: usize) {
    let mut done = 0;
    while done < len {
        let piece = PIECE.min(len - done);
        // SAFETY: done + piece <= len, inside the region that the caller vouches for.
        unsafe { core::ptr::write_bytes(dst.add(done), value, piece) };
        done += piece;
    }
}
