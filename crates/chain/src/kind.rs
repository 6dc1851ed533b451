//! Whose memory it is.

use onecopy_pool::Page;
use std::fmt;

/// Whose memory bytes lie in, and so what may be done with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Ours alone: slices, checksums, copies, kernel I/O.
    Host,
    /// Host memory that somebody else can still write (another process; who fills pieces of a page that is cut): copied or
    /// handed to the kernel, never a slice. A chain that our own memory and a peer's are joined in is of this kind, too.
    Peer,
    /// Memory that this CPU cannot read (a GPU's, or a stand-in): passed on by reference only.
    Device,
}

impl Kind {
    /// Of the memory behind `page`.
    #[inline]
    pub fn of(page: &Page) -> Kind {
        if page.netmem().is_device() {
            Kind::Device
        } else if page.bytes().is_some() {
            Kind::Host
        } else {
            Kind::Peer
        }
    }
}

impl Kind {
    /// The kind of a chain in which this and `other` are joined, if they may be: what holds for all of its bytes. A device's
    /// memory joins no other.
    #[inline]
    pub fn join(self, other: Kind) -> Option<Kind> {
        match (self, other) {
            (Kind::Host, Kind::Host) => Some(Kind::Host),
            (Kind::Device, Kind::Device) => Some(Kind::Device),
            (Kind::Device, _) | (_, Kind::Device) => None,
            _ => Some(Kind::Peer),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Host => "host memory",
            Kind::Peer => "memory that somebody else can write",
            Kind::Device => "device memory",
        })
    }
}
