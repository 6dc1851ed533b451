//! How two datagram sockets that are connected to each other come to share memory.
//!
//! Neither can tell the other in its own datagrams before it knows that the other is one of ours: a plain program would
//! receive them. And neither may believe a datagram that somebody else could have sent. So each looks now and then, in
//! its own calls, whether the kernel (sock_diag(7)) says that its peer is connected to it; if so:
//!
//! 1. One of the two listens on a *rendezvous listener*, a seqpacket socket whose abstract name is the inode of its datagram socket.
//!    The other connects to it, and believes it only if whoever listens there is the user that the peer's socket
//!    belongs to (SO_PEERCRED, UNIX_DIAG_UID). It sends a [`Hello`] with a nonce of its own.
//! 2. Who listens checks the same of who has connected, and answers with the memfd of its ring and a *token*, a socket that it
//!    has just made. Who asked answers that in the same way. So each has the other's ring and token, and believes nothing.
//! 3. Each attaches to the next datagram that its program sends (SCM_RIGHTS) a *proof*: a slip of memory with the cookie
//!    (SO_COOKIE) of its own end of that line, and a secret; and the other's token.
//! 4. Who receives finds the token, by its cookie: so that datagram was sent after the token was made, which was after the kernel's
//!    connection was, and to a connected socket the kernel lets only its peer send. And it is its peer that is at the other
//!    end of the line, not somebody between the two: of that end the kernel says (UNIX_DIAG_PEER) that it has the cookie that the
//!    peer has said. So it writes the secret into its ring, and begins to count datagrams.
//! 5. Who has sent the proof finds the secret there: only who reads its peer's queue knows it, and he would not have written it
//!    into the ring of who stands between. So that ring is its peer's. It notes there how many datagrams it has sent since the
//!    proof, and from there on sends through the ring.
//!
//! So neither uses memory before it is sure, over the kernel's own connection, that it is its peer's: a stranger,
//! even one of the same user, can neither inject a datagram nor divert one. One of the same user can make a socket attach two
//! descriptors to some datagrams to a plain peer, and can keep two from sharing memory. Users that this user namespace does not
//! know all look the same, and are nobody. The connection to the rendezvous listener stays as the lifeline, and as the channel for what
//! travels with datagrams (`channel.rs`). Each direction goes by itself, and switches at an exact datagram: their order stays.
//! Nothing of this lies in a queue by itself: poll(2) tells of the program's datagrams and of nothing else, and who has nothing
//! to send says nothing. Nobody waits for anybody, and whatever fails leaves the kernel carrying on: a proof that is lost, as its
//! receiver has no room for descriptors, is sent again, and nobody switches before it was found; a line that breaks before this side
//! has given its token away is no more than that, and it tries again with another one, a few times and ever more rarely.
//!
//! Between the proof and the switch the receiver looks what there is *before* it reads where its peer has switched: what was there
//! without a switch is a datagram, and no doorbell.
//!
//! Where the peer is connected to nobody it may be a receiver of many: see `lane.rs`.

use crate::fan_in::receiver::name_for_many;
use crate::pairing::line::{ask, give, given, hear, is_user, other_end, rendezvous_name, say, seqpacket};
use crate::pairing::offer::{Incoming, OfferedRing};
use crate::pairing::state::{Line, Pairing, Phase, State};
use crate::socket::Socket;
use crate::wire::hello::Hello;
use crate::wire::proof;
use onecopy_ring::Ring;
use onecopy_sync::atomic::{Ordering::Relaxed, Ordering::Release};
use onecopy_sys::unix_diag::Diag;
use onecopy_sys::user::is_known;
use onecopy_unix::connection::kind::Kind;
use onecopy_unix::doorbell::control;
use onecopy_unix::handshake::invitation::{capacity_for, wish};
use onecopy_unix::handshake::upgrade;
use onecopy_unix::handshake::upgrade::Nonce;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::SocketFlags;
use std::sync::Arc;
const OFTEN: u32 = 16;
/// Connections to a rendezvous listener that are looked at in one call.
const ASKERS: usize = 4;
/// Looks at a visitor who says nothing before it is sent away. An honest one has sent its hello right after connecting.
const SILENCE: u32 = 8;

impl Socket {
    /// The meeting with the peer, while it may yet come to anything.
    #[inline]
    pub fn pairing(&self) -> Option<&Pairing> {
        self.pairing_state.get().map(|pairing| &**pairing).filter(|pairing| pairing.is_open())
    }

    /// In each call: goes on with the meeting, if it is time for that.
    #[inline]
    pub fn pair_now_and_then(&self) {
        if let Some(pairing) = self.pairing()
            && pairing.is_due()
        {
            self.go_on_pairing(pairing);
        }
    }

    #[cold]
    fn go_on_pairing(&self, pairing: &Pairing) {
        let Some(mut state) = pairing.state.try_lock() else { return };
        match self.go_on(pairing, &mut state) {
            Ok(true) => pairing.hurry(),
            Ok(false) => {
                // (Where all is said, each send looks by itself.)
                if !matches!(state.phase, Phase::Alone | Phase::Met) {
                    pairing.pause.store(pairing.pause.load(Relaxed).min(OFTEN), Relaxed);
                }
            }
            Err(_) => {
                // Refused, or nonsense: this side goes on over the kernel. What was agreed stays.
                self.counters.fallbacks.add(1);
                self.drop_pairing(pairing, &mut state);
            }
        }
    }

    /// One step. Whether there was one to make.
    pub(super) fn go_on(&self, pairing: &Pairing, state: &mut State) -> io::Result<bool> {
        // Who has this side's token may send it with a proof at any time, so there is no other one after it.
        let given = matches!(state.phase, Phase::Answered | Phase::Met);
        match self.step(pairing, state) {
            Err(errno) if !given && is_broken(errno) && state.tries_again(pairing) => Ok(false),
            result => result,
        }
    }

    fn step(&self, pairing: &Pairing, state: &mut State) -> io::Result<bool> {
        match std::mem::take(&mut state.phase) {
            Phase::Alone => {
                let (me, peer, uid) = match self.look_at_peer()? {
                    Seen::Nobody => return Ok(false),
                    Seen::OfMany(peer, uid) => {
                        let Some(line) = ask(&name_for_many(peer)?, uid)? else { return Ok(false) };
                        state.phase = self.come(line)?;
                        pairing.ride(true);
                        return Ok(true);
                    }
                    Seen::Mutual(me, peer, uid) => (me, peer, uid),
                };
                if let Some(line) = ask(&rendezvous_name(peer)?, uid)? {
                    state.phase = self.asked(line)?;
                } else {
                    let rendezvous = seqpacket()?;
                    rustix::net::bind(&rendezvous, &rendezvous_name(me)?)?;
                    rustix::net::listen(&rendezvous, ASKERS as i32)?;
                    state.phase = Phase::Listening(rendezvous, 0);
                }
                Ok(true)
            }
            Phase::Listening(rendezvous, looks) => {
                state.phase = self.visited(rendezvous, looks.saturating_add(1))?;
                Ok(!matches!(state.phase, Phase::Listening(..)))
            }
            Phase::Visited(rendezvous, line, looks) => {
                let answered = match hear(line.as_fd()) {
                    Ok(None) if looks < SILENCE => {
                        state.phase = Phase::Visited(rendezvous, line, looks + 1);
                        return Ok(false);
                    }
                    Ok(Some((hello, _))) => self.answer(pairing, state, line, &hello),
                    // Nothing, or nonsense: whoever it was, the peer may yet come.
                    Ok(None) | Err(_) => {
                        state.phase = Phase::Listening(rendezvous, 0);
                        return Ok(false);
                    }
                };
                if let Err(errno) = answered {
                    // Maybe it said hello and went away.
                    state.phase = Phase::Listening(rendezvous, 0);
                    return Err(errno);
                }
                state.phase = Phase::Answered;
                Ok(true)
            }
            Phase::Asked(line) => {
                let Some((hello, fds)) = hear(line.as_fd())? else {
                    state.phase = Phase::Asked(line);
                    return Ok(false);
                };
                let (theirs, token) = given(&hello, fds, &self.config).ok_or(Errno::PROTO)?;
                self.answer(pairing, state, line, &hello)?;
                self.offer_to_peer(pairing, state, theirs, token)?;
                Ok(true)
            }
            Phase::Answered => {
                let line = state.line.as_ref().ok_or(Errno::NOTCONN)?;
                let Some((hello, fds)) = hear(line.fd.as_fd())? else {
                    state.phase = Phase::Answered;
                    return Ok(false);
                };
                let (theirs, token) = given(&hello, fds, &self.config).ok_or(Errno::PROTO)?;
                self.offer_to_peer(pairing, state, theirs, token)?;
                Ok(true)
            }
            Phase::Joining(joining) => self.go_on_joining(pairing, state, joining),
            Phase::Met => {
                state.phase = Phase::Met;
                if state.line.as_ref().is_some_and(|line| control::gone(line.fd.as_fd())) {
                    self.counters.fallbacks.add(usize::from(self.life.get().is_none()));
                    self.drop_pairing(pairing, state);
                }
                self.adopt_now(pairing, state);
                Ok(false)
            }
        }
    }

    /// Who listens looks whether the peer has come.
    fn visited(&self, rendezvous: OwnedFd, looks: u32) -> io::Result<Phase> {
        for _ in 0..ASKERS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(line) = rustix::net::accept_with(&rendezvous, flags) else { break };
            // Strangers are closed.
            if let Some((_, _, uid)) = self.mutual()?
                && is_user(&line, uid)
            {
                return Ok(Phase::Visited(rendezvous, line, 0));
            }
        }
        // Both may have come to listen at once; then one goes and asks after all. To find out costs more than a look.
        if looks.is_power_of_two()
            && let Some((me, peer, uid)) = self.mutual()?
            && me < peer
            && let Some(line) = ask(&rendezvous_name(peer)?, uid)?
        {
            return self.asked(line);
        }
        Ok(Phase::Listening(rendezvous, looks))
    }

    /// A ring to receive into.
    fn ring_for(&self, hello: &Hello) -> io::Result<(Ring, OwnedFd)> {
        let config = &self.config;
        let capacity =
            capacity_for(Kind::Datagram, config.receive_buffer, hello.send_buffer, config.max_ring);
        let made = upgrade::new_ring(capacity, config)?;
        made.0.header().info.0.shut.store(self.recv_shut.load(Relaxed), Release);
        Ok(made)
    }

    pub fn wish(&self) -> u64 {
        wish(self.config.send_buffer)
    }

    fn asked(&self, line: OwnedFd) -> io::Result<Phase> {
        point!("connected to a beacon");
        say(&line, &Hello { nonce: Nonce::default(), capacity: 0, send_buffer: self.wish() })?;
        Ok(Phase::Asked(line))
    }

    /// Answers who has said that hello: gives a ring to send into, and a token to send with the proof.
    fn answer(&self, pairing: &Pairing, state: &mut State, line: OwnedFd, hello: &Hello) -> io::Result<()> {
        let cookie = other_end(&line)?;
        let (ring, memfd) = self.ring_for(hello)?;
        let (token, mark) = proof::token()?;
        let capacity = ring.capacity() as u64;
        // Before it is given away: with any datagram from then on the proof may come.
        state.incoming = Some(Incoming::new(ring));
        pairing.token.store(mark, Relaxed);
        let answer = Hello { nonce: Nonce::default(), capacity, send_buffer: self.wish() };
        give(&line, &answer, &memfd, &token)?;
        state.line = Some(Line { fd: Arc::new(line), cookie });
        Ok(())
    }

    /// The peer, if that is who it is, has given a ring.
    fn offer_to_peer(
        &self,
        pairing: &Pairing,
        state: &mut State,
        ring: Ring,
        token: OwnedFd,
    ) -> io::Result<()> {
        state.offer = Some(OfferedRing::new(ring, token)?);
        state.phase = Phase::Met;
        pairing.offer();
        pairing.ride(true);
        Ok(())
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
        if known.uid.is_some_and(|uid| !is_known(uid)) {
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

/// Whether that is what a line says, or the kernel of it, whose other end was closed.
fn is_broken(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)
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
