//! What a socket's name stands for.

use super::demux::{Ends, Place};
use super::memory::Charge;
use super::ports::Hold;
use super::room::Claim;
use super::slab::Id;
use super::udp::Attached;
use crate::tcp::fast_open::Queue;
use crate::tcp::listener::Request;
use crate::tcp::time_wait::TimeWait;
use crate::tcp::{Connection, Error, Settings, Wake};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

/// What a socket is bound to, and connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its own address (getsockname(2)).
    pub local: Option<SocketAddr>,
    /// The other end's (getpeername(2)).
    pub remote: Option<SocketAddr>,
}

/// A socket, or what is left of one.
#[derive(Debug)]
pub(super) enum Slot {
    /// Made, and neither connected nor listening.
    Fresh(Box<Fresh>),
    /// Waits for connections.
    Listener(Box<Listener>),
    /// Half open; nobody's socket yet.
    Request(Box<Pending>),
    /// A connection, being made, made, or ended and not let go of.
    Connection(Box<Connected>),
    /// Over; nobody's socket any more.
    TimeWait(Box<Over>),
    /// UDP's.
    Udp(Box<Attached>),
}

/// What bind(2) was told: it holds for as long as the socket is there, however often it connects.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    /// With port 0 where it left the choice (SOCK_BINDADDR_LOCK, SOCK_BINDPORT_LOCK).
    pub address: Option<Place>,
    pub reuse: bool,
}

impl Asked {
    /// Whether it asked for this very port.
    pub fn has_port(&self) -> bool {
        self.address.is_some_and(|address| address.port != 0)
    }
}

/// Made, and neither connected nor listening.
#[derive(Debug)]
pub(super) struct Fresh {
    pub settings: Arc<Settings>,
    pub asked: Asked,
    pub hold: Option<Hold>,
    /// Why it is not connected any more, until somebody is told.
    pub error: Option<Error>,
    /// It was a listener, and who waits for it was not told yet that it is none now.
    pub wake: Wake,
    /// Its connect waits for the first bytes (TCP_FASTOPEN_CONNECT).
    pub deferred: Option<Ends>,
}

impl Fresh {
    pub fn new(settings: Arc<Settings>) -> Fresh {
        let (asked, wake) = (Asked::default(), Wake::empty());
        Fresh { settings, asked, hold: None, error: None, wake, deferred: None }
    }
}

/// Waits for connections.
#[derive(Debug)]
pub(super) struct Listener {
    pub settings: Arc<Settings>,
    pub asked: Asked,
    pub hold: Hold,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// Those that are half open.
    pub half_open: u32,
    /// Those that were begun with a SYN.
    pub fast_open: Queue,
    /// Those that wait to be accepted.
    pub ready: VecDeque<Id>,
    pub wake: Wake,
}

/// Half open.
#[derive(Debug)]
pub(super) struct Pending {
    pub request: Request,
    pub ends: Ends,
    pub listener: Id,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connected {
    pub connection: Connection,
    pub ends: Ends,
    pub hold: Option<Hold>,
    pub asked: Asked,
    /// It waits to be accepted there.
    pub listener: Option<Id>,
    /// It was begun by that listener with a SYN, and its handshake is not over.
    pub early: Option<Id>,
    /// What whoever waits for it was not told yet.
    pub wake: Wake,
    /// What it keeps of the memory of all.
    pub charge: Charge,
    /// What it may still get of a room.
    pub claim: Claim,
}

/// Over.
#[derive(Debug)]
pub(super) struct Over {
    pub rest: TimeWait,
    pub ends: Ends,
    pub hold: Option<Hold>,
}

impl Slot {
    pub fn local(&self) -> Option<Place> {
        match self {
            Slot::Fresh(fresh) => fresh.hold.as_ref().map(Hold::local).or(fresh.asked.address),
            Slot::Listener(listener) => Some(listener.hold.local()),
            Slot::Request(pending) => Some(pending.ends.local),
            Slot::Connection(connected) => Some(connected.ends.local),
            Slot::TimeWait(over) => Some(over.ends.local),
            Slot::Udp(attached) => attached.local(),
        }
    }

    /// Its ends, where it is a connection in any form.
    #[inline]
    pub fn ends(&self) -> Option<&Ends> {
        match self {
            Slot::Connection(connected) => Some(&connected.ends),
            Slot::Request(pending) => Some(&pending.ends),
            Slot::TimeWait(over) => Some(&over.ends),
            Slot::Fresh(fresh) => fresh.deferred.as_ref(),
            Slot::Listener(_) | Slot::Udp(_) => None,
        }
    }

    pub fn connected(&self) -> Option<&Connected> {
        if let Slot::Connection(connected) = self { Some(connected) } else { None }
    }

    pub fn connected_mut(&mut self) -> Option<&mut Connected> {
        if let Slot::Connection(connected) = self { Some(connected) } else { None }
    }

    pub fn listener_mut(&mut self) -> Option<&mut Listener> {
        if let Slot::Listener(listener) = self { Some(listener) } else { None }
    }
}
