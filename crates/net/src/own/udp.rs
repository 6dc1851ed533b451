//! What sockets of UDP are.

use super::inner::Inner;
use super::owner::Owner;
use super::shard::Shard;
use super::socket::{self, Protocol};
use crate::carrier::udp::Endpoint;
use crate::carrier::{Common, Counts, Limits, Message, Meta, PIECE, Taken, Way, alike};
use crate::error::{NO_PORT, of};
use crate::zerocopy::{At, Lender, NotSent, Range, Small};
use onecopy_chain::notify::Segment;
use onecopy_chain::notify::zerocopy::Tell;
use onecopy_chain::{Chain, Writer};
use onecopy_copy::Hint;
use onecopy_inet::stack::Bound;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::Readiness;
use onecopy_inet::udp::{Envelope, Error as Cause, MAX_LEN, Received, Settings};
use onecopy_inet::{stack, udp};
use onecopy_socket::registry::{self, Type};
use onecopy_socket::{Carrier, Error, Op, RecvFlags, Result, SendFlags};
use rustix::io::Errno;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

type Socket = socket::Socket<Udp>;

/// A socket without an address. The port that it gets will be one of its shard's, so that has to have some left, if any has.
pub(crate) fn open(owner: &Owner) -> Result<Arc<dyn Endpoint>> {
    owner.first().here(Op::Socket)?;
    let inner = match owner.shards() {
        [only] => only,
        _ => {
            let mut shards = owner.in_turn();
            let next = shards.clone().next();
            let left = |inner: &&Arc<Inner>| inner.with(|shard, _| shard.inet().udp_has_port());
            shards.find(left).or(next).unwrap_or(owner.first())
        }
    };
    Ok(Arc::new(Socket::open(inner, false)?))
}

/// A socket with an address, in the shard that all sockets of its port are in.
pub(crate) fn bind(owner: &Owner, address: SocketAddr, reuse: bool) -> Result<Arc<dyn Endpoint>> {
    let bind_in = |inner: &Arc<Inner>| -> Result<Arc<dyn Endpoint>> {
        let socket = Socket::open(inner, false)?;
        let bound = socket.with(|shard, id, _| shard.inet_mut().udp_bind(id, address, reuse));
        bound.map_err(|cause| match (cause, address.port()) {
            (Cause::AddressInUse, 0) => Error::new(Op::Bind, Errno::ADDRINUSE).because(NO_PORT),
            _ => of(Op::Bind, cause).about("address"),
        })?;
        socket.named();
        Ok(Arc::new(socket))
    };
    match address.port() {
        0 => owner.try_in_turn(Errno::ADDRINUSE, bind_in),
        port => {
            let whose = |shard: &mut Shard, _| {
                let share = shard.inet().interface().share();
                share.map_or(0, |share| share.of_port(port))
            };
            bind_in(&owner.shards()[owner.first().with(whose)])
        }
    }
}

enum Udp {}

impl Protocol for Udp {
    type Cause = udp::Error;
    type Settings = Settings;
    const TYPE: Type = Type::Datagram;
    const NAME: registry::Protocol = registry::Protocol::Udp;
    const APPENDS: bool = false;

    fn open(inet: &mut stack::Stack) -> std::result::Result<Id, Cause> {
        inet.udp_open()
    }

    fn close(inet: &mut stack::Stack, _: u64, id: Id) {
        inet.udp_close(id);
    }

    fn addresses(inet: &stack::Stack, id: Id) -> Bound {
        inet.udp_addresses(id)
    }

    /// An error is gone once it was told, and a descriptor that showed one would show it for ever: so both ways seem ready, and the next call
    /// says what it is.
    fn readiness(inet: &stack::Stack, id: Id) -> Readiness {
        let ready = inet.udp_readiness(id);
        match ready.contains(Readiness::ERROR) {
            true => Readiness::READ | Readiness::WRITE,
            false => ready,
        }
    }

    fn take_error(inet: &mut stack::Stack, id: Id) -> Option<Cause> {
        inet.udp_take_error(id)
    }

    fn settings(inet: &stack::Stack, id: Id) -> Option<&Settings> {
        inet.udp_settings(id)
    }

    fn set(
        inet: &mut stack::Stack,
        _: u64,
        id: Id,
        change: impl FnOnce(&mut Settings),
    ) -> std::result::Result<(), Cause> {
        inet.udp_set(id, change)
    }

    fn moves(_: &stack::Stack, _: Id) -> (u8, u64, u64) {
        (0, 0, 0)
    }

    fn state(inet: &stack::Stack, id: Id) -> impl fmt::Debug {
        inet.udp_waiting(id)
    }
}

impl Endpoint for Socket {
    fn counts(&self) -> Weak<dyn Counts> {
        Socket::counts(self)
    }

    fn common(&self) -> &Common {
        Socket::common(self)
    }

    fn carrier(&self) -> Carrier {
        Carrier::Stack
    }

    fn connect(&self, to: SocketAddr) -> Result<()> {
        self.inner().here(Op::Connect)?;
        let done = self.with(|shard, id, _| shard.inet_mut().udp_connect(id, to));
        self.named();
        done.map_err(|cause| of(Op::Connect, cause))
    }

    fn disconnect(&self) -> Result<()> {
        self.inner().here(Op::Connect)?;
        let done = self.with(|shard, id, _| shard.inet_mut().udp_disconnect(id));
        self.named();
        done.map_err(|cause| of(Op::Connect, cause))
    }

    fn addresses(&self) -> Bound {
        Socket::addresses(self)
    }

    fn take_error(&self) -> Option<Error> {
        Socket::take_error(self).map(|cause| of(Op::Send, cause))
    }

    fn drops(&self) -> u64 {
        self.with(|shard, id, _| shard.inet().udp_drops(id)).unwrap_or_default()
    }

    fn receive_buffer(&self) -> usize {
        self.with(|shard, id, _| {
            let inet = shard.inet();
            let chosen = inet.udp_settings(id).and_then(|settings| settings.receive_buffer);
            chosen.unwrap_or(inet.udp_config().receive_buffer) as usize
        })
    }

    fn change(&self, change: &mut dyn FnMut(&mut Settings)) -> Result<()> {
        self.set(change)
    }

    fn look(&self, look: &mut dyn FnMut(&Settings)) {
        self.get(look);
    }

    fn fd(&self) -> Result<BorrowedFd<'_>> {
        Socket::fd(self)
    }

    fn send_slices(&self, slices: &[IoSlice<'_>], envelope: &Envelope, flags: SendFlags) -> Result<usize> {
        let hint = self.hint(flags);
        self.wait_to_send(flags, |shard, id, now| {
            let copies = shard.kernel_copies();
            let (inet, pool) = shard.parts();
            let bytes = slices.iter().map(|slice| &**slice);
            let sent = inet.udp_send_slices(now, id, bytes, &Writer::new(pool).hint(hint), envelope);
            let n = sent.map_err(|cause| unsent(shard, id, cause))?;
            self.copied_in(n, hint, copies);
            Ok(n)
        })
    }

    fn send_segment(
        &self,
        data: &mut Segment<Chain>,
        envelope: &Envelope,
        flags: SendFlags,
    ) -> Result<usize> {
        self.wait_to_send(flags, |shard, id, now| {
            let copies = shard.copies_of(data.payload());
            let n = shard.inet_mut().udp_send(now, id, data, envelope)?;
            self.referenced(n, copies);
            Ok(n)
        })
    }

    fn send_many(&self, messages: &[Message<'_>], flags: SendFlags) -> Result<usize> {
        let hint = self.hint(flags);
        let mut done = 0;
        while done < messages.len() {
            // The lock is given up in between.
            let mut bytes = 0;
            let sent = self.wait_to_send(flags, |shard, id, now| {
                while done < messages.len() && bytes < PIECE {
                    let alike = alike(&messages[done..], &limits(shard));
                    bytes += self.send_alike(shard, id, now, alike, hint)?;
                    done += alike.len();
                }
                Ok(())
            });
            match sent {
                Ok(()) => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn lend(
        &self,
        chain: Chain,
        tell: Tell,
        envelope: &Envelope,
        flags: SendFlags,
    ) -> std::result::Result<Taken, NotSent> {
        Socket::lend(self, chain, tell, flags, |shard, id, now, data, _| {
            shard.inet_mut().udp_send(now, id, data, envelope)
        })
    }

    fn at(&self) -> At {
        Socket::at(self)
    }

    fn lender(&self) -> Option<&Lender> {
        Socket::lender(self)
    }

    fn lender_made(&self) -> Result<&Lender> {
        Socket::lender_made(self)
    }

    fn wait_notice(&self, limit: Option<Duration>) -> Result<Option<Range>> {
        Socket::wait_notice(self, limit)
    }

    fn set_small(&self, small: Option<Small>) -> Result<()> {
        Socket::set_small(self, small)
    }

    fn recv_msg(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<Meta> {
        let dont_wait = flags.contains(RecvFlags::DONTWAIT);
        if flags.contains(RecvFlags::PEEK) {
            return self.call(Op::Recv, Way::Read, dont_wait, |shard, id, _| {
                let inet = shard.inet_mut();
                if let Some(error) = inet.udp_take_error(id) {
                    return Err(error);
                }
                let received = inet.udp_peek(id).ok_or(Cause::WouldBlock)?;
                self.copy(received, slices)
            });
        }
        let received = self.take(dont_wait)?;
        let meta = self.copy(&received, slices).map_err(|_| unreadable())?;
        self.counters().received.add(meta.len);
        Ok(meta)
    }

    fn recv_segment(&self, dont_wait: bool) -> Result<(Segment<Chain>, Meta)> {
        let mut received = self.take(dont_wait)?;
        let meta = Meta::of(&received, received.data.payload().len());
        Ok((std::mem::replace(&mut received.data, Chain::new().into()), meta))
    }

    fn recv_many(&self, buffers: &mut [IoSliceMut<'_>], meta: &mut [Meta], dont_wait: bool) -> Result<usize> {
        let counters = self.counters();
        self.call(Op::Recv, Way::Read, dont_wait, |shard, id, _| {
            let (mut count, mut bytes) = (0, 0);
            for (buffer, meta) in buffers.iter_mut().zip(meta.iter_mut()) {
                let received = match shard.inet_mut().udp_receive(id) {
                    Err(cause) if count == 0 => return Err(cause),
                    Err(_) => break,
                    Ok(received) => received,
                };
                match self.copy(&received, std::slice::from_mut(buffer)) {
                    Err(cause) if count == 0 => return Err(cause),
                    Err(_) => break,
                    Ok(copied) => *meta = copied,
                }
                (count, bytes) = (count + 1, bytes + meta.len);
                if bytes >= PIECE {
                    break;
                }
            }
            counters.received.add(bytes);
            Ok(count)
        })
    }
}

/// Why a datagram was not sent, to a program that polls: others have the pages, so it waits until some are home, as for room. (Where the neighbour's queue is full it does
/// not.)
fn unsent(shard: &mut Shard, id: Id, cause: Cause) -> Cause {
    match cause {
        Cause::NoMemory
            if !shard.inet().udp_readiness(id).contains(Readiness::WRITE) && shard.starves(id) =>
        {
            Cause::WouldBlock
        }
        cause => cause,
    }
}

impl Socket {
    fn wait_to_send<R>(
        &self,
        flags: SendFlags,
        attempt: impl FnMut(&mut Shard, Id, u64) -> std::result::Result<R, Cause>,
    ) -> Result<R> {
        self.call(Op::Send, Way::Write, flags.contains(SendFlags::DONTWAIT), attempt)
    }

    /// Sends messages that are alike.
    fn send_alike(
        &self,
        shard: &mut Shard,
        id: Id,
        now: u64,
        alike: &[Message<'_>],
        hint: Hint,
    ) -> std::result::Result<usize, Cause> {
        let Some(first) = alike.first() else { return Ok(0) };
        let envelope = match alike.len() {
            1 => first.envelope,
            _ => first.envelope.gso(first.bytes.len() as u16),
        };
        let copies = shard.kernel_copies();
        let (inet, pool) = shard.parts();
        let bytes = alike.iter().map(|message| message.bytes);
        let sent = inet.udp_send_slices(now, id, bytes, &Writer::new(pool).hint(hint), &envelope);
        let n = sent.map_err(|cause| unsent(shard, id, cause))?;
        self.copied_in(n, hint, copies);
        Ok(n)
    }

    /// Takes the next datagram, or train.
    fn take(&self, dont_wait: bool) -> Result<Received> {
        self.call(Op::Recv, Way::Read, dont_wait, |shard, id, _| shard.inet_mut().udp_receive(id))
    }

    /// Copies what fits of `received` into the slices.
    fn copy(&self, received: &Received, slices: &mut [IoSliceMut<'_>]) -> std::result::Result<Meta, Cause> {
        let payload = received.data.payload();
        let mut done = 0;
        if !payload.is_empty() {
            let host = payload.host().map_err(|_| Cause::DeviceMemory)?;
            for slice in slices {
                let n = slice.len().min(payload.len() - done);
                // Within what it has.
                let copied = host.copy_to(done, &mut slice[..n], Hint::AUTO);
                copied.map_err(|_| Cause::Invalid)?;
                done += n;
            }
        }
        self.counters().user_copied_out.add(done);
        Ok(Meta::of(received, done))
    }
}

fn limits(shard: &Shard) -> Limits {
    let interface = shard.inet().interface();
    let link = interface.capabilities();
    let all = if link.udp_segmentation { link.super_segment as usize } else { 0 };
    Limits {
        each: (link.mtu as usize).saturating_sub(HEADERS),
        all: all.saturating_sub(HEADERS).min(MAX_LEN),
    }
}

/// Bytes of the longest headers below UDP's payload, IPv6's and UDP's own.
const HEADERS: usize = 48;

fn unreadable() -> Error {
    Error::new(Op::Recv, Errno::FAULT)
        .because("this CPU cannot read its memory; receive it with recv_borrowed")
}
