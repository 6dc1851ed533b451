//! Why bytes are refused.

use std::fmt;

/// Why bytes are no header of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Malformed {
    /// Fewer bytes than the header has.
    Short,
    /// Another version, or hardware, than the protocol's.
    Version,
    /// A length in it that cannot be: shorter than the header, or longer than what is there.
    Length,
    /// Its checksum is wrong.
    Checksum,
    /// A later part of a packet that was cut, which has no such header.
    Fragment,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Malformed::Short => "the packet ends within a header; drop it",
            Malformed::Version => "the header is of another version or hardware; drop it",
            Malformed::Length => "the header says a length that cannot be; drop the packet",
            Malformed::Fragment => "a fragment that is not the first one has no such header; drop it",
            Malformed::Checksum => "the header was damaged on its way; drop the packet",
        })
    }
}

impl std::error::Error for Malformed {}
