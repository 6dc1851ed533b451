//! Listeners. That of a stack with several shards is one in each of them, as a connection may be any one's, and one to the program.

use super::inner::Inner;
use super::owner::Owner;
use super::shard::Shard;
use super::tcp::{Socket, listen_in};
use crate::bell::Joint;
use crate::carrier::tcp::{Connection, Endpoint, Listening};
use crate::carrier::{Common, Way};
use onecopy_inet::stack::Bound;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::Settings;
use onecopy_socket::{Carrier, Error, Op, Result, Wait};
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed, spin_loop};
use rustix::io::Errno;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

/// A listener at `address`.
pub(crate) fn listen(owner: &Owner, address: SocketAddr, backlog: u32) -> Result<Arc<dyn Listening>> {
    match owner.shards() {
        [only] => Ok(Arc::new(listen_in(only, address, backlog)?)),
        shards => Ok(Arc::new(Listeners::bind(shards, address, backlog)?)),
    }
}

/// Whoever accepts does not drive: the shards have threads of their own, and whoever waits for a connection drives that one's shard.
#[derive(Debug)]
struct Listeners {
    /// One for each shard. What is set of it is set of the first one, and given to all.
    sockets: Box<[Socket]>,
    joint: Arc<Joint>,
    /// Whose turn it is: so that no shard's connections wait for ever.
    turn: AtomicU32,
}

/// How often a port is chosen anew that somebody has in another shard.
const TRIES: u32 = 1000;

impl Listeners {
    fn bind(shards: &[Arc<Inner>], address: SocketAddr, backlog: u32) -> Result<Listeners> {
        let mut tries = if address.port() == 0 { TRIES } else { 1 };
        // Shared out, but for one that is to have any.
        let backlog = backlog.div_ceil(shards.len() as u32);
        let sockets: Box<[Socket]> = loop {
            let mut at = address;
            let one = |inner: &Arc<Inner>| {
                let socket = listen_in(inner, at, backlog)?;
                // The first one's choice is everybody's.
                at = socket.addresses().local.unwrap_or(at);
                Ok(socket)
            };
            match shards.iter().map(one).collect::<Result<_>>() {
                Ok(sockets) => break sockets,
                Err(error) => {
                    tries -= 1;
                    if tries == 0 || error.raw_os_error() != Errno::ADDRINUSE.raw_os_error() {
                        return Err(error);
                    }
                }
            }
        };
        let joint = Arc::new(Joint::new(sockets.len()));
        for (part, socket) in sockets.iter().enumerate() {
            socket.with(|shard, id, _| shard.join(id, &joint, part));
        }
        Ok(Listeners { sockets, joint, turn: AtomicU32::new(0) })
    }

    fn first(&self) -> &Socket {
        &self.sockets[0]
    }

    /// The next connection of any shard that has one.
    fn look(&self) -> Result<Option<(Arc<dyn Connection>, SocketAddr)>> {
        let (count, turn) = (self.sockets.len(), self.turn.fetch_add(1, Relaxed) as usize);
        for at in 0..count {
            let socket = &self.sockets[(turn + at) % count];
            let accept = |shard: &mut Shard, id: Id, _| shard.inet_mut().tcp_accept(id);
            match socket.call(Op::Accept, Way::Read, true, accept) {
                Ok((id, from)) => {
                    let connection = Socket::of(socket.inner(), id, false);
                    return Ok(Some((Arc::new(connection), from)));
                }
                Err(error) if error.raw_os_error() == Errno::AGAIN.raw_os_error() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Listening for Listeners {
    fn accept(&self) -> Result<(Arc<dyn Connection>, SocketAddr)> {
        let settings = self.common().settings();
        let (began, limit) = (Instant::now(), settings.read_timeout());
        loop {
            // Counted before: what comes behind this look wakes.
            let seen = self.joint.seen();
            if let Some(accepted) = self.look()? {
                return Ok(accepted);
            }
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            if settings.nonblocking() || left.is_some_and(|left| left.is_zero()) {
                return Err(Error::new(Op::Accept, Errno::AGAIN));
            }
            if settings.wait() == Wait::Spin {
                spin_loop();
            } else if self.joint.sleep(seen, left) {
                return Err(Error::new(Op::Accept, Errno::INTR));
            }
        }
    }
}

impl Endpoint for Listeners {
    fn common(&self) -> &Common {
        self.first().common()
    }

    fn carrier(&self) -> Carrier {
        Carrier::Stack
    }

    fn shutdown(&self, how: Shutdown) -> Result<()> {
        self.sockets.iter().try_for_each(|socket| Endpoint::shutdown(socket, how))
    }

    fn addresses(&self) -> Bound {
        self.first().addresses()
    }

    fn take_error(&self, op: Op) -> Option<Error> {
        self.sockets.iter().find_map(|socket| Endpoint::take_error(socket, op))
    }

    fn fd(&self) -> Result<BorrowedFd<'_>> {
        self.joint.fd().map_err(|errno| Error::new(Op::Socket, errno))
    }

    fn change(&self, change: &mut dyn FnMut(&mut Settings)) -> Result<()> {
        let mut settings = None;
        self.first().set(|first| {
            change(first);
            settings = Some(first.clone());
        })?;
        let Some(settings) = settings else { return Ok(()) };
        self.sockets[1..].iter().try_for_each(|socket| socket.set(|other| *other = settings.clone()))
    }

    fn look(&self, look: &mut dyn FnMut(&Settings)) {
        self.first().get(look);
    }
}
