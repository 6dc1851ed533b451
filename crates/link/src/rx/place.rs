//! Payload to a device's memory.

use crate::packet::Packet;
use onecopy_chain::{Chain, ChainError, Checksum, Fragment, Kind};
use onecopy_pool::provider::CopyError;
use onecopy_pool::{DeviceMemory, Part};
use std::io::IoSlice;

/// Why a packet's payload was not placed.
#[derive(Debug)]
pub(super) enum NotPlaced {
    /// No page is free.
    Full,
    /// It lies on a device already, or another process may still write it.
    Foreign,
    /// The device refused the copy, or the packet's parts do not fit together.
    Failed,
}

impl From<ChainError> for NotPlaced {
    fn from(_: ChainError) -> NotPlaced {
        NotPlaced::Failed
    }
}

impl From<CopyError> for NotPlaced {
    fn from(_: CopyError) -> NotPlaced {
        NotPlaced::Failed
    }
}

/// Puts the payload of `packet` into `memory`, byte for byte: copied from where the link has put it, by the kernel or the device, with
/// nothing in between. What was not known of its sum is found out before, as long as it can be read.
pub(super) fn place(packet: &mut Packet, memory: &DeviceMemory) -> Result<(), NotPlaced> {
    let chain = packet.payload().payload();
    if chain.is_empty() {
        return Ok(());
    }
    if chain.kind() != Some(Kind::Host) {
        return Err(NotPlaced::Foreign);
    }
    let parts = memory.alloc(chain.len()).map_err(|_| NotPlaced::Full)?;
    let host = chain.host()?;
    let known = match packet.checksum() {
        Checksum::None => Checksum::Known(host.sum(0, chain.len())?),
        checksum => checksum,
    };
    let slices: Vec<&[u8]> = host.slices().collect();
    copy(memory, &parts, &slices)?;
    let mut placed = Chain::new();
    for part in parts {
        placed.append(Fragment::from(part))?;
    }
    *packet.payload_mut() = placed.into();
    let said = packet.set_checksum(known);
    debug_assert!(said.is_ok(), "it was the packet's own, or is a sum");
    Ok(())
}

/// Copies `slices` to `parts`, in as few calls as there are runs of parts that lie one behind the other.
fn copy(memory: &DeviceMemory, parts: &[Part], slices: &[&[u8]]) -> Result<(), NotPlaced> {
    let mut left = slices.iter().copied().peekable();
    let mut rest: &[u8] = &[];
    let mut parts = parts.iter().map(|part| (memory.place(part), part.len())).peekable();
    while let Some((at, mut len)) = parts.next() {
        let at = at.ok_or(NotPlaced::Foreign)?;
        while let Some((_, more)) = parts.next_if(|(next, _)| *next == Some(at + len as u64)) {
            len += more;
        }
        let mut from = Vec::with_capacity(left.len() + 1);
        let mut wanted = len;
        while wanted > 0 {
            if rest.is_empty() {
                rest = left.next().unwrap_or_else(|| unreachable!("parts have as many bytes as slices"));
            }
            let (now, later) = rest.split_at(wanted.min(rest.len()));
            from.push(IoSlice::new(now));
            (wanted, rest) = (wanted - now.len(), later);
        }
        memory.write_at(at, &from)?;
    }
    Ok(())
}
