//! A stack's handle.

use crate::carrier::Refused;
use crate::carrier::tcp::{Connection, Listening};
use crate::carrier::udp::Endpoint;
use crate::devmem::Refusals;
use crate::kernel::{self, Kernel};
use crate::own::{self, Inner, Owner};
use onecopy_chain::notify::zerocopy::{Account, Allowance, Counts};
use onecopy_inet::ip::Cidr;
use onecopy_inet::stack;
use onecopy_inet::tcp::Settings;
use onecopy_socket::{Carrier, Error, Op, Result, Wait};
use rustix::io::Errno;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// An address in a network, with a stack of protocols of the program's own behind it; or the kernel's, if so it was built
/// ([`Builder::transport`](crate::Builder::transport)).
///
/// Clones are handles of the same stack. It lives as long as a handle or a socket of it does; whoever drops the last one waits until what was
/// sent has been acknowledged, at most as long as [`Builder::linger`](crate::Builder::linger) says. Bindings of device memory, tokens, and handles
/// of sends keep it no longer: what is left of sends then is dropped, and whoever waits for it hears so.
///
/// It is its process's. In a child of fork(2) what its sockets would send or receive is refused (EOWNERDEAD), and to drop them, or it, does nothing and waits for
/// nothing. The child's copies of the link's descriptors are closed when it ends, or executes something. Other calls may wait for ever there, for a lock
/// that a thread of the parent's had at the fork.
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

impl Stack {
    pub(super) fn of_own(owner: Owner) -> Stack {
        Stack { engine: Engine::Own(Arc::new(owner)) }
    }

    pub(super) fn of_kernel(kernel: Kernel) -> Stack {
        Stack { engine: Engine::Kernel(Arc::new(kernel)) }
    }

    /// The stack of the program's own.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP where the kernel's is used.
    pub(crate) fn own(&self) -> Result<&Owner> {
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
    pub(crate) fn only(&self, op: Op) -> Result<&Arc<Inner>> {
        self.own()?.only(op)
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

    pub(crate) fn tcp_listen(&self, address: SocketAddr, backlog: u32) -> Result<Arc<dyn Listening>> {
        match &self.engine {
            Engine::Own(owner) => own::listen(owner, address, backlog),
            Engine::Kernel(kernel) => kernel::listen(kernel, address, backlog),
        }
    }

    pub(crate) fn tcp_connect(
        &self,
        local: Option<SocketAddr>,
        address: SocketAddr,
        change: Option<&dyn Fn(&mut Settings)>,
    ) -> Result<Arc<dyn Connection>> {
        match &self.engine {
            Engine::Own(owner) => own::connect(owner, local, address, change),
            Engine::Kernel(kernel) => kernel::connect(kernel, local, address, change),
        }
    }

    /// A socket without an address.
    pub(crate) fn udp_open(&self) -> Result<Arc<dyn Endpoint>> {
        match &self.engine {
            Engine::Own(owner) => own::udp_open(owner),
            Engine::Kernel(kernel) => Ok(kernel::udp_open(kernel)),
        }
    }

    /// One with an address, which others who say so may have, too, where it is to `reuse` it.
    pub(crate) fn udp_bind(&self, address: SocketAddr, reuse: bool) -> Result<Arc<dyn Endpoint>> {
        match &self.engine {
            Engine::Own(owner) => own::udp_bind(owner, address, reuse),
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
    pub fn addresses(&self) -> Vec<Cidr> {
        match &self.engine {
            Engine::Own(owner) => owner.addresses(),
            Engine::Kernel(_) => Vec::new(),
        }
    }

    /// Bytes of the longest packet, from IP's header on. (Where the kernel carries its bytes, of the longest that there may be: it depends on
    /// the way.)
    pub fn mtu(&self) -> u32 {
        match &self.engine {
            Engine::Own(owner) => owner.mtu(),
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
            Engine::Own(owner) => owner.is_up(),
            Engine::Kernel(kernel) => kernel.is_up(),
        }
    }

    /// How many shards it has ([`Builder::shards`](crate::Builder::shards)).
    pub fn shards(&self) -> u32 {
        match &self.engine {
            Engine::Own(owner) => owner.shards().len() as u32,
            Engine::Kernel(kernel) => kernel.shards(),
        }
    }

    /// Calls `look` with the protocols: their counters, neighbours, routes, settings. Everything waits meanwhile. Of a stack with several shards
    /// they are the first one's: [`Stack::with_shard`] has the others.
    ///
    /// # Panics
    ///
    /// Where the kernel carries its bytes ([`Stack::carrier`]): the protocols are the kernel's.
    pub fn with<R>(&self, look: impl FnOnce(&mut stack::Stack) -> R) -> R {
        self.with_shard(0, look)
    }

    /// As [`Stack::with`], with the protocols of one shard, which waits meanwhile. Each has counters of its own, and settings: a change of them is
    /// that shard's alone.
    ///
    /// # Panics
    ///
    /// Where there is no shard of that number ([`Stack::shards`]), and where the kernel carries its bytes.
    pub fn with_shard<R>(&self, shard: u32, look: impl FnOnce(&mut stack::Stack) -> R) -> R {
        let owner = self.own().unwrap_or_else(|error| panic!("{error}"));
        owner.with_shard(shard, look)
    }

    /// What the link has counted, each with its name ([`Port::counters`](crate::Port::counters)), or the ring. Of a stack with several shards, their sums,
    /// and what came by the queue of another one than whose it was (`handed_over`, of that what waits there now,
    /// `handed_over_waiting`, and `handed_over_dropped`).
    pub fn link_counters(&self) -> Vec<(&'static str, u64)> {
        match &self.engine {
            Engine::Own(owner) => owner.link_counters(),
            Engine::Kernel(kernel) => kernel.counters(),
        }
    }

    /// The same of one shard: of its link, or of its ring. How many sockets are a ring's, `sockets` says. None where there is no shard of that number
    /// ([`Stack::shards`]).
    pub fn shard_counters(&self, shard: u32) -> Option<Vec<(&'static str, u64)>> {
        match &self.engine {
            Engine::Own(owner) => owner.link_counters_of(shard),
            Engine::Kernel(kernel) => kernel.counters_of(shard),
        }
    }

    /// What of device memory was refused.
    pub(crate) fn refused(&self) -> &Arc<Refused> {
        match &self.engine {
            Engine::Own(owner) => owner.first().refused(),
            Engine::Kernel(kernel) => kernel.shared().devices.refused(),
        }
    }

    /// What of device memory it has refused, of all its sockets, by why: binds, sends, and tokens that were nobody's. (Device memory in sends that are no
    /// [`send_device`](crate::tcp::Stream::send_device) is in [`Stack::zerocopy_counts`], as `refused_unreadable`; packets that no page was free for are in
    /// [`Stack::queue_stats`].)
    pub fn device_refusals(&self) -> Refusals {
        self.refused().read()
    }

    fn account(&self) -> &Account {
        match &self.engine {
            Engine::Own(owner) => owner.account(),
            Engine::Kernel(kernel) => kernel.account(),
        }
    }

    /// What happened to sends without a copy, of all its sockets: how many were lent, how many copied and why, how many refused and why.
    /// (Where the kernel carries its bytes, how many it copied after all [`Stack::link_counters`] says.)
    pub fn zerocopy_counts(&self) -> Counts {
        self.account().counts()
    }

    /// Pages of 4 KiB that such sends of this stack keep in place, as the kernel would charge them: two more for each than its bytes come to.
    pub fn pinned_pages(&self) -> u64 {
        self.account().collect();
        self.account().pinned_pages()
    }

    /// Changes what such sends may keep, and which of them are copied: from here on, [`Builder::zerocopy`](crate::Builder::zerocopy) from the beginning.
    pub fn set_zerocopy_allowance(&self, allowance: Allowance) {
        self.account().set_allowance(allowance);
    }

    /// What such sends may keep.
    pub fn zerocopy_allowance(&self) -> Allowance {
        self.account().allowance()
    }

    /// Drives the stack from this thread: receives what is there, does what is due, and if there was neither, waits up to `limit` for
    /// some. Returns whether there was something. With [`Driver::Thread`](crate::Driver::Thread) it is not needed; with [`Driver::Caller`](crate::Driver::Caller) it is what keeps
    /// connections alive between calls that wait.
    ///
    /// # Errors
    ///
    /// EINTR; EOWNERDEAD in a fork's child; EOPNOTSUPP where the kernel carries its bytes, and of a stack with several shards: they need no driving.
    pub fn drive(&self, limit: Duration) -> Result<bool> {
        let inner = self.only(Op::Wait)?;
        inner.here(Op::Wait)?;
        inner.drive(limit).map_err(|_| Error::new(Op::Wait, Errno::INTR))
    }

    /// A descriptor for the program's own poll loop, with [`Driver::Caller`](crate::Driver::Caller): readable (POLLIN) when there is something for
    /// [`Stack::drive`] to do, because packets have come, there is room on the link again, or something is due. Poll it, beside the sockets' own
    /// descriptors, and drive with a limit of zero when it is readable, until that returns false. It is made with the first call, and may be
    /// readable for nothing. While another thread waits for a socket, that one drives, and the descriptor says nothing.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP with [`Driver::Thread`](crate::Driver::Thread) and where the kernel carries its bytes, EMFILE.
    pub fn poll_fd(&self) -> Result<BorrowedFd<'_>> {
        self.own()?.first().descriptor()
    }

    /// How long until something is due, such as a retransmission: who drives has to do so then ([`Stack::poll_fd`] is readable by then). Zero:
    /// it is due. None: nothing is, unless packets come.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.own().ok()?.next_deadline()
    }
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(owner) = self.own() else {
            return write!(f, "Stack(the kernel's, shards: {})", self.shards());
        };
        f.debug_struct("Stack")
            .field("addresses", &self.addresses())
            .field("shards", &owner.shards().len())
            .field("sockets", &owner.sockets())
            .finish_non_exhaustive()
    }
}
