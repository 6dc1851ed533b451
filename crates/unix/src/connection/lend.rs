//! Sending by reference: a loan, or a chain.

use crate::byref::domain::{Bound, Domain};
use crate::byref::lender::{Accuse, Lender, Lot};
use crate::byref::pool::Loan;
use crate::connection::Connection;
use crate::connection::call::Cursor;
use crate::connection::send_references::NotSent;
use crate::connection::send_references::{Part, Way, cut, sendable};
use crate::connection::tx::{Tx, TxRing};
use crate::core::kind::Kind as SocketKind;
use onecopy_chain::notify::{Fate, Segment};
use onecopy_chain::{Chain, Fragment};
use onecopy_copy::Hint;
use onecopy_pool::{MemoryProvider, Page};
use onecopy_ring::Mark;
use onecopy_ring::marks::MARKS;
use onecopy_ring::record::POOL_FRAME;
use onecopy_socket::{Error, Op, Result, SendFlags};
use onecopy_sync::atomic::Ordering::{Relaxed, SeqCst};
use onecopy_sync::atomic::fence;
use rustix::io::Errno;
use std::io::IoSlice;
use std::sync::Arc;

impl Connection {
    /// Whether this end has lent pages to the peer, or was about to.
    pub fn has_lent(&self) -> bool {
        self.lender.get().is_some()
    }

    /// Sends a loan. Returns its bytes.
    pub fn send_loan(
        self: &Arc<Connection>,
        mut loan: Loan,
        flags: SendFlags,
    ) -> std::result::Result<usize, Box<NotSent>> {
        let len = loan.len();
        let mut tx = match self.lock_tx(flags) {
            Ok(tx) => tx,
            Err(error) => return Err(self.not_sent(error, len, len, loan, flags)),
        };
        let way = if len > 0 { self.way_of_loan(&mut tx, &loan, flags) } else { Ok(Way::Copied) };
        let result = match way {
            Err(error) => Err(error),
            Ok(Way::Lent(name)) => {
                let mut once = Some(loan);
                let lent = self.lend(&mut tx, name, 1, false, flags, || once.take().map(Loan::into_part));
                tx.mirror_full(self);
                tx.unlock_fenced();
                self.welcome_back();
                if lent.is_ok() {
                    // What was published is sent, whatever ringing the doorbell says.
                    let _ = self.ring_if_armed();
                }
                return match (lent, once) {
                    (Err(error), Some(loan)) => Err(self.not_sent(error, len, len, loan, flags)),
                    _ => Ok(len),
                };
            }
            Ok(Way::Copied) => {
                let (sent, result) = self.send_copy(&mut tx, &loan, flags);
                loan.advance(sent);
                result
            }
        };
        tx.mirror_full(self);
        tx.unlock_fenced();
        self.welcome_back();
        match self.ring_after(loan.len() < len, result) {
            Ok(()) => {
                loan.was_copied();
                Ok(len)
            }
            Err(error) => Err(self.not_sent(error, len, loan.len(), loan, flags)),
        }
    }

    /// Sends a chain, each part of a page by reference where that is possible. Returns its bytes.
    pub fn send_chain(
        self: &Arc<Connection>,
        mut segment: Segment<Chain>,
        flags: SendFlags,
    ) -> std::result::Result<usize, Box<NotSent<Segment<Chain>>>> {
        let len = segment.payload().len();
        let locked = sendable(segment.payload()).and_then(|()| self.lock_tx(flags));
        let mut tx = match locked {
            Ok(tx) => tx,
            Err(error) => return Err(self.not_sent(error, len, len, segment, flags)),
        };
        let mut result = Ok(());
        if len == 0 {
            // Sends no bytes, but reports a peer that is gone.
            result = self.send_locked(&mut tx, &mut Cursor::new(&[]), flags);
        }
        while result.is_ok() && !segment.payload().is_empty() {
            let begun = segment.payload().len() < len;
            result = self.send_front(&mut tx, &mut segment, begun, flags);
        }
        tx.mirror_full(self);
        tx.unlock_fenced();
        self.welcome_back();
        let left = segment.payload().len();
        // What an error left in the ring that is no data (a pool, an identity) wakes nobody: a receive would wait.
        let rung = if left < len || len == 0 { self.ring_if_armed() } else { Ok(()) };
        match if left == 0 && len > 0 { Ok(()) } else { result.and(rung) } {
            Ok(()) => {
                // What is left carried no bytes: the chain had none.
                segment.free(Fate::Sent);
                Ok(len)
            }
            Err(error) => Err(self.not_sent(error, len, left, segment, flags)),
        }
    }

    #[cold]
    pub fn not_sent<T>(
        &self,
        error: Error,
        len: usize,
        left: usize,
        rest: T,
        flags: SendFlags,
    ) -> Box<NotSent<T>> {
        let _ = self.finish(Err(error), len - left, flags);
        Box::new(NotSent { error, loan: rest })
    }

    /// Sends the chain's first fragment, and those behind it as long as they are of the same pool.
    fn send_front(
        self: &Arc<Connection>,
        tx: &mut Tx,
        segment: &mut Segment<Chain>,
        begun: bool,
        flags: SendFlags,
    ) -> Result<()> {
        let Some(first) = segment.payload().fragments().next() else { return Ok(()) };
        match self.way(tx, first.page(), 0, begun, flags)? {
            Way::Lent(name) => {
                let alike = |fragment: &&Fragment| fragment.page().pool_id() == first.page().pool_id();
                let most = segment.payload().fragments().take(MARKS).take_while(alike).count();
                self.lend(tx, name, most, begun, flags, || cut(segment, usize::MAX)).map(drop)
            }
            Way::Copied => {
                let (page, at, len) = (first.page(), first.offset(), first.len());
                let (sent, result) = match (page.bytes(), page.span(at, len.min(BOUNCE))) {
                    (Some(bytes), _) => self.send_copy(tx, &bytes[at..at + len], flags),
                    (None, Some(span)) => {
                        let mut copy = vec![0; span.len()];
                        onecopy_copy::copy_out(&mut copy, span, Hint::AUTO);
                        // It is copied twice: here, and into the ring or the kernel.
                        self.counters().user_copied_in.add_exclusive(copy.len());
                        self.send_copy(tx, &copy, flags)
                    }
                    (None, None) => (0, Err(Error::new(Op::Send, Errno::FAULT))),
                };
                if sent > 0
                    && let Some(part) = cut(segment, sent)
                {
                    part.free(Fate::Copied);
                }
                result
            }
        }
    }

    /// Returns how the bytes of a loan leave: small ones may be copied although they could be lent.
    ///
    /// # Errors
    ///
    /// As [`Connection::way`].
    #[inline]
    fn way_of_loan(self: &Arc<Connection>, tx: &mut Tx, loan: &Loan, flags: SendFlags) -> Result<Way> {
        if !self.may_lend(tx, loan.page())? {
            return Ok(Way::Copied);
        }
        // Only where there is room for all of it, behind a mark of who sends: a loan that could be lent is sent whole, or not at all.
        if let Tx::Ring(ring) = &mut *tx
            && ring.copies_loan(self, loan.len())
        {
            let whole = loan.len() + ring.producer.stride();
            if ring.producer.room(whole).is_ok_and(|room| room >= whole) {
                return Ok(Way::Copied);
            }
        }
        self.way_there(tx, loan.page(), 0, false, flags)
    }

    /// Returns how the bytes of a page leave. `then`: bytes of room that a record with them takes. `begun`: whether this send has published something
    /// before.
    ///
    /// # Errors
    ///
    /// EXDEV; EBUSY for a page that a child has inherited; what sending the pool to the peer says.
    #[inline]
    pub fn way(
        self: &Arc<Connection>,
        tx: &mut Tx,
        page: &Page,
        then: usize,
        begun: bool,
        flags: SendFlags,
    ) -> Result<Way> {
        if !self.may_lend(tx, page)? {
            return Ok(Way::Copied);
        }
        self.way_there(tx, page, then, begun, flags)
    }

    /// As [`Connection::way`], of a page that may be lent.
    #[inline]
    fn way_there(
        self: &Arc<Connection>,
        tx: &mut Tx,
        page: &Page,
        then: usize,
        begun: bool,
        flags: SendFlags,
    ) -> Result<Way> {
        let (Some(domain), Tx::Ring(ring)) = (Domain::of(page), tx) else { return Ok(Way::Copied) };
        match domain.bound() {
            Some(bound) => Ok(Way::Lent(bound.name())),
            None => Ok(self
                .admit(ring, domain, then, begun, flags)?
                .map_or(Way::Copied, |bound| Way::Lent(bound.name()))),
        }
    }

    /// Returns whether a page can be lent here, as far as that is known before the peer is told anything: its pool is shared with this peer, or may be.
    ///
    /// # Errors
    ///
    /// EXDEV; EBUSY for a page that a child has inherited.
    #[inline]
    pub fn may_lend(&self, tx: &Tx, page: &Page) -> Result<bool> {
        let Some(domain) = Domain::of(page) else { return Ok(false) };
        if !domain.is_own() {
            return Err(Error::new(Op::Send, Errno::BUSY).about("loan").because(
                "it is of a pool that was made before a fork, and is the parent's, whose memory the child has not",
            ));
        }
        let Tx::Ring(ring) = tx else { return Ok(false) };
        // Only the lender's own process knows what is lent.
        let lender = self.lender.get();
        if lender.is_some_and(|lender| !lender.is_own()) {
            return Ok(false);
        }
        match domain.bound() {
            Some(bound) if lender.is_some_and(|mine| bound.is_of(mine)) => Ok(true),
            Some(_) => Err(Error::new(Op::Send, Errno::XDEV).about("loan").because(
                "its pool is shared with the peer of another stream, for ever; make one for each peer",
            )),
            None => Ok(match lender {
                Some(lender) => lender.name_for(domain.bytes()).is_some() && !lender.is_left(),
                // Where several processes hold the end, each would lend the same slots.
                None => {
                    domain.bytes() <= ring.producer.header().info.0.max_shared.load(Relaxed)
                        && !self.others().were_there()
                }
            }),
        }
    }

    /// Sends a copy. Returns how many bytes were sent: all of them, unless there is an error.
    fn send_copy(&self, tx: &mut Tx, bytes: &[u8], flags: SendFlags) -> (usize, Result<()>) {
        let slices = [IoSlice::new(bytes)];
        let mut cursor = Cursor::new(&slices);
        let result = self.send_locked(tx, &mut cursor, flags);
        let sent = bytes.len() - cursor.left();
        self.counters().references_copied.add(usize::from(sent > 0));
        let short = if cursor.left() > 0 { Err(Error::new(Op::Send, Errno::AGAIN)) } else { Ok(()) };
        (sent, result.and(short))
    }

    /// Waits until there is a slot to lend in. `begun`: whether this send has published something before. The receiver may sleep, and gives slots
    /// back when it has that.
    #[inline]
    fn wait_for_slot(&self, ring: &mut TxRing, lender: &Lender, begun: bool, flags: SendFlags) -> Result<()> {
        let Some(slots) = &mut ring.slots else { return Ok(()) };
        if slots.has_free() || lender.find_free(slots) {
            return Ok(());
        }
        if begun {
            // SeqCst, between what was published and the look at the doorbell: pairs with the receiver's fence between arming and its last look.
            fence(SeqCst);
            self.ring_under_lock()?;
        }
        lender.wait_for_slot(self, slots, flags)
    }

    /// Lends the parts that `next` gives: `most` of them, or as many as there are slots and room for, but at
    /// least one. `begun`: whether this send has published something before.
    ///
    /// # Errors
    ///
    /// As [`TxRing::room`]; then no part was asked for.
    #[inline]
    fn lend(
        &self,
        tx: &mut Tx,
        name: u32,
        most: usize,
        begun: bool,
        flags: SendFlags,
        mut next: impl FnMut() -> Option<Part>,
    ) -> Result<usize> {
        let (Tx::Ring(ring), Some(lender)) = (tx, self.lender.get()) else {
            return Err(Error::new(Op::Send, Errno::NOTCONN));
        };
        // The slot comes first, so that an identity is never told alone. Nobody else takes it: the sending side is held.
        self.wait_for_slot(ring, lender, begun, flags)?;
        let stride = ring.producer.stride();
        ring.say_identity(self, stride, flags)?;
        let most = most.min(ring.room(self, most * stride, stride, flags, &mut None)? / stride);
        let TxRing { producer, slots: Some(slots), .. } = ring else {
            return Err(Error::new(Op::Send, Errno::NOTCONN));
        };
        let (mut at, mut bytes) = (0, 0);
        let lent = lender.lend(slots, most, |slot| {
            let Part { page, offset, len, notif } = next()?;
            producer.mark(at, Mark::Reference { slot, pool: name, page: page.index(), offset, len });
            at += stride;
            bytes += len as usize;
            Some(Lot::new(page, notif))
        });
        if lent == 0 {
            return Err(Error::new(Op::Send, Errno::AGAIN));
        }
        producer.publish_marks(lent * stride);
        self.counters().sent.add_exclusive(bytes);
        self.counters().referenced.add_exclusive(bytes);
        Ok(lent)
    }

    /// Binds a pool that may be lent to this stream, and sends its memfd to the peer. None where its pages are to be copied after all.
    #[cold]
    fn admit<'a>(
        self: &Arc<Connection>,
        ring: &mut TxRing,
        domain: &'a Domain,
        then: usize,
        begun: bool,
        flags: SendFlags,
    ) -> Result<Option<&'a Bound>> {
        // Makes room for the announcement of the pool and for what comes next, so that the announcement is
        // never there alone. The room comes before the channel, which is in the receiver's queue from here
        // on.
        let stride = ring.producer.stride();
        if self.kind() == SocketKind::Stream {
            // This comes first: it parts the mark to come from the marks of a process that died.
            ring.say_identity(self, 2 * stride, flags)?;
            ring.room(self, 2 * stride, 2 * stride, flags, &mut None)?;
        } else {
            let capacity = ring.producer.ring().capacity();
            let all = POOL_FRAME.size(capacity) + then;
            ring.room_for_frame(self, all.min(capacity), flags)?;
        }
        let channel = ring.channel(self)?;
        let lender = self.lender.get_or_init(|| {
            let end = Arc::downgrade(self);
            let accuse = Accuse::by(move |misbehaved| {
                if let Some(end) = end.upgrade() {
                    let _ = end.misbehaved(Op::Send, misbehaved);
                }
            });
            let (lender, slots) = Lender::new(accuse, ring.producer.ring().clone(), channel.clone());
            ring.slots = Some(slots);
            Arc::new(lender)
        });
        // The process that had the other end of the lender's channel is gone. Its pages come home, and
        // whoever is left gets copies.
        if lender.is_left() || !std::ptr::eq(lender.channel(), &*channel) {
            return Ok(None);
        }
        let Some(name) = lender.name_for(domain.bytes()) else { return Ok(None) };
        self.wait_for_slot(ring, lender, begun, flags)?;
        let fd = MemoryProvider::fd(domain).ok_or_else(|| Error::new(Op::Send, Errno::INVAL))?;
        ring.send_over(self, &[fd], None, flags)?;
        if ring.channel.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &channel)) {
            // The channel was replaced just now. The process that takes the new one closes what is in it.
            return Ok(None);
        }
        lender.announced(domain.bytes());
        let pool = Mark::Pool { pool: name, page_len: domain.page_len(), pages: domain.pages() };
        if self.kind() == SocketKind::Stream {
            ring.producer.mark(0, pool);
            ring.producer.publish_marks(stride);
        } else {
            ring.producer.publish_pool(pool);
        }
        // Two pages of one pool may be sent over two streams at once.
        match domain.bind(lender, name) {
            Some(bound) => Ok(Some(bound)),
            None => Err(Error::new(Op::Send, Errno::XDEV)
                .about("loan")
                .because("its pool was just shared with the peer of another stream; make one for each peer")),
        }
    }
}

/// How many bytes of a peer's memory are copied at once, when they have to be passed on as a copy.
const BOUNCE: usize = 32 << 10;
