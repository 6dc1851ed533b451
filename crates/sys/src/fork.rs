//! Being told of forks.

use std::io;

/// Has `handler` called before each fork(2) of this process from now on, and of its children (pthread_atfork(3)), in the
/// thread that forks. A raw clone(2), vfork(2) and posix_spawn(3) do not call it.
///
/// # Errors
///
/// ENOMEM.
pub fn before(handler: extern "C" fn()) -> io::Result<()> {
    // SAFETY: a safe function of the same ABI and arguments may be called wherever an unsafe one is expected, and code
    // of a program is never unloaded. (A cdylib with this code is bound to its own life by glibc: dlclose removes the
    // handlers of what it unloads.)
    match unsafe { libc::pthread_atfork(Some(handler), None, None) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::OnceLock;

    static CALLED: OnceLock<u32> = OnceLock::new();

    extern "C" fn note() {
        let _ = CALLED.set(std::process::id());
    }

    #[test]
    fn the_parent_is_told_before_the_child_is_there() {
        before(note).unwrap();
        assert_eq!(CALLED.get(), None);
        // SAFETY: the child only ends, by a call that is async-signal-safe.
        let child = unsafe {
            match libc::fork() {
                0 => libc::_exit(i32::from(CALLED.get().is_none())),
                child => child,
            }
        };
        assert!(child > 0);
        let mut status = -1;
        // SAFETY: the pointer is to a number that lives through the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, CALLED.get()), (0, Some(&std::process::id())));
    }
}
