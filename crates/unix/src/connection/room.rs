//! Waiting for room in the peer's ring.
//!
//! While there is none, a filler is parked in the control socket's queue. It keeps the socket unwritable for
//! poll(2), until the receiver takes it because there is room again.

use crate::connection::tx::{Tx, TxRing};
use crate::control;
use crate::core::Core;
use crate::core::elsewhere::Elsewhere;
use crate::core::kind::Kind;
use onecopy_ring::PeerMisbehaved;
use onecopy_ring::record::{Frame, With};
use onecopy_socket::{Error, Op, Result, SendFlags, Wait};
use onecopy_sync::atomic::Ordering::{Relaxed, SeqCst};
use onecopy_sync::atomic::fence;
use onecopy_sync::clock::coarse_ms;
use onecopy_sync::spin::{self};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// What one send remembers of its wait for room.
#[derive(Debug)]
pub struct Waited {
    /// When the wait began, for the timeout.
    began: Instant,
    /// Whether the kernel was asked for O_NONBLOCK.
    asked: bool,
}

/// How long a sender that has room may believe that the peer lives. A killed peer is noticed within twice
/// this time.
const CHECK_MS: u64 = 40;

/// The longest sleep for room before the next look at the peer. A shutdown may have been made on a copy of
/// the descriptor, past this library.
pub const LONGEST_SLEEP: Duration = Duration::from_millis(500);

impl Tx {
    /// Makes a full ring unwritable for poll(2). Called after a send, and before anybody may look for the
    /// first time: a ring that is full to the last byte is not writable, although no send was refused yet. (A
    /// send that is refused parks in any case.)
    #[inline]
    pub fn mirror_full(&mut self, core: &Core) {
        if core.is_mirrored() {
            // The next send reports what fails here.
            let _ = self.park_if_full(core);
        }
    }

    /// Parks a filler if the ring is full, as [`Tx::mirror_full`], whether anybody may look or not.
    ///
    /// # Errors
    ///
    /// What ringing the doorbell or parking the filler said. (The kernel reports that a datagram socket's
    /// peer is gone only once.)
    pub fn park_if_full(&mut self, core: &Core) -> Result<()> {
        let Tx::Ring(ring) = self else { return Ok(()) };
        let capacity = ring.producer.ring().capacity();
        let least = if core.kind().has_records() {
            Frame { len: 1, end: true, with: With::default() }.size(capacity)
        } else {
            1
        };
        // Plus a mark, for what the receiver may ask to be told before the next byte.
        let least = least + ring.producer.stride();
        // A filler that is there already waits for the room that somebody wanted.
        if ring.producer.room(least).is_ok_and(|room| room < least) && !ring.producer.header().is_parked() {
            // What was published so far must wake the receiver first, as before any wait for room.
            fence(SeqCst);
            core.ring_under_lock()?;
            let wanted = least.max(ring.low_water());
            ring.park(core, wanted)?;
            // Without this look, both sides would wait: a receiver that emptied the ring while the filler was
            // under way could not take it, and heard of nothing that came after. The doorbell has it look again.
            if ring.producer.room(wanted).is_ok_and(|room| room >= wanted) {
                core.ring_for_filler()?;
            }
        }
        Ok(())
    }
}

impl TxRing {
    /// Waits for room: for `least` bytes at least, and looks for `want`. Returns how many bytes of room there
    /// are.
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
        // A socket that is remembered as non-blocking does not spin first.
        if core.settings().nonblocking() && core.must_not_wait(flags, &mut waited.asked) {
            return self.no_room(core, want, least);
        }
        self.sleep_for_room(core, want, least, flags, waited)
    }

    /// Ends a send that does not wait: from here on the socket is unwritable until there is room.
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
        let limit = core.settings().write_timeout();
        // A little room is not worth a wake-up.
        let wanted = least.max(self.low_water().min(want));
        let mut slept = false;
        loop {
            let budget = match core.settings().wait() {
                Wait::Block => 0,
                Wait::Spin => 1_000_000,
                Wait::Adaptive if slept => 0,
                Wait::Adaptive => self.spin.budget(),
            };
            if budget > 0 {
                let producer = &mut self.producer;
                // An impossible position ends the spin too. The look below finds it.
                let spun = spin::until(budget, || producer.room(wanted).map_or(true, |room| room >= wanted));
                match spun {
                    Ok(took) => {
                        self.spin.paid(took);
                        core.counters().room_spins.add_exclusive(1);
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
            if core.is_connecting() {
                // Only a datagram socket connects while it sends. Nothing of this datagram is in the ring
                // yet.
                return Err(error(Errno::ALREADY));
            }
            let left = control::remaining(waited.began, limit).map_err(error)?;
            if core.settings().wait() == Wait::Spin {
                continue;
            }
            let asleep = Instant::now();
            self.park(core, least.max(self.low_water()))?;
            let room = self.producer.room(want).map_err(misbehaved)?;
            if room >= least {
                return Ok(room);
            }
            core.counters().sleeps.add(1);
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
            // The filler is there from before, perhaps for another amount. The receiver takes it when this
            // one is met.
            header.want(wanted);
            // Nothing was sent that would have reported a peer that is gone. The one edge of its hang-up may
            // be over, so an edge-triggered caller would hear nothing more after an EAGAIN now.
            if core.cannot_send() {
                core.check(Op::Send)?;
                return Err(core.gone(Op::Send));
            }
            // A datagram socket's peer that is being killed closes its socket, and the filler with it, before
            // its lifeline. The one edge was that close, and only another filler can tell what it meant.
            let lost =
                core.kind() == Kind::Datagram && onecopy_sys::socket::unread_memory(core.fd()) == Ok(0);
            if !lost {
                return Ok(());
            }
        }
        if core.kind() == Kind::Datagram && core.cannot_send() {
            // The kernel would report it to the filler, once, and throw away what the peer had sent. A send
            // must report it.
            core.check(Op::Send)?;
            return Err(core.gone(Op::Send));
        }
        core.doing_parking();
        self.producer.header().begin_parking(wanted);
        point!("parking");
        let parked = match core.kind() {
            Kind::Stream => control::park(core.fd()),
            Kind::SeqPacket => {
                let blocked = core.elsewhere().map(Elsewhere::block);
                let blocks = blocked.as_ref().and_then(|blocked| blocked.as_ref().ok());
                let mut with = blocks.map(OwnedFd::as_fd);
                let parked = control::park_record(core.fd(), true, &mut with);
                // Unwritable already, or closed, it needs nothing. Else the datagram socket in front stays writable while a send there
                // returns EAGAIN: no failure of the send, which may wait for room all the same, but its program has to hear of it.
                let needless = matches!(blocked, None | Some(Err(Errno::AGAIN | Errno::BADF)));
                if with.is_none() && !needless && matches!(parked, Ok(Some(_))) {
                    core.counters().left_writable.add_exclusive(1);
                }
                parked
            }
            // Its kernel socket may yet send datagrams of its own, which a small buffer would refuse.
            Kind::Datagram => control::park_record(core.fd(), false, &mut None),
        };
        point!("filled");
        let parked = match parked {
            Ok(Some(filler)) => {
                core.counters().fillers.add_exclusive(1);
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
        core.others().expect(0);
        point!("parked");
        parked
    }

    /// Looks whether the peer still reads. Asks the kernel only now and then.
    #[inline]
    pub fn check_peer(&mut self, core: &Core) -> Result<()> {
        let shut = self.producer.header().info.0.shut.load(Relaxed) != 0;
        let now = coarse_ms();
        if shut || core.is_send_shut() || now.wrapping_sub(self.checked) >= CHECK_MS {
            self.checked = now;
            if core.cannot_send() {
                core.check(Op::Send)?;
                return Err(core.gone(Op::Send));
            }
        }
        Ok(())
    }
}
