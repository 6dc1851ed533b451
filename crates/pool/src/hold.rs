//! Holds: use of a page that the pool must not trust to end with its references.

use crate::desc::Desc;
use crate::netmem::Netmem;
use crate::page::Tagged;
use crate::shared::Shared;
use std::fmt;

/// Somebody outside of the pool may still be reading or writing the page when its last reference goes: a call of the
/// kernel that was given up, a device, a process that died. Such a page is not recycled. It leaves the pool with its
/// last reference ([`released_refcnt`](crate::RecycleStats::released_refcnt)), and the provider gets it back with its
/// last hold. The kernel's elevated page reference count.
pub struct Hold(Tagged);

// SAFETY: it counts by atomics, and gives no access to the bytes.
unsafe impl Send for Hold {}
// SAFETY: as above.
unsafe impl Sync for Hold {}

impl Hold {
    /// # Safety
    ///
    /// The caller owns a hold, which is now the value's.
    pub(crate) unsafe fn from_tagged(page: Tagged) -> Hold {
        Hold(page)
    }

    /// The page.
    pub fn netmem(&self) -> Netmem {
        self.0.netmem()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // SAFETY: the value owned a hold, and whoever drops the last one of a page without references is alone with it.
        unsafe {
            if Desc::let_go(self.0.desc()) {
                Shared::release_all(self.0);
            }
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hold({:?})", self.netmem())
    }
}
