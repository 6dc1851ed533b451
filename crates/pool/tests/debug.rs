//! Debug mode: who writes to a page that is free, or gives a reference back twice, is told, with the page's history.
#![cfg(not(loom))]

use onecopy_pool::provider::Heap;
use onecopy_pool::{AllocError, Page, PagePool, PoolConfig, ReturnError};

fn pool() -> PagePool {
    PagePool::new(PoolConfig::new().limit(4).debug(true), Heap::new()).unwrap()
}

#[test]
fn all_works_as_without_it() {
    let pool = pool().bind();
    let pages: Vec<Page> = (0..4).map(|_| pool.alloc().unwrap()).collect();
    assert!(pool.alloc().is_err());
    assert!(pages.iter().all(Page::is_unique));
    let clone = pages[0].clone();
    assert!(!pages[0].is_unique());
    drop(pages);
    assert!(clone.is_unique());
    pool.recycle(clone);
    let mut page = pool.alloc().unwrap();
    page.bytes_mut().unwrap().fill(1);
    let word = page.into_netmem();
    let page = pool.take_back(word).unwrap();
    let hold = page.hold();
    drop(page);
    drop(hold);
    let mut piece = pool.alloc_piece(100).unwrap();
    assert_eq!(piece.span_mut().unwrap().len(), 100);
    drop(piece);
    let stats = pool.stats();
    assert_eq!((stats.trouble.damaged, stats.recycle.released_refcnt, stats.recycle.cached), (0, 1, 0));
    assert_eq!(pool.unbind().shutdown().in_flight(), 0);
}

#[test]
fn a_write_to_a_free_page_is_found_and_the_page_kept_out_of_use() {
    let pool = pool();
    let mut page = pool.alloc().unwrap();
    let stale = page.bytes_mut().unwrap().as_mut_ptr();
    let index = page.index();
    drop(page);
    // SAFETY: the memory is the pool's, which lives. That it is not ours any more is the point of the test.
    unsafe { stale.add(77).write(0xee) };
    let error = pool.alloc().unwrap_err();
    let text = error.to_string();
    let AllocError::Damaged(damage) = error else { panic!("{text}") };
    assert_eq!((damage.index, damage.offset, damage.found), (index, 77, 0xee));
    for line in ["given by the provider", "allocated", "tests/debug.rs:", "the last reference dropped"] {
        assert!(text.contains(line), "no {line:?} in: {text}");
    }
    let pages: Vec<Page> = (0..3).map(|_| pool.alloc().unwrap()).collect();
    assert!(pages.iter().all(|page| page.index() != index));
    let stats = pool.stats();
    assert_eq!((stats.trouble.damaged, stats.alloc.waive), (1, 1));
    drop(pages);
    assert_eq!(pool.shutdown().in_flight(), 0);
}

#[test]
fn a_reference_given_back_twice_is_told_with_the_history() {
    let pool = pool();
    let raw = pool.alloc().unwrap().into_raw();
    // SAFETY: from `into_raw`, for the first time.
    drop(unsafe { Page::from_raw(raw) });
    // SAFETY: this is the mistake that the test is about; debug mode catches it before it does harm.
    let again = std::panic::catch_unwind(|| drop(unsafe { Page::from_raw(raw) }));
    let message = *again.unwrap_err().downcast::<String>().unwrap();
    assert!(
        message.contains("given back twice") && message.contains("the last reference dropped"),
        "{message}"
    );
    // The page is where it was, once.
    assert_eq!(pool.stats().in_ring, 1);
    assert!(pool.alloc().is_ok());
}

#[test]
fn a_leak_is_found_by_who_took_the_page() {
    let pool = pool();
    let monitor = pool.monitor();
    let _kept = pool.alloc().unwrap();
    let leaked = std::thread::Builder::new().name("leaky".to_owned());
    let page = pool.alloc().unwrap();
    let index = page.index();
    leaked.spawn(move || std::mem::forget(page.clone())).unwrap().join().unwrap();
    drop(pool);
    let report = monitor.report();
    assert_eq!(report.len(), 2);
    let (_, history) = report.iter().find(|(page, _)| *page == index).unwrap();
    assert!(history.contains("another reference taken by thread leaky"), "{history}");
}

#[test]
fn a_word_returned_twice_is_told_with_who_returned_it() {
    let pool = pool();
    let word = pool.alloc().unwrap().into_netmem();
    let page = pool.take_back(word).unwrap();
    let text = pool.take_back(word).unwrap_err().to_string();
    for line in ["allocated", "taken back", "tests/debug.rs:"] {
        assert!(text.contains(line), "no {line:?} in: {text}");
    }
    drop(page);
    assert!(
        matches!(pool.take_back(word), Err(ReturnError::NotOut { history, .. }) if history.contains("dropped"))
    );
}
