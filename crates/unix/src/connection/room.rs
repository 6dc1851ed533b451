//! Waiting for room in the peer's ring, and keeping the control socket unwritable while there is none.

use crate::connection::core::Core;
use crate::connection::kind::Kind;
use crate::connection::tx::{Tx, TxRing};
use crate::doorbell::control;
use crate::{Error, Op, Result, SendFlags, Wait};
use onecopy_ring::PeerMisbehaved;
use onecopy_ring::record::{Frame, With};
use onecopy_sync::atomic::Ordering::{Relaxed, SeqCst};
use onecopy_sync::atomic::fence;
use onecopy_sync::clock::coarse_ms;
use onecopy_sync::spin::{self};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::time::{Duration, Instant};

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
pub const LONGEST_SLEEP: Duration = Duration::from_millis(500);

impl Tx {
    /// After a send, and before anybody may look for the first time: a ring that is full to the byte is not writable, although
    /// nobody was refused yet. (Whoever is refused parks in any case.)
    #[inline]
    pub fn mirror_full(&mut self, core: &Core) {
        if core.mirror.load(Relaxed) != 0 {
            // (What fails here the next send is told.)
            let _ = self.park_if_full(core);
        }
    }

    /// As [`Connection::mirror_full`], whoever may look.
    ///
    /// # Errors
    ///
    /// What a doorbell or a filler was told. (Of a datagram socket's peer that is gone the kernel tells once.)
    pub fn park_if_full(&mut self, core: &Core) -> Result<()> {
        let Tx::Ring(ring) = self else { return Ok(()) };
        let capacity = ring.producer.ring().capacity();
        let least = if core.kind.has_records() {
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
            core.ring_under_lock()?;
            ring.park(core, least.max(ring.low_water()))?;
        }
        Ok(())
    }
}

impl TxRing {
    /// Waits for room: at least `least` bytes, and looks for `want`. Returns bytes of room.
    ///
    /// # Errors
    ///
    /// EAGAIN, EPIPE, EINTR, EPROTO.
    pub fn room(
        &mut self,
        core: &Core,
        want: usize,
        least: usize,
        flags: SendFlags,
        waited: &mut Option<Waited>,
    ) -> Result<usize> {
        self.check_peer(core)?;
        let room = self.producer.room(want).map_err(|misbehaved| core.misbehaved(Op::Send, misbehaved))?;
        if room >= least {
            return Ok(room);
        }
        // What was published so far must wake the receiver before this side waits for it.
        fence(SeqCst);
        core.ring_under_lock()?;
        if flags.contains(SendFlags::DONTWAIT) {
            return self.no_room(core, want, least);
        }
        let waited = waited.get_or_insert_with(|| Waited { began: Instant::now(), asked: false });
        // Who is remembered not to wait does not spin first.
        if core.settings.nonblocking() && core.must_not_wait(flags, &mut waited.asked) {
            return self.no_room(core, want, least);
        }
        self.sleep_for_room(core, want, least, flags, waited)
    }

    /// For who does not wait: from here on the socket is not writable until there is room.
    fn no_room(&mut self, core: &Core, want: usize, least: usize) -> Result<usize> {
        let wanted = least.max(self.low_water());
        self.park(core, wanted)?;
        let room = self.producer.room(want).map_err(|misbehaved| core.misbehaved(Op::Send, misbehaved))?;
        if room >= least { Ok(room) } else { Err(Error::new(Op::Send, Errno::AGAIN)) }
    }

    #[cold]
    fn sleep_for_room(
        &mut self,
        core: &Core,
        want: usize,
        least: usize,
        flags: SendFlags,
        waited: &mut Waited,
    ) -> Result<usize> {
        let error = |errno| Error::new(Op::Send, errno);
        let misbehaved = |misbehaved: PeerMisbehaved| core.misbehaved(Op::Send, misbehaved);
        let limit = core.settings.write_timeout();
        // A little room is not worth a wake-up.
        let wanted = least.max(self.low_water().min(want));
        let mut slept = false;
        loop {
            let budget = match core.settings.wait() {
                Wait::Block => 0,
                Wait::Spin => 1_000_000,
                Wait::Adaptive if slept => 0,
                Wait::Adaptive => self.spin.budget(),
            };
            if budget > 0 {
                let producer = &mut self.producer;
                // A lie ends the spin too, and is found by the look below.
                let spun = spin::until(budget, || producer.room(wanted).map_or(true, |room| room >= wanted));
                match spun {
                    Ok(took) => {
                        self.spin.paid(took);
                        core.counters.room_spins.add_exclusive(1);
                    }
                    Err(_) => self.spin.in_vain(),
                }
            }
            self.check_peer(core)?;
            let room = self.producer.room(want).map_err(misbehaved)?;
            if room >= least {
                return Ok(room);
            }
            if core.must_not_wait(flags, &mut waited.asked) {
                return self.no_room(core, want, least);
            }
            if core.connecting.load(Relaxed) != 0 {
                // A datagram socket's only. Nothing of this datagram is in the ring yet.
                return Err(error(Errno::ALREADY));
            }
            let left = control::remaining(waited.began, limit).map_err(error)?;
            if core.settings.wait() == Wait::Spin {
                continue;
            }
            let asleep = Instant::now();
            self.park(core, least.max(self.low_water()))?;
            let room = self.producer.room(want).map_err(misbehaved)?;
            if room >= least {
                return Ok(room);
            }
            core.counters.sleeps.add(1);
            slept = true;
            let nap = left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP));
            match control::wait(core.fd(), PollFlags::OUT, Some(nap)) {
                Ok(_) => self.spin.slept(asleep.elapsed()),
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(error(errno)),
            }
            self.checked = 0;
        }
    }

    /// Parks a filler, if none is there: POLLOUT is off until the receiver has `wanted` bytes of room.
    fn park(&mut self, core: &Core, wanted: usize) -> Result<()> {
        let header = self.producer.header();
        if header.is_parked() {
            // Still there from before, perhaps for another wish: it is taken when that is met.
            header.want(wanted);
            // Nothing was sent that would have told of a peer that is gone. Its hang-up's one edge may be over, so an EAGAIN
            // now would be the last that an edge-triggered caller hears.
            if core.cannot_send() {
                core.check(Op::Send)?;
                return Err(core.gone(Op::Send));
            }
            // A datagram socket's peer that is just being killed closes its socket, and the filler with it, before its lifeline: the
            // one edge was that, and only another filler can tell what it meant.
            let lost = core.kind == Kind::Datagram && onecopy_sys::socket::unread_memory(&core.fd) == Ok(0);
            if !lost {
                return Ok(());
            }
        }
        if core.kind == Kind::Datagram && core.cannot_send() {
            // The kernel would tell it to the filler, once, and throw away what the peer had sent: that is for a send.
            core.check(Op::Send)?;
            return Err(core.gone(Op::Send));
        }
        core.doing_parking();
        self.producer.header().begin_parking(wanted);
        point!("parking");
        let parked = match core.kind {
            Kind::Stream => control::park(core.fd()),
            Kind::SeqPacket => {
                // (Where it fails the socket in front stays writable, and a send there says EAGAIN.)
                let blocked = core.elsewhere.get().and_then(|elsewhere| elsewhere.block().ok());
                control::park_record(core.fd(), true, blocked.as_ref().map(OwnedFd::as_fd))
            }
            // Its kernel socket may yet send datagrams of its own, which a small buffer would refuse.
            Kind::Datagram => control::park_record(core.fd(), false, None),
        };
        point!("filled");
        let parked = match parked {
            Ok(Some(filler)) => {
                core.counters.fillers.add_exclusive(1);
                self.producer.header().parked(filler);
                Ok(())
            }
            Ok(None) => {
                self.producer.header().cancel_parking();
                Ok(())
            }
            Err(errno) => {
                self.producer.header().cancel_parking();
                Err(core.send_failed(errno))
            }
        };
        core.others.expect(0);
        point!("parked");
        parked
    }

    /// Whether the peer still reads, asked of the kernel now and then.
    #[inline]
    pub fn check_peer(&mut self, core: &Core) -> Result<()> {
        let shut = self.producer.header().info.0.shut.load(Relaxed) != 0;
        let now = coarse_ms();
        if shut || core.send_shut.load(Relaxed) != 0 || now.wrapping_sub(self.checked) >= CHECK_MS {
            self.checked = now;
            if core.cannot_send() {
                core.check(Op::Send)?;
                return Err(core.gone(Op::Send));
            }
        }
        Ok(())
    }
}
