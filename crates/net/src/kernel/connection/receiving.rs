//! What a connection receives: to where, and what the ring is asked for.

use super::Connection;
use super::state::{Goes, Inner, Phase, RECEIVE_ROOM};
use crate::kernel::address::addresses;
use crate::kernel::devices::Place;
use crate::kernel::landing::look;
use onecopy_chain::{Chain, Fragment, Writer};
use onecopy_pool::{AllocError, Page, Pages};
use onecopy_uring::Ring;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};
use std::io::IoSliceMut;

/// Bytes of what the ring has received, up to which it is copied behind what came before it.
const SHORT: usize = 4096;
/// Bytes that a program's thread receives by one call.
const MOST: usize = 64 << 10;
/// Bytes of a page of its own.
const PAGE: usize = 4096;

/// What a copy goes to that has room in pages that are there, and gets no others.
struct NoPages;

impl Pages for NoPages {
    fn alloc(&self) -> Result<Page, AllocError> {
        Err(AllocError::Exhausted { limit: 0 })
    }

    fn page_len(&self) -> u32 {
        PAGE as u32
    }
}

impl Connection {
    /// Returns whether it is known where what is received goes, as far as there is a connection.
    pub fn turn_receive(&self, state: &mut Inner, ring: &mut Ring) -> bool {
        if !self.decide(state) {
            return false;
        }
        // No more than is left: so however many there are that nobody reads, some is left for the next one.
        state.receive_room = RECEIVE_ROOM.min(ring.spare());
        let full = state.is_full();
        let gives_up = state.takes_pages && (full || ring.is_scarce());
        match state.receiving {
            Some(key) if (gives_up || state.closed) && !state.cancelled => {
                state.cancelled = true;
                ring.cancel(key);
            }
            Some(_) => {}
            None if state.phase != Phase::Open || state.ended || full => state.starves = false,
            None if matches!(state.goes, Goes::Device(..)) => {
                if state.bell.is_some() && !state.readable {
                    state.takes_pages = false;
                    state.receiving = Some(ring.readable(&self.fd, self.token));
                }
            }
            // Its program receives that.
            None if state.readable => {}
            None if ring.is_scarce() || !ring.has_pages() => {
                state.starves = state.starves && !self.may_receive();
                if !state.starves {
                    state.takes_pages = false;
                    state.receiving = Some(ring.readable(&self.fd, self.token));
                }
            }
            None => {
                (state.starves, state.takes_pages) = (false, true);
                state.receiving = Some(ring.receive(&self.fd, self.token));
            }
        }
        true
    }

    /// Whether there is a page for who receives by itself.
    fn may_receive(&self) -> bool {
        self.shared().received().is_ok_and(|pool| pool.reservoir(1).alloc().is_ok())
    }

    /// The ring has received something. What is short, and comes behind what nobody has taken, is copied into what is left of the last page: each
    /// completion has a page of its own, whatever comes of it.
    pub fn arrived(&self, state: &mut Inner, data: Fragment) {
        let len = data.len();
        self.common.counters().kernel_copied.add(len);
        if state.closed {
            return;
        }
        let mut chain = Chain::new();
        // One piece of a page, which an empty chain takes.
        let taken = chain.append(data);
        debug_assert!(taken.is_ok());
        if len <= SHORT
            && let Ok(host) = chain.host()
            && let Some(bytes) = host.slices().next()
            && state.receive.write(&Writer::new(&NoPages), bytes).is_ok()
        {
            self.common.counters().user_copied_out.add(len);
            return;
        }
        state.receive.push(chain.into());
    }

    /// There may be something that the ring was not asked to receive.
    pub fn may_be_readable(&self, state: &mut Inner) {
        // (It may have been unbound since it was asked.)
        if matches!(state.goes, Goes::Device(..)) {
            state.readable = true;
        } else if state.is_receiving() {
            match look(&self.fd) {
                Ok(0) => (state.ended, state.done) = (true, !state.shut),
                Ok(_) => state.readable = true,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => state.fail(errno),
            }
        }
    }

    /// Receives up to `n` bytes by the program's thread, where the ring does not for want of pages. Returns whether the ring is to be asked again, now or
    /// once there are some.
    pub fn receive_here(&self, state: &mut Inner, n: usize) -> bool {
        if !state.readable || matches!(state.goes, Goes::Device(..)) || !state.is_receiving() {
            return false;
        }
        match self.receive_into_pages(state, n.clamp(1, MOST)) {
            Ok(true) if rustix::io::ioctl_fionread(&*self.fd).is_ok_and(|left| left > 0) => return false,
            // (What comes now, and the end, it is told of.)
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::NOBUFS) => state.starves = true,
            Err(errno) => state.fail(errno),
        }
        state.readable = false;
        true
    }

    /// Returns whether it came to all of `n` bytes that there were pages for.
    fn receive_into_pages(&self, state: &mut Inner, n: usize) -> Result<bool, Errno> {
        let pool = self.shared().received()?.reservoir(n.div_ceil(PAGE));
        let mut pages = Vec::new();
        while pages.len() * PAGE < n
            && let Ok(page) = pool.alloc()
        {
            pages.push(page);
        }
        if pages.is_empty() {
            return Err(Errno::NOBUFS);
        }
        let room = n.min(pages.len() * PAGE);
        let mut left = room;
        let mut slices = Vec::with_capacity(pages.len());
        for page in &mut pages {
            let bytes = page.bytes_mut().ok_or(Errno::FAULT)?;
            let len = left.min(PAGE);
            slices.push(IoSliceMut::new(&mut bytes[..len]));
            left -= len;
        }
        let got =
            recvmsg(&*self.fd, &mut slices, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT)?.bytes;
        self.submitter.received_outside();
        self.common.counters().kernel_copied.add(got);
        if got == 0 {
            (state.ended, state.done) = (true, !state.shut);
        }
        let mut left = got;
        for page in pages {
            let len = left.min(PAGE);
            if len == 0 {
                break;
            }
            let data = Fragment::new(page, 0, len).map_err(|_| Errno::INVAL)?;
            state.receive.push(Chain::from(data).into());
            left -= len;
        }
        Ok(got == room)
    }

    /// Has the ring tell of a reset behind the end of what is received, where somebody polls, or sends: no receive is under way that would say so.
    pub fn turn_watch(&self, state: &mut Inner, ring: &mut Ring) {
        state.sent_behind |= state.ended && !state.send.is_empty();
        let wanted = state.ended && state.phase == Phase::Open && !state.closed;
        match state.watching {
            Some(key) if (state.closed || state.phase != Phase::Open) && state.watched => {
                state.watched = false;
                ring.cancel(key);
            }
            None if wanted && !state.watched && (state.bell.is_some() || state.sent_behind) => {
                state.watched = true;
                state.watching = Some(ring.hung_up(&self.fd, self.token));
            }
            _ => {}
        }
    }

    /// Finds out where what is received goes, when there is a connection. Returns false where that is not known yet: the thread looks again soon.
    pub fn decide(&self, state: &mut Inner) -> bool {
        match &state.goes {
            Goes::Undecided if state.phase == Phase::Open => {
                let devices = &self.shared().devices;
                let local = if devices.is_used() { addresses(&*self.fd).local } else { None };
                state.goes = match local.map_or(Place::Host, |local| devices.place(local)) {
                    Place::Device(landing, queue) => Goes::Device(landing, queue),
                    Place::Host => Goes::Host,
                    Place::Unsettled => return false,
                };
                self.waiters.tell();
            }
            Goes::Device(landing, _) if !landing.is_bound() => self.is_unbound(state),
            _ => {}
        }
        true
    }
}
