//! Several references of one page at once: a list of parts often has many of one page in a row, and each by itself is a locked instruction
//! on the same cache line.

use crate::desc::REF;
use crate::home;
use crate::page::{Page, Tagged};
use crate::part::Part;

/// References to a page, taken at once and handed out one by one; see [`Page::clones`]. What is left is given up when it is dropped.
#[derive(Debug)]
pub struct Clones {
    page: Tagged,
    /// References that are ours.
    left: u64,
}

// SAFETY: as a `Page`, of which it is several.
unsafe impl Send for Clones {}
// SAFETY: as above.
unsafe impl Sync for Clones {}

impl Clones {
    /// Takes over so many references.
    ///
    /// # Safety
    ///
    /// The caller owns them, and they are now the value's.
    #[inline]
    pub(crate) unsafe fn of(page: Tagged, left: u64) -> Clones {
        Clones { page, left }
    }
}

impl Iterator for Clones {
    type Item = Page;

    #[inline]
    fn next(&mut self) -> Option<Page> {
        self.left = self.left.checked_sub(REF)?;
        // SAFETY: one of ours, which is no longer counted as such.
        Some(unsafe { Page::from_tagged(self.page) })
    }
}

impl Drop for Clones {
    #[inline]
    fn drop(&mut self) {
        if self.left > 0 {
            // SAFETY: they are ours.
            unsafe { home::put_many(self.page, self.left) }
        }
    }
}

/// Drops `parts`: the references of those that follow on each other in one page are given up at once.
#[inline]
pub fn drop_parts(parts: impl IntoIterator<Item = Part>) {
    let mut run: Option<Clones> = None;
    for part in parts {
        let page = part.into_page().into_tagged();
        match &mut run {
            Some(run) if run.page == page => run.left += REF,
            // SAFETY: the part had one, which went over into the word.
            _ => run = Some(unsafe { Clones::of(page, REF) }),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::provider::Heap;
    use crate::{PagePool, PoolConfig};
    use onecopy_sync::atomic::Ordering;

    fn pool(debug: bool) -> PagePool {
        PagePool::new(PoolConfig::new().limit(2).debug(debug), Heap::new()).unwrap()
    }

    fn refs(page: &Page) -> u64 {
        page.desc().refs.load(Ordering::Relaxed) & crate::desc::REFS
    }

    #[test]
    fn what_is_not_handed_out_is_given_up() {
        for debug in [false, true] {
            let pool = pool(debug);
            let page = pool.alloc().unwrap();
            let mut clones = page.clones(5);
            assert_eq!(refs(&page), 6);
            let (one, two) = (clones.next().unwrap(), clones.next().unwrap());
            assert!(one.is_same(&page) && two.is_same(&page));
            drop(clones);
            assert_eq!(refs(&page), 3);
            assert_eq!(page.clones(0).count(), 0);
            assert_eq!(page.clones(4).count(), 4, "and no more");
            drop((one, two));
            assert!(page.is_unique());
        }
    }

    #[test]
    fn the_last_references_send_the_page_home_whichever_they_are() {
        for debug in [false, true] {
            let pool = pool(debug);
            let (first, second) = (pool.alloc().unwrap(), pool.alloc().unwrap());
            let part = |page: &Page, at| Part::new(page.clone(), at, 10).unwrap();
            let parts = [part(&first, 0), part(&first, 20), part(&second, 0), part(&first, 40)];
            drop_parts(parts);
            assert!(first.is_unique() && second.is_unique());
            let mut parts: Vec<_> = first.clones(9).map(|page| Part::new(page, 0, 1).unwrap()).collect();
            drop(first);
            parts.push(Part::new(second, 0, 1).unwrap());
            assert!(pool.alloc().is_err(), "both are out");
            drop_parts(parts);
            let again = (pool.alloc().unwrap(), pool.alloc().unwrap());
            assert!(again.0.is_unique() && again.1.is_unique());
            let clones = again.0.clones(3);
            drop(again);
            assert!(pool.alloc().is_ok() && clones.left == 3);
            drop(clones);
            assert!(pool.alloc().is_ok());
        }
    }
}
