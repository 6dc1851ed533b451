//! What programs ask of sockets.

use super::demux::{Ends, Place};
use super::lower::Lower;
use super::memory::Charge;
use super::ports::{Hold, NoPort};
use super::room::Claim;
use super::slab::Id;
use super::socket::{Asked, Bound, Connected, Fresh, Listener, Slot};
use super::{Stack, context, has, lengths};
use crate::tcp::After;
use crate::tcp::fast_open::{Attempt, Queue, Use};
use crate::tcp::memory::Pressure;
use crate::tcp::{
    Connection, Context, Error, Info, Readiness, Received, SendFlags, Settings, Side, State, Wake,
};
use crate::wire::{Ip, Ipv4, Tcp};
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Kind, Writer};
use onecopy_pool::Pages;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

impl Listener {
    /// Whether no more connections may wait to be accepted (sk_acceptq_is_full(): there is one more than the backlog says).
    pub(super) fn is_full(&self) -> bool {
        self.ready.len() as u32 > self.backlog
    }
}

impl Stack {
    /// Makes a socket (socket(2)).
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] where there are as many as there may be.
    pub fn tcp_open(&mut self) -> Result<Id, Error> {
        let fresh = |_| Slot::Fresh(Box::new(Fresh::new(Arc::clone(&self.settings))));
        self.sockets.insert_with(fresh).ok_or(Error::NoMemory)
    }

    /// Gives it an address (bind(2)): port 0 is one that nobody has. `reuse` is SO_REUSEADDR.
    ///
    /// # Errors
    ///
    /// [`Error::AddressNotAvailable`], [`Error::AddressInUse`], [`Error::Invalid`] where it has one.
    pub fn tcp_bind(&mut self, id: Id, address: SocketAddr, reuse: bool) -> Result<(), Error> {
        if !address.ip().is_unspecified() && !self.ip.is_local(address.ip()) {
            return Err(Error::AddressNotAvailable);
        }
        let Some(Slot::Fresh(fresh)) = self.sockets.get_mut(id) else {
            return Err(if self.sockets.get(id).is_some() { Error::Invalid } else { Error::NoSuchSocket });
        };
        if fresh.hold.is_some() {
            return Err(Error::Invalid);
        }
        fresh.asked.reuse = reuse;
        fresh.hold = Some(self.ports.bind(address.ip(), address.port(), reuse).map_err(no_port)?);
        fresh.asked.address = Some(address.into());
        Ok(())
    }

    /// Gives it an address and no port, which is chosen with the peer (IP_BIND_ADDRESS_NO_PORT).
    ///
    /// # Errors
    ///
    /// As [`Stack::tcp_bind`].
    pub fn tcp_bind_address(&mut self, id: Id, address: IpAddr) -> Result<(), Error> {
        if !address.is_unspecified() && !self.ip.is_local(address) {
            return Err(Error::AddressNotAvailable);
        }
        match self.sockets.get_mut(id).ok_or(Error::NoSuchSocket)? {
            Slot::Fresh(fresh) if fresh.hold.is_none() => {
                fresh.asked = Asked { address: Some(Place { ip: address, port: 0 }), reuse: true };
                Ok(())
            }
            _ => Err(Error::Invalid),
        }
    }

    /// Whose a connection from `local`, or any address of this host, to `to` is, of several stacks ([`Share`](crate::shard::Share)).
    ///
    /// # Errors
    ///
    /// As [`Stack::tcp_connect`].
    pub fn tcp_whose(&self, local: SocketAddr, to: SocketAddr) -> Result<usize, Error> {
        let (ip, remote) = self.addresses(Some(local.ip()), to.into())?;
        let ends = Ends { local: Place { ip, port: local.port() }, remote };
        Ok(self.ip.share().map_or(0, |share| share.of_ends(&ends)))
    }

    /// Has it wait for connections (listen(2)); called again, it changes the backlog.
    ///
    /// # Errors
    ///
    /// [`Error::AddressInUse`], [`Error::Invalid`] for a connection.
    pub fn tcp_listen(&mut self, id: Id, backlog: u32) -> Result<(), Error> {
        let backlog = backlog.min(self.config.somaxconn);
        let all = self.config.fast_open.contains(Use::SERVER | Use::ALL_LISTENERS);
        let usual = if all { backlog } else { 0 };
        let slot = self.sockets.get_mut(id).ok_or(Error::NoSuchSocket)?;
        match slot {
            Slot::Listener(listener) => listener.backlog = backlog,
            // Its connect waits for the first bytes (inet_listen() wants SS_UNCONNECTED).
            Slot::Fresh(fresh) if fresh.deferred.is_some() => return Err(Error::Invalid),
            Slot::Fresh(fresh) => {
                let mut hold = match fresh.hold.take() {
                    Some(hold) => hold,
                    None => {
                        let Asked { address, reuse } = fresh.asked;
                        let address = address.map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip);
                        self.ports.bind(address, 0, reuse).map_err(no_port)?
                    }
                };
                if let Err(error) = self.ports.listen(&mut hold) {
                    fresh.hold = Some(hold);
                    return Err(no_port(error));
                }
                self.demux.listen(hold.local(), id);
                *slot = Slot::Listener(Box::new(Listener {
                    settings: fresh.settings.clone(),
                    asked: fresh.asked,
                    hold,
                    backlog,
                    half_open: 0,
                    fast_open: Queue::new(usual),
                    ready: Default::default(),
                    wake: Wake::empty(),
                }));
            }
            _ => return Err(Error::Invalid),
        }
        Ok(())
    }

    /// Begins a connection (connect(2)). Later calls say how it goes: [`Error::Already`] while it is being made, then once that it is made,
    /// then [`Error::Connected`]. Where it could not be made they say why, once, and the next one begins anew.
    ///
    /// # Errors
    ///
    /// [`Error::InProgress`] where it has begun; why it cannot, else.
    pub fn tcp_connect(&mut self, now: u64, id: Id, to: SocketAddr) -> Result<(), Error> {
        let fresh = match self.sockets.get_mut(id).ok_or(Error::NoSuchSocket)? {
            Slot::Fresh(fresh) => fresh,
            Slot::Listener(_) => return Err(Error::Connected),
            Slot::Connection(_) => return self.connect_again(id),
            _ => return Err(Error::NoSuchSocket),
        };
        if fresh.deferred.is_some() {
            return Err(Error::Connected);
        }
        let deferred = fresh.settings.fast_open_connect && self.config.fast_open.contains(Use::CLIENT);
        let ends = self.resolve(id, to.into())?;
        if deferred {
            return self.connect_deferred(now, id, ends);
        }
        self.send_first(now, id, ends, None);
        Err(Error::InProgress)
    }

    /// The ends of a connection that is to be made; the socket has its port from then on.
    pub(super) fn resolve(&mut self, id: Id, to: Place) -> Result<Ends, Error> {
        let Some(Slot::Fresh(fresh)) = self.sockets.get(id) else { return Err(Error::NoSuchSocket) };
        let asked = fresh.hold.as_ref().map(Hold::local).or(fresh.asked.address).map(|asked| asked.ip);
        let (local, remote) = self.addresses(asked, to)?;
        let Some(Slot::Fresh(fresh)) = self.sockets.get_mut(id) else { return Err(Error::NoSuchSocket) };
        let (reuse, held) = (fresh.asked.reuse, fresh.hold.take());
        let (demux, sockets, share) = (&self.demux, &self.sockets, self.ip.share());
        let connected = |ends: &Ends| demux.connection(ends, |id, ends| has(sockets, id, ends)).is_some();
        let own = |ends: &Ends| share.is_none_or(|share| share.of_ends(ends) == share.me());
        let hold = match held {
            Some(hold) => {
                let ends = Ends { local: Place { ip: local, ..hold.local() }, remote };
                let taken = connected(&ends) || !own(&ends);
                if taken {
                    self.hold(id, hold);
                    return Err(Error::AddressNotAvailable);
                }
                hold
            }
            None => {
                let free = |port| {
                    let ends = Ends { local: Place { ip: local, port }, remote };
                    !connected(&ends) && own(&ends)
                };
                self.ports.connect(local, remote, reuse, free).map_err(|_| Error::AddressNotAvailable)?
            }
        };
        let ends = Ends { local: Place { ip: local, ..hold.local() }, remote };
        self.hold(id, hold);
        Ok(ends)
    }

    /// Has a socket that is not connected keep the port.
    fn hold(&mut self, id: Id, hold: Hold) {
        if let Some(Slot::Fresh(fresh)) = self.sockets.get_mut(id) {
            fresh.hold = Some(hold);
        }
    }

    /// The address of ours that a connection is from, where `asked` was asked for, and the other end.
    fn addresses(&self, asked: Option<IpAddr>, to: Place) -> Result<(IpAddr, Place), Error> {
        let bound = asked.filter(|ip| !ip.is_unspecified());
        // This host, where no other is said (as the kernel does): 127.0.0.1, if it has that.
        let own = || bound.or_else(|| self.ip.loopback_like(to.ip)).or_else(|| self.ip.first_like(to.ip));
        let remote = match to.ip.is_unspecified() {
            true => Place { ip: own().ok_or(Error::NetUnreachable)?, ..to },
            false => to,
        };
        if asked.is_some_and(|asked| asked.is_ipv4() != remote.ip.is_ipv4()) {
            return Err(Error::AddressFamily);
        }
        if bound.is_some_and(|bound| bound.is_loopback()) && !self.ip.is_local(remote.ip) {
            return Err(Error::Invalid);
        }
        // A connection has one peer (tcp_v4_connect(), tcp_v6_connect()).
        if remote.ip.is_multicast() || self.ip.is_broadcast(remote.ip) {
            return Err(Error::NetUnreachable);
        }
        let source = self.ip.source(remote.ip).ok_or(Error::NetUnreachable)?;
        Ok((bound.unwrap_or(source), remote))
    }

    /// Sends the SYN; with data, where that is wanted: how, what of, and whether the caller waits to give the rest.
    pub(super) fn send_first(
        &mut self,
        now: u64,
        id: Id,
        ends: Ends,
        early: Option<(&Attempt, &mut Segment<Chain>, bool)>,
    ) {
        let Some(Slot::Fresh(fresh)) = self.sockets.get_mut(id) else { return };
        let (settings, hold, asked) = (fresh.settings.clone(), fresh.hold.take(), fresh.asked);
        let number = self.numbers.sequence(now, &ends);
        let offset = self.clock_offset(&ends);
        let lengths = lengths(&self.ip, now, &ends);
        let mut lower = Lower { ip: &mut self.ip, ends, now };
        let mut ctx = context(now, &self.config, &mut self.stats, &mut lower, &self.spare, lengths);
        let connection = match early {
            Some((attempt, data, waits)) => {
                Connection::connect_early(&mut ctx, settings, (number, offset), attempt, data, waits)
            }
            None => Connection::connect(&mut ctx, settings, number, offset),
        };
        if let Some(at) = connection.deadline() {
            self.timers.set(id.index(), at);
        }
        let connected = Connected {
            connection,
            ends,
            hold,
            asked,
            listener: None,
            early: None,
            wake: Wake::empty(),
            charge: Charge::default(),
            claim: Claim::default(),
        };
        if let Some(slot) = self.sockets.get_mut(id) {
            *slot = Slot::Connection(Box::new(connected));
        }
        self.charge(id);
        self.connect(&ends, id);
    }

    /// The next connection that waits (accept(2)), and who it is with.
    ///
    /// # Errors
    ///
    /// [`Error::WouldBlock`], [`Error::Invalid`] for what does not listen.
    pub fn tcp_accept(&mut self, id: Id) -> Result<(Id, SocketAddr), Error> {
        let listener = match self.sockets.get_mut(id) {
            Some(Slot::Listener(listener)) => listener,
            Some(_) => return Err(Error::Invalid),
            None => return Err(Error::NoSuchSocket),
        };
        let child = listener.ready.pop_front().ok_or(Error::WouldBlock)?;
        let connected = self.sockets.get_mut(child).and_then(Slot::connected_mut).ok_or(Error::WouldBlock)?;
        connected.listener = None;
        connected.connection.told();
        Ok((child, connected.ends.remote.into()))
    }

    fn call<R>(
        &mut self,
        now: u64,
        id: Id,
        call: impl FnOnce(&mut Connection, &mut Context<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        match self.sockets.get_mut(id) {
            Some(Slot::Connection(_)) => self.with(now, id, call).unwrap_or(Err(Error::NoSuchSocket)),
            Some(Slot::Fresh(fresh)) => Err(fresh.error.take().unwrap_or(Error::NotConnected)),
            Some(Slot::Listener(_)) => Err(Error::NotConnected),
            _ => Err(Error::NoSuchSocket),
        }
    }

    /// Whether the link takes such memory. What it does not is refused when it is given: it would be dropped each time it is sent.
    pub(super) fn takes(&mut self, data: &Segment<Chain>) -> Result<(), Error> {
        let link = self.ip.capabilities();
        let device = data.payload().kind() == Some(Kind::Device);
        if device && !(link.unreadable && link.checksum) {
            self.stats.device_memory += 1;
            return Err(Error::DeviceMemory);
        }
        Ok(())
    }

    /// Gives bytes to be sent, by reference: takes as many from the front of `data` as there is room for.
    ///
    /// # Errors
    ///
    /// As [`Connection::send`], and [`Error::DeviceMemory`].
    pub fn tcp_send(
        &mut self,
        now: u64,
        id: Id,
        data: &mut Segment<Chain>,
        flags: SendFlags,
    ) -> Result<usize, Error> {
        self.takes(data)?;
        if self.tcp_is_deferred(id) {
            return self.send_deferred(now, id, data, flags);
        }
        self.call(now, id, |connection, ctx| connection.send(ctx, data, flags)).map_err(unsent)
    }

    /// As [`Stack::tcp_send`], of a copy in pages that `writer` has.
    ///
    /// # Errors
    ///
    /// As [`Connection::send_bytes`].
    pub fn tcp_send_bytes<A: Pages + ?Sized>(
        &mut self,
        now: u64,
        id: Id,
        bytes: &[u8],
        writer: &Writer<'_, A>,
        flags: SendFlags,
    ) -> Result<usize, Error> {
        if self.tcp_is_deferred(id) {
            // No more goes with the SYN than a packet has, and the rest is not taken.
            let most = bytes.len().min(self.ip.mtu() as usize);
            let mut chain = Chain::new();
            writer.append(&mut chain, &bytes[..most]).map_err(|_| Error::NoMemory)?;
            return self.send_deferred(now, id, &mut chain.into(), flags);
        }
        self.call(now, id, |connection, ctx| connection.send_bytes(ctx, bytes, writer, flags)).map_err(unsent)
    }

    /// Up to `max` bytes of what has arrived.
    ///
    /// # Errors
    ///
    /// As [`Connection::receive`].
    pub fn tcp_receive(&mut self, now: u64, id: Id, max: usize) -> Result<Received, Error> {
        let pressure = self.shared.pressure(&self.config);
        if let Some(connected) = self.sockets.get_mut(id).and_then(Slot::connected_mut)
            && pressure == Pressure::None
        {
            // Most often there are bytes, and nothing follows from their being read.
            let room = self.rooms.left(connected);
            connected.connection.set_room(room);
            if let Some((data, follows)) = connected.connection.read(now, pressure, max) {
                self.shared.charge(&self.config, &mut self.stats, id, connected);
                self.rooms.claim(id, connected);
                if !follows.is_empty() {
                    self.with(now, id, |connection, ctx| connection.was_read(ctx, follows));
                }
                return Ok(Received::Data(data));
            }
        }
        if self.tcp_is_deferred(id) {
            return Err(Error::WouldBlock);
        }
        self.call(now, id, |connection, ctx| connection.receive(ctx, max))
    }

    /// Up to `max` bytes from byte `offset` of what has arrived, which stay.
    pub fn tcp_peek(&self, id: Id, offset: u64, max: usize) -> Option<Segment<Chain>> {
        self.sockets.get(id)?.connected()?.connection.peek(offset, max)
    }

    /// Shuts one way down, or both (shutdown(2)). Where the connection is still being made, that is [`Stack::tcp_disconnect`].
    ///
    /// # Errors
    ///
    /// [`Error::NotConnected`].
    pub fn tcp_shutdown(&mut self, now: u64, id: Id, side: Side) -> Result<(), Error> {
        if let Some(Slot::Listener(_)) = self.sockets.get(id) {
            if side != Side::Write {
                self.unlisten(now, id);
            }
            return Ok(());
        }
        match self.sockets.get(id) {
            Some(Slot::Fresh(fresh)) if fresh.deferred.is_none() => return Err(Error::NotConnected),
            _ if self.tcp_state(id) == Some(State::SynSent) => return self.tcp_disconnect(now, id),
            _ => {}
        }
        let after = self.call(now, id, |connection, ctx| connection.shutdown(ctx, side))?;
        self.follow(now, id, after);
        Ok(())
    }

    /// Has a listener wait no more: what waits to be accepted is reset.
    pub(super) fn unlisten(&mut self, now: u64, id: Id) {
        let Some(Slot::Listener(listener)) = self.sockets.get_mut(id) else { return };
        let waiting: Vec<Id> = std::mem::take(&mut listener.ready).into();
        let half_open = listener.half_open;
        self.demux.unlisten(listener.hold.local(), id);
        let (settings, asked) = (listener.settings.clone(), listener.asked);
        if half_open > 0 {
            let theirs: Vec<Id> = self
                .sockets
                .iter()
                .filter(|(_, slot)| matches!(slot, Slot::Request(pending) if pending.listener == id))
                .map(|(id, _)| id)
                .collect();
            theirs.into_iter().for_each(|id| self.forget(id));
        }
        for child in waiting {
            self.tcp_abort(now, child);
            self.forget(child);
        }
        let Some(slot) = self.sockets.get_mut(id) else { return };
        let wake = Wake::READ | Wake::STATE;
        let fresh = Box::new(Fresh { settings, asked, hold: None, error: None, deferred: None, wake });
        if let Slot::Listener(mut listener) = std::mem::replace(slot, Slot::Fresh(fresh)) {
            self.ports.unlisten(&mut listener.hold);
            if let Slot::Fresh(fresh) = slot {
                fresh.hold = Some(listener.hold);
            }
            if listener.wake.is_empty() {
                self.events.push_back(id);
            }
        }
    }

    /// Lets go of a socket (close(2)); its connection ends in order, without it.
    pub fn tcp_close(&mut self, now: u64, id: Id) {
        match self.sockets.get(id) {
            Some(Slot::Connection(_)) => match self.with(now, id, |connection, ctx| connection.close(ctx)) {
                Some(After::Keep) if self.ends_orphan(now, id) => {}
                Some(after) => self.follow(now, id, after),
                None => {}
            },
            Some(Slot::Listener(_)) => {
                self.unlisten(now, id);
                self.forget(id);
            }
            Some(Slot::Fresh(_)) => self.forget(id),
            // Nobody's names.
            _ => {}
        }
    }

    /// Ends a connection at once, for both sides (SO_LINGER of zero, ss -K). The socket stays until it is closed.
    pub fn tcp_abort(&mut self, now: u64, id: Id) {
        if self.with(now, id, |connection, ctx| connection.abort(ctx)).is_some() {
            self.ended(id);
        }
    }

    /// What would not wait (poll(2)).
    pub fn tcp_readiness(&self, id: Id) -> Readiness {
        match self.sockets.get(id) {
            Some(Slot::Connection(connected)) => connected.connection.readiness(&self.config),
            Some(Slot::Listener(listener)) if !listener.ready.is_empty() => Readiness::READ,
            Some(Slot::Fresh(fresh)) if fresh.deferred.is_some() => Readiness::WRITE,
            Some(Slot::Fresh(fresh)) if fresh.error.is_some() => {
                Readiness::WRITE | Readiness::HUNG_UP | Readiness::ERROR
            }
            Some(Slot::Fresh(_)) => Readiness::WRITE | Readiness::HUNG_UP,
            _ => Readiness::empty(),
        }
    }

    /// Why it failed, once (SO_ERROR).
    pub fn tcp_take_error(&mut self, id: Id) -> Option<Error> {
        match self.sockets.get_mut(id)? {
            Slot::Connection(connected) => connected.connection.take_error(),
            Slot::Fresh(fresh) => fresh.error.take(),
            _ => None,
        }
    }

    /// Its options.
    pub fn tcp_settings(&self, id: Id) -> Option<&Settings> {
        match self.sockets.get(id)? {
            Slot::Fresh(fresh) => Some(&fresh.settings),
            Slot::Listener(listener) => Some(&listener.settings),
            Slot::Connection(connected) => Some(connected.connection.settings()),
            _ => None,
        }
    }

    /// Changes its options (setsockopt(2)). What was accepted of a listener before keeps what it had.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSocket`], and [`Error::BadSetting`] with nothing changed.
    pub fn tcp_set(&mut self, now: u64, id: Id, change: impl FnOnce(&mut Settings)) -> Result<(), Error> {
        let mut settings = self.tcp_settings(id).ok_or(Error::NoSuchSocket)?.clone();
        change(&mut settings);
        settings.settle(self.tcp_state(id) == Some(State::Closed)).map_err(Error::BadSetting)?;
        let settings = Arc::new(settings);
        match self.sockets.get_mut(id) {
            Some(Slot::Fresh(fresh)) => fresh.settings = settings,
            Some(Slot::Listener(listener)) => listener.settings = settings,
            Some(Slot::Connection(_)) => {
                self.with(now, id, |connection, ctx| connection.set(ctx, settings));
            }
            _ => return Err(Error::NoSuchSocket),
        }
        Ok(())
    }

    /// Sends what waits to become a full segment: setting TCP_NODELAY does so each time, whether it was on or not.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSocket`], [`Error::NotConnected`].
    pub fn tcp_push(&mut self, now: u64, id: Id) -> Result<(), Error> {
        self.call(now, id, |connection, ctx| {
            connection.push(ctx);
            Ok(())
        })
    }

    /// Whether its ACKs leave at once, for now (TCP_QUICKACK).
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSocket`], [`Error::NotConnected`].
    pub fn tcp_quick_ack(&mut self, now: u64, id: Id, on: bool) -> Result<(), Error> {
        self.call(now, id, |connection, ctx| {
            connection.quick_ack(ctx, on);
            Ok(())
        })
    }

    /// Where it is in its life; none for what is nobody's socket.
    pub fn tcp_state(&self, id: Id) -> Option<State> {
        match self.sockets.get(id)? {
            Slot::Fresh(fresh) if fresh.deferred.is_some() => Some(State::SynSent),
            Slot::Fresh(_) => Some(State::Closed),
            Slot::Listener(_) => Some(State::Listen),
            Slot::Connection(connected) => Some(connected.connection.state()),
            _ => None,
        }
    }

    /// What is known of it (TCP_INFO).
    pub fn tcp_info(&self, now: u64, id: Id) -> Option<Info> {
        match self.sockets.get(id)? {
            Slot::Connection(connected) => {
                let mut info = connected.connection.info(now);
                let chosen = connected.connection.settings().max_segment.map_or(u32::MAX, u32::from);
                let header = Ip::header_len(connected.ends.remote.ip) as u32;
                let (segment, ..) = lengths(&self.ip, now, &connected.ends);
                info.pmtu = segment + header - Ipv4::LEN as u32;
                info.advmss = self
                    .ip
                    .mtu_to(now, connected.ends.remote.ip)
                    .saturating_sub(header + Tcp::LEN as u32)
                    .min(chosen);
                Some(info)
            }
            Slot::Listener(listener) => Some(Info {
                state: State::Listen as u8,
                unacked: listener.ready.len() as u32,
                sacked: listener.backlog,
                ..Info::default()
            }),
            Slot::Fresh(_) => Some(Info { state: self.tcp_state(id)? as u8, ..Info::default() }),
            _ => None,
        }
    }

    /// Connections that wait to be accepted there.
    pub fn tcp_waiting(&self, id: Id) -> usize {
        match self.sockets.get(id) {
            Some(Slot::Listener(listener)) => listener.ready.len(),
            _ => 0,
        }
    }

    /// The connection of that name, to be looked at.
    pub fn tcp_connection(&self, id: Id) -> Option<&Connection> {
        Some(&self.sockets.get(id)?.connected()?.connection)
    }

    /// Its addresses.
    pub fn tcp_addresses(&self, id: Id) -> Bound {
        let slot = self.sockets.get(id);
        Bound {
            local: slot.and_then(Slot::local).map(SocketAddr::from),
            remote: slot.and_then(Slot::connected).map(|connected| connected.ends.remote.into()),
        }
    }
}

fn no_port(error: NoPort) -> Error {
    match error {
        NoPort::InUse => Error::AddressInUse,
        NoPort::Exhausted => Error::AddressInUse,
    }
}

/// A socket that was never connected says of sending what the kernel's does.
fn unsent(error: Error) -> Error {
    if error == Error::NotConnected { Error::BrokenPipe } else { error }
}
