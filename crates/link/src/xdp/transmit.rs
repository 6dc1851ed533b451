//! Packets out: headers and payload copied to a frame, by the one copy in user space; or the headers alone, and the payload from where it lies.

use super::ring::{Emptied, Entry, Filled};
use super::stats::Stats;
use super::umem::Umem;
use crate::capabilities::Capabilities;
use crate::packet::Packet;
use onecopy_chain::Kind;
use onecopy_chain::notify::Fate;
use onecopy_copy::Hint;
use onecopy_sys::xdp::{CONTINUES, FRAME, MOST_ENTRIES};
use rustix::io::Errno;

/// Payload of fewer bytes than this is copied: that costs less than another entry.
const LEAST: usize = 512;

/// Calls in a row by which the kernel is asked to send, while each sends something. (One sends 32 packets, by default.)
const SENDS: usize = 64;

#[derive(Debug)]
pub(super) struct Transmitter {
    tx: Filled,
    completion: Emptied,
    capabilities: Capabilities,
    /// Frames that the longest packet takes.
    frames: usize,
    /// Whether payload goes from where it lies, if that is in frames.
    by_reference: bool,
    /// The kernel does not copy what it sends.
    zero_copy: bool,
}

impl Transmitter {
    pub fn new(
        tx: Filled,
        completion: Emptied,
        capabilities: Capabilities,
        by_reference: bool,
        zero_copy: bool,
    ) -> Transmitter {
        let longest = capabilities.medium.header_len() + capabilities.mtu as usize;
        let frames = longest.div_ceil(FRAME);
        Transmitter { tx, completion, capabilities, frames, by_reference, zero_copy }
    }

    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Packets that it takes now: for each there are frames, and as many entries as it may have.
    pub fn room(&self, umem: &Umem) -> usize {
        let sent = self.completion.there().unwrap_or(0) as usize;
        let entries = self.tx.room().unwrap_or(0) as usize;
        let most = if self.by_reference { MOST_ENTRIES.max(self.frames) } else { self.frames };
        ((umem.spare() + sent) / self.frames).min(entries / most)
    }

    /// Puts a packet into the ring, of which the kernel is told by [`Transmitter::hand_over`].
    pub fn put(&mut self, umem: &mut Umem, stats: &mut Stats, packet: Packet) {
        self.take_back(umem, stats);
        if self.capabilities.takes(&packet).is_err() {
            stats.not_taken += 1;
            return;
        }
        if self.room(umem) == 0 {
            stats.full += 1;
            return;
        }
        let (len, payload) = (packet.len(), packet.payload().payload());
        let count = payload.fragment_count();
        let by_reference =
            self.by_reference && payload.len() >= LEAST && count < MOST_ENTRIES && umem.has_all(&packet);
        let done = match by_reference {
            true => self.put_lent(umem, packet),
            false => self.put_copy(umem, stats, packet),
        };
        match done {
            Some(()) => {
                stats.transmitted += 1;
                stats.transmitted_bytes += len as u64;
            }
            None => stats.not_taken += 1,
        }
    }

    /// Headers in a frame of their own, payload from where it lies.
    fn put_lent(&mut self, umem: &mut Umem, packet: Packet) -> Option<()> {
        let head = packet.head().clone();
        let (number, places) = umem.lend(packet);
        let copied = umem.copy(Some(number), |bytes| {
            bytes.get_mut(..head.len())?.copy_from_slice(&head);
            Some(head.len())
        });
        // (There is a frame: `room` was asked.)
        let first = copied?;
        let last = places.len();
        for (at, (place, len)) in [first].into_iter().chain(places).enumerate() {
            let options = if at < last { CONTINUES } else { 0 };
            self.tx.put(Entry { place, len: len as u32, options });
        }
        Some(())
    }

    /// All of it in frames of its own.
    fn put_copy(&mut self, umem: &mut Umem, stats: &mut Stats, packet: Packet) -> Option<()> {
        let (len, head, payload) = (packet.len(), packet.head(), packet.payload().payload());
        let frames = len.div_ceil(FRAME);
        // Looked at before anything is put: what begins in the ring ends there, too.
        let readable = matches!(payload.kind(), None | Some(Kind::Host | Kind::Peer));
        (readable && head.len() <= FRAME.min(len)).then_some(())?;
        for frame in 0..frames {
            let from = frame * FRAME;
            let (place, len) = umem.copy(None, |bytes| {
                let bytes = &mut bytes[..(len - from).min(FRAME)];
                // (Headers are shorter than a frame.)
                let rest = match frame {
                    0 => {
                        let (front, rest) = bytes.split_at_mut_checked(head.len())?;
                        front.copy_from_slice(head);
                        rest
                    }
                    _ => &mut *bytes,
                };
                let at = from.saturating_sub(head.len());
                match payload.kind() {
                    Some(Kind::Peer) => payload.peer().ok()?.copy_to(at, rest, Hint::AUTO).ok()?,
                    _ => payload.host().ok()?.copy_to(at, rest, Hint::AUTO).ok()?,
                };
                Some(bytes.len())
            })?;
            let options = if frame + 1 < frames { CONTINUES } else { 0 };
            self.tx.put(Entry { place, len: len as u32, options });
        }
        stats.copied_bytes += payload.len() as u64;
        // In memory of its own.
        packet.free(Fate::Copied);
        Some(())
    }

    /// Tells the kernel of what was put, and has it send, by `send`.
    pub fn hand_over(&mut self, stats: &mut Stats, mut send: impl FnMut() -> Result<(), Errno>) {
        self.tx.tell();
        // A copy is made by whoever asks for it. A driver that reads the ring by itself is asked where it sleeps.
        let Ok(mut left) = self.tx.left() else {
            stats.astray += 1;
            return;
        };
        if left == 0 || self.zero_copy && !self.tx.needs_wakeup() {
            return;
        }
        for _ in 0..SENDS {
            stats.sends += 1;
            match send() {
                Ok(()) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {}
                Err(Errno::NETDOWN) => {
                    stats.down += 1;
                    return;
                }
                Err(_) => {
                    stats.failed += 1;
                    return;
                }
            }
            let before = std::mem::replace(&mut left, self.tx.left().unwrap_or(0));
            if left == 0 || self.zero_copy {
                return;
            }
            if left >= before {
                break;
            }
        }
        stats.waited += 1;
    }

    /// Whether something is in the ring that the kernel has not sent yet.
    pub fn is_waiting(&self) -> bool {
        self.tx.left() != Ok(0)
    }

    /// Takes back the frames of what was sent.
    pub fn take_back(&mut self, umem: &mut Umem, stats: &mut Stats) {
        let Ok(count) = self.completion.there() else {
            stats.astray += 1;
            return;
        };
        if count == 0 {
            return;
        }
        let fate = if self.zero_copy { Fate::Sent } else { Fate::Copied };
        for ahead in 0..count {
            let place = self.completion.place(ahead);
            if umem.sent(place, fate, stats).is_err() {
                stats.foreign += 1;
            }
        }
        self.completion.take(count);
    }
}
