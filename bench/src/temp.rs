//! Folders for the files and sockets of a run, which go with it however it ends.

use std::convert::Infallible;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

/// What their names begin with: short, since a socket's path has 107 bytes (unix(7)).
const PREFIX: &str = "ocbench-";

/// A folder may be without its lock for so long after it was made.
const YOUNG: Duration = Duration::from_secs(60);

/// A folder that is removed with all that is in it.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
    /// Locked as long as this process lives: who finds it unlocked may remove it.
    _lock: File,
}

/// The folders that are there at this moment, for who has to end without dropping them.
static MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes every [`TempDir`] of this process, from whatever thread, and calls `exit`: for a signal that ends it. No new one
/// is made meanwhile.
pub fn end(exit: impl FnOnce() -> Infallible) -> ! {
    let made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let deadline = Instant::now() + Duration::from_secs(2);
    for path in made.iter() {
        // Another thread, or a server, may be writing a file there at this moment.
        while fs::remove_dir_all(path).is_err() && path.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    match exit() {}
}

impl TempDir {
    /// A new folder, in the system's place for such. The first one of a process also removes those that killed ones left.
    pub fn new(name: &str) -> Result<TempDir> {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| sweep(&std::env::temp_dir(), YOUNG));
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let unique = format!("{}-{:x}", std::process::id(), now.tv_sec * 1_000_000_000 + now.tv_nsec);
        let path = std::env::temp_dir().join(format!("{PREFIX}{name}-{unique}"));
        {
            let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
            fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
            made.push(path.clone());
        }
        let lock = folder(&path).with_context(|| format!("opening {}", path.display()))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(TempDir { path, _lock: lock })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        MADE.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| *path != self.path);
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn folder(path: &Path) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Removes the folders of this user that nobody has locked, unless they are younger than `young`. (A process id would
/// not do: another container's processes have numbers of their own.)
fn sweep(temp: &Path, young: Duration) {
    for entry in fs::read_dir(temp).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        let Ok(folder) = folder(&path) else { continue };
        let Ok(meta) = folder.metadata() else { continue };
        let old = meta.modified().is_ok_and(|made| made.elapsed().is_ok_and(|age| age >= young));
        let mine = meta.uid() == rustix::process::geteuid().as_raw();
        if old && mine && flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_is_swept_and_what_lives_is_not() {
        let home = TempDir::new("sweep").unwrap();
        let make = |name: &str| {
            let path = home.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), "x").unwrap();
            path
        };
        let (left, other) = (make("ocbench-run-1-2"), make("something-else"));
        let lives = make("ocbench-run-3-4");
        let lock = folder(&lives).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        sweep(home.path(), Duration::from_secs(3600));
        assert!(left.exists(), "too young");
        sweep(home.path(), Duration::ZERO);
        assert!(!left.exists() && other.exists() && lives.exists());
        drop(lock);
        sweep(home.path(), Duration::ZERO);
        assert!(!lives.exists());
    }
}
