//! How a sender gets a lane of its own at a fan-in receiver.
//!
//! In the kernel all datagrams to one receiver are in one queue, and one sender can fill it for all. So a
//! sender gets a ring that only it sends into, if it is connected to a socket that is bound and connected to
//! nobody. A lane is a connection like those of seqpacket sockets, with a ring for each direction, of which
//! one is used. What is true of those is true of a lane: descriptors, credentials, processes that share an
//! end, distrust.
//!
//! 1. The sender asks the kernel (sock_diag(7)) for its peer. If that socket is connected to nobody, and its
//!    user has a rendezvous listener named after its inode, the sender connects there. It says hello, with a
//!    nonce.
//! 2. With the next datagram of its program it sends a *join request*, in a slip of memory. The join request
//!    has that nonce, the cookie (SO_COOKIE) of the sender's end of the line, and a secret.
//! 3. The receiver of that datagram finds the slip, and the line on which the hello came. The kernel tells it
//!    three things: the name of that datagram's sender; that the other end of the line has that cookie; and
//!    that the socket with the inode in the join request has that name, is connected to the receiver's
//!    socket, and belongs to the same user as the line. So the receiver answers on the line, with the secret
//!    and the memfds of two rings.
//! 4. The sender believes an answer with the secret, which was nowhere but in that queue. It says in the ring
//!    that it has switched, and sends there. The receiver looks for that note. When it finds it, it first
//!    receives everything that was in the kernel's queue at that time, and only then takes from the lane. So
//!    the sender's datagrams stay in order.
//!
//! None of this is a message of its own in the receiver's queue. A slip that is lost, because the receiver
//! has no room for descriptors, is sent again.
//!
//! So nobody gets a datagram that the kernel would not have brought to it. And no datagram comes under the
//! name of another user's socket, even one that can be made to send what another program wants. A program
//! with the rights of the receiver's user can squat the rendezvous listener of a plain receiver. Then it can
//! make our senders attach a descriptor to some of their datagrams to that receiver.
//!
//! **Waking the receiver.** Doorbells go to the line, as everywhere, and also through a *door*, so that they
//! reach the queue that poll(2) watches. If that queue has no room it is readable anyway, and a receive there
//! looks at the lanes too. The door is another socket of the sender's, connected to the receiver. So a
//! doorbell cannot fail for anything else that the sender has in flight, and nobody else can lead it
//! elsewhere.
//!
//! **Waiting for room.** Senders wait on the line, as everywhere. A program that polls the datagram socket is
//! told by a filler, which is sent *from* that socket to another one. That other socket exists only in the
//! message on the line that carries it. A receiver that takes this message from the line ends the socket, and
//! with it the filler, and POLLOUT is on again. None of this is in the receiver's queue.

use crate::fan_in::lane::{JoinRequest, Lane, hear_answer, over_line};
use crate::outgoing::Outgoing;
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
use onecopy_unix::ancillary::attached::SendAncillary;
use onecopy_unix::connection::Connection;
use onecopy_unix::connection::tx::Tx;
use onecopy_unix::core::elsewhere::Elsewhere;
use onecopy_unix::core::kind::Kind;
use onecopy_unix::handshake::invitation::{DEFAULT_BUFFER, nonce};
use onecopy_unix::{Error, Op, Result, SendFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::sockopt;
use std::sync::Arc;

impl Socket {
    /// Says hello at the rendezvous listener of a fan-in receiver.
    pub fn come(&self, line: OwnedFd) -> io::Result<Phase> {
        let (hello, secret) = (nonce()?, nonce()?);
        point!("connected to a rendezvous");
        // The lane is to take what the kernel takes, however little the receiver asks for.
        let least = match self.config().send_buffer {
            Some(_) => 0,
            None => DEFAULT_BUFFER.max(sockopt::socket_send_buffer_size(self.fd())?),
        };
        say(&line, &Hello { nonce: hello, capacity: 0, send_buffer: self.wish().max(least as u64) })?;
        Ok(Phase::Joining(JoinRequest { line, hello, secret, sent: 0, since: 0 }))
    }

    /// Looks for the answer to a join request. Returns whether there was a step to make.
    pub fn go_on_joining(
        &self,
        pairing: &Pairing,
        state: &mut State,
        joining: JoinRequest,
    ) -> io::Result<bool> {
        match hear_answer(&joining.line) {
            Ok(None) => {
                state.goes_on_joining(joining);
                Ok(false)
            }
            Ok(Some((answer, fds))) if answer.secret == joining.secret => {
                state.offers_lane(self.accept_lane(pairing, joining.line, &answer, fds)?);
                pairing.offer();
                self.adopt_now(pairing, state);
                Ok(false)
            }
            // Whoever answered, it was not the receiver.
            Ok(Some(_)) | Err(Errno::PROTO) => Err(Errno::PROTO),
            // The receiver has no room for another sender, or has connected, maybe to this socket.
            Err(errno) => {
                let mutual = self.mutual()?.is_some();
                // A receiver that has not read the hello has not refused it.
                let unheard = !mutual && errno == Errno::CONNRESET && state.tries_again(pairing);
                if !mutual && !unheard {
                    pairing.rest();
                }
                Ok(mutual)
            }
        }
    }

    /// Makes the join request.
    pub fn join_request(&self, joining: &JoinRequest) -> io::Result<ControlMessage> {
        Ok(ControlMessage::Join {
            hello: joining.hello,
            secret: joining.secret,
            cookie: sockopt::socket_cookie(&joining.line)?,
            inode: rustix::fs::fstat(self.fd())?.st_ino,
        })
    }

    fn send_control(&self, control: &ControlMessage) -> io::Result<()> {
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        rustix::net::send(self.fd(), &control.encode(), flags).map(drop)
    }

    /// Makes a lane of what the receiver has given.
    ///
    /// # Errors
    ///
    /// EPROTO if it is not what it should be.
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
        let theirs = open(to, answer.capacity, self.config().max_ring.max(MIN_CAPACITY));
        let mine = open(back, answer.back, MIN_CAPACITY);
        let (Some(theirs), Some(mine), Some(front)) = (theirs, mine, pairing.front()) else {
            return Err(Errno::PROTO);
        };
        if largest(theirs.capacity()) < self.max_kernel_record() {
            return Err(Errno::MSGSIZE); // datagrams that could be sent before could not any more
        }
        let door = self.door_to_peer()?;
        let end = over_line(line, mine, theirs, self.config()).map_err(|_| Errno::NOMEM)?;
        let elsewhere = Elsewhere::new(door, &ControlMessage::Doorbell(answer.fan_in).encode(), front);
        end.set_elsewhere(elsewhere);
        let switched = ControlMessage::Switched { fan_in: answer.fan_in, lane: answer.lane };
        Ok(Lane { end, switched, renamed: AtomicU32::new(0) })
    }

    /// Makes another way to the peer. Doorbells are this process's messages, so they go to no other socket,
    /// whichever has the name by now.
    fn door_to_peer(&self) -> io::Result<OwnedFd> {
        let peer = rustix::net::getpeername(self.fd())?.ok_or(Errno::NOTCONN)?;
        let peer = unix_address(peer).ok_or(Errno::INVAL)?;
        let door = Kind::Datagram.socket().map_err(|_| Errno::MFILE)?;
        rustix::net::connect(&door, &peer)?;
        let diag = Diag::open()?;
        let peer = |fd: BorrowedFd<'_>| io::Result::Ok(diag.look(rustix::fs::fstat(fd)?.st_ino)?.peer);
        let there = peer(door.as_fd())?;
        if there.is_some() && there == peer(self.fd())? { Ok(door) } else { Err(Errno::NOENT) }
    }

    /// Returns the lane, once this socket sends on one.
    #[cold]
    pub fn lane(&self) -> Option<Arc<Lane>> {
        self.known_pairing().and_then(|pairing| pairing.lane())
    }

    /// Notes that this socket has a name now, which its receiver is to know before the next datagram.
    pub fn renamed(&self) {
        if let Some(lane) = self.lane() {
            lane.renamed.store(1, Relaxed);
        }
    }

    /// Sends one datagram on the lane, without waiting. The caller holds the sending side.
    ///
    /// # Errors
    ///
    /// As [`onecopy_unix::connection::Connection::send_record_with`]. After EPIPE and ECONNRESET the
    /// receiver has certainly not got it.
    pub fn send_on<O: Outgoing>(
        &self,
        lane: &Lane,
        out: &mut O,
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<()> {
        let (end, len, flags) = (&*lane.end, out.len(), flags | SendFlags::DONTWAIT);
        if O::SENDS && lane.renamed.load(Relaxed) != 0 {
            match self.send_control(&lane.switched) {
                Ok(()) => {
                    lane.renamed.store(0, Relaxed);
                    // Release pairs with the Acquire load in `is_renamed`: a receiver that sees it finds that
                    // control message in its queue.
                    end.rx_ring().inspect(|back| back.header().info.0.renamed.store(1, Release));
                }
                // What the kernel tells once, the program is told.
                Err(Errno::CONNREFUSED) => return Err(Error::new(Op::Send, Errno::CONNREFUSED)),
                Err(Errno::CONNRESET) => self.note_reset(),
                Err(_) => {} // the next send says it again
            }
        }
        end.settings().follow(self.settings());
        let [streamed, fillers, left] = counted(end);
        let mut tx = end.lock_tx(flags)?;
        let sent = match &mut *tx {
            Tx::Ring(ring) => out.put(end, ring, attached, flags),
            Tx::Kernel { .. } => Err(Error::new(Op::Send, Errno::PIPE)), // no lane is ever without its ring
        };
        if self.is_mirrored() {
            let _ = tx.park_if_full(end);
        }
        let [streamed_now, fillers_now, left_now] = counted(end);
        tx.unlock_fenced();
        end.welcome_back();
        if fillers_now != fillers {
            self.counters().fillers.add_exclusive((fillers_now - fillers) as usize);
            self.counters().left_writable.add_exclusive((left_now - left) as usize);
        }
        // The datagram was published without a look at the doorbell; unlocking is the fence that this takes.
        // A receiver that closes a lane arms it first, looks once more, and only then closes the line. So if
        // the doorbell fails, the receiver will never see this datagram.
        let copied = sent?;
        end.ring_if_armed()?;
        self.counters().sent.add_exclusive(len);
        self.counters().user_copied_in.add_exclusive(copied);
        self.counters().user_copied_nt.add_exclusive((streamed_now - streamed) as usize);
        Ok(())
    }

    /// Makes this socket send over the kernel again.
    #[cold]
    pub fn leave_lane(&self) {
        if let Some(pairing) = self.known_pairing() {
            // Its peer may have connected to it.
            pairing.reset(true);
        }
    }
}

/// What an end counts of a send that its datagram socket is to count, too.
fn counted(end: &Connection) -> [u64; 3] {
    let counters = end.counters();
    [counters.user_copied_nt.get(), counters.fillers.get(), counters.left_writable.get()]
}
