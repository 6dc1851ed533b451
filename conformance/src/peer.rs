//! The other process of the kill test: it uses a socket in every way there is until it is killed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use clap::{Args, ValueEnum};
use onecopy::Policy;
use onecopy::unix::SocketAddr;
use onecopy::{RecvFlags, SendFlags};

use crate::socket::{Socket, Sort};
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

/// How the peer comes to its socket, and what it does with it.
#[derive(Args, Clone, Debug)]
pub struct Peer {
    /// Which sort of socket
    pub sort: Sort,
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

/// Where the peer's progress stands in the file that is its standard output: bytes, or whole
/// records, whose send has returned.
pub const SENT: u64 = 0;
/// Bytes or records that the peer has received and found right.
pub const RECEIVED: u64 = 8;
/// 1 when what the peer received was wrong.
pub const WRONG: u64 = 16;

/// What one side sends: bytes from a pattern, or records one after the other that each are known by their number.
#[derive(Clone, Copy)]
pub struct Traffic {
    pattern: Pattern,
    /// Whether it counts in records.
    whole: bool,
}

/// Bytes of the largest record that goes whole: it has room in every buffer on the way, the kernel's too.
const LARGEST: usize = 50_000;

impl Traffic {
    /// What the peer sends.
    pub fn of_peer(sort: Sort, seed: u64) -> Traffic {
        Traffic { pattern: Pattern(seed ^ 0x5eed), whole: sort == Sort::Records }
    }

    /// What the peer expects.
    pub fn to_peer(sort: Sort, seed: u64) -> Traffic {
        Traffic { pattern: Pattern(seed ^ 0xfeed), whole: sort == Sort::Records }
    }

    fn record(self, number: usize) -> Vec<u8> {
        let mut dice = Dice(self.pattern.0 ^ (number as u64) << 20);
        let len = dice.size(LARGEST);
        Pattern(dice.roll()).bytes(0, len)
    }

    /// What is sent next, where bytes or records have been sent up to `at`: about `len` bytes.
    pub fn next(self, at: usize, len: usize) -> Vec<u8> {
        if self.whole { self.record(at) } else { self.pattern.bytes(at, len) }
    }

    /// How far a call gets that has sent so many bytes.
    pub fn sent(self, bytes: usize) -> usize {
        if self.whole { 1 } else { bytes }
    }

    /// Checks what was received with room for `max` bytes; how far that gets.
    ///
    /// # Errors
    ///
    /// Where it is not what must come.
    pub fn check(self, at: usize, got: &[u8], max: usize) -> anyhow::Result<usize> {
        if !self.whole {
            self.pattern.check(at, got).map_err(|e| anyhow::anyhow!("{e:?}"))?;
            return Ok(got.len());
        }
        let record = self.record(at);
        let want = &record[..record.len().min(max)];
        anyhow::ensure!(
            got == want,
            "record {at} of {} bytes came as {} others, with room for {max}",
            record.len(),
            got.len()
        );
        Ok(1)
    }
}

/// Does the job until it is killed, or the connection ends.
///
/// # Errors
///
/// Whatever ends the connection. Nobody reads them: the peer exists to be killed.
pub fn run(peer: &Peer) -> anyhow::Result<()> {
    let progress = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let name = SocketAddr::from_abstract_name(peer.name.as_bytes())?;
    let socket = if peer.listen { peer.sort.listen(name)?.accept()? } else { peer.sort.connect(name)? };
    let (sends, expects) = (Traffic::of_peer(peer.sort, peer.seed), Traffic::to_peer(peer.sort, peer.seed));
    let seed = peer.seed;
    match peer.job {
        Job::Write => write(&socket, sends, seed, &progress)?,
        Job::Read => read(&socket, expects, seed, &progress)?,
        Job::Both => std::thread::scope(|s| {
            let writer = s.spawn(|| write(&socket, sends, seed, &progress));
            let read = read(&socket, expects, seed, &progress);
            writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?.and(read)
        })?,
        Job::Borrow => {
            let mut views = Vec::new();
            loop {
                let Some(view) = socket.recv_borrowed_with_flags(5_000, RecvFlags::empty()) else { break };
                let view = view?;
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

fn write(socket: &Socket, traffic: Traffic, seed: u64, progress: &File) -> anyhow::Result<()> {
    let (mut dice, mut at) = (Dice(seed ^ 1), 0usize);
    loop {
        let bytes = traffic.next(at, dice.size(200_000));
        // (Of streams and atomic records it says nothing.)
        let flags = SendFlags::EOR;
        let sent = match dice.roll() % 5 {
            0 => socket.send_with_flags(&bytes, flags | SendFlags::NTCOPY),
            1 => socket.send_with_flags(&bytes, flags | SendFlags::DONTWAIT),
            2 => match socket.reserve_with_flags(bytes.len(), flags) {
                Some(Ok(mut slot)) => {
                    let len = slot.copy_from(&bytes);
                    // Filled by halves, and now and then given up: nothing of it may be seen.
                    if dice.one_in(4) {
                        continue;
                    }
                    slot.commit().map(|n| n.min(len))
                }
                Some(Err(e)) => Err(e),
                None => socket.send_with_flags(&bytes, flags),
            },
            3 => {
                socket.set_policy(if dice.one_in(2) { Policy::NonTemporal } else { Policy::Auto });
                socket.send_with_flags(&bytes, flags)
            }
            _ => socket.send_with_flags(&bytes, flags),
        };
        match sent {
            Ok(n) => at += traffic.sent(n),
            Err(e) if e.would_block() => std::thread::yield_now(),
            Err(e) => return Err(e.into()),
        }
        progress.write_all_at(&(at as u64).to_ne_bytes(), SENT)?;
    }
}

fn read(socket: &Socket, traffic: Traffic, seed: u64, progress: &File) -> anyhow::Result<()> {
    let (mut dice, mut at) = (Dice(seed ^ 2), 0usize);
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
        let borrowed = if borrow { socket.recv_borrowed_with_flags(max, flags) } else { None };
        let got = match borrowed {
            Some(view) => view.map(|view| view.copy_to(&mut buf)),
            None => socket.recv_with_flags(&mut buf[..max], flags),
        };
        match got {
            Ok(0) => return Ok(()),
            Ok(n) => {
                let further = match traffic.check(at, &buf[..n], max) {
                    Ok(further) => further,
                    Err(wrong) => {
                        progress.write_all_at(&1u64.to_ne_bytes(), WRONG)?;
                        return Err(wrong);
                    }
                };
                at += if flags.contains(RecvFlags::PEEK) { 0 } else { further };
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
