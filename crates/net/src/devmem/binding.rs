//! Memory that is bound to receive queues, and the queues.

use super::path::{Path, Why};
use crate::carrier::{Event, NotCounted, Refusal, Which};
use crate::kernel;
use crate::own::{Inner, Shard};
use crate::stack::Stack;
use onecopy_inet::stack::RoomStats;
use onecopy_link::Registered;
use onecopy_link::rx::{BadQueue, QueueStats, Queues, Rule};
use onecopy_pool::{Claim, DeviceMemory, Purpose};
use onecopy_socket::{Error, Op, Result};
use rustix::io::Errno;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

/// Memory that is bound to receive queues: dropped, it is unbound. Its queues then go on with ordinary pages; fragments that
/// programs have, and bytes that sockets have, stay valid, and are received and given back as before. It keeps no stack alive: behind the
/// stack's end it only says which memory it was.
#[must_use = "dropped, the memory is unbound"]
pub struct Binding {
    of: Of,
    /// Given back behind the unbinding.
    claim: Claim,
    id: u32,
    /// Why the link does not put payload there itself.
    staged: Option<Why>,
    /// How the kernel's TCP does.
    kernels: Option<Path>,
}

/// Which stack it is bound to.
pub(super) enum Of {
    /// Whose end it is no part of: what a stack has left then is dropped, and whoever waits for it hears so.
    Own(Weak<Inner>),
    Kernel(Arc<kernel::Devices>),
}

impl Binding {
    /// Its number in the stack, from 1 on; each [`Frag`](super::Frag) has it.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The memory.
    pub fn memory(&self) -> &DeviceMemory {
        self.claim.memory()
    }

    /// Which way payload takes to the memory, and why it is no shorter one.
    pub fn path(&self) -> Path {
        let now = match &self.of {
            Of::Own(inner) => inner.upgrade().is_some_and(|inner| {
                inner.with(|shard, _| shard.rx_mut().0.queues().lands_in(self.memory().id()))
            }),
            // It is bound so, or not at all.
            Of::Kernel(_) => true,
        };
        self.kernels.clone().unwrap_or_else(|| Path::of(self.staged, now))
    }

    /// The next thing that has happened to it. Up to 64 are kept; what comes beyond that is only counted
    /// ([`Stack::queue_stats`], [`Binding::promised`]).
    pub fn event(&self) -> Option<Event> {
        match &self.of {
            Of::Own(inner) => inner.upgrade()?.with(|shard, _| shard.rx_mut().0.event(self.id)),
            Of::Kernel(devices) => devices.event(self.id),
        }
    }

    fn room(&self) -> RoomStats {
        // (The kernel promises out of its own buffers.)
        let Of::Own(inner) = &self.of else { return RoomStats::default() };
        let Some(inner) = inner.upgrade() else { return RoomStats::default() };
        inner.with(|shard, _| {
            let (rx, inet) = shard.rx_mut();
            rx.room_stats(inet, self.id)
        })
    }

    /// Bytes that peers were told they may send, and that have not come: so much of the memory is kept for them.
    pub fn promised(&self) -> u64 {
        self.room().promised
    }

    /// Times that a window had to be smaller for want of memory.
    pub fn narrowed(&self) -> u64 {
        self.room().narrowed
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        match &self.of {
            Of::Own(inner) => {
                let Some(inner) = inner.upgrade() else { return };
                inner.with_here(|shard, now| {
                    let (rx, inet) = shard.rx_mut();
                    rx.unbind(inet, now, self.id);
                });
            }
            Of::Kernel(devices) => devices.unbind(self.id),
        }
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Binding({} of {:?})", self.id, self.memory())
    }
}

/// Registers memory if the link can go by that; or else why it is not.
pub(super) fn registered(memory: &DeviceMemory, can: bool) -> (Option<Registered>, Option<Why>) {
    if !can {
        return (None, Some(Why::Link));
    }
    match Registered::new(memory) {
        Ok(registered) => (Some(registered), None),
        Err(why) => (None, Some(Why::Memory(why))),
    }
}

/// Whether bytes come to memory, and from it, where the link does not move them itself.
pub(super) fn reachable(memory: &DeviceMemory, registered: bool) -> Result<()> {
    match memory.copies() {
        Err(_) if !registered => Err(Error::new(Op::Bind, Errno::OPNOTSUPP).about("memory").because(
            "the link does not move the bytes itself, and the memory's driver maps it for nobody; take memory that is mapped",
        )),
        _ => Ok(()),
    }
}

/// Binds memory to connections that the kernel carries.
fn bind_kernel(devices: &Arc<kernel::Devices>, memory: &DeviceMemory, queues: &[u32]) -> NotCounted<Binding> {
    if memory.len() < LEAST.1 {
        return Err(too_small("the memory is too small; give 64 KiB"));
    }
    let claim = memory.claim(Purpose::Receive).ok_or_else(sent_from)?;
    let bound = devices.bind(memory, queues).map_err(|why| match why {
        kernel::NotBound::Queues(why) => bad_queue(why),
        kernel::NotBound::Memory(why, by_nic) => unsupported(kernel::not_bound(why, by_nic.as_ref())),
    })?;
    let path = match bound.taken {
        kernel::Taken::Nic => Path::Nic,
        kernel::Taken::Ring(why) => Path::NicRing(why),
        kernel::Taken::Copy(why) => Path::Direct(why),
    };
    Ok(Binding {
        of: Of::Kernel(Arc::clone(devices)),
        claim,
        id: bound.id,
        staged: None,
        kernels: Some(path),
    })
}

fn sent_from() -> Refusal {
    let error = Error::new(Op::Bind, Errno::BUSY)
        .about("memory")
        .because("all of the memory's pages are sent from; drop its TxBinding first, or bind other memory");
    Refusal::new(|refused| &refused.rx_busy, error)
}

fn too_small(why: &'static str) -> Refusal {
    let error = Error::new(Op::Bind, Errno::INVAL).about("memory").because(why);
    Refusal::new(|refused| &refused.rx_too_small, error)
}

fn unsupported(error: Error) -> Refusal {
    Refusal::new(|refused| &refused.rx_unsupported, error)
}

fn bad_queue(why: BadQueue) -> Refusal {
    let which: Which = match why {
        BadQueue::None => |refused| &refused.rx_no_queue,
        BadQueue::OutOfRange { .. } => |refused| &refused.rx_no_such_queue,
        BadQueue::Bound { .. } => |refused| &refused.rx_bound,
        BadQueue::NotSplit => |refused| &refused.rx_not_split,
        BadQueue::PageSize { .. } => |refused| &refused.rx_page_size,
        BadQueue::NoneLeft => |refused| &refused.rx_none_left,
        // (Of changes of the queues, not of binds.)
        _ => |refused| &refused.rx_unsupported,
    };
    Refusal::new(which, bad(Op::Bind, why))
}

/// Packets of the longest kind that bound memory has to hold at least, and how many bytes.
const LEAST: (u64, u64) = (4, 64 << 10);

fn bad(op: Op, why: BadQueue) -> Error {
    Error::new(op, Errno::from_raw_os_error(why.errno())).about("queues").because(match why {
        BadQueue::None => "no queue was named; name one at least",
        BadQueue::OutOfRange { .. } => "there is no queue of that number; make more with Stack::set_queues",
        BadQueue::Bound { .. } => {
            "memory is bound to that queue, or it was named twice; drop its Binding first"
        }
        BadQueue::NotSplit => "memory can be bound only while headers are split from payload",
        BadQueue::PageSize { .. } => "the memory's pages are not of 4096 bytes; make it with order 0",
        BadQueue::InUse { .. } => {
            "a queue that would go is bound, or flows are steered to it; end that first"
        }
        BadQueue::NoneLeft => {
            "flows that nobody steers need a queue that is not bound; make more with Stack::set_queues"
        }
        BadQueue::TooMany { .. } => "there can be 65535 queues; ask for no more",
        _ => "the queues cannot be so",
    })
}

impl Stack {
    fn rx<R>(&self, act: impl FnOnce(&mut Shard, u64) -> R) -> Result<R> {
        Ok(self.only(Op::Option)?.with(act))
    }

    /// Looks at the receive queues, or changes them.
    fn with_queues<R>(&self, act: impl FnOnce(&mut Queues) -> R) -> Result<R> {
        match self.kernel_devices() {
            Some(devices) => Ok(devices.queues(act)),
            None => self.rx(|shard, _| act(shard.rx_mut().0.queues_mut())),
        }
    }

    /// Has `count` receive queues (ethtool -L); there is one, if it is not called. They are behind one link and one lock: what they do is
    /// to have some flows' payload land elsewhere.
    ///
    /// # Errors
    ///
    /// EINVAL for none, for more than 65,535, and where a queue that would go is bound or has flows steered to it.
    pub fn set_queues(&self, count: u32) -> Result<()> {
        self.with_queues(|queues| queues.set_len(count))?.map_err(|why| bad(Op::Option, why))
    }

    /// How many receive queues there are.
    pub fn queues(&self) -> u32 {
        self.with_queues(|queues| queues.len()).unwrap_or(0)
    }

    /// Has TCP's flows to `to`, an address of the stack's (or an unspecified one, for any) and a port, come to `queue` (ethtool -N with
    /// `dst-ip`, `dst-port` and `action`). All others are spread over the queues that are not bound. It holds for connections that are there, too.
    ///
    /// # Errors
    ///
    /// ERANGE where there is no such queue.
    pub fn steer(&self, to: SocketAddr, queue: u32) -> Result<()> {
        let steered = self.with_queues(|queues| queues.steer(Rule { to, queue }))?;
        steered.map_err(|why| bad(Op::Option, why).about("queue"))
    }

    /// Takes that back. Returns whether there was such a rule.
    pub fn unsteer(&self, to: SocketAddr) -> bool {
        self.with_queues(|queues| queues.unsteer(to)).unwrap_or(false)
    }

    /// Switches the split of headers from payload on or off (ethtool -G `tcp-data-split`); it is on.
    ///
    /// # Errors
    ///
    /// EINVAL for off while memory is bound.
    pub fn set_header_split(&self, on: bool) -> Result<()> {
        let set = self.with_queues(|queues| queues.set_split(on))?;
        set.map_err(|why| bad(Op::Option, why))
    }

    /// What came to a queue: packets, bytes that were placed in bound memory, what was dropped. None where there is no such queue.
    pub fn queue_stats(&self, queue: u32) -> Option<QueueStats> {
        self.with_queues(|queues| queues.stats(queue).copied()).ok()?
    }

    /// Binds `memory` to receive queues: from now on TCP's payload that comes to them lies there, and is received by
    /// [`Stream::recv_frags`](crate::tcp::Stream::recv_frags). It is unbound when the [`Binding`] is dropped. Queues are restarted one by
    /// one; the link, and all other queues, go on.
    ///
    /// # Errors
    ///
    /// As the kernel's bind-rx (net/core/netdev-genl.c, net/core/devmem.c): EINVAL without queues, with headers not split, for memory that
    /// holds less than 64 KiB or four of the longest packets, and where no queue would be left for other flows; ERANGE for a queue that there
    /// is not; EEXIST for one that is bound already; E2BIG for pages larger than 4 KiB; ENODEV where the link is gone; EOPNOTSUPP where the
    /// link does not split headers ([`Port::splits_headers`](crate::Port::splits_headers)), the stack has several shards, or the memory is a dma-buf that its
    /// driver maps for nobody ([`DeviceMemory::copies`]). EBUSY for memory that is sent from
    /// ([`Stack::bind_tx`]), by this stack or another one. Each is counted by why ([`Stack::device_refusals`]), and changes nothing.
    pub fn bind_rx(&self, memory: &DeviceMemory, queues: &[u32]) -> Result<Binding> {
        let bound = match self.kernel_devices() {
            Some(devices) => bind_kernel(devices, memory, queues),
            None => self.bind_own(memory, queues),
        };
        bound.map_err(|refusal| refusal.counted(self.refused()))
    }

    fn bind_own(&self, memory: &DeviceMemory, queues: &[u32]) -> NotCounted<Binding> {
        let inner = self.only(Op::Bind).map_err(unsupported)?;
        // Without the lock: it takes a while.
        let lands = inner.with(|shard, _| shard.lands_device());
        let (registered, staged) = registered(memory, lands);
        reachable(memory, registered.is_some()).map_err(unsupported)?;
        let (claim, id) = inner.with(|shard, now| {
            let error = |errno, why| Error::new(Op::Bind, errno).because(why);
            if shard.is_down() {
                let gone = error(Errno::NODEV, "the stack's link is gone; make another stack");
                return Err(Refusal::new(|refused| &refused.rx_gone, gone));
            }
            if !shard.splits_headers() {
                let why = "the link does not split headers from payload; use a Tap, or Builder::xdp";
                return Err(unsupported(error(Errno::OPNOTSUPP, why)));
            }
            let (rx, inet) = shard.rx_mut();
            let least = LEAST.1.max(LEAST.0 * u64::from(inet.interface().mtu()));
            if memory.len() < least {
                return Err(too_small(
                    "the memory is too small; give 64 KiB and four of the longest packets",
                ));
            }
            let claim = memory.claim(Purpose::Receive).ok_or_else(sent_from)?;
            let id = rx.bind(inet, now, memory, queues, registered).map_err(bad_queue)?;
            Ok((claim, id))
        })?;
        Ok(Binding { of: Of::Own(Arc::downgrade(inner)), claim, id, staged, kernels: None })
    }
}
