//! Passing an end on to a process that is no child of this one, over a socket or across exec(2).
//!
//! An end's state is on its process's heap ([`holding`](super::holding)). The process that passes it on
//! writes that state into a page of a memfd. It gives the page away with the control socket, the memfds of
//! both rings, and the ends of the channels for descriptors. Then it lets go of the end without closing the
//! connection. The process that takes the end up maps all of it, and goes on at the same byte.
//!
//! # Trust
//!
//! The receiving process trusts nobody: the descriptors come from anywhere, and their sender may keep copies.
//! So it checks them like a peer's. First come their kinds, sizes and seals. Then it checks by socket cookies
//! and inode numbers that they belong together, which helps against mistakes and not against malice. The page
//! is copied once. Each word is checked where it is used, or like what a peer says in the ring. A page with
//! false content costs the connection that it came with, and nothing else. Nobody looks at the page again
//! once the end is taken up, so what its sender writes there later changes nothing. What the sender writes
//! into the rings it could have written as the peer.
//!
//! # Only once
//!
//! The end of a connection is in one process, or in processes that know of each other
//! ([`holding`](super::holding)). So an end that is shared is not passed on, and an end that was passed on is
//! taken up once: a word in the page says so, and a second process is refused. A process that wants to keep
//! the end as well shares it ([`share`](super::share)).

use crate::config::{Config, Records};
use crate::connection::Connection;
use crate::connection::rx::Rx;
use crate::connection::side::Shared;
use crate::connection::tx::Tx;
use crate::core::broken;
use crate::core::kind::Kind;
use crate::handshake::undecided::{Switching, Undecided};
use crate::handshake::upgrade::Nonce;
use crate::members::patience::PATIENCE;
use crate::multiprocess::refusal::{error, invalid, plain, refuse, wrong};
use crate::multiprocess::snapshot::{Mode, Saved};
use crate::multiprocess::wire::{ConnectionState, PAGE, RingAt, too_many_or_few};
use onecopy_ring::page::{EndPage, PAGE_LEN, PASS_WORDS, Words};
use onecopy_ring::{Consumer, PeerMisbehaved, Producer, Ring};
use onecopy_socket::{Error, Op, Result};
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release};
use onecopy_sys::map::Mapping;
use onecopy_sys::memfd::{self};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::fmt;
use std::sync::Arc;

/// Returned with an end that could not be passed on: the end is as it was.
pub struct NotPassed<S> {
    /// The reason.
    pub error: Error,
    /// The socket.
    pub socket: S,
}

impl<S> fmt::Debug for NotPassed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<S> fmt::Display for NotPassed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<S> std::error::Error for NotPassed<S> {}

impl<S> From<NotPassed<S>> for std::io::Error {
    fn from(refused: NotPassed<S>) -> std::io::Error {
        refused.error.into()
    }
}

pub fn copy(fd: impl AsFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(plain)
}

pub fn cookie(fd: impl AsFd) -> rustix::io::Result<u64> {
    sockopt::socket_cookie(fd)
}

pub fn inode(fd: impl AsFd) -> rustix::io::Result<u64> {
    rustix::fs::fstat(fd).map(|stat| stat.st_ino)
}

fn not_kept() -> Error {
    error(
        Errno::OPNOTSUPP,
        "the memory of this connection is mapped, and no descriptor of it was kept; make the socket with Config::passable",
    )
    .about("Config::passable")
}

/// Writes down the state of this end, and lets go of it. Returns the descriptors that another process
/// needs to go on with it.
///
/// # Errors
///
/// Those of [`crate::Stream::into_fds`]; nothing was changed.
pub fn pass_on(connection: &Arc<Connection>) -> Result<Vec<OwnedFd>> {
    connection.check(Op::Pass)?;
    if Arc::strong_count(connection) > 1 {
        return Err(error(
            Errno::BUSY,
            "views of what was received here are left, which this process reads; drop them first",
        ));
    }
    let busy = || error(Errno::AGAIN, "another thread is just forking; try again");
    let mut rx = connection.rx().lock_for(PATIENCE).ok_or_else(busy)?;
    let mut tx = connection.tx().lock_for(PATIENCE).ok_or_else(busy)?;
    if let Some(misbehaved) = rx.misbehaved().or(tx.misbehaved()) {
        return Err(connection.misbehaved(Op::Pass, misbehaved));
    }
    connection.decide(&mut rx, Op::Pass)?;
    connection.adopt(&mut tx);
    can_be_passed(connection, &mut rx)?;
    keeps_rings(connection, &rx)?;
    let page = memfd::create("onecopy-end", PAGE_LEN).map_err(plain)?;
    let words = EndPage::over(Mapping::new(&page, PAGE_LEN).map_err(plain)?);
    rx.settle(connection);
    let (state, along) = describe(connection, &rx, &tx)?;
    let mut fds = vec![copy(connection.fd())?, page];
    fds.extend(along);
    // Nothing fails from here on.
    connection.decline_offer();
    words.words().rx.0.state.save(&rx.save(connection));
    words.words().tx.0.state.save(&tx.save(connection));
    let pass = &words.words().pass.0;
    for (to, word) in pass.words.iter().zip(state.encode()) {
        to.store(word, Relaxed);
    }
    // Release pairs with the Acquire load in `TakenUp::read`, if nothing else orders the two.
    pass.magic.store(PAGE, Release);
    connection.set_broken(broken::PASSED);
    Ok(fds)
}

/// Checks that the end can be passed on.
///
/// # Errors
///
/// The reason why it cannot: EBUSY, EAGAIN.
fn can_be_passed(connection: &Connection, rx: &mut Rx) -> Result<()> {
    if connection.others().are_there() {
        return Err(error(
            Errno::BUSY,
            "other processes share this socket, or were given it; pass it on before that, or once they are gone",
        ));
    }
    if connection.waits_to_switch() {
        return Err(error(
            Errno::AGAIN,
            "this connection is just moving to shared memory, and too much of what was sent before lies unread; \
             let the peer receive it, then try again",
        ));
    }
    // By these rings the peer learns that this end keeps stream records, too.
    if connection.config().records == Records::Stream && connection.is_to_attach() {
        return Err(error(
            Errno::AGAIN,
            "this connection is just moving to shared memory, by what is sent here next; send something, then try again",
        ));
    }
    if connection.has_lent() {
        return Err(error(
            Errno::BUSY,
            "pages were sent here by reference, which come home to a pool of this process; use a connection for \
             them that is not passed on",
        ));
    }
    let of_records = "a record was received in part; receive the rest of it first";
    match rx {
        Rx::Plain | Rx::Undecided(_) => Ok(()),
        Rx::Switching(switching) if switching.carry().is_pending() => Err(error(Errno::BUSY, of_records)),
        Rx::Switching(_) => Ok(()),
        Rx::Ring(ring) => ring.can_be_passed().map_err(|why| error(Errno::BUSY, why)),
    }
}

/// Checks that all rings can be given away. Called before anything is settled.
///
/// # Errors
///
/// EOPNOTSUPP if no descriptor of some ring's memory was kept.
pub fn keeps_rings(connection: &Connection, rx: &Rx) -> Result<()> {
    let coming = match rx {
        Rx::Undecided(undecided) => undecided.attached(),
        Rx::Switching(switching) => Some(switching.ring()),
        Rx::Plain | Rx::Ring(_) => None,
    };
    let mut rings = [connection.rx_ring(), connection.tx_ring(), coming].into_iter().flatten();
    if rings.all(|ring| ring.memfd().is_some()) { Ok(()) } else { Err(not_kept()) }
}

/// Describes the end, except for what the directions save. Returns that, and copies of the descriptors
/// that go along, in their order.
///
/// # Errors
///
/// EOPNOTSUPP if no descriptor of some ring's memory was kept; EMFILE.
pub fn describe(connection: &Connection, rx: &Rx, tx: &Tx) -> Result<(ConnectionState, Vec<OwnedFd>)> {
    let mut fds = Vec::new();
    let mut ring = |ring: Option<&Ring>| -> Result<Option<RingAt>> {
        let Some(ring) = ring else { return Ok(None) };
        let memfd = ring.memfd().ok_or_else(not_kept)?;
        fds.push(copy(memfd)?);
        let (place, capacity) = (ring.place() as u64, ring.capacity() as u64);
        Ok(Some(RingAt { inode: inode(memfd).map_err(plain)?, place, capacity }))
    };
    let (rx_ring, tx_ring) = (ring(connection.rx_ring())?, ring(connection.tx_ring())?);
    let mut channel = |end: Option<BorrowedFd<'_>>| -> Result<Option<u64>> {
        let Some(end) = end else { return Ok(None) };
        fds.push(copy(end)?);
        Ok(Some(cookie(end).map_err(plain)?))
    };
    let (mut inlet, mut outlet, mut channel_lost, mut channels_made) = (None, None, false, 0);
    if let Rx::Ring(ring) = rx {
        channel_lost = ring.has_lost_channel();
        inlet = channel(ring.channel_to_give().as_ref().map(|inlet| inlet.as_fd()))?;
    }
    if let Tx::Ring(ring) = tx
        && let Some((end, made)) = ring.channel_to_give()
    {
        channels_made = made;
        outlet = channel(Some(end))?;
    }
    let kernel_sent = match tx {
        Tx::Kernel { sent } => *sent,
        Tx::Ring(_) => connection.kernel_sent(),
    };
    let (passes, asked) = connection.asks();
    let state = ConnectionState {
        kind: connection.kind(),
        records: connection.config().records,
        control: cookie(connection.fd()).map_err(plain)?,
        rx_ring,
        tx_ring,
        inlet,
        outlet,
        kernel_sent,
        reset: connection.is_reset_noted(),
        send_shut: connection.is_send_shut(),
        recv_shut: connection.is_recv_shut(),
        passes,
        asked,
        channel_lost,
        channels_made,
        may_attach: matches!(rx, Rx::Undecided(undecided) if undecided.may_attach(kernel_sent)),
    };
    Ok((state, fds))
}

/// Goes on with an end that another process has passed on, with these descriptors.
///
/// # Errors
///
/// Those of [`crate::Stream::from_fds`]; the descriptors are closed.
pub fn go_on(fds: Vec<OwnedFd>, kind: Kind, config: &Config) -> Result<Arc<Connection>> {
    let mut fds = fds.into_iter();
    let (Some(control), Some(page)) = (fds.next(), fds.next()) else {
        return Err(wrong(
            "fewer descriptors than any socket has; pass all that `into_fds` or `share_fds` gave",
        ));
    };
    is_socket(&control, kind.socket_type())?;
    let page = open_page(&page)?;
    let mut arrived = TakenUp::read(&page, kind)?;
    arrived.belong_together(&control, fds.collect(), config)?;
    let config = Config { records: arrived.state.records, ..*config };
    let (rx, tx) = arrived.sides(&control).map_err(lied)?;
    // All checks passed: from here on no other process gets the end. Acquire: if a process took it up
    // before and has passed it on since, that process is done with this page.
    if page.words().pass.0.taken.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        return Err(error(
            Errno::ALREADY,
            "this socket was taken up before; each `into_fds` is for one `from_fds`",
        ));
    }
    let end = Arc::new(Connection::new(control, kind, &config, rx, tx));
    settle_in(&end, arrived)?;
    end.look_after();
    Ok(end)
}

fn settle_in(connection: &Connection, arrived: TakenUp) -> Result<()> {
    let TakenUp { state, rx: rx_words, tx: tx_words, rings: [rx_ring, tx_ring], inlet, outlet } = arrived;
    connection.set_kernel_sent(state.kernel_sent);
    if state.reset {
        connection.note_reset();
    }
    connection.set_shut(state.send_shut, state.recv_shut);
    // The sender states its identity again: it was another process that it told before.
    connection.set_asks(state.passes, state.asked.wrapping_add(1));
    if let Some(ring) = rx_ring {
        // The limit of this process may be lower than that of the other one, or higher: a fork there may
        // have set it to 0.
        ring.header().info.0.max_shared.store(connection.config().max_shared as u64, Relaxed);
        connection.set_rx_ring(ring);
    }
    if let Some(ring) = tx_ring {
        connection.set_tx_ring(ring);
    }
    let mut rx = connection.lock_rx(Op::Pass)?;
    rx.resume(connection, 0, &rx_words).map_err(lied)?;
    if let Rx::Ring(ring) = &mut *rx {
        if ring.is_borrowed() {
            return Err(lied(PeerMisbehaved::Member));
        }
        ring.take_up_channel(inlet, state.channel_lost);
        if ring.lacks_pools()
            && let Some(ring) = connection.rx_ring()
        {
            ring.header().info.0.max_shared.store(0, Relaxed);
        }
    }
    drop(rx);
    let mut tx = connection.tx().lock_within(|| PATIENCE).ok_or(plain(Errno::BUSY))?;
    tx.resume(connection.kind(), &tx_words).map_err(lied)?;
    if let Tx::Ring(ring) = &mut *tx {
        ring.take_up_channel(outlet, state.channels_made);
    }
    drop(tx);
    connection.settle_settings().map_err(plain)
}

/// The parts of an end that another process has passed on.
pub struct TakenUp {
    pub(super) state: ConnectionState,
    rx: Saved,
    tx: Saved,
    /// The ring to receive from, and the ring to send into.
    pub(super) rings: [Option<Ring>; 2],
    pub(super) inlet: Option<OwnedFd>,
    pub(super) outlet: Option<OwnedFd>,
}

impl TakenUp {
    /// Copies what the page says, once.
    fn read(page: &EndPage, kind: Kind) -> Result<TakenUp> {
        let words = page.words();
        let pass = &words.pass.0;
        // Acquire pairs with the Release store in `pass_on`.
        if pass.magic.load(Acquire) != PAGE {
            return Err(wrong("the second descriptor is no page of a socket of this version"));
        }
        TakenUp::of(&std::array::from_fn(|i| pass.words[i].load(Relaxed)), words, kind)
    }

    /// Reads what another process says of an end. `words` is the end's page, which has the state of its
    /// directions.
    pub fn of(said: &[u64; PASS_WORDS], words: &Words, kind: Kind) -> Result<TakenUp> {
        Ok(TakenUp {
            state: ConnectionState::decode(said, kind)?,
            rx: words.rx.0.state.load().1,
            tx: words.tx.0.state.load().1,
            rings: [None, None],
            inlet: None,
            outlet: None,
        })
    }

    /// Checks that the other descriptors are what was said, and maps the rings among them.
    pub fn belong_together(&mut self, control: &OwnedFd, fds: Vec<OwnedFd>, config: &Config) -> Result<()> {
        if fds.len() != self.state.descriptors() {
            return Err(too_many_or_few());
        }
        let strange =
            || wrong("the descriptors are not of one socket, or in another order than `into_fds` gave");
        if cookie(control) != Ok(self.state.control) {
            return Err(strange());
        }
        let mut fds = fds.into_iter();
        for (to, ring) in self.rings.iter_mut().zip([self.state.rx_ring, self.state.tx_ring]) {
            let Some((ring, fd)) = ring.and_then(|ring| Some((ring, fds.next()?))) else { continue };
            if inode(&fd) != Ok(ring.inode) {
                return Err(strange());
            }
            *to = Some(open_ring(fd, ring.place, ring.capacity, config)?);
        }
        for (to, name) in [(&mut self.inlet, self.state.inlet), (&mut self.outlet, self.state.outlet)] {
            let Some((name, fd)) = name.and_then(|name| Some((name, fds.next()?))) else { continue };
            if cookie(&fd) != Ok(name) {
                return Err(strange());
            }
            is_socket(&fd, SocketType::SEQPACKET)?;
            *to = Some(fd);
        }
        Ok(())
    }

    /// Makes both sides, in the state before they resume.
    pub fn sides(&self, control: &OwnedFd) -> std::result::Result<(Rx, Tx), PeerMisbehaved> {
        let [rx_ring, tx_ring] = self.rings.clone();
        // The names of the connection tell which side invited the other.
        let undecided = || Undecided::of(control.as_fd(), self.state.may_attach);
        let rx = match (Rx::mode(&self.rx)?, rx_ring) {
            (Mode::Plain, None) => Rx::Plain,
            (Mode::Undecided, None) => Rx::Undecided(undecided().ok_or(PeerMisbehaved::Member)?),
            (Mode::Switching, Some(ring)) => {
                let nonce = undecided().map_or_else(Nonce::default, |undecided| undecided.nonce());
                Rx::Switching(Switching::new(ring, 0, nonce))
            }
            (Mode::Ring, Some(ring)) => Rx::ring(Consumer::new(ring)),
            _ => return Err(PeerMisbehaved::Member),
        };
        let tx = match (Tx::mode(&self.tx)?, tx_ring) {
            (Mode::Plain, None) => Tx::Kernel { sent: 0 },
            (Mode::Ring, Some(ring)) => Tx::ring(Producer::new(ring)),
            _ => return Err(PeerMisbehaved::Member),
        };
        Ok((rx, tx))
    }
}

/// Makes the error of [`invalid`] for the state that a direction is said to be in.
pub fn lied(_: PeerMisbehaved) -> Error {
    invalid()
}

fn is_unix(fd: &OwnedFd, kind: SocketType, listens: bool) -> bool {
    sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(fd) == Ok(kind)
        && sockopt::socket_acceptconn(fd) == Ok(listens)
}

/// Takes the one descriptor of a listening socket.
///
/// # Errors
///
/// EINVAL if it is anything else.
pub fn listening(fds: Vec<OwnedFd>, kind: SocketType) -> Result<OwnedFd> {
    match <[OwnedFd; 1]>::try_from(fds) {
        Ok([fd]) if is_unix(&fd, kind, true) => {
            rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(plain)?;
            Ok(fd)
        }
        _ => Err(wrong("this is not one descriptor of a listening unix socket of that type")),
    }
}

/// Checks that it is a unix socket of that type that does not listen.
pub fn is_socket(fd: &OwnedFd, kind: SocketType) -> Result<()> {
    if is_unix(fd, kind, false) {
        Ok(())
    } else {
        Err(wrong("one is no unix socket of the right type; pass all that `into_fds` or `share_fds` gave"))
    }
}

pub fn open_page(memfd: &OwnedFd) -> Result<EndPage> {
    memfd::verify(memfd, PAGE_LEN)
        .map_err(|refused| refuse(refused, "the second descriptor is no page of a socket, or not sealed"))?;
    match Mapping::new(memfd, PAGE_LEN) {
        Ok(mapping) => Ok(EndPage::over(mapping)),
        Err(errno @ (Errno::NOMEM | Errno::AGAIN)) => Err(plain(errno)),
        Err(_) => Err(wrong("the page of the socket cannot be written")),
    }
}

/// Maps a ring of `capacity` bytes, `at` bytes into a memfd that anybody may have made.
fn open_ring(memfd: OwnedFd, at: u64, capacity: u64, config: &Config) -> Result<Ring> {
    let size = |word: u64| usize::try_from(word).unwrap_or(usize::MAX);
    let (at, capacity) = (size(at), size(capacity));
    let ring = Ring::open_at(&memfd, at, capacity).map_err(|refused| {
        refuse(refused, "a buffer of this socket is no sealed memfd of a possible size")
    })?;
    if capacity > config.max_ring.max(onecopy_ring::MIN_CAPACITY) {
        return Err(error(
            Errno::MSGSIZE,
            "a buffer of this socket is larger than Config::max_ring; raise that",
        ));
    }
    if config.passable {
        ring.keep(memfd);
    }
    Ok(ring)
}

/// Implements passing on for a socket over its field `end`.
macro_rules! passing_methods {
    ($socket:ident) => {
        impl $socket {
            /// Lets go of the socket. Returns descriptors, of which [`from_fds`](Self::from_fds) makes the
            /// same socket in another process.
            ///
            /// Send all of them, in this order, over a unix socket (SCM_RIGHTS, such as with
            /// [`Stream::send_fds`](crate::Stream::send_fds)), or keep them open across execve(2). Nothing
            /// is lost or closed on the way. Bytes in the buffers and a record that was read in part stay as
            /// they are, and so does a peer that waits. The peer notices nothing.
            ///
            /// All have close-on-exec set, like every descriptor of this crate. To keep them across exec(2),
            /// clear it with fcntl(2) (F_SETFD), and tell the program their numbers. Dropping them all
            /// without a `from_fds` closes the connection once the last copy is gone. How far the socket was
            /// read is written down at this moment, so only one `from_fds` may follow. To use one socket in
            /// several processes at once, call [`share_fds`](Self::share_fds) or fork(2).
            ///
            /// The socket must be made with [`Config::passable`](crate::Config::passable), which keeps
            /// descriptors of its memory. Otherwise only a connection that runs over the kernel can be passed
            /// on. An epoll(7) that watches the socket keeps doing so until it is told otherwise or all
            /// copies are closed. Settings of this process (policy, reader, wait) and counters stay behind;
            /// timeouts and O_NONBLOCK go along.
            ///
            /// # Errors
            ///
            /// The error comes with the socket, which is as it was.
            ///
            /// - EBUSY: other processes share the socket, or views or clones of it are left. Or a pool's pages
            ///   were sent or received by reference. Or descriptors or part of a record came that were not
            ///   received.
            /// - EAGAIN: the socket is just moving to shared memory, or a fork is under way.
            /// - EOPNOTSUPP: the socket was made without [`Config::passable`](crate::Config::passable).
            /// - EMFILE, EPROTO; the errors of memfd_create(2).
            pub fn into_fds(
                self,
            ) -> std::result::Result<
                Vec<rustix::fd::OwnedFd>,
                crate::multiprocess::transfer::NotPassed<$socket>,
            > {
                match self.handle.is_only().and_then(|()| crate::multiprocess::transfer::pass_on(&self.end)) {
                    Ok(fds) => Ok(fds),
                    Err(error) => Err(crate::multiprocess::transfer::NotPassed { error, socket: self }),
                }
            }
        }
    };
}
pub(crate) use passing_methods;
