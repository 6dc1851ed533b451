//! What packets are read from and written to: a descriptor, or what a test puts in its place.

use onecopy_sys::map::Span;
use onecopy_sys::spans::{read_scattered, write_gathered};
use onecopy_uring::Unmapped;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// One packet a call, but for those that are gathered from a device's memory.
pub(super) trait Device {
    /// Reads the next packet; EAGAIN while there is none. As many bytes as there is room for mean that it may be longer.
    fn read(&mut self, into: &[Span<'_>]) -> Result<usize, Errno>;

    /// Reads the next packet so many bytes to the host's memory, the rest to places among `pages`. EOPNOTSUPP where it cannot.
    fn land<'a>(
        &mut self,
        _pages: &'a mut Unmapped,
        _front: usize,
        _places: &[(u64, usize)],
    ) -> Result<(usize, &'a [u8]), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Writes those that were added to `pages` ([`Unmapped::add`]), and says what became of each, in order. EOPNOTSUPP where it cannot.
    fn gather(&mut self, pages: &mut Unmapped, mut became: impl FnMut(Result<(), Errno>)) {
        (0..pages.forget_added()).for_each(|_| became(Err(Errno::OPNOTSUPP)));
    }

    /// Writes one.
    fn write(&mut self, from: &[Span<'_>]) -> Result<(), Errno>;
}

impl Device for OwnedFd {
    #[inline]
    fn read(&mut self, into: &[Span<'_>]) -> Result<usize, Errno> {
        loop {
            match read_scattered(&*self, into) {
                Err(Errno::INTR) => {}
                done => return done,
            }
        }
    }

    fn land<'a>(
        &mut self,
        pages: &'a mut Unmapped,
        front: usize,
        places: &[(u64, usize)],
    ) -> Result<(usize, &'a [u8]), Errno> {
        pages.read(&*self, front, places)
    }

    fn gather(&mut self, pages: &mut Unmapped, mut became: impl FnMut(Result<(), Errno>)) {
        // It takes a packet whole or not at all.
        pages.write_added(&*self, |taken| became(taken.map(drop)));
    }

    #[inline]
    fn write(&mut self, from: &[Span<'_>]) -> Result<(), Errno> {
        loop {
            match write_gathered(&*self, from) {
                Err(Errno::INTR) => {}
                // It takes a packet whole or not at all.
                done => return done.map(drop),
            }
        }
    }
}
