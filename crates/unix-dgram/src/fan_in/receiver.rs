//! A fan-in receiver: its lanes, and the callers that have come to ask for one.

use crate::fan_in::turns::Turns;
use crate::pairing::line::hear;
use crate::wire::hello::Hello;
use onecopy_sync::atomic::AtomicU32;
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use onecopy_sync::{Mutex, MutexGuard};
use onecopy_sys::unix_diag::Diag;
use onecopy_sys::user::is_known;
use onecopy_unix::connection::Connection;
use onecopy_unix::handshake::upgrade::Nonce;
use onecopy_unix::{SocketAddr, ToSocketAddr};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self};
use rustix::net::{SocketAddrUnix, SocketFlags, sockopt};
use std::cell::Cell;
use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// The most senders that have a lane at one receiver.
pub const LANES: usize = 64;

/// [`Turns`] has a bit for each.
const _: () = assert!(LANES <= u64::BITS as usize);

/// The most lines in a rendezvous listener's backlog, and the most that were accepted and have not asked to
/// join yet.
pub const CALLERS: usize = 64;

/// Looks at a caller that says nothing, after which it is sent away. An honest one sends its hello right
/// after connecting.
pub const SILENCE: u32 = 8;

/// The version of this protocol: part of a rendezvous listener's name.
pub const VERSION: u32 = 4;

/// A fan-in receiver. Its lock comes after that of the receiving side.
#[derive(Debug)]
pub struct FanInReceiver {
    pub(super) state: Mutex<FanIn>,
    /// Threads that sleep in a receive, and must be woken for what is in lanes.
    pub(super) sleepers: AtomicU32,
    /// 1 while new senders get lanes.
    pub(super) open: AtomicU32,
    /// The number of lanes, including one that is being made. For a fork, which takes no lock for it.
    pub(super) laned: AtomicU32,
    /// 1 while lanes hold datagrams that come before any that are sent from now on.
    pub(super) left_over: AtomicU32,
}

impl FanInReceiver {
    pub fn lock(&self) -> FanInGuard<'_> {
        FanInGuard { laned: &self.laned, state: self.state.lock() }
    }

    /// Whether lanes hold datagrams that come before any that are sent from now on.
    pub fn has_left_over(&self) -> bool {
        self.left_over.load(Relaxed) != 0
    }

    /// Whether nobody holds the lock. In the child of a fork: whether no thread that is gone held it.
    pub fn is_free(&self) -> bool {
        self.state.try_lock().is_some()
    }
}

/// The held lock.
#[derive(Debug)]
pub struct FanInGuard<'a> {
    laned: &'a AtomicU32,
    state: MutexGuard<'a, FanIn>,
}

impl Deref for FanInGuard<'_> {
    type Target = FanIn;

    fn deref(&self) -> &FanIn {
        &self.state
    }
}

impl DerefMut for FanInGuard<'_> {
    fn deref_mut(&mut self) -> &mut FanIn {
        &mut self.state
    }
}

impl Drop for FanInGuard<'_> {
    fn drop(&mut self) {
        // SeqCst as in `give_lane`; most calls find the number unchanged.
        let laned = self.state.lanes.len() as u32;
        if self.laned.load(Relaxed) != laned {
            self.laned.store(laned, SeqCst);
        }
    }
}

/// A thread that sleeps in a receive. It is counted under the lock of the receiving side.
#[derive(Debug)]
pub struct Asleep<'a>(&'a FanInReceiver);

impl<'a> Asleep<'a> {
    pub fn at(fan_in: &'a FanInReceiver) -> Asleep<'a> {
        // Relaxed: a thread that looks at it holds the same lock.
        fan_in.sleepers.fetch_add(1, Relaxed);
        Asleep(fan_in)
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Relaxed);
    }
}

/// Senders that have lanes, and those that are about to.
#[derive(Debug)]
pub struct FanIn {
    /// Stays after the receiver admits nobody any more, since a join request may be in flight.
    pub(super) rendezvous: OwnedFd,
    /// The inode of the socket that receives.
    pub(super) inode: u64,
    /// Known only to senders with lanes.
    pub(super) nonce: Nonce,
    /// Leads into this socket's own queue.
    pub(super) door: Option<OwnedFd>,
    /// Whether a token is in the queue.
    pub(super) token: bool,
    pub(super) callers: Vec<Caller>,
    pub(super) lanes: Vec<Member>,
    pub(super) turns: Turns,
    /// Every lane was seen live, and none came since: most receives need not look who has switched.
    pub(super) all_live: bool,
    /// Datagrams from lanes since the last look into the kernel's queue.
    pub(super) since_kernel: u32,
    /// Receives until the next look at which senders have died.
    pub(super) left: u32,
    /// The socket was connected. Its lanes are received to their end, and nobody gets another.
    pub(super) closing: bool,
}

/// A caller that has come to the rendezvous listener, and maybe said hello.
#[derive(Debug)]
pub struct Caller {
    line: OwnedFd,
    hello: Option<Hello>,
    /// Looks at it while it was silent.
    looks: u32,
    /// The user that it belongs to.
    uid: Option<u32>,
}

/// A sender that has a lane.
#[derive(Debug)]
pub struct Member {
    pub(super) end: Arc<Connection>,
    pub(super) key: Nonce,
    /// The inode of the socket that sends.
    pub(super) inode: u64,
    /// The sender's name, as the kernel told it with the join request or later.
    pub(super) name: SocketAddr,
    /// Everything that the sender sent over the kernel was received, so what is in the ring comes next.
    pub(super) live: bool,
    /// The sender has switched: what it sent over the kernel is in the queue by now, or was received.
    pub(super) switched: bool,
    /// A control message is in the queue behind all of that.
    pub(super) called: bool,
    /// The sender is gone, so nothing will be added to the ring.
    pub(super) dead: bool,
    /// The name that the sender got later is known.
    pub(super) named: bool,
    /// Where the ring ends at the latest, once nobody may send into it.
    pub(super) until: Option<u64>,
    /// The position at which the ring was seen empty. It is still empty if nothing was added since.
    pub(super) empty_at: Cell<u64>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end.close();
    }
}

impl Member {
    /// Whether the sender has a name that this side does not know yet, and has said so over the kernel.
    pub fn is_renamed(&self) -> bool {
        // Acquire pairs with the Release store in `send_on`: the control message is in the queue.
        let back = self.end.tx_ring();
        !self.named && back.is_some_and(|back| back.header().info.0.renamed.load(Acquire) != 0)
    }
}

impl Member {
    /// Tells the sender not to send any more. What it has sent, or is just sending, is still received, which
    /// is at most one full ring. Returns the position up to which.
    pub(super) fn shut(&self) -> u64 {
        if let Some(ring) = self.end.rx_ring() {
            // No Acquire load depends on this Release: a sender that sees the flag asks the kernel.
            ring.header().info.0.shut.store(1, Release);
        }
        if let Some(mut rx) = self.end.rx().try_lock()
            && let onecopy_unix::connection::rx::Rx::Ring(ring) = &mut *rx
        {
            // This wakes a sender that sleeps for room.
            let _ = ring.unpark_now(&self.end);
            return ring.full_at();
        }
        u64::MAX
    }
}

/// Returns the name of the rendezvous listener of the fan-in receiver with that inode.
pub fn name_for_many(inode: u64) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("onecopy-many-{VERSION}-{inode:x}").as_bytes())
}

/// Whether the socket with that inode has that name, sends to this one, and belongs to the user at the other
/// end of `line`. This keeps out a program that made another user's socket send a join request.
pub fn is_sender(fan_in: &FanIn, inode: u64, line: BorrowedFd<'_>, name: &SocketAddr) -> bool {
    let known = Diag::open().and_then(|diag| diag.look(inode));
    let user = sockopt::socket_peercred(line).map(|cred| cred.uid.as_raw());
    let (Ok(known), Ok(user)) = (known, user) else { return false };
    let called = match known.name.as_deref() {
        None | Some([]) => SocketAddr::unnamed(),
        Some([0, name @ ..]) => match SocketAddr::from_abstract_name(name) {
            Ok(name) => name,
            Err(_) => return false,
        },
        Some(path) => OsStr::from_bytes(path.strip_suffix(&[0]).unwrap_or(path)).to_socket_addr(),
    };
    let its = known.peer == Some(fan_in.inode) && called == *name;
    its && known.uid == Some(user) && is_known(user)
}

impl FanIn {
    /// Looks which senders have switched. Returns whether some of what they sent over the kernel may be left.
    pub fn look_who_switched(&mut self) -> bool {
        let mut some = false;
        if self.all_live {
            return some;
        }
        self.all_live = true;
        for member in self.lanes.iter_mut().filter(|member| !member.live) {
            self.all_live = false;
            let ring = member.end.rx_ring();
            // Acquire pairs with the Release store in `switch`.
            member.switched |= ring.is_some_and(|ring| ring.header().writer.0.switch_at.load(Acquire) != 0);
            some |= member.switched;
        }
        some
    }

    /// Makes the lanes of senders that have switched come next, since the kernel's queue was seen empty after
    /// that. Returns whether there are any.
    pub fn let_switched(&mut self) -> bool {
        let mut some = false;
        for member in self.lanes.iter_mut().filter(|member| member.switched && !member.live) {
            member.live = true;
            some = true;
        }
        some
    }

    /// Notes that the kernel's queue had its turn.
    pub fn kernel_had_its_turn(&mut self) {
        self.since_kernel = 0;
    }

    /// Whether any sender has a lane.
    #[cfg(test)]
    pub fn has_any(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// Returns what only senders with lanes know.
    #[cfg(test)]
    pub fn nonce_of_all(&self) -> Nonce {
        self.nonce
    }

    /// Accepts the callers that wait at the rendezvous listener, so that those which never ask to join keep
    /// nobody else away.
    pub fn let_in(&mut self) {
        for _ in 0..CALLERS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(line) = rustix::net::accept_with(&self.rendezvous, flags) else { break };
            let uid = sockopt::socket_peercred(&line).ok().map(|cred| cred.uid.as_raw());
            self.callers.push(Caller { line, hello: None, looks: 0, uid });
        }
        self.callers.retain_mut(|caller| {
            if caller.hello.is_some() {
                return true;
            }
            caller.looks += 1;
            hear(caller.line.as_fd()).is_ok_and(|said| {
                caller.hello = said.map(|(hello, _)| hello);
                caller.hello.is_some() || caller.looks < SILENCE
            })
        });
        while self.callers.len() > CALLERS {
            let away = self.one_too_many();
            self.callers.remove(away);
        }
    }

    /// Returns the caller to send away if too many have come. It is the oldest that says nothing, else the
    /// oldest of the user that has the most.
    pub(super) fn one_too_many(&self) -> usize {
        if let Some(silent) = self.callers.iter().position(|caller| caller.hello.is_none()) {
            return silent;
        }
        let of = |uid| self.callers.iter().filter(|caller| caller.uid == uid).count();
        let most = self.callers.iter().max_by_key(|caller| of(caller.uid)).and_then(|caller| caller.uid);
        self.callers.iter().position(|caller| caller.uid == most).unwrap_or(0)
    }

    /// Returns the line on which that hello came, if it came to the rendezvous listener.
    pub(super) fn line_of(&mut self, hello: Nonce) -> Option<(OwnedFd, Hello)> {
        self.let_in();
        let found =
            self.callers.iter().position(|caller| caller.hello.is_some_and(|said| said.nonce == hello))?;
        let caller = self.callers.remove(found);
        Some((caller.line, caller.hello?))
    }

    /// Looks which lines have hung up, without waiting: one call for all of them.
    #[cold]
    pub fn look_who_died(&mut self) {
        let dead: Vec<bool> = {
            let mut fds: Vec<PollFd<'_>> =
                self.lanes.iter().map(|m| PollFd::from_borrowed_fd(m.end.fd(), PollFlags::empty())).collect();
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            if !matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(n) if n > 0) {
                return;
            }
            fds.iter().map(|fd| fd.revents().contains(PollFlags::HUP)).collect()
        };
        for (member, dead) in self.lanes.iter_mut().zip(dead) {
            member.dead |= dead;
        }
    }
}
