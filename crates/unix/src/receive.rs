//! Receiving into buffers of the caller: from the ring or the kernel, whichever has the next byte.

use crate::end::End;
use crate::rx::{Ready, Rx, Waiting};
use crate::{Error, Op, RecvFlags, Result};
use onecopy_sync::MutexGuard;
use onecopy_sync::atomic::Ordering::Relaxed;
use rustix::io::Errno;
use std::io::IoSliceMut;

impl End {
    /// Receives into `slices`.
    ///
    /// # Errors
    ///
    /// As [`End::ready`].
    pub fn recv(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize> {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let peek = flags.contains(RecvFlags::PEEK);
        let mut waiting = Waiting::new();
        if total == 0 {
            // Waits like any other, and takes nothing.
            return match self.ready(flags, &mut waiting)? {
                Ready::Plain => self.recv_plain(slices, 0, flags),
                _ => Ok(0),
            };
        }
        let mut got = 0;
        while got < total {
            // A peek does not wait for all (net/unix/af_unix.c: it stops at what is queued).
            let mut last = peek || !flags.contains(RecvFlags::WAITALL);
            let step = match self.ready(flags, &mut waiting) {
                Ok(Ready::Plain) => {
                    // The kernel has waited for all, as far as it was to.
                    last = true;
                    self.recv_plain(slices, got, flags)
                }
                Ok(Ready::Kernel(guard, limit)) => self.recv_kernel(guard, slices, got, limit, peek),
                Ok(Ready::Ring(guard, n)) => self.recv_ring(guard, slices, got, n, peek),
                Ok(Ready::End) => Ok(0),
                Err(error) => Err(error),
            };
            match step {
                Ok(0) => break,
                Ok(n) => got += n,
                // What was received is told first; the error comes again, or its cause is still there.
                Err(_) if got > 0 => break,
                Err(error) => return Err(error),
            }
            if last {
                break;
            }
        }
        Ok(got)
    }

    fn recv_plain(&self, slices: &mut [IoSliceMut<'_>], skip: usize, flags: RecvFlags) -> Result<usize> {
        let mut kernel = rustix::net::RecvFlags::empty();
        kernel.set(rustix::net::RecvFlags::DONTWAIT, flags.contains(RecvFlags::DONTWAIT));
        kernel.set(rustix::net::RecvFlags::PEEK, flags.contains(RecvFlags::PEEK));
        kernel.set(rustix::net::RecvFlags::WAITALL, flags.contains(RecvFlags::WAITALL));
        let n = self.recvmsg(slices, skip, usize::MAX, kernel)?;
        if n == 0 && slices.iter().any(|slice| !slice.is_empty()) && self.reset.swap(0, Relaxed) != 0 {
            // It was told while the peer was not known to be plain, and kept.
            return Err(Error::new(Op::Recv, Errno::CONNRESET));
        }
        if !flags.contains(RecvFlags::PEEK) {
            self.counters.received.add(n);
        }
        Ok(n)
    }

    fn recv_kernel(
        &self,
        mut guard: MutexGuard<'_, Rx>,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        limit: usize,
        peek: bool,
    ) -> Result<usize> {
        let mut kernel = rustix::net::RecvFlags::DONTWAIT;
        kernel.set(rustix::net::RecvFlags::PEEK, peek);
        let n = self.recvmsg(slices, skip, limit, kernel)?;
        if let (false, Rx::Switching(switching)) = (peek, &mut *guard) {
            switching.count(n);
            self.counters.received.add_exclusive(n);
        }
        // A peek at what the kernel has does not go on into the ring.
        Ok(n)
    }

    fn recvmsg(
        &self,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        limit: usize,
        flags: rustix::net::RecvFlags,
    ) -> Result<usize> {
        let mut left = limit;
        let mut part: Vec<IoSliceMut<'_>> = rest(slices, skip)
            .take(IOV_MAX)
            .map(|slice| {
                let n = slice.len().min(left);
                left -= n;
                IoSliceMut::new(&mut slice[..n])
            })
            .collect();
        let n = rustix::net::recvmsg(&self.fd, &mut part, &mut Default::default(), flags)
            .map_err(|errno| Error::new(Op::Recv, errno))?
            .bytes;
        self.counters.kernel_copied.add(n);
        Ok(n)
    }

    fn recv_ring(
        &self,
        mut guard: MutexGuard<'_, Rx>,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        available: usize,
        peek: bool,
    ) -> Result<usize> {
        let Rx::Ring(ring) = &mut *guard else { return Ok(0) };
        let lie = |lie| self.lie(Op::Recv, lie);
        let chunk = chunk(ring.consumer.ring().capacity());
        let mut available = available;
        let mut got = 0;
        let total: usize = rest(slices, skip).map(|slice| slice.len()).sum();
        loop {
            for mut slice in rest(slices, skip + got) {
                while !slice.is_empty() {
                    let want = slice.len().min(chunk);
                    let at = if peek { got } else { 0 };
                    if available < at + want {
                        available = ring.consumer.available(at + want).map_err(lie)?;
                    }
                    let n = want.min(available - at);
                    if n == 0 {
                        break;
                    }
                    let (now, later) = slice.split_at_mut(n);
                    ring.consumer.copy_out(at, now);
                    slice = later;
                    got += n;
                    if !peek {
                        ring.consumer.take(n);
                        available -= n;
                        if !slice.is_empty() {
                            // An early look, without the fence; the sure one follows after unlocking.
                            ring.unpark_if_seen(self).map_err(lie)?;
                        }
                    }
                }
            }
            // (Of a peek nothing was taken, so nothing is settled.)
            if peek || !self.mirror_empty(ring)? || got == total {
                break;
            }
            available = 0;
        }
        self.counters.user_copied_out.add_exclusive(got);
        if peek {
            return Ok(got);
        }
        self.counters.received.add_exclusive(got);
        // The last piece was given back without a look at who waits for room: unlocking is the fence that it
        // wants. (Without the lock what is known of the room is from before, and at least that much.)
        let (room, capacity) = (ring.consumer.room(), ring.consumer.ring().capacity());
        guard.unlock_fenced();
        if self.rx_ring.get().is_some_and(|ring| ring.header().must_unpark(room, capacity)) {
            self.unpark()?;
        }
        Ok(got)
    }
}

/// Most pieces in one system call (UIO_MAXIOV, linux/uio.h).
pub const IOV_MAX: usize = 1024;

/// Bytes after which what was copied is handed over, so that the peer works on it meanwhile: an eighth of the ring,
/// from where a hand-over costs less than the copy to where two pieces no longer fit the first-level cache.
#[inline]
pub fn chunk(capacity: usize) -> usize {
    (capacity / 8).clamp(4 << 10, 32 << 10).min(capacity / 2)
}

/// The slices behind the first `skip` bytes.
fn rest<'a, 'b>(
    slices: &'a mut [IoSliceMut<'b>],
    mut skip: usize,
) -> impl Iterator<Item = &'a mut [u8]> + use<'a, 'b> {
    slices.iter_mut().filter_map(move |slice| {
        let cut = skip.min(slice.len());
        skip -= cut;
        (cut < slice.len()).then(|| &mut slice[cut..])
    })
}
