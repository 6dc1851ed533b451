//! How a kernel connection becomes a shared-memory one, in place.
//!
//! 1. A capable client binds itself to an abstract name `onecopy-4-<nonce>-<what it asks for>` before it connects. An
//!    incapable server does not care; a capable one sees it at accept.
//! 2. Either side *attaches*: it makes both rings, in one memfd, labelled with the nonce, and sends that memfd as SCM_RIGHTS
//!    with bytes that its program sends. A server does so with its first ones, where its client has invited it; a client with its
//!    second ones, where it knows the listener for one of ours (`rendezvous.rs`): nobody else is ever handed a descriptor. (One
//!    message is not worth rings, and an answer to it brings the server's. A client of stream records needs them at once.) Who
//!    has nothing to send attaches nothing, and nothing of the handshake lies in the queue by itself: poll(2) tells of the
//!    program's bytes and of nothing else.
//! 3. The other side takes the memfd off when it receives those bytes, checks and maps it, and *joins* by a word in the ring that
//!    it will receive from ([`InfoLine::joined`]). Before its next send it notes in the other ring how many bytes it has sent over
//!    the kernel ([`WriterLine::switch_at`]), and from then on sends through that.
//! 4. Who attached finds the word in its own calls, and switches in the same way.
//!
//! So each direction switches at an exact byte, nobody ever waits for the other to take part, and either may stay silent,
//! or plain, for ever. A receiver asks how many bytes the kernel holds *before* it reads `joined` or `switch_at`: bytes that it
//! was told of without a switch are bytes of the stream.
//!
//! Where both attach at once the server's rings stand: a server that has attached joins nothing, and a client that finds the
//! server's with its bytes drops its own. A server that wants larger rings than a client has made says so in them, once
//! ([`TOO_SMALL`]), and the client attaches others to its next bytes.
//!
//! What the kernel does with descriptors makes this work (net/unix/af_unix.c): they travel with the first bytes of their send,
//! a receive ends behind those bytes, and one without room for them closes them.
//!
//! [`InfoLine::joined`]: onecopy_ring::header::InfoLine
//! [`WriterLine::switch_at`]: onecopy_ring::header::WriterLine

use crate::ancillary::attached::Attached;
use crate::ancillary::channel::Fds;
use crate::config::Config;
use crate::connection::core::Core;
use crate::connection::rx::Rx;
use crate::connection::tx::{Tx, UNKNOWN};
use crate::handshake::invitation::{capacity_of, wish};
use crate::handshake::undecided::{Role, Strips, Switching};
use crate::{Op, Records, Result};
use onecopy_ring::memory::{JOINED, TOO_SMALL};
use onecopy_ring::{MIN_CAPACITY, Producer, Ring, round_capacity};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::AtomicU32;
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release};
use onecopy_sys::memfd::Refused;
use onecopy_sys::scm::{self, MAX_FDS, Space};
use onecopy_sys::user::is_known;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};
use std::io::{IoSlice, IoSliceMut};

pub use onecopy_ring::memory::Nonce;

/// The peer's ring, and what must still happen before this end may send into it.
#[derive(Debug)]
pub struct Offer {
    ring: Ring,
    stage: Stage,
    /// Of a client that has attached: what it receives from once the server has joined.
    mine: Option<Ring>,
}

#[derive(Debug)]
enum Stage {
    /// The memfd of both rings goes with the next bytes.
    Attach(OwnedFd),
    /// The peer has it, or gets it, and may join.
    Sent,
    /// The peer receives from it, and lets this side begin.
    Joined,
}

/// What [`Handshake::offered`] says.
pub mod offered {
    /// There is no offer.
    pub const NONE: u32 = 0;
    /// The peer may join.
    pub const SENT: u32 = 1;
    /// Rings go with the next bytes.
    pub const ATTACH: u32 = 2;
    /// The peer has joined, and too much of what was sent before lies unread.
    pub const FULL: u32 = 3;
}

/// A ring to receive into, which says what its receiver maps besides.
///
/// # Errors
///
/// What memfd_create(2), ftruncate(2) and mmap(2) say.
pub fn new_ring(capacity: usize, config: &Config) -> rustix::io::Result<(Ring, OwnedFd)> {
    let (ring, memfd) = Ring::create(capacity)?;
    if config.passable {
        ring.keep(rustix::io::fcntl_dupfd_cloexec(&memfd, 3)?);
    }
    ring.header().info.0.max_shared.store(config.max_shared as u64, Relaxed);
    ring.header().info.0.asks_identity.store(u32::from(config.pass_credentials), Relaxed);
    Ok((ring, memfd))
}

/// Whether the client at the other end of `accepted` believes rings that this process makes: they are then of the user as whom the listener
/// listens, which a daemon may have given up since, or of the client's own (`Connection::is_of_the_peer`).
pub fn is_believed(listener: BorrowedFd<'_>, accepted: BorrowedFd<'_>) -> bool {
    let me = rustix::process::geteuid();
    // (Of a listener it is who has called listen(2): net/unix/af_unix.c, unix_listen.)
    [listener, accepted].into_iter().any(|fd| sockopt::socket_peercred(fd).is_ok_and(|cred| cred.uid == me))
}

/// Of descriptors that came with a message, the rings of the connection with that nonce: they come behind the program's.
pub fn take_rings(fds: &mut Vec<OwnedFd>, nonce: &Nonce) -> Option<OwnedFd> {
    let last = fds.last()?;
    if Ring::label(last).as_ref() == Some(nonce) { fds.pop() } else { None }
}

fn joined(ring: &Ring) -> u32 {
    // Acquire pairs with the Release store in `join`: what the peer says of the ring is there.
    ring.header().info.0.joined.load(Acquire)
}

/// How a connection comes by its rings: what is offered to the sending side, and whether anything is still open.
#[derive(Debug)]
pub struct Handshake {
    /// The peer's ring, from when there is one until the sender switches to it.
    offer: Mutex<Option<Offer>>,
    /// What `offer` holds ([`offered`]).
    offered: AtomicU32,
    /// 1 while this side has attached no rings for good, and joined none, and may.
    undecided: AtomicU32,
}

impl Handshake {
    /// Of a connection that is not decided, or that has its rings, or will have none.
    pub fn new(undecided: bool) -> Handshake {
        Handshake {
            offer: Mutex::new(None),
            offered: AtomicU32::new(offered::NONE),
            undecided: AtomicU32::new(undecided.into()),
        }
    }

    /// Whether rings may still be attached or joined. Acquire pairs with the Release store in `decided_now`: the rings that another
    /// thread attaches are there.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.undecided.load(Acquire) != 0
    }

    /// What is offered.
    #[inline]
    pub fn offered(&self) -> u32 {
        self.offered.load(Relaxed)
    }

    /// Whether the server has joined the rings that this client has attached: then they are what is received from.
    pub fn is_joined(&self, core: &Core, rx: &mut Rx) -> bool {
        let Rx::Undecided(undecided) = &*rx else { return false };
        let Some([theirs, mine]) = &undecided.attached else { return false };
        if joined(theirs) != JOINED {
            return false;
        }
        let mine = mine.clone();
        let (received, nonce) = (undecided.received, undecided.nonce);
        if core.rx_ring.get().is_none() {
            core.set_rx_ring(mine.clone());
        }
        *rx = Rx::Switching(Switching::new(mine, received, nonce));
        self.decided_now();
        true
    }

    /// Looks, without waiting, whether the peer's rings came with what is next in the queue, and joins them. They are taken out
    /// of there with those bytes. Whether the sending side was offered a ring by that.
    pub fn decide(&self, core: &Core, rx: &mut Rx, op: Op) -> Result<bool> {
        if self.is_joined(core, rx) || core.others.are_there() {
            return Ok(false);
        }
        let Rx::Undecided(undecided) = rx else { return Ok(false) };
        if !undecided.looks {
            return Ok(false);
        }
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut came = match scm::recv(core.fd(), &mut [IoSliceMut::new(&mut [0])], Space::All, flags) {
            Ok(came) => came,
            Err(Errno::CONNRESET) => {
                // The kernel tells it once; it is for whoever receives.
                core.reset.store(1, Relaxed);
                return Ok(false);
            }
            Err(_) => return Ok(false),
        };
        match take_rings(&mut came.fds, &undecided.nonce) {
            Some(memfd) => {
                let joined = self.join(core, rx, memfd, false, op)?;
                if let Rx::Switching(switching) = rx {
                    switching.strip_one();
                }
                return Ok(joined);
            }
            // (There may be some for which this process has no room: what receives these bytes will see.)
            None if came.control_cut => {}
            None => self.without_rings(core, rx),
        }
        Ok(false)
    }

    /// `count` bytes, or records, were received over the kernel, and rings with them or none. Whether the sending side was
    /// offered a ring by that.
    pub fn received_over_kernel(
        &self,
        core: &Core,
        rx: &mut Rx,
        count: u64,
        rings: Option<OwnedFd>,
        op: Op,
    ) -> Result<bool> {
        match rx {
            Rx::Undecided(undecided) => {
                undecided.received += count;
                match rings {
                    Some(memfd) if !core.others.are_there() => return self.join(core, rx, memfd, true, op),
                    _ => self.without_rings(core, rx),
                }
            }
            Rx::Switching(switching) => {
                switching.count(count);
                if rings.is_some() {
                    switching.stripped();
                }
            }
            Rx::Plain | Rx::Ring(_) => {}
        }
        Ok(false)
    }

    /// The peer's next bytes have no rings with them, or none that can be used: a server that had any would have attached them.
    fn without_rings(&self, core: &Core, rx: &mut Rx) {
        let Rx::Undecided(undecided) = rx else { return };
        // (A client attaches when it can: others may have had its end before. It still may where the server, though one of ours, has not.)
        undecided.looks = undecided.is_server();
        let waits = undecided.attached.is_some() || undecided.may_attach(0);
        if !undecided.looks && (!waits || core.others.are_there()) {
            core.counters.fallbacks.add(1);
            *rx = Rx::Plain;
            self.decided_now();
        }
    }

    /// It is known what the peer is, and the ring, if there is one, is in its place: a sender looks at this without a lock.
    pub fn decided_now(&self) {
        // Release pairs with the Acquire loads in `tx.rs`.
        self.undecided.store(0, Release);
    }

    /// The peer's rings came, of which this side receives from the first and sends into the second. Where it is this side that
    /// cannot (out of address space, or they are larger than it accepts), the kernel carries on. `taken`: they are out of the queue,
    /// where they are met once more otherwise, and must not be answered twice. Whether the sending side was offered a ring.
    ///
    /// # Errors
    ///
    /// EPROTO where they are none.
    fn join(&self, core: &Core, rx: &mut Rx, memfd: OwnedFd, taken: bool, op: Op) -> Result<bool> {
        let Rx::Undecided(undecided) = rx else { return Ok(false) };
        if !self.is_of_the_peer(core, &memfd) {
            if taken {
                self.without_rings(core, rx);
            }
            return Ok(false);
        }
        let [mine, theirs] = match Ring::open_pair(&memfd, core.config.max_ring.max(MIN_CAPACITY)) {
            Ok(rings) => rings,
            Err(Refused::NoMapping(_)) => {
                if taken {
                    self.without_rings(core, rx);
                }
                return Ok(false);
            }
            Err(_) => return Err(core.bad_rings(op)),
        };
        point!("rings taken");
        // (Pieces of stream records only come to who has joined.)
        if let Role::Server(Some(invitation)) = &undecided.role
            && !undecided.larger
            && core.config.records == Records::Atomic
        {
            let [to_client, from_client] = invitation.capacities(core.kind, &core.config);
            let too_small = mine.capacity() < from_client || theirs.capacity() < to_client;
            if too_small && !taken {
                return Ok(false);
            }
            if too_small {
                // (They are its memory: what it makes of the wish is bounded by what it has said in its name.)
                mine.header().info.0.wanted.store(from_client as u64, Relaxed);
                theirs.header().info.0.wanted.store(to_client as u64, Relaxed);
                // Release pairs with the Acquire load in `joined`: the sizes are there.
                mine.header().info.0.joined.store(TOO_SMALL, Release);
                (undecided.larger, undecided.looks) = (true, true);
                return Ok(false);
            }
        }
        if core.config.passable {
            mine.keep(memfd);
        }
        mine.header().info.0.max_shared.store(core.config.max_shared as u64, Relaxed);
        core.set_rx_ring(mine.clone());
        // Release pairs with the Acquire load in `joined`: what the ring says of its receiver is there.
        mine.header().info.0.joined.store(JOINED, Release);
        point!("joined");
        *rx = Rx::Switching(Switching::new(mine, undecided.received, undecided.nonce));
        self.decided_now();
        *self.offer.lock() = Some(Offer { ring: theirs, stage: Stage::Joined, mine: None });
        self.offered.store(offered::SENT, Release);
        Ok(true)
    }

    /// Whether the peer's user, or this side's, has made it. Somebody else's was passed on by a program that knew nothing of it: the
    /// nonce that it is labelled with is no secret, but stands in /proc/net/unix.
    fn is_of_the_peer(&self, core: &Core, memfd: &OwnedFd) -> bool {
        let Ok(made) = rustix::fs::fstat(memfd) else { return false };
        let is_the_peers =
            || sockopt::socket_peercred(&core.fd).is_ok_and(|cred| cred.uid.as_raw() == made.st_uid);
        let me = rustix::process::geteuid().as_raw();
        is_known(made.st_uid) && (made.st_uid == me || is_the_peers())
    }

    /// Makes rings that go with the next bytes, if this side may and has not.
    pub fn attach_rings(&self, core: &Core, rx: &mut Rx) {
        let Rx::Undecided(undecided) = rx else { return };
        let (config, sent) = (&core.config, core.counters.sent.get());
        let capacities = match (&undecided.role, &undecided.attached) {
            _ if !undecided.may_attach(sent) => return,
            (Role::Server(Some(invitation)), _) => invitation.capacities(core.kind, &core.config),
            // One message is not worth rings.
            (Role::Client(true), None) if sent == 0 && config.records == Records::Atomic => return,
            (Role::Client(true), None) => {
                let of = |bytes| capacity_of(core.kind, [wish(bytes), 0], config.max_ring);
                [of(config.send_buffer), of(config.receive_buffer)]
            }
            (Role::Client(true), Some([theirs, mine]))
                if !undecided.larger && joined(theirs) == TOO_SMALL =>
            {
                undecided.larger = true;
                [theirs, mine].map(|ring| {
                    let wanted = ring.header().info.0.wanted.load(Relaxed);
                    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).max(ring.capacity());
                    round_capacity(wanted, config.max_ring)
                })
            }
            _ => return,
        };
        let kept = |memfd: &OwnedFd| match config.passable {
            true => rustix::io::fcntl_dupfd_cloexec(memfd, 3).map(Some),
            false => Ok(None),
        };
        let made = Ring::pair(capacities, &undecided.nonce)
            .and_then(|(rings, memfd)| Ok((rings, kept(&memfd)?, memfd)));
        let Ok(([theirs, mine], kept, memfd)) = made else {
            // No memory to offer. The peer waits for nothing, and the kernel carries on.
            core.counters.fallbacks.add(1);
            match &mut undecided.role {
                Role::Client(may) => *may = false,
                Role::Server(invitation) => *invitation = None,
            }
            return;
        };
        if let Some(kept) = kept {
            mine.keep(kept);
        }
        mine.header().info.0.max_shared.store(config.max_shared as u64, Relaxed);
        core.ask_identity(&mine);
        let mut offer = Offer { ring: theirs.clone(), stage: Stage::Attach(memfd), mine: None };
        if undecided.is_server() {
            // The client's own may come with what it has sent before it saw these.
            let switching = Switching::new(mine.clone(), undecided.received, undecided.nonce);
            *rx = Rx::Switching(switching.stripping(Strips::All));
            core.set_rx_ring(mine);
        } else {
            offer.mine = Some(mine.clone());
            undecided.attached = Some([theirs, mine]);
        }
        *self.offer.lock() = Some(offer);
        self.offered.store(offered::ATTACH, Release);
        point!("attached");
        if !matches!(rx, Rx::Undecided(_)) {
            // Last: another thread that sends without a look here takes the rings along, whichever message is the first.
            self.decided_now();
        }
    }

    /// Whether the peer has left that was offered this side's rings, or whose this side was, before this side switched.
    pub fn has_left_offer(&self) -> bool {
        let left = |offer: &Offer| offer.ring.header().info.0.shut.load(Relaxed) != 0;
        self.offered.load(Relaxed) != offered::NONE && self.offer.lock().as_ref().is_some_and(left)
    }

    /// Before other processes share this end: what was not adopted by now never is.
    pub fn decline_offer(&self) {
        self.offered.store(offered::NONE, Relaxed);
        *self.offer.lock() = None;
    }

    /// Sends over the kernel, and the memfd of the rings with it where that is to go.
    ///
    /// # Errors
    ///
    /// What sendmsg(2) says.
    pub fn send_message(
        &self,
        core: &Core,
        pieces: &[IoSlice<'_>],
        attached: Attached<'_>,
        flags: SendFlags,
    ) -> rustix::io::Result<usize> {
        if self.offered.load(Relaxed) == offered::ATTACH
            // (A client may send rings with any of its messages: not with one that has no room for them.)
            && (attached.fds.len() < MAX_FDS || !self.may_attach_later())
            && let Some(memfd) = self.stage(|stage| match std::mem::replace(stage, Stage::Sent) {
                Stage::Attach(memfd) => Some(memfd),
                other => {
                    *stage = other;
                    None
                }
            })
        {
            self.offered.store(offered::SENT, Relaxed);
            if attached.fds.len() < MAX_FDS {
                let mut fds = attached.fds.to_vec();
                fds.push(memfd.as_fd());
                match scm::send(&core.fd, pieces, &fds, attached.who, flags) {
                    // Too many are in flight: this connection stays with the kernel.
                    Err(Errno::TOOMANYREFS) => {}
                    Ok(sent) => return Ok(sent),
                    Err(errno) => {
                        // Nothing was sent: with the next bytes, then.
                        self.stage(|stage| match stage {
                            Stage::Sent => {
                                *stage = Stage::Attach(memfd);
                                Some(())
                            }
                            _ => None,
                        })
                        .inspect(|()| self.offered.store(offered::ATTACH, Relaxed));
                        return Err(errno);
                    }
                }
            }
            core.counters.fallbacks.add(1);
            self.decline_offer();
        }
        scm::send(&core.fd, pieces, attached.fds, attached.who, flags)
    }

    fn may_attach_later(&self) -> bool {
        self.offer.lock().as_ref().is_some_and(|offer| offer.mine.is_some())
    }

    fn stage<T>(&self, then: impl FnOnce(&mut Stage) -> Option<T>) -> Option<T> {
        self.offer.lock().as_mut().and_then(|offer| then(&mut offer.stage))
    }

    /// Whether the sending side would switch, but for what lies unread in the kernel's queue: a send then waits for that to
    /// become less, and not for the kernel to take its bytes.
    pub fn waits_to_switch(&self) -> bool {
        self.offered.load(Relaxed) == offered::FULL
    }

    /// Switches the sending side to the offered ring, if the peer receives from it.
    pub fn adopt(&self, core: &Core, tx: &mut Tx) {
        if self.offered.load(Relaxed) == offered::NONE {
            return;
        }
        let Tx::Kernel { sent } = *tx else { return };
        if sent == UNKNOWN {
            return self.decline_offer();
        }
        let mut slot = self.offer.lock();
        let Some(offer) = slot.as_mut() else { return };
        match offer.stage {
            Stage::Attach(_) => return,
            Stage::Sent if joined(&offer.ring) != JOINED => return,
            Stage::Sent | Stage::Joined => offer.stage = Stage::Joined,
        }
        // Doorbells must have room behind what the peer has not yet received over the kernel.
        // (A doorbell alone always has it.)
        if sent > 0 {
            let unread = onecopy_sys::socket::unread_memory(&core.fd).unwrap_or(usize::MAX);
            let buffer = sockopt::socket_send_buffer_size(&core.fd).unwrap_or(0);
            if unread > buffer / 2 {
                return self.offered.store(offered::FULL, Relaxed);
            }
        }
        let Some(Offer { ring, mine, .. }) = slot.take() else { return };
        self.offered.store(offered::NONE, Relaxed);
        if let Some(mine) = mine.filter(|_| core.rx_ring.get().is_none()) {
            core.set_rx_ring(mine);
        }
        // Release: the count is there before the first byte in the ring is.
        ring.header().writer.0.switch_at.store(sent + 1, Release);
        core.kernel_sent.store(sent, Relaxed);
        core.set_tx_ring(ring.clone());
        *tx = Tx::ring(Producer::new(ring));
    }
}

impl Fds {
    /// Takes the rings of a connection out of them.
    pub fn take_rings(&mut self, nonce: &Nonce) -> Option<OwnedFd> {
        take_rings(&mut self.list, nonce)
    }
}
