//! How a ring is to be, how a send is to go, and what a ring has counted.

use onecopy_pool::{PagePool, Region};
use onecopy_sys::datagram::Control;
use std::net::SocketAddr;

/// How a ring is to be.
#[derive(Debug)]
pub struct Config {
    /// Requests that are handed over by one call.
    pub entries: u32,
    /// Pages that wait for what is received: a power of two.
    pub buffers: u16,
    /// Where they come from. Whoever takes them slowly takes them from all sockets of the ring.
    pub pages: PagePool,
    /// Pages that are sent from often, to be registered if that is allowed.
    pub region: Option<Region>,
}

/// What a ring has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls of io_uring_enter(2).
    pub enters: u64,
    /// Requests.
    pub requests: u64,
    /// Completions.
    pub completions: u64,
    /// Sends without a copy that the kernel took.
    pub zero_copy: u64,
    /// Of these, in registered pages.
    pub registered: u64,
    /// Notifications, one for each of those.
    pub notifications: u64,
    /// Notifications that said truly that the bytes were copied.
    pub copied: u64,
    /// Notifications that may say so falsely.
    pub unknown: u64,
    /// Receives that found no page.
    pub no_page: u64,
}

/// How a send goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Send {
    /// From where the bytes lie (IORING_OP_SENDMSG_ZC); else the kernel copies them.
    pub zero_copy: bool,
    /// More comes (MSG_MORE).
    pub more: bool,
    /// Until all of it is taken (MSG_WAITALL): of a stream.
    pub whole: bool,
    /// Where there is no room now, it says EAGAIN instead of waiting for some (MSG_DONTWAIT).
    pub dont_wait: bool,
    /// Whom it is for; none for whom the socket is connected to.
    pub to: Option<SocketAddr>,
    /// What else is said of it, a datagram.
    pub control: Option<Control>,
}
