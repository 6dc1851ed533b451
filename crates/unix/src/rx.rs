//! The receiving side: data first, then the error, then the end; and sleeping on the control socket.

use crate::control::{self, Peek};
use crate::end::End;
use crate::upgrade::Nonce;
use crate::{Error, Op, RecvFlags, Result, Wait};
use onecopy_ring::{Consumer, Lie, Ring};
use onecopy_sync::MutexGuard;
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed};
use onecopy_sync::spin::{self, Adaptive};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::io::IoSliceMut;
use std::time::{Duration, Instant};

/// What the receiving side is at.
#[derive(Debug)]
pub enum Rx {
    /// The peer is plain: all bytes come over the kernel, for ever.
    Plain,
    /// A client that does not know yet what the server is.
    Undecided(Nonce),
    /// The peer has our ring, or will get it, and may switch to it at any byte.
    Switching(Switching),
    /// All further bytes come through the ring.
    Ring(RxRing),
}

/// Before the peer's switch.
#[derive(Debug)]
pub struct Switching {
    ring: Ring,
    /// Bytes of the stream that came over the kernel so far.
    received: u64,
    /// Of a server: the client's hello will come right after the last byte over the kernel.
    hello: Option<Nonce>,
}

impl Switching {
    pub fn new(ring: Ring, hello: Option<Nonce>) -> Switching {
        Switching { ring, received: 0, hello }
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
    /// Bells that were on their way when they should have been taken: to be taken when they come.
    owed: usize,
    spin: Adaptive,
    /// Since when bytes lie in the queue that only a filler under way explains.
    puzzled: Option<Instant>,
}

/// More bells than this on their way at once: one for each sender that was killed between arming and ringing.
const MAX_OWED: usize = 64;
/// How long a filler may be under way before it is a lie.
const MAX_PARKING: Duration = Duration::from_millis(200);
/// How often one call believes a bell for which there was no data.
const MAX_EMPTY_BELLS: u32 = 64;

/// What a receive may take now.
pub enum Ready<'a> {
    /// The ring has that many bytes, under the lock.
    Ring(MutexGuard<'a, Rx>, usize),
    /// The kernel may have bytes: at most that many are of the stream.
    Kernel(MutexGuard<'a, Rx>, usize),
    /// The peer is plain: everything as the kernel says.
    Plain,
    /// The end of the stream.
    End,
}

impl Rx {
    pub fn ring(consumer: Consumer) -> Rx {
        Rx::Ring(RxRing { consumer, owed: 0, spin: Adaptive::default(), puzzled: None })
    }
}

impl RxRing {
    /// The ring seems empty: takes the bell and arms, so that the control socket is not readable until there is
    /// data. Returns whether there is data after all.
    pub fn settle(&mut self, end: &End) -> std::result::Result<bool, Lie> {
        if self.owed > 0 {
            self.owed -= control::take(end.fd(), self.owed);
        }
        let header = self.consumer.header();
        if header.is_rung() {
            header.arm();
            let data = self.consumer.available(1)? > 0;
            if data && self.consumer.header().disarm() {
                return Ok(true);
            }
            self.owed += 1;
            self.owed -= control::take(end.fd(), 1);
            if self.owed > MAX_OWED {
                return Err(Lie::Bells);
            }
        }
        Ok(self.consumer.available(1)? > 0)
    }

    /// Takes the filler of a sender that waits for room, if it has now what it waits for.
    #[inline]
    pub fn unpark(&mut self, end: &End) -> std::result::Result<(), Lie> {
        let capacity = self.consumer.ring().capacity();
        if self.consumer.header().must_unpark(self.consumer.room(), capacity) {
            self.take_filler(end)?;
        }
        Ok(())
    }

    /// Takes a filler however little room there is.
    pub fn unpark_now(&mut self, end: &End) -> std::result::Result<(), Lie> {
        if self.consumer.header().is_parked() { self.take_filler(end) } else { Ok(()) }
    }

    #[cold]
    fn take_filler(&mut self, end: &End) -> std::result::Result<(), Lie> {
        let bytes = self.consumer.header().unpark()? as usize;
        if control::take(end.fd(), bytes) < bytes {
            return Err(Lie::Bells);
        }
        Ok(())
    }

    /// A byte is in the queue although the ring is empty and the bell was taken: what explains it?
    fn explain(&mut self) -> std::result::Result<(), Lie> {
        let header = self.consumer.header();
        if header.is_rung() || self.owed > 0 {
            self.puzzled = None;
            return Ok(());
        }
        if header.is_parking() {
            // A filler that waits for more room than there is, or one under way: only the latter must end soon.
            return match self.puzzled {
                _ if header.is_parked() => Ok(()),
                None => {
                    self.puzzled = Some(Instant::now());
                    Ok(())
                }
                Some(since) if since.elapsed() < MAX_PARKING => Ok(()),
                Some(_) => Err(Lie::Bells),
            };
        }
        Err(Lie::Bells)
    }
}

/// A receive's sleeps, added up.
pub struct Waiting {
    start: Option<Instant>,
    /// What the kernel said while asleep, which it says only once.
    told: Option<Errno>,
    slept: bool,
    empty_bells: u32,
}

impl Waiting {
    pub fn new() -> Waiting {
        Waiting { start: None, told: None, slept: false, empty_bells: 0 }
    }
}

impl End {
    /// Waits until there is more than `beyond` bytes to receive, as far as `flags` and the settings allow.
    ///
    /// # Errors
    ///
    /// EAGAIN, EINTR, ECONNRESET, EPROTO.
    pub fn ready(&self, beyond: usize, flags: RecvFlags, waiting: &mut Waiting) -> Result<Ready<'_>> {
        let error = |errno| Error::new(Op::Recv, errno);
        self.check(Op::Recv)?;
        let dontwait = flags.contains(RecvFlags::DONTWAIT) || self.settings.nonblocking();
        loop {
            let mut guard = self.rx.lock();
            self.decide(&mut guard, Op::Recv)?;
            let nothing = match &mut *guard {
                Rx::Plain => return Ok(Ready::Plain),
                Rx::Undecided(_) => control::peek(self.fd(), false),
                Rx::Switching(switching) => {
                    // The order matters: see the module `upgrade`.
                    let queued = control::queued(self.fd()).map_err(error)?;
                    match switching.left().map_err(|lie| self.lie(Op::Recv, lie))? {
                        Some(0) => {
                            let ring = switching.ring.clone();
                            match switching.hello {
                                None => *guard = Rx::ring(Consumer::new(ring)),
                                Some(nonce) if queued > 0 => {
                                    *guard = self.accept_answer(Op::Recv, nonce, ring)?;
                                }
                                // The count came before the hello: that is under way.
                                Some(_) => {}
                            }
                            if matches!(&*guard, Rx::Ring(_)) {
                                continue;
                            }
                            control::peek(self.fd(), false)
                        }
                        left if queued > 0 => {
                            let limit = left.map_or(queued, |left| {
                                queued.min(usize::try_from(left).unwrap_or(usize::MAX))
                            });
                            return Ok(Ready::Kernel(guard, limit));
                        }
                        _ => control::peek(self.fd(), false),
                    }
                }
                Rx::Ring(ring) => {
                    let lie = |lie| self.lie(Op::Recv, lie);
                    let n = ring.consumer.available(beyond + 1).map_err(lie)?;
                    if n > beyond {
                        if let Some(start) = waiting.start.take_if(|_| waiting.slept) {
                            ring.spin.learn(start.elapsed());
                        }
                        return Ok(Ready::Ring(guard, n));
                    }
                    ring.unpark(self).map_err(lie)?;
                    if !dontwait && self.spin(ring, beyond, waiting).map_err(lie)? {
                        continue;
                    }
                    // With bytes left to peek at, the bell stays; else it is taken before sleeping.
                    if n == 0 && ring.settle(self).map_err(lie)? {
                        continue;
                    }
                    let peek = match waiting.told.take() {
                        Some(errno) => Peek::Failed(errno),
                        None => control::peek(self.fd(), false),
                    };
                    if ring.consumer.available(beyond + 1).map_err(lie)? > beyond {
                        continue;
                    }
                    if peek == Peek::Byte && n == 0 {
                        ring.explain().map_err(lie)?;
                        waiting.empty_bells += 1;
                        let late = ring.owed > 0 || ring.consumer.header().is_rung();
                        if late && waiting.empty_bells < MAX_EMPTY_BELLS {
                            continue;
                        }
                        if dontwait {
                            return Err(error(Errno::AGAIN));
                        }
                        // A filler that cannot be taken yet makes the socket readable, so sleeping on it
                        // is no sleep. Rare: a view is held, and its holder asks for more.
                        drop(guard);
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    if peek == Peek::Byte {
                        // More than what is there is wanted (PEEK with WAITALL), and the bell is pending.
                        if dontwait {
                            return Err(error(Errno::AGAIN));
                        }
                        drop(guard);
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    peek
                }
            };
            let nothing = match waiting.told.take() {
                Some(errno) => Peek::Failed(errno),
                None => nothing,
            };
            match nothing {
                Peek::Byte => continue,
                Peek::End => return Ok(Ready::End),
                Peek::Failed(Errno::CONNRESET) => {
                    return if self.was_reset(&guard) {
                        Err(error(Errno::CONNRESET))
                    } else {
                        Ok(Ready::End)
                    };
                }
                Peek::Failed(errno) => return Err(error(errno)),
                Peek::Nothing if dontwait => return Err(error(Errno::AGAIN)),
                Peek::Nothing => {
                    drop(guard);
                    self.sleep(waiting).map_err(error)?;
                }
            }
        }
    }

    /// Spins for data as far as the settings and experience allow. Returns whether it came.
    fn spin(
        &self,
        ring: &mut RxRing,
        beyond: usize,
        waiting: &mut Waiting,
    ) -> std::result::Result<bool, Lie> {
        let budget = match self.settings.wait() {
            Wait::Block => return Ok(false),
            Wait::Spin => 1_000_000,
            // After a sleep there is nothing to be gained.
            Wait::Adaptive if waiting.slept => return Ok(false),
            Wait::Adaptive => ring.spin.budget(),
        };
        if budget == 0 {
            waiting.start.get_or_insert_with(Instant::now);
            return Ok(false);
        }
        let mut lie = None;
        let consumer = &mut ring.consumer;
        let spun = spin::until(budget, || match consumer.available(beyond + 1) {
            Ok(n) => n > beyond,
            Err(found) => {
                lie = Some(found);
                true
            }
        });
        if let Some(lie) = lie {
            return Err(lie);
        }
        match spun {
            Ok(took) => {
                ring.spin.learn(took);
                self.counters.spins.add_exclusive(1);
                Ok(true)
            }
            Err(start) => {
                waiting.start.get_or_insert(start);
                // Asked to spin: look at the control socket now and then, and go on.
                Ok(false)
            }
        }
    }

    /// Sleeps until something is in the queue. What the kernel says only once is kept for the next look.
    fn sleep(&self, waiting: &mut Waiting) -> rustix::io::Result<()> {
        if self.settings.wait() == Wait::Spin && !self.rx_is_kernel() {
            return Ok(());
        }
        waiting.slept = true;
        let start = *waiting.start.get_or_insert_with(Instant::now);
        self.counters.sleeps.add(1);
        match self.settings.read_timeout() {
            None => match control::peek(self.fd(), true) {
                // O_NONBLOCK was set behind our back.
                Peek::Nothing => Err(Errno::AGAIN),
                Peek::Failed(Errno::INTR) => Err(Errno::INTR),
                Peek::Failed(errno) => {
                    waiting.told = Some(errno);
                    Ok(())
                }
                Peek::Byte | Peek::End => Ok(()),
            },
            limit => {
                let left = control::remaining(start, limit)?;
                control::wait(self.fd(), PollFlags::IN, left).map(drop)
            }
        }
    }

    fn rx_is_kernel(&self) -> bool {
        !matches!(&*self.rx.lock(), Rx::Ring(_))
    }

    /// Whether an ECONNRESET of the kernel is one: it also comes when the peer left nothing but a bell or a
    /// hello unread.
    pub fn was_reset(&self, rx: &Rx) -> bool {
        if self.tx_ring.get().is_some() {
            return self.unread_in_ring() > 0;
        }
        // A server whose hello nobody read, and which sent nothing else.
        match rx {
            Rx::Switching(switching) if switching.hello.is_some() => self.counters.sent.get() > 0,
            _ => true,
        }
    }

    /// After a receive that left the ring empty: lets readiness say so, where somebody may look.
    #[inline]
    pub fn mirror_empty(&self, ring: &mut RxRing) -> Result<()> {
        if self.mirror.load(Relaxed) != 0 && ring.consumer.available(1).is_ok_and(|n| n == 0) {
            ring.settle(self).map_err(|lie| self.lie(Op::Recv, lie))?;
        }
        Ok(())
    }

    /// Receives into `slices`.
    ///
    /// # Errors
    ///
    /// As [`End::ready`].
    pub fn recv(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize> {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        if total == 0 {
            return self.check(Op::Recv).map(|()| 0);
        }
        let peek = flags.contains(RecvFlags::PEEK);
        let mut waiting = Waiting::new();
        let mut got = 0;
        while got < total {
            let step = match self.ready(if peek { got } else { 0 }, flags, &mut waiting) {
                Ok(Ready::Plain) => self.recv_plain(slices, got, flags),
                Ok(Ready::Kernel(guard, limit)) => self.recv_kernel(guard, slices, got, limit, peek),
                Ok(Ready::Ring(guard, n)) => self.recv_ring(guard, slices, got, n, peek),
                Ok(Ready::End) => Ok(0),
                Err(error) => Err(error),
            };
            match step {
                Ok(0) => break,
                Ok(n) => got += n,
                // What was received is told first; the error comes again, or its cause is still there.
                Err(_) if got > 0 => break,
                Err(error) => return Err(error),
            }
            if !flags.contains(RecvFlags::WAITALL) {
                break;
            }
        }
        Ok(got)
    }

    fn recv_plain(&self, slices: &mut [IoSliceMut<'_>], skip: usize, flags: RecvFlags) -> Result<usize> {
        let mut kernel = rustix::net::RecvFlags::empty();
        kernel.set(rustix::net::RecvFlags::DONTWAIT, flags.contains(RecvFlags::DONTWAIT));
        kernel.set(rustix::net::RecvFlags::PEEK, flags.contains(RecvFlags::PEEK));
        kernel.set(rustix::net::RecvFlags::WAITALL, flags.contains(RecvFlags::WAITALL));
        let n = self.recvmsg(slices, skip, usize::MAX, kernel)?;
        if !flags.contains(RecvFlags::PEEK) {
            self.counters.received.add_exclusive(n);
        }
        Ok(n)
    }

    fn recv_kernel(
        &self,
        mut guard: MutexGuard<'_, Rx>,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        limit: usize,
        peek: bool,
    ) -> Result<usize> {
        let mut kernel = rustix::net::RecvFlags::DONTWAIT;
        kernel.set(rustix::net::RecvFlags::PEEK, peek);
        let n = self.recvmsg(slices, skip, limit, kernel)?;
        if let (false, Rx::Switching(switching)) = (peek, &mut *guard) {
            switching.received += n as u64;
            self.counters.received.add_exclusive(n);
        }
        // A peek at what the kernel has does not go on into the ring.
        Ok(n)
    }

    fn recvmsg(
        &self,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        limit: usize,
        flags: rustix::net::RecvFlags,
    ) -> Result<usize> {
        let mut left = limit;
        let mut part: Vec<IoSliceMut<'_>> = rest(slices, skip)
            .map(|slice| {
                let n = slice.len().min(left);
                left -= n;
                IoSliceMut::new(&mut slice[..n])
            })
            .collect();
        let n = rustix::net::recvmsg(&self.fd, &mut part, &mut Default::default(), flags)
            .map_err(|errno| Error::new(Op::Recv, errno))?
            .bytes;
        self.counters.kernel_copied.add_exclusive(n);
        Ok(n)
    }

    fn recv_ring(
        &self,
        mut guard: MutexGuard<'_, Rx>,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        available: usize,
        peek: bool,
    ) -> Result<usize> {
        let Rx::Ring(ring) = &mut *guard else { return Ok(0) };
        let lie = |lie| self.lie(Op::Recv, lie);
        let chunk = chunk(ring.consumer.ring().capacity());
        let mut available = available;
        let mut got = 0;
        for mut slice in rest(slices, skip) {
            while !slice.is_empty() {
                let want = slice.len().min(chunk);
                let at = if peek { skip + got } else { 0 };
                if available < at + want {
                    available = ring.consumer.available(at + want).map_err(lie)?;
                }
                let n = want.min(available - at);
                if n == 0 {
                    break;
                }
                let (now, later) = slice.split_at_mut(n);
                ring.consumer.copy_out(at, now);
                slice = later;
                got += n;
                if !peek {
                    ring.consumer.take(n);
                    available -= n;
                    ring.unpark(self).map_err(lie)?;
                }
            }
        }
        self.counters.user_copied_out.add_exclusive(got);
        if !peek {
            self.counters.received.add_exclusive(got);
            self.mirror_empty(ring)?;
        }
        Ok(got)
    }
}

/// Bytes after which what was copied is handed over, so that the peer works on it meanwhile: measured best at
/// 16-32 KiB, and never more than a quarter of the ring.
#[inline]
pub fn chunk(capacity: usize) -> usize {
    (capacity / 4).clamp(1024, 32 << 10)
}

/// The slices behind the first `skip` bytes.
fn rest<'a, 'b>(
    slices: &'a mut [IoSliceMut<'b>],
    mut skip: usize,
) -> impl Iterator<Item = &'a mut [u8]> + use<'a, 'b> {
    slices.iter_mut().filter_map(move |slice| {
        let cut = skip.min(slice.len());
        skip -= cut;
        (cut < slice.len()).then(|| &mut slice[cut..])
    })
}
