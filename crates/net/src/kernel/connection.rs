//! A connection: what programs have put there to be sent, what has arrived, and what the ring is asked for.

mod receiving;
mod sending;

use super::config::ZeroCopy;
use super::landing::Landing;
use super::shared::Shared;
use super::source::Sources;
use super::submitter::{Attended, Submitter, Turn, Wanting};
use super::wait::Waiters;
use crate::bell::Bell;
use crate::carrier::Common;
use onecopy_chain::notify::zerocopy::HoldWakers;
use onecopy_chain::notify::{Fate, Segment, SegmentQueue};
use onecopy_chain::{Chain, Fragment};
use onecopy_inet::tcp::{Readiness, State};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use onecopy_socket::registry::Row;
use onecopy_sync::{Mutex, MutexGuard};
use onecopy_uring::{End, Event, Key, Ring, Usage};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, shutdown, sockopt};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that wait to be sent, at most; the kernel's send buffer comes behind.
pub(super) const SEND_ROOM: u64 = 256 << 10;
/// Free bytes of these from which on poll(2) says that it can be sent: a third, as of the kernel's own sockets (sk_stream_is_writeable()).
const WRITABLE: u64 = SEND_ROOM / 3;
/// Bytes of pages with what has arrived, from which on no more is received, and below which again.
const RECEIVE_ROOM: u64 = 1 << 20;
/// How long a send waits for pages that others have, at a time: they come home without a word.
pub(super) const NO_PAGE: Duration = Duration::from_millis(5);

pub(super) struct Connection {
    token: u64,
    submitter: Arc<Submitter>,
    pub fd: Arc<OwnedFd>,
    pub common: Common,
    pub row: Arc<Row>,
    state: Mutex<Inner>,
    wanting: Wanting,
    waiters: Waiters,
    /// Itself, to be handed to the engine.
    own: std::sync::Weak<Connection>,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// To be asked of the ring.
    Connect(SocketAddr),
    Connecting,
    Open,
    Failed,
}

/// Whether this side sends no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    No,
    /// Once all is sent.
    Wanted,
    Done,
}

/// Where what is received goes.
pub(super) enum Goes {
    /// It is found out when there is a connection.
    Undecided,
    Host,
    /// To this memory, by way of this queue. The program's threads read it.
    Device(Arc<Landing>, u32),
}

pub(super) struct Inner {
    phase: Phase,
    /// What is not taken by the kernel yet.
    pub send: SegmentQueue,
    /// Where those of its bytes lie that lie in a device's memory.
    pub sources: Sources,
    /// The ring sends the bytes at its front at the moment, or waits for room to send them from a device's memory.
    sending: bool,
    /// More comes behind the last of it.
    pub more: bool,
    fin: Fin,
    /// Sends without a copy whose notifications have not come, and their bytes.
    notifications: u32,
    /// Bytes from which on a send is one without a copy.
    pub least: u64,
    /// The kernel copies them after all, or does not take them.
    copies: bool,
    pub receive: SegmentQueue,
    pub goes: Goes,
    /// Where it goes to a device: there was something when it was looked at last.
    pub readable: bool,
    /// Where it goes to a device: it is over, and what had come before has been taken.
    pub emptied: bool,
    /// A request of the ring's: to receive, or where it goes to a device, to tell when there is something.
    receiving: Option<Key>,
    /// It was asked to end.
    cancelled: bool,
    starves: bool,
    /// The peer sends no more, or this side wants none.
    ended: bool,
    /// The peer has said so: an error that comes behind it is for who sends (SOCK_DONE, tcp_recvmsg_locked()).
    done: bool,
    /// This side wants none: what comes all the same the kernel keeps, for who asks.
    shut: bool,
    /// Behind the end: it was asked to tell of a reset, which no receive does.
    watching: Option<Key>,
    /// That was asked for once, and need not be again.
    watched: bool,
    /// Something was sent behind the end.
    sent_behind: bool,
    error: Option<Errno>,
    /// No program has it any more.
    closed: bool,
    /// And what is left is not to be sent.
    aborted: bool,
    bell: Option<Arc<Bell>>,
}

impl Connection {
    pub fn new(
        submitter: &Arc<Submitter>,
        fd: OwnedFd,
        (common, row): (Common, Arc<Row>),
        phase: Phase,
    ) -> Arc<Connection> {
        let shared = &submitter.shared;
        Arc::new_cyclic(|own| Connection {
            token: shared.name(),
            submitter: Arc::clone(submitter),
            fd: Arc::new(fd),
            common,
            row,
            state: Mutex::new(Inner {
                phase,
                send: SegmentQueue::default(),
                sources: Sources::default(),
                sending: false,
                more: false,
                fin: Fin::No,
                notifications: 0,
                least: ZeroCopy::LEAST as u64,
                copies: shared.config.zero_copy == ZeroCopy::Never,
                receive: SegmentQueue::default(),
                goes: Goes::Undecided,
                readable: false,
                emptied: false,
                receiving: None,
                cancelled: false,
                starves: false,
                ended: false,
                done: false,
                shut: false,
                watching: None,
                watched: false,
                sent_behind: false,
                error: None,
                closed: false,
                aborted: false,
                bell: None,
            }),
            wanting: Wanting::default(),
            waiters: Waiters::default(),
            own: own.clone(),
        })
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.state.lock()
    }

    pub fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    pub fn shared(&self) -> &Shared {
        &self.submitter.shared
    }

    /// Whose it is.
    pub fn submitter(&self) -> &Submitter {
        &self.submitter
    }

    /// Has the thread that makes requests look at it. Without its lock.
    pub fn poke(&self) {
        if let Some(own) = self.own.upgrade() {
            self.submitter.attend(own);
        }
    }

    /// Has the ring tell whoever polls when there is something, where it goes to a device.
    pub fn poke_for_poll(&self) {
        let polled = {
            let state = self.lock();
            let device = state.receiving.is_none() && matches!(state.goes, Goes::Device(..));
            state.bell.is_some() && (device || state.ended)
        };
        if polled {
            self.poke();
        }
    }

    /// A read of the program's has left nothing of what there was. `left` is asked under its lock: another one may have received more meanwhile, and left some of it.
    pub fn drained(&self, left: impl FnOnce() -> bool) {
        {
            let mut state = self.lock();
            state.readable = matches!(state.goes, Goes::Device(..)) && left();
            self.show(&state);
        }
        self.poke_for_poll();
    }

    /// Something waits that the kernel does not tell of, since it was received and not taken.
    pub fn is_readable(&self) {
        let mut state = self.lock();
        state.readable = matches!(state.goes, Goes::Device(..));
        self.show(&state);
    }

    /// What is received goes to no device any more. The ring fetches it from here on; but not of a connection that is over, of which the kernel may have
    /// something all the same: that is fetched now.
    pub fn is_unbound(&self, state: &mut Inner) {
        // (Nobody receives what comes for one that is closed.)
        let left = !state.closed && state.may_be_there() && !state.is_receiving();
        (state.goes, state.readable) = (Goes::Host, false);
        if left {
            match self.fetch(state) {
                Ok(()) | Err(Errno::AGAIN) => {}
                Err(errno) => state.fail(errno),
            }
            state.emptied = true;
        }
        self.show(state);
        self.waiters.tell();
    }

    /// Receives what has come behind a shutdown of this side's, which no ring asks for.
    pub fn fetch_behind_shutdown(&self, state: &mut Inner) {
        let kernels = state.shut && state.phase == Phase::Open && matches!(state.goes, Goes::Host);
        if kernels && state.receiving.is_none() && rustix::io::ioctl_fionread(&*self.fd).is_ok_and(|n| n > 0)
        {
            // Where it fails the end stays.
            let _ = self.fetch(state);
        }
    }

    /// Receives what the kernel has now. The peer may send more meanwhile: that is left alone, or this would go on as long as it does.
    fn fetch(&self, state: &mut Inner) -> Result<(), Errno> {
        let pages = PagePool::new(PoolConfig::new().order(4), Heap::new()).map_err(|_| Errno::NOMEM)?;
        let mut left = rustix::io::ioctl_fionread(&*self.fd)?;
        while left > 0 {
            let mut page = pages.alloc().map_err(|_| Errno::NOBUFS)?;
            let room = page.bytes_mut().ok_or(Errno::FAULT)?;
            let most = room.len().min(left as usize);
            let (n, _) = rustix::net::recv(&*self.fd, &mut room[..most], RecvFlags::DONTWAIT)?;
            if n == 0 {
                break;
            }
            left -= n as u64;
            self.common.counters().kernel_copied.add(n);
            let data = Fragment::new(page, 0, n).map_err(|_| Errno::INVAL)?;
            state.receive.push(Chain::from(data).into());
        }
        Ok(())
    }

    /// Its descriptor for poll(2).
    pub fn bell(&self) -> rustix::io::Result<Arc<Bell>> {
        let mut state = self.lock();
        if let Some(bell) = &state.bell {
            return Ok(Arc::clone(bell));
        }
        let bell = Arc::new(Bell::new()?);
        bell.show(state.readiness());
        let bell = Arc::clone(state.bell.insert(bell));
        drop(state);
        self.poke_for_poll();
        Ok(bell)
    }

    /// Shows whoever looks from outside how it is. Under its lock.
    pub fn show(&self, state: &Inner) {
        if let Some(bell) = &state.bell {
            bell.show(state.readiness());
        }
        self.row.moves(state.tcp_state() as u8, state.receive.len(), state.send.len());
    }

    /// Shuts one way down, or both.
    pub fn shutdown(&self, how: std::net::Shutdown) -> Result<(), Errno> {
        let mut state = self.lock();
        if state.phase != Phase::Open {
            return Err(Errno::NOTCONN);
        }
        if how != std::net::Shutdown::Write {
            (state.ended, state.shut) = (true, true);
            let _ = shutdown(&*self.fd, Shutdown::Read);
        }
        if how != std::net::Shutdown::Read && state.fin == Fin::No {
            state.fin = Fin::Wanted;
            self.finish(&mut state);
        }
        self.show(&state);
        self.waiters.tell();
        drop(state);
        self.poke();
        Ok(())
    }

    /// Says that no more comes, once all is sent.
    fn finish(&self, state: &mut Inner) {
        if state.fin == Fin::Wanted && state.send.is_empty() && !state.sending {
            state.fin = Fin::Done;
            // Where it fails the connection is over anyway.
            let _ = shutdown(&*self.fd, Shutdown::Write);
        }
    }

    /// The last handle is gone. What was sent is still delivered; with something unread, or linger of zero, the peer gets a reset at once
    /// (RFC 2525, section 2.17), as the kernel does.
    pub fn close(&self, reset: bool) {
        // What it frees may wake others, who may call it.
        let _held = HoldWakers::new();
        let mut state = self.lock();
        (state.closed, state.ended) = (true, true);
        // What goes to a device stays with the kernel until somebody receives it.
        let unread = !state.receive.is_empty()
            || (matches!(state.goes, Goes::Device(..))
                && rustix::io::ioctl_fionread(&*self.fd).is_ok_and(|bytes| bytes > 0));
        if reset || unread || state.phase != Phase::Open {
            self.give_up(&mut state);
        } else {
            // Whoever has a fragment of it keeps the descriptor open. Bytes behind our FIN get a reset all the same (RFC 1122, section 4.2.2.13).
            let _ = shutdown(&*self.fd, Shutdown::Read);
            state.fin = if state.fin == Fin::No { Fin::Wanted } else { state.fin };
            self.finish(&mut state);
        }
        state.receive.clear(Fate::Dropped);
        self.show(&state);
        drop(state);
        self.poke();
    }

    /// Ends the connection with a reset (tcp_disconnect()): the kernel frees what it has of it, whoever else may have the descriptor.
    fn give_up(&self, state: &mut Inner) {
        if !state.aborted {
            state.aborted = true;
            state.drop_unsent();
            let _ = sockopt::set_socket_linger(&*self.fd, Some(Duration::ZERO));
            let _ = rustix::net::connect_unspec(&*self.fd);
        }
    }
}

impl Inner {
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Bytes that a send may add.
    pub fn room(&self) -> u64 {
        if self.phase == Phase::Open { SEND_ROOM.saturating_sub(self.send.len()) } else { 0 }
    }

    /// Why nothing can be sent.
    pub fn send_error(&mut self) -> Option<Errno> {
        match self.phase {
            Phase::Failed => Some(self.error.take().unwrap_or(Errno::PIPE)),
            Phase::Open => match self.error.take() {
                Some(errno) => Some(errno),
                None => (self.fin != Fin::No).then_some(Errno::PIPE),
            },
            // Whoever waits does so until it is made.
            Phase::Connect(_) | Phase::Connecting => None,
        }
    }

    /// Whether there is an error to be told.
    pub fn has_failed(&self) -> bool {
        self.error.is_some() || self.phase == Phase::Failed
    }

    /// Why nothing can be received, once; nothing where it is the end, as it is behind an error that was told.
    pub fn receive_error(&mut self) -> Option<Result<(), Errno>> {
        match self.error.take_if(|_| !self.done) {
            Some(errno) => Some(Err(errno)),
            None => (self.ended || self.phase == Phase::Failed).then_some(Ok(())),
        }
    }

    /// Whether more may come.
    pub fn is_receiving(&self) -> bool {
        self.phase == Phase::Open && !self.ended && self.error.is_none()
    }

    /// Whether the kernel may have something for a device: it does behind an error of a send, and behind a shutdown, where bytes had come before.
    pub fn may_be_there(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Failed) && !self.aborted && !self.emptied
    }

    /// The peer sends no more.
    pub fn has_ended(&mut self) {
        (self.ended, self.emptied) = (true, true);
    }

    /// Whether the ring is to be asked for more, after something was taken.
    pub fn wants_more(&self) -> bool {
        self.starves
            || (self.receiving.is_none() && !self.ended && self.receive.true_size() < RECEIVE_ROOM / 2)
    }

    /// Whether no more is received before something is taken.
    pub fn is_full(&self) -> bool {
        self.receive.true_size() >= RECEIVE_ROOM || self.starves
    }

    pub fn is_ended(&self) -> bool {
        self.ended
    }

    pub fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }

    fn readiness(&self) -> Readiness {
        let mut ready = Readiness::empty();
        let over = self.phase == Phase::Failed;
        let here = !self.receive.is_empty() || self.readable;
        ready.set(Readiness::READ, here || self.ended || over || self.error.is_some());
        ready.set(Readiness::WRITE, self.room() >= WRITABLE || over || self.fin != Fin::No);
        ready.set(Readiness::PEER_CLOSED, self.ended || over);
        ready.set(Readiness::HUNG_UP, over || (self.ended && self.fin == Fin::Done));
        ready.set(Readiness::ERROR, self.error.is_some());
        ready
    }

    /// As far as it is known without asking the kernel.
    pub fn tcp_state(&self) -> State {
        match (self.phase, self.ended, self.fin) {
            (Phase::Connect(_) | Phase::Connecting, ..) => State::SynSent,
            (Phase::Failed, ..) => State::Closed,
            (Phase::Open, false, Fin::No | Fin::Wanted) => State::Established,
            (Phase::Open, false, Fin::Done) => State::FinWait1,
            (Phase::Open, true, Fin::No | Fin::Wanted) => State::CloseWait,
            (Phase::Open, true, Fin::Done) => State::LastAck,
        }
    }

    pub fn fail(&mut self, errno: Errno) {
        if self.error.is_none() {
            self.error = Some(errno);
        }
        self.ended = true;
        self.drop_unsent();
        self.phase = Phase::Failed;
    }

    /// Sends nothing more, and lets go of the memory that it lay in.
    fn drop_unsent(&mut self) {
        self.send.clear(Fate::Dropped);
        self.sources.clear();
    }
}

/// The bytes are in the queue still, which says what becomes of them.
fn not_taken(back: Option<Segment<Chain>>) {
    if let Some(back) = back {
        back.free(Fate::Sent);
    }
}

impl Attended for Connection {
    fn token(&self) -> u64 {
        self.token
    }

    fn wants(&self) -> bool {
        self.wanting.ask()
    }

    fn turn(&self, ring: &mut Ring) -> Turn {
        self.wanting.got();
        let _held = HoldWakers::new();
        let (mut state, mut again, mut short) = (self.lock(), false, false);
        match state.phase {
            // Nobody has a handle any more.
            Phase::Connect(_) if state.aborted => state.phase = Phase::Failed,
            Phase::Connect(address) => {
                state.phase = Phase::Connecting;
                ring.connect(&self.fd, self.token, address);
            }
            _ => {}
        }
        let unsettled = !self.turn_receive(&mut state, ring);
        self.turn_watch(&mut state, ring);
        if let Some((source, data)) = self.turn_send(&mut state, ring) {
            // Without the lock, as the kernel's other copies.
            drop(state);
            let taken = source.write(&self.fd, data.payload());
            state = self.lock();
            not_taken(Some(data));
            short = matches!(taken, Err(Errno::NOBUFS | Errno::NOMEM));
            self.written(&mut state, ring, taken);
            again = !short && !state.sending && !state.send.is_empty();
        }
        if state.send.is_empty() {
            state.sources.clear();
        }
        self.finish(&mut state);
        let idle = !state.sending && state.notifications == 0 && state.receiving.is_none();
        let idle = idle && state.watching.is_none();
        let left = state.aborted || state.phase == Phase::Failed || state.send.is_empty();
        let turn = match state.closed && idle && left && state.phase != Phase::Connecting {
            true => Turn::Over,
            false if state.starves || short || unsettled => Turn::Starves,
            false => Turn::Waits,
        };
        drop(state);
        if again {
            // The next bytes are written when others have had their turn.
            self.poke();
        }
        turn
    }

    fn event(&self, event: Event) {
        let _held = HoldWakers::new();
        let mut state = self.lock();
        let counters = self.common.counters();
        match event {
            Event::Connected { result: Ok(()), .. } if !state.aborted => state.phase = Phase::Open,
            Event::Connected { result, .. } => state.fail(result.err().unwrap_or(Errno::CANCELED)),
            Event::Sent { result, more, back, .. } => {
                not_taken(back);
                state.sending = false;
                state.notifications += u32::from(more);
                self.sent(&mut state, result, more);
            }
            Event::Notified { bytes, usage, back, .. } => {
                not_taken(back);
                state.notifications -= 1;
                if usage != Usage::Referenced {
                    counters.kernel_copied.add(bytes);
                }
                state.copies |= usage == Usage::Copied && self.shared().config.zero_copy == ZeroCopy::Auto;
            }
            Event::Received { data, .. } => {
                counters.kernel_copied.add(data.len());
                let mut chain = Chain::new();
                // One piece of a page, which an empty chain takes.
                let taken = chain.append(data);
                debug_assert!(taken.is_ok());
                if !state.closed {
                    state.receive.push(chain.into());
                }
            }
            Event::Ended { end, .. } => {
                state.receiving = None;
                state.cancelled = false;
                match end {
                    End::Stream => (state.ended, state.done) = (true, !state.shut),
                    End::NoPage => state.starves = true,
                    End::Again | End::Cancelled => {}
                    End::Failed(errno) => state.fail(errno),
                }
            }
            Event::Readable { .. } => {
                state.receiving = None;
                state.cancelled = false;
                // (It may have been unbound since it was asked.)
                state.readable = matches!(state.goes, Goes::Device(..));
            }
            Event::Writable { .. } => state.sending = false,
            Event::HungUp { more, .. } => {
                if !more {
                    (state.watching, state.watched) = (None, true);
                }
                if !state.closed
                    && let Ok(Err(errno)) = sockopt::socket_error(&*self.fd)
                {
                    state.fail(errno);
                }
            }
            Event::Accepted { .. } => {}
        }
        self.show(&state);
        self.waiters.tell();
    }

    fn abort(&self) {
        let _held = HoldWakers::new();
        let mut state = self.lock();
        state.fail(Errno::CONNABORTED);
        self.give_up(&mut state);
        self.show(&state);
        self.waiters.tell();
    }
}
