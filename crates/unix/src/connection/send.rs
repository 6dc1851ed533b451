//! Sending bytes.
//!
//! [`Connection::send`] takes the sending side, so that whole sends follow one another, and copies the bytes
//! into the peer's ring in pieces. Before the switch it sends them over the kernel instead. The doorbell
//! rings at the end, and in between for each half of a ring.

use crate::connection::Connection;
use crate::connection::call::{Cursor, chunk};
use crate::connection::room::LONGEST_SLEEP;
use crate::connection::side::SideGuard;
use crate::connection::tx::{Tx, TxRing};
use crate::control;
use crate::core::Core;
use onecopy_copy::Store;
use onecopy_socket::{Error, Op, Result, SendFlags};
use rustix::io::Errno;
use std::io::IoSlice;

impl Connection {
    /// Takes the sending side, and switches it to the ring if there is one by now.
    pub fn lock_tx(&self, flags: SendFlags) -> Result<SideGuard<'_, Tx>> {
        let error = |errno| Error::new(Op::Send, errno);
        self.check(Op::Send)?;
        // Acquire pairs with the Release store in `decided_now`: the rings that another thread attaches are
        // there.
        if self.handshake.is_open() {
            self.prepare_to_send()?;
        }
        let mut tx = match self.tx.try_lock() {
            Some(tx) => tx,
            None if self.must_not_wait(flags, &mut false) => {
                self.turn_away();
                self.tx.try_lock().ok_or(error(Errno::AGAIN))?
            }
            None => match self.settings().write_timeout() {
                Some(limit) => self.tx.lock_for(limit).ok_or(error(Errno::AGAIN))?,
                None => self.lock_tx_patiently()?,
            },
        };
        if let Some(misbehaved) = tx.misbehaved() {
            return Err(self.misbehaved(Op::Send, misbehaved));
        }
        self.adopt(&mut tx);
        Ok(tx)
    }

    /// Waits as long as it takes: another process may be asleep for want of room.
    fn lock_tx_patiently(&self) -> Result<SideGuard<'_, Tx>> {
        loop {
            if let Some(tx) = self.tx.lock_within(|| LONGEST_SLEEP) {
                return Ok(tx);
            }
            // The process that holds it may be stopped, or misbehave. Whatever ends a send ends this wait,
            // too.
            if self.cannot_send() {
                self.check(Op::Send)?;
                return Err(self.gone(Op::Send));
            }
        }
    }

    /// Sends the slices one after the other.
    ///
    /// # Errors
    ///
    /// EAGAIN, EPIPE, EINTR, EPROTO. If something was sent before the error, its length is returned instead.
    pub fn send(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        let mut cursor = Cursor::new(slices);
        let total = cursor.left();
        if total == 0 {
            return self.finish(self.send_nothing(), 0, flags);
        }
        let result = self.lock_tx(flags).and_then(|mut tx| {
            let result = self.send_locked(&mut tx, &mut cursor, flags);
            tx.mirror_full(self);
            tx.unlock_fenced();
            self.welcome_back();
            // The last piece was published without a look at the doorbell: unlocking is the fence that the
            // look needs.
            self.ring_after(cursor.left() < total, result)
        });
        let sent = total - cursor.left();
        self.finish(result, sent, flags)
    }

    /// Sends no bytes: queues nothing and rings no doorbell, but reports a peer that is gone.
    #[cold]
    fn send_nothing(&self) -> Result<()> {
        self.check(Op::Send)?;
        if control::cannot_send(self.fd()) { Err(Error::new(Op::Send, Errno::PIPE)) } else { Ok(()) }
    }

    pub fn send_locked(&self, tx: &mut Tx, cursor: &mut Cursor<'_, '_>, flags: SendFlags) -> Result<()> {
        while let Tx::Kernel { sent } = tx {
            let (n, whole) = self.send_kernel(cursor, flags)?;
            *sent = sent.saturating_add(n as u64);
            point!("sent over the kernel");
            if cursor.left() == 0 || !whole {
                return Ok(());
            }
            if self.handshake.is_open() {
                self.prepare_to_go_on()?;
            }
            self.adopt(tx);
        }
        let Tx::Ring(ring) = tx else { return Ok(()) };
        ring.say_identity(self, 1, flags)?;
        ring.send_ring(self, cursor, flags)
    }
}

impl TxRing {
    fn send_ring(&mut self, core: &Core, cursor: &mut Cursor<'_, '_>, flags: SendFlags) -> Result<()> {
        let capacity = self.producer.ring().capacity();
        let chunk = chunk(capacity);
        let mut start = None;
        let mut unrung = 0;
        while cursor.left() > 0 {
            let want = cursor.left().min(chunk);
            let room = self.room(core, want, 1, flags, &mut start)?;
            let n = room.min(want);
            let mut at = 0;
            while at < n {
                let piece = cursor.next(n - at);
                let hint = self.hint(core, flags, piece.len());
                let store = self.producer.copy_in(at, piece, hint);
                if store == Store::NonTemporal {
                    core.counters().user_copied_nt.add_exclusive(piece.len());
                }
                at += piece.len();
            }
            point!("copied in");
            core.counters().user_copied_in.add_exclusive(n);
            core.counters().sent.add_exclusive(n);
            self.producer.publish(n);
            point!("published");
            unrung += n;
            if cursor.left() > 0 && unrung >= capacity / 2 {
                // A receiver that is awake sees each piece at once. One that sleeps is worth waking for half
                // a ring, not for each piece. This is an early look, without the fence. A receiver that arms
                // at this very moment is seen half a ring later, or before this sender waits for room, or
                // after it unlocks. With the fence, the sender would wait for the head's cache line to come
                // from the receiver's cache.
                core.ring_under_lock()?;
                unrung = 0;
            }
        }
        self.sent();
        Ok(())
    }
}
