//! From how many bytes on it is worth to be told, on this machine.

use super::context::Context;
use super::lane::Config;
use super::outcome::Fate;
use super::segment::Segment;
use super::segments::SegmentQueue;
use crate::chain::Chain;
use crate::fragment::Fragment;
use crate::writer::Writer;
use onecopy_pool::{Page, Pages};
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The least and the largest send that is looked at.
const LEAST: u32 = 64;
const MOST: u32 = 32 << 10;
/// Sends that are timed together, and how often: the least time counts, since what disturbs only adds.
const SENDS: u32 = 32;
const ROUNDS: u32 = 7;
/// What the measuring may take in all: on a machine that is busy it ends earlier.
const PATIENCE: Duration = Duration::from_millis(20);

static HERE: OnceLock<Measured> = OnceLock::new();

/// What a copy of so many bytes costs beside a reference and being told, by the way that both take to a segment and away again.
///
/// The bytes that are copied lie in the cache, which is what a copy is best at: who sends what he has just made. So it is never less
/// than what is saved.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Sends of fewer bytes are cheaper copied.
    pub below: u32,
    /// Bytes, nanoseconds of a copy, nanoseconds of a reference and its notification.
    pub points: Vec<(u32, u64, u64)>,
}

impl Measured {
    /// What this process has measured: at its first call, with pages of `pages`, in some milliseconds.
    pub fn here<A: Pages + ?Sized>(pages: &A) -> &'static Measured {
        HERE.get_or_init(|| Measured::now(pages))
    }

    /// The same, if it has been measured.
    pub fn known() -> Option<&'static Measured> {
        HERE.get()
    }

    /// Measures it. Where there is no page, or no time is left, what is not known costs nothing to lend.
    pub fn now<A: Pages + ?Sized>(pages: &A) -> Measured {
        let began = Instant::now();
        let mut points: Vec<(u32, u64, u64)> = Vec::new();
        let mut size = LEAST;
        while size <= MOST && began.elapsed() < PATIENCE {
            let (mut copy, mut lend) = (u64::MAX, u64::MAX);
            // In turns, so that what disturbs one disturbs the other.
            for _ in 0..ROUNDS {
                let (Some(one), Some(other)) = (copying(pages, size), lending(pages, size)) else { break };
                (copy, lend) = (copy.min(one), lend.min(other));
            }
            points.push((size, copy, lend));
            size *= 2;
        }
        let below = below(&points);
        Measured { below, points }
    }
}

/// The size from which on lending is cheaper, at all larger ones that were looked at; between two of them, where the lines cross.
fn below(points: &[(u32, u64, u64)]) -> u32 {
    let Some(dear) = points.iter().rposition(|(_, copy, lend)| copy < lend) else { return 0 };
    let (small, copy, lend) = points[dear];
    let Some((large, copy_of_more, lend_of_more)) = points.get(dear + 1).copied() else { return small * 2 };
    // How far they are apart at either end.
    let (lost, won) = (lend - copy, copy_of_more - lend_of_more);
    let part = u64::from(large - small) * lost / (lost + won).max(1);
    small + part as u32
}

/// Nanoseconds of a send that is copied.
fn copying<A: Pages + ?Sized>(pages: &A, size: u32) -> Option<u64> {
    let bytes = vec![1; size as usize];
    let (mut queue, writer) = (SegmentQueue::new(), Writer::new(pages));
    let start = Instant::now();
    for _ in 0..SENDS {
        queue.write(&writer, black_box(&bytes)).ok()?;
    }
    leave(&mut queue)?;
    Some(each(start))
}

/// Nanoseconds of one by reference, that is told of.
fn lending<A: Pages + ?Sized>(pages: &A, size: u32) -> Option<u64> {
    let of = pages.page_len().min(size);
    let buffer: Vec<Page> = (0..size.div_ceil(of)).map(|_| pages.alloc().ok()).collect::<Option<_>>()?;
    let (context, mut completions) = Context::new();
    let mut lane = context.lane(Config::default()).ok()?;
    let mut queue = SegmentQueue::new();
    let start = Instant::now();
    for number in 0..SENDS {
        let (mut chain, mut left) = (Chain::new(), size);
        for page in &buffer {
            let len = left.min(of);
            chain.append(Fragment::new(page.clone(), 0, len as usize).ok()?).ok()?;
            left -= len;
        }
        let mut data = Segment::new(chain);
        lane.send_there(&mut data, u64::from(number), 0).ok()?;
        queue.push(data);
    }
    leave(&mut queue)?;
    let told = completions.reap(|one| {
        black_box(one);
    });
    (told == SENDS as usize).then(|| each(start))
}

/// All of it is handed down, and acknowledged.
fn leave(queue: &mut SegmentQueue) -> Option<()> {
    let mut at = 0;
    while at < queue.len() {
        let part = queue.range(at, (queue.len() - at).min(64 << 10) as usize).ok()?;
        at += part.payload().len() as u64;
        part.free(Fate::Sent);
    }
    queue.advance(queue.len(), Fate::Sent).ok()
}

fn each(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX) / u64::from(SENDS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use onecopy_pool::{PagePool, PoolConfig, provider::Heap};

    #[test]
    fn the_threshold_is_where_the_lines_cross_for_good() {
        assert_eq!(below(&[]), 0);
        assert_eq!(below(&[(64, 10, 5), (128, 20, 5)]), 0, "always dearer to copy");
        assert_eq!(below(&[(64, 10, 50), (128, 20, 50)]), 256, "never, as far as was looked");
        assert_eq!(below(&[(1024, 40, 60), (2048, 80, 60)]), 1536);
        // One that was disturbed counts, and none after it is worth less.
        assert_eq!(below(&[(64, 90, 60), (128, 40, 60), (256, 80, 60)]), 128 + 64);
    }

    #[test]
    fn it_is_measured_with_pages_and_without() {
        let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
        let measured = Measured::now(&pool);
        assert!(measured.below <= 2 * MOST && !measured.points.is_empty());
        assert_eq!(pool.stats().in_flight, pool.stats().in_cache + pool.stats().in_ring, "it keeps no page");
        // Whoever has no pages has nothing to copy into.
        let none = PagePool::new(PoolConfig::new().limit(1), Heap::new()).unwrap();
        let _one = none.alloc().unwrap();
        assert_eq!(Measured::now(&none).below, 0);
    }
}
