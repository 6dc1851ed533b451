//! What one direction has done.

use super::sum::Sum;
use std::time::{Duration, Instant};

/// Counted as it happens.
#[derive(Clone, Default)]
pub struct Tally {
    /// Bytes that passed.
    pub bytes: u64,
    /// Bytes that the kernel copied in calls of this program's own, on files and on sockets that count nothing themselves.
    pub kernel: u64,
    /// Their checksum, if it was asked for.
    pub sum: Option<Sum>,
    begun: Option<Instant>,
    last: Option<Instant>,
}

impl Tally {
    /// One that takes a checksum, or not.
    pub fn new(sum: bool) -> Tally {
        Tally { sum: sum.then(Sum::new), ..Tally::default() }
    }

    /// The time runs: there is a connection.
    pub fn begin(&mut self) {
        self.begun = Some(Instant::now());
    }

    /// So many passed.
    pub fn went(&mut self, bytes: usize, kernel: usize) {
        if bytes > 0 {
            self.bytes += bytes as u64;
            self.kernel += kernel as u64;
            self.last = Some(Instant::now());
        }
    }

    /// These pass.
    pub fn look(&mut self, bytes: &[u8]) {
        if let Some(sum) = &mut self.sum {
            sum.add(bytes);
        }
    }

    /// These passed.
    pub fn passed(&mut self, bytes: &[u8], kernel: usize) {
        self.look(bytes);
        self.went(bytes.len(), kernel);
    }

    /// From the connection's beginning to the last byte.
    pub fn took(&self) -> Duration {
        match (self.begun, self.last) {
            (Some(begun), Some(last)) => last.saturating_duration_since(begun),
            _ => Duration::ZERO,
        }
    }
}
