//! Fast Open, between a stack's sockets: cookies, who may begin early, and connects that wait for their first bytes.

use super::arrive::Arrived;
use super::demux::Ends;
use super::lower::Lower;
use super::memory::Charge;
use super::room::Claim;
use super::slab::Id;
use super::socket::{Asked, Connected, Slot};
use super::{Stack, context, lengths};
use crate::tcp::fast_open::{Attempt, Keys, News, Use, cookie};
use crate::tcp::listener::Request;
use crate::tcp::{Connection, Error, SendFlags, Wake};
use crate::wire::tcp::Cookie;
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// What a listener makes of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    /// It begins a connection at once.
    pub early: bool,
    /// What the SYN-ACK says.
    pub cookie: Option<Cookie>,
}

impl Opening {
    const PLAIN: Opening = Opening { early: false, cookie: None };
}

impl Stack {
    fn keys(&self, chosen: Option<Keys>) -> Keys {
        chosen.or(self.config.fast_open_keys).unwrap_or(self.own_keys)
    }

    /// Whether a SYN may begin a connection at once (tcp_try_fastopen()).
    pub(super) fn opening(&mut self, now: u64, parent: Id, ends: &Ends, arrived: &Arrived<'_>) -> Opening {
        let (used, shown) = (self.config.fast_open, arrived.header.options.fast_open);
        let Some(Slot::Listener(listener)) = self.sockets.get_mut(parent) else { return Opening::PLAIN };
        if shown.is_some_and(|cookie| cookie.bytes().is_empty()) {
            self.stats.fast_open_asked += 1;
        }
        if !used.contains(Use::SERVER) || shown.is_none() && arrived.len() == 0 {
            return Opening::PLAIN;
        }
        let chosen = listener.settings.fast_open_queue.map(|queue| queue.min(self.config.somaxconn));
        if !listener.fast_open.has_room(now, chosen) {
            self.stats.fast_open_overflows += u64::from(listener.fast_open.is_on(chosen));
            return Opening::PLAIN;
        }
        if used.contains(Use::SERVER_NO_COOKIE) || listener.settings.fast_open_no_cookie {
            return Opening { early: true, cookie: None };
        }
        let Some(shown) = shown else { return Opening::PLAIN };
        let chosen = listener.settings.fast_open_keys;
        let keys = self.keys(chosen);
        let (client, server) = (ends.remote.ip, ends.local.ip);
        // The answer comes in the option that was asked in.
        let said = |cookie: Cookie| Some(cookie.in_experiment(shown.experimental));
        if shown.bytes().is_empty() {
            return Opening { early: false, cookie: said(keys.cookie(client, server)) };
        }
        match keys.check(&shown, client, server) {
            cookie::Shown::Good => Opening { early: true, cookie: None },
            cookie::Shown::Old(fresh) => {
                self.stats.fast_open_old_keys += 1;
                Opening { early: true, cookie: said(fresh) }
            }
            cookie::Shown::Wrong(right) => {
                self.stats.fast_open_wrong_cookies += 1;
                Opening { early: false, cookie: said(right) }
            }
        }
    }

    /// Makes the connection of a SYN that may begin one: it waits to be accepted at once.
    pub(super) fn begin_early(
        &mut self,
        now: u64,
        parent: Id,
        ends: Ends,
        request: &Request,
        arrived: Arrived<'_>,
        cookie: Option<Cookie>,
    ) {
        let Some(Slot::Listener(listener)) = self.sockets.get_mut(parent) else { return };
        let settings = listener.settings.clone();
        let hold = self.ports.inherit(&listener.hold, ends.local.ip);
        let lengths = lengths(&self.ip, now, &ends);
        let mut lower = Lower { ip: &mut self.ip, ends, now };
        let mut ctx = context(now, &self.config, &mut self.stats, &mut lower, &self.spare, lengths);
        let Arrived { header, payload, .. } = arrived;
        let agreed = request.agreed();
        let connection = Connection::answer_early(&mut ctx, settings, agreed, header, payload, cookie);
        let deadline = connection.deadline();
        let connected = Box::new(Connected {
            connection,
            ends,
            hold: Some(hold),
            asked: Asked::default(),
            listener: Some(parent),
            early: Some(parent),
            wake: Wake::empty(),
            charge: Charge::default(),
            claim: Claim::default(),
        });
        // (That there is room was seen before.)
        let Some(id) = self.sockets.insert_with(|_| Slot::Connection(connected)) else { return };
        self.charge(id);
        self.connect(&ends, id);
        if let Some(at) = deadline {
            self.timers.set(id.index(), at);
        }
        if let Some(Slot::Listener(listener)) = self.sockets.get_mut(parent) {
            listener.ready.push_back(id);
            listener.fast_open.begin();
        }
        self.wake_listener(parent, Wake::READ);
    }

    /// After anything has happened to a connection: a listener's queue has one less if its handshake is over; and what it has learned is
    /// remembered.
    pub(super) fn follow_fast_open(&mut self, now: u64, id: Id, news: Option<News>) {
        let Some(connected) = self.sockets.get_mut(id).and_then(Slot::connected_mut) else { return };
        if let Some(news) = news {
            self.cookies.learn(now, connected.ends.remote.ip, news);
        }
        if connected.early.is_some()
            && !connected.connection.opens_early()
            && let Some(parent) = connected.early.take()
        {
            // One that nobody has accepted keeps its place in another queue.
            let penalty =
                connected.listener.is_none() && connected.connection.failure() == Some(Error::Reset);
            if let Some(listener) = self.sockets.get_mut(parent).and_then(Slot::listener_mut) {
                listener.fast_open.end(now, penalty);
            }
        }
    }

    /// Connections of a listener that have begun by a SYN and are not through, and those that were reset lately; none for what is no
    /// listener.
    pub fn tcp_early(&self, id: Id) -> Option<u32> {
        match self.sockets.get(id)? {
            Slot::Listener(listener) => Some(listener.fast_open.pending()),
            _ => None,
        }
    }

    fn attempt(&self, now: u64, id: Id, to: IpAddr) -> Attempt {
        match self.tcp_settings(id) {
            Some(settings) => {
                let mut how = self.config.fast_open;
                how.set(
                    Use::CLIENT_NO_COOKIE,
                    how.contains(Use::CLIENT_NO_COOKIE) || settings.fast_open_no_cookie,
                );
                self.cookies.attempt(now, how, self.config.fast_open_pause, to)
            }
            None => Attempt::default(),
        }
    }

    /// Whether [`Stack::tcp_connect_with`] would send data with the SYN: there is a cookie of `to`, or none is needed.
    pub fn tcp_carries(&self, now: u64, id: Id, to: IpAddr) -> bool {
        let to = match self.sockets.get(id) {
            Some(Slot::Fresh(fresh)) => fresh.deferred.map_or(to, |ends| ends.remote.ip),
            _ => return false,
        };
        self.config.fast_open.contains(Use::CLIENT) && self.attempt(now, id, to).carries
    }

    /// Whether connect waits for the first bytes ([`crate::tcp::Settings::fast_open_connect`]): it was called, and nothing was sent.
    pub fn tcp_is_deferred(&self, id: Id) -> bool {
        matches!(self.sockets.get(id), Some(Slot::Fresh(fresh)) if fresh.deferred.is_some())
    }

    /// Begins a connection with as much of `data` as goes with the SYN, which is taken from its front (sendto(2) with MSG_FASTOPEN). Of a
    /// connection that is made, it sends.
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`] where [`Use::CLIENT`] is not set, [`Error::InProgress`] where it has begun and no data went: then, or for the
    /// rest, data is sent when the connection is made. Else as [`Stack::tcp_connect`] and [`Stack::tcp_send`].
    pub fn tcp_connect_with(
        &mut self,
        now: u64,
        id: Id,
        to: SocketAddr,
        data: &mut Segment<Chain>,
        flags: SendFlags,
    ) -> Result<usize, Error> {
        if !self.config.fast_open.contains(Use::CLIENT) {
            return Err(Error::NotSupported);
        }
        self.takes(data)?;
        let deferred = match self.sockets.get_mut(id).ok_or(Error::NoSuchSocket)? {
            Slot::Connection(_) => {
                self.connect_again(id)?;
                return self.tcp_send(now, id, data, flags);
            }
            Slot::Fresh(fresh) => fresh.deferred.take(),
            Slot::Listener(_) => return Err(Error::Connected),
            _ => return Err(Error::NoSuchSocket),
        };
        let ends = match deferred {
            Some(ends) => ends,
            None => self.resolve(id, to.into())?,
        };
        let attempt = self.attempt(now, id, ends.remote.ip);
        self.send_first(now, id, ends, Some((&attempt, data, flags.contains(SendFlags::WAITS))));
        match self.tcp_connection(id).map_or(0, Connection::syn_data) {
            0 => Err(Error::InProgress),
            taken => Ok(taken),
        }
    }

    /// The first bytes of a connect that waited for them.
    pub(super) fn send_deferred(
        &mut self,
        now: u64,
        id: Id,
        data: &mut Segment<Chain>,
        flags: SendFlags,
    ) -> Result<usize, Error> {
        self.tcp_connect_with(now, id, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), data, flags)
    }

    /// connect(2) of a socket with TCP_FASTOPEN_CONNECT (tcp_fastopen_defer_connect()): with a cookie, it waits for the first bytes.
    pub(super) fn connect_deferred(&mut self, now: u64, id: Id, ends: Ends) -> Result<(), Error> {
        let attempt = self.attempt(now, id, ends.remote.ip);
        if !attempt.carries {
            self.send_first(now, id, ends, Some((&attempt, &mut Segment::default(), false)));
            return Err(Error::InProgress);
        }
        if let Some(Slot::Fresh(fresh)) = self.sockets.get_mut(id) {
            fresh.deferred = Some(ends);
            self.connect(&ends, id);
        }
        Ok(())
    }

    /// Forgets the cookies of all servers.
    pub fn tcp_forget_cookies(&mut self) {
        self.cookies.clear();
    }
}
