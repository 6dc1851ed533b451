//! What was really done.

use crate::way::{Costs, Way};
use std::fmt;

/// The path that bytes took. All counts are since the memory was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The device's name, as the driver has it.
    pub device: String,
    /// The CUDA version that the driver supports: major, minor.
    pub driver: (u32, u32),
    /// Bytes that were submitted and that each way took, in the order of [`Way::ALL`]. What had to be done again is in `redone`.
    pub bytes: [u64; 4],
    /// Of these, bytes from pages that are not pinned: the driver stages them by the CPU.
    pub pageable: u64,
    /// Bytes that were written at once ([`onecopy_pool::Device::write_at`]) and read.
    pub direct: u64,
    /// Batches.
    pub batches: u64,
    /// Pieces in them, after those that lie one behind the other were joined.
    pub pieces: u64,
    /// Copies that the device was asked for, of all ways.
    pub copies: u64,
    /// Kernels that were launched.
    pub launches: u64,
    /// Times that somebody waited for an event: for a receive, or because too much was under way.
    pub waited: u64,
    /// Batches for which another way was taken than the one chosen, as that failed.
    pub fell_back: u64,
    /// Batches that failed on the device, and were done again from pages that were still there.
    pub redone: u64,
    /// Pools that were pinned, and bytes of those that are.
    pub registered: (u64, u64),
    /// Pools that could not be.
    pub not_registered: u64,
    /// Pages that are never given back, as the device may still read them: it failed.
    pub kept: u64,
    /// What the device failed with, if the memory is lost.
    pub lost: Option<String>,
    /// Why there is no kernel, where there is none: then all is done by copies.
    pub no_kernel: Option<String>,
    /// What was measured; empty where a way was set.
    pub costs: Costs,
}

impl Report {
    /// Bytes that a way took.
    pub fn by(&self, way: Way) -> u64 {
        self.bytes[way as usize]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.driver;
        writeln!(f, "{}, driver for CUDA {major}.{minor}", self.device)?;
        let [copied, gathered, spanned, batched] = self.bytes;
        writeln!(
            f,
            "bytes: {copied} by copies ({} pageable), {gathered} by the kernel, {spanned} by spans, {batched} by batched copies",
            self.pageable
        )?;
        writeln!(
            f,
            "{} batches of {} pieces: {} copies, {} launches, {} waits; {} bytes at once",
            self.batches, self.pieces, self.copies, self.launches, self.waited, self.direct
        )?;
        writeln!(
            f,
            "pinned: {} pools, {} bytes now; {} could not be",
            self.registered.0, self.registered.1, self.not_registered
        )?;
        if self.fell_back + self.redone + self.kept > 0 {
            writeln!(
                f,
                "failed: {} batches went another way, {} were done again, {} pages are kept for good",
                self.fell_back, self.redone, self.kept
            )?;
        }
        for (what, why) in [("lost", &self.lost), ("no kernel", &self.no_kernel)] {
            if let Some(why) = why {
                writeln!(f, "{what}: {why}")?;
            }
        }
        write!(f, "{}", self.costs)
    }
}
