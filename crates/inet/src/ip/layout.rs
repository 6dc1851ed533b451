//! Where a packet's bytes lie: brought to where they are read. A driver that knows its protocols has the headers in the head and nothing
//! else there, and nothing is done here; any other way of lying costs a copy of some bytes.

use super::stats::Reason;
use onecopy_chain::notify::{Fate, Segment};
use onecopy_chain::{Chain, ChainError, Writer};
use onecopy_link::{Head, Packet};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};

/// Pages for bytes that have to be moved, made with the first one.
#[derive(Debug, Default)]
pub(super) struct Pages(Option<PagePool>);

impl Pages {
    /// So much is held at once by packets that came in another way: 4 MiB.
    const LIMIT: u32 = 1024;

    fn pool(&mut self) -> Option<&PagePool> {
        if self.0.is_none() {
            self.0 = PagePool::new(PoolConfig::new().limit(Pages::LIMIT), Heap::new()).ok();
        }
        self.0.as_ref()
    }
}

/// Why bytes are not where they are to be.
pub(super) enum Apart {
    /// There are not that many.
    Short,
    /// As the reason says.
    Refused(Reason),
}

/// Brings the first `len` bytes into the head, which has room for them. Whether any were moved.
#[inline]
pub(super) fn gather(packet: &mut Packet, len: usize) -> Result<bool, Apart> {
    match packet.head().len() >= len {
        true => Ok(false),
        false => bring(packet, len).map(|()| true),
    }
}

#[cold]
fn bring(packet: &mut Packet, len: usize) -> Result<(), Apart> {
    if packet.len() < len || len > Head::MAX {
        return Err(Apart::Short);
    }
    let unreadable = |_: ChainError| Apart::Refused(Reason::Unreadable);
    let mut bytes = [0; Head::MAX];
    let mut at = packet.head().len();
    bytes[..at].copy_from_slice(packet.head());
    let more = len - at;
    let chain = packet.payload().payload();
    // Peer's memory is read once: what was read is what is looked at.
    let mut put = |piece: &[u8]| {
        bytes[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    };
    match chain.host() {
        Ok(host) => host.slices_of(0, more).map_err(unreadable)?.for_each(&mut put),
        Err(_) => {
            let part = chain.range(0, more).map_err(unreadable)?;
            part.peer().map_err(unreadable)?.for_each_chunk(&mut put);
        }
    }
    packet.payload_mut().advance(more, Fate::Sent).map_err(unreadable)?;
    *packet.head_mut() = Head::of(&bytes[..len]).map_err(|_| Apart::Short)?;
    Ok(())
}

/// Cuts off what is behind the first `len` bytes. Whether any were in the head.
#[inline]
pub(super) fn trim(packet: &mut Packet, len: usize) -> Result<(), Reason> {
    let head = packet.head().len();
    if len < packet.len() {
        let keep = len.saturating_sub(head);
        packet.payload_mut().truncate(keep, Fate::Sent).map_err(|_| Reason::Unreadable)?;
    }
    if len < head {
        let kept = Head::of(&packet.head()[..len]).unwrap_or_default();
        *packet.head_mut() = kept;
    }
    Ok(())
}

/// Moves what the head has behind its first `len` bytes to the front of the payload. Whether there was any.
#[inline]
pub(super) fn spill(packet: &mut Packet, len: usize, pages: &mut Pages) -> Result<bool, Reason> {
    match packet.head().len() <= len {
        true => Ok(false),
        false => push(packet, len, pages).map(|()| true),
    }
}

#[cold]
fn push(packet: &mut Packet, len: usize, pages: &mut Pages) -> Result<(), Reason> {
    let pool = pages.pool().ok_or(Reason::NoPage)?;
    let mut chain = Chain::new();
    Writer::new(pool).append(&mut chain, &packet.head()[len..]).map_err(|_| Reason::NoPage)?;
    let mut front = Segment::new(chain);
    let rest = std::mem::take(packet.payload_mut());
    front.concat(rest).map_err(|_| Reason::Unreadable)?;
    *packet.payload_mut() = front;
    let kept = Head::of(&packet.head()[..len]).unwrap_or_default();
    *packet.head_mut() = kept;
    Ok(())
}
