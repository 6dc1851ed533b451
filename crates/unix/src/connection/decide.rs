//! The steps of the upgrade that need both directions of the connection, and their locks.

use crate::connection::Connection;
use crate::connection::rx::Rx;
use crate::connection::side::SideGuard;
use crate::connection::tx::Tx;
use crate::handshake::upgrade::offered;
use crate::members::patience::BRIEFLY;
use onecopy_socket::{Error, Op, Result};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

impl Connection {
    /// As [`Handshake::is_joined`](crate::handshake::upgrade::Handshake::is_joined).
    pub fn is_joined(&self, rx: &mut Rx) -> bool {
        self.handshake.is_joined(self, rx)
    }

    /// As [`Handshake::decide`](crate::handshake::upgrade::Handshake::decide).
    pub fn decide(&self, rx: &mut Rx, op: Op) -> Result<()> {
        let offered = self.handshake.decide(self, rx, op)?;
        self.adopt_if_free(offered);
        Ok(())
    }

    /// As [`Handshake::received_over_kernel`](crate::handshake::upgrade::Handshake::received_over_kernel).
    pub fn received_over_kernel(
        &self,
        rx: &mut Rx,
        count: u64,
        rings: Option<OwnedFd>,
        op: Op,
    ) -> Result<()> {
        let offered = self.handshake.received_over_kernel(self, rx, count, rings, op)?;
        self.adopt_if_free(offered);
        Ok(())
    }

    /// Switches the sending side to the ring that it was offered: at once if the side is free, else before
    /// its next bytes.
    pub(super) fn adopt_if_free(&self, offered: bool) {
        if offered && let Some(mut tx) = self.tx.try_lock() {
            self.adopt(&mut tx);
            tx.unlock_fenced();
            self.welcome_back();
        }
    }

    /// As [`Handshake::adopt`](crate::handshake::upgrade::Handshake::adopt).
    pub fn adopt(&self, tx: &mut Tx) {
        self.handshake.adopt(self, tx);
    }

    /// As [`Handshake::decided_now`](crate::handshake::upgrade::Handshake::decided_now).
    pub fn decided_now(&self) {
        self.handshake.decided_now();
    }

    /// As [`Handshake::decline_offer`](crate::handshake::upgrade::Handshake::decline_offer).
    pub fn decline_offer(&self) {
        self.handshake.decline_offer();
    }

    /// As [`Handshake::waits_to_switch`](crate::handshake::upgrade::Handshake::waits_to_switch).
    pub fn waits_to_switch(&self) -> bool {
        self.handshake.waits_to_switch()
    }

    /// Whether rings go to the peer with the next bytes that are sent.
    pub fn is_to_attach(&self) -> bool {
        self.handshake.offered() == offered::ATTACH
    }

    /// Looks before a send for the peer's rings, while it is not known what the peer is. Else attaches rings
    /// where this side may. A client that only ever sends would stay with the kernel otherwise.
    pub fn prepare_to_send(&self) -> Result<()> {
        match self.rx.lock_within(|| BRIEFLY) {
            Some(rx) => self.prepare(rx),
            None => Ok(()),
        }
    }

    /// Does as [`Connection::prepare_to_send`] in the middle of a send. It holds the sending side, so it does
    /// not wait for a thread that receives just now.
    pub fn prepare_to_go_on(&self) -> Result<()> {
        self.rx.try_lock().map_or(Ok(()), |rx| self.prepare(rx))
    }

    /// Checks that the connection is the kernel's alone, now and from here on.
    ///
    /// # Errors
    ///
    /// EBUSY: other processes share it. EAGAIN: it may still move to shared memory. EOPNOTSUPP: it has.
    pub fn is_plain(&self) -> Result<()> {
        self.check(Op::Pass)?;
        let refuse = |errno, why| Err(Error::new(Op::Pass, errno).because(why));
        if self.others().were_there() {
            return refuse(
                Errno::BUSY,
                "other processes hold it, or did; make a plain socket in this process",
            );
        }
        let mut rx = self.lock_rx(Op::Pass)?;
        self.decide(&mut rx, Op::Pass)?;
        match &*rx {
            Rx::Plain => Ok(()),
            Rx::Undecided(undecided) if !undecided.looks() && undecided.attached().is_none() => Ok(()),
            Rx::Undecided(_) => refuse(
                Errno::AGAIN,
                "it may still move to shared memory, and has since its peer's first bytes or never; make it with \
                 Transport::Kernel to keep it a plain socket",
            ),
            _ => refuse(
                Errno::OPNOTSUPP,
                "it has moved to shared memory, which no plain socket has; make it with Transport::Kernel",
            ),
        }
    }

    fn prepare(&self, mut rx: SideGuard<'_, Rx>) -> Result<()> {
        self.decide(&mut rx, Op::Send)?;
        if !rx.is_shared() && !self.others().are_there() {
            self.handshake.attach_rings(self, &mut rx, false);
        }
        if !matches!(&*rx, Rx::Undecided(_)) {
            // Maybe another process has decided. This store may replace an earlier one before a sender has seen
            // that.
            self.handshake.decided_now();
        }
        Ok(())
    }
}
