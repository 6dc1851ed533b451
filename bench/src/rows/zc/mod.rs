//! `zc`: what it costs to be told when a buffer is free again.

mod acks;
mod ends;
mod small;
mod stack;
mod udp;
pub mod world;

use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};
use hdrhistogram::Histogram;
use onecopy::advanced::chain::{Chain, Fragment, Writer};
use onecopy::advanced::link::Sink;
use onecopy::advanced::notify::{Config, Context as Notify, Fate, Lane, Limits, Queue, Refused, Segment};
use onecopy::advanced::pool::provider::Heap;
use onecopy::advanced::pool::{Page, PagePool, PoolConfig};
use onecopy_linux_notif as linux;

use super::bytes;
use super::pinned::pinned;
use crate::row::{Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};
use crate::words::size_name;

/// The row.
pub const ROW: Row = Row {
    name: "zc",
    about: "sends from one registered buffer to a sink that frees at transmit (nobody touches the payload; copy copies it into \
            the segment): zc gives each send a segment and a posting of its own, zc-stacked shares both (17 sends or 64 KiB, what a \
            segment takes), zc-merged stacks by Linux 6.10's rules; notif: ns a send above sends that share segments and tell nobody (so \
            that of zc includes its segments, which only notifications keep apart); \
            p50, p99: from a send to its notification, reaped as it comes; stack: the same sends on our TCP, over a pair to a stack that \
            receives by reference, or (acks) to a link that only acknowledges; copy is from a hot page, and zc sends no two in one segment; \
            small: CPU time of sends with a handle as sockets make them, over a pair: all copied, all lent, or those copied that were \
            measured to be cheaper so; udp: the same sends as datagrams of our UDP to the sink, copied from a hot page or lent; \
            the lines are those of liburing's send-zerocopy",
    stated: &[],
    metrics: &[
        Metric { name: "notif", unit: "ns/send", larger: false },
        Metric { name: "send", unit: "ns/send", larger: false },
        Metric { name: "p50", unit: "ns", larger: false },
        Metric { name: "p99", unit: "ns", larger: false },
    ],
    share: 1.0,
    cases,
    workers: &[],
    plot: Plot::Bars,
};

const SIZES: [usize; 4] = [100, 1200, 4000, 8000];
/// What a segment takes: MAX_SKB_FRAGS (include/linux/skbuff.h) and GSO_LEGACY_MAX_SIZE (include/linux/netdevice.h).
const FRAGS: usize = 17;
const SEGMENT: usize = 65536;
/// Sends between two looks at the completions.
const LOOK: u64 = 64;
/// Sends of a round whose latency is taken, apart from the timed ones.
const SAMPLES: u64 = 20_000;

fn cases(scale: Scale) -> Vec<Case> {
    let sizes = SIZES.into_iter().filter(|size| scale != Scale::Smoke || *size == 1200);
    let on_stack = sizes.clone().flat_map(|size| [on_stack(size, true), on_stack(size, false)]);
    let small = SMALL.into_iter().filter(|size| scale != Scale::Smoke || *size == 1024);
    let datagrams = sizes.clone().map(as_datagrams);
    sizes.map(case).chain(on_stack).chain(datagrams).chain(small.map(on_account)).collect()
}

/// What zero copy must be worth against copying from a hot page: what it was on the source's machine at 8000 bytes, and no less than the
/// copy at 1200.
const WORTH: [(usize, f64); 3] = [(1200, 1.0), (4000, 1.25), (8000, 1.6)];

fn on_stack(size: usize, pair: bool) -> Case {
    let mut reach = vec![Reach::ratio("zc-stacked", "notif", 3.0, &["zc"])];
    if let Some((_, times)) = WORTH.iter().find(|(of, _)| *of == size) {
        reach.push(Reach::ratio("zc-stacked", "send", *times, &["copy"]));
    }
    Case {
        name: format!("stack/{size}{}", if pair { "" } else { "/acks" }),
        engines: vec!["copy", "zc", "zc-stacked"],
        baseline: "copy",
        reach,
        work: Work { warmup: 20_000, least: 50_000, most: 1 << 31, step: LOOK },
        open: Box::new(move |context: &Context, engine| {
            pinned(context, || stack::Stack::new(engine, size, pair))
        }),
    }
}

/// (No ratio is asked for: the link has no cost of its own.)
fn as_datagrams(size: usize) -> Case {
    Case {
        name: format!("udp/{size}"),
        engines: vec!["copy", "zc"],
        baseline: "copy",
        reach: vec![],
        work: Work { warmup: 20_000, least: 50_000, most: 1 << 31, step: LOOK },
        open: Box::new(move |context: &Context, engine| {
            pinned(context, || udp::Datagrams::new(engine, size))
        }),
    }
}

/// Sends around the size below which sockets copy them.
const SMALL: [usize; 6] = [64, 256, 1 << 10, 2 << 10, 4 << 10, 8 << 10];

fn on_account(size: usize) -> Case {
    Case {
        name: format!("small/{}", size_name(size as u64)),
        engines: vec!["copy", "lend", "auto"],
        baseline: "copy",
        reach: vec![Reach::ratio("auto", "send", 0.95, &["copy", "lend"])],
        work: Work { warmup: 20_000, least: 50_000, most: 1 << 31, step: LOOK },
        open: Box::new(move |context: &Context, engine| pinned(context, || small::Small::new(engine, size))),
    }
}

fn case(size: usize) -> Case {
    Case {
        name: size.to_string(),
        engines: vec!["copy", "zc", "zc-stacked", "zc-merged"],
        baseline: "zc",
        reach: vec![
            Reach::at_most("zc-stacked", "notif", 15.0),
            Reach::ratio("zc-stacked", "notif", 3.5, &["zc"]),
        ],
        work: Work { warmup: 20_000, least: 50_000, most: 1 << 31, step: LOOK },
        open: Box::new(move |context: &Context, engine| pinned(context, || Zc::new(engine, size))),
    }
}

struct Zc {
    size: usize,
    way: Way,
    buffer: Page,
    pool: PagePool,
}

/// How sends get on segments, and who hears of it.
enum Way {
    Copy,
    Lane { lane: Lane, queue: Queue, stacked: bool },
    Merged(linux::Context),
}

/// What a run of sends did.
#[derive(Default)]
struct Done {
    completed: u64,
}

impl Zc {
    fn new(engine: &str, size: usize) -> Result<Zc> {
        let way = match engine {
            "copy" => Way::Copy,
            "zc" | "zc-stacked" => {
                let (context, queue) = Notify::new();
                let limits = Limits { bytes: SEGMENT as u32, sends: FRAGS as u32, ..Limits::default() };
                let lane = context.lane(Config { capacity: 1023, limits })?;
                Way::Lane { lane, queue, stacked: engine == "zc-stacked" }
            }
            "zc-merged" => Way::Merged(linux::Context::new(1023)),
            other => bail!("there is no engine {other}"),
        };
        // Pages of 64 KiB, as an order-4 page pool has.
        let pool = PagePool::new(PoolConfig::new().order(4), Heap::new())?;
        let mut buffer = pool.alloc()?;
        bytes::fill(buffer.bytes_mut().ok_or_else(|| anyhow!("a fresh page is shared"))?, 7, 0);
        Ok(Zc { size, way, buffer, pool })
    }

    /// Sends `count` times and reaps as it goes; `sent` and `completed` are told each send's number.
    #[inline(always)]
    fn sends(
        &mut self,
        count: u64,
        look: u64,
        link: &mut impl Exit,
        mut sent: impl FnMut(u64),
        mut completed: impl FnMut(u64),
    ) -> Result<Done> {
        let Zc { size, way, buffer, pool } = self;
        let mut done = Done::default();
        match way {
            Way::Copy => {
                let mut segment = Segment::<Chain>::default();
                let writer = Writer::new(pool);
                for number in 0..count {
                    sent(number);
                    let bytes = &buffer.bytes().ok_or_else(|| anyhow!("the buffer has no bytes"))?[..*size];
                    if segment.payload().len() + *size > SEGMENT {
                        link.transmit(std::mem::take(&mut segment));
                    }
                    writer.append(segment.payload_mut(), bytes)?;
                }
                last(link, segment);
                return Ok(done);
            }
            Way::Lane { lane, queue, stacked } => {
                let mut segment = Segment::<Chain>::default();
                let clock = Instant::now();
                let mut now = 0;
                for number in 0..count {
                    sent(number);
                    while let Err(why) = lane.send(&mut segment, number, *size as u32, now) {
                        if why.wants_fresh_segment() {
                            link.transmit(std::mem::take(&mut segment));
                        } else {
                            ensure!(matches!(why, Refused::Full { .. }), "{why}");
                            link.transmit(std::mem::take(&mut segment));
                            queue.reap(|one| {
                                done.completed += 1;
                                completed(one.user_data);
                            });
                        }
                    }
                    segment.payload_mut().append(Fragment::new(buffer.clone(), 0, *size)?)?;
                    if !*stacked {
                        link.transmit(std::mem::take(&mut segment));
                    }
                    if number % look == look - 1 {
                        now = clock.elapsed().as_nanos() as u64;
                        queue.reap(|one| {
                            done.completed += 1;
                            completed(one.user_data);
                        });
                    }
                }
                last(link, segment);
                queue.reap(|one| {
                    done.completed += 1;
                    completed(one.user_data);
                });
            }
            Way::Merged(context) => {
                let mut segment = linux::Segment::<Chain>::default();
                let (mut frags, mut on_it) = (0, 0);
                for number in 0..count {
                    sent(number);
                    if frags == FRAGS || on_it + *size > SEGMENT {
                        link.transmit_linux(std::mem::take(&mut segment));
                        (frags, on_it) = (0, 0);
                    }
                    let notif = context.open(number, true)?;
                    notif.link(&mut segment)?;
                    segment.payload_mut().append(Fragment::new(buffer.clone(), 0, *size)?)?;
                    (frags, on_it) = (frags + 1, on_it + *size);
                    notif.finish(*size);
                    if number % look == look - 1 {
                        context.reap(|user_data, _| {
                            done.completed += 1;
                            completed(user_data);
                        });
                    }
                }
                if !segment.payload().is_empty() {
                    link.transmit_linux(segment);
                }
                context.reap(|user_data, _| {
                    done.completed += 1;
                    completed(user_data);
                });
            }
        }
        ensure!(done.completed == count, "{} of {count} sends completed", done.completed);
        Ok(done)
    }

    /// The same sends for every engine, as segments have room for them, and nobody is told.
    fn bare(&mut self, count: u64, link: &mut impl Exit) -> Result<()> {
        let mut segment = Segment::<Chain>::default();
        let (mut frags, mut on_it) = (0, 0);
        for _ in 0..count {
            if frags == FRAGS || on_it + self.size > SEGMENT {
                link.transmit(std::mem::take(&mut segment));
                (frags, on_it) = (0, 0);
            }
            segment.payload_mut().append(Fragment::new(self.buffer.clone(), 0, self.size)?)?;
            (frags, on_it) = (frags + 1, on_it + self.size);
        }
        last(link, segment);
        Ok(())
    }
}

/// Transmits what is left in the end.
fn last(link: &mut impl Exit, segment: Segment<Chain>) {
    if !segment.payload().is_empty() {
        link.transmit(segment);
    }
}

/// Where the segments of a round leave. The rival's are of a type of its own.
trait Exit {
    /// Takes a segment, and frees it as sent.
    fn transmit(&mut self, segment: Segment<Chain>);
    /// The same of the rival's.
    fn transmit_linux(&mut self, segment: linux::Segment<Chain>);
}

/// [`Sink`], for both.
#[derive(Default)]
struct Drain {
    ours: Sink,
    bytes: usize,
}

impl Exit for Drain {
    #[inline]
    fn transmit(&mut self, segment: Segment<Chain>) {
        self.ours.take(segment);
    }

    #[inline]
    fn transmit_linux(&mut self, segment: linux::Segment<Chain>) {
        self.bytes += segment.payload().len();
        segment.free(linux::Fate::Sent);
    }
}

/// A link that compares what it transmits with what was sent, and counts the sends on each segment.
struct Checking {
    size: usize,
    batches: Histogram<u64>,
    bytes: usize,
    wrong: Option<anyhow::Error>,
}

impl Checking {
    fn look(&mut self, payload: &Chain) {
        let all = payload.host().map(|host| host.to_vec());
        let right = all.map_err(anyhow::Error::from).and_then(|all| {
            self.bytes += all.len();
            all.chunks(self.size).try_for_each(|send| bytes::check(send, 7, 0))
        });
        self.wrong = self.wrong.take().or(right.err());
        self.batches.saturating_record((payload.len() / self.size) as u64);
    }
}

impl Exit for Checking {
    fn transmit(&mut self, segment: Segment<Chain>) {
        self.look(segment.payload());
        segment.free(Fate::Sent);
    }

    fn transmit_linux(&mut self, segment: linux::Segment<Chain>) {
        self.look(segment.payload());
        segment.free(linux::Fate::Sent);
    }
}

/// A histogram of up to a second in nanoseconds, or as many of anything. (One that sizes itself would have to be asked to.)
fn counter() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 1_000_000_000, 3)?)
}

/// A line as liburing's examples/send-zerocopy.c prints it.
fn line(sends: u64, size: usize, seconds: f64) -> String {
    let (bytes, per_second) = (sends * size as u64, |count: u64| (count as f64 / seconds) as u64);
    format!(
        "packets={sends} (MB={}), rps={} (MB/s={})",
        bytes >> 20,
        per_second(sends),
        per_second(bytes >> 20)
    )
}

impl Session for Zc {
    fn verify(&mut self) -> Result<()> {
        let size = self.size;
        let mut link = Checking { size, batches: counter()?, bytes: 0, wrong: None };
        let mut seen = vec![false; 1000];
        let done = self.sends(
            1000,
            10,
            &mut link,
            |_| {},
            |number| {
                assert!(
                    !std::mem::replace(&mut seen[number as usize], true),
                    "send {number} completed twice"
                );
            },
        )?;
        if let Some(error) = link.wrong {
            return Err(error);
        }
        ensure!(link.bytes == 1000 * size, "{} bytes left, not {}", link.bytes, 1000 * size);
        let told = !matches!(self.way, Way::Copy);
        ensure!(done.completed == if told { 1000 } else { 0 }, "{} completed", done.completed);
        Ok(())
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let mut sink = Drain::default();
        let told = !matches!(self.way, Way::Copy);
        // In turns within the round, so that a machine that changes its speed changes both.
        let (mut seconds, mut bare) = (0.0, 0.0);
        let part = (work / 8).next_multiple_of(LOOK);
        for _ in 0..8 {
            let start = Instant::now();
            self.sends(part, LOOK, &mut sink, |_| {}, |_| {})?;
            seconds += start.elapsed().as_secs_f64();
            if told {
                let start = Instant::now();
                self.bare(part, &mut sink)?;
                bare += start.elapsed().as_secs_f64();
            }
        }
        let count = (part * 8) as f64;
        let mut values = vec![("send", seconds / count * 1e9)];
        let mut settings = vec![("send-zerocopy".to_owned(), line(part * 8, self.size, seconds))];
        if told {
            values.push(("notif", (seconds - bare) / count * 1e9));
            let (latency, batches) = self.latency()?;
            values.push(("p50", latency.value_at_quantile(0.5) as f64));
            values.push(("p99", latency.value_at_quantile(0.99) as f64));
            settings.push(("sends a segment".to_owned(), spread(&batches)));
        }
        Ok(Sample { seconds: seconds + bare, values, settings })
    }
}

/// The histogram in words: how many of each size.
fn spread(batches: &Histogram<u64>) -> String {
    let sizes = batches
        .iter_recorded()
        .map(|step| format!("{}: {}", step.value_iterated_to(), step.count_at_value()));
    sizes.collect::<Vec<_>>().join(", ")
}

impl Zc {
    /// Nanoseconds from a send to its notification, reaped after each send, and how many sends each segment carried.
    fn latency(&mut self) -> Result<(Histogram<u64>, Histogram<u64>)> {
        struct Counting(Histogram<u64>, usize);
        impl Exit for Counting {
            fn transmit(&mut self, segment: Segment<Chain>) {
                self.0.saturating_record((segment.payload().len() / self.1) as u64);
                segment.free(Fate::Sent);
            }

            fn transmit_linux(&mut self, segment: linux::Segment<Chain>) {
                self.0.saturating_record((segment.payload().len() / self.1) as u64);
                segment.free(linux::Fate::Sent);
            }
        }
        let mut link = Counting(counter()?, self.size);
        let mut latency = counter()?;
        let start = Instant::now();
        let at = std::cell::RefCell::new(vec![0; SAMPLES as usize]);
        self.sends(
            SAMPLES,
            1,
            &mut link,
            |number| at.borrow_mut()[number as usize] = start.elapsed().as_nanos() as u64,
            |number| {
                let now = start.elapsed().as_nanos() as u64;
                latency.saturating_record(now - at.borrow()[number as usize]);
            },
        )?;
        Ok((latency, link.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_send_zerocopys() {
        assert_eq!(line(15_004_160, 1200, 10.2), "packets=15004160 (MB=17170), rps=1470996 (MB/s=1683)");
    }
}
