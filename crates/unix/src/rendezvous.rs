//! How a client knows, before anything was said, that its listener is one of ours: it may then attach rings to its own first
//! bytes (`upgrade.rs`), where a plain server would be handed a descriptor that it knows nothing of.
//!
//! Each listener has a second socket, its *rendezvous*, which is named after it and which nobody accepts from: in the abstract
//! namespace, after the listener's own abstract name, or after device and inode of its path. That it is there, as one of the user
//! who listens, is all that it says. A client connects to it once for each listener and process, and keeps that connection: it
//! hangs up when the rendezvous goes, which goes before its listener does. So as long as it has not hung up the name, or the inode,
//! is still that listener's, and who has just connected by it is connected to that one.
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
use std::sync::LazyLock;
use std::time::Duration;

const PREFIX: &str = "onecopy-4-at-";

/// A listener, as a client can name it: the name of its rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target(Box<[u8]>);

impl Target {
    /// Of the listener that has `name` at this moment, for connections of such a kind. None for what can have no rendezvous.
    pub fn of(name: &Name, kind: Kind, records: Records) -> Option<Target> {
        let kind = match (kind, records) {
            (Kind::Stream, _) => 's',
            (Kind::SeqPacket, Records::Atomic) => 'a',
            (Kind::SeqPacket, Records::Stream) => 'r',
            (Kind::Datagram, _) => return None,
        };
        let mut target = format!("{PREFIX}{kind}").into_bytes();
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

    /// Whether the listener is one of ours that `socket` was connected to, by `name`, since this was told of that name.
    pub fn is_ours(&self, name: &Name, socket: BorrowedFd<'_>) -> bool {
        // (An abstract name is its listener's as long as the rendezvous is there, and a path if it has led to the same file before
        // and after.)
        let is_still = || match name.as_path() {
            Some(path) => std::fs::metadata(path).is_ok_and(|file| self.0.ends_with(&inode(&file))),
            None => true,
        };
        is_ours(self, socket) && is_still()
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

/// After so many connections it is made anew: each process that was a client once still takes a place in its queue, also after
/// its end.
const RENEW: u32 = 1024;
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
        if self.accepted.fetch_add(1, Relaxed) % RENEW == RENEW - 1
            && let Some(mut fd) = self.fd.try_lock()
        {
            // (In this order: the name is free only then.)
            *fd = None;
            *fd = listen(target).ok();
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
    /// A connection to its rendezvous, and whose that is.
    Ours(OwnedFd, u32),
    /// There was none, in coarse milliseconds.
    Missing(u64),
}

/// As many listeners as are remembered, and for how long that there is none.
const KEPT: usize = 16;
const MISSING_MS: u64 = 1000;
/// How long to wait for what is known, which a thread that a fork has left behind may hold for ever.
const PATIENCE: Duration = Duration::from_millis(100);

static KNOWN: LazyLock<Mutex<Vec<(Target, Known)>>> = LazyLock::new(Mutex::default);

/// Whether the listener that `socket` is a connection to is one of ours.
fn is_ours(target: &Target, socket: BorrowedFd<'_>) -> bool {
    let Ok(listener) = sockopt::socket_peercred(socket) else { return false };
    let Some(mut known) = KNOWN.lock_for(PATIENCE) else { return false };
    let now = coarse_ms();
    if let Some(at) = known.iter().position(|(of, _)| of == target) {
        match &known[at].1 {
            Known::Ours(line, uid) if !control::gone(line.as_fd()) => return *uid == listener.uid.as_raw(),
            Known::Missing(since) if now.wrapping_sub(*since) < MISSING_MS => return false,
            _ => drop(known.swap_remove(at)),
        }
    }
    // (What has gone need not be kept.)
    known.retain(|(_, known)| !matches!(known, Known::Ours(line, _) if control::gone(line.as_fd())));
    if known.len() >= KEPT {
        known.remove(0);
    }
    let found = connect(target);
    let is_ours = matches!(&found, Known::Ours(_, uid) if *uid == listener.uid.as_raw());
    known.push((target.clone(), found));
    is_ours
}

fn connect(target: &Target) -> Known {
    let found = socket().and_then(|line| {
        rustix::net::connect(&line, &target.address()?)?;
        let uid = sockopt::socket_peercred(&line)?.uid.as_raw();
        Ok((line, uid))
    });
    match found {
        Ok((line, uid)) if is_known(uid) => Known::Ours(line, uid),
        _ => Known::Missing(coarse_ms()),
    }
}

/// Whether that is one user: all whom this user namespace does not know seem to be the same (user_namespaces(7)).
fn is_known(uid: u32) -> bool {
    let all = || {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_whitespace().eq(["0", "0", "4294967295"])
    };
    uid != overflow_uid() || all()
}
