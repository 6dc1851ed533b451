//! Descriptors that travel with bytes and records (SCM_RIGHTS, unix(7)).

use crate::channel::{self, Fds, MAX_FDS};
use crate::end::End;
use crate::making::Kind;
use crate::receive::Call;
use crate::tx::{Cursor, Tx, TxRing};
use crate::{Credentials, Error, Name, Op, Received, RecvFlags, Result, SendFlags};
use onecopy_ring::record::{Who, With};
use onecopy_ring::{Lie, Mark};
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::scm::Ucred;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What came with a receive besides bytes.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Ancillary {
    /// Descriptors, with close-on-exec set.
    pub fds: Vec<OwnedFd>,
    /// Some descriptors were lost, because this process could open no more (MSG_CTRUNC).
    pub truncated: bool,
    /// Who sent (SCM_CREDENTIALS), where [`Stream::set_pass_credentials`](crate::Stream::set_pass_credentials) or its like
    /// asks for it: the process, user and group. What of them can be relied on is said there.
    pub credentials: Option<Credentials>,
    /// The sender's process (SCM_PIDFD), where [`Stream::set_pass_pidfd`](crate::Stream::set_pass_pidfd) or its like asks
    /// for it and the kernel gives it.
    pub pidfd: Option<OwnedFd>,
}

impl Ancillary {
    fn of(fds: Fds, end: &End) -> Ancillary {
        let who = fds.who.filter(|_| end.passes_credentials()).map(Credentials::from);
        Ancillary { fds: fds.list, truncated: fds.truncated, credentials: who, pidfd: fds.pidfd }
    }
}

/// What a send takes along besides bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attached<'a> {
    pub fds: &'a [BorrowedFd<'a>],
    /// Who the sender claims to be.
    pub who: Option<Ucred>,
}

impl<'a> Attached<'a> {
    /// Descriptors.
    pub fn fds(fds: &'a [BorrowedFd<'a>]) -> Attached<'a> {
        Attached { fds, who: None }
    }

    /// Whether it can be sent.
    ///
    /// # Errors
    ///
    /// EINVAL.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.fds.len() > MAX_FDS {
            return Err(Error::new(Op::Send, Errno::INVAL)
                .about("fds")
                .because("at most 253 descriptors go with one send; send the rest with another byte"));
        }
        Ok(())
    }

    /// What a frame with it says.
    #[inline]
    pub fn with(&self, who: Who) -> With {
        // At most MAX_FDS, as was checked.
        With::new(self.fds.len() as u8, who)
    }
}

/// Longest wait for room for the channel's byte in the control socket, and the pauses in it. There is room unless a
/// peer or a killed process has filled it.
const PATIENCE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(1);

impl End {
    /// Sends bytes with descriptors, which arrive with the first of them.
    ///
    /// # Errors
    ///
    /// As [`End::send`]; EINVAL for more than 253 descriptors, ETOOMANYREFS, EMFILE.
    pub fn send_with(&self, bytes: &[u8], attached: Attached<'_>, flags: SendFlags) -> Result<usize> {
        let slices = [IoSlice::new(bytes)];
        attached.check()?;
        if (attached.fds.is_empty() && attached.who.is_none()) || bytes.is_empty() {
            // Without a byte to travel with, a stream drops them, as Linux does.
            return self.send(&slices, flags);
        }
        let mut cursor = Cursor::new(&slices);
        let result = self.lock_tx(flags).and_then(|mut tx| {
            let result = self.send_with_locked(&mut tx, &mut cursor, attached, flags);
            self.mirror_full(&mut tx);
            tx.unlock_fenced();
            self.welcome_back();
            self.ring_after(cursor.left < bytes.len(), result)
        });
        self.finish(result, bytes.len() - cursor.left, flags)
    }

    fn send_with_locked(
        &self,
        tx: &mut Tx,
        cursor: &mut Cursor<'_, '_>,
        attached: Attached<'_>,
        flags: SendFlags,
    ) -> Result<()> {
        match tx {
            Tx::Kernel { sent } => {
                let (n, more) = self.send_kernel(cursor, attached, flags)?;
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
                let saying = self.saying(ring, attached.who);
                if saying.who != Who::AsBefore {
                    // What is said, and no more, would be nothing to be received.
                    let marked = if attached.fds.is_empty() { 0 } else { ring.producer.stride() };
                    self.say(ring, saying, marked + 1, flags)?;
                }
                if !attached.fds.is_empty() {
                    self.mark_fds(ring, cursor.left, attached.fds, flags)?;
                }
                ring.said.holds = true;
            }
        }
        let result = if cursor.left == 0 { Ok(()) } else { self.send_locked(tx, cursor, flags) };
        if let Tx::Ring(ring) = tx {
            ring.said.holds = false;
        }
        result
    }

    /// Lays a mark for descriptors, which are in the channel, where the next of `len` bytes follow.
    fn mark_fds(
        &self,
        ring: &mut TxRing,
        len: usize,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<()> {
        // Room for the mark and for a byte at least, so that the descriptors never come alone; and before the channel, which lies in
        // the receiver's queue from here on.
        let need = ring.producer.stride() + 1;
        self.room(ring, need, need, flags, &mut None)?;
        self.send_over(ring, fds, None, flags)?;
        ring.producer.mark(0, Mark::Fds { count: fds.len() as u32, len: len as u64 });
        let stride = ring.producer.stride();
        ring.producer.publish_marks(stride);
        point!("marked");
        Ok(())
    }

    /// The sender's end of the channel, made when it is first needed.
    ///
    /// # Errors
    ///
    /// EBUSY where another process has made it; EPIPE, ETOOMANYREFS, EMFILE.
    pub fn channel(&self, ring: &mut TxRing) -> Result<Arc<OwnedFd>> {
        if let Some(channel) = &ring.channel {
            return Ok(channel.clone());
        }
        if ring.lacks_channel() {
            // The receiver knows of one only.
            return Err(Error::new(Op::Send, Errno::BUSY).because(
                "another process that shares this socket since a fork has the channel for descriptors and credentials; \
                 send them there, or send the first of them before forking",
            ));
        }
        self.new_channel(ring)
    }

    /// Makes one, in the place of what there was, if anything.
    fn new_channel(&self, ring: &mut TxRing) -> Result<Arc<OwnedFd>> {
        let (began, before) = (Instant::now(), ring.made);
        // The receiver takes one only while that lives: who is killed with it made must not leave others to make another.
        let tell = |made| {
            if let Some(sharing) = self.sharing.get() {
                sharing.words().about.0.channel.store(made, Relaxed);
            }
        };
        tell(before.wrapping_add(1));
        match self.make_channel(began) {
            Ok(channel) => {
                ring.made = before.wrapping_add(1);
                ring.producer.header().reader.0.channels.store(ring.made, Relaxed);
                point!("channel made");
                Ok(ring.channel.insert(Arc::new(channel)).clone())
            }
            Err(error) => {
                tell(before);
                Err(error)
            }
        }
    }

    /// Whether a channel that failed has gone with the process that had it, of several that share the other end: the connection
    /// lives.
    fn can_go_on(&self, errno: Errno) -> bool {
        matches!(errno, Errno::PIPE | Errno::CONNRESET) && self.kind != Kind::Datagram && !self.cannot_send()
    }

    /// As [`End::channel`], however many processes have one.
    fn make_channel(&self, began: Instant) -> Result<OwnedFd> {
        loop {
            match channel::open(self.fd()) {
                Ok(channel) => return Ok(channel),
                Err(Errno::AGAIN | Errno::INTR) if began.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
                Err(Errno::TOOMANYREFS) => return Err(self.no_channel(Errno::TOOMANYREFS)),
                Err(errno) => return Err(self.send_failed(errno)),
            }
        }
    }

    /// Puts a message into the channel. Where that is full, its receiver is behind: this waits, or parks, until he has given
    /// back all of the ring. Who takes a mark or a frame takes its message first, so nothing can be left in the channel
    /// then. Where nobody has its other end any more, it goes into a new one.
    ///
    /// # Errors
    ///
    /// As [`End::room`] and [`channel::send`]; EPROTO where the peer takes marks and leaves what they announce.
    pub fn send_over(
        &self,
        ring: &mut TxRing,
        fds: &[BorrowedFd<'_>],
        who: Option<Ucred>,
        flags: SendFlags,
    ) -> Result<()> {
        // What it belongs to is published next.
        let number = ring.producer.head();
        let (mut channel, mut waited, mut anew) = (self.channel(ring)?, false, false);
        loop {
            match channel::send(channel.as_fd(), number, fds, who) {
                Ok(()) => break,
                Err(Errno::AGAIN) if waited => return Err(self.lie(Op::Send, Lie::Channel)),
                Err(Errno::AGAIN) => {
                    let all = ring.producer.ring().capacity();
                    self.room(ring, all, all, flags, &mut None)?;
                    waited = true;
                }
                Err(errno) if !anew && self.can_go_on(errno) => {
                    channel = self.new_channel(ring)?;
                    anew = true;
                }
                Err(errno) => return Err(self.no_channel(errno)),
            }
        }
        point!("sent over");
        Ok(())
    }

    /// What a send says where the channel failed it.
    pub fn no_channel(&self, errno: Errno) -> Error {
        // The channel is a connection of its own, whose reset says no more than that the peer is gone.
        let errno = if errno == Errno::CONNRESET { Errno::PIPE } else { errno };
        let error = Error::new(Op::Send, errno);
        match errno {
            Errno::PERM => {
                error.about("who").because("a sender may only claim what it is; more takes a privilege")
            }
            _ => error,
        }
    }

    /// Receives a record and the descriptors that came with it.
    ///
    /// # Errors
    ///
    /// As [`End::recv_record`].
    pub fn recv_record_ancillary(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> Result<(Received, Ancillary)> {
        let mut fds = Fds::default();
        let mut call = Call::with(&mut fds);
        let received = self.recv_record_with(&mut [IoSliceMut::new(buffer)], flags, &mut call)?;
        Ok((received, Ancillary::of(fds, self)))
    }

    /// Receives a datagram, the descriptors that came with it, and its sender's name.
    ///
    /// # Errors
    ///
    /// As [`End::recv_datagram`].
    pub fn recv_datagram_ancillary(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> Result<(Received, Ancillary, Name)> {
        let (mut fds, mut from) = (Fds::default(), Name::unnamed());
        let slices = &mut [IoSliceMut::new(buffer)];
        let received = self.recv_datagram(slices, flags, Some(&mut from), &mut Call::with(&mut fds))?;
        Ok((received, Ancillary::of(fds, self), from))
    }

    /// Receives bytes and the descriptors that came with the first of them.
    ///
    /// # Errors
    ///
    /// As [`End::recv`].
    pub fn recv_ancillary(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<(usize, Ancillary)> {
        let mut fds = Fds::default();
        let n = self.recv_with(&mut [IoSliceMut::new(buffer)], flags, &mut Call::with(&mut fds))?;
        Ok((n, Ancillary::of(fds, self)))
    }
}

#[cfg(test)]
mod tests {
    use super::Attached;
    use crate::end::End;
    use crate::making::Kind;
    use crate::{Config, RecvFlags, SendFlags};
    use rustix::fd::AsFd;
    use rustix::io::Errno;
    use std::io::IoSliceMut;

    /// A killed peer says nothing in the ring, so it is the channel that fails.
    #[test]
    fn a_peer_killed_before_it_took_descriptors_is_a_broken_pipe_and_one_reset() {
        crate::tests::alone!();
        let (a, b) = End::pair(Kind::Stream, &Config::default()).unwrap();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let fd = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(a.send_with(b"one", Attached::fds(&[fd.as_fd()]), flags).unwrap(), 3);
        drop(b);
        for _ in 0..2 {
            let error = a.send_with(b"two", Attached::fds(&[fd.as_fd()]), flags).unwrap_err();
            assert_eq!(error.raw_os_error(), Errno::PIPE.raw_os_error());
        }
        let recv = || a.recv(&mut [IoSliceMut::new(&mut [0; 8])], RecvFlags::DONTWAIT);
        assert_eq!(recv().unwrap_err().raw_os_error(), Errno::CONNRESET.raw_os_error());
        assert_eq!(recv().unwrap(), 0);
    }
}
