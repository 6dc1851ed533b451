//! What a caller asks for, what he knows, and what was really done.

/// Which stores a copy should use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Ordinary stores: the destination ends up in the cache of this core.
    Cached,
    /// Non-temporal stores: the destination goes to memory and evicts nothing.
    NonTemporal,
    /// The engine decides from length, footprint and reader. Where the footprint is larger than the second level of caches, a thread's first copies allocate (they
    /// compare both stores): a signal handler, which may not allocate, says [`Policy::Cached`] or [`Policy::NonTemporal`].
    #[default]
    Auto,
}

/// Who reads the destination next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reader {
    /// A thread on this core.
    SameCore,
    /// A thread on another core (a peer process, `send()` into a kernel socket, TLS).
    OtherCore,
    /// No CPU: DMA, pages passed on by reference.
    NoCpu,
    /// Not known.
    #[default]
    Unknown,
}

/// What the caller knows about the destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Which stores.
    pub policy: Policy,
    /// Bytes of the buffer that the destination keeps cycling through; 0 means the copy's own length.
    pub footprint: usize,
    /// Who reads next.
    pub reader: Reader,
}

impl Hint {
    /// The engine decides, knowing nothing but the length.
    pub const AUTO: Hint = Hint { policy: Policy::Auto, footprint: 0, reader: Reader::Unknown };
    /// Ordinary stores at any length.
    pub const CACHED: Hint = Hint { policy: Policy::Cached, footprint: 0, reader: Reader::Unknown };
    /// Non-temporal stores, except for copies of [`STREAM_MIN`](crate::STREAM_MIN) bytes or fewer.
    pub const NON_TEMPORAL: Hint =
        Hint { policy: Policy::NonTemporal, footprint: 0, reader: Reader::Unknown };
}

/// Which stores a copy really used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Ordinary stores.
    Cached,
    /// Non-temporal stores for the whole lines, fenced.
    NonTemporal,
}
