//! Borrowing records: reading them in place.

use crate::byref::listed::Contents;
use crate::config::Records;
use crate::connection::Connection;
use crate::connection::call::Call;
use crate::connection::idle::Waiting;
use crate::connection::received::{Received, Rest, Taken};
use crate::connection::rx::Rx;
use crate::connection::side::SideGuard;
use crate::connection::view::View;
use crate::connection::wait::Ready;
use crate::members::others::MAX_LENT;
use onecopy_ring::record::{Frame, HEADER};
use onecopy_socket::{Op, ReceivedFlags, RecvFlags, Result};
use std::io::IoSliceMut;
use std::sync::Arc;

/// The largest view of a record that came over the kernel, in bytes.
const MAX_HEAP: usize = 256 << 10;

/// What a look at the next frame came to.
pub enum Lending<'a> {
    /// The record, or what is there of it.
    Taken(Taken, Received),
    /// The record is a list, which was found and not taken.
    List(SideGuard<'a, Rx>, Frame, ReceivedFlags),
    /// The frame was no record: look again.
    Again,
}

impl Connection {
    /// Lends the next record, or what is there of it.
    pub fn borrow_record(self: &Arc<Self>, max: usize, flags: RecvFlags) -> Result<(View, ReceivedFlags)> {
        let flags = flags & RecvFlags::DONTWAIT;
        loop {
            self.error_first()?;
            match self.ready(flags, &mut Waiting::new(0))? {
                Ready::Ring(guard, available) => match self.take_frame(guard, available, max)? {
                    Lending::Taken(taken, received) => {
                        return Ok((View::of_taken(self, taken), received.flags));
                    }
                    Lending::List(guard, frame, said) => {
                        let (view, mut flags) = self.borrow_list(guard, frame, max)?;
                        flags |= said;
                        return Ok((view, flags));
                    }
                    Lending::Again => {}
                },
                Ready::End => return Ok((View::none(self), ReceivedFlags::END)),
                other => {
                    drop(other);
                    let mut bytes = vec![0; max.min(MAX_HEAP)];
                    let received = self.recv_record(&mut [IoSliceMut::new(&mut bytes)], flags)?;
                    bytes.truncate(received.len);
                    return Ok((View::heap(self, bytes), received.flags));
                }
            }
        }
    }

    /// Takes the next record of a lane without a copy, or `max` bytes of it, if there is one. The rest of it is
    /// dropped.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::recv`], without waiting.
    pub fn take_record(&self, max: usize) -> Result<(Taken, Received)> {
        loop {
            self.error_first()?;
            match self.ready(RecvFlags::DONTWAIT, &mut Waiting::new(0))? {
                Ready::Ring(guard, available) => {
                    if let Lending::Taken(taken, received) = self.take_frame(guard, available, max)? {
                        return Ok((taken, received));
                    }
                }
                // A lane has its rings from the beginning.
                Ready::End | Ready::Plain | Ready::Kernel(..) => {
                    return Ok((Taken::Heap(Vec::new()), Received::end()));
                }
            }
        }
    }

    /// Takes the next record from the ring without a copy, or `max` bytes of it. The rest of it is dropped,
    /// unless records are streams. `available` bytes are in the ring.
    ///
    /// # Errors
    ///
    /// EPROTO; EMFILE and EBUSY as a receive, and the record stays.
    pub fn take_frame<'a>(
        &self,
        mut guard: SideGuard<'a, Rx>,
        available: usize,
        max: usize,
    ) -> Result<Lending<'a>> {
        let misbehaved = |misbehaved| self.misbehaved(Op::Recv, misbehaved);
        let nothing = || Lending::Taken(Taken::Heap(Vec::new()), Received::end());
        let Rx::Ring(ring) = &mut *guard else { return Ok(nothing()) };
        let mut said = ReceivedFlags::empty();
        let mut rest = match ring.rest.take() {
            Some(rest) => rest,
            None => {
                let frame = match self.config().records {
                    Records::Atomic => ring.atomic_frame(available).map_err(misbehaved)?,
                    Records::Stream => ring.consumer.frame(0, available).map_err(misbehaved)?,
                };
                if !frame.with.is_nothing() {
                    said = match ring.find(self, frame, &mut Call::plain(), false)? {
                        Contents::Bytes(said) => said,
                        Contents::List(said) => return Ok(Lending::List(guard, frame, said)),
                        Contents::Again => return Ok(Lending::Again),
                    };
                }
                ring.consumer.take(HEADER);
                Rest::of(frame, ring.consumer.ring().capacity())
            }
        };
        let mut received = Received { len: rest.left.min(max), full: rest.left, flags: said };
        let len = received.len;
        let taken = if len == 0 {
            Taken::Heap(Vec::new())
        } else if self.others().were_there() && ring.consumer.borrows() >= MAX_LENT {
            // Other processes can know of only so many borrows. Beyond that the record is copied.
            let mut bytes = vec![0; len];
            ring.consumer.copy_out(0, &mut bytes);
            ring.consumer.take(len);
            self.counters().user_copied_out.add_exclusive(len);
            Taken::Heap(bytes)
        } else {
            let (id, offset) = ring.consumer.borrow(len);
            Taken::Ring { ring: ring.consumer.ring().clone(), id, offset, len }
        };
        point!("borrowed");
        rest.left -= len;
        if rest.left > 0 && self.config().records == Records::Stream {
            ring.rest = Some(rest);
        } else {
            received.flags.set(ReceivedFlags::TRUNC, rest.left > 0);
            received.flags.set(ReceivedFlags::EOR, self.config().records == Records::Stream && rest.end);
            ring.consumer.take(rest.left + rest.padding);
        }
        self.counters().received.add_exclusive(len);
        ring.mirror_empty(self)?;
        self.give_back(guard)?;
        Ok(Lending::Taken(taken, received))
    }
}
