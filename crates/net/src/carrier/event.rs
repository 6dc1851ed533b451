//! What is told of memory that is bound.

/// Something has happened to a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Too little of the memory is free: a peer may send no whole segment. Give tokens back.
    Starved,
    /// A packet was dropped for want of a page. The peer sends it again.
    Dropped,
    /// All peers may send again.
    Fed,
}
