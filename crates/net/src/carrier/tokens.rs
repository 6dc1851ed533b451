//! Fragments that a program has, by number.

use super::frag::{Frag, TokenRange};
use super::hunger::{Filled, Hunger};
use super::refused::{Nobodys, Refused};
use onecopy_chain::Fragment;
use onecopy_pool::provider::CopyError;
use onecopy_sync::{Mutex, Popper, Pusher, queue};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Fragments that one call considers at most, those that are not there among them (net/core/sock.c: MAX_DONTNEED_FRAGS).
const MOST: usize = 1024;

/// Which fragments the program of a socket has. A token is a number that was never given out before, and never will be again (2^64 of them are enough
/// for 500 years of a thousand million a second; the kernel's have 31 bits, and come again): one that is returned twice is nobody's.
pub(crate) struct Tokens {
    state: Mutex<State>,
    /// Whose pages they are, as far as it waits for them.
    hunger: Arc<Hunger>,
    /// Where their stack counts those that come back and are nobody's.
    refused: Arc<Refused>,
    /// Tells it that some have come home, without the lock.
    tell: Box<dyn Fn() + Send + Sync>,
    /// It is told each time, whoever waits.
    always: bool,
}

#[derive(Debug, Default)]
struct State {
    out: Out,
    /// What comes back without a call, if there is a way for it.
    ring: Option<Ring>,
}

/// Which are out.
#[derive(Debug, Default)]
struct Out {
    held: HashMap<u64, Fragment, BuildHasherDefault<InOrder>>,
    /// The last one that was given out.
    last: u64,
    /// The socket took all of them back as it was closed: whose they were does not know, and that is nobody's mistake.
    closed: bool,
}

/// The side of a [`RefillRing`](super::RefillRing) that tokens are taken out of.
#[derive(Debug)]
struct Ring {
    tokens: Popper<u64>,
    taken: u64,
    /// Of these, those that were nobody's.
    passed_over: u64,
}

/// Fragments that are free, once they are dropped without the lock, and what came back with them.
#[derive(Default)]
struct Freed {
    fragments: Vec<Fragment>,
    nobodys: Nobodys,
}

impl State {
    /// Takes in what the program has pushed. Whoever looks which fragments it has does so first.
    fn take_in(&mut self, freed: &mut Freed) {
        let Some(ring) = &mut self.ring else { return };
        for token in ring.tokens.drain() {
            ring.taken += 1;
            ring.passed_over += u64::from(!self.out.take_back(token, freed));
        }
    }
}

impl Out {
    /// Takes one token back; returns whether it was somebody's.
    fn take_back(&mut self, token: u64, freed: &mut Freed) -> bool {
        match self.held.remove(&token) {
            Some(fragment) => {
                freed.fragments.push(fragment);
                return true;
            }
            None if (1..=self.last).contains(&token) => freed.nobodys.stale += u64::from(!self.closed),
            None => freed.nobodys.unknown += 1,
        }
        false
    }
}

/// Spreads tokens, which come one after the other and are nobody else's to choose: a multiplication will do.
#[derive(Debug, Default)]
struct InOrder(u64);

impl Hasher for InOrder {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }
    fn write_u64(&mut self, token: u64) {
        self.0 = (self.0 ^ token).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Tokens {
    /// None yet; `tell` is called when pages have come home that `hunger` says somebody waits for.
    pub fn new(
        hunger: Arc<Hunger>,
        refused: Arc<Refused>,
        tell: impl Fn() + Send + Sync + 'static,
    ) -> Tokens {
        Tokens { state: Mutex::default(), hunger, refused, tell: Box::new(tell), always: false }
    }

    /// As [`Tokens::new`]; `tell` is called each time that some have come home.
    pub fn telling(
        hunger: Arc<Hunger>,
        refused: Arc<Refused>,
        tell: impl Fn() + Send + Sync + 'static,
    ) -> Tokens {
        Tokens { always: true, ..Tokens::new(hunger, refused, tell) }
    }

    /// Whose pages they are, as far as it waits for them.
    pub fn hunger(&self) -> &Hunger {
        &self.hunger
    }

    /// Gives out a token for each fragment; without one (0) where the socket is closed.
    pub fn give_out(&self, fragments: impl Iterator<Item = (Fragment, Frag)>, into: &mut Vec<Frag>) {
        let mut state = self.state.lock();
        for (fragment, frag) in fragments {
            // Of a closed socket: what is given out now is given back at once.
            let token = if state.out.closed {
                0
            } else {
                state.out.last += 1;
                state.out.last
            };
            if token != 0 {
                state.out.held.insert(token, fragment);
            }
            into.push(Frag { token, ..frag });
        }
    }

    /// Takes tokens back; those that nobody has are counted, and nothing else becomes of them. Returns fragments that are free by it.
    pub fn give_back(&self, ranges: &[TokenRange]) -> usize {
        let mut freed = Freed::default();
        let mut left = MOST;
        let before;
        {
            let mut state = self.state.lock();
            state.take_in(&mut freed);
            before = freed.fragments.len();
            for range in ranges {
                let count = (range.count as usize).min(left);
                left -= count;
                for token in (0..count as u64).map_while(|n| range.start.checked_add(n)) {
                    state.out.take_back(token, &mut freed);
                }
            }
        }
        let count = freed.fragments.len() - before;
        self.home(freed);
        count
    }

    /// Takes these back, however many they are. Some may have come back before, by number: their owner does not know, and that is nobody's mistake.
    pub fn give_back_all(&self, frags: &[Frag]) {
        let mut freed = Freed::default();
        {
            let mut state = self.state.lock();
            state.take_in(&mut freed);
            freed.fragments.extend(frags.iter().filter_map(|frag| state.out.held.remove(&frag.token)));
        }
        self.home(freed);
    }

    /// Another reference to the page of a fragment that the program has.
    pub fn hold(self: &Arc<Tokens>, token: u64) -> Option<Hold> {
        self.take_in();
        let fragment = self.state.lock().out.held.get(&token).cloned()?;
        Some(Hold { fragment: Some(fragment), home: Arc::clone(self) })
    }

    /// The socket is closed: what its program has not given back is free.
    pub fn close(&self) {
        let mut freed = Freed::default();
        {
            let mut state = self.state.lock();
            state.take_in(&mut freed);
            state.out.closed = true;
            freed.fragments.extend(std::mem::take(&mut state.out.held).into_values());
        }
        self.home(freed);
    }

    /// How many the program has.
    pub fn held(&self) -> usize {
        self.take_in();
        self.state.lock().out.held.len()
    }

    /// The other side of a ring of so many entries, from which tokens are taken in from now on; None where there is one.
    pub(super) fn open_ring(&self, entries: usize) -> Option<Pusher<u64>> {
        let (pusher, tokens) = queue(entries);
        let mut state = self.state.lock();
        if state.ring.is_some() {
            return None;
        }
        state.ring = Some(Ring { tokens, taken: 0, passed_over: 0 });
        Some(pusher)
    }

    /// There is no ring any more: what lies in it is given back.
    pub(super) fn end_ring(&self) {
        let freed = {
            let mut state = self.state.lock();
            let mut freed = Freed::default();
            state.take_in(&mut freed);
            state.ring = None;
            freed
        };
        self.home(freed);
    }

    /// Tokens that were taken out of the ring, and those of them that were nobody's.
    pub(super) fn ring_counts(&self) -> (u64, u64) {
        self.state.lock().ring.as_ref().map_or((0, 0), |ring| (ring.taken, ring.passed_over))
    }

    /// Takes in what lies in the ring.
    pub fn take_in(&self) {
        let mut freed = Freed::default();
        self.state.lock().take_in(&mut freed);
        self.home(freed);
    }

    /// The same, and `token` behind it, as if that had been the last in the ring.
    pub(super) fn take_in_and(&self, token: u64) {
        let freed = {
            let mut state = self.state.lock();
            let mut freed = Freed::default();
            state.take_in(&mut freed);
            let there = state.out.take_back(token, &mut freed);
            if let Some(ring) = &mut state.ring {
                ring.taken += 1;
                ring.passed_over += u64::from(!there);
            }
            freed
        };
        self.home(freed);
    }

    /// Sends pages home, through their pool's return ring, and counts what was nobody's.
    fn home(&self, freed: Freed) {
        self.refused.count_tokens(freed.nobodys);
        self.free(freed.fragments);
    }

    fn free(&self, fragments: Vec<Fragment>) {
        let count = fragments.len();
        drop(fragments);
        if count > 0 && (self.always || self.hunger.feeds()) {
            (self.tell)();
        }
    }
}

impl Filled for Tokens {
    fn taken(&self) -> Vec<Fragment> {
        let mut freed = Freed::default();
        self.state.lock().take_in(&mut freed);
        self.refused.count_tokens(freed.nobodys);
        freed.fragments
    }
}

/// A fragment's page, which is not used again while this lives: for who has handed its address to others, such as a tensor's owner
/// ([`Token::hold`](crate::devmem::Token::hold)).
pub struct Hold {
    /// There until it is dropped.
    fragment: Option<Fragment>,
    home: Arc<Tokens>,
}

impl Hold {
    /// The memory that it lies in ([`DeviceMemory::id`](onecopy_pool::DeviceMemory::id)).
    pub fn memory(&self) -> u64 {
        self.fragment.as_ref().map_or(0, |fragment| fragment.page().pool_id())
    }

    /// Has the device copy the fragment's bytes to `into`, which is as long as it.
    ///
    /// # Errors
    ///
    /// As [`DeviceMemory::read_at`](onecopy_pool::DeviceMemory::read_at).
    ///
    /// # Panics
    ///
    /// Where `into` is of another length.
    pub fn copy_out(&self, into: &mut [u8]) -> Result<(), CopyError> {
        let Some(fragment) = &self.fragment else { return Ok(()) };
        assert_eq!(into.len(), fragment.len(), "a fragment is copied whole");
        fragment.page().copy_out(fragment.offset(), into)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.home.free(self.fragment.take().into_iter().collect());
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hold({:?})", self.fragment)
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({} held)", self.held())
    }
}
