//! Packets out: one writev each, of virtio's header, the headers and the payload's fragments, from where they lie; of a device's memory, too, where
//! that is registered ([`Registered`]).
//!
//! A kernel may refuse at run time what it agreed to (they became stricter about where headers end). What it refuses is cut, or its
//! checksum finished, here; if it takes that, it is not asked again.

use super::device::Device;
use super::header::Header;
use super::stage::Stage;
use super::stats::Stats;
use super::views;
use crate::capabilities::Capabilities;
use crate::packet::{Packet, Train};
use crate::registered::{Registered, places};
use onecopy_chain::notify::Fate;
use onecopy_chain::{Checksum, Kind};
use onecopy_sys::map::Span;
use onecopy_sys::spans::MAX_GATHER;
use rustix::io::Errno;
use std::collections::VecDeque;

/// Views beside those of fragments: virtio's header, and the headers.
const BESIDE: usize = 2;

/// Fragments that one call gathers.
pub(super) const FRAGMENTS: usize = MAX_GATHER - BESIDE;

pub(super) struct Transmitter {
    /// What was said when it was opened: that is taken, whatever the kernel has refused since.
    promised: Capabilities,
    /// What the kernel does.
    kernel: Capabilities,
    /// What waits for the descriptor to be writable: one packet, or the parts of one.
    waiting: VecDeque<(Packet, Option<Offload>)>,
    /// Memory of devices' that the kernel takes payload from itself.
    registered: Vec<Registered>,
    /// Through which that of other memory goes.
    stage: Stage,
}

/// What the kernel does not do, if it takes this packet after it refused the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offload {
    Checksum,
    Segmentation(Train),
}

impl Transmitter {
    pub fn new(promised: Capabilities) -> Transmitter {
        Transmitter {
            promised,
            kernel: promised,
            waiting: VecDeque::new(),
            registered: Vec::new(),
            stage: Stage::default(),
        }
    }

    /// Has the kernel take payload from `memory` itself.
    pub fn gather_from(&mut self, memory: Registered) {
        if !self.gathers_from(memory.id()) {
            self.registered.push(memory);
        }
    }

    /// Whether it does of memory, by its pool.
    pub fn gathers_from(&self, memory: u64) -> bool {
        self.registered.iter().any(|registered| registered.id() == memory)
    }

    /// It does no longer.
    pub fn gather_no_more(&mut self, memory: u64) {
        self.registered.retain(|registered| registered.id() != memory);
    }

    /// What the kernel does, as far as is known.
    pub fn capabilities(&self) -> Capabilities {
        self.kernel
    }

    pub fn room(&self) -> usize {
        if self.waiting.is_empty() { usize::MAX } else { 0 }
    }

    pub fn transmit(&mut self, device: &mut impl Device, stats: &mut Stats, mut packet: Packet) {
        self.flush(device, stats);
        if !self.waiting.is_empty() {
            stats.full += 1;
        } else if self.promised.takes(&packet).is_err() {
            stats.not_taken += 1;
        } else if (memory_of(&packet).is_some_and(|memory| self.gathers_from(memory))
            || self.stage.bring(&mut packet, stats).is_ok())
            && self.attempt(device, stats, packet, None)
        {
            // What is sent in its place, if something is.
            self.flush(device, stats);
        }
    }

    /// Writes what waits, as far as the kernel takes it.
    #[inline]
    pub fn flush(&mut self, device: &mut impl Device, stats: &mut Stats) {
        while let Some((packet, doubt)) = self.waiting.pop_front() {
            if !self.attempt(device, stats, packet, doubt) {
                return;
            }
        }
    }

    /// Sends it, or has it wait: whether the kernel takes more.
    fn attempt(
        &mut self,
        device: &mut impl Device,
        stats: &mut Stats,
        packet: Packet,
        doubt: Option<Offload>,
    ) -> bool {
        match self.send(device, stats, packet, doubt) {
            Ok(()) => true,
            Err(packet) => {
                stats.waited += 1;
                self.waiting.push_front((packet, doubt));
                false
            }
        }
    }

    /// Writes it, puts what is to be sent in its place in front, or drops it; gives it back where the kernel takes nothing now.
    #[expect(clippy::result_large_err, reason = "it is what was passed in")]
    fn send(
        &mut self,
        device: &mut impl Device,
        stats: &mut Stats,
        mut packet: Packet,
        doubt: Option<Offload>,
    ) -> Result<(), Packet> {
        if let Some(gso) = packet.gso()
            && !self.kernel_cuts(gso.train)
        {
            self.cut(packet, stats, None);
            return Ok(());
        }
        if matches!(packet.checksum(), Checksum::Partial { .. }) && !self.kernel.checksum {
            if self.stage.bring(&mut packet, stats).is_err() {
                return Ok(());
            }
            if packet.finish().is_err() {
                stats.not_taken += 1;
                return Ok(());
            }
            stats.finished += 1;
        }
        let Some(header) = Header::of(&packet) else {
            stats.not_taken += 1;
            return Ok(());
        };
        let sent = match memory_of(&packet) {
            Some(memory) => match self.gather(device, stats, &packet, header, memory) {
                Err(Errno::AGAIN) => Err(Errno::AGAIN),
                // Whatever is wrong shows, or does not, once it lies in the host's memory.
                Err(errno) => {
                    if errno == Errno::OPNOTSUPP {
                        self.gather_no_more(memory);
                    }
                    if self.stage.bring(&mut packet, stats).is_err() {
                        return Ok(());
                    }
                    write(device, &packet, header).inspect(|()| self.gather_no_more(memory))
                }
                Ok(()) => Ok(()),
            },
            None => write(device, &packet, header),
        };
        match sent {
            Ok(()) => {
                if let Some(offload) = doubt {
                    stats.offload_refused += 1;
                    self.give_up(offload);
                }
                stats.transmitted += 1;
                stats.transmitted_bytes += packet.len() as u64;
                stats.transmitted_trains += u64::from(packet.gso().is_some());
                // The kernel has it in memory of its own.
                packet.free(Fate::Copied);
            }
            Err(Errno::AGAIN) => return Err(packet),
            Err(Errno::INVAL) => self.doubt(packet, stats),
            Err(Errno::IO) => stats.down += 1,
            Err(Errno::NOMEM | Errno::NOBUFS) => stats.no_memory += 1,
            Err(Errno::BADFD) => stats.gone += 1,
            Err(_) => stats.failed += 1,
        }
        Ok(())
    }

    /// Writes it with its payload from where that lies, in `memory`.
    fn gather(
        &mut self,
        device: &mut impl Device,
        stats: &mut Stats,
        packet: &Packet,
        header: Header,
        memory: u64,
    ) -> Result<(), Errno> {
        let registered = self.registered.iter_mut().find(|registered| registered.id() == memory);
        let registered = registered.ok_or(Errno::OPNOTSUPP)?;
        let parts = packet.payload().payload().fragments();
        let parts = parts.map(|part| (part.page(), part.offset(), part.len()));
        let places = places(registered.memory(), parts).ok_or(Errno::FAULT)?;
        device.gather(registered.pages(), [&header.to_bytes(), packet.head()], &places)?;
        stats.gathered_bytes += packet.payload().payload().len() as u64;
        Ok(())
    }

    /// The kernel says that it is not valid: because of what is wrong with it, or because of what it leaves to the kernel.
    fn doubt(&mut self, mut packet: Packet, stats: &mut Stats) {
        if let Some(gso) = packet.gso() {
            return self.cut(packet, stats, Some(Offload::Segmentation(gso.train)));
        }
        if matches!(packet.checksum(), Checksum::Partial { .. }) && packet.finish().is_ok() {
            stats.finished += 1;
            self.waiting.push_front((packet, Some(Offload::Checksum)));
        } else {
            stats.refused += 1;
        }
    }

    /// Has its parts be sent in its place. If they go, the kernel has refused `doubt`.
    fn cut(&mut self, packet: Packet, stats: &mut Stats, mut doubt: Option<Offload>) {
        debug_assert!(self.waiting.is_empty(), "a super-segment goes alone");
        match packet.cut(|part| self.waiting.push_back((part, doubt.take()))) {
            Ok(()) => stats.cut += 1,
            Err(_) => stats.not_taken += 1,
        }
    }

    fn kernel_cuts(&self, train: Train) -> bool {
        match train {
            Train::Tcp => self.kernel.tcp_segmentation,
            Train::Udp => self.kernel.udp_segmentation,
        }
    }

    fn give_up(&mut self, offload: Offload) {
        let kernel = &mut self.kernel;
        match offload {
            Offload::Segmentation(Train::Tcp) => kernel.tcp_segmentation = false,
            Offload::Segmentation(Train::Udp) => kernel.udp_segmentation = false,
            // Who cuts has to finish, too.
            Offload::Checksum => {
                (kernel.checksum, kernel.tcp_segmentation, kernel.udp_segmentation) = (false, false, false);
            }
        }
    }
}

/// Which device's memory the payload lies in, if it does, by its pool.
fn memory_of(packet: &Packet) -> Option<u64> {
    let payload = packet.payload().payload();
    match payload.kind() {
        Some(Kind::Device) => payload.fragments().next().map(|part| part.page().pool_id()),
        _ => None,
    }
}

fn write(device: &mut impl Device, packet: &Packet, header: Header) -> Result<(), Errno> {
    let (virtio, payload) = (header.to_bytes(), packet.payload().payload());
    views::with(BESIDE + payload.fragment_count(), |spans| {
        (spans[0], spans[1]) = (Span::of_shared(&virtio), Span::of_shared(packet.head()));
        for (span, fragment) in spans[BESIDE..].iter_mut().zip(payload.fragments()) {
            debug_assert_ne!(fragment.kind(), Kind::Device, "it was staged");
            *span = fragment.page().span(fragment.offset(), fragment.len()).ok_or(Errno::FAULT)?;
        }
        device.write(spans)
    })
}
