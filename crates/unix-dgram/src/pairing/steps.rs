//! How two datagram sockets that are connected to each other come to share memory.
//!
//! Neither can use datagrams of its own to tell the other before it knows that the other is one of ours: a
//! plain program would receive them. And neither may believe a datagram that somebody else could have sent.
//! So each looks now and then, in its own calls, whether the kernel (sock_diag(7)) says that its peer is
//! connected to it. If so:
//!
//! 1. One of the two makes a *rendezvous listener*, a seqpacket socket whose abstract name is the inode of
//!    its datagram socket. The other connects to it. It believes the listener only if that is of the user
//!    that the peer's socket belongs to (SO_PEERCRED, UNIX_DIAG_UID). Then it sends a [`Hello`].
//! 2. The listener checks the same of its caller, and answers with the memfd of its ring and a *token*, a
//!    socket that it has just made. The caller answers that in the same way. Now each has the other's ring
//!    and token, and believes nothing yet.
//! 3. Each attaches a *proof* to the next datagram that its program sends (SCM_RIGHTS). The proof is a slip
//!    of memory with the cookie (SO_COOKIE) of its own end of that line and a secret, and the other's token.
//! 4. The receiver finds the token, by its cookie. So that datagram was sent after the token was made, which
//!    was after the kernel's connection was made; and the kernel lets only its peer send to a connected
//!    socket. It is also its peer that is at the other end of the line, and nobody in between: the kernel
//!    says (UNIX_DIAG_PEER) that this end has the cookie in the proof. So the receiver writes the secret into
//!    its ring, and begins to count datagrams.
//! 5. The sender of the proof finds the secret in the ring. Only a process that reads its peer's queue knows
//!    the secret, and the peer would not have written it into the ring of a process in between. So that ring
//!    is its peer's. The sender notes there how many datagrams it has sent since the proof, and from then on
//!    sends through the ring.
//!
//! **What this protects.** Neither side uses memory before it is sure, over the kernel's own connection, that
//! it is its peer's. A stranger can neither inject a datagram nor divert one, even with the same user. A
//! program of the same user can make a socket attach two descriptors to some datagrams to a plain peer, and
//! can keep two sockets from sharing memory. Users that this user namespace does not know all look the same,
//! and count as nobody.
//!
//! **What stays.** The connection to the rendezvous listener stays as the lifeline, and as the channel for
//! what travels with datagrams ([`onecopy_unix::ancillary::channel`]). Each direction goes by itself and
//! switches at an exact datagram, so the order stays.
//!
//! **What it costs others.** None of this is a message of its own in a queue: poll(2) tells of the program's
//! datagrams and of nothing else, and a socket that sends nothing says nothing. No side waits for the other,
//! and after any failure the kernel carries on. A proof is lost if its receiver has no room for descriptors;
//! it is sent again, and nobody switches before a proof was found. If a line breaks before this side has
//! given its token away, this side tries again with another line, a few times and ever more rarely.
//!
//! Between the proof and the switch the receiver looks for a message *before* it reads where its peer has
//! switched. A message that was there without a switch is a datagram, not a doorbell.
//!
//! A peer that is connected to nobody may be a fan-in receiver: see [`crate::fan_in::sender`].

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
use onecopy_unix::control;
use onecopy_unix::core::kind::Kind;
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
/// Looks at a silent caller, after which it is sent away. An honest one sends its hello right after
/// connecting.
const SILENCE: u32 = 8;

impl Socket {
    /// Returns the pairing with the peer, while it may still succeed.
    #[inline]
    pub fn pairing(&self) -> Option<&Pairing> {
        self.known_pairing().filter(|pairing| pairing.is_open())
    }

    /// Goes on with the pairing, if it is time for that. Runs in each call.
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
                // Once everything is said, each send looks by itself.
                if !matches!(state.phase, Phase::Alone | Phase::Met) {
                    pairing.pause.store(pairing.pause.load(Relaxed).min(OFTEN), Relaxed);
                }
            }
            Err(_) => {
                // The peer refused, or sent nonsense. This side goes on over the kernel, and what was agreed
                // stays.
                self.counters().fallbacks.add(1);
                self.drop_pairing(pairing, &mut state);
            }
        }
    }

    /// Makes one step. Returns whether there was one to make.
    pub(super) fn go_on(&self, pairing: &Pairing, state: &mut State) -> io::Result<bool> {
        // A peer that has this side's token may send it with a proof at any time, so there is no other token
        // after it.
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
                    // Nothing, or nonsense. Whoever the caller was, the peer may still come.
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
                let (theirs, token) = given(&hello, fds, self.config()).ok_or(Errno::PROTO)?;
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
                let (theirs, token) = given(&hello, fds, self.config()).ok_or(Errno::PROTO)?;
                self.offer_to_peer(pairing, state, theirs, token)?;
                Ok(true)
            }
            Phase::Joining(joining) => self.go_on_joining(pairing, state, joining),
            Phase::Met => {
                state.phase = Phase::Met;
                if state.line.as_ref().is_some_and(|line| control::gone(line.fd.as_fd())) {
                    self.counters().fallbacks.add(usize::from(self.lifeline().is_none()));
                    self.drop_pairing(pairing, state);
                }
                self.adopt_now(pairing, state);
                Ok(false)
            }
        }
    }

    /// Looks whether the peer has come to this side's rendezvous listener.
    fn visited(&self, rendezvous: OwnedFd, looks: u32) -> io::Result<Phase> {
        for _ in 0..ASKERS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(line) = rustix::net::accept_with(&rendezvous, flags) else { break };
            // Strangers' lines are closed.
            if let Some((_, _, uid)) = self.mutual()?
                && is_user(&line, uid)
            {
                return Ok(Phase::Visited(rendezvous, line, 0));
            }
        }
        // Both may have begun to listen at once; then one of them connects after all. To find out costs more
        // than a look.
        if looks.is_power_of_two()
            && let Some((me, peer, uid)) = self.mutual()?
            && me < peer
            && let Some(line) = ask(&rendezvous_name(peer)?, uid)?
        {
            return self.asked(line);
        }
        Ok(Phase::Listening(rendezvous, looks))
    }

    /// Makes a ring to receive into.
    fn ring_for(&self, hello: &Hello) -> io::Result<(Ring, OwnedFd)> {
        let config = &self.config();
        let capacity =
            capacity_for(Kind::Datagram, config.receive_buffer, hello.send_buffer, config.max_ring);
        let made = upgrade::new_ring(capacity, config)?;
        made.0.header().info.0.shut.store(self.is_recv_shut().into(), Release);
        Ok(made)
    }

    pub fn wish(&self) -> u64 {
        wish(self.config().send_buffer)
    }

    fn asked(&self, line: OwnedFd) -> io::Result<Phase> {
        point!("connected to a rendezvous");
        say(&line, &Hello { nonce: Nonce::default(), capacity: 0, send_buffer: self.wish() })?;
        Ok(Phase::Asked(line))
    }

    /// Answers that hello: gives a ring to send into, and a token to send with the proof.
    fn answer(&self, pairing: &Pairing, state: &mut State, line: OwnedFd, hello: &Hello) -> io::Result<()> {
        let cookie = other_end(&line)?;
        let (ring, memfd) = self.ring_for(hello)?;
        let (token, mark) = proof::token()?;
        let capacity = ring.capacity() as u64;
        // Before the token is given away: from then on the proof may come with any datagram.
        state.incoming = Some(Incoming::new(ring));
        pairing.token.store(mark, Relaxed);
        let answer = Hello { nonce: Nonce::default(), capacity, send_buffer: self.wish() };
        give(&line, &answer, &memfd, &token)?;
        state.line = Some(Line { fd: Arc::new(line), cookie });
        Ok(())
    }

    /// Takes the ring that the other side, if it is the peer, has given.
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

    /// Returns this socket's inode, its peer's, and the peer's user, if the kernel says that the peer is
    /// connected to this socket.
    pub fn mutual(&self) -> io::Result<Option<(u64, u64, u32)>> {
        Ok(match self.look_at_peer()? {
            Seen::Mutual(me, peer, uid) => Some((me, peer, uid)),
            Seen::OfMany(..) | Seen::Nobody => None,
        })
    }

    fn look_at_peer(&self) -> io::Result<Seen> {
        let diag = Diag::open()?;
        let me = rustix::fs::fstat(self.fd())?.st_ino;
        let Some(peer) = diag.look(me)?.peer else { return Ok(Seen::Nobody) };
        if peer == me {
            return Err(Errno::LOOP); // nothing is gained by that
        }
        let known = diag.look(peer)?;
        if known.uid.is_some_and(|uid| !is_known(uid)) {
            return Err(Errno::PERM); // that user cannot be identified
        }
        Ok(match (known.uid, known.peer) {
            (Some(uid), Some(other)) if other == me => Seen::Mutual(me, peer, uid),
            (Some(uid), None) => Seen::OfMany(peer, uid),
            _ => Seen::Nobody,
        })
    }

    /// Returns the inode of the socket that this one is connected to, if the kernel tells.
    pub fn peer_inode(&self) -> Option<u64> {
        let me = rustix::fs::fstat(self.fd()).ok()?.st_ino;
        Diag::open().ok()?.look(me).ok()?.peer
    }
}

/// Whether that is the error of a line whose other end was closed.
fn is_broken(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)
}

/// What a socket is connected to: inodes, and the peer's user.
enum Seen {
    /// Nobody, or a socket that is connected to another one.
    Nobody,
    /// A socket that is connected to this one: this one's inode, and that one's.
    Mutual(u64, u64, u32),
    /// A socket that is connected to nobody.
    OfMany(u64, u32),
}
