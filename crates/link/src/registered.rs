//! A device's memory, registered with a ring, so that the kernel itself puts payload there, and takes it from there.

use onecopy_chain::Chain;
use onecopy_pool::{DeviceMemory, Page, Part};
use onecopy_uring::{MOST_PLACES, Refused, Unmapped};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::AsFd;

/// A part of a device's memory: where it begins, and how many bytes it has.
pub(crate) type Place = (u64, usize);

/// Memory, and its pages in the hands of a ring: what [`Queues::land`](crate::rx::Queues::land) and [`Tap::gather_from`](crate::Tap::gather_from) take.
#[derive(Debug)]
pub struct Registered {
    memory: DeviceMemory,
    pages: Unmapped,
}

impl Registered {
    /// Registers `memory`, which takes about a millisecond a MiB: its pages are all there from then on.
    ///
    /// # Errors
    ///
    /// [`NotRegistered`].
    pub fn new(memory: &DeviceMemory) -> Result<Registered, NotRegistered> {
        let file = memory.file().ok_or(NotRegistered::NoFile)?;
        let pages = Unmapped::new(&*file, memory.len() as usize).map_err(NotRegistered::Refused)?;
        Ok(Registered { memory: memory.clone(), pages })
    }

    /// The memory.
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// Its number, which is its pool's.
    pub(crate) fn id(&self) -> u64 {
        self.memory.id()
    }

    /// Reads what a stream has now, without waiting, to `parts` of the memory, one after the other: how many bytes. None are its end.
    ///
    /// # Errors
    ///
    /// As [`Unmapped::read`]; EFAULT for parts of other memory.
    pub fn read(&mut self, from: impl AsFd, parts: &[Part]) -> Result<usize, Errno> {
        let parts = parts.iter().map(|part| (part.page(), part.offset(), part.len()));
        let places = places(&self.memory, parts).ok_or(Errno::FAULT)?;
        Ok(self.pages.read(from, 0, &places)?.0)
    }

    /// Writes to a stream what is at the front of `data`, without waiting: how many bytes it took. It is given no more than lies in this memory, and
    /// than one call takes ([`MOST_PLACES`]).
    ///
    /// # Errors
    ///
    /// As [`Unmapped::write`]; EFAULT for bytes of other memory.
    pub fn write(&mut self, to: impl AsFd, data: &Chain) -> Result<usize, Errno> {
        let here = data.fragments().take_while(|part| part.page().pool_id() == self.id());
        let parts = here.map(|part| (part.page(), part.offset(), part.len()));
        let mut places =
            places(&self.memory, parts).filter(|places| !places.is_empty()).ok_or(Errno::FAULT)?;
        places.truncate(MOST_PLACES);
        self.pages.write(to, &[], &places)
    }

    pub(crate) fn pages(&mut self) -> &mut Unmapped {
        &mut self.pages
    }
}

/// Why the kernel itself does not put payload into memory: it is copied there by way of the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotRegistered {
    /// The memory is no file ([`Device::file`](onecopy_pool::Device::file)).
    NoFile,
    /// io_uring does not register it.
    Refused(Refused),
}

impl fmt::Display for NotRegistered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotRegistered::NoFile => f.write_str("the memory is no file, and its device copies by itself"),
            NotRegistered::Refused(refused) => refused.fmt(f),
        }
    }
}

impl std::error::Error for NotRegistered {}

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
