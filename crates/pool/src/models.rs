//! Every interleaving of what threads do with one page at the same time (`RUSTFLAGS="--cfg loom"`).

use crate::error::{AllocError, Lie};
use crate::memory::{Area, HostMemory};
use crate::pool::PagePool;
use crate::provider::{About, Batch, MemoryProvider, Need, ProviderError};
use crate::ring::{Push, Ring};
use crate::{Page, PoolConfig};
use loom::sync::Arc as LoomArc;
use loom::thread;
use std::sync::{Arc, Mutex};

/// Gives page 0, and that again if it may lie; notes what comes back. Its mutex is std's: nothing in it yields.
struct Model {
    lies: bool,
    log: Mutex<Log>,
}

#[derive(Default, Clone, Copy, Debug, PartialEq)]
struct Log {
    given: u32,
    lied: u32,
    released: u32,
    destroyed: u32,
}

impl Model {
    fn new(lies: bool) -> Arc<Model> {
        Arc::new(Model { lies, log: Mutex::default() })
    }

    fn log(&self) -> Log {
        *self.log.lock().unwrap()
    }
}

impl MemoryProvider for Model {
    fn init(&self, _: &Need) -> Result<Area, ProviderError> {
        Ok(Area::host(HostMemory::anonymous(2 * 4096).unwrap()))
    }
    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        let log = self.log();
        if log.given > log.released && !self.lies {
            return Err(ProviderError::new(rustix::io::Errno::NOMEM, "it is out"));
        }
        let outcome = batch.push(0);
        let mut log = self.log.lock().unwrap();
        match outcome {
            Ok(()) => log.given += 1,
            Err(_) => log.lied += 1,
        }
        Ok(())
    }
    fn release_netmem(&self, _: u32) {
        self.log.lock().unwrap().released += 1;
    }
    fn destroy(&self) {
        self.log.lock().unwrap().destroyed += 1;
    }
    fn about(&self) -> About {
        let how = String::new();
        About { name: "model", how, readable: true, pinned: false, shareable: false, device: None }
    }
}

fn pool(provider: &Arc<Model>) -> PagePool {
    PagePool::new(PoolConfig::new().limit(2).ring(2), provider.clone()).unwrap()
}

/// The page's first byte, through the accessor that only a sole owner is given.
fn stamp(page: &mut Page, byte: u8) {
    page.bytes_mut().expect("a page that is handed out has one owner")[0] = byte;
}

#[test]
fn what_goes_into_the_ring_comes_out_once() {
    loom::model(|| {
        let ring = LoomArc::new(Ring::new(2));
        let producers: Vec<_> = (1..=2)
            .map(|index| {
                let ring = ring.clone();
                // SAFETY: the ring outlives the model.
                thread::spawn(move || unsafe { Ring::push(&raw const *ring, index) })
            })
            .collect();
        let mut seen = Vec::new();
        let mut out = [0; 2];
        for _ in 0..2 {
            let count = ring.pop(&mut out);
            seen.extend_from_slice(&out[..count]);
        }
        for producer in producers {
            assert_eq!(producer.join().unwrap(), Push::Done);
        }
        let count = ring.pop(&mut out);
        seen.extend_from_slice(&out[..count]);
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
    });
}

#[test]
fn a_full_ring_refuses_and_its_next_lap_is_told_from_the_last() {
    loom::model(|| {
        let ring = LoomArc::new(Ring::new(1));
        // SAFETY: the ring outlives the model.
        assert_eq!(unsafe { Ring::push(&raw const *ring, 5) }, Push::Done);
        let producer = {
            let ring = ring.clone();
            // SAFETY: as above.
            thread::spawn(move || unsafe { Ring::push(&raw const *ring, 6) })
        };
        let (mut out, mut seen) = ([0; 1], Vec::new());
        for _ in 0..2 {
            let count = ring.pop(&mut out);
            seen.extend_from_slice(&out[..count]);
        }
        let pushed = producer.join().unwrap();
        let count = ring.pop(&mut out);
        seen.extend_from_slice(&out[..count]);
        match pushed {
            Push::Done => assert_eq!(seen, [5, 6]),
            Push::Full => assert_eq!(seen, [5]),
            Push::Closed => panic!("nobody closed it"),
        }
    });
}

#[test]
fn a_closing_ring_loses_nothing() {
    loom::model(|| {
        let ring = LoomArc::new(Ring::new(2));
        let producers: Vec<_> = (1..=2)
            .map(|index| {
                let ring = ring.clone();
                // SAFETY: the ring outlives the model.
                thread::spawn(move || unsafe { Ring::push(&raw const *ring, index) })
            })
            .collect();
        let mut seen = Vec::new();
        ring.close(|index| seen.push(index));
        let accepted: Vec<u32> = (1..=2)
            .zip(producers)
            .filter_map(|(index, producer)| (producer.join().unwrap() == Push::Done).then_some(index))
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, accepted);
    });
}

#[test]
fn the_last_of_two_references_sends_the_page_home_once() {
    loom::model(|| {
        let provider = Model::new(false);
        let pool = pool(&provider);
        let mut page = pool.alloc().unwrap();
        stamp(&mut page, 1);
        let other = page.clone();
        let there = thread::spawn(move || {
            assert_eq!(other.bytes().unwrap()[0], 1);
            drop(other);
        });
        pool.recycle(page);
        // If it is home already its next owner is alone with it, while the other thread may be in its drop.
        if let Ok(mut page) = pool.alloc() {
            stamp(&mut page, 2);
            pool.recycle(page);
        }
        there.join().unwrap();
        assert_eq!(pool.stats().in_cache + pool.stats().in_ring, 1);
        drop(pool);
        assert_eq!(provider.log(), Log { given: 1, released: 1, destroyed: 1, lied: 0 });
    });
}

#[test]
fn a_sole_owner_is_found_only_when_the_other_has_read() {
    loom::model(|| {
        let provider = Model::new(false);
        let pool = pool(&provider);
        let mut page = pool.alloc().unwrap();
        // Loom watches this cell as the page's bytes.
        let cell = LoomArc::new(loom::cell::UnsafeCell::new(0));
        let (other, theirs) = (page.clone(), cell.clone());
        let there = thread::spawn(move || {
            // SAFETY: loom checks that no write races with this.
            theirs.with(|byte| unsafe { byte.read() });
            drop(other);
        });
        if page.bytes_mut().is_some() {
            // SAFETY: loom checks that no read races with this.
            cell.with_mut(|byte| unsafe { byte.write(1) });
        }
        there.join().unwrap();
        drop(page);
    });
}

#[test]
fn a_pool_that_ends_under_its_last_page_is_freed_once() {
    loom::model(|| {
        let provider = Model::new(false);
        let pool = pool(&provider);
        let page = pool.alloc().unwrap();
        let there = thread::spawn(move || drop(page));
        drop(pool);
        there.join().unwrap();
        assert_eq!(provider.log(), Log { given: 1, released: 1, destroyed: 1, lied: 0 });
    });
}

#[test]
fn of_a_reference_and_a_hold_the_last_one_decides() {
    loom::model(|| {
        let provider = Model::new(false);
        let pool = pool(&provider);
        let page = pool.alloc().unwrap();
        let hold = page.hold();
        let there = thread::spawn(move || drop(hold));
        drop(page);
        there.join().unwrap();
        let stats = pool.stats();
        // Either the hold went first and the page is in the ring, or the page left the pool.
        assert_eq!(stats.in_ring + stats.recycle.released_refcnt, 1, "{stats:?}");
        assert_eq!(u64::from(provider.log().released), stats.recycle.released_refcnt);
        drop(pool);
        assert_eq!(provider.log(), Log { given: 1, released: 1, destroyed: 1, lied: 0 });
    });
}

#[test]
fn shares_given_up_at_once_and_one_by_one_send_the_page_home_once() {
    loom::model(|| {
        let provider = Model::new(false);
        let pool = pool(&provider);
        let mut shares = pool.alloc().unwrap().into_shares();
        let page = shares.take();
        let there = thread::spawn(move || drop(page));
        drop(shares);
        there.join().unwrap();
        assert_eq!(pool.stats().in_ring, 1);
    });
}

#[test]
fn a_liar_never_gets_a_page_claimed_that_is_in_use() {
    loom::model(|| {
        let provider = Model::new(true);
        let pool = pool(&provider);
        let page = pool.alloc().unwrap();
        let other = page.clone();
        let there = thread::spawn(move || drop(other));
        drop(page);
        match pool.alloc() {
            // It came home through the ring.
            Ok(page) => assert!(page.is_unique()),
            Err(error) => assert_eq!(error, AllocError::Lie(Lie::Duplicate { index: 0 })),
        }
        there.join().unwrap();
        assert_eq!(provider.log().given, 1);
        assert_eq!(pool.stats().in_flight, 1);
    });
}

#[test]
fn a_word_is_taken_back_once() {
    loom::model(|| {
        let provider = Model::new(false);
        let pool = pool(&provider);
        let word = pool.alloc().unwrap().into_netmem();
        let monitor = pool.monitor();
        let there = thread::spawn(move || monitor.take_back(word).is_ok());
        let here = pool.take_back(word).is_ok();
        assert!(here ^ there.join().unwrap());
        assert_eq!(pool.stats().trouble.refused, 1);
    });
}
