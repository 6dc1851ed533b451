//! The core of a connection: the control socket, and what every part may look at and none owns.
//!
//! Both directions, the doorbell, descriptors and credentials, and the processes that share an end all stand
//! on the core. The core stands on none of them.
//!
//! | file | what is there |
//! |---|---|
//! | `noted.rs` | what an end has noted of itself: that it is lost, shut down, reset, left |
//! | `failure.rs` | how a call fails, and what a peer's misbehaviour costs it |
//! | `hint.rs` | how copies into the ring are to be made, as far as the settings say |
//! | `kind.rs` | the kinds of sockets |
//! | `elsewhere.rs` | the second socket at which a sender of datagrams rings |

use crate::config::Config;
use crate::control;
use crate::control::Peek;
use crate::core::elsewhere::Elsewhere;
use crate::core::kind::Kind;
use crate::members::claim::Claim;
use crate::members::others::Others;
use onecopy_ring::{Ring, memory, record};
use onecopy_socket::registry::Row;
use onecopy_socket::{Counters, Settings};
use onecopy_socket::{Error, Op, Result, SendFlags};
use onecopy_sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub mod elsewhere;
pub mod failure;
pub mod hint;
pub mod kind;
mod noted;

/// SO_PASSCRED and SO_PASSPIDFD, as a connection's `pass` takes them.
pub const PASS_CREDENTIALS: u32 = 1;
pub const PASS_PIDFD: u32 = 2;

/// The values of `Core::broken`.
pub mod broken {
    /// Nothing is wrong.
    pub const NOT: u32 = 0;
    /// The peer, or a member, misbehaved.
    pub const MISBEHAVED: u32 = 1;
    /// This process has inherited an end that it cannot use: another thread of its parent was using it.
    pub const ORPHAN: u32 = 2;
    /// As `ORPHAN`, for the sending side only.
    pub const CANNOT_SEND: u32 = 3;
    /// This process has passed the end on to another one, and is letting go of it.
    pub const PASSED: u32 = 4;
    /// There was a fork, and this process has not used the end since. Only a datagram socket says so: only
    /// one process may use it after a fork.
    pub const UNCLAIMED: u32 = 5;
}

/// What all parts of a connection may look at.
#[derive(Debug)]
pub struct Core {
    fd: OwnedFd,
    kind: Kind,
    /// Threads of this process that sleep for something to receive.
    sleepers: AtomicU32,
    /// The ring that this end receives from, once the peer sends into it or may.
    rx_ring: OnceLock<Ring>,
    /// The ring that this end sends into, once it does.
    tx_ring: OnceLock<Ring>,
    config: Config,
    settings: Settings,
    counters: Counters,
    /// The row of the registry that holds the counters, where other processes can read them.
    row: Row,
    /// Bytes sent over the kernel before the sending side switched to the ring.
    kernel_sent: AtomicU64,
    /// 1 when a sender that does not wait was turned away because another one held the sending side. It waits
    /// for POLLOUT, which must then come.
    turned_away: AtomicU32,
    /// 1 once somebody may poll the control socket, whose readiness must then mirror the ring.
    mirror: AtomicU32,
    /// 1 from when the kernel reported ECONNRESET, which it does once, until the caller was told.
    reset: AtomicU32,
    /// 1 from when the kernel said ECONNREFUSED, which it does once, to what the program has not sent, until a send
    /// of the program's was told.
    refused: AtomicU32,
    /// 1 once this end was shut down for sending.
    send_shut: AtomicU32,
    /// Which of SO_PASSCRED and SO_PASSPIDFD are on.
    passes: AtomicU32,
    /// How often this end has asked for the identity of the sender.
    asked: AtomicU32,
    /// 1 once this end was shut down for receiving. A ring that is made later must say so.
    recv_shut: AtomicU32,
    /// Whether the end is lost, and why: see [`broken`].
    broken: AtomicU32,
    /// What processes share of the end, once it was in a process that forked.
    others: Others,
    /// Which process may use an end that only one may use after a fork.
    claim: Claim,
    /// The lifeline of a datagram socket that shares memory with its peer. It hangs up when that peer goes,
    /// which the kernel's datagram sockets do not report. It is also the channel of both directions
    /// (`ancillary/channel.rs`).
    life: OnceLock<Arc<OwnedFd>>,
    /// What the sending end of a datagram socket's lane has outside of its line.
    elsewhere: OnceLock<Box<Elsewhere>>,
    /// 1 once a datagram socket has left the peer that it shared memory with.
    parted: AtomicU32,
    /// Threads that are connecting a datagram socket. A sender that sleeps lets them have the sending side.
    connecting: AtomicU32,
    /// The process that made this end. A forked child that drops its copy must leave the queue alone.
    maker: u32,
    /// How often the maker had forked before it made this end. A fork since then may have copied it.
    forks: u32,
}

impl Core {
    #[inline]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    #[inline]
    pub fn config(&self) -> &Config {
        &self.config
    }

    #[inline]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    #[inline]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns what processes share of the end.
    #[inline]
    pub fn others(&self) -> &Others {
        &self.others
    }

    /// Returns the ring that this end receives from, once there is one.
    #[inline]
    pub fn rx_ring(&self) -> Option<&Ring> {
        self.rx_ring.get()
    }

    /// Returns the ring that this end sends into, once there is one.
    #[inline]
    pub fn tx_ring(&self) -> Option<&Ring> {
        self.tx_ring.get()
    }

    /// Returns what the sending end of a datagram socket's lane has outside of its line.
    #[inline]
    pub fn elsewhere(&self) -> Option<&Elsewhere> {
        self.elsewhere.get().map(|elsewhere| &**elsewhere)
    }

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
            refused: AtomicU32::new(0),
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
            forks: crate::generation::forks(),
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the descriptor that hangs up when the peer goes.
    #[inline]
    pub fn life(&self) -> BorrowedFd<'_> {
        self.life.get().map_or(self.fd.as_fd(), |life| life.as_fd())
    }

    /// Looks whether the peer sends nothing any more, so that nothing will be added to the queue of the
    /// control socket.
    pub fn hung_up(&self) -> bool {
        control::hung_up(self.life())
    }

    /// Makes it look to the peer of a datagram socket as if this end were closed. Closes the descriptors that
    /// came with datagrams which nobody will receive.
    pub fn end_life(&self) {
        if let Some(life) = self.life.get() {
            let _ = rustix::net::shutdown(life, rustix::net::Shutdown::Both);
            control::discard(life.as_fd());
        }
    }

    /// Sets the ring that this end receives from.
    pub fn set_rx_ring(&self, ring: Ring) {
        self.row.receives_into(ring.capacity());
        self.ask_identity(&ring);
        let _ = self.rx_ring.set(ring.clone());
        // Pairs with the fence in `shutdown`: either that one finds the ring, or this one finds the shutdown.
        fence(SeqCst);
        if self.recv_shut.load(Relaxed) != 0 {
            ring.header().info.0.shut.store(memory::SHUT, Relaxed);
        }
    }

    /// Sets the ring of an end that other processes share already. What they have said in it stands.
    pub fn join_rx_ring(&self, ring: Ring) {
        self.row.receives_into(ring.capacity());
        let _ = self.rx_ring.set(ring);
    }

    /// Whether receives tell who sent.
    #[inline]
    pub fn passes_identity(&self) -> bool {
        self.passes.load(Relaxed) != 0
    }

    /// Whether receives tell it by credentials.
    pub fn passes_credentials(&self) -> bool {
        self.passes.load(Relaxed) & PASS_CREDENTIALS != 0
    }

    /// Whether receives tell it by a pidfd, too.
    pub fn passes_pidfd(&self) -> bool {
        self.passes.load(Relaxed) & PASS_PIDFD != 0
    }

    /// Returns what this end asks of its senders, and how often it has asked.
    pub fn asks(&self) -> (u32, u32) {
        (self.passes.load(Relaxed), self.asked.load(Relaxed))
    }

    /// Notes whether receives tell who sent by `which` from here on, and that senders are asked anew.
    pub fn ask_for(&self, which: u32, on: bool) {
        let others = self.passes.load(Relaxed) & !which;
        self.passes.store(if on { others | which } else { others }, Relaxed);
        self.asked.fetch_add(1, Relaxed);
    }

    /// Sets what [`Core::asks`] returns, for an end that another process has passed on.
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

    /// Stops the kernel from adding credentials, now that the peer only sends doorbells and fillers over it.
    /// Their sender does not matter, and the kernel would end a look at them where the sender changes.
    ///
    /// # Errors
    ///
    /// What setsockopt(2) says.
    pub fn pass_no_doorbells(&self) -> rustix::io::Result<()> {
        self.pass_over_kernel(self.passes.load(Relaxed), false)
    }

    /// Tells senders into this ring whether they are asked for their identity.
    pub fn ask_identity(&self, ring: &Ring) {
        let asks = if self.passes_identity() { self.asked.load(Relaxed).max(1) } else { 0 };
        // Release: a sender that hears of the request from this thread finds it here. Whatever brings the
        // news is the pair.
        ring.header().info.0.asks_identity.store(asks, Release);
    }

    /// Sets the ring that this end sends into.
    pub fn set_tx_ring(&self, ring: Ring) {
        self.row.sends_into(ring.capacity());
        let _ = self.tx_ring.set(ring);
    }

    /// Returns how many bytes of the ring the peer has not given back. 0 where nothing goes through a ring.
    pub fn unread_in_ring(&self) -> u64 {
        use onecopy_sync::atomic::Ordering::Acquire;
        self.tx_ring.get().map_or(0, |ring| {
            let header = ring.header();
            // Acquire on both: the answer is never older than what this thread saw happen before.
            let tail = header.reader.0.tail.load(Acquire);
            header.writer.0.head.load(Acquire).saturating_sub(tail).min(ring.capacity() as u64)
        })
    }

    /// Notes that a sender that does not wait found the sending side held. The thread that holds it sees the
    /// note after unlocking, provided that the sender tries the lock once more.
    pub fn turn_away(&self) {
        self.turned_away.store(1, Relaxed);
        self.others.turn_sender_away();
        // Pairs with the fence of unlocking before `welcome_back`.
        fence(SeqCst);
    }

    /// Makes an edge for a program that waits with epoll(7) for both directions. Setting SO_SNDBUF wakes
    /// whoever waits for POLLOUT (net/core/sock.c: sk_write_space), and such a program is then told of
    /// everything that is ready.
    pub fn make_edge(&self) {
        let size = rustix::net::sockopt::socket_send_buffer_size(&self.fd).unwrap_or(0);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&self.fd, size / 2);
    }

    /// Makes an edge for a sender that was turned away, after the sending side was unlocked. Setting
    /// SO_SNDBUF wakes whoever waits for POLLOUT (net/core/sock.c: sk_write_space).
    #[inline]
    pub fn welcome_back(&self) {
        if self.turned_away.load(Relaxed) != 0 && self.turned_away.swap(0, Relaxed) != 0 {
            self.make_edge();
        }
    }

    /// Looks whether a peer that announced its leaving has left.
    #[inline]
    pub fn peer_left(&self) -> bool {
        let says_so = |ring: &Ring| ring.header().info.0.shut.load(Relaxed) != 0;
        // A datagram socket may receive through a ring and send without one.
        self.tx_ring.get().map_or(self.kind == Kind::Datagram, says_so) && control::gone(self.life())
    }

    /// Takes everything out of the queue of a stream's control socket. Keeps an error that the kernel
    /// reports.
    pub fn take_all(&self) {
        loop {
            match rustix::net::recv(&self.fd, &mut [0u8; 8192], rustix::net::RecvFlags::DONTWAIT) {
                Ok((_, 8192)) | Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return self.reset.store(1, Relaxed),
                _ => return,
            }
        }
    }

    /// Looks whether sending is over: the peer is gone or reads no more, or this end was shut down.
    pub fn cannot_send(&self) -> bool {
        match self.kind {
            Kind::Stream => control::cannot_send(self.fd()),
            // No call asks the kernel about this without sending a record. A peer that shuts down says so in
            // the ring, and a killed one hangs up.
            Kind::SeqPacket | Kind::Datagram => {
                // One that is about to close is not gone before the kernel has closed it: until then nobody knows of a reset.
                let shut = |ring: &Ring| ring.header().info.0.shut.load(Relaxed) == memory::SHUT;
                self.send_shut.load(Relaxed) != 0
                    || self.tx_ring.get().is_some_and(shut)
                    || control::gone(self.life())
            }
        }
    }

    /// Looks whether the peer has not read all that this end sent, where this end sends into a ring.
    pub fn left_unread(&self) -> bool {
        let Some(ring) = self.tx_ring.get() else { return false };
        if self.parted.load(Relaxed) != 0 {
            return true; // what the kernel says now is about other peers
        }
        // Before the first byte in the ring, only bytes that went over the kernel can be unread. A datagram
        // socket needs no count of them: a peer that leaves takes an identity proof that is alone in the
        // queue.
        let none_in_ring = ring.header().writer.0.head.load(Relaxed) == 0;
        let over_kernel = self.kind == Kind::Datagram || self.kernel_sent.load(Relaxed) > 0;
        self.unread_in_ring() > 0 || (none_in_ring && over_kernel)
    }

    /// Looks at the head of the control socket's queue. With `wait`, sleeps until something is there.
    pub fn peek(&self, wait: bool) -> Peek {
        match control::peek(self.fd(), wait) {
            Peek::End if self.kind.has_records() => {
                point!("nothing at the head");
                // A record of no bytes looks like the end. At the end nothing more comes and nothing is left.
                // The order of these two looks matters: behind such a record more may come, and then the end,
                // after the peek.
                let ended =
                    control::hung_up(self.fd()) && control::queued(self.fd()).is_ok_and(|bytes| bytes == 0);
                match ended.then(|| control::has_named_record(self.fd())) {
                    Some(Ok(false)) => Peek::End,
                    Some(Err(errno)) => Peek::Failed(errno),
                    Some(Ok(true)) | None => Peek::Byte,
                }
            }
            peek => peek,
        }
    }

    /// Returns how many bytes the kernel holds. On a seqpacket socket, returns 1 where it holds a record.
    pub fn queued(&self) -> rustix::io::Result<usize> {
        let bytes = control::queued(self.fd())?;
        if self.kind == Kind::Stream {
            return Ok(bytes);
        }
        if bytes > 0 {
            return Ok(1);
        }
        // Only poll(2) shows a record of no bytes, and there it looks like the end if that has come too.
        let events = control::wait(self.fd(), PollFlags::IN | PollFlags::RDHUP, Some(Duration::ZERO));
        let events = events.unwrap_or(PollFlags::empty());
        if !events.contains(PollFlags::IN) {
            return Ok(0);
        }
        if !events.contains(PollFlags::RDHUP) {
            return Ok(1);
        }
        match control::has_named_record(self.fd()) {
            Ok(is_there) => Ok(usize::from(is_there)),
            Err(_) => {
                // The kernel tells it once; the next receive reports it.
                self.note_reset();
                Ok(0)
            }
        }
    }

    /// Asks the kernel what it has now. Keeps an error that the kernel reports once, until the caller was
    /// told.
    pub fn ask(&self) -> Peek {
        let peek = self.peek(false);
        match peek {
            Peek::Failed(Errno::CONNRESET) => self.reset.store(1, Relaxed),
            Peek::End if self.reset.load(Relaxed) != 0 => return Peek::Failed(Errno::CONNRESET),
            _ => {}
        }
        peek
    }

    /// Returns whether an ECONNRESET of the kernel is a real one. It also comes when the peer left only a
    /// doorbell unread.
    pub fn was_reset(&self) -> bool {
        if self.tx_ring.get().is_some() {
            return self.left_unread();
        }
        true
    }

    /// Asks the kernel whether O_NONBLOCK is set. Other processes may set and clear it on the descriptor or a
    /// copy of it (fcntl(2), FIONBIO). It is a system call, so a call only asks when it is about to sleep, or
    /// to return EAGAIN by what it remembers.
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

    /// Returns whether a send that is about to wait must not. It asks once: a send that has waited goes on,
    /// as in the kernel.
    pub fn must_not_wait(&self, flags: SendFlags, asked: &mut bool) -> bool {
        flags.contains(SendFlags::DONTWAIT) || !std::mem::replace(asked, true) && self.is_nonblocking()
    }

    /// Whether this process must leave the connection alone: it inherited an end that it cannot use, or has
    /// passed it on.
    pub fn is_orphan(&self) -> bool {
        matches!(self.broken.load(Relaxed), broken::ORPHAN | broken::PASSED)
    }

    /// Returns the error of a call on an end that is lost.
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

    pub fn max_record(&self) -> usize {
        match self.tx_ring.get() {
            Some(ring) => record::largest(ring.capacity()),
            None => self.max_kernel_record(),
        }
    }

    /// Returns the length of the longest record that the kernel takes (net/unix/af_unix.c:
    /// unix_dgram_sendmsg).
    pub fn max_kernel_record(&self) -> usize {
        rustix::net::sockopt::socket_send_buffer_size(&self.fd).unwrap_or(0).saturating_sub(32)
    }
}
