//! A floor: what one cache line takes to another CPU and back, with nothing around it.

use anyhow::Result;
use onecopy_sync::atomic::{AtomicU64, Ordering};

use crate::proc;
use crate::row::{Context, Sample, Session};

/// One line of its own, and the next one too: x86 fetches lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Two threads that bounce a number.
pub struct Bare {
    cpus: [usize; 2],
}

impl Bare {
    /// On the two CPUs of `context`.
    pub fn new(context: &Context) -> Bare {
        Bare { cpus: context.cpus }
    }

    /// Bounces `trips` times; returns seconds.
    fn bounce(&self, trips: u64) -> Result<f64> {
        let line = Line::default();
        // Odd numbers go there, even ones come back.
        let answer = |first: u64| {
            for turn in 0..trips {
                let expected = first + 2 * turn;
                // Acquire and Release pair with each other on the two sides.
                while line.0.load(Ordering::Acquire) != expected {}
                line.0.store(expected + 1, Ordering::Release);
            }
        };
        std::thread::scope(|scope| {
            let server = scope.spawn(|| proc::pin(self.cpus[1]).map(|()| answer(1)));
            let client = scope.spawn(|| {
                proc::pin(self.cpus[0])?;
                let start = proc::now();
                line.0.store(1, Ordering::Release);
                for trip in 1..=trips {
                    while line.0.load(Ordering::Acquire) != 2 * trip {}
                    if trip < trips {
                        line.0.store(2 * trip + 1, Ordering::Release);
                    }
                }
                Ok(proc::now() - start)
            });
            match (server.join(), client.join()) {
                (Ok(served), Ok(seconds)) => served.and(seconds),
                _ => anyhow::bail!("a thread of the floor's panicked"),
            }
        })
    }
}

impl Session for Bare {
    fn verify(&mut self) -> Result<()> {
        // Each side waits for the very number that the other one makes of its own.
        self.bounce(100).map(drop)
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let seconds = self.bounce(work)?;
        Ok(Sample { seconds, values: vec![("rtt", seconds / work as f64 * 1e6)], settings: vec![] })
    }
}
