//! What has come for one connection to memory that a NIC's queue receives into.
//!
//! The ring's thread puts fragments here; who receives takes them, and has the thread ask for more. Bytes that the ring cannot tell of (those of a packet that came by
//! another queue, where the kernel has no page to copy them to) are received as any.

use super::super::landing::NotRead;
use super::super::placed::Calls;
use super::{Hub, Rx};
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release};
use onecopy_sync::{Mutex, MutexGuard, Word};
use onecopy_sys::devmem::{Control, Frag, Piece, Received};
use onecopy_uring::Key;
use onecopy_uring::zcrx::End;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{self, Errno};
use rustix::net::{self, RecvFlags};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that may wait for a connection's program, and fragments: then the kernel keeps what comes, and the peer's window closes.
const MOST: u32 = 1 << 20;
const MOST_FRAGS: usize = 1024;
/// How long the thread takes to answer, until it is looked whether it is there.
const ANSWER: Duration = Duration::from_millis(100);

/// A connection, as far as a binding's ring has to do with it.
pub(in super::super) struct Flow {
    token: u64,
    fd: Arc<OwnedFd>,
    hub: Arc<Hub>,
    state: Mutex<State>,
    /// Asks that the thread has looked at.
    answered: Word,
    /// Called when something has come, without a lock.
    news: Box<dyn Fn() + Send + Sync>,
}

/// What is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// To ask the thread for a receive.
    Ask,
    /// It was asked.
    Asked,
    /// The receive is under way; whether it is to end before its time.
    Receives(Key, bool),
    /// To receive as from any socket, for that reason of the ring's; whether that has brought something since.
    Host(Errno, bool),
    /// The same for good: the ring is gone.
    Gone,
}

struct State {
    next: Next,
    /// What waits: where, and how many bytes.
    waits: VecDeque<(u64, u32)>,
    bytes: usize,
    /// By token less one: fragments that somebody has.
    given: Vec<Option<(u64, u32)>>,
    free: Vec<u32>,
    /// The peer sends no more, or why nothing comes any more.
    over: Option<Result<(), Errno>>,
    asks: u32,
    closed: bool,
}

impl Flow {
    /// Of a connection that receives by `hub`'s queue. `news` is called when something has come for it.
    pub fn new(hub: &Arc<Hub>, fd: &Arc<OwnedFd>, news: impl Fn() + Send + Sync + 'static) -> Arc<Flow> {
        let state = State {
            next: Next::Ask,
            waits: VecDeque::new(),
            bytes: 0,
            given: Vec::new(),
            free: Vec::new(),
            over: None,
            asks: 0,
            closed: false,
        };
        Arc::new(Flow {
            token: hub.names.fetch_add(1, Relaxed),
            fd: Arc::clone(fd),
            hub: Arc::clone(hub),
            state: Mutex::new(state),
            answered: Word::new(0),
            news: Box::new(news),
        })
    }

    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// The thread's: asks for what is wanted; `all` that there is, before the ring goes.
    pub(super) fn turn(&self, ring: &mut impl Rx, all: bool) {
        let mut state = self.state.lock();
        match state.next {
            _ if state.over.is_some() => {}
            Next::Receives(..) if state.closed => {
                drop(state);
                self.cancel(ring);
            }
            Next::Asked | Next::Ask if !state.closed && (all || state.next == Next::Asked) => {
                let room = MOST.saturating_sub(u32::try_from(state.bytes).unwrap_or(MOST)).max(1);
                let key = ring.receive(&self.fd, self.token, if all { 0 } else { room });
                state.next = Next::Receives(key, false);
            }
            _ => {}
        }
    }

    /// The thread's: has the receive end before its time.
    pub(super) fn cancel(&self, ring: &mut impl Rx) {
        if let Next::Receives(key, cancelled @ false) = &mut self.state.lock().next {
            *cancelled = true;
            ring.cancel(*key);
        }
    }

    /// The thread's: it has looked at what was asked for.
    pub(super) fn is_answered(&self) {
        let asks = self.state.lock().asks;
        // Release pairs with the Acquire in `wait_answer`.
        self.answered.store(asks, Release);
        self.answered.wake(u32::MAX >> 1);
    }

    /// The thread's: bytes have come. Returns whether somebody wants them.
    pub(super) fn has_come(&self, at: u64, len: u32, ring: &mut impl Rx) -> bool {
        let full = {
            let mut state = self.state.lock();
            if state.closed {
                return false;
            }
            state.waits.push_back((at, len));
            state.bytes += len as usize;
            state.waits.len() >= MOST_FRAGS
        };
        if full {
            self.cancel(ring);
        }
        true
    }

    /// The thread's: the receive is over. Returns whether somebody is to hear so.
    pub(super) fn has_ended(&self, end: End) -> bool {
        let mut state = self.state.lock();
        state.next = match end {
            End::NoPage => Next::Host(Errno::NOMEM, false),
            End::Elsewhere => Next::Host(Errno::FAULT, false),
            End::Stream | End::Limit | End::Again | End::Cancelled | End::Failed(_) | End::Wrong(_) => {
                Next::Ask
            }
        };
        match end {
            End::Stream => state.over = Some(Ok(())),
            End::Failed(errno) => state.over = Some(Err(errno)),
            End::Wrong(_) => state.over = Some(Err(Errno::PROTO)),
            _ => {}
        }
        !state.closed
    }

    /// The thread's: whoever waits looks again.
    pub(super) fn tell(&self) {
        (self.news)();
    }

    /// The thread is gone, or never was.
    pub(super) fn is_gone(&self) {
        let asks = {
            let mut state = self.state.lock();
            if let Next::Receives(..) = state.next {
                // Without its last word nobody knows what it has taken.
                state.over.get_or_insert(Err(Errno::CONNABORTED));
            }
            state.next = Next::Gone;
            state.asks
        };
        self.answered.store(asks, Release);
        self.answered.wake(u32::MAX >> 1);
    }

    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.state.lock().next, Next::Receives(..))
    }

    /// Whether the thread need not know it any more.
    pub(super) fn is_forgotten(&self) -> bool {
        let state = self.state.lock();
        state.closed && !matches!(state.next, Next::Receives(..))
    }

    /// Has the thread ask for more, if it is to be asked.
    fn ask(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.next == Next::Ask && state.over.is_none() && !state.closed {
            state.next = Next::Asked;
            state.asks = state.asks.wrapping_add(1);
            drop(state);
            self.hub.attend(self);
        }
    }

    /// Waits until the thread has looked at all that was asked for.
    fn wait_answer(&self, asks: u32) {
        loop {
            // Acquire pairs with the Releases in `is_answered` and `is_gone`.
            let answered = self.answered.load(Acquire);
            if answered.wrapping_sub(asks).cast_signed() >= 0 {
                return;
            }
            self.answered.wait(answered, Some(ANSWER));
        }
    }

    /// Receives as from any socket, for that reason.
    fn host(&self, buffer: &mut [u8], why: Option<Errno>) -> Result<Received, NotRead> {
        let came = net::recv(&*self.fd, &mut *buffer, RecvFlags::DONTWAIT).map(|(bytes, _)| bytes);
        self.has_come_as_any(came, buffer.len(), why)
    }

    /// What such a receive into so much room came to.
    pub(super) fn has_come_as_any(
        &self,
        came: io::Result<usize>,
        room: usize,
        why: Option<Errno>,
    ) -> Result<Received, NotRead> {
        let mut state = self.state.lock();
        let brought = match &mut state.next {
            Next::Host(_, brought) => Some(brought),
            _ => None,
        };
        match (came, brought) {
            (Ok(0), _) => {
                state.over = Some(Ok(()));
                Ok(Received::default())
            }
            (Ok(bytes), brought) => {
                if let Some(brought) = brought {
                    *brought = true;
                    if bytes < room {
                        // That was all: the ring waits for more.
                        state.next = Next::Ask;
                    }
                }
                Ok(Received { bytes, pieces: Vec::new(), cut: false })
            }
            // What the NIC has put into the memory, which the ring alone can tell of.
            (Err(Errno::FAULT), None) => Err(NotRead::Lost),
            (Err(Errno::FAULT), Some(false)) => {
                state.next = Next::Ask;
                match why {
                    Some(Errno::NOMEM) => Err(NotRead::Starved),
                    _ => Err(NotRead::Untold(Errno::FAULT)),
                }
            }
            (Err(Errno::FAULT | Errno::AGAIN), Some(_)) => {
                state.next = Next::Ask;
                Err(NotRead::Coming)
            }
            (Err(errno), _) => Err(NotRead::Errno(errno)),
        }
    }
}

/// Whether a socket has something, or is over.
fn is_there(fd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN | PollFlags::RDHUP)], Some(&now)).is_ok_and(|ready| ready > 0)
}

impl State {
    /// Takes about `n` bytes in up to `most` pieces, and gives each a token. None where nothing waits.
    fn take(&mut self, n: usize, most: usize) -> Option<Received> {
        let (mut bytes, mut pieces) = (0, Vec::new());
        while bytes < n
            && pieces.len() < most
            && let Some((offset, len)) = self.waits.pop_front()
        {
            let slot = self.free.pop().unwrap_or(self.given.len() as u32);
            match self.given.get_mut(slot as usize) {
                Some(place) => *place = Some((offset, len)),
                None => self.given.push(Some((offset, len))),
            }
            bytes += len as usize;
            pieces.push(Piece::Device(Frag { offset, len, token: slot + 1, dmabuf: 0, flags: 0 }));
        }
        self.bytes -= bytes;
        (bytes > 0).then_some(Received { bytes, pieces, cut: false })
    }

    /// Takes a fragment back.
    fn give_back(&mut self, token: u32) -> Option<(u64, u32)> {
        let slot = token.checked_sub(1)?;
        let frag = self.given.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(frag)
    }
}

impl Calls for Arc<Flow> {
    fn recv(&self, buffer: &mut [u8], most: usize, _: &mut Control) -> Result<Received, NotRead> {
        let mut asked = false;
        loop {
            let mut state = self.state.lock();
            if let Some(received) = state.take(buffer.len(), most) {
                if state.bytes < MOST as usize / 2 && state.waits.len() < MOST_FRAGS / 2 {
                    self.ask(state);
                }
                return Ok(received);
            }
            match &mut state.over {
                None => {}
                Some(Ok(())) => return Ok(Received::default()),
                // Told once; behind it is the end.
                Some(over) => {
                    let errno = std::mem::replace(over, Ok(())).err().unwrap_or(Errno::IO);
                    return Err(NotRead::Errno(errno));
                }
            }
            match state.next {
                Next::Host(why, _) => {
                    drop(state);
                    match self.host(buffer, Some(why)) {
                        Err(NotRead::Coming) if !asked => {}
                        received => return received,
                    }
                }
                Next::Gone => {
                    drop(state);
                    return self.host(buffer, None);
                }
                Next::Receives(..) if self.answered.load(Relaxed) == state.asks => {
                    // What poll(2) has told of is found by a call that does not wait.
                    if asked || !is_there(&self.fd) {
                        return Err(NotRead::Coming);
                    }
                    asked = true;
                    state.asks = state.asks.wrapping_add(1);
                    let asks = state.asks;
                    drop(state);
                    self.hub.attend(self);
                    self.wait_answer(asks);
                }
                Next::Ask if asked => return Err(NotRead::Coming),
                _ => {
                    // So that what is there is found by the call that asks.
                    asked = true;
                    self.ask(state);
                    let asks = self.state.lock().asks;
                    self.wait_answer(asks);
                }
            }
        }
    }

    fn give_back(&self, ranges: &[(u32, u32)]) -> io::Result<u32> {
        let frags: Vec<(u64, u32)> = {
            let mut state = self.state.lock();
            let tokens = ranges.iter().flat_map(|(first, count)| *first..first.saturating_add(*count));
            tokens.filter_map(|token| state.give_back(token)).collect()
        };
        let known = frags.len() as u32;
        self.hub.give_back(frags);
        Ok(known)
    }

    fn waiting(&self) -> usize {
        self.state.lock().bytes
    }

    fn is_readable(&self) -> bool {
        let state = self.state.lock();
        state.bytes > 0 || state.over.is_some() || matches!(state.next, Next::Host(..))
    }

    fn by_ring(&self) -> bool {
        true
    }

    fn close(&self) {
        let waits = {
            let mut state = self.state.lock();
            state.closed = true;
            state.bytes = 0;
            std::mem::take(&mut state.waits)
        };
        self.hub.give_back(waits);
        self.hub.attend(self);
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flow({} of {:?})", self.token, self.hub)
    }
}
