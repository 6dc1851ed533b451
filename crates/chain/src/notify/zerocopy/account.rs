//! What the sockets of a stack have in common.

use super::shared::{Shared, State};
use super::socket::Zerocopy;
use super::{Allowance, Counts};
use crate::notify::lane::Config;
use crate::notify::refused::Refused;
use std::fmt;
use std::sync::Arc;

/// What the sockets of one stack have in common: the queue of their completions, and what they may keep.
#[derive(Clone)]
pub struct Account(Arc<Shared>);

impl Account {
    /// With nothing charged.
    pub fn new(allowance: Allowance) -> Account {
        Account(Shared::new(allowance))
    }

    /// A socket's sends. It is made when it is needed: a lane has memory for its slots.
    ///
    /// # Errors
    ///
    /// As [`Context::lane`](crate::notify::Context::lane).
    pub fn socket(&self, config: Config) -> Result<Zerocopy, Refused> {
        let lane = self.0.lane(config)?;
        Ok(Zerocopy::new(lane, self.0.clone()))
    }

    /// Takes in what has completed, and wakes who waits for it: for whoever drives the stack, after each turn. Returns how many sends it
    /// was.
    pub fn collect(&self) -> usize {
        self.0.with(State::settle)
    }

    /// The numbers ([`Zerocopy::index`]) of sockets that have had notices since this was last called: those to be polled for EPOLLERR.
    pub fn news(&self) -> Vec<u32> {
        self.0.news()
    }

    /// Changes what may be kept, from now on.
    pub fn set_allowance(&self, allowance: Allowance) {
        self.0.state.lock().allowance = allowance;
    }

    /// What may be kept.
    pub fn allowance(&self) -> Allowance {
        self.0.state.lock().allowance
    }

    /// Pages that are charged for this account's sends whose completions have not been taken in.
    pub fn pinned_pages(&self) -> u64 {
        self.0.pinned_pages()
    }

    /// How often what happened.
    pub fn counts(&self) -> Counts {
        self.0.state.lock().counts
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("pinned_pages", &self.pinned_pages()).finish_non_exhaustive()
    }
}
