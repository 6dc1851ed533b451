//! The kernels: the only code of this crate that touches the bytes of others.
//!
//! Every kernel is correct at every length and alignment. The cached ones hold no non-temporal store; the
//! streaming ones end with the architecture's store fence, after which a Release store publishes the data
//! (`tests/disassembly.rs` looks at the machine code for both).

pub(crate) mod generic;
pub(crate) mod look;
pub(crate) mod small;

#[cfg(target_arch = "aarch64")]
pub(crate) mod aarch64;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

/// Copies `len` bytes from `src` to `dst`, which don't overlap.
pub(crate) type CopyFn = unsafe fn(dst: *mut u8, src: *const u8, len: usize);
/// Writes `value` into `len` bytes at `dst`.
pub(crate) type FillFn = unsafe fn(dst: *mut u8, value: u8, len: usize);

/// One way to copy and fill, by one instruction set. Whoever holds a reference to one has a CPU that can run it:
/// [`Kernel::all`] and [`Kernel::by_name`] give out no other.
pub struct Kernel {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Whether this CPU (and its kernel, for the register state) can run them.
    pub(crate) available: fn() -> bool,
    pub(crate) copy_cached: CopyFn,
    /// `None`: this kernel has no non-temporal stores.
    pub(crate) copy_stream: Option<CopyFn>,
    pub(crate) fill_cached: FillFn,
    pub(crate) fill_stream: Option<FillFn>,
}

/// The bytes of a cache line. Both architectures write-combine in units of 64 bytes; a CPU with 128-byte lines
/// sees two halves of one line in a row.
pub(crate) const LINE: usize = 64;

/// The bytes from `address` to the next line; 0 when it begins one.
#[inline(always)]
pub(crate) fn to_next_line(address: usize) -> usize {
    address.wrapping_neg() & (LINE - 1)
}

/// The kernels to take when nothing was measured, by name.
pub(crate) struct Preference {
    /// For ordinary stores,
    pub(crate) cached: &'static str,
    /// and for those from `long_from` bytes on.
    pub(crate) long: &'static str,
    pub(crate) long_from: usize,
    /// For non-temporal stores.
    pub(crate) stream: &'static str,
}
