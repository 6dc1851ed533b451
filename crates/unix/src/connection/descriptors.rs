//! Sending and receiving with descriptors and credentials.

use crate::ancillary::attached::Ancillary;
use crate::ancillary::attached::SendAncillary;
use crate::ancillary::channel::Fds;
use crate::connection::Connection;
use crate::connection::call::{Call, Cursor};
use crate::connection::received::Received;
use crate::connection::tx::Tx;
use onecopy_ring::record::Identity;
use onecopy_socket::{RecvFlags, Result, SendFlags};
use std::io::{IoSlice, IoSliceMut};

impl Connection {
    /// Sends bytes with descriptors, which arrive with the first of them.
    ///
    /// # Errors
    ///
    /// As [`Connection::send`]; EINVAL for more than 253 descriptors, ETOOMANYREFS, EMFILE.
    pub fn send_msg(
        &self,
        slices: &[IoSlice<'_>],
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        attached.check()?;
        let mut cursor = Cursor::new(slices);
        let total = cursor.left();
        if attached.is_empty() || total == 0 {
            // Without a byte to travel with, a stream drops the descriptors, as Linux does.
            return self.send(slices, flags);
        }
        let result = self.lock_tx(flags).and_then(|mut tx| {
            let result = self.send_with_locked(&mut tx, &mut cursor, attached, flags);
            tx.mirror_full(self);
            tx.unlock_fenced();
            self.welcome_back();
            self.ring_after(cursor.left() < total, result)
        });
        self.finish(result, total - cursor.left(), flags)
    }

    fn send_with_locked(
        &self,
        tx: &mut Tx,
        cursor: &mut Cursor<'_, '_>,
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<()> {
        match tx {
            Tx::Kernel { sent } => {
                let (n, more) = self.send_kernel_with(cursor, attached, flags)?;
                point!("sent over the kernel");
                *sent = sent.saturating_add(n as u64);
                if n == 0 && more {
                    // It is time to switch.
                    self.adopt(tx);
                    return self.send_with_locked(tx, cursor, attached, flags);
                }
                if !more {
                    return Ok(());
                }
            }
            Tx::Ring(ring) => {
                let saying = ring.saying(self, attached.ucred());
                if saying.who != Identity::AsBefore {
                    // A mark of the identity and nothing behind it would be nothing to receive.
                    let marked = if attached.fds.is_empty() { 0 } else { ring.producer.stride() };
                    ring.say(self, saying, marked + 1, flags)?;
                }
                if !attached.fds.is_empty() {
                    ring.mark_fds(self, cursor.left(), attached.fds, flags)?;
                }
                ring.said.set_holds(true);
            }
        }
        let result = if cursor.left() == 0 { Ok(()) } else { self.send_locked(tx, cursor, flags) };
        if let Tx::Ring(ring) = tx {
            ring.said.set_holds(false);
        }
        result
    }

    /// Receives a record and the descriptors that came with it.
    ///
    /// # Errors
    ///
    /// As [`Connection::recv_record`].
    pub fn recv_record_ancillary(
        &self,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<(Received, Ancillary)> {
        let mut fds = Fds::default();
        let mut call = Call::with(&mut fds);
        let received = self.recv_record_with(slices, flags, &mut call)?;
        Ok((received, Ancillary::of(fds, self)))
    }

    /// Receives bytes and the descriptors that came with the first of them.
    ///
    /// # Errors
    ///
    /// As [`Connection::recv`].
    pub fn recv_ancillary(
        &self,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<(usize, Ancillary)> {
        let mut fds = Fds::default();
        let n = self.recv_with(slices, flags, &mut Call::with(&mut fds))?;
        Ok((n, Ancillary::of(fds, self)))
    }
}

#[cfg(test)]
mod tests {
    use super::SendAncillary;
    use crate::connection::Connection;
    use crate::core::kind::Kind;
    use crate::{Config, RecvFlags, SendFlags};
    use rustix::fd::AsFd;
    use rustix::io::Errno;
    use std::io::{IoSlice, IoSliceMut};

    /// A killed peer says nothing in the ring, so it is the channel that fails.
    #[test]
    fn a_peer_killed_before_it_took_descriptors_is_a_broken_pipe_and_one_reset() {
        crate::tests::alone!();
        let (a, b) = Connection::pair(Kind::Stream, &Config::default()).unwrap();
        let flags = SendFlags::DONTWAIT;
        let fd = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(a.send_msg(&[IoSlice::new(b"one")], SendAncillary::fds(&[fd.as_fd()]), flags).unwrap(), 3);
        drop(b);
        for _ in 0..2 {
            let error =
                a.send_msg(&[IoSlice::new(b"two")], SendAncillary::fds(&[fd.as_fd()]), flags).unwrap_err();
            assert_eq!(error.raw_os_error(), Errno::PIPE.raw_os_error());
        }
        let recv = || a.recv(&mut [IoSliceMut::new(&mut [0; 8])], RecvFlags::DONTWAIT);
        assert_eq!(recv().unwrap_err().raw_os_error(), Errno::CONNRESET.raw_os_error());
        assert_eq!(recv().unwrap(), 0);
    }
}
