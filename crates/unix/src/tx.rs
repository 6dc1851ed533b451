//! The sending side: straight into the peer's ring, whole sends one after the other, and sleeping for room.

use crate::control;
use crate::end::End;
use crate::making::Kind;
use crate::receive::{IOV_MAX, chunk};
use crate::reference::Slots;
use crate::rights::Attached;
use crate::side::SideGuard;
use crate::upgrade::offered;
use crate::who::Said;
use crate::{Error, Op, Policy, Result, SendFlags, Wait};
use onecopy_copy::{Hint, Store};
use onecopy_ring::record::{Frame, With};
use onecopy_ring::{Lie, Producer, Ring};
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use onecopy_sync::atomic::fence;
use onecopy_sync::clock::coarse_ms;
use onecopy_sync::spin::{self, Adaptive};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the sending side is at.
#[derive(Debug)]
pub enum Tx {
    /// Over the kernel.
    Kernel {
        /// Bytes of the stream, or records, sent so far; [`UNKNOWN`] after the death of a process that was sending.
        sent: u64,
    },
    /// Through the peer's ring.
    Ring(TxRing),
}

/// It is not known how much was sent: the direction stays with the kernel.
pub const UNKNOWN: u64 = u64::MAX;

/// Through the peer's ring.
#[derive(Debug)]
pub struct TxRing {
    pub producer: Producer,
    spin: Adaptive,
    /// When it was last seen that the peer lives, in coarse milliseconds.
    checked: u64,
    /// This end of the channel for descriptors, once it was needed.
    pub channel: Option<Arc<OwnedFd>>,
    /// How many of them were made, by whichever process. The last one is here, or another process has it.
    pub made: u32,
    /// What the receiver was told of who sends.
    pub said: Said,
    /// Where pages are put that are lent, once some were.
    pub slots: Option<Slots>,
}

/// A send's wait for room.
#[derive(Debug)]
pub struct Waited {
    /// For the timeout.
    began: Instant,
    /// Whether the kernel was asked for O_NONBLOCK.
    asked: bool,
}

/// How long a sender with room may believe that the peer lives: a killed one is noticed within twice this.
const CHECK_MS: u64 = 40;
/// Longest sleep for room before the peer is looked at again, for shutdowns made behind our back.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);
/// Longest piece sent over the kernel before it is looked whether the ring is there.
const KERNEL_PIECE: usize = 64 << 10;

impl Tx {
    pub fn ring(producer: Producer) -> Tx {
        Tx::ring_with(producer, None)
    }

    /// What goes besides bytes does so through `channel`, if that is there already.
    pub fn ring_with(producer: Producer, channel: Option<Arc<OwnedFd>>) -> Tx {
        Tx::Ring(TxRing {
            producer,
            spin: Adaptive::default(),
            checked: coarse_ms(),
            channel,
            made: 0,
            said: Said::default(),
            slots: None,
        })
    }
}

impl TxRing {
    /// So many channels were made: what this process has is the last one, or none any more.
    pub fn learn_channel(&mut self, made: u32) {
        if self.made != made {
            (self.channel, self.made) = (None, made);
        }
    }

    /// It was given the channel that was made as number `made`, if there is one.
    pub fn has_channel(&mut self, channel: Option<OwnedFd>, made: u32) {
        if channel.is_some() {
            (self.channel, self.made) = (channel.map(Arc::new), made);
        }
    }

    /// Whether another process has the channel, and this one not.
    pub fn lacks_channel(&self) -> bool {
        self.made > 0 && self.channel.is_none()
    }

    /// Room that wakes a sender for the ring as a whole: a quarter.
    fn low_water(&self) -> usize {
        self.producer.ring().capacity() / 4
    }
}

/// The parts of a vectored send that are not sent yet.
pub struct Cursor<'a, 'b> {
    slices: &'a [IoSlice<'b>],
    /// Bytes of the first slice that are done.
    done: usize,
    pub left: usize,
}

impl<'a, 'b> Cursor<'a, 'b> {
    pub fn new(slices: &'a [IoSlice<'b>]) -> Self {
        Cursor { slices, done: 0, left: slices.iter().map(|slice| slice.len()).sum() }
    }

    /// The next at most `max` bytes that lie together. Never empty while something is left.
    pub fn next(&mut self, max: usize) -> &'a [u8] {
        while let Some(first) = self.slices.first() {
            let rest = &first[self.done..];
            if rest.is_empty() {
                self.slices = &self.slices[1..];
                self.done = 0;
                continue;
            }
            let n = rest.len().min(max);
            self.done += n;
            self.left -= n;
            return &rest[..n];
        }
        &[]
    }

    /// The next at most `max` bytes, in pieces, for one system call. Does not move on.
    pub fn pieces(&self, max: usize) -> Vec<IoSlice<'a>> {
        let mut left = max;
        let mut pieces = Vec::new();
        for (i, slice) in self.slices.iter().enumerate() {
            let rest = if i == 0 { &slice[self.done..] } else { &slice[..] };
            if left == 0 || pieces.len() == IOV_MAX {
                break;
            }
            if rest.is_empty() {
                continue;
            }
            let n = rest.len().min(left);
            left -= n;
            // The slice behind an `&'a IoSlice` lives for 'a.
            pieces.push(IoSlice::new(&rest[..n]));
        }
        pieces
    }

    pub fn advance(&mut self, mut count: usize) {
        while count > 0 {
            count -= self.next(count).len();
        }
    }
}

impl End {
    /// Whether a send that is about to wait must not. It asks once: one that has waited goes on, as in the kernel.
    pub fn must_not_wait(&self, flags: SendFlags, asked: &mut bool) -> bool {
        flags.contains(SendFlags::DONTWAIT) || !std::mem::replace(asked, true) && self.is_nonblocking()
    }

    /// Takes the sending side, on the newest way there is.
    pub fn lock_tx(&self, flags: SendFlags) -> Result<SideGuard<'_, Tx>> {
        let error = |errno| Error::new(Op::Send, errno);
        self.check(Op::Send)?;
        // Acquire pairs with the Release store in `decided_now`: the rings that another thread attaches are there.
        if self.undecided.load(Acquire) != 0 {
            self.prepare_to_send()?;
        }
        let mut tx = match self.tx.try_lock() {
            Some(tx) => tx,
            None if self.must_not_wait(flags, &mut false) => {
                self.turn_away();
                self.tx.try_lock().ok_or(error(Errno::AGAIN))?
            }
            None => match self.settings.write_timeout() {
                Some(limit) => self.tx.lock_for(limit).ok_or(error(Errno::AGAIN))?,
                None => self.lock_tx_patiently()?,
            },
        };
        if let Some(lie) = tx.lie() {
            return Err(self.lie(Op::Send, lie));
        }
        self.adopt(&mut tx);
        Ok(tx)
    }

    /// As long as it takes: another process may be asleep for want of room.
    fn lock_tx_patiently(&self) -> Result<SideGuard<'_, Tx>> {
        loop {
            if let Some(tx) = self.tx.lock_within(|| LONGEST_SLEEP) {
                return Ok(tx);
            }
            // It may be stopped, or mean ill. What ends a send ends this, too.
            if self.cannot_send() {
                self.check(Op::Send)?;
                return Err(self.gone(Op::Send));
            }
        }
    }

    /// How copies into the ring are made.
    pub fn hint(&self, flags: SendFlags, footprint: usize) -> Hint {
        let policy =
            if flags.contains(SendFlags::NTCOPY) { Policy::NonTemporal } else { self.settings.policy() };
        Hint { policy, footprint, reader: self.settings.reader() }
    }

    /// Sends the slices one after the other.
    ///
    /// # Errors
    ///
    /// EAGAIN, EPIPE, EINTR, EPROTO; where something was sent before, its length instead.
    pub fn send(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        let mut cursor = Cursor::new(slices);
        let total = cursor.left;
        if total == 0 {
            return self.finish(self.send_nothing(), 0, flags);
        }
        let result = self.lock_tx(flags).and_then(|mut tx| {
            let result = self.send_locked(&mut tx, &mut cursor, flags);
            self.mirror_full(&mut tx);
            tx.unlock_fenced();
            self.welcome_back();
            // The last piece was published without a look at the bell: unlocking is the fence that it wants.
            self.ring_after(cursor.left < total, result)
        });
        let sent = total - cursor.left;
        self.finish(result, sent, flags)
    }

    /// Nothing is queued, and no bell rung, but a dead peer is told.
    #[cold]
    fn send_nothing(&self) -> Result<()> {
        self.check(Op::Send)?;
        if control::cannot_send(self.fd()) { Err(Error::new(Op::Send, Errno::PIPE)) } else { Ok(()) }
    }

    /// What a send returns: a count if anything was sent, else the error; with SIGPIPE where send(2) raises it.
    pub fn finish(&self, result: Result<()>, sent: usize, flags: SendFlags) -> Result<usize> {
        match result {
            Err(error) if sent == 0 => {
                // (Of streams only: net/unix/af_unix.c, unix_dgram_sendmsg, which records go through, sends none.)
                if error.raw_os_error() == Errno::PIPE.raw_os_error()
                    && !flags.contains(SendFlags::NOSIGNAL)
                    && self.kind == Kind::Stream
                {
                    control::raise_sigpipe(self.fd());
                }
                Err(error)
            }
            _ => Ok(sent),
        }
    }

    pub fn send_locked(&self, tx: &mut Tx, cursor: &mut Cursor<'_, '_>, flags: SendFlags) -> Result<()> {
        while let Tx::Kernel { sent } = tx {
            let (n, whole) = self.send_kernel(cursor, Attached::default(), flags)?;
            *sent = sent.saturating_add(n as u64);
            point!("sent over the kernel");
            if cursor.left == 0 || !whole {
                return Ok(());
            }
            if self.undecided.load(Relaxed) != 0 {
                self.prepare_to_go_on()?;
            }
            self.adopt(tx);
        }
        let Tx::Ring(ring) = tx else { return Ok(()) };
        self.say_who(ring, 1, flags)?;
        self.send_ring(ring, cursor, flags)
    }

    /// Sends the next bytes over the kernel, with what is `attached` to them. Returns how many, and whether there is more to be
    /// done: a short count ends the send.
    pub fn send_kernel(
        &self,
        cursor: &mut Cursor<'_, '_>,
        attached: Attached<'_>,
        flags: SendFlags,
    ) -> Result<(usize, bool)> {
        // Where the ring may come at any moment, a long send is cut, so that its rest can go there. (Acquire pairs with the
        // Release store in `decided_now`.)
        let may_switch = self.undecided.load(Acquire) != 0 || self.offered.load(Relaxed) != offered::NONE;
        let pieces = cursor.pieces(if may_switch { KERNEL_PIECE } else { usize::MAX });
        let waits = self.waits_to_switch();
        let n = match self.send_message(&pieces, attached, self.kernel_flags(flags)) {
            Err(Errno::AGAIN) if waits => {
                self.wait_to_switch(flags)?;
                return Ok((0, true));
            }
            sent => sent.map_err(|errno| match errno {
                Errno::PERM if attached.who.is_some() => self.no_channel(errno),
                errno => Error::new(Op::Send, errno),
            })?,
        };
        cursor.advance(n);
        self.counters.sent.add_exclusive(n);
        self.counters.kernel_copied.add(n);
        Ok((n, waits || n == pieces.iter().map(|piece| piece.len()).sum::<usize>()))
    }

    /// How the kernel is to send: a send that would switch does not sleep for room in the kernel's queue.
    pub fn kernel_flags(&self, flags: SendFlags) -> rustix::net::SendFlags {
        let mut kernel = rustix::net::SendFlags::NOSIGNAL;
        let dontwait = flags.contains(SendFlags::DONTWAIT) || self.waits_to_switch();
        kernel.set(rustix::net::SendFlags::DONTWAIT, dontwait);
        kernel
    }

    /// The kernel's queue is full of what was sent before the switch: waits until there is room behind it.
    ///
    /// # Errors
    ///
    /// EAGAIN, EINTR.
    #[cold]
    pub fn wait_to_switch(&self, flags: SendFlags) -> Result<()> {
        let dontwait = self.must_not_wait(flags, &mut false);
        let limit = if dontwait { Some(Duration::ZERO) } else { self.settings.write_timeout() };
        control::wait(self.fd(), PollFlags::OUT, limit).map(drop).map_err(|errno| Error::new(Op::Send, errno))
    }

    fn send_ring(&self, ring: &mut TxRing, cursor: &mut Cursor<'_, '_>, flags: SendFlags) -> Result<()> {
        let capacity = ring.producer.ring().capacity();
        let chunk = chunk(capacity);
        let hint = self.hint(flags, capacity);
        let mut start = None;
        let mut unrung = 0;
        while cursor.left > 0 {
            let want = cursor.left.min(chunk);
            let room = self.room(ring, want, 1, flags, &mut start)?;
            let n = room.min(want);
            let mut at = 0;
            while at < n {
                let piece = cursor.next(n - at);
                let store = ring.producer.copy_in(at, piece, hint);
                if store == Store::NonTemporal {
                    self.counters.user_copied_nt.add_exclusive(piece.len());
                }
                at += piece.len();
            }
            point!("copied in");
            self.counters.user_copied_in.add_exclusive(n);
            self.counters.sent.add_exclusive(n);
            ring.producer.publish(n);
            point!("published");
            unrung += n;
            if cursor.left > 0 && unrung >= capacity / 2 {
                // A receiver that is awake sees each piece at once; one that sleeps is worth waking for half a ring,
                // not for each piece. This is an early look, without the fence: a receiver that arms at this very
                // moment is seen half a ring later, or before waiting for room, or after unlocking. With it,
                // the sender would wait for the head's line to come from the receiver's cache.
                self.ring_under_lock()?;
                unrung = 0;
            }
        }
        Ok(())
    }

    /// After a send that published something, or nothing: then a bell would be for nothing, and to a peer that is gone none at
    /// all.
    #[inline]
    pub fn ring_after(&self, published: bool, result: Result<()>) -> Result<()> {
        if published { self.ring_if_armed().and(result) } else { result }
    }

    /// Rings the bell if the receiver armed it, after publishing and unlocking, which is the full fence that it takes.
    #[inline]
    pub fn ring_if_armed(&self) -> Result<()> {
        match self.tx_ring.get() {
            Some(ring) if ring.header().is_armed() => self.ring_armed(ring),
            _ => Ok(()),
        }
    }

    #[inline(never)]
    fn ring_armed(&self, ring: &Ring) -> Result<()> {
        // Where processes share this side, who unlocked has rung before (`side.rs`).
        if !self.sharing.get().is_some_and(|sharing| sharing.sends()) && ring.header().must_ring() {
            return self.ring_bell().map_err(|errno| self.send_failed(errno));
        }
        Ok(())
    }

    /// Waits for room: at least `least` bytes, and looks for `want`. Returns bytes of room.
    ///
    /// # Errors
    ///
    /// EAGAIN, EPIPE, EINTR, EPROTO.
    pub fn room(
        &self,
        ring: &mut TxRing,
        want: usize,
        least: usize,
        flags: SendFlags,
        waited: &mut Option<Waited>,
    ) -> Result<usize> {
        self.check_peer(ring)?;
        let room = ring.producer.room(want).map_err(|lie| self.lie(Op::Send, lie))?;
        if room >= least {
            return Ok(room);
        }
        // What was published so far must wake the receiver before this side waits for it.
        fence(SeqCst);
        self.ring_under_lock()?;
        if flags.contains(SendFlags::DONTWAIT) {
            return self.no_room(ring, want, least);
        }
        let waited = waited.get_or_insert_with(|| Waited { began: Instant::now(), asked: false });
        // Who is remembered not to wait does not spin first.
        if self.settings.nonblocking() && self.must_not_wait(flags, &mut waited.asked) {
            return self.no_room(ring, want, least);
        }
        self.sleep_for_room(ring, want, least, flags, waited)
    }

    /// For who does not wait: from here on the socket is not writable until there is room.
    fn no_room(&self, ring: &mut TxRing, want: usize, least: usize) -> Result<usize> {
        let wanted = least.max(ring.low_water());
        self.park(ring, wanted)?;
        let room = ring.producer.room(want).map_err(|lie| self.lie(Op::Send, lie))?;
        if room >= least { Ok(room) } else { Err(Error::new(Op::Send, Errno::AGAIN)) }
    }

    #[cold]
    fn sleep_for_room(
        &self,
        ring: &mut TxRing,
        want: usize,
        least: usize,
        flags: SendFlags,
        waited: &mut Waited,
    ) -> Result<usize> {
        let error = |errno| Error::new(Op::Send, errno);
        let lie = |lie: Lie| self.lie(Op::Send, lie);
        let limit = self.settings.write_timeout();
        // A little room is not worth a wake-up.
        let wanted = least.max(ring.low_water().min(want));
        let mut slept = false;
        loop {
            let budget = match self.settings.wait() {
                Wait::Block => 0,
                Wait::Spin => 1_000_000,
                Wait::Adaptive if slept => 0,
                Wait::Adaptive => ring.spin.budget(),
            };
            if budget > 0 {
                let producer = &mut ring.producer;
                // A lie ends the spin too, and is found by the look below.
                let spun = spin::until(budget, || producer.room(wanted).map_or(true, |room| room >= wanted));
                match spun {
                    Ok(took) => {
                        ring.spin.paid(took);
                        self.counters.room_spins.add_exclusive(1);
                    }
                    Err(_) => ring.spin.in_vain(),
                }
            }
            self.check_peer(ring)?;
            let room = ring.producer.room(want).map_err(lie)?;
            if room >= least {
                return Ok(room);
            }
            if self.must_not_wait(flags, &mut waited.asked) {
                return self.no_room(ring, want, least);
            }
            if self.connecting.load(Relaxed) != 0 {
                // A datagram socket's only. Nothing of this datagram is in the ring yet.
                return Err(error(Errno::ALREADY));
            }
            let left = control::remaining(waited.began, limit).map_err(error)?;
            if self.settings.wait() == Wait::Spin {
                continue;
            }
            let asleep = Instant::now();
            self.park(ring, least.max(ring.low_water()))?;
            let room = ring.producer.room(want).map_err(lie)?;
            if room >= least {
                return Ok(room);
            }
            self.counters.sleeps.add(1);
            slept = true;
            let nap = left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP));
            match control::wait(self.fd(), PollFlags::OUT, Some(nap)) {
                Ok(_) => ring.spin.slept(asleep.elapsed()),
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(error(errno)),
            }
            ring.checked = 0;
        }
    }

    /// After a send, and before anybody may look for the first time: a ring that is full to the byte is not writable, although
    /// nobody was refused yet. (Whoever is refused parks in any case.)
    #[inline]
    pub fn mirror_full(&self, tx: &mut Tx) {
        if self.mirror.load(Relaxed) != 0 {
            // (What fails here the next send is told.)
            let _ = self.park_if_full(tx);
        }
    }

    /// As [`End::mirror_full`], whoever may look.
    ///
    /// # Errors
    ///
    /// What a bell or a filler was told. (Of a datagram socket's peer that is gone the kernel tells once.)
    pub fn park_if_full(&self, tx: &mut Tx) -> Result<()> {
        let Tx::Ring(ring) = tx else { return Ok(()) };
        let capacity = ring.producer.ring().capacity();
        let least = if self.kind.has_records() {
            Frame { len: 1, end: true, with: With::default() }.size(capacity)
        } else {
            1
        };
        // And a mark, for what the receiver may ask to be told before the next byte.
        let least = least + ring.producer.stride();
        // (Where a filler is there, it waits for what somebody wanted.)
        if ring.producer.room(least).is_ok_and(|room| room < least) && !ring.producer.header().is_parked() {
            // What was published so far must wake the receiver first, as before any wait for room.
            fence(SeqCst);
            self.ring_under_lock()?;
            self.park(ring, least.max(ring.low_water()))?;
        }
        Ok(())
    }

    /// Parks a filler, if none is there: POLLOUT is off until the receiver has `wanted` bytes of room.
    fn park(&self, ring: &mut TxRing, wanted: usize) -> Result<()> {
        let header = ring.producer.header();
        if header.is_parked() {
            // Still there from before, perhaps for another wish: it is taken when that is met.
            header.want(wanted);
            // Nothing was sent that would have told of a peer that is gone. Its hang-up's one edge may be over, so an EAGAIN
            // now would be the last that an edge-triggered caller hears.
            if self.cannot_send() {
                self.check(Op::Send)?;
                return Err(self.gone(Op::Send));
            }
            // A datagram socket's peer that is just being killed closes its socket, and the filler with it, before its lifeline: the
            // one edge was that, and only another filler can tell what it meant.
            let lost = self.kind == Kind::Datagram && onecopy_sys::socket::unread_memory(&self.fd) == Ok(0);
            if !lost {
                return Ok(());
            }
        }
        if self.kind == Kind::Datagram && self.cannot_send() {
            // The kernel would tell it to the filler, once, and throw away what the peer had sent: that is for a send.
            self.check(Op::Send)?;
            return Err(self.gone(Op::Send));
        }
        self.doing_parking();
        ring.producer.header().begin_parking(wanted);
        point!("parking");
        let parked = match self.kind {
            Kind::Stream => control::park(self.fd()),
            Kind::SeqPacket => {
                // (Where it fails the socket in front stays writable, and a send there says EAGAIN.)
                let blocked = self.outside.get().and_then(|outside| outside.block().ok());
                control::park_record(self.fd(), true, blocked.as_ref().map(OwnedFd::as_fd))
            }
            // Its kernel socket may yet send datagrams of its own, which a small buffer would refuse.
            Kind::Datagram => control::park_record(self.fd(), false, None),
        };
        point!("filled");
        let parked = match parked {
            Ok(Some(filler)) => {
                self.counters.fillers.add_exclusive(1);
                ring.producer.header().parked(filler);
                Ok(())
            }
            Ok(None) => {
                ring.producer.header().cancel_parking();
                Ok(())
            }
            Err(errno) => {
                ring.producer.header().cancel_parking();
                Err(self.send_failed(errno))
            }
        };
        self.doing(0);
        point!("parked");
        parked
    }

    /// Whether the peer still reads, asked of the kernel now and then.
    #[inline]
    pub fn check_peer(&self, ring: &mut TxRing) -> Result<()> {
        let shut = ring.producer.header().info.0.shut.load(Relaxed) != 0;
        let now = coarse_ms();
        if shut || self.send_shut.load(Relaxed) != 0 || now.wrapping_sub(ring.checked) >= CHECK_MS {
            ring.checked = now;
            if self.cannot_send() {
                self.check(Op::Send)?;
                return Err(self.gone(Op::Send));
            }
        }
        Ok(())
    }
}
