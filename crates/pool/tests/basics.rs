//! The contract that other rooms build on.
#![cfg(not(loom))]

use onecopy_pool::provider::{Heap, LentPages};
use onecopy_pool::{AdoptError, AllocError, Netmem, Page, PagePool, PoolConfig, ReturnError};
use onecopy_sys::map::Mapping;
use onecopy_sys::memfd;
use std::sync::{Arc, Mutex};

fn pool(limit: u32) -> PagePool {
    PagePool::new(PoolConfig::new().limit(limit), Heap::new()).unwrap()
}

#[test]
fn references_are_eight_bytes() {
    assert_eq!(size_of::<Netmem>(), 8);
    assert_eq!(size_of::<Option<Netmem>>(), 8);
    assert_eq!(size_of::<Page>(), 8);
    assert_eq!(size_of::<Option<Page>>(), 8);
    fn goes_anywhere<T: Send + Sync>() {}
    goes_anywhere::<Page>();
    fn goes_to_one<T: Send>() {}
    goes_to_one::<PagePool>();
}

#[test]
fn the_last_page_back_is_the_first_one_out() {
    let pool = pool(8);
    let [a, b] = [pool.alloc().unwrap(), pool.alloc().unwrap()];
    let (first, second) = (a.netmem(), b.netmem());
    assert_ne!(first, second);
    pool.recycle(a);
    pool.recycle(b);
    assert_eq!(pool.alloc().unwrap().netmem(), second);
    let stats = pool.stats();
    assert_eq!((stats.alloc.slow, stats.alloc.fast, stats.recycle.cached), (1, 2, 2));
    assert_eq!(stats.recycle.ring, 1, "dropped without the owner's word");
}

#[test]
fn only_the_only_reference_writes() {
    let pool = pool(8);
    let mut page = pool.alloc().unwrap();
    page.bytes_mut().unwrap()[..5].copy_from_slice(b"hello");
    let reader = page.clone();
    assert!(page.bytes_mut().is_none() && !page.is_unique());
    assert_eq!(&reader.bytes().unwrap()[..5], b"hello");
    let span = reader.span(1, 4).unwrap();
    assert_eq!((span.len(), span.is_writable()), (4, false));
    assert!(reader.span(4096, 1).is_none() && reader.span(1, 4096).is_none());
    assert!(reader.span(4096, 0).is_some() && reader.span(usize::MAX, 2).is_none());
    drop(reader);
    assert!(page.bytes_mut().is_some());
}

#[test]
fn a_bound_pool_takes_drops_of_its_thread_into_the_cache() {
    let pool = pool(8).bind();
    drop(pool.alloc().unwrap());
    assert_eq!(pool.stats().recycle.cached, 1);
    let page = pool.alloc().unwrap();
    std::thread::spawn(move || drop(page)).join().unwrap();
    assert_eq!(pool.stats().recycle.ring, 1);
    let pool = pool.unbind();
    drop(pool.alloc().unwrap());
    assert_eq!(pool.stats().recycle.ring, 2);
}

#[test]
fn a_pool_is_bound_for_as_long_as_a_call_takes() {
    let pool = pool(8);
    let (first, second) = (pool.alloc().unwrap(), pool.alloc().unwrap());
    pool.bound(|| drop(first));
    assert_eq!(pool.stats().recycle.cached, 1);
    drop(second);
    assert_eq!(pool.stats().recycle.ring, 1);
    let page = pool.alloc().unwrap();
    let panics = std::panic::AssertUnwindSafe(|| pool.bound(|| panic!("as the test wants it")));
    std::panic::catch_unwind(panics).unwrap_err();
    drop(page);
    assert_eq!((pool.stats().recycle.cached, pool.stats().recycle.ring), (1, 2));
    // One that is bound stays so.
    let pool = pool.bind();
    pool.bound(|| ());
    drop(pool.alloc().unwrap());
    assert_eq!(pool.stats().recycle.cached, 2);
}

#[test]
fn the_limit_is_reached_and_left_again() {
    let pool = pool(3);
    let pages: Vec<Page> = (0..3).map(|_| pool.alloc().unwrap()).collect();
    assert_eq!(pool.alloc().unwrap_err(), AllocError::Exhausted { limit: 3 });
    drop(pages);
    assert!(pool.alloc().is_ok());
    assert_eq!(pool.stats().trouble.exhausted, 1);
}

#[test]
fn a_pool_lives_until_its_last_page_is_home() {
    let pool = pool(100);
    let mut page = pool.alloc().unwrap();
    let second = page.clone();
    pool.recycle(pool.alloc().unwrap());
    let monitor = pool.shutdown();
    assert_eq!(monitor.in_flight(), 1);
    drop(second);
    page.bytes_mut().unwrap().fill(1);
    drop(page);
    assert_eq!(monitor.in_flight(), 0);
}

#[test]
fn plain_references_come_back_once_and_to_their_pool() {
    let (mine, other) = (pool(4), pool(4));
    let word = mine.alloc().unwrap().into_netmem();
    assert_eq!(other.take_back(word).unwrap_err(), ReturnError::Foreign(word));
    let page = mine.monitor().take_back(word).unwrap();
    assert_eq!(
        mine.take_back(word).unwrap_err(),
        ReturnError::NotOut { netmem: word, history: String::new() }
    );
    assert_eq!(page.netmem(), word);
    let tagged = Netmem::from_word((word.to_word().get() | 1).try_into().unwrap());
    assert_eq!(mine.take_back(tagged).unwrap_err(), ReturnError::Foreign(tagged));
    assert_eq!(mine.stats().trouble.refused, 2);
    assert_eq!(other.stats().trouble.refused, 1);
}

#[test]
fn a_page_of_another_pool_goes_home() {
    let (mine, other) = (pool(4), pool(4));
    let page = other.alloc().unwrap();
    mine.recycle(page);
    assert_eq!(mine.stats().recycle.cached, 0);
    assert_eq!(other.stats().recycle.ring, 1);
}

#[test]
fn a_page_may_lie_in_two_slots_and_comes_back_for_each() {
    let (fd, _theirs) = memfd::create_owned("onecopy-test", 4 * 8192).unwrap();
    let ours = Arc::new(Mapping::read_only(&fd, 4 * 8192).unwrap());
    let released = Arc::new(Mutex::new(Vec::new()));
    let log = released.clone();
    let told = move |slot| log.lock().unwrap().push(slot);
    let mut lent = LentPages::new(ours.clone(), 1, 4, 16, told).unwrap();
    for (slot, page) in [(0, 4), (0, u32::MAX)] {
        assert_eq!(lent.adopt(slot, page).unwrap_err(), AdoptError::Outside { index: page, pages: 4 });
    }
    assert_eq!(lent.adopt(16, 0).unwrap_err(), AdoptError::NoSlot { slot: 16, slots: 16 });
    let (first, second) = (lent.adopt(15, 3).unwrap(), lent.adopt(2, 3).unwrap());
    assert_eq!(lent.adopt(2, 0).unwrap_err(), AdoptError::Again { index: 2 });
    assert_eq!((first.index(), second.index(), lent.in_flight()), (3, 3, 2));
    assert!(first.bytes().is_none() && first.is_readable() && !first.is_same(&second));
    for page in [&first, &second] {
        let span = page.span(100, 8092).unwrap();
        assert_eq!(span.as_ptr() as usize - ours.base().as_ptr() as usize, 3 * 8192 + 100);
        assert!(page.span(100, 8093).is_none() && !span.is_writable());
    }
    drop(second);
    assert_eq!(*released.lock().unwrap(), [2]);
    // The slot is free as soon as that is told, for another page.
    let again = lent.adopt(2, 0).unwrap();
    assert_eq!(again.span(0, 1).unwrap().as_ptr(), ours.base().as_ptr());
    let mut clone = first.clone();
    drop((lent, first, again));
    assert!(clone.bytes_mut().is_none(), "the only reference to it, and the peer's to write");
    assert_eq!(*released.lock().unwrap(), [2, 2]);
    std::thread::spawn(move || drop(clone)).join().unwrap();
    assert_eq!(*released.lock().unwrap(), [2, 2, 15]);
    assert!(LentPages::new(ours.clone(), 1, 5, 16, |_| ()).is_err(), "beyond the mapping");
    assert!(LentPages::new(ours, 1, 0, 16, |_| ()).is_err(), "no pages");
}
