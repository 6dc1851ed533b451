//! Pages that go out as runs: so many neighbours as one page, with one reference for all of them.
//!
//! A packet of 64 KiB in a device's memory would be sixteen pages, and each of them a fragment, a token, a view of the kernel's, a reference to count
//! and a way home. So the free pages of such a pool are bits, in the order in which the pages lie, and who wants many gets neighbours.
//! A run comes home as it went out, from whatever thread, by one atomic instruction; with its neighbours it is a longer one at once.
//!
//! The lowest run that is long enough goes out first. So few pages are in turn, which is what caches like, and the upper part stays whole.

use onecopy_sync::atomic::{AtomicU64, Ordering};

/// Pages of the longest run, and bits of a word that are pages: runs lie within one word, so that one instruction brings them home. (Three
/// of the longest packets'.)
pub(crate) const LONGEST: u32 = 48;

/// In a word: the pool is gone; who brings pages home gives them to the provider.
const CLOSED: u64 = 1 << 63;
const PAGES: u64 = (1 << LONGEST) - 1;

pub(crate) struct Runs {
    /// A bit for each page that is home.
    words: Box<[AtomicU64]>,
    /// How many there are. Who brings pages home counts them first, as he may not touch the pool after that.
    home: AtomicU64,
}

/// The bits of `pages` pages from `first` on, and their word.
fn bits(first: u32, pages: u32) -> (usize, u64) {
    debug_assert!(pages > 0 && first % LONGEST + pages <= LONGEST, "{pages} pages from {first}");
    ((first / LONGEST) as usize, (PAGES >> (LONGEST - pages)) << (first % LONGEST))
}

impl Runs {
    /// Of a pool of so many pages, none of which is home.
    pub fn new(pages: u32) -> Runs {
        let words = pages.div_ceil(LONGEST);
        Runs { words: (0..words).map(|_| AtomicU64::new(0)).collect(), home: AtomicU64::new(0) }
    }

    /// Pages that are home.
    pub fn home(&self) -> u64 {
        // Relaxed: a number for who asks.
        self.home.load(Ordering::Relaxed)
    }

    /// Pages are about to come home.
    pub fn count(&self, pages: u32) {
        // Relaxed: as in `home`.
        self.home.fetch_add(pages.into(), Ordering::Relaxed);
    }

    /// Brings home `pages` pages from `first` on, which are counted, and which nobody else has. False where the pool is gone: they are the caller's still.
    /// If not, nothing of the pool may be touched after that.
    ///
    /// # Safety
    ///
    /// `runs` is valid up to the moment that they are home. (Behind it the owner may free the pool: hence no `&self`.)
    pub unsafe fn put(runs: *const Runs, first: u32, pages: u32) -> bool {
        let (word, bits) = bits(first, pages);
        // SAFETY: as the caller says; nothing is touched behind the exchange.
        let this = unsafe { &*runs };
        // Release pairs with the Acquire exchange in `take`: whatever was done to the pages comes before their next use. Acquire pairs with
        // `close`: who finds it closed comes after it.
        this.words[word].fetch_or(bits, Ordering::AcqRel) & CLOSED == 0
    }

    /// Owner: takes `pages` neighbours, or else half of that, or half of that and so on: the first one, and how many they are. None where
    /// none is home.
    pub fn take(&self, pages: u32) -> Option<(u32, u32)> {
        let mut pages = pages.clamp(1, LONGEST);
        loop {
            match self.take_all(pages) {
                Some(first) => return Some((first, pages)),
                None if pages == 1 => return None,
                None => pages = pages.div_ceil(2),
            }
        }
    }

    /// Owner: takes `pages` neighbours (1 to [`LONGEST`]): the first one.
    pub fn take_all(&self, pages: u32) -> Option<u32> {
        for (at, word) in self.words.iter().enumerate() {
            // Relaxed: what is taken is taken below.
            let starts = starts(word.load(Ordering::Relaxed) & PAGES, pages);
            if starts != 0 {
                let first = at as u32 * LONGEST + starts.trailing_zeros();
                let (_, bits) = bits(first, pages);
                // Acquire pairs with the Release in `put`. Bits that are set stay so until the owner clears them.
                word.fetch_and(!bits, Ordering::Acquire);
                self.home.fetch_sub(pages.into(), Ordering::Relaxed);
                return Some(first);
            }
        }
        None
    }

    /// Owner: from now on nothing comes home. What is there goes to `each`.
    pub fn close(&self, mut each: impl FnMut(u32)) {
        for (at, word) in self.words.iter().enumerate() {
            // Acquire pairs with the Release in `put`; Release, as its Acquire pairs with this.
            let mut left = word.fetch_or(CLOSED, Ordering::AcqRel) & PAGES;
            while left != 0 {
                each(at as u32 * LONGEST + left.trailing_zeros());
                left &= left - 1;
            }
        }
    }
}

/// From which bits on `count` (1 to 64) bits are set.
fn starts(mut bits: u64, count: u32) -> u64 {
    let mut have = 1;
    while have < count && bits != 0 {
        let more = have.min(count - have);
        bits &= bits >> more;
        have += more;
    }
    bits
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_where_they_begin() {
        for count in 1..=LONGEST {
            for bits in [PAGES, 0, 0x5555, 0xffff_0000_ffff, 0x0fff_f0ff_00ff, 0xffff << 32] {
                let wanted = (0..64 - count + 1)
                    .filter(|at| bits >> at & (PAGES >> (LONGEST - count)) == PAGES >> (LONGEST - count))
                    .fold(0, |starts, at| starts | 1_u64 << at);
                assert_eq!(starts(bits, count), wanted, "{count} of {bits:x}");
            }
        }
    }

    /// Against a list of pages: none goes out twice, none is lost, and the lowest run that is long enough is taken.
    #[test]
    fn pages_go_out_once_and_come_home_once() {
        const ALL: u32 = 200;
        let runs = Runs::new(ALL);
        let mut free = [false; ALL as usize];
        let mut out: Vec<(u32, u32)> = (0..ALL).map(|page| (page, 1)).collect();
        let mut seed = 7_u64;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u32 % below
        };
        for _ in 0..20_000 {
            if random(2) == 0 && !out.is_empty() {
                let (first, pages) = out.swap_remove(random(out.len() as u32) as usize);
                runs.count(pages);
                // SAFETY: `runs` lives.
                assert!(unsafe { Runs::put(&raw const runs, first, pages) });
                (first..first + pages).for_each(|page| free[page as usize] = true);
            } else {
                let wanted = 1 + random(LONGEST);
                let fits = |from: u32, pages: u32| {
                    from % LONGEST + pages <= LONGEST
                        && from + pages <= ALL
                        && (from..from + pages).all(|page| free[page as usize])
                };
                let found = runs.take(wanted);
                match found {
                    Some((first, pages)) => {
                        assert!(fits(first, pages) && pages <= wanted);
                        assert_eq!((0..ALL).find(|from| fits(*from, pages)), Some(first));
                        assert!(pages == wanted || (0..ALL).all(|from| !fits(from, 2 * pages)));
                        (first..first + pages).for_each(|page| free[page as usize] = false);
                        out.push((first, pages));
                    }
                    None => assert!(free.iter().all(|free| !free)),
                }
            }
            assert_eq!(runs.home(), free.iter().filter(|free| **free).count() as u64);
        }
        let mut left = Vec::new();
        runs.close(|page| left.push(page));
        assert_eq!(left, (0..ALL).filter(|page| free[*page as usize]).collect::<Vec<_>>());
        if let Some((first, pages)) = out.pop() {
            // SAFETY: `runs` lives.
            assert!(!unsafe { Runs::put(&raw const runs, first, pages) }, "they are the caller's");
        }
    }
}
