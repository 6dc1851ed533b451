//! Ours: two stacks, joined by cables, so that nobody has to be root; or two that the kernel carries, by loopback.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use onecopy::advanced::link::Tap;
use onecopy::tcp::{Listener, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::onecopy::{recv_flags, send_flags};
use super::super::traits::{
    Came, Column, Conn, End, Impl, Kind, Listening, Name, Returned, Rx, Socket, Sockets, Tcp, Tx, not_offered,
};
use super::kernel::{self, on_one_cpu};
use super::{Places, Settled, pair};

/// TCP of our stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// Of one shard, as they are.
    One,
    /// Of two shards: what comes by a cable is as often the other one's.
    Two,
    /// Carried by the kernel, by two rings of io_uring each.
    Kernel,
}

/// Two hosts: the clients' and the servers', each with the descriptors of its ends of the cables, one for each shard; the kernel has none.
struct Hosts {
    clients: (onecopy::Stack, Vec<OwnedFd>),
    servers: (onecopy::Stack, Vec<OwnedFd>),
}

static PLACES: Places = Places::new();

/// Looks for a quiet wire so often, and not for ever: others may talk all the time.
const LOOKS: usize = 64;

impl Hosts {
    fn new(shards: usize) -> io::Result<Hosts> {
        let cables = (0..shards).map(|_| Tap::cable(1500)).collect::<Result<Vec<_>, _>>()?;
        let (clients, servers): (Vec<Tap>, Vec<Tap>) = cables.into_iter().unzip();
        let build = |taps: Vec<Tap>, address| -> io::Result<_> {
            let ends = taps.iter().map(|tap| tap.as_fd().try_clone_to_owned()).collect::<io::Result<_>>()?;
            Ok((onecopy::Stack::builder().links(taps).address(address).build()?, ends))
        };
        Ok(Hosts { clients: build(clients, "10.0.0.1/24")?, servers: build(servers, "10.0.0.2/24")? })
    }

    fn kernels(shards: u32) -> io::Result<Hosts> {
        // Its threads stay there, too.
        on_one_cpu();
        let build = || -> io::Result<_> {
            let builder = onecopy::Stack::builder().transport(onecopy::Transport::Kernel);
            Ok((builder.shards(shards).build()?, Vec::new()))
        };
        Ok(Hosts { clients: build()?, servers: build()? })
    }

    /// What the counters of that name come to, of both.
    fn count(&self, names: &[&str]) -> u64 {
        let count = |stack: &onecopy::Stack| {
            let counters = stack.link_counters().into_iter();
            counters.filter(|(name, _)| names.contains(name)).map(|(_, count)| count).sum::<u64>()
        };
        count(&self.clients.0) + count(&self.servers.0)
    }

    /// Waits until nothing is under way: both have taken all that came, and have sent nothing since.
    fn settle(&self) {
        // How many packets the cables have taken, and the shards from each other.
        let moved = || self.count(&["transmitted", "handed_over"]);
        for _ in 0..LOOKS {
            let before = moved();
            for (stack, ends) in [&self.clients, &self.servers] {
                for end in ends {
                    let mut fds = [PollFd::new(end, PollFlags::IN)];
                    while poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                        // (Where a thread waits for a socket, that one takes what has come; and a shard's own, where there are several.)
                        let _ = stack.drive(Duration::ZERO);
                        std::thread::yield_now();
                    }
                }
            }
            while self.count(&["handed_over_waiting"]) > 0 {
                std::thread::yield_now();
            }
            // (Whoever has taken it works at it until it lets go of the shard's lock, which this asks for.)
            if moved() == before {
                return;
            }
        }
    }
}

/// Waits until all threads of the rings sleep, and loopback has delivered what they sent: all of them are on this one CPU, so that whoever is woken does not
/// sleep any more.
fn settle_rings(hosts: &Hosts) {
    static RINGS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let rings = RINGS.get_or_init(rings);
    let mut quiet = 0;
    for _ in 0..LOOKS {
        let before = hosts.count(&["completions"]);
        kernel::settle();
        // Twice: one that waits for a lock sleeps, too.
        match rings.iter().all(|ring| is_asleep(ring)) && hosts.count(&["completions"]) == before {
            true if quiet == 1 => return,
            true => quiet += 1,
            false => quiet = 0,
        }
        // They get this CPU.
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Whether a thread sleeps, by its file in /proc.
fn is_asleep(stat: &Path) -> bool {
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
}

/// The threads of this process that make requests of rings, by their files in /proc.
fn rings() -> Vec<PathBuf> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("this process's threads").flatten();
    let named = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "onecopy-uring")
    };
    tasks.filter(named).map(|task| task.path().join("stat")).collect()
}

impl Stack {
    fn hosts(self) -> &'static Hosts {
        static HOSTS: [OnceLock<Hosts>; 3] = [const { OnceLock::new() }; 3];
        let new = || match self {
            Stack::One => Hosts::new(1),
            Stack::Two => Hosts::new(2),
            Stack::Kernel => Hosts::kernels(2),
        };
        HOSTS[self as usize].get_or_init(|| new().expect("two stacks"))
    }

    fn settle(self) -> fn() {
        match self {
            Stack::One => || Stack::One.hosts().settle(),
            Stack::Two => || Stack::Two.hosts().settle(),
            Stack::Kernel => || settle_rings(Stack::Kernel.hosts()),
        }
    }

    /// A stream that sends at once what it is given.
    fn stream(self, stream: Stream) -> io::Result<Conn> {
        stream.set_nodelay(true)?;
        Ok(Box::new(Settled::new(Ours(stream), self.settle())))
    }
}

impl Tcp for Stack {
    fn host(&self) -> IpAddr {
        match self {
            Stack::One | Stack::Two => Ipv4Addr::new(10, 0, 0, 2).into(),
            Stack::Kernel => Ipv4Addr::LOCALHOST.into(),
        }
    }

    fn listen_at(&self, at: SocketAddr, backlog: u32) -> io::Result<Box<dyn Listening>> {
        let listener = Listener::bind_with_backlog(&self.hosts().servers.0, at, backlog)?;
        Ok(Box::new(Settled::new(Accepting(listener, *self), self.settle())))
    }

    fn connect_to(&self, to: SocketAddr) -> io::Result<Conn> {
        self.stream(Stream::connect(&self.hosts().clients.0, to)?)
    }

    fn connect_from(&self, from: SocketAddr, to: SocketAddr) -> io::Result<Conn> {
        self.stream(Stream::connect_from(&self.hosts().clients.0, from, to)?)
    }

    fn begin(&self, to: SocketAddr) -> (io::Result<()>, Option<Conn>) {
        match Stream::connect_nonblocking(&self.hosts().clients.0, to) {
            Ok(begun) => (Ok(()), self.stream(begun).ok()),
            Err(error) => (Err(error.into()), None),
        }
    }
}

impl Impl for Stack {
    fn name(&self) -> &'static str {
        match self {
            Stack::One => "onecopy-tcp",
            Stack::Two => "onecopy-tcp-shards",
            Stack::Kernel => "onecopy-tcp-kernel",
        }
    }

    fn column(&self) -> Column {
        Column::Shared
    }

    fn about(&self) -> &'static str {
        match self {
            Stack::One => "our TCP: two stacks in one process, joined by a cable (`Tap::cable`)",
            Stack::Two => "our TCP: two such stacks of two shards each, with a cable for each shard",
            Stack::Kernel => {
                "our sockets on the kernel's TCP over loopback, by io_uring: two stacks of two rings each (`Transport::Kernel`)"
            }
        }
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
struct Accepting(Listener, Stack);

impl Listening for Accepting {
    fn accept(&self) -> io::Result<Conn> {
        self.1.stream(self.0.accept()?.0)
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
