//! The copy engine: one place where bytes are touched.

/// Which stores a copy should use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Ordinary stores: the destination ends up in the cache of this core.
    Cached,
    /// Non-temporal stores: the destination goes to memory and evicts nothing.
    NonTemporal,
    /// The engine decides from length, footprint and reader.
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

/// Which stores a copy really used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Ordinary stores.
    Cached,
    /// Non-temporal stores for the whole lines, fenced.
    NonTemporal,
}

/// Copies `len` bytes and says which stores it used. Non-temporal stores are fenced (sfence) before the
/// return, so that a Release store after it publishes them.
///
/// # Safety
///
/// `src` is valid for reads of `len` bytes, `dst` for writes of `len` bytes, and they do not overlap.
pub unsafe fn copy_raw(dst: *mut u8, src: *const u8, len: usize, hint: Hint) -> Store {
    let _ = hint;
    // SAFETY: the caller's promise is that of copy_nonoverlapping.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
    Store::Cached
}
