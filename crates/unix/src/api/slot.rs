//! Slots: room in the peer's buffer, to be written in place.

use crate::ancillary::attached::SendAncillary;
use crate::config::Records;
use crate::connection::Connection;
use crate::connection::call::Cursor;
use crate::connection::credentials::Saying;
use crate::connection::reserve::{InPlace, Reserved};
use crate::connection::side::SideGuard;
use crate::connection::tx::Tx;
use crate::core::failure::too_long;
use crate::core::kind::Kind;
use crate::generation::generation;
use onecopy_ring::Producer;
use onecopy_ring::record::HEADER;
use onecopy_socket::{Counter, Error, Op, Result, SendFlags};
use onecopy_sync::atomic::Ordering::SeqCst;
use onecopy_sync::atomic::fence;
use onecopy_sys::map::{Span, total};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::io::{self, IoSlice, Write};

/// Room in the peer's buffer, from [`crate::Stream::reserve`]. It holds the sending side: other senders wait
/// (or get EAGAIN) until it is committed, or dropped, which sends nothing.
///
/// ```
/// use onecopy_unix::Stream;
/// use std::io::Write;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (a, b) = Stream::pair()?;
/// let mut slot = a.reserve(4096)?;
/// write!(slot, "{} bytes:", slot.len())?;
/// slot.copy_from(b" here");
/// assert_eq!(slot.commit()?, 16);
/// assert_eq!(b.recv(&mut [0; 100])?, 16);
/// # Ok(())
/// # }
/// ```
///
/// Over the kernel there is no such room: the bytes are then in a buffer of this process, and `commit` sends
/// them. A record has its room in the kernel by then. On a stream `commit` may send a part, and says how many
/// bytes.
///
/// A slot of a datagram socket is for the peer that the socket has when it is reserved. The socket can be
/// connected to another one meanwhile; that one does not get it.
#[derive(Debug)]
pub struct Slot<'a> {
    end: &'a Connection,
    place: Place<'a>,
    flags: SendFlags,
    /// Bytes in front of the room, for the header of a record, or a mark.
    base: usize,
    len: usize,
    filled: usize,
    /// What the record says of its sender's identity.
    saying: Saying,
    /// The fork generation of the process that reserved it. A forked child inherits no slot.
    generation: u32,
}

#[derive(Debug)]
enum Place<'a> {
    Ring(SideGuard<'a, Tx>),
    Heap(SideGuard<'a, Tx>, Vec<u8>),
    /// Of a datagram socket, which can be connected elsewhere meanwhile and commits by itself.
    Apart(Memory, Box<dyn Commit + 'a>),
    /// It was committed.
    Gone,
}

/// The memory of a slot that does not hold the sending side.
#[doc(hidden)]
#[derive(Debug)]
pub enum Memory {
    /// Room in a ring. Nobody else writes there, and this producer publishes nothing.
    Ring(Producer),
    Heap(Vec<u8>),
}

/// Who sends what is in a slot that does not hold the sending side. Dropped, it sends nothing.
#[doc(hidden)]
pub trait Commit: std::fmt::Debug + Send + Sync {
    /// Sends the first `filled` bytes.
    ///
    /// # Errors
    ///
    /// Those of a send.
    fn commit(self: Box<Self>, memory: Memory, filled: usize) -> Result<usize>;
}

/// Where the bytes of a slot go.
enum Room<'s> {
    Ring(InPlace<'s>),
    Heap(&'s mut [u8]),
}

impl Place<'_> {
    fn room(&mut self) -> Option<Room<'_>> {
        match self {
            Place::Ring(guard) => match &mut **guard {
                Tx::Ring(ring) => Some(Room::Ring(ring.in_place())),
                Tx::Kernel { .. } => None,
            },
            Place::Heap(_, heap) | Place::Apart(Memory::Heap(heap), _) => Some(Room::Heap(heap)),
            Place::Apart(Memory::Ring(producer), _) => Some(Room::Ring(InPlace::over(producer))),
            Place::Gone => None,
        }
    }
}

/// The largest slot over the kernel, in bytes.
const MAX_HEAP: usize = 256 << 10;

impl<'a> Slot<'a> {
    pub(crate) fn reserve(end: &'a Connection, len: usize, flags: SendFlags) -> Result<Slot<'a>> {
        let reserved = Slot::take_room(end, len, flags);
        if reserved.is_err() {
            // Others may have been turned away while this looked for room. The fence is that of an unlocking.
            fence(SeqCst);
            end.welcome_back();
        }
        reserved
    }

    fn take_room(end: &'a Connection, len: usize, flags: SendFlags) -> Result<Slot<'a>> {
        let mut guard = end.lock_tx(flags)?;
        let (place, reserved) = match &mut *guard {
            Tx::Kernel { .. } => {
                if end.kind().has_records() {
                    // Stream records go in pieces.
                    let whole = end.config().records == Records::Atomic;
                    if len > MAX_HEAP || (whole && len > end.max_kernel_record()) {
                        return Err(too_long());
                    }
                    end.wait_for_kernel(flags)?;
                }
                let len = len.min(MAX_HEAP);
                let base = if end.kind().has_records() { HEADER } else { 0 };
                (Place::Heap(guard, vec![0; len]), Reserved { base, len, saying: Saying::default() })
            }
            Tx::Ring(ring) => {
                let reserved = ring.reserve(end, len, flags)?;
                (Place::Ring(guard), reserved)
            }
        };
        let Reserved { base, len, saying } = reserved;
        Ok(Slot { end, place, flags, base, len, filled: 0, saying, generation: generation() })
    }

    /// Makes a slot of `len` bytes that does not hold the sending side: of a datagram.
    #[doc(hidden)]
    pub fn apart(
        end: &'a Connection,
        len: usize,
        flags: SendFlags,
        memory: Memory,
        commit: Box<dyn Commit + 'a>,
    ) -> Slot<'a> {
        Slot {
            end,
            place: Place::Apart(memory, commit),
            flags,
            base: HEADER,
            len,
            filled: 0,
            saying: Saying::default(),
            generation: generation(),
        }
    }

    /// Returns how many bytes of room there are in all: what was asked for, at most the capacity.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no room.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many bytes are filled so far.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Copies as many of `bytes` as there is room left for, with the stores that the socket's policy asks
    /// for. Returns how many. ([`Write`] does the same, for what writes into any writer.)
    pub fn copy_from(&mut self, bytes: &[u8]) -> usize {
        if self.generation != generation() {
            return 0;
        }
        let n = bytes.len().min(self.len - self.filled);
        let counters = &self.end.counters();
        let apart = matches!(self.place, Place::Apart(..));
        // Others may count, too, where this slot does not hold the sending side.
        let add = |counter: &Counter, n| if apart { counter.add(n) } else { counter.add_exclusive(n) };
        match self.place.room() {
            None => return 0,
            Some(Room::Heap(heap)) => heap[self.filled..][..n].copy_from_slice(&bytes[..n]),
            Some(Room::Ring(mut room)) => {
                let store = room.copy_in(self.end, self.base + self.filled, &bytes[..n], self.flags);
                if store == onecopy_copy::Store::NonTemporal {
                    add(&counters.user_copied_nt, n);
                }
            }
        }
        add(&counters.user_copied_in, n);
        self.filled += n;
        n
    }

    /// Reads from byte `offset` of `file` into the room left, by pread(2): one copy by the kernel, none in
    /// user space. Returns how many bytes it read, 0 at the end of the file.
    ///
    /// # Errors
    ///
    /// What pread(2) says.
    pub fn read_from(&mut self, file: impl AsFd, offset: u64) -> io::Result<usize> {
        if self.generation != generation() {
            return Err(Errno::BUSY.into());
        }
        let n = match self.place.room() {
            None => 0,
            Some(Room::Heap(heap)) => {
                let room = Span::of(&mut heap[self.filled..]);
                onecopy_sys::spans::pread(file, &[room, Span::EMPTY], offset)?
            }
            Some(Room::Ring(room)) => {
                let room = room.spans(self.base + self.filled, self.base + self.len);
                debug_assert_eq!(total(&room), self.len - self.filled);
                onecopy_sys::spans::pread(file, &room, offset)?
            }
        };
        self.end.counters().kernel_copied.add(n);
        self.filled += n;
        Ok(n)
    }

    /// Returns where the room left lies: address and length of its parts, of which the second is empty but where the room
    /// wraps in the ring. For who hands memory to another language, which writes there and then says so ([`Slot::fill`]). The addresses
    /// stay what they are until the slot is committed or dropped, also where it is moved. Not of a slot that was inherited by a fork:
    /// that has no room.
    ///
    /// ```
    /// # fn main() -> onecopy_unix::Result<()> {
    /// # let (a, b) = onecopy_unix::Stream::pair()?;
    /// let mut slot = a.reserve(100)?;
    /// let [(first, len), (_, rest)] = slot.raw_parts();
    /// assert!(!first.is_null() && len + rest == 100);
    /// slot.fill(10); // zeroes, of a new ring
    /// assert_eq!(slot.commit()?, 10);
    /// # assert_eq!(b.recv(&mut [0; 100])?, 10);
    /// # Ok(())
    /// # }
    /// ```
    pub fn raw_parts(&mut self) -> [(*mut u8, usize); 2] {
        let (base, len, filled) = (self.base, self.len, self.filled);
        let spans = match self.place.room() {
            _ if self.generation != generation() => [Span::EMPTY; 2],
            None => [Span::EMPTY; 2],
            Some(Room::Heap(heap)) => [Span::of(&mut heap[filled..]), Span::EMPTY],
            Some(Room::Ring(room)) => room.spans(base + filled, base + len),
        };
        spans.map(|span| (span.as_ptr(), span.len()))
    }

    /// Says that the next `n` bytes of the room left are written: what lies there is sent by [`Slot::commit`], also where nothing was
    /// written. No copy is counted. Returns how many of them there was room for.
    pub fn fill(&mut self, n: usize) -> usize {
        if self.generation != generation() {
            return 0;
        }
        let n = n.min(self.len - self.filled);
        self.filled += n;
        n
    }

    /// Publishes what is filled: from here on the peer may read it. Returns how many bytes were sent. If
    /// nothing is filled, a stream sends nothing, and a seqpacket socket sends a record of no bytes.
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::send`].
    pub fn commit(mut self) -> Result<usize> {
        let (end, flags, filled) = (self.end, self.flags, self.filled);
        let records = end.kind().has_records();
        if self.generation != generation() {
            return Err(Error::new(Op::Send, Errno::BUSY).because(
                "this room was reserved before a fork, and is the parent's; reserve room in the child",
            ));
        }
        if filled == 0 && !records {
            return Ok(0);
        }
        match std::mem::replace(&mut self.place, Place::Gone) {
            Place::Gone => Ok(0),
            Place::Apart(memory, commit) => commit.commit(memory, filled),
            Place::Heap(mut guard, heap) => {
                let slices = [IoSlice::new(&heap[..filled])];
                let mut cursor = Cursor::new(&slices);
                let result = match end.kind() {
                    Kind::Stream => end.send_locked(&mut guard, &mut cursor, flags),
                    Kind::SeqPacket | Kind::Datagram => {
                        end.send_record_locked(&mut guard, &mut cursor, SendAncillary::default(), flags)
                    }
                };
                guard.mirror_full(end);
                guard.unlock_fenced();
                end.welcome_back();
                end.finish(
                    end.ring_after(result.is_ok() || cursor.left() < filled, result),
                    filled - cursor.left(),
                    flags,
                )
            }
            Place::Ring(mut guard) => {
                let Tx::Ring(ring) = &mut *guard else {
                    return Err(Error::new(Op::Send, Errno::NOTCONN));
                };
                let last = end.config().records == Records::Atomic || flags.contains(SendFlags::EOR);
                let mut result = ring.publish_reserved(end, filled, last, self.saying, flags);
                let alive = result.is_ok();
                if alive {
                    point!("committed");
                }
                guard.mirror_full(end);
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

/// Copies into the room left, as [`Slot::copy_from`] does. A full slot takes 0 bytes, so that `write_all` says
/// WriteZero. Nothing is sent before [`Slot::commit`]: a flush does nothing.
///
/// ```
/// use std::io::Write;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = onecopy_unix::Stream::pair()?;
/// let mut slot = server.reserve(64)?;
/// write!(slot, "Content-Length: {}\r\n", 1 << 20)?;
/// slot.commit()?;
/// # assert_eq!(client.recv_borrowed(64)?.into_vec(), b"Content-Length: 1048576\r\n");
/// # Ok(())
/// # }
/// ```
impl Write for Slot<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.generation != generation() {
            return Err(Errno::BUSY.into());
        }
        Ok(self.copy_from(bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut written = 0;
        for slice in slices {
            let n = self.write(slice)?;
            written += n;
            if n < slice.len() {
                break;
            }
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let place = std::mem::replace(&mut self.place, Place::Gone);
        if self.generation != generation() {
            // The parent holds the page's lock, and goes on. This process may not send any more
            // (`multiprocess/holding.rs`), so the sending side may stay locked here.
            return std::mem::forget(place);
        }
        if let Place::Ring(guard) | Place::Heap(guard, _) = place {
            guard.unlock_fenced();
            self.end.welcome_back();
        }
    }
}
