//! The calls, without packetdrill: what its scripts cannot show, since they run only where it was built.

use crate::bytes::{self, Into, Message};
use crate::errno::Errno;
use crate::memory::User;
use crate::{control, epoll, options, world};
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Writer};
use onecopy_inet::wire::checksum::{leave_unfinished, pseudo_v4};
use onecopy_inet::wire::{Flags, Ipv4, Options, Protocol, Seq, Tcp};
use onecopy_link::Packet;
use onecopy_pool::{PagePool, PoolConfig, provider::Heap};
use onecopy_testing::{alone, asleep};
use std::net::Ipv4Addr;
use std::thread;

const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PORT: u16 = 8080;
/// The peer's first sequence number.
const FIRST: u32 = 1000;

/// Memory of this test's, for a call.
fn user(bytes: &mut [u8]) -> User {
    User::of(bytes)
}

/// A segment of the peer's.
fn segment(seq: u32, ack: u32, flags: Flags, payload: &[u8]) -> Vec<u8> {
    let ours = world::call(|world| Ok(world.environment.address.0)).unwrap();
    let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
    let mut chain = Chain::new();
    Writer::new(&pool).append(&mut chain, payload).unwrap();
    let mut packet = Packet::from(Segment::from(chain));
    let (seq, ack) = (Seq(seq), Seq(ack));
    let tcp = Tcp {
        from: 40_000,
        to: PORT,
        seq,
        ack,
        flags,
        window: 60_000,
        urgent: 0,
        options: Options::default(),
    };
    let len = tcp.len() + payload.len();
    tcp.write(packet.head_mut(), pseudo_v4(PEER, ours, Protocol::TCP, len as u32)).unwrap();
    leave_unfinished(&mut packet, 0, Tcp::CHECKSUM).unwrap();
    packet.finish().unwrap();
    let ip = Ipv4::new(PEER, ours, Protocol::TCP, len as u16);
    ip.write(packet.head_mut()).unwrap();
    packet.to_vec().unwrap()
}

/// What the stack sends next.
fn sent() -> (u64, Tcp, usize) {
    let (at, packet) = world::collect().expect("a packet is to be expected");
    let (tcp, payload) = Tcp::parse(&packet[20..]).unwrap();
    (at, tcp, payload.len())
}

/// A connection that the peer has made; its descriptor, and the sequence number of our first byte.
fn connected() -> (i32, u32) {
    world::create("");
    let listener = control::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap() as i32;
    let mut all = [0; 16];
    all[..2].copy_from_slice(&(libc::AF_INET as u16).to_le_bytes());
    all[2..4].copy_from_slice(&PORT.to_be_bytes());
    control::bind(listener, user(&mut all), 16).unwrap();
    control::listen(listener, 1).unwrap();
    world::deliver(&segment(FIRST, 0, Flags::SYN, &[]));
    let (_, answer, _) = sent();
    assert_eq!(answer.flags, Flags::SYN | Flags::ACK);
    let ours = answer.seq.0.wrapping_add(1);
    world::deliver(&segment(FIRST + 1, ours, Flags::ACK, &[]));
    (control::accept(listener, User::nowhere(), User::nowhere()).unwrap() as i32, ours)
}

fn receive(fd: i32, into: &mut [u8]) -> Result<isize, Errno> {
    let buffers = [(user(into), into.len())];
    bytes::receive(fd, Into { buffers: &buffers, flags: 0, message: None })
}

fn send(fd: i32, mut what: Vec<u8>) -> Result<isize, Errno> {
    let buffers = [(user(&mut what), what.len())];
    bytes::send(fd, Message { buffers: &buffers, flags: 0, to: None, nowhere: false })
}

#[test]
fn time_stands_still_until_a_woken_call_has_asked_for_it() {
    alone!();
    let (fd, ours) = connected();
    thread::scope(|scope| {
        let reader = asleep(scope, || {
            let mut into = [0; 10];
            let got = receive(fd, &mut into);
            (got, into, world::look_at_the_clock())
        });
        world::sleep(5_000_000_000);
        let before = world::look_at_the_clock();
        world::deliver(&segment(FIRST + 1, ours, Flags::ACK, b"0123456789"));
        world::sleep(7_000_000_000);
        let after = world::look_at_the_clock();
        let (got, into, woken) = reader.join().unwrap();
        assert_eq!((got, &into), (Ok(10), b"0123456789"));
        assert!(woken - before < 1_000_000, "it asked {} ns later", woken - before);
        assert!(after - woken >= 7_000_000_000);
    });
}

#[test]
fn a_call_that_waits_gives_up_in_its_time() {
    alone!();
    let (fd, _) = connected();
    let mut limit = [0; 16];
    limit[0] = 3;
    options::set(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, user(&mut limit), 16).unwrap();
    thread::scope(|scope| {
        let reader = asleep(scope, || (receive(fd, &mut [0; 10]), world::look_at_the_clock()));
        let before = world::look_at_the_clock();
        world::sleep(60_000_000_000);
        let (got, woken) = reader.join().unwrap();
        assert_eq!(got, Err(Errno(libc::EAGAIN)));
        let waited = woken - before;
        assert!((2_900_000_000..3_100_000_000).contains(&waited), "{waited} ns");
    });
}

#[test]
fn bad_pointers_are_told_and_nothing_is_lost() {
    alone!();
    let (fd, ours) = connected();
    let bad = [(User::nowhere(), 100)];
    let to_nowhere = || bytes::receive(fd, Into { buffers: &bad, flags: 0, message: None });
    let from_nowhere = Message { buffers: &bad, flags: 0, to: None, nowhere: false };
    assert_eq!(bytes::send(fd, from_nowhere), Err(Errno(libc::EFAULT)));
    world::deliver(&segment(FIRST + 1, ours, Flags::ACK, b"abc"));
    assert_eq!(to_nowhere(), Err(Errno(libc::EFAULT)));
    let mut into = [0; 100];
    assert_eq!(receive(fd, &mut into), Ok(3));
    assert_eq!(&into[..3], b"abc");
    assert_eq!(
        options::get(fd, libc::SOL_SOCKET, libc::SO_ERROR, User::nowhere(), User::nowhere()),
        Err(Errno(libc::EFAULT))
    );
}

#[test]
fn what_is_sent_leaves_at_times_of_its_own() {
    alone!();
    let (fd, _) = connected();
    assert_eq!(send(fd, vec![7; 3000]), Ok(3000));
    let (mut last, mut left) = (0, 3000);
    while left > 0 {
        let (at, _, len) = sent();
        assert!(at > last);
        (last, left) = (at, left - len);
    }
}

#[test]
fn edges_are_told_once_and_levels_as_long_as_they_last() {
    alone!();
    let (fd, ours) = connected();
    let (edge, level) = (control::epoll_create(1).unwrap() as i32, control::epoll_create(1).unwrap() as i32);
    let add = |set: i32, events: i32| {
        let mut event = [0; size_of::<libc::epoll_event>()];
        event[..4].copy_from_slice(&events.to_le_bytes());
        epoll::control(set, libc::EPOLL_CTL_ADD, fd, user(&mut event))
    };
    add(edge, libc::EPOLLIN | libc::EPOLLET).unwrap();
    add(level, libc::EPOLLIN).unwrap();
    assert_eq!(add(edge, libc::EPOLLIN), Err(Errno(libc::EEXIST)));
    let ready = |set: i32| {
        let mut events = [0; 2 * size_of::<libc::epoll_event>()];
        let count = epoll::wait(set, user(&mut events), 2, 0).unwrap();
        (count, i32::from_le_bytes(events[..4].try_into().unwrap()))
    };
    assert_eq!((ready(edge).0, ready(level).0), (0, 0));
    for bytes in 0..2 {
        world::deliver(&segment(FIRST + 1 + bytes, ours, Flags::ACK, b"x"));
        assert_eq!(ready(edge), (1, libc::EPOLLIN));
        assert_eq!(ready(edge).0, 0);
        assert_eq!((ready(level), ready(level)), ((1, libc::EPOLLIN), (1, libc::EPOLLIN)));
    }
    receive(fd, &mut [0; 2]).unwrap();
    assert_eq!(ready(level).0, 0);
    control::close(fd).unwrap();
    assert_eq!(add(level, libc::EPOLLIN), Err(Errno(libc::EPERM)));
}
