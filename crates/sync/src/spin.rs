//! When to spin, and for how long.
//!
//! Spinning saves the 3-5 us of a sleep and a wake-up when the peer answers soon, and burns a CPU that the
//! peer may need when it does not. So a wait spins only while the machine has a CPU to spare, and only as
//! long as that has lately paid.

use crate::atomic::spin_loop;
use std::time::{Duration, Instant};

/// Longest spin, in nanoseconds: a sleep and a wake-up cost about 5 us on each side, and past a few times
/// that the latency saved is small beside the wait itself.
const LONGEST: u16 = 50_000;
/// A wait with a sleep in it may be so many times as long and still have been short without: on a virtual machine
/// whose idle CPUs the host takes away, a wake-up takes up to 50 us.
const WAKING: u128 = 4;
/// Where a fresh socket begins.
const FIRST: u16 = 20_000;
/// Shortest spin: nothing beside the wait that follows.
const SHORTEST: u16 = 1_000;
/// So many spins in vain, one after the other, and the next waits do without.
const IN_VAIN: u16 = 4;
/// Waits without a spin after that, at first and at most.
const FIRST_PAUSE: u16 = 64;
const LONGEST_PAUSE: u16 = 4096;

/// How a blocking call waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Spin while another CPU is idle and as long as it has lately paid, then sleep.
    #[default]
    Adaptive,
    /// Sleep at once.
    Block,
    /// Spin until there is something, with 100% of a CPU.
    Spin,
}

/// What one direction of a socket has learnt about its waits.
#[derive(Clone, Copy, Debug)]
pub struct Adaptive {
    /// Nanoseconds the next wait may spin.
    budget: u16,
    /// Spins in vain since the last one that paid.
    in_vain: u16,
    /// Waits that still do without a spin.
    paused: u16,
    /// Waits that the next pause lasts.
    pause: u16,
}

/// An idle socket has two of them: all of it is small.
const _: () = assert!(size_of::<Adaptive>() == 8);

impl Default for Adaptive {
    fn default() -> Self {
        Adaptive { budget: FIRST, in_vain: 0, paused: 0, pause: FIRST_PAUSE }
    }
}

impl Adaptive {
    /// Nanoseconds that the wait which begins now may spin; 0: sleep at once.
    pub fn budget(&mut self) -> u32 {
        if self.paused > 0 {
            self.paused -= 1;
            return 0;
        }
        if gate::is_open() { self.budget.into() } else { 0 }
    }

    /// A spin met what it waited for after `took`.
    pub fn paid(&mut self, took: Duration) {
        self.in_vain = 0;
        self.pause = FIRST_PAUSE;
        self.aim(took);
    }

    /// A spin of the whole budget was in vain. Where the peer can only run once this side sleeps (both on one
    /// CPU), every spin is, however short the wait: so it takes a few to give up, and a pause to try again.
    pub fn in_vain(&mut self) {
        self.in_vain += 1;
        if self.in_vain == IN_VAIN {
            self.in_vain = 0;
            self.paused = self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// A wait with a sleep in it is over after `took` in all.
    pub fn slept(&mut self, took: Duration) {
        if took.as_nanos() <= u128::from(LONGEST) {
            self.aim(took);
        } else if took.as_nanos() <= u128::from(LONGEST) * WAKING {
            // Most of it may be the waking itself, of this side and of the peer: worth a try.
            self.budget = LONGEST;
        } else {
            self.budget = (self.budget / 2).max(SHORTEST);
        }
    }

    /// A wait of this length should be met by the next spin: aims at four times, moving half way. It aims at no less than where a fresh socket begins, however short
    /// the wait was: an interrupt on either side takes some microseconds, and a sleep for it costs both more than a spin that waits it out.
    fn aim(&mut self, took: Duration) {
        let took = u16::try_from(took.as_nanos()).unwrap_or(u16::MAX);
        let aim = took.saturating_mul(4).clamp(FIRST, LONGEST);
        self.budget = if aim > self.budget { aim } else { self.budget / 2 + aim / 2 };
    }
}

/// Spins until `ready` says true or `budget` nanoseconds have gone. Returns how long that took; if it never
/// became true, when it began.
///
/// # Errors
///
/// The beginning, when `budget` did not suffice.
#[inline]
pub fn until(budget: u32, mut ready: impl FnMut() -> bool) -> Result<Duration, Instant> {
    // The first rounds look at the line as fast as it can come: `pause` costs 40-140 cycles on x86, and reading
    // the clock 20-40 ns.
    for _ in 0..32 {
        if ready() {
            return Ok(Duration::ZERO);
        }
        spin_loop();
    }
    let start = Instant::now();
    loop {
        for _ in 0..16 {
            if ready() {
                return Ok(start.elapsed());
            }
            spin_loop();
        }
        if start.elapsed().as_nanos() >= u128::from(budget) {
            return if ready() { Ok(start.elapsed()) } else { Err(start) };
        }
    }
}

/// Whether the machine has a CPU to spare, asked at most once in `gate::FRESH_MS`.
mod gate {
    use crate::atomic::{AtomicU64, Ordering::Relaxed};
    use crate::clock::coarse_ms;
    use onecopy_sys::load;
    use std::sync::OnceLock;

    /// How long an answer holds, in milliseconds.
    const FRESH_MS: u64 = 4;
    /// So many answers in a row say that all CPUs are wanted before it is believed: a task that runs for some
    /// microseconds now and then is no reason to sleep for milliseconds.
    const BUSY: u64 = 2;

    struct Gate {
        cpus: usize,
        asked_ms: AtomicU64,
        /// Answers in a row that said so.
        busy: AtomicU64,
    }

    pub(super) fn is_open() -> bool {
        static GATE: OnceLock<Gate> = OnceLock::new();
        let gate = GATE.get_or_init(|| Gate {
            cpus: load::cpus_online(),
            asked_ms: Default::default(),
            busy: Default::default(),
        });
        if gate.cpus < 2 {
            return false;
        }
        // Both relaxed: the answer is a guess either way, and a torn pair only makes it an older guess.
        let now = coarse_ms();
        if now.wrapping_sub(gate.asked_ms.load(Relaxed)) >= FRESH_MS {
            gate.asked_ms.store(now, Relaxed);
            // The caller runs and its peer may: beyond that, somebody waits for a CPU that a spin would hold.
            let busy = load::running_tasks().is_some_and(|running| running > gate.cpus);
            gate.busy.store(if busy { gate.busy.load(Relaxed) + 1 } else { 0 }, Relaxed);
        }
        gate.busy.load(Relaxed) < BUSY
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn short_waits_keep_the_spin_and_long_ones_end_it() {
        let mut adaptive = Adaptive::default();
        for _ in 0..20 {
            adaptive.paid(Duration::from_micros(1));
        }
        assert_eq!(adaptive.budget, FIRST, "an interrupt is waited out");
        adaptive.slept(Duration::from_micros(30));
        for _ in 0..20 {
            adaptive.paid(Duration::from_micros(1));
        }
        assert!(adaptive.budget < FIRST + 10, "{}", adaptive.budget);
        for _ in 0..20 {
            adaptive.slept(Duration::from_millis(10));
        }
        assert_eq!(adaptive.budget, SHORTEST);
        adaptive.slept(Duration::from_micros(10));
        assert!(adaptive.budget > 10_000, "one short wait suffices to spin again");
    }

    #[test]
    fn spins_in_vain_pause_and_are_tried_again() {
        let mut adaptive = Adaptive::default();
        let mut spins = 0;
        for _ in 0..1000 {
            // The gate may be closed while other tests run.
            if adaptive.paused == 0 {
                spins += 1;
                adaptive.in_vain();
            } else {
                adaptive.budget();
            }
            adaptive.slept(Duration::from_micros(8));
        }
        // Pauses of 64, 128, 256 and 512 waits, and a fifth one that the thousand ends in.
        assert!((IN_VAIN..=IN_VAIN * 5).contains(&spins), "{spins}");
    }

    #[test]
    fn a_spin_ends_by_itself() {
        assert!(until(10_000, || false).is_err());
        assert!(until(10_000, || true).is_ok());
    }
}
