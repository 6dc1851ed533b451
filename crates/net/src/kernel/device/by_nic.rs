//! Receiving what a NIC has put into a device's memory, and what it has left in the host's.

use super::super::landing::{Landing, NotRead};
use super::super::nic::Nic;
use super::super::placed::{Calls, Placed, is_device};
use super::super::socket::Stream;
use super::super::wait::Patience;
use super::super::zcrx::{Flow, Hub};
use super::Next;
use crate::carrier::Frags;
use crate::carrier::tcp::{Connection as _, Options, Taking};
use crate::error::{too_small, unreadable};
use crate::view::View;
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Fragment};
use onecopy_pool::Part;
use onecopy_socket::{Error, Op, Result};
use rustix::io::Errno;
use std::sync::Arc;

/// How fragments are received.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub n: usize,
    pub most: usize,
    pub peeks: bool,
    pub throws: bool,
}

/// Another thread has taken what waited: it is looked at again, as none at all would be the end.
const TAKEN: NotRead = NotRead::Errno(Errno::INTR);

/// What waits for a connection whose bytes a NIC places: something, or the end.
type Waits = std::result::Result<bool, NotRead>;

impl Stream {
    /// What has come to a connection whose bytes `nic` places; made with the first receive.
    fn placed(&self, nic: &Arc<Nic>) -> std::result::Result<&Placed, NotRead> {
        if let Some(placed) = self.placed.get() {
            return Ok(placed);
        }
        let calls: Box<dyn Calls> = match nic.hub() {
            None => Box::new(Arc::clone(&self.connection().fd)),
            Some(hub) => Box::new(self.flow(hub)),
        };
        let fresh = Placed::new(nic, calls).map_err(|_| NotRead::Errno(Errno::NOMEM))?;
        Ok(self.placed.get_or_init(|| fresh))
    }

    /// Where a ring puts what it tells of.
    fn flow(&self, hub: &Arc<Hub>) -> Arc<Flow> {
        let (connection, placed) = (Arc::downgrade(self.connection()), Arc::downgrade(&self.placed));
        Flow::new(hub, &self.connection().fd, move || {
            let (Some(connection), Some(placed)) = (connection.upgrade(), placed.upgrade()) else { return };
            connection.drained(|| placed.get().is_some_and(Placed::is_readable));
            let _state = connection.lock();
            connection.waiters().tell();
        })
    }

    /// As [`Stream::frags`], of what comes by a NIC. None at the end.
    pub(super) fn frags_by_nic(
        &self,
        landing: &Landing,
        nic: &Arc<Nic>,
        queue: u32,
        wanted: Wanted,
        patience: &Patience,
    ) -> std::result::Result<Result<Option<Frags>>, NotRead> {
        let Wanted { n, most, peeks, throws } = wanted;
        let placed = self.placed(nic)?;
        let there = placed.fill(n, most.max(1));
        // One connection's own says nothing of the binding's.
        if !matches!(there, Err(NotRead::Held)) {
            landing.tell(matches!(there, Err(NotRead::Starved)));
        }
        if !there? {
            return Ok(Ok(None));
        }
        if throws {
            let (mut thrown, mut next) = (0, Ok(true));
            while matches!(next, Ok(true)) && thrown < n {
                let parts = placed.take(n - thrown, usize::MAX);
                thrown += self.taken(queue, &parts);
                if thrown < n {
                    next = placed.fill(n - thrown, usize::MAX);
                }
            }
            if thrown == 0 {
                return next.and(Err(TAKEN));
            }
            placed.home().flush();
            self.was_placed(placed, true);
            // (The end is told again.)
            if let Err(why) = next {
                self.stopped(why, patience);
            }
            return Ok(Ok(Some(Frags::of_none(thrown))));
        }
        if most == 0 {
            self.was_placed(placed, false);
            return Ok(Err(too_small()));
        }
        if peeks {
            let parts = placed.peek(n, most);
            if parts.is_empty() {
                return Err(TAKEN);
            }
            self.was_placed(placed, false);
            return Ok(Ok(Some(match parts.first().is_some_and(is_device) {
                true => Frags::of_device(parts.iter().map(|part| landing.frag(part)).collect(), None),
                false => Frags::of_linear(self.view(parts)),
            })));
        }
        let parts = placed.take(n, most);
        if parts.is_empty() {
            return Err(TAKEN);
        }
        let len = self.taken(queue, &parts);
        self.was_placed(placed, len < n);
        Ok(Ok(Some(match parts.first().is_some_and(is_device) {
            true => self.given(landing, parts),
            false => {
                self.counters().referenced.add(len);
                Frags::of_linear(self.view(parts))
            }
        })))
    }

    /// Whether there is something now; where there is not, it has waited, or the peer sends no more, and what is next is to be looked at again.
    fn is_filled(&self, nic: &Arc<Nic>, max: usize, patience: &Patience) -> Result<bool> {
        match self.fill_by_nic(nic, max) {
            Ok(true) => return Ok(true),
            Ok(false) => self.ended(),
            Err(why) => self.not_read(why, patience)?,
        }
        Ok(false)
    }

    /// As [`tcp::Connection::take`](crate::carrier::tcp::Connection::take). The outer None where what is next does not come by a NIC.
    pub(in super::super) fn take_by_nic(
        &self,
        max: usize,
        how: Taking,
        patience: &Patience,
    ) -> Result<Option<Option<Segment<Chain>>>> {
        loop {
            let Next::Device(landing, queue) = self.next(patience)? else { return Ok(None) };
            let Some(nic) = landing.nic() else { return Ok(None) };
            if !self.is_filled(nic, max, patience)? {
                if how.before && self.connection().lock().has_failed() {
                    // The next call's, and not this one's, which has something.
                    return Ok(Some(None));
                }
                continue;
            }
            let Some(placed) = self.placed.get() else { continue };
            let taken = placed.take_if(usize::MAX, |first| {
                (how.device || !is_device(first)).then(|| how.cut(max, first.len()))
            });
            let Some(parts) = taken else {
                self.was_placed(placed, false);
                return Err(unreadable());
            };
            if !parts.is_empty() {
                let len = self.taken(queue, &parts);
                self.was_placed(placed, len < max);
                return Ok(Some(Some(chain(parts).into())));
            }
            // Another thread has taken it, or nothing is asked for.
            if max == 0 {
                return Ok(Some(Some(Chain::new().into())));
            }
        }
    }

    /// As [`tcp::Connection::peek`](crate::carrier::tcp::Connection::peek), likewise; it does not wait for more than is there.
    pub(in super::super) fn peek_by_nic(
        &self,
        max: usize,
        patience: &Patience,
    ) -> Result<Option<Option<Segment<Chain>>>> {
        loop {
            let Next::Device(landing, _) = self.next(patience)? else { return Ok(None) };
            let Some(nic) = landing.nic() else { return Ok(None) };
            if !self.is_filled(nic, max, patience)? {
                continue;
            }
            let Some(placed) = self.placed.get() else { continue };
            let parts = placed.peek(max, usize::MAX);
            self.was_placed(placed, false);
            match parts.first() {
                Some(first) if is_device(first) => return Err(unreadable()),
                None if max > 0 => {}
                _ => return Ok(Some(Some(chain(parts).into()))),
            }
        }
    }

    fn fill_by_nic(&self, nic: &Arc<Nic>, n: usize) -> Waits {
        self.placed(nic)?.fill(n.max(1), usize::MAX)
    }

    /// Counts what was taken.
    fn taken(&self, queue: u32, parts: &[Part]) -> usize {
        let (mut device, mut host) = (0, 0);
        for part in parts {
            *if is_device(part) { &mut device } else { &mut host } += part.len();
        }
        let counters = self.counters();
        counters.received.add(device + host);
        // What the kernel has told of lies where the device put it; all else it has copied.
        counters.kernel_copied.add(host);
        counters.user_copied_out.add(self.placed.get().map_or(0, Placed::copied));
        if device > 0 {
            self.connection().shared().devices.queues(|queues| queues.count_landed(queue, device));
        }
        device + host
    }

    /// Has whoever polls know whether something waits: what was received and not taken the kernel does not tell of.
    fn was_placed(&self, placed: &Placed, short: bool) {
        if placed.is_readable() {
            self.connection().is_readable();
        } else {
            self.was_read(short);
        }
    }

    fn view(&self, parts: Vec<Part>) -> View {
        View::of(chain(parts).into(), self.counts())
    }
}

/// Of parts of one kind of memory.
fn chain(parts: Vec<Part>) -> Chain {
    let mut chain = Chain::new();
    for part in parts {
        let appended = chain.append(Fragment::from(part));
        debug_assert!(appended.is_ok());
    }
    chain
}

/// What the kernel says of a receive that took nothing.
pub(super) fn refused(errno: Errno) -> Error {
    Error::new(Op::Recv, errno)
        .because("the kernel cannot tell of what the NIC has received now; receive again")
}

/// What a NIC had placed when its binding ended, which a ring alone could tell of.
pub(super) fn lost() -> Error {
    Error::new(Op::Recv, Errno::FAULT).because(
        "the NIC's queue was unbound while bytes of this connection came there, and nobody tells where they are; end connections before you unbind",
    )
}

#[cfg(test)]
mod tests;
