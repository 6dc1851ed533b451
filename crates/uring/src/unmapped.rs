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

/// Places that one packet takes.
pub const MOST_PLACES: usize = 64;

/// Packets that one call writes ([`Unmapped::write_added`]).
pub const MOST_PACKETS: usize = 16;

/// The offset of what has none.
const NOWHERE: u64 = u64::MAX;

/// Of the front's last byte, in the process that it was made in.
const HERE: u8 = 0x5a;

/// IORING_ENTER_GETEVENTS (include/uapi/linux/io_uring.h): wait for completions.
const GETEVENTS: u32 = 1;

/// RWF_NOWAIT (include/uapi/linux/fs.h). A ring would wait otherwise, for a descriptor with O_NONBLOCK too.
const NOWAIT: i32 = 8;

/// A file's pages, registered with a ring of their own. Between calls nothing is under way.
pub struct Unmapped {
    /// The process' that made it, alone: in a child of a fork it is not mapped, and what is done to the descriptor is done to the parent's ring.
    ring: ManuallyDrop<IoUring>,
    /// Its last byte says whose process it is: children find it wiped. Invariant: the kernel uses the others, within calls alone.
    front: Mapping,
    len: usize,
    /// Where requests' bytes lie, as the kernel has it; kept for the next ones.
    parts: Vec<libc::iovec>,
    /// How many of these each packet has that was added.
    added: Vec<usize>,
    /// Bytes of the front that these have.
    used: usize,
    /// A call failed that left requests behind, which name what is no longer so: the ring is of no more use.
    failed: bool,
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
        let ring = IoUring::builder().dontfork().build(MOST_PACKETS as u32);
        let ring = ring.map_err(|error| Refused::Setup(errno(&error)))?;
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
        let (parts, added) = (Vec::with_capacity(MOST_PLACES + 1), Vec::with_capacity(MOST_PACKETS));
        let unmapped = Unmapped { ring, front, len, parts, added, used: 0, failed: false };
        wiped.map(|()| unmapped).map_err(Refused::Registered)
    }

    /// Reads what `from` has now, without waiting: up to `front` bytes to the host's memory, and what follows to `places` of the file, each a
    /// byte and a length, one after the other. Returns how many bytes came, and those in front.
    ///
    /// # Errors
    ///
    /// What readv(2) says: EAGAIN while there is nothing; EOPNOTSUPP in a fork's child, and for a descriptor that cannot be read without waiting. EFAULT for places that
    /// are not in the file. EINVAL for no bytes at all, for 64 KiB and more in front, and for more than [`MOST_PLACES`]. EBUSY while packets are added that are not
    /// written yet.
    pub fn read(
        &mut self,
        from: impl AsFd,
        front: usize,
        places: &[(u64, usize)],
    ) -> Result<(usize, &[u8]), Errno> {
        if !self.added.is_empty() {
            return Err(Errno::BUSY);
        }
        self.parts.clear();
        self.note(front, places)?;
        let (fd, count) = (Fd(from.as_fd().as_raw_fd()), self.parts.len() as u32);
        let entry =
            opcode::ReadvFixed::new(fd, self.parts.as_ptr(), count, 0).offset(NOWHERE).rw_flags(NOWAIT);
        let mut came = Err(Errno::IO);
        // SAFETY: `self.parts` is left alone during the call, which the descriptor outlives. The front is written, of which no slice is left (`&mut self`), and pages that nothing maps.
        unsafe { self.run([entry.build()], |_, result| came = result)? };
        let came = came?;
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
        if !self.added.is_empty() {
            return Err(Errno::BUSY);
        }
        self.add(front, places)?;
        let mut taken = Err(Errno::IO);
        self.write_added(to, |result| taken = result);
        taken
    }

    /// Has a packet be written by the next [`Unmapped::write_added`]: as [`Unmapped::write`] would write it. What lies in the file may be changed until then, and
    /// is written as it is then.
    ///
    /// # Errors
    ///
    /// As [`Unmapped::read`]; ENOBUFS behind [`MOST_PACKETS`], or where their slices have 64 KiB. Then it is not added.
    pub fn add(&mut self, front: &[&[u8]], places: &[(u64, usize)]) -> Result<(), Errno> {
        if self.added.is_empty() {
            self.parts.clear();
        }
        if self.added.len() == MOST_PACKETS {
            return Err(Errno::NOBUFS);
        }
        let (before, len) = (self.parts.len(), front.iter().map(|slice| slice.len()).sum());
        self.note(len, places)?;
        let mut at = self.front.base().as_ptr().wrapping_add(self.used);
        for slice in front {
            // SAFETY: `note` has seen that all of them fit in front, behind those that were added. Nobody else uses it: between calls the kernel does
            // not, and there is no slice of it left (`&mut self`).
            at = unsafe {
                at.copy_from_nonoverlapping(slice.as_ptr(), slice.len());
                at.add(slice.len())
            };
        }
        self.used += len;
        self.added.push(self.parts.len() - before);
        Ok(())
    }

    /// Packets that are added, and not written yet.
    pub fn added(&self) -> usize {
        self.added.len()
    }

    /// Forgets them. Returns how many there were.
    pub fn forget_added(&mut self) -> usize {
        self.parts.clear();
        self.used = 0;
        let count = self.added.len();
        self.added.clear();
        count
    }

    /// Writes the packets that were added to `to`, without waiting, by one call: each as a write of its own, in their order. What one does says nothing of the
    /// next. `became` is told of each, in order, what [`Unmapped::write`] would say; then none are added any more.
    pub fn write_added(&mut self, to: impl AsFd, mut became: impl FnMut(Result<usize, Errno>)) {
        let fd = Fd(to.as_fd().as_raw_fd());
        let mut outcomes = [None; MOST_PACKETS];
        let (count, parts, added) = (self.added.len(), &self.parts, &self.added);
        let mut begin = 0;
        let entries: [Option<Entry>; MOST_PACKETS] = std::array::from_fn(|index| {
            let parts = &parts[begin..begin + *added.get(index)?];
            begin += parts.len();
            let entry = opcode::WritevFixed::new(fd, parts.as_ptr(), parts.len() as u32, 0);
            Some(entry.offset(NOWHERE).rw_flags(NOWAIT).build())
        });
        // SAFETY: `self.parts` is left alone during the call, which the descriptor outlives. The kernel only reads.
        let run = unsafe { self.run(entries.into_iter().flatten(), |n, result| outcomes[n] = Some(result)) };
        self.forget_added();
        // Those that were not made have no outcome of their own.
        let other = Err(run.err().unwrap_or(Errno::IO));
        outcomes[..count].iter().for_each(|outcome| became(outcome.unwrap_or(other)));
    }

    /// Notes so many bytes in front, behind those that are used, if there are any, and these places, as the kernel has them. Where it fails nothing is noted.
    fn note(&mut self, front: usize, places: &[(u64, usize)]) -> Result<(), Errno> {
        if front >= FRONT || places.len() > MOST_PLACES || (front == 0 && places.is_empty()) {
            return Err(Errno::INVAL);
        }
        if self.used + front >= FRONT {
            return Err(Errno::NOBUFS);
        }
        let (base, before) = (self.front.base().as_ptr(), self.parts.len());
        if front > 0 {
            let iov_base = base.wrapping_add(self.used).cast();
            self.parts.push(libc::iovec { iov_base, iov_len: front });
        }
        for (at, len) in places {
            let end = usize::try_from(*at).ok().and_then(|at| at.checked_add(*len));
            if *len == 0 || end.is_none_or(|end| end > self.len) {
                self.parts.truncate(before);
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

    /// Makes requests, and waits until all are over: of each `done` is told, by its place among them. When this returns nothing is under way.
    ///
    /// # Safety
    ///
    /// What the entries point at is valid until this returns, and if the kernel is to write it, nobody else looks at it.
    unsafe fn run(
        &mut self,
        entries: impl IntoIterator<Item = Entry>,
        mut done: impl FnMut(usize, Result<usize, Errno>),
    ) -> Result<(), Errno> {
        if !self.is_here() {
            return Err(Errno::OPNOTSUPP);
        }
        if self.failed {
            return Err(Errno::IO);
        }
        let (mut left, mut queue) = (0, self.ring.submission());
        for entry in entries {
            // SAFETY: the caller's: this returns only when each request has completed, or when it was not handed over and never will be.
            let pushed = unsafe { queue.push(&entry.user_data(left as u64)) };
            debug_assert!(pushed.is_ok(), "as many fit as may be added, and none is left from before");
            left += usize::from(pushed.is_ok());
        }
        drop(queue);
        // Requests that were not handed over, once something is so wrong that they are not to be.
        let (mut behind, mut failed) = (0, None);
        loop {
            for entry in self.ring.completion() {
                let result = usize::try_from(entry.result());
                let result = result.map_err(|_| Errno::from_raw_os_error(-entry.result()));
                done(entry.user_data() as usize, result);
                left -= 1;
            }
            if left == behind {
                return failed.map_or(Ok(()), Err);
            }
            // What does not wait is over when it has been handed over; a wait that is not needed has its price.
            let handed_over = self.ring.submission().is_empty();
            let entered = match (failed, handed_over) {
                (None, false) => self.ring.submit(),
                // SAFETY: it has no argument.
                _ => unsafe { self.ring.submitter().enter::<()>(0, 1, GETEVENTS, None) },
            };
            match entered.map_err(|error| errno(&error)) {
                Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                // What the kernel has taken ends, and is waited for.
                Err(errno) => {
                    behind = self.ring.submission().len();
                    self.failed |= behind > 0;
                    failed = failed.or(self.failed.then_some(errno));
                }
            }
        }
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
                println!("lacking: io_uring ({refused})");
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
    fn packets_that_were_added_are_written_by_one_call_each_for_itself() {
        let Some((file, mut unmapped)) = unmapped() else { return };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let data: Vec<u8> = (0..LEN as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        pwrite(&file, &data, 0).unwrap();
        let outcomes = |unmapped: &mut Unmapped, to: &std::os::fd::OwnedFd| {
            let mut all = Vec::new();
            unmapped.write_added(to, |outcome| all.push(outcome));
            all
        };
        assert!(outcomes(&mut unmapped, &near).is_empty());
        for n in 0..MOST_PACKETS {
            // What is refused in between changes nothing.
            assert_eq!(unmapped.add(&[b"no"], &[(0, 1), (LEN as u64, 1)]), Err(Errno::FAULT));
            let places = [(n as u64 * 5000, 3000 + n), (n as u64 * 3, 7)];
            assert_eq!(unmapped.add(&[&[n as u8; 10], b"head"], &places[..1 + n % 2]), Ok(()));
        }
        assert_eq!(unmapped.add(&[b"one more"], &[]), Err(Errno::NOBUFS));
        assert_eq!(unmapped.added(), MOST_PACKETS);
        // Neither of these may use the front now.
        assert_eq!(unmapped.read(&near, 10, &[(0, 10)]), Err(Errno::BUSY));
        assert_eq!(unmapped.write(&near, &[b"!"], &[]), Err(Errno::BUSY));
        let taken = outcomes(&mut unmapped, &near);
        assert_eq!((taken.len(), unmapped.added()), (MOST_PACKETS, 0));
        let mut got = vec![0; 10_000];
        for (n, taken) in taken.into_iter().enumerate() {
            let behind = if n % 2 == 1 { &data[n * 3..n * 3 + 7] } else { &[] };
            let wanted = [&[n as u8; 10], &b"head"[..], &data[n * 5000..][..3000 + n], behind].concat();
            assert_eq!(taken, Ok(wanted.len()));
            assert_eq!(rustix::io::read(&far, &mut got), Ok(wanted.len()));
            assert!(got[..wanted.len()] == wanted, "{n}");
        }
        // There is no room for all of them: those in front are taken, and what comes then tells of no harm.
        let mut sent = 0;
        let (mut before, mut all) = (0, vec![]);
        while all.iter().all(Result::is_ok) && sent < 1000 {
            (0..4).for_each(|_| unmapped.add(&[&[0; 100]], &[(0, 30_000)]).unwrap());
            all = outcomes(&mut unmapped, &near);
            (before, sent) = (sent, sent + all.iter().filter(|outcome| outcome.is_ok()).count());
        }
        assert!(
            sent < 1000 && all[sent - before..] == vec![Err(Errno::AGAIN); 4 - (sent - before)],
            "{all:?}"
        );
        for _ in 0..sent {
            assert_eq!(rustix::io::read(&far, &mut vec![0; 40_000]), Ok(30_100));
        }
        unmapped.add(&[b"forgotten"], &[]).unwrap();
        assert_eq!(unmapped.forget_added(), 1);
        // What is wrong with a descriptor is told of each.
        (0..3).for_each(|_| unmapped.add(&[b"!"], &[]).unwrap());
        let (reads, _writes) = rustix::pipe::pipe().unwrap();
        assert_eq!(outcomes(&mut unmapped, &reads), [Err(Errno::BADF); 3]);
        assert_eq!(unmapped.write(&near, &[b"!"], &[]), Ok(1));
        // More than 64 KiB in front.
        unmapped.add(&[&[0; 40_000]], &[]).unwrap();
        assert_eq!(unmapped.add(&[&[0; 30_000]], &[]), Err(Errno::NOBUFS));
        assert_eq!(unmapped.add(&[&[0; 65_536]], &[]), Err(Errno::INVAL));
        assert_eq!(outcomes(&mut unmapped, &near), [Ok(40_000)]);
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
            let refused = unmapped.as_mut().map(|unmapped| {
                unmapped.add(&[b"!"], &[])?;
                unmapped.write_added(&near, |outcome| assert_eq!(outcome, Err(Errno::OPNOTSUPP)));
                unmapped.read(&near, 1, &[(0, 4)]).map(drop)
            });
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
