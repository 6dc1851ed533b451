//! AArch64: LDP/STP, and STNP for the non-temporal form.
//!
//! STNP is a hint (Arm ARM C3.2.4): a core may treat it as STP. What it may not do without a barrier is promised
//! here in any case: DMB ISH comes before the tail, so a Release store that follows publishes the lines.
//!
//! This file keeps to `core` and to Rust of 2022, so that `tests/aarch64/run.sh` can build it with the cross
//! compiler of a Linux distribution and run it under an emulator.

use super::{Kernel, LINE, Preference, small, to_next_line};
use core::arch::asm;

/// Every kernel of this architecture.
pub(crate) static ALL: &[Kernel] = &[Kernel {
    name: "neon",
    about: "ldp/stp of 16-byte registers; non-temporal: stnp",
    available: || true, // part of AArch64
    copy_cached,
    copy_stream: Some(copy_stream),
    fill_cached,
    fill_stream: Some(fill_stream),
}];

/// The kernels to take when nothing was measured.
pub(crate) fn prefers() -> Preference {
    Preference { cached: "neon", long: "neon", long_from: usize::MAX, stream: "neon" }
}

/// # Safety
///
/// See [`super::CopyFn`].
unsafe fn copy_cached(dst: *mut u8, src: *const u8, len: usize) {
    if len <= small::MAX {
        // SAFETY: the caller's promise.
        return unsafe { small::copy(dst, src, len) };
    }
    // SAFETY: len > LINE: the first line, then lines from the next boundary of dst while a whole one is left, then
    // the last line of both regions, which overlaps what is written already.
    unsafe {
        small::copy(dst, src, LINE);
        let skip = LINE - (dst as usize & (LINE - 1));
        let lines = (len - skip) / LINE;
        asm!(
            "2:",
            "ldp {a:q}, {b:q}, [{src}]",
            "ldp {c:q}, {d:q}, [{src}, #32]",
            "add {src}, {src}, #64",
            "stp {a:q}, {b:q}, [{dst}]",
            "stp {c:q}, {d:q}, [{dst}, #32]",
            "add {dst}, {dst}, #64",
            "subs {lines}, {lines}, #1",
            "b.ne 2b",
            src = inout(reg) src.add(skip) => _,
            dst = inout(reg) dst.add(skip) => _,
            lines = inout(reg) lines => _,
            a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, d = out(vreg) _,
            options(nostack)
        );
        small::copy(dst.add(len - LINE), src.add(len - LINE), LINE);
    }
}

/// # Safety
///
/// See [`super::CopyFn`].
unsafe fn copy_stream(dst: *mut u8, src: *const u8, len: usize) {
    let head = to_next_line(dst as usize);
    if len < head + LINE {
        // SAFETY: no whole line: len < 2 * LINE <= small::MAX.
        return unsafe { small::copy(dst, src, len) };
    }
    let lines = (len - head) / LINE;
    let end = head + lines * LINE;
    // SAFETY: head < LINE, then `lines` (at least one) whole lines up to `end` <= len, then fewer than LINE bytes.
    unsafe {
        small::copy(dst, src, head);
        asm!(
            "2:",
            "ldp {a:q}, {b:q}, [{src}]",
            "ldp {c:q}, {d:q}, [{src}, #32]",
            "add {src}, {src}, #64",
            "stnp {a:q}, {b:q}, [{dst}]",
            "stnp {c:q}, {d:q}, [{dst}, #32]",
            "add {dst}, {dst}, #64",
            "subs {lines}, {lines}, #1",
            "b.ne 2b",
            "dmb ish",
            src = inout(reg) src.add(head) => _,
            dst = inout(reg) dst.add(head) => _,
            lines = inout(reg) lines => _,
            a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, d = out(vreg) _,
            options(nostack)
        );
        small::copy(dst.add(end), src.add(end), len - end);
    }
}

/// # Safety
///
/// See [`super::FillFn`].
unsafe fn fill_cached(dst: *mut u8, value: u8, len: usize) {
    // SAFETY: the caller's promise is that of write_bytes. (The C library's fill: STP, and DC ZVA for zeroes.)
    unsafe { core::ptr::write_bytes(dst, value, len) };
}

/// # Safety
///
/// See [`super::FillFn`].
unsafe fn fill_stream(dst: *mut u8, value: u8, len: usize) {
    let head = to_next_line(dst as usize);
    if len < head + LINE {
        // SAFETY: the caller's promise is that of write_bytes.
        return unsafe { core::ptr::write_bytes(dst, value, len) };
    }
    let lines = (len - head) / LINE;
    let end = head + lines * LINE;
    // SAFETY: as copy_stream.
    unsafe {
        core::ptr::write_bytes(dst, value, head);
        asm!(
            "dup {a}.16b, {value:w}",
            "2:",
            "stnp {a:q}, {a:q}, [{dst}]",
            "stnp {a:q}, {a:q}, [{dst}, #32]",
            "add {dst}, {dst}, #64",
            "subs {lines}, {lines}, #1",
            "b.ne 2b",
            "dmb ish",
            dst = inout(reg) dst.add(head) => _,
            lines = inout(reg) lines => _,
            value = in(reg) u32::from(value),
            a = out(vreg) _,
            options(nostack)
        );
        core::ptr::write_bytes(dst.add(end), value, len - end);
    }
}
