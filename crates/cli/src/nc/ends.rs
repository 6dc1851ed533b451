//! This side's ends: what is sent comes from somewhere, and what is received goes somewhere.

use crate::terminal::ReaderGone;
use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IsTerminal, Seek};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// Where what is sent comes from.
#[derive(Debug)]
pub struct Source {
    file: File,
    name: String,
    /// Where to go on in a regular file, which pread(2) takes; none for a pipe, a terminal and their like.
    at: Option<u64>,
    /// Its length, where it is a regular file.
    pub len: Option<u64>,
    /// A person types it.
    pub terminal: bool,
}

impl Source {
    /// A file.
    pub fn open(path: &Path) -> anyhow::Result<Source> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        Source::of(file, path.display().to_string())
    }

    /// Standard input.
    pub fn stdin() -> anyhow::Result<Source> {
        let stdin = io::stdin().as_fd().try_clone_to_owned().context("standard input")?;
        Source::of(stdin.into(), "standard input".into())
    }

    fn of(mut file: File, name: String) -> anyhow::Result<Source> {
        let meta = file.metadata().with_context(|| name.clone())?;
        anyhow::ensure!(
            !meta.is_dir(),
            "{name} is a folder; name a file (tar cf - DIR writes a folder as one)"
        );
        let at = if meta.is_file() { file.stream_position().ok() } else { None };
        let len = at.map(|at| meta.len().saturating_sub(at)).filter(|len| *len > 0);
        Ok(Source { terminal: file.is_terminal(), file, name, at, len })
    }

    /// The file and where to go on in it, if pread(2) takes it.
    pub fn place(&self) -> Option<(&File, u64)> {
        self.at.map(|at| (&self.file, at))
    }

    /// So many bytes of it were taken there.
    pub fn went(&mut self, n: u64) {
        if let Some(at) = &mut self.at {
            *at += n;
        }
    }

    /// Reads what is there; 0 is the end.
    pub fn read(&mut self, buffer: &mut [u8]) -> anyhow::Result<usize> {
        loop {
            let read = match self.at {
                Some(at) => rustix::io::pread(&self.file, &mut *buffer, at),
                None => rustix::io::read(&self.file, &mut *buffer),
            };
            match read {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait(self.file.as_fd(), PollFlags::IN),
                Err(errno) => return Err(errno).with_context(|| format!("cannot read {}", self.name)),
                Ok(n) => {
                    self.went(n as u64);
                    return Ok(n);
                }
            }
        }
    }
}

/// Where what is received goes.
#[derive(Debug)]
pub struct Sink {
    file: File,
    name: String,
    stdout: bool,
}

impl Sink {
    /// A file, which is made, or emptied.
    pub fn create(path: &Path) -> anyhow::Result<Sink> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Sink { file, name: path.display().to_string(), stdout: false })
    }

    /// Standard output.
    pub fn stdout() -> anyhow::Result<Sink> {
        let stdout = io::stdout().as_fd().try_clone_to_owned().context("standard output")?;
        Ok(Sink { file: stdout.into(), name: "standard output".into(), stdout: true })
    }

    /// The file, if it is a regular one, which pwrite(2) takes anywhere.
    pub fn file(&self) -> Option<&File> {
        let regular = !self.stdout && self.file.metadata().is_ok_and(|meta| meta.is_file());
        regular.then_some(&self.file)
    }

    /// Calls `write`, which gives how many bytes it wrote, until `len` are written.
    pub fn write_with(
        &self,
        len: usize,
        mut write: impl FnMut(BorrowedFd<'_>, usize) -> io::Result<usize>,
    ) -> anyhow::Result<()> {
        let mut done = 0;
        while done < len {
            match write(self.file.as_fd(), done) {
                Ok(0) => anyhow::bail!("{} takes no more bytes", self.name),
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(self.file.as_fd(), PollFlags::OUT)
                }
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe && self.stdout => {
                    return Err(ReaderGone.into());
                }
                Err(error) => return Err(error).with_context(|| format!("cannot write {}", self.name)),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`.
    pub fn write(&self, bytes: &[u8]) -> anyhow::Result<()> {
        self.write_with(bytes.len(), |fd, done| Ok(rustix::io::write(fd, &bytes[done..])?))
    }
}

/// Somebody made the file non-blocking, for all who have it.
fn wait(fd: BorrowedFd<'_>, what: PollFlags) {
    let _ = poll(&mut [PollFd::new(&fd, what)], None);
}
