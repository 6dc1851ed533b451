//! A signal handler that does nothing but interrupt and tell; whether handlers let calls be restarted; threads that signals leave alone.
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

/// Signals that the code of a thread causes itself: blocked, they would end the process without a word to its handlers.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Calls `act` with all signals blocked on this thread but for those of faults. A thread that is made within has them blocked for good
/// (pthread_create(3) passes the mask on), so that the kernel gives none of the process's signals to it: they interrupt calls of the program's
/// own threads, which wait to be interrupted.
pub fn blocked<R>(act: impl FnOnce() -> R) -> R {
    /// Has the mask be as it was, after a panic, too.
    struct Restores(libc::sigset_t);
    impl Drop for Restores {
        fn drop(&mut self) {
            // SAFETY: the set was filled by pthread_sigmask; the old one is not asked for.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
        }
    }
    // SAFETY: sigfillset fills the set before it is read, sigdelset takes numbers that are signals, and pthread_sigmask, which fails for an
    // unknown `how` alone, fills the old one; zeroed is a valid sigset_t, the empty one.
    let _restores = unsafe {
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        for fault in FAULTS {
            libc::sigdelset(&raw mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut old);
        Restores(old)
    };
    act()
}

/// Whether all handlers of this process let the kernel restart what they interrupt (SA_RESTART), but for those of faults, which
/// interrupt no call: so that poll(2), which it never restarts (signal(7)), may be called again where another call would go on.
pub fn all_restart() -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Which signals this thread blocks.
    fn mask() -> Vec<libc::c_int> {
        // SAFETY: without a new set the call only fills the old one; sigismember reads it.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
            (1..=libc::SIGRTMAX()).filter(|signal| libc::sigismember(&raw const set, *signal) == 1).collect()
        }
    }

    #[test]
    fn a_thread_made_within_has_all_but_faults_blocked_and_this_one_as_before() {
        let before = mask();
        let theirs = blocked(|| std::thread::spawn(mask)).join().unwrap();
        assert_eq!(mask(), before);
        for signal in
            [libc::SIGINT, libc::SIGHUP, libc::SIGTERM, libc::SIGUSR1, libc::SIGCHLD, libc::SIGRTMAX()]
        {
            assert!(theirs.contains(&signal) && !before.contains(&signal), "{signal}: {theirs:?}");
        }
        assert!(FAULTS.iter().all(|fault| !theirs.contains(fault)), "{theirs:?}");
        let _ = std::panic::catch_unwind(|| blocked(|| panic!("within")));
        assert_eq!(mask(), before, "after a panic");
    }
}
