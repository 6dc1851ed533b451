//! Bad input, lying and failing providers, double returns: a clear error, nothing leaks, and the statistics say so.
#![cfg(not(loom))]

use onecopy_pool::provider::Heap;
use onecopy_pool::{
    About, AllocError, Area, AreaError, Batch, DeviceId, DeviceMemory, HostMemory, Lie, MemoryProvider, Need,
    OpenError, Page, PagePool, PoolConfig, ProviderError, ReturnError,
};
use onecopy_sys::map::Mapping;
use onecopy_sys::memfd;
use rustix::io::Errno;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// What the next call of `alloc_netmems` gives, in turn.
type Script = Vec<(Vec<u32>, Result<(), ProviderError>)>;

/// A provider that gives what a test says, and notes what comes back.
struct Puppet {
    area: fn() -> Area,
    about: About,
    fd: Option<std::os::fd::OwnedFd>,
    script: Mutex<Script>,
    refused: Mutex<Vec<Lie>>,
    log: Mutex<Log>,
}

#[derive(Default, Clone, Debug, PartialEq)]
struct Log {
    released: Vec<u32>,
    destroyed: u32,
}

const PAGES: usize = 8;

impl Puppet {
    fn new(script: Script) -> Arc<Puppet> {
        Puppet::with(|| Area::host(HostMemory::anonymous(PAGES * 4096).unwrap()), script)
    }

    fn with(area: fn() -> Area, mut script: Script) -> Arc<Puppet> {
        script.reverse();
        Arc::new(Puppet {
            area,
            about: ABOUT,
            fd: None,
            script: Mutex::new(script),
            refused: Mutex::default(),
            log: Mutex::default(),
        })
    }

    fn log(&self) -> Log {
        self.log.lock().unwrap().clone()
    }
}

impl MemoryProvider for Puppet {
    fn init(&self, _: &Need) -> Result<Area, ProviderError> {
        Ok((self.area)())
    }
    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        let (give, outcome) = self.script.lock().unwrap().pop().unwrap_or((vec![], Err(empty())));
        for index in give {
            if index == PANIC {
                panic!("the provider's own fault");
            }
            if let Err(lie) = batch.push(index) {
                self.refused.lock().unwrap().push(lie);
            }
        }
        outcome
    }
    fn release_netmem(&self, index: u32) {
        self.log.lock().unwrap().released.push(index);
    }
    fn destroy(&self) {
        self.log.lock().unwrap().destroyed += 1;
    }
    fn about(&self) -> About {
        self.about.clone()
    }
    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.fd.as_ref().map(AsFd::as_fd)
    }
}

const ABOUT: About = About {
    name: "puppet",
    how: String::new(),
    readable: true,
    pinned: false,
    shareable: false,
    device: None,
};

/// In a script: the provider panics.
const PANIC: u32 = u32::MAX;

fn empty() -> ProviderError {
    ProviderError::new(Errno::NOMEM, "nothing left in the script")
}

fn pool(puppet: &Arc<Puppet>) -> PagePool {
    PagePool::new(PoolConfig::new().limit(PAGES as u32), puppet.clone()).unwrap()
}

/// Drops pool and pages, and checks that each page that was given came back exactly once.
fn nothing_leaks(puppet: &Puppet, pool: PagePool, pages: Vec<Page>, given: &[u32]) {
    let monitor = pool.shutdown();
    drop(pages);
    assert_eq!(monitor.in_flight(), 0);
    drop(monitor);
    let mut released = puppet.log().released;
    released.sort_unstable();
    assert_eq!(released, given);
    assert_eq!(puppet.log().destroyed, 1);
}

#[test]
fn impossible_configurations_are_refused() {
    let open = |config| PagePool::new(config, Heap::new()).unwrap_err();
    assert_eq!(open(PoolConfig::new().limit(0)), OpenError::Limit(0));
    assert_eq!(open(PoolConfig::new().limit(u32::MAX)), OpenError::Limit(u32::MAX));
    assert_eq!(open(PoolConfig::new().order(19)), OpenError::Order(19));
    assert_eq!(open(PoolConfig::new().ring(0)), OpenError::Ring(0));
    assert_eq!(open(PoolConfig::new().ring(32769)), OpenError::Ring(32769));
    assert_eq!(open(PoolConfig::new().ring(32769)).errno(), Errno::TOOBIG);
}

#[test]
fn an_area_that_does_not_fit_is_refused_and_given_back() {
    let open = |area: fn() -> Area| {
        let puppet = Puppet::with(area, vec![]);
        let error = PagePool::new(PoolConfig::new().order(1), puppet.clone()).unwrap_err();
        assert_eq!(puppet.log(), Log { released: vec![], destroyed: 1 });
        error
    };
    let short = open(|| Area::host(HostMemory::anonymous(4096).unwrap()));
    assert_eq!(short, OpenError::Area(AreaError::Short { len: 4096, page_len: 8192 }));
    let none = open(|| Area::device(DeviceId(0), 0));
    assert_eq!(none, OpenError::Area(AreaError::Short { len: 0, page_len: 8192 }));
    fn mapping() -> Arc<Mapping> {
        let fd = memfd::create("onecopy-test", 16384).unwrap();
        Arc::new(Mapping::new(fd, 16384).unwrap())
    }
    let misaligned = open(|| Area::peer(mapping(), 8, 8192));
    assert_eq!(misaligned, OpenError::Area(AreaError::Misaligned { at: 8 }));
    let outside = open(|| Area::peer(mapping(), 64, 16384));
    assert_eq!(outside, OpenError::Area(AreaError::Outside { end: 16448, mapped: 16384 }));
    let wraps = open(|| Area::peer(mapping(), 64, usize::MAX));
    assert_eq!(wraps, OpenError::Area(AreaError::Outside { end: usize::MAX, mapped: 16384 }));
}

#[test]
fn what_a_provider_says_of_its_memory_has_to_be_so() {
    let open = |area: fn() -> Area, about: About, fd: Option<usize>| {
        let fd = fd.map(|len| memfd::create("onecopy-test", len).unwrap());
        let mut puppet = Puppet::with(area, vec![]);
        let change = Arc::get_mut(&mut puppet).unwrap();
        (change.about, change.fd) = (about, fd);
        let opened = PagePool::new(PoolConfig::new().limit(PAGES as u32), puppet.clone());
        let failed = opened.err();
        assert_eq!(puppet.log().destroyed, 1, "given back, whatever was said");
        failed.map(|error| error.to_string())
    };
    let host = || Area::host(HostMemory::anonymous(PAGES * 4096).unwrap());
    let device = || Area::device(DeviceId(3), PAGES * 4096);
    let of = |device| About { readable: false, device, ..ABOUT };
    assert_eq!(open(host, ABOUT, None), None);
    assert_eq!(open(device, of(Some(DeviceId(3))), None), None);
    assert_eq!(open(host, About { shareable: true, ..ABOUT }, Some(PAGES * 4096)), None);
    for (area, about, fd, what) in [
        (host as fn() -> Area, of(None), None, "can be read"),
        (device, ABOUT, None, "can be read"),
        (host, About { device: Some(DeviceId(0)), ..ABOUT }, None, "device"),
        (device, of(Some(DeviceId(4))), None, "device"),
        (device, of(None), None, "device"),
        (host, About { shareable: true, ..ABOUT }, None, "shared"),
        (host, ABOUT, Some(PAGES * 4096), "shared"),
        (host, About { shareable: true, ..ABOUT }, Some(PAGES * 4096 - 1), "shorter"),
    ] {
        let said = open(area, about.clone(), fd);
        assert!(said.as_ref().is_some_and(|said| said.contains(what)), "{about:?}: {said:?}");
    }
}

#[test]
fn a_smaller_area_lowers_the_limit() {
    let puppet = Puppet::new(vec![]);
    let pool = PagePool::new(PoolConfig::new().limit(100), puppet).unwrap();
    assert_eq!(pool.limit(), PAGES as u32);
}

#[test]
fn a_provider_that_fails_half_way_costs_nothing_of_what_it_gave() {
    let puppet = Puppet::new(vec![(vec![5, 2], Err(empty())), (vec![], Err(empty()))]);
    let pool = pool(&puppet);
    let mut pages = vec![pool.alloc().unwrap(), pool.alloc().unwrap()];
    assert_eq!(pool.alloc().unwrap_err(), AllocError::Provider(empty()));
    assert_eq!(pool.alloc().unwrap_err().errno(), Errno::NOMEM, "the script is at its end");
    pages.clear();
    pages.push(pool.alloc().unwrap());
    let stats = pool.stats();
    assert_eq!((stats.trouble.provider_failed, stats.alloc.slow, stats.alloc.refill), (3, 1, 1));
    nothing_leaks(&puppet, pool, pages, &[2, 5]);
}

#[test]
fn a_provider_that_lies_is_found_out_and_each_page_has_one_owner() {
    let puppet = Puppet::new(vec![
        // Good, twice the same, outside of the area, far outside, good.
        (vec![3, 3, PAGES as u32, u32::MAX - 1, 4], Ok(())),
        // In the cache, in use: nothing that it may give.
        (vec![4, 3], Ok(())),
        (vec![], Ok(())),
    ]);
    let pool = pool(&puppet);
    let pages = vec![pool.alloc().unwrap(), pool.alloc().unwrap()];
    assert_eq!(pages.iter().map(Page::index).collect::<HashSet<_>>(), HashSet::from([3, 4]));
    assert_eq!(pool.alloc().unwrap_err(), AllocError::Lie(Lie::Duplicate { index: 4 }));
    assert_eq!(pool.alloc().unwrap_err(), AllocError::Lie(Lie::Nothing));
    let stats = pool.stats();
    assert_eq!((stats.trouble.provider_lied, stats.in_flight), (6, 2));
    assert_eq!(
        *puppet.refused.lock().unwrap(),
        [
            Lie::Duplicate { index: 3 },
            Lie::Foreign { index: 8, pages: 8 },
            Lie::Foreign { index: u32::MAX - 1, pages: 8 },
            Lie::Duplicate { index: 4 },
            Lie::Duplicate { index: 3 },
        ]
    );
    nothing_leaks(&puppet, pool, pages, &[3, 4]);
}

#[test]
fn a_page_that_lies_in_the_ring_is_not_given_twice() {
    let puppet = Puppet::new(vec![(vec![0], Ok(())), (vec![0], Ok(()))]);
    let pool = pool(&puppet);
    let held = pool.alloc().unwrap();
    assert_eq!(pool.alloc().unwrap_err(), AllocError::Lie(Lie::Duplicate { index: 0 }));
    drop(held);
    assert_eq!(pool.stats().in_ring, 1);
    nothing_leaks(&puppet, pool, vec![], &[0]);
}

#[test]
fn more_than_was_asked_for_stays_with_the_provider() {
    let puppet = Puppet::new(vec![(vec![0, 1], Ok(())), ((2..8).collect(), Ok(()))]);
    let pool = PagePool::new(PoolConfig::new().limit(4), puppet.clone()).unwrap();
    let pages: Vec<Page> = (0..4).map(|_| pool.alloc().unwrap()).collect();
    // Two were still wanted, out of six; and 4 on are outside of a pool of 4 pages.
    assert_eq!(pool.stats().trouble.provider_lied, 4);
    assert_eq!(puppet.refused.lock().unwrap()[0], Lie::Surplus { index: 4, asked: 2 });
    nothing_leaks(&puppet, pool, pages, &[0, 1, 2, 3]);
}

#[test]
fn a_provider_that_panics_leaves_the_pool_as_it_was() {
    let puppet = Puppet::new(vec![(vec![1, 2, PANIC], Ok(()))]);
    panics(&puppet, pool(&puppet), 2);
}

#[test]
fn a_provider_that_panics_leaves_a_watched_pool_what_it_gave() {
    let puppet = Puppet::new(vec![(vec![1, PANIC], Ok(())), (vec![2], Ok(()))]);
    panics(&puppet, PagePool::new(PoolConfig::new().debug(true), puppet.clone()).unwrap(), 1);
}

/// The provider thinks that these pages are out, and so they are.
fn panics(puppet: &Puppet, pool: PagePool, given: u64) {
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.alloc()));
    assert!(panicked.is_err());
    assert_eq!((pool.stats().in_flight, pool.stats().in_ring), (given, given));
    let pages = vec![pool.alloc().unwrap(), pool.alloc().unwrap()];
    assert_eq!(pool.stats().in_flight, 2);
    nothing_leaks(puppet, pool, pages, &[1, 2]);
}

#[test]
fn a_held_page_leaves_the_pool_and_goes_back_with_its_last_hold() {
    let puppet = Puppet::new(vec![(vec![0, 1], Ok(()))]);
    let pool = pool(&puppet);
    let page = pool.alloc().unwrap();
    let index = page.index();
    let holds = [page.hold(), page.hold()];
    let clone = page.clone();
    assert!(!page.is_unique());
    pool.recycle(page);
    assert_eq!(pool.stats().recycle.released_refcnt, 0, "there is another reference");
    drop(clone);
    assert_eq!(pool.stats().recycle.released_refcnt, 1);
    assert!(puppet.log().released.is_empty());
    let [first, second] = holds;
    drop(first);
    let monitor = pool.shutdown();
    assert_eq!(monitor.in_flight(), 1);
    std::thread::spawn(move || drop(second)).join().unwrap();
    assert_eq!(monitor.in_flight(), 0);
    assert_eq!(puppet.log().released.last(), Some(&index));
}

#[test]
fn a_run_that_is_held_goes_back_as_a_whole() {
    let memory = DeviceMemory::opaque(8, DeviceId(1)).unwrap();
    let parts = memory.alloc(5 * 4096).unwrap();
    let hold = parts[0].page().hold();
    drop(parts);
    assert_eq!((memory.free(), memory.alloc(8 * 4096).is_err()), (3 * 4096, true));
    drop(hold);
    assert_eq!(memory.free(), memory.len());
    assert_eq!(memory.alloc_all().unwrap().iter().map(Page::len).sum::<usize>(), 8 * 4096);
    // And behind the pool's end.
    let page = memory.alloc_all().unwrap().remove(0);
    let hold = page.hold();
    drop((page, memory));
    drop(hold);
}

#[test]
fn a_hold_that_goes_first_changes_nothing() {
    let puppet = Puppet::new(vec![(vec![0], Ok(()))]);
    let pool = pool(&puppet);
    let mut page = pool.alloc().unwrap();
    drop(page.hold());
    assert!(page.bytes_mut().is_some());
    pool.recycle(page);
    let stats = pool.stats();
    assert_eq!((stats.recycle.cached, stats.recycle.released_refcnt), (1, 0));
    nothing_leaks(&puppet, pool, vec![], &[0]);
}

#[test]
fn a_full_cache_and_a_full_ring_are_counted() {
    let pool = PagePool::new(PoolConfig::new().limit(200).ring(16), Heap::new()).unwrap();
    let pages: Vec<Page> = (0..200).map(|_| pool.alloc().unwrap()).collect();
    for page in pages {
        pool.recycle(page);
    }
    let recycle = pool.stats().recycle;
    assert_eq!((recycle.cached, recycle.cache_full), (128, 72));
    assert_eq!((recycle.ring, recycle.ring_full), (16, 56));
    assert_eq!(pool.stats().in_flight, 144);
}

#[test]
fn tokens_are_counted_not_merely_noted() {
    let pool = PagePool::new(PoolConfig::new().limit(2), Heap::new()).unwrap();
    let page = pool.alloc().unwrap();
    let words = [page.clone().into_netmem(), page.clone().into_netmem()];
    assert!(!page.is_unique());
    let back: Vec<Page> = words.map(|word| pool.take_back(word).unwrap()).into();
    assert_eq!(
        pool.take_back(words[0]).unwrap_err(),
        ReturnError::NotOut { netmem: words[0], history: String::new() }
    );
    drop(back);
    assert!(page.is_unique());
    // A page that was recycled meanwhile is not open to its old words.
    pool.recycle(page);
    assert_eq!(
        pool.take_back(words[1]).unwrap_err(),
        ReturnError::NotOut { netmem: words[1], history: String::new() }
    );
    assert_eq!(pool.stats().trouble.refused, 2);
}

#[test]
fn pieces_share_pages_and_never_a_byte() {
    let pool = PagePool::new(PoolConfig::new().limit(4), Heap::new()).unwrap();
    for len in [0, 4097, u32::MAX] {
        let error = pool.alloc_piece(len).unwrap_err();
        assert_eq!(error, AllocError::Size { asked: len, page_len: 4096 });
        assert_eq!(error.errno(), Errno::MSGSIZE);
    }
    let pieces: Vec<_> = (0..8).map(|_| pool.alloc_piece(1000).unwrap()).collect();
    let parts: Vec<(Page, u32, u32)> = pieces.into_iter().map(onecopy_pool::Piece::into_parts).collect();
    let ranges: HashSet<_> = parts.iter().map(|(page, at, _)| (page.netmem(), *at)).collect();
    assert_eq!(ranges.len(), 8);
    assert!(parts.iter().all(|(_, at, len)| at % 64 == 0 && at + len <= 4096 && *len == 1000));
    assert!(parts[0].0.is_same(&parts[3].0) && !parts[3].0.is_same(&parts[4].0));
    assert!(parts[0].0.bytes().is_none() && parts[0].0.is_cut(), "others write to that page");
    assert!(parts[0].0.span(0, 1000).is_some());
    assert_eq!(pool.stats().recycle.ring, 0);
    drop(parts);
    // The first page came home with its last piece, the second is still being cut.
    assert_eq!(pool.stats().recycle.ring, 1);
    let mut page = pool.alloc().unwrap();
    assert!(page.bytes_mut().is_some() && !page.is_cut(), "whole again");
    // All of the second page's pieces are back: it is cut again, without a trip.
    let before = pool.stats();
    for _ in 0..100 {
        let mut piece = pool.alloc_piece(3000).unwrap();
        assert!(piece.span_mut().unwrap().is_writable());
    }
    assert_eq!(pool.stats(), before);
    let monitor = pool.shutdown();
    assert_eq!(monitor.in_flight(), 1);
}

#[test]
fn shares_are_references_like_any_other() {
    let pool = PagePool::new(PoolConfig::new().limit(2), Heap::new()).unwrap();
    let page = pool.alloc().unwrap();
    let other = page.clone();
    let mut shares = page.into_shares();
    let taken: Vec<Page> = (0..100).map(|_| shares.take()).collect();
    drop(other);
    drop(shares);
    assert!(!taken[0].is_unique());
    std::thread::scope(|scope| {
        for page in taken {
            scope.spawn(move || drop(page));
        }
    });
    assert_eq!(pool.stats().recycle.ring, 1);
    drop(pool.alloc().unwrap().into_shares());
    assert_eq!(pool.stats().recycle.ring, 2);
    // A stock that runs out, and more of them than references fit a small bias.
    let page = pool.alloc().unwrap();
    let mut stocks: Vec<_> = (0..100).map(|_| page.clone().into_shares()).collect();
    for _ in 0..3 << 20 {
        drop(stocks[0].take());
    }
    stocks.clear();
    assert!(page.is_unique());
}
