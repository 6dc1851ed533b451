//! Copies and fills of at most 256 bytes: two overlapping runs of registers, no loop and no call, so that a
//! ring's small messages cost a few branches.

#[cfg(target_arch = "x86_64")]
type Wide = core::arch::x86_64::__m128i; // SSE2 is part of x86-64
#[cfg(target_arch = "aarch64")]
type Wide = core::arch::aarch64::uint8x16_t; // so is NEON of AArch64
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
type Wide = [u64; 2];

/// The longest copy that [`copy`] takes.
pub(crate) const MAX: usize = 256;

/// Copies the first and the last `size_of::<T>() * N` of `len` bytes: all of them when `len` is at most twice
/// that. All loads come before the stores, so the compiler needs no second look at the source.
///
/// # Safety
///
/// As [`copy`]; and `len >= size_of::<T>() * N`.
#[inline(always)]
unsafe fn ends<T: Copy, const N: usize>(dst: *mut u8, src: *const u8, len: usize) {
    let back = len - core::mem::size_of::<T>() * N;
    // SAFETY: every access lies in the first or the last size_of::<T>() * N bytes, which the caller says are
    // inside both regions; unaligned accesses are used throughout.
    unsafe {
        let first: [T; N] = std::array::from_fn(|i| src.cast::<T>().add(i).read_unaligned());
        let last: [T; N] = std::array::from_fn(|i| src.add(back).cast::<T>().add(i).read_unaligned());
        for (i, value) in first.into_iter().enumerate() {
            dst.cast::<T>().add(i).write_unaligned(value);
        }
        for (i, value) in last.into_iter().enumerate() {
            dst.add(back).cast::<T>().add(i).write_unaligned(value);
        }
    }
}

/// Copies at most [`MAX`] bytes with ordinary stores.
///
/// # Safety
///
/// `src` is valid for reads of `len` bytes, `dst` for writes, they don't overlap, and `len <= MAX`.
#[inline(always)]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    debug_assert!(len <= MAX);
    // SAFETY: each arm copies two runs of at most `len` bytes that together cover it; the caller vouches for
    // both regions.
    unsafe {
        if len >= 16 {
            if len <= 32 {
                ends::<Wide, 1>(dst, src, len);
            } else if len <= 64 {
                ends::<Wide, 2>(dst, src, len);
            } else if len <= 128 {
                ends::<Wide, 4>(dst, src, len);
            } else {
                ends::<Wide, 4>(dst, src, 128);
                // At most 128 bytes are left; those before them were just written and are written again.
                ends::<Wide, 4>(dst.add(len - 128), src.add(len - 128), 128);
            }
        } else if len >= 8 {
            ends::<u64, 1>(dst, src, len);
        } else if len >= 4 {
            ends::<u32, 1>(dst, src, len);
        } else if len >= 2 {
            ends::<u16, 1>(dst, src, len);
        } else if len == 1 {
            dst.write(src.read());
        }
    }
}
