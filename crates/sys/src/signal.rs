//! A signal handler that does nothing but interrupt and tell; and whether handlers let calls be restarted.
//!
//! Without SA_RESTART a blocked call ends with EINTR, which is what a program sees that handles signals the way
//! most daemons do; rustix has no safe call for that, and the usual crates always ask for restarts.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

/// Where the handler writes one byte (the signal's number) per signal.
static TOLD: OnceLock<OwnedFd> = OnceLock::new();

extern "C" fn tell(signal: libc::c_int) {
    // `get` is one atomic load: async-signal-safe, as is write(). errno is what the interrupted code still wants.
    if let Some(fd) = TOLD.get() {
        let byte = signal as u8;
        // SAFETY: the pointer is to one byte that lives through the call; __errno_location is always valid.
        unsafe {
            let errno = *libc::__errno_location();
            libc::write(fd.as_raw_fd(), (&raw const byte).cast(), 1);
            *libc::__errno_location() = errno;
        }
    }
}

/// Catches `signal` from now on: each delivery writes its number as one byte to `told` and interrupts a blocked
/// call with EINTR (or, with `restart`, lets the kernel restart the calls that can be restarted). `told` is kept
/// for the life of the process; the one given first serves all signals. It should be non-blocking.
///
/// # Errors
///
/// sigaction's: EINVAL for a number that is no signal or cannot be caught.
pub fn catch(signal: i32, told: OwnedFd, restart: bool) -> io::Result<()> {
    TOLD.get_or_init(|| told);
    // SAFETY: zeroed is a valid sigaction (default action, empty mask); the handler is async-signal-safe (above)
    // and lives for ever; the old action is not asked for.
    let r = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = tell as *const () as libc::sighandler_t;
        action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
        libc::sigaction(signal, &action, std::ptr::null_mut())
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether all handlers of this process let the kernel restart what they interrupt (SA_RESTART), but for those of faults, which
/// interrupt no call: so that poll(2), which it never restarts (signal(7)), may be called again where another call would go on.
pub fn all_restart() -> bool {
    const FAULTS: [libc::c_int; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)).all(|signal| {
        // SAFETY: zeroed is a valid sigaction; with no new action the call only writes the old one there.
        let (asked, action) = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let asked = libc::sigaction(signal, std::ptr::null(), &raw mut action);
            (asked == 0, action)
        };
        // (The C library keeps some for itself, of which it tells nothing.)
        !asked
            || matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
            || action.sa_flags & libc::SA_RESTART != 0
    })
}
