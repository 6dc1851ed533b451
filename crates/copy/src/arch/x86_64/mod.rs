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
