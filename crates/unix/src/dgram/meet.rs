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
//! 3. Who asked sends the memfd of its ring there, then the other's nonce as a *datagram*, and from then on sends through
//!    the other's ring.
//! 4. Who answered finds that nonce in its queue, which no other socket could have put there: it was made after the
//!    kernel's connection was, and to a connected socket the kernel lets only its peer send. So it receives from its ring
//!    from there on, sends the asker's nonce as a datagram, and sends through the asker's ring, who finds it likewise.
//!
//! So a stranger, even one of the same user, can neither inject a datagram nor divert one; one of the same user, who
//! could trace both programs, can make them send 64 bytes to a plain peer. The connection to the beacon stays as the
//! lifeline. Each direction switches where the nonce lies among the datagrams: their order stays. Nobody waits for anybody,
//! and whatever fails leaves the kernel carrying on.

use super::diag::Diag;
use crate::control;
use crate::end::End;
use crate::rx::Rx;
use crate::tx::Tx;
use crate::upgrade::{self, HELLO_LEN, Hello, Nonce};
use crate::{Config, Error, Op, Result};
use onecopy_ring::{Consumer, Producer, Ring};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// Calls between two looks, at most: while nothing is known of the peer, and while something is under way.
const RARELY: u32 = 1024;
const OFTEN: u32 = 16;
/// Connections to a beacon that are looked at in one call.
const ASKERS: usize = 4;

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
    /// Who holds it only ever tries the locks of the two sides.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// The peer's ring, and the nonce to send before anything goes there.
    offer: Option<(Ring, Nonce)>,
    /// This side's ring, and the nonce behind which its datagrams are in there.
    incoming: Option<(Ring, Nonce)>,
}

#[derive(Debug, Default)]
enum Phase {
    /// Nothing is known of the peer.
    #[default]
    Alone,
    /// It is to come to the beacon, which was looked at so many times.
    Listening(OwnedFd, u32),
    /// Somebody came, who has said nothing yet.
    Visited(OwnedFd),
    /// This side has asked, with that nonce.
    Asked(OwnedFd, Nonce),
    /// This side has answered, whose nonce is to be sent back.
    Answered(OwnedFd, Nonce),
    /// All is said.
    Met,
}

impl Meeting {
    pub fn is_open(&self) -> bool {
        self.open.load(Relaxed) != 0
    }

    /// Whether the next datagram may be a nonce.
    #[inline]
    pub fn is_expecting(&self) -> bool {
        self.expecting.load(Relaxed) != 0
    }

    /// Begins anew with another peer, or gives up.
    pub fn reset(&self, open: bool) {
        let mut state = self.state.lock();
        state.phase = Phase::Alone;
        state.offer = None;
        if open {
            // (Else, a nonce that was on its way is still to be known for what it is.)
            state.incoming = None;
            self.expecting.store(0, Relaxed);
        }
        self.offered.store(0, Relaxed);
        self.open.store(u32::from(open), Relaxed);
        self.left.store(1, Relaxed);
        self.pause.store(1, Relaxed);
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

    fn hurry(&self) {
        self.left.store(0, Relaxed);
        self.pause.store(1, Relaxed);
    }
}

/// The name of the beacon of the socket with that inode.
fn beacon_name(inode: u64) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("onecopy-dgram-{}-{inode:x}", upgrade::VERSION).as_bytes())
}

fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Whether who is at the other end of `line` is that user.
fn is_user(line: &OwnedFd, uid: u32) -> bool {
    sockopt::socket_peercred(line).is_ok_and(|cred| cred.uid.as_raw() == uid)
}

fn say(line: &OwnedFd, hello: &Hello) -> io::Result<()> {
    rustix::net::send(line, &hello.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
}

/// A ring to receive into.
fn ring_for(hello: &Hello, config: &Config) -> io::Result<(Ring, OwnedFd)> {
    let capacity = upgrade::capacity(config.receive_buffer, hello.send_buffer, config.max_ring);
    upgrade::new_ring(capacity, config)
}

/// The ring that came with a hello.
fn open_ring(hello: &Hello, memfd: Option<OwnedFd>, config: &Config) -> Option<Ring> {
    let capacity = usize::try_from(hello.capacity).ok()?;
    let fits = capacity <= config.max_ring.max(onecopy_ring::MIN_CAPACITY);
    memfd.filter(|_| fits).and_then(|memfd| Ring::open(memfd, capacity).ok())
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
                let Some((me, peer, uid)) = self.mutual()? else { return Ok(false) };
                if let Some(line) = ask(peer, uid)? {
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
            Phase::Visited(line) => {
                let Some((hello, _)) = hear(line.as_fd())? else {
                    state.phase = Phase::Visited(line);
                    return Ok(false);
                };
                let (ring, memfd) = ring_for(&hello, &self.config)?;
                let nonce = upgrade::nonce()?;
                let capacity = ring.capacity() as u64;
                let answer = Hello { nonce, capacity, send_buffer: self.wish() };
                state.incoming = Some((ring, nonce));
                meeting.expecting.store(1, Relaxed);
                control::send_fd(line.as_fd(), &answer.encode(), memfd.as_fd())?;
                state.phase = Phase::Answered(line, hello.nonce);
                Ok(true)
            }
            Phase::Asked(line, nonce) => {
                let Some((hello, memfd)) = hear(line.as_fd())? else {
                    state.phase = Phase::Asked(line, nonce);
                    return Ok(false);
                };
                let theirs = open_ring(&hello, memfd, &self.config).ok_or(Errno::PROTO)?;
                let (mine, memfd) = ring_for(&hello, &self.config)?;
                let capacity = mine.capacity() as u64;
                let answer = Hello { nonce, capacity, send_buffer: self.wish() };
                control::send_fd(line.as_fd(), &answer.encode(), memfd.as_fd())?;
                let _ = self.life.set(line);
                state.incoming = Some((mine, nonce));
                meeting.expecting.store(1, Relaxed);
                state.offer = Some((theirs, hello.nonce));
                meeting.offered.store(1, Relaxed);
                state.phase = Phase::Met;
                self.adopt_now(meeting, state);
                Ok(true)
            }
            Phase::Answered(line, nonce) => {
                let left = control::gone(line.as_fd());
                state.phase = Phase::Answered(line, nonce);
                // Who only sends would never find the nonce.
                let found = match self.rx.try_lock() {
                    Some(mut rx) if matches!(&*rx, Rx::Plain) => self.find_nonce(meeting, state, &mut rx),
                    _ => false,
                };
                if left && !found { Err(Errno::CONNRESET) } else { Ok(found) }
            }
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
                return Ok(Phase::Visited(line));
            }
        }
        // Both may have come to listen at once; then one goes and asks after all. To find out costs more than a look.
        if looks.is_power_of_two()
            && let Some((me, peer, uid)) = self.mutual()?
            && me < peer
            && let Some(line) = ask(peer, uid)?
        {
            return self.asked(line);
        }
        Ok(Phase::Listening(beacon, looks))
    }

    fn wish(&self) -> u64 {
        upgrade::wish(self.config.send_buffer) as u64
    }

    fn asked(&self, line: OwnedFd) -> io::Result<Phase> {
        let nonce = upgrade::nonce()?;
        say(&line, &Hello { nonce, capacity: 0, send_buffer: self.wish() })?;
        Ok(Phase::Asked(line, nonce))
    }

    /// This socket's inode, its peer's, and that one's user, if the kernel says that it is connected to this one.
    fn mutual(&self) -> io::Result<Option<(u64, u64, u32)>> {
        let diag = Diag::open()?;
        let me = rustix::fs::fstat(&self.fd)?.st_ino;
        let Some(peer) = diag.look(me)?.peer else { return Ok(None) };
        if peer == me {
            return Err(Errno::LOOP); // there is nothing to be gained
        }
        let known = diag.look(peer)?;
        Ok(known.uid.filter(|_| known.peer == Some(me)).map(|uid| (me, peer, uid)))
    }

    /// The inode of the socket that this one is connected to, if the kernel tells.
    pub fn peer_inode(&self) -> Option<u64> {
        let me = rustix::fs::fstat(&self.fd).ok()?.st_ino;
        Diag::open().ok()?.look(me).ok()?.peer
    }

    /// Takes the nonce, if it is what comes next in the queue, and receives from the ring from there on. Whether it was.
    fn find_nonce(&self, meeting: &Meeting, state: &mut State, rx: &mut Rx) -> bool {
        let Some((_, nonce)) = &state.incoming else { return false };
        let mut first = [0; HELLO_LEN];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK | RecvFlags::TRUNC;
        let whole = rustix::net::recv(&self.fd, &mut first[..], flags) == Ok((HELLO_LEN, HELLO_LEN));
        if !whole || Hello::decode(&first).is_none_or(|hello| hello.nonce != *nonce) {
            return false;
        }
        let _ = rustix::net::recv(&self.fd, &mut first[..], RecvFlags::DONTWAIT);
        meeting.expecting.store(0, Relaxed);
        let Some((mine, _)) = state.incoming.take() else { return true };
        match std::mem::replace(&mut state.phase, Phase::Met) {
            Phase::Answered(line, nonce) => {
                // It was sent before the nonce was. Without it only this direction switches.
                let theirs = hear(line.as_fd()).ok().flatten();
                let theirs = theirs.and_then(|(hello, memfd)| open_ring(&hello, memfd, &self.config));
                let _ = self.life.set(line);
                match theirs {
                    Some(ring) => {
                        state.offer = Some((ring, nonce));
                        meeting.offered.store(1, Relaxed);
                    }
                    None => {
                        self.counters.fallbacks.add(1);
                        meeting.open.store(0, Relaxed);
                    }
                }
            }
            Phase::Met => {}
            // Of a peer that this side has left meanwhile.
            _ => return true,
        }
        if control::hung_up(self.fd()) {
            mine.header().info.0.shut.store(1, Relaxed);
        }
        self.set_rx_ring(mine.clone());
        *rx = Rx::ring(Consumer::new(mine));
        self.adopt_now(meeting, state);
        true
    }

    /// As [`End::find_nonce`], for who holds the receiving side.
    #[cold]
    pub fn look_for_nonce(&self, meeting: &Meeting, rx: &mut Rx) -> bool {
        let mut state = meeting.state.lock();
        self.find_nonce(meeting, &mut state, rx)
    }

    /// Switches the sending side to the peer's ring, if there is one and nobody is sending.
    fn adopt_now(&self, meeting: &Meeting, state: &mut State) {
        // To a peer that is gone nothing is sent that it was not asked to send: what it had sent would be lost.
        if state.offer.is_none() || control::gone(self.life()) {
            return;
        }
        let Some(mut tx) = self.tx.try_lock() else { return };
        if let Err(errno) = self.adopt_offer(meeting, state, &mut tx) {
            meeting.untold.store(errno.raw_os_error() as u32, Relaxed);
        }
        tx.unlock_fenced();
        self.welcome_back();
    }

    fn adopt_offer(&self, meeting: &Meeting, state: &mut State, tx: &mut Tx) -> io::Result<()> {
        let Some((ring, nonce)) = state.offer.take() else { return Ok(()) };
        let said = Hello { nonce, capacity: 0, send_buffer: 0 }.encode();
        match rustix::net::send(&self.fd, &said, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => {
                self.set_tx_ring(ring.clone());
                *tx = Tx::ring(Producer::new(ring));
                meeting.offered.store(0, Relaxed);
                meeting.open.store(0, Relaxed);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                state.offer = Some((ring, nonce));
                Ok(())
            }
            Err(errno) => {
                self.counters.fallbacks.add(1);
                meeting.offered.store(0, Relaxed);
                meeting.open.store(0, Relaxed);
                Err(errno)
            }
        }
    }

    /// Before a send over the kernel, by who holds the sending side: switches it to the peer's ring, if there is one.
    ///
    /// # Errors
    ///
    /// What the kernel has to say of the peer.
    pub fn adopt_ring(&self, tx: &mut Tx) -> Result<()> {
        let Some(meeting) = self.meet.get() else { return Ok(()) };
        if meeting.offered.load(Relaxed) != 0 {
            let adopted = self.adopt_offer(meeting, &mut meeting.state.lock(), tx);
            return adopted.map_err(|errno| Error::new(Op::Send, errno));
        }
        match meeting.untold.swap(0, Relaxed) {
            0 => Ok(()),
            errno => Err(Error::new(Op::Send, Errno::from_raw_os_error(errno as i32))),
        }
    }
}

/// Connects to the beacon of the socket with that inode. None where that user has none there.
fn ask(peer: u64, uid: u32) -> io::Result<Option<OwnedFd>> {
    let line = seqpacket()?;
    let there = rustix::net::connect(&line, &beacon_name(peer)?).is_ok();
    Ok(Some(line).filter(|line| there && is_user(line, uid)))
}

/// The next hello on a line, if it is there. Of somebody who has no say yet, so nonsense is no more than the end of it.
fn hear(line: BorrowedFd<'_>) -> io::Result<Option<(Hello, Option<OwnedFd>)>> {
    match upgrade::receive_hello(line) {
        Ok((Some(hello), memfd, _)) => Ok(Some((hello, memfd))),
        Ok((None, ..)) => Err(Errno::PROTO),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno),
    }
}
