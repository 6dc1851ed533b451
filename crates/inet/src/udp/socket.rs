//! One socket, without its addresses.

use super::error::Error;
use super::inbox::Inbox;
use super::settings::{Config, Settings};

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Socket {
    pub settings: Settings,
    pub inbox: Inbox,
    /// What a complaint said, until somebody is told (sk_err).
    error: Option<Error>,
    /// Datagrams for it that were dropped.
    pub drops: u64,
}

impl Socket {
    /// Bytes that may wait to be received.
    pub fn limit(&self, config: &Config) -> u64 {
        u64::from(self.settings.receive_buffer.unwrap_or(config.receive_buffer))
    }

    /// The error that stands, once.
    pub fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    pub fn has_error(&self) -> bool {
        self.error.is_some()
    }

    /// The next call says so. One error stands at a time, the newest.
    pub fn fail(&mut self, error: Error) {
        self.error = Some(error);
    }
}
