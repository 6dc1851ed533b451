//! Calls of the program.

use super::streams::PORT;
use super::{Due, Run, seconds};
use crate::constants::{errno, errno_name};
use crate::host::Setting;
use crate::script::{Call, Value};
use crate::{MILLISECOND, wire};

const EAGAIN: i32 = 11;
const EINPROGRESS: i32 = 115;
const MSG_PEEK: i32 = 2;
const MSG_FASTOPEN: i32 = 0x2000_0000;
const MSG_DONTWAIT: i32 = 0x40;
const POLLOUT: i16 = 4;
const POLLERR: i16 = 8;
const POLLHUP: i16 = 0x10;
const SOL_SOCKET: i32 = 1;
const SO_LINGER: i32 = 13;
const SOCK_NONBLOCK: i64 = 0o4000;
const O_NONBLOCK: i64 = 0o4000;
const O_RDWR: i64 = 2;

/// A descriptor of the program's.
#[derive(Debug, Default)]
pub(super) struct Socket {
    pub handle: usize,
    /// Whether calls return at once, where they would wait.
    nonblocking: bool,
    /// Whether its connection was begun, and is the script's usual one.
    begun: bool,
    written: u32,
    read: u32,
}

/// A call that has not returned yet.
pub(super) struct Pending {
    call: Call,
    line: usize,
    begun: u64,
    ends: Option<u64>,
    progress: Progress,
}

/// How far a call is that waits.
#[derive(Default)]
struct Progress {
    connecting: bool,
    written: usize,
    until: Option<u64>,
}

enum Answer {
    Done(Result<i64, i32>),
    Wait,
}

impl Run<'_> {
    pub(super) fn call(&mut self, call: &Call, due: Due, ends: Option<u64>) -> Result<(), String> {
        self.finish_pending()?;
        let mut progress = Progress::default();
        match self.attempt(call, &mut progress)? {
            Answer::Done(result) => {
                if let Some(ends) = ends {
                    return Err(format!("{} returned at once, not at {}", call.name, seconds(ends)));
                }
                check(call, result)?;
            }
            Answer::Wait => {
                if ends.is_none() {
                    return Err(format!("{} would wait; say until when by ...", call.name));
                }
                let (line, begun) = (self.line, due.from);
                self.pending = Some(Pending { call: call.clone(), line, begun, ends, progress });
            }
        }
        self.look()
    }

    /// Lets the call that waits go on, if it can.
    pub(super) fn go_on(&mut self) -> Result<(), String> {
        let Some(mut pending) = self.pending.take() else { return Ok(()) };
        match self.attempt(&pending.call, &mut pending.progress)? {
            Answer::Wait => self.pending = Some(pending),
            Answer::Done(result) => {
                let (now, ends) = (self.now(), pending.ends.unwrap_or(0));
                let tolerance = self.host.tolerance().max(ends.saturating_sub(pending.begun) / 8);
                self.line = pending.line;
                check(&pending.call, result)?;
                if now.abs_diff(ends) > tolerance {
                    let (now, ends) = (seconds(now), seconds(ends));
                    return Err(format!("{} returned at {now}, not at {ends}", pending.call.name));
                }
            }
        }
        Ok(())
    }

    /// Waits until no call waits.
    pub(super) fn finish_pending(&mut self) -> Result<(), String> {
        while let Some(pending) = &self.pending {
            let (name, line) = (pending.call.name.clone(), pending.line);
            let latest = pending.ends.unwrap_or(0) + self.host.tolerance() + 200 * MILLISECOND;
            let now = self.now();
            if now > latest {
                self.line = line;
                return Err(format!("{name} has not returned by {}", seconds(now)));
            }
            self.host.pass(self.start + now + MILLISECOND)?;
            self.look()?;
        }
        Ok(())
    }

    fn attempt(&mut self, call: &Call, progress: &mut Progress) -> Result<Answer, String> {
        let arg =
            |at: usize| call.args.get(at).ok_or_else(|| format!("{}: argument {at} is missing", call.name));
        let number = |at: usize| arg(at)?.number();
        if call.name == "socket" {
            let nonblocking = number(1)? & SOCK_NONBLOCK != 0;
            let result = self.host.socket().map(|handle| (handle, nonblocking));
            return Ok(Answer::Done(result.and_then(|(handle, nonblocking)| {
                self.name(call, Socket { handle, nonblocking, ..Socket::default() })
            })));
        }
        if call.name == "poll" {
            return self.poll(call, progress);
        }
        let fd = number(0)?;
        let Some(socket) = self.sockets.get(&fd) else {
            return Ok(Answer::Done(Err(errno("EBADF").unwrap_or(9))));
        };
        let (handle, nonblocking) = (socket.handle, socket.nonblocking);
        let (written, read) = (socket.written, socket.read);
        let result = match call.name.as_str() {
            "bind" => {
                let port = port(arg(1)?)?;
                self.streams.listens(port);
                self.host.bind(handle, port).map(|()| 0)
            }
            "listen" => self.host.listen(handle, number(1)? as i32).map(|()| 0),
            "accept" => match self.host.accept(handle) {
                Ok((handle, _)) => self.name(call, Socket { handle, ..Socket::default() }),
                Err(EAGAIN) if !nonblocking => return Ok(Answer::Wait),
                Err(errno) => Err(errno),
            },
            "connect" => return self.connect(handle, fd, port(arg(1)?)?, nonblocking, progress),
            "read" | "recv" | "recvfrom" => {
                let flags = if call.name == "read" { 0 } else { number(3)? as i32 };
                match self.host.read(handle, number(2)? as usize, flags & !MSG_DONTWAIT) {
                    Ok(bytes) => {
                        let len = bytes.len() as u32;
                        if bytes != wire::bytes(read, len) {
                            return Err(format!("{} gave other bytes than the peer sent", call.name));
                        }
                        if flags & MSG_PEEK == 0 {
                            self.socket(fd).read += len;
                        }
                        Ok(len.into())
                    }
                    Err(EAGAIN) if !nonblocking && flags & MSG_DONTWAIT == 0 => return Ok(Answer::Wait),
                    Err(errno) => Err(errno),
                }
            }
            "sendto" if number(3)? as i32 & MSG_FASTOPEN != 0 => {
                let flags = number(3)? as i32;
                if !nonblocking && flags & MSG_DONTWAIT == 0 {
                    return Err("MSG_FASTOPEN is for sockets that do not wait (fcntl, O_NONBLOCK)".to_owned());
                }
                let (port, rest) = (port(arg(4)?)?, wire::bytes(written, number(2)? as u32));
                let begins = !self.socket(fd).begun;
                let flags = flags & !(MSG_FASTOPEN | MSG_DONTWAIT);
                let result = self.host.connect_with(handle, port, &rest, flags);
                if begins && matches!(result, Ok(_) | Err(EINPROGRESS)) {
                    self.begins(fd, port);
                }
                let count = result.map(|count| count as u32);
                self.socket(fd).written += count.unwrap_or(0);
                count.map(i64::from)
            }
            "write" | "send" | "sendto" => {
                let flags = if call.name == "write" { 0 } else { number(3)? as i32 };
                let len = number(2)? as usize;
                let rest = wire::bytes(written, (len - progress.written) as u32);
                let waits = !nonblocking && flags & MSG_DONTWAIT == 0;
                match self.host.write(handle, &rest, flags & !MSG_DONTWAIT) {
                    Ok(count) => {
                        self.socket(fd).written += count as u32;
                        progress.written += count;
                        if waits && progress.written < len {
                            return Ok(Answer::Wait);
                        }
                        Ok(progress.written as i64)
                    }
                    Err(EAGAIN) if waits => return Ok(Answer::Wait),
                    Err(_) if progress.written > 0 => Ok(progress.written as i64),
                    Err(errno) => Err(errno),
                }
            }
            "shutdown" => self.host.shutdown(handle, number(1)? as i32).map(|()| 0),
            "close" => {
                self.host.close(handle);
                self.sockets.remove(&fd);
                Ok(0)
            }
            "fcntl" => {
                const F_GETFL: i64 = 3;
                if number(1)? == F_GETFL {
                    Ok(O_RDWR | if nonblocking { O_NONBLOCK } else { 0 })
                } else {
                    self.socket(fd).nonblocking = number(2)? & O_NONBLOCK != 0;
                    Ok(0)
                }
            }
            "ioctl" => match self.host.readable(handle) {
                Ok(found) => expect_number(call, arg(2)?, found)?,
                Err(errno) => Err(errno),
            },
            "setsockopt" => {
                let (level, option) = (number(1)? as i32, number(2)? as i32);
                let value = match arg(3)? {
                    Value::Text(text) => Setting::Text(text),
                    Value::Fields(_) if (level, option) == (SOL_SOCKET, SO_LINGER) => {
                        Setting::Linger(field(arg(3)?, "onoff")? != 0, field(arg(3)?, "linger")? as u16)
                    }
                    other => Setting::Number(other.number()? as i32),
                };
                self.host.set(handle, level, option, value).map(|()| 0)
            }
            "getsockopt" => match self.host.get(handle, number(1)? as i32, number(2)? as i32) {
                Ok(found) => expect_number(call, arg(3)?, found)?,
                Err(errno) => Err(errno),
            },
            other => return Err(format!("{other} is no call that scripts can make")),
        };
        Ok(Answer::Done(result))
    }

    /// Gives a socket the number that the script has for it.
    fn name(&mut self, call: &Call, socket: Socket) -> Result<i64, i32> {
        let fd = call.result.number().ok().filter(|fd| *fd >= 0).unwrap_or(-2);
        self.sockets.insert(fd, socket);
        if call.name == "accept" {
            self.about = Some(fd);
        }
        Ok(fd)
    }

    /// One that is known.
    fn socket(&mut self, fd: i64) -> &mut Socket {
        self.sockets.entry(fd).or_default()
    }

    fn connect(
        &mut self,
        handle: usize,
        fd: i64,
        port: u16,
        nonblocking: bool,
        progress: &mut Progress,
    ) -> Result<Answer, String> {
        if !progress.connecting {
            match self.host.connect(handle, port) {
                Err(EINPROGRESS) => {
                    self.begins(fd, port);
                    progress.connecting = !nonblocking;
                    if nonblocking {
                        return Ok(Answer::Done(Err(EINPROGRESS)));
                    }
                }
                // (It may wait for the first bytes: TCP_FASTOPEN_CONNECT.)
                Ok(()) => {
                    if !self.socket(fd).begun {
                        self.begins(fd, port);
                    }
                    return Ok(Answer::Done(Ok(0)));
                }
                Err(errno) => return Ok(Answer::Done(Err(errno))),
            }
        }
        let ready = self.host.poll(handle, POLLOUT);
        if ready & (POLLOUT | POLLERR | POLLHUP) == 0 {
            return Ok(Answer::Wait);
        }
        // What came of it is told by the next call, as to one who waits in it.
        Ok(Answer::Done(self.host.connect(handle, port).map(|()| 0)))
    }

    /// Its connection has begun, and may come from a port of its own.
    fn begins(&mut self, fd: i64, port: u16) {
        self.socket(fd).begun = true;
        self.streams.connects(port);
        self.about = Some(fd);
    }

    /// `poll([{fd=4, events=POLLIN, revents=POLLIN}], 1, TIMEOUT)`
    fn poll(&mut self, call: &Call, progress: &mut Progress) -> Result<Answer, String> {
        let (Some(Value::List(all)), Some(timeout)) = (call.args.first(), call.args.get(2)) else {
            return Err("poll([{fd=N, events=..., revents=...}], 1, TIMEOUT) is how it is written".to_owned());
        };
        let timeout = timeout.number()?;
        let now = self.now();
        let until = *progress.until.get_or_insert(now + timeout.unsigned_abs() * MILLISECOND);
        let mut count = 0;
        let mut wrong = None;
        for one in all {
            let events = field(one, "events")? as i16;
            let fd = field(one, "fd")?;
            let handle = self.sockets.get(&fd).ok_or_else(|| format!("there is no socket {fd}"))?.handle;
            let found = self.host.poll(handle, events);
            count += i64::from(found != 0);
            let expected = field(one, "revents").unwrap_or(0) as i16;
            if found != expected {
                wrong = Some(format!("poll says {found:#x} of socket {fd}, not {expected:#x}"));
            }
        }
        if count == 0 && timeout != 0 && (timeout < 0 || now < until) {
            return Ok(Answer::Wait);
        }
        wrong.map_or(Ok(Answer::Done(Ok(count))), Err)
    }
}

/// The field of a struct.
fn field(value: &Value, name: &str) -> Result<i64, String> {
    let fields = if let Value::Fields(fields) = value { fields.as_slice() } else { &[] };
    let found = fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.number());
    found.unwrap_or_else(|| Err(format!("there is no field {name}")))
}

/// The port of an address: all scripts say `...`.
fn port(value: &Value) -> Result<u16, String> {
    match value {
        Value::Whatever => Ok(PORT),
        Value::Number(port) => u16::try_from(*port).map_err(|_| format!("{port} is no port")),
        _ => Err("an address is ... or a port".to_owned()),
    }
}

/// Whether what came back through a pointer is what was expected: 0, the call's result, if so.
fn expect_number(call: &Call, expected: &Value, found: i32) -> Result<Result<i64, i32>, String> {
    let named = match expected {
        Value::List(list) => list.first(),
        other => Some(other),
    };
    let wanted = match named {
        Some(Value::Whatever) => return Ok(Ok(0)),
        Some(Value::Name(name)) if errno(name).is_some() => errno(name).unwrap_or(0).into(),
        Some(value) => value.number()?,
        None => return Err("a value is missing".to_owned()),
    };
    if wanted == i64::from(found) {
        Ok(Ok(0))
    } else {
        Err(format!("{} gave {found}, not {wanted}", call.name))
    }
}

fn check(call: &Call, result: Result<i64, i32>) -> Result<(), String> {
    if call.result == Value::Whatever {
        return Ok(());
    }
    let wanted = call.result.number()?;
    let said = match result {
        Ok(value) => value.to_string(),
        Err(errno) => format!("-1 {}", errno_name(errno)),
    };
    let right = match result {
        Ok(value) => value == wanted && call.errno.is_none(),
        Err(found) => wanted == -1 && call.errno.as_deref().and_then(errno) == Some(found),
    };
    let expected = match &call.errno {
        Some(name) => format!("{wanted} {name}"),
        None => wanted.to_string(),
    };
    if right { Ok(()) } else { Err(format!("{} returned {said}, not {expected}", call.name)) }
}
