//! What of device memory was refused, counted by why.

use onecopy_socket::Error;
use onecopy_sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        onecopy_link::counters! {
            /// What of device memory a stack has refused since it was built, by why ([`Stack::device_refusals`](crate::Stack::device_refusals)). What is
            /// refused changes nothing else: no page, token, queue or byte.
            pub struct Refusals { $($(#[$doc])* $name,)* }
        }

        /// The counters of one stack. [`Refusals`] says what each counts.
        #[derive(Debug, Default)]
        pub(crate) struct Refused { $(pub $name: AtomicU64,)* }

        impl Refused {
            /// Reads them, one after the other. (Relaxed: a count publishes nothing.)
            pub fn read(&self) -> Refusals {
                Refusals { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

refusals! {
    /// `bind_rx` without a queue (EINVAL).
    rx_no_queue,
    /// To a queue that there is not (ERANGE).
    rx_no_such_queue,
    /// To a queue that has memory, or was named twice (EEXIST).
    rx_bound,
    /// To the last queue that was left for flows that nobody steers (EINVAL).
    rx_none_left,
    /// With headers not split from payload (EINVAL).
    rx_not_split,
    /// Of memory whose pages are larger than 4 KiB (E2BIG).
    rx_page_size,
    /// Of memory that is too small (EINVAL).
    rx_too_small,
    /// Of memory that is sent from (EBUSY).
    rx_busy,
    /// On a stack whose link is gone (ENODEV).
    rx_gone,
    /// Where it cannot be (EOPNOTSUPP): the link does not split headers, the memory cannot be registered or reached, the stack has several shards.
    rx_unsupported,
    /// `bind_tx` of memory that is bound, or that somebody has pages of (EBUSY).
    tx_busy,
    /// On a stack whose link is gone, or whose ring (ENODEV).
    tx_gone,
    /// Where it cannot be (EOPNOTSUPP): the link takes no such memory, the memory cannot be registered or reached, the stack has several shards.
    tx_unsupported,
    /// Sends, or chains to be sent, of bytes that are not inside of the memory (EFAULT).
    send_outside,
    /// Sends from the binding of another stack, or of one that has ended (ENODEV).
    send_foreign,
    /// Sends of 4 GiB and more (EMSGSIZE).
    send_too_long,
    /// Tokens that came back once more, by whatever way: their socket has given them out, and they are not out.
    tokens_stale,
    /// Tokens that came back to a socket that has never given them out. Another socket's are here, or are stale, by their number: it does not say whose it is.
    tokens_unknown,
    /// Calls of `dont_need` that were no tokens: more than 128 ranges, or bytes that are no whole ranges (EINVAL).
    token_calls,
}

impl Refused {
    /// Counts one more of what `which` says.
    pub fn count(&self, which: Which) {
        which(self).fetch_add(1, Relaxed);
    }

    /// Counts tokens that were nobody's.
    pub fn count_tokens(&self, nobodys: Nobodys) {
        for (word, n) in [(&self.tokens_stale, nobodys.stale), (&self.tokens_unknown, nobodys.unknown)] {
            // Most often none is: then nobody else's cache line is taken.
            if n > 0 {
                word.fetch_add(n, Relaxed);
            }
        }
    }
}

/// One of the counters.
pub(crate) type Which = fn(&Refused) -> &AtomicU64;

/// Tokens that came back and were nobody's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Nobodys {
    pub stale: u64,
    pub unknown: u64,
}

/// An error whose counter has not been moved yet: whoever returns it to the program does so.
#[derive(Debug)]
pub(crate) struct Refusal {
    which: Which,
    error: Error,
}

/// What a call comes to that counts its error at its end.
pub(crate) type NotCounted<T> = std::result::Result<T, Refusal>;

impl Refusal {
    pub fn new(which: Which, error: Error) -> Refusal {
        Refusal { which, error }
    }

    /// The error, counted.
    pub fn counted(self, refused: &Refused) -> Error {
        refused.count(self.which);
        self.error
    }
}
