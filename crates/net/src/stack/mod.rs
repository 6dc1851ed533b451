//! A stack of the program's own: what it is made of, and who drives it.
//!
//! Everything lies under one lock ([`shard`]): sockets, protocols, the link. Whoever calls takes the lock, does what he came for, and sends
//! what came of it. Somebody has to be there for what arrives and what is due ([`wait`]):
//!
//! - A thread that waits for its own socket drives the stack itself while it does: what arrives for it needs no other thread. Others that
//!   wait meanwhile sleep until it tells them.
//! - While no such thread is there, the stack's own does ([`runner`]), unless the program said that it drives the stack itself
//!   ([`Driver::Caller`]).
//!
//! A stack may have several *shards* ([`Builder::shards`]): each is all of that once more, with a queue of the device's. They have the address in
//! common, and each connection is one shard's: those of different ones meet nowhere on their way. What comes by another one's queue is handed over
//! ([`inbox`]).

mod builder;
mod descriptor;
mod inbox;
mod lock;
mod pages;
mod runner;
mod shard;
mod wait;

pub use builder::{BuildError, Builder, Driver};
pub(crate) use shard::{Shard, Waiter};
pub(crate) use wait::{Gone, Learnt, Patience};

use crate::kernel::{self, Kernel};
use crate::tcp::{Connection, Listening};
use descriptor::Descriptor;
use inbox::Mesh;
use lock::Locked;
use onecopy_chain::notify::zerocopy::{Account, Allowance, Counts};
use onecopy_socket::{Carrier, Error, Op, Wait};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed};
use onecopy_sys::eventfd::EventFd;
use runner::Sleep;
use rustix::io::Errno;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An address in a network, with a stack of protocols of the program's own behind it; or the kernel's, if so it was built
/// ([`Builder::transport`]).
///
/// Clones are handles of the same stack. It lives as long as a handle or a socket of it does; whoever drops the last one waits until what was
/// sent has been acknowledged, at most as long as [`Builder::linger`] says.
#[derive(Clone)]
pub struct Stack {
    engine: Engine,
}

/// Who carries the bytes of its sockets.
#[derive(Clone)]
enum Engine {
    Own(Arc<Owner>),
    Kernel(Arc<Kernel>),
}

/// Ends the stack with its last handle.
pub(crate) struct Owner {
    /// One at least.
    shards: Vec<Arc<Inner>>,
    threads: Vec<JoinHandle<()>>,
    linger: Duration,
    /// Which shard is next.
    turn: AtomicU32,
}

/// What handles, sockets and the stack's own thread share; of a stack with several shards, each of them.
pub(crate) struct Inner {
    shard: Mutex<Shard>,
    begun: Instant,
    /// The link's descriptor, to sleep on without the lock.
    link: OwnedFd,
    /// Wakes the thread that drives while it waits for its socket.
    wake: EventFd,
    /// Other shards, where there are some.
    mesh: Option<Mesh>,
    /// Sends without a copy of all its sockets.
    account: Account,
    /// What the stack's own thread sleeps on; none where the program drives.
    sleep: Option<Sleep>,
    /// What a program that drives polls.
    descriptor: OnceLock<Descriptor>,
    wait: Wait,
    stopped: AtomicU32,
}

impl Stack {
    /// How a stack is to be.
    pub fn builder() -> Builder {
        Builder::new()
    }

    fn of_kernel(kernel: Kernel) -> Stack {
        Stack { engine: Engine::Kernel(Arc::new(kernel)) }
    }

    /// The stack of the program's own.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP where the kernel's is used.
    pub(crate) fn own(&self) -> crate::Result<&Owner> {
        match &self.engine {
            Engine::Own(owner) => Ok(owner),
            Engine::Kernel(_) => Err(Error::new(Op::Socket, Errno::OPNOTSUPP).because(
                "the kernel carries its bytes, and drives itself; build a stack with a link for it",
            )),
        }
    }

    /// The only shard of a stack of the program's own, for what one of several cannot do.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP.
    pub(crate) fn only(&self, op: Op) -> crate::Result<&Arc<Inner>> {
        match self.own()?.shards() {
            [only] => Ok(only),
            _ => Err(Error::new(op, Errno::OPNOTSUPP)
                .because("a stack of several shards cannot; build one without Builder::shards for it")),
        }
    }

    /// The kernel as a transport, where it carries the bytes.
    pub(crate) fn kernel(&self) -> Option<&Kernel> {
        match &self.engine {
            Engine::Own(_) => None,
            Engine::Kernel(kernel) => Some(kernel),
        }
    }

    /// Memory of devices' that its connections receive into, and send from.
    pub(crate) fn kernel_devices(&self) -> Option<&Arc<kernel::Devices>> {
        Some(&self.kernel()?.shared().devices)
    }

    pub(crate) fn tcp_listen(&self, address: SocketAddr, backlog: u32) -> crate::Result<Arc<dyn Listening>> {
        match &self.engine {
            Engine::Own(owner) => crate::tcp::socket::listen(owner, address, backlog),
            Engine::Kernel(kernel) => kernel::listen(kernel, address, backlog),
        }
    }

    pub(crate) fn tcp_connect(
        &self,
        local: Option<SocketAddr>,
        address: SocketAddr,
    ) -> crate::Result<Arc<dyn Connection>> {
        match &self.engine {
            Engine::Own(owner) => crate::tcp::socket::connect(owner, local, address),
            Engine::Kernel(kernel) => kernel::connect(kernel, local, address),
        }
    }

    /// A socket without an address.
    pub(crate) fn udp_open(&self) -> crate::Result<Arc<dyn crate::udp::Endpoint>> {
        match &self.engine {
            Engine::Own(owner) => crate::udp::open(owner),
            Engine::Kernel(kernel) => Ok(kernel::udp_open(kernel)),
        }
    }

    /// One with an address, which others who say so may have, too, where it is to `reuse` it.
    pub(crate) fn udp_bind(
        &self,
        address: SocketAddr,
        reuse: bool,
    ) -> crate::Result<Arc<dyn crate::udp::Endpoint>> {
        match &self.engine {
            Engine::Own(owner) => crate::udp::bind(owner, address, reuse),
            Engine::Kernel(kernel) => kernel::udp_bind(kernel, address, reuse),
        }
    }

    /// Who carries the bytes of its sockets: [`Carrier::Stack`], or [`Carrier::Kernel`] if so it was built.
    pub fn carrier(&self) -> Carrier {
        match self.engine {
            Engine::Own(_) => Carrier::Stack,
            Engine::Kernel(_) => Carrier::Kernel,
        }
    }

    /// Its addresses; none where the kernel carries its bytes, which has its own.
    pub fn addresses(&self) -> Vec<crate::Cidr> {
        match &self.engine {
            Engine::Own(owner) => owner.first().lock().inet().interface().addresses().to_vec(),
            Engine::Kernel(_) => Vec::new(),
        }
    }

    /// Bytes of the longest packet, from IP's header on. (Where the kernel carries its bytes, of the longest that there may be: it depends on
    /// the way.)
    pub fn mtu(&self) -> u32 {
        match &self.engine {
            Engine::Own(owner) => owner.first().lock().inet().interface().mtu(),
            Engine::Kernel(_) => u32::from(u16::MAX),
        }
    }

    /// How its sockets wait unless they say otherwise.
    pub fn wait_mode(&self) -> Wait {
        match &self.engine {
            Engine::Own(owner) => owner.first().wait_mode(),
            Engine::Kernel(kernel) => kernel.wait_mode(),
        }
    }

    /// Whether the link is still there, or the ring. Without it nothing arrives any more, and connections time out.
    pub fn is_up(&self) -> bool {
        match &self.engine {
            Engine::Own(owner) => !owner.shards.iter().any(|inner| inner.lock().is_down()),
            Engine::Kernel(kernel) => kernel.is_up(),
        }
    }

    /// How many shards it has ([`Builder::shards`]); none where the kernel carries its bytes.
    pub fn shards(&self) -> u32 {
        match &self.engine {
            Engine::Own(owner) => owner.shards.len() as u32,
            Engine::Kernel(_) => 0,
        }
    }

    /// Calls `look` with the protocols: their counters, neighbours, routes, settings. Everything waits meanwhile. Of a stack with several shards
    /// they are the first one's: [`Stack::with_shard`] has the others.
    ///
    /// # Panics
    ///
    /// Where the kernel carries its bytes ([`Stack::carrier`]): the protocols are the kernel's.
    pub fn with<R>(&self, look: impl FnOnce(&mut onecopy_inet::stack::Stack) -> R) -> R {
        self.with_shard(0, look)
    }

    /// As [`Stack::with`], with the protocols of one shard, which waits meanwhile. Each has counters of its own, and settings: a change of them is
    /// that shard's alone.
    ///
    /// # Panics
    ///
    /// Where there is no shard of that number ([`Stack::shards`]).
    pub fn with_shard<R>(&self, shard: u32, look: impl FnOnce(&mut onecopy_inet::stack::Stack) -> R) -> R {
        let owner = self.own().unwrap_or_else(|error| panic!("{error}"));
        let inner = owner.shards.get(shard as usize);
        let inner = inner.unwrap_or_else(|| panic!("no shard {shard}: there are {}", owner.shards.len()));
        let mut shard = inner.lock();
        let result = look(shard.inet_mut());
        let now = inner.now();
        inner.finish(&mut shard, now);
        result
    }

    /// What the link has counted, each with its name ([`Port::counters`](crate::Port::counters)), or the ring. Of a stack with several shards, their sums,
    /// and what came by the queue of another one than whose it was (`handed_over`, and `handed_over_dropped`).
    pub fn link_counters(&self) -> Vec<(&'static str, u64)> {
        match &self.engine {
            Engine::Own(owner) => {
                let mut all = owner.first().lock().link_counters();
                for inner in &owner.shards[1..] {
                    // Each has the same, in the same order.
                    let more = inner.lock().link_counters();
                    all.iter_mut().zip(more).for_each(|(sum, (_, count))| sum.1 += count);
                }
                all
            }
            Engine::Kernel(kernel) => kernel.counters(),
        }
    }

    fn account(&self) -> &Account {
        match &self.engine {
            Engine::Own(owner) => &owner.first().account,
            Engine::Kernel(kernel) => kernel.account(),
        }
    }

    /// What happened to sends without a copy, of all its sockets: how many were lent, how many copied and why, how many refused and why.
    /// (Where the kernel carries its bytes, how many it copied after all [`Stack::link_counters`] says.)
    pub fn zerocopy_counts(&self) -> Counts {
        self.account().counts()
    }

    /// Pages of 4 KiB that such sends keep in place, as the kernel would charge them: two more for each than its bytes come to.
    pub fn pinned_pages(&self) -> u64 {
        self.account().collect();
        self.account().pinned_pages()
    }

    /// Changes what such sends may keep, and which of them are copied: from here on, [`Builder::zerocopy`] from the beginning.
    pub fn set_zerocopy_allowance(&self, allowance: Allowance) {
        self.account().set_allowance(allowance);
    }

    /// What such sends may keep.
    pub fn zerocopy_allowance(&self) -> Allowance {
        self.account().allowance()
    }

    /// Drives the stack from this thread: receives what is there, does what is due, and if there was neither, waits up to `limit` for
    /// some. Returns whether there was something. With [`Driver::Thread`] it is not needed; with [`Driver::Caller`] it is what keeps
    /// connections alive between calls that wait.
    ///
    /// # Errors
    ///
    /// EINTR; EOPNOTSUPP where the kernel carries its bytes, and of a stack with several shards: they need no driving.
    pub fn drive(&self, limit: Duration) -> crate::Result<bool> {
        let driven = self.only(Op::Wait)?.drive(limit);
        driven.map_err(|_| crate::Error::new(crate::Op::Wait, Errno::INTR))
    }

    /// A descriptor for the program's own poll loop, with [`Driver::Caller`]: readable (POLLIN) when there is something for
    /// [`Stack::drive`] to do, because packets have come, there is room on the link again, or something is due. Poll it, beside the sockets' own
    /// descriptors, and drive with a limit of zero when it is readable, until that returns false. It is made with the first call, and may be
    /// readable for nothing. While another thread waits for a socket, that one drives, and the descriptor says nothing.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP with [`Driver::Thread`] and where the kernel carries its bytes, EMFILE.
    pub fn poll_fd(&self) -> crate::Result<BorrowedFd<'_>> {
        self.own()?.first().descriptor()
    }

    /// How long until something is due, such as a retransmission: who drives has to do so then ([`Stack::poll_fd`] is readable by then). Zero:
    /// it is due. None: nothing is, unless packets come.
    pub fn next_deadline(&self) -> Option<Duration> {
        let left = |inner: &Arc<Inner>| {
            let due = inner.lock().inet().deadline()?;
            Some(Duration::from_nanos(due.saturating_sub(inner.now())))
        };
        self.own().ok()?.shards.iter().filter_map(left).min()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let began = Instant::now();
        for inner in &self.shards {
            inner.linger(self.linger.saturating_sub(began.elapsed()));
        }
        for inner in &self.shards {
            inner.stopped.store(1, Relaxed);
            if let Some(sleep) = &inner.sleep {
                sleep.ring();
            }
        }
        for thread in self.threads.drain(..) {
            // A panic of it has been told already.
            let _ = thread.join();
        }
    }
}

impl Owner {
    pub fn shards(&self) -> &[Arc<Inner>] {
        &self.shards
    }

    pub fn first(&self) -> &Arc<Inner> {
        &self.shards[0]
    }

    /// All shards: first the one that the next socket is of, where it may be any.
    pub fn in_turn(&self) -> impl Iterator<Item = &Arc<Inner>> + Clone {
        let (all, first) = (self.shards.len(), self.turn.fetch_add(1, Relaxed) as usize);
        self.shards.iter().cycle().skip(first % all).take(all)
    }

    /// What `attempt` comes to in the first of them that does not fail with `full`: none has all ports.
    pub fn try_in_turn<T>(
        &self,
        full: Errno,
        mut attempt: impl FnMut(&Arc<Inner>) -> crate::Result<T>,
    ) -> crate::Result<T> {
        let mut done = Err(Error::new(Op::Socket, full));
        for inner in self.in_turn() {
            done = attempt(inner);
            match &done {
                Err(error) if error.raw_os_error() == full.raw_os_error() => {}
                _ => break,
            }
        }
        done
    }
}

impl Inner {
    /// Nanoseconds of the stack's clock.
    #[inline]
    pub fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn lock(&self) -> Locked<'_> {
        Locked::new(&self.shard)
    }

    pub fn account(&self) -> &Account {
        &self.account
    }

    /// How its sockets wait unless they say otherwise.
    pub fn wait_mode(&self) -> Wait {
        self.wait
    }

    /// Takes the lock and calls `act`, which finds out at once; what comes of it is sent.
    pub fn with<R>(&self, act: impl FnOnce(&mut Shard, u64) -> R) -> R {
        let mut shard = self.lock();
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
        let Ok(owner) = self.own() else { return f.write_str("Stack(the kernel's)") };
        f.debug_struct("Stack")
            .field("addresses", &self.addresses())
            .field("shards", &owner.shards.len())
            .field("sockets", &owner.shards.iter().map(|inner| inner.lock().inet().len()).sum::<usize>())
            .finish_non_exhaustive()
    }
}
