//! The receiving side: data first, then the error, then the end; and sleeping on the control socket.

mod bells;
mod waiting;

pub use waiting::Waiting;

use crate::channel::Inlet;
use crate::control::{self, Peek};
use crate::end::End;
use crate::front::Front;
use crate::making::Kind;
use crate::seqpacket::{Carry, Rest};
use crate::side::SideGuard;
use crate::upgrade::{Nonce, Undecided};
use crate::{Error, Op, RecvFlags, Result, Wait};
use onecopy_ring::index::FARTHEST;
use onecopy_ring::{Consumer, Lie, Ring};
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed};
use onecopy_sync::spin::Adaptive;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// What the receiving side is at.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one an end, and a box would be one more line on each receive")]
pub enum Rx {
    /// The peer is plain: all bytes come over the kernel, for ever.
    Plain,
    /// There are no rings yet that both sides have: all bytes come over the kernel, until there are.
    Undecided(Undecided),
    /// The peer has our ring, or will get it, and may switch to it at any byte.
    Switching(Switching),
    /// All further bytes come through the ring.
    Ring(RxRing),
}

/// Before the peer's switch.
#[derive(Debug)]
pub struct Switching {
    ring: Ring,
    /// Bytes of the stream, or records, that came over the kernel so far.
    received: u64,
    /// With which rings of this connection are labelled.
    nonce: Nonce,
    /// Which messages over the kernel may have such with them, that are nobody's.
    strips: Strips,
    /// A process that shared the end was killed while it received: what it left in the queue of bells is to be forgiven.
    pub mended: bool,
    /// Of stream records: what came over the kernel and was not received yet.
    pub carry: Carry,
}

/// Which of the messages that come over the kernel may have rings with them that are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strips {
    No,
    /// One, of those that come next.
    One,
    /// Any.
    All,
}

impl Strips {
    /// Of a word that another process wrote.
    pub fn of(word: u64) -> Strips {
        match word {
            0 => Strips::No,
            1 => Strips::One,
            _ => Strips::All,
        }
    }
}

impl Switching {
    /// Of a connection over which `received` came so far.
    pub fn new(ring: Ring, received: u64, nonce: Nonce) -> Switching {
        Switching { ring, received, nonce, strips: Strips::No, mended: false, carry: Carry::default() }
    }

    /// The peer may have sent rings of its own.
    pub fn stripping(mut self, strips: Strips) -> Switching {
        self.strips = strips;
        self
    }

    /// One of the messages in the queue still has the rings with it that were joined, and not always the first: a peek of a stream
    /// looks on for descriptors behind the bytes that it has room for (net/unix/af_unix.c: unix_stream_read_generic).
    pub fn strip_one(&mut self) {
        self.strips = Strips::One;
    }

    /// Rings were stripped.
    pub fn stripped(&mut self) {
        if self.strips == Strips::One {
            self.strips = Strips::No;
        }
    }

    pub fn strips(&self) -> Strips {
        self.strips
    }

    pub fn received(&self) -> u64 {
        self.received
    }

    /// Another process has received so much.
    ///
    /// # Errors
    ///
    /// [`Lie::Holder`]: more than anybody ever has.
    pub fn resume(&mut self, received: u64, strips: Strips) -> std::result::Result<(), Lie> {
        if received > FARTHEST {
            return Err(Lie::Holder);
        }
        (self.received, self.strips) = (received, strips);
        Ok(())
    }

    /// Where the bytes after the switch come.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// That many bytes of the stream, or records, came over the kernel.
    pub fn count(&mut self, count: u64) {
        self.received += count;
    }

    /// Bytes that may still be received over the kernel; None while the peer has not switched.
    pub fn left(&self) -> std::result::Result<Option<u64>, Lie> {
        // Acquire pairs with the Release store in `End::adopt`.
        match self.ring.header().writer.0.switch_at.load(Acquire) {
            0 => Ok(None),
            at if at - 1 < self.received => Err(Lie::Switch { at: at - 1, received: self.received }),
            at => Ok(Some(at - 1 - self.received)),
        }
    }
}

/// After the peer's switch.
#[derive(Debug)]
pub struct RxRing {
    pub consumer: Consumer,
    /// Bells that were on their way when they should have been taken: to be taken when they come. Negative where bells
    /// were taken in the place of the channel's byte, which is still to be met.
    pub owed: isize,
    spin: Adaptive,
    /// Since when bytes lie in the queue that only a filler under way explains.
    pub puzzled: Option<Instant>,
    /// Where descriptors come from.
    pub inlet: Inlet,
    /// A process that shares the end has met it: that is its number. (This one then has, too, or never will.)
    pub elsewhere: Option<u32>,
    /// What marks have brought.
    pub front: Front,
    /// A filler was taken where a bell was expected that is still on its way (seqpacket sockets only).
    pub stray: bool,
    /// Bytes in the queue that a process left which was killed while it received: taken instead of being called a lie.
    pub forgiven: usize,
    /// Room was made that the sender will see when the lock is given up.
    pub freed: bool,
    /// When it was last looked whether other processes live that have borrowed, in coarse milliseconds.
    pub looked: u64,
    /// What is left of a frame of which a part was received (stream records only).
    pub rest: Option<Rest>,
}

/// More bells than this on their way at once: one for each sender that was killed between arming and ringing.
pub const MAX_OWED: isize = 64;
/// How long a filler may be under way before it is a lie. It is for microseconds, unless its sender has no CPU or is stopped
/// half-way, which is no lie: so this is longer than a machine with too much to do keeps anybody waiting. A peer that does mean
/// ill makes a poll(2) that finds nothing of it, for as long; his bells for nothing do the same.
const MAX_PARKING: Duration = Duration::from_secs(10);
/// How often one call believes a bell for which there was no data.
const MAX_EMPTY_BELLS: u32 = 64;

/// What a receive may take now.
pub enum Ready<'a> {
    /// The ring has that many bytes, under the lock.
    Ring(SideGuard<'a, Rx>, usize),
    /// The kernel may have bytes: at most that many are of the stream.
    Kernel(SideGuard<'a, Rx>, usize),
    /// The peer is plain: everything as the kernel says.
    Plain,
    /// The end of the stream.
    End,
}

impl Rx {
    /// With which rings are labelled that may come with the next message over the kernel, if any may.
    pub fn may_bring_rings(&self) -> Option<Nonce> {
        match self {
            Rx::Undecided(undecided) => undecided.looks().then(|| undecided.nonce()),
            Rx::Switching(switching) => (switching.strips != Strips::No).then_some(switching.nonce),
            _ => None,
        }
    }

    /// Before several processes go on with it, or another one: attaches and joins nothing any more.
    pub fn settle(&mut self, end: &End) {
        *self = match std::mem::replace(self, Rx::Plain) {
            Rx::Undecided(undecided) => undecided.settled(),
            other => other,
        };
        if let Rx::Switching(switching) = self
            && end.rx_ring.get().is_none()
        {
            end.set_rx_ring(switching.ring().clone());
        }
    }

    pub fn ring(consumer: Consumer) -> Rx {
        Rx::ring_with(consumer, Inlet::default())
    }

    /// What comes besides bytes does so through `inlet`.
    pub fn ring_with(consumer: Consumer, inlet: Inlet) -> Rx {
        Rx::Ring(RxRing {
            consumer,
            owed: 0,
            spin: Adaptive::default(),
            puzzled: None,
            inlet,
            elsewhere: None,
            front: Front::default(),
            stray: false,
            forgiven: 0,
            freed: false,
            looked: 0,
            rest: None,
        })
    }
}

/// What to do where there is nothing to receive.
enum Idle {
    /// Look again.
    Again,
    /// Sleep on the control socket, then look again.
    Sleep,
    /// Its queue is readable for a reason that does not go away by itself: sleep on the clock.
    Nap,
    /// The kernel has the last word.
    Ask,
    /// The peer of a datagram socket has left, and all that it had sent here was received.
    Over,
}

impl End {
    /// Waits until there is something to receive, as far as `flags` and the settings allow.
    ///
    /// # Errors
    ///
    /// EAGAIN, EINTR, ECONNRESET, EPROTO.
    pub fn ready(&self, flags: RecvFlags, waiting: &mut Waiting) -> Result<Ready<'_>> {
        self.check(Op::Recv)?;
        loop {
            let dontwait = self.does_not_wait(flags, waiting);
            let asleep = !dontwait && self.settings.wait() != Wait::Spin;
            let mut guard = match self.rx.lock_within(|| self.patience(dontwait, waiting)) {
                Some(guard) => guard,
                None if self.waits_on_for_lock(flags, waiting) => continue,
                None => return Err(self.kept(self.does_not_wait(flags, waiting))),
            };
            if let Some(lie) = guard.lie() {
                return Err(self.lie(Op::Recv, lie));
            }
            let lie = |lie| self.lie(Op::Recv, lie);
            let idle = match &mut *guard {
                Rx::Plain => return Ok(Ready::Plain),
                Rx::Undecided(_) | Rx::Switching(_) => match self.kernel_ready(&mut guard)? {
                    Some(0) => {
                        waiting.over_kernel = false;
                        Idle::Again
                    }
                    Some(limit) => return Ok(Ready::Kernel(guard, limit)),
                    None => {
                        point!("nothing over the kernel");
                        waiting.over_kernel = true;
                        Idle::Ask
                    }
                },
                Rx::Ring(ring) => {
                    waiting.over_kernel = false;
                    if waiting.slept {
                        // The two lines that the peer wrote come from its cache, at the same time.
                        ring.consumer.prefetch();
                    }
                    let mut n = ring.consumer.available(1).map_err(lie)?;
                    if n > 0 {
                        ring.puzzled = None;
                        if waiting.slept
                            && n <= waiting.takes
                            && ring.consumer.before_mark(n).map_err(lie)? == n
                        {
                            n = ring.settle_ahead(self, n).map_err(lie)?;
                        }
                        if let Some(start) = waiting.start.take_if(|_| waiting.slept) {
                            ring.spin.slept(start.elapsed());
                        }
                        return Ok(Ready::Ring(guard, n));
                    }
                    let idle = self.ring_idle(ring, waiting, !dontwait).map_err(lie)?;
                    if matches!(idle, Idle::Again) && !waiting.slept {
                        // Who spun for what has come takes it without letting go of the lock.
                        let n = ring.consumer.available(1).map_err(lie)?;
                        if n > 0 {
                            ring.puzzled = None;
                            return Ok(Ready::Ring(guard, n));
                        }
                    }
                    idle
                }
            };
            let idle = match (idle, waiting.told.take()) {
                (Idle::Sleep, Some(Peek::Byte) | None) if !asleep => Idle::Ask,
                // The byte of the last sleep may have been taken since; what else it said stands.
                (Idle::Sleep | Idle::Ask, Some(told @ (Peek::End | Peek::Failed(_)))) => {
                    return self.at_end(told);
                }
                (idle, _) => idle,
            };
            match idle {
                Idle::Again => continue,
                Idle::Over => {
                    *guard = Rx::Plain;
                    return Ok(Ready::Plain);
                }
                Idle::Sleep => {}
                Idle::Nap if self.was_wrong(dontwait, flags, waiting) => continue,
                // The hang-up's one edge may be over: what a peer that is gone left in the queue must not hide the end.
                Idle::Nap if dontwait && !self.hung_up() => {
                    return Err(Error::new(Op::Recv, Errno::AGAIN));
                }
                Idle::Nap => {
                    drop(guard);
                    self.nap(waiting)?;
                    continue;
                }
                Idle::Ask => match self.ask() {
                    Peek::Byte | Peek::Nothing if !asleep && self.was_wrong(dontwait, flags, waiting) => {
                        continue;
                    }
                    // It came just now; or it is a byte that `ring_idle` has explained.
                    Peek::Byte if dontwait && matches!(&*guard, Rx::Ring(_)) => {
                        if self.is_empty(&mut guard)? {
                            // (The error that comes before the end may have been told by the look before.)
                            if self.kind == Kind::Datagram || !self.hung_up() {
                                return Err(Error::new(Op::Recv, Errno::AGAIN));
                            }
                            if let Rx::Ring(ring) = &mut *guard {
                                ring.drain(self);
                            }
                        }
                        continue;
                    }
                    // Who spins never sleeps, but a byte that nothing explains must be found out by him too: from
                    // here on `ring_idle` asks what it is.
                    Peek::Byte if !asleep && matches!(&*guard, Rx::Ring(_)) => {
                        self.left(waiting)?;
                        waiting.slept = true;
                        self.let_in(guard);
                        continue;
                    }
                    Peek::Byte => continue,
                    Peek::Nothing if dontwait => return Err(Error::new(Op::Recv, Errno::AGAIN)),
                    Peek::Nothing if !asleep && matches!(&*guard, Rx::Ring(_)) => {
                        self.left(waiting)?;
                        if self.kind == Kind::Datagram && control::hung_up(self.fd()) {
                            // Shut down, which only who sleeps in a receive would be told.
                            return Ok(Ready::End);
                        }
                        // Others want to look, or to give back what they have borrowed: the sender may wait for that.
                        self.let_in(guard);
                        continue;
                    }
                    Peek::Nothing => {}
                    // What was published before the end comes first.
                    end if self.is_empty(&mut guard)? => return self.at_end(end),
                    _ => continue,
                },
            }
            waiting.shared = guard.is_shared();
            if waiting.shared && !waiting.slept && self.settings.wait() == Wait::Adaptive {
                if self.spin_unlocked(guard) {
                    continue;
                }
            } else {
                drop(guard);
            }
            waiting.told = Some(self.sleep(waiting)?);
            // A fork meanwhile may have left it to another process.
            self.check(Op::Recv)?;
        }
    }

    /// The kernel has bytes of the stream: how many at most. Some(0) when the peer has switched and the ring is
    /// next, or it is time for another look.
    fn kernel_ready(&self, rx: &mut SideGuard<'_, Rx>) -> Result<Option<usize>> {
        if let Rx::Switching(switching) = &**rx
            && switching.carry.is_pending()
        {
            return Ok(Some(1));
        }
        // The order matters: see the module `upgrade`.
        let queued = self.queued().map_err(|errno| Error::new(Op::Recv, errno))?;
        if self.is_joined(rx) {
            return Ok(Some(0));
        }
        let switching = match &mut **rx {
            Rx::Undecided(_) => return Ok(Some(queued).filter(|queued| *queued > 0)),
            Rx::Switching(switching) => switching,
            _ => return Ok(Some(0)),
        };
        let left = switching.left().map_err(|lie| self.lie(Op::Recv, lie))?;
        if left != Some(0) {
            let left = left.map_or(queued, |left| usize::try_from(left).unwrap_or(usize::MAX));
            return Ok(Some(queued.min(left)).filter(|limit| *limit > 0));
        }
        let (ring, mended) = (switching.ring.clone(), switching.mended);
        **rx = Rx::ring(Consumer::new(ring));
        point!("switched");
        if let Rx::Ring(ring) = &mut **rx
            && mended
        {
            ring.mend(self);
        }
        if self.passes_who() {
            self.pass_no_bells().map_err(|errno| Error::new(Op::Recv, errno))?;
        }
        Ok(Some(0))
    }

    /// Bytes that the kernel holds; of a seqpacket socket, 1 where it holds a record.
    pub fn queued(&self) -> rustix::io::Result<usize> {
        let bytes = control::queued(self.fd())?;
        if self.kind == Kind::Stream {
            return Ok(bytes);
        }
        // A record of no bytes shows in poll(2) only, and there looks like the end if that has come too.
        let empty = || {
            control::wait(self.fd(), PollFlags::IN | PollFlags::RDHUP, Some(Duration::ZERO))
                .is_ok_and(|events| events.contains(PollFlags::IN) && !events.contains(PollFlags::RDHUP))
        };
        Ok(usize::from(bytes > 0 || empty()))
    }

    /// Nothing is in the ring.
    fn ring_idle(
        &self,
        ring: &mut RxRing,
        waiting: &mut Waiting,
        wait: bool,
    ) -> std::result::Result<Idle, Lie> {
        ring.unpark(self)?;
        if wait && self.spin(ring, waiting)? {
            return Ok(Idle::Again);
        }
        if ring.settle(self)? {
            return Ok(Idle::Again);
        }
        if self.kind == Kind::Datagram && self.peer_left() {
            // Of its bells and fillers nothing is left behind: what comes from here on is other sockets' datagrams.
            let more = ring.settle(self)?;
            ring.clear_away(self)?;
            return Ok(if more { Idle::Again } else { Idle::Over });
        }
        if self.kind == Kind::SeqPacket && self.peer_left() {
            // What lies there are bells and fillers that nobody needs any more.
            ring.drain(self);
            return Ok(if ring.consumer.available(1)? > 0 { Idle::Again } else { Idle::Ask });
        }
        if !waiting.slept && wait && self.settings.wait() != Wait::Spin {
            return Ok(Idle::Sleep);
        }
        // Woken for nothing, or asked not to wait: is there a byte that nothing explains?
        if self.ask() != Peek::Byte {
            return Ok(if ring.consumer.available(1)? > 0 { Idle::Again } else { Idle::Ask });
        }
        if ring.consumer.available(1)? > 0 {
            return Ok(Idle::Again);
        }
        if ring.explain().is_err() {
            if ring.forgive(self) {
                return Ok(Idle::Again);
            }
            match ring.find_channel(self) {
                Ok(true) => return Ok(Idle::Again),
                // It stays there until this process has room for a descriptor.
                Err(_) => return Ok(Idle::Nap),
                Ok(false) => {}
            }
            // A sender that was killed while it parked leaves bytes that nothing explains.
            if !self.hung_up() {
                return Err(Lie::Bells);
            }
            ring.drain(self);
            return Ok(Idle::Ask);
        }
        waiting.empty_bells += 1;
        let late = ring.owed > 0 || ring.consumer.header().is_rung();
        if late && waiting.empty_bells < MAX_EMPTY_BELLS {
            return Ok(Idle::Again);
        }
        // A filler that cannot be taken yet. Rare: a view is held, and its holder asks for more.
        Ok(Idle::Nap)
    }

    /// What the kernel says, now. An error that it tells once is kept until it was told to the caller.
    fn ask(&self) -> Peek {
        let peek = self.peek(false);
        match peek {
            Peek::Failed(Errno::CONNRESET) => self.reset.store(1, Relaxed),
            Peek::End if self.reset.load(Relaxed) != 0 => return Peek::Failed(Errno::CONNRESET),
            _ => {}
        }
        peek
    }

    fn is_empty(&self, rx: &mut Rx) -> Result<bool> {
        match rx {
            Rx::Ring(ring) => {
                let n = ring.consumer.available(1).map_err(|lie| self.lie(Op::Recv, lie))?;
                Ok(n == 0)
            }
            // The peer may have joined and switched since it was looked at, and a bell that a shutdown overtook is not in the queue.
            Rx::Switching(switching) => Ok(switching.left() != Ok(Some(0))),
            Rx::Undecided(_) => Ok(!self.is_joined(rx)),
            Rx::Plain => Ok(true),
        }
    }

    /// The ring is empty and the kernel has nothing either: the error, once, then the end.
    fn at_end(&self, peek: Peek) -> Result<Ready<'_>> {
        match peek {
            Peek::Failed(Errno::CONNRESET) => {
                self.reset.store(0, Relaxed);
                if self.was_reset() { Err(Error::new(Op::Recv, Errno::CONNRESET)) } else { Ok(Ready::End) }
            }
            Peek::Failed(errno) => Err(Error::new(Op::Recv, errno)),
            _ => Ok(Ready::End),
        }
    }

    /// Whether an ECONNRESET of the kernel is one: it also comes when the peer left nothing but a bell unread.
    pub fn was_reset(&self) -> bool {
        if self.tx_ring.get().is_some() {
            return self.left_unread();
        }
        true
    }

    /// Takes the filler of a sender that waits for room, if it has what it waits for.
    #[cold]
    pub fn unpark(&self) -> Result<()> {
        match &mut *self.lock_rx(Op::Recv)? {
            Rx::Ring(ring) => ring.unpark(self).map_err(|lie| self.lie(Op::Recv, lie)),
            _ => Ok(()),
        }
    }

    /// After a receive that left the ring empty: lets readiness say so, where somebody may look. Returns whether
    /// there is data after all: a caller who has room for it must not be told a short count, since epoll(7) lets
    /// him wait for the next edge then, and no bell will make one.
    #[inline]
    pub fn mirror_empty(&self, ring: &mut RxRing) -> Result<bool> {
        if self.mirror.load(Relaxed) == 0 {
            return Ok(false);
        }
        let lie = |lie| self.lie(Op::Recv, lie);
        Ok(ring.consumer.available(1).map_err(lie)? > 0 || ring.settle(self).map_err(lie)?)
    }
}
