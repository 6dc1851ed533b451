//! Descriptors that travel with bytes and records (SCM_RIGHTS, unix(7)).

use crate::ancillary::channel;
use crate::connection::tx::TxRing;
use crate::core::Core;
use onecopy_ring::{Mark, PeerMisbehaved};
use onecopy_socket::{Error, Op, Result, SendFlags};
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::scm::Ucred;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for room for the channel's byte in the control socket, and the pauses in it. There is room
/// unless a peer or a killed process has filled it.
const PATIENCE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(1);

impl TxRing {
    /// Returns the sender's end of the channel, and makes the channel when it is first needed.
    ///
    /// # Errors
    ///
    /// EBUSY if another process has made it; EPIPE, ETOOMANYREFS, EMFILE.
    pub fn channel(&mut self, core: &Core) -> Result<Arc<OwnedFd>> {
        if let Some(channel) = &self.channel {
            return Ok(channel.clone());
        }
        if self.lacks_channel() {
            // The receiver knows of one channel only.
            return Err(Error::new(Op::Send, Errno::BUSY).because(
                "another process that shares this socket since a fork has the channel for descriptors and credentials; \
                 send them there, or send the first of them before forking",
            ));
        }
        self.new_channel(core)
    }

    /// Makes a channel, in place of the one there was, if any.
    fn new_channel(&mut self, core: &Core) -> Result<Arc<OwnedFd>> {
        let (began, before) = (Instant::now(), self.made);
        core.others().have_channel(before.wrapping_add(1));
        match TxRing::make_channel(core, began) {
            Ok(channel) => {
                self.made = before.wrapping_add(1);
                self.producer.header().reader.0.channels.store(self.made, Relaxed);
                point!("channel made");
                Ok(self.channel.insert(Arc::new(channel)).clone())
            }
            Err(error) => {
                core.others().have_channel(before);
                Err(error)
            }
        }
    }

    /// Puts a message into the channel.
    ///
    /// If the channel is full, its receiver is behind. Then this waits, or parks, until the receiver has
    /// given back all of the ring. A receiver that takes a mark or a frame takes its message first, so by
    /// then the channel must be empty. If nobody has the channel's other end any more, the message goes into
    /// a new channel.
    ///
    /// # Errors
    ///
    /// Those of [`TxRing::room`] and [`channel::send`]; EPROTO if the peer takes marks and leaves what they
    /// announce.
    pub fn send_over(
        &mut self,
        core: &Core,
        fds: &[BorrowedFd<'_>],
        who: Option<Ucred>,
        flags: SendFlags,
    ) -> Result<()> {
        // The message belongs to what is published next.
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

    /// Puts descriptors into the channel and lays a mark for them, before the next `len` bytes.
    pub fn mark_fds(
        &mut self,
        core: &Core,
        len: usize,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<()> {
        // There must be room for the mark and for at least one byte, so that the descriptors never come
        // alone. And it must be there before the channel, which is in the receiver's queue from then on.
        let need = self.producer.stride() + 1;
        self.room(core, need, need, flags, &mut None)?;
        self.send_over(core, fds, None, flags)?;
        self.producer.mark(0, Mark::Fds { count: fds.len() as u32, len: len as u64 });
        let stride = self.producer.stride();
        self.producer.publish_marks(stride);
        point!("marked");
        Ok(())
    }

    /// Makes a channel, as [`TxRing::channel`] does, however many processes have one.
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
