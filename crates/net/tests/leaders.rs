//! Threads that wait for one stack that has no thread of its own: one of them drives, and when it goes another one does.

use onecopy_link::{Capabilities, Link, Packet, Tap};
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{Driver, Port, Stack};
use onecopy_sync::atomic::{AtomicU32, Ordering};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// A TAP whose receive panics once, in the thread that drives then.
struct Broken {
    tap: Tap,
    breaks: Arc<AtomicU32>,
}

impl Link for Broken {
    fn capabilities(&self) -> Capabilities {
        self.tap.capabilities()
    }
    fn room(&self, now: u64) -> usize {
        self.tap.room(now)
    }
    fn transmit(&mut self, now: u64, packet: Packet) {
        self.tap.transmit(now, packet);
    }
    fn receive(&mut self, now: u64) -> Option<Packet> {
        let packet = self.tap.receive(now)?;
        assert!(self.breaks.swap(0, Ordering::SeqCst) == 0, "the link breaks, as the test wants it");
        Some(packet)
    }
    fn deadline(&self) -> Option<u64> {
        self.tap.deadline()
    }
}

impl AsFd for Broken {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }
}

impl Port for Broken {}

/// A stack that whoever waits drives, and one with a thread of its own.
fn stacks(breaks: &Arc<AtomicU32>) -> (Stack, Stack) {
    let (a, b) = Tap::cable(1500).unwrap();
    let a = Broken { tap: a, breaks: Arc::clone(breaks) };
    let builder = || Stack::builder().linger(Duration::from_millis(1));
    (
        builder().link(a).address("10.0.0.1/24").driver(Driver::Caller).build().unwrap(),
        builder().link(b).address("10.0.0.2/24").build().unwrap(),
    )
}

fn pair(a: &Stack, b: &Stack) -> (Stream, Stream) {
    let listener = Listener::bind(b, SocketAddr::from(([10, 0, 0, 2], 0))).unwrap();
    let client = Stream::connect(a, listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn read(mut stream: Stream) -> thread::JoinHandle<[u8; 3]> {
    thread::spawn(move || {
        let mut buffer = [0; 3];
        stream.read_exact(&mut buffer).unwrap();
        buffer
    })
}

#[test]
fn when_the_thread_that_drives_panics_another_one_drives() {
    let breaks = Arc::new(AtomicU32::new(0));
    let (a, b) = stacks(&breaks);
    let ((one, mut to_one), (two, mut to_two)) = (pair(&a, &b), pair(&a, &b));
    breaks.store(1, Ordering::SeqCst);
    let (one, two) = (read(one), read(two));
    to_one.write_all(b"one").unwrap();
    to_two.write_all(b"two").unwrap();
    // A packet is lost with the thread; it comes again.
    let (one, two) = (one.join(), two.join());
    assert!(one.is_ok() != two.is_ok(), "one of them drove");
    assert!(one.is_ok_and(|got| &got == b"one") || two.is_ok_and(|got| &got == b"two"));
}

#[test]
fn of_many_that_wait_each_gets_its_own() {
    let (a, b) = stacks(&Arc::default());
    for _ in 0..20 {
        // Whoever drove goes at the same moment as those who are told to drive: they have what they waited for.
        let (clients, mut servers): (Vec<_>, Vec<_>) = (0..6).map(|_| pair(&a, &b)).unzip();
        let readers: Vec<_> = clients.into_iter().map(read).collect();
        servers.iter_mut().for_each(|server| server.write_all(b"all").unwrap());
        readers.into_iter().for_each(|reader| assert_eq!(&reader.join().unwrap(), b"all"));
    }
}
