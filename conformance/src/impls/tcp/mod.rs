//! TCP: the kernel's, which is the oracle, and that of our stacks.
//!
//! Between two hosts what a call causes comes later. So that a case may look at once, each call returns only when the wire is quiet
//! (`Settled`): what it sent has arrived, and what that caused, too.

mod kernel;
mod stack;

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use super::traits::{Came, Conn, End, Listening, Name, Returned, Rx, Tx, not_offered};

pub use kernel::Kernel;
pub use stack::Stack;

/// A socket whose calls return when the wire is quiet.
struct Settled<E> {
    /// None once it is closed.
    end: Option<E>,
    settle: fn(),
}

impl<E> Settled<E> {
    fn new(end: E, settle: fn()) -> Settled<E> {
        settle();
        Settled { end: Some(end), settle }
    }

    fn call<R>(&self, call: impl FnOnce(&E) -> R) -> R {
        let done = call(self.get());
        (self.settle)();
        done
    }

    fn get(&self) -> &E {
        self.end.as_ref().expect("it is there until it is dropped")
    }
}

impl<E> Drop for Settled<E> {
    fn drop(&mut self) {
        drop(self.end.take());
        (self.settle)();
    }
}

macro_rules! settled {
    ($($name:ident($($arg:ident: $type:ty),*) -> $returns:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> io::Result<$returns> {
            self.call(|end| end.$name($($arg),*))
        })*
    };
}

impl<E: End> End for Settled<E> {
    settled! {
        send(data: &[u8], flags: Tx) -> usize;
        recv(buf: &mut [u8], flags: Rx) -> usize;
        send_msg(data: &[IoSlice<'_>], fds: &[BorrowedFd<'_>], flags: Tx) -> usize;
        recv_msg(bufs: &mut [IoSliceMut<'_>], control: bool, flags: Rx) -> Came;
        send_in_place(data: &[u8], flags: Tx) -> usize;
        recv_in_place(max: usize, flags: Rx) -> (Vec<u8>, Returned);
        send_to(data: &[u8], to: &Name) -> usize;
        shutdown(how: Shutdown) -> ();
        set_nonblocking(on: bool) -> ();
        set_read_timeout(after: Option<Duration>) -> ();
        set_write_timeout(after: Option<Duration>) -> ();
        readable_bytes() -> usize;
        take_error() -> Option<i32>;
        set_peek_off(at: i32) -> ();
        peer_cred() -> (i32, u32);
        local_name() -> Name;
        peer_name() -> Name;
        set_linger(linger: Option<Duration>) -> ();
        unacknowledged_bytes() -> usize;
        addresses() -> (SocketAddr, SocketAddr);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.get().fd()
    }
}

impl<L: Listening> Listening for Settled<L> {
    settled! {
        accept() -> Conn;
        set_nonblocking(on: bool) -> ();
        readable_bytes() -> usize;
        local_name() -> Name;
        address() -> SocketAddr;
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.get().fd()
    }
}

/// Where the listeners are that a case calls by paths.
struct Places(Mutex<Option<HashMap<PathBuf, SocketAddr>>>);

impl Places {
    const fn new() -> Places {
        Places(Mutex::new(None))
    }

    fn path(name: &Name) -> io::Result<&PathBuf> {
        match name {
            Name::Path(path) => Ok(path),
            _ => Err(not_offered("TCP has no such names")),
        }
    }

    fn put(&self, name: &Name, at: SocketAddr) -> io::Result<()> {
        let path = Places::path(name)?.clone();
        let mut places = self.0.lock().unwrap_or_else(|e| e.into_inner());
        places.get_or_insert_default().insert(path, at);
        Ok(())
    }

    fn get(&self, name: &Name) -> io::Result<SocketAddr> {
        let places = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let at = places.as_ref().and_then(|places| places.get(Places::path(name).ok()?));
        at.copied().ok_or_else(|| io::Error::other("nobody listens by that path"))
    }
}

/// Two ends of a connection of `tcp`, which send at once what they are given.
fn pair(tcp: &dyn super::Tcp) -> io::Result<(Conn, Conn)> {
    let listener = tcp.listen_at(SocketAddr::new(tcp.host(), 0), 1)?;
    let client = tcp.connect_to(listener.address()?)?;
    Ok((client, listener.accept()?))
}
