//! What streams and listeners are.

use super::inner::Inner;
use super::owner::Owner;
use super::shard::Shard;
use super::socket::{self, Protocol};
use crate::carrier::tcp::{Connection, Endpoint, Listening, Taking};
use crate::carrier::{Common, Counts, Frags, Taken, Tokens, Way};
use crate::error::of;
use crate::zerocopy::{At, Lender, NotSent, Range, Small};
use onecopy_chain::notify::zerocopy::Tell;
use onecopy_chain::notify::{Fate, Segment};
use onecopy_chain::{Chain, Kind, Writer};
use onecopy_copy::Hint;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Bound, Stack};
use onecopy_inet::tcp as inet;
use onecopy_inet::tcp::fast_open::Use;
use onecopy_inet::tcp::{Error, Info, Readiness, Received, Settings, Side, State};
use onecopy_pool::{Page, Pages};
use onecopy_socket::registry::{self, Type};
use onecopy_socket::{Carrier, Op, RecvFlags, SendFlags};
use rustix::io::Errno;
use std::fmt;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A socket of TCP.
pub(super) type Socket = socket::Socket<Tcp>;

/// An idle socket has one, in an `Arc`: with all else of it, 1 KiB at most (`tests/idle.rs`).
const _: () = assert!(size_of::<Socket>() <= 112);

pub(super) enum Tcp {}

impl Protocol for Tcp {
    type Cause = Error;
    type Settings = Settings;
    const TYPE: Type = Type::Stream;
    const NAME: registry::Protocol = registry::Protocol::Tcp;
    const APPENDS: bool = true;

    fn open(inet: &mut Stack) -> Result<Id, Error> {
        inet.tcp_open()
    }

    fn close(inet: &mut Stack, now: u64, id: Id) {
        inet.tcp_close(now, id);
    }

    fn addresses(inet: &Stack, id: Id) -> Bound {
        inet.tcp_addresses(id)
    }

    fn readiness(inet: &Stack, id: Id) -> Readiness {
        inet.tcp_readiness(id)
    }

    fn take_error(inet: &mut Stack, id: Id) -> Option<Error> {
        inet.tcp_take_error(id)
    }

    fn settings(inet: &Stack, id: Id) -> Option<&Settings> {
        inet.tcp_settings(id)
    }

    fn set(inet: &mut Stack, now: u64, id: Id, change: impl FnOnce(&mut Settings)) -> Result<(), Error> {
        let used = inet.tcp_config().fast_open;
        let mut refused = false;
        inet.tcp_set(now, id, |settings| {
            let before = settings.clone();
            change(settings);
            // (The kernel refuses the former, too, and takes the latter without a word: do_tcp_setsockopt().)
            let connects = settings.fast_open_connect && !before.fast_open_connect;
            let listens = settings.fast_open_queue != before.fast_open_queue
                && settings.fast_open_queue.is_some_and(|queue| queue > 0);
            refused = connects && !used.contains(Use::CLIENT) || listens && !used.contains(Use::SERVER);
            if refused {
                *settings = before;
            }
        })?;
        if refused { Err(Error::NotSupported) } else { Ok(()) }
    }

    fn moves(inet: &Stack, id: Id) -> (u8, u64, u64) {
        match inet.tcp_connection(id) {
            Some(connection) => {
                (connection.state() as u8, connection.receiver().available(), connection.queued())
            }
            None => (inet.tcp_state(id).map_or(0, |state| state as u8), inet.tcp_waiting(id) as u64, 0),
        }
    }

    fn state(inet: &Stack, id: Id) -> impl fmt::Debug {
        inet.tcp_state(id)
    }
}

/// A listener at `address`, of one shard.
pub(super) fn listen_in(
    inner: &Arc<Inner>,
    address: SocketAddr,
    backlog: u32,
) -> onecopy_socket::Result<Socket> {
    let socket = Socket::open(inner, true)?;
    let done = socket.with(|shard, id, _| {
        shard.inet_mut().tcp_bind(id, address, true)?;
        shard.inet_mut().tcp_listen(id, backlog)
    });
    done.map_err(|cause| of(Op::Bind, cause).about("address"))?;
    socket.named();
    Ok(socket)
}

/// A connection to `address` that is being made, from `local` if that is given, with settings changed before it begins.
pub(crate) fn connect(
    owner: &Owner,
    local: Option<SocketAddr>,
    address: SocketAddr,
    change: Option<&dyn Fn(&mut Settings)>,
) -> onecopy_socket::Result<Arc<dyn Connection>> {
    owner.first().here(Op::Connect)?;
    let shards = owner.shards();
    match local {
        // With both ends given it is whose these are.
        Some(local) if shards.len() > 1 && local.port() != 0 => {
            let whose = owner.first().with(|shard, _| shard.inet().tcp_whose(local, address));
            let whose = whose.map_err(|cause| of(Op::Connect, cause).about("address"))?;
            connect_in(&shards[whose], Some(local), address, change)
        }
        _ => owner.try_in_turn(Errno::ADDRNOTAVAIL, |inner| connect_in(inner, local, address, change)),
    }
}

/// The same in one shard.
fn connect_in(
    inner: &Arc<Inner>,
    local: Option<SocketAddr>,
    address: SocketAddr,
    change: Option<&dyn Fn(&mut Settings)>,
) -> onecopy_socket::Result<Arc<dyn Connection>> {
    let socket = Socket::open(inner, false)?;
    // (Sockets whose settings nobody changes have them together.)
    change.map_or(Ok(()), |change| Socket::set(&socket, change))?;
    let begun = socket.with(|shard, id, now| {
        let inet = shard.inet_mut();
        let sharded = inet.interface().share().is_some();
        let bound = match local {
            // A port is chosen that makes it this shard's.
            Some(local) if sharded && local.port() == 0 => inet.tcp_bind_address(id, local.ip()),
            Some(local) => inet.tcp_bind(id, local, true),
            None => Ok(()),
        };
        bound.map_err(|cause| of(Op::Bind, cause))?;
        match inet.tcp_connect(now, id, address) {
            Ok(()) | Err(Error::InProgress) => Ok(()),
            Err(cause) => Err(of(Op::Connect, cause)),
        }
    });
    begun.map_err(|error| error.about("address"))?;
    socket.named();
    Ok(Arc::new(socket))
}

/// Why nothing was sent, to a program that polls: others have the pages, so it waits until some are home, as for room.
fn unsent(shard: &mut Shard, id: Id, cause: Error) -> Error {
    match cause {
        Error::NoMemory if shard.starves(id) => Error::WouldBlock,
        cause => cause,
    }
}

/// Sends a copy of bytes from the front of `data`, behind what waits in the same pages, and takes them off.
fn append(
    shard: &mut Shard,
    id: Id,
    now: u64,
    data: &mut Segment<Chain>,
    hint: Hint,
    flags: SendFlags,
) -> Result<usize, Error> {
    let (inet, pool) = shard.parts();
    let mut given = 0;
    loop {
        let host = data.payload().host().map_err(|_| Error::Invalid)?;
        let Some(slice) = host.slices().next() else { return Ok(given) };
        let (len, mut how) = (slice.len(), inet_flags(flags));
        if len < data.payload().len() {
            how.remove(inet::SendFlags::END_OF_RECORD);
            how |= inet::SendFlags::MORE;
        }
        let n = match inet.tcp_send_bytes(now, id, slice, &Writer::new(pool).hint(hint), how) {
            Ok(n) => n,
            Err(cause) => {
                // What was given had more to come, which does not: it need not wait for that (tcp_sendmsg_locked(): wait_for_space).
                if given > 0 {
                    let _ = inet.tcp_push(now, id);
                }
                return Err(unsent(shard, id, cause));
            }
        };
        data.advance(n, Fate::Sent).map_err(|_| Error::Invalid)?;
        given += n;
        if n < len {
            return Ok(given);
        }
    }
}

impl Endpoint for Socket {
    fn common(&self) -> &Common {
        Socket::common(self)
    }

    fn carrier(&self) -> Carrier {
        Carrier::Stack
    }

    fn shutdown(&self, how: Shutdown) -> onecopy_socket::Result<()> {
        let side = match how {
            Shutdown::Read => Side::Read,
            Shutdown::Write => Side::Write,
            Shutdown::Both => Side::Both,
        };
        self.inner().here(Op::Shutdown)?;
        let done = self.with(|shard, id, now| shard.inet_mut().tcp_shutdown(now, id, side));
        done.map_err(|cause| of(Op::Shutdown, cause))
    }

    fn addresses(&self) -> Bound {
        Socket::addresses(self)
    }

    fn take_error(&self, op: Op) -> Option<onecopy_socket::Error> {
        Socket::take_error(self).map(|cause| of(op, cause))
    }

    fn fd(&self) -> onecopy_socket::Result<BorrowedFd<'_>> {
        Socket::fd(self)
    }

    fn change(&self, change: &mut dyn FnMut(&mut Settings)) -> onecopy_socket::Result<()> {
        Socket::set(self, change)
    }

    fn look(&self, look: &mut dyn FnMut(&Settings)) {
        Socket::get(self, look);
    }
}

impl Listening for Socket {
    fn accept(&self) -> onecopy_socket::Result<(Arc<dyn Connection>, SocketAddr)> {
        let accept = |shard: &mut Shard, id: Id, _| shard.inet_mut().tcp_accept(id);
        let (id, from) = self.call(Op::Accept, Way::Read, false, accept)?;
        Ok((Arc::new(Socket::of(self.inner(), id, false)), from))
    }
}

impl Connection for Socket {
    fn counts(&self) -> Weak<dyn Counts> {
        Socket::counts(self)
    }

    fn connected(&self, limit: Option<Duration>) -> onecopy_socket::Result<()> {
        self.call_for(Op::Connect, limit, |shard: &mut Shard, id: Id, _: u64| {
            if let Some(cause) = shard.inet_mut().tcp_take_error(id) {
                return Err(cause);
            }
            if shard.inet().tcp_is_deferred(id) {
                // Its SYN goes with the first bytes.
                return Ok(());
            }
            match shard.inet().tcp_state(id) {
                Some(State::SynSent | State::SynReceived) => Err(Error::WouldBlock),
                Some(State::Closed) | None => Err(Error::Refused),
                Some(_) => Ok(()),
            }
        })
    }

    fn send_bytes(
        &self,
        bytes: &[u8],
        flags: SendFlags,
        hint: Hint,
        sent: bool,
    ) -> onecopy_socket::Result<usize> {
        let mut at = 0;
        let sent = self.call(Op::Send, Way::Write, flags.contains(SendFlags::DONTWAIT), |shard, id, now| {
            if (sent || at > 0) && failed(shard, id) {
                return Ok(at);
            }
            let copies = shard.kernel_copies();
            let (inet, pool) = shard.parts();
            let sent =
                inet.tcp_send_bytes(now, id, &bytes[at..], &Writer::new(pool).hint(hint), inet_flags(flags));
            let n = sent.map_err(|cause| unsent(shard, id, cause))?;
            self.copied_in(n, hint, copies);
            at += n;
            if at == bytes.len() { Ok(at) } else { Err(Error::WouldBlock) }
        });
        match sent {
            Err(_) if at > 0 => Ok(at),
            done => done,
        }
    }

    fn send_segment(&self, data: &mut Segment<Chain>, flags: SendFlags) -> onecopy_socket::Result<usize> {
        let mut at = 0;
        let sent = self.call(Op::Send, Way::Write, flags.contains(SendFlags::DONTWAIT), |shard, id, now| {
            if at > 0 && failed(shard, id) {
                return Ok(at);
            }
            let copies = shard.copies_of(data.payload());
            let n = shard.inet_mut().tcp_send(now, id, data, inet_flags(flags))?;
            self.referenced(n, copies);
            at += n;
            if data.payload().is_empty() { Ok(at) } else { Err(Error::WouldBlock) }
        });
        match sent {
            Err(_) if at > 0 => Ok(at),
            done => done,
        }
    }

    fn lend(&self, chain: Chain, tell: Tell, flags: SendFlags) -> Result<Taken, NotSent> {
        let hint = self.common().hint(flags);
        Socket::lend(self, chain, tell, flags, |shard, id, now, data, copies| {
            if data.payload().is_empty() {
                return Ok(0);
            }
            // As much as there is room for, until it is all.
            let n = match copies {
                true => append(shard, id, now, data, hint, flags)?,
                false => shard.inet_mut().tcp_send(now, id, data, inet_flags(flags))?,
            };
            if data.payload().is_empty() { Ok(n) } else { Err(Error::WouldBlock) }
        })
    }

    fn at(&self) -> At {
        Socket::at(self)
    }

    fn lender(&self) -> Option<&Lender> {
        Socket::lender(self)
    }

    fn lender_made(&self) -> onecopy_socket::Result<&Lender> {
        Socket::lender_made(self)
    }

    fn wait_notice(&self, limit: Option<Duration>) -> onecopy_socket::Result<Option<Range>> {
        Socket::wait_notice(self, limit)
    }

    fn set_small(&self, small: Option<Small>) -> onecopy_socket::Result<()> {
        Socket::set_small(self, small)
    }

    fn tokens(&self) -> Option<&Arc<Tokens>> {
        Socket::tokens(self)
    }

    fn tokens_made(&self) -> &Arc<Tokens> {
        Socket::tokens_made(self)
    }

    fn recv_frags(&self, n: usize, most: usize, flags: RecvFlags) -> onecopy_socket::Result<Frags> {
        self.frags(n, most, flags)
    }

    fn pages(&self, len: usize) -> onecopy_socket::Result<Vec<Page>> {
        let pages = self.with(|shard, _, _| {
            let (_, pool) = shard.parts();
            let count = len.div_ceil(pool.page_len() as usize);
            (0..count).map(|_| pool.alloc()).collect::<Result<Vec<_>, _>>()
        });
        pages.map_err(|_| of(Op::Send, Error::NoMemory))
    }

    fn take(&self, max: usize, how: Taking) -> onecopy_socket::Result<Option<Segment<Chain>>> {
        let (got, copied) = self.call(Op::Recv, Way::Read, how.dont_wait, |shard, id, now| {
            if how.before && available(shard, id) == 0 && failed(shard, id) {
                return Ok((Received::End, false));
            }
            let receiver = shard.inet().tcp_connection(id).map(inet::Connection::receiver);
            if !how.device && receiver.and_then(|receiver| receiver.next_kind()) == Some(Kind::Device) {
                return Err(Error::DeviceMemory);
            }
            let max = receiver.map_or(max, |receiver| how.cut(max, receiver.next_piece()));
            let got = shard.inet_mut().tcp_receive(now, id, max)?;
            Ok((got, shard.kernel_copies()))
        })?;
        Ok(match got {
            Received::End => None,
            Received::Data(data) => {
                let (counters, len) = (self.counters(), data.payload().len());
                counters.received.add(len);
                if copied {
                    counters.kernel_copied.add(len);
                }
                Some(data)
            }
        })
    }

    fn peek(&self, max: usize, all: bool, dont_wait: bool) -> onecopy_socket::Result<Option<Segment<Chain>>> {
        self.call(Op::Recv, Way::Read, dont_wait, |shard, id, now| {
            let inet = shard.inet_mut();
            match inet.tcp_peek(id, 0, max) {
                Some(data) if !all || data.payload().len() == max => Ok(Some(data)),
                Some(data) => {
                    let ends = inet.tcp_connection(id).is_none_or(inet::Connection::peer_closed);
                    if ends { Ok(Some(data)) } else { Err(Error::WouldBlock) }
                }
                // Nothing is there: a receive says why, and takes nothing.
                None => inet.tcp_receive(now, id, 0).map(|_| None),
            }
        })
    }

    fn fell_short(&self, way: Way) {
        Socket::fell_short(self, way);
    }

    fn peer(&self) -> Option<SocketAddr> {
        match self.with(|shard, id, _| shard.inet().tcp_state(id)) {
            Some(State::Closed | State::SynSent) | None => None,
            Some(_) => Socket::addresses(self).remote,
        }
    }

    fn info(&self) -> Info {
        self.with(|shard, id, now| shard.inet().tcp_info(now, id)).unwrap_or_default()
    }

    fn readable_bytes(&self) -> usize {
        self.with(|shard, id, _| available(shard, id))
    }

    fn unacknowledged_bytes(&self) -> usize {
        self.with(|shard, id, _| {
            shard.inet().tcp_connection(id).map_or(0, |connection| connection.queued() as usize)
        })
    }

    fn push(&self) {
        // A connection that is not made yet has nothing.
        let _ = self.with(|shard, id, now| shard.inet_mut().tcp_push(now, id));
    }
}

/// Bytes that can be received.
fn available(shard: &Shard, id: Id) -> usize {
    shard.inet().tcp_connection(id).map_or(0, |connection| connection.receiver().available() as usize)
}

/// Whether there is an error to be told.
fn failed(shard: &Shard, id: Id) -> bool {
    shard.inet().tcp_readiness(id).contains(Readiness::ERROR)
}

fn inet_flags(flags: SendFlags) -> inet::SendFlags {
    let mut given = inet::SendFlags::empty();
    given.set(inet::SendFlags::MORE, flags.contains(SendFlags::MORE));
    given.set(inet::SendFlags::END_OF_RECORD, flags.contains(SendFlags::EOR));
    given
}
