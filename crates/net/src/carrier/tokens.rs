//! Fragments that a program has, by number.

use super::frag::{Frag, TokenRange};
use onecopy_chain::Fragment;
use onecopy_pool::provider::CopyError;
use onecopy_sync::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Fragments that one call considers at most, those that are not there among them (net/core/sock.c: MAX_DONTNEED_FRAGS).
const MOST: usize = 1024;

/// Which fragments the program of a socket has. A token is a number that was never given out before, and never will be again (2^64 of them are enough
/// for 500 years of a thousand million a second; the kernel's have 31 bits, and come again): one that is returned twice is nobody's.
pub(crate) struct Tokens {
    state: Mutex<State>,
    /// Called when pages have come home, without the lock.
    freed: Box<dyn Fn() + Send + Sync>,
}

#[derive(Debug, Default)]
struct State {
    held: HashMap<u64, Fragment, BuildHasherDefault<InOrder>>,
    last: u64,
    /// The socket is closed: what is given out now is given back at once.
    closed: bool,
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
    /// None yet; `freed` is called when pages have come home.
    pub fn new(freed: impl Fn() + Send + Sync + 'static) -> Tokens {
        Tokens { state: Mutex::default(), freed: Box::new(freed) }
    }

    /// Gives out a token for each fragment; without one (0) where the socket is closed.
    pub fn give_out(&self, fragments: impl Iterator<Item = (Fragment, Frag)>, into: &mut Vec<Frag>) {
        let mut state = self.state.lock();
        for (fragment, frag) in fragments {
            let token = if state.closed {
                0
            } else {
                state.last += 1;
                state.last
            };
            if token != 0 {
                state.held.insert(token, fragment);
            }
            into.push(Frag { token, ..frag });
        }
    }

    /// Takes tokens back; of those that nobody has, nothing becomes. Returns fragments that are free.
    pub fn give_back(&self, ranges: &[TokenRange]) -> usize {
        let mut freed = Vec::new();
        let mut left = MOST;
        {
            let mut state = self.state.lock();
            for range in ranges {
                let count = (range.count as usize).min(left);
                left -= count;
                let tokens = (0..count as u64).map_while(|n| range.start.checked_add(n));
                freed.extend(tokens.filter_map(|token| state.held.remove(&token)));
            }
        }
        self.home(freed)
    }

    /// Takes these back, however many they are.
    pub fn give_back_all(&self, frags: &[Frag]) {
        let freed = {
            let mut state = self.state.lock();
            frags.iter().filter_map(|frag| state.held.remove(&frag.token)).collect()
        };
        self.home(freed);
    }

    /// Another reference to the page of a fragment that the program has.
    pub fn hold(self: &Arc<Tokens>, token: u64) -> Option<Hold> {
        let fragment = self.state.lock().held.get(&token).cloned()?;
        Some(Hold { fragment: Some(fragment), home: Arc::clone(self) })
    }

    /// The socket is closed: what its program has not given back is free.
    pub fn close(&self) {
        let held = {
            let mut state = self.state.lock();
            state.closed = true;
            std::mem::take(&mut state.held)
        };
        self.home(held.into_values().collect());
    }

    /// How many the program has.
    pub fn held(&self) -> usize {
        self.state.lock().held.len()
    }

    /// Sends pages home, through their pool's return ring.
    fn home(&self, freed: Vec<Fragment>) -> usize {
        let count = freed.len();
        drop(freed);
        if count > 0 {
            (self.freed)();
        }
        count
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
        self.home.home(self.fragment.take().into_iter().collect());
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
