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
