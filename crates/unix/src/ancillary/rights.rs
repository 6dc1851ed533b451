//! Descriptors that travel with bytes and records (SCM_RIGHTS, unix(7)).

use crate::ancillary::channel;
use crate::connection::core::Core;
use crate::connection::tx::TxRing;
use crate::{Error, Op, Result, SendFlags};
use onecopy_ring::{Mark, PeerMisbehaved};
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::scm::Ucred;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for room for the channel's byte in the control socket, and the pauses in it. There is room unless a
/// peer or a killed process has filled it.
const PATIENCE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(1);

impl TxRing {
    /// The sender's end of the channel, made when it is first needed.
    ///
    /// # Errors
    ///
    /// EBUSY where another process has made it; EPIPE, ETOOMANYREFS, EMFILE.
    pub fn channel(&mut self, core: &Core) -> Result<Arc<OwnedFd>> {
        if let Some(channel) = &self.channel {
            return Ok(channel.clone());
        }
        if self.lacks_channel() {
            // The receiver knows of one only.
            return Err(Error::new(Op::Send, Errno::BUSY).because(
                "another process that shares this socket since a fork has the channel for descriptors and credentials; \
                 send them there, or send the first of them before forking",
            ));
        }
        self.new_channel(core)
    }

    /// Makes one, in the place of what there was, if anything.
    fn new_channel(&mut self, core: &Core) -> Result<Arc<OwnedFd>> {
        let (began, before) = (Instant::now(), self.made);
        core.others.have_channel(before.wrapping_add(1));
        match TxRing::make_channel(core, began) {
            Ok(channel) => {
                self.made = before.wrapping_add(1);
                self.producer.header().reader.0.channels.store(self.made, Relaxed);
                point!("channel made");
                Ok(self.channel.insert(Arc::new(channel)).clone())
            }
            Err(error) => {
                core.others.have_channel(before);
                Err(error)
            }
        }
    }

    /// Puts a message into the channel. Where that is full, its receiver is behind: this waits, or parks, until he has given
    /// back all of the ring. Who takes a mark or a frame takes its message first, so nothing can be left in the channel
    /// then. Where nobody has its other end any more, it goes into a new one.
    ///
    /// # Errors
    ///
    /// As [`Connection::room`] and [`channel::send`]; EPROTO where the peer takes marks and leaves what they announce.
    pub fn send_over(
        &mut self,
        core: &Core,
        fds: &[BorrowedFd<'_>],
        who: Option<Ucred>,
        flags: SendFlags,
    ) -> Result<()> {
        // What it belongs to is published next.
        let number = self.producer.head();
        let (mut channel, mut waited, mut anew) = (self.channel(core)?, false, false);
        loop {
            match channel::send(channel.as_fd(), number, fds, who) {
                Ok(()) => break,
                Err(Errno::AGAIN) if waited => return Err(core.misbehaved(Op::Send, PeerMisbehaved::Channel)),
                Err(Errno::AGAIN) => {
                    let all = self.producer.ring().capacity();
                    self.room(core, all, all, flags, &mut None)?;
                    waited = true;
                }
                Err(errno) if !anew && core.can_go_on(errno) => {
                    channel = self.new_channel(core)?;
                    anew = true;
                }
                Err(errno) => return Err(core.no_channel(errno)),
            }
        }
        point!("sent over");
        Ok(())
    }

    /// Lays a mark for descriptors, which are in the channel, where the next of `len` bytes follow.
    pub fn mark_fds(
        &mut self,
        core: &Core,
        len: usize,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<()> {
        // Room for the mark and for a byte at least, so that the descriptors never come alone; and before the channel, which lies in
        // the receiver's queue from here on.
        let need = self.producer.stride() + 1;
        self.room(core, need, need, flags, &mut None)?;
        self.send_over(core, fds, None, flags)?;
        self.producer.mark(0, Mark::Fds { count: fds.len() as u32, len: len as u64 });
        let stride = self.producer.stride();
        self.producer.publish_marks(stride);
        point!("marked");
        Ok(())
    }

    /// As [`Connection::channel`], however many processes have one.
    fn make_channel(core: &Core, began: Instant) -> Result<OwnedFd> {
        loop {
            match channel::open(core.fd()) {
                Ok(channel) => return Ok(channel),
                Err(Errno::AGAIN | Errno::INTR) if began.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
                Err(Errno::TOOMANYREFS) => return Err(core.no_channel(Errno::TOOMANYREFS)),
                Err(errno) => return Err(core.send_failed(errno)),
            }
        }
    }
}
