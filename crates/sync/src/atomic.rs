//! The atomics: std's, or loom's under `--cfg loom`.
//!
//! Newtypes rather than re-exports, so that clippy can tell them from std's own, which it refuses everywhere
//! else. They have the layout of the integer, so that they may lie in memory that processes share.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "this is the facade")]

#[cfg(loom)]
use loom::sync::atomic as imp;
#[cfg(not(loom))]
use std::sync::atomic as imp;
pub use std::sync::atomic::Ordering;

macro_rules! atomic {
    ($name:ident, $int:ty) => {
        #[doc = concat!("An atomic `", stringify!($int), "`.")]
        #[derive(Debug, Default)]
        #[cfg_attr(not(loom), repr(transparent))]
        pub struct $name(imp::$name);

        impl $name {
            /// With a first value.
            #[inline]
            pub fn new(value: $int) -> Self {
                Self(imp::$name::new(value))
            }

            /// Reads.
            #[inline]
            pub fn load(&self, order: Ordering) -> $int {
                self.0.load(order)
            }

            /// Writes.
            #[inline]
            pub fn store(&self, value: $int, order: Ordering) {
                self.0.store(value, order);
            }

            /// Writes, and returns what was there.
            #[inline]
            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                self.0.swap(value, order)
            }

            /// Writes `new` if `current` is there; returns what was there, Err if it was not `current`.
            ///
            /// # Errors
            ///
            /// What was there instead of `current`.
            #[inline]
            pub fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                self.0.compare_exchange(current, new, success, failure)
            }

            /// Adds, wrapping; returns what was there.
            #[inline]
            pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                self.0.fetch_add(value, order)
            }

            /// Subtracts, wrapping; returns what was there.
            #[inline]
            pub fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                self.0.fetch_sub(value, order)
            }

            /// Sets the bits of `value`; returns what was there.
            #[inline]
            pub fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                self.0.fetch_or(value, order)
            }

            /// Keeps only the bits of `value`; returns what was there.
            #[inline]
            pub fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                self.0.fetch_and(value, order)
            }
        }
    };
}

atomic!(AtomicU8, u8);
atomic!(AtomicU16, u16);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);

#[cfg(not(loom))]
impl AtomicU32 {
    /// The atomic itself, whose address futex(2) wants.
    pub fn as_raw(&self) -> &imp::AtomicU32 {
        &self.0
    }
}

/// An atomic fence. SeqCst is a locked instruction on x86-64, as the kernel's smp_mb() (arch/x86/include/asm/barrier.h):
/// the mfence that compilers emit takes more than twice as long, and only non-temporal stores need it, which the
/// copy engine fences itself.
#[inline]
pub fn fence(order: Ordering) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if order == Ordering::SeqCst {
        // SAFETY: it leaves the word on top of the stack as it is. A locked instruction is a full barrier (Intel SDM
        // 3A, 9.2.3.8), and an asm block that may touch memory is one for the compiler.
        unsafe { std::arch::asm!("lock or dword ptr [rsp], 0") };
        return;
    }
    imp::fence(order);
}

/// A SeqCst fence for who has just done a read-modify-write on an atomic. On x86-64 that instruction was a locked one, a
/// full barrier already (Intel SDM 3A, 9.2.3.8), so that only the compiler has to be told.
#[inline]
pub fn fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(any(not(target_arch = "x86_64"), loom, miri))]
    fence(Ordering::SeqCst);
}

/// Tells the CPU (or loom's scheduler) that this thread waits for another one.
#[inline]
pub fn spin_loop() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}
