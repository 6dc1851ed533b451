//! Two worlds with the same calls: a pair of stacks on a cable, which this thread drives, and the kernel's TCP on loopback.

use onecopy_link::Tap;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{Driver, RecvFlags, SendFlags, Stack};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, sockopt};
use std::fmt::Debug;
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// What a call came to: a count, or an errno.
pub type Done = Result<usize, i32>;

pub const AGAIN: i32 = Errno::AGAIN.raw_os_error();

/// Looks until `look` gives what is expected: the kernel does what it does in its own time.
pub fn eventually<R: PartialEq + Debug>(what: &str, expected: R, mut look: impl FnMut() -> R) {
    let begun = Instant::now();
    loop {
        let seen = look();
        if seen == expected {
            return;
        }
        assert!(
            begun.elapsed() < onecopy_testing::LONG,
            "{what}: the kernel's is {seen:?}, ours {expected:?}"
        );
        std::thread::yield_now();
    }
}

/// What poll(2) says of `fd` now.
pub fn polled(fd: impl AsFd) -> PollFlags {
    let asked = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
    let mut fds = [PollFd::new(&fd, asked)];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    fds[0].revents()
}

/// An end of a connection.
pub trait End: AsFd {
    fn give(&self, bytes: &[u8]) -> Done;
    fn take(&self, buffer: &mut [u8], peek: bool) -> Done;
    fn shut(&self, how: Shutdown) -> Done;
    fn error(&self) -> Option<i32>;
    fn unread(&self) -> usize;
    /// Whoever closes it resets the connection.
    fn reset_on_close(&self);
}

fn errno(error: onecopy_net::Error) -> i32 {
    error.raw_os_error()
}

impl End for Stream {
    fn give(&self, bytes: &[u8]) -> Done {
        self.send_with_flags(bytes, SendFlags::DONTWAIT).map_err(errno)
    }

    fn take(&self, buffer: &mut [u8], peek: bool) -> Done {
        let flags = if peek { RecvFlags::PEEK } else { RecvFlags::empty() };
        self.recv_with_flags(buffer, flags | RecvFlags::DONTWAIT).map_err(errno)
    }

    fn shut(&self, how: Shutdown) -> Done {
        Stream::shutdown(self, how).map(|()| 0).map_err(errno)
    }

    fn error(&self) -> Option<i32> {
        self.take_error().unwrap().map(errno)
    }

    fn unread(&self) -> usize {
        self.readable_bytes().unwrap()
    }

    fn reset_on_close(&self) {
        self.set_linger(Some(Duration::ZERO)).unwrap();
    }
}

impl End for TcpStream {
    fn give(&self, bytes: &[u8]) -> Done {
        let flags = net::SendFlags::DONTWAIT | net::SendFlags::NOSIGNAL;
        net::send(self, bytes, flags).map_err(|errno| errno.raw_os_error())
    }

    fn take(&self, buffer: &mut [u8], peek: bool) -> Done {
        let flags = if peek { net::RecvFlags::PEEK } else { net::RecvFlags::empty() };
        let done = net::recv(self, buffer, flags | net::RecvFlags::DONTWAIT);
        done.map(|(n, _)| n).map_err(|errno| errno.raw_os_error())
    }

    fn shut(&self, how: Shutdown) -> Done {
        TcpStream::shutdown(self, how).map(|()| 0).map_err(|error| error.raw_os_error().unwrap())
    }

    fn error(&self) -> Option<i32> {
        self.take_error().unwrap().and_then(|error| error.raw_os_error())
    }

    fn unread(&self) -> usize {
        rustix::io::ioctl_fionread(self).unwrap() as usize
    }

    fn reset_on_close(&self) {
        sockopt::set_socket_linger(self, Some(Duration::ZERO)).unwrap();
    }
}

/// An end, and what a program that waits for edges knows of it.
pub struct Watched<E> {
    pub end: E,
    epoll: OwnedFd,
    /// What it was told and has not found to be over.
    pub known: EventFlags,
}

impl<E: End> Watched<E> {
    pub fn new(end: E) -> Watched<E> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let asked = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&epoll, &end, EventData::new_u64(0), asked).unwrap();
        Watched { end, epoll, known: EventFlags::empty() }
    }

    /// What poll(2) says of it; takes note of the edges that came.
    pub fn poll(&mut self) -> PollFlags {
        let mut buffer = [MaybeUninit::uninit(); 4];
        let now = Some(&Timespec::default());
        let (events, _) = epoll::wait(&self.epoll, &mut buffer, now).unwrap();
        for event in events {
            let flags = event.flags;
            self.known |= flags;
        }
        polled(&self.end)
    }

    /// Whether a program that waits for edges would try what would not wait. (That the peer sends no more, hang-ups and errors stay known.)
    pub fn knows(&mut self) -> bool {
        let polled = self.poll();
        let over = self.known.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        let reads = !polled.contains(PollFlags::IN) || over || self.known.contains(EventFlags::IN);
        let gone = self.known.intersects(EventFlags::HUP | EventFlags::ERR);
        let writes = !polled.contains(PollFlags::OUT) || gone || self.known.contains(EventFlags::OUT);
        reads && writes
    }

    pub fn send(&mut self, len: usize) -> Done {
        let done = self.end.give(&vec![7; len]);
        if done == Err(AGAIN) || done.is_ok_and(|n| n < len) {
            self.known -= EventFlags::OUT;
        }
        done
    }

    pub fn recv(&mut self, len: usize, peek: bool) -> Done {
        let done = self.end.take(&mut vec![0; len], peek);
        if !peek && (done == Err(AGAIN) || done.is_ok_and(|n| n < len)) {
            self.known -= EventFlags::IN;
        }
        done
    }
}

/// Two stacks on a cable, which are driven by this thread alone.
pub struct Cable {
    pub a: Stack,
    pub b: Stack,
}

impl Cable {
    pub fn new() -> Cable {
        let (a, b) = Tap::cable(1500).unwrap();
        let build = |tap, address, seed| {
            let stack = Stack::builder().link(tap).address(address).driver(Driver::Caller);
            stack.seed(seed).linger(Duration::ZERO).build().unwrap()
        };
        Cable { a: build(a, "10.0.0.1/24", [1; 16]), b: build(b, "10.0.0.2/24", [2; 16]) }
    }

    /// Until neither has anything to do.
    pub fn settle(&self) {
        while self.a.drive(Duration::ZERO).unwrap() | self.b.drive(Duration::ZERO).unwrap() {}
    }

    pub fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 2], port))
    }

    pub fn pair(&self) -> [Stream; 2] {
        let listener = Listener::bind(&self.b, Cable::at(0)).unwrap();
        let client = Stream::connect_nonblocking(&self.a, listener.local_addr().unwrap()).unwrap();
        self.settle();
        let (server, _) = listener.accept().unwrap();
        let ends = [client, server];
        // What waits for an ACK that comes later would come later.
        ends.iter().for_each(|end| end.set_nodelay(true).unwrap());
        self.settle();
        ends
    }
}

pub fn kernel_pair() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    let ends = [client, server];
    ends.iter().for_each(|end| end.set_nodelay(true).unwrap());
    ends
}
