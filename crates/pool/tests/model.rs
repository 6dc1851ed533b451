//! Random programs of alloc, clone, drop, share, piece, hold and plain words, over several threads, against a model that
//! knows who has which reference.
#![cfg(not(loom))]

use onecopy_pool::provider::{Heap, Opaque};
use onecopy_pool::{AllocError, DeviceId, Hold, MemoryProvider, Netmem, Page, PagePool, PoolConfig};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A step; numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    Alloc,
    Clone(usize),
    Drop(usize),
    Recycle(usize),
    /// Drops on another thread.
    DropThere(usize, usize),
    GiveOut(usize),
    TakeBack(usize),
    Hold(usize),
    LetGo(usize),
    LetGoThere(usize, usize),
    Share(usize, usize),
    Piece(u32),
    Write(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<usize>;
    prop_oneof![
        6 => Just(Step::Alloc),
        3 => any().prop_map(Step::Clone),
        3 => any().prop_map(Step::Drop),
        3 => any().prop_map(Step::Recycle),
        4 => (any(), any()).prop_map(|(page, thread)| Step::DropThere(page, thread)),
        1 => any().prop_map(Step::GiveOut),
        1 => any().prop_map(Step::TakeBack),
        1 => any().prop_map(Step::Hold),
        1 => any().prop_map(Step::LetGo),
        1 => (any(), any()).prop_map(|(hold, thread)| Step::LetGoThere(hold, thread)),
        1 => (any(), 1usize..5).prop_map(|(page, count)| Step::Share(page, count)),
        2 => (1u32..=4096).prop_map(Step::Piece),
        2 => any().prop_map(Step::Write),
    ]
}

/// What is given to another thread, to be dropped there.
enum Given {
    Page(Page),
    Hold(Hold),
}

/// A thread that drops what it is given; an answer says that it did.
struct Helper {
    give: Option<Sender<Given>>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    fn new() -> Helper {
        let (give, given) = channel::<Given>();
        let (say, done) = channel();
        let thread = std::thread::spawn(move || {
            for given in given {
                match given {
                    Given::Page(page) => drop(page),
                    Given::Hold(hold) => drop(hold),
                }
                if say.send(()).is_err() {
                    break;
                }
            }
        });
        Helper { give: Some(give), done, thread: Some(thread) }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.give = None;
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Who has what of one page.
#[derive(Default, Debug)]
struct Known {
    refs: usize,
    holds: usize,
    cut: bool,
    /// What the first byte must be.
    byte: u8,
}

struct Run {
    pool: PagePool,
    limit: u32,
    pages: Vec<Page>,
    words: Vec<Netmem>,
    holds: Vec<Hold>,
    known: HashMap<Netmem, Known>,
    /// The page that the pool is cutting: it keeps references to it.
    cutting: Option<Netmem>,
    helpers: [Helper; 2],
    stamp: u8,
}

impl Run {
    fn new(limit: u32, provider: Arc<dyn MemoryProvider>) -> Run {
        let pool = PagePool::new(PoolConfig::new().limit(limit).ring(4), provider).unwrap();
        Run {
            pool,
            limit,
            pages: Vec::new(),
            words: Vec::new(),
            holds: Vec::new(),
            known: HashMap::new(),
            cutting: None,
            helpers: [Helper::new(), Helper::new()],
            stamp: 0,
        }
    }

    /// Pages that somebody uses, the cutting pool among them.
    fn in_use(&self) -> usize {
        self.known.len() + usize::from(self.cutting.is_some_and(|page| !self.known.contains_key(&page)))
    }

    fn pick(&mut self, choice: usize) -> Option<Page> {
        (!self.pages.is_empty()).then(|| self.pages.swap_remove(choice % self.pages.len()))
    }

    fn forget_ref(&mut self, netmem: Netmem) {
        let known = self.known.get_mut(&netmem).unwrap();
        known.refs -= 1;
        if known.refs == 0 && known.holds == 0 {
            self.known.remove(&netmem);
        }
    }

    fn forget_hold(&mut self, netmem: Netmem) {
        let known = self.known.get_mut(&netmem).unwrap();
        known.holds -= 1;
        if known.refs == 0 && known.holds == 0 {
            self.known.remove(&netmem);
        }
    }

    /// A page that the pool handed out: nobody else may have it.
    fn fresh(&mut self, mut page: Page) {
        let netmem = page.netmem();
        assert!(!self.known.contains_key(&netmem) && self.cutting != Some(netmem), "{page:?} is in use");
        assert!(page.is_unique() && !page.is_cut());
        self.stamp = self.stamp.wrapping_add(1);
        if let Some(bytes) = page.bytes_mut() {
            bytes[0] = self.stamp;
        }
        self.known.insert(netmem, Known { refs: 1, byte: self.stamp, ..Known::default() });
        self.pages.push(page);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Alloc => match self.pool.alloc() {
                Ok(page) => self.fresh(page),
                Err(error) => {
                    assert_eq!(error, AllocError::Exhausted { limit: self.limit });
                    assert_eq!(self.in_use(), self.limit as usize);
                }
            },
            Step::Clone(choice) => {
                if let Some(page) = self.pick(choice) {
                    self.known.get_mut(&page.netmem()).unwrap().refs += 1;
                    self.pages.push(page.clone());
                    self.pages.push(page);
                }
            }
            Step::Drop(choice) => {
                if let Some(page) = self.pick(choice) {
                    self.forget_ref(page.netmem());
                    drop(page);
                }
            }
            Step::Recycle(choice) => {
                if let Some(page) = self.pick(choice) {
                    self.forget_ref(page.netmem());
                    self.pool.recycle(page);
                }
            }
            Step::DropThere(choice, thread) => {
                if let Some(page) = self.pick(choice) {
                    self.forget_ref(page.netmem());
                    self.there(thread, Given::Page(page));
                }
            }
            Step::GiveOut(choice) => {
                if let Some(page) = self.pick(choice) {
                    self.words.push(page.into_netmem());
                }
            }
            Step::TakeBack(choice) => {
                if !self.words.is_empty() {
                    let word = self.words.swap_remove(choice % self.words.len());
                    self.pages.push(self.pool.take_back(word).unwrap());
                    if !self.words.contains(&word) {
                        assert!(self.pool.take_back(word).is_err());
                    }
                }
            }
            Step::Hold(choice) => {
                if let Some(page) = self.pick(choice) {
                    self.known.get_mut(&page.netmem()).unwrap().holds += 1;
                    self.holds.push(page.hold());
                    self.pages.push(page);
                }
            }
            Step::LetGo(choice) => {
                if !self.holds.is_empty() {
                    let hold = self.holds.swap_remove(choice % self.holds.len());
                    self.forget_hold(hold.netmem());
                }
            }
            Step::LetGoThere(choice, thread) => {
                if !self.holds.is_empty() {
                    let hold = self.holds.swap_remove(choice % self.holds.len());
                    self.forget_hold(hold.netmem());
                    self.there(thread, Given::Hold(hold));
                }
            }
            Step::Share(choice, count) => {
                if let Some(page) = self.pick(choice) {
                    self.known.get_mut(&page.netmem()).unwrap().refs += count - 1;
                    let mut shares = page.into_shares();
                    self.pages.extend((0..count).map(|_| shares.take()));
                }
            }
            Step::Piece(len) => match self.pool.alloc_piece(len) {
                Ok(piece) => {
                    let (page, at, piece_len) = piece.into_parts();
                    assert!(at + piece_len <= 4096 && piece_len == len && page.is_cut());
                    let netmem = page.netmem();
                    if at == 0 && self.cutting != Some(netmem) {
                        assert!(!self.known.contains_key(&netmem), "{page:?} is in use");
                    }
                    self.cutting = Some(netmem);
                    let known = self.known.entry(netmem).or_default();
                    (known.refs, known.cut) = (known.refs + 1, true);
                    self.pages.push(page);
                }
                Err(error) => {
                    assert_eq!(error, AllocError::Exhausted { limit: self.limit });
                    // The page that was full is given up before another is asked for.
                    self.cutting = None;
                    assert_eq!(self.in_use(), self.limit as usize);
                }
            },
            Step::Write(choice) => {
                if let Some(mut page) = self.pick(choice) {
                    let known = self.known.get_mut(&page.netmem()).unwrap();
                    let may = known.refs == 1 && known.holds == 0 && !known.cut && page.is_readable();
                    self.stamp = self.stamp.wrapping_add(1);
                    match page.bytes_mut() {
                        Some(bytes) => {
                            assert!(may);
                            bytes[0] = self.stamp;
                            known.byte = self.stamp;
                        }
                        None => assert!(!may),
                    }
                    self.pages.push(page);
                }
            }
        }
        self.check();
    }

    fn there(&mut self, thread: usize, given: Given) {
        let helper = &self.helpers[thread % 2];
        helper.give.as_ref().unwrap().send(given).ok().unwrap();
        // A step is over when it is done: the counts are compared after each.
        helper.done.recv().unwrap();
    }

    fn check(&self) {
        for page in &self.pages {
            let known = &self.known[&page.netmem()];
            assert_eq!(page.is_unique(), known.refs == 1 && known.holds == 0 && !known.cut);
            if let Some(bytes) = page.bytes() {
                assert_eq!(bytes[0], known.byte, "somebody wrote to {page:?}");
            }
        }
        let stats = self.pool.stats();
        assert_eq!(stats.in_flight - stats.in_cache - stats.in_ring, self.in_use() as u64, "{stats:?}");
        let all = stats.alloc;
        assert!(all.fast + all.slow + all.refill >= stats.recycle.cached.saturating_sub(stats.in_cache));
        assert_eq!(stats.trouble.provider_lied, 0);
    }

    fn end(self) {
        let Run { pool, mut pages, words, holds, .. } = self;
        for word in words {
            pages.push(pool.take_back(word).unwrap());
        }
        let monitor = pool.shutdown();
        drop(holds);
        drop(pages);
        assert_eq!(monitor.in_flight(), 0, "a page did not come home");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_page_has_one_life_at_a_time(limit in 1u32..12, device: bool, steps in prop::collection::vec(step(), 1..120)) {
        let provider: Arc<dyn MemoryProvider> =
            if device { Opaque::new(DeviceId(1)) } else { Heap::new() };
        let mut run = Run::new(limit, provider);
        for step in &steps {
            run.step(step);
        }
        run.end();
    }
}

/// The same without a model and without waiting: threads give pages to each other while the owner goes on and the pool
/// ends under them. What is checked is that nobody sees another's bytes, and that all comes home.
#[test]
fn four_threads_and_nobody_waits() {
    for round in 0..20u64 {
        let pool = PagePool::new(PoolConfig::new().limit(64).ring(8), Heap::new()).unwrap();
        let monitor = pool.monitor();
        let (senders, threads): (Vec<_>, Vec<_>) = (0..4)
            .map(|_| {
                let (sender, pages) = channel::<(u64, Page)>();
                let thread = std::thread::spawn(move || {
                    let mut kept: Vec<(u64, Page)> = Vec::new();
                    for (mark, page) in pages {
                        kept.push((mark, page.clone()));
                        if kept.len() > 3 {
                            let (mark, page) = kept.swap_remove(mark as usize % kept.len());
                            let bytes = page.bytes().unwrap();
                            assert_eq!(bytes[..8], mark.to_le_bytes());
                            assert_eq!(bytes[4088..], mark.to_le_bytes());
                        }
                        drop(page);
                    }
                });
                (sender, thread)
            })
            .unzip();
        let mut random = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for mark in 0..3000u64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let Ok(mut page) = pool.alloc() else {
                std::thread::yield_now();
                continue;
            };
            let bytes = page.bytes_mut().expect("fresh pages are ours alone");
            bytes[..8].copy_from_slice(&mark.to_le_bytes());
            bytes[4088..].copy_from_slice(&mark.to_le_bytes());
            for sender in senders.iter().take(1 + random as usize % 4) {
                sender.send((mark, page.clone())).unwrap();
            }
            if random.is_multiple_of(3) {
                pool.recycle(page);
            }
        }
        drop(pool);
        drop(senders);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(monitor.in_flight(), 0, "round {round}");
    }
}
