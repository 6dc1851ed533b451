//! What CPUID says: features that std doesn't detect, cache sizes, the name of the machine.
//!
//! In a virtual machine the cache sizes are the hypervisor's word. They only feed the formula that is used until
//! `onecopy tune` has measured.

use super::super::Preference;
use crate::plan::Caches;
use core::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};

/// Leaf `leaf`, sub-leaf `sub`, or zeroes when the CPU has no such leaf.
#[allow(unused_unsafe, reason = "safe functions since Rust 1.94, unsafe ones in those before")]
fn leaf(leaf: u32, sub: u32) -> CpuidResult {
    // SAFETY: every x86-64 CPU has the instruction.
    let highest = unsafe { __cpuid(leaf & 0x8000_0000) }.eax;
    if leaf > highest {
        return CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    }
    // SAFETY: as above.
    unsafe { __cpuid_count(leaf, sub) }
}

/// Enhanced `rep movsb`: fast for long copies.
pub(crate) fn has_erms() -> bool {
    leaf(7, 0).ebx & 1 << 9 != 0
}

/// Fast short `rep movsb`.
fn has_fsrm() -> bool {
    leaf(7, 0).edx & 1 << 4 != 0
}

/// MOVDIR64B.
pub(crate) fn has_movdir64b() -> bool {
    leaf(7, 0).ecx & 1 << 28 != 0
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Vendor {
    Intel,
    Amd,
    Other,
}

fn vendor() -> Vendor {
    let id = leaf(0, 0);
    match (id.ebx, id.edx, id.ecx) {
        (0x756e_6547, 0x4965_6e69, 0x6c65_746e) => Vendor::Intel,
        (0x6874_7541, 0x6974_6e65, 0x444d_4163) | (0x6f67_7948, 0x6e65_476e, 0x656e_6975) => Vendor::Amd,
        _ => Vendor::Other,
    }
}

/// Family and model with their extended parts.
fn family_model() -> (u32, u32) {
    let signature = leaf(1, 0).eax;
    let (base, extended) = (signature >> 8 & 0xf, signature >> 20 & 0xff);
    let family = if base == 0xf { base + extended } else { base };
    (family, signature >> 4 & 0xf | (signature >> 16 & 0xf) << 4)
}

/// The data caches: CPUID leaf 4 (Intel) or 0x8000001D (AMD, same layout).
pub(crate) fn caches() -> Caches {
    let number = if vendor() == Vendor::Amd { 0x8000_001d } else { 4 };
    let mut caches = Caches::default();
    for sub in 0..16 {
        let part = leaf(number, sub);
        let kind = part.eax & 0x1f;
        if kind == 0 {
            break;
        }
        if kind == 2 {
            continue; // instructions
        }
        let size = ((part.ebx >> 22) as usize + 1)
            * ((part.ebx >> 12 & 0x3ff) as usize + 1)
            * ((part.ebx & 0xfff) as usize + 1)
            * (part.ecx as usize + 1);
        match part.eax >> 5 & 7 {
            1 => caches.l1 = size,
            2 => caches.l2 = size,
            3 => {
                caches.l3 = size;
                caches.l3_threads = (part.eax >> 14 & 0xfff) as usize + 1;
            }
            _ => {}
        }
    }
    // Leaf 4 counts addressable identifiers, often more than there are threads.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    caches.l3_threads = caches.l3_threads.clamp(1, threads);
    caches.per_complex = vendor() == Vendor::Amd;
    caches.divisor = nt_divisor();
    caches
}

/// What the shared cache is divided by for glibc's non-temporal threshold
/// (sysdeps/x86/cpu-features.c, `cachesize_non_temporal_divisor`): 8 from Nehalem to Broadwell, 2 from Skylake on, else 4.
fn nt_divisor() -> usize {
    if vendor() != Vendor::Intel {
        return 4;
    }
    match family_model() {
        // Nehalem, Westmere, Sandy Bridge, Ivy Bridge, Haswell, Broadwell.
        (
            6,
            0x1a | 0x1e | 0x1f | 0x2e | 0x25 | 0x2c | 0x2f | 0x2a | 0x2d | 0x3a | 0x3e | 0x3c | 0x3f | 0x45
            | 0x46 | 0x3d | 0x47 | 0x4f | 0x56,
        ) => 8,
        // Skylake and what came after; the Atoms and Knights of that age keep the default.
        (
            6,
            0x5c | 0x5f | 0x7a | 0x86 | 0x96 | 0x9c | 0x57 | 0x85 | 0x37 | 0x4a | 0x4c | 0x4d | 0x5a | 0x5d,
        ) => 4,
        (6, model) if model >= 0x4e => 2,
        (family, _) if family > 6 && family != 0xf => 2,
        _ => 4,
    }
}

/// The kernels to take when nothing was measured.
pub(crate) fn prefers() -> Preference {
    // AVX-512 before Ice Lake lowers the clock of all that runs beside the copy; FSRM came with Ice Lake. AMD's
    // AVX-512 never did that.
    let best = if std::is_x86_feature_detected!("avx512f") && (has_fsrm() || vendor() == Vendor::Amd) {
        "avx512"
    } else if std::is_x86_feature_detected!("avx2") {
        "avx2"
    } else {
        "sse2"
    };
    // glibc's rep_movsb_threshold (sysdeps/x86/dl-cacheinfo.h): 2112 with FSRM, else 2048 for each 16 bytes of register.
    // With AVX-512 later: measured on Sapphire Rapids, source 16 bytes off: 31 against 40 ns at 4 KiB, 57 against 65
    // at 8 KiB, 108 against 116 at 16 KiB in the cache; out of it rep movsb gains 7% at 8 KiB and 15% at 16 KiB.
    let (long, long_from) = match (has_erms(), has_fsrm(), best) {
        (true, true, "avx512") => ("erms", 16 << 10),
        (true, true, _) => ("erms", 2112),
        (true, false, "sse2") => ("erms", 2048),
        (true, false, _) => ("erms", 4096),
        _ => (best, usize::MAX),
    };
    Preference { cached: best, long, long_from, stream: best }
}

/// A name that stays the same as long as the machine does: a profile measured on another is not used.
pub(crate) fn machine() -> String {
    let mut brand = Vec::new();
    for number in 0x8000_0002..=0x8000_0004u32 {
        let part = leaf(number, 0);
        for register in [part.eax, part.ebx, part.ecx, part.edx] {
            brand.extend_from_slice(&register.to_le_bytes());
        }
    }
    let brand: String = brand
        .iter()
        .take_while(|&&byte| byte != 0)
        .map(|&byte| char::from(byte))
        .filter(|c| !c.is_control())
        .collect();
    let signature = leaf(1, 0).eax;
    format!("{} ({signature:#x})", brand.trim())
}
