//! What a stack has to talk to: the echo, discard and source of RFCs 862 to 864, a thread for each connection.

use anyhow::Context;
use onecopy::tcp::{Listener, Stream};
use onecopy::{SendFlags, Stack, Stats};
use serde::Serialize;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Connections at once; who comes later is let go.
pub const MOST: usize = 1024;
/// Bytes that are moved at a time.
const PIECE: usize = 256 << 10;

/// What is done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// What comes goes back, from the pages that it came in.
    Echo,
    /// What comes is thrown away.
    Discard,
    /// Lines without end.
    Source,
}

/// What became of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Connections taken.
    pub connections: u64,
    /// Of these, let go at once, since there were too many.
    pub refused: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes copied in user space.
    pub user_copied: u64,
    /// Bytes copied by the kernel.
    pub kernel_copied: u64,
    /// Bytes that went by reference.
    pub referenced: u64,
}

impl Totals {
    fn add(&mut self, stats: &Stats) {
        self.received += stats.received;
        self.sent += stats.sent;
        self.user_copied += stats.user_copied();
        self.kernel_copied += stats.kernel_copied;
        self.referenced += stats.referenced;
    }
}

/// All listeners, and who is connected to them.
#[derive(Default)]
pub struct Services {
    listeners: Mutex<Vec<Listener>>,
    book: Arc<Mutex<Book>>,
}

#[derive(Default)]
struct Book {
    open: HashMap<u64, Stream>,
    next: u64,
    closing: bool,
    totals: Totals,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Services {
    /// Offers one at `port` of each of the stack's addresses.
    pub fn offer(&self, stack: &Stack, service: Service, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
        let all = stack.addresses();
        all.iter().map(|own| self.offer_at(stack, service, SocketAddr::new(own.address(), port))).collect()
    }

    fn offer_at(&self, stack: &Stack, service: Service, at: SocketAddr) -> anyhow::Result<SocketAddr> {
        let listener = Listener::bind(stack, at).with_context(|| format!("cannot listen on {at}"))?;
        let at = listener.local_addr()?;
        lock(&self.listeners).push(listener.try_clone()?);
        let book = self.book.clone();
        thread::Builder::new().name("accept".into()).spawn(move || accept(&listener, service, &book))?;
        Ok(at)
    }

    /// What they have done so far.
    pub fn totals(&self) -> Totals {
        let book = lock(&self.book);
        let mut totals = book.totals;
        book.open.values().for_each(|stream| totals.add(&stream.stats()));
        totals
    }

    /// Ends them. What was sent is still delivered, as long as the stack lives.
    pub fn close(&self) {
        let mut book = lock(&self.book);
        book.closing = true;
        for listener in lock(&self.listeners).drain(..) {
            let _ = listener.shutdown();
        }
        for stream in book.open.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &Listener, service: Service, book: &Arc<Mutex<Book>>) {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // It was shut down.
            Err(_) => return,
        };
        let Some(id) = enter(book, &stream) else { continue };
        let worker = book.clone();
        let spawned =
            thread::Builder::new().name(format!("conn-{id}")).stack_size(256 << 10).spawn(move || {
                // An error is the peer's going.
                let _ = serve(&stream, service);
                leave(&worker, id);
            });
        if spawned.is_err() {
            leave(book, id);
        }
    }
}

/// Puts a connection into the book, unless there are too many.
fn enter(book: &Mutex<Book>, stream: &Stream) -> Option<u64> {
    let mut book = lock(book);
    book.totals.connections += 1;
    if book.closing || book.open.len() >= MOST {
        book.totals.refused += 1;
        return None;
    }
    let id = book.next;
    book.next += 1;
    book.open.insert(id, stream.try_clone().ok()?);
    Some(id)
}

fn leave(book: &Mutex<Book>, id: u64) {
    let mut book = lock(book);
    if let Some(stream) = book.open.remove(&id) {
        book.totals.add(&stream.stats());
        drop(book);
        drop(stream);
    }
}

fn serve(stream: &Stream, service: Service) -> onecopy::Result<()> {
    match service {
        Service::Echo => loop {
            let view = stream.recv_borrowed(PIECE)?;
            if view.is_empty() {
                return stream.shutdown(Shutdown::Write);
            }
            stream.send_segment(view.into_segment(), SendFlags::empty())?;
        },
        Service::Discard => {
            while !stream.recv_borrowed(PIECE)?.is_empty() {}
            Ok(())
        }
        Service::Source => {
            let lines = lines().repeat(9);
            loop {
                stream.send(&lines)?;
            }
        }
    }
}

/// The popular pattern of RFC 864: lines of 72 characters of the 95 that can be printed, each beginning with the next.
fn lines() -> Vec<u8> {
    (0..95).flat_map(|line| (0..72).map(move |at| b' ' + ((line + at) % 95) as u8).chain(*b"\r\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_begins_as_in_its_rfc() {
        let lines = lines();
        assert_eq!(lines.len(), 95 * 74);
        assert!(lines.starts_with(
            b" !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefg\r\n!\"#"
        ));
        assert!(lines.ends_with(b"cdef\r\n"));
    }
}
