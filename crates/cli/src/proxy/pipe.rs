//! A pipe through which a file's pages go to a client's socket by reference, in larger pieces than sendfile(2) makes. Fewer
//! pieces wake the client less often.

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};
use std::io;

/// The most that a user without privileges may ask for, unless told otherwise (/proc/sys/fs/pipe-max-size).
const SIZE: usize = 1 << 20;

/// A pipe that is empty between calls.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    size: usize,
}

impl Pipe {
    /// Makes one, as large as this user may.
    pub fn new() -> io::Result<Pipe> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Less than asked for (a user's quota of pipes, pipe-user-pages-soft) works too, only slower.
        let size = match rustix::pipe::fcntl_setpipe_size(&write, SIZE) {
            Ok(size) => size,
            Err(_) => rustix::pipe::fcntl_getpipe_size(&write)?,
        };
        Ok(Pipe { read, write, size })
    }

    /// Sends up to `most` bytes of `file` from `at`; `more` follow them. Bytes sent, 0 where the file has ended, and the pipe,
    /// if all that was in it has gone out. What the client's socket had no room for is let go with the pipe: it is still in the
    /// file, and in no pipe that another client's bytes go through. (A new one costs less than reading what is in it.)
    ///
    /// # Errors
    ///
    /// What splice(2) says, if nothing was sent; EAGAIN speaks of the client.
    pub fn pass(
        self,
        file: impl AsFd,
        mut at: u64,
        most: usize,
        client: impl AsFd,
        more: bool,
    ) -> (io::Result<usize>, Option<Pipe>) {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let most = most.min(self.size);
        let held = match rustix::pipe::splice(file, Some(&mut at), &self.write, None, most, flags) {
            Ok(held) => held,
            Err(error) => return (Err(error.into()), Some(self)),
        };
        let to_client = if more || held < most { flags | SpliceFlags::MORE } else { flags };
        let mut sent = 0;
        while sent < held {
            match rustix::pipe::splice(&self.read, None, &client, None, held - sent, to_client) {
                Ok(0) => return (Err(Errno::PIPE.into()), None),
                Ok(n) => sent += n,
                Err(Errno::INTR) => {}
                Err(error) => return (if sent > 0 { Ok(sent) } else { Err(error.into()) }, None),
            }
        }
        (Ok(sent), Some(self))
    }
}
