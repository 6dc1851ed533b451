//! Packets out: headers and payload copied to a frame, by the one copy in user space; or the headers alone, and the payload from where it lies.

use super::ring::{Emptied, Entry, Filled};
use super::stats::Stats;
use super::umem::Umem;
use crate::capabilities::Capabilities;
use crate::packet::Packet;
use onecopy_chain::Kind;
use onecopy_chain::notify::Fate;
use onecopy_copy::Hint;
use onecopy_sys::xdp::{CONTINUES, FRAME};
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
    /// Entries that a packet may have whose payload goes from where it lies, if that is in frames; none goes so where they are fewer than two. With more than the
    /// driver takes, what follows would be a packet of its own, of bytes that are no header.
    lent: usize,
    /// Those of the packet that is being put: all of them are ready before the first is in the ring.
    entries: Vec<Entry>,
    /// The kernel does not copy what it sends.
    zero_copy: bool,
}

impl Transmitter {
    pub fn new(
        tx: Filled,
        completion: Emptied,
        capabilities: Capabilities,
        lent: usize,
        zero_copy: bool,
    ) -> Transmitter {
        let longest = capabilities.medium.header_len() + capabilities.mtu as usize;
        let frames = longest.div_ceil(FRAME);
        Transmitter { tx, completion, capabilities, frames, lent, entries: Vec::new(), zero_copy }
    }

    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Packets that it takes now: for each there are frames, and as many entries as it may have.
    pub fn room(&self, umem: &Umem) -> usize {
        let entries = self.tx.room().unwrap_or(0) as usize / self.most();
        entries.min(self.spare(umem) / self.frames)
    }

    /// Entries that a packet may have.
    fn most(&self) -> usize {
        self.lent.max(self.frames)
    }

    /// Frames to copy into, with those that are on their way back.
    fn spare(&self, umem: &Umem) -> usize {
        let (spare, sent) = (umem.spare(), self.completion.there().unwrap_or(0));
        match self.lent {
            0 | 1 => spare + sent as usize,
            // What was lent comes back that way, too, and is no frame of ours. Looked at where it matters.
            _ if spare >= self.frames => spare,
            _ => spare + (0..sent).filter(|ahead| umem.is_copied(self.completion.place(*ahead))).count(),
        }
    }

    /// Whether there is room only when frames come back, of which the descriptor does not tell: it is writable while half of the ring is free (xsk_tx_writeable()).
    pub fn lacks_frames(&self, umem: &Umem) -> bool {
        self.room(umem) == 0 && self.tx.left().is_ok_and(|left| left <= self.tx.len() / 2)
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
            payload.len() >= LEAST && count < self.lent && self.lent > 1 && umem.has_all(&packet);
        let done = match by_reference {
            true => self.put_lent(umem, packet),
            false => self.put_copy(umem, stats, packet),
        };
        match done {
            Some(()) => {
                self.entries.drain(..).for_each(|entry| self.tx.put(entry));
                stats.transmitted += 1;
                stats.transmitted_bytes += len as u64;
            }
            None => {
                // None of it was put: its frames are ours again.
                for entry in self.entries.drain(..) {
                    let back = umem.sent(entry.place, Fate::Copied, stats);
                    debug_assert!(back.is_ok(), "they were taken just now");
                }
                stats.not_taken += 1;
            }
        }
    }

    /// Headers in a frame of their own, payload from where it lies.
    fn put_lent(&mut self, umem: &mut Umem, packet: Packet) -> Option<()> {
        let head = packet.head();
        let first = umem.copy(|bytes| {
            bytes.get_mut(..head.len())?.copy_from_slice(head);
            Some(head.len())
        })?;
        let places = umem.lend(packet, first.0);
        let last = places.len();
        for (at, (place, len)) in [first].into_iter().chain(places).enumerate() {
            let options = if at < last { CONTINUES } else { 0 };
            self.entries.push(Entry { place, len: len as u32, options });
        }
        Some(())
    }

    /// All of it in frames of its own.
    fn put_copy(&mut self, umem: &mut Umem, stats: &mut Stats, packet: Packet) -> Option<()> {
        let (len, head, payload) = (packet.len(), packet.head(), packet.payload().payload());
        let frames = len.div_ceil(FRAME);
        let readable = matches!(payload.kind(), None | Some(Kind::Host | Kind::Peer));
        (readable && head.len() <= FRAME.min(len)).then_some(())?;
        for frame in 0..frames {
            let from = frame * FRAME;
            let (place, len) = umem.copy(|bytes| {
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
            self.entries.push(Entry { place, len: len as u32, options });
        }
        stats.copied_bytes += payload.len() as u64;
        // In memory of its own.
        packet.free(Fate::Copied);
        Some(())
    }

    /// Tells the kernel of what was put, and has it send, by `send`.
    ///
    /// # Errors
    ///
    /// Why it cannot now, or cannot any more.
    pub fn hand_over(
        &mut self,
        stats: &mut Stats,
        mut send: impl FnMut() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.tx.tell();
        // A copy is made by whoever asks for it. A driver that reads the ring by itself is asked where it sleeps.
        let Ok(mut left) = self.tx.left() else {
            stats.astray += 1;
            return Ok(());
        };
        if left == 0 || self.zero_copy && !self.tx.needs_wakeup() {
            return Ok(());
        }
        for _ in 0..SENDS {
            stats.sends += 1;
            match send() {
                Ok(()) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {}
                Err(errno @ Errno::NETDOWN) => {
                    stats.down += 1;
                    return Err(errno);
                }
                Err(errno) => {
                    stats.failed += 1;
                    return Err(errno);
                }
            }
            let before = std::mem::replace(&mut left, self.tx.left().unwrap_or(0));
            if left == 0 || self.zero_copy {
                return Ok(());
            }
            if left >= before {
                break;
            }
        }
        stats.waited += 1;
        Ok(())
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
