//! One end of a connection: what its two directions share.
//!
//! # Locks, in the order in which they are taken
//!
//! | lock | guards | held while sleeping |
//! |---|---|---|
//! | `rx` | the receiving side: what state it is in, positions, borrows | never |
//! | `tx` | the sending side: whole sends and reservations, so that they never interleave | yes |
//! | `offer` | the peer's ring, from when there is one until the sender switches to it | never |
//!
//! A receiver only ever *tries* `tx`: a sender asleep for want of room must not stop receiving. So `Datagram::connect`
//! may take `tx` first, and then `rx`. A datagram socket's `Meeting::state` comes after both; who holds it only tries them.

use crate::config::Config;
use crate::control::{self, Peek};
use crate::dgram::{Claim, Crowd, Meeting, Outside};
use crate::holders::{Place, broken};
use crate::making::Kind;
use crate::reference::{Copies, Lender};
use crate::rx::Rx;
use crate::sharing::Sharing;
use crate::side::{Side, SideGuard};
use crate::tx::Tx;
use crate::upgrade::Offer;
use crate::{Error, Op};
use onecopy_ring::consumer::BorrowId;
use onecopy_ring::{Lie, Ring};
use onecopy_socket::registry::Row;
use onecopy_socket::{Counters, Settings};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a call that may wait waits for a process that keeps the receiving side.
pub const STUCK: Duration = Duration::from_secs(10);
/// How long one that may not, and one that has something to tidy up, do.
pub const BRIEFLY: Duration = Duration::from_millis(100);

#[cold]
pub fn stuck(op: Op) -> Error {
    Error::new(op, Errno::BUSY).because(
        "another process that shares this socket is in the middle of a receive and does not go on; is it \
         stopped? Continue or end it, and call again",
    )
}

/// SO_PASSCRED and SO_PASSPIDFD, as [`End::pass`] knows them.
pub const PASS_CREDENTIALS: u32 = 1;
pub const PASS_PIDFD: u32 = 2;

/// One end of a connection.
#[derive(Debug)]
pub struct End {
    pub fd: OwnedFd,
    pub kind: Kind,
    pub rx: Side<Rx>,
    pub tx: Side<Tx>,
    pub offer: Mutex<Option<Offer>>,
    /// What `offer` holds ([`crate::upgrade::offered`]).
    pub offered: AtomicU32,
    /// 1 while this side has attached no rings for good, and joined none, and may.
    pub undecided: AtomicU32,
    /// Threads of this process that sleep for something to receive.
    pub sleepers: AtomicU32,
    /// The ring that this end receives from, once the peer sends into it or may.
    pub rx_ring: OnceLock<Ring>,
    /// The ring that this end sends into, once it does.
    pub tx_ring: OnceLock<Ring>,
    /// What is lent to the peer, once something was.
    pub lender: OnceLock<Arc<Lender>>,
    /// Where chains that are received as copies lie.
    pub copies: Copies,
    pub config: Config,
    pub settings: Settings,
    pub counters: Counters,
    /// Where the counters lie, for who looks from outside.
    row: Row,
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
    passes: AtomicU32,
    /// How often who sends was asked for.
    asked: AtomicU32,
    /// 1 once this end was shut down for receiving, of which a ring that is made later must tell.
    pub recv_shut: AtomicU32,
    /// Whether and why it is lost: see [`broken`].
    pub broken: AtomicU32,
    /// What processes share of it, once it was in one that forked.
    pub sharing: OnceLock<Arc<Sharing>>,
    /// Of a datagram socket that shared memory at a fork: a word that says which process has it.
    pub claim: Claim,
    /// Where forks find it.
    pub place: Place,
    /// Of a datagram socket that shares memory with its peer: what hangs up when that peer goes, which the kernel's
    /// datagram sockets do not tell; and the channel of both directions (`channel.rs`).
    pub life: OnceLock<Arc<OwnedFd>>,
    /// Of a datagram socket that is or was connected: how it comes to share memory with its peer.
    pub meet: OnceLock<Box<Meeting>>,
    /// Of a datagram socket that receives from many: who they are.
    pub crowd: OnceLock<Box<Crowd>>,
    /// 1 once it was tried to have any.
    pub gathered: AtomicU32,
    /// Of the sending end of a datagram socket's lane: what there is besides its line.
    pub outside: OnceLock<Box<Outside>>,
    /// 1 once a datagram socket has left the peer that it shared memory with.
    pub parted: AtomicU32,
    /// Threads that are connecting a datagram socket: who sleeps in a send lets them have the sending side.
    pub connecting: AtomicU32,
    /// 1 once a datagram socket that asks who sends was seen to have a name.
    pub named: AtomicU32,
    /// Who made it: a forked child that drops its copy must leave the queue alone.
    pub maker: u32,
    /// Forks of its maker before it was made: one since then may have copied it.
    pub forks: u32,
}

impl End {
    pub fn new(fd: OwnedFd, kind: Kind, config: &Config, rx: Rx, tx: Tx) -> End {
        let undecided = u32::from(matches!(rx, Rx::Undecided(_)));
        let maker = std::process::id();
        let row = Row::claim(maker, &fd, kind.into(), false);
        End {
            fd,
            kind,
            rx: Side::new(rx),
            tx: Side::new(tx),
            offer: Mutex::new(None),
            offered: AtomicU32::new(0),
            undecided: AtomicU32::new(undecided),
            sleepers: AtomicU32::new(0),
            rx_ring: OnceLock::new(),
            tx_ring: OnceLock::new(),
            lender: OnceLock::new(),
            copies: Copies::default(),
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
            sharing: OnceLock::new(),
            claim: Claim::default(),
            place: Place::default(),
            life: OnceLock::new(),
            meet: OnceLock::new(),
            crowd: OnceLock::new(),
            gathered: AtomicU32::new(0),
            outside: OnceLock::new(),
            parted: AtomicU32::new(0),
            connecting: AtomicU32::new(0),
            named: AtomicU32::new(0),
            maker,
            forks: crate::holders::forks(),
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes the receiving side. Nobody keeps it for long but a process that shares it and is stopped, or means ill.
    ///
    /// # Errors
    ///
    /// EBUSY.
    #[inline]
    pub fn lock_rx(&self, op: Op) -> Result<SideGuard<'_, Rx>, Error> {
        self.rx.lock_within(|| STUCK).ok_or_else(|| stuck(op))
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
            crate::channel::empty(life.as_fd());
        }
    }

    /// The ring that this end receives from is there.
    pub fn set_rx_ring(&self, ring: Ring) {
        self.row.receives_into(ring.capacity());
        self.ask_who(&ring);
        let _ = self.rx_ring.set(ring.clone());
        // Pairs with the fence in `shutdown`: either it finds the ring, or this finds the shutdown.
        fence(SeqCst);
        if self.recv_shut.load(Relaxed) != 0 {
            ring.header().info.0.shut.store(1, Relaxed);
        }
    }

    /// As [`End::set_rx_ring`], of an end that others share with this process: what they have said in it stands.
    pub fn join_rx_ring(&self, ring: Ring) {
        self.row.receives_into(ring.capacity());
        let _ = self.rx_ring.set(ring);
    }

    /// Whether receives tell who sent.
    #[inline]
    pub fn passes_who(&self) -> bool {
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

    /// Sets or clears one of these. Holds the receiving side, so that a ring that is just being made knows it.
    ///
    /// # Errors
    ///
    /// What setsockopt(2) says.
    pub fn pass(&self, which: u32, on: bool) -> rustix::io::Result<()> {
        let rx = self.rx.lock_within(|| STUCK).ok_or(Errno::BUSY)?;
        self.pass_over_kernel(which, on)?;
        let others = self.passes.load(Relaxed) & !which;
        self.passes.store(if on { others | which } else { others }, Relaxed);
        self.asked.fetch_add(1, Relaxed);
        let attached = match &*rx {
            Rx::Undecided(undecided) => undecided.attached(),
            _ => None,
        };
        if let Some(ring) = self.rx_ring.get().or(attached) {
            self.ask_who(ring);
        }
        self.ask_lanes(which, on)?;
        // (A look at a datagram socket's bells is one of a message each; and it has the kernel's datagrams to pass again once it
        // has left its peer.)
        if matches!(*rx, Rx::Ring(_)) && self.kind != Kind::Datagram { self.pass_no_bells() } else { Ok(()) }
    }

    /// What is asked of who sends, and how often it was.
    pub fn asks(&self) -> (u32, u32) {
        (self.passes.load(Relaxed), self.asked.load(Relaxed))
    }

    /// As [`End::asks`], of an end that another process has passed on.
    pub fn set_asks(&self, passes: u32, asked: u32) {
        self.passes.store(passes & (PASS_CREDENTIALS | PASS_PIDFD), Relaxed);
        self.asked.store(asked, Relaxed);
    }

    fn pass_over_kernel(&self, which: u32, on: bool) -> rustix::io::Result<()> {
        if which & PASS_CREDENTIALS != 0 {
            rustix::net::sockopt::set_socket_passcred(&self.fd, on)?;
        }
        if which & PASS_PIDFD != 0 {
            onecopy_sys::scm::set_pass_pidfd(&self.fd, on)?;
        }
        Ok(())
    }

    /// The peer sends bells and fillers only from here on: who rings does not matter, and the kernel would let a look at
    /// them end where that changes.
    ///
    /// # Errors
    ///
    /// What setsockopt(2) says.
    pub fn pass_no_bells(&self) -> rustix::io::Result<()> {
        self.pass_over_kernel(self.passes.load(Relaxed), false)
    }

    /// Lets who sends into this ring know what is asked.
    pub fn ask_who(&self, ring: &Ring) {
        let asks = if self.passes_who() { self.asked.load(Relaxed).max(1) } else { 0 };
        // Release: a sender that this thread tells of it finds it; its pair is whatever brings the news.
        ring.header().info.0.asks_who.store(asks, Release);
    }

    /// The ring that this end sends into is there.
    pub fn set_tx_ring(&self, ring: Ring) {
        self.row.sends_into(ring.capacity());
        let _ = self.tx_ring.set(ring);
    }

    /// The peer lied: this connection is over, in both directions, and for the peer too.
    #[cold]
    pub fn lie(&self, op: Op, lie: Lie) -> Error {
        self.counters.protocol_errors.add(1);
        self.broken.store(broken::LIED, Relaxed);
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
        self.end_life();
        Error::new(op, Errno::PROTO).because(match lie {
            Lie::Head { .. } => "the peer published an impossible amount of data; this connection is lost",
            Lie::Tail { .. } => "the peer gave back an impossible amount of room; this connection is lost",
            Lie::Filler(_) => "the peer parked an impossible filler; this connection is lost",
            Lie::Frame { .. } => "the peer published an impossible record; this connection is lost",
            Lie::Bells => "the peer rings bells for nothing; this connection is lost",
            Lie::Marks { .. } | Lie::Mark { .. } => {
                "the peer laid a mark that cannot be; this connection is lost"
            }
            Lie::Reference => "the peer sent a reference to no page of its pools; this connection is lost",
            Lie::Pool => {
                "the peer's pool is no memfd sealed for its owner, or larger than Config::max_shared; \
                 this connection is lost"
            }
            Lie::Channel => {
                "the peer announced descriptors or credentials that are not there or another user's, or took none that it \
                 was sent; this connection is lost"
            }
            Lie::Returned(_) => "the peer gave back a page that it does not have; this connection is lost",
            Lie::Holder => {
                "a process that shares this socket left a state that cannot be, or was killed while it received one of \
                 several empty records before the connection was upgraded; this connection is lost"
            }
            Lie::Switch { .. } => "the peer switched to shared memory in the past; this connection is lost",
        })
    }

    /// As [`End::lie`], for rings that are none.
    #[cold]
    pub fn bad_rings(&self, op: Op) -> Error {
        self.counters.protocol_errors.add(1);
        self.broken.store(broken::LIED, Relaxed);
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
        self.end_life();
        Error::new(op, Errno::PROTO).because(
            "the peer's rings are no sealed memfd of the size that they say; this connection is lost",
        )
    }

    #[inline]
    pub fn check(&self, op: Op) -> Result<(), Error> {
        if self.broken.load(Relaxed) != broken::NOT { self.why_broken(op) } else { Ok(()) }
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

    /// A sender that does not wait found the sending side held. Its holder sees that after unlocking, if the sender
    /// looks at the lock once more.
    pub fn turn_away(&self) {
        self.turned_away.store(1, Relaxed);
        if let Some(sharing) = self.sharing.get() {
            sharing.words().about.0.turned_away.store(1, Relaxed);
        }
        // Pairs with the fence of unlocking before `welcome_back`.
        fence(SeqCst);
    }

    /// A receiver that does not wait found the receiving side kept by another process. That one sees it after unlocking.
    #[cold]
    pub fn turn_receiver_away(&self) {
        if let Some(sharing) = self.sharing.get() {
            sharing.words().about.0.receiver_turned_away.store(1, Relaxed);
        }
    }

    /// A view is given back whose release another process keeps this one from: done by who takes the receiving side next.
    #[cold]
    pub fn release_later(&self, id: BorrowId, len: usize) {
        if let Some(sharing) = self.sharing.get() {
            sharing.late.lock().push((id, len));
        }
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

    /// Rings the peer's bell.
    pub fn ring_bell(&self) -> rustix::io::Result<()> {
        self.counters.bells.add(1);
        let rung = match self.kind {
            Kind::Datagram => control::ring_beside(self.fd()),
            Kind::Stream | Kind::SeqPacket => control::ring(self.fd()),
        };
        if let (Some(outside), Ok(())) = (self.outside.get(), rung) {
            outside.ring();
        }
        rung
    }
}
