//! How a client knows, before anything was said, that its listener is one of ours: it may then attach rings to its own
//! bytes (`upgrade.rs`), where a plain server would be handed a descriptor that it knows nothing of.
//!
//! Each listener has a second socket, its *rendezvous*, which is named after it and which nobody accepts from: in the abstract
//! namespace, after the listener's own abstract name, or after device and inode of its path. That it is there, as one of the user
//! who listens, is all that it says: a client that has just connected to the listener connects to it, and closes that again. It
//! goes before its listener does. So while it is there the name, or the inode, is still that listener's, and who has just connected
//! by it is connected to that one.
//!
//! Not found is: a listener of another network namespace, one that was made by another user than accepts from it, and one whose
//! name leaves no room for more. The kernel carries on there until the server sends something.

use crate::connection::kind::Kind;
use crate::{Name, Records};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::AtomicU32;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sync::clock::coarse_ms;
use onecopy_sys::user::is_known;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;

const PREFIX: &str = "onecopy-4-at-";
const STREAM_RECORDS: u8 = b'r';

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

    /// What is known of the listener that `socket` has just been connected to, by `name`, since this was told of that name.
    pub fn look(&self, name: &Name, socket: BorrowedFd<'_>) -> Found {
        // (An abstract name is its listener's as long as the rendezvous is there, and a path if it has led to the same file before
        // and after.)
        let is_still = || match name.as_path() {
            Some(path) => std::fs::metadata(path).is_ok_and(|file| self.0.ends_with(&inode(&file))),
            None => true,
        };
        match is_there(self, socket) {
            Found::Ours if !is_still() => Found::Missing,
            found => found,
        }
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

/// After so many connections its queue is emptied: each client takes a place there, also when it has closed that again, and there may be few
/// (net.core.somaxconn).
const EMPTIED: u32 = 4;
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
            // (No accept goes on for as long as somebody goes on calling here.)
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

/// As many listeners as are remembered to have no rendezvous, and for how long.
const KEPT: usize = 16;
const MISSING_MS: u64 = 1000;

/// Listeners whose rendezvous was not there, and when, in coarse milliseconds. (A thread that a fork has left behind may hold it for
/// ever: then nothing is remembered.)
static MISSING: LazyLock<Mutex<Vec<(Target, u64)>>> = LazyLock::new(Mutex::default);

/// What a client finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is one of ours.
    Ours,
    /// There is a rendezvous, and for the moment no place in its queue.
    Full,
    /// It has no rendezvous, or another user's.
    Missing,
}

/// Whether the rendezvous of the listener that `socket` is a connection to is there, as one of the same user.
fn is_there(target: &Target, socket: BorrowedFd<'_>) -> Found {
    let now = coarse_ms();
    if let Some(mut missing) = MISSING.try_lock() {
        // (Of stream records a connection cannot do without.)
        missing.retain(|(of, since)| {
            now.wrapping_sub(*since) < MISSING_MS && !(of == target && target.must_be())
        });
        if missing.iter().any(|(of, _)| of == target) {
            return Found::Missing;
        }
    }
    match visit(target) {
        Ok(user) => {
            let listens = sockopt::socket_peercred(socket).is_ok_and(|cred| cred.uid.as_raw() == user);
            return if is_known(user) && listens { Found::Ours } else { Found::Missing };
        }
        Err(Errno::AGAIN) => return Found::Full,
        Err(_) => {}
    }
    if let Some(mut missing) = MISSING.try_lock() {
        if missing.len() >= KEPT {
            missing.remove(0);
        }
        missing.push((target.clone(), now));
    }
    Found::Missing
}

/// Whose rendezvous that is.
fn visit(target: &Target) -> io::Result<u32> {
    let line = socket()?;
    rustix::net::connect(&line, &target.address()?)?;
    Ok(sockopt::socket_peercred(&line)?.uid.as_raw())
}
