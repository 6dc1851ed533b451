//! Receiving chains: the peer's pages themselves, and copies of what came as bytes.

use crate::ancillary::channel::Fds;
use crate::ancillary::pending::Next;
use crate::connection::Connection;
use crate::connection::call::Call;
use crate::connection::idle::Waiting;
use crate::connection::rx::{Rx, RxRing};
use crate::connection::wait::Ready;
use onecopy_chain::{Chain, Fragment};
use onecopy_pool::Page;
use onecopy_socket::{Error, Op, RecvFlags, Result};
use rustix::io::Errno;
use std::io::IoSliceMut;
use std::sync::Arc;

impl Connection {
    /// Receives what is there, at most `max` bytes, of one kind of memory.
    pub fn recv_chain(self: &Arc<Connection>, max: usize, flags: RecvFlags) -> Result<Chain> {
        // A peek would lend a page twice, since what is there is lent.
        let flags = flags & RecvFlags::DONTWAIT;
        let max = max.min(u32::MAX as usize);
        let mut waiting = Waiting::new(0);
        loop {
            let ready = self.ready(flags, &mut waiting)?;
            let (mut guard, n) = match ready {
                Ready::Ring(guard, n) => (guard, n),
                Ready::End => return Ok(Chain::new()),
                other => {
                    drop(other);
                    return self.chain_of_kernel(max, flags);
                }
            };
            let Rx::Ring(rx) = &mut *guard else { return Ok(Chain::new()) };
            if max == 0 {
                return Ok(Chain::new());
            }
            let misbehaved = |misbehaved| self.misbehaved(Op::Recv, misbehaved);
            let n = rx.consumer.before_mark(n).map_err(misbehaved)?;
            let chain = if n > 0 {
                self.chain_of_bytes(rx, n.min(max))?
            } else if rx.meet_mark(self)? == Next::Reference {
                rx.chain_of_references(self, max)?
            } else {
                // It was a pool, or descriptors.
                continue;
            };
            rx.mirror_empty(self)?;
            let (room, capacity) = (rx.consumer.room(), rx.consumer.ring().capacity());
            guard.unlock_fenced();
            if self.rx_ring().is_some_and(|ring| ring.header().must_unpark(room, capacity)) {
                self.unpark()?;
            }
            return Ok(chain);
        }
    }

    /// Makes a chain of `n` bytes that are in the ring. They are copied, since they have to make room.
    fn chain_of_bytes(&self, rx: &mut RxRing, n: usize) -> Result<Chain> {
        let mut chain = Chain::new();
        let mut n = n.min(MAX_COPY);
        let first = self.copies.page()?;
        rx.bring_fds(self)?;
        let mut came = Fds { who: self.passes_identity().then(|| rx.pending.sender()), ..Fds::default() };
        let until = rx.pending.fds_until();
        if let Some(fds) = rx.pending.take_fds() {
            came.list = fds.list;
        }
        match until.saturating_sub(rx.consumer.position()) {
            // The bytes that they came with are behind already, which is the peer's own loss.
            0 => {}
            left => n = (n as u64).min(left) as usize,
        }
        came.attach_to(&mut chain, self);
        let mut page = Ok(first);
        while let Ok(mut this) = page {
            let now = this.len().min(n - chain.len());
            rx.consumer.copy_out(0, &mut writable(&mut this)[..now]);
            append(&mut chain, this, now)?;
            rx.consumer.take(now);
            if chain.len() == n {
                break;
            }
            page = self.copies.page();
        }
        self.counters().received.add_exclusive(chain.len());
        self.counters().user_copied_out.add_exclusive(chain.len());
        Ok(chain)
    }

    /// Makes a chain of what one receive over the kernel gives.
    fn chain_of_kernel(&self, max: usize, flags: RecvFlags) -> Result<Chain> {
        let mut chain = Chain::new();
        let mut page = self.copies.page()?;
        let max = max.min(page.len());
        let mut fds = Fds::default();
        let mut slices = [IoSliceMut::new(&mut writable(&mut page)[..max])];
        let n = self.recv_with(&mut slices, flags, &mut Call::with(&mut fds))?;
        fds.attach_to(&mut chain, self);
        if n > 0 {
            append(&mut chain, page, n)?;
        }
        Ok(chain)
    }
}

/// The most bytes that one receive copies.
const MAX_COPY: usize = 256 << 10;

fn writable(page: &mut Page) -> &mut [u8] {
    page.bytes_mut().expect("a fresh page of host memory has one reference")
}

/// Appends the first `n` bytes of a page. A chain of one kind of memory and a few MiB at most always takes
/// them.
fn append(chain: &mut Chain, page: Page, n: usize) -> Result<()> {
    let fragment = Fragment::new(page, 0, n).and_then(|fragment| chain.append(fragment));
    fragment.map_err(|_| Error::new(Op::Recv, Errno::OVERFLOW))
}
