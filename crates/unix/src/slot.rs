//! Room in the peer's buffer, to be written in place.

use crate::end::End;
use crate::tx::{Cursor, Tx};
use crate::{Error, Op, Result, SendFlags};
use onecopy_sync::MutexGuard;
use onecopy_sys::map::{Span, slice, total};
use rustix::fd::AsFd;
use std::io::{self, IoSlice};

/// Room in the peer's buffer, from [`crate::Stream::reserve`]. It holds the sending side: other senders wait (or
/// get EAGAIN) until it is committed, or dropped, which sends nothing.
///
/// Over the kernel there is no such room: the bytes then lie in a buffer of this process, and `commit` sends them.
#[derive(Debug)]
pub struct Slot<'a> {
    end: &'a End,
    place: Place<'a>,
    flags: SendFlags,
    len: usize,
    filled: usize,
}

#[derive(Debug)]
enum Place<'a> {
    Ring(MutexGuard<'a, Tx>),
    Heap(MutexGuard<'a, Tx>, Vec<u8>),
    /// Committed.
    Gone,
}

/// Largest slot over the kernel in bytes.
const MAX_HEAP: usize = 256 << 10;

impl<'a> Slot<'a> {
    pub(crate) fn reserve(end: &'a End, len: usize, flags: SendFlags) -> Result<Slot<'a>> {
        let mut guard = end.lock_tx(flags)?;
        let (place, len) = match &mut *guard {
            Tx::Kernel { .. } => {
                let len = len.min(MAX_HEAP);
                (Place::Heap(guard, vec![0; len]), len)
            }
            Tx::Ring(ring) => {
                let len = len.min(ring.producer.ring().capacity());
                end.room(ring, len, len, flags, &mut None)?;
                (Place::Ring(guard), len)
            }
        };
        Ok(Slot { end, place, flags, len, filled: 0 })
    }

    /// Bytes of room in all: what was asked for, at most the capacity.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no room.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes filled so far.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Copies as many of `bytes` as there is room left for, with the stores that the socket's policy asks for.
    /// Returns how many.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.len - self.filled);
        let counters = &self.end.counters;
        match &mut self.place {
            Place::Gone => return 0,
            Place::Heap(_, heap) => heap[self.filled..][..n].copy_from_slice(&bytes[..n]),
            Place::Ring(guard) => {
                if let Tx::Ring(ring) = &mut **guard {
                    let hint = self.end.hint(self.flags, ring.producer.ring().capacity());
                    let store = ring.producer.copy_in(self.filled, &bytes[..n], hint);
                    if store == onecopy_copy::Store::NonTemporal {
                        counters.user_copied_nt.add_exclusive(n);
                    }
                }
            }
        }
        counters.user_copied_in.add_exclusive(n);
        self.filled += n;
        n
    }

    /// pread(2) from byte `offset` of `file` into the room left: one copy by the kernel, none in user space.
    /// Returns bytes read, 0 at the end of the file.
    ///
    /// # Errors
    ///
    /// What pread(2) says.
    pub fn read_from(&mut self, file: impl AsFd, offset: u64) -> io::Result<usize> {
        let n = match &mut self.place {
            Place::Gone => 0,
            Place::Heap(_, heap) => {
                let room = Span::of(&mut heap[self.filled..]);
                onecopy_sys::spans::pread(file, &[room, Span::EMPTY], offset)?
            }
            Place::Ring(guard) => match &mut **guard {
                Tx::Ring(ring) => {
                    let room = slice(&ring.producer.spans(self.len), self.filled, usize::MAX);
                    debug_assert_eq!(total(&room), self.len - self.filled);
                    onecopy_sys::spans::pread(file, &room, offset)?
                }
                Tx::Kernel { .. } => 0,
            },
        };
        self.end.counters.kernel_copied.add(n);
        self.filled += n;
        Ok(n)
    }

    /// Publishes what is filled: from here on the peer may read it. Returns bytes sent.
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::send`].
    pub fn commit(mut self) -> Result<usize> {
        let (end, flags, filled) = (self.end, self.flags, self.filled);
        if filled == 0 {
            return Ok(0);
        }
        match std::mem::replace(&mut self.place, Place::Gone) {
            Place::Gone => Ok(0),
            Place::Heap(mut guard, heap) => {
                let slices = [IoSlice::new(&heap[..filled])];
                let mut cursor = Cursor::new(&slices);
                let result = end.send_locked(&mut guard, &mut cursor, flags);
                guard.unlock_fenced();
                end.welcome_back();
                end.finish(end.ring_if_armed().and(result), filled - cursor.left, flags)
            }
            Place::Ring(mut guard) => {
                let Tx::Ring(ring) = &mut *guard else {
                    return Err(Error::new(Op::Send, rustix::io::Errno::NOTCONN));
                };
                // Nothing is published if the peer went away meanwhile, as far as is known.
                let mut result = end.check_peer(ring);
                let alive = result.is_ok();
                if alive {
                    end.counters.sent.add_exclusive(filled);
                    ring.producer.publish(filled);
                }
                guard.unlock_fenced();
                end.welcome_back();
                if alive {
                    result = end.ring_if_armed();
                }
                end.finish(result, if alive { filled } else { 0 }, flags)
            }
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if let Place::Ring(guard) | Place::Heap(guard, _) = std::mem::replace(&mut self.place, Place::Gone) {
            guard.unlock_fenced();
            self.end.welcome_back();
        }
    }
}
