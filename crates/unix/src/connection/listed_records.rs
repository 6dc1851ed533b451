//! Records whose bytes are in pages: they are sent as a chain, and received like any other or as a chain.

use crate::ancillary::attached::SendAncillary;
use crate::byref::lender::Lot;
use crate::byref::listed::Contents;
use crate::byref::piece::Piece;
use crate::config::Records;
use crate::connection::Connection;
use crate::connection::call::{Call, Cursor};
use crate::connection::idle::Waiting;
use crate::connection::received::MAX_HEAP;
use crate::connection::received::Received;
use crate::connection::rx::Rx;
use crate::connection::send_references::NotSent;
use crate::connection::send_references::{Way, cut, sendable};
use crate::connection::side::SideGuard;
use crate::connection::tx::{Tx, TxRing};
use crate::connection::view::View;
use crate::connection::wait::Ready;
use crate::core::failure::too_long;
use onecopy_chain::notify::{Fate, Segment};
use onecopy_chain::{Chain, Fragment};
use onecopy_copy::Hint;
use onecopy_ring::Mark;
use onecopy_ring::record::{self, Frame, Identity, MAX_PARTS, Parts, With};
use onecopy_socket::{Error, Op, ReceivedFlags, RecvFlags, Result, SendFlags};
use rustix::io::Errno;
use std::borrow::Cow;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

impl Connection {
    /// Copies the next record into `slices`. It is a list, and was found before.
    pub fn recv_list(
        &self,
        mut guard: SideGuard<'_, Rx>,
        slices: &mut [IoSliceMut<'_>],
        frame: Frame,
        peek: bool,
    ) -> Result<Received> {
        let Rx::Ring(ring) = &mut *guard else { return Ok(Received::end()) };
        let Some(listed) = ring.pending.take_list() else { return Ok(Received::end()) };
        let received = Received::atomic(ring.copy_list(&listed, slices), listed.len());
        self.counters().user_copied_out.add_exclusive(received.len);
        if peek {
            ring.pending.keep_list(listed);
            return Ok(received);
        }
        self.counters().received.add_exclusive(received.len);
        drop(listed);
        self.done_with(guard, frame)?;
        Ok(received)
    }

    /// Takes the next frame, and lets others have the receiving side.
    fn done_with(&self, mut guard: SideGuard<'_, Rx>, frame: Frame) -> Result<()> {
        if let Rx::Ring(ring) = &mut *guard {
            ring.consumer.take(frame.size(ring.consumer.ring().capacity()));
            ring.mirror_empty(self)?;
        }
        self.give_back(guard)
    }

    /// Returns a view of the next record, which is a list and was found before. The view is of the page
    /// itself if all of it is in one page, else of a copy.
    pub fn borrow_list(
        self: &Arc<Connection>,
        mut guard: SideGuard<'_, Rx>,
        frame: Frame,
        max: usize,
    ) -> Result<(View, ReceivedFlags)> {
        let Rx::Ring(ring) = &mut *guard else { return Ok((View::none(self), ReceivedFlags::END)) };
        let Some(mut listed) = ring.pending.take_list() else {
            return Ok((View::none(self), ReceivedFlags::END));
        };
        let received = Received::atomic(listed.len().min(max), listed.len());
        let alone = listed.is_one_piece() && received.len > 0;
        // A peer may not claim that its pages hold more than it has shown memory for, or than fits a small
        // copy: many references may name one page.
        if !alone && received.len > self.config().max_shared.max(MAX_HEAP) {
            ring.pending.keep_list(listed);
            return Err(Error::new(Op::Recv, Errno::OVERFLOW).because(
                "the record is longer than Config::max_shared; receive it into a buffer, or as a chain",
            ));
        }
        self.counters().received.add_exclusive(received.len);
        let only = if alone { listed.take_pieces().pop() } else { None };
        let view = match only {
            Some(piece) => {
                self.counters().referenced.add_exclusive(received.len);
                View::of_piece(self, if piece.len() > max { piece.split(max).0 } else { piece })
            }
            None => {
                let mut bytes = vec![0; received.len];
                ring.copy_list(&listed, &mut [IoSliceMut::new(&mut bytes)]);
                self.counters().user_copied_out.add_exclusive(received.len);
                View::heap(self, bytes)
            }
        };
        self.done_with(guard, frame)?;
        Ok((view, received.flags))
    }

    /// Receives a record: its bytes into `head`, its pages as a chain.
    pub fn recv_record_chain(&self, head: &mut [u8], flags: RecvFlags) -> Result<(Received, Chain)> {
        let flags = flags & RecvFlags::DONTWAIT;
        let slices = &mut [IoSliceMut::new(head)];
        if self.config().records == Records::Stream {
            return Ok((self.recv_record(slices, flags)?, Chain::new()));
        }
        loop {
            let mut waiting = Waiting::new(0);
            self.error_first()?;
            let (mut guard, available) = match self.ready(flags, &mut waiting)? {
                Ready::Ring(guard, available) => (guard, available),
                Ready::End => return Ok((Received::end(), Chain::new())),
                other => {
                    drop(other);
                    return Ok((self.recv_record(slices, flags)?, Chain::new()));
                }
            };
            let Rx::Ring(ring) = &mut *guard else { continue };
            let frame =
                ring.atomic_frame(available).map_err(|misbehaved| self.misbehaved(Op::Recv, misbehaved))?;
            if !frame.with.has_parts() && !frame.with.is_pool() {
                let received = self.recv_frame(guard, slices, available, flags, &mut Call::plain())?;
                return Ok((received, Chain::new()));
            }
            // As a peek, since the record may be refused. What came with it then goes with the record.
            let Contents::List(said) = ring.find(self, frame, &mut Call::plain(), true)? else { continue };
            let Some(mut listed) = ring.pending.take_list() else { continue };
            if listed.true_size() > u32::MAX as usize {
                ring.pending.keep_list(listed);
                return Err(Error::new(Op::Recv, Errno::OVERFLOW)
                    .because("the record's pages are more than a chain counts; receive it into a buffer"));
            }
            ring.pending.drop_fds();
            let (referenced, pieces) = (listed.referenced(), listed.take_pieces());
            let len = ring.copy_list(&listed, slices);
            let mut received = Received::atomic(len, listed.bytes() + referenced);
            received.flags.set(ReceivedFlags::TRUNC, len < listed.bytes());
            received.flags |= said;
            self.counters().user_copied_out.add_exclusive(len);
            self.counters().received.add_exclusive(len + referenced);
            self.counters().referenced.add_exclusive(referenced);
            let fragments = pieces.into_iter().filter_map(Piece::into_fragment);
            let chain = fragments.into_iter().try_fold(Chain::new(), |mut chain, fragment: Fragment| {
                chain.append(fragment).map(|()| chain)
            });
            self.done_with(guard, frame)?;
            return Ok((received, chain.map_err(|_| Error::new(Op::Recv, Errno::OVERFLOW))?));
        }
    }

    /// Sends `head` and a chain as one record. Returns its bytes.
    pub fn send_record_chain(
        self: &Arc<Connection>,
        head: &[u8],
        mut segment: Segment<Chain>,
        flags: SendFlags,
    ) -> std::result::Result<usize, Box<NotSent<Segment<Chain>>>> {
        let len = head.len() + segment.payload().len();
        let locked = sendable(segment.payload())
            .and_then(|()| match self.config().records {
                Records::Atomic => Ok(()),
                Records::Stream => {
                    Err(Error::new(Op::Send, Errno::OPNOTSUPP).about("Config::records").because(
                        "a chain is one record, and stream records are sent in parts; keep atomic records",
                    ))
                }
            })
            .and_then(|()| one_record(segment.payload()))
            .and_then(|()| self.lock_tx(flags));
        let mut tx = match locked {
            Ok(tx) => tx,
            Err(error) => return Err(self.not_sent(error, len, len, segment, flags)),
        };
        let result = self.send_list(&mut tx, head, &mut segment, flags);
        tx.mirror_full(self);
        tx.unlock_fenced();
        self.welcome_back();
        match result {
            Ok(fate) => {
                // What was published is sent, whatever ringing the doorbell says.
                let _ = self.ring_if_armed();
                segment.free(fate);
                Ok(len)
            }
            // A pool that was published before an error wakes nobody: a receive would wait.
            Err(error) => Err(self.not_sent(error, len, len, segment, flags)),
        }
    }

    /// Sends a record, with as much of the chain by reference as possible. Returns the fate of what is left
    /// in the chain.
    fn send_list(
        self: &Arc<Connection>,
        tx: &mut Tx,
        head: &[u8],
        segment: &mut Segment<Chain>,
        flags: SendFlags,
    ) -> Result<Fate> {
        let mut names = Vec::new();
        let then = match &*tx {
            Tx::Ring(ring) => {
                let parts = Parts { bytes: head.len(), references: segment.payload().fragments().count() };
                let frame = Frame { len: parts.len(), end: true, with: With::default().parts() };
                frame.size(ring.producer.ring().capacity())
            }
            Tx::Kernel { .. } => 0,
        };
        // What is refused is refused before the peer is told anything: a pool that came alone would make it look for a record.
        let (mut parts, mut lent) = (Parts { bytes: head.len(), references: 0 }, 0);
        for fragment in segment.payload().fragments() {
            lent += fragment.len();
            if self.may_lend(tx, fragment.page())? {
                parts.references += 1;
            } else {
                // Bytes come before references, so what stands before it is copied, too.
                parts = Parts { bytes: parts.bytes + std::mem::take(&mut lent), references: 0 };
            }
        }
        if parts.references > MAX_PARTS {
            return Err(Error::new(Op::Send, Errno::MSGSIZE).about("chain").because(
                "at most 256 parts of pages go with one record; send several records, or make larger pages",
            ));
        }
        if let Tx::Ring(ring) = &*tx
            && parts.references > 0
            && parts.len() > record::largest(ring.producer.ring().capacity())
        {
            return Err(too_long());
        }
        for fragment in segment.payload().fragments() {
            names.push(match self.way(tx, fragment.page(), then, false, flags)? {
                Way::Lent(name) => Some(name),
                Way::Copied => None,
            });
        }
        let copied = names.iter().rposition(Option::is_none).map_or(0, |last| last + 1);
        let names: Vec<u32> = names.into_iter().skip(copied).flatten().collect();
        let bytes = gathered(head, segment.payload(), copied)?;
        let slices: Vec<IoSlice<'_>> = bytes.iter().map(|bytes| IoSlice::new(bytes)).collect();
        self.counters().references_copied.add(usize::from(copied > 0));
        if names.is_empty() {
            self.send_record_locked(tx, &mut Cursor::new(&slices), SendAncillary::default(), flags)?;
            return Ok(if copied > 0 { Fate::Copied } else { Fate::Sent });
        }
        let (Tx::Ring(ring), Some(lender)) = (tx, self.lender.get()) else {
            return Err(Error::new(Op::Send, Errno::NOTCONN));
        };
        let parts = Parts { bytes: slices.iter().map(|slice| slice.len()).sum(), references: names.len() };
        let capacity = ring.producer.ring().capacity();
        if parts.len() > record::largest(capacity) {
            return Err(too_long());
        }
        let saying = ring.saying(self, None);
        let with = SendAncillary::default().with(saying.who).parts();
        let frame = Frame { len: parts.len(), end: true, with };
        ring.room_for_frame(self, frame.size(capacity), flags)?;
        let places = ring.take_slots(self, lender, names.len(), flags)?;
        if saying.who != Identity::AsBefore
            && let Err(error) = ring.put(self, &[], saying, flags)
        {
            lender.free_again(&places);
            return Err(error);
        }
        // From here on nothing fails.
        let hint = self.hint(flags, capacity);
        let TxRing { producer, slots: Some(slots), .. } = ring else {
            return Err(Error::new(Op::Send, Errno::NOTCONN));
        };
        producer.list(&slices, parts.references, hint);
        self.counters().user_copied_in.add_exclusive(parts.bytes);
        drop(slices);
        drop(bytes);
        for _ in 0..copied {
            if let Some(part) = cut(segment, usize::MAX) {
                part.free(Fate::Copied);
            }
        }
        let mut referenced = 0;
        for (i, (slot, pool)) in places.into_iter().zip(names).enumerate() {
            let Some(part) = cut(segment, usize::MAX) else { break };
            let (page, offset, len) = (part.page.index(), part.offset, part.len);
            producer.list_reference(parts, i, Mark::Reference { slot, pool, page, offset, len });
            slots.put(slot, Lot::new(part.page, part.notif));
            referenced += len as usize;
        }
        point!("listed");
        producer.publish_frame(frame);
        self.counters().sent.add_exclusive(parts.bytes + referenced);
        self.counters().referenced.add_exclusive(referenced);
        Ok(Fate::Sent)
    }
}

/// Returns the bytes that go as such: `head`, and those of the chain's first `copied` fragments. They are
/// borrowed where they can be read in their page.
fn gathered<'a>(head: &'a [u8], chain: &'a Chain, copied: usize) -> Result<Vec<Cow<'a, [u8]>>> {
    let mut all = vec![Cow::Borrowed(head)];
    for fragment in chain.fragments().take(copied) {
        let (page, at, len) = (fragment.page(), fragment.offset(), fragment.len());
        all.push(match (page.bytes(), page.span(at, len)) {
            (Some(bytes), _) => Cow::Borrowed(&bytes[at..at + len]),
            (None, Some(span)) => {
                let mut copy = vec![0; len];
                onecopy_copy::copy_out(&mut copy, span, Hint::AUTO);
                Cow::Owned(copy)
            }
            (None, None) => return Err(Error::new(Op::Send, Errno::FAULT)),
        });
    }
    Ok(all)
}

/// Returns an error if a chain's bytes cannot go as one record.
fn one_record(chain: &Chain) -> Result<()> {
    match chain.record_len() {
        Some(at) if at < chain.len() => Err(Error::new(Op::Send, Errno::OPNOTSUPP)
            .about("chain")
            .because("a chain is one record, and a record ends within it; split it there (`split_record`)")),
        _ => Ok(()),
    }
}
