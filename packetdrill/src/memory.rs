//! The memory of who calls: read and written as the kernel does it for a system call, so that a bad pointer is EFAULT.

use crate::errno::{Errno, Outcome};

/// An address that a caller gave. Scripts give bad ones on purpose, so nothing is known of it before it is used.
///
/// Invariant: it came through the C interface, or out of memory that did, and there stands for memory that the call may read or write, as
/// the manual page of that call says. What is not mapped is EFAULT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User(usize);

impl User {
    /// # Safety
    ///
    /// As far as it is mapped, the memory at `address` is the call's to read, and to write where the call writes, until it returns.
    pub(crate) unsafe fn new(address: usize) -> User {
        User(address)
    }

    /// Memory of a test's, which outlives the call.
    #[cfg(test)]
    pub(crate) fn of(bytes: &mut [u8]) -> User {
        User(bytes.as_mut_ptr() as usize)
    }

    /// Where nothing is.
    #[cfg(test)]
    pub(crate) fn nowhere() -> User {
        User(0)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The memory `bytes` further on.
    pub(crate) fn at(self, bytes: usize) -> User {
        User(self.0.wrapping_add(bytes))
    }

    /// `len` bytes.
    pub(crate) fn read(self, len: usize) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; len];
        if len > 0 {
            let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
            let remote = libc::iovec { iov_base: self.0 as *mut libc::c_void, iov_len: len };
            // SAFETY: `local` is `bytes`, which live on; the kernel checks `remote`, and reads it alone.
            let done = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
            if done != len as isize {
                return Err(Errno(libc::EFAULT));
            }
        }
        Ok(bytes)
    }

    /// Puts `bytes` there.
    pub(crate) fn write(self, bytes: &[u8]) -> Outcome<()> {
        if !bytes.is_empty() {
            let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let remote = libc::iovec { iov_base: self.0 as *mut libc::c_void, iov_len: bytes.len() };
            // SAFETY: `local` is only read; the kernel checks `remote`, and what is mapped there is the call's to write
            // (invariant).
            let done = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
            if done != bytes.len() as isize {
                return Err(Errno(libc::EFAULT));
            }
        }
        Ok(())
    }

    /// A pointer that stands there.
    pub(crate) fn pointer(self) -> Outcome<User> {
        Ok(User(self.word()? as usize))
    }

    /// A word that stands there.
    pub(crate) fn word(self) -> Outcome<u64> {
        let bytes = self.read(8)?;
        Ok(bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
    }

    /// An `int` that stands there.
    pub(crate) fn int(self) -> Outcome<i32> {
        let bytes = self.read(4)?;
        Ok(bytes.iter().rev().fold(0, |word, byte| word << 8 | i32::from(*byte)))
    }

    /// Puts an `int` there.
    pub(crate) fn put_int(self, value: i32) -> Outcome<()> {
        self.write(&value.to_le_bytes())
    }

    /// The buffers that an array of `count` iovecs there names.
    pub(crate) fn buffers(self, count: usize) -> Outcome<Vec<(User, usize)>> {
        if count > libc::UIO_MAXIOV as usize {
            return Err(Errno(libc::EMSGSIZE));
        }
        (0..count)
            .map(|each| Ok((self.at(16 * each).pointer()?, self.at(16 * each + 8).word()? as usize)))
            .collect()
    }
}

/// Where the fields of a `struct msghdr` are, on machines of 64 bits.
pub(crate) mod msghdr {
    pub(crate) const NAME: usize = 0;
    pub(crate) const NAME_LEN: usize = 8;
    pub(crate) const IOV: usize = 16;
    pub(crate) const IOV_LEN: usize = 24;
    pub(crate) const CONTROL: usize = 32;
    pub(crate) const CONTROL_LEN: usize = 40;
    pub(crate) const FLAGS: usize = 48;
}

const _: () = {
    assert!(std::mem::offset_of!(libc::msghdr, msg_iov) == msghdr::IOV);
    assert!(std::mem::offset_of!(libc::msghdr, msg_control) == msghdr::CONTROL);
    assert!(std::mem::offset_of!(libc::msghdr, msg_flags) == msghdr::FLAGS);
    assert!(size_of::<libc::iovec>() == 16);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mapped_is_efault() {
        assert_eq!(User::nowhere().read(1), Err(Errno(libc::EFAULT)));
        assert_eq!(User::nowhere().write(&[1]), Err(Errno(libc::EFAULT)));
        assert_eq!(User::nowhere().read(0), Ok(Vec::new()));
        assert!(User::nowhere().buffers(1).is_err());
    }

    #[test]
    fn what_is_mapped_is_read_and_written() {
        let mut bytes = [1, 0, 0, 0, 2, 0, 0, 0, 9];
        let user = User::of(&mut bytes);
        assert_eq!((user.int(), user.at(4).int(), user.word()), (Ok(1), Ok(2), Ok(1 | 2 << 32)));
        user.at(4).put_int(-7).unwrap();
        assert_eq!(user.at(4).int(), Ok(-7));
        assert_eq!(bytes[8], 9);
    }
}
