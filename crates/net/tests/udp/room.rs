//! Who waits for room on a link that takes all at once, and is told of it while it drives, or while another thread does.

use onecopy_link::{Capabilities, Link, Medium, Packet};
use onecopy_net::udp::{Envelope, Message, Socket};
use onecopy_net::{Driver, Port, SendFlags, Stack};
use onecopy_sync::Mutex;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Packets that wait for a link, at most.
const QUEUE: usize = 4096;

/// Longer than anything here takes. A send that is not told of the room looks by itself then.
const LIMIT: Duration = Duration::from_secs(5);

/// A link to nowhere: it takes nothing at first, and then everything.
struct Gate {
    fd: UnixStream,
    /// Without it the link would be gone.
    _far: UnixStream,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// How often somebody looked what has come.
    looks: usize,
    /// It takes packets from that look on.
    opens_at: usize,
    /// Its descriptor is readable from the beginning up to that look.
    calm_at: usize,
    taken: usize,
}

impl Gate {
    fn new(state: &Arc<Mutex<State>>) -> Gate {
        let (fd, mut far) = UnixStream::pair().unwrap();
        fd.set_nonblocking(true).unwrap();
        far.write_all(&[0]).unwrap();
        Gate { fd, _far: far, state: Arc::clone(state) }
    }
}

impl Link for Gate {
    fn capabilities(&self) -> Capabilities {
        Capabilities::none(Medium::Ip, 1500)
    }
    fn room(&self, _: u64) -> usize {
        let state = self.state.lock();
        if state.looks < state.opens_at { 0 } else { usize::MAX }
    }
    fn transmit(&mut self, _: u64, _: Packet) {
        self.state.lock().taken += 1;
    }
    fn receive(&mut self, _: u64) -> Option<Packet> {
        let mut state = self.state.lock();
        state.looks += 1;
        if state.looks >= state.calm_at {
            let _ = self.fd.read(&mut [0; 8]);
        }
        None
    }
    fn deadline(&self) -> Option<u64> {
        None
    }
}

impl AsFd for Gate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Port for Gate {}

/// A stack that whoever waits drives, and a socket of it.
fn behind(state: &Arc<Mutex<State>>) -> (Stack, Socket) {
    let builder = Stack::builder().link(Gate::new(state)).address("10.0.0.1/24").driver(Driver::Caller);
    let stack = builder.build().unwrap();
    let socket = Socket::bind(&stack, crate::world::a(0)).unwrap();
    socket.set_write_timeout(Some(LIMIT)).unwrap();
    (stack, socket)
}

fn to() -> SocketAddr {
    crate::world::b(9)
}

/// Calls `send`, which has to be told.
fn told(send: impl FnOnce() -> usize) -> usize {
    let began = Instant::now();
    let sent = send();
    assert!(began.elapsed() < LIMIT, "nobody has told it");
    sent
}

/// Sends `QUEUE` datagrams so many times by one call, and a few more.
fn send_many(socket: &Socket, times: usize) {
    let messages = vec![Message { bytes: b"x", envelope: Envelope::to(to()) }; times * QUEUE + 7];
    let sent = told(|| socket.send_many(&messages, SendFlags::empty()).unwrap());
    assert_eq!(sent, messages.len());
}

#[test]
fn who_drives_is_told_of_room_that_the_same_turn_made() {
    let state = Arc::new(Mutex::new(State { opens_at: usize::MAX, calm_at: usize::MAX, ..State::default() }));
    let (_stack, socket) = behind(&state);
    let mut sent = 0;
    while socket.send_to_with_flags(b"x", to(), SendFlags::DONTWAIT).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, QUEUE);
    {
        // A call that waits looks twice at most before it drives.
        let mut state = state.lock();
        state.opens_at = state.looks + 5;
        state.calm_at = state.opens_at;
    }
    assert_eq!(told(|| socket.send_to(b"x", to()).unwrap()), 1);
    assert_eq!(state.lock().taken, QUEUE + 1);
}

#[test]
fn who_drives_sends_what_part_of_a_call_left() {
    for times in 1..6 {
        let state = Arc::default();
        let (_stack, socket) = behind(&state);
        send_many(&socket, times);
        assert_eq!(state.lock().taken, times * QUEUE + 7);
    }
}

#[test]
fn who_follows_is_told_of_room_that_its_own_call_made() {
    for times in 1..6 {
        let state = Arc::new(Mutex::new(State { calm_at: usize::MAX, ..State::default() }));
        let (stack, socket) = behind(&state);
        let other = Socket::bind(&stack, crate::world::a(0)).unwrap();
        other.set_read_timeout(Some(2 * LIMIT)).unwrap();
        let end = crate::world::a(other.local_addr().unwrap().port());
        let leader = thread::spawn(move || other.recv(&mut [0; 9]).unwrap());
        // It drives once it has looked more than twice; then there is nothing to look at any more.
        let looks = || state.lock().looks;
        while looks() < 5 {
            thread::yield_now();
        }
        let calm_at = {
            let mut state = state.lock();
            state.calm_at = state.looks + 1;
            state.calm_at
        };
        while looks() < calm_at {
            thread::yield_now();
        }
        send_many(&socket, times);
        // (What is sent to an address of the same stack wakes who drives.)
        socket.send_to(b"end", end).unwrap();
        assert_eq!(leader.join().unwrap(), 3);
        assert_eq!(state.lock().taken, times * QUEUE + 7);
    }
}
