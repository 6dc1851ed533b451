//! How copies into the ring are to be made, as far as the settings say.

use crate::core::Core;
use onecopy_copy::{Hint, LEARN_MIN, Learned, Policy, Reason, Store};
use onecopy_socket::SendFlags;

impl Core {
    /// Returns how copies into the ring are to be made.
    pub fn hint(&self, flags: SendFlags, footprint: usize) -> Hint {
        let policy =
            if flags.contains(SendFlags::NTCOPY) { Policy::NonTemporal } else { self.settings.policy() };
        Hint { policy, footprint, reader: self.settings.reader() }
    }

    /// Returns how a program's copy of `len` bytes into the ring is to be made, which goes past the sending side's own: by what was
    /// learned there, or by what its thread learns where nothing learns there.
    pub fn hint_of(&self, flags: SendFlags, footprint: usize, len: usize) -> Hint {
        let hint = self.hint(flags, footprint);
        if len < LEARN_MIN || hint.policy != Policy::Auto {
            return hint;
        }
        match self.settings().learned() {
            Some(Learned { store, reason: Reason::Faster | Reason::Tie, .. }) => stored(hint, store),
            Some(Learned { reason: Reason::Plan, .. }) => planned(hint, len),
            None => hint,
        }
    }
}

/// Returns `hint` with what is planned for a copy of `len` bytes: the ring learns, and its bytes are not to teach the thread, too.
pub fn planned(hint: Hint, len: usize) -> Hint {
    stored(hint, onecopy_copy::plan(len, hint))
}

/// Returns `hint` with what was learned.
pub fn stored(hint: Hint, store: Store) -> Hint {
    let policy = match store {
        Store::Cached => Policy::Cached,
        Store::NonTemporal => Policy::NonTemporal,
    };
    Hint { policy, ..hint }
}
