//! futex(2) on a word that processes share. The atomics are std's own here, whatever the facade of `sync`
//! swaps in elsewhere: the kernel wants the address.
#![allow(clippy::disallowed_types, reason = "futex(2) takes the address of a real atomic")]

use rustix::io::{self, Errno};
use rustix::thread::futex;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` holds `expected`, at most `timeout`. Returns Ok on a wake-up, a spurious one too, and
/// when the word had already changed.
///
/// # Errors
///
/// ETIMEDOUT after `timeout`, EINTR on a signal.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|t| futex::Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    match futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref()) {
        Err(Errno::AGAIN) => Ok(()),
        other => other,
    }
}

/// Wakes at most `count` sleepers on `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    // It can only fail for a bad address, and this is a reference.
    let _ = futex::wake(word, futex::Flags::empty(), count);
}
