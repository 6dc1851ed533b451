//! Being told of forks, and forking.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;

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

/// Has `prepare` called before each fork(2) of this process from now on, and of its children, and after it `parent` or
/// `child`, all in the thread that forks (pthread_atfork(3)). Two pairs nest: who comes later is called earlier before
/// a fork, and later after it.
///
/// # Errors
///
/// ENOMEM.
pub fn around(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> io::Result<()> {
    // SAFETY: as in `before`.
    match unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Which process it is: the one that made this, or a child of it that has a copy (fork(2), clone(2)). It takes no system call to tell.
#[derive(Debug)]
pub struct Origin {
    /// One page, whose first byte is not zero; a child finds it wiped.
    page: NonNull<u8>,
}

/// Bytes of an [`Origin`]: a page, whatever size the kernel's have.
const PAGE: usize = 64 << 10;

// SAFETY: the page is written before anybody else sees it, and only read from then on.
unsafe impl Send for Origin {}
// SAFETY: as above.
unsafe impl Sync for Origin {}

impl Origin {
    /// Of this process.
    ///
    /// # Errors
    ///
    /// ENOMEM; EINVAL before Linux 4.14.
    pub fn new() -> rustix::io::Result<Origin> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address that the kernel chooses replaces nothing.
        let page =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE)? };
        let origin = Origin { page: NonNull::new(page.cast()).ok_or(rustix::io::Errno::NOMEM)? };
        // SAFETY: the mapping that was just made, which nobody else has a view of; in a child it is zeroes.
        unsafe {
            origin.page.as_ptr().write(1);
            rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork)?;
        }
        Ok(origin)
    }

    /// Whether this is the process that made it.
    #[inline]
    pub fn is_here(&self) -> bool {
        // SAFETY: mapped as long as `self` lives. It is volatile since a fork changes it behind the compiler's back.
        unsafe { self.page.as_ptr().read_volatile() == 1 }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        // SAFETY: what mmap gave, in a child too; nobody has a view of it.
        let unmapped = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), PAGE) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// A child of this process. Killed and reaped when dropped.
#[derive(Debug)]
pub struct Child(libc::pid_t);

/// How a child ended: [`Child::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It returned that.
    Returned(i32),
    /// A signal ended it.
    Killed(i32),
}

/// Forks: `work` runs in the child, whose exit status (the low eight bits) is what it returns, 101 if it panics. Nothing
/// else of the child's stack is ever dropped. Of the threads of this process the child has only the one that forks
/// (fork(2)): what another one has locked at that moment stays locked in the child, but for the allocator, and what
/// handlers of [`around`] look after.
///
/// # Errors
///
/// What fork(2) says.
pub fn child(work: impl FnOnce() -> i32) -> io::Result<Child> {
    // SAFETY: the child goes on as a process of one thread. What it runs is safe code, for which a lock that is held for
    // ever is a hang, not unsafety; it leaves by `_exit`, so no frame below is returned to twice.
    unsafe {
        match libc::fork() {
            0 => {
                let work = std::panic::AssertUnwindSafe(work);
                libc::_exit(std::panic::catch_unwind(work).unwrap_or(101));
            }
            pid if pid > 0 => Ok(Child(pid)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Child {
    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.0
    }

    /// Sends a signal, such as `SIGKILL`.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a system call on a process that was not reaped, so that its id is nobody else's.
        unsafe {
            libc::kill(self.0, signal);
        }
    }

    /// Waits until it ends.
    pub fn wait(self) -> Ended {
        let status = self.reap();
        std::mem::forget(self);
        if libc::WIFSIGNALED(status) {
            Ended::Killed(libc::WTERMSIG(status))
        } else {
            Ended::Returned(libc::WEXITSTATUS(status))
        }
    }

    fn reap(&self) -> libc::c_int {
        let mut status = 0;
        // SAFETY: the pointer is to a number that lives through the call.
        while unsafe { libc::waitpid(self.0, &raw mut status, 0) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
        status
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        self.reap();
    }
}

/// Has the children of this process live in a fresh pid namespace (unshare(2)), in a fresh user namespace, so that it
/// takes no privilege; where there are no user namespaces, with the privilege.
///
/// # Errors
///
/// What unshare(2) says: EINVAL in a process of several threads, EPERM where a sandbox forbids it.
pub fn unshare_pids() -> io::Result<()> {
    // SAFETY: it changes which namespaces this process and its children are in, and nothing that memory safety hangs on.
    let unshare = |what| match unsafe { libc::unshare(what) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID).or_else(|_| unshare(libc::CLONE_NEWPID))
}

/// Ends this process as if somebody had killed it.
pub fn kill_self() {
    // SAFETY: a system call.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_testing::alone;
    use std::sync::OnceLock;

    static CALLED: OnceLock<u32> = OnceLock::new();

    extern "C" fn note() {
        let _ = CALLED.set(std::process::id());
    }

    #[test]
    fn a_child_is_told_from_its_parent() {
        let origin = Origin::new().unwrap();
        let child = child(|| if origin.is_here() { 1 } else { 0 }).unwrap();
        assert_eq!(child.wait(), Ended::Returned(0));
        assert!(origin.is_here());
    }

    #[test]
    fn a_child_returns_panics_or_is_killed() {
        alone!();
        assert_eq!(child(|| 7).unwrap().wait(), Ended::Returned(7));
        let killed = child(|| {
            kill_self();
            0
        });
        assert_eq!(killed.unwrap().wait(), Ended::Killed(libc::SIGKILL));
        let pid = child(|| {
            std::thread::sleep(std::time::Duration::from_secs(60));
            0
        });
        drop(pid.unwrap());
    }

    #[test]
    fn the_parent_is_told_before_the_child_is_there() {
        alone!();
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
