//! A ring by which tokens are given back without a call.

use super::frag::Frag;
use super::hunger::Filled;
use super::tokens::Tokens;
use onecopy_sync::Pusher;
use std::fmt;
use std::sync::Arc;

/// Gives tokens of one stream back without a call ([`Stream::refill_ring`](crate::tcp::Stream::refill_ring)), as the refill ring of io_uring's zero copy receive does
/// (Documentation/networking/iou-zcrx.rst): the program writes a token to shared memory, and whoever needs pages takes it from there.
///
/// A push is a store, a fence and a load: no lock, no system call, no allocation, and it waits for nobody. It does what
/// [`Stream::dont_need`](crate::tcp::Stream::dont_need) does, for all that lies in the ring, only where somebody waits for it who would not look, or where it finds no room:
///
/// - a peer of the stack may send no whole segment for want of pages ([`Event::Starved`](super::Event::Starved));
/// - a NIC puts bytes into memory that the stack has bound ([`Builder::interface`](crate::Builder::interface)): it waits for pages and does not look there;
/// - the ring is full: nobody has taken anything out for as long as it has entries. So none is ever lost or refused, and
///   [`RefillStats::full`] counts how often a larger ring would have saved the call.
///
/// Taken out is what it has
///
/// - by each receive and each other call of the stream's that has to do with fragments,
/// - by the stack, where a peer may send no whole segment, or less than 64 KiB of the memory are free when a packet comes,
/// - under the kernel's TCP by each receive that finds no page, of whichever stream.
///
/// Until then its pages are not free. A token that is unknown, another socket's, or given back before is passed over, and counted.
///
/// Dropped, it gives back what it has; so does the stream when it is closed. What is pushed after that is nobody's.
pub struct RefillRing {
    ring: Pusher<u64>,
    home: Arc<Tokens>,
    pushed: u64,
    starved: u64,
    full: u64,
}

/// What became of tokens that were pushed ([`RefillRing::stats`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefillStats {
    /// Tokens that were pushed.
    pub pushed: u64,
    /// Of them, those that were taken out, or given back by a push of their own; the others lie in the ring.
    pub taken: u64,
    /// Of these, those that were nobody's: unknown, another socket's, or given back before.
    pub passed_over: u64,
    /// Pushes that did what a call does, as a peer might send no whole segment.
    pub starved: u64,
    /// Pushes that did so, as the ring was full.
    pub full: u64,
}

impl RefillRing {
    /// None where there is a ring for these tokens.
    pub(crate) fn open(home: &Arc<Tokens>, entries: usize) -> Option<RefillRing> {
        let ring = home.open_ring(entries)?;
        let filled: Arc<dyn Filled> = home.clone();
        home.hunger().join(Arc::downgrade(&filled));
        Some(RefillRing { ring, home: Arc::clone(home), pushed: 0, starved: 0, full: 0 })
    }

    /// Gives a token back ([`Frag::token`]).
    #[inline]
    pub fn push(&mut self, token: u64) {
        self.put(token);
        self.see_to_peers();
    }

    /// Gives those of `frags` back, with one fence for all of them.
    pub fn push_all(&mut self, frags: &[Frag]) {
        if frags.is_empty() {
            return;
        }
        frags.iter().for_each(|frag| self.put(frag.token));
        self.see_to_peers();
    }

    #[inline]
    fn put(&mut self, token: u64) {
        self.pushed += 1;
        if let Err(token) = self.ring.push(token) {
            self.full += 1;
            self.home.take_in_and(token);
        }
    }

    /// Who waits for what lies in the ring, and does not look there, gets it.
    #[inline]
    fn see_to_peers(&mut self) {
        if self.home.hunger().is_starved() {
            self.starved += 1;
            self.home.take_in();
        }
    }

    /// Tokens that it has room for.
    pub fn entries(&self) -> usize {
        self.ring.places()
    }

    /// What became of tokens so far. It takes none out.
    pub fn stats(&self) -> RefillStats {
        let (taken, passed_over) = self.home.ring_counts();
        RefillStats { pushed: self.pushed, taken, passed_over, starved: self.starved, full: self.full }
    }
}

impl Drop for RefillRing {
    fn drop(&mut self) {
        self.home.hunger().leave(&*self.home);
        self.home.end_ring();
    }
}

impl fmt::Debug for RefillRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RefillRing({} entries, {:?})", self.entries(), self.stats())
    }
}
