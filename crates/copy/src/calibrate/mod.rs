//! Measuring this machine: what `onecopy tune` does.
//!
//! Three things are measured, by the safe API alone: the latency steps of memory (CPUID's cache sizes are the
//! hypervisor's word in a virtual machine), the fastest kernels, and for each reader and footprint the length
//! from which non-temporal stores win. Rivals take turns and each keeps its best round: what disturbs a measurement
//! can only make it slower.

mod crossover;
mod kernels;
mod latency;
mod rules;
mod walk;

pub use crossover::Point;
pub use kernels::{KernelPoint, Place};
pub use walk::Walk;

use crate::profile::{Profile, VERSION, machine};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The largest footprint in bytes, at least 1 MiB; as much memory is used.
    pub max_footprint: usize,
    /// The time of one timed stretch. A whole run takes some thousands of them.
    pub stretch: Duration,
    /// Rounds of each rival, as far as the time allows.
    pub rounds: usize,
    /// The time for all of it; nothing new is begun after that. What has not been measured by then is missing.
    pub limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_footprint: 256 << 20,
            stretch: Duration::from_millis(2),
            rounds: 4,
            limit: Duration::from_secs(12),
        }
    }
}

/// Where a measurement has got to.
#[derive(Clone, Debug)]
pub struct Progress {
    /// What is being measured.
    pub what: String,
    /// Steps done,
    pub done: usize,
    /// of this many.
    pub total: usize,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The profile that follows from it.
    pub profile: Profile,
    /// Each kernel on its own.
    pub kernels: Vec<KernelPoint>,
    /// Cached against non-temporal, per reader, footprint and length.
    pub points: Vec<Point>,
    /// The CPUs of writer and other-core reader; the same one when this process may use only one.
    pub cpus: (usize, usize),
}

/// Measures this machine, which takes [`Options::limit`] at most, and wants to be alone on it. `progress` is called before
/// each step.
///
/// # Errors
///
/// When the process may not choose its own CPUs.
pub fn measure(options: &Options, progress: &mut dyn FnMut(&Progress)) -> std::io::Result<Measured> {
    let allowed = sched_getaffinity(None)?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let first = cpus.next().unwrap_or(0);
    // The last one: with simultaneous threads, the next number may be a sibling, which is no other core.
    let cpus = (first, cpus.next_back().unwrap_or(first));
    // On a thread of its own, so that the pinning doesn't stick to the caller.
    let measured = std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let worker = scope.spawn(move || {
            pin(cpus.0)?;
            Ok(all(options, cpus, &mut |step| {
                let _ = sender.send(step);
            }))
        });
        receiver.iter().for_each(|step| progress(&step));
        worker.join()
    });
    measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn all(options: &Options, cpus: (usize, usize), progress: &mut dyn FnMut(Progress)) -> Measured {
    let deadline = Instant::now() + options.limit;
    let plan = crossover::plan(options, cpus);
    let total = latency::SIZES.len() + kernels::places().len() + plan.len() * options.rounds;
    let mut done = 0;
    let mut step = |what: String| {
        progress(Progress { what, done, total });
        done += 1;
    };
    let steps = latency::measure(options, &mut step);
    // Destinations begin at lines, as rings do. With a line at either end that is shared with a neighbour, a
    // non-temporal copy of 4 KiB takes a quarter longer; from 16 KiB on it makes no difference.
    let mut pool = vec![1u8; options.max_footprint.max(1 << 20) + 64];
    let start = pool.as_ptr().align_offset(64);
    let pool = &mut pool[start..];
    let points = kernels::measure(options, pool, &mut step);
    let names = kernels::choose(&points);
    let crossings = crossover::measure(options, cpus, &plan, &names, pool, deadline, &mut step);
    let measured = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Measured {
        profile: Profile {
            version: VERSION,
            machine: machine(),
            measured,
            kernels: names,
            steps,
            crossovers: rules::decide(&crossings),
        },
        kernels: points,
        points: crossings,
        cpus,
    }
}

fn pin(cpu: usize) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Seconds per call of `work`, which is called until `stretch` is over.
fn time_calls(stretch: Duration, mut work: impl FnMut()) -> f64 {
    let mut batch = 1u32;
    let mut calls = 0u32;
    let start = Instant::now();
    loop {
        (0..batch).for_each(|_| work());
        calls += batch;
        let elapsed = start.elapsed();
        if elapsed >= stretch {
            return elapsed.as_secs_f64() / f64::from(calls);
        }
        // Look at the clock some tens of times, not per call: it costs as much as a short copy.
        if elapsed < stretch / 16 {
            batch = batch.saturating_mul(2);
        }
    }
}
