//! Sealed memfds: the only kind of memory that two ends ever share.

use crate::map::Mapping;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::{self, Errno};
use std::fmt;

/// `TMPFS_MAGIC` of linux/magic.h: what fstatfs says of a memfd that is not a hugetlb one.
pub(crate) const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The seals that a shared buffer must carry: its size can never change under a mapping (no SIGBUS), and no
/// seal can be added later that would surprise the peer.
pub const REQUIRED_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Makes a memfd of `size` bytes (zeroes; pages are charged to who touches them first), sealed with
/// [`REQUIRED_SEALS`]. `name` shows in /proc/PID/maps.
///
/// # Errors
///
/// What memfd_create(2), ftruncate(2) and fcntl(2) say; EPERM where a security filter forbids memfds, EFBIG where
/// RLIMIT_FSIZE does.
pub fn create(name: &str, size: usize) -> io::Result<OwnedFd> {
    let fd = unsealed(name, size)?;
    rustix::fs::fcntl_add_seals(&fd, REQUIRED_SEALS)?;
    Ok(fd)
}

/// Makes a memfd as [`create`] does, maps it, and then seals F_SEAL_FUTURE_WRITE too (fcntl(2)): this mapping is the
/// only one that will ever be written through, and nobody can write(2) to the file. Whoever gets the descriptor
/// can only read ([`Mapping::read_only`]); reopening it through /proc does not help him.
///
/// # Errors
///
/// As [`create`] and [`Mapping::new`]; EINVAL before Linux 5.1, which has no such seal.
pub fn create_owned(name: &str, size: usize) -> io::Result<(OwnedFd, Mapping)> {
    let fd = unsealed(name, size)?;
    let mapping = Mapping::new(&fd, size)?;
    rustix::fs::fcntl_add_seals(&fd, REQUIRED_SEALS | SealFlags::FUTURE_WRITE)?;
    Ok((fd, mapping))
}

pub(crate) fn unsealed(name: &str, size: usize) -> io::Result<OwnedFd> {
    // ftruncate beyond this limit raises SIGXFSZ, which ends the process before it could fall back.
    if rustix::process::getrlimit(rustix::process::Resource::Fsize)
        .current
        .is_some_and(|limit| limit < size as u64)
    {
        return Err(Errno::FBIG);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3 the flag is unknown.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        other => other?,
    };
    rustix::fs::ftruncate(&fd, size as u64)?;
    Ok(fd)
}

/// Why a descriptor that a peer sent is not accepted as a shared buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// fstat, fstatfs or F_GET_SEALS failed: it is not a memfd at all.
    NotAMemfd(Errno),
    /// It lies on another file system than tmpfs (hugetlbfs pages can SIGBUS a reader).
    NotTmpfs(u64),
    /// A required seal is missing, so that its size could change under the mapping.
    Unsealed(SealFlags),
    /// It could not be mapped: no fault of the peer.
    NoMapping(Errno),
    /// Its size is not what the peer announced.
    Size {
        /// Bytes that the announcement implies.
        expected: u64,
        /// Bytes that fstat gives.
        found: u64,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::NotAMemfd(errno) => write!(f, "the descriptor is not a memfd ({errno})"),
            Refused::NotTmpfs(magic) => write!(f, "the memfd is not on tmpfs (f_type {magic:#x})"),
            Refused::Unsealed(found) => {
                write!(f, "the memfd lacks seals (has {found:?}, needs {REQUIRED_SEALS:?})")
            }
            Refused::NoMapping(errno) => write!(f, "the memfd could not be mapped ({errno})"),
            Refused::Size { expected, found } => {
                write!(f, "the memfd has {found} bytes where {expected} were announced")
            }
        }
    }
}

/// Checks a descriptor that a peer sent: a memfd on tmpfs, of exactly `expected` bytes, with
/// [`REQUIRED_SEALS`] in place. The seals are read before the size: once they are there, the size stays.
///
/// # Errors
///
/// The first check that fails.
pub fn verify(fd: impl AsFd, expected: usize) -> Result<(), Refused> {
    let seals = rustix::fs::fcntl_get_seals(&fd).map_err(Refused::NotAMemfd)?;
    if !seals.contains(REQUIRED_SEALS) {
        return Err(Refused::Unsealed(seals));
    }
    let magic = rustix::fs::fstatfs(&fd).map_err(Refused::NotAMemfd)?.f_type as u64;
    if magic != TMPFS_MAGIC {
        return Err(Refused::NotTmpfs(magic));
    }
    let found = rustix::fs::fstat(&fd).map_err(Refused::NotAMemfd)?.st_size as u64;
    if found != expected as u64 {
        return Err(Refused::Size { expected: expected as u64, found });
    }
    Ok(())
}

/// As [`verify`], of memory that its owner alone can write: with F_SEAL_FUTURE_WRITE too, so that nobody maps it
/// writable any more (fcntl(2)). What was mapped writable before the seal stays so: that is the owner's mapping.
///
/// # Errors
///
/// The first check that fails.
pub fn verify_owned(fd: impl AsFd, expected: usize) -> Result<(), Refused> {
    let seals = rustix::fs::fcntl_get_seals(&fd).map_err(Refused::NotAMemfd)?;
    if !seals.contains(SealFlags::FUTURE_WRITE) {
        return Err(Refused::Unsealed(seals));
    }
    verify(fd, expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Span;

    #[test]
    fn a_created_memfd_verifies_and_keeps_its_size() {
        let fd = create("onecopy-test", 8192).unwrap();
        verify(&fd, 8192).unwrap();
        assert_eq!(rustix::fs::ftruncate(&fd, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&fd, 16384), Err(Errno::PERM));
    }

    #[test]
    fn an_owned_memfd_is_read_by_others_and_written_by_its_owner_alone() {
        let (fd, owner) = create_owned("onecopy-test", 8192).unwrap();
        verify(&fd, 8192).unwrap();
        assert_eq!(Mapping::new(&fd, 8192).unwrap_err(), Errno::PERM);
        assert_eq!(rustix::io::pwrite(&fd, b"x", 0), Err(Errno::PERM));
        let again = std::fs::OpenOptions::new();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let reopened = again.clone().read(true).write(true).open(path).unwrap();
        assert_eq!(Mapping::new(&reopened, 8192).unwrap_err(), Errno::PERM);
        let reader = Mapping::read_only(&fd, 8192).unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let read = |map: &Mapping| crate::spans::pread(&file, &[map.span(0, 4), Span::EMPTY], 0);
        assert_eq!(read(&reader), Err(Errno::FAULT));
        assert_eq!(read(&owner), Ok(4));
        // SAFETY: both are mapped, and nobody writes now.
        let seen = unsafe { std::slice::from_raw_parts(reader.base().as_ptr(), 4) };
        assert_eq!(seen, b"\x7fELF");
    }

    #[test]
    fn what_a_liar_sends_is_refused() {
        let fd = create("onecopy-test", 8192).unwrap();
        assert_eq!(verify(&fd, 4096), Err(Refused::Size { expected: 4096, found: 8192 }));
        let unsealed =
            rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(matches!(verify(&unsealed, 0), Err(Refused::Unsealed(_))));
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        assert!(matches!(verify(&pipe, 0), Err(Refused::NotAMemfd(_))));
    }
}
