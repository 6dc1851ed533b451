//! Pages of a peer's pool that he lends in slots; and of a device's memory that a NIC hands out in slots.

use super::{About, Batch, MemoryProvider, Need, ProviderError};
use crate::config::PoolConfig;
use crate::desc::REF;
use crate::device::{Device, DeviceMemory};
use crate::error::{AdoptError, OpenError};
use crate::memory::Area;
use crate::page::Page;
use crate::shared::Shared;
use onecopy_sync::Mutex;
use onecopy_sync::atomic::Ordering;
use onecopy_sys::map::Mapping;
use rustix::io::Errno;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Pages that a peer lends: he says which page lies in which of his slots, [`LentPages::adopt`] makes a [`Page`] of it,
/// and when the last reference to that is dropped, on whatever thread, the hook is called with the slot, so that the peer
/// can be told. One page may lie in several slots at once, and goes back for each by itself. There is neither cache nor
/// ring: these pages are not ours to hand out again.
///
/// The peer may write the memory at any time, and may say anything: a page that there is not, and a slot that he has not
/// got back yet, are refused. What he can make us keep is bounded by the number of slots.
pub struct LentPages {
    shared: NonNull<Shared>,
    pages: u32,
    /// Pages that the pool counts as given to somebody, and that are to be adopted yet: counted many at once.
    stock: u32,
}

/// How many pages are counted at once.
const STOCK: u32 = 64;

// SAFETY: a pool that is closed: its cache is touched by nobody, all the rest is atomic or immutable.
unsafe impl Send for LentPages {}
// SAFETY: as above; adopting takes the handle exclusively.
unsafe impl Sync for LentPages {}

impl LentPages {
    /// The first `pages` pages of 4096 << `order` bytes of what the peer shares, lent in `slots` slots. `released` is called
    /// with a slot when the last reference to what lay in it is gone: it must not block, since any thread may be in it.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: they do not lie inside of the mapping.
    #[doc(hidden)]
    pub fn new(
        mapping: Arc<Mapping>,
        order: u8,
        pages: u32,
        slots: u32,
        released: impl Fn(u32) + Send + Sync + 'static,
    ) -> Result<LentPages, OpenError> {
        let config = PoolConfig::new().order(order).limit(slots).ring(1);
        let provider = Lent { memory: Mutex::new(Some(Area::lent(mapping, pages))), released };
        let shared = Shared::open(&config, Arc::new(provider))?;
        Ok(LentPages::around(shared, pages))
    }

    /// Pages of `memory` that somebody else hands out, in `slots` slots: a NIC that receives into it by itself. They are pages of that memory
    /// ([`DeviceMemory::place_of`]), and its device copies them. `released` is called as above.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    #[doc(hidden)]
    pub fn of_device(
        memory: &DeviceMemory,
        slots: u32,
        released: impl Fn(u32) + Send + Sync + 'static,
    ) -> Result<LentPages, OpenError> {
        let config = PoolConfig::new().limit(slots).ring(1);
        let provider = Arc::new(OfDevice { memory: memory.clone(), released });
        let shared = Shared::open_as(memory.id(), &config, provider)?;
        let pages = memory.len() / u64::from(config.page_len());
        Ok(LentPages::around(shared, u32::try_from(pages).unwrap_or(u32::MAX)))
    }

    fn around(shared: NonNull<Shared>, pages: u32) -> LentPages {
        let lent = LentPages { shared, pages, stock: 0 };
        // From here on whoever drops the last reference finds the ring closed and calls the hook.
        lent.shared().ring.close(|_| ());
        lent
    }

    fn shared(&self) -> &Shared {
        // SAFETY: our handle keeps it alive.
        unsafe { self.shared.as_ref() }
    }

    /// The page that the peer says lies in `slot`.
    ///
    /// # Errors
    ///
    /// [`AdoptError`]: the peer lies. Nothing was adopted.
    #[inline]
    pub fn adopt(&mut self, slot: u32, page: u32) -> Result<Page, AdoptError> {
        self.adopt_run(slot, page, 1)
    }

    /// As [`LentPages::adopt`], of `count` pages that lie together, the first of which is `page`: one page of their length.
    ///
    /// # Errors
    ///
    /// As [`LentPages::adopt`]; none is [`AdoptError::Outside`], too.
    #[inline]
    pub fn adopt_run(&mut self, slot: u32, page: u32, count: u32) -> Result<Page, AdoptError> {
        let shared = self.shared();
        if page >= self.pages || count == 0 || count > self.pages - page {
            return Err(AdoptError::Outside { index: page, pages: self.pages });
        }
        let bytes = shared.page_len().checked_mul(count.into()).and_then(|bytes| u32::try_from(bytes).ok());
        let bytes = bytes.ok_or(AdoptError::Outside { index: page, pages: self.pages })?;
        if slot >= shared.limit {
            return Err(AdoptError::NoSlot { slot, slots: shared.limit });
        }
        let tagged = shared.tagged(slot);
        // SAFETY: descriptors live as long as `self`.
        let desc = unsafe { tagged.desc().as_ref() };
        // Acquire pairs with the Release store in `Shared::release`: its last user is done with it.
        if desc.refs.load(Ordering::Acquire) != shared.away() {
            return Err(AdoptError::Again { index: slot });
        }
        // Relaxed, all: nobody but us, who have the handle exclusively, adopts, and nobody else knows a page that lies with
        // the provider. Whoever gets a reference later gets it from the one that is made here.
        desc.place.store(page, Ordering::Relaxed);
        desc.len.store(bytes, Ordering::Relaxed);
        desc.refs.store(REF, Ordering::Relaxed);
        if self.stock == 0 {
            self.shared().count(STOCK);
            self.stock = STOCK;
        }
        self.stock -= 1;
        // SAFETY: the reference that was just made is the value's.
        Ok(unsafe { Page::from_tagged(tagged) })
    }

    /// Bytes in a page.
    pub fn page_len(&self) -> usize {
        4096 << self.shared().order
    }

    /// How many pages are shared.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// In how many slots lie pages that are adopted and not released.
    pub fn in_flight(&self) -> u32 {
        self.shared().in_flight() - self.stock
    }
}

impl Drop for LentPages {
    fn drop(&mut self) {
        // SAFETY: the value owned a handle, which keeps the pool until behind the stock.
        unsafe {
            if self.stock > 0 {
                Shared::leave(self.shared, u64::from(self.stock));
            }
            Shared::drop_handle(self.shared);
        }
    }
}

impl fmt::Debug for LentPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LentPages(pool {}, {} slots in use)", self.shared().id, self.in_flight())
    }
}

struct Lent<F> {
    /// Taken by `init`.
    memory: Mutex<Option<Area>>,
    released: F,
}

impl<F: Fn(u32) + Send + Sync + 'static> MemoryProvider for Lent<F> {
    fn init(&self, _: &Need) -> Result<Area, ProviderError> {
        self.memory.lock().take().ok_or_else(ProviderError::busy)
    }

    fn alloc_netmems(&self, _: &mut Batch<'_>) -> Result<(), ProviderError> {
        Err(ProviderError::new(Errno::OPNOTSUPP, "a peer's pages are adopted as he lends them"))
    }

    fn release_netmem(&self, index: u32) {
        (self.released)(index);
    }

    fn about(&self) -> About {
        About {
            name: "lent",
            how: "a peer's memfd, written by him".to_owned(),
            readable: true,
            pinned: false,
            shareable: false,
            device: None,
        }
    }
}

/// Lent by a device.
struct OfDevice<F> {
    memory: DeviceMemory,
    released: F,
}

impl<F: Fn(u32) + Send + Sync + 'static> MemoryProvider for OfDevice<F> {
    fn init(&self, _: &Need) -> Result<Area, ProviderError> {
        let device =
            self.about().device.ok_or(ProviderError::new(Errno::INVAL, "the memory is no device's"))?;
        Ok(Area::device_slots(device, usize::try_from(self.memory.len()).unwrap_or(usize::MAX)))
    }

    fn alloc_netmems(&self, _: &mut Batch<'_>) -> Result<(), ProviderError> {
        Err(ProviderError::new(Errno::OPNOTSUPP, "a device's pages are adopted as they are handed out"))
    }

    fn release_netmem(&self, index: u32) {
        (self.released)(index);
    }

    fn about(&self) -> About {
        About { shareable: false, ..self.memory.device().about() }
    }

    fn as_device(&self) -> Option<&dyn Device> {
        Some(self.memory.device())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{DeviceId, Part};
    use std::io::IoSlice;
    use std::sync::mpsc;

    #[test]
    fn what_a_device_hands_out_lies_in_its_memory_and_goes_back_by_its_slot() {
        let memory = DeviceMemory::opaque(8, DeviceId(3)).unwrap();
        memory.write_at(5000, &[IoSlice::new(b"of a NIC")]).unwrap();
        let (tell, told) = mpsc::channel();
        // More slots than pages: several in one page.
        let mut lent = LentPages::of_device(&memory, 16, move |slot| tell.send(slot).unwrap()).unwrap();
        let page = lent.adopt_run(9, 1, 1).unwrap();
        assert_eq!((page.device(), page.pool_id(), page.place()), (Some(DeviceId(3)), memory.id(), 4096));
        let part = Part::new(page, 904, 8).unwrap();
        assert_eq!(memory.place(&part), Some(5000));
        let mut bytes = [0; 8];
        part.page().copy_out(904, &mut bytes).unwrap();
        assert_eq!(&bytes, b"of a NIC");
        let same = lent.adopt(10, 1).unwrap();
        let run = lent.adopt_run(0, 6, 2).unwrap();
        assert_eq!((run.len(), same.len(), lent.in_flight()), (8192, 4096, 3));
        for (slot, page, count) in [(1, 8, 1), (1, 7, 2), (1, 0, 0), (1, 1, u32::MAX)] {
            assert!(matches!(lent.adopt_run(slot, page, count), Err(AdoptError::Outside { .. })));
        }
        assert!(matches!(lent.adopt(16, 0), Err(AdoptError::NoSlot { .. })));
        assert!(matches!(lent.adopt(9, 0), Err(AdoptError::Again { index: 9 })));
        let other = part.clone();
        drop((part, same));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [10], "somebody has the other one");
        // They outlive who adopted them; and the slot's length is of what lies there.
        drop(other);
        assert_eq!(lent.adopt_run(9, 0, 3).unwrap().len(), 12288);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [9, 9]);
        drop(lent);
        std::thread::spawn(move || drop(run)).join().unwrap();
        assert_eq!(told.iter().collect::<Vec<_>>(), [0]);
    }
}
