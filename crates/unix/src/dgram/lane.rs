//! A sender's way to a receiver of many: a lane of its own, and how it comes by one.
//!
//! In the kernel all that goes to one receiver lies in one queue, which is full for all when one sender has filled it. So a
//! sender that is connected to a socket that is bound, and connected to nobody, gets a ring there that only it
//! sends into. A lane is a connection as those of seqpacket sockets are, with a ring for each direction of which one is
//! used: what is true of those (descriptors, credentials, processes that share an end, distrust) is true of it.
//!
//! 1. The sender asks the kernel (sock_diag(7)) who its peer is. If that one is connected to nobody, and its user has a
//!    beacon named after its inode, the sender connects there and says hello, with a nonce.
//! 2. It *knocks* with the next datagram that its program sends: a slip of memory travels with it, with that nonce, the cookie
//!    (SO_COOKIE) of its end of the line, and a secret.
//! 3. Who receives from that queue finds the slip, and the line whose hello it is. The kernel says what the name of who sent that
//!    datagram is, that the other end of the line has that cookie, and that the socket with the inode in the knock has that name, is
//!    connected to the receiver's, and is the same user's as the line. So it answers on the line, with the secret and the
//!    memfds of two rings.
//! 4. The sender believes who knows the secret, which was nowhere but in that queue. It says in the ring that it has switched, and
//!    sends there. The receiver looks for that word, and takes nothing from the lane before all is received that lay in
//!    the kernel's queue when it was found: so its datagrams stay in order.
//!
//! None of this lies in the receiver's queue by itself. A slip that is lost, as there is no room for descriptors, is sent again.
//!
//! So nobody gets a datagram that the kernel would not have brought to him, and none comes under the name of another
//! user's socket, even one that can be made to say what somebody else wants. Who has the
//! rights of the receiver's user can have one of our senders attach a descriptor to some datagrams to a plain receiver, by squatting
//! its beacon.
//!
//! **Waking the receiver.** Bells go to the line, as everywhere, and through a *door* besides, so that they lie in the queue that
//! poll(2) watches. Where that has no room it is readable anyway, and who receives there looks at the lanes, too. The
//! door is another socket of the sender's, connected to the receiver: a bell cannot fail for anything else that
//! the sender has under way, and nobody else can lead it elsewhere.
//!
//! **Waiting for room.** On the line, as everywhere. Who polls the datagram socket is told by a filler that is sent *from*
//! it, to a socket that is nobody's but for the message on the line that it travels in: who takes that message from the line ends
//! the socket and with it the filler, and POLLOUT is on again. None of it lies in the receiver's queue.

use super::hello::Hello;
use super::meet::{Meeting, Phase, State, say};
use super::sign;
use super::words::{Answer, WORD, Word};
use crate::config::Records;
use crate::control;
use crate::end::End;
use crate::making::Kind;
use crate::rights::Attached;
use crate::rx::Rx;
use crate::tx::{Cursor, Tx};
use crate::upgrade::{self, Nonce};
use crate::{Config, Result, SendFlags};
use onecopy_ring::record::largest;
use onecopy_ring::{Consumer, MIN_CAPACITY, Producer, Ring};
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::Release};
use onecopy_sys::scm::{self, Space};
use onecopy_sys::socket::unix_address;
use onecopy_sys::unix_diag::Diag;
use rustix::fd::OwnedFd;
use rustix::io::{self, Errno};
use rustix::net::{RecvFlags, sockopt};
use std::io::IoSliceMut;
use std::sync::{Arc, Weak};

/// What a sender knows that has knocked, or is about to.
#[derive(Debug)]
pub struct Knocking {
    line: OwnedFd,
    hello: Nonce,
    secret: Nonce,
    /// Knocks that went with datagrams, and datagrams since the last.
    sent: u32,
    since: u64,
}

impl Knocking {
    /// Whether the next datagram is to knock.
    pub fn is_due(&self) -> bool {
        sign::is_due(self.sent, self.since)
    }

    /// One more datagram went over the kernel, and knocked or did not.
    pub fn sent_one(&mut self, knocked: bool) {
        (self.sent, self.since) = if knocked { (self.sent + 1, 1) } else { (self.sent, self.since + 1) };
    }
}

/// A sender's lane.
#[derive(Debug)]
pub struct Lane {
    pub end: Arc<End>,
    /// What says whose lane it is, in a datagram that the kernel says the name of its sender with.
    switched: Word,
    /// 1 while the receiver is to be told of a new name.
    renamed: AtomicU32,
}

#[cfg(test)]
impl Lane {
    pub fn switched(&self) -> Word {
        self.switched
    }
}

impl Lane {
    /// What is sent from here on lies in the lane.
    pub fn switch(&self) {
        if let Some(ring) = self.end.tx_ring.get() {
            // Release: who finds that finds all that was sent before in the kernel's queue.
            ring.header().writer.0.switch_at.store(1, Release);
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.end.close();
    }
}

/// What the sending end of a lane has outside of its line.
#[derive(Debug)]
pub struct Outside {
    door: OwnedFd,
    bell: [u8; WORD],
    /// The datagram socket that sends.
    front: Weak<End>,
}

impl Outside {
    /// Rings at the receiver's own socket. Whatever keeps the bell from lying there leaves it readable, or is its end.
    pub fn ring(&self) {
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        let _ = rustix::net::send(&self.door, &self.bell, flags);
    }

    /// Makes the datagram socket unwritable for as long as the socket that this returns is there.
    ///
    /// # Errors
    ///
    /// What socket(2), bind(2) and sendto(2) say; EAGAIN where it is unwritable anyway.
    pub fn block(&self) -> io::Result<OwnedFd> {
        let front = self.front.upgrade().ok_or(Errno::BADF)?;
        control::fill_elsewhere(front.fd())
    }
}

/// An end over a line, that receives from `mine` and sends into `theirs`.
pub fn over_line(line: OwnedFd, mine: Ring, theirs: Ring, config: &Config) -> Result<Arc<End>> {
    let config = Config {
        records: Records::Atomic,
        receive_buffer: None,
        send_buffer: None,
        pass_credentials: false,
        passable: false,
        // Nothing goes by reference: a datagram is its sender's no longer.
        max_shared: 0,
        ..*config
    };
    let (rx, tx) = (Rx::ring(Consumer::new(mine.clone())), Tx::ring(Producer::new(theirs.clone())));
    let end = End::make(line, Kind::SeqPacket, &config, rx, tx)?;
    end.set_rx_ring(mine);
    end.set_tx_ring(theirs);
    Ok(end)
}

/// The receiver's answer, if it is there.
fn hear_answer(line: &OwnedFd) -> io::Result<Option<(Answer, [OwnedFd; 2])>> {
    let mut wire = [0; WORD];
    let came = match scm::recv(line, &mut [IoSliceMut::new(&mut wire)], Space::Few, RecvFlags::DONTWAIT) {
        Ok(came) => came,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    if came.bytes == 0 {
        return Err(Errno::PIPE);
    }
    let answer = Answer::decode(&wire[..came.bytes.min(WORD)]);
    answer.zip(came.fds.try_into().ok()).map(Some).ok_or(Errno::PROTO)
}

impl End {
    /// Comes to the beacon of a receiver of many.
    pub fn come(&self, line: OwnedFd) -> io::Result<Phase> {
        let (hello, secret) = (upgrade::nonce()?, upgrade::nonce()?);
        point!("connected to a beacon");
        // What the kernel takes the lane is to take, too, however little the receiver asks for.
        let least = match self.config.send_buffer {
            Some(_) => 0,
            None => upgrade::DEFAULT_BUFFER.max(sockopt::socket_send_buffer_size(&self.fd)?),
        };
        say(&line, &Hello { nonce: hello, capacity: 0, send_buffer: self.wish().max(least as u64) })?;
        Ok(Phase::Knocking(Knocking { line, hello, secret, sent: 0, since: 0 }))
    }

    /// Looks for the answer to a knock. Whether there was a step to make.
    pub fn go_on_knocking(
        &self,
        meeting: &Meeting,
        state: &mut State,
        knocking: Knocking,
    ) -> io::Result<bool> {
        match hear_answer(&knocking.line) {
            Ok(None) => {
                state.phase = Phase::Knocking(knocking);
                Ok(false)
            }
            Ok(Some((answer, fds))) if answer.secret == knocking.secret => {
                state.lane = Some(self.accept_lane(meeting, knocking.line, &answer, fds)?);
                meeting.offer();
                self.adopt_now(meeting, state);
                Ok(false)
            }
            // Whoever that was, it was not who receives.
            Ok(Some(_)) | Err(Errno::PROTO) => Err(Errno::PROTO),
            // It has no room for another sender, or has connected to somebody: maybe to this one.
            Err(errno) => {
                let mutual = self.mutual()?.is_some();
                // (Whose hello it has not even read it has not refused.)
                let unheard = !mutual && errno == Errno::CONNRESET && state.tries_again(meeting);
                if !mutual && !unheard {
                    meeting.rest();
                }
                Ok(mutual)
            }
        }
    }

    /// What a knock says.
    pub fn knock(&self, knocking: &Knocking) -> io::Result<Word> {
        Ok(Word::Knock {
            hello: knocking.hello,
            secret: knocking.secret,
            cookie: sockopt::socket_cookie(&knocking.line)?,
            inode: rustix::fs::fstat(&self.fd)?.st_ino,
        })
    }

    fn send_word(&self, word: &Word) -> io::Result<()> {
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        rustix::net::send(&self.fd, &word.encode(), flags).map(drop)
    }

    /// What the receiver has given.
    ///
    /// # Errors
    ///
    /// EPROTO where it is not what it should be.
    fn accept_lane(
        &self,
        meeting: &Meeting,
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
        let (Some(theirs), Some(mine), Some(front)) = (theirs, mine, meeting.front()) else {
            return Err(Errno::PROTO);
        };
        if largest(theirs.capacity()) < self.max_kernel_record() {
            return Err(Errno::MSGSIZE); // what could be sent before could not any more
        }
        let door = self.door_to_peer()?;
        let end = over_line(line, mine, theirs, &self.config).map_err(|_| Errno::NOMEM)?;
        let outside = Outside { door, bell: Word::Bell(answer.crowd).encode(), front };
        let _ = end.outside.set(Box::new(outside));
        let switched = Word::Switched { crowd: answer.crowd, lane: answer.lane };
        Ok(Lane { end, switched, renamed: AtomicU32::new(0) })
    }

    /// Another way to the peer. Bells are this process's messages: they go to nobody else, whoever has the name by now.
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
        self.meet.get().and_then(|meeting| meeting.lane())
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
    /// As [`End::send_record_with`]. With EPIPE and ECONNRESET it has certainly not come there.
    pub fn send_on(
        &self,
        lane: &Lane,
        cursor: &mut Cursor<'_, '_>,
        attached: Attached<'_>,
        flags: SendFlags,
    ) -> Result<()> {
        let (end, len, flags) = (&*lane.end, cursor.left, flags | SendFlags::DONTWAIT);
        if lane.renamed.load(Relaxed) != 0 && self.send_word(&lane.switched).is_ok() {
            lane.renamed.store(0, Relaxed);
            // Release: who sees it finds that word in its queue.
            end.rx_ring.get().inspect(|back| back.header().info.0.asks_who.store(1, Release));
        }
        end.settings.follow(&self.settings);
        let streamed = end.counters.user_copied_nt.get();
        let mut tx = end.lock_tx(flags)?;
        let sent = end.send_record_locked(&mut tx, cursor, attached, flags);
        if self.mirror.load(Relaxed) != 0 {
            let _ = end.park_if_full(&mut tx);
        }
        tx.unlock_fenced();
        end.welcome_back();
        // It was published without a look at the bell: unlocking is the fence that it wants. A receiver that lets go of a lane
        // arms first, looks once more, and only then closes the line: so where the bell fails it will never see this one.
        sent.and_then(|()| end.ring_if_armed())?;
        self.counters.sent.add_exclusive(len);
        self.counters.user_copied_in.add_exclusive(len);
        self.counters.user_copied_nt.add_exclusive((end.counters.user_copied_nt.get() - streamed) as usize);
        Ok(())
    }

    /// This socket sends over the kernel again.
    #[cold]
    pub fn leave_lane(&self) {
        if let Some(meeting) = self.meet.get() {
            // Its peer may have connected to it.
            meeting.reset(true);
        }
    }
}
