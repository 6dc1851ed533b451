//! Packets in, their headers to the host's memory and their payload to a device's, by the kernel's one copy.
//!
//! Whose a packet is, and how long its headers are, is foreseen ([`Queues::foreseen`]). Where that was wrong, the payload is brought to pages of the
//! host's, as if it had been read there, and goes on as any other does.

use super::device::Device;
use super::header::{self, Header};
use super::receive::{Dropped, HEADROOM, Receiver, counted};
use super::stats::Stats;
use crate::packet::{Head, Packet};
use crate::parse::layers;
use crate::registered::{Place, places};
use crate::rx::{Queues, Sorted};
use onecopy_chain::{Chain, Fragment};
use onecopy_pool::{DeviceMemory, Part};
use rustix::io::Errno;

impl Receiver {
    /// As [`Receiver::receive`], sorted.
    pub fn receive_sorted(
        &mut self,
        device: &mut impl Device,
        stats: &mut Stats,
        queues: &mut Queues,
    ) -> Option<Sorted> {
        self.take(stats, |this, stats| match this.land(device, stats, queues)? {
            Some(sorted) => Ok(sorted),
            None => this.next(device, stats).map(|packet| queues.sort(packet)),
        })
    }

    /// The next packet, read to where it belongs if it is the one that is foreseen; None where none is, or there is no room for it: then nothing was
    /// read.
    fn land(
        &mut self,
        device: &mut impl Device,
        stats: &mut Stats,
        queues: &mut Queues,
    ) -> Result<Option<Sorted>, Dropped> {
        let Some((registered, guess)) = queues.foreseen() else { return Ok(None) };
        let memory = registered.memory().clone();
        // What is in the wrong place goes to these.
        self.fill();
        // One byte more, which tells that a packet was longer.
        let room = (self.longest + 1).saturating_sub(guess).next_multiple_of(memory.page_len() as usize);
        let (Some(_), Ok(mut parts)) = (&self.first, memory.alloc(room)) else { return Ok(None) };
        let lie = parts.iter().map(|part| (part.page(), part.offset(), part.len()));
        let Some(places) = places(&memory, lie) else { return Ok(None) };
        let (read, bytes) = match device.land(registered.pages(), header::LEN + guess, &places) {
            Ok(read) => read,
            Err(Errno::AGAIN) => return Err(Dropped::Nothing),
            Err(Errno::BADFD) => return Err(Dropped::Gone),
            Err(Errno::INTR) => return Ok(None),
            Err(_) => {
                // It does not go here: the next read says what is wrong, if something is.
                queues.give_up(&memory);
                return Ok(None);
            }
        };
        let (mut virtio, mut front) = ([0; header::LEN], [0; Head::MAX]);
        let (first, rest) = bytes.split_at(bytes.len().min(header::LEN));
        virtio[..first.len()].copy_from_slice(first);
        front[..rest.len()].copy_from_slice(rest);
        if read == 0 {
            // The other end of a cable is closed.
            return Err(Dropped::Gone);
        }
        let len = read.checked_sub(header::LEN).ok_or(Dropped::BadHeader)?;
        if len >= guess + room {
            return Err(Dropped::TooLong);
        }
        let header = Header::of_bytes(&virtio);
        let payload = len.saturating_sub(guess);
        if payload > 0 {
            let layers = layers(&front[..guess], self.medium);
            let mut packet = Packet::new(&front[..guess], Chain::new()).map_err(|_| Dropped::BadHeader)?;
            // A checksum's field behind the guess means that the headers are longer.
            let whole = layers.end == guess && packet.set_checksum(header.checksum()).is_ok();
            if let Some(queue) = queues.lands(&packet, payload).filter(|_| whole) {
                packet.set_gso(header.gso(layers.network as u8).map_err(|_| Dropped::BadHeader)?);
                memory.trim(&mut parts, payload);
                *packet.payload_mut() = chain(parts).ok_or(Dropped::BadHeader)?.into();
                self.guess = guess;
                return Ok(Some(queues.landed(queue, counted(packet, stats))));
            }
            self.bring(&memory, &places, payload)?;
            stats.misplaced += 1;
            stats.misplaced_bytes += payload as u64;
        }
        // Before anybody looks at what is free.
        drop(parts);
        Ok(Some(queues.sort(self.build(header, front, guess, len, stats)?)))
    }

    /// Brings what lies at `places`, `len` bytes, to pages of the host's: where it would have been read to.
    fn bring(&mut self, memory: &DeviceMemory, places: &[Place], len: usize) -> Result<(), Dropped> {
        let (mut places, mut left, mut skip) = (places.iter().copied(), len, HEADROOM);
        let (mut at, mut here) = (0, 0);
        for page in self.first.iter_mut().chain(&mut self.behind) {
            let bytes = page.bytes_mut().ok_or(Dropped::NoPage)?;
            let mut to = &mut bytes[std::mem::take(&mut skip)..];
            while left > 0 && !to.is_empty() {
                if here == 0 {
                    (at, here) = places.next().ok_or(Dropped::Failed)?;
                }
                let part = to.len().min(here).min(left);
                let (now, later) = to.split_at_mut(part);
                memory.read_at(at, now).map_err(|_| Dropped::Failed)?;
                (at, here, left, to) = (at + part as u64, here - part, left - part, later);
            }
        }
        if left == 0 { Ok(()) } else { Err(Dropped::NoPage) }
    }
}

fn chain(parts: Vec<Part>) -> Option<Chain> {
    let mut chain = Chain::new();
    for part in parts {
        chain.append(Fragment::from(part)).ok()?;
    }
    Some(chain)
}
