//! A payload with the reference that keeps its senders waiting.

use super::outcome::Fate;
use super::pins::Pins;
use super::refused::Refused;
use onecopy_sync::WeightedArc;

/// What a segment carries: bytes, of which some are those of sends.
///
/// The places of sends in it are counted in these bytes. A payload that does not count them (`()`) says 0: its sends then lie one right
/// behind the other.
pub trait Payload {
    /// Bytes in it, now: where those of a next send begin.
    fn size(&self) -> u32;
}

impl Payload for () {
    fn size(&self) -> u32 {
        0
    }
}

impl Payload for Vec<u8> {
    fn size(&self) -> u32 {
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }
}

impl<T: Payload> Payload for Vec<T> {
    fn size(&self) -> u32 {
        self.iter().fold(0, |sum, part| sum.saturating_add(part.size()))
    }
}

/// A reference on the sends that a segment carries bytes of: the `uarg` of the kernel's skb. As long as it lives, none of them
/// is complete. Dropped, it says [`Fate::Dropped`] of the bytes, unless another fate was set.
#[derive(Debug)]
pub struct NotifRef(Pins);

impl NotifRef {
    #[inline]
    pub(super) fn new(pins: Pins) -> NotifRef {
        NotifRef(pins)
    }

    #[inline]
    pub(super) fn pins(&self) -> &Pins {
        &self.0
    }

    #[inline]
    pub(super) fn pins_mut(&mut self) -> &mut Pins {
        &mut self.0
    }

    /// Sends that it keeps from completing: each for every piece of it whose neighbours are not those of its lane.
    pub fn sends(&self) -> u64 {
        self.0.sends()
    }

    /// Bytes of sends that were said to be on the segment.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Says what became of the bytes, once this is dropped.
    #[inline]
    pub fn set_fate(&mut self, fate: Fate) {
        self.0.set_fate(fate);
    }

    /// Takes over what `back` holds, whose payload comes behind the `len` bytes of this one's.
    ///
    /// # Errors
    ///
    /// `back` as it was, where the two are of different contexts; [`Refused::Payload`] where 4 GiB that are nobody's lie between them.
    pub fn join(&mut self, len: u64, back: NotifRef) -> Result<(), (NotifRef, Refused)> {
        if let Err(why) = self.takes(len, &back) {
            return Err((back, why));
        }
        self.0.join(len, back.0);
        Ok(())
    }

    /// A second holder of the sends that have bytes among the `len` from byte `at` on; none where there are none.
    pub(super) fn range(&self, at: u64, len: u64) -> Option<NotifRef> {
        self.0.range(at, len).map(NotifRef)
    }

    /// Whether `back` can be joined behind `len` bytes.
    fn takes(&self, len: u64, back: &NotifRef) -> Result<(), Refused> {
        let (ours, theirs) = (self.0.lane(), back.0.lane());
        if !WeightedArc::ptr_eq(ours, theirs) && !ours.is_told_with(theirs) {
            return Err(Refused::Foreign);
        }
        if self.0.takes(len, &back.0) { Ok(()) } else { Err(Refused::Payload) }
    }
}

impl Clone for NotifRef {
    /// One more holder: none of the sends completes before both are dropped.
    fn clone(&self) -> NotifRef {
        NotifRef(self.0.share())
    }
}

/// A payload (a chain, a train of datagrams, ...) and the reference on the sends it carries bytes of. A clone shares both.
/// Dropping it frees the payload first, then gives up the reference: when the last one is given up, its sends
/// complete.
///
/// A part of the payload that is taken out or cloned by itself is not covered: give what may outlive the segment a
/// segment of its own.
#[derive(Clone, Debug, Default)]
pub struct Segment<P> {
    // Dropped in this order: a send never completes before its last fragment is free.
    payload: P,
    notif: Option<NotifRef>,
}

impl<P> Segment<P> {
    /// A segment that carries bytes of no send that waits for them.
    pub fn new(payload: P) -> Segment<P> {
        Segment { payload, notif: None }
    }

    /// From a payload and the reference on the sends that it carries bytes of.
    pub fn from_parts(payload: P, notif: Option<NotifRef>) -> Segment<P> {
        Segment { payload, notif }
    }

    /// The two parts; whoever takes them keeps the reference as long as the payload.
    pub fn into_parts(self) -> (P, Option<NotifRef>) {
        (self.payload, self.notif)
    }

    /// What it carries.
    pub fn payload(&self) -> &P {
        &self.payload
    }

    /// What it carries, to put more behind it. (What is taken away from it, or put in front, moves the bytes of sends away from where the
    /// segment knows them to lie: [`Segment::split_off`] and its kind take the references along.)
    pub fn payload_mut(&mut self) -> &mut P {
        &mut self.payload
    }

    /// The reference, if it carries bytes of a send that waits for them.
    pub fn notif(&self) -> Option<&NotifRef> {
        self.notif.as_ref()
    }

    pub(super) fn notif_mut(&mut self) -> &mut Option<NotifRef> {
        &mut self.notif
    }

    /// Frees it, and says what became of its bytes. (Dropping it says that they were not transmitted.)
    #[inline]
    pub fn free(mut self, fate: Fate) {
        self.set_fate(fate);
    }

    /// Says what became of its bytes, once it is dropped: for whoever hands it on to somebody who only drops it.
    pub fn set_fate(&mut self, fate: Fate) {
        if let Some(notif) = &mut self.notif {
            notif.set_fate(fate);
        }
    }

    /// A second holder of the sends that have bytes among the `len` from byte `at` of the payload on, with `payload`, which is those bytes
    /// by reference. Dropped, it says nothing of what became of them, unless it is told: whoever has this one does.
    pub fn part(&self, at: u64, len: u64, payload: P) -> Segment<P> {
        Segment { payload, notif: self.notif.as_ref().and_then(|notif| notif.range(at, len)) }
    }

    /// The first `n` bytes are gone from the payload: gives up the references of their sends, and says what became of them.
    pub(super) fn free_places(&mut self, n: u64, fate: Fate) {
        let Some(NotifRef(pins)) = self.notif.take() else { return };
        let (front, back) = pins.split(n);
        self.notif = back.map(NotifRef);
        if let Some(mut front) = front {
            front.set_fate(fate);
        }
    }

    /// Splits at byte `at` of the payload: `split` leaves what is before it and returns the rest. Each part keeps those
    /// sends waiting that it carries bytes of, and the front one those without bytes that lie at `at`.
    pub fn split_off(&mut self, at: u64, split: impl FnOnce(&mut P) -> P) -> Segment<P> {
        let payload = split(&mut self.payload);
        let (front, back) = match self.notif.take() {
            Some(NotifRef(pins)) => {
                let (front, back) = pins.split(at);
                (front.map(NotifRef), back.map(NotifRef))
            }
            None => (None, None),
        };
        self.notif = front;
        Segment { payload, notif: back }
    }
}

impl<P: Payload> Segment<P> {
    /// Takes over what `back` carries, behind what is here: `append` puts its payload there, or gives it back if that can't
    /// be.
    ///
    /// # Errors
    ///
    /// `back` as it was, and why: see [`NotifRef::join`]; [`Refused::Payload`] if `append` gave its payload back.
    pub fn join(
        &mut self,
        back: Segment<P>,
        append: impl FnOnce(&mut P, P) -> Result<(), P>,
    ) -> Result<(), (Segment<P>, Refused)> {
        let len = self.payload.size();
        if let Err(why) = self.takes_references(&back) {
            return Err((back, why));
        }
        let Segment { payload, notif } = back;
        if let Err(payload) = append(&mut self.payload, payload) {
            return Err((Segment { payload, notif }, Refused::Payload));
        }
        self.join_references(len, &mut { notif });
        Ok(())
    }

    /// Whether the references of `back` can be joined behind ours.
    #[inline]
    pub(super) fn takes_references(&self, back: &Segment<P>) -> Result<(), Refused> {
        match (&self.notif, &back.notif) {
            (Some(ours), Some(theirs)) => ours.takes(self.payload.size().into(), theirs),
            _ => Ok(()),
        }
    }

    /// Takes them over, once their bytes are behind the `len` that were here before.
    #[inline]
    pub(super) fn join_references(&mut self, len: u32, theirs: &mut Option<NotifRef>) {
        if let (Some(ours), Some(back)) = (&mut self.notif, &mut *theirs)
            && ours.0.absorb(len.into(), &mut back.0)
        {
            *theirs = None;
            return;
        }
        let Some(mut theirs) = theirs.take() else { return };
        match &mut self.notif {
            Some(ours) => ours.0.join(len.into(), theirs.0),
            ours @ None => {
                theirs.0.grow_front(len);
                *ours = Some(theirs);
            }
        }
    }
}
