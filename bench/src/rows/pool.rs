//! `pool`: the three cases and the three baselines of the kernel's bench_page_pool_simple, and pages that go home from
//! another CPU.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use onecopy::advanced::pool::provider::{Heap, Hugepage, Memfd, Opaque};
use onecopy::advanced::pool::{DeviceId, MemoryProvider, Page, PagePool, PoolConfig};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU64, Ordering};

use super::pinned::pinned;
use crate::proc;
use crate::row::{Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};

/// The row.
pub const ROW: Row = Row {
    name: "pool",
    about: "a page is taken and given back: 01 straight into the cache, 02 through the ring, 03 while somebody holds \
            it, so that it is never recycled (as bench_page_pool_simple: ring 1024, 64 pages made ready); cross: \
            another CPU gives it back; nobody touches the bytes",
    stated: &[],
    metrics: &[
        Metric { name: "time", unit: "ns", larger: false },
        Metric { name: "cycles", unit: "TSC cycles", larger: false },
    ],
    share: 1.0,
    cases,
    workers: &[],
    plot: Plot::Bars,
};

/// As the kernel's bench: room in the ring, and pages that lie in it at the beginning.
const RING: u32 = 1024;
const READY: usize = 64;

/// Pages that cross to the other CPU together, and how many such batches are under way: what a receiver takes per
/// wake-up, and little enough for the ring.
const BATCH: usize = 64;
const UNDER_WAY: usize = 4;

/// Ours, by provider: `auto` is the one that a program gets which asks for nothing.
const OURS: [&str; 4] = ["auto", "hugepage", "memfd", "opaque"];
const BASELINES: [&str; 3] = ["for_loop", "atomic_inc", "lock"];

fn cases(_: Scale) -> Vec<Case> {
    let engines = || BASELINES.into_iter().chain(OURS).collect::<Vec<_>>();
    let each =
        |reach: &dyn Fn(&'static str) -> Vec<Reach>| OURS.into_iter().flat_map(reach).collect::<Vec<_>>();
    let same_cpu = |name: &str, way: Way, reach: Vec<Reach>| Case {
        name: name.to_owned(),
        engines: engines(),
        baseline: "atomic_inc",
        reach,
        work: Work { warmup: 20_000, least: 20_000, most: 1 << 31, step: 1 },
        open: Box::new(move |context: &Context, engine| match engine {
            "for_loop" => pinned(context, || Ok(Baseline::ForLoop)),
            "atomic_inc" => pinned(context, || Ok(Baseline::AtomicInc(AtomicU64::new(0)))),
            "lock" => pinned(context, || Ok(Baseline::Lock(Mutex::new(0)))),
            engine => pinned(context, || Ok(Taken { pool: pool(engine)?, way })),
        }),
    };
    vec![
        same_cpu("01", Way::Direct, each(&|engine| vec![Reach::at_most(engine, "time", 2.0)])),
        same_cpu("02", Way::Ring, each(&|engine| vec![Reach::at_most(engine, "cycles", 42.0)])),
        same_cpu("03", Way::Held, each(&|engine| vec![Reach::at_most(engine, "cycles", 150.0)])),
        Case {
            name: "cross".to_owned(),
            engines: ["malloc", "lock"].into_iter().chain(OURS).collect(),
            baseline: "lock",
            reach: each(&|engine| vec![Reach::at_most_times(engine, "time", 0.8, "malloc", 0.0)]),
            work: Work { warmup: 20_000, least: 20_000, most: 1 << 31, step: (BATCH * UNDER_WAY) as u64 },
            open: Box::new(|context: &Context, engine| {
                let there = context.cpus[1];
                match engine {
                    "malloc" => pinned(context, || Ok(Cross::new(there, Malloc))),
                    "lock" => pinned(context, || Ok(Cross::new(there, Locked::default()))),
                    engine => pinned(context, || Ok(Cross::new(there, pool(engine)?))),
                }
            }),
        },
    ]
}

fn pool(engine: &str) -> Result<PagePool> {
    let provider: Arc<dyn MemoryProvider> = match engine {
        "auto" => Heap::new(),
        "hugepage" => Hugepage::new(),
        "memfd" => Memfd::new(),
        "opaque" => Opaque::new(DeviceId(0)),
        other => bail!("there is no engine {other}"),
    };
    let pool = PagePool::new(PoolConfig::new().ring(RING), provider)?;
    let pages = (0..READY).map(|_| pool.alloc()).collect::<Result<Vec<Page>, _>>()?;
    drop(pages);
    Ok(pool)
}

/// How a page goes back.
#[derive(Clone, Copy)]
enum Way {
    Direct,
    Ring,
    Held,
}

/// The time-stamp counter, behind all that came before.
fn ticks() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: both instructions are in every x86-64 CPU, and touch no memory.
    unsafe {
        std::arch::x86_64::_mm_lfence();
        let ticks = std::arch::x86_64::_rdtsc();
        std::arch::x86_64::_mm_lfence();
        Some(ticks)
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Does `one` so often and says what each took.
#[inline(always)]
fn timed(count: u64, mut one: impl FnMut() -> Result<()>, settings: Vec<(String, String)>) -> Result<Sample> {
    let (start, first) = (Instant::now(), ticks());
    for _ in 0..count {
        one()?;
    }
    let (last, seconds) = (ticks(), start.elapsed().as_secs_f64());
    let mut values = vec![("time", seconds / count as f64 * 1e9)];
    if let (Some(first), Some(last)) = (first, last) {
        values.push(("cycles", (last - first) as f64 / count as f64));
    }
    Ok(Sample { seconds, values, settings })
}

/// What the kernel's bench has for comparison: an empty loop, a locked instruction, an uncontended lock.
enum Baseline {
    ForLoop,
    AtomicInc(AtomicU64),
    Lock(Mutex<u64>),
}

impl Session for Baseline {
    fn verify(&mut self) -> Result<()> {
        self.run(100)?;
        match self {
            Baseline::ForLoop => {}
            Baseline::AtomicInc(count) => {
                ensure!(count.swap(0, Ordering::Relaxed) == 100, "lost an increment")
            }
            Baseline::Lock(count) => ensure!(*count.lock() == 100, "lost an increment"),
        }
        Ok(())
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        match self {
            Baseline::ForLoop => {
                let mut loops = 0u64;
                timed(
                    work,
                    || {
                        loops += 1;
                        black_box(&loops);
                        Ok(())
                    },
                    Vec::new(),
                )
            }
            Baseline::AtomicInc(count) => timed(
                work,
                || {
                    black_box(&*count).fetch_add(1, Ordering::Relaxed);
                    Ok(())
                },
                Vec::new(),
            ),
            Baseline::Lock(count) => timed(
                work,
                || {
                    *black_box(&*count).lock() += 1;
                    Ok(())
                },
                Vec::new(),
            ),
        }
    }
}

/// A page is taken and given back on one CPU.
struct Taken {
    pool: PagePool,
    way: Way,
}

impl Session for Taken {
    fn verify(&mut self) -> Result<()> {
        // That each case is what it says: by the pool's own count.
        let before = self.pool.stats();
        self.run(1000)?;
        let (after, name) = (self.pool.stats(), self.pool.about().name);
        let (cached, ring, left) = (
            after.recycle.cached - before.recycle.cached,
            after.recycle.ring - before.recycle.ring,
            after.recycle.released_refcnt - before.recycle.released_refcnt,
        );
        let wanted = match self.way {
            Way::Direct => (1000, 0, 0),
            Way::Ring => (0, 1000, 0),
            Way::Held => (0, 0, 1000),
        };
        ensure!((cached, ring, left) == wanted, "{name}: {after:?} after {before:?}");
        // And that what is handed out is memory of the kind that is said.
        let mut page = self.pool.alloc()?;
        if let Some(bytes) = page.bytes_mut() {
            super::bytes::fill(bytes, 17, 0);
            super::bytes::check(bytes, 17, 0)?;
        } else {
            ensure!(!page.is_readable(), "{name}: no bytes");
        }
        self.pool.recycle(page);
        Ok(())
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let pool = &self.pool;
        let settings = vec![("memory".to_owned(), pool.about().how)];
        match self.way {
            Way::Direct => timed(
                work,
                || {
                    let page = pool.alloc()?;
                    // A use of the page that leaves it in its register, as the kernel's bench does.
                    black_box(page.netmem());
                    pool.recycle(page);
                    Ok(())
                },
                settings,
            ),
            Way::Ring => timed(
                work,
                || {
                    let page = pool.alloc()?;
                    black_box(page.netmem());
                    drop(page);
                    Ok(())
                },
                settings,
            ),
            Way::Held => timed(
                work,
                || {
                    let page = pool.alloc()?;
                    let hold = page.hold();
                    drop(page);
                    black_box(hold.netmem());
                    drop(hold);
                    Ok(())
                },
                settings,
            ),
        }
    }
}

/// Where pages come from that another thread gives back by dropping them.
trait Source: Send {
    type Item: Send + 'static;
    fn take(&mut self) -> Result<Self::Item>;
}

impl Source for PagePool {
    type Item = Page;
    #[inline]
    fn take(&mut self) -> Result<Page> {
        Ok(self.alloc()?)
    }
}

/// The C library's allocator (untouched, as pages are).
struct Malloc;

impl Source for Malloc {
    type Item = Vec<u8>;
    #[inline]
    fn take(&mut self) -> Result<Vec<u8>> {
        Ok(black_box(Vec::with_capacity(4096)))
    }
}

/// The pool that one would write first: a list behind a lock.
#[derive(Default)]
struct Locked(Arc<std::sync::Mutex<Vec<Box<[u8]>>>>);

struct LockedPage {
    page: Option<Box<[u8]>>,
    home: Arc<std::sync::Mutex<Vec<Box<[u8]>>>>,
}

impl Source for Locked {
    type Item = LockedPage;
    #[inline]
    fn take(&mut self) -> Result<LockedPage> {
        let page = self.0.lock().map_err(|_| anyhow!("the other side panicked"))?.pop();
        let page = page.unwrap_or_else(|| vec![0; 4096].into_boxed_slice());
        Ok(LockedPage { page: Some(page), home: self.0.clone() })
    }
}

impl Drop for LockedPage {
    #[inline]
    fn drop(&mut self) {
        if let (Some(page), Ok(mut home)) = (self.page.take(), self.home.lock()) {
            home.push(page);
        }
    }
}

/// Pages are taken on one CPU and given back on another.
struct Cross<S: Source> {
    source: S,
    /// Full batches go, empty ones come back. None once the session is over.
    go: Option<Sender<Vec<S::Item>>>,
    back: Receiver<Vec<S::Item>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl<S: Source + 'static> Cross<S> {
    fn new(there: usize, source: S) -> Cross<S> {
        let (go, jobs) = channel::<Vec<S::Item>>();
        let (done, back) = channel();
        let thread = std::thread::spawn(move || {
            proc::pin(there)?;
            for mut batch in jobs {
                batch.clear();
                if done.send(batch).is_err() {
                    break;
                }
            }
            Ok(())
        });
        Cross { source, go: Some(go), back, thread: Some(thread) }
    }

    fn send(&mut self, mut batch: Vec<S::Item>) -> Result<()> {
        for _ in 0..BATCH {
            batch.push(self.source.take()?);
        }
        let go = self.go.as_ref().context("the session is over")?;
        go.send(batch).map_err(|_| anyhow!("the other thread is gone"))
    }
}

impl<S: Source + 'static> Session for Cross<S> {
    fn verify(&mut self) -> Result<()> {
        self.run((BATCH * UNDER_WAY) as u64).map(drop)
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let (start, first) = (Instant::now(), ticks());
        let batches = (work as usize).div_ceil(BATCH).max(UNDER_WAY);
        for _ in 0..UNDER_WAY {
            self.send(Vec::with_capacity(BATCH))?;
        }
        for _ in UNDER_WAY..batches {
            let batch = self.back.recv().context("the other thread is gone")?;
            self.send(batch)?;
        }
        for _ in 0..UNDER_WAY {
            self.back.recv().context("the other thread is gone")?;
        }
        let (last, seconds) = (ticks(), start.elapsed().as_secs_f64());
        let pages = (batches * BATCH) as f64;
        let mut values = vec![("time", seconds / pages * 1e9)];
        if let (Some(first), Some(last)) = (first, last) {
            values.push(("cycles", (last - first) as f64 / pages));
        }
        let settings = vec![("together".to_owned(), format!("{BATCH} pages"))];
        Ok(Sample { seconds, values, settings })
    }
}

impl<S: Source> Drop for Cross<S> {
    fn drop(&mut self) {
        self.go = None;
        if let Some(thread) = self.thread.take() {
            // What it could say was said by the figures it did not give.
            let _ = thread.join();
        }
    }
}
