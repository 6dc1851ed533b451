//! A payload with the reference that keeps its senders waiting.

use super::outcome::Fate;
use super::pins::Pins;
use super::refused::Refused;

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

    /// Takes over what `back` holds, whose bytes come behind these.
    ///
    /// # Errors
    ///
    /// `back` as it was, where the two are of different contexts.
    pub fn join(&mut self, back: NotifRef) -> Result<(), (NotifRef, Refused)> {
        if let Err(why) = self.takes(&back) {
            return Err((back, why));
        }
        self.0.join(back.0);
        Ok(())
    }

    /// Whether `back` can be joined.
    fn takes(&self, back: &NotifRef) -> Result<(), Refused> {
        if self.0.lane().is_told_with(back.0.lane()) { Ok(()) } else { Err(Refused::Foreign) }
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

    /// What it carries, to put more there.
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
        if let Some(notif) = &mut self.notif {
            notif.set_fate(fate);
        }
    }

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
        if let (Some(ours), Some(theirs)) = (&self.notif, &back.notif)
            && let Err(why) = ours.takes(theirs)
        {
            return Err((back, why));
        }
        let Segment { payload, notif } = back;
        if let Err(payload) = append(&mut self.payload, payload) {
            return Err((Segment { payload, notif }, Refused::Payload));
        }
        match (&mut self.notif, notif) {
            (ours @ None, theirs) => *ours = theirs,
            (Some(ours), Some(theirs)) => ours.join(theirs).expect("it was looked at above"),
            (Some(_), None) => {}
        }
        Ok(())
    }

    /// Splits at `at` bytes of sends: `split` leaves the payload before it and returns the rest. Each part keeps those
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
