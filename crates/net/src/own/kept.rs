//! What a socket and its shard both need of it.

use super::waiter::{Awaited, Waiter};
use crate::bell::{Bell, Joint};
use crate::carrier::Counts;
use onecopy_inet::stack::Stack;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::Readiness;
use onecopy_socket::Counters;
use onecopy_socket::registry::Row;
use std::sync::{Arc, OnceLock};

/// One of each socket: all that the shard looks at when something happens to it lies together.
pub(crate) struct Kept {
    waiter: Waiter,
    /// Where `onecopy ss` sees it, and where it counts.
    row: Row,
    asks: &'static Asks,
    /// Where somebody polls it, if anybody does. Set under the shard's lock.
    shows: OnceLock<Box<Shows>>,
}

/// What a socket's protocol is asked.
pub(crate) struct Asks {
    /// What its descriptor is to show.
    pub readiness: fn(&Stack, Id) -> Readiness,
    /// What `onecopy ss` is to show.
    pub moves: fn(&Stack, Id) -> (u8, u64, u64),
}

/// Where it is shown what a socket is ready for.
enum Shows {
    /// At its own descriptor.
    Own(Bell),
    /// Together with those of other shards, as this one of them.
    Joint(Arc<Joint>, u32),
}

impl Kept {
    pub fn new(id: Id, row: Row, asks: &'static Asks) -> Kept {
        Kept { waiter: Waiter::new(id), row, asks, shows: OnceLock::new() }
    }

    pub fn id(&self) -> Id {
        self.waiter.id()
    }

    pub fn row(&self) -> &Row {
        &self.row
    }

    /// Its own descriptor, if it has one.
    pub fn bell(&self) -> Option<&Bell> {
        match self.shows.get().map(|shows| &**shows) {
            Some(Shows::Own(bell)) => Some(bell),
            _ => None,
        }
    }

    /// Whether somebody polls it.
    pub(super) fn is_polled(&self) -> bool {
        self.shows.get().is_some()
    }

    /// Gives it a descriptor of its own, unless it is polled. Under the shard's lock. Returns whether it was given.
    pub(super) fn make_bell(&self, inet: &Stack) -> rustix::io::Result<bool> {
        if self.is_polled() {
            return Ok(false);
        }
        let bell = Bell::new()?;
        bell.show((self.asks.readiness)(inet, self.id()));
        Ok(self.shows.set(Box::new(Shows::Own(bell))).is_ok())
    }

    /// Has `joint` show what it is ready for, as `part` of what that shows, unless it is polled. Under the shard's lock. Returns whether it
    /// does.
    pub(super) fn join(&self, inet: &Stack, joint: &Arc<Joint>, part: usize) -> bool {
        joint.show(part, (self.asks.readiness)(inet, self.id()));
        self.shows.set(Box::new(Shows::Joint(Arc::clone(joint), part as u32))).is_ok()
    }

    /// Shows who looks from outside how it is with it.
    #[inline]
    pub(super) fn show(&self, inet: &Stack) {
        let (state, queue, unacknowledged) = (self.asks.moves)(inet, self.id());
        self.row.moves(state, queue, unacknowledged);
    }

    /// Has its descriptor, if there is one, show what it is ready for.
    #[inline]
    pub(super) fn mirror(&self, inet: &Stack) {
        if let Some(shows) = self.shows.get() {
            let ready = (self.asks.readiness)(inet, self.id());
            match &**shows {
                Shows::Own(bell) => bell.show(ready),
                Shows::Joint(joint, part) => joint.show(*part as usize, ready),
            }
        }
    }
}

impl Awaited for Kept {
    fn waiter(&self) -> &Waiter {
        &self.waiter
    }
}

impl Counts for Kept {
    fn counters(&self) -> Counters {
        self.row.counters()
    }
}

/// With what `Arc` counts in front: an idle socket has one.
const _: () = assert!(size_of::<Kept>() <= 56);
