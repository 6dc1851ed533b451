//! An interface of this host's, past the kernel's IP: an AF_XDP socket (Documentation/networking/af_xdp.rst).
//!
//! What arrives at the interface by one of its queues is the stack's, all of it: a small program in the kernel leads it here, and the kernel's own IP never sees
//! it. What is transmitted leaves as it is. The program is attached as long as the link is open, and is gone with it, however the process ends.
//! A child of a fork has copies of the descriptors, and keeps program and socket until it ends, execs, or drops its copy of the link; otherwise its copy does nothing: it has
//! no room, and nothing is received.
//!
//! ```no_run
//! use onecopy_link::xdp::{Xdp, XdpConfig};
//! use onecopy_link::Link;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut xdp = Xdp::open(XdpConfig::new("veth0"))?;
//! println!("{}", xdp.describe());
//! // poll(2) the descriptor for readability, and for writability while there is no room; then:
//! while let Some(packet) = xdp.receive(0) {
//!     println!("{:?} and {} bytes", packet.head(), packet.payload().payload().len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Memory
//!
//! Process and kernel share the pages of one pool, each a frame of 4 KiB (the umem). What is received lies where the kernel put it, and is handed up by reference;
//! a frame is the kernel's again when the last reference is dropped. What is transmitted is copied to a frame, the one copy in user space, and its notification
//! says so. Payload that lies in frames already, since it was received here, goes from there where the driver sends without a copy
//! ([`XdpConfig::by_reference`]).
//!
//! In copy mode the kernel copies once more, in either direction; [`Xdp::is_zero_copy`] says whether the driver does without.
//!
//! To look whether something has arrived is a load from memory, and no system call. To send is one for up to 32 packets in copy mode, and often none without
//! a copy.
//!
//! # Checksums
//!
//! A packet's checksum is made here, and that of what is received is checked here. On a veth, the sender is on this host, and often leaves TCP's and UDP's
//! unfinished, for a device that is never reached; the kernel does not tell. So there a packet with nothing but its pseudo-header's sum in the field is taken for
//! intact ([`XdpConfig::unfinished`]). Where an interface is no veth but its packets come from one (a bridge), say so, or have senders finish them
//! (`ethtool -K IFACE tx off`).
//!
//! What the other end of a veth leaves to the device to cut apart comes whole where the program is behind the driver. TCP's is taken. UDP's (UDP_SEGMENT) would be one datagram of many: it is
//! dropped and counted ([`Stats::trains`]); have that end cut it (`ethtool -K PEER tx-udp-segmentation off`).
//!
//! # Limits
//!
//! One queue of the interface, and so one shard. No segmentation by the device: each packet is one of the MTU's. A packet in several frames takes Linux 6.6: with an MTU of
//! more than 3,818 bytes, or of a veth's other end that leaves segmentation to the device, which it does where the program is behind the driver ([`XdpConfig::generic`]), and
//! no longer where it is in the driver.

mod error;
mod open;
mod receive;
mod ring;
mod stats;
mod sums;
#[cfg(test)]
mod tests;
mod transmit;
mod umem;

pub use error::XdpError;
pub use onecopy_sys::bpf::Hook;
pub use stats::Stats;

use crate::capabilities::Capabilities;
use crate::link::Link;
use crate::packet::Packet;
use onecopy_sys::fork::Origin;
use onecopy_sys::xdp;
use receive::Receiver;
use rustix::io::Errno;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use transmit::Transmitter;
use umem::Umem;

/// How a link over AF_XDP is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    name: String,
    queue: Option<u32>,
    frames: u32,
    zero_copy: Option<bool>,
    generic: bool,
    by_reference: Option<bool>,
    unfinished: Option<bool>,
    address: Option<[u8; 6]>,
}

impl XdpConfig {
    /// Frames, if it is not said: 32 MiB of memory.
    pub const FRAMES: u32 = 8192;

    /// The interface `name`, which is there, is up and has one queue.
    pub fn new(name: impl Into<String>) -> XdpConfig {
        XdpConfig {
            name: name.into(),
            queue: None,
            frames: XdpConfig::FRAMES,
            zero_copy: None,
            generic: false,
            by_reference: None,
            unfinished: None,
            address: None,
        }
    }

    /// The queue of an interface with several: what comes by the others is the kernel's. Which packets come by it is set elsewhere (ethtool -N).
    #[must_use]
    pub fn queue(self, queue: u32) -> XdpConfig {
        XdpConfig { queue: Some(queue), ..self }
    }

    /// How many frames of 4 KiB there are, a power of two of 256 at least: a quarter for the kernel to receive into, an eighth for what is sent, and the rest for what was
    /// received and is still in use. All of it is locked memory from the beginning.
    #[must_use]
    pub fn frames(self, frames: u32) -> XdpConfig {
        XdpConfig { frames, ..self }
    }

    /// Whether the driver is to do it without a copy, or else there is no link (true); or the kernel is to copy, whatever the driver can (false). If it is not said:
    /// without a copy where the driver can.
    #[must_use]
    pub fn zero_copy(self, zero_copy: bool) -> XdpConfig {
        XdpConfig { zero_copy: Some(zero_copy), ..self }
    }

    /// Whether the program is to be attached behind the driver, whatever the driver can. If not: in the driver where it can.
    #[must_use]
    pub fn generic(self, generic: bool) -> XdpConfig {
        XdpConfig { generic, ..self }
    }

    /// Whether payload that lies in frames is sent from there. If it is not said: where nobody copies it further on. (In copy mode the kernel takes longer for a packet
    /// in parts than the copy does.)
    #[must_use]
    pub fn by_reference(self, by_reference: bool) -> XdpConfig {
        XdpConfig { by_reference: Some(by_reference), ..self }
    }

    /// Whether senders on this host leave checksums unfinished: then a TCP or UDP packet that has its pseudo-header's sum for a checksum is taken for intact. If it is not
    /// said: where the interface's driver is veth.
    #[must_use]
    pub fn unfinished(self, unfinished: bool) -> XdpConfig {
        XdpConfig { unfinished: Some(unfinished), ..self }
    }

    /// The hardware address of the stack on it. If it is another one than the interface's, that passes on whatever packets are to (promiscuous mode), as long as the link is open.
    #[must_use]
    pub fn address(self, address: [u8; 6]) -> XdpConfig {
        XdpConfig { address: Some(address), ..self }
    }
}

/// A link over AF_XDP. See the [module](self).
pub struct Xdp {
    /// Keeps the program attached, as long as no child has a copy of it. Detached first: nothing is led to a socket that is going.
    _program: OwnedFd,
    /// Closed next. The kernel ends with the last copy of it, which whoever polls may have, and a driver's queue a little later: it has pinned the memory, and the frames that
    /// it may still write are those of a pool that hands out no more.
    fd: OwnedFd,
    /// Has the interface pass on all multicast: neighbours ask for an IPv6 address by a group that a card leaves out else. None where the kernel has no such sockets.
    _multicast: Option<OwnedFd>,
    /// Likewise packets to another address than its own.
    _whatever: Option<OwnedFd>,
    receiver: Receiver,
    transmitter: Transmitter,
    umem: Umem,
    about: About,
    stats: Stats,
    /// The process that has the rings.
    origin: Arc<Origin>,
    /// When to look again, though the descriptor tells of nothing.
    again: Option<u64>,
    /// When it is looked whether the interface is still there.
    looks_at: u64,
    /// The interface is gone: the socket is bound to nothing (ENXIO).
    gone: bool,
}

/// Nanoseconds until the kernel is asked once more to send what it did not take: nobody tells when it would (its send buffer is free again, the device's queue runs).
const RETRY: u64 = 1_000_000;

/// Likewise, where the interface is down.
const RETRY_DOWN: u64 = 100_000_000;

/// Likewise until frames that are under way are looked for: a card has sent a ring of them in about as long.
const LOOK: u64 = 100_000;

/// Nanoseconds after which it is looked whether the interface is still there, while nothing comes: nobody who polls is told that it is not (xsk_poll()).
const STILL_THERE: u64 = 1_000_000_000;

/// What it became.
#[derive(Clone, Debug, PartialEq, Eq)]
struct About {
    name: String,
    queue: u32,
    hook: Hook,
    zero_copy: bool,
    several: bool,
    unfinished: bool,
    hardware_address: [u8; 6],
}

impl Xdp {
    /// Opens it, in the network namespace of the calling thread, and has what arrives come here.
    ///
    /// # Errors
    ///
    /// [`XdpError`], which says what to do: most often root's rights are wanted.
    pub fn open(config: XdpConfig) -> Result<Xdp, XdpError> {
        let name = config.name.clone();
        open::open(config).map_err(|what| XdpError { name, what })
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.about.name
    }

    /// The queue.
    pub fn queue(&self) -> u32 {
        self.about.queue
    }

    /// The interface's hardware address, which a stack on it should have. One with another says so ([`XdpConfig::address`]).
    pub fn hardware_address(&self) -> [u8; 6] {
        self.about.hardware_address
    }

    /// Where the program is attached.
    pub fn hook(&self) -> Hook {
        self.about.hook
    }

    /// Whether the kernel does not copy what is received and sent.
    pub fn is_zero_copy(&self) -> bool {
        self.about.zero_copy
    }

    /// Whether a packet may have several frames.
    pub fn takes_several_frames(&self) -> bool {
        self.about.several
    }

    /// Whether packets with an unfinished checksum are taken for intact ([`XdpConfig::unfinished`]).
    pub fn takes_unfinished(&self) -> bool {
        self.about.unfinished
    }

    /// What it became, in a line.
    pub fn describe(&self) -> String {
        let About { name, queue, hook, zero_copy, several, unfinished, .. } = &self.about;
        let hook = match hook {
            Hook::Driver => "in the driver",
            Hook::Generic => "behind the driver (generic XDP)",
        };
        let copy = if *zero_copy { "without a copy of the kernel's" } else { "by a copy of the kernel's" };
        let frames = if *several { "several frames a packet" } else { "one frame a packet" };
        let sums = if *unfinished { ", unfinished checksums of this host's senders taken" } else { "" };
        let mtu = self.capabilities().mtu;
        format!("AF_XDP on {name}, queue {queue}, MTU {mtu}: {hook}, {copy}, {frames}{sums}")
    }

    /// What became of packets, the kernel's part of it as it is now.
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats;
        // (It cannot fail on a socket of this kind; if it does, nothing is known.)
        if let Ok(kernel) = xdp::statistics(&self.fd) {
            stats.kernel_dropped = kernel.rx_dropped;
            stats.kernel_ring_full = kernel.rx_ring_full.unwrap_or(0);
            stats.kernel_starved = kernel.rx_fill_ring_empty_descs.unwrap_or(0);
            stats.kernel_bad_frames = kernel.rx_invalid_descs;
            stats.kernel_bad_packets = kernel.tx_invalid_descs;
        }
        stats
    }

    /// Gives the kernel frames to receive into, if it lacks some.
    #[inline]
    fn fill(&mut self, idle: bool) {
        let given = self.receiver.fill(&mut self.umem, &mut self.stats);
        // A driver may have gone to sleep after the last frames were given.
        if (given || idle && self.receiver.has_untaken())
            && self.about.zero_copy
            && self.receiver.needs_wakeup()
        {
            self.stats.wakes += 1;
            self.wake();
        }
    }

    /// Has a driver that sleeps look at the fill ring; one that does not is asked nothing. The kernel says whether the interface is there.
    fn wake(&mut self) {
        // What fails else is that the interface is down, or the driver busy: it looks by itself then.
        self.gone |= xdp::wake(&self.fd) == Err(Errno::NXIO);
    }

    fn hand_over(&mut self, now: u64) {
        let Xdp { transmitter, stats, fd, .. } = self;
        let done = transmitter.hand_over(stats, || xdp::send(&*fd));
        self.gone |= done == Err(Errno::NXIO);
        let again = match done {
            _ if self.gone => None,
            Err(Errno::NETDOWN) => Some(RETRY_DOWN),
            _ if self.transmitter.lacks_frames(&self.umem) => Some(LOOK),
            _ if self.transmitter.is_waiting() => Some(RETRY),
            _ => None,
        };
        self.again = again.map(|after| now.saturating_add(after));
    }

    /// Whether the interface is gone, as it was found when the kernel was last asked: with each packet that is sent, and once a second while nothing comes
    /// ([`Link::deadline`]).
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether there is no room, and the descriptor is writable all the same: there is some at [`Link::deadline`].
    pub fn lacks_frames(&self) -> bool {
        self.origin.is_here() && self.transmitter.lacks_frames(&self.umem)
    }
}

/// To poll(2): it is readable while there is something to receive. Where there is no [`Link::room`], there is some soon after it is writable; but not where
/// [`Xdp::lacks_frames`].
impl AsFd for Xdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// [`Link::deadline`] is when to look again, of which the descriptor does not tell: soon while the kernel has not taken all that was transmitted, or frames are under way; and each
/// second for an interface that is gone ([`Xdp::is_gone`]).
impl Link for Xdp {
    fn capabilities(&self) -> Capabilities {
        self.transmitter.capabilities()
    }

    #[inline]
    fn room(&self, _: u64) -> usize {
        if !self.origin.is_here() {
            return 0;
        }
        self.transmitter.room(&self.umem)
    }

    fn transmit(&mut self, now: u64, packet: Packet) {
        self.transmit_more(now, packet);
        self.flush(now);
    }

    #[inline]
    fn transmit_more(&mut self, _: u64, packet: Packet) {
        if !self.origin.is_here() {
            self.stats.full += 1;
            return;
        }
        self.transmitter.put(&mut self.umem, &mut self.stats, packet);
    }

    #[inline]
    fn flush(&mut self, now: u64) {
        if self.origin.is_here() && self.transmitter.is_waiting() {
            self.hand_over(now);
        }
    }

    #[inline]
    fn receive(&mut self, now: u64) -> Option<Packet> {
        if !self.origin.is_here() {
            return None;
        }
        let packet = self.receiver.receive(&mut self.umem, &mut self.stats);
        self.fill(packet.is_none());
        if packet.is_none() && self.looks_at <= now && !self.gone {
            self.looks_at = now.saturating_add(STILL_THERE);
            self.wake();
        }
        if packet.is_none() || self.again.is_some_and(|at| at <= now) {
            // What the kernel did not take before, and the payload that it is through with.
            self.transmitter.take_back(&mut self.umem, &mut self.stats);
            if self.again.is_some() || self.transmitter.is_waiting() {
                self.hand_over(now);
            }
        }
        packet
    }

    fn deadline(&self) -> Option<u64> {
        // (A child's has none, and one whose interface is gone.)
        let due = self.origin.is_here() && !self.gone;
        due.then(|| self.again.map_or(self.looks_at, |at| at.min(self.looks_at)))
    }
}

impl fmt::Debug for Xdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (stats, capabilities) = (self.stats(), self.capabilities());
        f.debug_struct("Xdp")
            .field("about", &self.about)
            .field("capabilities", &capabilities)
            .field("stats", &stats)
            .finish()
    }
}
