//! Memory that nobody can change any more, this process included: what of it is lent needs no trust and no watching.

use crate::map::Mapping;
use crate::memfd;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::SealFlags;
use rustix::io::{self, Errno};
use std::ops::Deref;
use std::sync::Arc;

/// What makes it so (fcntl(2)): neither bytes nor size change, nor does this.
const SEALS: SealFlags = memfd::REQUIRED_SEALS.union(SealFlags::WRITE);

/// What a mapping ends at a multiple of, on every CPU that this runs on or a divisor of it.
const PAGE: usize = 4096;

/// Bytes that are read in one step while it is made.
const STEP: usize = 256 << 10;

/// A part of a file as it was once, in a memfd sealed against every change. Whoever gets its descriptor can read it, map it, or
/// have the kernel send its pages from where they lie; they stay until the last such use ends, whatever becomes of this
/// value.
#[derive(Debug)]
pub struct Frozen {
    fd: OwnedFd,
    /// Whole pages. (Behind the last byte is nothing but zeroes.)
    mapping: Arc<Mapping>,
    len: usize,
}

impl Frozen {
    /// Reads the first `len` bytes of `file`. What the kernel copied for it, twice each byte, is added to `copied`, also
    /// where it fails.
    ///
    /// # Errors
    ///
    /// What pread(2) says, and EIO where the file ends before that; ENOMEM, EMFILE, EPERM and EFBIG of the memfd
    /// ([`memfd::create`]); EINVAL for no bytes.
    pub fn read(file: impl AsFd, len: usize, copied: &mut u64) -> io::Result<Frozen> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let fd = memfd::unsealed("onecopy-object", len)?;
        let mut buffer = vec![0; len.min(STEP)];
        let mut at = 0;
        while at < len {
            let room = (len - at).min(STEP);
            let got = match rustix::io::pread(&file, &mut buffer[..room], at as u64) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            if got == 0 {
                return Err(Errno::IO);
            }
            *copied += got as u64;
            let mut written = 0;
            while written < got {
                let n = match rustix::io::pwrite(&fd, &buffer[written..got], (at + written) as u64) {
                    Err(Errno::INTR) => continue,
                    other => other?,
                };
                written += n;
                *copied += n as u64;
            }
            at += got;
        }
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        let mapping = Arc::new(Mapping::frozen(&fd, len.next_multiple_of(PAGE))?);
        Ok(Frozen { fd, mapping, len })
    }

    /// Maps what somebody else froze, whole.
    ///
    /// # Errors
    ///
    /// The descriptor, with EINVAL where it is not a memfd of ordinary pages that is sealed against every change, has no bytes,
    /// or has holes (whoever maps these fills them with zeroes, all of a terabyte if need be), and what mmap(2) says.
    pub fn open(fd: OwnedFd) -> Result<Frozen, (OwnedFd, Errno)> {
        // The seals are read before the size: once they are there, it stays.
        let len = || {
            let sealed = rustix::fs::fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SEALS));
            let on_tmpfs = rustix::fs::fstatfs(&fd)?.f_type as u64 == memfd::TMPFS_MAGIC;
            let stat = rustix::fs::fstat(&fd)?;
            let whole = i128::from(stat.st_blocks) * 512 >= i128::from(stat.st_size);
            let len = usize::try_from(stat.st_size).unwrap_or(0);
            if sealed && on_tmpfs && whole && len > 0 { Ok(len) } else { Err(Errno::INVAL) }
        };
        let mapped = len().and_then(|len| Ok((len, Mapping::frozen(&fd, len.next_multiple_of(PAGE))?)));
        match mapped {
            Ok((len, mapping)) => Ok(Frozen { fd, mapping: Arc::new(mapping), len }),
            Err(error) => Err((fd, error)),
        }
    }

    /// Where it is mapped: whole pages of 4096 bytes, the last one filled up with zeroes.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

impl Deref for Frozen {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is readable as long as `self` lives, and F_SEAL_WRITE and F_SEAL_SHRINK, set before it was
        // made and never taken off again, keep everybody from changing its bytes or cutting them off.
        unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr(), self.len) }
    }
}

impl AsFd for Frozen {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn file(len: usize) -> (File, Vec<u8>) {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let fd = memfd::unsealed("onecopy-test", len).unwrap();
        assert_eq!(rustix::io::pwrite(&fd, &bytes, 0), Ok(len));
        (File::from(fd), bytes)
    }

    #[test]
    fn it_holds_what_the_file_held_and_nobody_changes_it() {
        let (source, bytes) = file(STEP + 12_345);
        let mut copied = 7;
        let frozen = Frozen::read(&source, bytes.len(), &mut copied).unwrap();
        assert_eq!(copied, 7 + 2 * bytes.len() as u64);
        assert_eq!(rustix::io::pwrite(&source, &[0; 99], 0), Ok(99));
        assert!(*frozen == *bytes);
        memfd::verify(&frozen, bytes.len()).unwrap();
        assert_eq!(rustix::io::pwrite(&frozen, b"x", 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&frozen, 1), Err(Errno::PERM));
        assert_eq!(Mapping::new(&frozen, 1).unwrap_err(), Errno::PERM);
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(&frozen, punch, 0, 4096), Err(Errno::PERM));
    }

    #[test]
    fn what_another_froze_is_mapped_and_nothing_else() {
        let (source, bytes) = file(12_345);
        let frozen = Frozen::read(&source, bytes.len(), &mut 0).unwrap();
        let received = Frozen::open(frozen.fd.try_clone().unwrap()).unwrap();
        drop(frozen);
        assert!(*received == *bytes);
        let refused = |fd: OwnedFd| Frozen::open(fd).unwrap_err().1;
        assert_eq!(
            refused(memfd::create("onecopy-test", 4096).unwrap()),
            Errno::INVAL,
            "it can be written to"
        );
        assert_eq!(refused(source.into()), Errno::INVAL, "it has no seals");
        let empty = memfd::unsealed("onecopy-test", 0).unwrap();
        rustix::fs::fcntl_add_seals(&empty, SEALS).unwrap();
        assert_eq!(refused(empty), Errno::INVAL, "there is nothing in it");
        let hollow = memfd::unsealed("onecopy-test", 3 * 4096).unwrap();
        assert_eq!(rustix::io::pwrite(&hollow, &[1; 8192], 0), Ok(8192));
        rustix::fs::fcntl_add_seals(&hollow, SEALS).unwrap();
        assert_eq!(refused(hollow), Errno::INVAL, "a page is not there");
        assert_eq!(refused(rustix::pipe::pipe().unwrap().0), Errno::INVAL);
    }

    #[test]
    fn a_file_that_is_shorter_is_an_error() {
        let (source, bytes) = file(5000);
        let mut copied = 0;
        assert_eq!(Frozen::read(&source, bytes.len() + 1, &mut copied).unwrap_err(), Errno::IO);
        assert_eq!(copied, 2 * bytes.len() as u64);
        assert_eq!(Frozen::read(&source, 0, &mut copied).unwrap_err(), Errno::INVAL);
    }
}
