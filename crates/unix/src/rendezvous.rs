//! How a client knows, before anything was said, that its listener is one of ours: it may then attach rings to its own first
//! bytes (`upgrade.rs`), where a plain server would be handed a descriptor that it knows nothing of.
//!
//! Each listener has a second socket, its *rendezvous*, which is named after it and which nobody accepts from: in the abstract
//! namespace, after the listener's own abstract name, or after device and inode of its path. That it is there, as one of the user
//! who listens, is all that it says. A client connects to it, and its process keeps that line for as long as it has a connection to
//! that listener. The line hangs up when the rendezvous goes, which goes before its listener does. So as long as it has not hung up
//! the name, or the inode, is still that listener's, and who has just connected by it is connected to that one.
//!
//! Not found is: a listener of another network namespace, one that was made by another user than accepts from it, and one whose
//! name leaves no room for more. The kernel carries on there until the server sends something.

use crate::control;
use crate::dgram::overflow_uid;
use crate::making::Kind;
use crate::{Name, Records};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::AtomicU32;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sync::clock::coarse_ms;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

const PREFIX: &str = "onecopy-4-at-";
const STREAM_RECORDS: u8 = b'r';

/// A connection to a rendezvous.
pub type Line = Arc<OwnedFd>;

/// A listener, as a client can name it: the name of its rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target(Box<[u8]>);

impl Target {
    /// Of the listener that has `name` at this moment, for connections of such a kind. None for what can have no rendezvous.
    pub fn of(name: &Name, kind: Kind, records: Records) -> Option<Target> {
        let kind = match (kind, records) {
            (Kind::Stream, _) => b's',
            (Kind::SeqPacket, Records::Atomic) => b'a',
            (Kind::SeqPacket, Records::Stream) => STREAM_RECORDS,
            (Kind::Datagram, _) => return None,
        };
        let mut target = PREFIX.as_bytes().to_vec();
        target.push(kind);
        match (name.as_path(), name.as_abstract()) {
            (Some(path), _) => {
                let file = std::fs::metadata(path).ok()?;
                target.extend_from_slice(&inode(&file));
            }
            (_, Some(name)) => {
                target.push(b'@');
                target.extend_from_slice(name);
            }
            _ => return None,
        }
        Some(Target(target.into()))
    }

    /// The line to the listener that `socket` was connected to, by `name`, since this was told of that name: None where that is not
    /// known for one of ours.
    pub fn line(&self, name: &Name, socket: BorrowedFd<'_>) -> Option<Line> {
        // (An abstract name is its listener's as long as the rendezvous is there, and a path if it has led to the same file before
        // and after.)
        let is_still = || match name.as_path() {
            Some(path) => std::fs::metadata(path).is_ok_and(|file| self.0.ends_with(&inode(&file))),
            None => true,
        };
        line(self, socket).filter(|_| is_still())
    }

    /// Whether a client has no use for a listener that is not known.
    fn must_be(&self) -> bool {
        self.0.get(PREFIX.len()) == Some(&STREAM_RECORDS)
    }

    fn address(&self) -> io::Result<SocketAddrUnix> {
        SocketAddrUnix::new_abstract_name(&self.0)
    }
}

fn inode(file: &Metadata) -> Vec<u8> {
    format!("-{:x}-{:x}", file.dev(), file.ino()).into_bytes()
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// What a listener is found by. While there is none, its clients' bytes go over the kernel until it sends something.
#[derive(Debug)]
pub struct Rendezvous {
    target: Option<Target>,
    /// None where another process that has the same listener has it, or a descriptor was wanting.
    fd: Mutex<Option<OwnedFd>>,
    accepted: AtomicU32,
}

/// After so many connections its queue is emptied: each line takes a place there, also after its client's end.
const EMPTIED: u32 = 64;
/// Places in that queue; the kernel may give fewer (net.core.somaxconn).
const PLACES: i32 = 4096;

impl Rendezvous {
    /// Of the listener with that name; of none where there is no name.
    pub fn open(target: Option<Target>) -> Rendezvous {
        let fd = target.as_ref().and_then(|target| listen(target).ok());
        Rendezvous { target, fd: Mutex::new(fd), accepted: AtomicU32::new(0) }
    }

    /// A connection was accepted.
    pub fn accepted(&self) {
        let Some(target) = &self.target else { return };
        if self.accepted.fetch_add(1, Relaxed) % EMPTIED != EMPTIED - 1 {
            return;
        }
        let Some(mut fd) = self.fd.try_lock() else { return };
        match &*fd {
            // (A line of a client that lives hangs up with it, and the client makes another one.)
            // (And no accept goes on for as long as somebody goes on calling here.)
            Some(fd) => {
                let next = |_: &i32| rustix::net::accept_with(fd, SocketFlags::CLOEXEC).is_ok();
                (0..PLACES).take_while(next).for_each(drop);
            }
            None => *fd = listen(target).ok(),
        }
    }
}

fn listen(target: &Target) -> io::Result<OwnedFd> {
    let fd = socket()?;
    rustix::net::bind(&fd, &target.address()?)?;
    rustix::net::listen(&fd, PLACES)?;
    Ok(fd)
}

/// What a process knows of listeners.
#[derive(Debug)]
enum Known {
    /// A connection to its rendezvous, while somebody keeps it, and whose that is.
    Ours(Weak<OwnedFd>, u32),
    /// There was none, in coarse milliseconds.
    Missing(u64),
}

/// As many listeners as are remembered, and for how long that there is none.
const KEPT: usize = 16;
const MISSING_MS: u64 = 1000;
/// How long to wait for what is known, which a thread that a fork has left behind may hold for ever.
const PATIENCE: Duration = Duration::from_millis(100);

static KNOWN: LazyLock<Mutex<Vec<(Target, Known)>>> = LazyLock::new(Mutex::default);

/// The line to the listener that `socket` is a connection to, if that is one of ours.
fn line(target: &Target, socket: BorrowedFd<'_>) -> Option<Line> {
    let listener = sockopt::socket_peercred(socket).ok()?.uid.as_raw();
    let mut known = KNOWN.lock_for(PATIENCE)?;
    let now = coarse_ms();
    if let Some(at) = known.iter().position(|(of, _)| of == target) {
        match &known[at].1 {
            Known::Ours(line, uid) => {
                if let Some(line) = line.upgrade().filter(|line| !control::gone(line.as_fd())) {
                    return Some(line).filter(|_| *uid == listener);
                }
            }
            // (Of stream records a connection cannot do without.)
            Known::Missing(since) if now.wrapping_sub(*since) < MISSING_MS && !target.must_be() => {
                return None;
            }
            Known::Missing(_) => {}
        }
        known.swap_remove(at);
    }
    known.retain(|(_, known)| !matches!(known, Known::Ours(line, _) if line.strong_count() == 0));
    if known.len() >= KEPT {
        known.remove(0);
    }
    match connect(target) {
        Some((line, uid)) => {
            known.push((target.clone(), Known::Ours(Arc::downgrade(&line), uid)));
            Some(line).filter(|_| uid == listener)
        }
        None => {
            known.push((target.clone(), Known::Missing(now)));
            None
        }
    }
}

fn connect(target: &Target) -> Option<(Line, u32)> {
    let line = socket().ok()?;
    rustix::net::connect(&line, &target.address().ok()?).ok()?;
    let uid = sockopt::socket_peercred(&line).ok()?.uid.as_raw();
    is_known(uid).then(|| (Arc::new(line), uid))
}

/// Whether that is one user: all whom this user namespace does not know seem to be the same (user_namespaces(7)).
fn is_known(uid: u32) -> bool {
    let all = || {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_whitespace().eq(["0", "0", "4294967295"])
    };
    uid != overflow_uid() || all()
}
