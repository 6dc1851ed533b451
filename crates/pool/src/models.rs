//! Every interleaving of what threads do with one page at the same time (`RUSTFLAGS="--cfg loom"`).

use crate::error::{AllocError, Lie};
use crate::memory::{Area, HostMemory};
use crate::pool::PagePool;
use crate::provider::{About, Batch, LentPages, MemoryProvider, Need, ProviderError};
use crate::reservoir::{CommonPool, Pages, Reservoir};
use crate::ring::{Push, Ring};
use crate::runs::Runs;
use crate::{Page, PoolConfig};
use loom::sync::Arc as LoomArc;
use loom::thread;
use onecopy_sync::atomic::{AtomicU32, Ordering};
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

/// Pushes from a thread of its own.
fn push(ring: &LoomArc<Ring>, index: u32) -> thread::JoinHandle<Push> {
    let ring = ring.clone();
    // SAFETY: the ring outlives the model.
    thread::spawn(move || unsafe { Ring::push(&raw const *ring, index) })
}

#[test]
fn what_goes_into_the_ring_comes_out_once() {
    loom::model(|| {
        let ring = LoomArc::new(Ring::new(2));
        let producers = [1, 2].map(|index| push(&ring, index));
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
        let producer = push(&ring, 6);
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

/// What was written to pages before they came home is seen by who takes them, and none is taken twice.
#[test]
fn runs_that_come_home_are_taken_once_with_what_was_written() {
    loom::model(|| {
        let runs = LoomArc::new(Runs::new(8));
        let bytes = LoomArc::new([const { () }; 2].map(|()| loom::cell::UnsafeCell::new(0_u32)));
        let come: Vec<_> = [(0, 3), (3, 2)]
            .into_iter()
            .enumerate()
            .map(|(at, (first, pages))| {
                let (runs, bytes) = (runs.clone(), bytes.clone());
                thread::spawn(move || {
                    // SAFETY: the run is this thread's until it is home.
                    bytes[at].with_mut(|byte| unsafe { *byte = first + 1 });
                    runs.count(pages);
                    // SAFETY: `runs` lives.
                    assert!(unsafe { Runs::put(&raw const *runs, first, pages) });
                })
            })
            .collect();
        let mut taken = 0;
        while let Some((first, pages)) = runs.take(5) {
            for at in [0, 1] {
                let (begin, len) = [(0, 3), (3, 2)][at];
                if first < begin + len && begin < first + pages {
                    // SAFETY: it has come home, and is the owner's now.
                    bytes[at].with(|byte| assert_eq!(unsafe { *byte }, begin + 1));
                }
            }
            taken += pages;
        }
        come.into_iter().for_each(|thread| thread.join().unwrap());
        while let Some((_, pages)) = runs.take(5) {
            taken += pages;
        }
        assert_eq!((taken, runs.home()), (5, 0));
    });
}

/// Who brings pages home while the pool goes gives them to the provider, or the pool does; one of the two.
#[test]
fn runs_that_come_home_to_a_pool_that_goes_are_released_once() {
    loom::model(|| {
        let runs = LoomArc::new(Runs::new(8));
        let comes = {
            let runs = runs.clone();
            thread::spawn(move || {
                runs.count(3);
                // SAFETY: `runs` lives.
                unsafe { Runs::put(&raw const *runs, 1, 3) }
            })
        };
        let mut closed = Vec::new();
        runs.close(|page| closed.push(page));
        match comes.join().unwrap() {
            true => assert_eq!(closed, [1, 2, 3]),
            false => assert!(closed.is_empty()),
        }
    });
}

#[test]
fn a_closing_ring_loses_nothing() {
    loom::model(|| {
        let ring = LoomArc::new(Ring::new(2));
        let producers = [1, 2].map(|index| push(&ring, index));
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

/// The bytes of a page, as loom watches them, and a place where threads meet. Loom goes through the orders of two accesses
/// to one atomic only if at least one of them writes and no other of the same thread stands between: where a thread
/// looks before it subtracts, it does not see that an earlier look of another depends on that. So both pass here, which
/// orders nothing (Relaxed), but lets loom try who comes first.
#[derive(Clone)]
struct Watched {
    bytes: LoomArc<loom::cell::UnsafeCell<u8>>,
    turn: LoomArc<AtomicU32>,
}

impl Watched {
    fn new() -> Watched {
        Watched { bytes: LoomArc::new(loom::cell::UnsafeCell::new(0)), turn: LoomArc::new(AtomicU32::new(0)) }
    }

    fn read(&self) {
        // SAFETY: loom checks that no write races with this.
        self.bytes.with(|byte| unsafe { byte.read() });
    }

    fn write(&self) {
        // SAFETY: loom checks that no read races with this.
        self.bytes.with_mut(|byte| unsafe { byte.write(1) });
    }

    fn turn(&self) {
        self.turn.fetch_add(0, Ordering::Relaxed);
    }

    /// A thread that reads the page, and gives up its reference.
    fn reader(&self, page: Page) -> thread::JoinHandle<()> {
        let watched = self.clone();
        thread::spawn(move || {
            watched.read();
            drop(page);
            watched.turn();
        })
    }
}

/// How many executions of a model got to where it matters: a model that never does proves nothing.
fn reached(model: impl Fn(&StdCounter) + Sync + Send + 'static) {
    let count = Arc::new(StdCounter::default());
    let inside = count.clone();
    loom::model(move || model(&inside));
    assert!(*count.0.lock().unwrap() > 0, "no execution got there");
}

#[derive(Default)]
struct StdCounter(Mutex<u32>);

impl StdCounter {
    fn here(&self) {
        *self.0.lock().unwrap() += 1;
    }
}

#[test]
fn the_last_of_two_references_sends_the_page_home_once() {
    two_references(PagePool::recycle);
    two_references(|_, page| drop(page));
}

fn two_references(give_back: fn(&PagePool, Page)) {
    reached(move |recycled| {
        let provider = Model::new(false);
        let pool = pool(&provider);
        let page = pool.alloc().unwrap();
        let (other, watched) = (page.clone(), Watched::new());
        let there = watched.reader(other);
        watched.read();
        // Here, too: the other one may be done before we look.
        watched.turn();
        give_back(&pool, page);
        watched.turn();
        // If it is home already its next owner is alone with it, while the other thread may be in its drop.
        // (No `is_unique` here, which would look at the count again, and learn more than who gave the page back did.)
        if let Ok(page) = pool.alloc() {
            recycled.here();
            watched.write();
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
    reached(|sole| {
        let provider = Model::new(false);
        let pool = pool(&provider);
        let mut page = pool.alloc().unwrap();
        let (other, watched) = (page.clone(), Watched::new());
        let there = watched.reader(other);
        watched.turn();
        if page.bytes_mut().is_some() {
            sole.here();
            watched.write();
        }
        there.join().unwrap();
        drop(page);
    });
}

#[test]
fn a_page_given_through_the_ring_is_its_next_owners_alone() {
    reached(|given| {
        let provider = Model::new(false);
        let pool = pool(&provider);
        let page = pool.alloc().unwrap();
        let watched = Watched::new();
        let theirs = watched.clone();
        let there = thread::spawn(move || {
            theirs.write();
            drop(page);
            theirs.turn();
        });
        watched.turn();
        if let Ok(page) = pool.alloc() {
            given.here();
            watched.write();
            drop(page);
        }
        there.join().unwrap();
    });
}

#[test]
fn a_pool_that_ends_under_its_last_page_is_freed_once_and_last() {
    reached(|theirs_was_last| {
        let watched = Watched::new();
        let provider = Ended::new(&watched);
        let pool = PagePool::new(PoolConfig::new().limit(2).ring(2), provider.clone()).unwrap();
        let page = pool.alloc().unwrap();
        let there = watched.reader(page);
        watched.read();
        let monitor = pool.shutdown();
        if monitor.in_flight() > 0 {
            theirs_was_last.here();
        }
        drop(monitor);
        watched.turn();
        there.join().unwrap();
        assert_eq!(provider.inner.log(), Log { given: 1, released: 1, destroyed: 1, lied: 0 });
    });
}

/// Touches the watched bytes when the pool ends: all else must be over.
struct Ended {
    inner: Arc<Model>,
    watched: Watched,
}

// SAFETY: loom's cell is Send and Sync as far as its checks go; that nobody races on it is what is tested.
unsafe impl Send for Ended {}
// SAFETY: as above.
unsafe impl Sync for Ended {}

impl Ended {
    fn new(watched: &Watched) -> Arc<Ended> {
        Arc::new(Ended { inner: Model::new(false), watched: watched.clone() })
    }
}

impl MemoryProvider for Ended {
    fn init(&self, need: &Need) -> Result<Area, ProviderError> {
        self.inner.init(need)
    }
    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        self.inner.alloc_netmems(batch)
    }
    fn release_netmem(&self, index: u32) {
        self.inner.release_netmem(index);
    }
    fn destroy(&self) {
        self.watched.write();
        self.inner.destroy();
    }
    fn about(&self) -> About {
        self.inner.about()
    }
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
        let (other, watched) = (page.clone(), Watched::new());
        let theirs = watched.clone();
        let there = thread::spawn(move || {
            drop(other);
            theirs.turn();
        });
        drop(page);
        watched.turn();
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

/// A slot that a peer lends in: its last reference goes on one thread while the other one adopts what comes next.
#[test]
fn a_slot_is_adopted_again_once_it_was_told_and_no_earlier() {
    let fd = onecopy_sys::memfd::create("onecopy-model", 2 * 4096).unwrap();
    let mapping = Arc::new(onecopy_sys::map::Mapping::new(&fd, 2 * 4096).unwrap());
    loom::model(move || {
        let told = LoomArc::new(AtomicU32::new(0));
        let tell = told.clone();
        // Release: as the peer is told.
        let released = move |_| {
            tell.fetch_add(1, Ordering::Release);
        };
        let mut lent = LentPages::new(mapping.clone(), 0, 2, 1, released).unwrap();
        let page = lent.adopt(0, 1).unwrap();
        let clone = page.clone();
        let dropper = thread::spawn(move || drop(clone));
        drop(page);
        // Acquire: as the peer sees it, who lends the slot again.
        if told.load(Ordering::Acquire) == 1 {
            let again = lent.adopt(0, 0).unwrap();
            assert_eq!((again.index(), lent.adopt(0, 1).is_err()), (0, true));
            drop(again);
        }
        dropper.join().unwrap();
        assert_eq!(lent.in_flight(), 0);
        drop(lent.adopt(0, 1).unwrap());
    });
}

/// Two threads draw from one pool, a page at a time, and drop what they got: it is had by one of them, and comes home.
#[test]
fn a_page_that_two_threads_draw_is_one_threads_at_a_time() {
    loom::model(|| {
        let provider = Model::new(false);
        let common = CommonPool::new(pool(&provider));
        let used = LoomArc::new(loom::cell::UnsafeCell::new(0));
        let draw = |reservoir: &Reservoir, used: &loom::cell::UnsafeCell<u32>| {
            if let Ok(page) = reservoir.alloc() {
                // SAFETY: loom looks whether another thread is in here.
                used.with_mut(|used| unsafe { *used += 1 });
                drop(page);
            }
        };
        let (theirs, there) = (common.reservoir(1), used.clone());
        let other = thread::spawn(move || draw(&theirs, &there));
        let ours = common.reservoir(1);
        draw(&ours, &used);
        other.join().unwrap();
        drop((ours, common));
        let log = provider.log();
        assert_eq!((log.given, log.destroyed), (log.released, 1));
    });
}
