//! One socket, without its addresses.

use super::error::Error;
use super::inbox::Inbox;
use super::settings::{Config, Settings};

/// How long a router's word about the way's MTU is believed: net.ipv4.route.mtu_expires, 600 s.
const PATH_NS: u64 = 600_000_000_000;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Socket {
    pub settings: Settings,
    pub inbox: Inbox,
    /// What a complaint said, until somebody is told (sk_err).
    error: Option<Error>,
    /// The longest packet that the way to the connected peer takes, as routers say, and until when that is believed.
    path: Option<(u16, u64)>,
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

    /// The longest packet for the connected peer; `mtu` is the link's.
    pub fn path_mtu(&self, now: u64, mtu: u32) -> u32 {
        self.path.filter(|(_, until)| now < *until).map_or(mtu, |(path, _)| mtu.min(path.into()))
    }

    /// A router says what its next link takes.
    pub fn path_shrunk(&mut self, now: u64, mtu: u16, link: u32) {
        if u32::from(mtu) < self.path_mtu(now, link) {
            self.path = Some((mtu, now.saturating_add(PATH_NS)));
        }
    }

    /// It has another peer, or none: what was known of the way to the last one is of no meaning.
    pub fn new_peer(&mut self) {
        self.path = None;
    }
}
