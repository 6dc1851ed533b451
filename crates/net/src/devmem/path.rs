//! Which way payload takes to a device's memory, and out of it.

use crate::carrier::NotByNic;
use onecopy_link::NotRegistered;
use std::fmt;

/// Which way payload takes between the link and bound memory: [`Binding::path`](super::Binding::path), [`TxBinding::path`](super::TxBinding::path).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// The NIC itself puts it there: no CPU copies it. (But for bytes of packets that come by another queue than those it is bound to, or that the NIC does not part from
    /// their headers.)
    Nic,
    /// The NIC itself puts it there, and io_uring tells of it (zero copy Rx): no CPU copies it. Of packets that come by another queue, or that the NIC does not part from
    /// their headers, the kernel copies the payload to the same memory, if that is a file, and does not say of which. And why it is not device memory TCP.
    NicRing(NotByNic),
    /// The kernel's own copy puts it there, or takes it from there. (What is received: of long packets whose place is foreseen. How many
    /// were, [`QueueStats::landed`](onecopy_link::rx::QueueStats) says.) And why no NIC does, where one was asked
    /// ([`Builder::interface`](crate::Builder::interface)).
    Direct(Option<NotByNic>),
    /// By way of pages of the host's, from which, or to which, the device copies: twice.
    Staged(Why),
}

/// Why payload goes by way of the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The link does not put it anywhere else.
    Link,
    /// The memory is not registered with the kernel.
    Memory(NotRegistered),
    /// It was tried, and the kernel did not do it for the link's descriptor.
    GivenUp,
}

impl Path {
    /// As it was when the memory was bound, and is now.
    pub(super) fn of(then: Option<Why>, now: bool) -> Path {
        match (then, now) {
            (_, true) => Path::Direct(None),
            (Some(why), false) => Path::Staged(why),
            (None, false) => Path::Staged(Why::GivenUp),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Nic => f.write_str("by the NIC: no CPU copy"),
            Path::NicRing(why) => {
                write!(
                    f,
                    "by the NIC, told of by io_uring: no CPU copy of what comes by the bound queue; not by device memory TCP: {why}"
                )
            }
            Path::Direct(None) => f.write_str("by the kernel's one copy"),
            Path::Direct(Some(why)) => write!(f, "by the kernel's one copy, not by the NIC: {why}"),
            Path::Staged(why) => write!(f, "by way of the host's memory: {why}"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Link => f.write_str("the link itself puts it nowhere else; use a Tap"),
            Why::Memory(why) => why.fmt(f),
            Why::GivenUp => f.write_str("the kernel did not do it for this link"),
        }
    }
}
