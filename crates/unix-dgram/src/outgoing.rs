//! What one send brings to the peer. `send.rs` decides which way it takes; here stands what happens there.

use crate::pairing::state::Pairing;
use crate::slots::Lease;
use crate::socket::Socket;
use onecopy_ring::{Ring, record};
use onecopy_unix::ancillary::attached::SendAncillary;
use onecopy_unix::connection::call::Cursor;
use onecopy_unix::connection::credentials::Saying;
use onecopy_unix::connection::side::SideGuard;
use onecopy_unix::connection::tx::{Tx, TxRing};
use onecopy_unix::control;
use onecopy_unix::core::Core;
use onecopy_unix::core::failure::too_long;
use onecopy_unix::{Error, Memory, Op, Result, SendFlags};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, sockopt};
use std::borrow::Cow;
use std::io::IoSlice;
use std::time::Duration;

/// What one send brings to the peer.
pub trait Outgoing {
    /// Whether it takes the sending side also where the kernel carries every datagram.
    const LOCKS: bool;
    /// Whether it sends something; if not it only reserves room.
    const SENDS: bool;

    /// Returns its bytes.
    fn len(&self) -> usize;

    /// Takes the sending side.
    ///
    /// # Errors
    ///
    /// EAGAIN, EBUSY, EPROTO.
    fn lock<'s>(&self, socket: &'s Socket, flags: SendFlags) -> Result<SideGuard<'s, Tx>>;

    /// Looks whether it may go to the present peer. The caller holds the sending side.
    ///
    /// # Errors
    ///
    /// ECANCELED, ENOTCONN.
    fn may_go(&mut self, _socket: &Socket) -> Result<()> {
        Ok(())
    }

    /// Puts it into a ring of the peer's, whose sending end is `core`. Returns how many bytes it has copied.
    ///
    /// # Errors
    ///
    /// Those of a send into a ring. Then nothing has changed.
    fn put(
        &mut self,
        core: &Core,
        ring: &mut TxRing,
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize>;

    /// Sends it over the kernel. `riding` is the pairing, if something is to be told to the peer with it.
    ///
    /// # Errors
    ///
    /// What sendmsg(2) returns.
    fn over_kernel(
        &mut self,
        socket: &Socket,
        to: Option<&SocketAddrUnix>,
        attached: SendAncillary<'_>,
        flags: SendFlags,
        riding: Option<&Pairing>,
    ) -> Result<()>;
}

/// Bytes of the caller's.
impl Outgoing for Cursor<'_, '_> {
    const LOCKS: bool = false;
    const SENDS: bool = true;

    fn len(&self) -> usize {
        self.left()
    }

    fn lock<'s>(&self, socket: &'s Socket, flags: SendFlags) -> Result<SideGuard<'s, Tx>> {
        socket.lock_unleased(flags)
    }

    #[inline]
    fn put(
        &mut self,
        core: &Core,
        ring: &mut TxRing,
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        let len = self.left();
        ring.send_frame(core, self, attached, flags).map(|()| len)
    }

    fn over_kernel(
        &mut self,
        socket: &Socket,
        to: Option<&SocketAddrUnix>,
        attached: SendAncillary<'_>,
        flags: SendFlags,
        riding: Option<&Pairing>,
    ) -> Result<()> {
        socket.kernel_datagram(self, to, attached, flags, riding)
    }
}

/// What a slot was reserved for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// What must be stated of the sender's identity with the bytes.
    saying: Saying,
    /// How often the socket had been connected elsewhere.
    moves: u32,
}

#[cfg(test)]
impl Terms {
    /// Makes the terms of what is for the present peer, and states nothing.
    pub fn of(socket: &Socket) -> Terms {
        Terms { saying: Saying::default(), moves: socket.slots().moves() }
    }
}

/// Room that is to be reserved for a datagram. Nothing is sent.
pub struct Reserving<'s> {
    len: usize,
    lease: &'s Lease<'s>,
    /// The room, once it was found.
    memory: Option<Memory>,
    terms: Terms,
}

impl<'s> Reserving<'s> {
    pub fn new(len: usize, lease: &'s Lease<'s>) -> Reserving<'s> {
        Reserving { len, lease, memory: None, terms: Terms::default() }
    }

    /// Returns the room, if it was found.
    #[inline]
    pub fn found(self) -> Option<(Memory, Terms)> {
        Some((self.memory?, self.terms))
    }
}

impl Outgoing for Reserving<'_> {
    const LOCKS: bool = true;
    const SENDS: bool = false;

    fn len(&self) -> usize {
        0
    }

    fn lock<'s>(&self, socket: &'s Socket, flags: SendFlags) -> Result<SideGuard<'s, Tx>> {
        socket.lock_tx(flags)
    }

    fn may_go(&mut self, socket: &Socket) -> Result<()> {
        self.terms.moves = socket.slots().moves();
        Ok(())
    }

    fn put(
        &mut self,
        core: &Core,
        ring: &mut TxRing,
        _: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        self.terms.saying = ring.saying(core, None);
        ring.reserve_record(core, self.len, &self.terms.saying, flags)?;
        // Another process that sends on the same lane knows nothing of this room, and would write there.
        self.memory = Some(if core.others().were_there() {
            Memory::Heap(vec![0; self.len])
        } else {
            let room = ring.room_apart().map_err(|misbehaved| core.misbehaved(Op::Send, misbehaved))?;
            self.lease.begin();
            Memory::Ring(room)
        });
        Ok(0)
    }

    /// Looks for what a send would be told at once. There is no room to reserve in the peer's queue.
    fn over_kernel(
        &mut self,
        socket: &Socket,
        _: Option<&SocketAddrUnix>,
        _: SendAncillary<'_>,
        _: SendFlags,
        _: Option<&Pairing>,
    ) -> Result<()> {
        let error = |errno| Error::new(Op::Send, errno);
        if self.len > socket.max_kernel_record() {
            return Err(too_long());
        }
        if socket.is_reset_noted() && socket.tells_reset(self.len) {
            return Err(error(Errno::CONNRESET));
        }
        // In the kernel's order: the pending error, the shutdown, room, the peer (net/core/sock.c:
        // sock_alloc_send_pskb).
        let events = control::wait(socket.fd(), PollFlags::OUT, Some(Duration::ZERO));
        if events.is_ok_and(|events| events.contains(PollFlags::ERR))
            && let Ok(Err(errno)) = sockopt::socket_error(socket.fd())
        {
            if errno == Errno::CONNRESET {
                socket.mirror_after_reset();
            }
            return Err(error(errno));
        }
        if socket.is_send_shut() {
            return Err(error(Errno::PIPE));
        }
        events.map_err(error)?;
        if socket.take_noted_refusal() {
            return Err(error(Errno::CONNREFUSED));
        }
        rustix::net::getpeername(socket.fd()).map_err(error)?;
        self.memory = Some(Memory::Heap(vec![0; self.len]));
        Ok(())
    }
}

/// What a program has written into a slot.
pub struct Filled {
    memory: Memory,
    len: usize,
    terms: Terms,
}

impl Filled {
    /// Makes what sends the first `len` bytes of a slot's memory.
    #[inline]
    pub fn new(memory: Memory, len: usize, terms: Terms) -> Filled {
        Filled { memory, len, terms }
    }

    /// Whether the next frame of `ring` begins where this room does.
    fn is_next_in(&self, ring: &TxRing) -> bool {
        match &self.memory {
            Memory::Ring(room) => ring.begins_at(room),
            Memory::Heap(_) => false,
        }
    }

    /// Returns the bytes, wherever they lie. Those in a ring are copied out of it.
    fn bytes(&self, core: &Core) -> Cow<'_, [u8]> {
        match &self.memory {
            Memory::Heap(bytes) => Cow::Borrowed(&bytes[..self.len]),
            Memory::Ring(room) => {
                let ring: &Ring = room.ring();
                let mut bytes = vec![0; self.len];
                let at = (room.head() + record::HEADER as u64) % ring.capacity() as u64;
                ring.copy_out(at as usize, &mut bytes);
                core.counters().user_copied_in.add(self.len);
                Cow::Owned(bytes)
            }
        }
    }
}

impl Outgoing for Filled {
    const LOCKS: bool = true;
    const SENDS: bool = true;

    fn len(&self) -> usize {
        self.len
    }

    fn lock<'s>(&self, socket: &'s Socket, flags: SendFlags) -> Result<SideGuard<'s, Tx>> {
        match self.memory {
            Memory::Ring(_) => socket.lock_tx(flags), // its slot has the lease
            Memory::Heap(_) => socket.lock_unleased(flags),
        }
    }

    fn may_go(&mut self, socket: &Socket) -> Result<()> {
        if self.terms.moves == socket.slots().moves() {
            return Ok(());
        }
        // A socket without a peer says so. Another peer must not get what was meant for the old one.
        rustix::net::getpeername(socket.fd()).map_err(|errno| Error::new(Op::Send, errno))?;
        Err(Error::new(Op::Send, Errno::CANCELED).because(
            "the socket was connected to another peer since this room was reserved; nothing was sent, reserve again",
        ))
    }

    fn put(
        &mut self,
        core: &Core,
        ring: &mut TxRing,
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        if self.is_next_in(ring) {
            return ring.publish_reserved(core, self.len, true, self.terms.saying, flags).map(|()| 0);
        }
        let bytes = self.bytes(core);
        let before = if matches!(bytes, Cow::Owned(_)) { self.len } else { 0 };
        Cursor::new(&[IoSlice::new(&bytes)]).put(core, ring, attached, flags).map(|copied| copied + before)
    }

    fn over_kernel(
        &mut self,
        socket: &Socket,
        to: Option<&SocketAddrUnix>,
        attached: SendAncillary<'_>,
        flags: SendFlags,
        riding: Option<&Pairing>,
    ) -> Result<()> {
        let bytes = self.bytes(socket);
        socket.kernel_datagram(&Cursor::new(&[IoSlice::new(&bytes)]), to, attached, flags, riding)
    }
}
