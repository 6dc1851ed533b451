//! Sending by reference: a loan, or a chain.

use super::domain::{Bound, Domain};
use super::lender::Lot;
use super::pool::Loan;
use super::{Lender, Slots};
use crate::end::End;
use crate::making::Kind as SocketKind;
use crate::tx::{Cursor, Tx, TxRing};
use crate::{Error, Op, Result, SendFlags, control};
use onecopy_chain::notify::{Fate, NotifRef, Segment};
use onecopy_chain::{Chain, Checksum, Fragment, Kind, Mark as ChainMark};
use onecopy_copy::Hint;
use onecopy_pool::{MemoryProvider, Page};
use onecopy_ring::Mark;
use onecopy_ring::marks::MARKS;
use onecopy_ring::record::POOL_FRAME;
use rustix::io::Errno;
use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest sleep for a slot before it is looked whether the peer lives.
const LONGEST_SLEEP: Duration = Duration::from_millis(40);
/// Bytes of a peer's memory that are copied at once, when they have to be passed on as a copy.
const BOUNCE: usize = 32 << 10;

/// A loan or a chain that was not sent, or not all of it, and why. It comes back; what was sent of it is cut off.
#[derive(Debug)]
pub struct NotSent<T = Loan> {
    /// Why.
    pub error: Error,
    /// What was not sent.
    pub loan: T,
}

impl<T> fmt::Display for NotSent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for NotSent<T> {}

impl<T> From<NotSent<T>> for Error {
    fn from(not: NotSent<T>) -> Error {
        not.error
    }
}

impl<T> From<NotSent<T>> for io::Error {
    fn from(not: NotSent<T>) -> io::Error {
        not.error.into()
    }
}

/// What is lent at one mark: a part of a page.
#[derive(Debug)]
pub struct Part {
    pub page: Page,
    pub offset: u32,
    pub len: u32,
    pub notif: Option<NotifRef>,
}

/// How the bytes of a page leave.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// By reference: that is what references call its pool.
    Lent(u32),
    Copied,
}

impl End {
    /// Sends a loan. Returns its bytes.
    pub fn send_loan(
        self: &Arc<End>,
        mut loan: Loan,
        flags: SendFlags,
    ) -> std::result::Result<usize, Box<NotSent>> {
        let len = loan.len();
        let mut tx = match self.lock_tx(flags) {
            Ok(tx) => tx,
            Err(error) => return Err(self.not_sent(error, len, len, loan, flags)),
        };
        let way = if len > 0 { self.way(&mut tx, loan.page(), 0, flags) } else { Ok(Way::Copied) };
        let result = match way {
            Err(error) => Err(error),
            Ok(Way::Lent(name)) => {
                let mut once = Some(loan);
                let lent = self.lend(&mut tx, name, 1, flags, || once.take().map(Loan::into_part));
                self.mirror_full(&mut tx);
                tx.unlock_fenced();
                self.welcome_back();
                // What was published is sent, whatever the bell says.
                let _ = self.ring_if_armed();
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
        self.mirror_full(&mut tx);
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

    /// Sends a chain, each part of a page by reference that can be. Returns its bytes.
    pub fn send_chain(
        self: &Arc<End>,
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
            // A dead peer is told.
            result = self.send_locked(&mut tx, &mut Cursor::new(&[]), flags);
        }
        while result.is_ok() && !segment.payload().is_empty() {
            result = self.send_front(&mut tx, &mut segment, flags);
        }
        self.mirror_full(&mut tx);
        tx.unlock_fenced();
        self.welcome_back();
        let rung = self.ring_if_armed();
        let left = segment.payload().len();
        match if left == 0 && len > 0 { Ok(()) } else { result.and(rung) } {
            Ok(()) => {
                // Only what carried no bytes is left: of a chain without any.
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

    /// Sends the first fragment of a chain that has one, and those behind it as long as they are of the same pool.
    fn send_front(
        self: &Arc<End>,
        tx: &mut Tx,
        segment: &mut Segment<Chain>,
        flags: SendFlags,
    ) -> Result<()> {
        let Some(first) = segment.payload().fragments().next() else { return Ok(()) };
        match self.way(tx, first.page(), 0, flags)? {
            Way::Lent(name) => {
                let alike = |fragment: &&Fragment| fragment.page().pool_id() == first.page().pool_id();
                let most = segment.payload().fragments().take(MARKS).take_while(alike).count();
                self.lend(tx, name, most, flags, || cut(segment, usize::MAX)).map(drop)
            }
            Way::Copied => {
                let (page, at, len) = (first.page(), first.offset(), first.len());
                let (sent, result) = match (page.bytes(), page.span(at, len.min(BOUNCE))) {
                    (Some(bytes), _) => self.send_copy(tx, &bytes[at..at + len], flags),
                    (None, Some(span)) => {
                        let mut copy = vec![0; span.len()];
                        onecopy_copy::copy_out(&mut copy, span, Hint::AUTO);
                        // Twice: here, and into the ring or the kernel.
                        self.counters.user_copied_in.add_exclusive(copy.len());
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

    /// How the bytes of a page leave, of which a record takes `then` bytes of room.
    ///
    /// # Errors
    ///
    /// EXDEV; EBUSY for a page that a child has inherited; what sending the pool to the peer says.
    #[inline]
    pub fn way(self: &Arc<End>, tx: &mut Tx, page: &Page, then: usize, flags: SendFlags) -> Result<Way> {
        let Some(domain) = Domain::of(page) else { return Ok(Way::Copied) };
        if !domain.is_own() {
            return Err(Error::new(Op::Send, Errno::BUSY).about("loan").because(
                "it is of a pool that was made before a fork, and is the parent's, whose memory the child has not",
            ));
        }
        let Tx::Ring(ring) = tx else { return Ok(Way::Copied) };
        // What is lent only the lender's own process knows.
        if self.lender.get().is_some_and(|lender| !lender.is_own()) {
            return Ok(Way::Copied);
        }
        match domain.bound() {
            Some(bound) if self.lender.get().is_some_and(|mine| bound.is_of(mine)) => {
                Ok(Way::Lent(bound.name))
            }
            Some(_) => Err(Error::new(Op::Send, Errno::XDEV).about("loan").because(
                "its pool is shared with the peer of another stream, for ever; make one for each peer",
            )),
            None => {
                Ok(self.admit(ring, domain, then, flags)?.map_or(Way::Copied, |bound| Way::Lent(bound.name)))
            }
        }
    }

    /// Sends a copy. Returns bytes sent: all of them, unless there is an error.
    fn send_copy(&self, tx: &mut Tx, bytes: &[u8], flags: SendFlags) -> (usize, Result<()>) {
        let slices = [IoSlice::new(bytes)];
        let mut cursor = Cursor::new(&slices);
        let result = self.send_locked(tx, &mut cursor, flags);
        let sent = bytes.len() - cursor.left;
        self.counters.references_copied.add(usize::from(sent > 0));
        let short = if cursor.left > 0 { Err(Error::new(Op::Send, Errno::AGAIN)) } else { Ok(()) };
        (sent, result.and(short))
    }

    /// Lends the parts that `next` gives, `most` of them, or as many as there are slots and room for: one at least.
    ///
    /// # Errors
    ///
    /// As [`End::room`]; then no part was asked for.
    #[inline]
    fn lend(
        &self,
        tx: &mut Tx,
        name: u32,
        most: usize,
        flags: SendFlags,
        mut next: impl FnMut() -> Option<Part>,
    ) -> Result<usize> {
        let (Tx::Ring(ring), Some(lender)) = (tx, self.lender.get()) else {
            return Err(Error::new(Op::Send, Errno::NOTCONN));
        };
        let stride = ring.producer.stride();
        self.say_who(ring, stride, flags)?;
        let most = most.min(self.room(ring, most * stride, stride, flags, &mut None)? / stride);
        let TxRing { producer, slots: Some(slots), .. } = ring else {
            return Err(Error::new(Op::Send, Errno::NOTCONN));
        };
        if !slots.has_free() && !lender.find_free(slots) {
            // Nobody else takes the slot: the sending side is held.
            self.wait_for_slot(lender, slots, flags)?;
        }
        let (mut at, mut bytes) = (0, 0);
        let lent = lender.lend(slots, most, |slot| {
            let Part { page, offset, len, notif } = next()?;
            producer.mark(at, Mark::Reference { slot, pool: name, page: page.index(), offset, len });
            at += stride;
            bytes += len as usize;
            Some(Lot { page, notif })
        });
        if lent == 0 {
            return Err(Error::new(Op::Send, Errno::AGAIN));
        }
        producer.publish_marks(lent * stride);
        self.counters.sent.add_exclusive(bytes);
        self.counters.referenced.add_exclusive(bytes);
        Ok(lent)
    }

    /// Binds a pool to this stream: the peer is sent its memfd. None where the peer maps no such pool.
    #[cold]
    fn admit<'a>(
        self: &Arc<End>,
        ring: &mut TxRing,
        domain: &'a Domain,
        then: usize,
        flags: SendFlags,
    ) -> Result<Option<&'a Bound>> {
        let most = ring.producer.header().info.0.max_shared.load(onecopy_sync::atomic::Ordering::Relaxed);
        if domain.bytes() > most {
            return Ok(None);
        }
        // Of several processes each would lend the same slots.
        if self.sharing.get().is_some() && self.lender.get().is_none() {
            return Ok(None);
        }
        // Room for what tells of the pool and for what comes next, so that it never lies there alone; and before the channel, which
        // lies in the receiver's queue from here on.
        let stride = ring.producer.stride();
        if self.kind == SocketKind::Stream {
            // First: it parts what is laid here from what a dead process has laid.
            self.say_who(ring, 2 * stride, flags)?;
            self.room(ring, 2 * stride, 2 * stride, flags, &mut None)?;
        } else {
            let capacity = ring.producer.ring().capacity();
            let all = POOL_FRAME.size(capacity) + then;
            self.room_for_frame(ring, all.min(capacity), flags)?;
        }
        let channel = self.channel(ring)?;
        let lender = self.lender.get_or_init(|| {
            let (lender, slots) = Lender::new(self, ring.producer.ring().clone(), channel.clone());
            ring.slots = Some(slots);
            Arc::new(lender)
        });
        // Who had the other end of the channel that it has is gone: its pages come home, and whoever is left gets copies.
        if lender.is_left() || !std::ptr::eq(lender.channel(), &*channel) {
            return Ok(None);
        }
        let Some(name) = lender.name_for(domain.bytes()) else { return Ok(None) };
        if let Some(slots) = &mut ring.slots
            && !slots.has_free()
            && !lender.find_free(slots)
        {
            self.wait_for_slot(lender, slots, flags)?;
        }
        let fd = MemoryProvider::fd(domain).ok_or_else(|| Error::new(Op::Send, Errno::INVAL))?;
        self.send_over(ring, &[fd], None, flags)?;
        if ring.channel.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &channel)) {
            return Ok(None); // it went just now; what lies in the new one is closed by who comes there
        }
        lender.announced(domain.bytes());
        let pool = Mark::Pool { pool: name, page_len: domain.page_len(), pages: domain.pages() };
        if self.kind == SocketKind::Stream {
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

    /// Takes `n` slots, waiting for them, which their caller fills or frees again.
    ///
    /// # Errors
    ///
    /// As [`End::room`]; then none was taken.
    pub fn take_slots(
        &self,
        ring: &mut TxRing,
        lender: &Lender,
        n: usize,
        flags: SendFlags,
    ) -> Result<Vec<u32>> {
        let Some(slots) = &mut ring.slots else { return Err(Error::new(Op::Send, Errno::NOTCONN)) };
        let mut taken = Vec::with_capacity(n);
        while taken.len() < n {
            if slots.has_free() || lender.find_free(slots) {
                taken.extend(slots.take());
            } else if let Err(error) = self.wait_for_slot(lender, slots, flags) {
                lender.free_again(&taken);
                return Err(error);
            }
        }
        Ok(taken)
    }

    /// All slots are lent: waits until the peer gives one back.
    #[cold]
    fn wait_for_slot(&self, lender: &Lender, slots: &mut Slots, flags: SendFlags) -> Result<()> {
        let error = |errno| Error::new(Op::Send, errno);
        let (began, mut asked) = (Instant::now(), false);
        loop {
            lender.collect(drop).map_err(|_| error(Errno::PROTO))?;
            if lender.find_free(slots) {
                return Ok(());
            }
            self.check(Op::Send)?;
            if self.cannot_send() {
                return Err(error(Errno::PIPE));
            }
            if self.must_not_wait(flags, &mut asked) {
                return Err(error(Errno::AGAIN).because(
                    "the peer holds all the pages that may be lent at once; wait until it gives some back",
                ));
            }
            let left = control::remaining(began, self.settings.write_timeout()).map_err(error)?;
            lender.sleep(left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP)));
        }
    }
}

/// Whether a chain's bytes can be sent at all.
///
/// # Errors
///
/// EFAULT, EINVAL, EOPNOTSUPP.
pub fn sendable(chain: &Chain) -> Result<()> {
    let error = |errno| Error::new(Op::Send, errno);
    if chain.kind() == Some(Kind::Device) {
        return Err(error(Errno::FAULT));
    }
    if matches!(chain.checksum(), Checksum::Partial { .. }) {
        return Err(error(Errno::INVAL)
            .about("chain")
            .because("it has a checksum that is to be finished, which nobody would; finish it first"));
    }
    if chain.marks().any(|(_, mark)| matches!(mark, ChainMark::Rights(_) | ChainMark::Credentials(_))) {
        return Err(error(Errno::OPNOTSUPP).about("chain").because(
            "descriptors and credentials do not travel with references; take the marks out and send them with `send_with` or \
             `send_as`",
        ));
    }
    Ok(())
}

/// Takes the first fragment out, or its first `max` bytes, with what waits for its page. None where there is none.
pub fn cut(segment: &mut Segment<Chain>, max: usize) -> Option<Part> {
    let whole = segment.payload().len();
    let n = segment.payload().fragments().next()?.len().min(max);
    // Where the chain's bytes are all those of sends and none else, each part holds back only the sends that it is of.
    let exact = segment.notif().is_some_and(|notif| notif.bytes() == whole as u64);
    let (chain, notif) = if n == whole {
        std::mem::take(segment).into_parts()
    } else if exact {
        let rest = segment.divide(n).ok()?;
        std::mem::replace(segment, rest).into_parts()
    } else {
        (segment.payload_mut().split_to(n).ok()?, segment.notif().cloned())
    };
    let fragment = chain.into_fragments().next()?;
    let (offset, len) = (fragment.offset() as u32, fragment.len() as u32);
    Some(Part { page: fragment.into_page(), offset, len, notif })
}

impl Part {
    /// Its bytes are gone, and no page with them.
    pub fn free(self, fate: Fate) {
        drop(self.page);
        if let Some(mut notif) = self.notif {
            notif.set_fate(fate);
        }
    }
}

impl Loan {
    fn into_part(self) -> Part {
        let (page, offset, len, notif) = self.into_parts();
        Part { page, offset, len, notif }
    }
}
