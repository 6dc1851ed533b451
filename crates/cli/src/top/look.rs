//! What is shown: two looks, and what was done between them.

use crate::ss::{Found, Rates, Which};
use std::time::Instant;

/// What was found, and when.
#[derive(Debug)]
pub struct Look {
    which: Which,
    pub found: Found,
    at: Instant,
}

/// What was done between two looks.
#[derive(Debug)]
pub struct Between {
    pub found: Found,
    pub rates: Rates,
}

impl Look {
    /// Looks now.
    pub fn now(which: &Which) -> anyhow::Result<Look> {
        Ok(Look { which: which.clone(), found: which.look()?, at: Instant::now() })
    }

    /// Looks again: this look becomes the earlier one of the next time.
    pub fn again(&mut self) -> anyhow::Result<Between> {
        let next = Look::now(&self.which)?;
        let rates = Rates::since(&self.found.sockets, next.at - self.at);
        *self = next;
        Ok(Between { found: self.found.clone(), rates })
    }
}
