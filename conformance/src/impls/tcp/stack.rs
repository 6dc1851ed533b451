//! Ours: two stacks, joined by a cable, so that nobody has to be root.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use onecopy::advanced::link::Tap;
use onecopy::tcp::{Listener, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::onecopy::{recv_flags, send_flags};
use super::super::traits::{
    Came, Column, Conn, End, Impl, Kind, Listening, Name, Returned, Rx, Socket, Sockets, Tcp, Tx, not_offered,
};
use super::{Places, Settled, pair};

/// TCP of our stacks.
pub struct Stack;

/// Two hosts: the clients' and the servers', each with the descriptor of its end of the cable.
struct Hosts {
    clients: onecopy::Stack,
    servers: onecopy::Stack,
    ends: [OwnedFd; 2],
}

static PLACES: Places = Places::new();

/// Looks for a quiet wire so often, and not for ever: others may talk all the time.
const LOOKS: usize = 64;

impl Hosts {
    fn get() -> &'static Hosts {
        static HOSTS: OnceLock<Hosts> = OnceLock::new();
        HOSTS.get_or_init(|| Hosts::new().expect("two stacks on a cable"))
    }

    fn new() -> io::Result<Hosts> {
        let (a, b) = Tap::cable(1500)?;
        let ends = [a.as_fd().try_clone_to_owned()?, b.as_fd().try_clone_to_owned()?];
        let build = |tap, address| onecopy::Stack::builder().link(tap).address(address).build();
        Ok(Hosts { clients: build(a, "10.0.0.1/24")?, servers: build(b, "10.0.0.2/24")?, ends })
    }

    /// How many packets the link has taken from both.
    fn sent(&self) -> u64 {
        let sent = |stack: &onecopy::Stack| {
            let counters = stack.link_counters().into_iter();
            counters.filter(|(name, _)| *name == "transmitted").map(|(_, count)| count).sum::<u64>()
        };
        sent(&self.clients) + sent(&self.servers)
    }
}

/// Waits until nothing is under way: both have taken all that came, and have sent nothing since.
fn settle() {
    let hosts = Hosts::get();
    for _ in 0..LOOKS {
        let before = hosts.sent();
        for (stack, end) in [&hosts.clients, &hosts.servers].into_iter().zip(&hosts.ends) {
            let mut fds = [PollFd::new(end, PollFlags::IN)];
            while poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                // (Where a thread waits for a socket, that one takes what has come.)
                let _ = stack.drive(Duration::ZERO);
                std::thread::yield_now();
            }
        }
        // (Whoever has taken it works at it until it lets go of the stack's lock, which this asks for.)
        if hosts.sent() == before {
            return;
        }
    }
}

/// A stream that sends at once what it is given.
fn stream(stream: Stream) -> io::Result<Conn> {
    stream.set_nodelay(true)?;
    Ok(Box::new(Settled::new(Ours(stream), settle)))
}

impl Tcp for Stack {
    fn host(&self) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, 2).into()
    }

    fn listen_at(&self, at: SocketAddr, backlog: u32) -> io::Result<Box<dyn Listening>> {
        let listener = Listener::bind_with_backlog(&Hosts::get().servers, at, backlog)?;
        Ok(Box::new(Settled::new(Accepting(listener), settle)))
    }

    fn connect_to(&self, to: SocketAddr) -> io::Result<Conn> {
        stream(Stream::connect(&Hosts::get().clients, to)?)
    }

    fn connect_from(&self, from: SocketAddr, to: SocketAddr) -> io::Result<Conn> {
        stream(Stream::connect_from(&Hosts::get().clients, from, to)?)
    }

    fn begin(&self, to: SocketAddr) -> (io::Result<()>, Option<Conn>) {
        match Stream::connect_nonblocking(&Hosts::get().clients, to) {
            Ok(begun) => (Ok(()), stream(begun).ok()),
            Err(error) => (Err(error.into()), None),
        }
    }
}

impl Impl for Stack {
    fn name(&self) -> &'static str {
        "onecopy-tcp"
    }

    fn column(&self) -> Column {
        Column::Shared
    }

    fn about(&self) -> &'static str {
        "our TCP: two stacks in one process, joined by a cable (`Tap::cable`)"
    }

    fn pair(&self, _kind: Kind, _dir: &Path) -> io::Result<(Conn, Conn)> {
        pair(self)
    }

    fn listen(&self, _kind: Kind, name: &Name, backlog: Option<i32>) -> io::Result<Box<dyn Listening>> {
        let listener = self.listen_at(SocketAddr::new(self.host(), 0), backlog.unwrap_or(128) as u32)?;
        PLACES.put(name, listener.address()?)?;
        Ok(listener)
    }

    fn connect(&self, _kind: Kind, name: &Name) -> io::Result<Conn> {
        self.connect_to(PLACES.get(name)?)
    }

    fn datagrams(&self, _a: &Name, _b: &Name) -> io::Result<Sockets> {
        Err(not_offered("TCP has no datagrams"))
    }

    fn tcp(&self) -> io::Result<&dyn Tcp> {
        Ok(self)
    }

    fn socket(&self, _kind: Kind) -> Option<Box<dyn Socket>> {
        None
    }
}

/// A stream of ours.
struct Ours(Stream);

impl End for Ours {
    fn send(&self, data: &[u8], flags: Tx) -> io::Result<usize> {
        Ok(self.0.send_with_flags(data, send_flags(flags)?)?)
    }

    fn recv(&self, buf: &mut [u8], flags: Rx) -> io::Result<usize> {
        Ok(self.0.recv_with_flags(buf, recv_flags(flags)?)?)
    }

    fn send_msg(&self, data: &[IoSlice<'_>], fds: &[BorrowedFd<'_>], flags: Tx) -> io::Result<usize> {
        match fds {
            [] => Ok(self.0.send_vectored_with_flags(data, send_flags(flags)?)?),
            _ => Err(not_offered("TCP has no descriptors")),
        }
    }

    fn recv_msg(&self, bufs: &mut [IoSliceMut<'_>], _control: bool, flags: Rx) -> io::Result<Came> {
        let len = self.0.recv_vectored_with_flags(bufs, recv_flags(flags)?)?;
        Ok(Came { len, ..Came::default() })
    }

    fn send_in_place(&self, data: &[u8], _flags: Tx) -> io::Result<usize> {
        let mut slot = self.0.reserve(data.len())?;
        slot.copy_from(data);
        Ok(slot.commit()?)
    }

    fn recv_in_place(&self, max: usize, flags: Rx) -> io::Result<(Vec<u8>, Returned)> {
        let view = self.0.recv_borrowed_with_flags(max, recv_flags(flags)?)?;
        let mut bytes = vec![0; view.len()];
        view.copy_to(&mut bytes);
        Ok((bytes, Returned::default()))
    }

    fn send_to(&self, _data: &[u8], _to: &Name) -> io::Result<usize> {
        Err(not_offered("a stream has no sendto"))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        Ok(self.0.shutdown(how)?)
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        Ok(self.0.set_nonblocking(on)?)
    }

    fn set_read_timeout(&self, after: Option<Duration>) -> io::Result<()> {
        Ok(self.0.set_read_timeout(after)?)
    }

    fn set_write_timeout(&self, after: Option<Duration>) -> io::Result<()> {
        Ok(self.0.set_write_timeout(after)?)
    }

    fn readable_bytes(&self) -> io::Result<usize> {
        Ok(self.0.readable_bytes()?)
    }

    fn take_error(&self) -> io::Result<Option<i32>> {
        Ok(self.0.take_error()?.map(|error| error.raw_os_error()))
    }

    fn set_peek_off(&self, _at: i32) -> io::Result<()> {
        Err(not_offered("no SO_PEEK_OFF"))
    }

    fn peer_cred(&self) -> io::Result<(i32, u32)> {
        Err(not_offered("TCP has no credentials"))
    }

    fn local_name(&self) -> io::Result<Name> {
        Err(not_offered("TCP has no such names"))
    }

    fn peer_name(&self) -> io::Result<Name> {
        Err(not_offered("TCP has no such names"))
    }

    fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        Ok(self.0.set_linger(linger)?)
    }

    fn unacknowledged_bytes(&self) -> io::Result<usize> {
        Ok(self.0.unacknowledged_bytes()?)
    }

    fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.0.local_addr()?, self.0.peer_addr()?))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A listener of ours.
struct Accepting(Listener);

impl Listening for Accepting {
    fn accept(&self) -> io::Result<Conn> {
        stream(self.0.accept()?.0)
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        Ok(self.0.set_nonblocking(on)?)
    }

    fn readable_bytes(&self) -> io::Result<usize> {
        Err(not_offered("a listener has no bytes"))
    }

    fn local_name(&self) -> io::Result<Name> {
        Err(not_offered("TCP has no such names"))
    }

    fn address(&self) -> io::Result<SocketAddr> {
        Ok(self.0.local_addr()?)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
