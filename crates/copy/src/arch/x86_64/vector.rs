//! SSE2, AVX2 and AVX-512: the same loops over registers of 16, 32 and 64 bytes.
//!
//! Streaming copies: a cached head up to the next line, whole lines by non-temporal stores, the fence, a cached
//! tail. Head and tail lie in lines of their own, because a cached store to a line that was just written
//! non-temporally costs hundreds of cycles.

use super::super::{Kernel, LINE, small, to_next_line};
use super::{INTERLEAVE_MIN, PAGE, PAGES};

macro_rules! vector_kernel {
    ($module:ident, $feature:literal, $V:ident, $load:ident, $storeu:ident, $store:ident, $stream:ident, $splat:ident) => {
        mod $module {
            use super::*;
            use core::arch::x86_64::*;

            const W: usize = size_of::<$V>();
            /// Copies up to here are left to `small`, whose registers are no narrower there.
            const PLAIN: usize = if W > 16 { W } else { small::MAX };

            /// # Safety
            ///
            /// See [`crate::arch::CopyFn`]; the CPU has the feature.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn copy_cached(dst: *mut u8, src: *const u8, len: usize) {
                if len <= PLAIN {
                    // SAFETY: PLAIN is at most small::MAX; the rest is the caller's promise.
                    return unsafe { small::copy(dst, src, len) };
                }
                // SAFETY: all offsets stay below len. The first and the last W bytes are inside as len > W, two of each as
                // len > 2 * W, four of each as len > 4 * W; the loop is by its bound. `at` makes every store of the loop
                // aligned to W.
                unsafe {
                    let first = $load(src.cast());
                    if len <= 4 * W {
                        let last = $load(src.add(len - W).cast());
                        if len > 2 * W {
                            let second = $load(src.add(W).cast());
                            let third = $load(src.add(len - 2 * W).cast());
                            $storeu(dst.add(W).cast(), second);
                            $storeu(dst.add(len - 2 * W).cast(), third);
                        }
                        $storeu(dst.cast(), first);
                        $storeu(dst.add(len - W).cast(), last);
                        return;
                    }
                    // Both ends are loaded before anything is stored: where source and destination have the same
                    // place in their pages, a load that follows a store to that place waits for it (4 KiB aliasing). The
                    // last end is as long as what the loop leaves at most: no branch asks how much that is, which nobody
                    // could predict (3 of the 10 ns of a copy of 257 to 1024 bytes). The first end is stored first:
                    // behind the loop it cost 2 to 5 ns more where the source lies just before the destination's place in a page.
                    let (from, to) = (src.add(len - 4 * W), dst.add(len - 4 * W));
                    let last = $load(from.cast());
                    let last_1 = $load(from.add(W).cast());
                    let last_2 = $load(from.add(2 * W).cast());
                    let last_3 = $load(from.add(3 * W).cast());
                    if len <= 8 * W {
                        let first_1 = $load(src.add(W).cast());
                        let first_2 = $load(src.add(2 * W).cast());
                        let first_3 = $load(src.add(3 * W).cast());
                        $storeu(dst.cast(), first);
                        $storeu(dst.add(W).cast(), first_1);
                        $storeu(dst.add(2 * W).cast(), first_2);
                        $storeu(dst.add(3 * W).cast(), first_3);
                    } else {
                        $storeu(dst.cast(), first);
                        let mut at = W - (dst as usize & (W - 1));
                        while len - at > 4 * W {
                            let (s, d) = (src.add(at), dst.add(at));
                            let a = $load(s.cast());
                            let b = $load(s.add(W).cast());
                            let c = $load(s.add(2 * W).cast());
                            let e = $load(s.add(3 * W).cast());
                            $store(d.cast(), a);
                            $store(d.add(W).cast(), b);
                            $store(d.add(2 * W).cast(), c);
                            $store(d.add(3 * W).cast(), e);
                            at += 4 * W;
                        }
                    }
                    $storeu(to.cast(), last);
                    $storeu(to.add(W).cast(), last_1);
                    $storeu(to.add(2 * W).cast(), last_2);
                    if (to as usize + 3 * W) & (PAGE - 1) <= PAGE - W {
                        $storeu(to.add(3 * W).cast(), last_3);
                    } else {
                        // A store across two pages costs as much as 2 KiB of copy, and is no rarity: a length of
                        // whole pages at 16 bytes into one, where malloc puts large blocks.
                        small::copy(to.add(3 * W), from.add(3 * W), W);
                    }
                }
            }

            /// # Safety
            ///
            /// See [`crate::arch::CopyFn`]; the CPU has the feature.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn copy_stream(dst: *mut u8, src: *const u8, len: usize) {
                let head = to_next_line(dst as usize);
                if len < head + LINE {
                    // SAFETY: no whole line: len < 2 * LINE <= small::MAX.
                    return unsafe { small::copy(dst, src, len) };
                }
                // SAFETY: head < LINE, then whole lines up to `end` <= len, then fewer than LINE bytes; every
                // streaming store is aligned to a line because dst + head is.
                unsafe {
                    small::copy(dst, src, head);
                    let mut at = head;
                    let end = head + ((len - head) & !(LINE - 1));
                    if len >= INTERLEAVE_MIN {
                        while end - at >= PAGES * PAGE {
                            let mut line = 0;
                            while line < PAGE {
                                let mut page = 0;
                                while page < PAGES * PAGE {
                                    let offset = at + page + line;
                                    let mut i = 0;
                                    while i < LINE {
                                        let value = $load(src.add(offset + i).cast());
                                        $stream(dst.add(offset + i).cast(), value);
                                        i += W;
                                    }
                                    page += PAGE;
                                }
                                line += LINE;
                            }
                            at += PAGES * PAGE;
                        }
                    }
                    while at < end {
                        let mut i = 0;
                        while i < LINE {
                            $stream(dst.add(at + i).cast(), $load(src.add(at + i).cast()));
                            i += W;
                        }
                        at += LINE;
                    }
                    _mm_sfence();
                    small::copy(dst.add(end), src.add(end), len - end);
                }
            }

            /// # Safety
            ///
            /// See [`crate::arch::FillFn`]; the CPU has the feature.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn fill_cached(dst: *mut u8, value: u8, len: usize) {
                if len <= 4 * W {
                    // SAFETY: the caller's promise.
                    return unsafe { short_fill(dst, value, len) };
                }
                let wide = $splat(value as i8);
                // SAFETY: as copy_cached.
                unsafe {
                    $storeu(dst.cast(), wide);
                    let mut at = W - (dst as usize & (W - 1));
                    while len - at > W {
                        $store(dst.add(at).cast(), wide);
                        at += W;
                    }
                    $storeu(dst.add(len - W).cast(), wide);
                }
            }

            /// # Safety
            ///
            /// See [`crate::arch::FillFn`]; the CPU has the feature.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn fill_stream(dst: *mut u8, value: u8, len: usize) {
                let head = to_next_line(dst as usize);
                if len < head + LINE {
                    // SAFETY: the caller's promise.
                    return unsafe { short_fill(dst, value, len) };
                }
                let wide = $splat(value as i8);
                let end = head + ((len - head) & !(LINE - 1));
                // SAFETY: as copy_stream.
                unsafe {
                    short_fill(dst, value, head);
                    let mut at = head;
                    while at < end {
                        $stream(dst.add(at).cast(), wide);
                        at += W;
                    }
                    _mm_sfence();
                    short_fill(dst.add(end), value, len - end);
                }
            }
        }
    };
}

/// A fill of at most 256 bytes: the C library's, which never streams at this length.
///
/// # Safety
///
/// See [`super::super::FillFn`].
#[inline(always)]
unsafe fn short_fill(dst: *mut u8, value: u8, len: usize) {
    // SAFETY: the caller's promise is that of write_bytes.
    unsafe { core::ptr::write_bytes(dst, value, len) };
}

vector_kernel!(
    sse2,
    "sse2",
    __m128i,
    _mm_loadu_si128,
    _mm_storeu_si128,
    _mm_store_si128,
    _mm_stream_si128,
    _mm_set1_epi8
);
vector_kernel!(
    avx2,
    "avx2",
    __m256i,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_store_si256,
    _mm256_stream_si256,
    _mm256_set1_epi8
);
vector_kernel!(
    avx512,
    "avx512f",
    __m512i,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_store_si512,
    _mm512_stream_si512,
    _mm512_set1_epi8
);

pub(crate) const SSE2: Kernel = Kernel {
    name: "sse2",
    about: "16-byte registers; non-temporal: movntdq",
    available: || true, // part of x86-64
    copy_cached: sse2::copy_cached,
    copy_stream: Some(sse2::copy_stream),
    fill_cached: sse2::fill_cached,
    fill_stream: Some(sse2::fill_stream),
};

pub(crate) const AVX2: Kernel = Kernel {
    name: "avx2",
    about: "32-byte registers; non-temporal: vmovntdq",
    available: || std::is_x86_feature_detected!("avx2"),
    copy_cached: avx2::copy_cached,
    copy_stream: Some(avx2::copy_stream),
    fill_cached: avx2::fill_cached,
    fill_stream: Some(avx2::fill_stream),
};

pub(crate) const AVX512: Kernel = Kernel {
    name: "avx512",
    about: "64-byte registers; non-temporal: vmovntdq",
    available: || std::is_x86_feature_detected!("avx512f"),
    copy_cached: avx512::copy_cached,
    copy_stream: Some(avx512::copy_stream),
    fill_cached: avx512::fill_cached,
    fill_stream: Some(avx512::fill_stream),
};
