//! Who sleeps.

use crate::LONG;
use std::sync::mpsc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// Runs `work` on a thread of its own, and returns once it sleeps in the kernel, or has ended.
///
/// # Panics
///
/// If it does neither within [`LONG`].
pub fn asleep<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    work: impl FnOnce() -> T + Send + 's,
) -> ScopedJoinHandle<'s, T> {
    let (handle, task) = begun(scope, work);
    wait_asleep(task);
    handle
}

/// Runs `work` on a thread of its own, and says which that is.
///
/// # Panics
///
/// Where there is no /proc.
pub fn begun<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    work: impl FnOnce() -> T + Send + 's,
) -> (ScopedJoinHandle<'s, T>, i32) {
    let (tell, told) = mpsc::channel();
    let handle = scope.spawn(move || {
        tell.send(this_thread()).expect("who started it waits for it");
        work()
    });
    (handle, told.recv().expect("it has begun"))
}

/// Waits until a thread, or a process that has one, sleeps in the kernel, or has ended: by its number, which is that of the
/// first thread for a process.
///
/// # Panics
///
/// If it does neither within [`LONG`].
pub fn wait_asleep(task: i32) {
    assert!(falls_asleep(task, LONG), "thread {task} does not fall asleep");
}

/// As [`wait_asleep`], for so long: whether it does either.
pub fn falls_asleep(task: i32, within: Duration) -> bool {
    let (began, mut seen) = (Instant::now(), 0);
    // (A moment's sleep, for a page or a lock, is not where it stays: it is looked at more than once.)
    while seen < 4 {
        match sleeps(task) {
            Ok(true) => seen += 1,
            Ok(false) => seen = 0,
            Err(_) => return true,
        }
        if began.elapsed() > within {
            return false;
        }
        thread::sleep(Duration::from_millis(3));
    }
    true
}

/// Whether it waits for something that may never come (`S` in proc(5)), or an error if it is no more.
fn sleeps(task: i32) -> io::Result<bool> {
    let stat = fs::read_to_string(format!("/proc/{task}/stat"))?;
    match stat.rsplit(") ").next().and_then(|rest| rest.chars().next()) {
        Some('Z' | 'X') => Err(io::ErrorKind::NotFound.into()),
        state => Ok(state == Some('S')),
    }
}

/// The number of this thread.
///
/// # Panics
///
/// Where there is no /proc.
pub fn this_thread() -> i32 {
    // It leads to PROCESS/task/THREAD.
    let path = fs::read_link("/proc/thread-self").expect("/proc is there");
    let number = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
    number.expect("a thread has a number")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn who_waits_sleeps_until_it_gets_what_it_waits_for() {
        let (mut read, mut write) = io::pipe().unwrap();
        let got = thread::scope(|scope| {
            let reader = asleep(scope, || {
                let mut byte = [0];
                read.read_exact(&mut byte).unwrap();
                byte
            });
            assert!(!reader.is_finished());
            write.write_all(b"x").unwrap();
            reader.join().unwrap()
        });
        assert_eq!(got, *b"x");
        // Who has nothing to wait for is not waited for.
        thread::scope(|scope| assert_eq!(asleep(scope, || 7).join().unwrap(), 7));
    }

    #[test]
    fn a_process_sleeps_or_is_a_zombie_or_gone() {
        let mut cat = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let task = cat.id().cast_signed();
        wait_asleep(task);
        assert!(sleeps(task).unwrap());
        cat.kill().unwrap();
        wait_asleep(task);
        cat.wait().unwrap();
        assert!(sleeps(task).is_err());
        assert!(!sleeps(this_thread()).unwrap(), "who looks is awake");
    }
}
