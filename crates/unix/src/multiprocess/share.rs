//! Sharing an end with a process that is no child of this one, which then holds it as well.
//!
//! It is shared as by a fork ([`crate::members`]), but that its page lies in a memfd, which the other process maps. That one
//! gets one descriptor, a *token*: a socket in whose queue there lies one message, with what is to be said of the end, and
//! the control socket, the page, the memfds of the rings and the ends of the channels. Who takes the message out of the queue
//! is the one whom the token was for.
//!
//! # Why a queue
//!
//! The page's file is also where members lock their bytes ([`onecopy_sys::life`]), and a process loses its locks on a file as
//! soon as it closes any descriptor of it. So nobody may be handed one who might close it: not the giver's program, which sends
//! descriptors on and drops them, and not a broker that holds the end itself. In a queue there are none. The message says which
//! file its page is, and is looked at before it is taken, so a process that has that file already leaves it where it is.
//!
//! That each end has a file of its own bounds what a member can do who means ill: by a lock on bytes of others (who are dead
//! and look alive), or by sending a descriptor of the file to somebody who closes it (who lives, and looks dead). Either
//! costs that end.
//!
//! # Who is to come
//!
//! Until the message is taken somebody may come, so the end stays shared: a place among its members is kept, as for a child
//! at a fork. The giver keeps the other end of the token, which hangs up when the last copy of it is gone, taken up or not;
//! then, at the next look, the place is free if nobody has it. (A giver who goes before leaves it: those who remain never know
//! then that they are alone, and stay on the shared way.)
//!
//! # Whom to believe
//!
//! Nobody, as in [`crate::passing`]: whoever made the token may mean ill. What lies in it is checked as what `into_fds` gave; what
//! the page says is loaded under its locks at the first use of either side, and checked as what any member saves.

use crate::connection::Connection;
use crate::connection::core::broken;
use crate::connection::kind::Kind;
use crate::connection::rx::Rx;
use crate::connection::side::Inner;
use crate::connection::tx::Tx;
use crate::multiprocess::membership::{Fresh, NotGiven, PageFile, Sharing};
use crate::multiprocess::patience::PATIENCE;
use crate::multiprocess::refusal::{error, plain, wrong};
use crate::multiprocess::transfer::{TakenUp, inode, is_socket, lied, open_page};
use crate::multiprocess::wire::{ConnectionState, TOKEN_LEN, Token};
use crate::{Config, Op, Records, Result};
use onecopy_sync::MutexGuard;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::scm::{self, Space};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Both<'a> = (MutexGuard<'a, Inner<Rx>>, MutexGuard<'a, Inner<Tx>>);

/// How long a try for the sending side keeps the receiving side from others.
const TRY: Duration = Duration::from_millis(2);

impl Connection {
    /// Shares it with whoever uses what this returns.
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::share_fds`].
    pub fn share_out(self: &Arc<Self>) -> Result<Vec<OwnedFd>> {
        self.check(Op::Pass)?;
        // (A fork locks the list of ends before any of them: so this, which does too, comes before their locks.)
        let mut fresh =
            if self.others.sharing().is_none() { Some(Fresh::new().map_err(plain)?) } else { None };
        let (mut rx, mut tx) = self.both()?;
        if self.is_orphan() || self.broken.load(Relaxed) == broken::CANNOT_SEND {
            return Err(error(
                Errno::BUSY,
                "this process has inherited it without its sending side, which a thread of its parent had then; share it there",
            ));
        }
        if !rx.is_shared() {
            self.decide(&mut rx.value, Op::Pass)?;
        }
        if !tx.is_shared() {
            self.adopt(&mut tx.value);
        }
        self.can_be_joined(&rx, tx.is_shared())?;
        self.keeps_rings(&rx.value)?;
        if !rx.is_shared() {
            rx.value.settle(self);
        }
        // (First: one that cannot be shared is left as it was.)
        let (state, along) = self.describe(&rx.value, &tx.value)?;
        // (What another thread has made first is taken; this one's goes once the locks have.)
        let sharing = match self.others.sharing() {
            Some(sharing) => sharing.clone(),
            None => {
                let fresh = fresh.take().ok_or(plain(Errno::AGAIN))?;
                self.others.share(|| fresh.over()).clone()
            }
        };
        let Some((file, inode)) = sharing.file() else {
            return Err(error(
                Errno::OPNOTSUPP,
                "this socket was forked with memory that only children can have; make it with Config::passable",
            )
            .about("Config::passable"));
        };
        self.share_rx(&mut rx, &sharing);
        self.share_tx(&mut tx, &sharing);
        let given = sharing.give(|place, guest| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (news, token) =
                rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            let token_says =
                Token { page: inode, place: place as u64, guest: guest.into(), state: state.encode() };
            let mut fds = vec![self.fd(), file];
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

    /// Both sides, against the threads of this process: who loads what they are at from the page next does so with its locks. A
    /// sender that is asleep for want of room keeps its side.
    fn both(&self) -> Result<Both<'_>> {
        let began = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(began.elapsed());
            if let Some(rx) = self.rx.mutex().lock_for(left)
                && let Some(tx) = self.tx.mutex().lock_for(TRY)
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

    /// # Errors
    ///
    /// Why others cannot share it: EBUSY, EAGAIN.
    fn can_be_joined(&self, rx: &Inner<Rx>, sends: bool) -> Result<()> {
        if self.lender.get().is_some() {
            return Err(error(
                Errno::BUSY,
                "pages were sent here by reference, which come home to a pool of this process; use a connection for \
                 them that is not shared",
            ));
        }
        let moving = self.config.records == Records::Stream && !matches!(rx.value, Rx::Ring(_));
        if !rx.is_shared() && (moving || !sends && self.handshake.waits_to_switch()) {
            return Err(error(
                Errno::AGAIN,
                "this connection is just moving to shared memory; share it once bytes went both ways",
            ));
        }
        match &rx.value {
            Rx::Ring(ring) if ring.doorbells.channel().keeps_pool() => Err(error(
                Errno::BUSY,
                "the peer's pool came when it could not be mapped; receive what lies in it first",
            )),
            Rx::Ring(ring) if !rx.is_shared() && !ring.pending.can_be_shared() => {
                let why = ring.pending.can_be_passed(ring.consumer.position());
                Err(error(Errno::BUSY, why.err().unwrap_or("descriptors came that were not received")))
            }
            value if !rx.is_shared() && !value.can_be_shared(self) => {
                Err(error(Errno::BUSY, "more views are left than processes can know of; drop some first"))
            }
            _ => Ok(()),
        }
    }

    /// Becomes one more of those who hold what a token is for.
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::from_fds`].
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
        let sharing = end.others.share(|| Sharing::joined(page, file, me)).clone();
        end.settle_among_others(arrived, &sharing)?;
        end.settle_settings().map_err(plain)?;
        let place = usize::try_from(said.place).unwrap_or(usize::MAX);
        let guest = u32::try_from(said.guest).unwrap_or(0);
        if !sharing.words().members.0.claim(place, guest, me) {
            return Err(error(
                Errno::ALREADY,
                "the place that was kept for this process is taken, or given up",
            ));
        }
        end.look_after();
        Ok(end)
    }

    /// As `settle_in` does, of an end that others hold too: what they have said stands.
    fn settle_among_others(self: &Arc<Self>, arrived: TakenUp, sharing: &Arc<Sharing>) -> Result<()> {
        let TakenUp { state, rings: [rx_ring, tx_ring], inlet, outlet, .. } = arrived;
        self.kernel_sent.store(state.kernel_sent, Relaxed);
        self.send_shut.store(state.send_shut.into(), Relaxed);
        self.recv_shut.store(state.recv_shut.into(), Relaxed);
        self.set_asks(state.passes, state.asked);
        if let Some(ring) = rx_ring {
            self.join_rx_ring(ring);
        }
        if let Some(ring) = tx_ring {
            self.set_tx_ring(ring);
        }
        // Nobody else has this end yet.
        let busy = || plain(Errno::BUSY);
        let mut rx = self.rx.mutex().lock_for(PATIENCE).ok_or_else(busy)?;
        if let Rx::Ring(ring) = &mut rx.value {
            ring.doorbells.channel_mut().take_up(inlet, state.channel_lost);
        }
        rx.join(self, sharing.clone());
        let mut tx = self.tx.mutex().lock_for(PATIENCE).ok_or_else(busy)?;
        if let Tx::Ring(ring) = &mut tx.value {
            ring.has_channel(outlet, state.channels_made);
        }
        tx.join(self, sharing.clone());
        Ok(())
    }
}

/// The message of a token.
///
/// # Errors
///
/// EALREADY where it is gone, EMFILE, EINVAL.
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

/// Of sockets that are shared, over their field `end`.
macro_rules! sharing_methods {
    ($socket:ident) => {
        impl $socket {
            /// Shares the socket with another process, any one, no child and in whatever pid namespace: what this gives is sent to
            /// it over a unix socket (SCM_RIGHTS, such as with [`Stream::send_with`](crate::Stream::send_with)), or kept open
            /// across execve(2), and [`from_fds`](Self::from_fds) there makes of it the same socket, while this one stays as it
            /// is. Then it is one socket in several processes, as after fork(2): whole sends do not interleave, each byte is
            /// received once, and one that is killed in the middle costs what it was just receiving at most. Each
            /// `share_fds` is for one process, which may share it further if it has
            /// [`Config::passable`](crate::Config::passable).
            ///
            /// It is one descriptor, with close-on-exec set, and a socket of its own: dropping it takes the offer back. As long as
            /// neither that nor `from_fds` has happened, and while another process holds the socket, calls on it cost a few
            /// microseconds more.
            ///
            /// As after a fork, in one process only are pages that were received by reference and descriptors that a peek has
            /// seen; nothing more is sent or received by reference; and what had not moved to shared memory stays with the
            /// kernel, so share once bytes went both ways ([`path`](Self::path) tells). O_NONBLOCK is one for all of them;
            /// timeouts, policy and waits are each one's own.
            ///
            /// Who is given the socket can break this connection, or keep it busy, and nothing else. For the others the
            /// file that tells them who lives must stay open once: a process that closes descriptors it knows nothing of
            /// (closefrom(3)) is taken for dead.
            ///
            /// # Errors
            ///
            /// EBUSY (pages were sent or received by reference; descriptors came that were not received), EAGAIN (it is just
            /// moving to shared memory; another thread waits for room to send), EOPNOTSUPP (no
            /// [`Config::passable`](crate::Config::passable)), EUSERS (31 processes hold it, or were given it), EMFILE,
            /// ETOOMANYREFS (more descriptors of this user are on their way than RLIMIT_NOFILE; one that was not taken up counts
            /// for four to seven of them), EPROTO; what memfd_create(2) says.
            pub fn share_fds(&self) -> crate::Result<Vec<rustix::fd::OwnedFd>> {
                self.end.share_out()
            }
        }
    };
}
pub(crate) use sharing_methods;
