//! The kernel as the neighbour: a TAP or TUN device, by a descriptor.
//!
//! What is transmitted is received by an interface of the kernel's, and the other way round; so our stacks talk to the kernel's sockets, and
//! through its routes to the world. The interface, here `onecopy0`, gets its address from elsewhere (`ip addr add 10.0.0.1/24 dev
//! onecopy0; ip link set onecopy0 up`), and so does nothing until it is up: the stack has another one of the same network.
//!
//! ```no_run
//! use onecopy_link::tap::{Tap, TapConfig};
//! use onecopy_link::Link;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut tap = Tap::open(TapConfig::new("onecopy0").mtu(9000))?;
//! println!("{}: {:?}", tap.name(), tap.capabilities());
//! // poll(2) the descriptor for readability, and for writability while there is no room; then:
//! while let Some(packet) = tap.receive(0) {
//!     println!("{:?} and {} bytes", packet.head(), packet.payload().payload().len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Copies
//!
//! The kernel copies once, in either direction: what is transmitted is gathered by one writev(2) from where it lies, and
//! [`Fate::Copied`](onecopy_chain::notify::Fate::Copied) says so of it; what is received is scattered by one readv(2), the headers to the
//! packet's head and the payload to pages of its own. Nothing is copied in user space, but for some bytes of payload where headers are
//! shorter than those of the packet before (`moved` in [`Stats`]). It is one system call a packet; with segmentation a packet has up to
//! 64 KiB.
//!
//! What belongs in a device's memory that is a file is put there by that one copy, where it is foreseen ([`Link::receive_sorted`]): a vector into
//! registered pages that nothing maps takes the place of readv(2)'s.
//!
//! Payload in a device's memory is taken from there in the same way ([`Tap::gather_from`]); several such packets by one call, where they are transmitted at once
//! ([`Link::transmit_more`]). That of other memory is brought to the host's
//! first, by the device's own copy ([`Page::copy_out`](onecopy_pool::Page::copy_out)): one for each run of it that lies in one piece
//! (`staged_bytes`, `staging_ns`).
//!
//! # What the kernel does
//!
//! Checksums and segmentation are left to each other in virtio's header, as far as [`TapConfig`] wants it and the kernel agrees when
//! it is opened. (It agrees for the device, whoever has a descriptor of it.) A packet that it refuses later is cut, and finished, here,
//! and [`Link::capabilities`] no longer has what was refused; `offload_refused` in [`Stats`] counts it.

mod cable;
mod device;
mod error;
mod header;
mod land;
#[cfg(test)]
mod outside;
mod receive;
mod stage;
mod stats;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod together;
mod transmit;
mod views;

pub use error::TapError;
pub use stats::Stats;

use crate::capabilities::{Capabilities, Medium};
use crate::link::Link;
use crate::packet::Packet;
use crate::registered::Registered;
use crate::rx::{Queues, Sorted};
use error::What;
use onecopy_pool::PagePool;
use onecopy_sys::tun;
use receive::{Pools, Receiver};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use transmit::{BATCH, FRAGMENTS, Transmitter};

/// How a TAP is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapConfig {
    name: String,
    medium: Medium,
    mtu: Option<u32>,
    checksum: bool,
    segmentation: bool,
    multi_queue: bool,
}

impl TapConfig {
    /// The device `name`, of 1 to 15 bytes; it is made where there is none, and then is gone with the last descriptor of it. A `%d` is
    /// a number that the kernel chooses. Ethernet, one queue, with all offloads that the kernel has, and the MTU that the device has.
    pub fn new(name: impl Into<String>) -> TapConfig {
        let (name, medium) = (name.into(), Medium::Ethernet);
        TapConfig { name, medium, mtu: None, checksum: true, segmentation: true, multi_queue: false }
    }

    /// What packets begin with: Ethernet's header (a TAP), or IP's (a TUN).
    #[must_use]
    pub fn medium(self, medium: Medium) -> TapConfig {
        TapConfig { medium, ..self }
    }

    /// Sets the device's MTU, in bytes: 68 to 65521.
    #[must_use]
    pub fn mtu(self, bytes: u32) -> TapConfig {
        TapConfig { mtu: Some(bytes), ..self }
    }

    /// Whether checksums are left to each other. Without it there is no segmentation either.
    #[must_use]
    pub fn checksum(self, checksum: bool) -> TapConfig {
        TapConfig { checksum, ..self }
    }

    /// Whether super-segments of up to 64 KiB go over whole, both ways.
    #[must_use]
    pub fn segmentation(self, segmentation: bool) -> TapConfig {
        TapConfig { segmentation, ..self }
    }

    /// Whether the device may have more than one descriptor, each with a queue of its own: one for each thread, who open it by the same
    /// name. The kernel
    /// keeps a connection's packets to one of them (the one by which that connection's last packet was transmitted).
    #[must_use]
    pub fn multi_queue(self, multi_queue: bool) -> TapConfig {
        TapConfig { multi_queue, ..self }
    }
}

/// A link to the kernel of this host. See the [module](self).
pub struct Tap {
    fd: OwnedFd,
    config: TapConfig,
    receiver: Receiver,
    transmitter: Transmitter,
    stats: Stats,
}

impl Tap {
    /// Opens it, in the network namespace of the calling thread. What is received lies in pages of its own: the first 4 KiB of a packet in one of
    /// 4 KiB, the rest in ones of 16 KiB. Of each kind there are up to 64 MiB; then packets are dropped.
    ///
    /// # Errors
    ///
    /// [`TapError`], which says what to do: most often CAP_NET_ADMIN is wanted.
    pub fn open(config: TapConfig) -> Result<Tap, TapError> {
        let pools = Pools::new();
        let pools =
            pools.map_err(|error| TapError { name: config.name.clone(), what: What::Pages(error) })?;
        Tap::open_from(config, pools)
    }

    /// As [`Tap::open`], with pages of `pool`. A packet has pages of its own, so larger ones make fewer fragments of super-segments, and small
    /// packets hold more memory. They have to be ones that a slice can be had of: host memory.
    ///
    /// # Errors
    ///
    /// As [`Tap::open`].
    pub fn open_with(config: TapConfig, pool: PagePool) -> Result<Tap, TapError> {
        Tap::open_from(config, Pools::of(pool))
    }

    /// Opens it `count` times: each is a queue of the device's ([`TapConfig::multi_queue`]), with pages of its own. A device that was there before has
    /// to be one of many queues (`ip tuntap add ... multi_queue`).
    ///
    /// # Errors
    ///
    /// As [`Tap::open`]; E2BIG for more queues than a device has, 256.
    pub fn open_queues(config: TapConfig, count: usize) -> Result<Vec<Tap>, TapError> {
        let mut taps: Vec<Tap> = Vec::new();
        for _ in 0..count {
            let config = config.clone().multi_queue(true);
            // The kernel's choice for the first one is the name of all.
            let name = taps.first().map_or(config.name.clone(), |first| first.name().to_owned());
            taps.push(Tap::open(TapConfig { name, ..config })?);
        }
        Ok(taps)
    }

    fn open_from(config: TapConfig, pools: Pools) -> Result<Tap, TapError> {
        let requested = config.name.clone();
        Tap::attach(config, pools).map_err(|what| TapError { name: requested, what })
    }

    fn attach(mut config: TapConfig, pools: Pools) -> Result<Tap, What> {
        let fd = tun::open().map_err(What::Open)?;
        let ethernet = config.medium == Medium::Ethernet;
        let kind = tun::Kind { ethernet, multi_queue: config.multi_queue };
        config.name = tun::attach(&fd, &config.name, kind).map_err(What::Attach)?;
        tun::set_header_len(&fd, header::LEN as u32).map_err(What::Header)?;
        let offloads = agree(&fd, &config).map_err(What::Offload)?;
        let name = &config.name;
        if let Some(mtu) = config.mtu {
            tun::set_mtu(name, mtu).map_err(|errno| What::SetMtu(mtu, errno))?;
        }
        let mtu = tun::mtu(name).map_err(What::Mtu)?;
        let capabilities = Capabilities { fragments: FRAGMENTS, ..offloads.capabilities(config.medium, mtu) };
        // Where the kernel takes all, what one packet says is not that it has to wait, while the next one is taken.
        let batch = if tun::send_buffer(&fd).is_ok_and(|bytes| bytes == tun::NO_LIMIT) { BATCH } else { 1 };
        // Ethernet's header and two tags, where there is one.
        let beside = if ethernet { config.medium.header_len() + 8 } else { 0 };
        let longest = beside + mtu.max(capabilities.super_segment) as usize;
        Ok(Tap {
            receiver: Receiver::new(config.medium, longest, pools),
            transmitter: Transmitter::new(capabilities, batch),
            fd,
            config,
            stats: Stats::default(),
        })
    }

    /// Has the kernel take payload that lies in `memory` from there itself, instead of from a copy in the host's memory.
    pub fn gather_from(&mut self, memory: Registered) {
        self.transmitter.gather_from(memory);
    }

    /// Whether it does so for memory, by its pool ([`DeviceMemory::id`](onecopy_pool::DeviceMemory::id)). (It ends where the kernel does not after all.)
    pub fn gathers_from(&self, memory: u64) -> bool {
        self.transmitter.gathers_from(memory)
    }

    /// Ends that.
    pub fn gather_no_more(&mut self, memory: u64) {
        self.transmitter.gather_no_more(memory);
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// What became of packets.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The pages that the beginning of what is received lies in.
    pub fn pool(&self) -> &PagePool {
        self.receiver.pools().first()
    }
}

/// To poll(2): it is readable while there is something to receive. Where there is no [`Link::room`], there is some once it is writable and
/// [`Link::receive`] or [`Link::transmit`] was called.
impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// No time matters to it: [`Link::deadline`] is None, and the descriptor tells.
impl Link for Tap {
    fn capabilities(&self) -> Capabilities {
        self.transmitter.capabilities()
    }

    #[inline]
    fn room(&self, _: u64) -> usize {
        self.transmitter.room()
    }

    #[inline]
    fn transmit(&mut self, _: u64, packet: Packet) {
        self.transmitter.transmit(&mut self.fd, &mut self.stats, packet);
    }

    #[inline]
    fn transmit_more(&mut self, _: u64, packet: Packet) {
        self.transmitter.transmit_more(&mut self.fd, &mut self.stats, packet);
    }

    #[inline]
    fn flush(&mut self, _: u64) {
        self.transmitter.hand_over(&mut self.fd, &mut self.stats);
    }

    #[inline]
    fn receive(&mut self, _: u64) -> Option<Packet> {
        self.transmitter.flush(&mut self.fd, &mut self.stats);
        self.receiver.receive(&mut self.fd, &mut self.stats)
    }

    #[inline]
    fn receive_sorted(&mut self, _: u64, queues: &mut Queues) -> Option<Sorted> {
        self.transmitter.flush(&mut self.fd, &mut self.stats);
        self.receiver.receive_sorted(&mut self.fd, &mut self.stats, queues)
    }

    fn deadline(&self) -> Option<u64> {
        None
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (config, stats, capabilities) = (&self.config, &self.stats, self.capabilities());
        f.debug_struct("Tap")
            .field("config", config)
            .field("capabilities", &capabilities)
            .field("stats", stats)
            .finish()
    }
}

/// What the kernel agreed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offloads {
    checksum: bool,
    tcp: bool,
    udp: bool,
}

impl Offloads {
    fn capabilities(self, medium: Medium, mtu: u32) -> Capabilities {
        let super_segment = if self.tcp || self.udp { Capabilities::SUPER_SEGMENT } else { 0 };
        Capabilities {
            checksum: self.checksum,
            tcp_segmentation: self.tcp,
            udp_segmentation: self.udp,
            super_segment,
            unreadable: true,
            ..Capabilities::none(medium, mtu)
        }
    }
}

/// Agrees with the kernel on what `config` wants, or on less.
fn agree(fd: &OwnedFd, config: &TapConfig) -> Result<Offloads, Errno> {
    const TCP: u32 = tun::TSO4 | tun::TSO6 | tun::TSO_ECN;
    const UDP: u32 = tun::USO4 | tun::USO6;
    let none = Offloads { checksum: false, tcp: false, udp: false };
    let wanted = [
        (config.segmentation, tun::CHECKSUM | TCP | UDP, Offloads { checksum: true, tcp: true, udp: true }),
        // Before Linux 6.2.
        (config.segmentation, tun::CHECKSUM | TCP, Offloads { checksum: true, tcp: true, udp: false }),
        (true, tun::CHECKSUM, Offloads { checksum: true, ..none }),
    ];
    for (wanted, mask, offloads) in wanted {
        if wanted && config.checksum {
            match tun::set_offload(fd, mask) {
                Err(Errno::INVAL) => {}
                done => return done.map(|()| offloads),
            }
        }
    }
    // A device that was there before may have some from who had it then.
    tun::set_offload(fd, 0).map(|()| none)
}
