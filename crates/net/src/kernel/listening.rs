//! A listener: connections that the ring has accepted, and nobody has taken yet.

use super::shared::Shared;
use super::submitter::{Attended, For, Submitter, Submitters, Turn, Wanting};
use super::wait::Waiters;
use crate::bell::Bell;
use crate::carrier::Common;
use onecopy_inet::tcp::{Readiness, State};
use onecopy_socket::registry::Row;
use onecopy_sync::{Mutex, MutexGuard};
use onecopy_uring::{Event, Key, Ring};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// Connections that are accepted before anybody asks, at most; the others wait in the kernel's backlog.
const AHEAD: u32 = 16;

/// Of so many that may wait: how many are accepted ahead, and how many the kernel keeps, which bounds those that are half open, too. (It keeps one
/// more than it is told, tcp_v4_conn_request(). One at least for either: nobody would hear of connections, or kernels would begin none. So a backlog
/// of 0 or 1 is of 2.)
pub(super) fn split(backlog: u32) -> (usize, u32) {
    let ahead = (backlog / 2).clamp(1, AHEAD);
    (ahead as usize, backlog.saturating_sub(ahead).max(1))
}

pub(super) struct Listening {
    token: u64,
    submitter: Arc<Submitter>,
    /// Whose its connections are, in turn.
    pub submitters: Arc<Submitters>,
    pub fd: Arc<OwnedFd>,
    pub common: Common,
    pub row: Arc<Row>,
    state: Mutex<Waiting>,
    /// Connections that are accepted before anybody asks.
    ahead: usize,
    wanting: Wanting,
    waiters: Waiters,
    own: Weak<Listening>,
}

pub(super) struct Waiting {
    accepted: VecDeque<OwnedFd>,
    accepting: Option<Key>,
    cancelled: bool,
    /// Why none was accepted, for the next call; the ring is not asked again before.
    error: Option<Errno>,
    shut: bool,
    closed: bool,
    bell: Option<Arc<Bell>>,
}

impl Listening {
    pub fn new(
        submitters: &Arc<Submitters>,
        fd: OwnedFd,
        (common, row): (Common, Arc<Row>),
        ahead: usize,
    ) -> Arc<Listening> {
        let submitter = submitters.next(For::Other);
        Arc::new_cyclic(|own| Listening {
            token: submitter.shared.name(),
            submitter: Arc::clone(submitter),
            submitters: Arc::clone(submitters),
            fd: Arc::new(fd),
            common,
            row,
            state: Mutex::new(Waiting {
                accepted: VecDeque::new(),
                accepting: None,
                cancelled: false,
                error: None,
                shut: false,
                closed: false,
                bell: None,
            }),
            ahead,
            wanting: Wanting::default(),
            waiters: Waiters::default(),
            own: own.clone(),
        })
    }

    pub fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock()
    }

    pub fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    pub fn shared(&self) -> &Shared {
        &self.submitter.shared
    }

    /// Has the thread that makes requests look at it. Without its lock.
    pub fn poke(&self) {
        if let Some(own) = self.own.upgrade() {
            self.submitter.attend(own);
        }
    }

    pub fn bell(&self) -> rustix::io::Result<Arc<Bell>> {
        let mut state = self.lock();
        if let Some(bell) = &state.bell {
            return Ok(Arc::clone(bell));
        }
        let bell = Arc::new(Bell::new()?);
        bell.show(state.readiness());
        Ok(Arc::clone(state.bell.insert(bell)))
    }

    pub fn show(&self, state: &Waiting) {
        if let Some(bell) = &state.bell {
            bell.show(state.readiness());
        }
        self.row.moves(State::Listen as u8, state.accepted.len() as u64, 0);
    }

    /// Accepts no more; with `closed`, nobody asks any more either.
    pub fn end(&self, closed: bool) {
        self.end_here(closed);
        self.poke();
    }

    /// The same, without a word to the thread that makes requests.
    fn end_here(&self, closed: bool) {
        let mut state = self.lock();
        state.shut = true;
        state.closed |= closed;
        let left = std::mem::take(&mut state.accepted);
        // Those that wait in the kernel are reset, and so is what was accepted ahead of its time.
        let _ = rustix::net::shutdown(&*self.fd, rustix::net::Shutdown::Both);
        for fd in left {
            let _ = rustix::net::sockopt::set_socket_linger(&fd, Some(std::time::Duration::ZERO));
        }
        self.show(&state);
        self.waiters.tell();
    }
}

impl Waiting {
    /// The next connection, or why there is none; none: whoever waits does so.
    pub fn next(&mut self) -> Option<Result<OwnedFd, Errno>> {
        if let Some(fd) = self.accepted.pop_front() {
            return Some(Ok(fd));
        }
        if self.shut {
            return Some(Err(Errno::INVAL));
        }
        self.error.take().map(Err)
    }

    /// Whether the ring is to be asked, after something was taken.
    pub fn wants_more(&self) -> bool {
        self.accepting.is_none()
    }

    fn readiness(&self) -> Readiness {
        let mut ready = Readiness::empty();
        ready.set(Readiness::READ, !self.accepted.is_empty() || self.shut || self.error.is_some());
        ready.set(Readiness::HUNG_UP, self.shut);
        ready
    }
}

impl Attended for Listening {
    fn token(&self) -> u64 {
        self.token
    }

    fn wants(&self) -> bool {
        self.wanting.ask()
    }

    fn turn(&self, ring: &mut Ring) -> Turn {
        self.wanting.got();
        let mut state = self.lock();
        match state.accepting {
            Some(key) if state.shut && !state.cancelled => {
                state.cancelled = true;
                ring.cancel(key);
            }
            None if !state.shut && state.error.is_none() && state.accepted.len() < self.ahead => {
                state.accepting = Some(ring.accept(&self.fd, self.token));
            }
            _ => {}
        }
        if state.closed && state.accepting.is_none() { Turn::Over } else { Turn::Waits }
    }

    fn event(&self, event: Event) {
        let Event::Accepted { result, .. } = event else { return };
        let mut state = self.lock();
        state.accepting = None;
        match result {
            // It is closed at once, with a reset.
            Ok(fd) if state.shut => {
                let _ = rustix::net::sockopt::set_socket_linger(&fd, Some(std::time::Duration::ZERO));
            }
            Ok(fd) => state.accepted.push_back(fd),
            // The connection was over before it was taken, or nobody was there (accept(2)).
            Err(Errno::CONNABORTED | Errno::INTR | Errno::AGAIN | Errno::CANCELED | Errno::INVAL) => {}
            Err(errno) => state.error = Some(errno),
        }
        self.show(&state);
        self.waiters.tell();
    }

    fn abort(&self) {
        // (That thread has ended, and a poke leads here.)
        self.end_here(true);
    }
}
