//! A stack of the program's own: what it is made of, and who drives it.
//!
//! Everything lies under one lock ([`shard`]): sockets, protocols, the link. Whoever calls takes the lock, does what he came for, and sends
//! what came of it. Somebody has to be there for what arrives and what is due ([`wait`]):
//!
//! - A thread that waits for its own socket drives the stack itself while it does: what arrives for it needs no other thread. Others that
//!   wait meanwhile sleep until it tells them.
//! - While no such thread is there, the stack's own does ([`runner`]), unless the program said that it drives the stack itself
//!   ([`Driver::Caller`]).

mod builder;
mod runner;
mod shard;
mod wait;

pub use builder::{BuildError, Builder, Driver};
pub(crate) use shard::{Shard, Waiter};
pub(crate) use wait::{Gone, Learnt, Patience};

use crate::tcp::Endpoint;
use onecopy_socket::Wait;
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed};
use onecopy_sys::eventfd::EventFd;
use runner::Sleep;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An address in a network, with a stack of protocols of the program's own behind it.
///
/// Clones are handles of the same stack. It lives as long as a handle or a socket of it does; whoever drops the last one waits until what was
/// sent has been acknowledged, at most as long as [`Builder::linger`] says.
#[derive(Clone)]
pub struct Stack {
    owner: Arc<Owner>,
}

/// Ends the stack with its last handle.
struct Owner {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
    linger: Duration,
}

/// What handles, sockets and the stack's own thread share.
pub(crate) struct Inner {
    shard: Mutex<Shard>,
    begun: Instant,
    /// The link's descriptor, to sleep on without the lock.
    link: OwnedFd,
    /// Wakes the thread that drives while it waits for its socket.
    wake: EventFd,
    /// What the stack's own thread sleeps on; none where the program drives.
    sleep: Option<Sleep>,
    wait: Wait,
    stopped: AtomicU32,
}

impl Stack {
    /// How a stack is to be.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.owner.inner
    }

    pub(crate) fn tcp_listen(&self, address: SocketAddr, backlog: u32) -> crate::Result<Arc<dyn Endpoint>> {
        crate::tcp::socket::listen(self, address, backlog)
    }

    pub(crate) fn tcp_connect(
        &self,
        local: Option<SocketAddr>,
        address: SocketAddr,
    ) -> crate::Result<Arc<dyn Endpoint>> {
        crate::tcp::socket::connect(self, local, address)
    }

    /// Its addresses.
    pub fn addresses(&self) -> Vec<crate::Cidr> {
        self.owner.inner.shard.lock().inet().interface().addresses().to_vec()
    }

    /// Bytes of the longest packet, from IP's header on.
    pub fn mtu(&self) -> u32 {
        self.owner.inner.shard.lock().inet().interface().mtu()
    }

    /// How its sockets wait unless they say otherwise.
    pub fn wait_mode(&self) -> Wait {
        self.owner.inner.wait
    }

    /// Whether the link is still there. Without it nothing arrives any more, and connections time out.
    pub fn is_up(&self) -> bool {
        !self.owner.inner.shard.lock().is_down()
    }

    /// Calls `look` with the protocols: their counters, neighbours, routes, settings. Everything waits meanwhile.
    pub fn with<R>(&self, look: impl FnOnce(&mut onecopy_inet::stack::Stack) -> R) -> R {
        let mut shard = self.owner.inner.shard.lock();
        let result = look(shard.inet_mut());
        let now = self.owner.inner.now();
        self.owner.inner.finish(&mut shard, now);
        result
    }

    /// What the link has counted, each with its name ([`Port::counters`](crate::Port::counters)).
    pub fn link_counters(&self) -> Vec<(&'static str, u64)> {
        self.owner.inner.shard.lock().link_counters()
    }

    /// Drives the stack from this thread: receives what is there, does what is due, and if there was neither, waits up to `limit` for
    /// some. Returns whether there was something. With [`Driver::Thread`] it is not needed; with [`Driver::Caller`] it is what keeps
    /// connections alive between calls that wait.
    ///
    /// # Errors
    ///
    /// EINTR.
    pub fn drive(&self, limit: Duration) -> crate::Result<bool> {
        let driven = self.owner.inner.drive(limit);
        driven.map_err(|_| crate::Error::new(crate::Op::Wait, rustix::io::Errno::INTR))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.inner.linger(self.linger);
        self.inner.stopped.store(1, Relaxed);
        if let Some(sleep) = &self.inner.sleep {
            sleep.ring();
        }
        if let Some(thread) = self.thread.take() {
            // A panic of it has been told already.
            let _ = thread.join();
        }
    }
}

impl Inner {
    /// Nanoseconds of the stack's clock.
    #[inline]
    pub fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Takes the lock and calls `act`, which finds out at once; what comes of it is sent.
    pub fn with<R>(&self, act: impl FnOnce(&mut Shard, u64) -> R) -> R {
        let mut shard = self.shard.lock();
        let now = self.now();
        let result = act(&mut shard, now);
        self.finish(&mut shard, now);
        result
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed) != 0
    }
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shard = self.owner.inner.shard.lock();
        f.debug_struct("Stack")
            .field("addresses", &shard.inet().interface().addresses())
            .field("sockets", &shard.inet().len())
            .finish_non_exhaustive()
    }
}
