//! Submission: the sends of one socket, numbered and stacked.

use super::frontier::{COPIED, DROPPED, Frontier};
use super::outcome::{Fate, First};
use super::pins::Pins;
use super::refused::Refused;
use super::segment::{NotifRef, Payload, Segment};
use onecopy_sync::WeightedArc;
use std::fmt;
use std::time::Duration;

/// How far sends may be stacked on one segment. A completion waits for the whole segment, so these bound its latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of sends on a segment; a single send may be larger.
    pub bytes: u32,
    /// Sends on a segment.
    pub sends: u32,
    /// Since the first of them, as the caller's clock says.
    pub age: Duration,
}

impl Default for Limits {
    /// 512 KiB and 65534 sends, as MSG_ZEROCOPY (net/core/skbuff.c, msg_zerocopy_realloc), and a millisecond.
    fn default() -> Limits {
        Limits { bytes: 512 << 10, sends: 65534, age: Duration::from_millis(1) }
    }
}

/// What a lane is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Sends that may wait for their completion to be reaped; rounded up to one less than a power of two. 16 bytes each.
    pub capacity: u32,
    /// How far they may be stacked.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Config {
        Config { capacity: 1023, limits: Limits::default() }
    }
}

/// Submission of one socket's sends. Its completions come in the order of its sends, whatever order segments are
/// freed in. Dropped: closed; what is under way still completes.
pub struct Lane {
    inner: WeightedArc<Frontier>,
    /// The next send's number.
    tail: u64,
    /// Sends that may be made before looking at the consumer's line again.
    room: u64,
    /// Bytes of all sends so far, wrapping.
    position: u32,
    limits: Limits,
    age_ns: u64,
}

impl Lane {
    pub(super) fn new(inner: WeightedArc<Frontier>, limits: Limits) -> Lane {
        let room = inner.capacity();
        let age_ns = u64::try_from(limits.age.as_nanos()).unwrap_or(u64::MAX);
        Lane { inner, tail: 0, room, position: 0, limits, age_ns }
    }

    /// The number under which its completions come.
    pub fn index(&self) -> u32 {
        self.inner.index()
    }

    /// Sends that were made so far; the number of the next one.
    pub fn sends(&self) -> u64 {
        self.tail
    }

    /// Sends whose completions have not been reaped.
    pub fn outstanding(&self) -> u64 {
        self.tail - self.inner.reaped()
    }

    /// Sends that may wait for their completion to be reaped.
    pub fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    /// Whether every send is refused from here on.
    pub fn is_closed(&self) -> bool {
        self.inner.is_shut()
    }

    /// How far sends are stacked.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// When a segment that is kept for more sends has to be handed on, in nanoseconds of the clock that its sends were
    /// given, for [`Limits::age`] to hold: nothing else bounds how long its sends wait, where no more are made. None where it
    /// carries no send.
    pub fn due<P>(&self, segment: &Segment<P>) -> Option<u64> {
        segment.notif().map(|notif| notif.pins().opened_ns().saturating_add(self.age_ns))
    }

    /// Refuses every send from here on. What is under way still completes.
    pub fn close(&mut self) {
        if !self.inner.is_shut() {
            self.inner.shut();
        }
    }

    /// A send of `bytes` bytes that all go on `segment`, behind what is there: the caller puts them there next, before it hands the
    /// segment on. `now_ns` is any steady clock's, in nanoseconds. Returns the send's number; it is accepted, and one
    /// [`Completion`](super::Completion) follows.
    ///
    /// The order matters. Called when its bytes are there already, it takes what is put behind them for the send's, and the send may
    /// complete while they are still on their way. [`Lane::put`] leaves no choice of an order, and [`Lane::send_there`] is for bytes that
    /// are there.
    ///
    /// # Errors
    ///
    /// [`Refused`], with nothing done. Where it [wants a fresh segment](Refused::wants_fresh_segment), hand this
    /// one on and try again with an empty one.
    #[inline]
    pub fn send<P: Payload>(
        &mut self,
        segment: &mut Segment<P>,
        user_data: u64,
        bytes: u32,
        now_ns: u64,
    ) -> Result<u64, Refused> {
        let at = segment.payload().size();
        self.send_at(segment, at, user_data, bytes, now_ns)
    }

    /// A send of bytes that `put` puts on `segment`, behind what is there: `bytes`, as far as [`Limits`] ask, and those of the send are just
    /// the ones by which the payload has grown. `put` says whether it could; where it could not, it has put nothing there, and the
    /// send's completion says `dropped`. Otherwise as [`Lane::send`].
    ///
    /// # Errors
    ///
    /// As [`Lane::send`]; `put` is not called then.
    #[inline]
    pub fn put<P: Payload>(
        &mut self,
        segment: &mut Segment<P>,
        user_data: u64,
        bytes: u32,
        now_ns: u64,
        put: impl FnOnce(&mut P) -> bool,
    ) -> Result<u64, Refused> {
        let at = segment.payload().size();
        let id = self.send_at(segment, at, user_data, bytes, now_ns)?;
        let done = put(segment.payload_mut());
        let there = segment.payload().size().saturating_sub(at);
        // A payload that does not count its bytes has not grown.
        if there != bytes && (there > 0 || !done) {
            self.correct(segment, id, bytes, there);
        }
        if !done {
            self.inner.mark(id, id, DROPPED);
        }
        Ok(id)
    }

    /// The newest send, the last one on `segment`, has `there` bytes and not the `said` ones.
    #[cold]
    fn correct<P>(&mut self, segment: &mut Segment<P>, id: u64, said: u32, there: u32) {
        if let Some(notif) = segment.notif_mut() {
            notif.pins_mut().correct(said, there);
        }
        self.position = self.position.wrapping_sub(said).wrapping_add(there);
        // The segment is in our hands, so the send has not completed.
        self.inner.set_end(id, self.position);
    }

    /// A send of bytes that are there already: all that lie in the payload of `segment` behind those of sends. Otherwise as
    /// [`Lane::send`], which is for bytes that come next.
    ///
    /// # Errors
    ///
    /// As [`Lane::send`].
    pub fn send_there<P: Payload>(
        &mut self,
        segment: &mut Segment<P>,
        user_data: u64,
        now_ns: u64,
    ) -> Result<u64, Refused> {
        let size = segment.payload().size();
        if let Some(notif) = segment.notif_mut()
            && size > 0
            && notif.pins().end() > size.into()
        {
            // Bytes of sends are missing, and if these are there those come no more.
            let bytes = u64::from(size).saturating_sub(notif.pins().bytes()) as u32;
            let sent = self.send_at(segment, size, user_data, bytes, now_ns);
            if let (Ok(_), Some(notif)) = (sent, segment.notif_mut()) {
                notif.pins_mut().lose_places();
            }
            return sent;
        }
        let end = segment.notif().map_or(0, |notif| notif.pins().end());
        // A payload has at most 4 GiB - 1; where it does not count its bytes, nothing is there.
        let at = u32::try_from(end).unwrap_or(u32::MAX);
        let bytes = size.saturating_sub(at);
        self.send_at(segment, at, user_data, bytes, now_ns)
    }

    /// As [`Lane::send`], where the bytes begin at byte `at` of the payload, wherever that ends. They do not lie before those of sends
    /// that are there already.
    ///
    /// # Errors
    ///
    /// As [`Lane::send`].
    #[inline]
    pub fn send_at<P>(
        &mut self,
        segment: &mut Segment<P>,
        at: u32,
        user_data: u64,
        bytes: u32,
        now_ns: u64,
    ) -> Result<u64, Refused> {
        self.look_for_room()?;
        match segment.notif_mut() {
            // The reference that the slot is held by goes over to the segment.
            none @ None => {
                let from = self.position;
                let id = self.fill(user_data, bytes);
                *none = Some(NotifRef::new(Pins::new(self.inner.split(), id, from, bytes, at, now_ns)));
                Ok(id)
            }
            Some(notif) => {
                let pins = notif.pins_mut();
                self.admit(pins, bytes, now_ns)?;
                let from = self.position;
                let id = self.fill(user_data, bytes);
                if pins.extend(&self.inner, id, from, bytes, at) {
                    self.inner.stack(id);
                } else {
                    pins.add(self.inner.split(), id, from, bytes, at);
                }
                Ok(id)
            }
        }
    }

    /// A send of `bytes` bytes that were copied before anybody saw them: it holds nothing, and completes behind those before it.
    ///
    /// # Errors
    ///
    /// [`Refused::Full`] and [`Refused::Closed`].
    pub fn send_copied(&mut self, user_data: u64, bytes: u32) -> Result<u64, Refused> {
        self.look_for_room()?;
        let id = self.fill(user_data, bytes);
        self.inner.mark(id, id, COPIED);
        self.inner.release(id);
        Ok(id)
    }

    /// What is left in `rest` of the newest send, and of no other, was not taken by whoever it was given to: these bytes are no part of it
    /// any more. Nobody else has a segment with bytes of it. False where that was all of it: the send was never made, its number is the next one's, and nothing is told of it.
    pub fn take_back<P>(&mut self, rest: &mut Segment<P>) -> bool {
        let Some(id) = self.tail.checked_sub(1) else { return true };
        let only = rest.notif().and_then(|notif| notif.pins().only(&self.inner, id));
        let Some(bytes) = only else { return true };
        // The reference in `rest` holds the frontier meanwhile.
        let whole = self.inner.end_of(id.wrapping_sub(1)).wrapping_add(bytes) == self.position;
        self.position = self.position.wrapping_sub(bytes);
        self.inner.set_end(id, self.position);
        let unmade = whole && self.inner.is_held_once(id);
        if unmade {
            // The slot behind the last send is held by one reference.
            self.inner.acquire(id);
            (self.tail, self.room) = (id, self.room + 1);
        }
        rest.set_fate(Fate::Sent);
        *rest.notif_mut() = None;
        !unmade
    }

    /// A send whose bytes go on several segments, or that may yet fail.
    ///
    /// # Errors
    ///
    /// [`Refused::Full`] and [`Refused::Closed`].
    pub fn open(&mut self, user_data: u64) -> Result<Notif, Refused> {
        self.look_for_room()?;
        let id = self.fill(user_data, 0);
        Ok(Notif { inner: self.inner.split(), id, linked: false, lost: true, bytes: 0 })
    }

    #[inline]
    fn look_for_room(&mut self) -> Result<(), Refused> {
        if self.inner.is_shut() {
            return Err(Refused::Closed);
        }
        if self.room == 0 {
            self.room = self.inner.capacity() - (self.tail - self.inner.reaped());
            if self.room == 0 {
                return Err(Refused::Full { capacity: self.inner.capacity() as u32 });
            }
        }
        Ok(())
    }

    /// Takes the next slot, which is held by one reference, the caller's from here on.
    #[inline]
    fn fill(&mut self, user_data: u64, bytes: u32) -> u64 {
        let id = self.tail;
        self.tail += 1;
        self.room -= 1;
        self.position = self.position.wrapping_add(bytes);
        self.inner.fill(id, user_data, self.position);
        id
    }

    /// Whether a send of so many bytes may be stacked on what is there.
    #[inline]
    fn admit(&self, pins: &Pins, bytes: u32, now_ns: u64) -> Result<(), Refused> {
        if !pins.lane().is_told_with(&self.inner) {
            return Err(Refused::Foreign);
        }
        let would_be = pins.bytes() + u64::from(bytes);
        if would_be > u64::from(self.limits.bytes) {
            return Err(Refused::Bytes { would_be, limit: self.limits.bytes });
        }
        if pins.sends() >= u64::from(self.limits.sends) {
            return Err(Refused::Sends { limit: self.limits.sends });
        }
        let age = now_ns.saturating_sub(pins.opened_ns());
        if age > self.age_ns {
            return Err(Refused::Age { age });
        }
        Ok(())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.inner.close(self.tail);
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("index", &self.index())
            .field("sends", &self.tail)
            .field("outstanding", &self.outstanding())
            .finish_non_exhaustive()
    }
}

/// A send under way: [linked](Notif::link) to each segment that carries bytes of it, then
/// [finished](Notif::finish). It may be kept while its sender waits for room, and finished in any thread. Dropped unfinished, it is
/// cancelled: what is linked stays linked, and its completion says `dropped`.
#[must_use = "a send that is not finished is cancelled"]
#[derive(Debug)]
pub struct Notif {
    inner: WeightedArc<Frontier>,
    id: u64,
    linked: bool,
    /// Nothing of it, or not all of it, will ever be transmitted: until it is finished that is so.
    lost: bool,
    /// Bytes on all segments so far.
    bytes: u32,
}

impl Notif {
    /// The send's number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Bytes that were linked so far.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// `segment` carries `bytes` more bytes of this send, behind what is there: the caller puts them there next, before it hands the
    /// segment on. `lane` is the one that it was opened in.
    ///
    /// # Errors
    ///
    /// [`Refused`], with nothing done, never [`Refused::Full`] nor [`Refused::Closed`]: hand the segment on and try again with
    /// an empty one. Only [`Refused::TooLong`] and [`Refused::Passed`] say that another send must take the rest.
    pub fn link<P: Payload>(
        &mut self,
        lane: &mut Lane,
        segment: &mut Segment<P>,
        bytes: u32,
        now_ns: u64,
    ) -> Result<(), Refused> {
        let at = segment.payload().size();
        self.link_at(lane, segment, at, bytes, now_ns)
    }

    /// As [`Notif::link`], where the bytes begin at byte `at` of the payload: see [`Lane::send_at`].
    ///
    /// # Errors
    ///
    /// As [`Notif::link`].
    pub fn link_at<P>(
        &mut self,
        lane: &mut Lane,
        segment: &mut Segment<P>,
        at: u32,
        bytes: u32,
        now_ns: u64,
    ) -> Result<(), Refused> {
        // The bytes of a send are one run of the lane's.
        if !WeightedArc::ptr_eq(&lane.inner, &self.inner) || lane.tail != self.id + 1 {
            return Err(Refused::Passed { id: self.id, next: lane.tail });
        }
        // A completion tells bytes in 32 bits, as does the lane's position: past that it would tell fewer.
        let Some(sum) = self.bytes.checked_add(bytes) else {
            return Err(Refused::TooLong { would_be: u64::from(self.bytes) + u64::from(bytes) });
        };
        let inner = &mut self.inner;
        let from = lane.position;
        match segment.notif_mut() {
            none @ None => {
                inner.acquire(self.id);
                *none = Some(NotifRef::new(Pins::new(inner.split(), self.id, from, bytes, at, now_ns)));
            }
            Some(notif) => {
                let pins = notif.pins_mut();
                lane.admit(pins, bytes, now_ns)?;
                // An earlier reference covers this send as well; it holds until the segment is free.
                if !pins.extend(inner, self.id, from, bytes, at) {
                    inner.acquire(self.id);
                    pins.add(inner.split(), self.id, from, bytes, at);
                }
            }
        }
        self.linked = true;
        self.bytes = sum;
        lane.position = from.wrapping_add(bytes);
        inner.set_end(self.id, lane.position);
        Ok(())
    }

    /// The send is over, as far as the caller goes: `result` is what its first step says. The notification follows, with
    /// `dropped` if this is an error and nothing was linked.
    pub fn finish<T, E>(mut self, result: Result<T, E>) -> First<Result<T, E>> {
        self.lost = result.is_err() && !self.linked;
        First { result, more: true }
    }
}

impl Drop for Notif {
    fn drop(&mut self) {
        if self.lost {
            self.inner.mark(self.id, self.id, DROPPED);
        }
        self.inner.release(self.id);
    }
}
