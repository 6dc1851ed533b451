//! How two datagram sockets that are connected to each other come to share memory.
//!
//! Neither can tell the other in its own datagrams before it knows that the other is one of ours: a plain program would
//! receive them. And neither may believe a datagram that somebody else could have sent. So each looks now and then, in
//! its own calls, whether the kernel (sock_diag(7)) says that its peer is connected to it; if so:
//!
//! 1. One of the two listens on a *beacon*, a seqpacket socket whose abstract name is the inode of its datagram socket.
//!    The other connects to it, and believes it only if whoever listens there is the user that the peer's socket
//!    belongs to (SO_PEERCRED, UNIX_DIAG_UID). It sends a [`Hello`] with a nonce of its own.
//! 2. Who listens checks the same of who has connected, and answers with a nonce of its own and the memfd of its ring.
//! 3. Who asked sends the memfd of its ring there, then a *sign* as a datagram: the other's nonce, and the cookie
//!    (SO_COOKIE) of its own end of that line.
//! 4. Who answered finds that sign in its queue, which no other socket could have put there: the nonce was made after the
//!    kernel's connection was, and to a connected socket the kernel lets only its peer send. And it is its peer
//!    that is at the other end of the line, not somebody between the two: of that end the kernel says (UNIX_DIAG_PEER)
//!    that it has that cookie. So it sends a sign likewise, and from there on through the asker's ring.
//! 5. Who asked finds it, checks the same, receives from its ring from there on, sends a second sign, and from there on
//!    through the other's ring, which that one receives from when it finds the second sign.
//!
//! So neither uses memory before its peer has said, over the kernel's own connection, that it is its peer's: a stranger,
//! even one of the same user, can neither inject a datagram nor divert one. One of the same user can make a socket send 64
//! bytes to a plain peer, and can keep two from sharing memory. Users that this user namespace does not know
//! all look the same, and are nobody. The connection to the beacon stays as the lifeline, and as the channel for what
//! travels with datagrams (`channel.rs`). Each direction switches
//! where its sender's (last) sign lies among the datagrams: their order stays. Nobody waits for anybody, and whatever fails
//! leaves the kernel carrying on.
//!
//! Where the peer is connected to nobody it may be a receiver of many: see `lane.rs`.

mod line;
mod switch;

use line::{ask, open_ring};
pub use line::{beacon_name, hear, is_user, other_end, overflow_uid, say, seqpacket};

use super::hello::Hello;
use crate::Name;
use crate::control;
use crate::dgram::crowd::name_for_many;
use crate::dgram::lane::{Knocking, Lane};
use crate::end::End;
use crate::making::Kind;
use crate::rx::Rx;
use crate::upgrade::{self, Nonce};
use onecopy_ring::Ring;
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::Release};
use onecopy_sys::unix_diag::Diag;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, sockopt};
use std::sync::{Arc, OnceLock, Weak};

/// Calls between two looks, at most: while nothing is known of the peer, and while something is under way.
const RARELY: u32 = 1024;
const OFTEN: u32 = 16;
/// Connections to a beacon that are looked at in one call.
const ASKERS: usize = 4;
/// Looks at a visitor who says nothing before it is sent away. An honest one has sent its hello right after connecting.
const SILENCE: u32 = 8;
/// What a sign says besides ([`Hello::send_buffer`]): who I am; and that what I send lies in the ring from here on.
const PRESENT: u64 = 1;
const SWITCHED: u64 = 2;

/// What an end knows of its peer, from when it connects until both directions have switched, or will not.
#[derive(Debug, Default)]
pub struct Meeting {
    /// 1 while it may yet come to anything.
    open: AtomicU32,
    /// 1 while the next datagram may be the nonce that says that the peer has switched.
    expecting: AtomicU32,
    /// 1 while there is an offer.
    offered: AtomicU32,
    /// An errno of the kernel's that is to be told by the next send.
    untold: AtomicU32,
    /// Calls until the next look, and between that and the one after it.
    left: AtomicU32,
    pause: AtomicU32,
    /// What the peer was called when its ring came into use.
    sender: OnceLock<Name>,
    /// Who holds it only ever tries the locks of the two sides.
    state: Mutex<State>,
    /// 1 while there is a lane.
    laned: AtomicU32,
    /// Where this socket sends, if it has a lane at a receiver of many: changed by who holds the sending side.
    lane: Mutex<Option<Arc<Lane>>>,
    /// This socket.
    front: OnceLock<Weak<End>>,
}

#[derive(Debug, Default)]
pub struct State {
    pub phase: Phase,
    /// The peer's ring, and the nonce to send before anything goes there.
    offer: Option<(Ring, Nonce)>,
    /// This side's ring, and the nonce behind which its datagrams are in there.
    incoming: Option<(Ring, Nonce)>,
    /// The cookie of the peer's end of the line, once the peer has said it is its.
    trusted: Option<u64>,
    /// A lane at a receiver of many, to be told of before anything goes there.
    pub lane: Option<Lane>,
}

#[derive(Debug, Default)]
pub enum Phase {
    /// Nothing is known of the peer.
    #[default]
    Alone,
    /// It is to come to the beacon, which was looked at so many times.
    Listening(OwnedFd, u32),
    /// Somebody came to the beacon, who has said nothing yet in so many looks.
    Visited(OwnedFd, OwnedFd, u32),
    /// This side has asked, with that nonce.
    Asked(OwnedFd, Nonce),
    /// This side has answered.
    Answered(Line),
    /// This side knows the other's ring, and has, or has not yet, sent the sign that says who it is.
    Shown(Line, Ring, bool),
    /// This side has come to the beacon of a receiver of many.
    Knocking(Knocking),
    /// All is said.
    Met,
}

/// A connection to who may be the peer.
#[derive(Debug)]
pub struct Line {
    fd: OwnedFd,
    /// What to send to the peer, in a sign.
    nonce: Nonce,
    /// Of the other end, as the kernel says. (Kept: it does not say so any more when that end is closed.)
    cookie: u64,
}

/// What comes next in the kernel's queue.
pub enum Next {
    /// The peer's sign, which was taken.
    Sign,
    /// Nothing yet. What comes from here on may be the sign.
    Nothing,
    /// Something else, or an error.
    Other,
}

impl Meeting {
    pub fn is_open(&self) -> bool {
        self.open.load(Relaxed) != 0
    }

    /// What the peer of the ring was called.
    pub fn sender(&self) -> Option<Name> {
        self.sender.get().cloned()
    }

    /// Whether the next datagram may be a nonce.
    #[inline]
    pub fn is_expecting(&self) -> bool {
        self.expecting.load(Relaxed) != 0
    }

    /// Begins anew with another peer, or gives up.
    pub fn reset(&self, open: bool) {
        self.leave();
        // (The last hold on it is given up without the lock.)
        let left = self.lane.lock().take();
        self.laned.store(0, Relaxed);
        drop(left);
        let mut state = self.state.lock();
        state.phase = Phase::Alone;
        state.offer = None;
        state.lane = None;
        state.trusted = None;
        if open {
            // (Else, a nonce that was on its way is still to be known for what it is.)
            state.incoming = None;
            self.expecting.store(0, Relaxed);
        }
        self.offered.store(0, Relaxed);
        self.untold.store(0, Relaxed);
        self.open.store(u32::from(open), Relaxed);
        self.left.store(1, Relaxed);
        self.pause.store(1, Relaxed);
    }

    /// This end leaves its peer, or receives no more. That one may be sending into a ring that nobody receives from yet, and
    /// looks there.
    pub fn leave(&self) {
        if let Some((ring, _)) = &self.state.lock().incoming {
            ring.header().info.0.shut.store(1, Release);
        }
    }

    /// Whether this is a call that looks. Calls at once may disagree by a few.
    fn is_due(&self) -> bool {
        let left = self.left.load(Relaxed);
        if left > 0 {
            self.left.store(left - 1, Relaxed);
            return false;
        }
        let pause = self.pause.load(Relaxed);
        self.left.store(pause, Relaxed);
        self.pause.store(pause.saturating_mul(2).min(RARELY), Relaxed);
        true
    }

    /// Whether what is sent goes over a lane.
    #[inline]
    pub fn is_laned(&self) -> bool {
        self.laned.load(Relaxed) != 0
    }

    /// The lane, once what is sent goes there.
    pub fn lane(&self) -> Option<Arc<Lane>> {
        if self.is_laned() { self.lane.lock().clone() } else { None }
    }

    /// Who the socket is.
    pub fn is_of(&self, front: &Arc<End>) {
        self.front.get_or_init(|| Arc::downgrade(front));
    }

    pub fn front(&self) -> Option<Weak<End>> {
        self.front.get().cloned()
    }

    /// There is something that the sending side may switch to.
    pub fn offer(&self) {
        self.offered.store(1, Relaxed);
    }

    /// It came to nothing, and is tried again after a while.
    pub fn rest(&self) {
        self.left.store(RARELY, Relaxed);
        self.pause.store(RARELY, Relaxed);
    }

    fn hurry(&self) {
        self.left.store(0, Relaxed);
        self.pause.store(1, Relaxed);
    }
}

impl End {
    /// The meeting with the peer, while it may yet come to anything.
    #[inline]
    pub fn meeting(&self) -> Option<&Meeting> {
        self.meet.get().map(|meeting| &**meeting).filter(|meeting| meeting.is_open())
    }

    /// In each call: goes on with the meeting, if it is time for that.
    #[inline]
    pub fn meet_now_and_then(&self) {
        if let Some(meeting) = self.meeting()
            && meeting.is_due()
        {
            self.meet(meeting);
        }
    }

    #[cold]
    fn meet(&self, meeting: &Meeting) {
        let Some(mut state) = meeting.state.try_lock() else { return };
        match self.go_on(meeting, &mut state) {
            Ok(true) => meeting.hurry(),
            Ok(false) => {
                if !matches!(state.phase, Phase::Alone) {
                    meeting.pause.store(meeting.pause.load(Relaxed).min(OFTEN), Relaxed);
                }
            }
            Err(_) => {
                // Refused, or nonsense: this side goes on over the kernel. What was agreed stays.
                self.counters.fallbacks.add(1);
                state.phase = Phase::Met;
                meeting.open.store(0, Relaxed);
            }
        }
    }

    /// One step. Whether there was one to make.
    fn go_on(&self, meeting: &Meeting, state: &mut State) -> io::Result<bool> {
        match std::mem::take(&mut state.phase) {
            Phase::Alone => {
                let (me, peer, uid) = match self.look_at_peer()? {
                    Seen::Nobody => return Ok(false),
                    Seen::OfMany(peer, uid) => {
                        let Some(line) = ask(&name_for_many(peer)?, uid)? else { return Ok(false) };
                        state.phase = self.come(line)?;
                        return Ok(true);
                    }
                    Seen::Mutual(me, peer, uid) => (me, peer, uid),
                };
                if let Some(line) = ask(&beacon_name(peer)?, uid)? {
                    state.phase = self.asked(line)?;
                } else {
                    let beacon = seqpacket()?;
                    rustix::net::bind(&beacon, &beacon_name(me)?)?;
                    rustix::net::listen(&beacon, ASKERS as i32)?;
                    state.phase = Phase::Listening(beacon, 0);
                }
                Ok(true)
            }
            Phase::Listening(beacon, looks) => {
                state.phase = self.visited(beacon, looks.saturating_add(1))?;
                Ok(!matches!(state.phase, Phase::Listening(..)))
            }
            Phase::Visited(beacon, line, looks) => {
                // Once the peer has this side's ring its sign may come, and another thread that looked before whether one is
                // expected would receive it as a datagram.
                let Some(_nobody_receives) = self.rx.try_lock() else {
                    state.phase = Phase::Visited(beacon, line, looks);
                    return Ok(false);
                };
                let answered = match hear(line.as_fd()) {
                    Ok(None) if looks < SILENCE => {
                        state.phase = Phase::Visited(beacon, line, looks + 1);
                        return Ok(false);
                    }
                    Ok(Some((hello, _))) => self.answer(line, &hello),
                    // Nothing, or nonsense: whoever it was, the peer may yet come.
                    Ok(None) | Err(_) => {
                        state.phase = Phase::Listening(beacon, 0);
                        return Ok(false);
                    }
                };
                let (line, ring, nonce) = answered?;
                state.incoming = Some((ring, nonce));
                meeting.expecting.store(1, Relaxed);
                state.phase = Phase::Answered(line);
                Ok(true)
            }
            Phase::Asked(line, nonce) => {
                let Some(_nobody_receives) = self.rx.try_lock() else {
                    state.phase = Phase::Asked(line, nonce);
                    return Ok(false);
                };
                let Some((hello, memfd)) = hear(line.as_fd())? else {
                    state.phase = Phase::Asked(line, nonce);
                    return Ok(false);
                };
                let theirs = open_ring(&hello, memfd, &self.config).ok_or(Errno::PROTO)?;
                let cookie = other_end(&line)?;
                let (mine, memfd) = self.ring_for(&hello)?;
                let capacity = mine.capacity() as u64;
                let answer = Hello { nonce, capacity, send_buffer: self.wish() };
                control::send_fd(line.as_fd(), &answer.encode(), memfd.as_fd())?;
                state.incoming = Some((mine, nonce));
                meeting.expecting.store(1, Relaxed);
                state.phase = Phase::Shown(Line { fd: line, nonce: hello.nonce, cookie }, theirs, false);
                Ok(true)
            }
            Phase::Shown(line, ring, false) => {
                let shown = self.show(meeting, &line)?;
                state.phase = Phase::Shown(line, ring, shown);
                Ok(shown)
            }
            Phase::Answered(line) => {
                let left = control::gone(line.fd.as_fd());
                state.phase = Phase::Answered(line);
                self.find_it(meeting, state, left)
            }
            Phase::Shown(line, ring, true) => {
                let left = control::gone(line.fd.as_fd());
                state.phase = Phase::Shown(line, ring, true);
                self.find_it(meeting, state, left)
            }
            Phase::Knocking(knocking) => self.go_on_knocking(meeting, state, knocking),
            Phase::Met => {
                state.phase = Phase::Met;
                self.adopt_now(meeting, state);
                Ok(false)
            }
        }
    }

    /// Who listens looks whether the peer has come.
    fn visited(&self, beacon: OwnedFd, looks: u32) -> io::Result<Phase> {
        for _ in 0..ASKERS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(line) = rustix::net::accept_with(&beacon, flags) else { break };
            // Strangers are closed.
            if let Some((_, _, uid)) = self.mutual()?
                && is_user(&line, uid)
            {
                return Ok(Phase::Visited(beacon, line, 0));
            }
        }
        // Both may have come to listen at once; then one goes and asks after all. To find out costs more than a look.
        if looks.is_power_of_two()
            && let Some((me, peer, uid)) = self.mutual()?
            && me < peer
            && let Some(line) = ask(&beacon_name(peer)?, uid)?
        {
            return self.asked(line);
        }
        Ok(Phase::Listening(beacon, looks))
    }

    /// A ring to receive into.
    fn ring_for(&self, hello: &Hello) -> io::Result<(Ring, OwnedFd)> {
        let config = &self.config;
        let capacity =
            upgrade::capacity_for(Kind::Datagram, config.receive_buffer, hello.send_buffer, config.max_ring);
        let made = upgrade::new_ring(capacity, config)?;
        made.0.header().info.0.shut.store(self.recv_shut.load(Relaxed), Release);
        Ok(made)
    }

    pub fn wish(&self) -> u64 {
        upgrade::wish(self.config.send_buffer)
    }

    fn asked(&self, line: OwnedFd) -> io::Result<Phase> {
        let nonce = upgrade::nonce()?;
        say(&line, &Hello { nonce, capacity: 0, send_buffer: self.wish() })?;
        Ok(Phase::Asked(line, nonce))
    }

    /// Answers who asked. The line, the ring to receive from, and the nonce that was given.
    fn answer(&self, line: OwnedFd, hello: &Hello) -> io::Result<(Line, Ring, Nonce)> {
        let cookie = other_end(&line)?;
        let (ring, memfd) = self.ring_for(hello)?;
        let nonce = upgrade::nonce()?;
        let answer = Hello { nonce, capacity: ring.capacity() as u64, send_buffer: self.wish() };
        control::send_fd(line.as_fd(), &answer.encode(), memfd.as_fd())?;
        Ok((Line { fd: line, nonce: hello.nonce, cookie }, ring, nonce))
    }

    /// Tells the peer, in a datagram, which end of which line is this side's. Whether it could be sent now.
    fn show(&self, meeting: &Meeting, line: &Line) -> io::Result<bool> {
        if control::gone(line.fd.as_fd()) {
            return Err(Errno::CONNRESET);
        }
        // Under the lock of the sending side there is no other peer meanwhile.
        let Some(tx) = self.tx.try_lock() else { return Ok(false) };
        point!("about to show itself");
        let sent = self.send_sign(&line.fd, line.nonce, PRESENT);
        tx.unlock_fenced();
        self.welcome_back();
        match sent {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => {
                self.tell_later(meeting, errno);
                Err(errno)
            }
        }
    }

    /// The kernel has told it to a send of this side's own: a reset is for whichever call comes next, and that the peer is gone for
    /// a send; all else it says again.
    #[cold]
    pub fn tell_later(&self, meeting: &Meeting, errno: Errno) {
        match errno {
            Errno::CONNRESET => self.reset.store(1, Relaxed),
            Errno::CONNREFUSED => meeting.untold.store(errno.raw_os_error() as u32, Relaxed),
            _ => {}
        }
    }

    fn send_sign(&self, line: &OwnedFd, nonce: Nonce, what: u64) -> io::Result<()> {
        let sign = Hello { nonce, capacity: sockopt::socket_cookie(line)?, send_buffer: what };
        rustix::net::send(&self.fd, &sign.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
    }

    /// Looks for the peer's sign, which who only sends would never find. `left`: it will send none any more.
    fn find_it(&self, meeting: &Meeting, state: &mut State, left: bool) -> io::Result<bool> {
        let Some(mut rx) = self.rx.try_lock() else { return Ok(false) };
        if !matches!(&*rx, Rx::Plain) {
            return Ok(false);
        }
        if matches!(self.find_nonce(meeting, state, &mut rx), Next::Sign) {
            return Ok(true);
        }
        // It may lie behind what was not received yet.
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match rustix::net::recv(&self.fd, &mut [0u8; 1][..], flags) {
            Err(Errno::AGAIN) if left => Err(Errno::CONNRESET),
            _ => Ok(false),
        }
    }

    /// This socket's inode, its peer's, and that one's user, if the kernel says that it is connected to this one.
    pub fn mutual(&self) -> io::Result<Option<(u64, u64, u32)>> {
        Ok(match self.look_at_peer()? {
            Seen::Mutual(me, peer, uid) => Some((me, peer, uid)),
            Seen::OfMany(..) | Seen::Nobody => None,
        })
    }

    fn look_at_peer(&self) -> io::Result<Seen> {
        let diag = Diag::open()?;
        let me = rustix::fs::fstat(&self.fd)?.st_ino;
        let Some(peer) = diag.look(me)?.peer else { return Ok(Seen::Nobody) };
        if peer == me {
            return Err(Errno::LOOP); // there is nothing to be gained
        }
        let known = diag.look(peer)?;
        if known.uid == Some(overflow_uid()) {
            return Err(Errno::PERM); // who that is cannot be told
        }
        Ok(match (known.uid, known.peer) {
            (Some(uid), Some(other)) if other == me => Seen::Mutual(me, peer, uid),
            (Some(uid), None) => Seen::OfMany(peer, uid),
            _ => Seen::Nobody,
        })
    }

    /// The inode of the socket that this one is connected to, if the kernel tells.
    pub fn peer_inode(&self) -> Option<u64> {
        let me = rustix::fs::fstat(&self.fd).ok()?.st_ino;
        Diag::open().ok()?.look(me).ok()?.peer
    }
}

/// Whom a socket is connected to: inodes, and that one's user.
enum Seen {
    /// To nobody, or to one that is connected to another.
    Nobody,
    /// To one that is connected to it: this one's inode, and that one's.
    Mutual(u64, u64, u32),
    /// To one that is connected to nobody.
    OfMany(u64, u32),
}
