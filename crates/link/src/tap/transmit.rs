//! Packets out: one writev each, of virtio's header, the headers and the payload's fragments, from where they lie; of a device's memory, too, where
//! that is registered ([`Registered`]): these by one call for several, if they are transmitted at once.
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
use onecopy_uring::MOST_PACKETS;
use rustix::io::Errno;
use std::collections::VecDeque;

/// Views beside those of fragments: virtio's header, and the headers.
const BESIDE: usize = 2;

/// Fragments that one call gathers.
pub(super) const FRAGMENTS: usize = MAX_GATHER - BESIDE;

/// Packets that one call takes from a device's memory. (More gain less and less; the first one waits for the last.)
pub(super) const BATCH: usize = 8;
const _: () = assert!(BATCH <= MOST_PACKETS);

pub(super) struct Transmitter {
    /// What was said when it was opened: that is taken, whatever the kernel has refused since.
    promised: Capabilities,
    /// What the kernel does.
    kernel: Capabilities,
    /// What waits for the descriptor to be writable: one packet, or the parts of one; or what of several was not taken.
    waiting: VecDeque<(Packet, Option<Offload>)>,
    /// Packets that are added to the pages of one memory, to be gathered by the next call. Invariant: while there are some, none waits.
    added: Vec<Packet>,
    /// Which memory, by its pool.
    adding: u64,
    /// So many are handed over at the latest.
    batch: usize,
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
    /// One that hands over `batch` packets at a time, where it can: up to [`BATCH`].
    pub fn new(promised: Capabilities, batch: usize) -> Transmitter {
        Transmitter {
            promised,
            kernel: promised,
            waiting: VecDeque::new(),
            added: Vec::new(),
            adding: 0,
            batch: batch.clamp(1, BATCH),
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
        if self.adding == memory {
            // They go another way.
            self.waiting.extend(self.added.drain(..).map(|packet| (packet, None)));
        }
        self.registered.retain(|registered| registered.id() != memory);
    }

    /// What the kernel does, as far as is known.
    pub fn capabilities(&self) -> Capabilities {
        self.kernel
    }

    pub fn room(&self) -> usize {
        if self.waiting.is_empty() { usize::MAX } else { 0 }
    }

    /// Sends it, and what was kept back.
    pub fn transmit(&mut self, device: &mut impl Device, stats: &mut Stats, packet: Packet) {
        self.transmit_more(device, stats, packet);
        self.hand_over(device, stats);
    }

    /// Sends it, or keeps it back until [`Transmitter::hand_over`].
    #[inline]
    pub fn transmit_more(&mut self, device: &mut impl Device, stats: &mut Stats, mut packet: Packet) {
        self.flush_waiting(device, stats);
        if !self.waiting.is_empty() {
            stats.full += 1;
            return;
        }
        if self.promised.takes(&packet).is_err() {
            stats.not_taken += 1;
            return;
        }
        let memory = memory_of(&packet).filter(|memory| self.gathers_from(*memory));
        if memory != Some(self.adding) || self.added.len() == self.batch {
            self.hand_over(device, stats);
        }
        // (It was promised to be taken, before any of those was found to have to wait.)
        if self.waiting.is_empty()
            && let Some(memory) = memory
            && self.add(&packet, memory)
        {
            self.adding = memory;
            self.added.push(packet);
            return;
        }
        self.hand_over(device, stats);
        if memory.is_none() && self.stage.bring(&mut packet, stats).is_err() {
            return;
        }
        if !self.waiting.is_empty() {
            self.waiting.push_back((packet, None));
        } else if self.attempt(device, stats, packet, None) {
            // What is sent in its place, if something is.
            self.flush_waiting(device, stats);
        }
    }

    /// Writes what was kept back, and what waits, as far as the kernel takes it.
    #[inline]
    pub fn flush(&mut self, device: &mut impl Device, stats: &mut Stats) {
        self.hand_over(device, stats);
        self.flush_waiting(device, stats);
    }

    #[inline]
    fn flush_waiting(&mut self, device: &mut impl Device, stats: &mut Stats) {
        while let Some((packet, doubt)) = self.waiting.pop_front() {
            if !self.attempt(device, stats, packet, doubt) {
                return;
            }
        }
    }

    /// Writes what was kept back, by one call. What of it is not taken waits; unless there is no room for it, each is tried once more by itself, which tells
    /// what is to become of it.
    #[inline]
    pub fn hand_over(&mut self, device: &mut impl Device, stats: &mut Stats) {
        if !self.added.is_empty() {
            self.hand_over_all(device, stats);
        }
    }

    fn hand_over_all(&mut self, device: &mut impl Device, stats: &mut Stats) {
        let Transmitter { added, adding, waiting, registered, .. } = self;
        let Some(registered) = registered.iter_mut().find(|registered| registered.id() == *adding) else {
            // Not to be: they are taken out before it is.
            waiting.extend(added.drain(..).map(|packet| (packet, None)));
            return;
        };
        let (mut packets, mut no_room) = (added.drain(..), false);
        stats.gathers += 1;
        device.gather(registered.pages(), |outcome| {
            let Some(packet) = packets.next() else { return };
            match outcome {
                Ok(()) => {
                    stats.gathered_bytes += packet.payload().payload().len() as u64;
                    transmitted(packet, stats);
                }
                Err(errno) => {
                    no_room |= errno == Errno::AGAIN;
                    waiting.push_back((packet, None));
                }
            }
        });
        drop(packets);
        if no_room {
            stats.waited += 1;
        } else {
            self.flush_waiting(device, stats);
        }
    }

    /// Adds it to what the next call gathers from `memory`, where the kernel takes it as it is.
    fn add(&mut self, packet: &Packet, memory: u64) -> bool {
        let cut = packet.gso().is_some_and(|gso| !self.kernel_cuts(gso.train));
        let finished = matches!(packet.checksum(), Checksum::Partial { .. }) && !self.kernel.checksum;
        if cut || finished {
            return false;
        }
        let Some(header) = Header::of(packet) else { return false };
        let registered = self.registered.iter_mut().find(|registered| registered.id() == memory);
        registered.is_some_and(|registered| add(registered, packet, header).is_ok())
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
                transmitted(packet, stats);
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
        add(registered, packet, header)?;
        let mut became = Err(Errno::OPNOTSUPP);
        stats.gathers += 1;
        device.gather(registered.pages(), |outcome| became = outcome);
        became?;
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
        // In front of what it was in front of.
        let behind = std::mem::take(&mut self.waiting);
        match packet.cut(|part| self.waiting.push_back((part, doubt.take()))) {
            Ok(()) => stats.cut += 1,
            Err(_) => stats.not_taken += 1,
        }
        self.waiting.extend(behind);
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

/// The kernel has it.
fn transmitted(packet: Packet, stats: &mut Stats) {
    stats.transmitted += 1;
    stats.transmitted_bytes += packet.len() as u64;
    stats.transmitted_trains += u64::from(packet.gso().is_some());
    // In memory of its own.
    packet.free(Fate::Copied);
}

/// Adds it to what is gathered next from memory that its payload lies in.
fn add(registered: &mut Registered, packet: &Packet, header: Header) -> Result<(), Errno> {
    let parts = packet.payload().payload().fragments();
    let parts = parts.map(|part| (part.page(), part.offset(), part.len()));
    let places = places(registered.memory(), parts).ok_or(Errno::FAULT)?;
    registered.pages().add(&[&header.to_bytes(), packet.head()], &places)
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
