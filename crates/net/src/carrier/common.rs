//! What sockets have whoever carries their bytes.

use onecopy_copy::{Hint, Store, plan};
use onecopy_socket::registry::Row;
use onecopy_socket::{Counters, Error, Op, Policy, Reader, Result, SendFlags, Settings, Wait};
use onecopy_sync::{Mutex, MutexGuard};
use rustix::io::Errno;
use std::time::Duration;

/// Bytes that are copied while the stack's lock is held: others wait no longer than that takes.
pub(crate) const PIECE: usize = 256 << 10;

/// Bytes of a page of the stack's pool: the longest copy that is one.
const PAGE: usize = 4096;

/// What lives as long as a socket's row, in which it counts: who may outlive the socket asks here.
pub(crate) trait Counts: Send + Sync {
    fn counters(&self) -> Counters;
}

impl Counts for Row {
    fn counters(&self) -> Counters {
        Row::counters(self)
    }
}

/// What a socket has beside what its carrier knows of it.
pub(crate) struct Common {
    settings: Settings,
    /// A stream's: one send at a time, so that bytes of two never mix.
    sending: Mutex<()>,
}

impl Common {
    /// Of a socket that counts in `row`, and keeps that as long as it lives.
    pub fn new(row: &Row, wait: Wait, reader: Reader) -> Common {
        Common { settings: row.settings(Policy::Auto, reader, wait), sending: Mutex::new(()) }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Found in the row each time: kept, they were a third of what an idle socket takes.
    #[inline]
    pub fn counters(&self) -> Counters {
        self.settings.counters()
    }

    /// Which stores a copy into the stack's pages is to use.
    pub fn hint(&self, flags: SendFlags) -> Hint {
        let settings = &self.settings;
        let policy = if flags.contains(SendFlags::NTCOPY) { Policy::NonTemporal } else { settings.policy() };
        Hint { policy, footprint: 0, reader: settings.reader() }
    }

    /// Counts `n` bytes that were sent by a copy with `hint`, under the lock of whoever carries them.
    pub fn copied_in(&self, n: usize, hint: Hint) {
        let counters = self.counters();
        counters.sent.add_exclusive(n);
        counters.user_copied_in.add_exclusive(n);
        if plan(n.min(PAGE), hint) == Store::NonTemporal {
            counters.user_copied_nt.add_exclusive(n);
        }
    }

    /// Counts `n` bytes that were sent by reference, likewise.
    pub fn referenced(&self, n: usize) {
        let counters = self.counters();
        counters.sent.add_exclusive(n);
        counters.referenced.add(n);
    }

    /// The right to send: whole sends never interleave. Who is not to wait gets EAGAIN while another thread's send waits for room.
    pub fn send_alone(&self, dont_wait: bool) -> Result<MutexGuard<'_, ()>> {
        let taken = match self.settings.write_timeout() {
            _ if dont_wait || self.settings.nonblocking() => self.sending.try_lock(),
            Some(limit) => self.sending.lock_for(limit),
            None => Some(self.sending.lock()),
        };
        taken.ok_or_else(|| Error::new(Op::Send, Errno::AGAIN))
    }
}

/// Which way a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Read,
    Write,
}

/// Refuses a limit of no time at all, as setsockopt(2) would mean for ever by it.
pub(crate) fn checked(limit: Option<Duration>) -> Result<()> {
    match limit {
        Some(Duration::ZERO) => Err(Error::new(Op::Option, Errno::INVAL)
            .about("limit")
            .because("zero would mean for ever; give None for that, or set it to non-blocking")),
        _ => Ok(()),
    }
}
