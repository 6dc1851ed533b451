//! How much was received in which time, and the machine's CPU time for it.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::plan::Plan;
use crate::proc;

/// One look.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: f64,
    bytes: u64,
    busy: f64,
    own: f64,
}

impl Look {
    fn now(at: f64, bytes: u64) -> Result<Look> {
        Ok(Look { at, bytes, busy: busy_seconds()?, own: proc::cpu_seconds() })
    }
}

/// Looks twice: after the warm-up, and at the end. Its clock starts when it is made.
#[derive(Debug)]
pub struct Meter {
    warm: f64,
    end: f64,
    first: Option<Look>,
    second: Option<Look>,
}

impl Meter {
    /// For this plan; all its connections are there.
    pub fn start(plan: &Plan) -> Meter {
        let warm = proc::now() + plan.warm;
        Meter { warm, end: warm + plan.seconds, first: None, second: None }
    }

    /// When it looks next; `None` when it has seen all.
    pub fn next(&self) -> Option<f64> {
        match (&self.first, &self.second) {
            (None, _) => Some(self.warm),
            (_, None) => Some(self.end),
            _ => None,
        }
    }

    /// So many bytes have come so far.
    #[inline]
    pub fn tick(&mut self, bytes: u64) -> Result<()> {
        let Some(next) = self.next() else { return Ok(()) };
        let at = proc::now();
        if at >= next {
            let look = Some(Look::now(at, bytes)?);
            if self.first.is_none() { self.first = look } else { self.second = look }
        }
        Ok(())
    }

    /// What was seen.
    pub fn figures(&self) -> Result<Value> {
        let (first, second) =
            self.first.zip(self.second).context("the stream ended before its time was over")?;
        Ok(json!({
            "bytes": second.bytes - first.bytes,
            "seconds": second.at - first.at,
            "cpu": second.busy - first.busy,
            // This process', all its threads.
            "own": second.own - first.own,
        }))
    }
}

/// CPU seconds that the whole machine has spent on anything (proc_stat(5)): by ticks, so that a short time is told badly.
fn busy_seconds() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    busy_ticks(line)
        .map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
        .with_context(|| format!("/proc/stat begins with {line}"))
}

/// user, nice, system, irq and softirq of `cpu user nice system idle iowait irq softirq steal ...`.
fn busy_ticks(line: &str) -> Option<u64> {
    let fields: Vec<u64> = line.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    [0, 1, 2, 5, 6].iter().map(|&field| fields.get(field)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_stolen_and_a_guests_time_are_not_the_machines_work() {
        assert_eq!(busy_ticks("cpu  1 20 300 4000 50000 600000 7000000 80000000 9 9"), Some(7_600_321));
        assert_eq!(busy_ticks("cpu  1 20 300 4000"), None);
        assert_eq!(busy_ticks(""), None);
    }

    #[test]
    fn what_came_before_and_after_does_not_count() {
        let plan = Plan { warm: 0.0, seconds: 0.0, ..Plan::default() };
        let mut meter = Meter::start(&plan);
        assert!(meter.figures().is_err());
        meter.tick(1000).unwrap();
        assert!(meter.next().is_some() && meter.figures().is_err());
        meter.tick(1700).unwrap();
        meter.tick(9999).unwrap();
        assert_eq!((meter.next(), meter.figures().unwrap()["bytes"].as_u64()), (None, Some(700)));
    }
}
