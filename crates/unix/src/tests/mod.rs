//! Tests that fork, or that look at private state.

mod claims;
mod connecting;
mod deaths;
mod forks;
mod holding;
mod lists;
mod looks;
mod mapped;
mod messages;
mod moments;
mod namespaces;
mod passing;
mod sharing;
mod spoilers;
mod stores;
mod switching;

// A fork changes how every row of the registry is reused, and locks every end of the process for a moment. So
// all tests here are `alone!`.
pub use onecopy_testing::{alone, asleep, wait_asleep};

use crate::{Config, RecvFlags, Stream};
use rustix::fd::OwnedFd;
use std::time::Duration;

/// Says that this machine lacks something, so that a test could not run. The test runner does not keep this
/// line to itself, and the summary of `cargo xtask test` repeats it.
fn lacking(what: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout().lock(), "\nlacking: {what}");
}

/// Rings of 4096 bytes.
fn small() -> Config {
    Config { send_buffer: Some(2048), receive_buffer: Some(2048), ..Config::default() }
}

/// Makes a pair whose waits end. A test that waits in vain fails instead of hanging.
fn pair(config: &Config) -> (Stream, Stream) {
    let (a, b) = Stream::pair_with(config).unwrap();
    for end in [&a, &b] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (a, b)
}

/// Longest wait for what must come.
const PATIENCE: Duration = onecopy_testing::LONG;

/// A pipe through which children send words.
struct Wire(OwnedFd, OwnedFd);

impl Wire {
    fn new() -> Wire {
        let (read, write) = rustix::pipe::pipe().unwrap();
        Wire(read, write)
    }

    fn tell(&self, word: u64) {
        rustix::io::write(&self.1, &word.to_ne_bytes()).unwrap();
    }

    fn hear(&self) -> u64 {
        let mut word = [0; 8];
        rustix::io::read(&self.0, &mut word).unwrap();
        u64::from_ne_bytes(word)
    }

    /// Returns whether a word arrives at all.
    fn speaks(&self) -> bool {
        self.speaks_within(PATIENCE.as_millis() as i64)
    }

    /// Returns whether a word arrives within that many milliseconds.
    fn speaks_within(&self, millis: i64) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let limit = Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit)).unwrap() == 1
    }

    /// Returns all words, once no process can send more.
    fn hear_all(self) -> Vec<u64> {
        let Wire(read, write) = self;
        drop(write);
        let mut words = Vec::new();
        let mut word = [0; 8];
        while rustix::io::read(&read, &mut word).unwrap() == 8 {
            words.push(u64::from_ne_bytes(word));
        }
        words
    }
}

fn send(stream: &Stream, bytes: &[u8]) {
    assert_eq!(stream.send(bytes).unwrap(), bytes.len());
}

/// A generator of numbers that are the same for the same seed (splitmix64).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Returns a word that a hostile process may write over `was`.
fn wild(random: &mut Random, was: u64) -> u64 {
    const BORDERS: [u64; 12] = [0, 1, 2, 3, 63, 64, 4096, 1 << 31, 1 << 32, 1 << 62, 1 << 63, u64::MAX];
    match random.below(6) {
        0 => random.next(),
        1 => BORDERS[random.below(12)],
        2 => BORDERS[random.below(12)].wrapping_sub(1),
        3 => was ^ 1 << random.below(64),
        4 => was.wrapping_sub(1 + random.next() % 5000),
        _ => was.wrapping_add(1 + random.next() % 5000),
    }
}

/// Reads `count` messages of `len` equal bytes each, and counts them by byte.
fn count_whole(stream: &Stream, len: usize, count: usize) -> [usize; 256] {
    let mut counts = [0; 256];
    let mut message = vec![0; len];
    for _ in 0..count {
        let n = stream.recv_with_flags(&mut message, RecvFlags::WAITALL).unwrap();
        assert_eq!(n, len);
        assert!(message.iter().all(|byte| *byte == message[0]), "senders interleaved");
        counts[message[0] as usize] += 1;
    }
    counts
}
