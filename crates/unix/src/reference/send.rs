//! Sending by reference.

use super::Lender;
use super::pool::{Bound, Loan, Shared};
use crate::channel;
use crate::end::End;
use crate::tx::{Cursor, Tx, TxRing};
use crate::{Error, Op, Result, SendFlags, control};
use onecopy_ring::Mark;
use rustix::io::Errno;
use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest sleep for a slot before it is looked whether the peer lives.
const LONGEST_SLEEP: Duration = Duration::from_millis(40);

/// A loan that was not sent, or not all of it, and why. The loan comes back; what was sent of it is cut off.
#[derive(Debug)]
pub struct NotSent {
    /// Why.
    pub error: Error,
    /// What was not sent.
    pub loan: Loan,
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NotSent {}

impl From<NotSent> for Error {
    fn from(not: NotSent) -> Error {
        not.error
    }
}

impl From<NotSent> for io::Error {
    fn from(not: NotSent) -> io::Error {
        not.error.into()
    }
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
            Err(error) => return Err(self.not_sent(error, loan, flags)),
        };
        let name = match &mut *tx {
            Tx::Ring(ring) => self.prepare(ring, &loan, flags),
            Tx::Kernel { .. } => Ok(None),
        };
        let result = match (name, &mut *tx) {
            (Err(error), _) => Err(error),
            (Ok(Some(name)), Tx::Ring(ring)) => {
                if let Err(not) = self.publish(ring, name, loan, flags) {
                    drop(tx);
                    return Err(self.not_sent(not.error, not.loan, flags));
                }
                tx.unlock_fenced();
                self.welcome_back();
                // What was published is sent, whatever the bell says.
                let _ = self.ring_if_armed();
                return Ok(len);
            }
            (Ok(_), tx) => {
                let slices = [IoSlice::new(&loan)];
                let mut cursor = Cursor::new(&slices);
                let result = self.send_locked(tx, &mut cursor, flags);
                let sent = len - cursor.left;
                self.counters.references_copied.add(usize::from(sent > 0));
                loan.advance(sent);
                result
            }
        };
        tx.unlock_fenced();
        self.welcome_back();
        match self.ring_if_armed().and(result) {
            Ok(()) if loan.is_empty() => {
                loan.was_copied();
                Ok(len)
            }
            Ok(()) => Err(self.not_sent(Error::new(Op::Send, Errno::AGAIN), loan, flags)),
            Err(error) => Err(self.not_sent(error, loan, flags)),
        }
    }

    #[cold]
    fn not_sent(&self, error: Error, loan: Loan, flags: SendFlags) -> Box<NotSent> {
        let _ = self.finish(Err(error), 0, flags);
        Box::new(NotSent { error, loan })
    }

    /// Everything that may fail or wait before a reference is sent, but for a slot: what it calls its pool. None where the
    /// bytes must be copied.
    fn prepare(self: &Arc<End>, ring: &mut TxRing, loan: &Loan, flags: SendFlags) -> Result<Option<u32>> {
        if loan.is_empty() {
            return Ok(None);
        }
        let shared = loan.pool();
        let name = match shared.bound.get() {
            Some(bound) if self.lender.get().is_some_and(|mine| Arc::ptr_eq(mine, &bound.lender)) => {
                bound.name
            }
            Some(_) => {
                return Err(Error::new(Op::Send, Errno::XDEV).because(
                    "this pool is shared with the peer of another stream, for ever; make one for each peer",
                ));
            }
            None => match self.admit(ring, shared, flags)? {
                Some(bound) => bound.name,
                None => return Ok(None),
            },
        };
        let stride = ring.producer.stride();
        self.room(ring, stride, stride, flags, &mut None)?;
        Ok(Some(name))
    }

    /// Lends the page, and lays the mark.
    fn publish(
        &self,
        ring: &mut TxRing,
        name: u32,
        loan: Loan,
        flags: SendFlags,
    ) -> std::result::Result<(), Box<NotSent>> {
        let Some(lender) = self.lender.get() else {
            return Err(Box::new(NotSent { error: Error::new(Op::Send, Errno::NOTCONN), loan }));
        };
        let (page, offset, len) = (loan.page(), loan.start() as u32, loan.len());
        let slot = match lender.lend(loan) {
            Ok(slot) => slot,
            Err(loan) => {
                if let Err(error) = self.wait_for_slot(lender, flags) {
                    return Err(Box::new(NotSent { error, loan }));
                }
                // Nobody else takes it: the sending side is held.
                lender
                    .lend(loan)
                    .map_err(|loan| Box::new(NotSent { error: Error::new(Op::Send, Errno::AGAIN), loan }))?
            }
        };
        let stride = ring.producer.stride();
        ring.producer.mark(0, Mark::Reference { slot, pool: name, page, offset, len: len as u32 });
        ring.producer.publish_marks(stride);
        self.counters.sent.add_exclusive(len);
        self.counters.referenced.add_exclusive(len);
        Ok(())
    }

    /// Binds a pool to this stream: the peer is sent its memfd. None where the peer maps no such pool.
    #[cold]
    fn admit<'a>(
        self: &Arc<End>,
        ring: &mut TxRing,
        shared: &'a Shared,
        flags: SendFlags,
    ) -> Result<Option<&'a Bound>> {
        let most = ring.producer.header().info.0.max_shared.load(onecopy_sync::atomic::Ordering::Relaxed);
        if shared.bytes() > most {
            return Ok(None);
        }
        let channel = self.channel(ring)?;
        let lender = self
            .lender
            .get_or_init(|| Arc::new(Lender::new(self, ring.producer.ring().clone(), channel)))
            .clone();
        let Some(name) = lender.name_for(shared.bytes()) else { return Ok(None) };
        let stride = ring.producer.stride();
        self.room(ring, stride, stride, flags, &mut None)?;
        let fd = shared.fd().ok_or_else(|| Error::new(Op::Send, Errno::INVAL))?;
        channel::send(rustix::fd::AsFd::as_fd(lender.channel()), &[fd]).map_err(|e| self.no_channel(e))?;
        lender.announced(shared.bytes());
        ring.producer.mark(0, Mark::Pool { pool: name, page_len: shared.page_len, pages: shared.pages });
        ring.producer.publish_marks(stride);
        // Nobody else binds it: a loan is in one hand, but two loans of one pool may be sent over two streams at once.
        if let Err(_taken) = shared.bound.set(Bound { lender, name }) {
            return Err(Error::new(Op::Send, Errno::XDEV).because(
                "this pool was just shared with the peer of another stream; make one for each peer",
            ));
        }
        Ok(shared.bound.get())
    }

    /// All slots are lent: waits until the peer gives one back.
    #[cold]
    fn wait_for_slot(&self, lender: &Lender, flags: SendFlags) -> Result<()> {
        let error = |errno| Error::new(Op::Send, errno);
        let began = Instant::now();
        loop {
            lender.collect(drop).map_err(|_| error(Errno::PROTO))?;
            if lender.has_slot() {
                return Ok(());
            }
            self.check(Op::Send)?;
            if control::cannot_send(self.fd()) {
                return Err(error(Errno::PIPE));
            }
            if flags.contains(SendFlags::DONTWAIT) || self.settings.nonblocking() {
                return Err(error(Errno::AGAIN).because(
                    "the peer holds all the pages that may be lent at once; wait until it gives some back",
                ));
            }
            let left = control::remaining(began, self.settings.write_timeout()).map_err(error)?;
            lender.sleep(left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP)));
        }
    }
}
