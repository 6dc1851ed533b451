//! How a client knows that its listener is one of ours, before anything was sent. It may then attach rings to
//! its own bytes (`upgrade.rs`). A plain server would be handed a descriptor that it knows nothing of.
//!
//! Each listener has a second socket, its *rendezvous*. What comes to it is closed unread, but for visits
//! (`visit.rs`). It has a name in the abstract namespace: after the listener's own abstract name, or after device and inode of its path. The
//! rendezvous says only that it is there, and that it belongs to the user that listens. A client that has
//! just connected to the listener connects to the rendezvous, and closes that connection again. The
//! rendezvous goes before its listener does. So while it is there, the name or the inode is still that
//! listener's, and a client that has just connected by it is connected to that listener. A client that cannot
//! do without it looks before it connects, too, since a server may accept and close its listener at once.
//!
//! A client does not find the rendezvous of a listener in another network namespace, of one that was made by
//! another user than accepts from it, or of one whose name leaves no room for more. There the kernel carries
//! on until the server sends something.

use crate::addr::SocketAddr;
use crate::config::Records;
use crate::control;
use crate::core::kind::Kind;
use crate::handshake::visit::{Process, VISIT, VISITS, Visit, Waiting};
use crate::members::patience::BRIEFLY;
use onecopy_ring::memory::Nonce;
use onecopy_sync::Mutex;
use onecopy_sync::atomic::AtomicU32;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sync::clock::coarse_ms;
use onecopy_sys::user::is_known;
use rustix::event::{PollFlags, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::fs::Metadata;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

const PREFIX: &str = "onecopy-4-at-";
const STREAM_RECORDS: u8 = b'r';

/// A listener, as a client can name it: the name of its rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target(Box<[u8]>);

impl Target {
    /// Returns the target for the listener that has `name` now, for connections of that kind. None if it can
    /// have no rendezvous.
    pub fn of(name: &SocketAddr, kind: Kind, records: Records) -> Option<Target> {
        let kind = match (kind, records) {
            (Kind::Stream, _) => b's',
            (Kind::SeqPacket, Records::Atomic) => b'a',
            (Kind::SeqPacket, Records::Stream) => STREAM_RECORDS,
            (Kind::Datagram, _) => return None,
        };
        let mut target = PREFIX.as_bytes().to_vec();
        target.push(kind);
        match (name.as_pathname(), name.as_abstract_name()) {
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

    /// Looks what is known of the listener that `socket` has just been connected to by `name`. `self` was
    /// made from that name before the connect.
    pub fn look(&self, name: &SocketAddr, socket: BorrowedFd<'_>) -> Found {
        // An abstract name is its listener's while the rendezvous is there. A path is if it has led to the
        // same file before and after.
        let is_still = || match name.as_pathname() {
            Some(path) => std::fs::metadata(path).is_ok_and(|file| self.0.ends_with(&inode(&file))),
            None => true,
        };
        match is_there(self, socket) {
            Found::Ours if !is_still() => Found::Missing,
            found => found,
        }
    }

    /// Whether a client needs a listener that is known for one of ours.
    fn must_be(&self) -> bool {
        self.0.get(PREFIX.len()) == Some(&STREAM_RECORDS)
    }

    /// Looks whose rendezvous is there before a client connects to its listener, where the client cannot do
    /// without it: once the client has connected, the server may have accepted it and closed its listener.
    pub fn owner_before(&self) -> Option<Process> {
        // (The line is closed at once: one that stays would have the listener wait for a visitor's message.)
        self.must_be().then(|| self.visit().ok().and_then(|line| Process::across(line.as_fd())))?
    }

    /// Connects to the rendezvous.
    fn visit(&self) -> io::Result<OwnedFd> {
        let line = socket()?;
        rustix::net::connect(&line, &self.address()?)?;
        Ok(line)
    }

    /// Brings rings to the listener that `connection` was connected to, before any byte was sent
    /// (`visit.rs`). The result hangs up once the server has looked at them, or gone.
    ///
    /// # Errors
    ///
    /// What connect(2) says; EACCES if another process than the listener's has the rendezvous.
    pub fn bring(&self, connection: BorrowedFd<'_>, rings: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let line = self.visit()?;
        if !Process::across(line.as_fd()).is_some_and(|owner| owner.is_across(connection)) {
            return Err(Errno::ACCESS);
        }
        // A visitor that could not send them is sent away like any that has none. Until then it has its place in
        // the queue, so it does not come once more.
        let _ = control::send_fd(line.as_fd(), VISIT, rings);
        Ok(line)
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

/// The socket by which clients find a listener. While there is none, their bytes go over the kernel until the
/// listener's side sends something.
#[derive(Debug)]
pub struct Rendezvous {
    target: Option<Target>,
    /// None if another process with the same listener has it, or if there was no descriptor left.
    fd: Mutex<Option<OwnedFd>>,
    accepted: AtomicU32,
    /// The accepted connections that wait for their clients' rings.
    waiting: Waiting,
}

/// A rendezvous as the handles of its listener share it. It is closed with the last of them, whoever else looks at it at
/// that moment: a rendezvous that is there says that its listener is.
#[derive(Debug)]
pub struct Kept(Arc<Rendezvous>);

impl Kept {
    /// Opens the rendezvous of a listener, as [`Rendezvous::open`] does.
    pub fn open(target: Option<Target>) -> Kept {
        Kept(Arc::new(Rendezvous::open(target)))
    }
}

impl Deref for Kept {
    type Target = Arc<Rendezvous>;

    fn deref(&self) -> &Arc<Rendezvous> {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A fork may have left it locked; then nobody of this process is inside.
        let fd = self.0.fd.lock_for(BRIEFLY).and_then(|mut fd| fd.take());
        if let Some(fd) = fd {
            // An epoll that looks at it at this moment has it open for a moment more (fs/eventpoll.c: epi_fget): nobody gets in from here on.
            let _ = rustix::net::shutdown(&fd, rustix::net::Shutdown::Both);
        }
    }
}

/// The rendezvous' queue is emptied after so many connections. Each client takes a place there, even after it
/// has closed its connection, and there may be few places (net.core.somaxconn).
const EMPTIED: u32 = 4;
/// Places in that queue; the kernel may give fewer (net.core.somaxconn).
const PLACES: i32 = 4096;

impl Rendezvous {
    /// Opens the rendezvous of a listener with that name, or none if there is no name.
    pub fn open(target: Option<Target>) -> Rendezvous {
        let fd = target.as_ref().and_then(|target| listen(target).ok());
        Rendezvous { target, fd: Mutex::new(fd), accepted: AtomicU32::new(0), waiting: Waiting::default() }
    }

    /// Returns the accepted connections that wait for their clients' rings.
    pub fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Looks at the visits that have come, until one has brought what the connection with that nonce waits for.
    pub fn look_for(&self, nonce: &Nonce) -> Option<Visit> {
        self.waiting.receive_late();
        for _ in 0..VISITS {
            if let Some(visit) = self.waiting.take(nonce) {
                return Some(visit);
            }
            let next = |fd: &OwnedFd| rustix::net::accept_with(fd, SocketFlags::CLOEXEC).ok();
            let line = self.fd.try_lock().and_then(|fd| fd.as_ref().and_then(next));
            self.waiting.receive(line?);
        }
        self.waiting.take(nonce)
    }

    /// Waits for a visit, or for what a visitor says that had said nothing, at most for so long. (Where two threads wait, one may not hear
    /// of a visitor whom the other has seen meanwhile: it looks when its time is over.)
    pub fn wait_for_visit(&self, limit: Duration) {
        // Nobody sleeps with the lock, nor with a copy of the socket, which would outlive its listener. An epoll
        // forgets a socket that is closed.
        let ear = || {
            let ear = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
            let fd = self.fd.try_lock()?;
            epoll::add(&ear, fd.as_ref()?, epoll::EventData::new_u64(0), epoll::EventFlags::IN).ok()?;
            drop(fd);
            self.waiting.hear_late(&ear);
            Some(ear)
        };
        match ear() {
            Some(ear) => {
                let _ = control::wait(ear.as_fd(), PollFlags::IN, Some(limit));
            }
            None => std::thread::sleep(limit),
        }
    }

    /// Handles an accepted connection: empties the queue now and then.
    pub fn accepted(&self) {
        let Some(target) = &self.target else { return };
        if self.accepted.fetch_add(1, Relaxed) % EMPTIED != EMPTIED - 1 {
            return;
        }
        let Some(mut fd) = self.fd.try_lock() else { return };
        match &*fd {
            // Bounded, so that an accept does not go on for as long as callers come.
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

/// How many listeners are remembered to have no rendezvous, and for how long.
const KEPT: usize = 16;
const MISSING_MS: u64 = 1000;

/// Listeners whose rendezvous was not there, and when, in coarse milliseconds. A fork may leave the lock held
/// for ever, by a thread that the child does not have; then nothing is remembered.
static MISSING: LazyLock<Mutex<Vec<(Target, u64)>>> = LazyLock::new(Mutex::default);

/// What a client finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The listener is one of ours.
    Ours,
    /// There is a rendezvous, but no place in its queue at the moment.
    Full,
    /// The listener has no rendezvous, or there is another user's.
    Missing,
}

/// Whether the rendezvous of the listener that `socket` is connected to is there, and belongs to the same
/// user.
fn is_there(target: &Target, socket: BorrowedFd<'_>) -> Found {
    let now = coarse_ms();
    if let Some(mut missing) = MISSING.try_lock() {
        // A connection with stream records cannot do without a rendezvous, so it always looks.
        missing.retain(|(of, since)| {
            now.wrapping_sub(*since) < MISSING_MS && !(of == target && target.must_be())
        });
        if missing.iter().any(|(of, _)| of == target) {
            return Found::Missing;
        }
    }
    match target.visit().and_then(|line| Ok(sockopt::socket_peercred(&line)?.uid.as_raw())) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_ring::Ring;
    use std::time::Instant;

    #[test]
    fn a_visitor_that_speaks_late_ends_the_wait_for_one() {
        let name = SocketAddr::from_abstract_name(format!("onecopy-test-visitor-{}", std::process::id()));
        let target = Target::of(&name.unwrap(), Kind::Stream, Records::Atomic).unwrap();
        let rendezvous = Rendezvous::open(Some(target.clone()));
        let rings = Ring::create(4096).unwrap().1;
        let nonce = Ring::label(&rings).unwrap();
        rendezvous.waiting().begin(nonce);
        let line = target.visit().unwrap();
        assert!(rendezvous.look_for(&nonce).is_none());
        let (began, limit) = (Instant::now(), Duration::from_secs(20));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                control::send_fd(line.as_fd(), VISIT, rings.as_fd()).unwrap();
            });
            rendezvous.wait_for_visit(limit);
        });
        assert!(began.elapsed() < limit / 2, "it took {:?}", began.elapsed());
        assert!(rendezvous.look_for(&nonce).is_some());
    }
}
