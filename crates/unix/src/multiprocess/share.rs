//! Sharing an end with a process that is no child of this one. Both processes hold it from then on.
//!
//! The end is shared as by a fork ([`holding`](super::holding)), except that its page is in a memfd, which
//! the other process maps. That process gets one descriptor, a *token*: a socket that has one message in its
//! queue. The message describes the end. It carries the control socket, the page, the memfds of the rings and
//! the ends of the channels. The process that takes the message out of the queue is the one for which the
//! token was.
//!
//! # Why a queue
//!
//! The page's file is also where members lock their bytes ([`onecopy_sys::life`]). A process loses its locks
//! on a file as soon as it closes any descriptor of that file. So nobody may be given a descriptor who might
//! close it: not the giver's program, which sends descriptors on and drops them, and not a broker that holds
//! the end itself. A descriptor in a queue is in nobody's table. The message says which file the page is, and
//! a process looks at it before it takes it. So a process that has that file already leaves the descriptor
//! where it is.
//!
//! Each end has a file of its own, which bounds what a member that means ill can do. It can lock the bytes of
//! members that are dead, so that they look alive. Or it can send a descriptor of the file to a live process
//! that closes it, so that this process looks dead. Either costs that end and no other.
//!
//! # The reserved place
//!
//! Until the message is taken, a process may still come, so the end stays shared: a place among its members
//! is reserved, as for a child at a fork. The giver keeps the other end of the token, which hangs up when the
//! last copy of the token is gone, taken up or not. At its next look the giver then frees the place if nobody
//! has it. If the giver goes first, the place stays reserved. The remaining members then never know that they
//! are alone, and stay on the shared path.
//!
//! # Trust
//!
//! A process trusts no token, as in [`transfer`](super::transfer): whoever made it may mean ill. Its content
//! is checked like what `into_fds` gave. The state in the page is loaded under its locks at the first use of
//! either side, and checked like what any member saves.

use crate::config::{Config, Records};
use crate::connection::Connection;
use crate::connection::rx::Rx;
use crate::connection::side::Inner;
use crate::connection::tx::Tx;
use crate::core::broken;
use crate::core::kind::Kind;
use crate::members::membership::{Fresh, NotGiven, PageFile, Sharing};
use crate::members::patience::PATIENCE;
use crate::multiprocess::holding::{share_rx, share_tx};
use crate::multiprocess::refusal::{error, plain, wrong};
use crate::multiprocess::transfer::{TakenUp, describe, inode, is_socket, keeps_rings, lied, open_page};
use crate::multiprocess::wire::{ConnectionState, TOKEN_LEN, Token};
use onecopy_socket::{Op, Result};
use onecopy_sync::MutexGuard;
use onecopy_sys::scm::{self, Space};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Both<'a> = (MutexGuard<'a, Inner<Rx>>, MutexGuard<'a, Inner<Tx>>);

/// How long each attempt for the sending side keeps the receiving side from others.
const TRY: Duration = Duration::from_millis(2);

/// Shares the end with the process that uses what this returns.
///
/// # Errors
///
/// Those of [`crate::Stream::share_fds`].
pub fn share_out(connection: &Arc<Connection>) -> Result<Vec<OwnedFd>> {
    connection.check(Op::Pass)?;
    // Made before the end's locks are taken: this locks the list of ends, and a fork locks that list
    // before any end.
    let mut fresh =
        if connection.others().sharing().is_none() { Some(Fresh::new().map_err(plain)?) } else { None };
    let (mut rx, mut tx) = both(connection)?;
    if connection.is_orphan() || connection.broken() == broken::CANNOT_SEND {
        return Err(error(
            Errno::BUSY,
            "this process has inherited it without its sending side, which a thread of its parent had then; share it there",
        ));
    }
    if !rx.is_shared() {
        connection.decide(rx.value_mut(), Op::Pass)?;
    }
    if !tx.is_shared() {
        connection.adopt(tx.value_mut());
    }
    can_be_joined(connection, &rx, tx.is_shared())?;
    keeps_rings(connection, rx.value())?;
    if !rx.is_shared() {
        rx.value_mut().settle(connection);
    }
    // Done first, so that an end that cannot be shared is left as it was.
    let (state, along) = describe(connection, rx.value(), tx.value())?;
    // If another thread has made a page first, this uses that one. This thread's own page is dropped
    // after the locks.
    let sharing = match connection.others().sharing() {
        Some(sharing) => sharing.clone(),
        None => {
            let fresh = fresh.take().ok_or(plain(Errno::AGAIN))?;
            connection.others().share(|| fresh.over()).clone()
        }
    };
    let Some((file, inode)) = sharing.file() else {
        return Err(error(
            Errno::OPNOTSUPP,
            "this socket was forked with memory that only children can have; make it with Config::passable",
        )
        .about("Config::passable"));
    };
    share_rx(connection, &mut rx, &sharing);
    share_tx(connection, &mut tx, &sharing);
    let given = sharing.give(|place, guest| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (news, token) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let token_says =
            Token { page: inode, place: place as u64, guest: guest.into(), state: state.encode() };
        let mut fds = vec![connection.fd(), file];
        fds.extend(along.iter().map(AsFd::as_fd));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        scm::send(&news, &[IoSlice::new(&token_says.encode())], &fds, None, flags)?;
        Ok((token, news))
    });
    given.map(|token| vec![token]).map_err(|why| match why {
        NotGiven::Full => error(
            Errno::USERS,
            "as many processes share this socket, or were given it, as can know of each other",
        ),
        NotGiven::Busy => error(Errno::AGAIN, "another thread is just forking; try again"),
        NotGiven::Failed(errno) => plain(errno),
    })
}

/// Locks both sides against the threads of this process. The next one to load their state from the page
/// does so with the page's locks. A sender that is asleep for want of room keeps its side.
fn both(connection: &Connection) -> Result<Both<'_>> {
    let began = Instant::now();
    loop {
        let left = PATIENCE.saturating_sub(began.elapsed());
        if let Some(rx) = connection.rx().mutex().lock_for(left)
            && let Some(tx) = connection.tx().mutex().lock_for(TRY)
        {
            return Ok((rx, tx));
        }
        if left.is_zero() {
            return Err(error(
                Errno::AGAIN,
                "another thread is sending on this socket and waits for room; share it before, or once that is done",
            ));
        }
        std::thread::sleep(TRY);
    }
}

/// Checks that others can share the end.
///
/// # Errors
///
/// The reason why they cannot: EBUSY, EAGAIN.
fn can_be_joined(connection: &Connection, rx: &Inner<Rx>, sends: bool) -> Result<()> {
    if connection.has_lent() {
        return Err(error(
            Errno::BUSY,
            "pages were sent here by reference, which come home to a pool of this process; use a connection for \
             them that is not shared",
        ));
    }
    let moving = connection.config().records == Records::Stream && !matches!(rx.value(), Rx::Ring(_));
    if !rx.is_shared() && (moving || !sends && connection.waits_to_switch()) {
        return Err(error(
            Errno::AGAIN,
            "this connection is just moving to shared memory; share it once bytes went both ways",
        ));
    }
    match rx.value() {
        Rx::Ring(ring) => ring.can_be_joined(rx.is_shared()).map_err(|why| error(Errno::BUSY, why)),
        value if !rx.is_shared() && !value.can_be_shared(connection) => {
            Err(error(Errno::BUSY, "more views are left than processes can know of; drop some first"))
        }
        _ => Ok(()),
    }
}

/// Becomes one more member of those that hold the end of a token.
///
/// # Errors
///
/// Those of [`crate::Stream::from_fds`].
pub fn join_in(token: &OwnedFd, kind: Kind, config: &Config) -> Result<Arc<Connection>> {
    is_socket(token, SocketType::SEQPACKET)?;
    let looked_at = read(token, Space::None, RecvFlags::PEEK)?.0.ok_or_else(|| {
        wrong(
            "one descriptor alone is what `share_fds` of this version gives, and this is none; pass all that \
             `into_fds` gave, in its order",
        )
    })?;
    ConnectionState::is_of(&looked_at.state, kind)?;
    let page_inode = looked_at.page;
    // Declared before the descriptors, so that it is dropped after them.
    let Some(mut file) = PageFile::expect(page_inode) else {
        return Err(error(
            Errno::ALREADY,
            "this process holds the socket that is shared; use that, or its children's by fork",
        ));
    };
    let (said, fds) = read(token, Space::All, RecvFlags::empty())?;
    let mut fds = fds.into_iter();
    let (Some(control), Some(page_file)) = (fds.next(), fds.next()) else {
        return Err(wrong("fewer descriptors than any socket has came with it"));
    };
    is_socket(&control, kind.socket_type())?;
    let page = open_page(&page_file)?;
    let Some(said) = said.filter(|_| inode(&page_file) == Ok(page_inode)) else {
        return Err(wrong("the page of the socket is another one than was said"));
    };
    let mut arrived = TakenUp::of(&said.state, page.words(), kind)?;
    arrived.belong_together(&control, fds.collect(), config)?;
    let config = Config { records: arrived.state.records, ..*config };
    let (rx, tx) = arrived.sides(&control).map_err(lied)?;
    let me = file.keep(page_file).join().map_err(plain)?;
    let end = Arc::new(Connection::new(control, kind, &config, rx, tx));
    let sharing = end.others().share(|| Sharing::joined(page, file, me)).clone();
    settle_among_others(&end, arrived, &sharing)?;
    end.settle_settings().map_err(plain)?;
    let place = usize::try_from(said.place).unwrap_or(usize::MAX);
    let guest = u32::try_from(said.guest).unwrap_or(0);
    if !sharing.words().members.0.claim(place, guest, me) {
        return Err(error(Errno::ALREADY, "the place that was kept for this process is taken, or given up"));
    }
    end.look_after();
    Ok(end)
}

/// Takes up the settings, rings and channels, as `settle_in` does, of an end that others hold too. What
/// those have said in the rings stands.
fn settle_among_others(connection: &Arc<Connection>, arrived: TakenUp, sharing: &Arc<Sharing>) -> Result<()> {
    let TakenUp { state, rings: [rx_ring, tx_ring], inlet, outlet, .. } = arrived;
    connection.set_kernel_sent(state.kernel_sent);
    connection.set_shut(state.send_shut, state.recv_shut);
    connection.set_asks(state.passes, state.asked);
    if let Some(ring) = rx_ring {
        connection.join_rx_ring(ring);
    }
    if let Some(ring) = tx_ring {
        connection.set_tx_ring(ring);
    }
    // No other thread has this end yet.
    let busy = || plain(Errno::BUSY);
    let mut rx = connection.rx().mutex().lock_for(PATIENCE).ok_or_else(busy)?;
    if let Rx::Ring(ring) = rx.value_mut() {
        ring.take_up_channel(inlet, state.channel_lost);
    }
    rx.join(connection, sharing.clone());
    let mut tx = connection.tx().mutex().lock_for(PATIENCE).ok_or_else(busy)?;
    if let Tx::Ring(ring) = tx.value_mut() {
        ring.take_up_channel(outlet, state.channels_made);
    }
    tx.join(connection, sharing.clone());
    Ok(())
}

/// Receives or peeks at the message of a token.
///
/// # Errors
///
/// EALREADY if it is gone; EMFILE, EINVAL.
fn read(token: &OwnedFd, space: Space, flags: RecvFlags) -> Result<(Option<Token>, Vec<OwnedFd>)> {
    let mut bytes = [0; TOKEN_LEN];
    let flags = flags | RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    let came = match scm::recv(token, &mut [IoSliceMut::new(&mut bytes)], space, flags) {
        Ok(came) => came,
        Err(Errno::AGAIN | Errno::CONNRESET) => scm::Message::default(),
        Err(errno) => return Err(plain(errno)),
    };
    if came.bytes == 0 {
        return Err(error(
            Errno::ALREADY,
            "this socket was taken up before; each `share_fds` is for one `from_fds`",
        ));
    }
    if came.bytes != TOKEN_LEN {
        return Err(wrong(
            "one descriptor alone is what `share_fds` of this version gives, and this is none",
        ));
    }
    if came.control_cut && space == Space::All {
        return Err(error(
            Errno::MFILE,
            "its descriptors found no room here, and are lost; have it shared again",
        ));
    }
    Ok((Token::decode(&bytes), came.fds))
}

/// Implements sharing for a socket over its field `end`.
macro_rules! sharing_methods {
    ($socket:ident) => {
        impl $socket {
            /// Shares the socket with one other process, which need be no child and may be in another pid
            /// namespace.
            ///
            /// Send what this returns to that process over a unix socket (SCM_RIGHTS, such as with
            /// [`Stream::send_fds`](crate::Stream::send_fds)), or keep it open across execve(2). There
            /// [`from_fds`](Self::from_fds) makes the same socket of it, while this one stays as it is. From
            /// then on it is one socket in several processes, as after fork(2): whole sends do not
            /// interleave, and each byte is received once. A process that is killed in the middle of a call
            /// costs at most what it was just receiving. Each `share_fds` is for one process. That process
            /// may share the socket further if it has [`Config::passable`](crate::Config::passable).
            ///
            /// The result is one descriptor, with close-on-exec set. It is a socket of its own: dropping it
            /// takes the offer back. Calls on the shared socket cost a few microseconds more until the offer
            /// is used or dropped, and while another process holds the socket.
            ///
            /// As after a fork, some things stay in one process: pages that were received by reference, and
            /// descriptors that a peek has seen. Nothing more is sent or received by reference. A direction
            /// that had not moved to shared memory stays with the kernel, so share once bytes went both ways
            /// ([`path`](Self::path) tells). All processes have one O_NONBLOCK in common; each has its own
            /// timeouts, policy and waits.
            ///
            /// A process that is given the socket can break this connection or keep it busy, and nothing
            /// else. A member must keep open the file by which the others know that it lives: a process that
            /// closes descriptors it knows nothing of (closefrom(3)) is taken for dead.
            ///
            /// # Errors
            ///
            /// - EBUSY: pages were sent or received by reference, or descriptors came that were not received.
            /// - EAGAIN: the socket is just moving to shared memory, or another thread waits for room to
            ///   send.
            /// - EOPNOTSUPP: the socket was made without [`Config::passable`](crate::Config::passable).
            /// - EUSERS: 31 processes hold the socket, or were given it.
            /// - ETOOMANYREFS: more descriptors of this user are on their way than RLIMIT_NOFILE. An offer
            ///   that was not taken up counts for four to seven of them.
            /// - EMFILE, EPROTO; the errors of memfd_create(2).
            pub fn share_fds(&self) -> onecopy_socket::Result<Vec<rustix::fd::OwnedFd>> {
                crate::multiprocess::share::share_out(&self.end)
            }
        }
    };
}
pub(crate) use sharing_methods;
