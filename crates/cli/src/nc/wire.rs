//! A connection, and how a piece of bytes passes it with as few copies as that way has.

use super::ends::{Sink, Source};
use super::tally::Tally;
use crate::lessons::Lesson;
use onecopy::{Error, Result as Call, Stats};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that are moved at a time.
const PIECE: usize = 256 << 10;

/// A connection.
#[derive(Debug)]
pub enum Wire {
    /// The kernel's TCP.
    Kernel(TcpStream),
    /// TCP on a stack of ours.
    Stack(onecopy::tcp::Stream),
    /// A unix socket of ours, and the listener that it came to: by that a client sees that its first bytes may move to shared memory.
    Unix(
        onecopy::unix::Stream,
        #[expect(dead_code, reason = "it is held, and not used")] Option<onecopy::unix::Listener>,
    ),
}

pub fn locked(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls again what a signal has interrupted.
fn through<T>(mut call: impl FnMut() -> Call<T>) -> Result<T, Error> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// What a signal kept from being sent is read again.
fn committed(sent: Call<usize>) -> Result<usize, Error> {
    match sent {
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
        sent => sent,
    }
}

impl Wire {
    /// Sends a piece of `source`. False at its end.
    pub fn send_from(
        &self,
        source: &mut Source,
        buffer: &mut Vec<u8>,
        tally: &Mutex<Tally>,
    ) -> anyhow::Result<bool> {
        // A file is read to where it is sent from, unless its bytes are to be looked at on their way.
        if let Some((file, at)) = source.place().filter(|_| locked(tally).sum.is_none()) {
            let sent = match self {
                Wire::Stack(stream) => {
                    let mut slot = through(|| stream.reserve(PIECE))?;
                    slot.read_from(file, at)?;
                    if slot.filled() == 0 {
                        return Ok(false);
                    }
                    Some(committed(slot.commit())?)
                }
                Wire::Unix(stream, _) => {
                    let mut slot = through(|| stream.reserve(PIECE))?;
                    slot.read_from(file, at)?;
                    if slot.filled() == 0 {
                        return Ok(false);
                    }
                    Some(committed(slot.commit())?)
                }
                Wire::Kernel(_) => None,
            };
            if let Some(n) = sent {
                source.went(n as u64);
                // (The socket counts the copies.)
                locked(tally).went(n, 0);
                return Ok(true);
            }
        }
        buffer.resize(PIECE, 0);
        let n = source.read(buffer)?;
        if n == 0 {
            return Ok(false);
        }
        let mut rest = &buffer[..n];
        while !rest.is_empty() {
            // The kernel copied each byte when it was read.
            let (sent, copies) = match self {
                Wire::Kernel(stream) => {
                    (&mut &*stream).write_all(rest)?;
                    (rest.len(), 2)
                }
                Wire::Stack(stream) => (through(|| stream.send(rest))?, 1),
                Wire::Unix(stream, _) => (through(|| stream.send(rest))?, 1),
            };
            locked(tally).passed(&rest[..sent], copies * sent);
            rest = &rest[sent..];
        }
        Ok(true)
    }

    /// Receives a piece, and writes it to `sink`. False at the end.
    pub fn receive_to(
        &self,
        sink: &Sink,
        buffer: &mut Vec<u8>,
        tally: &Mutex<Tally>,
    ) -> anyhow::Result<bool> {
        let summed = locked(tally).sum.is_some();
        match self {
            Wire::Stack(stream) => {
                let mut view = through(|| stream.recv_borrowed(PIECE))?;
                let len = view.len();
                if summed {
                    // Nobody else writes these pages.
                    let mut tally = locked(tally);
                    view.slices().for_each(|slice| tally.look(slice));
                }
                sink.write_with(len, |fd, _| {
                    let n = view.write_to(fd)?;
                    view.advance(n);
                    Ok(n)
                })?;
                // (The socket counts these writes.)
                locked(tally).went(len, 0);
                Ok(len > 0)
            }
            Wire::Unix(stream, _) if !summed => {
                let mut view = through(|| stream.recv_borrowed(PIECE))?;
                let len = view.len();
                sink.write_with(len, |fd, _| {
                    let n = view.write_to(fd)?;
                    view.advance(n);
                    Ok(n)
                })?;
                locked(tally).went(len, 0);
                Ok(len > 0)
            }
            // What is added up has to be what is written, and a peer may write its memory: it takes a copy.
            Wire::Unix(stream, _) => {
                buffer.resize(PIECE, 0);
                let n = through(|| stream.recv(buffer))?;
                sink.write(&buffer[..n])?;
                locked(tally).passed(&buffer[..n], n);
                Ok(n > 0)
            }
            Wire::Kernel(stream) => {
                buffer.resize(PIECE, 0);
                let n = loop {
                    match (&mut &*stream).read(buffer) {
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        done => break done?,
                    }
                };
                sink.write(&buffer[..n])?;
                locked(tally).passed(&buffer[..n], 2 * n);
                Ok(n > 0)
            }
        }
    }

    /// Sends no more, receives no more, or both. (One that the peer has ended by now is as good.)
    pub fn shutdown(&self, how: Shutdown) {
        match self {
            Wire::Kernel(stream) => drop(stream.shutdown(how)),
            Wire::Stack(stream) => drop(stream.shutdown(how)),
            Wire::Unix(stream, _) => drop(stream.shutdown(how)),
        }
    }

    /// Waits, up to `limit`, until the peer has all that was sent. What a kernel has, it sends also when this process has ended; a stack of
    /// ours ends with it.
    pub fn settle(&self, limit: Option<Duration>) -> anyhow::Result<()> {
        let Wire::Stack(stream) = self else { return Ok(()) };
        let begun = Instant::now();
        loop {
            let left = stream.unacknowledged_bytes()?;
            if let Some(error) = stream.take_error()? {
                return Err(error.into());
            }
            if left == 0 {
                return Ok(());
            }
            anyhow::ensure!(
                limit.is_none_or(|limit| begun.elapsed() < limit),
                "the peer has not acknowledged the last {left} bytes in time: give it more with -q, and send again"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// What was learned about the stores of what is sent.
    pub fn learned(&self) -> Option<Lesson> {
        match self {
            Wire::Kernel(_) | Wire::Stack(_) => None,
            Wire::Unix(stream, _) => Some((stream.reader(), stream.capacity().0, stream.learned()?)),
        }
    }

    /// What the socket counted; the kernel's count nothing.
    pub fn stats(&self) -> Option<Stats> {
        match self {
            Wire::Kernel(_) => None,
            Wire::Stack(stream) => Some(stream.stats()),
            Wire::Unix(stream, _) => Some(stream.stats()),
        }
    }

    /// What carries what is sent, and what is received, at this moment.
    pub fn carriers(&self) -> (&'static str, &'static str) {
        match self {
            Wire::Kernel(_) => ("kernel", "kernel"),
            Wire::Stack(stream) => match stream.path().send {
                onecopy::Carrier::Kernel => ("kernel, by io_uring", "kernel, by io_uring"),
                _ => ("stack", "stack"),
            },
            Wire::Unix(stream, _) => {
                let name = |carrier| match carrier {
                    onecopy::Carrier::SharedMemory => "shared memory",
                    _ => "kernel",
                };
                let path = stream.path();
                (name(path.send), name(path.receive))
            }
        }
    }

    /// Its own address and the peer's, where they have one.
    pub fn names(&self) -> (Option<String>, Option<String>) {
        fn text<A: ToString, E>(address: Result<A, E>) -> Option<String> {
            address.ok().map(|address| address.to_string())
        }
        match self {
            Wire::Kernel(stream) => (text(stream.local_addr()), text(stream.peer_addr())),
            Wire::Stack(stream) => (text(stream.local_addr()), text(stream.peer_addr())),
            Wire::Unix(..) => (None, None),
        }
    }
}
