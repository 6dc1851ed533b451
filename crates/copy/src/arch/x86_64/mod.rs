//! x86-64: `rep movsb`, SSE2, AVX2, AVX-512 and MOVDIR64B.
//!
//! Sources: Intel SDM volume 2 (MOVNTDQ, MOVDIR64B, SFENCE) and volume 1, 10.4.6.2 (write whole lines, fence
//! before publishing); glibc `sysdeps/x86_64/multiarch/memmove-vec-unaligned-erms.S` for the interleaving of pages.

mod cpuid;
mod erms;
mod movdir64b;
mod vector;

pub(crate) use cpuid::{caches, machine, prefers};

use super::Kernel;

/// Every kernel of this architecture, best last.
pub(crate) static ALL: &[Kernel] =
    &[vector::SSE2, erms::KERNEL, vector::AVX2, vector::AVX512, movdir64b::KERNEL];

/// Bytes of a page: the unit of interleaving.
const PAGE: usize = 4096;
/// Pages that a long streaming copy fills side by side, as glibc's does.
///
/// What pays for it is the source: a hardware prefetcher stops at the end of its page, and with four pages there
/// are four of them running. Measured on a Sapphire Rapids VM, GB/s by AVX-512 into 256 MiB with 1, 2 and 4 pages: source
/// in memory, 64 KiB: 9.1, 11.5, 12.2; 1 MiB: 10.0, 11.5, 13.1; source in the cache, 64 KiB: 15.9, 16.1, 16.5; 1 MiB:
/// 16.6, 16.7, 16.4. MOVDIR64B the same within 3%.
const PAGES: usize = 4;
/// From this many bytes a streaming copy interleaves pages.
const INTERLEAVE_MIN: usize = 16 * PAGE;
