//! Bodies that the daemon lends (its side and the rules are in `serve/lend.rs`): the kernel takes them from where they lie, files by
//! reference, and memory with one copy.

use super::pipe::Pipe;
use super::stacked;
use super::tcp::{Tcp, send_all, wait_writable};
use super::trouble::{Patience, Trouble};
use super::turns::Turns;
use crate::counters::Counters;
use onecopy::Sealed;
use onecopy_sys::frozen::Frozen;
use onecopy_sys::page_cache;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::cell::RefCell;
use std::cmp::Ordering;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::OnceLock;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// How a lent body gets into the client's socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SendLent {
    /// What suits it: up to 64 KiB sendfile, then `map` for memory and `splice` for files and for small parts of memory
    #[default]
    Auto,
    /// By reference, in the kernel's own pieces of 64 KiB
    Sendfile,
    /// By reference through a pipe, up to 1 MiB in a piece
    Splice,
    /// Copied by the kernel out of a mapping, above 64 KiB; less goes by sendfile. What is not sealed memory is spliced, and so is
    /// less than half of it
    Map,
}

/// Bytes that one call sends at most: other clients wait meanwhile.
const STEP: u64 = 1 << 20;

/// A body that was lent.
#[derive(Debug)]
pub struct Loan {
    lies: Lies,
    /// The same memory as pages, once a client of a stack of our own was sent it.
    sealed: OnceLock<Option<Sealed>>,
    at: u64,
    length: u64,
    version: Version,
}

#[derive(Debug)]
enum Lies {
    /// In memory that nobody can change.
    Memory(Frozen),
    /// In a file, or in memory that is not mapped.
    File(OwnedFd),
}

/// What tells that a file was changed.
type Version = (u64, u64, i64, u64, i64, u64);

fn version(stat: &Stat) -> Version {
    let size = stat.st_size as u64;
    (stat.st_ino, size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec)
}

impl Loan {
    /// Takes what was lent, if it is a file, be it in memory alone, that can be read through this descriptor, and `length` bytes
    /// lie in it from `at`: anything else that has a descriptor could keep who sends it waiting for ever, or fail behind a head
    /// that is sent.
    fn take(lent: OwnedFd, at: u64, length: u64, map: bool) -> Result<Loan, Trouble> {
        let bad = |why: String| Trouble::Bad(format!("the backend lent what cannot be passed on: {why}"));
        let stat = rustix::fs::fstat(&lent).map_err(|error| bad(error.to_string()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(bad("it is not a file".into()));
        }
        // fstat(2) is content with any descriptor of it, sendfile(2) is not.
        let flags = rustix::fs::fcntl_getfl(&lent).map_err(|error| bad(error.to_string()))?;
        if flags.contains(OFlags::PATH) || flags & OFlags::RWMODE == OFlags::WRONLY {
            return Err(bad("its descriptor is not open for reading".into()));
        }
        let size = stat.st_size as u64;
        if at.checked_add(length).is_none_or(|end| end > size) {
            return Err(bad(format!("{length} bytes from {at} of {size}")));
        }
        // All of it is mapped: for a small part that would cost more than it saves, and a small whole is one call anyway.
        let lies = match map && length > PIECE as u64 && length >= size / 2 {
            true => Frozen::open(lent).map_or_else(|(lent, _)| Lies::File(lent), Lies::Memory),
            false => Lies::File(lent),
        };
        Ok(Loan { lies, sealed: OnceLock::new(), at, length, version: version(&stat) })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.lies {
            Lies::Memory(memory) => memory.as_fd(),
            Lies::File(file) => file.as_fd(),
        }
    }

    /// Where it lies, and how long it is.
    pub fn range(&self) -> Range<u64> {
        self.at..self.at + self.length
    }

    /// Its pages, to be sent by reference; none of a file, whose bytes may change.
    pub fn sealed(&self) -> Option<&Sealed> {
        let Lies::Memory(memory) = &self.lies else { return None };
        self.sealed.get_or_init(|| Sealed::new(memory).ok()).as_ref()
    }

    /// Who reads it when it is sent.
    pub fn reader(&self) -> &'static str {
        match self.lies {
            Lies::Memory(_) => "other-core",
            Lies::File(_) => "no-cpu",
        }
    }

    /// Asked before the last bytes go, while the client can still be shown that they are not what was promised: an error if
    /// the file was overwritten or cut short. One that has only grown is taken for a log. (The daemon's side of this is
    /// `Object::still` in `serve/store.rs`.)
    pub fn still(&self) -> Result<(), &'static str> {
        let Lies::File(file) = &self.lies else { return Ok(()) };
        let Ok(stat) = rustix::fs::fstat(file) else { return Ok(()) };
        let ((_, size, modified, nanos, ..), now) = (self.version, version(&stat));
        match now.1.cmp(&size) {
            Ordering::Less => Err("the file became shorter while it was being sent"),
            Ordering::Equal if (now.2, now.3) != (modified, nanos) => {
                Err("the file was overwritten while it was being sent")
            }
            Ordering::Equal | Ordering::Greater => Ok(()),
        }
    }

    /// Whether it is as it was when the backend wrote its head: last changed then.
    pub fn is_of(&self, changed: (u64, u64)) -> bool {
        let (.., seconds, nanos) = self.version;
        matches!(self.lies, Lies::Memory(_)) || (u64::try_from(seconds), nanos) == (Ok(changed.0), changed.1)
    }

    /// Whether it is as it was when it was lent: unchanged, and in memory, since a thread that serves many must not wait for a
    /// disk. (A kernel that cannot say what is in memory has only memory lent.)
    pub fn is_as_lent(&self) -> bool {
        match &self.lies {
            Lies::Memory(_) => true,
            Lies::File(file) => {
                rustix::fs::fstat(file).is_ok_and(|stat| version(&stat) == self.version)
                    && page_cache::holds(file, self.at, self.length) != Ok(false)
            }
        }
    }
}

/// What one thread sends lent bodies with.
#[derive(Debug)]
pub struct Sender {
    way: SendLent,
    /// Made when a body wants one. Only an empty one comes back here.
    pipe: RefCell<Option<Pipe>>,
}

impl Sender {
    /// Sends as `way` says.
    pub fn new(way: SendLent) -> Sender {
        Sender { way, pipe: RefCell::default() }
    }

    /// Takes a body that was lent, made ready for the way that it will go.
    pub fn take(&self, lent: OwnedFd, at: u64, length: u64) -> Result<Loan, Trouble> {
        Loan::take(lent, at, length, matches!(self.way, SendLent::Auto | SendLent::Map))
    }

    /// Sends `head` and then the body. After an error the client has a head that promises more than came.
    pub async fn pass(
        &self,
        loan: &Loan,
        head: &[u8],
        client: &Tcp,
        patience: Patience,
        counters: &mut Counters,
    ) -> Result<(), Trouble> {
        let socket = match client {
            Tcp::Kernel(socket) => socket,
            Tcp::Stack(stacked) => {
                return stacked::pass_loan(loan, head, (client, stacked), patience, counters).await;
            }
        };
        if let Lies::Memory(memory) = &loan.lies {
            let body = &memory[loan.at as usize..][..loan.length as usize];
            return pass_memory(body, head, (client, socket), patience, counters).await;
        }
        send_all(client, head, loan.length > 0, patience).await?;
        let (mut at, end) = (loan.at, loan.at + loan.length);
        let mut turns = Turns::default();
        while at < end {
            let most = (end - at).min(STEP) as usize;
            let more = at + (most as u64) < end;
            if !more && let Err(why) = loan.still() {
                counters.changed = 1;
                return Err(Trouble::Cut(why.to_owned()));
            }
            match socket.try_io(Interest::WRITABLE, || self.step(loan, at, most, socket, more)) {
                Ok(0) => {
                    counters.changed = 1;
                    return Err(Trouble::Cut("the file became shorter while it was being sent".to_owned()));
                }
                Ok(n) => {
                    at += n as u64;
                    counters.body_bytes += n as u64;
                    counters.referenced += n as u64;
                    turns.take(n).await;
                }
                Err(error) => wait_writable(client, error, patience.client).await?,
            }
        }
        Ok(())
    }

    /// One call, or two. Bytes sent, 0 where the file has ended.
    fn step(&self, loan: &Loan, at: u64, most: usize, client: &TcpStream, more: bool) -> io::Result<usize> {
        let sendfile = |mut at| Ok(rustix::fs::sendfile(client, loan.fd(), Some(&mut at), most)?);
        // One piece of sendfile's needs no pipe of ours.
        if self.way == SendLent::Sendfile || most <= PIECE {
            return sendfile(at);
        }
        let Some(pipe) = self.pipe.take().or_else(|| Pipe::new().ok()) else {
            // No descriptors are left: sendfile brings a pipe of its own.
            return sendfile(at);
        };
        let (sent, empty) = pipe.pass(loan.fd(), at, most, client, more);
        self.pipe.replace(empty);
        sent
    }
}

/// Sends a head and a body in memory, together: a small answer is one call.
async fn pass_memory(
    body: &[u8],
    head: &[u8],
    (client, socket): (&Tcp, &TcpStream),
    patience: Patience,
    counters: &mut Counters,
) -> Result<(), Trouble> {
    let mut sent = 0;
    let mut turns = Turns::default();
    while sent < head.len() + body.len() {
        let (head_left, at) = (&head[sent.min(head.len())..], sent.saturating_sub(head.len()));
        let piece = &body[at..][..(body.len() - at).min(STEP as usize)];
        let more = at + piece.len() < body.len();
        let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
        let slices = [IoSlice::new(head_left), IoSlice::new(piece)];
        let send = || Ok(sendmsg(socket, &slices, &mut SendAncillaryBuffer::default(), flags)?);
        match socket.try_io(Interest::WRITABLE, send) {
            Ok(n) => {
                sent += n;
                let of_body = n - n.min(head_left.len());
                counters.body_bytes += of_body as u64;
                counters.kernel_copied += of_body as u64;
                turns.take(n).await;
            }
            Err(error) => wait_writable(client, error, patience.client).await?,
        }
    }
    Ok(())
}

/// What sendfile(2) passes on at once: the 16 pages of the pipe that is inside it.
const PIECE: usize = 64 << 10;
