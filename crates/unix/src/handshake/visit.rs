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

use crate::members::patience::BRIEFLY;
use onecopy_ring::Ring;
use onecopy_ring::memory::Nonce;
use onecopy_sync::{Mutex, MutexGuard};
use onecopy_sys::scm::{self, Space};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, UCred, sockopt};
use std::collections::VecDeque;
use std::io::IoSliceMut;

/// What comes with the memfd.
pub const VISIT: &[u8] = b"v";
/// The most visitors that a server looks at before it looks at its own connection again.
pub const VISITS: usize = 256;
/// The most visitors that have connected and said nothing yet. An honest one speaks at once, so those that came first go first.
const SILENT: usize = 16;

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
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    waiters: Vec<Waiter>,
    /// Visitors that have said nothing yet. Nobody waits for them.
    silent: VecDeque<OwnedFd>,
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
    fn list(&self) -> Option<MutexGuard<'_, List>> {
        self.list.lock_for(BRIEFLY)
    }

    /// Notes that the connection with that nonce waits, if that is not known.
    pub fn begin(&self, nonce: Nonce) {
        let Some(mut list) = self.list() else { return };
        if !list.waiters.iter().any(|waiter| waiter.nonce == nonce) {
            list.waiters.push(Waiter { nonce, brought: None });
        }
    }

    /// Notes that the connection with that nonce waits no more. With the last one, the visitors that have said nothing are sent away.
    pub fn end(&self, nonce: &Nonce) {
        let gone = self.list().and_then(|mut list| {
            let at = list.waiters.iter().position(|waiter| waiter.nonce == *nonce)?;
            let waiter = list.waiters.swap_remove(at);
            let silent =
                if list.waiters.is_empty() { std::mem::take(&mut list.silent) } else { VecDeque::new() };
            Some((waiter, silent))
        });
        // The descriptors are closed without the lock.
        drop(gone);
    }

    /// Takes what was brought for the connection with that nonce.
    pub fn take(&self, nonce: &Nonce) -> Option<Visit> {
        self.list()?.waiters.iter_mut().find(|waiter| waiter.nonce == *nonce)?.brought.take()
    }

    /// Receives what visitors say that had said nothing before.
    pub fn receive_late(&self) {
        let silent = self.list().map(|mut list| std::mem::take(&mut list.silent));
        silent.into_iter().flatten().for_each(|line| self.receive(line));
    }

    /// Has `ear` hear of what they say from now on: they may be seen between their connect and their message.
    pub fn hear_late(&self, ear: &OwnedFd) {
        let Some(list) = self.list() else { return };
        for line in &list.silent {
            // One that it does not hear is looked at all the same, when the wait's time is over.
            let _ = epoll::add(ear, line, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        }
    }

    /// Receives a visitor's message, and keeps it for whom it is for. One that says nothing yet is looked at again. One that has something else to say, or
    /// something for nobody who waits here, is sent away; it may come again.
    pub fn receive(&self, line: OwnedFd) {
        let mut byte = [0; VISIT.len()];
        let came = scm::recv(&line, &mut [IoSliceMut::new(&mut byte)], Space::Few, RecvFlags::DONTWAIT);
        let mut came = match came {
            Ok(came) => came,
            Err(Errno::AGAIN) => return self.keep(line),
            Err(_) => return,
        };
        let Some(rings) = came.fds.pop().filter(|_| came.fds.is_empty() && byte == VISIT) else { return };
        let Some(nonce) = Ring::label(&rings) else { return };
        let visit = Visit { rings, line };
        let before = self.list().and_then(|mut list| {
            let waiter = list.waiters.iter_mut().find(|waiter| waiter.nonce == nonce)?;
            waiter.brought.replace(visit)
        });
        drop(before);
    }

    /// Keeps a visitor that has said nothing yet, if anybody waits.
    fn keep(&self, line: OwnedFd) {
        let sent_away = self.list().and_then(|mut list| {
            if list.waiters.is_empty() {
                return Some(line);
            }
            list.silent.push_back(line);
            if list.silent.len() > SILENT { list.silent.pop_front() } else { None }
        });
        drop(sent_away);
    }
}
