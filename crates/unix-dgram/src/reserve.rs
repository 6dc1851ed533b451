//! Room for datagrams that are written in place.
//!
//! A slot does not hold the sending side, as one of a connection does: this socket can be connected to another
//! peer meanwhile, by the thread that has the slot. It holds a *lease* instead. While there is one, nobody else
//! puts anything into the peer's ring, so the room behind its head stays the slot's. Committed, a slot sends as
//! any other send does, and finds its bytes in place if the ring is still the one.

use crate::outgoing::{Filled, Reserving, Terms};
use crate::slots::{Lease, Out};
use crate::socket::Socket;
use onecopy_unix::ancillary::attached::SendAncillary;
use onecopy_unix::connection::side::SideGuard;
use onecopy_unix::connection::tx::Tx;
use onecopy_unix::control;
use onecopy_unix::{Commit, Error, Memory, Op, Result, SendFlags, Slot};
use rustix::io::Errno;
use std::time::Instant;

impl Socket {
    /// Reserves room for a datagram of `len` bytes.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::send`].
    pub fn reserve(&self, len: usize, flags: SendFlags) -> Result<Slot<'_>> {
        let out = Out::one_more(self.slots());
        let lease = self.lease(flags)?;
        let mut reserving = Reserving::new(len, &lease);
        self.send_to_peer(&mut reserving, None, SendAncillary::default(), flags)?;
        let (memory, terms) = reserving.found().ok_or(Error::new(Op::Send, Errno::NOTCONN))?;
        // What is in a buffer of this process keeps nobody out.
        let lease = Some(lease).filter(|_| matches!(memory, Memory::Ring(_)));
        let held = Held { socket: self, flags, terms, _lease: lease, _out: out };
        Ok(Slot::apart(self, len, flags, memory, Box::new(held)))
    }

    /// Waits until no other slot has the lease, and no other thread reserves.
    fn lease(&self, flags: SendFlags) -> Result<Lease<'_>> {
        // Before the wait: a child may have inherited a lock that nobody unlocks.
        self.check(Op::Send)?;
        let one = match self.slots().try_hold() {
            Some(one) => Some(one),
            None if self.must_not_wait(flags, &mut false) => {
                self.turn_away();
                self.slots().try_hold()
            }
            None => self.slots().hold(self.settings().write_timeout()),
        };
        match one {
            Some(one) => Ok(Lease::over(self.slots(), self, one)),
            None => Err(Error::new(Op::Send, Errno::AGAIN)),
        }
    }

    /// Takes the sending side, once no slot has the lease.
    ///
    /// # Errors
    ///
    /// EAGAIN, EBUSY, EPROTO.
    #[inline]
    pub fn lock_unleased(&self, flags: SendFlags) -> Result<SideGuard<'_, Tx>> {
        let tx = self.lock_tx(flags)?;
        // Relaxed: it is set under this lock.
        if !self.slots().are_leased() { Ok(tx) } else { self.wait_for_slot(tx, flags) }
    }

    #[cold]
    fn wait_for_slot<'s>(&'s self, mut tx: SideGuard<'s, Tx>, flags: SendFlags) -> Result<SideGuard<'s, Tx>> {
        let error = |errno| Error::new(Op::Send, errno);
        let began = Instant::now();
        let mut asked = false;
        loop {
            // Whoever was turned away while this thread held the side is told by the lease's end. He could not
            // have sent before.
            tx.unlock_fenced();
            if self.must_not_wait(flags, &mut asked) {
                self.turn_away();
                if self.slots().are_leased() {
                    return Err(error(Errno::AGAIN));
                }
            } else {
                let left = control::remaining(began, self.settings().write_timeout()).map_err(error)?;
                drop(self.slots().hold(left).ok_or(error(Errno::AGAIN))?);
            }
            tx = self.lock_tx(flags)?;
            if !self.slots().are_leased() {
                return Ok(tx);
            }
        }
    }
}

/// What a slot holds until it is committed or dropped.
#[derive(Debug)]
struct Held<'a> {
    socket: &'a Socket,
    flags: SendFlags,
    terms: Terms,
    _lease: Option<Lease<'a>>,
    _out: Out<'a>,
}

impl Commit for Held<'_> {
    fn commit(self: Box<Self>, memory: Memory, len: usize) -> Result<usize> {
        let mut filled = Filled::new(memory, len, self.terms);
        self.socket.send_to_peer(&mut filled, None, SendAncillary::default(), self.flags).map(|()| len)
    }
}
