//! Descriptors that tell when they are closed: the writing ends of pipes.

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, OwnedFd};

/// Reading ends, by the number of their pipe.
#[derive(Default)]
pub struct Pipes(Vec<(u64, OwnedFd)>);

/// The number of the pipe.
pub fn number(fd: impl AsFd) -> u64 {
    fstat(fd).expect("an open descriptor").st_ino
}

impl Pipes {
    /// A new pipe's number and writing end.
    pub fn open(&mut self) -> (u64, OwnedFd) {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).expect("a pipe");
        let number = number(&write);
        self.0.push((number, read));
        (number, write)
    }

    /// How many there were.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Just these are open: neither closed too early, nor kept, nor duplicated and kept.
    pub fn check(&self, open: &[u64]) {
        for (number, read) in &self.0 {
            let is_open = match rustix::io::read(read, &mut [0; 1]) {
                Err(Errno::AGAIN) => true,
                Ok(0) => false,
                other => panic!("a pipe that nobody writes: {other:?}"),
            };
            let times = open.iter().filter(|n| *n == number).count();
            assert_eq!(is_open as usize, times, "pipe {number}: open {is_open}, in chains {times} times");
        }
    }
}
