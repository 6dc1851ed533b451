//! Parts of a device's memory, and what they are given back by.

/// A part of a device's memory that bytes were received in: struct dmabuf_cmsg (include/uapi/linux/uio.h). It owns nothing: the
/// [`Frags`](super::Frags) that it came with does, or whoever has its token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frag {
    /// Where it begins, in bytes from the beginning of the memory (frag_offset).
    pub offset: u64,
    /// Bytes (frag_size).
    pub len: u32,
    /// What it is given back by, from 1 on, and no fragment's of its socket again; 0 where there is nothing to give back, as it was only looked at
    /// (frag_token, which has 31 bits).
    pub token: u64,
    /// Which binding's memory it is ([`Binding::id`](crate::devmem::Binding::id); dmabuf_id).
    pub binding: u32,
}

/// Tokens one after the other: struct dmabuf_token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    /// The first one (token_start).
    pub start: u64,
    /// How many (token_count).
    pub count: u32,
}

impl From<Frag> for TokenRange {
    fn from(frag: Frag) -> TokenRange {
        TokenRange { start: frag.token, count: 1 }
    }
}
