//! Counters of what a socket has done, told truthfully.

use onecopy_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One counter, in the row that [`registry`](crate::registry) gave its socket. Relaxed: a count publishes nothing. It is
/// written under the lock of its direction, or rarely.
#[derive(Debug)]
pub struct Counter(&'static AtomicU64);

impl Counter {
    /// Adds `n`, where one writer at a time is certain (a lock is held): no locked instruction.
    #[inline]
    pub fn add_exclusive(&self, n: usize) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n as u64), Relaxed);
    }

    /// Adds `n`, whoever else adds.
    #[inline]
    pub fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Relaxed);
    }

    /// Reads the count.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What one socket has done since it was made. Bytes are of payload.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The names of the counters, in order.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name),)*];

        #[allow(non_camel_case_types, reason = "the counters' own names")]
        enum Index {
            $($name,)*
        }

        impl Stats {
            /// Takes them from the words of a row.
            pub(crate) fn of(words: &[u64]) -> Stats {
                Stats { $($name: words[Index::$name as usize],)* }
            }

            /// Lists the counters by name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        /// The counters of one socket. [`Stats`] says what each counts.
        #[derive(Debug)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl Counters {
            /// Makes them of the words of a row.
            pub(crate) fn over(words: &'static [AtomicU64]) -> Counters {
                Counters { $($name: Counter(&words[Index::$name as usize]),)* }
            }

            /// Reads all of them, one after the other.
            pub fn read(&self) -> Stats {
                Stats { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Bytes sent, whichever way.
    sent,
    /// Bytes received (taken, not peeked), whichever way.
    received,
    /// Bytes that this end copied in user space while sending.
    user_copied_in,
    /// Of these: bytes stored with non-temporal stores.
    user_copied_nt,
    /// Bytes that this end copied in user space while receiving, into buffers of the caller.
    user_copied_out,
    /// Bytes that the kernel copied at this end's request: over the kernel socket, pread into a slot, write
    /// from a view.
    kernel_copied,
    /// Bytes sent or received by reference: no copy at all.
    referenced,
    /// Sends by reference that had to copy: a plain peer, or one that maps no pools.
    references_copied,
    /// Doorbells rung to wake the peer.
    doorbells,
    /// Fillers parked because the ring was full.
    fillers,
    /// Times a blocking call went to sleep.
    sleeps,
    /// Times a blocking receive spun with success.
    spins,
    /// Times a blocking send spun for room with success.
    room_spins,
    /// Lies of the peer that were caught.
    protocol_errors,
    /// 1 when shared memory was wanted and not had: a plain peer, once that is known, or a refusal. The kernel carries on.
    fallbacks,
}

impl Stats {
    /// Bytes that this end copied in user space. (Saturating: another process's counters may be anything.)
    pub fn user_copied(&self) -> u64 {
        self.user_copied_in.saturating_add(self.user_copied_out)
    }
}
