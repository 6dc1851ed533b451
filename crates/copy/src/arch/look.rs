//! Loads of 64 bytes that a peer may be writing, into registers.
//!
//! Each byte is loaded by one instruction, once: by `asm!`, or by a volatile read where there is no `asm!` here. So the
//! compiler can neither load it again, to find another value there, nor take it for one that keeps still. What comes
//! back is a value. It is torn where the peer writes meanwhile, and it does not change any more.
//!
//! What is for AArch64 here keeps to `core` and to Rust of 2022, as `aarch64.rs` says.

use super::LINE;

/// What one load brings.
pub(crate) type Bytes = [u8; LINE];

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide {
    use core::arch::asm;
    use core::arch::x86_64::*;

    /// SSE2 is part of x86-64. Code that is built for AVX uses the other encoding throughout: to mix them costs.
    #[cfg(not(target_feature = "avx"))]
    macro_rules! load {
        () => {
            "movdqu "
        };
    }
    #[cfg(target_feature = "avx")]
    macro_rules! load {
        () => {
            "vmovdqu "
        };
    }

    pub(super) type Wide = __m128i;

    /// # Safety
    ///
    /// See [`super::block`].
    #[inline(always)]
    pub(super) unsafe fn block(from: *const u8) -> [Wide; 4] {
        let (a, b, c, d);
        // SAFETY: the 64 bytes are mapped readable, the caller says. The instructions read them, at any alignment, and
        // write four registers that are told.
        unsafe {
            asm!(
                concat!(load!(), "{a}, [{from}]"),
                concat!(load!(), "{b}, [{from} + 16]"),
                concat!(load!(), "{c}, [{from} + 32]"),
                concat!(load!(), "{d}, [{from} + 48]"),
                from = in(reg) from,
                a = out(xmm_reg) a, b = out(xmm_reg) b, c = out(xmm_reg) c, d = out(xmm_reg) d,
                options(readonly, nostack, preserves_flags)
            );
        }
        [a, b, c, d]
    }

    /// # Safety
    ///
    /// As [`super::block`], for 16 bytes.
    #[inline(always)]
    pub(super) unsafe fn one(from: *const u8) -> Wide {
        let a;
        // SAFETY: as in `block`.
        unsafe {
            asm!(
                concat!(load!(), "{a}, [{from}]"),
                from = in(reg) from, a = out(xmm_reg) a,
                options(readonly, nostack, preserves_flags)
            );
        }
        a
    }

    /// Has bit i set where byte i is `byte`.
    #[inline(always)]
    pub(super) fn matches(block: [Wide; 4], byte: u8) -> u64 {
        let [a, b, c, d] = block.map(|part| {
            // SAFETY: SSE2 is part of x86-64.
            let mask = unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(part, _mm_set1_epi8(byte.cast_signed()))) };
            u64::from(mask.cast_unsigned())
        });
        a | b << 16 | c << 32 | d << 48
    }

    /// Whether `byte` is there.
    #[inline(always)]
    pub(super) fn any([a, b, c, d]: [Wide; 4], byte: u8) -> bool {
        // SAFETY: SSE2 is part of x86-64.
        unsafe {
            let wanted = _mm_set1_epi8(byte.cast_signed());
            let [a, b, c, d] = [a, b, c, d].map(|part| _mm_cmpeq_epi8(part, wanted));
            _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(a, b), _mm_or_si128(c, d))) != 0
        }
    }
}

#[cfg(all(target_arch = "aarch64", target_endian = "little", not(miri)))]
mod wide {
    use core::arch::aarch64::*;
    use core::arch::asm;

    pub(super) type Wide = uint8x16_t; // NEON is part of AArch64

    /// # Safety
    ///
    /// See [`super::block`].
    #[inline(always)]
    pub(super) unsafe fn block(from: *const u8) -> [Wide; 4] {
        let (a, b, c, d);
        // SAFETY: the 64 bytes are mapped readable, the caller says. The instructions read them, at any alignment, and
        // write four registers that are told.
        unsafe {
            asm!(
                "ldp {a:q}, {b:q}, [{from}]",
                "ldp {c:q}, {d:q}, [{from}, #32]",
                from = in(reg) from,
                a = out(vreg) a, b = out(vreg) b, c = out(vreg) c, d = out(vreg) d,
                options(readonly, nostack, preserves_flags)
            );
        }
        [a, b, c, d]
    }

    /// # Safety
    ///
    /// As [`super::block`], for 16 bytes.
    #[inline(always)]
    pub(super) unsafe fn one(from: *const u8) -> Wide {
        let a;
        // SAFETY: as in `block`.
        unsafe {
            asm!(
                "ldr {a:q}, [{from}]",
                from = in(reg) from, a = out(vreg) a,
                options(readonly, nostack, preserves_flags)
            );
        }
        a
    }

    /// Has bit i set where byte i is `byte`.
    #[inline(always)]
    pub(super) fn matches(block: [Wide; 4], byte: u8) -> u64 {
        // There is no movemask: each byte keeps the bit of its place among eight, and neighbours are added up.
        // SAFETY: NEON is part of AArch64.
        unsafe {
            let places = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            let wanted = vdupq_n_u8(byte);
            let [a, b, c, d] = block.map(|part| vandq_u8(vceqq_u8(part, wanted), places));
            let sums = vpaddq_u8(vpaddq_u8(a, b), vpaddq_u8(c, d));
            vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)))
        }
    }

    /// Whether `byte` is there.
    #[inline(always)]
    pub(super) fn any([a, b, c, d]: [Wide; 4], byte: u8) -> bool {
        // SAFETY: NEON is part of AArch64.
        unsafe {
            let wanted = vdupq_n_u8(byte);
            let [a, b, c, d] = [a, b, c, d].map(|part| vceqq_u8(part, wanted));
            vmaxvq_u8(vorrq_u8(vorrq_u8(a, b), vorrq_u8(c, d))) != 0
        }
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))))]
mod wide {
    pub(super) type Wide = [u64; 2];

    /// # Safety
    ///
    /// See [`super::block`].
    #[inline(always)]
    pub(super) unsafe fn block(from: *const u8) -> [Wide; 4] {
        // SAFETY: all four are inside of the 64 bytes.
        std::array::from_fn(|i| unsafe { one(from.add(16 * i)) })
    }

    /// # Safety
    ///
    /// As [`super::block`], for 16 bytes.
    #[inline(always)]
    pub(super) unsafe fn one(from: *const u8) -> Wide {
        // SAFETY: the 16 bytes are mapped readable, the caller says. There is no volatile read at any alignment: words
        // are read where words begin, else bytes.
        unsafe {
            if from.cast::<u64>().is_aligned() {
                std::array::from_fn(|i| from.cast::<u64>().add(i).read_volatile())
            } else {
                std::array::from_fn(|i| {
                    u64::from_ne_bytes(std::array::from_fn(|j| from.add(8 * i + j).read_volatile()))
                })
            }
        }
    }

    /// Has bit i set where byte i is `byte`.
    #[inline(always)]
    pub(super) fn matches(block: [Wide; 4], byte: u8) -> u64 {
        let mut found = 0;
        for (at, word) in block.iter().flatten().enumerate() {
            for (i, other) in word.to_ne_bytes().into_iter().enumerate() {
                found |= u64::from(other == byte) << (8 * at + i);
            }
        }
        found
    }

    /// Whether `byte` is there.
    #[inline(always)]
    pub(super) fn any(block: [Wide; 4], byte: u8) -> bool {
        matches(block, byte) != 0
    }
}

/// Loads 64 bytes.
///
/// # Safety
///
/// They are mapped readable. Who else writes them, and when, does not matter.
#[inline(always)]
pub(crate) unsafe fn block(from: *const u8) -> Bytes {
    // SAFETY: the caller's promise; both types are 64 plain bytes, of which any value is valid.
    unsafe { core::mem::transmute::<[wide::Wide; 4], Bytes>(wide::block(from)) }
}

/// Loads `len` bytes, at most 64. Those behind them are zero.
///
/// # Safety
///
/// As [`block`], for `len` bytes.
pub(crate) unsafe fn short(from: *const u8, len: usize) -> Bytes {
    let mut bytes = [0; LINE];
    for (i, part) in bytes[..len].chunks_exact_mut(16).enumerate() {
        // SAFETY: the caller's promise: this part ends at or before `len`. Both types are 16 plain bytes.
        part.copy_from_slice(&unsafe {
            core::mem::transmute::<wide::Wide, [u8; 16]>(wide::one(from.add(16 * i)))
        });
    }
    for (at, byte) in bytes[..len].iter_mut().enumerate().skip(len & !15) {
        // SAFETY: the caller's promise: `at` is less than `len`.
        *byte = unsafe { from.add(at).read_volatile() };
    }
    bytes
}

/// Has bit i set where byte i is `byte`.
#[inline(always)]
pub(crate) fn matches(bytes: Bytes, byte: u8) -> u64 {
    // SAFETY: both types are 64 plain bytes, of which any value is valid.
    wide::matches(unsafe { core::mem::transmute::<Bytes, [wide::Wide; 4]>(bytes) }, byte)
}

/// Whether one of all 64 is `byte`: sooner known than where.
#[inline(always)]
pub(crate) fn any(bytes: Bytes, byte: u8) -> bool {
    // SAFETY: as in `matches`.
    wide::any(unsafe { core::mem::transmute::<Bytes, [wide::Wide; 4]>(bytes) }, byte)
}
