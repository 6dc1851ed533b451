//! A sender's way to a receiver of many: a lane of its own, and how it comes by one.
//!
//! In the kernel all that goes to one receiver lies in one queue, which is full for all when one sender has filled it. So a
//! sender that is connected to a socket that is bound, and connected to nobody, gets a ring there that only it
//! sends into. A lane is a connection as those of seqpacket sockets are, with a ring for each direction of which one is
//! used: what is true of those (descriptors, credentials, processes that share an end, distrust) is true of it.
//!
//! 1. The sender asks the kernel (sock_diag(7)) who its peer is. If that one is connected to nobody, and its user has a
//!    rendezvous listener named after its inode, the sender connects there and says hello, with a nonce.
//! 2. It *join requests* with the next datagram that its program sends: a slip of memory travels with it, with that nonce, the cookie
//!    (SO_COOKIE) of its end of the line, and a secret.
//! 3. Who receives from that queue finds the slip, and the line whose hello it is. The kernel says what the name of who sent that
//!    datagram is, that the other end of the line has that cookie, and that the socket with the inode in the join request has that name, is
//!    connected to the receiver's, and is the same user's as the line. So it answers on the line, with the secret and the
//!    memfds of two rings.
//! 4. The sender believes who knows the secret, which was nowhere but in that queue. It says in the ring that it has switched, and
//!    sends there. The receiver looks for that control message, and takes nothing from the lane before all is received that lay in
//!    the kernel's queue when it was found: so its datagrams stay in order.
//!
//! None of this lies in the receiver's queue by itself. A slip that is lost, as there is no room for descriptors, is sent again.
//!
//! So nobody gets a datagram that the kernel would not have brought to him, and none comes under the name of another
//! user's socket, even one that can be made to say what somebody else wants. Who has the
//! rights of the receiver's user can have one of our senders attach a descriptor to some datagrams to a plain receiver, by squatting
//! its rendezvous listener.
//!
//! **Waking the receiver.** Doorbells go to the line, as everywhere, and through a *door* besides, so that they lie in the queue that
//! poll(2) watches. Where that has no room it is readable anyway, and who receives there looks at the lanes, too. The
//! door is another socket of the sender's, connected to the receiver: a doorbell cannot fail for anything else that
//! the sender has under way, and nobody else can lead it elsewhere.
//!
//! **Waiting for room.** On the line, as everywhere. Who polls the datagram socket is told by a filler that is sent *from*
//! it, to a socket that is nobody's but for the message on the line that it travels in: who takes that message from the line ends
//! the socket and with it the filler, and POLLOUT is on again. None of it lies in the receiver's queue.

use crate::fan_in::lane::{JoinRequest, Lane, hear_answer, over_line};
use crate::pairing::line::say;
use crate::pairing::state::{Pairing, Phase, State};
use crate::socket::Socket;
use crate::wire::control_message::{Answer, ControlMessage};
use crate::wire::hello::Hello;
use onecopy_ring::record::largest;
use onecopy_ring::{MIN_CAPACITY, Ring};
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::Release};
use onecopy_sys::socket::unix_address;
use onecopy_sys::unix_diag::Diag;
use onecopy_unix::ancillary::attached::Attached;
use onecopy_unix::connection::call::Cursor;
use onecopy_unix::connection::kind::Kind;
use onecopy_unix::doorbell::elsewhere::Elsewhere;
use onecopy_unix::handshake::invitation::{DEFAULT_BUFFER, nonce};
use onecopy_unix::{Result, SendFlags};
use rustix::fd::OwnedFd;
use rustix::io::{self, Errno};
use rustix::net::sockopt;
use std::sync::Arc;

impl Socket {
    /// Comes to the rendezvous listener of a receiver of many.
    pub fn come(&self, line: OwnedFd) -> io::Result<Phase> {
        let (hello, secret) = (nonce()?, nonce()?);
        point!("connected to a beacon");
        // What the kernel takes the lane is to take, too, however little the receiver asks for.
        let least = match self.config.send_buffer {
            Some(_) => 0,
            None => DEFAULT_BUFFER.max(sockopt::socket_send_buffer_size(&self.fd)?),
        };
        say(&line, &Hello { nonce: hello, capacity: 0, send_buffer: self.wish().max(least as u64) })?;
        Ok(Phase::Joining(JoinRequest { line, hello, secret, sent: 0, since: 0 }))
    }

    /// Looks for the answer to a join request. Whether there was a step to make.
    pub fn go_on_joining(
        &self,
        pairing: &Pairing,
        state: &mut State,
        joining: JoinRequest,
    ) -> io::Result<bool> {
        match hear_answer(&joining.line) {
            Ok(None) => {
                state.phase = Phase::Joining(joining);
                Ok(false)
            }
            Ok(Some((answer, fds))) if answer.secret == joining.secret => {
                state.lane = Some(self.accept_lane(pairing, joining.line, &answer, fds)?);
                pairing.offer();
                self.adopt_now(pairing, state);
                Ok(false)
            }
            // Whoever that was, it was not who receives.
            Ok(Some(_)) | Err(Errno::PROTO) => Err(Errno::PROTO),
            // It has no room for another sender, or has connected to somebody: maybe to this one.
            Err(errno) => {
                let mutual = self.mutual()?.is_some();
                // (Whose hello it has not even read it has not refused.)
                let unheard = !mutual && errno == Errno::CONNRESET && state.tries_again(pairing);
                if !mutual && !unheard {
                    pairing.rest();
                }
                Ok(mutual)
            }
        }
    }

    /// What a join request says.
    pub fn join_request(&self, joining: &JoinRequest) -> io::Result<ControlMessage> {
        Ok(ControlMessage::Join {
            hello: joining.hello,
            secret: joining.secret,
            cookie: sockopt::socket_cookie(&joining.line)?,
            inode: rustix::fs::fstat(&self.fd)?.st_ino,
        })
    }

    fn send_control(&self, control: &ControlMessage) -> io::Result<()> {
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        rustix::net::send(&self.fd, &control.encode(), flags).map(drop)
    }

    /// What the receiver has given.
    ///
    /// # Errors
    ///
    /// EPROTO where it is not what it should be.
    fn accept_lane(
        &self,
        pairing: &Pairing,
        line: OwnedFd,
        answer: &Answer,
        [to, back]: [OwnedFd; 2],
    ) -> io::Result<Lane> {
        let open = |memfd: OwnedFd, capacity: u64, most: usize| {
            let capacity = usize::try_from(capacity).ok().filter(|capacity| *capacity <= most)?;
            Ring::open(memfd, capacity).ok()
        };
        let theirs = open(to, answer.capacity, self.config.max_ring.max(MIN_CAPACITY));
        let mine = open(back, answer.back, MIN_CAPACITY);
        let (Some(theirs), Some(mine), Some(front)) = (theirs, mine, pairing.front()) else {
            return Err(Errno::PROTO);
        };
        if largest(theirs.capacity()) < self.max_kernel_record() {
            return Err(Errno::MSGSIZE); // what could be sent before could not any more
        }
        let door = self.door_to_peer()?;
        let end = over_line(line, mine, theirs, &self.config).map_err(|_| Errno::NOMEM)?;
        let elsewhere = Elsewhere::new(door, &ControlMessage::Doorbell(answer.fan_in).encode(), front);
        let _ = end.elsewhere.set(Box::new(elsewhere));
        let switched = ControlMessage::Switched { fan_in: answer.fan_in, lane: answer.lane };
        Ok(Lane { end, switched, renamed: AtomicU32::new(0) })
    }

    /// Another way to the peer. Doorbells are this process's messages: they go to nobody else, whoever has the name by now.
    fn door_to_peer(&self) -> io::Result<OwnedFd> {
        let peer = rustix::net::getpeername(&self.fd)?.ok_or(Errno::NOTCONN)?;
        let peer = unix_address(peer).ok_or(Errno::INVAL)?;
        let door = Kind::Datagram.socket().map_err(|_| Errno::MFILE)?;
        rustix::net::connect(&door, &peer)?;
        let diag = Diag::open()?;
        let peer = |fd: &OwnedFd| io::Result::Ok(diag.look(rustix::fs::fstat(fd)?.st_ino)?.peer);
        let there = peer(&door)?;
        if there.is_some() && there == peer(&self.fd)? { Ok(door) } else { Err(Errno::NOENT) }
    }

    /// The lane, once this socket sends on one.
    #[cold]
    pub fn lane(&self) -> Option<Arc<Lane>> {
        self.pairing_state.get().and_then(|pairing| pairing.lane())
    }

    /// This socket has a name now, of which its receiver is to know before the next datagram.
    pub fn renamed(&self) {
        if let Some(lane) = self.lane() {
            lane.renamed.store(1, Relaxed);
        }
    }

    /// Sends one datagram on the lane, without waiting, by who holds the sending side.
    ///
    /// # Errors
    ///
    /// As [`Connection::send_record_with`]. With EPIPE and ECONNRESET it has certainly not come there.
    pub fn send_on(
        &self,
        lane: &Lane,
        cursor: &mut Cursor<'_, '_>,
        attached: Attached<'_>,
        flags: SendFlags,
    ) -> Result<()> {
        let (end, len, flags) = (&*lane.end, cursor.left, flags | SendFlags::DONTWAIT);
        if lane.renamed.load(Relaxed) != 0 && self.send_control(&lane.switched).is_ok() {
            lane.renamed.store(0, Relaxed);
            // Release: who sees it finds that control message in its queue.
            end.rx_ring.get().inspect(|back| back.header().info.0.asks_identity.store(1, Release));
        }
        end.settings.follow(&self.settings);
        let streamed = end.counters.user_copied_nt.get();
        let mut tx = end.lock_tx(flags)?;
        let sent = end.send_record_locked(&mut tx, cursor, attached, flags);
        if self.mirror.load(Relaxed) != 0 {
            let _ = tx.park_if_full(end);
        }
        tx.unlock_fenced();
        end.welcome_back();
        // It was published without a look at the doorbell: unlocking is the fence that it wants. A receiver that lets go of a lane
        // arms first, looks once more, and only then closes the line: so where the doorbell fails it will never see this one.
        sent.and_then(|()| end.ring_if_armed())?;
        self.counters.sent.add_exclusive(len);
        self.counters.user_copied_in.add_exclusive(len);
        self.counters.user_copied_nt.add_exclusive((end.counters.user_copied_nt.get() - streamed) as usize);
        Ok(())
    }

    /// This socket sends over the kernel again.
    #[cold]
    pub fn leave_lane(&self) {
        if let Some(pairing) = self.pairing_state.get() {
            // Its peer may have connected to it.
            pairing.reset(true);
        }
    }
}
