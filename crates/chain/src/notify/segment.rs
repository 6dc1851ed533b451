//! A payload with the reference that keeps its senders waiting.

use super::pins::Pins;
use super::{Refused, merged};
use std::sync::Arc;

/// What became of a segment's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They were transmitted from where they lie (and acknowledged, where that matters).
    Sent,
    /// They were transmitted, but copied on the way.
    Copied,
    /// They were freed without having been transmitted.
    Dropped,
}

/// A reference on the sends that a segment carries bytes of: the `uarg` of the kernel's skb. As long as it lives, none of them
/// is complete. Dropped, it says [`Fate::Dropped`] of the bytes, unless another fate was set.
#[derive(Debug)]
pub struct NotifRef(pub(super) Kind);

/// By provider.
#[derive(Debug)]
pub(super) enum Kind {
    /// Of a [`Lane`](super::Lane).
    Stacked(Pins),
    /// Of a [`merged::Context`].
    Merged(merged::Ref),
}

impl NotifRef {
    #[inline]
    pub(super) fn stacked(pins: Pins) -> NotifRef {
        NotifRef(Kind::Stacked(pins))
    }

    /// Sends that it keeps from completing, as far as it knows: those of lanes, each for every piece of it whose neighbours are not
    /// those of its lane; of a merged chain only the one it is of.
    pub fn sends(&self) -> u64 {
        match &self.0 {
            Kind::Stacked(pins) => pins.sends(),
            Kind::Merged(_) => 1,
        }
    }

    /// Bytes of sends that were said to be on the segment; a merged one does not count them.
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Kind::Stacked(pins) => pins.bytes(),
            Kind::Merged(_) => 0,
        }
    }

    /// Says what became of the bytes, once this is dropped.
    #[inline]
    pub fn set_fate(&mut self, fate: Fate) {
        match &mut self.0 {
            Kind::Stacked(pins) => pins.set_fate(fate),
            Kind::Merged(of) => of.set_fate(fate),
        }
    }

    /// Takes over what `back` holds, whose bytes come behind these.
    ///
    /// # Errors
    ///
    /// `back` as it was, where the two are of different contexts or providers, or where merged ones would have to be joined.
    pub fn join(&mut self, back: NotifRef) -> Result<(), (NotifRef, Refused)> {
        if let Err(why) = self.takes(&back) {
            return Err((back, why));
        }
        match (&mut self.0, back.0) {
            (Kind::Stacked(ours), Kind::Stacked(theirs)) => ours.join(theirs),
            (_, Kind::Merged(theirs)) => theirs.forget(),
            (Kind::Merged(_), Kind::Stacked(_)) => unreachable!("refused above"),
        }
        Ok(())
    }

    /// Whether `back` can be joined.
    fn takes(&self, back: &NotifRef) -> Result<(), Refused> {
        match (&self.0, &back.0) {
            (Kind::Stacked(ours), Kind::Stacked(theirs))
                if Arc::ptr_eq(&ours.lane().queue, &theirs.lane().queue) =>
            {
                Ok(())
            }
            (Kind::Merged(ours), Kind::Merged(theirs)) if ours.is_same(theirs) => Ok(()),
            (Kind::Merged(_), Kind::Merged(_)) => Err(Refused::Linked),
            _ => Err(Refused::Foreign),
        }
    }
}

impl Clone for NotifRef {
    /// One more holder: none of the sends completes before both are dropped.
    fn clone(&self) -> NotifRef {
        match &self.0 {
            Kind::Stacked(pins) => NotifRef(Kind::Stacked(pins.share())),
            Kind::Merged(of) => NotifRef(Kind::Merged(of.clone())),
        }
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
    /// sends waiting that it carries bytes of, and the front one those without bytes that lie at `at`. (Of a merged one both parts
    /// keep all.)
    pub fn split_off(&mut self, at: u64, split: impl FnOnce(&mut P) -> P) -> Segment<P> {
        let payload = split(&mut self.payload);
        let (front, back) = match self.notif.take() {
            Some(NotifRef(Kind::Stacked(pins))) => {
                let (front, back) = pins.split(at);
                (front.map(NotifRef::stacked), back.map(NotifRef::stacked))
            }
            // Nothing is left in front.
            whole if at == 0 => (None, whole),
            // The skb's clone shares its uarg.
            merged => (merged.clone(), merged),
        };
        self.notif = front;
        Segment { payload, notif: back }
    }
}
