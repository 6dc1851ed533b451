//! The other process of the kill test: it uses a stream in every way there is until it is killed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use clap::{Args, ValueEnum};
use onecopy::Policy;
use onecopy::unix::{Listener, Name, RecvFlags, SendFlags, Stream};

use crate::tools::{Dice, Pattern};

/// What the peer does until it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Job {
    /// Sends the pattern, by send and by reserve and commit.
    Write,
    /// Receives and checks the pattern, by recv, PEEK, WAITALL and borrows.
    Read,
    /// Both, in two threads.
    Both,
    /// Borrows what comes and holds on to it.
    Borrow,
    /// Nothing.
    Idle,
}

/// How the peer comes to its stream, and what it does with it.
#[derive(Args, Clone, Debug)]
pub struct Peer {
    /// The abstract name of the listener
    pub name: String,
    /// Listen there and accept one, instead of connecting
    #[arg(long)]
    pub listen: bool,
    /// What to do
    pub job: Job,
    /// Seed of pattern and dice
    pub seed: u64,
}

/// Where the peer's progress stands in the file that is its standard output: bytes whose send has returned.
pub const SENT: u64 = 0;
/// Bytes that the peer has received and found right.
pub const RECEIVED: u64 = 8;
/// 1 when what the peer received was wrong.
pub const WRONG: u64 = 16;

/// The pattern that the peer sends.
pub fn peer_sends(seed: u64) -> Pattern {
    Pattern(seed ^ 0x5eed)
}

/// The pattern that the peer expects.
pub fn peer_expects(seed: u64) -> Pattern {
    Pattern(seed ^ 0xfeed)
}

/// Does the job until it is killed, or the stream ends.
///
/// # Errors
///
/// Whatever ends the stream. Nobody reads them: the peer exists to be killed.
pub fn run(peer: &Peer) -> anyhow::Result<()> {
    let progress = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let name = Name::abstract_(peer.name.as_bytes());
    let stream = if peer.listen { Listener::bind(name)?.accept()? } else { Stream::connect(name)? };
    let seed = peer.seed;
    match peer.job {
        Job::Write => write(&stream, seed, &progress)?,
        Job::Read => read(&stream, seed, &progress)?,
        Job::Both => std::thread::scope(|s| {
            let writer = s.spawn(|| write(&stream, seed, &progress));
            let read = read(&stream, seed, &progress);
            writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?.and(read)
        })?,
        Job::Borrow => {
            let mut views = Vec::new();
            loop {
                let view = stream.recv_borrowed(5_000)?;
                if view.is_empty() {
                    break;
                }
                views.push(view);
                if views.len() > 6 {
                    views.clear();
                }
            }
        }
        Job::Idle => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
    }
    Ok(())
}

fn write(stream: &Stream, seed: u64, progress: &File) -> anyhow::Result<()> {
    let (pattern, mut dice, mut at) = (peer_sends(seed), Dice(seed ^ 1), 0usize);
    loop {
        let n = dice.size(200_000);
        let bytes = pattern.bytes(at, n);
        let flags = SendFlags::NOSIGNAL;
        let sent = match dice.roll() % 5 {
            0 => stream.send(&bytes, flags | SendFlags::NTCOPY),
            1 => stream.send(&bytes, flags | SendFlags::DONTWAIT),
            2 => stream.reserve_with(n, flags).and_then(|mut slot| {
                let len = slot.write(&bytes);
                // Filled by halves, and now and then given up: nothing of it may be seen.
                if dice.one_in(4) {
                    return Ok(0);
                }
                slot.commit().map(|n| n.min(len))
            }),
            3 => {
                stream.set_policy(if dice.one_in(2) { Policy::NonTemporal } else { Policy::Auto });
                stream.send(&bytes, flags)
            }
            _ => stream.send(&bytes, flags),
        };
        match sent {
            Ok(n) => at += n,
            Err(e) if e.would_block() => std::thread::yield_now(),
            Err(e) => return Err(e.into()),
        }
        progress.write_all_at(&(at as u64).to_ne_bytes(), SENT)?;
    }
}

fn read(stream: &Stream, seed: u64, progress: &File) -> anyhow::Result<()> {
    let (pattern, mut dice, mut at) = (peer_expects(seed), Dice(seed ^ 2), 0usize);
    let mut buf = vec![0; 100_000];
    loop {
        let max = dice.size(buf.len());
        let (flags, borrow) = match dice.roll() % 6 {
            0 => (RecvFlags::PEEK, false),
            1 => (RecvFlags::WAITALL, false),
            2 => (RecvFlags::DONTWAIT, false),
            3 => (RecvFlags::empty(), true),
            _ => (RecvFlags::empty(), false),
        };
        let got = match borrow {
            true => stream.recv_borrowed(max).map(|view| view.copy_to(&mut buf)),
            false => stream.recv(&mut buf[..max], flags),
        };
        match got {
            Ok(0) => return Ok(()),
            Ok(n) => {
                if pattern.check(at, &buf[..n]).is_err() {
                    progress.write_all_at(&1u64.to_ne_bytes(), WRONG)?;
                    anyhow::bail!("the pattern is broken at {at}");
                }
                at += if flags.contains(RecvFlags::PEEK) { 0 } else { n };
                progress.write_all_at(&(at as u64).to_ne_bytes(), RECEIVED)?;
            }
            Err(e) if e.would_block() => std::thread::yield_now(),
            Err(e) => return Err(e.into()),
        }
    }
}

/// A file in memory for a peer's progress: what it wrote is there after it was killed.
///
/// # Errors
///
/// memfd_create's.
pub fn progress_file() -> io::Result<File> {
    let fd: OwnedFd = rustix::fs::memfd_create("progress", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, 24)?;
    Ok(File::from(fd))
}

/// One number of a peer's progress.
///
/// # Errors
///
/// pread's.
pub fn progress(file: &File, which: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, which)?;
    Ok(u64::from_ne_bytes(bytes))
}
