//! Calls that move bytes.

use crate::control::{self, last_error};
use crate::errno::{Errno, Outcome, Stop};
use crate::memory::{User, msghdr};
use crate::news::{control_message, put_control};
use crate::socket::AGAIN;
use crate::world::{self, File, World};
use onecopy_chain::notify::zerocopy::{Begun, Tell};
use onecopy_chain::notify::{Segment, lane};
use onecopy_chain::{Chain, Writer};
use std::cell::{Cell, RefCell};
use std::net::SocketAddrV4;

/// include/uapi/linux/tcp.h: TCP_CM_INQ is TCP_INQ.
pub(crate) const TCP_INQ: i32 = 36;

/// What a send is given.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) buffers: &'a [(User, usize)],
    pub(crate) flags: i32,
    pub(crate) to: Option<SocketAddrV4>,
    /// MSG_FASTOPEN with an address of AF_UNSPEC.
    pub(crate) nowhere: bool,
}

/// write(2), send(2), sendmsg(2) and the like.
pub(crate) fn send(fd: i32, message: Message<'_>) -> Outcome<isize> {
    let mut done = 0;
    let queue: RefCell<Option<Bytes>> = RefCell::new(None);
    let mut told = None;
    // The address of a connection that this call has begun and waits for.
    let mut begun = None;
    let early: Cell<Option<Early>> = Cell::new(None);
    let mut attempt = |world: &mut World, late: bool| {
        if let Some(early) = early.take() {
            (done, begun) = (early.taken, early.begun);
            queue.replace(early.rest);
            if early.over {
                world.watch(fd, done);
                return Ok(done as isize);
            }
        }
        let socket = world.socket(fd)?;
        let (id, before) = (socket.id, socket.told);
        let now = world.now;
        if !late && told == Some(before) {
            return Err(Stop::Wait);
        }
        let wait = !late && !world.socket(fd)?.nonblocking && message.flags & libc::MSG_DONTWAIT == 0;
        if let Some(to) = begun {
            if let Err(stop) = control::finish_connect(world, fd, to, late) {
                told = Some(before);
                return Err(stop);
            }
            begun = None;
        }
        // What the kernel asks of the state comes before the bytes.
        world.tcp.may_send(now, id)?;
        // Of what comes of this, who waits hears, too.
        told = Some(before);
        if world.tcp.is_connecting(id) {
            return if wait { Err(Stop::Wait) } else { Err(AGAIN.into()) };
        }
        let mut bytes = queue.borrow_mut();
        let bytes = match &mut *bytes {
            Some(bytes) => bytes.data(),
            none @ None => none.insert(gather(world, fd, message)?).data(),
        };
        if bytes.payload().is_empty() {
            world.watch(fd, done);
            return Ok(done as isize);
        }
        let before = bytes.payload().len();
        let sent = world.tcp.send(now, id, bytes, message.flags);
        let taken = before - bytes.payload().len();
        done += taken;
        let rest = !bytes.payload().is_empty();
        match sent {
            Ok(()) | Err(Errno(libc::EAGAIN)) if rest => {
                if wait {
                    return Err(Stop::Wait);
                }
                world.watch(fd, done);
                if done > 0 { Ok(done as isize) } else { Err(AGAIN.into()) }
            }
            Err(errno) if done == 0 => Err(errno.into()),
            _ => {
                world.watch(fd, done);
                Ok(done as isize)
            }
        }
    };
    world::blocking(
        |world| {
            let timeout = world.socket(fd)?.send_timeout;
            let id = world.socket(fd)?.id;
            if message.flags & libc::MSG_FASTOPEN != 0 || world.tcp.is_deferred(id) {
                early.set(Some(fast_open(world, fd, message)?));
            }
            Ok(timeout.map(|timeout| world.now + timeout))
        },
        |world, late| {
            let result = attempt(world, late);
            if !matches!(result, Err(Stop::Wait)) {
                over(world, fd, queue.take());
            }
            result
        },
    )
}

/// What a send gives to the stack.
enum Bytes {
    Plain(Segment<Chain>),
    /// With MSG_ZEROCOPY.
    Zerocopy(Box<Begun>),
}

impl Bytes {
    fn data(&mut self) -> &mut Segment<Chain> {
        match self {
            Bytes::Plain(data) => data,
            Bytes::Zerocopy(send) => &mut send.data,
        }
    }
}

/// The call is over: what was not taken is no part of its send.
fn over(world: &mut World, fd: i32, bytes: Option<Bytes>) {
    if let Some(Bytes::Zerocopy(send)) = bytes
        && let Some(sends) = world.socket(fd).ok().and_then(|socket| socket.sends.as_mut())
    {
        sends.end(*send);
    }
}

/// The bytes of a send, in pages. Those of one with MSG_ZEROCOPY carry its notification, and each buffer is a fragment of its own.
fn gather(world: &mut World, fd: i32, message: Message<'_>) -> Outcome<Bytes> {
    let zerocopy = message.flags & libc::MSG_ZEROCOPY != 0 && world.socket(fd)?.zerocopy;
    let mut chain = Chain::new();
    let failed = |_| Errno(libc::ENOBUFS);
    let writer = Writer::new(&world.pool);
    for (at, len) in message.buffers.iter().filter(|buffer| buffer.1 > 0) {
        let bytes = at.read(*len)?;
        let mut part = Chain::new();
        let into = if zerocopy { &mut part } else { &mut chain };
        writer.append(into, &bytes).map_err(failed)?;
        chain.concat(&mut part).map_err(failed)?;
    }
    if !zerocopy || chain.is_empty() {
        return Ok(Bytes::Plain(chain.into()));
    }
    let sends = match world.socket(fd)?.sends.take() {
        Some(sends) => sends,
        None => world.account.socket(lane::Config::default()).map_err(|_| Errno(libc::ENOBUFS))?,
    };
    let World { files, pool, now, .. } = world;
    let Some(File::Socket(socket)) = files.get_mut(&fd) else { return Err(Errno(libc::EBADF)) };
    let sends = socket.sends.insert(sends);
    let begun = sends.begin(chain, Tell::Notice, &Writer::new(pool), *now);
    begun.map(|begun| Bytes::Zerocopy(Box::new(begun))).map_err(|(_, why)| Errno(why.errno()))
}

/// What came of connecting by a send.
#[derive(Default)]
struct Early {
    /// Bytes that went with the SYN, and those that did not, if any were looked at.
    taken: usize,
    rest: Option<Bytes>,
    /// Where to, if the call waits for the connection.
    begun: Option<SocketAddrV4>,
    /// The call is over.
    over: bool,
}

/// sendto(2) with MSG_FASTOPEN, or the first send after a connect that waited for it: makes the connection with the bytes
/// (tcp_sendmsg_fastopen()).
fn fast_open(world: &mut World, fd: i32, message: Message<'_>) -> Outcome<Early> {
    let (id, now) = (world.socket(fd)?.id, world.now);
    let waits = !world.socket(fd)?.nonblocking && message.flags & libc::MSG_DONTWAIT == 0;
    if message.nowhere || !control::fast_open_client() {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let nowhere = SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, 0);
    let to = if world.tcp.is_deferred(id) { nowhere } else { message.to.ok_or(Errno(libc::EINVAL))? };
    if !world.tcp.is_unconnected(id) && !world.tcp.is_deferred(id) {
        // Whoever is connected just sends.
        world.tcp.connect(now, id, to)?;
        return Ok(Early::default());
    }
    // Bytes that stay here have no notification.
    let carries = world.tcp.carries(now, id, to);
    let mut bytes = if carries { Some(gather(world, fd, message)?) } else { None };
    // A blocked call gives its bytes as soon as it may, those that no SYN has taken, too.
    let more = message.buffers.iter().any(|buffer| buffer.1 > 0);
    let mut none = Segment::default();
    let result =
        world.tcp.connect_with(now, id, to, bytes.as_mut().map_or(&mut none, Bytes::data), waits && more);
    match result {
        Ok(taken) => Ok(Early { taken, rest: bytes, begun: waits.then_some(to), over: !waits }),
        Err(Errno(libc::EINPROGRESS)) if waits => {
            Ok(Early { taken: 0, rest: bytes, begun: Some(to), over: false })
        }
        Err(errno) => {
            over(world, fd, bytes);
            Err(errno)
        }
    }
}

/// Where bytes that are received go.
pub(crate) struct Into<'a> {
    pub(crate) buffers: &'a [(User, usize)],
    pub(crate) flags: i32,
    /// The `struct msghdr` of recvmsg(2).
    pub(crate) message: Option<User>,
}

/// read(2), recv(2), recvmsg(2) and the like.
pub(crate) fn receive(fd: i32, into: Into<'_>) -> Outcome<isize> {
    if let (Some(message), true) = (into.message, into.flags & libc::MSG_ERRQUEUE != 0) {
        return world::call(|world| world.receive_news(fd, message));
    }
    let wanted: usize = into.buffers.iter().map(|buffer| buffer.1).sum();
    let mut done = 0;
    world::blocking(
        |world| {
            let timeout = world.socket(fd)?.receive_timeout;
            Ok(timeout.map(|timeout| world.now + timeout))
        },
        |world, late| {
            let socket = world.socket(fd)?;
            let (id, nonblocking, inquire) = (socket.id, socket.nonblocking, socket.inquire);
            let now = world.now;
            let wait = !late && !nonblocking && into.flags & libc::MSG_DONTWAIT == 0;
            let peek = into.flags & libc::MSG_PEEK != 0;
            let all = into.flags & libc::MSG_WAITALL != 0;
            loop {
                if done > 0
                    && !(all && wait)
                    && world.tcp.readable(id).0 <= if peek { done as u64 } else { 0 }
                {
                    // Why there is no more is told by the next call.
                    break;
                }
                match world.tcp.peek(now, id, if peek { done } else { 0 }, wanted - done) {
                    Ok(bytes) if bytes.is_empty() => break,
                    Ok(bytes) => {
                        if into.flags & libc::MSG_TRUNC == 0 {
                            scatter(into.buffers, done, &bytes)?;
                        }
                        if !peek {
                            world.tcp.consume(now, id, bytes.len())?;
                        }
                        done += bytes.len();
                        if done == wanted {
                            break;
                        }
                    }
                    Err(Errno(libc::EAGAIN)) if done > 0 && !(all && wait) => break,
                    Err(Errno(libc::EAGAIN)) if wait => return Err(Stop::Wait),
                    Err(_) if done > 0 => break,
                    Err(errno) => return Err(errno.into()),
                }
            }
            if let Some(message) = into.message {
                let mut control = Vec::new();
                if inquire {
                    let (readable, fin) = world.tcp.readable(id);
                    // Behind a FIN there is something to receive: the end (tcp_inq_hint).
                    let hint = if readable == 0 && fin { 1 } else { readable.min(i32::MAX as u64) as i32 };
                    control = control_message(libc::SOL_TCP, TCP_INQ, &hint.to_le_bytes());
                }
                put_control(message, &control, into.flags & libc::MSG_CMSG_CLOEXEC)?;
                message.at(msghdr::NAME_LEN).put_int(0)?;
            }
            Ok(done as isize)
        },
    )
}

/// Puts `bytes` into buffers, `from` bytes behind their beginning.
fn scatter(buffers: &[(User, usize)], mut from: usize, mut bytes: &[u8]) -> Outcome<()> {
    for (at, len) in buffers {
        let skip = from.min(*len);
        from -= skip;
        let (here, rest) = bytes.split_at(bytes.len().min(len - skip));
        at.at(skip).write(here)?;
        bytes = rest;
    }
    Ok(())
}

/// The buffers of a `struct msghdr`.
pub(crate) fn buffers_of(message: User) -> Outcome<Vec<(User, usize)>> {
    let count = message.at(msghdr::IOV_LEN).word()? as usize;
    message.at(msghdr::IOV).pointer()?.buffers(count)
}

/// The address of a `struct msghdr`, and whether one of AF_UNSPEC is there.
pub(crate) fn address_of(message: User) -> Outcome<(Option<SocketAddrV4>, bool)> {
    let (at, len) = (message.at(msghdr::NAME).pointer()?, message.at(msghdr::NAME_LEN).int()? as u32);
    if at.is_null() || len == 0 {
        return Ok((None, false));
    }
    let address = control::address(at, len)?;
    Ok((address, address.is_none()))
}

/// splice(2) between a socket and a pipe of the kernel's. (packetdrill gives pointers to offsets where it means none.)
pub(crate) fn splice(from: i32, to: i32, len: usize) -> Outcome<isize> {
    let (reads, writes) = world::call(|world| Ok((world.has_socket(from), world.has_socket(to))))?;
    match (reads, writes) {
        (true, false) => world::blocking(
            |_| Ok(None),
            |world, _| {
                let socket = world.socket(from)?;
                let (id, nonblocking, now) = (socket.id, socket.nonblocking, world.now);
                match world.tcp.peek(now, id, 0, len) {
                    Err(Errno(libc::EAGAIN)) if !nonblocking => Err(Stop::Wait),
                    Err(errno) => Err(errno.into()),
                    Ok(bytes) => {
                        let written = write(to, &bytes)?;
                        world.tcp.consume(now, id, written as usize)?;
                        Ok(written)
                    }
                }
            },
        ),
        (false, true) => {
            let bytes = read(from, len, None)?;
            send_own(to, &bytes, 0)
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// sendfile(2) to a socket.
pub(crate) fn sendfile(to: i32, from: i32, offset: User, count: usize) -> Outcome<isize> {
    let at = if offset.is_null() { None } else { Some(offset.word()?) };
    let bytes = read(from, count, at)?;
    let sent = send_own(to, &bytes, 0)?;
    if let Some(at) = at {
        offset.write(&(at + sent as u64).to_le_bytes())?;
    }
    Ok(sent)
}

/// Sends bytes that lie here.
fn send_own(fd: i32, bytes: &[u8], flags: i32) -> Outcome<isize> {
    // SAFETY: `bytes` outlives the call, which only reads it.
    let at = unsafe { User::new(bytes.as_ptr() as usize) };
    send(fd, Message { buffers: &[(at, bytes.len())], flags, to: None, nowhere: false })
}

/// Reads from a descriptor of the kernel's.
fn read(fd: i32, len: usize, at: Option<u64>) -> Outcome<Vec<u8>> {
    let mut bytes = vec![0; len];
    // SAFETY: there is room for `len` bytes.
    let done = unsafe {
        match at {
            Some(at) => libc::pread(fd, bytes.as_mut_ptr().cast(), len, at as libc::off_t),
            None => libc::read(fd, bytes.as_mut_ptr().cast(), len),
        }
    };
    let done = usize::try_from(done).map_err(|_| last_error())?;
    bytes.truncate(done);
    Ok(bytes)
}

/// Writes to one.
fn write(fd: i32, bytes: &[u8]) -> Outcome<isize> {
    // SAFETY: `bytes` outlives the call, which only reads it.
    match unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) } {
        -1 => Err(last_error()),
        done => Ok(done),
    }
}
