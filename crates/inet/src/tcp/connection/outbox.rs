//! What was given to be sent, until it is acknowledged.

use super::unsent::Unsent;
use onecopy_chain::notify::{Fate, SegmentQueue};
use onecopy_link::Packet;

/// Bytes from the first unacknowledged one on: what is under way, then what waits. A pointer, where there are none.
#[derive(Debug, Default)]
pub(super) struct Outbox(Option<Box<Bytes>>);

#[derive(Debug, Default)]
struct Bytes {
    queue: SegmentQueue,
    unsent: Unsent,
    /// Before this nothing more leaves, where the program bounds the rate (SO_MAX_PACING_RATE).
    pace_at: u64,
}

static NOTHING: Unsent = Unsent::new();

impl Outbox {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |bytes| bytes.queue.len())
    }

    /// Bytes of the pages that it keeps.
    pub fn true_size(&self) -> u64 {
        self.0.as_ref().map_or(0, |bytes| bytes.queue.true_size())
    }

    /// What has not left.
    pub fn unsent(&self) -> &Unsent {
        self.0.as_ref().map_or(&NOTHING, |bytes| &bytes.unsent)
    }

    /// The same, to be changed.
    pub fn unsent_mut(&mut self) -> &mut Unsent {
        &mut self.0.get_or_insert_default().unsent
    }

    /// When what waits may leave, where the rate is bounded.
    pub fn pace_at(&self) -> u64 {
        self.0.as_ref().map_or(0, |bytes| bytes.pace_at)
    }

    /// The same, to be changed. Where nothing was given to be sent nothing waits.
    pub fn set_pace_at(&mut self, at: u64) {
        if let Some(bytes) = &mut self.0 {
            bytes.pace_at = at;
        }
    }

    /// All of it, as a list of segments: for bytes to be put behind.
    pub fn queue_mut(&mut self) -> &mut SegmentQueue {
        &mut self.0.get_or_insert_default().queue
    }

    /// A packet of `len` bytes from byte `at` on, by reference: as far as [`SegmentQueue::range`] goes.
    pub fn packet(&self, at: u64, len: usize) -> Packet {
        let mut packet = Packet::default();
        if let Some(bytes) = self.0.as_ref().filter(|_| len > 0) {
            // A range of what is queued cannot fail, but for a chain whose checksum is open, which nobody puts there.
            let _ = bytes.queue.range_to(at, len, packet.payload_mut());
        }
        packet
    }

    /// The peer has the first `n` bytes.
    pub fn acknowledged(&mut self, n: u64) {
        if let Some(bytes) = &mut self.0 {
            // It has what is not acknowledged, so it has these.
            let freed = bytes.queue.advance(n.min(bytes.queue.len()), Fate::Sent);
            debug_assert!(freed.is_ok(), "no checksum is left to be finished");
        }
    }

    /// None of it will be sent any more.
    pub fn drop_all(&mut self) {
        if let Some(mut bytes) = self.0.take() {
            bytes.queue.clear(Fate::Dropped);
        }
    }

    /// Whether [`Outbox::rest`] would give memory back.
    pub fn is_restless(&self) -> bool {
        self.0.as_ref().is_some_and(|bytes| bytes.queue.is_empty() && bytes.unsent.is_empty())
    }

    /// Gives memory back, where there is nothing in it.
    pub fn rest(&mut self) {
        self.0.take_if(|bytes| bytes.queue.is_empty() && bytes.unsent.is_empty());
    }
}
