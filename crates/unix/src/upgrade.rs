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

use crate::channel::Fds;
use crate::config::Config;
use crate::end::End;
use crate::making::Kind;
use crate::rights::Attached;
use crate::rx::{Rx, Strips, Switching};
use crate::side::SideGuard;
use crate::tx::{Tx, UNKNOWN};
use crate::{Op, Records, Result};
use onecopy_ring::index::FARTHEST;
use onecopy_ring::memory::{JOINED, TOO_SMALL};
use onecopy_ring::{Lie, MIN_CAPACITY, Producer, Ring, round_capacity};
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release};
use onecopy_sys::memfd::Refused;
use onecopy_sys::scm::{self, MAX_FDS, Space};
use onecopy_sys::socket::unix_address;
use onecopy_sys::user::is_known;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, sockopt};
use std::io::{IoSlice, IoSliceMut};

pub use onecopy_ring::memory::Nonce;

/// Version of the layout and of the upgrade. A peer of another version is plain to us, and we to it.
pub const VERSION: u8 = 4;
/// Default data room of a ring in bytes.
pub const DEFAULT_BUFFER: usize = 256 << 10;

const PREFIX: &str = "onecopy-4-";
/// What the name of a client ends with that keeps stream records.
const STREAM_RECORDS: &str = "-s";

/// One that nobody has seen.
///
/// # Errors
///
/// What getrandom(2) says.
pub fn nonce() -> rustix::io::Result<Nonce> {
    let mut nonce = Nonce::default();
    if rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())? != nonce.len() {
        return Err(Errno::IO);
    }
    Ok(nonce)
}

/// What a client tells by the name it is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// With which the rings of this connection are labelled.
    pub nonce: Nonce,
    /// Bytes of send buffer that the client asked for, doubled; 0 for none in particular.
    pub send_buffer: u64,
    /// The same of its receive buffer.
    pub receive_buffer: u64,
    /// Bytes of the largest ring that it accepts.
    pub max_ring: u64,
    /// How the client keeps its records.
    pub records: Records,
}

impl Invitation {
    fn new(records: Records, config: &Config) -> rustix::io::Result<Invitation> {
        Ok(Invitation {
            nonce: nonce()?,
            send_buffer: wish(config.send_buffer),
            receive_buffer: wish(config.receive_buffer),
            max_ring: config.max_ring as u64,
            records,
        })
    }

    fn name(&self) -> String {
        let nonce = self.nonce.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let records = if self.records == Records::Stream { STREAM_RECORDS } else { "" };
        let Invitation { send_buffer, receive_buffer, max_ring, .. } = self;
        format!("{PREFIX}{nonce}-{send_buffer:x}-{receive_buffer:x}-{max_ring:x}{records}")
    }

    /// The invitation in a peer's abstract name, if it is one.
    pub fn parse(name: &[u8]) -> Option<Invitation> {
        let rest = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
        let (rest, records) = match rest.strip_suffix(STREAM_RECORDS) {
            Some(rest) => (rest, Records::Stream),
            None => (rest, Records::Atomic),
        };
        let mut parts = rest.split('-');
        let hex = parts.next().filter(|hex| hex.len() == 32 && hex.is_ascii())?;
        let mut nonce = Nonce::default();
        for (byte, digits) in nonce.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
        let (send_buffer, receive_buffer, max_ring) = (number()?, number()?, number()?);
        let invitation = Invitation { nonce, send_buffer, receive_buffer, max_ring, records };
        parts.next().is_none().then_some(invitation)
    }

    fn of(name: Option<SocketAddrUnix>) -> Option<Invitation> {
        Invitation::parse(name?.abstract_name()?)
    }
}

/// A connection that has no rings yet.
#[derive(Debug)]
pub struct Undecided {
    /// With which its rings will be labelled.
    nonce: Nonce,
    who: Who,
    /// Bytes of the stream, or records, that came over the kernel so far.
    pub received: u64,
    /// The next message of the peer's may have rings with it.
    looks: bool,
    /// Larger rings than the client's were asked for.
    larger: bool,
    /// Of a client: the rings that it has sent. The first one is the server's to receive from.
    attached: Option<[Ring; 2]>,
}

/// Which side this is.
#[derive(Debug)]
enum Who {
    /// Whether it may attach: its listener is known as one of ours, and rings can be made.
    Client(bool),
    /// What its client asks for, as long as rings can be made.
    Server(Option<Invitation>),
}

impl Undecided {
    /// Of a client that has invited the server, whose listener is known as one of `ours` or not.
    pub fn client(invitation: &Invitation, ours: bool) -> Undecided {
        Undecided::new(invitation.nonce, Who::Client(ours))
    }

    /// Of a server that was invited, and attaches rings or leaves that to its client.
    pub fn server(invitation: Invitation, attaches: bool) -> Undecided {
        Undecided::new(invitation.nonce, Who::Server(Some(invitation).filter(|_| attaches)))
    }

    fn new(nonce: Nonce, who: Who) -> Undecided {
        Undecided { nonce, who, received: 0, looks: true, larger: false, attached: None }
    }

    /// Of a connection that another process has passed on, in which it might still have attached rings or not.
    /// None where no side has invited the other.
    pub fn of(socket: BorrowedFd<'_>, may_attach: bool) -> Option<Undecided> {
        let mine = rustix::net::getsockname(socket).ok().and_then(unix_address);
        if let Some(invitation) = Invitation::of(mine) {
            return Some(Undecided::client(&invitation, may_attach));
        }
        let peer = rustix::net::getpeername(socket).ok().flatten().and_then(unix_address);
        Invitation::of(peer).map(|invitation| Undecided::server(invitation, may_attach))
    }

    /// With which its rings will be labelled.
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Whether it may attach rings, where so many bytes were `sent`.
    pub fn may_attach(&self, sent: u64) -> bool {
        match &self.who {
            Who::Client(may) => *may,
            // With its first bytes, or never: what comes later a client does not look at.
            Who::Server(invitation) => invitation.is_some() && sent == 0,
        }
    }

    /// What a client that has attached rings will receive from, if its server joins.
    pub fn attached(&self) -> Option<&Ring> {
        self.attached.as_ref().map(|[_, mine]| mine)
    }

    /// Whether the next message of the peer's may have rings with it.
    pub fn looks(&self) -> bool {
        self.looks
    }

    /// Goes on where another process has left off.
    ///
    /// # Errors
    ///
    /// [`Lie::Holder`]: more than anybody ever has.
    pub fn resume(&mut self, received: u64, looks: bool) -> std::result::Result<(), Lie> {
        if received > FARTHEST {
            return Err(Lie::Holder);
        }
        (self.received, self.looks) = (received, looks);
        Ok(())
    }

    fn is_server(&self) -> bool {
        matches!(self.who, Who::Server(_))
    }

    /// What this side is at where it will attach and join nothing any more, since several processes are to go on with it: what
    /// was attached stays.
    pub fn settled(self) -> Rx {
        let Undecided { nonce, received, looks, .. } = self;
        match self.attached {
            Some([_, mine]) => {
                let strips = if looks { Strips::One } else { Strips::No };
                Rx::Switching(Switching::new(mine, received, nonce).stripping(strips))
            }
            // (Where no rings can come any more, the peer is plain.)
            None if !looks => Rx::Plain,
            None => Rx::Undecided(self),
        }
    }
}

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

/// What `End::offered` says.
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

/// What a buffer size that was asked for becomes: doubled, as Linux does (socket(7), SO_SNDBUF); 0 stays 0.
pub fn wish(bytes: Option<usize>) -> u64 {
    bytes.map_or(0, |bytes| bytes.saturating_mul(2)) as u64
}

/// Data room of a ring of a stream: the larger of what its receiver and its sender asked for.
fn capacity(wishes: [u64; 2], max_ring: usize) -> usize {
    let asked = usize::try_from(wishes[0].max(wishes[1])).unwrap_or(usize::MAX);
    round_capacity(if asked == 0 { DEFAULT_BUFFER } else { asked }, max_ring)
}

/// Room for the headers of some large records or datagrams, so that two that fill half of what was asked for each lie in
/// the ring together: the kernel takes them, too, and one could not be sent while the other is received.
const FRAMING: usize = 8 * onecopy_ring::record::HEADER;

/// As `capacity`, of a ring for `kind`: what was asked for is room for bytes that are sent.
fn capacity_of(kind: Kind, wishes: [u64; 2], max_ring: usize) -> usize {
    let capacity = capacity(wishes, max_ring);
    if kind == Kind::Stream { capacity } else { round_capacity(capacity + FRAMING, max_ring) }
}

/// Data room of a ring for `kind` whose receiver has asked for `receive` bytes, before they are doubled, and its sender for
/// `peer_send`, after that.
pub fn capacity_for(kind: Kind, receive: Option<usize>, peer_send: u64, max_ring: usize) -> usize {
    capacity_of(kind, [wish(receive), peer_send], max_ring)
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
    ring.header().info.0.asks_who.store(u32::from(config.pass_credentials), Relaxed);
    Ok((ring, memfd))
}

/// Client, before it connects: binds `socket` to an invitation.
pub fn invite(socket: BorrowedFd<'_>, records: Records, config: &Config) -> rustix::io::Result<Invitation> {
    let invitation = Invitation::new(records, config)?;
    rustix::net::bind(socket, &SocketAddrUnix::new_abstract_name(invitation.name().as_bytes())?)?;
    Ok(invitation)
}

/// Whether the client at the other end of `accepted` believes rings that this process makes: they are then of the user as whom the listener
/// listens, which a daemon may have given up since, or of the client's own (`End::is_of_the_peer`).
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

impl End {
    /// Whether the server has joined the rings that this client has attached: then they are what is received from.
    pub fn is_joined(&self, rx: &mut Rx) -> bool {
        let Rx::Undecided(undecided) = &*rx else { return false };
        let Some([theirs, mine]) = &undecided.attached else { return false };
        if joined(theirs) != JOINED {
            return false;
        }
        let mine = mine.clone();
        let (received, nonce) = (undecided.received, undecided.nonce);
        if self.rx_ring.get().is_none() {
            self.set_rx_ring(mine.clone());
        }
        *rx = Rx::Switching(Switching::new(mine, received, nonce));
        self.decided_now();
        true
    }

    /// Looks, without waiting, whether the peer's rings came with what is next in the queue, and joins them. They are taken out
    /// of there with those bytes.
    pub fn decide(&self, rx: &mut Rx, op: Op) -> Result<()> {
        if self.is_joined(rx) || self.is_shared() {
            return Ok(());
        }
        let Rx::Undecided(undecided) = rx else { return Ok(()) };
        if !undecided.looks {
            return Ok(());
        }
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut came = match scm::recv(self.fd(), &mut [IoSliceMut::new(&mut [0])], Space::All, flags) {
            Ok(came) => came,
            Err(Errno::CONNRESET) => {
                // The kernel tells it once; it is for whoever receives.
                self.reset.store(1, Relaxed);
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        match take_rings(&mut came.fds, &undecided.nonce) {
            Some(memfd) => {
                self.join(rx, memfd, false, op)?;
                if let Rx::Switching(switching) = rx {
                    switching.strip_one();
                }
            }
            // (There may be some for which this process has no room: what receives these bytes will see.)
            None if came.control_cut => {}
            None => self.without_rings(rx),
        }
        Ok(())
    }

    /// `count` bytes, or records, were received over the kernel, and rings with them or none.
    pub fn received_over_kernel(
        &self,
        rx: &mut Rx,
        count: u64,
        rings: Option<OwnedFd>,
        op: Op,
    ) -> Result<()> {
        match rx {
            Rx::Undecided(undecided) => {
                undecided.received += count;
                match rings {
                    Some(memfd) if !self.is_shared() => self.join(rx, memfd, true, op)?,
                    _ => self.without_rings(rx),
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
        Ok(())
    }

    /// The peer's next bytes have no rings with them, or none that can be used: a server that had any would have attached them.
    fn without_rings(&self, rx: &mut Rx) {
        let Rx::Undecided(undecided) = rx else { return };
        // (A client attaches when it can: others may have had its end before. It still may where the server, though one of ours, has not.)
        undecided.looks = undecided.is_server();
        let waits = undecided.attached.is_some() || undecided.may_attach(0);
        if !undecided.looks && (!waits || self.is_shared()) {
            self.counters.fallbacks.add(1);
            *rx = Rx::Plain;
            self.decided_now();
        }
    }

    /// It is known what the peer is, and the ring, if there is one, is in its place: a sender looks at this without a lock.
    fn decided_now(&self) {
        // Release pairs with the Acquire loads in `tx.rs`.
        self.undecided.store(0, Release);
    }

    /// The peer's rings came, of which this side receives from the first and sends into the second. Where it is this side that
    /// cannot (out of address space, or they are larger than it accepts), the kernel carries on. `taken`: they are out of the queue,
    /// where they are met once more otherwise, and must not be answered twice.
    ///
    /// # Errors
    ///
    /// EPROTO where they are none.
    fn join(&self, rx: &mut Rx, memfd: OwnedFd, taken: bool, op: Op) -> Result<()> {
        let Rx::Undecided(undecided) = rx else { return Ok(()) };
        if !self.is_of_the_peer(&memfd) {
            if taken {
                self.without_rings(rx);
            }
            return Ok(());
        }
        let [mine, theirs] = match Ring::open_pair(&memfd, self.config.max_ring.max(MIN_CAPACITY)) {
            Ok(rings) => rings,
            Err(Refused::NoMapping(_)) => {
                if taken {
                    self.without_rings(rx);
                }
                return Ok(());
            }
            Err(_) => return Err(self.bad_rings(op)),
        };
        point!("rings taken");
        // (Pieces of stream records only come to who has joined.)
        if let Who::Server(Some(invitation)) = &undecided.who
            && !undecided.larger
            && self.config.records == Records::Atomic
        {
            let [to_client, from_client] = self.capacities(invitation);
            let too_small = mine.capacity() < from_client || theirs.capacity() < to_client;
            if too_small && !taken {
                return Ok(());
            }
            if too_small {
                // (They are its memory: what it makes of the wish is bounded by what it has said in its name.)
                mine.header().info.0.wanted.store(from_client as u64, Relaxed);
                theirs.header().info.0.wanted.store(to_client as u64, Relaxed);
                // Release pairs with the Acquire load in `joined`: the sizes are there.
                mine.header().info.0.joined.store(TOO_SMALL, Release);
                (undecided.larger, undecided.looks) = (true, true);
                return Ok(());
            }
        }
        if self.config.passable {
            mine.keep(memfd);
        }
        mine.header().info.0.max_shared.store(self.config.max_shared as u64, Relaxed);
        self.set_rx_ring(mine.clone());
        // Release pairs with the Acquire load in `joined`: what the ring says of its receiver is there.
        mine.header().info.0.joined.store(JOINED, Release);
        point!("joined");
        *rx = Rx::Switching(Switching::new(mine, undecided.received, undecided.nonce));
        self.decided_now();
        self.offer(Offer { ring: theirs, stage: Stage::Joined, mine: None });
        Ok(())
    }

    /// Whether the peer's user, or this side's, has made it. Somebody else's was passed on by a program that knew nothing of it: the
    /// nonce that it is labelled with is no secret, but stands in /proc/net/unix.
    fn is_of_the_peer(&self, memfd: &OwnedFd) -> bool {
        let Ok(made) = rustix::fs::fstat(memfd) else { return false };
        let is_the_peers =
            || sockopt::socket_peercred(&self.fd).is_ok_and(|cred| cred.uid.as_raw() == made.st_uid);
        let me = rustix::process::geteuid().as_raw();
        is_known(made.st_uid) && (made.st_uid == me || is_the_peers())
    }

    /// Data room of the rings of a server: of the one to its client, and of the one from there.
    fn capacities(&self, invitation: &Invitation) -> [usize; 2] {
        let config = &self.config;
        let most = config.max_ring.min(usize::try_from(invitation.max_ring).unwrap_or(usize::MAX));
        [
            capacity_of(self.kind, [invitation.receive_buffer, wish(config.send_buffer)], most),
            capacity_of(self.kind, [wish(config.receive_buffer), invitation.send_buffer], most),
        ]
    }

    /// Before a send, while it is not known what the peer is: looks for its rings, else attaches some where it may. What only ever
    /// sends would stay with the kernel otherwise.
    pub fn prepare_to_send(&self) -> Result<()> {
        match self.rx.lock_within(|| crate::end::BRIEFLY) {
            Some(rx) => self.prepare(rx),
            None => Ok(()),
        }
    }

    /// As [`End::prepare_to_send`], in the middle of a send: whoever receives just now is not waited for with the sending side.
    pub fn prepare_to_go_on(&self) -> Result<()> {
        self.rx.try_lock().map_or(Ok(()), |rx| self.prepare(rx))
    }

    fn prepare(&self, mut rx: SideGuard<'_, Rx>) -> Result<()> {
        self.decide(&mut rx, Op::Send)?;
        if !rx.is_shared() && !self.is_shared() {
            self.attach_rings(&mut rx);
        }
        if !matches!(&*rx, Rx::Undecided(_)) {
            // Maybe it was another process that has decided. (Release: as in `decided_now`, whose store this one may
            // replace before a sender has seen it.)
            self.undecided.store(0, Release);
        }
        Ok(())
    }

    /// Makes rings that go with the next bytes, if this side may and has not.
    fn attach_rings(&self, rx: &mut Rx) {
        let Rx::Undecided(undecided) = rx else { return };
        let (config, sent) = (&self.config, self.counters.sent.get());
        let capacities = match (&undecided.who, &undecided.attached) {
            _ if !undecided.may_attach(sent) => return,
            (Who::Server(Some(invitation)), _) => self.capacities(invitation),
            // One message is not worth rings.
            (Who::Client(true), None) if sent == 0 && config.records == Records::Atomic => return,
            (Who::Client(true), None) => {
                let of = |bytes| capacity_of(self.kind, [wish(bytes), 0], config.max_ring);
                [of(config.send_buffer), of(config.receive_buffer)]
            }
            (Who::Client(true), Some([theirs, mine])) if !undecided.larger && joined(theirs) == TOO_SMALL => {
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
            self.counters.fallbacks.add(1);
            match &mut undecided.who {
                Who::Client(may) => *may = false,
                Who::Server(invitation) => *invitation = None,
            }
            return;
        };
        if let Some(kept) = kept {
            mine.keep(kept);
        }
        mine.header().info.0.max_shared.store(config.max_shared as u64, Relaxed);
        self.ask_who(&mine);
        let mut offer = Offer { ring: theirs.clone(), stage: Stage::Attach(memfd), mine: None };
        if undecided.is_server() {
            // The client's own may come with what it has sent before it saw these.
            let switching = Switching::new(mine.clone(), undecided.received, undecided.nonce);
            *rx = Rx::Switching(switching.stripping(Strips::All));
            self.set_rx_ring(mine);
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

    /// Offers the peer's ring to the sending side, which switches at once if it is free, else before its next
    /// bytes.
    fn offer(&self, offer: Offer) {
        *self.offer.lock() = Some(offer);
        self.offered.store(offered::SENT, Release);
        if let Some(mut tx) = self.tx.try_lock() {
            self.adopt(&mut tx);
            tx.unlock_fenced();
            self.welcome_back();
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
                match scm::send(&self.fd, pieces, &fds, attached.who, flags) {
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
            self.counters.fallbacks.add(1);
            self.decline_offer();
        }
        scm::send(&self.fd, pieces, attached.fds, attached.who, flags)
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
    pub fn adopt(&self, tx: &mut Tx) {
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
        // Bells must have room behind what the peer has not yet received over the kernel.
        // (A bell alone always has it.)
        if sent > 0 {
            let unread = onecopy_sys::socket::unread_memory(&self.fd).unwrap_or(usize::MAX);
            let buffer = sockopt::socket_send_buffer_size(&self.fd).unwrap_or(0);
            if unread > buffer / 2 {
                return self.offered.store(offered::FULL, Relaxed);
            }
        }
        let Some(Offer { ring, mine, .. }) = slot.take() else { return };
        self.offered.store(offered::NONE, Relaxed);
        if let Some(mine) = mine.filter(|_| self.rx_ring.get().is_none()) {
            self.set_rx_ring(mine);
        }
        // Release: the count is there before the first byte in the ring is.
        ring.header().writer.0.switch_at.store(sent + 1, Release);
        self.kernel_sent.store(sent, Relaxed);
        self.set_tx_ring(ring.clone());
        *tx = Tx::ring(Producer::new(ring));
    }
}

impl Fds {
    /// Takes the rings of a connection out of them.
    pub fn take_rings(&mut self, nonce: &Nonce) -> Option<OwnedFd> {
        take_rings(&mut self.list, nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invitations_come_back_as_they_went() {
        let nonce = *b"0123456789abcdef";
        for records in [Records::Atomic, Records::Stream] {
            let (send_buffer, receive_buffer, max_ring) = (0x1234, u64::MAX, 0);
            let invitation = Invitation { nonce, send_buffer, receive_buffer, max_ring, records };
            assert_eq!(Invitation::parse(invitation.name().as_bytes()), Some(invitation));
            assert!(invitation.name().len() <= 107, "an abstract name has no room for more");
        }
    }

    #[test]
    fn garbage_is_none() {
        for name in [
            "",
            "onecopy-4-",
            "onecopy-4-00-1-1-1",
            "onecopy-3-30313233343536373839616263646566-1-1-1",
            "onecopy-4-30313233343536373839616263646566-1-1",
            "onecopy-4-30313233343536373839616263646566-1-1-1-1",
            "onecopy-4-3031323334353637383961626364656\u{e9}-1-1-1",
        ] {
            assert_eq!(Invitation::parse(name.as_bytes()), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn what_anybody_says_is_an_invitation_or_none(
            nonce: Nonce, send_buffer: u64, receive_buffer: u64, max_ring: u64, stream: bool,
            at: prop::sample::Index, byte: u8,
        ) {
            let records = if stream { Records::Stream } else { Records::Atomic };
            let invitation = Invitation { nonce, send_buffer, receive_buffer, max_ring, records };
            let mut name = invitation.name().into_bytes();
            prop_assert_eq!(Invitation::parse(&name), Some(invitation));
            let at = at.index(name.len());
            let spoilt = name[at] != byte;
            name[at] = byte;
            // What it says then is for the handshake to find out; here it has to be said by the same number of digits.
            if let Some(other) = Invitation::parse(&name) {
                prop_assert!(!spoilt || at >= PREFIX.len(), "{}", name.escape_ascii());
                prop_assert!(other.name().len() <= name.len());
            }
            name.truncate(at);
            let _ = Invitation::parse(&name);
        }
    }

    #[test]
    fn nobody_has_received_more_than_anybody_ever_has() {
        let invitation = Invitation::new(Records::Atomic, &Config::default()).unwrap();
        let mut undecided = Undecided::client(&invitation, true);
        assert_eq!(undecided.resume(FARTHEST, false), Ok(()));
        assert_eq!(undecided.resume(FARTHEST + 1, false), Err(Lie::Holder));
        assert_eq!(undecided.received, FARTHEST);
    }

    #[test]
    fn the_larger_wish_counts() {
        assert_eq!(capacity([0, 0], 1 << 30), DEFAULT_BUFFER);
        assert_eq!(capacity([16_000, 0], 1 << 30), 16_000);
        assert_eq!(capacity([16_000, 64_000], 1 << 30), 64_000);
        assert_eq!(capacity([16_000, u64::MAX], 1 << 20), 1 << 20);
        assert_eq!(capacity_for(Kind::Stream, Some(8000), 0, 1 << 30), 16_000);
        assert_eq!(capacity_for(Kind::SeqPacket, Some(8000), 0, 1 << 30), 16_064);
        assert_eq!(capacity_for(Kind::Datagram, Some(8000), 0, 1 << 30), 16_064);
        assert_eq!(capacity_for(Kind::SeqPacket, Some(8000), u64::MAX, 1 << 20), 1 << 20);
    }
}
