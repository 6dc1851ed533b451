//! A link that a thread can sleep on.

use onecopy_inet::trace::{Trace, Watch};
use onecopy_link::pcap::Pcap;
use onecopy_link::{Link, Registered, Tap, Xdp};
use std::io::Write;
use std::os::fd::AsFd;

/// A [`Link`] with a descriptor: readable while there is something to receive, writable once there is room again.
pub trait Port: Link + AsFd + Send {
    /// Whether its descriptor tells when there is room again. Where it does not now, [`Link::deadline`] says when to look.
    fn tells_of_room(&self) -> bool {
        true
    }

    /// Whether it has found out that it is gone, of which its descriptor does not tell.
    fn is_gone(&self) -> bool {
        false
    }

    /// Whether the kernel copies what is transmitted, and what is received.
    fn kernel_copies(&self) -> bool {
        true
    }

    /// Whether payload in a device's memory is copied to the host's before it is transmitted.
    fn stages_device(&self) -> bool {
        false
    }

    /// Whether a packet's headers are in its head, all of them, and its payload is apart: what device memory needs
    /// ([`Stack::bind_rx`](crate::Stack::bind_rx)).
    fn splits_headers(&self) -> bool {
        false
    }

    /// Whether it puts payload into a device's memory itself, where it can ([`Link::receive_sorted`]).
    fn lands_device(&self) -> bool {
        false
    }

    /// Whether it takes payload from a device's memory itself, where it can.
    fn gathers_device(&self) -> bool {
        false
    }

    /// Has payload in `memory`, which is sent from, taken from where it lies, and not from a copy in the host's memory.
    fn gather_from(&mut self, _memory: Registered) {}

    /// Whether it does so for memory, by its pool.
    fn gathers_from(&self, _memory: u64) -> bool {
        false
    }

    /// Nothing is sent from that memory any more but what is under way.
    fn gather_no_more(&mut self, _memory: u64) {}

    /// What it has counted, each with its name; nothing, if it does not count.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

impl Port for Tap {
    fn stages_device(&self) -> bool {
        true
    }

    fn splits_headers(&self) -> bool {
        true
    }

    fn lands_device(&self) -> bool {
        true
    }

    fn gathers_device(&self) -> bool {
        true
    }

    fn gather_from(&mut self, memory: Registered) {
        Tap::gather_from(self, memory);
    }

    fn gathers_from(&self, memory: u64) -> bool {
        Tap::gathers_from(self, memory)
    }

    fn gather_no_more(&mut self, memory: u64) {
        Tap::gather_no_more(self, memory);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.stats().each().collect()
    }
}

impl Port for Xdp {
    fn tells_of_room(&self) -> bool {
        !self.lacks_frames()
    }

    fn is_gone(&self) -> bool {
        Xdp::is_gone(self)
    }

    fn kernel_copies(&self) -> bool {
        !self.is_zero_copy()
    }

    fn splits_headers(&self) -> bool {
        true
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.stats().each().collect()
    }
}

/// What passes is written down.
impl<L: Port, W: Write + Send> Port for Pcap<L, W> {
    fn tells_of_room(&self) -> bool {
        self.link().tells_of_room()
    }

    fn is_gone(&self) -> bool {
        self.link().is_gone()
    }

    fn kernel_copies(&self) -> bool {
        self.link().kernel_copies()
    }

    fn stages_device(&self) -> bool {
        self.link().stages_device()
    }

    fn splits_headers(&self) -> bool {
        self.link().splits_headers()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.link().counters()
    }
}

/// What passes is told.
impl<L: Port, T: Watch + Send> Port for Trace<L, T> {
    fn tells_of_room(&self) -> bool {
        self.link().tells_of_room()
    }

    fn is_gone(&self) -> bool {
        self.link().is_gone()
    }

    fn kernel_copies(&self) -> bool {
        self.link().kernel_copies()
    }

    fn stages_device(&self) -> bool {
        self.link().stages_device()
    }

    fn splits_headers(&self) -> bool {
        self.link().splits_headers()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.link().counters()
    }
}
