//! `rep movsb` and `rep stosb`: microcode that knows the machine. Fast where CPUID says ERMS, from the first byte on
//! where it says FSRM. Its stores are cached: it may skip the read for ownership of whole lines, but the
//! lines end up in the cache. It has no non-temporal form, so streaming copies take SSE2's.

use super::super::{Kernel, small};
use super::{cpuid, vector};
use core::arch::asm;

pub(crate) const KERNEL: Kernel = Kernel {
    name: "erms",
    about: "rep movsb; non-temporal: movntdq (SSE2)",
    available: cpuid::has_erms,
    copy_cached,
    copy_stream: vector::SSE2.copy_stream,
    fill_cached,
    fill_stream: vector::SSE2.fill_stream,
};

/// # Safety
///
/// See [`super::super::CopyFn`].
unsafe fn copy_cached(dst: *mut u8, src: *const u8, len: usize) {
    if len <= small::MAX {
        // The microcode takes some 30 cycles to begin.
        // SAFETY: the caller's promise.
        return unsafe { small::copy(dst, src, len) };
    }
    // SAFETY: copies exactly the bytes that the caller vouches for; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") dst => _, inout("rsi") src => _,
            options(nostack, preserves_flags));
    }
}

/// # Safety
///
/// See [`super::super::FillFn`].
unsafe fn fill_cached(dst: *mut u8, value: u8, len: usize) {
    // SAFETY: writes exactly the bytes that the caller vouches for; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") dst => _, in("al") value,
            options(nostack, preserves_flags));
    }
}
