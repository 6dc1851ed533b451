//! Counters of what a socket has really done.

use onecopy_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One counter, in the row that [`registry`](crate::registry) gave its socket. Relaxed: a count publishes
/// nothing. It is written under the lock of its direction, or rarely.
#[derive(Debug)]
pub struct Counter(&'static AtomicU64);

impl Counter {
    /// Adds `n` where only one writer at a time is certain, because a lock is held. Needs no locked
    /// instruction.
    #[inline]
    pub fn add_exclusive(&self, n: usize) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n as u64), Relaxed);
    }

    /// Adds `n`, even if others add at the same time.
    #[inline]
    pub fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Relaxed);
    }

    /// Returns the count.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What one socket has done since it was made. Bytes are bytes of payload.
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
            /// Reads them from the words of a row.
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
            /// Makes them from the words of a row.
            #[inline]
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
    /// Bytes sent, by any way.
    sent,
    /// Bytes received (taken, not peeked), by any way.
    received,
    /// Bytes that this end copied in user space while sending.
    user_copied_in,
    /// The part of these bytes that was stored with non-temporal stores.
    user_copied_nt,
    /// The part of these bytes that had other stores than those that seemed best, to compare the two.
    explored,
    /// Bytes that this end copied in user space while receiving, into buffers of the caller, or into pages that are then received by reference. What a
    /// program looks at in place comes into no buffer.
    user_copied_out,
    /// Bytes that the kernel copied for this end: over the kernel socket, with pread into a slot, or with
    /// write from a view.
    kernel_copied,
    /// Bytes sent or received by reference, without a copy.
    referenced,
    /// Sends by reference that were copies, because the peer is plain or maps no pools, or since that takes less time (small loans).
    references_copied,
    /// Doorbells rung to wake the peer.
    doorbells,
    /// Fillers parked because the ring was full.
    fillers,
    /// Of these, the ones that left a datagram socket writable to poll(2) while its sends say EAGAIN: the descriptor that turns that off
    /// could not be had (EMFILE, ENFILE, ENOBUFS, ETOOMANYREFS). Close some, or raise RLIMIT_NOFILE.
    left_writable,
    /// Times a blocking call went to sleep.
    sleeps,
    /// Times a blocking receive spun and succeeded.
    spins,
    /// Times a blocking send spun for room and succeeded.
    room_spins,
    /// Times the peer misbehaved and was caught.
    protocol_errors,
    /// 1 if shared memory was wanted and refused, or the peer is known to be plain. The kernel carries the
    /// bytes.
    fallbacks,
}

impl Stats {
    /// Returns the bytes that this end copied in user space. The sum saturates: another process's counters
    /// may hold anything.
    pub fn user_copied(&self) -> u64 {
        self.user_copied_in.saturating_add(self.user_copied_out)
    }
}
