//! Payload to a device's memory.

use crate::packet::Packet;
use onecopy_chain::{Chain, ChainError, Checksum, Fragment, Kind};
use onecopy_pool::provider::CopyError;
use onecopy_pool::{DeviceMemory, Part};

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
/// nothing in between. The device keeps the pages that it landed in until it has copied them, which may be after this returns
/// ([`DeviceMemory::settle`]). What was not known of its sum is found out before, as long as it can be read.
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
    copy(memory, &parts, chain.fragments().map(|fragment| fragment.clone().into()))?;
    let mut placed = Chain::new();
    for part in parts {
        placed.append(Fragment::from(part))?;
    }
    *packet.payload_mut() = placed.into();
    let said = packet.set_checksum(known);
    debug_assert!(said.is_ok(), "it was the packet's own, or is a sum");
    Ok(())
}

/// Has `from` copied to `parts`, in as few calls as there are runs of parts that lie one behind the other.
fn copy(
    memory: &DeviceMemory,
    parts: &[Part],
    mut from: impl Iterator<Item = Part>,
) -> Result<(), NotPlaced> {
    let mut rest: Option<Part> = None;
    let mut parts = parts.iter().map(|part| (memory.place(part), part.len())).peekable();
    while let Some((at, mut len)) = parts.next() {
        let at = at.ok_or(NotPlaced::Foreign)?;
        while let Some((_, more)) = parts.next_if(|(next, _)| *next == Some(at + len as u64)) {
            len += more;
        }
        let mut run = Vec::with_capacity(from.size_hint().0 + 1);
        let mut wanted = len;
        while wanted > 0 {
            let next = rest.take().or_else(|| from.next());
            let mut now = next.unwrap_or_else(|| unreachable!("there are as many bytes on either side"));
            if now.len() > wanted {
                rest = Some(now.part(wanted, now.len() - wanted));
                now.cut_back(now.len() - wanted);
            }
            wanted -= now.len();
            run.push(now);
        }
        memory.submit(at, run)?;
    }
    Ok(())
}
