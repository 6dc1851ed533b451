//! From how many bytes on it is worth to be told, on this machine.

use super::lane::Config;
use super::outcome::Fate;
use super::segments::SegmentQueue;
use super::zerocopy::{Account, Allowance, Sent, Small, Tell, Zerocopy};
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
const ROUNDS: u32 = 15;
/// From here on no other round begins: on a machine that is busy there are fewer.
const PATIENCE: Duration = Duration::from_millis(20);

/// What was measured for sends with a handle, and for those with a notice.
static HERE: [OnceLock<Measured>; 2] = [OnceLock::new(), OnceLock::new()];

fn here(tell: Tell) -> &'static OnceLock<Measured> {
    match tell {
        Tell::Handle => &HERE[0],
        Tell::Notice => &HERE[1],
    }
}

/// What a copy of so many bytes costs beside a reference and being told, by all of the way that both take through a socket's account: the send
/// is begun and ended, its bytes wait in a queue, are handed down, acknowledged, and the program hears that its pages are free. (What TCP
/// does beside that, it does for either.) A copy is told of, too: by a handle that is over at once, or by a notice as any other. So each
/// kind of word has a limit of its own.
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
    /// What this process has measured for sends that are told of so: at the first call for these, with pages of `pages`, in some milliseconds.
    pub fn here<A: Pages + ?Sized>(pages: &A, tell: Tell) -> &'static Measured {
        here(tell).get_or_init(|| Measured::now(pages, tell))
    }

    /// The same, if it has been measured.
    pub fn known(tell: Tell) -> Option<&'static Measured> {
        here(tell).get()
    }

    /// Measures it. Where there is no page, what is not known costs nothing to lend.
    pub fn now<A: Pages + ?Sized>(pages: &A, tell: Tell) -> Measured {
        // All send from the same pages, so that a small pool has some left to copy into.
        let buffer: Vec<_> = (0..MOST.div_ceil(pages.page_len()))
            .map_while(|_| written(pages, MOST.min(pages.page_len())))
            .collect();
        let road = |size, copies| Road::new(pages, &buffer, size, (copies, tell));
        let sizes =
            std::iter::successors(Some(LEAST), |size| Some(size * 2)).take_while(|size| *size <= MOST);
        let mut roads: Vec<_> =
            sizes.map_while(|size| Some((road(size, true)?, road(size, false)?))).collect();
        let mut points: Vec<_> = roads.iter().map(|(of, _)| (of.size, u64::MAX, u64::MAX)).collect();
        let began = Instant::now();
        // In turns, so that what disturbs one way or size disturbs the others.
        for round in 0..ROUNDS {
            if round > 0 && began.elapsed() > PATIENCE {
                break;
            }
            for ((copying, lending), (_, copy, lend)) in roads.iter_mut().zip(&mut points) {
                let (Some(one), Some(other)) = (copying.time(), lending.time()) else { break };
                (*copy, *lend) = (one.min(*copy), other.min(*lend));
            }
        }
        points.retain(|(_, copy, _)| *copy < u64::MAX);
        let below = below(&points);
        Measured { below, points }
    }
}

/// Where to begin to lend, so that sends of all sizes that were looked at cost least together: no single figure that was disturbed decides.
/// Between two sizes it is where the lines cross. What costs the same within 3 % is lent: no program's bytes are as hot as those here.
fn below(points: &[(u32, u64, u64)]) -> u32 {
    let points: Vec<_> = points.iter().map(|(size, copy, lend)| (*size, copy + copy / 32, *lend)).collect();
    // What is saved by copying all up to some size, and the first of the sizes where that is most.
    let (mut saved, mut most, mut first_lent) = (0, 0, 0);
    for (index, (_, copy, lend)) in points.iter().enumerate() {
        saved += *lend as i64 - *copy as i64;
        if saved > most {
            (most, first_lent) = (saved, index + 1);
        }
    }
    let Some((small, copy, lend)) = first_lent.checked_sub(1).map(|last_copied| points[last_copied]) else {
        return 0;
    };
    let Some((large, copy_of_more, lend_of_more)) = points.get(first_lent).copied() else { return small * 2 };
    // How far they are apart at either end.
    let (lost, won) = (lend - copy, copy_of_more - lend_of_more);
    let part = u64::from(large - small) * lost / (lost + won).max(1);
    small + part as u32
}

/// Sends of one size by one way, as a socket makes them.
struct Road<'p, A: ?Sized> {
    account: Account,
    socket: Zerocopy,
    writer: Writer<'p, A>,
    queue: SegmentQueue,
    /// What the program sends from.
    buffer: Vec<Page>,
    size: u32,
    copies: bool,
    tell: Tell,
    waiting: Vec<Sent>,
}

impl<'p, A: Pages + ?Sized> Road<'p, A> {
    /// For sends of `size` bytes out of `buffer`, all of them copied, or all lent, and how the program hears of them.
    fn new(pages: &'p A, buffer: &[Page], size: u32, (copies, tell): (bool, Tell)) -> Option<Road<'p, A>> {
        let small = Small::Below(if copies { u32::MAX } else { 0 });
        let account = Account::new(Allowance { pinned: None, small, ..Allowance::default() });
        Some(Road {
            socket: account.socket(Config { capacity: SENDS, ..Config::default() }).ok()?,
            account,
            writer: Writer::new(pages),
            queue: SegmentQueue::new(),
            buffer: buffer.get(..size.div_ceil(pages.page_len()) as usize)?.to_vec(),
            size,
            copies,
            tell,
            waiting: Vec::new(),
        })
    }

    /// Nanoseconds of a send, from the program's chain to the word that the pages are free.
    fn time(&mut self) -> Option<u64> {
        let start = Instant::now();
        (0..SENDS).try_for_each(|_| self.send())?;
        self.leave()?;
        self.account.collect();
        for sent in self.waiting.drain(..) {
            black_box(sent.try_wait().ok()?);
        }
        let mut told = 0;
        while self.tell == Tell::Notice && told < SENDS {
            told += black_box(self.socket.notice()?).sends();
        }
        let all = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Some(all / u64::from(SENDS))
    }

    fn send(&mut self) -> Option<()> {
        let mut chain = Chain::new();
        for page in &self.buffer {
            let len = self.size as usize - chain.len();
            chain.append(Fragment::new(page.clone(), 0, len.min(page.len())).ok()?).ok()?;
        }
        let mut begun = self.socket.begin_uncopied(chain, self.tell, &self.writer, 0).ok()?;
        if begun.is_copied() != self.copies {
            return None;
        }
        if self.copies {
            let host = begun.data.payload().host().ok()?;
            host.slices().try_for_each(|slice| self.queue.write(&self.writer, slice)).ok()?;
            begun.data.advance(self.size as usize, Fate::Sent).ok()?;
        } else {
            self.queue.push(std::mem::take(&mut begun.data));
        }
        self.waiting.extend(self.socket.end(begun).0);
        Some(())
    }

    /// All of it is handed down, and acknowledged.
    fn leave(&mut self) -> Option<()> {
        let queue = &mut self.queue;
        let mut at = 0;
        while at < queue.len() {
            let part = queue.range(at, (queue.len() - at).min(64 << 10) as usize).ok()?;
            at += part.payload().len() as u64;
            part.free(Fate::Sent);
        }
        queue.advance(queue.len(), Fate::Sent).ok()
    }
}

/// A page as a program sends it, whose first `len` bytes it has written: what nobody has written may lie nowhere yet. (All the rest of it
/// may be a gigabyte.)
fn written<A: Pages + ?Sized>(pages: &A, len: u32) -> Option<Page> {
    let mut page = pages.alloc().ok()?;
    page.bytes_mut()?.get_mut(..len as usize)?.fill(1);
    Some(page)
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
        assert_eq!(below(&[(1024, 30, 50), (2048, 69, 51)]), 1536);
        assert_eq!(below(&[(64, 59, 60), (128, 60, 60)]), 0, "what costs the same is lent");
        // One that was disturbed does not decide: not by being dear to copy, nor by being dear to lend.
        assert_eq!(below(&[(64, 70, 60), (128, 30, 50), (256, 69, 51)]), 128 + 64);
        assert_eq!(below(&[(64, 80, 60), (128, 80, 60), (256, 80, 90), (512, 90, 60)]), 0);
    }

    #[test]
    fn what_is_known_of_one_kind_of_word_says_nothing_of_the_other() {
        let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
        let (handle, notice) = (Measured::here(&pool, Tell::Handle), Measured::here(&pool, Tell::Notice));
        assert!(!std::ptr::eq(handle, notice));
        assert!(std::ptr::eq(Measured::known(Tell::Handle).unwrap(), handle));
        assert!(std::ptr::eq(Measured::known(Tell::Notice).unwrap(), notice));
    }

    #[test]
    fn it_is_measured_with_pages_and_without() {
        let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
        for tell in [Tell::Handle, Tell::Notice] {
            let measured = Measured::now(&pool, tell);
            assert!(measured.below <= 2 * MOST && measured.points.len() == 10, "{tell:?}: {measured:?}");
        }
        assert_eq!(pool.stats().in_flight, pool.stats().in_cache + pool.stats().in_ring, "it keeps no page");
        // Large pages are not written to their ends, which takes longer than all of the measuring.
        let large = PagePool::new(PoolConfig::new().order(12).limit(6), Heap::new()).unwrap();
        let all = || (0..6).map(|_| large.alloc().unwrap()).collect::<Vec<_>>();
        all().iter_mut().for_each(|page| *page.bytes_mut().unwrap().last_mut().unwrap() = 9);
        assert!(!Measured::now(&large, Tell::Handle).points.is_empty());
        assert!(all().iter_mut().all(|page| page.bytes_mut().unwrap().last() == Some(&9)));
        // Whoever has no pages has nothing to copy into.
        let none = PagePool::new(PoolConfig::new().limit(1), Heap::new()).unwrap();
        let _one = none.alloc().unwrap();
        assert_eq!(Measured::now(&none, Tell::Handle).below, 0);
    }
}
