//! A connection: what programs have put there to be sent, what has arrived, and what the ring is asked for.
//!
//! | module | what |
//! |---|---|
//! | `state` | what is known of it, under its lock |
//! | `attended` | what the thread that makes requests does for it |
//! | `sending`, `receiving` | what it is asked for |
//! | `ending` | how it is shut down and closed |

mod attended;
mod ending;
mod receiving;
mod sending;
mod state;

use super::address::addresses;
use super::config::ZeroCopy;
use super::shared::Shared;
use super::submitter::{Submitter, Wanting};
use super::wait::Waiters;
use crate::bell::Bell;
use crate::carrier::Common;
use onecopy_chain::{Chain, Fragment};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use onecopy_socket::registry::{Protocol, Row};
use onecopy_sync::{Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::net::RecvFlags;
pub(super) use state::{Goes, Inner, Phase};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// How long a call waits for pages that others have, at a time: they come home without a word.
pub(super) const NO_PAGE: Duration = Duration::from_millis(5);

pub(super) struct Connection {
    token: u64,
    submitter: Arc<Submitter>,
    pub fd: Arc<OwnedFd>,
    pub common: Common,
    pub row: Arc<Row>,
    /// Whom it is made to connect to.
    to: Option<SocketAddr>,
    state: Mutex<Inner>,
    wanting: Wanting,
    waiters: Waiters,
    /// Itself, to be handed to the engine.
    own: std::sync::Weak<Connection>,
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
            to: match phase {
                Phase::Connect(address) => Some(address),
                _ => None,
            },
            state: Mutex::new(Inner::new(phase, shared.config.zero_copy == ZeroCopy::Never)),
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

    /// Receives what no ring asks for: what has come behind a shutdown of this side's, or before a failure that a send heard of first.
    pub fn fetch_left(&self, state: &mut Inner) {
        let failed = state.phase == Phase::Failed && state.may_be_there();
        let kernels =
            (failed || (state.shut && state.phase == Phase::Open)) && matches!(state.goes, Goes::Host);
        // (A receive that is under way brings it.)
        if !kernels || (state.receiving.is_some() && (state.takes_pages || !failed)) {
            return;
        }
        if rustix::io::ioctl_fionread(&*self.fd).is_ok_and(|n| n > 0) {
            // Where it fails the end stays, or the failure.
            let _ = self.fetch(state);
        }
        if failed {
            (state.readable, state.emptied) = (false, true);
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

    /// Shows whoever looks from outside who is at either end.
    pub fn named(&self) {
        let bound = addresses(&*self.fd);
        // (The kernel names no peer before it has an answer; of one that begins with the first send it has none for long.)
        self.row.names(Protocol::Tcp, bound.local, bound.remote.or(self.to));
    }

    /// Shows whoever looks from outside how it is. Under its lock.
    pub fn show(&self, state: &Inner) {
        if let Some(bell) = &state.bell {
            bell.show(state.readiness());
        }
        self.row.moves(state.tcp_state() as u8, state.receive.len(), state.send.len());
    }
}
