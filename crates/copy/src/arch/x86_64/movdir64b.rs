//! MOVDIR64B: reads 64 bytes and writes them as one direct store, always write-combining and never torn.
//! A line goes out whole by construction, where vector stores depend on the write-combining buffer being filled in time.

use super::super::{Kernel, LINE, small, to_next_line};
use super::{INTERLEAVE_MIN, PAGE, PAGES, cpuid, vector};
use core::arch::asm;
use core::arch::x86_64::_mm_sfence;

pub(crate) const KERNEL: Kernel = Kernel {
    name: "movdir64b",
    about: "64-byte direct stores for non-temporal copies and fills; cached: AVX2",
    available: || cpuid::has_movdir64b() && std::is_x86_feature_detected!("avx2"),
    copy_cached: vector::AVX2.copy_cached,
    copy_stream: Some(copy_stream),
    fill_cached: vector::AVX2.fill_cached,
    fill_stream: Some(fill_stream),
};

/// # Safety
///
/// `dst` begins a line and is valid for its writes, `src` is valid for reads of 64 bytes; the CPU has MOVDIR64B.
#[inline(always)]
unsafe fn line(dst: *mut u8, src: *const u8) {
    // SAFETY: the instruction reads 64 bytes at src and writes them at dst, as the caller allows.
    unsafe { asm!("movdir64b {0}, [{1}]", in(reg) dst, in(reg) src, options(nostack, preserves_flags)) };
}

/// # Safety
///
/// See [`super::super::CopyFn`]; the CPU has MOVDIR64B.
unsafe fn copy_stream(dst: *mut u8, src: *const u8, len: usize) {
    let head = to_next_line(dst as usize);
    if len < head + LINE {
        // SAFETY: no whole line: len < 2 * LINE <= small::MAX.
        return unsafe { small::copy(dst, src, len) };
    }
    let end = head + ((len - head) & !(LINE - 1));
    // SAFETY: head < LINE, then whole lines up to `end` <= len, each aligned because dst + head is, then fewer
    // than LINE bytes.
    unsafe {
        small::copy(dst, src, head);
        let mut at = head;
        if len >= INTERLEAVE_MIN {
            while end - at >= PAGES * PAGE {
                for offset in (at..at + PAGE).step_by(LINE) {
                    for page in 0..PAGES {
                        line(dst.add(offset + page * PAGE), src.add(offset + page * PAGE));
                    }
                }
                at += PAGES * PAGE;
            }
        }
        while at < end {
            line(dst.add(at), src.add(at));
            at += LINE;
        }
        _mm_sfence();
        small::copy(dst.add(end), src.add(end), len - end);
    }
}

/// # Safety
///
/// See [`super::super::FillFn`]; the CPU has MOVDIR64B.
unsafe fn fill_stream(dst: *mut u8, value: u8, len: usize) {
    let pattern = [value; LINE];
    let head = to_next_line(dst as usize).min(len);
    let end = head + ((len - head) & !(LINE - 1));
    // SAFETY: as copy_stream.
    unsafe {
        core::ptr::write_bytes(dst, value, head);
        let mut at = head;
        while at < end {
            line(dst.add(at), pattern.as_ptr());
            at += LINE;
        }
        _mm_sfence();
        core::ptr::write_bytes(dst.add(end), value, len - end);
    }
}
