//! A body that the daemon lends (its side and the rules are in `serve/lend.rs`): what it is, and whether it still is that.

use super::trouble::Trouble;
use onecopy::Sealed;
use onecopy_sys::frozen::Frozen;
use onecopy_sys::page_cache;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, OFlags, Stat};
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::OnceLock;

/// What sendfile(2) passes on at once: the 16 pages of the pipe that is inside it.
pub const PIECE: usize = 64 << 10;

/// A body that was lent.
#[derive(Debug)]
pub struct Loan {
    lies: Lies,
    /// The same memory as pages, once a client of a stack of our own was sent it.
    sealed: OnceLock<Option<Sealed>>,
    at: u64,
    length: u64,
    version: Version,
}

#[derive(Debug)]
enum Lies {
    /// In memory that nobody can change.
    Memory(Frozen),
    /// In a file, or in memory that is not mapped.
    File(OwnedFd),
}

/// What tells that a file was changed.
type Version = (u64, u64, i64, u64, i64, u64);

fn version(stat: &Stat) -> Version {
    let size = stat.st_size as u64;
    (stat.st_ino, size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec)
}

impl Loan {
    /// Takes what was lent, if it is a file, be it in memory alone, that can be read through this descriptor, and `length` bytes
    /// lie in it from `at`: anything else that has a descriptor could keep who sends it waiting for ever, or fail behind a head
    /// that is sent.
    pub fn take(lent: OwnedFd, at: u64, length: u64, map: bool) -> Result<Loan, Trouble> {
        let bad = |why: String| Trouble::Bad(format!("the backend lent what cannot be passed on: {why}"));
        let stat = rustix::fs::fstat(&lent).map_err(|error| bad(error.to_string()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(bad("it is not a file".into()));
        }
        // fstat(2) is content with any descriptor of it, sendfile(2) is not.
        let flags = rustix::fs::fcntl_getfl(&lent).map_err(|error| bad(error.to_string()))?;
        if flags.contains(OFlags::PATH) || flags & OFlags::RWMODE == OFlags::WRONLY {
            return Err(bad("its descriptor is not open for reading".into()));
        }
        let size = stat.st_size as u64;
        if at.checked_add(length).is_none_or(|end| end > size) {
            return Err(bad(format!("{length} bytes from {at} of {size}")));
        }
        // All of it is mapped: for a small part that would cost more than it saves, and a small whole is one call anyway.
        let lies = match map && length > PIECE as u64 && length >= size / 2 {
            true => Frozen::open(lent).map_or_else(|(lent, _)| Lies::File(lent), Lies::Memory),
            false => Lies::File(lent),
        };
        Ok(Loan { lies, sealed: OnceLock::new(), at, length, version: version(&stat) })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.lies {
            Lies::Memory(memory) => memory.as_fd(),
            Lies::File(file) => file.as_fd(),
        }
    }

    /// Where it lies, and how long it is.
    pub fn range(&self) -> Range<u64> {
        self.at..self.at + self.length
    }

    /// Its bytes, where it lies in memory that nobody can change.
    pub fn memory(&self) -> Option<&[u8]> {
        let Lies::Memory(memory) = &self.lies else { return None };
        Some(&memory[self.at as usize..][..self.length as usize])
    }

    /// Its pages, to be sent by reference; none of a file, whose bytes may change.
    pub fn sealed(&self) -> Option<&Sealed> {
        let Lies::Memory(memory) = &self.lies else { return None };
        self.sealed.get_or_init(|| Sealed::new(memory).ok()).as_ref()
    }

    /// Who reads it when it is sent.
    pub fn reader(&self) -> &'static str {
        match self.lies {
            Lies::Memory(_) => "other-core",
            Lies::File(_) => "no-cpu",
        }
    }

    /// Asked before the last bytes go, while the client can still be shown that they are not what was promised: an error if
    /// the file was overwritten or cut short. One that has only grown is taken for a log. (The daemon's side of this is
    /// `Object::still` in `serve/store.rs`.)
    pub fn still(&self) -> Result<(), &'static str> {
        let Lies::File(file) = &self.lies else { return Ok(()) };
        let Ok(stat) = rustix::fs::fstat(file) else { return Ok(()) };
        let ((_, size, modified, nanos, ..), now) = (self.version, version(&stat));
        match now.1.cmp(&size) {
            Ordering::Less => Err("the file became shorter while it was being sent"),
            Ordering::Equal if (now.2, now.3) != (modified, nanos) => {
                Err("the file was overwritten while it was being sent")
            }
            Ordering::Equal | Ordering::Greater => Ok(()),
        }
    }

    /// Whether it is as it was when the backend wrote its head: last changed then.
    pub fn is_of(&self, changed: (u64, u64)) -> bool {
        let (.., seconds, nanos) = self.version;
        matches!(self.lies, Lies::Memory(_)) || (u64::try_from(seconds), nanos) == (Ok(changed.0), changed.1)
    }

    /// Whether it is as it was when it was lent: unchanged, and in memory, since a thread that serves many must not wait for a
    /// disk. (A kernel that cannot say what is in memory has only memory lent.)
    pub fn is_as_lent(&self) -> bool {
        match &self.lies {
            Lies::Memory(_) => true,
            Lies::File(file) => {
                rustix::fs::fstat(file).is_ok_and(|stat| version(&stat) == self.version)
                    && page_cache::holds(file, self.at, self.length) != Ok(false)
            }
        }
    }
}
