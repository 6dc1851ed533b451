//! Connections, as programs hold them.

use super::address::{addresses, family};
use super::config::ZeroCopy;
use super::connection::{Connection, Goes, Inner, Phase};
use super::engine::Kernel;
use super::info::info;
use super::options;
use super::placed::Placed;
use super::shared::Shared;
use super::source::Sources;
use super::submitter::{For, Submitter};
use super::wait::{Patience, explained, here};
use crate::bell::Bell;
use crate::carrier::tcp::{self, Endpoint, Options};
use crate::carrier::{Common, Counts, Frags, Taken, Tokens, Way, lend};
use crate::zerocopy::{At, Lender, NotSent, Range, Small, Takes};
use onecopy_chain::notify::Segment;
use onecopy_chain::notify::zerocopy::Tell;
use onecopy_chain::{Chain, ChainError, Writer};
use onecopy_copy::Hint;
use onecopy_inet::stack::Bound;
use onecopy_inet::tcp::{Info, Settings, State};
use onecopy_pool::{Page, Pages};
use onecopy_socket::registry::{Row, Type};
use onecopy_socket::{Carrier, Error, Op, Reader, RecvFlags, Result, SendFlags};
use onecopy_sync::Mutex;
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, sockopt};
use std::fmt;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// A connection to `address` that is being made, from `local` if that is given, with settings changed before it begins.
pub(crate) fn connect(
    kernel: &Kernel,
    local: Option<SocketAddr>,
    address: SocketAddr,
    change: Option<&dyn Fn(&mut Settings)>,
) -> Result<Arc<dyn tcp::Connection>> {
    let fd = open(address)?;
    let mut settings = options::begin(&fd, kernel.shared().config.congestion)?;
    if let Some(change) = change {
        options::change(&mut settings, true, fd.as_fd(), address.is_ipv6(), &mut |settings| {
            change(settings)
        })?;
    }
    if let Some(local) = local {
        let bound = sockopt::set_socket_reuseaddr(&fd, true).and_then(|()| rustix::net::bind(&fd, &local));
        bound.map_err(|errno| explained(Op::Bind, errno).about("address"))?;
    }
    let phase = Phase::Connect(address);
    let socket = Stream::new(kernel.submitters().next(For::Made), fd, phase, address.is_ipv6(), settings);
    socket.connection.poke();
    Ok(Arc::new(socket))
}

pub(super) fn open(address: SocketAddr) -> Result<OwnedFd> {
    rustix::net::socket_with(family(address), SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| Error::new(Op::Socket, errno))
}

/// Where a socket counts, and its settings.
pub(super) fn common(shared: &Shared, listening: bool) -> (Common, Arc<Row>) {
    let row = Row::claim_unnamed(std::process::id(), Type::Stream, listening);
    (Common::new(&row, shared.wait, Reader::OtherCore), Arc::new(row))
}

/// A connection.
pub(super) struct Stream {
    connection: Arc<Connection>,
    ipv6: bool,
    options: Mutex<Settings>,
    pub(super) bell: OnceLock<Arc<Bell>>,
    /// Its sends that are told of; made with the first.
    lender: OnceLock<Lender>,
    /// Fragments of a device's memory that its program has; made with the first.
    pub(super) tokens: OnceLock<Arc<Tokens>>,
    /// What has come by a NIC; made with the first receive.
    pub(super) placed: Arc<OnceLock<Placed>>,
}

impl Stream {
    pub fn new(
        submitter: &Arc<Submitter>,
        fd: OwnedFd,
        phase: Phase,
        ipv6: bool,
        options: Settings,
    ) -> Stream {
        let connection = Connection::new(submitter, fd, common(&submitter.shared, false), phase);
        connection.named();
        connection.show(&connection.lock());
        let options = Mutex::new(options);
        Stream {
            connection,
            ipv6,
            options,
            bell: OnceLock::new(),
            lender: OnceLock::new(),
            tokens: OnceLock::new(),
            placed: Arc::default(),
        }
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Has the ring begin with it.
    pub fn begin(&self) {
        self.connection.poke();
    }

    /// Calls `attempt` until it gives something, waiting in between.
    pub(super) fn call<R>(
        &self,
        op: Op,
        patience: &Patience,
        mut attempt: impl FnMut(&mut Inner) -> Attempt<R>,
    ) -> Result<R> {
        let connection = &*self.connection;
        loop {
            let mut state = connection.lock();
            if let Attempt::Done(result) = attempt(&mut state) {
                connection.show(&state);
                drop(state);
                return result.map_err(|errno| explained(op, errno));
            }
            here(connection.shared(), op)?;
            connection.show(&state);
            patience.wait(state, connection.waiters(), None).map_err(|errno| Error::new(op, errno))?;
        }
    }

    /// As [`Stream::call`], for a receive of `least` bytes to `most`: each attempt has what of them the kernel has where the ring does not receive.
    fn receive<R>(
        &self,
        patience: &Patience,
        least: usize,
        most: usize,
        mut attempt: impl FnMut(&mut Inner) -> Attempt<R>,
    ) -> Result<R> {
        let connection = &*self.connection;
        loop {
            let mut asks = false;
            let got = self.call(Op::Recv, patience, |state| {
                if state.receive.is_empty() {
                    connection.fetch_left(state);
                }
                let there = usize::try_from(state.receive.len()).unwrap_or(usize::MAX);
                if there < least {
                    asks |= connection.receive_here(state, most - there);
                }
                match attempt(state) {
                    Attempt::Wait if asks => Attempt::Done(Ok(None)),
                    Attempt::Wait => Attempt::Wait,
                    Attempt::Done(got) => Attempt::Done(got.map(Some)),
                }
            });
            if asks {
                connection.poke();
            }
            if let Some(got) = got? {
                return Ok(got);
            }
        }
    }

    /// The memory of devices' that `chain` is sent from; None where some of it is not bound for that.
    fn sources(&self, chain: &Chain) -> Option<Sources> {
        let devices = &self.connection.shared().devices;
        Sources::of(chain, |memory| devices.source(memory))
    }

    /// Whether what is received may go to a device's memory.
    fn may_go_to_a_device(&self) -> bool {
        !matches!(self.connection.lock().goes, Goes::Host)
    }

    /// As [`Stream::call`], for a send: has the ring look at what each attempt has put there.
    fn send(
        &self,
        flags: SendFlags,
        before: bool,
        len: impl Fn() -> usize,
        mut put: impl FnMut(&mut Inner) -> std::result::Result<usize, Errno>,
    ) -> Result<usize> {
        let connection = &*self.connection;
        let patience = Patience::of(&connection.common, Way::Write, flags.contains(SendFlags::DONTWAIT));
        let (wanted, mut done, mut waits) = (len(), 0, false);
        let sent = loop {
            let mut short = false;
            let sent = self.call(Op::Send, &patience, |state| {
                if (before || done > 0) && state.has_failed() {
                    return Attempt::Done(Ok(0));
                }
                if let Some(errno) = state.send_error() {
                    return Attempt::Done(Err(errno));
                }
                if state.room() == 0 || (waits && state.short) {
                    return Attempt::Wait;
                }
                match put(state) {
                    // What it has is its share, and comes home sooner or later.
                    Err(Errno::AGAIN) => Attempt::Wait,
                    // Others have the pages, and give them back; or nobody does.
                    Err(Errno::NOBUFS) if connection.submitter().pool.monitor().in_flight() > 0 => {
                        (state.short, short) = (true, true);
                        Attempt::Done(Err(Errno::AGAIN))
                    }
                    Err(errno) => Attempt::Done(Err(errno)),
                    Ok(n) => {
                        state.short = false;
                        state.more = flags.contains(SendFlags::MORE) && done + n == wanted;
                        Attempt::Done(Ok(n))
                    }
                }
            });
            if short {
                // The ring's thread says when there are pages again.
                connection.poke();
                if !patience.none {
                    waits = true;
                    continue;
                }
            }
            match sent {
                // An error, which stays for the next call.
                Ok(0) => break Ok(done),
                Ok(n) => {
                    done += n;
                    connection.poke();
                    if done == wanted {
                        break Ok(done);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        match sent {
            Err(_) if done > 0 => Ok(done),
            sent => sent,
        }
    }
}

/// What an attempt of a call came to.
pub(super) enum Attempt<R> {
    Done(std::result::Result<R, Errno>),
    Wait,
}

impl Endpoint for Stream {
    fn common(&self) -> &Common {
        &self.connection.common
    }

    fn carrier(&self) -> Carrier {
        Carrier::Kernel
    }

    fn shutdown(&self, how: Shutdown) -> Result<()> {
        self.connection.shutdown(how).map_err(|errno| explained(Op::Shutdown, errno))
    }

    fn addresses(&self) -> Bound {
        addresses(&*self.connection.fd)
    }

    fn take_error(&self, op: Op) -> Option<Error> {
        let mut state = self.connection.lock();
        let told = state.take_error();
        let error = match state.phase() {
            // A reset behind the peer's end only the kernel knows of: the ring receives no more.
            Phase::Open => told
                .or_else(|| sockopt::socket_error(&*self.connection.fd).ok().and_then(|error| error.err())),
            // What the kernel has is for the ring, which would connect once more if it was told of none (io_connect()).
            _ => told,
        };
        self.connection.show(&state);
        error.map(|errno| explained(op, errno))
    }

    fn fd(&self) -> Result<BorrowedFd<'_>> {
        if let Some(bell) = self.bell.get() {
            return Ok(bell.as_fd());
        }
        let bell = self.connection.bell().map_err(|errno| Error::new(Op::Socket, errno))?;
        Ok(self.bell.get_or_init(|| bell).as_fd())
    }

    fn change(&self, change: &mut dyn FnMut(&mut Settings)) -> Result<()> {
        options::changed(&self.options, self.connection.fd.as_fd(), self.ipv6, change)
    }

    fn look(&self, look: &mut dyn FnMut(&Settings)) {
        look(&options::seen(&self.options, self.connection.fd.as_fd()));
    }
}

impl tcp::Connection for Stream {
    fn counts(&self) -> Weak<dyn Counts> {
        let weak: Weak<Row> = Arc::downgrade(&self.connection.row);
        weak
    }

    fn connected(&self, limit: Option<Duration>) -> Result<()> {
        let patience = Patience::new(self.common(), false, limit);
        let made = self.call(Op::Connect, &patience, |state| match state.phase() {
            Phase::Connect(_) | Phase::Connecting => Attempt::Wait,
            Phase::Open => Attempt::Done(Ok(())),
            Phase::Failed => Attempt::Done(Err(state.take_error().unwrap_or(Errno::CONNREFUSED))),
        });
        match made {
            Err(error) if error.would_block() => Err(explained(Op::Connect, Errno::TIMEDOUT)),
            made => made,
        }
    }

    fn send_bytes(&self, bytes: &[u8], flags: SendFlags, hint: Hint, sent: bool) -> Result<usize> {
        let connection = &*self.connection;
        let mut at = 0;
        self.send(
            flags,
            sent,
            || bytes.len(),
            |state| {
                let room = usize::try_from(state.room()).unwrap_or(usize::MAX);
                let share = connection.share(state) as usize * PAGE;
                state.over_share = share == 0;
                if state.over_share {
                    return Err(Errno::AGAIN);
                }
                let mut most = room.min(bytes.len() - at).min(share);
                loop {
                    let piece = &bytes[at..][..most];
                    let pool = connection.submitter().pool.reservoir(piece.len() / PAGE + 1);
                    match state.send.write(&Writer::new(&pool).hint(hint), piece) {
                        Ok(()) => {
                            connection.common.copied_in(piece.len(), hint);
                            at += piece.len();
                            return Ok(piece.len());
                        }
                        // What there are pages for goes.
                        Err(ChainError::NoPage(_)) if most > PAGE => most /= 2,
                        Err(ChainError::NoPage(_)) => return Err(Errno::NOBUFS),
                        Err(_) => return Err(Errno::INVAL),
                    }
                }
            },
        )
    }

    fn send_segment(&self, data: &mut Segment<Chain>, flags: SendFlags) -> Result<usize> {
        let connection = &*self.connection;
        let sources = self.sources(data.payload()).ok_or_else(|| explained(Op::Send, Errno::FAULT))?;
        let len = data.payload().len();
        self.send(
            flags,
            false,
            || len,
            |state| {
                let n = data.payload().len().min(usize::try_from(state.room()).unwrap_or(usize::MAX));
                let rest = data.divide(n).map_err(|_| Errno::INVAL)?;
                let front = std::mem::replace(data, rest);
                state.send.push(front);
                state.sources.keep(&sources);
                connection.common.referenced(n);
                Ok(n)
            },
        )
    }

    fn lend(&self, chain: Chain, tell: Tell, flags: SendFlags) -> std::result::Result<Taken, NotSent> {
        let shared = self.connection.shared();
        let dont_wait = flags.contains(SendFlags::DONTWAIT);
        // It copies nothing by itself: the ring has the kernel copy what is small.
        let begin = |lender: &Lender, chain| {
            let pool = self.connection.submitter().pool.reservoir(1);
            let takes = Takes { unreadable: self.sources(&chain).is_some(), ..TAKES };
            lender.begin(takes, chain, tell, &Writer::new(&pool), shared.now())
        };
        lend(self.lender_made(), self.common(), chain, dont_wait, begin, |begun, taken| {
            if begun.data.payload().is_empty() {
                return Ok(());
            }
            let before = begun.data.payload().len();
            let sent = tcp::Connection::send_segment(self, &mut begun.data, flags);
            *taken = before - begun.data.payload().len();
            if *taken < before {
                self.fell_short(Way::Write);
            }
            sent.map(drop)
        })
    }

    fn at(&self) -> At {
        At::Ring
    }

    fn lender(&self) -> Option<&Lender> {
        self.lender.get()
    }

    fn lender_made(&self) -> Result<&Lender> {
        made(&self.lender, self.connection.shared())
    }

    fn wait_notice(&self, limit: Option<Duration>) -> Result<Option<Range>> {
        here(self.connection.shared(), Op::Wait)?;
        Ok(self.lender_made()?.wait_notice(limit))
    }

    fn set_small(&self, small: Option<Small>) -> Result<()> {
        self.connection.lock().least = match small {
            Some(Small::Below(bytes)) => bytes.into(),
            Some(Small::Measured) | None => ZeroCopy::LEAST as u64,
        };
        Ok(())
    }

    fn recv_frags(&self, n: usize, most: usize, flags: RecvFlags) -> Result<Frags> {
        self.frags(n, most, flags)
    }

    fn tokens(&self) -> Option<&Arc<Tokens>> {
        self.tokens.get()
    }

    fn tokens_made(&self) -> &Arc<Tokens> {
        self.device_tokens()
    }

    fn pages(&self, len: usize) -> Result<Vec<Page>> {
        let count = len.div_ceil(PAGE);
        let pool = self.connection.submitter().pool.reservoir(count);
        let pages = (0..count).map(|_| pool.alloc()).collect::<std::result::Result<Vec<_>, _>>();
        pages.map_err(|_| explained(Op::Send, Errno::NOBUFS))
    }

    fn take(&self, max: usize, how: tcp::Taking) -> Result<Option<Segment<Chain>>> {
        let patience = Patience::of(self.common(), Way::Read, how.dont_wait);
        if self.may_go_to_a_device() && !(how.before && self.connection.lock().has_failed()) {
            if let Some(taken) = self.take_by_nic(max, how, &patience)? {
                return Ok(taken);
            }
            match how.device {
                true => {
                    if let Some(data) = self.device_chain(max, &patience)? {
                        return Ok(Some(data));
                    }
                }
                false => self.is_readable(&patience)?,
            }
        }
        let mut wants = false;
        let taken = self.receive(&patience, 1, max, |state| {
            if !state.receive.is_empty() {
                let max = how.cut(max, state.receive.first_piece());
                let taken = state.receive.take(max).map_err(|_| Errno::INVAL);
                wants = state.wants_more();
                return Attempt::Done(taken);
            }
            if how.before && state.has_failed() {
                return Attempt::Done(Ok(None));
            }
            match state.receive_error() {
                Some(over) => Attempt::Done(over.map(|()| None)),
                None => Attempt::Wait,
            }
        })?;
        if wants {
            self.connection.poke();
        }
        if let Some(data) = &taken {
            self.counters().received.add(data.payload().len());
        }
        Ok(taken)
    }

    fn peek(&self, max: usize, all: bool, dont_wait: bool) -> Result<Option<Segment<Chain>>> {
        let patience = Patience::of(self.common(), Way::Read, dont_wait);
        if self.may_go_to_a_device() {
            if let Some(seen) = self.peek_by_nic(max, &patience)? {
                return Ok(seen);
            }
            self.is_readable(&patience)?;
        }
        self.receive(&patience, if all { max.max(1) } else { 1 }, max.max(1), |state| {
            let there = usize::try_from(state.receive.len()).unwrap_or(usize::MAX);
            // No more comes than there is room for.
            let enough = there >= max || !all || state.is_ended() || state.is_full();
            if there > 0 && enough {
                let seen = state.receive.range(0, max.min(there));
                return Attempt::Done(seen.map(Some).map_err(|_| Errno::INVAL));
            }
            if there > 0 {
                return Attempt::Wait;
            }
            match state.receive_error() {
                Some(over) => Attempt::Done(over.map(|()| None)),
                None => Attempt::Wait,
            }
        })
    }

    fn fell_short(&self, way: Way) {
        match (self.bell.get(), way) {
            (Some(bell), Way::Read) => bell.read_again(),
            (Some(bell), Way::Write) => bell.write_again(),
            (None, _) => {}
        }
    }

    fn peer(&self) -> Option<SocketAddr> {
        addresses(&*self.connection.fd).remote
    }

    fn info(&self) -> Info {
        let mut info = info(self.connection.fd.as_fd());
        // The kernel does not know of what it was not asked for yet.
        if info.state == 0 {
            info.state = self.connection.lock().tcp_state() as u8;
        }
        info
    }

    fn readable_bytes(&self) -> usize {
        let state = self.connection.lock();
        let there = state.left(&self.connection.fd);
        (state.receive.len() + there) as usize + self.placed.get().map_or(0, Placed::len)
    }

    fn unacknowledged_bytes(&self) -> usize {
        let waiting = self.connection.lock().send.len() as usize;
        // What was not acknowledged when it was reset stays in the kernel's count.
        if info(self.connection.fd.as_fd()).state == State::Closed as u8 {
            return waiting;
        }
        waiting + onecopy_sys::socket::unread_memory(self.connection.fd.as_fd()).unwrap_or(0)
    }

    fn push(&self) {
        // The kernel did when TCP_NODELAY was set.
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // What another process forked from is its own.
        if self.connection.shared().is_here() {
            if let Some(tokens) = self.tokens.get() {
                tokens.close();
            }
            let unread = self.placed.get().is_some_and(|placed| placed.len() > 0);
            let reset = unread || self.options.lock().linger == Some(Duration::ZERO);
            self.connection.close(reset);
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = self.addresses();
        f.debug_struct("Socket")
            .field("local", &bound.local)
            .field("remote", &bound.remote)
            .field("state", &self.connection.lock().tcp_state())
            .finish_non_exhaustive()
    }
}

/// What the kernel takes: any number of parts, in the host's memory, and for a stream in a device's that is bound.
pub(super) const TAKES: Takes = Takes { fragments: usize::MAX, unreadable: false, appends: false };

/// What a socket has for sends that are told of; nothing is copied for its size in user space, where the kernel would copy it again.
pub(super) fn made<'a>(lender: &'a OnceLock<Lender>, shared: &Shared) -> Result<&'a Lender> {
    if let Some(lender) = lender.get() {
        return Ok(lender);
    }
    let fresh = Lender::new(&shared.account)?;
    fresh.set_small(Some(Small::Below(0)));
    Ok(lender.get_or_init(|| fresh))
}

/// Bytes of a page of the pool that is sent from.
const PAGE: usize = 4096;
