//! The handle of a send.

use super::shared::{Entry, Shared};
use super::wakers;
use crate::notify::outcome::How;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A send under way: resolves to how its bytes left, once nobody holds them any more. That takes somebody who frees the segments: the
/// only thread that drives the stack does not wait for it. Dropped, it is forgotten, and the send goes on.
#[must_use = "the buffer may be changed once this says so"]
pub struct Sent(pub(super) Where);

pub(super) enum Where {
    /// Copied: it was over when it was made.
    Here(How),
    There {
        shared: Arc<Shared>,
        index: u32,
    },
}

impl Sent {
    /// How its bytes left, if they have.
    ///
    /// # Errors
    ///
    /// The handle, if they have not.
    pub fn try_wait(mut self) -> Result<How, Sent> {
        self.look(None).ok_or(self)
    }

    /// Waits until the buffer is the caller's again.
    pub fn wait(mut self) -> How {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            if let Some(how) = self.look(Some(&waker)) {
                return how;
            }
            std::thread::park();
        }
    }

    /// Waits at most `limit`.
    ///
    /// # Errors
    ///
    /// The handle, if that was not enough.
    pub fn wait_for(mut self, limit: Duration) -> Result<How, Sent> {
        let start = Instant::now();
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            if let Some(how) = self.look(Some(&waker)) {
                return Ok(how);
            }
            match onecopy_sync::clock::remaining(start, limit) {
                Some(left) => std::thread::park_timeout(left),
                None => return Err(self),
            }
        }
    }

    /// How it went, if it is over; else `waker` is woken when it is.
    fn look(&mut self, waker: Option<&Waker>) -> Option<How> {
        let Where::There { shared, index } = &self.0 else {
            let Where::Here(how) = self.0 else { return None };
            return Some(how);
        };
        // Cloning it is code of others.
        let (index, waker) = (*index, waker.cloned());
        let (mut spare, mut before) = (None, None);
        let how = shared.with(|state, pinned, wake| {
            state.collect(pinned, wake);
            let entry = &mut state.entries[index as usize];
            if let Some(how) = entry.how {
                *entry = Entry::default();
                state.free.push(index);
                return Some(how);
            }
            if let Some(waker) = waker {
                match &entry.waker {
                    // Who asks again and again is not woken by it.
                    Some(same) if same.will_wake(&waker) => spare = Some(waker),
                    // Dropped outside of the lock, and of those of whoever asks.
                    Some(_) => before = entry.waker.replace(waker),
                    None => {
                        entry.waker = Some(waker);
                        state.wanted += 1;
                    }
                }
                // Should it complete right now, the waker says so.
                state.settle(pinned, wake);
            }
            None
        });
        drop(spare);
        wakers::let_go(before);
        let how = how?;
        // Nobody asks the entry again.
        self.0 = Where::Here(how);
        Some(how)
    }
}

impl Future for Sent {
    type Output = How;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<How> {
        self.look(Some(context.waker())).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let Where::There { shared, index } = &self.0 else { return };
        let index = *index;
        let before = shared.with(|state, pinned, wake| {
            state.collect(pinned, wake);
            let entry = &mut state.entries[index as usize];
            let waker = entry.waker.take();
            if entry.how.is_some() {
                *entry = Entry::default();
                state.free.push(index);
            } else {
                entry.orphan = true;
                state.wanted -= usize::from(waker.is_some());
            }
            waker
        });
        wakers::let_go(before);
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Where::Here(how) => f.debug_tuple("Sent").field(how).finish(),
            Where::There { index, .. } => f.debug_tuple("Sent").field(index).finish(),
        }
    }
}

/// Wakes a thread that parks.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
