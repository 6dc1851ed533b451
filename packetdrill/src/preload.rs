//! What packetdrill asks of libc although a stack of its own is loaded. The shared object is preloaded, too, so that it is asked here:
//!
//! | call | why |
//! |---|---|
//! | getsockopt | TCP_INFO, TCP_CC_INFO and SO_MEMINFO for the checks in Python |
//! | sendfile | has no place in the table |
//! | system | commands of scripts change sysctls and routes: look again |
//! | times | packetdrill waits for ten ticks of it before each script, so as to begin amid one: time here has no ticks |
//! | sched_setscheduler, mlockall | it makes itself real-time, for time that passes: no use here, and hard on who shares the machine |

use crate::errno::Errno;
use crate::interface::answer;
use crate::memory::User;
use crate::{bytes, options, world};
use libc::{c_char, c_int, c_long, c_uint, c_void, size_t, ssize_t};
use onecopy_sync::atomic::{AtomicU64, Ordering};
use std::ffi::CStr;
use std::sync::OnceLock;

/// Whether the descriptor is ours.
fn is_ours(fd: c_int) -> bool {
    world::shared().is_some() && world::call(|world| Ok(world.has_socket(fd))) == Ok(true)
}

/// getsockopt(2): ours where the descriptor is.
///
/// # Safety
///
/// As getsockopt(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    at: *mut c_void,
    len: *mut c_uint,
) -> c_int {
    if is_ours(fd) {
        // SAFETY: getsockopt(2) writes a value and its length there.
        let (at, len) = unsafe { (User::new(at as usize), User::new(len as usize)) };
        return answer(options::get(fd, level, name, at, len)) as c_int;
    }
    // SAFETY: as the caller calls it.
    unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, at, len) as c_int }
}

/// sendfile(2): ours where the descriptor is.
///
/// # Safety
///
/// As sendfile(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut c_void, count: size_t) -> ssize_t {
    if is_ours(to) {
        // SAFETY: sendfile(2) reads an offset there, and writes it.
        let offset = unsafe { User::new(offset as usize) };
        return answer(bytes::sendfile(to, from, offset, count));
    }
    // SAFETY: as the caller calls it.
    unsafe { libc::syscall(libc::SYS_sendfile, to, from, offset, count) as ssize_t }
}

/// system(3), and a note that something may have changed.
///
/// # Safety
///
/// As system(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    static REAL: OnceLock<Option<unsafe extern "C" fn(*const c_char) -> c_int>> = OnceLock::new();
    let real = REAL.get_or_init(|| {
        // SAFETY: it looks the name up; what has it, if anything, is libc's function of this type.
        unsafe {
            let found = libc::dlsym(libc::RTLD_NEXT, c"system".as_ptr());
            (!found.is_null()).then(|| {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> c_int>(found)
            })
        }
    });
    let Some(real) = real else { return answer(Err(Errno(libc::ENOSYS))) as c_int };
    // SAFETY: as the caller calls it.
    let status = unsafe { real(command) };
    if world::shared().is_some() && !command.is_null() {
        // SAFETY: it is a C string.
        let text = unsafe { CStr::from_ptr(command) }.to_string_lossy().into_owned();
        let _ = world::call(|world| {
            world.environment.ran(&text);
            Ok(0)
        });
    }
    status
}

/// times(2), with a tick for each call.
///
/// # Safety
///
/// As times(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn times(at: *mut libc::tms) -> c_long {
    static CALLS: std::sync::LazyLock<AtomicU64> = std::sync::LazyLock::new(|| AtomicU64::new(1));
    if world::shared().is_some() && at.is_null() {
        return CALLS.fetch_add(1, Ordering::Relaxed) as c_long;
    }
    // SAFETY: as the caller calls it.
    unsafe { libc::syscall(libc::SYS_times, at) }
}

/// sched_setscheduler(2), which does nothing.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn sched_setscheduler(_: c_int, _: c_int, _: *const c_void) -> c_int {
    0
}

/// mlockall(2), which does nothing.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn mlockall(_: c_int) -> c_int {
    0
}
