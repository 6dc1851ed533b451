//! The core of a connection: the control socket, and what each part of the connection may look at and none owns.
//!
//! Both directions, the doorbell, what travels besides bytes and what processes share stand on it, and it on none of them.

use crate::config::Config;
use crate::connection::kind::Kind;
use crate::connection::others::{Others, PARKING, RINGING};
use crate::doorbell::control;
use crate::doorbell::control::Peek;
use crate::doorbell::elsewhere::Elsewhere;
use crate::multiprocess::claim::Claim;
use crate::{Error, Op, Policy, Result, SendFlags};
use onecopy_copy::Hint;
use onecopy_ring::record;
use onecopy_ring::{PeerMisbehaved, Ring};
use onecopy_socket::registry::Row;
use onecopy_socket::{Counters, Settings};
use onecopy_sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// SO_PASSCRED and SO_PASSPIDFD, as [`Connection::pass`] knows them.
pub const PASS_CREDENTIALS: u32 = 1;
pub const PASS_PIDFD: u32 = 2;

/// What `Connection::broken` says.
pub mod broken {
    /// Nothing is wrong.
    pub const NOT: u32 = 0;
    /// The peer, or a member, lied.
    pub const MISBEHAVED: u32 = 1;
    /// This process has inherited an end that it cannot use: another thread of its parent was using it.
    pub const ORPHAN: u32 = 2;
    /// As `ORPHAN`, of its sending side only.
    pub const CANNOT_SEND: u32 = 3;
    /// This process has passed it on, and is letting go of it.
    pub const PASSED: u32 = 4;
    /// There was a fork, and this process has not used it since: a datagram socket, which only one of them may.
    pub const UNCLAIMED: u32 = 5;
}

/// What all parts of a connection may look at.
#[derive(Debug)]
pub struct Core {
    pub fd: OwnedFd,
    pub kind: Kind,
    /// Threads of this process that sleep for something to receive.
    pub sleepers: AtomicU32,
    /// The ring that this end receives from, once the peer sends into it or may.
    pub rx_ring: OnceLock<Ring>,
    /// The ring that this end sends into, once it does.
    pub tx_ring: OnceLock<Ring>,
    pub config: Config,
    pub settings: Settings,
    pub counters: Counters,
    /// Where the counters lie, for who looks from outside.
    pub(crate) row: Row,
    /// Bytes sent over the kernel before the sending side switched to the ring.
    pub kernel_sent: AtomicU64,
    /// 1 when a sender that does not wait was turned away because another one held the sending side: it waits
    /// for POLLOUT, which must then come.
    pub turned_away: AtomicU32,
    /// 1 once somebody may poll the control socket, whose readiness must then mirror the ring.
    pub mirror: AtomicU32,
    /// 1 from when the kernel told ECONNRESET, which it does once, until the caller was told.
    pub reset: AtomicU32,
    /// 1 once this end was shut down for sending.
    pub send_shut: AtomicU32,
    /// Which of SO_PASSCRED and SO_PASSPIDFD are on.
    pub(crate) passes: AtomicU32,
    /// How often who sends was asked for.
    pub(crate) asked: AtomicU32,
    /// 1 once this end was shut down for receiving, of which a ring that is made later must tell.
    pub recv_shut: AtomicU32,
    /// Whether and why it is lost: see [`broken`].
    pub broken: AtomicU32,
    /// What processes share of it, once it was in one that forked.
    pub others: Others,
    /// Of an end that only one process may use after a fork: which one that is.
    pub claim: Claim,
    /// Of a datagram socket that shares memory with its peer: what hangs up when that peer goes, which the kernel's
    /// datagram sockets do not tell; and the channel of both directions (`channel.rs`).
    pub life: OnceLock<Arc<OwnedFd>>,
    /// Of the sending end of a datagram socket's lane: what there is besides its line.
    pub elsewhere: OnceLock<Box<Elsewhere>>,
    /// 1 once a datagram socket has left the peer that it shared memory with.
    pub parted: AtomicU32,
    /// Threads that are connecting a datagram socket: who sleeps in a send lets them have the sending side.
    pub connecting: AtomicU32,
    /// Who made it: a forked child that drops its copy must leave the queue alone.
    pub maker: u32,
    /// Forks of its maker before it was made: one since then may have copied it.
    pub forks: u32,
}

impl Core {
    pub fn new(fd: OwnedFd, kind: Kind, config: &Config) -> Core {
        let maker = std::process::id();
        let row = Row::claim(maker, &fd, kind.into(), false);
        Core {
            fd,
            kind,
            sleepers: AtomicU32::new(0),
            rx_ring: OnceLock::new(),
            tx_ring: OnceLock::new(),
            config: *config,
            settings: row.settings(config.policy, config.reader, config.wait),
            counters: row.counters(),
            row,
            kernel_sent: AtomicU64::new(0),
            turned_away: AtomicU32::new(0),
            mirror: AtomicU32::new(0),
            reset: AtomicU32::new(0),
            send_shut: AtomicU32::new(0),
            passes: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            recv_shut: AtomicU32::new(0),
            broken: AtomicU32::new(broken::NOT),
            others: Others::default(),
            claim: Claim::default(),
            life: OnceLock::new(),
            elsewhere: OnceLock::new(),
            parted: AtomicU32::new(0),
            connecting: AtomicU32::new(0),
            maker,
            forks: crate::multiprocess::generation::forks(),
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What hangs up when the peer goes.
    #[inline]
    pub fn life(&self) -> BorrowedFd<'_> {
        self.life.get().map_or(self.fd.as_fd(), |life| life.as_fd())
    }

    /// Whether the peer sends nothing any more: what lies in the queue of the control socket is all that will ever
    /// lie there.
    pub fn hung_up(&self) -> bool {
        control::hung_up(self.life())
    }

    /// For the peer of a datagram socket, it is as if this end were closed; and what came with datagrams that nobody will
    /// receive is.
    pub fn end_life(&self) {
        if let Some(life) = self.life.get() {
            let _ = rustix::net::shutdown(life, rustix::net::Shutdown::Both);
            crate::ancillary::channel::empty(life.as_fd());
        }
    }

    /// The ring that this end receives from is there.
    pub fn set_rx_ring(&self, ring: Ring) {
        self.row.receives_into(ring.capacity());
        self.ask_identity(&ring);
        let _ = self.rx_ring.set(ring.clone());
        // Pairs with the fence in `shutdown`: either it finds the ring, or this finds the shutdown.
        fence(SeqCst);
        if self.recv_shut.load(Relaxed) != 0 {
            ring.header().info.0.shut.store(1, Relaxed);
        }
    }

    /// As [`Connection::set_rx_ring`], of an end that others share with this process: what they have said in it stands.
    pub fn join_rx_ring(&self, ring: Ring) {
        self.row.receives_into(ring.capacity());
        let _ = self.rx_ring.set(ring);
    }

    /// Whether receives tell who sent.
    #[inline]
    pub fn passes_identity(&self) -> bool {
        self.passes.load(Relaxed) != 0
    }

    /// Whether they do so by credentials.
    pub fn passes_credentials(&self) -> bool {
        self.passes.load(Relaxed) & PASS_CREDENTIALS != 0
    }

    /// Whether they do so by a pidfd, too.
    pub fn passes_pidfd(&self) -> bool {
        self.passes.load(Relaxed) & PASS_PIDFD != 0
    }

    /// What is asked of who sends, and how often it was.
    pub fn asks(&self) -> (u32, u32) {
        (self.passes.load(Relaxed), self.asked.load(Relaxed))
    }

    /// As [`Connection::asks`], of an end that another process has passed on.
    pub fn set_asks(&self, passes: u32, asked: u32) {
        self.passes.store(passes & (PASS_CREDENTIALS | PASS_PIDFD), Relaxed);
        self.asked.store(asked, Relaxed);
    }

    pub fn pass_over_kernel(&self, which: u32, on: bool) -> rustix::io::Result<()> {
        if which & PASS_CREDENTIALS != 0 {
            rustix::net::sockopt::set_socket_passcred(&self.fd, on)?;
        }
        if which & PASS_PIDFD != 0 {
            onecopy_sys::scm::set_pass_pidfd(&self.fd, on)?;
        }
        Ok(())
    }

    /// The peer sends doorbells and fillers only from here on: who rings does not matter, and the kernel would let a look at
    /// them end where that changes.
    ///
    /// # Errors
    ///
    /// What setsockopt(2) says.
    pub fn pass_no_doorbells(&self) -> rustix::io::Result<()> {
        self.pass_over_kernel(self.passes.load(Relaxed), false)
    }

    /// Lets who sends into this ring know what is asked.
    pub fn ask_identity(&self, ring: &Ring) {
        let asks = if self.passes_identity() { self.asked.load(Relaxed).max(1) } else { 0 };
        // Release: a sender that this thread tells of it finds it; its pair is whatever brings the news.
        ring.header().info.0.asks_identity.store(asks, Release);
    }

    /// The ring that this end sends into is there.
    pub fn set_tx_ring(&self, ring: Ring) {
        self.row.sends_into(ring.capacity());
        let _ = self.tx_ring.set(ring);
    }

    /// The peer lied: this connection is over, in both directions, and for the peer too.
    #[cold]
    pub fn misbehaved(&self, op: Op, misbehaved: PeerMisbehaved) -> Error {
        self.counters.protocol_errors.add(1);
        self.broken.store(broken::MISBEHAVED, Relaxed);
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
        self.end_life();
        Error::new(op, Errno::PROTO).because(match misbehaved {
            PeerMisbehaved::Head { .. } => "the peer published an impossible amount of data; this connection is lost",
            PeerMisbehaved::Tail { .. } => "the peer gave back an impossible amount of room; this connection is lost",
            PeerMisbehaved::Filler(_) => "the peer parked an impossible filler; this connection is lost",
            PeerMisbehaved::Frame { .. } => "the peer published an impossible record; this connection is lost",
            PeerMisbehaved::Doorbells => "the peer rings bells for nothing; this connection is lost",
            PeerMisbehaved::Marks { .. } | PeerMisbehaved::Mark { .. } => {
                "the peer laid a mark that cannot be; this connection is lost"
            }
            PeerMisbehaved::Reference => "the peer sent a reference to no page of its pools; this connection is lost",
            PeerMisbehaved::Pool => {
                "the peer's pool is no memfd sealed for its owner, or larger than Config::max_shared; \
                 this connection is lost"
            }
            PeerMisbehaved::Channel => {
                "the peer announced descriptors or credentials that are not there or another user's, or took none that it \
                 was sent; this connection is lost"
            }
            PeerMisbehaved::Returned(_) => "the peer gave back a page that it does not have; this connection is lost",
            PeerMisbehaved::Member => {
                "a process that shares this socket left a state that cannot be, or was killed while it received one of \
                 several empty records before the connection was upgraded; this connection is lost"
            }
            PeerMisbehaved::Switch { .. } => "the peer switched to shared memory in the past; this connection is lost",
        })
    }

    /// As [`Connection::misbehaved`], for rings that are none.
    #[cold]
    pub fn bad_rings(&self, op: Op) -> Error {
        self.counters.protocol_errors.add(1);
        self.broken.store(broken::MISBEHAVED, Relaxed);
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
        self.end_life();
        Error::new(op, Errno::PROTO).because(
            "the peer's rings are no sealed memfd of the size that they say; this connection is lost",
        )
    }

    /// Bytes in the ring that the peer has not given back. 0 where nothing goes through a ring.
    pub fn unread_in_ring(&self) -> u64 {
        use onecopy_sync::atomic::Ordering::Acquire;
        self.tx_ring.get().map_or(0, |ring| {
            let header = ring.header();
            // Acquire on both: the answer is never older than what this thread saw happen before.
            let tail = header.reader.0.tail.load(Acquire);
            header.writer.0.head.load(Acquire).saturating_sub(tail).min(ring.capacity() as u64)
        })
    }

    /// A sender that does not wait found the sending side held. Its member sees that after unlocking, if the sender
    /// looks at the lock once more.
    pub fn turn_away(&self) {
        self.turned_away.store(1, Relaxed);
        self.others.turn_sender_away();
        // Pairs with the fence of unlocking before `welcome_back`.
        fence(SeqCst);
    }

    /// Makes an edge for who waits with epoll(7) for both directions. Setting SO_SNDBUF wakes who waits for POLLOUT
    /// (net/core/sock.c: sk_write_space), and what it is then told is all there is.
    pub fn make_edge(&self) {
        let size = rustix::net::sockopt::socket_send_buffer_size(&self.fd).unwrap_or(0);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&self.fd, size / 2);
    }

    /// After unlocking the sending side: makes an edge for who was turned away. Setting SO_SNDBUF wakes who waits
    /// for POLLOUT (net/core/sock.c: sk_write_space).
    #[inline]
    pub fn welcome_back(&self) {
        if self.turned_away.load(Relaxed) != 0 && self.turned_away.swap(0, Relaxed) != 0 {
            self.make_edge();
        }
    }

    /// Whether a peer that said it is leaving has left.
    #[inline]
    pub fn peer_left(&self) -> bool {
        let says_so = |ring: &Ring| ring.header().info.0.shut.load(Relaxed) != 0;
        // (A datagram socket may receive through a ring and send without one.)
        self.tx_ring.get().map_or(self.kind == Kind::Datagram, says_so) && control::gone(self.life())
    }

    /// Takes whatever lies in the queue of a stream's control socket. An error that the kernel tells is kept.
    pub fn take_all(&self) {
        loop {
            match rustix::net::recv(&self.fd, &mut [0u8; 8192], rustix::net::RecvFlags::DONTWAIT) {
                Ok((_, 8192)) | Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return self.reset.store(1, Relaxed),
                _ => return,
            }
        }
    }

    /// Whether sending is over: the peer is gone or does not read any more, or this end was shut down.
    pub fn cannot_send(&self) -> bool {
        match self.kind {
            Kind::Stream => control::cannot_send(self.fd()),
            // No call tells the kernel's mind without sending a record. A peer that shuts down says so in the ring; one
            // that was killed hangs up.
            Kind::SeqPacket | Kind::Datagram => {
                let shut = |ring: &Ring| ring.header().info.0.shut.load(Relaxed) != 0;
                self.send_shut.load(Relaxed) != 0
                    || self.tx_ring.get().is_some_and(shut)
                    || control::gone(self.life())
            }
        }
    }

    /// What a send says where the control socket failed it. A reset that the kernel told to it, once, is kept for who
    /// receives; on a seqpacket socket it is for whichever call comes first.
    #[cold]
    pub fn send_failed(&self, errno: Errno) -> Error {
        match errno {
            Errno::CONNRESET => {
                self.reset.store(1, Relaxed);
                self.gone(Op::Send)
            }
            Errno::PIPE => self.gone(Op::Send),
            errno => Error::new(Op::Send, errno),
        }
    }

    /// What a send says where sending is over. On a seqpacket socket a reset is for whichever call comes first.
    #[cold]
    pub fn gone(&self, op: Op) -> Error {
        let reset = self.kind == Kind::SeqPacket && self.take_reset();
        Error::new(op, if reset { Errno::CONNRESET } else { Errno::PIPE })
    }

    /// Whether the peer closed without reading what this end sent into its ring. True once.
    #[cold]
    pub fn take_reset(&self) -> bool {
        if let Ok(Err(Errno::CONNRESET)) = rustix::net::sockopt::socket_error(&self.fd) {
            self.reset.store(1, Relaxed);
        }
        self.reset.swap(0, Relaxed) != 0 && self.was_reset()
    }

    /// Whether the peer has not read all that this end sent, where it sends into a ring.
    pub fn left_unread(&self) -> bool {
        let Some(ring) = self.tx_ring.get() else { return false };
        if self.parted.load(Relaxed) != 0 {
            return true; // whatever the kernel says is of other peers
        }
        // Before the first byte in the ring, what lay unread were bytes over the kernel.
        // (Of datagrams none: a sign that alone was left is taken by who leaves.)
        let none_in_ring = ring.header().writer.0.head.load(Relaxed) == 0;
        let over_kernel = self.kind == Kind::Datagram || self.kernel_sent.load(Relaxed) > 0;
        self.unread_in_ring() > 0 || (none_in_ring && over_kernel)
    }

    /// Looks at the head of the control socket's queue, and sleeps until there is something if `wait`.
    pub fn peek(&self, wait: bool) -> Peek {
        match control::peek(self.fd(), wait) {
            Peek::End if self.kind.has_records() => {
                point!("nothing at the head");
                // A record of no bytes looks like the end. At the end nothing comes any more, and nothing is left; in this
                // order, since behind such a record more may come, and the end, after the look.
                let ended =
                    control::hung_up(self.fd()) && control::queued(self.fd()).is_ok_and(|bytes| bytes == 0);
                if ended { Peek::End } else { Peek::Byte }
            }
            peek => peek,
        }
    }

    /// Rings the peer's doorbell.
    pub fn ring_doorbell(&self) -> rustix::io::Result<()> {
        self.counters.doorbells.add(1);
        let rung = match self.kind {
            Kind::Datagram => control::ring_beside(self.fd()),
            Kind::Stream | Kind::SeqPacket => control::ring(self.fd()),
        };
        if let (Some(elsewhere), Ok(())) = (self.elsewhere.get(), rung) {
            elsewhere.ring();
        }
        rung
    }

    /// Bytes that the kernel holds; of a seqpacket socket, 1 where it holds a record.
    pub fn queued(&self) -> rustix::io::Result<usize> {
        let bytes = control::queued(self.fd())?;
        if self.kind == Kind::Stream {
            return Ok(bytes);
        }
        // A record of no bytes shows in poll(2) only, and there looks like the end if that has come too.
        let empty = || {
            control::wait(self.fd(), PollFlags::IN | PollFlags::RDHUP, Some(Duration::ZERO))
                .is_ok_and(|events| events.contains(PollFlags::IN) && !events.contains(PollFlags::RDHUP))
        };
        Ok(usize::from(bytes > 0 || empty()))
    }

    /// What the kernel says, now. An error that it tells once is kept until it was told to the caller.
    pub fn ask(&self) -> Peek {
        let peek = self.peek(false);
        match peek {
            Peek::Failed(Errno::CONNRESET) => self.reset.store(1, Relaxed),
            Peek::End if self.reset.load(Relaxed) != 0 => return Peek::Failed(Errno::CONNRESET),
            _ => {}
        }
        peek
    }

    /// Whether an ECONNRESET of the kernel is one: it also comes when the peer left nothing but a doorbell unread.
    pub fn was_reset(&self) -> bool {
        if self.tx_ring.get().is_some() {
            return self.left_unread();
        }
        true
    }

    /// Whether O_NONBLOCK is set, which others may do, and undo, on the descriptor or a copy of it (fcntl(2), FIONBIO): so the
    /// kernel is asked. That is a system call, and made where a call is about to sleep, or to say EAGAIN by what it
    /// remembers: nowhere else.
    #[cold]
    pub fn is_nonblocking(&self) -> bool {
        let remembered = self.settings.nonblocking();
        let now = rustix::fs::fcntl_getfl(&self.fd)
            .map_or(remembered, |flags| flags.contains(rustix::fs::OFlags::NONBLOCK));
        if now != remembered {
            self.settings.set_nonblocking(now);
        }
        now
    }

    /// Rings the doorbell if the receiver armed it, for who holds the sending side.
    #[inline]
    pub fn ring_under_lock(&self) -> Result<()> {
        match self.tx_ring.get() {
            Some(ring) if ring.header().is_armed() => self.ring_armed_under_lock(),
            _ => Ok(()),
        }
    }

    fn ring_armed_under_lock(&self) -> Result<()> {
        self.others.expect(RINGING);
        point!("ringing");
        let rung = match self.tx_ring.get() {
            Some(ring) if ring.header().must_ring() => {
                point!("announced");
                let rung = self.ring_doorbell();
                point!("rung");
                rung.map_err(|errno| self.send_failed(errno))
            }
            _ => Ok(()),
        };
        self.others.expect(0);
        rung
    }

    /// For who holds the sending side, before it parks a filler.
    pub fn doing_parking(&self) {
        if self.others.were_there() {
            let unread = onecopy_sys::socket::unread_memory(&self.fd).unwrap_or(0) as u64;
            self.others.expect(PARKING | unread << 8);
        }
    }

    /// Whether a send that is about to wait must not. It asks once: one that has waited goes on, as in the kernel.
    pub fn must_not_wait(&self, flags: SendFlags, asked: &mut bool) -> bool {
        flags.contains(SendFlags::DONTWAIT) || !std::mem::replace(asked, true) && self.is_nonblocking()
    }

    /// After a send that published something, or nothing: then a doorbell would be for nothing, and to a peer that is gone none at
    /// all.
    #[inline]
    pub fn ring_after(&self, published: bool, result: Result<()>) -> Result<()> {
        if published { self.ring_if_armed().and(result) } else { result }
    }

    /// Rings the doorbell if the receiver armed it, after publishing and unlocking, which is the full fence that it takes.
    #[inline]
    pub fn ring_if_armed(&self) -> Result<()> {
        match self.tx_ring.get() {
            Some(ring) if ring.header().is_armed() => self.ring_armed(ring),
            _ => Ok(()),
        }
    }

    #[inline(never)]
    fn ring_armed(&self, ring: &Ring) -> Result<()> {
        // Where processes share this side, who unlocked has rung before (`side.rs`).
        if !self.others.send() && ring.header().must_ring() {
            return self.ring_doorbell().map_err(|errno| self.send_failed(errno));
        }
        Ok(())
    }

    /// Whether this process must not touch what the end is at: it inherited one that it cannot use, or has passed it on.
    pub fn is_orphan(&self) -> bool {
        matches!(self.broken.load(Relaxed), broken::ORPHAN | broken::PASSED)
    }

    /// What calls say on an end that is lost.
    #[cold]
    pub fn why_broken(&self, op: Op) -> Result<()> {
        match self.broken.load(Relaxed) {
            broken::CANNOT_SEND if op != Op::Send => Ok(()),
            broken::UNCLAIMED => {
                self.claim.take(op)?;
                self.broken.store(broken::NOT, Relaxed);
                Ok(())
            }
            broken::ORPHAN | broken::CANNOT_SEND => Err(Error::new(op, Errno::BUSY).because(
                "another thread was using this socket when this process was forked; use it in the parent, \
                 or fork while nobody sends",
            )),
            _ => Err(Error::new(op, Errno::PROTO)),
        }
    }

    #[inline]
    pub fn check(&self, op: Op) -> Result<()> {
        if self.broken.load(Relaxed) != broken::NOT { self.why_broken(op) } else { Ok(()) }
    }

    /// How copies into the ring are made.
    pub fn hint(&self, flags: SendFlags, footprint: usize) -> Hint {
        let policy =
            if flags.contains(SendFlags::NTCOPY) { Policy::NonTemporal } else { self.settings.policy() };
        Hint { policy, footprint, reader: self.settings.reader() }
    }

    /// What a send returns: a count if anything was sent, else the error; with SIGPIPE where send(2) raises it.
    pub fn finish(&self, result: Result<()>, sent: usize, flags: SendFlags) -> Result<usize> {
        match result {
            Err(error) if sent == 0 => {
                // (Of streams only: net/unix/af_unix.c, unix_dgram_sendmsg, which records go through, sends none.)
                if error.raw_os_error() == Errno::PIPE.raw_os_error()
                    && !flags.contains(SendFlags::NOSIGNAL)
                    && self.kind == Kind::Stream
                {
                    control::raise_sigpipe(self.fd());
                }
                Err(error)
            }
            _ => Ok(sent),
        }
    }

    /// Whether a channel that failed has gone with the process that had it, of several that share the other end: the connection
    /// lives.
    pub fn can_go_on(&self, errno: Errno) -> bool {
        matches!(errno, Errno::PIPE | Errno::CONNRESET) && self.kind != Kind::Datagram && !self.cannot_send()
    }

    /// What a send says where the channel failed it.
    pub fn no_channel(&self, errno: Errno) -> Error {
        // The channel is a connection of its own, whose reset says no more than that the peer is gone.
        let errno = if errno == Errno::CONNRESET { Errno::PIPE } else { errno };
        let error = Error::new(Op::Send, errno);
        match errno {
            Errno::PERM => {
                error.about("who").because("a sender may only claim what it is; more takes a privilege")
            }
            _ => error,
        }
    }

    /// What a send of a record says that is longer than the ring. A pending error comes before it (net/unix/af_unix.c:
    /// unix_seqpacket_sendmsg), but not of a datagram socket (unix_dgram_sendmsg).
    #[cold]
    pub fn too_long(&self) -> Error {
        let reset = self.kind == Kind::SeqPacket && self.take_reset();
        if reset { Error::new(Op::Send, Errno::CONNRESET) } else { too_long() }
    }

    pub fn max_record(&self) -> usize {
        match self.tx_ring.get() {
            Some(ring) => record::largest(ring.capacity()),
            None => self.max_kernel_record(),
        }
    }

    /// The longest that the kernel takes (net/unix/af_unix.c: unix_dgram_sendmsg).
    pub fn max_kernel_record(&self) -> usize {
        rustix::net::sockopt::socket_send_buffer_size(&self.fd).unwrap_or(0).saturating_sub(32)
    }

    /// The peer does not keep stream records, or has left before it could say.
    #[cold]
    pub fn no_agreement(&self, op: Op) -> Error {
        if op == Op::Send && (control::gone(self.fd()) || control::hung_up(self.fd())) {
            return Error::new(op, Errno::PIPE);
        }
        Error::new(op, Errno::PROTONOSUPPORT)
            .about("Config::records")
            .because("the peer does not keep stream records; use atomic ones, or set the same at both ends")
    }
}

#[cold]
pub fn too_long() -> Error {
    Error::new(Op::Send, Errno::MSGSIZE).about("bytes").because(
        "the record is longer than the buffer takes whole; raise the send buffer, or send less at once",
    )
}
