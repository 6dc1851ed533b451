//! What one call knows, and how much it takes at once.

use crate::ancillary::channel::Fds;
use onecopy_ring::Consumer;
use std::io::{IoSlice, IoSliceMut};

/// What one receive knows besides its buffers.
#[derive(Debug)]
pub struct Call<'a> {
    /// Where descriptors go. Without such a place they are closed, as recv(2) does.
    pub(super) fds: Option<&'a mut Fds>,
    /// The position in the ring that the receive must not pass, since it has descriptors that came with bytes
    /// before it.
    pub(super) until: u64,
}

impl<'a> Call<'a> {
    /// A receive without descriptors.
    pub fn plain() -> Call<'a> {
        Call { fds: None, until: u64::MAX }
    }

    /// A receive with a place for descriptors.
    pub fn with(fds: &'a mut Fds) -> Call<'a> {
        Call { fds: Some(fds), until: u64::MAX }
    }

    /// Returns where descriptors go, if they are asked for.
    pub fn fds(&mut self) -> Option<&mut Fds> {
        self.fds.as_deref_mut()
    }

    /// Drops the descriptors that were received so far: they are nobody's, and the call goes on elsewhere.
    pub fn forget(&mut self) {
        if let Some(fds) = &mut self.fds {
            **fds = Fds::default();
        }
        self.until = u64::MAX;
    }
}

/// The most pieces in one system call (UIO_MAXIOV, linux/uio.h).
pub const IOV_MAX: usize = 1024;

/// Returns after how many bytes what was copied is handed over, so that the peer works on it meanwhile. It is
/// an eighth of the ring. The lower bound is where a hand-over costs less than the copy. The upper bound is
/// where two pieces no longer fit the first-level cache.
#[inline]
pub fn chunk(capacity: usize) -> usize {
    (capacity / 8).clamp(4 << 10, 32 << 10).min(capacity / 2)
}

/// The parts of a vectored send that are not sent yet.
pub struct Cursor<'a, 'b> {
    slices: &'a [IoSlice<'b>],
    /// Bytes of the first slice that are done.
    done: usize,
    /// Bytes that are not done.
    left: usize,
}

impl<'a, 'b> Cursor<'a, 'b> {
    pub fn new(slices: &'a [IoSlice<'b>]) -> Self {
        Cursor { slices, done: 0, left: slices.iter().map(|slice| slice.len()).sum() }
    }

    /// Returns how many bytes are left to send.
    #[inline]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Returns the next at most `max` bytes that are next to each other. Never empty while something is left.
    pub fn next(&mut self, max: usize) -> &'a [u8] {
        while let Some(first) = self.slices.first() {
            let rest = &first[self.done..];
            if rest.is_empty() {
                self.slices = &self.slices[1..];
                self.done = 0;
                continue;
            }
            let n = rest.len().min(max);
            self.done += n;
            self.left -= n;
            return &rest[..n];
        }
        &[]
    }

    /// Returns the next at most `max` bytes, in pieces, for one system call. Does not move on.
    pub fn pieces(&self, max: usize) -> Vec<IoSlice<'a>> {
        let mut left = max;
        let mut pieces = Vec::new();
        for (i, slice) in self.slices.iter().enumerate() {
            let rest = if i == 0 { &slice[self.done..] } else { &slice[..] };
            if left == 0 || pieces.len() == IOV_MAX {
                break;
            }
            if rest.is_empty() {
                continue;
            }
            let n = rest.len().min(left);
            left -= n;
            // The slice behind an `&'a IoSlice` lives for 'a.
            pieces.push(IoSlice::new(&rest[..n]));
        }
        pieces
    }

    pub fn advance(&mut self, mut count: usize) {
        while count > 0 {
            count -= self.next(count).len();
        }
    }
}

/// Calls `fill` for each part of the slices behind the first `skip` bytes, `n` bytes in all. `fill` learns
/// how many bytes were done before.
pub fn scatter(
    slices: &mut [IoSliceMut<'_>],
    mut skip: usize,
    n: usize,
    mut fill: impl FnMut(usize, &mut [u8]),
) {
    let mut done = 0;
    for slice in slices {
        let cut = skip.min(slice.len());
        skip -= cut;
        let len = (slice.len() - cut).min(n - done);
        if len > 0 {
            fill(done, &mut slice[cut..cut + len]);
            done += len;
        }
    }
}

/// Copies as many as have room of the `len` bytes that are `at` bytes ahead. Takes nothing.
pub fn copy_ahead(
    consumer: &Consumer,
    slices: &mut [IoSliceMut<'_>],
    skip: usize,
    at: usize,
    len: usize,
) -> usize {
    let mut done = 0;
    for slice in rest(slices, skip) {
        let n = slice.len().min(len - done);
        consumer.copy_out(at + done, &mut slice[..n]);
        done += n;
    }
    done
}

/// Returns the slices behind the first `skip` bytes.
#[inline]
pub fn rest<'a, 'b>(
    slices: &'a mut [IoSliceMut<'b>],
    mut skip: usize,
) -> impl Iterator<Item = &'a mut [u8]> + use<'a, 'b> {
    slices.iter_mut().filter_map(move |slice| {
        let cut = skip.min(slice.len());
        skip -= cut;
        (cut < slice.len()).then(|| &mut slice[cut..])
    })
}
