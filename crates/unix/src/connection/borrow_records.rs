//! Borrowing records: reading them in place.

use crate::byref::listed::Contents;
use crate::config::Records;
use crate::connection::Connection;
use crate::connection::call::Call;
use crate::connection::others::MAX_LENT;
use crate::connection::received::Rest;
use crate::connection::rx::Rx;
use crate::connection::view::View;
use crate::connection::wait::Ready;
use crate::connection::waiting::Waiting;
use onecopy_ring::record::HEADER;
use onecopy_socket::{Op, ReceivedFlags, RecvFlags, Result};
use std::io::IoSliceMut;
use std::sync::Arc;

/// The largest view of a record that came over the kernel, in bytes.
const MAX_HEAP: usize = 256 << 10;

impl Connection {
    /// Lends the next record, or what is there of it.
    pub fn borrow_record(self: &Arc<Self>, max: usize, flags: RecvFlags) -> Result<(View, ReceivedFlags)> {
        let flags = flags & RecvFlags::DONTWAIT;
        let mut waiting = Waiting::new(0);
        self.error_first()?;
        let misbehaved = |misbehaved| self.misbehaved(Op::Recv, misbehaved);
        match self.ready(flags, &mut waiting)? {
            Ready::Ring(mut guard, available) => {
                let Rx::Ring(ring) = &mut *guard else { return Ok((View::none(self), ReceivedFlags::END)) };
                let mut said = ReceivedFlags::empty();
                let mut rest = match ring.rest.take() {
                    Some(rest) => rest,
                    None => {
                        let frame = match self.config.records {
                            Records::Atomic => ring.atomic_frame(available).map_err(misbehaved)?,
                            Records::Stream => ring.consumer.frame(0, available).map_err(misbehaved)?,
                        };
                        if !frame.with.is_nothing() {
                            said = match ring.find(self, frame, &mut Call::plain(), false)? {
                                Contents::Bytes(said) => said,
                                Contents::List(said) => {
                                    let (view, mut flags) = self.borrow_list(guard, frame, max)?;
                                    flags |= said;
                                    return Ok((view, flags));
                                }
                                Contents::Again => {
                                    drop(guard);
                                    return self.borrow_record(max, flags);
                                }
                            };
                        }
                        ring.consumer.take(HEADER);
                        Rest::of(frame, ring.consumer.ring().capacity())
                    }
                };
                let len = rest.left.min(max);
                // The view is made last: if it were dropped on an error below, it would want the lock that is
                // held here.
                let memory = ring.consumer.ring().clone();
                // Other processes can know of only so many borrows. Beyond that the record is copied.
                let full = self.others.were_there() && ring.consumer.borrows() >= MAX_LENT;
                let mut heap = Vec::new();
                if full {
                    heap.resize(len, 0);
                    ring.consumer.copy_out(0, &mut heap);
                    ring.consumer.take(len);
                    self.counters.user_copied_out.add_exclusive(len);
                }
                let lent = (len > 0 && !full).then(|| ring.consumer.borrow(len));
                point!("borrowed");
                rest.left -= len;
                if rest.left > 0 && self.config.records == Records::Stream {
                    ring.rest = Some(rest);
                } else {
                    said.set(ReceivedFlags::TRUNC, rest.left > 0);
                    said.set(ReceivedFlags::EOR, self.config.records == Records::Stream && rest.end);
                    ring.consumer.take(rest.left + rest.padding);
                }
                self.counters.received.add_exclusive(len);
                ring.mirror_empty(self)?;
                self.give_back(guard)?;
                let view = match lent {
                    Some((id, offset)) => View::lent(self, memory, id, offset, len),
                    None => View::heap(self, heap),
                };
                Ok((view, said))
            }
            Ready::End => Ok((View::none(self), ReceivedFlags::END)),
            other => {
                drop(other);
                let mut bytes = vec![0; max.min(MAX_HEAP)];
                let received = self.recv_record(&mut [IoSliceMut::new(&mut bytes)], flags)?;
                bytes.truncate(received.len);
                Ok((View::heap(self, bytes), received.flags))
            }
        }
    }
}
