//! Memory that is sent from.

use super::binding::{Of, reachable, registered};
use super::path::{Path, Why};
use crate::carrier::{NotCounted, Refusal, Which};
use crate::kernel;
use crate::stack::Stack;
use onecopy_chain::{Chain, ChainError, Fragment};
use onecopy_link::Registered;
use onecopy_pool::{Claim, DeviceMemory, Page, Purpose};
use onecopy_socket::{Error, Op, Result};
use rustix::io::Errno;
use std::fmt;
use std::sync::Arc;

/// Memory that streams send from: what bind-tx is to the kernel. All of its pages are this binding's: the program says what lies in
/// them ([`DeviceMemory::write_at`], a file, the device itself), and when. Dropped, it is unbound; what is under way is delivered all the same, and
/// keeps its pages until then. It keeps no stack alive: what is under way when that ends is dropped, as any other send.
#[must_use = "dropped, the memory is unbound"]
pub struct TxBinding {
    of: Of,
    /// In order, in runs.
    pages: Vec<Page>,
    /// Given back behind its pages.
    claim: Claim,
    id: u32,
    /// Why the link does not take payload from there itself.
    staged: Option<Why>,
}

/// Bytes of a device's memory: what an iovec is to a send of the kernel's, whose address is an offset there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxRange {
    /// Where they begin, in bytes from the beginning of the memory.
    pub offset: u64,
    /// How many there are.
    pub len: u64,
}

impl TxBinding {
    /// Its number in the stack, of the same row as those of [`Binding`](super::Binding)s.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The memory.
    pub fn memory(&self) -> &DeviceMemory {
        self.claim.memory()
    }

    /// Which way payload takes out of the memory, and why it is no shorter one.
    pub fn path(&self) -> Path {
        let now = match &self.of {
            Of::Own(inner) => inner.upgrade().is_some_and(|inner| {
                inner.with(|shard, _| shard.link_mut().gathers_from(self.memory().id()))
            }),
            // It is bound so, or not at all.
            Of::Kernel(_) => true,
        };
        Path::of(self.staged, now)
    }

    /// These bytes by reference, one range after the other: to be given to [`Stream::send_zerocopy`](crate::tcp::Stream::send_zerocopy) and
    /// its like, or by [`Stream::send_device`](crate::tcp::Stream::send_device). Whoever writes there before it was told that the send is
    /// complete may find anything sent.
    ///
    /// # Errors
    ///
    /// EFAULT for bytes beyond the memory's end (zerocopy_fill_skb_from_devmem() in net/core/datagram.c); EMSGSIZE for 4 GiB and more.
    pub fn chain(&self, ranges: &[TxRange]) -> Result<Chain> {
        let mut chain = Chain::new();
        for range in ranges {
            let end = range.offset.checked_add(range.len).filter(|end| *end <= self.memory().len());
            let end = end.ok_or_else(|| {
                self.count(|refused| &refused.send_outside);
                Error::new(Op::Send, Errno::FAULT)
                    .about("ranges")
                    .because("the bytes are not inside of the memory; count from its beginning")
            })?;
            let mut at = range.offset;
            while at < end {
                let page = &self.pages[self.pages.partition_point(|page| page.place() <= at) - 1];
                let within = at - page.place();
                let len = (page.len() as u64 - within).min(end - at);
                let fragment = Fragment::new(page.clone(), within as usize, len as usize);
                let appended = fragment.and_then(|fragment| chain.append(fragment));
                appended.map_err(|why| {
                    self.count(|refused| &refused.send_too_long);
                    too_long(why)
                })?;
                at += len;
            }
        }
        Ok(chain)
    }

    /// Counts what was refused. (Of a stack that has ended nobody can ask.)
    fn count(&self, which: Which) {
        match &self.of {
            Of::Own(inner) => {
                if let Some(inner) = inner.upgrade() {
                    inner.refused().count(which);
                }
            }
            Of::Kernel(devices) => devices.refused().count(which),
        }
    }

    /// Whether it is of this stack.
    pub(crate) fn is_of(&self, stack: &Stack) -> bool {
        match &self.of {
            Of::Own(inner) => stack.only(Op::Send).is_ok_and(|only| Arc::as_ptr(only) == inner.as_ptr()),
            Of::Kernel(devices) => stack.kernel_devices().is_some_and(|theirs| Arc::ptr_eq(theirs, devices)),
        }
    }
}

fn too_long(_: ChainError) -> Error {
    Error::new(Op::Send, Errno::MSGSIZE)
        .about("ranges")
        .because("one send has less than 4 GiB; make it several")
}

fn unsupported(error: Error) -> Refusal {
    Refusal::new(|refused| &refused.tx_unsupported, error)
}

fn gone(why: &'static str) -> Refusal {
    Refusal::new(|refused| &refused.tx_gone, Error::new(Op::Bind, Errno::NODEV).because(why))
}

/// All of the memory's pages, which nobody else has, or binds.
fn claimed(memory: &DeviceMemory) -> NotCounted<(Claim, Vec<Page>)> {
    let busy = |why| {
        let error = Error::new(Op::Bind, Errno::BUSY).about("memory").because(why);
        Refusal::new(|refused| &refused.tx_busy, error)
    };
    let claim = memory
        .claim(Purpose::Send)
        .ok_or_else(|| busy("the memory is bound already; drop that binding first, or bind other memory"))?;
    let pages = memory
        .alloc_all()
        .map_err(|_| busy("somebody has pages of the memory; bind memory that nobody has any of"))?;
    Ok((claim, pages))
}

/// Binds memory that connections of the kernel's send from.
fn bind_kernel(devices: &Arc<kernel::Devices>, memory: &DeviceMemory) -> NotCounted<TxBinding> {
    let (claim, pages) = claimed(memory)?;
    let registered = Registered::new(memory).map_err(|why| unsupported(kernel::not_bound(why, None)))?;
    let id = devices.bind_tx(registered);
    Ok(TxBinding { of: Of::Kernel(Arc::clone(devices)), pages, claim, id, staged: None })
}

impl Drop for TxBinding {
    fn drop(&mut self) {
        let memory = self.memory().id();
        match &self.of {
            Of::Own(inner) => {
                let Some(inner) = inner.upgrade() else { return };
                inner.with_here(|shard, _| shard.link_mut().gather_no_more(memory));
            }
            Of::Kernel(devices) => devices.unbind_tx(memory),
        }
    }
}

impl fmt::Debug for TxBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TxBinding({} of {} bytes)", self.id, self.memory().len())
    }
}

impl Stack {
    /// Binds `memory` to be sent from. Until the binding is dropped all of its pages are the binding's, so it is other memory than that which
    /// packets land in.
    ///
    /// ```
    /// use onecopy_link::Tap;
    /// use onecopy_net::devmem::TxRange;
    /// use onecopy_net::{Stack, tcp};
    /// use onecopy_pool::{DeviceId, DeviceMemory};
    /// use std::io::IoSlice;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (a, b) = Tap::cable(1500)?;
    /// # let here = Stack::builder().link(a).address("10.0.0.1/24").build()?;
    /// # let there = Stack::builder().link(b).address("10.0.0.2/24").build()?;
    /// # let listener = tcp::Listener::bind(&there, "10.0.0.2:80".parse()?)?;
    /// let memory = DeviceMemory::opaque(256, DeviceId(0))?;
    /// let binding = here.bind_tx(&memory)?;
    /// memory.write_at(5000, &[IoSlice::new(b"hello from a device")])?;
    ///
    /// let stream = tcp::Stream::connect(&here, "10.0.0.2:80".parse()?)?;
    /// let sent = stream.send_device(&binding, &[TxRange { offset: 5000, len: 19 }])?;
    /// let (_, how) = sent.wait(); // acknowledged: the memory may be written again
    /// assert!(!how.dropped);
    /// # let mut bytes = [0; 19];
    /// # assert_eq!(listener.accept()?.0.recv(&mut bytes)?, 19);
    /// # assert_eq!(&bytes, b"hello from a device");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As the kernel's bind-tx (netdev_nl_bind_tx_doit() in net/core/netdev-genl.c): ENODEV where the link is gone, or the ring; EOPNOTSUPP where it
    /// takes no memory that the CPU cannot read, or finishes no checksums, the stack has several shards, or the memory is a dma-buf that its driver maps for nobody; and where the kernel carries the
    /// bytes, and the memory cannot be registered with it. EBUSY where somebody has pages of the memory, or it is bound, to this
    /// stack or another one. Each is counted by why ([`Stack::device_refusals`]), and changes nothing.
    pub fn bind_tx(&self, memory: &DeviceMemory) -> Result<TxBinding> {
        let bound = match self.kernel_devices() {
            Some(_) if !self.is_up() => Err(gone("the ring is gone; make another stack")),
            Some(devices) => bind_kernel(devices, memory),
            None => self.bind_own_tx(memory),
        };
        bound.map_err(|refusal| refusal.counted(self.refused()))
    }

    fn bind_own_tx(&self, memory: &DeviceMemory) -> NotCounted<TxBinding> {
        let inner = self.only(Op::Bind).map_err(unsupported)?;
        let id = inner.with(|shard, _| {
            if shard.is_down() {
                return Err(gone("the stack's link is gone; make another stack"));
            }
            let link = *shard.inet().interface().capabilities();
            if !(link.unreadable && link.checksum) {
                return Err(unsupported(Error::new(Op::Bind, Errno::OPNOTSUPP).because(
                    "the link takes no memory that the CPU cannot read, or finishes no checksums; use a Tap with its offloads, or Transport::Kernel",
                )));
            }
            Ok(shard.rx_mut().0.number())
        })?;
        let (claim, pages) = claimed(memory)?;
        // Without the lock: it takes a while.
        let gathers = inner.with(|shard, _| shard.link_mut().gathers_device());
        let (registered, staged) = registered(memory, gathers);
        reachable(memory, registered.is_some()).map_err(unsupported)?;
        if let Some(registered) = registered {
            inner.with(|shard, _| shard.link_mut().gather_from(registered));
        }
        Ok(TxBinding { of: Of::Own(Arc::downgrade(inner)), pages, claim, id, staged })
    }
}
