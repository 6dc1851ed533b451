//! Connections to the backend: kept, bounded, and queued for when all are in use.

use super::line::{Forward, Line};
use super::timeout::within;
use super::trouble::Trouble;
use crate::address::Address;
use crate::failure;
use crate::transport::{Transport, send_buffer};
use onecopy::unix::tokio::Stream;
use std::cell::{Cell, RefCell};
use std::io;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, SemaphorePermit};

/// How the backend is reached.
#[derive(Clone, Debug)]
pub struct Backend {
    /// Its socket.
    pub address: Address,
    /// Shared memory, or the kernel only.
    pub transport: Transport,
    /// Over the kernel: how bodies cross.
    pub forward: Forward,
    /// Size of a connection's buffer, in bytes.
    pub buffer: usize,
    /// How long a connection may take to be made, and a request may wait for one.
    pub patience: Duration,
    /// Most requests waiting for a connection.
    pub queue: usize,
}

/// The pool of one thread of the proxy.
#[derive(Debug)]
pub struct Pool {
    backend: Backend,
    /// The most recently used last: it is taken first, so that those not needed grow old and are dropped.
    idle: RefCell<Vec<(Line, Instant)>>,
    room: Semaphore,
    waiting: Cell<usize>,
}

/// A kept connection is not used again after this: the daemon ends its idle ones too.
pub const STALE: Duration = Duration::from_secs(60);

/// A connection on loan. Given back with [`Lease::keep`]; dropped, it is closed.
#[derive(Debug)]
pub struct Lease<'p> {
    /// The connection.
    pub line: Line,
    /// It has carried a request before, so it may have ended meanwhile.
    pub used: bool,
    pool: &'p Pool,
    _room: SemaphorePermit<'p>,
}

impl Pool {
    /// A pool of at most `most` connections.
    pub fn new(backend: Backend, most: usize) -> Pool {
        let room = Semaphore::new(most.max(1));
        Pool { backend, idle: RefCell::default(), room, waiting: Cell::new(0) }
    }

    /// A connection; a new one if `fresh`.
    pub async fn lease(&self, fresh: bool) -> Result<Lease<'_>, Trouble> {
        let room = match self.room.try_acquire() {
            Ok(room) => room,
            Err(_) if self.waiting.get() >= self.backend.queue => return Err(Trouble::Full),
            Err(_) => {
                let _waiting = Waiting::new(&self.waiting);
                match within(self.backend.patience, self.room.acquire()).await {
                    Some(Ok(room)) => room,
                    _ => return Err(Trouble::Late),
                }
            }
        };
        if fresh {
            // What is kept is as old as the connection that failed.
            self.idle.borrow_mut().clear();
        }
        while let Some((line, since)) = self.kept() {
            if since.elapsed() < STALE && line.is_quiet(since.elapsed()) {
                return Ok(Lease { line, used: true, pool: self, _room: room });
            }
        }
        let line = match within(self.backend.patience, self.connect()).await {
            Some(Ok(line)) => line,
            Some(Err(error)) => return Err(Trouble::Bad(failure::unreachable(&error))),
            None => return Err(Trouble::Late),
        };
        Ok(Lease { line, used: false, pool: self, _room: room })
    }

    fn kept(&self) -> Option<(Line, Instant)> {
        self.idle.borrow_mut().pop()
    }

    async fn connect(&self) -> io::Result<Line> {
        if self.backend.transport == Transport::Onecopy {
            let (name, buffer) = (self.backend.address.name(), self.backend.buffer);
            let config = onecopy::unix::Config { receive_buffer: Some(buffer), ..Default::default() };
            // It waits while the backlog is full, and is called back by being dropped: neither thread nor descriptor is left.
            return Line::onecopy(Stream::connect_with(name?, &config).await?);
        }
        let stream = loop {
            match self.backend.address.connect_nonblocking() {
                // A full backlog answers EAGAIN and cannot be waited for: asked again, within the patience.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                other => break other?,
            }
        };
        send_buffer(&stream, self.backend.buffer);
        Line::kernel(UnixStream::from_std(stream)?, self.backend.forward)
    }
}

impl Lease<'_> {
    /// Gives the connection back for the next request.
    pub fn keep(self) {
        self.pool.idle.borrow_mut().push((self.line, Instant::now()));
    }
}

struct Waiting<'c>(&'c Cell<usize>);

impl<'c> Waiting<'c> {
    fn new(count: &'c Cell<usize>) -> Waiting<'c> {
        count.set(count.get() + 1);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rewrite::Client;
    use super::super::trouble::Patience;
    use super::*;
    use std::io::Write;

    /// What lies there when a connection has just been made is the answer to nothing.
    #[test]
    fn an_answer_to_nothing_is_none() {
        let early = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL", false),
            ("H", false),
            ("HTTP/1.1 503 Full\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", true),
        ];
        for (transport, (early, busy)) in
            [Transport::Onecopy, Transport::Kernel].into_iter().flat_map(|t| early.map(|early| (t, early)))
        {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("s");
            let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
            let span = Duration::from_secs(60);
            let backend = Backend {
                address: format!("unix:{}", path.display()).parse().unwrap(),
                transport,
                forward: Forward::Copy,
                buffer: 64 << 10,
                patience: span,
                queue: 1,
            };
            let refused = crate::process::block_on(async {
                let pool = Pool::new(backend, 1);
                let mut lease = pool.lease(false).await.unwrap();
                let (mut other, _) = listener.accept()?;
                other.write_all(early.as_bytes())?;
                let (client, patience) =
                    (Client { head: false, keep: true, minor: 1 }, Patience { backend: span, client: span });
                let head = b"GET / HTTP/1.1\r\n\r\n";
                Ok(lease.line.ask(head, !lease.used, client, &mut Vec::new(), patience).await)
            });
            match refused.unwrap() {
                Err(Trouble::Busy) if busy => {}
                Err(Trouble::Bad(why)) if !busy => assert!(why.contains("before it was asked"), "{why}"),
                other => panic!("{transport:?} {early:?}: {other:?}"),
            }
        }
    }
}
