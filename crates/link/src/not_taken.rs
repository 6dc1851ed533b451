//! Why a link does not take a packet.

/// Why a link does not take a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotTaken {
    /// Longer than its MTU, or than its longest super-segment.
    TooLong {
        /// Bytes of the packet.
        len: usize,
        /// The MTU.
        mtu: u32,
    },
    /// A checksum is to be finished, and it finishes none.
    Checksum,
    /// A super-segment, and it cuts none of that kind.
    Segmentation,
    /// More fragments than it gathers.
    Fragments {
        /// Fragments of the payload.
        count: usize,
        /// The most it takes.
        most: usize,
    },
    /// Payload in a device's memory.
    Unreadable,
    /// The headers are not what the packet says they are.
    Malformed,
}

impl std::fmt::Display for NotTaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotTaken::TooLong { len, mtu } => {
                write!(f, "a packet of {len} bytes does not go through a link of MTU {mtu}; send it in parts")
            }
            NotTaken::Checksum => f.write_str("the link finishes no checksums; call Packet::finish first"),
            NotTaken::Segmentation => f.write_str("the link cuts no super-segments; call Packet::cut first"),
            NotTaken::Fragments { count, most } => {
                write!(f, "a packet of {count} fragments, where the link gathers {most}; send it in parts")
            }
            NotTaken::Unreadable => {
                f.write_str("the payload lies in a device's memory, which the link does not take; copy it to the host first")
            }
            NotTaken::Malformed => f.write_str("the headers are not what the packet says; build them anew"),
        }
    }
}

impl std::error::Error for NotTaken {}
