//! Which stores a copy gets: the thresholds and `Auto`.
//!
//! Where non-temporal stores win depends on three things: how much memory the destination cycles through (does
//! it stay in a cache?), who reads it next (does he find it there?), and the length (is it worth a fence?).
//! glibc looks at the length alone. The figures behind this, from `onecopy tune` on a 2-core Sapphire Rapids VM
//! (2 MiB of L2, 105 MiB of L3 shared with others), GB/s of the writer, cached / non-temporal:
//!
//! | footprint | length | another core copies out | same core, at once | no CPU reads |
//! |---|---|---|---|---|
//! | 1 MiB | 64 KiB | 11.5 / 6.1 | 18.2 / 5.2 | 37.0 / 16.3 |
//! | 16 MiB | 256 KiB | 9.2 / 9.2 | 12.4 / 6.9 | 23.2 / 18.2 |
//! | 32 MiB | 256 KiB | 14.9 / 11.8 | 8.6 / 6.5 | 15.6 / 18.4 |
//! | 64 MiB | 64 KiB | 11.2 / 12.2 | 8.6 / 6.6 | 12.7 / 17.7 |
//! | 256 MiB | 4 KiB | 8.3 / 5.4 | 8.7 / 3.4 | 10.3 / 8.1 |
//! | 256 MiB | 8 KiB | 8.4 / 8.3 | 8.0 / 4.2 | 10.0 / 12.0 |
//! | 256 MiB | 64 KiB | 10.6 / 15.6 | 9.3 / 7.3 | 11.8 / 16.9 |
//! | 256 MiB | 1 MiB | 9.5 / 16.0 | 6.7 / 6.9 | 11.7 / 18.6 |
//!
//! The cached side is `rep movsb` from 16 KiB on, which spares most reads for ownership; with AVX-512 stores it is
//! a quarter slower in large footprints (1 MiB into 256 MiB: 9.8 GB/s).

use crate::policy::{Reader, Store};
use std::fmt;

/// Copies of this many bytes or fewer are always cached, whatever the policy says: they hold at most three whole lines,
/// and waiting for the fence costs more than the lines are worth.
pub const STREAM_MIN: usize = 256;

/// Footprints are told apart by powers of two: class 0 is everything below 32 KiB, the last 2 GiB and more.
pub(crate) const CLASSES: usize = 18;
/// log2 of the footprints of class 0 (16 KiB up to 32 KiB, and all below).
const FIRST_CLASS: u32 = 14;
/// "Never non-temporal."
pub(crate) const NEVER: u32 = u32::MAX;

/// The shortest copy, in bytes, that goes non-temporal under `Auto`: per reader and class of footprint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Thresholds {
    min_len: [[u32; CLASSES]; 4],
    /// The smallest of them: shorter copies need no look at the table, which would cost them 1.5 of their 10 ns.
    ///
    /// Invariant: kept by `set`, the only writer of `min_len`.
    least: u32,
    /// The smallest footprint that any length and reader has streamed, in bytes: smaller ones need no look either.
    ///
    /// Invariant: as of `least`.
    least_footprint: usize,
}

/// The class of a footprint.
#[inline(always)]
pub(crate) fn class(footprint: usize) -> usize {
    ((footprint | 1).ilog2().saturating_sub(FIRST_CLASS) as usize).min(CLASSES - 1)
}

/// The smallest footprint of a class, in bytes.
pub(crate) fn class_bytes(class: usize) -> usize {
    1 << (FIRST_CLASS as usize + class)
}

#[inline(always)]
fn row(reader: Reader) -> usize {
    match reader {
        Reader::SameCore => 0,
        Reader::OtherCore => 1,
        Reader::NoCpu => 2,
        Reader::Unknown => 3,
    }
}

impl Thresholds {
    /// Nothing goes non-temporal.
    pub(crate) fn never() -> Self {
        Self { min_len: [[NEVER; CLASSES]; 4], least: NEVER, least_footprint: usize::MAX }
    }

    /// Without a profile: glibc's threshold, compared with the footprint instead of the length. glibc knows
    /// the length only and must guess that a copy shorter than the cache stays in it.
    pub(crate) fn formula(caches: Caches) -> Self {
        let threshold = caches.glibc_threshold();
        let mut all = Self::never();
        for class in 0..CLASSES {
            if class_bytes(class) >= threshold {
                for reader in [Reader::SameCore, Reader::OtherCore, Reader::NoCpu, Reader::Unknown] {
                    all.set(reader, class, FORMULA_MIN_LEN);
                }
            } else if caches.l2 > 0 && class_bytes(class) >= 2 * caches.l2 {
                // No CPU will find it in the third level either, and what doesn't fit the second costs a read for
                // ownership per line. Only where the source doesn't fit as well: else cached stores still win.
                all.set(Reader::NoCpu, class, u32::try_from(2 * caches.l2).unwrap_or(NEVER));
            }
        }
        all
    }

    pub(crate) fn set(&mut self, reader: Reader, class: usize, min_len: u32) {
        self.min_len[row(reader)][class] = min_len;
        self.least = self.min_len.iter().flatten().copied().min().unwrap_or(NEVER);
        let streams = |class: &usize| self.min_len.iter().any(|row| row[*class] != NEVER);
        let first = (0..CLASSES).find(streams);
        // (Class 0 has all below its smallest, too.)
        self.least_footprint =
            first.map_or(usize::MAX, |class| if class == 0 { 0 } else { class_bytes(class) });
    }

    /// The shortest copy, in bytes, that any footprint and reader has streamed.
    pub(crate) fn least(&self) -> usize {
        self.least as usize
    }

    pub(crate) fn get(&self, reader: Reader, class: usize) -> u32 {
        self.min_len[row(reader)][class]
    }

    /// What `Auto` chooses.
    #[inline(always)]
    pub(crate) fn auto(&self, len: usize, footprint: usize, reader: Reader) -> Store {
        // A footprint smaller than the copy is a mistake or "not known": the copy itself is the least it can be.
        let footprint = footprint.max(len);
        if (len as u64) < u64::from(self.least) || footprint < self.least_footprint {
            return Store::Cached;
        }
        let min = self.min_len[row(reader)][class(footprint)];
        if len as u64 >= u64::from(min) && min != NEVER { Store::NonTemporal } else { Store::Cached }
    }
}

/// The shortest non-temporal copy of the formula, in bytes. The fence waits until the lines have left the core, some
/// 240 ns on Sapphire Rapids however few they are: at 2 KiB that eats the gain, at 4 KiB no more.
const FORMULA_MIN_LEN: u32 = 4096;

/// Data cache sizes in bytes, as the CPU or the kernel reports them; 0 where not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caches {
    /// First level.
    pub l1: usize,
    /// Second level.
    pub l2: usize,
    /// Third level, whole.
    pub l3: usize,
    /// Threads that share the third level.
    pub l3_threads: usize,
    /// AMD: the third level belongs to one core complex, and any of its threads may fill all of it.
    pub per_complex: bool,
    /// glibc's divisor of the shared cache for this CPU; 0 means 4.
    pub divisor: usize,
}

impl fmt::Display for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L1 {} KiB, L2 {} KiB, L3 {} KiB", self.l1 >> 10, self.l2 >> 10, self.l3 >> 10)
    }
}

impl Caches {
    /// glibc's non-temporal threshold (sysdeps/x86/dl-cacheinfo.h, `dl_init_cacheinfo`): the shared cache divided by
    /// what suits the CPU, at least 3/4 of a thread's part of it; 64 MiB where the result shows that detection failed.
    pub fn glibc_threshold(&self) -> usize {
        const FAILED_BELOW: usize = 0x4040;
        const FALLBACK: usize = 64 << 20;
        let (shared, per_thread) = if self.l3 == 0 {
            (self.l2, self.l2)
        } else if self.per_complex {
            (self.l3, self.l3)
        } else {
            // Since Skylake the third level doesn't hold what the second holds: they add up.
            (self.l3 + self.l2, self.l3 / self.l3_threads.max(1) + self.l2)
        };
        let divisor = if self.divisor == 0 { 4 } else { self.divisor };
        let threshold = (shared / divisor).max(per_thread / 4 * 3);
        if threshold < FAILED_BELOW { FALLBACK } else { threshold }
    }

    /// The smallest footprint, in bytes, that is worth learning about: one that the second level doesn't hold. What the
    /// CPU says of it is believed within what there is: 256 KiB (Skylake) to 4 MiB (a cluster of Gracemont).
    pub(crate) fn fits_no_more(&self) -> usize {
        if self.l2 == 0 { 1 << 20 } else { self.l2.clamp(256 << 10, 4 << 20) }
    }

    /// Linux's `/sys/devices/system/cpu/cpu0/cache`, for CPUs that have no instruction to ask.
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    pub(crate) fn from_sysfs() -> Self {
        let mut caches = Self::default();
        for index in 0..8 {
            let read = |name: &str| {
                std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}"))
                    .map(|text| text.trim().to_owned())
            };
            let (Ok(level), Ok(kind), Ok(size)) = (read("level"), read("type"), read("size")) else { break };
            let Some(size) = size.strip_suffix('K').and_then(|k| k.parse::<usize>().ok()).map(|k| k << 10)
            else {
                continue;
            };
            match (level.as_str(), kind.as_str()) {
                ("1", "Data" | "Unified") => caches.l1 = size,
                ("2", "Data" | "Unified") => caches.l2 = size,
                ("3", "Data" | "Unified") => caches.l3 = size,
                _ => {}
            }
        }
        caches.l3_threads = std::thread::available_parallelism().map_or(1, usize::from);
        caches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two() {
        assert_eq!(class(0), 0);
        assert_eq!(class(32 << 10), 1);
        assert_eq!(class((64 << 10) - 1), 1);
        assert_eq!(class(usize::MAX), CLASSES - 1);
        (0..CLASSES).for_each(|each| assert_eq!(class(class_bytes(each)), each));
    }

    /// Against `ld.so --list-tunables` on a Sapphire Rapids VM of 2 threads: x86_shared_cache_size is 0x6b00000;
    /// and against Zen 2's known 3/4 of a core complex.
    #[test]
    fn formula_gives_glibcs_threshold() {
        let sapphire_rapids = Caches {
            l1: 48 << 10,
            l2: 2 << 20,
            l3: 105 << 20,
            l3_threads: 2,
            per_complex: false,
            divisor: 2,
        };
        assert_eq!(sapphire_rapids.glibc_threshold(), 0x6b0_0000 / 2);
        // The same with the rule before divisors (glibc 2.36 prints x86_non_temporal_threshold 0x28e0000).
        assert_eq!(Caches { divisor: 1000, ..sapphire_rapids }.glibc_threshold(), 0x28e_0000);
        let zen2 = Caches {
            l1: 32 << 10,
            l2: 512 << 10,
            l3: 16 << 20,
            l3_threads: 8,
            per_complex: true,
            divisor: 4,
        };
        assert_eq!(zen2.glibc_threshold(), 12 << 20);
        assert_eq!(Caches::default().glibc_threshold(), 64 << 20);
    }

    #[test]
    fn auto_looks_at_the_footprint_not_only_at_the_length() {
        let caches = Caches { l2: 1 << 20, l3: 8 << 20, l3_threads: 4, divisor: 2, ..Caches::default() };
        let thresholds = Thresholds::formula(caches);
        let auto = |len, footprint| thresholds.auto(len, footprint, Reader::Unknown);
        assert_eq!(auto(64 << 10, 256 << 20), Store::NonTemporal);
        assert_eq!(auto(64 << 10, 256 << 10), Store::Cached);
        assert_eq!(auto(64 << 10, 0), Store::Cached);
        assert_eq!(
            auto(64 << 20, 0),
            Store::NonTemporal,
            "a length beyond the cache is a footprint beyond it"
        );
        assert_eq!(auto(512, 256 << 20), Store::Cached, "short copies aren't worth a fence");
        assert_eq!(thresholds.get(Reader::NoCpu, CLASSES - 1), FORMULA_MIN_LEN);
        assert_eq!(thresholds.auto(2 << 20, 0, Reader::NoCpu), Store::NonTemporal, "twice the second level");
        assert_eq!(thresholds.auto(2 << 20, 0, Reader::OtherCore), Store::Cached);
    }

    /// The two short cuts say what the table says.
    #[test]
    fn what_needs_no_look_at_the_table_is_as_it_says() {
        let readers = [Reader::SameCore, Reader::OtherCore, Reader::NoCpu, Reader::Unknown];
        for streamed in [None, Some(0), Some(1), Some(7), Some(CLASSES - 1)] {
            let mut thresholds = Thresholds::never();
            if let Some(class) = streamed {
                thresholds.set(Reader::NoCpu, class, 8192);
                thresholds.set(Reader::OtherCore, CLASSES - 1, 4096);
            }
            for exponent in 0..36 {
                for (footprint, len) in [4095, 4096, 8192, 64 << 10].map(|len| (1 << exponent, len)) {
                    for footprint in [footprint - 1, footprint] {
                        for reader in readers {
                            let min = thresholds.get(reader, class(footprint.max(len)));
                            let streams = min != NEVER && len >= min as usize;
                            let store = thresholds.auto(len, footprint, reader);
                            assert_eq!(store == Store::NonTemporal, streams, "{len} {footprint} {reader:?}");
                        }
                    }
                }
            }
        }
    }
}
