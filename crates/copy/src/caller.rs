//! Which stores a thread's own copies get: those that go into no ring, found out by what the thread gets done.
//!
//! Each thread has a [`Learner`] for each reader and power of two of the footprint, from where on the second level of caches doesn't hold
//! it. Nothing says how far a reader is, so what counts is the goodput of the caller: bytes copied by the CPU time of the thread, whatever
//! it does with them in between.
//!
//! - The clocks are read once a unit, ten megabytes at least.
//! - For a reader on another core the time that passes counts instead, since the thread may wait for it. A unit in which it did not run
//!   for a quarter of that says nothing: the reader is the slower one, or others had the CPU.
//! - What else the thread does may take longer in one unit than in another. So three first comparisons have to decide alike, where a
//!   ring's learner takes one.
//! - What one thread has measured is where those begin that come later. Not so for a reader on another core: it may be a peer, which chooses by
//!   when it reads, and that is to be a matter of the threads that send to it.

use crate::learn::{Learned, Learner, Reason, other};
use crate::plan::{CLASSES, class, class_bytes};
use crate::policy::{Reader, Store};
use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// How many first comparisons have to decide alike before the last of them does.
const DOUBTS: u32 = 2;

type Measured = BTreeMap<(usize, usize), Learned>;

/// What threads have measured, by reader and class. Everybody only tries it: a fork may have left it locked.
static MEASURED: Mutex<Measured> = Mutex::new(BTreeMap::new());

/// How many milliseconds who lists it tries: many times what an insertion takes on a busy machine.
const PATIENCE: u32 = 1_000;

thread_local! {
    /// By reader and class.
    static CALLERS: RefCell<[[Option<Box<Caller>>; CLASSES]; READERS.len()]> =
        const { RefCell::new([const { [const { None }; CLASSES] }; READERS.len()]) };
}

/// In the order of the first index of tables.
const READERS: [Reader; 4] = [Reader::SameCore, Reader::OtherCore, Reader::NoCpu, Reader::Unknown];

/// What one thread has found out about one reader and class of footprints.
#[derive(Debug)]
struct Caller {
    learner: Learner,
    /// Whether another core reads.
    waits: bool,
    /// Bytes copied.
    copied: u64,
    /// The clocks at the last look.
    last: Clocks,
}

/// Nanoseconds since any moment.
#[derive(Clone, Copy, Debug, Default)]
struct Clocks {
    /// That pass for all.
    wall: u64,
    /// In which this thread had a CPU.
    cpu: u64,
}

impl Clocks {
    fn read() -> Clocks {
        let nanoseconds = |id| {
            let now = clock_gettime(id);
            u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or(0)
        };
        Clocks { wall: nanoseconds(ClockId::Monotonic), cpu: nanoseconds(ClockId::ThreadCPUTime) }
    }
}

impl Caller {
    fn new(footprint: usize, reader: Reader, plan: Store, measured: bool, known: Option<Learned>) -> Caller {
        let mut learner = Learner::new(footprint, 0, plan, measured);
        learner.doubt(DOUBTS);
        if let Some(known) = known {
            learner.begin_with(known);
        }
        Caller { learner, waits: reader == Reader::OtherCore, copied: 0, last: Clocks::default() }
    }

    /// Notes `len` bytes that are copied next, with `planned` stores if nothing is found out. Returns those that they get; and what has
    /// changed, if anything was learned just now.
    #[inline]
    fn store(
        &mut self,
        len: usize,
        planned: Store,
        clocks: impl FnOnce() -> Clocks,
    ) -> (Store, Option<Learned>) {
        let learned = if self.learner.is_due(self.copied) { self.look(clocks()) } else { None };
        self.copied += len as u64;
        let store = match self.learner.reason() {
            // The plan may have other stores for other lengths. What is tried is the other of what this copy would get.
            Reason::Plan if self.learner.is_planned() => planned,
            Reason::Plan => other(planned),
            _ => self.learner.store(),
        };
        (store, learned)
    }

    #[cold]
    fn look(&mut self, now: Clocks) -> Option<Learned> {
        let passed = now.wall.saturating_sub(self.last.wall);
        let ran = now.cpu.saturating_sub(self.last.cpu);
        self.last = now;
        let time = if self.waits {
            self.learner.rested(passed.saturating_sub(ran));
            now.wall
        } else {
            now.cpu
        };
        self.learner.look(time, self.copied, self.copied).then(|| self.learner.learned())
    }
}

/// Returns which stores the next copy gets, of `len` bytes, about whose footprint and reader there is something to find out. `planned`:
/// what they are without that, and whether by figures of this machine (`measured`).
// Not inlined: copies into what the caches hold have no use for it.
#[inline(never)]
pub(crate) fn store(len: usize, footprint: usize, reader: Reader, planned: Store, measured: bool) -> Store {
    let key = (reader as usize, class(footprint));
    let found = CALLERS.try_with(|callers| {
        // (A signal handler that copies may have interrupted a copy.)
        let mut callers = callers.try_borrow_mut().ok()?;
        let caller = callers[key.0][key.1].get_or_insert_with(|| {
            let known = match reader {
                Reader::OtherCore => None,
                _ => MEASURED.try_lock().ok().and_then(|known| known.get(&key).copied()),
            };
            Box::new(Caller::new(footprint, reader, planned, measured, known))
        });
        let (store, learned) = caller.store(len, planned, Clocks::read);
        if let Some(learned) = learned {
            note(key, learned);
        }
        Some(store)
    });
    // (A thread that ends has none any more.)
    found.ok().flatten().unwrap_or(planned)
}

#[cold]
fn note(key: (usize, usize), learned: Learned) {
    if let Ok(mut measured) = MEASURED.try_lock() {
        // What one thread could not tell is no news of what another one has measured.
        if learned.reason != Reason::Plan
            || measured.get(&key).is_none_or(|known| known.reason == Reason::Plan)
        {
            measured.insert(key, learned);
        }
    }
}

/// Returns what threads of this process have found out about the stores of copies that go into no ring with a [`Learner`] of its own: for which
/// reader, and for footprints of how many bytes and more, up to twice as many. What was not compared yet is not listed.
///
/// In a child of fork(2), a thread of whose parent was about to note something at that moment, nothing is listed.
pub fn learned() -> Vec<(Reader, usize, Learned)> {
    let Some(measured) = measured() else { return Vec::new() };
    let listed = |(&(reader, class), &learned): (&(usize, usize), &Learned)| {
        Some((*READERS.get(reader)?, class_bytes(class), learned))
    };
    measured.iter().filter_map(listed).collect()
}

/// Who has it locked has it for an insertion, unless a fork has left that thread behind.
fn measured() -> Option<MutexGuard<'static, Measured>> {
    for _ in 0..PATIENCE {
        match MEASURED.try_lock() {
            Ok(measured) => return Some(measured),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Hint, Policy};

    const FOOTPRINT: usize = 64 << 20;
    const LEN: usize = 64 << 10;

    /// A thread that copies at so many bytes a nanosecond, with cached and non-temporal stores, and the others' share of its time.
    struct Thread {
        caller: Caller,
        rates: [f64; 2],
        now: Clocks,
        waits: f64,
    }

    impl Thread {
        fn new(reader: Reader, plan: Store, rates: [f64; 2]) -> Thread {
            let caller = Caller::new(FOOTPRINT, reader, plan, false, None);
            Thread { caller, rates, now: Clocks::default(), waits: 0.0 }
        }

        /// Copies so many footprints, and says which share of the bytes got non-temporal stores.
        fn copy(&mut self, plan: Store, footprints: usize) -> f64 {
            let copies = footprints * FOOTPRINT / LEN;
            let mut streamed = 0;
            for _ in 0..copies {
                let now = self.now;
                let store = self.caller.store(LEN, plan, || now).0;
                streamed += usize::from(store == Store::NonTemporal);
                let took = LEN as f64 / self.rates[usize::from(store == Store::NonTemporal)];
                self.now.cpu += took as u64;
                self.now.wall += (took * (1.0 + self.waits)) as u64;
            }
            streamed as f64 / copies as f64
        }
    }

    #[test]
    fn what_is_much_faster_is_chosen_after_three_comparisons() {
        for (plan, rates, share) in [(Store::Cached, [4.0, 7.0], 1.0), (Store::NonTemporal, [5.0, 3.0], 0.0)]
        {
            let mut thread = Thread::new(Reader::SameCore, plan, rates);
            thread.copy(plan, 16);
            assert_eq!(
                thread.caller.learner.learned().reason,
                Reason::Plan,
                "two comparisons decide nothing"
            );
            thread.copy(plan, 9);
            assert_eq!(thread.caller.learner.learned().reason, Reason::Faster);
            assert_eq!(thread.copy(plan, 90), share);
        }
    }

    /// Two laps of a hundred, where the others are as fast. They are not a tenth as fast here, and get no more of the time.
    #[test]
    fn what_is_much_slower_is_tried_more_rarely() {
        let mut thread = Thread::new(Reader::NoCpu, Store::Cached, [10.0, 1.0]);
        thread.copy(Store::Cached, 6);
        assert_eq!(thread.copy(Store::Cached, 900), 0.0);
        let share = thread.copy(Store::Cached, 1100);
        assert!(share > 0.0 && share < 0.004, "{share}");
    }

    /// What else a thread does takes longer now and then, and the other stores are as fast: one comparison may look otherwise.
    #[test]
    fn one_lucky_comparison_does_not_decide() {
        let mut thread = Thread::new(Reader::NoCpu, Store::Cached, [5.0, 5.0]);
        thread.copy(Store::Cached, 3);
        thread.rates = [5.0, 7.0];
        thread.copy(Store::Cached, 1);
        assert!(thread.caller.learner.explored() > 0, "the lucky unit was the others'");
        thread.rates = [5.0, 4.0];
        thread.copy(Store::Cached, 100);
        assert_eq!(thread.caller.learner.learned().reason, Reason::Plan);
        assert!(thread.copy(Store::Cached, 200) < 0.05);
    }

    #[test]
    fn a_thread_that_waits_learns_nothing_of_who_reads_on_another_core() {
        let mut thread = Thread::new(Reader::OtherCore, Store::Cached, [4.0, 7.0]);
        thread.waits = 0.5;
        assert_eq!(thread.copy(Store::Cached, 200), 0.0);
        thread.waits = 0.1;
        thread.copy(Store::Cached, 30);
        assert_eq!(thread.copy(Store::Cached, 50), 1.0);
    }

    /// As on a busy machine.
    #[test]
    fn a_thread_that_is_not_alone_on_its_cpu_learns_by_the_time_that_it_has_it() {
        let mut thread = Thread::new(Reader::NoCpu, Store::Cached, [4.0, 7.0]);
        for footprint in 0..25 {
            thread.waits = f64::from(footprint % 4);
            thread.copy(Store::Cached, 1);
        }
        assert_eq!(thread.copy(Store::Cached, 50), 1.0);
    }

    #[test]
    fn a_thread_that_comes_later_begins_with_what_was_measured() {
        let known = Learned { store: Store::NonTemporal, reason: Reason::Faster, percent: Some(170) };
        let mut thread = Thread::new(Reader::NoCpu, Store::Cached, [4.0, 7.0]);
        thread.caller = Caller::new(FOOTPRINT, Reader::NoCpu, Store::Cached, false, Some(known));
        assert_eq!(thread.copy(Store::Cached, 100), 1.0);
    }

    #[test]
    fn what_was_measured_counts_from_the_second_level_and_four_kibibytes_on_and_not_for_a_peers_sake() {
        let known = Learned { store: Store::NonTemporal, reason: Reason::Faster, percent: Some(170) };
        let readers = [Reader::Unknown, Reader::OtherCore];
        for reader in readers {
            MEASURED.lock().unwrap().insert((reader as usize, class(FOOTPRINT)), known);
            assert!(learned().contains(&(reader, FOOTPRINT, known)));
        }
        let engine = crate::dispatch::engine();
        let hint = Hint { policy: Policy::Auto, footprint: FOOTPRINT, reader: Reader::Unknown };
        let learns = engine.learns_from <= FOOTPRINT;
        let planned = engine.plan(LEN, hint);
        assert_eq!(engine.stores(LEN, hint), if learns { Store::NonTemporal } else { planned });
        let small = Hint { footprint: 128 << 10, ..hint };
        assert_eq!(engine.stores(LEN, small), Store::Cached);
        assert_eq!(engine.stores(crate::LEARN_MIN - 1, hint), Store::Cached);
        assert_eq!(engine.stores(LEN, Hint { policy: Policy::Cached, ..hint }), Store::Cached);
        let peer = Hint { reader: Reader::OtherCore, ..hint };
        assert_eq!(engine.stores(LEN, peer), engine.plan(LEN, peer), "another thread's peer");
    }

    #[test]
    fn a_child_lists_nothing_where_a_fork_has_left_the_list_locked() {
        onecopy_testing::alone!();
        let held = std::sync::Barrier::new(2);
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| {
                let _list = MEASURED.lock();
                held.wait();
                held.wait();
            });
            held.wait();
            let child = onecopy_sys::fork::child(|| i32::try_from(learned().len()).unwrap_or(-1)).unwrap();
            let ended = child.wait();
            held.wait();
            ended
        });
        assert_eq!(ended, onecopy_sys::fork::Ended::Returned(0));
    }

    #[test]
    fn readers_are_indexed_by_what_they_are() {
        assert!(READERS.iter().enumerate().all(|(at, reader)| *reader as usize == at));
    }
}
