//! The pools that packets land in: pinned as a whole when their first page comes.

use crate::context::{Current, Registered};
use onecopy_pool::Page;

/// Pools that are known at once; of more than these, pages are copied without being pinned.
const MOST: usize = 16;

/// Which pools are pinned.
#[derive(Default)]
pub(crate) struct Landing {
    /// By pool; None for one that could not be.
    known: Vec<(u64, Option<Registered>)>,
    /// Pools that were, and that could not be.
    pub registered: u64,
    pub refused: u64,
}

impl Landing {
    /// Sees to it that the pool of `page` is pinned, if it can be.
    pub fn meet(&mut self, current: &Current<'_>, page: &Page) {
        let pool = page.pool_id();
        if self.known.iter().any(|(known, _)| *known == pool) {
            return;
        }
        // Pools that are gone: no page of theirs is under way.
        self.known.retain(|(_, one)| one.as_ref().is_some_and(|one| !one.region().is_idle()));
        if self.known.len() == MOST {
            return;
        }
        let registered = page.region().and_then(|region| current.register(region).ok());
        *if registered.is_some() { &mut self.registered } else { &mut self.refused } += 1;
        self.known.push((pool, registered));
    }

    /// Where byte `offset` of `page` is in its region, for the device; None where it is not pinned.
    pub fn find(&self, page: &Page, offset: usize) -> Option<(&Registered, usize)> {
        let pool = page.pool_id();
        let registered = self.known.iter().find(|(known, _)| *known == pool)?.1.as_ref()?;
        Some((registered, registered.region().offset_of(page)? + offset))
    }

    /// Bytes that are pinned.
    pub fn bytes(&self) -> u64 {
        self.known.iter().filter_map(|(_, one)| one.as_ref()).map(|one| one.region().len() as u64).sum()
    }
}
