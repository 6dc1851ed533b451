//! A device's memory, registered with a ring, so that the kernel itself puts payload there, and takes it from there.

use onecopy_pool::{DeviceMemory, Page};
use onecopy_uring::Unmapped;

/// A part of a device's memory: where it begins, and how many bytes it has.
pub(crate) type Place = (u64, usize);

/// Memory, and its pages in the hands of a ring: what [`Queues::land`](crate::rx::Queues::land) and [`Tap::gather_from`](crate::Tap::gather_from) take.
#[derive(Debug)]
pub struct Registered {
    memory: DeviceMemory,
    pages: Unmapped,
}

impl Registered {
    /// Registers `memory`, which takes about a millisecond a MiB: its pages are all there from then on. None where the memory is no file
    /// ([`Device::file`](onecopy_pool::Device::file)), and where io_uring does not register it ([`Unmapped`]).
    pub fn new(memory: &DeviceMemory) -> Option<Registered> {
        let file = memory.file()?;
        let pages = Unmapped::new(&*file, memory.len() as usize).ok()?;
        Some(Registered { memory: memory.clone(), pages })
    }

    /// The memory.
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// Its number, which is its pool's.
    pub(crate) fn id(&self) -> u64 {
        self.memory.id()
    }

    pub(crate) fn pages(&mut self) -> &mut Unmapped {
        &mut self.pages
    }
}

/// Where parts of pages of `memory` lie (offset and length in each), neighbours as one place; None for another memory's.
pub(crate) fn places<'a>(
    memory: &DeviceMemory,
    parts: impl Iterator<Item = (&'a Page, usize, usize)>,
) -> Option<Vec<Place>> {
    let mut places: Vec<Place> = Vec::with_capacity(parts.size_hint().0);
    for (page, offset, len) in parts {
        let at = memory.place_of(page, offset)?;
        match places.last_mut() {
            Some((begin, before)) if *begin + *before as u64 == at => *before += len,
            _ => places.push((at, len)),
        }
    }
    Some(places)
}
