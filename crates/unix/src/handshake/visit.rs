//! How a client brings its rings before any byte was sent, if both sides wait for shared memory.
//!
//! The client connects to the listener's rendezvous (`rendezvous.rs`) once more, and sends the memfd of both
//! rings there, with one byte. A server that waits, too, accepts the visit and joins the rings. Then it closes
//! the visit, which wakes the client. Nothing of this lies in the queue of the connection itself, so poll(2)
//! tells the truth meanwhile. A visit that nobody takes costs nothing: the rings go with the client's next
//! bytes, as they would have.
//!
//! Both sides compare processes, as the kernel tells them (SO_PEERCRED). The visitor is the process that has
//! connected the connection, and the rendezvous belongs to the process that listens. So no third process can
//! bring rings in a client's name, or be brought some.

use crate::control;
use crate::members::patience::BRIEFLY;
use onecopy_ring::Ring;
use onecopy_ring::memory::Nonce;
use onecopy_sync::{Mutex, MutexGuard};
use onecopy_sys::scm::{self, Space};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{RecvFlags, UCred, sockopt};
use std::io::IoSliceMut;
use std::time::Duration;

/// What comes with the memfd.
pub const VISIT: &[u8] = b"v";
/// How long a server waits for the message of a visitor that has connected.
const MESSAGE: Duration = Duration::from_millis(2);
/// The most visits that a server looks at before it looks at its own connection again.
pub const VISITS: usize = 16;

/// The process at the other end of a socket: the one that has connected it, or that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pid: i32,
    uid: u32,
}

impl Process {
    /// Returns what the kernel says. None of a process that cannot be seen from here.
    pub fn across(fd: BorrowedFd<'_>) -> Option<Process> {
        let UCred { pid, uid, .. } = sockopt::socket_peercred(fd).ok()?;
        let pid = pid.as_raw_nonzero().get();
        (pid > 0).then_some(Process { pid, uid: uid.as_raw() })
    }

    /// Whether it is the process at the other end of that socket, too.
    pub fn is_across(self, fd: BorrowedFd<'_>) -> bool {
        Process::across(fd) == Some(self)
    }
}

/// The accepted connections of a listener that wait for rings.
#[derive(Debug, Default)]
pub struct Waiting {
    list: Mutex<Vec<Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    nonce: Nonce,
    brought: Option<Visit>,
}

/// A client's visit, and the rings that it brought.
#[derive(Debug)]
pub struct Visit {
    pub rings: OwnedFd,
    /// Dropped once the rings were looked at, which the client sees.
    pub line: OwnedFd,
}

impl Visit {
    /// Whether it comes from the process at the other end of `connection`.
    pub fn is_of(&self, connection: BorrowedFd<'_>) -> bool {
        Process::across(self.line.as_fd()).is_some_and(|visitor| visitor.is_across(connection))
    }
}

impl Waiting {
    /// Takes the list. A fork may have left it locked, by a thread that this process does not have.
    fn list(&self) -> Option<MutexGuard<'_, Vec<Waiter>>> {
        self.list.lock_for(BRIEFLY)
    }

    /// Notes that the connection with that nonce waits, if that is not known.
    pub fn begin(&self, nonce: Nonce) {
        let Some(mut list) = self.list() else { return };
        if !list.iter().any(|waiter| waiter.nonce == nonce) {
            list.push(Waiter { nonce, brought: None });
        }
    }

    /// Notes that the connection with that nonce waits no more.
    pub fn end(&self, nonce: &Nonce) {
        let gone = self.list().and_then(|mut list| {
            let at = list.iter().position(|waiter| waiter.nonce == *nonce)?;
            Some(list.swap_remove(at))
        });
        // Its descriptors are closed without the lock.
        drop(gone);
    }

    /// Takes what was brought for the connection with that nonce.
    pub fn take(&self, nonce: &Nonce) -> Option<Visit> {
        self.list()?.iter_mut().find(|waiter| waiter.nonce == *nonce)?.brought.take()
    }

    /// Receives a visitor's message, and keeps it for whom it is for. A visitor without one, or for nobody who
    /// waits here, is sent away; it may come again.
    pub fn receive(&self, line: OwnedFd) {
        let Ok(_) = control::wait(line.as_fd(), PollFlags::IN, Some(MESSAGE)) else { return };
        let mut byte = [0; VISIT.len()];
        let came = scm::recv(&line, &mut [IoSliceMut::new(&mut byte)], Space::Few, RecvFlags::DONTWAIT);
        let Ok(mut came) = came else { return };
        let Some(rings) = came.fds.pop().filter(|_| came.fds.is_empty() && byte == VISIT) else { return };
        let Some(nonce) = Ring::label(&rings) else { return };
        let visit = Visit { rings, line };
        let before = self.list().and_then(|mut list| {
            let waiter = list.iter_mut().find(|waiter| waiter.nonce == nonce)?;
            waiter.brought.replace(visit)
        });
        drop(before);
    }
}
