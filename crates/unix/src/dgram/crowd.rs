//! A receiver of many, and how its senders get lanes. What is received when is in `turns.rs`.
//!
//! A socket that is bound and connected to nobody listens on a beacon (one descriptor) from its first datagram on. A sender
//! that has come there and has knocked ([`super::lane`]) gets a lane: one descriptor here, the line; and a ring of the
//! capacity that a connection would have, of which the memory is taken as it is used. With the first the receiver makes a
//! door into its own queue, too, to keep itself readable. At most [`LANES`] have a lane: more senders than that,
//! and plain ones, stay with the kernel.
//!
//! What a sender does on its lane is its own business: where it lies, the lane is closed and counted, and nobody else notices.

use super::hello::Hello;
use super::lane::over_line;
use super::meet::{hear, other_end, seqpacket};
use super::words::{Answer, WORD, Word};
use crate::end::{End, PASS_CREDENTIALS, PASS_PIDFD};
use crate::making::Kind;
use crate::upgrade::{self, Nonce};
use crate::{Name, Transport};
use onecopy_ring::MIN_CAPACITY;
use onecopy_sync::atomic::AtomicU32;
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use onecopy_sync::{Mutex, MutexGuard};
use onecopy_sys::scm;
use onecopy_sys::socket::unix_address;
use onecopy_sys::unix_diag::Diag;
use onecopy_sys::user::is_known;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{SendFlags, SocketAddrUnix, SocketFlags, sockopt};
use std::cell::Cell;
use std::ffi::OsStr;
use std::io::IoSlice;
use std::ops::{Deref, DerefMut};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Most senders that have a lane at one receiver.
pub const LANES: usize = 64;
/// Lines that wait at a beacon, and those that were accepted and not yet knocked for.
const CALLERS: usize = 64;
/// Looks at one that says nothing before it is sent away. An honest one has said its hello right after connecting.
pub const SILENCE: u32 = 8;
/// Of this way of meeting: part of a beacon's name.
const VERSION: u32 = 3;

/// A receiver of many. Its lock comes after that of the receiving side.
#[derive(Debug)]
pub struct Crowd {
    state: Mutex<Gathering>,
    /// Threads that sleep in a receive, and must be woken for what lies in lanes.
    pub sleepers: AtomicU32,
    /// 1 while new senders get lanes.
    open: AtomicU32,
    /// Lanes, with one that is being made: for a fork, which takes no lock for it.
    laned: AtomicU32,
    /// 1 while there is something in lanes that comes before what anybody sends from now on.
    pub left_over: AtomicU32,
}

impl Crowd {
    pub fn lock(&self) -> Gathered<'_> {
        Gathered { laned: &self.laned, state: self.state.lock() }
    }

    /// Whether nobody holds its lock; in the child of a fork: whether nobody held it who is not there any more.
    pub fn is_free(&self) -> bool {
        self.state.try_lock().is_some()
    }
}

/// Who holds it.
#[derive(Debug)]
pub struct Gathered<'a> {
    laned: &'a AtomicU32,
    state: MutexGuard<'a, Gathering>,
}

impl Deref for Gathered<'_> {
    type Target = Gathering;

    fn deref(&self) -> &Gathering {
        &self.state
    }
}

impl DerefMut for Gathered<'_> {
    fn deref_mut(&mut self) -> &mut Gathering {
        &mut self.state
    }
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        // SeqCst as in `give_lane`; most calls find it as it is.
        let laned = self.state.lanes.len() as u32;
        if self.laned.load(Relaxed) != laned {
            self.laned.store(laned, SeqCst);
        }
    }
}

/// A thread that sleeps in a receive. It begins to under the lock of the receiving side.
#[derive(Debug)]
pub struct Asleep<'a>(&'a Crowd);

impl<'a> Asleep<'a> {
    pub fn at(crowd: &'a Crowd) -> Asleep<'a> {
        // Relaxed: who looks at it holds the same lock.
        crowd.sleepers.fetch_add(1, Relaxed);
        Asleep(crowd)
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Relaxed);
    }
}

/// Senders that have lanes, and those that are about to.
#[derive(Debug)]
pub struct Gathering {
    /// (It stays when nobody is let in any more, since a knock may be under way.)
    beacon: OwnedFd,
    /// Of the socket that receives.
    inode: u64,
    /// What only senders with lanes know.
    nonce: Nonce,
    /// Into this socket's own queue.
    door: Option<OwnedFd>,
    /// Whether a token is there.
    pub token: bool,
    callers: Vec<Caller>,
    pub lanes: Vec<Member>,
    /// Whose turn it is.
    pub cursor: usize,
    /// Datagrams from lanes since the kernel's queue was looked at.
    pub since_kernel: u32,
    /// Receives until it is looked who has died.
    pub left: u32,
    /// The socket was connected to somebody: lanes are received to their end, and nobody gets another.
    pub closing: bool,
}

/// Who has come to the beacon, and maybe said hello.
#[derive(Debug)]
struct Caller {
    line: OwnedFd,
    hello: Option<Hello>,
    /// Looks at it while it was silent.
    looks: u32,
    /// Whose it is.
    uid: Option<u32>,
}

/// A sender that has a lane.
#[derive(Debug)]
pub struct Member {
    pub end: Arc<End>,
    key: Nonce,
    /// Of the socket that sends.
    inode: u64,
    /// As the kernel has told it with the knock, or later.
    pub name: Name,
    /// What is in the ring comes next: all that it had sent over the kernel was received.
    pub live: bool,
    /// It has switched: what it sent over the kernel lies in the queue by now, if it was not received.
    pub switched: bool,
    /// There is a word in the queue behind all of that.
    pub called: bool,
    /// It is gone: what is in the ring is all there will be.
    pub dead: bool,
    /// Its name is known that it got later.
    pub named: bool,
    /// Where the ring is at its end, at the latest, once nobody may send into it.
    pub until: Option<u64>,
    /// Where it was seen empty: it is as long as nothing was put there since.
    pub empty_at: Cell<u64>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end.close();
    }
}

impl Member {
    /// The sender has a name that this side does not know yet, and has said so over the kernel.
    pub fn is_renamed(&self) -> bool {
        // Acquire pairs with the Release store in `send_on`: the word lies in the queue.
        let back = self.end.tx_ring.get();
        !self.named && back.is_some_and(|back| back.header().info.0.asks_who.load(Acquire) != 0)
    }
}

/// The name of the beacon of the receiver of many with that inode.
pub fn name_for_many(inode: u64) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("onecopy-many-{VERSION}-{inode:x}").as_bytes())
}

impl End {
    /// The senders that this socket receives from in turns, once it does.
    #[inline]
    pub fn crowd(&self) -> Option<&Crowd> {
        self.crowd.get().map(|crowd| &**crowd)
    }

    /// A datagram has come over the kernel: from here on senders may have lanes, if anybody may send here. By who holds the
    /// receiving side.
    #[inline]
    pub fn gather(&self) {
        let may = self.crowd.get().is_none() && self.meet.get().is_none() && self.life.get().is_none();
        if may && self.config.transport == Transport::Auto && self.gathered.swap(1, Relaxed) == 0 {
            // What fails leaves the kernel carrying on, for good.
            if self.gather_now().is_err() {
                self.counters.fallbacks.add(1);
            }
        }
    }

    #[cold]
    fn gather_now(&self) -> io::Result<()> {
        // A socket that processes share is the kernel's: one of them would have the lanes, and the others not.
        let shared = self.forks != crate::holders::forks() || self.maker != std::process::id();
        let named = crate::common::local_name(&self.fd).is_ok_and(|name| name != Name::unnamed());
        if shared || !named || rustix::net::getpeername(&self.fd).is_ok() {
            return Ok(());
        }
        let inode = rustix::fs::fstat(&self.fd)?.st_ino;
        let beacon = seqpacket()?;
        rustix::net::bind(&beacon, &name_for_many(inode)?)?;
        rustix::net::listen(&beacon, CALLERS as i32)?;
        let state = Gathering {
            beacon,
            inode,
            nonce: upgrade::nonce()?,
            door: None,
            token: false,
            callers: Vec::new(),
            lanes: Vec::new(),
            cursor: 0,
            since_kernel: 0,
            left: 0,
            closing: false,
        };
        let crowd = Crowd {
            state: Mutex::new(state),
            sleepers: AtomicU32::new(0),
            open: AtomicU32::new(1),
            laned: AtomicU32::new(0),
            left_over: AtomicU32::new(0),
        };
        let _ = self.crowd.set(Box::new(crowd));
        Ok(())
    }

    /// Takes a word for what it is: whether it is one of this socket's. `from`: who has sent it.
    #[cold]
    pub fn heed(&self, crowd: &mut Gathering, word: Word, from: Name) -> bool {
        match word {
            Word::Bell(nonce) => nonce == crowd.nonce,
            Word::Token(nonce) if nonce == crowd.nonce => {
                crowd.token = false;
                true
            }
            Word::Token(_) => false,
            Word::Switched { crowd: nonce, .. } if nonce != crowd.nonce => false,
            Word::Switched { lane, .. } => {
                let Some(at) = crowd.lanes.iter().position(|member| member.key == lane) else { return true };
                let member = &crowd.lanes[at];
                // Somebody else may have been made to say it.
                let its = member.name == from || is_socket(crowd, member.inode, member.end.fd(), &from);
                let member = &mut crowd.lanes[at];
                // (This side's own word has no name, nor has that of a sender who has none yet.)
                if its && from != Name::unnamed() {
                    (member.named, member.name) = (true, from);
                }
                member.live = true;
                true
            }
            // Those go with datagrams.
            Word::Knock { .. } | Word::Sign { .. } => false,
        }
    }

    /// Somebody has knocked who wants a lane. `from`: who has sent that datagram.
    #[cold]
    pub fn heed_knock(&self, crowd: &mut Gathering, knock: Word, from: Name) {
        let Word::Knock { hello, secret, cookie, inode } = knock else { return };
        // Who has said that hello may be gone, may have been one of too many, or have come to another process, since a fork.
        let Some((line, said)) = crowd.line_of(hello) else { return };
        let open = self.crowd().is_some_and(|all| all.open.load(Relaxed) != 0);
        if open && !crowd.closing && other_end(&line) == Ok(cookie) {
            // Who cannot have a lane finds the line closed.
            match self.give_lane(crowd, line, said, secret, (inode, from)) {
                Ok(true) => {}
                Ok(false) | Err(_) => self.counters.fallbacks.add(1),
            }
        }
    }

    /// Gives a sender a lane. False where there is none left.
    fn give_lane(
        &self,
        crowd: &mut Gathering,
        line: OwnedFd,
        hello: Hello,
        secret: Nonce,
        (inode, name): (u64, Name),
    ) -> io::Result<bool> {
        if !is_socket(crowd, inode, line.as_fd(), &name) {
            return Ok(false);
        }
        if crowd.lanes.len() >= LANES {
            crowd.look_who_died();
            crowd.bury();
            if crowd.lanes.len() >= LANES {
                return Ok(false);
            }
        }
        // A fork closes it and then looks how many there are, and this is the other way round (both SeqCst): one sees the other.
        let Some(all) = self.crowd() else { return Ok(false) };
        all.laned.store(crowd.lanes.len() as u32 + 1, SeqCst);
        if all.open.load(SeqCst) == 0 {
            return Ok(false);
        }
        let config = &self.config;
        let wish = hello.send_buffer;
        let capacity = upgrade::capacity_for(Kind::SeqPacket, config.receive_buffer, wish, config.max_ring);
        let lane_config =
            crate::Config { max_shared: 0, pass_credentials: false, passable: false, ..*config };
        let (mine, to) = upgrade::new_ring(capacity, &lane_config)?;
        let (theirs, back) = upgrade::new_ring(MIN_CAPACITY, &lane_config)?;
        mine.header().info.0.shut.store(self.recv_shut.load(Relaxed), Release);
        if crowd.door.is_none() {
            // While the name is certainly this socket's: later it may be another's, or none.
            crowd.door = Some(self.door(crowd)?);
        }
        let answer = Answer {
            secret,
            crowd: crowd.nonce,
            lane: upgrade::nonce()?,
            capacity: capacity as u64,
            back: MIN_CAPACITY as u64,
        };
        let end = over_line(line, mine, theirs, config).map_err(|_| Errno::NOMEM)?;
        let (asks, _) = self.asks();
        for which in [PASS_CREDENTIALS, PASS_PIDFD] {
            if asks & which != 0 {
                end.pass(which, true)?;
            }
        }
        let fds = [to.as_fd(), back.as_fd()];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        scm::send(end.fd(), &[IoSlice::new(&answer.encode())], &fds, None, flags)?;
        let (live, switched, called, dead, named, until) = (false, false, false, false, false, None);
        let (key, empty_at) = (answer.lane, Cell::new(u64::MAX));
        crowd.lanes.push(Member {
            end,
            key,
            inode,
            name,
            live,
            switched,
            called,
            dead,
            named,
            until,
            empty_at,
        });
        Ok(true)
    }

    /// A socket that is connected to this one.
    fn door(&self, crowd: &Gathering) -> io::Result<OwnedFd> {
        let me = unix_address(rustix::net::getsockname(&self.fd)?).ok_or(Errno::INVAL)?;
        let door = Kind::Datagram.socket().map_err(|_| Errno::MFILE)?;
        rustix::net::connect(&door, &me)?;
        // The path may be another's by now.
        let there = Diag::open()?.look(rustix::fs::fstat(&door)?.st_ino)?.peer;
        if there == Some(crowd.inode) { Ok(door) } else { Err(Errno::NOENT) }
    }

    /// Leaves a token in this socket's own queue, which is readable then. (Where it has no room it is.)
    pub fn leave_token(&self, crowd: &mut Gathering) {
        if crowd.token {
            return;
        }
        let Some(door) = &crowd.door else { return }; // there is no lane, and was none
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        crowd.token = rustix::net::send(door, &Word::Token(crowd.nonce).encode(), flags) == Ok(WORD);
    }

    /// A datagram was taken from the kernel's queue, and there may be more of senders who have switched: what lies behind a word of
    /// this side's own is not theirs. (Without room for it there is another datagram to take.)
    pub fn call_who_switched(&self, crowd: &mut Gathering) {
        let (Some(door), nonce) = (&crowd.door, crowd.nonce) else { return };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        for member in crowd.lanes.iter_mut().filter(|member| member.switched && !member.live) {
            let word = Word::Switched { crowd: nonce, lane: member.key };
            member.called = member.called || rustix::net::send(door, &word.encode(), flags) == Ok(WORD);
        }
    }

    /// This socket receives no more, or is to be connected to somebody: senders are told that they cannot send here, and ask
    /// the kernel what to say.
    pub fn shut_lanes(&self) {
        if let Some(crowd) = self.crowd() {
            for member in &crowd.lock().lanes {
                member.shut();
            }
        }
    }

    /// What is asked of senders has changed.
    ///
    /// # Errors
    ///
    /// What setsockopt(2) says.
    pub fn ask_lanes(&self, which: u32, on: bool) -> io::Result<()> {
        let Some(crowd) = self.crowd() else { return Ok(()) };
        crowd.lock().lanes.iter().try_for_each(|member| member.end.pass(which, on))
    }

    /// Before this socket is connected to somebody: from then on it cannot keep itself readable. And what is no datagram must not be
    /// taken for one that is lost, of which the kernel tells the peer.
    pub fn before_connecting(&self) {
        if let Some(crowd) = self.crowd() {
            let mut crowd = crowd.lock();
            if crowd.lanes.iter().any(Member::has_some) {
                self.leave_token(&mut crowd);
            } else {
                self.heed_words(&mut crowd);
            }
        }
    }

    /// It was connected to somebody: nobody else may send here. `lost`: the kernel has thrown away what lay in its queue.
    pub fn after_connecting(&self, lost: bool) {
        let Some(crowd) = self.crowd() else { return };
        let mut state = crowd.lock();
        crowd.open.store(0, SeqCst);
        if lost {
            state.lanes.clear();
            state.token = false;
        }
        state.closing = !state.lanes.is_empty();
        crowd.left_over.store(u32::from(state.closing), Relaxed);
        for member in &mut state.lanes {
            member.until = Some(member.shut());
            member.live = true;
        }
    }

    /// Before a fork: what has lanes is one process's; what has none is the kernel's, and everybody's. Whether it has some.
    pub fn crowd_forks(&self) -> bool {
        let Some(crowd) = self.crowd() else { return false };
        let open = crowd.open.swap(0, SeqCst);
        let has_some = crowd.laned.load(SeqCst) > 0;
        if has_some {
            crowd.open.store(open, SeqCst);
        }
        has_some
    }
}

/// Whether that socket has that name, sends to this one, and is the same user's who is at the other end of `line`: not somebody
/// else's who was made to say what another one wants.
fn is_socket(crowd: &Gathering, inode: u64, line: BorrowedFd<'_>, name: &Name) -> bool {
    let known = Diag::open().and_then(|diag| diag.look(inode));
    let user = sockopt::socket_peercred(line).map(|cred| cred.uid.as_raw());
    let (Ok(known), Ok(user)) = (known, user) else { return false };
    let called = match known.name.as_deref() {
        None | Some([]) => Name::unnamed(),
        Some([0, name @ ..]) => Name::abstract_(name),
        Some(path) => Name::path(OsStr::from_bytes(path.strip_suffix(&[0]).unwrap_or(path))),
    };
    let its = known.peer == Some(crowd.inode) && called == *name;
    its && known.uid == Some(user) && is_known(user)
}

impl Member {
    /// Nobody sends here any more: at most a ring full of what was sent, or is just being, is still received. Up to where.
    fn shut(&self) -> u64 {
        if let Some(ring) = self.end.rx_ring.get() {
            // Release pairs with nothing that matters: a sender that sees it asks the kernel.
            ring.header().info.0.shut.store(1, Release);
        }
        if let Some(mut rx) = self.end.rx.try_lock()
            && let crate::rx::Rx::Ring(ring) = &mut *rx
        {
            // A sender that is asleep for room is told by that.
            let _ = ring.unpark_now(&self.end);
            return ring.consumer.position().saturating_add(ring.consumer.ring().capacity() as u64);
        }
        u64::MAX
    }
}

impl Gathering {
    /// Looks which senders have switched. Whether some of what they sent over the kernel may be left.
    pub fn look_who_switched(&mut self) -> bool {
        let mut some = false;
        for member in self.lanes.iter_mut().filter(|member| !member.live) {
            let ring = member.end.rx_ring.get();
            // Acquire pairs with the Release store in `switch`.
            member.switched |= ring.is_some_and(|ring| ring.header().writer.0.switch_at.load(Acquire) != 0);
            some |= member.switched;
        }
        some
    }

    /// The kernel's queue was seen empty since: what those send who have switched is next. Whether there are any.
    pub fn let_switched(&mut self) -> bool {
        let mut some = false;
        for member in self.lanes.iter_mut().filter(|member| member.switched && !member.live) {
            member.live = true;
            some = true;
        }
        some
    }

    /// What only senders with lanes know.
    #[cfg(test)]
    pub fn nonce_of_all(&self) -> Nonce {
        self.nonce
    }

    /// Takes in who waits at the beacon, so that those who never knock keep nobody else away.
    pub fn let_in(&mut self) {
        for _ in 0..CALLERS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(line) = rustix::net::accept_with(&self.beacon, flags) else { break };
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

    /// Who is sent away where too many have come: the oldest that says nothing, else the oldest of the user that has most.
    fn one_too_many(&self) -> usize {
        if let Some(silent) = self.callers.iter().position(|caller| caller.hello.is_none()) {
            return silent;
        }
        let of = |uid| self.callers.iter().filter(|caller| caller.uid == uid).count();
        let most = self.callers.iter().max_by_key(|caller| of(caller.uid)).and_then(|caller| caller.uid);
        self.callers.iter().position(|caller| caller.uid == most).unwrap_or(0)
    }

    /// The line on which that was said, if it came to the beacon.
    fn line_of(&mut self, hello: Nonce) -> Option<(OwnedFd, Hello)> {
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
