//! How a kernel connection becomes a shared-memory one, in place.
//!
//! 1. A capable client binds itself to an abstract name `onecopy-4-<nonce>-<what it asks for>` before it
//!    connects. An incapable server does not care; a capable one sees the name at accept.
//! 2. Either side *attaches*: it makes both rings, in one memfd labelled with the nonce. It sends that memfd
//!    as SCM_RIGHTS with bytes that its program sends. A server whose client has invited it does so with its
//!    first bytes. A client does so with its second ones, if it knows the listener for one of ours
//!    (`rendezvous.rs`); it never hands a descriptor to any other listener. One message is not worth rings,
//!    and an answer to it brings the server's; a client of stream records needs rings at once.
//! 3. The other side takes the memfd off when it receives those bytes, checks it and maps it. It *joins* by a
//!    word in the ring that it will receive from ([`InfoLine::joined`]). Before its next send it notes in the
//!    other ring how many bytes it has sent over the kernel ([`WriterLine::switch_at`]), and from then on
//!    sends through that ring.
//! 4. The side that attached finds the word in its own calls, and switches in the same way.
//!
//! Each direction switches at an exact byte. Neither side ever waits for the other to take part, and either
//! may stay silent, or plain, for ever. A side with nothing to send attaches nothing, and the handshake puts
//! no message of its own into the queue: poll(2) tells of the program's bytes and of nothing else. A receiver
//! asks how many bytes the kernel holds *before* it reads `joined` or `switch_at`. Bytes that the kernel
//! reported while there was no switch are bytes of the stream.
//!
//! If both attach at once, the server's rings stand: a server that has attached joins nothing, and a client
//! that finds the server's with its bytes drops its own. A server that wants larger rings than a client has
//! made says so in them, once ([`TOO_SMALL`]). The client then attaches others to its next bytes.
//!
//! What the kernel does with descriptors makes this work (net/unix/af_unix.c). They travel with the first
//! bytes of their send. A receive ends behind those bytes, and a receive without room for descriptors closes
//! them.
//!
//! [`InfoLine::joined`]: onecopy_ring::header::InfoLine
//! [`WriterLine::switch_at`]: onecopy_ring::header::WriterLine

use crate::ancillary::attached::SendAncillary;
use crate::ancillary::channel::Fds;
use crate::config::Config;
use crate::config::Records;
use crate::connection::rx::Rx;
use crate::connection::tx::{Tx, UNKNOWN};
use crate::core::Core;
use crate::handshake::invitation::{capacity_of, wish};
use crate::handshake::undecided::{Role, Strips, Switching};
use onecopy_ring::memory::{JOINED, TOO_SMALL};
use onecopy_ring::{MIN_CAPACITY, Producer, Ring, round_capacity};
use onecopy_socket::{Op, Result};
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
    /// The ring that a client which has attached receives from, once the server has joined.
    mine: Option<Ring>,
}

#[derive(Debug)]
enum Stage {
    /// The memfd of both rings goes with the next bytes.
    Attach(OwnedFd),
    /// The peer has it, or will get it, and may join.
    Sent,
    /// The peer receives from it, and lets this side begin.
    Joined,
}

/// The values of [`Handshake::offered`].
pub mod offered {
    /// There is no offer.
    pub const NONE: u32 = 0;
    /// The peer may join.
    pub const SENT: u32 = 1;
    /// Rings go with the next bytes.
    pub const ATTACH: u32 = 2;
    /// The peer has joined, and too much of what was sent before is unread.
    pub const FULL: u32 = 3;
}

/// Makes a ring to receive into, which says what its receiver maps besides.
///
/// # Errors
///
/// What memfd_create(2), ftruncate(2) and mmap(2) return.
pub fn new_ring(capacity: usize, config: &Config) -> rustix::io::Result<(Ring, OwnedFd)> {
    let (ring, memfd) = Ring::create(capacity)?;
    if config.passable {
        ring.keep(rustix::io::fcntl_dupfd_cloexec(&memfd, 3)?);
    }
    ring.header().info.0.max_shared.store(config.max_shared as u64, Relaxed);
    ring.header().info.0.asks_identity.store(u32::from(config.pass_credentials), Relaxed);
    Ok((ring, memfd))
}

/// Whether the client at the other end of `accepted` believes rings that this process makes. It does if they
/// belong to the user as which the listener listens, or to the client's own user
/// (`Handshake::is_of_the_peer`). A daemon may have given up the listener's user since.
pub fn is_believed(listener: BorrowedFd<'_>, accepted: BorrowedFd<'_>) -> bool {
    let me = rustix::process::geteuid();
    // A listener's credentials are those of the process that has called listen(2) (net/unix/af_unix.c:
    // unix_listen).
    [listener, accepted].into_iter().any(|fd| sockopt::socket_peercred(fd).is_ok_and(|cred| cred.uid == me))
}

/// Takes the rings of the connection with that nonce out of the descriptors that came with a message. They
/// come behind the program's.
pub fn take_rings(fds: &mut Vec<OwnedFd>, nonce: &Nonce) -> Option<OwnedFd> {
    let last = fds.last()?;
    if Ring::label(last).as_ref() == Some(nonce) { fds.pop() } else { None }
}

fn joined(ring: &Ring) -> u32 {
    // Acquire pairs with the Release store in `join`: what the peer says of the ring is there.
    ring.header().info.0.joined.load(Acquire)
}

/// How a connection comes by its rings: what is offered to the sending side, and whether anything is still
/// open.
#[derive(Debug)]
pub struct Handshake {
    /// The peer's ring, from when there is one until the sender switches to it.
    offer: Mutex<Option<Offer>>,
    /// What `offer` holds ([`offered`]).
    offered: AtomicU32,
    /// 1 while this side may still attach or join rings, and has not done so for good.
    undecided: AtomicU32,
}

impl Handshake {
    /// Begins for a connection that is undecided, or that has its rings already or will have none.
    pub fn new(undecided: bool) -> Handshake {
        Handshake {
            offer: Mutex::new(None),
            offered: AtomicU32::new(offered::NONE),
            undecided: AtomicU32::new(undecided.into()),
        }
    }

    /// Whether rings may still be attached or joined. Acquire pairs with the Release store in `decided_now`:
    /// the rings that another thread attaches are there.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.undecided.load(Acquire) != 0
    }

    /// Returns what is offered.
    #[inline]
    pub fn offered(&self) -> u32 {
        self.offered.load(Relaxed)
    }

    /// Whether the server has joined the rings that this client has attached. If so the receiving side takes
    /// from them from here on.
    pub fn is_joined(&self, core: &Core, rx: &mut Rx) -> bool {
        let Rx::Undecided(undecided) = &*rx else { return false };
        let Some([theirs, mine]) = &undecided.attached else { return false };
        if joined(theirs) != JOINED {
            return false;
        }
        let mine = mine.clone();
        let (received, nonce) = (undecided.received, undecided.nonce);
        if core.rx_ring().is_none() {
            core.set_rx_ring(mine.clone());
        }
        *rx = Rx::Switching(Switching::new(mine, received, nonce));
        self.decided_now();
        true
    }

    /// Looks, without waiting, whether the peer's rings came with the next message in the queue, and joins
    /// them. They are taken out of the queue with that message. Returns whether this offered a ring to the
    /// sending side.
    pub fn decide(&self, core: &Core, rx: &mut Rx, op: Op) -> Result<bool> {
        if self.is_joined(core, rx) || core.others().are_there() {
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
                // The kernel tells it once; the next receive reports it.
                core.note_reset();
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
            // There may be descriptors that this process has no room for. The receive of these bytes will
            // tell.
            None if came.control_cut => {}
            None => self.without_rings(core, rx),
        }
        Ok(false)
    }

    /// Handles `count` bytes, or records, that were received over the kernel, with rings or without. Returns
    /// whether this offered a ring to the sending side.
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
                    Some(memfd) if !core.others().are_there() => return self.join(core, rx, memfd, true, op),
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

    /// Handles bytes of the peer's that came without rings, or with none that can be used. A server that had
    /// any would have attached them.
    fn without_rings(&self, core: &Core, rx: &mut Rx) {
        let Rx::Undecided(undecided) = rx else { return };
        // A server goes on looking: its client attaches when it can, and several processes may have had the
        // client's end before. A client stops, but may still attach if the server, though one of ours, has
        // not.
        undecided.looks = undecided.is_server();
        let waits = undecided.attached.is_some() || undecided.may_attach(0);
        if !undecided.looks && (!waits || core.others().are_there()) {
            core.counters().fallbacks.add(1);
            *rx = Rx::Plain;
            self.decided_now();
        }
    }

    /// Notes that it is known what the peer is, and that the ring, if there is one, is in its place. A sender
    /// looks at this without a lock.
    pub fn decided_now(&self) {
        // Release pairs with the Acquire load in `is_open`.
        self.undecided.store(0, Release);
    }

    /// Joins the peer's rings: this side receives from the first and sends into the second. If this side
    /// cannot (out of address space, or they are larger than it accepts), the kernel carries on. `taken` says
    /// that the rings are out of the queue. If they are not, they are met there once more, and must not be
    /// answered twice. Returns whether this offered a ring to the sending side.
    ///
    /// # Errors
    ///
    /// EPROTO if they are no rings.
    fn join(&self, core: &Core, rx: &mut Rx, memfd: OwnedFd, taken: bool, op: Op) -> Result<bool> {
        let Rx::Undecided(undecided) = rx else { return Ok(false) };
        if !self.is_of_the_peer(core, &memfd) {
            if taken {
                self.without_rings(core, rx);
            }
            return Ok(false);
        }
        let [mine, theirs] = match Ring::open_pair(&memfd, core.config().max_ring.max(MIN_CAPACITY)) {
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
        if undecided.larger && undecided.is_server() && joined(&mine) == TOO_SMALL {
            // The same rings can come twice: by a visit, and with bytes. The client uses others by now, or will.
            return Ok(false);
        }
        // Pieces of stream records come only to a side that has joined.
        if let Role::Server(Some(invitation)) = &undecided.role
            && !undecided.larger
            && core.config().records == Records::Atomic
        {
            let [to_client, from_client] = invitation.capacities(core.kind(), core.config());
            let too_small = mine.capacity() < from_client || theirs.capacity() < to_client;
            if too_small && !taken {
                return Ok(false);
            }
            if too_small {
                // The rings are the client's memory. What it makes of this wish is bounded by the limit in
                // its name.
                mine.header().info.0.wanted.store(from_client as u64, Relaxed);
                theirs.header().info.0.wanted.store(to_client as u64, Relaxed);
                // Release pairs with the Acquire load in `joined`: the sizes are there.
                mine.header().info.0.joined.store(TOO_SMALL, Release);
                (undecided.larger, undecided.looks) = (true, true);
                return Ok(false);
            }
        }
        if core.config().passable {
            mine.keep(memfd);
        }
        mine.header().info.0.max_shared.store(core.config().max_shared as u64, Relaxed);
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

    /// Whether the peer's user, or this side's, has made the memfd. A program that knew nothing of it may
    /// have passed on another user's: the nonce that labels it is no secret, since it is in /proc/net/unix.
    fn is_of_the_peer(&self, core: &Core, memfd: &OwnedFd) -> bool {
        let Ok(made) = rustix::fs::fstat(memfd) else { return false };
        let is_the_peers =
            || sockopt::socket_peercred(core.fd()).is_ok_and(|cred| cred.uid.as_raw() == made.st_uid);
        let me = rustix::process::geteuid().as_raw();
        is_known(made.st_uid) && (made.st_uid == me || is_the_peers())
    }

    /// Joins rings that the client has brought to the listener's rendezvous. Returns whether this offered a ring
    /// to the sending side.
    ///
    /// # Errors
    ///
    /// EPROTO if they are no rings.
    pub fn join_brought(&self, core: &Core, rx: &mut Rx, rings: OwnedFd, op: Op) -> Result<bool> {
        let joined = self.join(core, rx, rings, true, op)?;
        if joined && let Rx::Switching(switching) = rx {
            switching.strip_all();
        }
        Ok(joined)
    }

    /// Returns a copy of the memfd of the rings that would go with the next bytes.
    pub fn rings_to_bring(&self) -> Option<OwnedFd> {
        match &self.offer.lock().as_ref()?.stage {
            Stage::Attach(memfd) => memfd.try_clone().ok(),
            Stage::Sent | Stage::Joined => None,
        }
    }

    /// Makes rings that go with the next bytes, if this side may and has not. `now`: they are wanted whatever
    /// was sent.
    pub fn attach_rings(&self, core: &Core, rx: &mut Rx, now: bool) {
        let Rx::Undecided(undecided) = rx else { return };
        let (config, sent) = (&core.config(), core.counters().sent.get());
        let capacities = match (&undecided.role, &undecided.attached) {
            _ if !undecided.may_attach(sent) => return,
            // Another process may have sent the first bytes.
            (Role::Server(_), _) if core.others().were_there() => return,
            (Role::Server(Some(invitation)), _) => invitation.capacities(core.kind(), core.config()),
            // One message is not worth rings.
            (Role::Client(true), None) if sent == 0 && config.records == Records::Atomic && !now => return,
            (Role::Client(true), None) => {
                let of = |bytes| capacity_of(core.kind(), [wish(bytes), 0], config.max_ring);
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
            core.counters().fallbacks.add(1);
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
            // The client's own rings may come with what it has sent before it saw these.
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
            // Last: another thread that sends without a look here takes the rings along, whichever message is
            // the first.
            self.decided_now();
        }
    }

    /// Whether the peer has left before this side switched. The offered rings may be this side's or the
    /// peer's.
    pub fn has_left_offer(&self) -> bool {
        let left = |offer: &Offer| offer.ring.header().info.0.shut.load(Relaxed) != 0;
        self.offered.load(Relaxed) != offered::NONE && self.offer.lock().as_ref().is_some_and(left)
    }

    /// Declines the offer, before other processes share this end. What was not adopted by now never is.
    pub fn decline_offer(&self) {
        self.offered.store(offered::NONE, Relaxed);
        *self.offer.lock() = None;
    }

    /// Sends over the kernel, with the memfd of the rings if it is due.
    ///
    /// # Errors
    ///
    /// What sendmsg(2) returns.
    pub fn send_message(
        &self,
        core: &Core,
        pieces: &[IoSlice<'_>],
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> rustix::io::Result<usize> {
        if self.offered.load(Relaxed) == offered::ATTACH
            // A client may send rings with any of its messages, so not with one that has no room for them.
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
                match scm::send(core.fd(), pieces, &fds, attached.ucred(), flags) {
                    // Too many are in flight: this connection stays with the kernel.
                    Err(Errno::TOOMANYREFS) => {}
                    Ok(sent) => return Ok(sent),
                    Err(errno) => {
                        // Nothing was sent, so the rings go with the next bytes.
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
            core.counters().fallbacks.add(1);
            self.decline_offer();
        }
        scm::send(core.fd(), pieces, attached.fds, attached.ucred(), flags)
    }

    fn may_attach_later(&self) -> bool {
        self.offer.lock().as_ref().is_some_and(|offer| offer.mine.is_some())
    }

    fn stage<T>(&self, then: impl FnOnce(&mut Stage) -> Option<T>) -> Option<T> {
        self.offer.lock().as_mut().and_then(|offer| then(&mut offer.stage))
    }

    /// Whether only unread bytes in the kernel's queue keep the sending side from switching. A send then
    /// waits for those to become fewer, and not for the kernel to take its bytes.
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
            // Rings that were not sent may have been brought.
            Stage::Attach(_) | Stage::Sent if joined(&offer.ring) != JOINED => return,
            Stage::Attach(_) | Stage::Sent | Stage::Joined => offer.stage = Stage::Joined,
        }
        // Doorbells must have room behind what the peer has not yet received over the kernel. A doorbell
        // alone always has it.
        if sent > 0 {
            let unread = onecopy_sys::socket::unread_memory(core.fd()).unwrap_or(usize::MAX);
            let buffer = sockopt::socket_send_buffer_size(core.fd()).unwrap_or(0);
            if unread > buffer / 2 {
                return self.offered.store(offered::FULL, Relaxed);
            }
        }
        let Some(Offer { ring, mine, .. }) = slot.take() else { return };
        self.offered.store(offered::NONE, Relaxed);
        if let Some(mine) = mine.filter(|_| core.rx_ring().is_none()) {
            core.set_rx_ring(mine);
        }
        // Release pairs with the Acquire load in `Switching::left`: the count is there before the first byte
        // in the ring is.
        ring.header().writer.0.switch_at.store(sent + 1, Release);
        core.set_kernel_sent(sent);
        core.set_tx_ring(ring.clone());
        *tx = Tx::ring(Producer::new(ring));
    }
}

impl Fds {
    /// Takes the rings of a connection out of the list.
    pub fn take_rings(&mut self, nonce: &Nonce) -> Option<OwnedFd> {
        take_rings(&mut self.list, nonce)
    }
}
