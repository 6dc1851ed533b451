//! What all kinds of sockets have in common: options, names, shutdown, close.

use crate::addr::SocketAddr;
use crate::config::Credentials;
use crate::connection::Connection;
use crate::connection::frames::records_in;
use crate::connection::idle::Waiting;
use crate::connection::rx::Rx;
use crate::control;
use crate::core::kind::Kind;
use crate::core::{PASS_CREDENTIALS, PASS_PIDFD};
use crate::handshake::invitation::Invitation;
use crate::members::patience::{BRIEFLY, stuck};
use onecopy_ring::{Consumer, Ring, memory};
use onecopy_socket::{Carrier, Error, Op, Path, RecvFlags, Result};
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release};
use onecopy_sys::scm;
use onecopy_sys::socket::unix_address;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, sockopt};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

fn option(errno: Errno) -> Error {
    Error::new(Op::Option, errno)
}

fn timeout(limit: Option<Duration>) -> impl Fn(Errno) -> Error {
    move |errno| match limit {
        Some(Duration::ZERO) => {
            let why = "a wait is longer than nothing; give None for one without a limit, or set O_NONBLOCK";
            option(errno).about("limit").because(why)
        }
        _ => option(errno).about("limit"),
    }
}

/// Returns the errno of an error of a system call.
fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

pub fn local_addr(fd: impl AsFd) -> Result<SocketAddr> {
    let address = rustix::net::getsockname(fd).map_err(option)?;
    Ok(unix_address(address).map_or_else(SocketAddr::unnamed, |a| visible_name(&a)))
}

/// Returns the name that a program gave. An invitation is no such name.
pub fn visible_name(address: &SocketAddrUnix) -> SocketAddr {
    match address.abstract_name() {
        Some(name) if Invitation::parse(name).is_some() => SocketAddr::unnamed(),
        _ => SocketAddr::of(address),
    }
}

impl Connection {
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        self.set_nonblocking_only(nonblocking)?;
        if nonblocking { self.reflect() } else { Ok(()) }
    }

    /// Takes over the settings that the kernel keeps.
    pub fn settle_settings(&self) -> rustix::io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(self.fd())?;
        self.settings().set_nonblocking(flags.contains(rustix::fs::OFlags::NONBLOCK));
        self.settings().set_read_timeout(sockopt::socket_timeout(self.fd(), sockopt::Timeout::Recv)?);
        self.settings().set_write_timeout(sockopt::socket_timeout(self.fd(), sockopt::Timeout::Send)?);
        Ok(())
    }

    pub fn set_mark(&self, mark: u32) -> Result<()> {
        onecopy_sys::sockopt::set_mark(self.fd(), mark)
            .map_err(|error| option(errno_of(&error)).about("mark"))
    }

    pub fn mark(&self) -> Result<u32> {
        onecopy_sys::sockopt::mark(self.fd()).map_err(|error| option(errno_of(&error)))
    }

    /// Does as `set_nonblocking`, for a caller that reflects by itself.
    pub fn set_nonblocking_only(&self, nonblocking: bool) -> Result<()> {
        rustix::io::ioctl_fionbio(self.fd(), nonblocking).map_err(option)?;
        self.settings().set_nonblocking(nonblocking);
        Ok(())
    }

    /// Whether sends go through a ring, and did not go back to the kernel.
    pub fn sends_into_ring(&self) -> bool {
        self.tx_ring().is_some() && !self.has_parted()
    }

    pub fn set_read_timeout(&self, limit: Option<Duration>) -> Result<()> {
        sockopt::set_socket_timeout(self.fd(), sockopt::Timeout::Recv, limit).map_err(timeout(limit))?;
        self.settings().set_read_timeout(limit);
        Ok(())
    }

    pub fn set_write_timeout(&self, limit: Option<Duration>) -> Result<()> {
        sockopt::set_socket_timeout(self.fd(), sockopt::Timeout::Send, limit).map_err(timeout(limit))?;
        self.settings().set_write_timeout(limit);
        Ok(())
    }

    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        let kernel = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        rustix::net::shutdown(self.fd(), kernel).map_err(|errno| Error::new(Op::Shutdown, errno))?;
        if how != Shutdown::Read {
            self.note_send_shut();
            self.others().shut_sending();
        }
        if how != Shutdown::Write {
            self.note_recv_shut();
        }
        if how != Shutdown::Write
            && let Some(ring) = self.rx_ring()
        {
            // Release needs no pair here: a sender that sees it asks the kernel.
            ring.header().info.0.shut.store(memory::SHUT, Release);
            // poll(2) does not show a shutdown to a sender that sleeps for room, but it shows that the filler
            // is gone.
            if let Some(mut rx) = self.rx.lock_within(|| BRIEFLY)
                && let Rx::Ring(rx) = &mut *rx
            {
                rx.unpark_now(self).map_err(|misbehaved| self.misbehaved(Op::Shutdown, misbehaved))?;
            }
        }
        Ok(())
    }

    pub fn readable_bytes(&self) -> Result<usize> {
        let end = self;
        let mut guard = end.rx.lock_within(|| BRIEFLY).ok_or_else(|| stuck(Op::Option))?;
        end.decide(&mut guard, Op::Option)?;
        match &mut *guard {
            Rx::Ring(rx) if end.kind() == Kind::SeqPacket => {
                rx.readable().map_err(|misbehaved| end.misbehaved(Op::Option, misbehaved))
            }
            Rx::Ring(rx) => rx.payload().map_err(|misbehaved| end.misbehaved(Op::Option, misbehaved)),
            Rx::Switching(switching) => {
                let queued = control::queued(end.fd()).map_err(option)?;
                let left = switching.left().map_err(|misbehaved| end.misbehaved(Op::Option, misbehaved))?;
                // What the peer has put into the ring, from which nobody reads yet. The first reader finds
                // out if anything is wrong there.
                let mut consumer = end.rx_ring().map(|ring| Consumer::new(ring.clone()));
                if end.kind().has_records() {
                    let in_ring = consumer.as_mut().and_then(|ring| records_in(ring, 0).ok()).unwrap_or(0);
                    // Once the peer has switched, its doorbells are there too: this is an upper bound.
                    let queued = if left == Some(0) { 0 } else { queued };
                    return Ok(queued.saturating_sub(switching.carry().past()) + in_ring);
                }
                let left = left.map_or(queued, |left| usize::try_from(left).unwrap_or(usize::MAX));
                let in_ring = consumer.as_mut().and_then(|ring| ring.payload().ok()).unwrap_or(0);
                let in_ring = usize::try_from(in_ring).unwrap_or(usize::MAX);
                Ok(queued.min(left).saturating_add(in_ring))
            }
            Rx::Plain | Rx::Undecided(_) => control::queued(end.fd()).map_err(option),
        }
    }

    pub fn unread_bytes(&self) -> Result<usize> {
        if let Some(ring) = self.tx_ring().filter(|_| !self.has_parted()) {
            let header = ring.header();
            // Acquire, and the tail first: as in `unread_in_ring`.
            let tail = header.reader.0.tail.load(Acquire);
            let head = header.writer.0.head.load(Acquire);
            let unread = match self.kind() {
                Kind::Stream => header.unread_payload(tail, head, ring.capacity()),
                Kind::SeqPacket | Kind::Datagram => self.unread_in_ring(),
            };
            return Ok(usize::try_from(unread).unwrap_or(usize::MAX));
        }
        onecopy_sys::socket::unread_memory(self.fd()).map_err(option)
    }

    pub fn capacity(&self) -> (usize, usize) {
        let end = self;
        let kernel = || {
            end.config().send_buffer.map_or_else(
                || sockopt::socket_send_buffer_size(end.fd()).unwrap_or(0),
                |bytes| bytes.saturating_mul(2),
            )
        };
        (
            end.tx_ring().map_or_else(kernel, Ring::capacity),
            end.rx_ring()
                .map_or_else(|| sockopt::socket_recv_buffer_size(end.fd()).unwrap_or(0), Ring::capacity),
        )
    }

    /// Returns the descriptor that knows the peer's credentials.
    fn knows_peer(&self) -> Result<BorrowedFd<'_>> {
        if self.kind() == Kind::Datagram && self.lifeline().is_none() {
            // The kernel does not note who connects datagram sockets.
            return Err(
                option(Errno::NOTCONN).because("only a datagram socket that shares memory knows its peer")
            );
        }
        Ok(self.life())
    }

    pub fn peer_cred(&self) -> Result<Credentials> {
        Ok(scm::peer_credentials(self.knows_peer()?).map_err(option)?.into())
    }

    pub fn peer_groups(&self) -> Result<Vec<u32>> {
        scm::peer_groups(self.knows_peer()?).map_err(option)
    }

    pub fn peer_pidfd(&self) -> Result<OwnedFd> {
        scm::peer_pidfd(self.knows_peer()?).map_err(option)
    }

    pub fn set_pass_credentials(&self, on: bool) -> Result<()> {
        self.pass(PASS_CREDENTIALS, on).map_err(option)
    }

    pub fn set_pass_pidfd(&self, on: bool) -> Result<()> {
        self.pass(PASS_PIDFD, on).map_err(option)
    }

    pub fn local_addr(&self) -> Result<SocketAddr> {
        local_addr(self.fd())
    }

    pub fn peer_addr(&self) -> Result<SocketAddr> {
        let address = rustix::net::getpeername(self.fd()).map_err(option)?;
        Ok(address.and_then(unix_address).map_or_else(SocketAddr::unnamed, |a| visible_name(&a)))
    }

    pub fn take_error(&self) -> Result<Option<Error>> {
        let errno = match sockopt::socket_error(self.fd()).map_err(option)? {
            Ok(()) if self.take_noted_reset() => Errno::CONNRESET,
            Ok(()) => return Ok(None),
            Err(errno) => errno,
        };
        if self.kind() == Kind::Datagram
            && let Rx::Ring(rx) = &mut *self.lock_rx(Op::Option)?
        {
            // While the error was pending, doorbells could not be taken.
            rx.mirror_empty(self)?;
        }
        if errno == Errno::CONNRESET && !self.was_reset() {
            return Ok(None);
        }
        Ok(Some(Error::new(Op::Recv, errno)))
    }

    pub fn path(&self) -> Path {
        let carrier = |shared| if shared { Carrier::SharedMemory } else { Carrier::Kernel };
        Path {
            send: carrier(self.sends_into_ring()),
            receive: carrier(match self.rx.lock_within(|| BRIEFLY) {
                Some(rx) => matches!(&*rx, Rx::Ring(_)),
                // Another thread holds it. Once there is a ring, bytes come from there, or will soon.
                None => self.rx_ring().is_some(),
            }),
        }
    }

    /// Makes the control socket's readiness mirror the ring's from here on.
    pub fn reflect(&self) -> Result<()> {
        if self.begin_mirror() {
            return Ok(());
        }
        // A sender that holds the side now looks by itself when it is done.
        if let Some(mut tx) = self.tx.try_lock() {
            // The next send reports what fails here.
            let _ = tx.park_if_full(self);
            tx.unlock_fenced();
            self.welcome_back();
        }
        if let Some(mut rx) = self.rx.lock_within(|| BRIEFLY) {
            // Where another process holds the side, it finds the request at its next look, when it lets go.
            if let Rx::Ring(rx) = &mut *rx {
                rx.mirror_empty(self)?;
            }
        }
        Ok(())
    }

    /// Closes an end that an application held. Views of it may be left.
    pub fn close(self: &Arc<Self>) {
        let end = self;
        if self.is_orphan() || !self.others().leave().unwrap_or_else(|| self.is_made_here()) {
            // The queue, the ring and the connection belong to another process too.
            return;
        }
        // If a doorbell stayed in the queue, the kernel would report ECONNRESET to the peer although all was
        // read.
        let Some(mut rx) = end.rx.lock_within(|| BRIEFLY) else { return };
        match &mut *rx {
            Rx::Plain => {}
            Rx::Ring(ring) => {
                if ring.consumer.available(1) == Ok(0) {
                    if end.kind() == Kind::SeqPacket && end.peer_left() {
                        // Settling would leave what is there, and poll(2) would show it.
                        ring.doorbells.drain(end);
                    } else {
                        let _ = ring.settle(end);
                    }
                }
            }
            Rx::Undecided(_) | Rx::Switching(_) => {
                if let Rx::Undecided(undecided) = &*rx
                    && let Some(ring) = undecided.attached()
                {
                    // As below, for rings that the peer may still join.
                    closes(ring);
                }
                drop(rx);
                // A look whether there is something to receive takes the doorbells that follow the kernel's
                // bytes.
                let _ = end.ready(RecvFlags::DONTWAIT, &mut Waiting::new(0));
            }
        }
        if let Some(ring) = end.rx_ring() {
            // With this, a sender that has room need not wait until it looks at the kernel again.
            closes(ring);
        }
        if Arc::strong_count(self) > 1 {
            // Views keep the descriptor open; the peer is told all the same.
            let _ = rustix::net::shutdown(self.fd(), rustix::net::Shutdown::Both);
            self.end_life();
        }
    }
}

/// Tells the sender that this end is about to close. What that means for the sender, a reset or not, the kernel says when it is done.
fn closes(ring: &Ring) {
    // Release needs no pair: see `shutdown`. A shutdown from before stands: to a sender it is a closed pipe already.
    let _ = ring.header().info.0.shut.compare_exchange(0, memory::CLOSES, Release, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::closes;
    use crate::connection::Connection;
    use crate::core::kind::Kind;
    use crate::{Config, SendFlags};
    use rustix::io::Errno;
    use std::io::IoSlice;

    /// Between its word in the ring and its close(2), a peer is not gone yet: the kernel has not said whether that is a reset.
    #[test]
    fn a_record_to_a_peer_that_is_about_to_close_is_no_broken_pipe_before_the_reset() {
        crate::tests::alone!();
        let (a, b) = Connection::pair(Kind::SeqPacket, &Config::default()).unwrap();
        let send = || a.send(&[IoSlice::new(b"one")], SendFlags::DONTWAIT);
        let failed = || send().unwrap_err().raw_os_error();
        assert_eq!(send().unwrap(), 3);
        closes(b.rx_ring().unwrap());
        assert_eq!(send().unwrap(), 3);
        drop(b);
        assert_eq!(failed(), Errno::CONNRESET.raw_os_error());
        assert_eq!(failed(), Errno::PIPE.raw_os_error());
    }
}
