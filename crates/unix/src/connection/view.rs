//! Views: received bytes, read in place.

use crate::ancillary::pending::Next;
use crate::byref::piece::Piece;
use crate::connection::Connection;
use crate::connection::idle::Waiting;
use crate::connection::received::{MAX_HEAP, Taken};
use crate::connection::rx::{Rx, RxRing};
use crate::connection::wait::Ready;
use crate::generation::generation;
use crate::members::others::MAX_LENT;
use crate::members::patience::BRIEFLY;
use onecopy_ring::Ring;
use onecopy_ring::consumer::BorrowId;
use onecopy_socket::{Op, RecvFlags, Result, SendFlags};
use onecopy_sys::map::{Mapping, Span};
use rustix::fd::AsFd;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::sync::{Arc, Weak};

/// Received bytes in place, from [`crate::Stream::recv_borrowed`]. They are received: a view that is
/// dropped takes them along, whether they were looked at or not. It has what has arrived by the call, so what a program looks
/// for may end in the next one. The sender gets the space back when the
/// view is dropped, or piece by piece with [`View::advance`]. It goes back in stream order, so an older view
/// holds back a newer one.
///
/// ```
/// use onecopy_unix::Stream;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (a, b) = Stream::pair()?;
/// a.send(b"head: body")?;
/// let mut view = b.recv_borrowed(100)?;
/// let at = view.look().find(b": ").ok_or("no head")?;
/// view.advance(at + 2); // the room of the head goes back
/// view.write_to(std::io::stdout())?; // no copy in user space
/// # assert_eq!(view.len(), 4);
/// # Ok(())
/// # }
/// ```
///
/// There is no `&[u8]` of it: the peer could still write, and a slice that changes is undefined behaviour. A
/// program that only looks over the bytes does so where they lie ([`View::look`]). A program that needs them as
/// a slice copies them out once ([`View::copy_to`]). A program that passes them on hands them to the kernel
/// ([`View::write_to`], [`View::send_to`]).
///
/// For the same reason it is no `bytes::Buf`, whose `chunk()` is a slice. It is a [`Read`](std::io::Read), and
/// [`View::into_vec`] copies all of it once; a `bytes::Bytes`, which is a `Buf`, is made of that without another
/// copy.
pub struct View {
    place: Place,
    /// Bytes still in view.
    len: usize,
}

enum Place {
    /// In a page that the peer has lent.
    Lent {
        end: Arc<Connection>,
        piece: Piece,
    },
    /// All of it was given back.
    Gone {
        end: Arc<Connection>,
    },
    Ring {
        end: End,
        ring: Ring,
        id: BorrowId,
        offset: usize,
    },
    Heap {
        end: End,
        bytes: Vec<u8>,
        start: usize,
    },
}

/// Memory that another process may write.
#[derive(Debug)]
pub(super) enum Memory {
    Ring(Ring),
    Lent(Arc<Mapping>),
}

impl Memory {
    pub(super) fn mapping(&self) -> &Mapping {
        match self {
            Memory::Ring(ring) => ring.mapping(),
            Memory::Lent(mapping) => mapping,
        }
    }
}

/// The end that a view is of.
enum End {
    /// A connection, which the view keeps open.
    Kept(Arc<Connection>),
    /// A datagram socket or a lane, which its program can close meanwhile.
    Left(Owner),
}

/// What a view of a datagram is of. The view does not keep the socket open: its name is free, and its senders
/// are refused, from the moment on when the program drops the socket. What is in view stays.
#[doc(hidden)]
#[derive(Clone)]
pub struct Owner {
    /// What the bytes are given back to.
    end: Weak<dyn AsRef<Connection> + Send + Sync>,
    /// The socket whose counters count.
    front: Weak<dyn AsRef<Connection> + Send + Sync>,
    /// The fork generation of the process that received. A child gives nothing back.
    generation: u32,
}

impl Owner {
    /// Makes the owner of what this process has received just now: the bytes go back to `end`, and the counters of
    /// `front` count.
    pub fn new(
        end: Weak<dyn AsRef<Connection> + Send + Sync>,
        front: Weak<dyn AsRef<Connection> + Send + Sync>,
    ) -> Owner {
        Owner { end, front, generation: generation() }
    }
}

impl End {
    /// Counts something, if the socket is still there.
    fn count(&self, count: impl FnOnce(&Connection)) {
        match self {
            End::Kept(end) => count(end),
            End::Left(owner) => {
                if let Some(front) = owner.front.upgrade() {
                    count((*front).as_ref());
                }
            }
        }
    }

    /// Gives back `len` bytes of a borrow.
    fn release(&self, id: BorrowId, len: usize) {
        match self {
            End::Kept(end) => end.release(id, len),
            End::Left(owner) => {
                if owner.generation == generation()
                    && let Some(end) = owner.end.upgrade()
                {
                    (*end).as_ref().release(id, len);
                }
            }
        }
    }
}

impl AsRef<Connection> for Connection {
    fn as_ref(&self) -> &Connection {
        self
    }
}

impl Connection {
    /// Gives the first `len` bytes of a borrow back to the sender.
    fn release(&self, id: BorrowId, len: usize) {
        let Some(mut guard) = self.rx.lock_within(|| BRIEFLY) else {
            return self.others().release_later(id, len);
        };
        if let Rx::Ring(rx) = &mut *guard
            && rx.consumer.release(id, len)
            && let Err(misbehaved) = rx.freed(self)
        {
            // The next call on the socket reports it.
            let _ = self.misbehaved(Op::Recv, misbehaved);
        }
    }
}

impl View {
    /// The most bytes that [`View::for_each_chunk`] shows at once.
    pub const CHUNK: usize = 8 << 10;

    pub(crate) fn borrow(end: &Arc<Connection>, max: usize, flags: RecvFlags) -> Result<View> {
        // A peek or a WAITALL means nothing for a borrow: what is there is lent.
        let flags = flags & RecvFlags::DONTWAIT;
        let mut waiting = Waiting::new(max);
        loop {
            if let Some(view) = View::try_borrow(end, max, flags, &mut waiting)? {
                return Ok(view);
            }
        }
    }

    /// Returns None where it met a mark that is no data: look again.
    fn try_borrow(
        end: &Arc<Connection>,
        max: usize,
        flags: RecvFlags,
        waiting: &mut Waiting,
    ) -> Result<Option<View>> {
        match end.ready(flags, waiting)? {
            Ready::Ring(mut guard, n) => {
                let Rx::Ring(rx) = &mut *guard else { return Ok(Some(View::heap(end, Vec::new()))) };
                let misbehaved = |misbehaved| end.misbehaved(Op::Recv, misbehaved);
                if max > 0 && rx.consumer.before_mark(n).map_err(misbehaved)? == 0 {
                    return match rx.meet_mark(end)? {
                        Next::Again => Ok(None),
                        Next::Reference => {
                            let view = View::referenced(end, rx, max);
                            rx.mirror_empty(end)?;
                            let (room, capacity) = (rx.consumer.room(), rx.consumer.ring().capacity());
                            guard.unlock_fenced();
                            if end.rx_ring().is_some_and(|ring| ring.header().must_unpark(room, capacity)) {
                                end.unpark()?;
                            }
                            Ok(view)
                        }
                    };
                }
                // Descriptors have no place in a view. They are closed, as by recv(2).
                if rx.pending.has_fds() {
                    rx.bring_fds(end)?;
                    rx.pending.drop_fds();
                }
                // This looks at the sender's cache line again only when less than a quarter of the ring is
                // known.
                let want = max.min(rx.consumer.ring().capacity() / 4).max(1);
                let n = rx.consumer.available(want).map_err(misbehaved)?;
                let n = rx.consumer.before_mark(n).map_err(misbehaved)?.min(max);
                if end.others().were_there() && rx.consumer.borrows() >= MAX_LENT {
                    let mut bytes = vec![0; n];
                    rx.consumer.copy_out(0, &mut bytes);
                    rx.consumer.take(n);
                    end.counters().user_copied_out.add_exclusive(n);
                    end.counters().received.add_exclusive(n);
                    rx.mirror_empty(end)?;
                    return Ok(Some(View::heap(end, bytes)));
                }
                let (id, offset) = rx.consumer.borrow(n);
                point!("borrowed");
                let mut n = n;
                while rx.mirror_empty(end)? && n < max {
                    // More came before the doorbell was armed. After a short view, an edge-triggered caller
                    // would not hear of it.
                    let more = rx.consumer.available(1).map_err(misbehaved)?;
                    let more = rx.consumer.before_mark(more).map_err(misbehaved)?.min(max - n);
                    if more == 0 {
                        break;
                    }
                    rx.consumer.extend(id, more);
                    n += more;
                }
                end.counters().received.add_exclusive(n);
                let ring = rx.consumer.ring().clone();
                drop(guard);
                let end = End::Kept(end.clone());
                Ok(Some(View { place: Place::Ring { end, ring, id, offset }, len: n }))
            }
            Ready::End => Ok(Some(View::heap(end, Vec::new()))),
            other => {
                drop(other);
                let mut bytes = vec![0; max.min(MAX_HEAP)];
                let n = end.recv(&mut [IoSliceMut::new(&mut bytes)], flags)?;
                bytes.truncate(n);
                Ok(Some(View::heap(end, bytes)))
            }
        }
    }

    /// Returns a view of the reference that comes next, or of as much of it as is asked for.
    fn referenced(end: &Arc<Connection>, rx: &mut RxRing, max: usize) -> Option<View> {
        let piece = crate::connection::receive_pieces::take_piece(rx, max)?;
        end.counters().received.add_exclusive(piece.len());
        end.counters().referenced.add_exclusive(piece.len());
        Some(View::of_piece(end, piece))
    }

    /// Makes a view of bytes that the peer has lent.
    #[inline]
    pub(crate) fn of_piece(end: &Arc<Connection>, piece: Piece) -> View {
        View { len: piece.len(), place: Place::Lent { end: end.clone(), piece } }
    }

    /// Makes a view of what was taken of a connection's records.
    pub(crate) fn of_taken(end: &Arc<Connection>, taken: Taken) -> View {
        View::over(End::Kept(end.clone()), taken)
    }

    /// Makes a view of a datagram.
    #[doc(hidden)]
    pub fn of_datagram(owner: Owner, taken: Taken) -> View {
        View::over(End::Left(owner), taken)
    }

    fn over(end: End, taken: Taken) -> View {
        match taken {
            Taken::Ring { ring, id, offset, len } => {
                View { place: Place::Ring { end, ring, id, offset }, len }
            }
            Taken::Heap(bytes) => View { len: bytes.len(), place: Place::Heap { end, bytes, start: 0 } },
        }
    }

    /// Makes an empty view.
    pub(crate) fn none(end: &Arc<Connection>) -> View {
        View::heap(end, Vec::new())
    }

    pub(crate) fn heap(end: &Arc<Connection>, bytes: Vec<u8>) -> View {
        View::of_taken(end, Taken::Heap(bytes))
    }

    /// Counts something that was done with the bytes.
    fn count(&self, count: impl FnOnce(&Connection)) {
        match &self.place {
            Place::Ring { end, .. } | Place::Heap { end, .. } => end.count(count),
            Place::Lent { end, .. } | Place::Gone { end } => count(end),
        }
    }

    /// Returns how many bytes are in view.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in view: at the end of the stream, or of a record or datagram of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the bytes lie where the sender has written them, and keep its room or its page. Else they are in a buffer of this process: received
    /// over the kernel, or made of a record in pages.
    pub fn is_in_place(&self) -> bool {
        matches!(self.place, Place::Ring { .. } | Place::Lent { .. })
    }

    /// Whether the bytes lie in a page that the sender has lent: the view keeps that page, and no room of the ring.
    pub fn is_lent(&self) -> bool {
        matches!(self.place, Place::Lent { .. })
    }

    /// Returns where the bytes lie: address and length of their parts, of which the second is empty but where they wrap in
    /// the ring. For who hands memory to another language. The addresses stay what they are while the view lives and is not advanced, also
    /// where it is moved. The peer may still write there, so no `&[u8]` may be made of them.
    ///
    /// ```
    /// # fn main() -> onecopy_unix::Result<()> {
    /// # let (a, b) = onecopy_unix::Stream::pair()?;
    /// # a.send(b"bytes")?;
    /// let view = b.recv_borrowed(100)?;
    /// let [(first, len), (_, rest)] = view.raw_parts();
    /// assert!(!first.is_null() && len + rest == view.len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn raw_parts(&self) -> [(*const u8, usize); 2] {
        self.spans().map(|span| (span.as_ptr().cast_const(), span.len()))
    }

    /// Returns the memory that the bytes lie in, if others may write it.
    pub(super) fn memory(&self) -> Option<Memory> {
        match &self.place {
            Place::Ring { ring, .. } => Some(Memory::Ring(ring.clone())),
            Place::Lent { piece, .. } => piece.mapping().cloned().map(Memory::Lent),
            Place::Heap { .. } | Place::Gone { .. } => None,
        }
    }

    pub(super) fn spans(&self) -> [Span<'_>; 2] {
        match &self.place {
            Place::Ring { ring, offset, .. } => ring.spans(*offset, self.len),
            Place::Heap { bytes, start, .. } => [Span::of_shared(&bytes[*start..]), Span::EMPTY],
            Place::Lent { end, piece } => {
                if let Some(ring) = end.rx_ring() {
                    ring.header().look_at_lent();
                }
                [piece.span(self.len), Span::EMPTY]
            }
            Place::Gone { .. } => [Span::EMPTY; 2],
        }
    }

    /// Copies from the front, without giving anything back. Returns how many bytes were copied.
    pub fn copy_to(&self, buffer: &mut [u8]) -> usize {
        let n = buffer.len().min(self.len);
        self.copy_part(0, &mut buffer[..n]);
        self.count_copied(n);
        n
    }

    /// Shows all that is in view to `look`, in order and in pieces of at most [`View::CHUNK`] bytes, without
    /// giving anything back. It is for a program that needs slices to look at the bytes once, as a parser or a
    /// cipher of others does; [`View::look`] needs no copy. Each piece is a copy that does not change any more. It
    /// stays in the first-level cache, so that all of it costs little more than one pass over the memory.
    ///
    /// ```
    /// # fn main() -> onecopy_unix::Result<()> {
    /// # let (client, server) = onecopy_unix::Stream::pair()?;
    /// # client.send(b"one line\nand another\n")?;
    /// let view = server.recv_borrowed(1 << 20)?;
    /// let mut lines = 0;
    /// view.for_each_chunk(|bytes| lines += bytes.iter().filter(|byte| **byte == b'\n').count());
    /// # assert_eq!(lines, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn for_each_chunk(&self, mut look: impl FnMut(&[u8])) {
        let mut chunk = [0; View::CHUNK];
        let mut at = 0;
        while at < self.len {
            let piece = &mut chunk[..(self.len - at).min(View::CHUNK)];
            self.copy_part(at, piece);
            look(piece);
            at += piece.len();
        }
        self.count_copied(self.len);
    }

    /// Copies from `at` bytes behind the front on. There are enough.
    fn copy_part(&self, at: usize, buffer: &mut [u8]) {
        match &self.place {
            Place::Ring { ring, offset, .. } => {
                let from = offset + at;
                ring.copy_out(if from >= ring.capacity() { from - ring.capacity() } else { from }, buffer);
            }
            Place::Heap { bytes, start, .. } => buffer.copy_from_slice(&bytes[start + at..][..buffer.len()]),
            Place::Lent { end, piece } => {
                if let Some(ring) = end.rx_ring() {
                    ring.header().look_at_lent();
                }
                piece.copy_out_from(at, buffer);
            }
            Place::Gone { .. } => {}
        }
    }

    /// Takes the buffer out where the bytes lie in one of this process already. Nothing is in view any more.
    pub(super) fn take_heap(&mut self) -> Option<Vec<u8>> {
        let Place::Heap { bytes, start, .. } = &mut self.place else { return None };
        self.len = 0;
        let mut bytes = std::mem::take(bytes);
        bytes.drain(..std::mem::take(start));
        Some(bytes)
    }

    pub(super) fn count_copied(&self, n: usize) {
        self.count(|end| {
            let _one_writer_at_a_time = end.rx.lock_within(|| BRIEFLY);
            end.counters().user_copied_out.add_exclusive(n);
        });
    }

    /// Writes what is in view by writev(2): no copy in user space. Returns how many bytes were written;
    /// [`View::advance`] gives them back.
    ///
    /// # Errors
    ///
    /// What writev(2) says.
    pub fn write_to(&self, fd: impl AsFd) -> io::Result<usize> {
        let n = match &self.place {
            Place::Ring { ring, offset, .. } => {
                onecopy_sys::spans::write(fd, &ring.spans(*offset, self.len))?
            }
            Place::Heap { bytes, start, .. } => rustix::io::write(fd, &bytes[*start..])?,
            Place::Lent { piece, .. } => onecopy_sys::spans::write(fd, &[piece.span(self.len), Span::EMPTY])?,
            Place::Gone { .. } => 0,
        };
        self.count(|end| end.counters().kernel_copied.add(n));
        Ok(n)
    }

    /// Sends what is in view by sendmsg(2) on any socket of the kernel's: no copy in user space. Returns how many
    /// bytes were sent; [`View::advance`] gives them back.
    ///
    /// # Errors
    ///
    /// What sendmsg(2) says.
    pub fn send_to(&self, fd: impl AsFd) -> io::Result<usize> {
        self.send_to_with_flags(fd, SendFlags::empty())
    }

    /// Does as [`View::send_to`], with flags: DONTWAIT, MORE and SIGPIPE. NTCOPY and EOR have no meaning there.
    ///
    /// # Errors
    ///
    /// What sendmsg(2) says.
    pub fn send_to_with_flags(&self, fd: impl AsFd, flags: SendFlags) -> io::Result<usize> {
        self.send_part_to_with_flags(fd, self.len, flags)
    }

    /// Does as [`View::send_to`] with the first `max` bytes at most.
    ///
    /// # Errors
    ///
    /// What sendmsg(2) says.
    pub fn send_part_to(&self, fd: impl AsFd, max: usize) -> io::Result<usize> {
        self.send_part_to_with_flags(fd, max, SendFlags::empty())
    }

    /// Does as [`View::send_to_with_flags`] with the first `max` bytes at most.
    ///
    /// # Errors
    ///
    /// What sendmsg(2) says.
    pub fn send_part_to_with_flags(&self, fd: impl AsFd, max: usize, flags: SendFlags) -> io::Result<usize> {
        let max = max.min(self.len);
        let flags = flags.for_kernel();
        let n = match &self.place {
            Place::Ring { ring, offset, .. } => {
                onecopy_sys::spans::send(fd, &ring.spans(*offset, max), flags.bits() as i32)?
            }
            Place::Heap { bytes, start, .. } => rustix::net::send(fd, &bytes[*start..][..max], flags)?,
            Place::Lent { piece, .. } => {
                onecopy_sys::spans::send(fd, &[piece.span(max), Span::EMPTY], flags.bits() as i32)?
            }
            Place::Gone { .. } => 0,
        };
        self.count(|end| end.counters().kernel_copied.add(n));
        Ok(n)
    }

    /// Gives the first `count` bytes back to the sender. If there are fewer, it gives all back.
    pub fn advance(&mut self, count: usize) {
        let count = count.min(self.len);
        self.len -= count;
        match &mut self.place {
            Place::Heap { start, .. } => *start += count,
            Place::Gone { .. } => {}
            Place::Lent { end, piece } => {
                piece.advance(count);
                if self.len == 0 {
                    let end = end.clone();
                    self.place = Place::Gone { end };
                }
            }
            Place::Ring { end, ring, id, offset } => {
                *offset += count;
                if *offset >= ring.capacity() {
                    *offset -= ring.capacity();
                }
                end.release(*id, count);
            }
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // A lent page goes back by itself.
        if !matches!(self.place, Place::Lent { .. }) {
            self.advance(self.len);
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("len", &self.len).finish_non_exhaustive()
    }
}
