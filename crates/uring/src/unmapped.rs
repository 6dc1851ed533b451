//! Packets into memory that nothing maps, and out of it: their headers are in the host's memory and their payload in the pages of a file, by the
//! kernel's one copy (IORING_OP_READV_FIXED and IORING_OP_WRITEV_FIXED, Linux 6.15).
//!
//! A ring keeps the pages of a buffer that is registered with it, whether they stay mapped or not. So the file is mapped behind some memory of
//! the host's, both are registered as one buffer, and the file is unmapped again. What it had as addresses are numbers then by which requests name
//! its pages, and nothing else: there is no way to them but the kernel's.

use crate::refused::{Refused, errno};
use io_uring::squeue::Entry;
use io_uring::types::Fd;
use io_uring::{IoUring, Probe, opcode};
use onecopy_sys::map::Mapping;
use rustix::io::Errno;
use rustix::mm::Advice;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes of the host's memory in front: whole pages of the kernel's, whatever size they have.
const FRONT: usize = 64 << 10;

/// Places that one call takes.
pub const MOST_PLACES: usize = 64;

/// The offset of what has none.
const NOWHERE: u64 = u64::MAX;

/// Of the front's last byte, in the process that it was made in.
const HERE: u8 = 0x5a;

/// RWF_NOWAIT (include/uapi/linux/fs.h). A ring would wait otherwise, for a descriptor with O_NONBLOCK too.
const NOWAIT: i32 = 8;

/// A file's pages, registered with a ring of their own. Between calls nothing is under way.
pub struct Unmapped {
    /// The process' that made it, alone: in a child of a fork it is not mapped, and what is done to the descriptor is done to the parent's ring.
    ring: ManuallyDrop<IoUring>,
    /// Its last byte says whose process it is: children find it wiped. Invariant: the kernel uses the others, within calls alone.
    front: Mapping,
    len: usize,
    /// Where a request's bytes lie, as the kernel has it; kept for the next one.
    parts: Vec<libc::iovec>,
}

// SAFETY: the addresses in `parts` are numbers for the kernel, and of no use between calls; all else is Send.
unsafe impl Send for Unmapped {}

impl Unmapped {
    /// Of the first `len` bytes of `file`, a memfd of that size, at most 1 GiB less 64 KiB. All its pages are there from then on.
    ///
    /// # Errors
    ///
    /// [`Refused`]: there is no io_uring here, it is too old, or the memory that may be locked is less (RLIMIT_MEMLOCK).
    pub fn new(file: impl AsFd, len: usize) -> Result<Unmapped, Refused> {
        let ring = IoUring::builder().dontfork().build(1).map_err(|error| Refused::Setup(errno(&error)))?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(|error| Refused::Setup(errno(&error)))?;
        if !probe.is_supported(opcode::ReadvFixed::CODE) || !probe.is_supported(opcode::WritevFixed::CODE) {
            return Err(Refused::Lacks(
                "vectors of registered memory (IORING_OP_READV_FIXED, IORING_OP_WRITEV_FIXED)",
                "6.15",
            ));
        }
        let whole = Mapping::fronted(file, FRONT, len).map_err(Refused::Registered)?;
        let all = libc::iovec { iov_base: whole.base().as_ptr().cast(), iov_len: whole.len() };
        // SAFETY: all of it is mapped during the call, and the ring holds the pages from then on. The kernel uses those that a request names: of
        // the front none but within `run`, and to the others there is no reference, since they are not mapped.
        let registered = unsafe { ring.submitter().register_buffers(&[all]) };
        registered.map_err(|error| Refused::Registered(errno(&error)))?;
        let front = whole.cut(FRONT).map_err(Refused::Registered)?;
        // SAFETY: all of the mapping, of which nobody has a view; in a child it is zeroes.
        let wiped = unsafe {
            front.base().as_ptr().add(FRONT - 1).write(HERE);
            rustix::mm::madvise(front.base().as_ptr().cast(), FRONT, Advice::LinuxWipeOnFork)
        };
        let ring = ManuallyDrop::new(ring);
        let unmapped = Unmapped { ring, front, len, parts: Vec::with_capacity(MOST_PLACES + 1) };
        wiped.map(|()| unmapped).map_err(Refused::Registered)
    }

    /// Reads what `from` has now, without waiting: up to `front` bytes to the host's memory, and what follows to `places` of the file, each a
    /// byte and a length, one after the other. Returns how many bytes came, and those in front.
    ///
    /// # Errors
    ///
    /// What readv(2) says: EAGAIN while there is nothing; EOPNOTSUPP in a fork's child, and for a descriptor that cannot be read without waiting. EFAULT for places that
    /// are not in the file. EINVAL for no bytes at all, for 64 KiB and more in front, and for more than [`MOST_PLACES`].
    pub fn read(
        &mut self,
        from: impl AsFd,
        front: usize,
        places: &[(u64, usize)],
    ) -> Result<(usize, &[u8]), Errno> {
        self.note(front, places)?;
        let (fd, count) = (Fd(from.as_fd().as_raw_fd()), self.parts.len() as u32);
        let entry =
            opcode::ReadvFixed::new(fd, self.parts.as_ptr(), count, 0).offset(NOWHERE).rw_flags(NOWAIT);
        // SAFETY: `self.parts` is left alone during the call, which the descriptor outlives. The front is written, of which no slice is left (`&mut self`), and pages that nothing maps.
        let came = unsafe { self.run(&entry.build())? };
        // SAFETY: so many bytes are mapped, and initialised, as fresh memory is. Nobody writes them while the slice lives: the request is over, the next
        // one takes `&mut self`, and a child of this process has a copy of its own.
        Ok((came, unsafe { std::slice::from_raw_parts(self.front.base().as_ptr(), front.min(came)) }))
    }

    /// Writes to `to`, without waiting: the slices of `front` one after the other, and behind them what lies at `places`. Returns how many bytes
    /// were taken.
    ///
    /// # Errors
    ///
    /// What writev(2) says: EAGAIN while there is no room. As [`Unmapped::read`].
    pub fn write(&mut self, to: impl AsFd, front: &[&[u8]], places: &[(u64, usize)]) -> Result<usize, Errno> {
        self.note(front.iter().map(|slice| slice.len()).sum(), places)?;
        let mut at = self.front.base().as_ptr();
        for slice in front {
            // SAFETY: `note` has seen that all of them fit in front. Nobody else uses it: between calls the kernel does not, and there is no slice of
            // it left (`&mut self`).
            at = unsafe {
                at.copy_from_nonoverlapping(slice.as_ptr(), slice.len());
                at.add(slice.len())
            };
        }
        let (fd, count) = (Fd(to.as_fd().as_raw_fd()), self.parts.len() as u32);
        let entry =
            opcode::WritevFixed::new(fd, self.parts.as_ptr(), count, 0).offset(NOWHERE).rw_flags(NOWAIT);
        // SAFETY: `self.parts` is left alone during the call, which the descriptor outlives. The kernel only reads.
        unsafe { self.run(&entry.build()) }
    }

    /// Notes so many bytes in front, if there are any, and these places, as the kernel has them.
    fn note(&mut self, front: usize, places: &[(u64, usize)]) -> Result<(), Errno> {
        if front >= FRONT || places.len() > MOST_PLACES || (front == 0 && places.is_empty()) {
            return Err(Errno::INVAL);
        }
        let base = self.front.base().as_ptr();
        self.parts.clear();
        if front > 0 {
            self.parts.push(libc::iovec { iov_base: base.cast(), iov_len: front });
        }
        for (at, len) in places {
            let end = usize::try_from(*at).ok().and_then(|at| at.checked_add(*len));
            if *len == 0 || end.is_none_or(|end| end > self.len) {
                return Err(Errno::FAULT);
            }
            // A number for the kernel, no address.
            let iov_base = base.wrapping_add(FRONT + *at as usize).cast();
            self.parts.push(libc::iovec { iov_base, iov_len: *len });
        }
        Ok(())
    }

    /// Whether this is the process that made it.
    fn is_here(&self) -> bool {
        // SAFETY: it is mapped, and written by nobody after `new`.
        unsafe { self.front.base().as_ptr().add(FRONT - 1).read_volatile() == HERE }
    }

    /// Makes a request, and waits until it is over. When this returns nothing is under way.
    ///
    /// # Safety
    ///
    /// What the entry points at is valid until this returns, and if the kernel is to write it, nobody else looks at it.
    unsafe fn run(&mut self, entry: &Entry) -> Result<usize, Errno> {
        if !self.is_here() {
            return Err(Errno::OPNOTSUPP);
        }
        // SAFETY: the caller's: this returns only when the request has completed, or when it was not handed over and never will be.
        let pushed = unsafe { self.ring.submission().push(entry) };
        if pushed.is_err() {
            // One was left behind by a call that failed; the ring is of no more use.
            return Err(Errno::IO);
        }
        let result = loop {
            if let Some(entry) = self.ring.completion().next() {
                break entry.result();
            }
            // What does not wait is over when it has been handed over; a wait that is not needed has its price.
            let handed_over = self.ring.submission().is_empty();
            let entered = if handed_over { self.ring.submit_and_wait(1) } else { self.ring.submit() };
            match entered.map_err(|error| errno(&error)) {
                Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                Err(errno) if !self.ring.submission().is_empty() => return Err(errno),
                // What the kernel has taken ends, and is waited for.
                Err(_) => {}
            }
        };
        usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result))
    }
}

impl Drop for Unmapped {
    fn drop(&mut self) {
        if !self.is_here() {
            // The parent goes on with it.
            return;
        }
        // Now, and not when the kernel gets round to a ring that was closed: what is locked counts until then. If it fails, that is what is left.
        let _ = self.ring.submitter().unregister_buffers();
        // SAFETY: here alone, and it is used no more.
        unsafe { ManuallyDrop::drop(&mut self.ring) }
    }
}

impl fmt::Debug for Unmapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unmapped({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_sys::memfd;
    use rustix::io::{pread, pwrite, write};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    const LEN: usize = 1 << 20;

    fn unmapped() -> Option<(std::os::fd::OwnedFd, Unmapped)> {
        let file = memfd::create("unmapped", LEN).unwrap();
        match Unmapped::new(&file, LEN) {
            Ok(unmapped) => Some((file, unmapped)),
            Err(refused) => {
                eprintln!("skipped: {refused}");
                None
            }
        }
    }

    #[test]
    fn what_is_in_front_and_what_is_behind_lie_where_they_were_wanted() {
        let Some((file, mut unmapped)) = unmapped() else { return };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        pwrite(&file, &[7; LEN], 0).unwrap();
        let places = [(8192, 4096), (4096, 4096), (LEN as u64 - 4096, 4096)];
        assert_eq!(unmapped.read(&near, 10, &places), Err(Errno::AGAIN));
        let record: Vec<u8> = (0..10_000_u32).map(|n| ((n * 31) >> 3) as u8).collect();
        for len in [1, 9, 10, 11, 4106, 4107, 10_000] {
            assert_eq!(write(&far, &record[..len]), Ok(len));
            let (came, front) = unmapped.read(&near, 10, &places).unwrap();
            assert_eq!((came, front), (len, &record[..len.min(10)]));
            let mut back = vec![0; 3 * 4096];
            for ((at, len), to) in places.iter().zip(back.chunks_mut(4096)) {
                assert_eq!(pread(&file, to, *at), Ok(*len));
            }
            assert!(len <= 10 || back[..len - 10] == record[10..len], "{len}");
        }
        // Nothing beside the places was written to.
        let mut rest = vec![0; 4096];
        for at in [0, 12_288, LEN as u64 - 8192] {
            pread(&file, &mut rest, at).unwrap();
            assert!(rest.iter().all(|byte| *byte == 7), "{at}");
        }
        // What does not fit is cut off, as by readv(2).
        assert_eq!(write(&far, &record), Ok(10_000));
        assert_eq!(unmapped.read(&near, 10, &places[..1]).unwrap().0, 4106);
        drop(far);
        assert_eq!(unmapped.read(&near, 10, &places).unwrap().0, 0);
    }

    #[test]
    fn what_is_written_is_the_front_and_the_places_in_order() {
        let Some((file, mut unmapped)) = unmapped() else { return };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let data: Vec<u8> = (0..LEN as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        pwrite(&file, &data, 0).unwrap();
        let places = [(8191, 3), (5, 4096), (LEN as u64 - 1, 1)];
        assert_eq!(unmapped.write(&near, &[b"virtio", b"", b"head"], &places), Ok(10 + 4100));
        let mut got = vec![0; 10_000];
        assert_eq!(rustix::io::read(&far, &mut got), Ok(4110));
        let wanted = [b"virtiohead", &data[8191..8194], &data[5..4101], &data[LEN - 1..]].concat();
        assert!(got[..4110] == wanted);
        assert_eq!(unmapped.write(&near, &[b"!"], &[(LEN as u64, 1)]), Err(Errno::FAULT));
        assert_eq!(unmapped.write(&near, &[], &[]), Err(Errno::INVAL));
        // Until there is no room; nothing of it is taken then.
        let mut sent = 0;
        while unmapped
            .write(&near, &[b"!"], &[(0, 30_000)])
            .inspect_err(|e| assert_eq!(*e, Errno::AGAIN))
            .is_ok()
        {
            sent += 1;
        }
        assert!((1..1000).contains(&sent), "{sent}");
        drop(far);
        assert!(unmapped.write(&near, &[b"!"], &places).is_err());
    }

    #[test]
    fn places_outside_are_refused_and_what_is_there_stays() {
        let Some((_file, mut unmapped)) = unmapped() else { return };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        assert_eq!(write(&far, b"hello"), Ok(5));
        for (at, len) in [(LEN as u64, 1), (LEN as u64 - 1, 2), (u64::MAX, 1), (u64::MAX, 2), (0, 0)] {
            assert_eq!(unmapped.read(&near, 1, &[(at, len)]), Err(Errno::FAULT), "{at} {len}");
        }
        assert_eq!(unmapped.read(&near, 0, &[]), Err(Errno::INVAL));
        assert_eq!(unmapped.read(&near, FRONT + 1, &[]), Err(Errno::INVAL));
        assert_eq!(unmapped.read(&near, 1, &[(0, 1); MOST_PLACES + 1]), Err(Errno::INVAL));
        assert_eq!(unmapped.read(&near, 64, &[]), Ok((5, &b"hello"[..])));
    }

    #[test]
    fn a_forks_child_leaves_it_to_its_parent() {
        onecopy_testing::alone!();
        let Some((file, unmapped)) = unmapped() else { return };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        assert_eq!(write(&far, b"hello"), Ok(5));
        let held = std::cell::RefCell::new(Some(unmapped));
        let child = onecopy_sys::fork::child(|| {
            let mut unmapped = held.take();
            let refused = unmapped.as_mut().map(|unmapped| unmapped.read(&near, 1, &[(0, 4)]).map(drop));
            // What the child drops is still the parent's.
            drop(unmapped);
            i32::from(refused != Some(Err(Errno::OPNOTSUPP)))
        });
        assert_eq!(child.unwrap().wait(), onecopy_sys::fork::Ended::Returned(0));
        let mut unmapped = held.take().unwrap();
        assert_eq!(unmapped.read(&near, 1, &[(0, 4)]), Ok((5, &b"h"[..])));
        let mut back = [0; 4];
        assert_eq!(pread(&file, &mut back, 0), Ok(4));
        assert_eq!(&back, b"ello");
    }

    #[test]
    fn no_address_of_the_file_is_left() {
        let Some((file, unmapped)) = unmapped() else { return };
        let mapped = std::fs::read_to_string("/proc/self/maps").unwrap();
        let inode = rustix::fs::fstat(&file).unwrap().st_ino.to_string();
        let here = mapped.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode));
        assert_eq!(here.count(), 0, "{mapped}");
        drop(unmapped);
        // More than a buffer may have.
        let large = memfd::create("unmapped", 1 << 30).unwrap();
        let refused = Unmapped::new(&large, 1 << 30).unwrap_err();
        assert_eq!(refused, Refused::Registered(Errno::FAULT));
    }
}
