//! The copy engine: one place where bytes are touched.
//!
//! Three verbs, [`copy`], [`copy_vectored`] and [`fill`], each with a [`Hint`]: which stores ([`Policy`]), how much memory the
//! destination cycles through, and who reads it next ([`Reader`]). Each answers with the [`Store`] that was really
//! used. The kernels are detected once ([`Kernel`]), can be forced ([`force`], `ONECOPY_COPY=avx2`), and the choice
//! between cached and non-temporal stores comes from what `onecopy tune` measured ([`Profile`]), else from a formula, until the
//! copies themselves have shown what is faster: those into a ring to its [`Learner`], all others to their thread ([`learned()`]).
//!
//! **The fence is part of the contract.** Non-temporal stores are weakly ordered: without a fence the data may become
//! visible after the flag that announces it. Every non-temporal copy here fences before it returns, on the same thread,
//! so a Release store that follows publishes the data as it would after an ordinary copy.

mod arch;
pub mod calibrate;
mod caller;
pub mod compare;
mod dispatch;
mod learn;
mod look;
mod plan;
mod policy;
pub mod profile;

pub use arch::Kernel;
pub use caller::learned;
pub use dispatch::{FORCE_VARIABLE, KernelError, Status, force, install, plan, status};
pub use learn::{LEARN_MIN, Learned, Learner, Reason};
pub use look::{Block, Blocks, equal, find};
pub use plan::{Caches, STREAM_MIN};
pub use policy::{Hint, Policy, Reader, Store};
pub use profile::{Profile, ProfileError};

use dispatch::Engine;
use onecopy_sys::map::Span;
use std::ops::Deref;

/// Copies of this many bytes or fewer are done inline. Where there are kernels with wider registers, these soon win back what
/// the call costs.
const INLINE: usize = if cfg!(target_arch = "x86_64") { 64 } else { STREAM_MIN };

/// Copies `len` bytes and says which stores it used. Non-temporal stores are fenced (sfence) before the
/// return, so that a Release store after it publishes them.
///
/// Copies of [`STREAM_MIN`] bytes or fewer are always cached, and the shortest are done inline.
///
/// # Safety
///
/// `src` is valid for reads of `len` bytes, `dst` for writes of `len` bytes, and they do not overlap.
#[inline]
pub unsafe fn copy_raw(dst: *mut u8, src: *const u8, len: usize, hint: Hint) -> Store {
    if len <= INLINE {
        // SAFETY: the caller's promise; INLINE is at most what `small` takes.
        unsafe { arch::small::copy(dst, src, len) };
        return Store::Cached;
    }
    let engine = dispatch::engine();
    if len < engine.plain_below && (hint.policy != Policy::NonTemporal || len <= STREAM_MIN) {
        // SAFETY: the caller's promise is that of every kernel; the engine holds only kernels that this CPU can run.
        unsafe { (engine.copy_cached)(dst, src, len) };
        return Store::Cached;
    }
    // SAFETY: the caller's promise.
    unsafe { copy_long(engine, dst, src, len, hint) }
}

/// The part of [`copy_raw`] that isn't worth inlining.
///
/// # Safety
///
/// As [`copy_raw`].
unsafe fn copy_long(engine: &Engine, dst: *mut u8, src: *const u8, len: usize, hint: Hint) -> Store {
    let store = engine.stores(len, hint);
    // SAFETY: the caller's promise is that of every kernel; the engine holds only kernels that this CPU can run.
    unsafe {
        match store {
            Store::Cached if engine.is_long(len, hint.footprint) => (engine.copy_long)(dst, src, len),
            Store::Cached => (engine.copy_cached)(dst, src, len),
            Store::NonTemporal => (engine.copy_stream)(dst, src, len),
        }
    }
    store
}

/// Copies `src` over `dst` and says which stores it used; fenced as [`copy_raw`] says.
///
/// # Panics
///
/// When the lengths differ, as [`slice::copy_from_slice`] does.
#[inline]
pub fn copy(dst: &mut [u8], src: &[u8], hint: Hint) -> Store {
    same_length(dst.len(), src.len());
    // SAFETY: two slices of one length; a mutable one overlaps no other.
    unsafe { copy_raw(dst.as_mut_ptr(), src.as_ptr(), src.len(), hint) }
}

/// Copies a view over `dst` and says which stores it used: the one way from memory that a peer may be writing at this
/// moment to a slice. What arrives may be torn, but does not change any more. Fenced as [`copy_raw`] says.
///
/// # Panics
///
/// When the lengths differ.
#[inline]
pub fn copy_out(dst: &mut [u8], src: Span<'_>, hint: Hint) -> Store {
    same_length(dst.len(), src.len());
    // SAFETY: `src` is mapped readable for as long as the view lives, and `dst`, of the same length, is ours alone. They
    // do not overlap: where a view is writable no slice of its bytes exists, where it is not, none that is mutable
    // (`Span::from_raw`; a view of a slice borrows that). The copy runs over plain bytes, of which any value is valid,
    // whatever a peer writes meanwhile.
    unsafe { copy_raw(dst.as_mut_ptr(), src.as_ptr(), src.len(), hint) }
}

/// Gathers `sources` one after another into `dst`, as much as fits, and gives the number of bytes copied and the stores
/// used: [`Store::NonTemporal`] when any piece got them. `sources` may be slices, `Vec`s or `IoSlice`s.
///
/// The plan is made once for the whole, but pieces of [`STREAM_MIN`] bytes or fewer stay cached.
pub fn copy_vectored<S: Deref<Target = [u8]>>(dst: &mut [u8], sources: &[S], hint: Hint) -> (usize, Store) {
    let total = sources.iter().fold(0usize, |sum, source| sum.saturating_add(source.len())).min(dst.len());
    let store = if total <= STREAM_MIN { Store::Cached } else { dispatch::engine().stores(total, hint) };
    let policy = match store {
        Store::Cached => Policy::Cached,
        Store::NonTemporal => Policy::NonTemporal,
    };
    let mut used = Store::Cached;
    let mut rest = dst;
    for source in sources {
        let len = source.len().min(rest.len());
        let (piece, after) = rest.split_at_mut(len);
        if copy(piece, &source[..len], Hint { policy, ..hint }) == Store::NonTemporal {
            used = Store::NonTemporal;
        }
        rest = after;
    }
    (total, used)
}

/// Writes `value` into `len` bytes and says which stores it used; fenced as [`copy_raw`] says.
///
/// # Safety
///
/// `dst` is valid for writes of `len` bytes.
#[inline]
pub unsafe fn fill_raw(dst: *mut u8, value: u8, len: usize, hint: Hint) -> Store {
    if len <= STREAM_MIN {
        // SAFETY: the caller's promise; the C library streams nothing this short.
        unsafe { std::ptr::write_bytes(dst, value, len) };
        return Store::Cached;
    }
    let engine = dispatch::engine();
    let store = engine.stores(len, hint);
    // SAFETY: the caller's promise is that of every kernel; the engine holds only kernels that this CPU can run.
    unsafe {
        match store {
            Store::Cached if len >= engine.long_from => (engine.fill_long)(dst, value, len),
            Store::Cached => (engine.fill_cached)(dst, value, len),
            Store::NonTemporal => (engine.fill_stream)(dst, value, len),
        }
    }
    store
}

/// Writes `value` all over `dst` and says which stores it used; fenced as [`copy_raw`] says.
#[inline]
pub fn fill(dst: &mut [u8], value: u8, hint: Hint) -> Store {
    // SAFETY: a mutable slice.
    unsafe { fill_raw(dst.as_mut_ptr(), value, dst.len(), hint) }
}

#[inline(always)]
fn same_length(dst: usize, src: usize) {
    assert!(dst == src, "the destination has {dst} bytes, the source {src}");
}
