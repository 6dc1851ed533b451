//! A ring and the kernel's own sockets on the loopback: what is sent, received and given back.

use onecopy_chain::notify::{Completion, Config as LaneConfig, Context, Lane, Queue, Segment};
use onecopy_chain::{Chain, Writer};
use onecopy_pool::provider::Heap;
use onecopy_pool::{Monitor, PagePool, PoolConfig};
use onecopy_sys::eventfd::EventFd;
use onecopy_uring::{Config, End, Event, Refused, Ring, Send, Usage};
use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall, munlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

/// What a test has: a ring, a pool to send from, and whoever watches both pools.
struct World {
    ring: Ring,
    pool: PagePool,
    sent: Monitor,
    received: Monitor,
}

fn world() -> Option<World> {
    world_with(8)
}

/// None where io_uring is forbidden: said, and nothing is tried.
fn world_with(buffers: u16) -> Option<World> {
    let pool = PagePool::new(PoolConfig::new().limit(256), Heap::new()).unwrap();
    let pages = PagePool::new(PoolConfig::new().order(3).limit(buffers.into()), Heap::new()).unwrap();
    let (sent, received) = (pool.monitor(), pages.monitor());
    let config = Config { entries: 64, buffers, pages, region: pool.region() };
    match Ring::new(config, Arc::new(EventFd::new().unwrap())) {
        Ok(ring) => Some(World { ring, pool, sent, received }),
        Err(Refused::Setup(errno)) => {
            println!("lacking: io_uring ({})", Refused::Setup(errno));
            None
        }
        Err(refused) => panic!("{refused}"),
    }
}

/// Pages that somebody has.
fn out(monitor: &Monitor) -> u64 {
    let stats = monitor.stats();
    stats.in_flight - stats.in_cache - stats.in_ring
}

fn pair() -> (Arc<OwnedFd>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (Arc::new(ours.into()), listener.accept().unwrap().0)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

fn lane() -> (Context, Queue, Lane) {
    let (context, queue) = Context::new();
    let lane = context.lane(LaneConfig::default()).unwrap();
    (context, queue, lane)
}

/// A send of `bytes`, whose owner is told.
fn noticed(pool: &PagePool, lane: &mut Lane, bytes: &[u8]) -> Segment<Chain> {
    let mut chain = Chain::new();
    Writer::new(pool).append(&mut chain, bytes).unwrap();
    let mut segment = Segment::new(chain);
    lane.send_there(&mut segment, 7, 0).unwrap();
    segment
}

fn next(ring: &mut Ring) -> Event {
    loop {
        if let Some(event) = ring.event() {
            return event;
        }
        ring.wait(LIMIT).unwrap();
    }
}

const ZERO_COPY: Send =
    Send { zero_copy: true, more: false, whole: true, dont_wait: false, to: None, control: None };

#[test]
fn a_send_without_a_copy_is_over_twice() {
    let Some(World { mut ring, pool, sent, .. }) = world() else { return };
    let (ours, mut theirs) = pair();
    let (_context, mut queue, mut lane) = lane();
    let data = pattern(40_000);
    let segment = noticed(&pool, &mut lane, &data);
    ring.send(&ours, 1, segment, ZERO_COPY).unwrap();
    let Event::Sent { token: 1, result, more, .. } = next(&mut ring) else { panic!() };
    assert_eq!((result, more), (Ok(data.len()), true));
    let mut got = vec![0; data.len()];
    theirs.read_exact(&mut got).unwrap();
    assert!(got == data);
    let Event::Notified { token: 1, bytes, usage, .. } = next(&mut ring) else { panic!() };
    // The loopback delivers a copy.
    assert_eq!((bytes, usage), (data.len(), Usage::Copied));
    let told: Vec<Completion> = queue.reap_all();
    assert_eq!((told.len(), told[0].user_data, told[0].how.copied, told[0].how.dropped), (1, 7, true, false));
    assert_eq!((out(&sent), ring.is_idle()), (0, true));
    let counters = ring.counters();
    assert_eq!((counters.zero_copy, counters.notifications, counters.copied), (1, 1, 1));
    assert_eq!(counters.registered, u64::from(ring.is_registered()));
}

/// One send of `data` through, without a copy if the kernel lets it be, else by a copy.
fn passes(ring: &mut Ring, pool: &PagePool, data: &[u8]) {
    let (ours, mut theirs) = pair();
    let (_context, _queue, mut lane) = lane();
    let mut segment = noticed(pool, &mut lane, data);
    let mut how = ZERO_COPY;
    loop {
        ring.send(&ours, 1, segment, how).unwrap();
        match next(ring) {
            Event::Sent { result: Ok(n), .. } => break assert_eq!(n, data.len()),
            // No memory may be kept in place for it, or none that is registered (Linux before 6.15).
            Event::Sent { result: Err(Errno::NOMEM | Errno::NOBUFS), back: Some(back), .. } => {
                (segment, how.zero_copy) = (back, false);
            }
            Event::Sent { result: Err(Errno::AGAIN), back: Some(back), .. } => segment = back,
            other => panic!("{other:?}"),
        }
    }
    let mut got = vec![0; data.len()];
    theirs.read_exact(&mut got).unwrap();
    assert!(got == data);
    while !ring.is_idle() {
        let Event::Notified { .. } = next(ring) else { panic!() };
    }
}

/// Whether memory may be locked although RLIMIT_MEMLOCK, from here on, is nothing: capable(CAP_IPC_LOCK) decides, as it does of what is
/// registered (can_do_mlock(), io_uring_create()).
fn may_lock() -> bool {
    let maximum = getrlimit(Resource::Memlock).maximum;
    setrlimit(Resource::Memlock, Rlimit { current: Some(0), maximum }).unwrap();
    let locked = mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT).is_ok();
    munlockall().unwrap();
    locked
}

#[test]
fn pages_are_registered_where_memory_may_be_locked() {
    onecopy_testing::alone!();
    if setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None }).is_err() && !may_lock() {
        return eprintln!("lacking: neither CAP_SYS_RESOURCE, to raise RLIMIT_MEMLOCK, nor CAP_IPC_LOCK");
    }
    let Some(World { mut ring, pool, sent, .. }) = world() else { return };
    assert!(ring.is_registered());
    passes(&mut ring, &pool, &pattern(40_000));
    assert_eq!(ring.counters().registered, u64::from(ring.is_registered()));
    assert_eq!(out(&sent), 0);
}

#[test]
fn none_are_registered_where_little_memory_may_be_locked_and_sends_pass() {
    onecopy_testing::alone!();
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    // Enough for the rings, which newer kernels count, too, and less than the pool has.
    let maximum = getrlimit(Resource::Memlock).maximum;
    let little = maximum.map_or(256 << 10, |most| most.min(256 << 10));
    setrlimit(Resource::Memlock, Rlimit { current: Some(little), maximum }).unwrap();
    let Some(World { mut ring, pool, sent, .. }) = world() else { return };
    assert!(!ring.is_registered() && pool.region().unwrap().len() as u64 > little);
    passes(&mut ring, &pool, &pattern(40_000));
    assert_eq!((ring.counters().registered, out(&sent)), (0, 0));
}

#[test]
fn each_of_many_sends_is_told_once() {
    let Some(World { mut ring, pool, sent, .. }) = world() else { return };
    let (ours, mut theirs) = pair();
    let (_context, mut queue, mut lane) = lane();
    let data = pattern(1000);
    for token in 0..50 {
        let segment = noticed(&pool, &mut lane, &data);
        ring.send(&ours, token, segment, ZERO_COPY).unwrap();
    }
    let mut got = vec![0; 50 * data.len()];
    let (mut first, mut second) = ([0; 50], [0; 50]);
    let mut left = 100;
    while left > 0 {
        match next(&mut ring) {
            Event::Sent { token, result, more, .. } => {
                assert_eq!((result, more), (Ok(data.len()), true));
                first[token as usize] += 1;
            }
            Event::Notified { token, .. } => second[token as usize] += 1,
            other => panic!("{other:?}"),
        }
        left -= 1;
    }
    assert_eq!((first, second), ([1; 50], [1; 50]));
    theirs.read_exact(&mut got).unwrap();
    assert!(got.chunks(data.len()).all(|chunk| chunk == data));
    assert_eq!((queue.reap_all().len(), out(&sent)), (50, 0));
}

#[test]
fn what_may_have_been_stacked_is_not_believed() {
    let Some(World { mut ring, pool, .. }) = world() else { return };
    let (ours, mut theirs) = pair();
    let (_context, mut queue, mut lane) = lane();
    for _ in 0..8 {
        let segment = noticed(&pool, &mut lane, &[1; 500]);
        ring.send(&ours, 1, segment, ZERO_COPY).unwrap();
    }
    let mut usages = Vec::new();
    while usages.len() < 8 {
        match next(&mut ring) {
            Event::Notified { usage, .. } => usages.push(usage),
            Event::Sent { result, .. } => assert_eq!(result, Ok(500)),
            other => panic!("{other:?}"),
        }
    }
    assert!(usages.iter().all(|usage| *usage == Usage::Unknown), "{usages:?}");
    let told = queue.reap_all();
    assert!(told.len() == 8 && told.iter().all(|one| one.how.unknown && !one.how.copied), "{told:?}");
    theirs.read_exact(&mut [0; 4000]).unwrap();
    // Alone, it is believed again.
    let mut chain = Chain::new();
    Writer::new(&pool).append(&mut chain, &[1; 500]).unwrap();
    ring.send(&ours, 1, chain.into(), ZERO_COPY).unwrap();
    let Event::Sent { .. } = next(&mut ring) else { panic!() };
    let Event::Notified { usage: Usage::Copied, .. } = next(&mut ring) else { panic!() };
}

#[test]
fn a_reset_gives_the_pages_back_and_tells_once() {
    let Some(World { mut ring, pool, sent, .. }) = world() else { return };
    let (ours, theirs) = pair();
    let (_context, mut queue, mut lane) = lane();
    // More than the peer takes, so that some of it never leaves; the peer goes with something unread, which is a reset.
    let block = pattern(200_000);
    let mut whole = 0;
    for token in 0..4 {
        let segment = noticed(&pool, &mut lane, &block);
        ring.send(&ours, token, segment, ZERO_COPY).unwrap();
        whole += 1;
    }
    ring.wait(Some(Duration::ZERO)).unwrap();
    drop(theirs);
    let (mut first, mut second) = (0, 0);
    while !ring.is_idle() || first < whole {
        match next(&mut ring) {
            Event::Sent { more, .. } => {
                first += 1;
                second += u32::from(more);
            }
            Event::Notified { .. } => second -= 1,
            other => panic!("{other:?}"),
        }
    }
    while let Some(event) = ring.event() {
        let Event::Notified { .. } = event else { panic!("{event:?}") };
        second -= 1;
    }
    assert_eq!((first, second), (whole, 0));
    assert_eq!((queue.reap_all().len(), out(&sent)), (4, 0));
}

#[test]
fn what_arrives_lies_in_pages_of_its_own() {
    let Some(World { mut ring, received, pool, .. }) = world() else { return };
    drop(pool);
    let (ours, mut theirs) = pair();
    let data = pattern(300_000);
    ring.receive(&ours, 3);
    let writer = std::thread::spawn({
        let data = data.clone();
        move || {
            theirs.write_all(&data).unwrap();
            theirs
        }
    });
    let (mut got, mut kept) = (Vec::new(), Vec::new());
    while got.len() < data.len() {
        match next(&mut ring) {
            Event::Received { token: 3, data } => {
                got.extend_from_slice(&data.page().bytes().unwrap()[..data.len()]);
                // Two at a time stay with whoever received them.
                kept.push(data);
                if kept.len() > 2 {
                    kept.remove(0);
                }
            }
            Event::Ended { token: 3, end: End::NoPage | End::Again } => {
                assert!(ring.has_pages());
                ring.receive(&ours, 3);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(got == data);
    drop(writer.join().unwrap());
    loop {
        match next(&mut ring) {
            Event::Ended { end: End::Stream, .. } => break,
            Event::Ended { .. } => drop(ring.receive(&ours, 3)),
            other => panic!("{other:?}"),
        }
    }
    drop((kept, ring));
    assert_eq!(out(&received), 0);
}

#[test]
fn without_pages_a_receive_ends_and_nothing_is_lost() {
    let Some(World { mut ring, .. }) = world_with(2) else { return };
    let (ours, mut theirs) = pair();
    ring.receive(&ours, 3);
    let data = pattern(200_000);
    let writer = std::thread::spawn({
        let data = data.clone();
        move || theirs.write_all(&data).unwrap()
    });
    let (mut got, mut kept, mut starved) = (Vec::new(), Vec::new(), 0);
    while got.len() < data.len() {
        match next(&mut ring) {
            Event::Received { data, .. } => {
                got.extend_from_slice(&data.page().bytes().unwrap()[..data.len()]);
                kept.push(data);
            }
            Event::Ended { end: End::NoPage, .. } => {
                starved += 1;
                assert!(!ring.has_pages());
                kept.clear();
                assert!(ring.has_pages());
                ring.receive(&ours, 3);
            }
            Event::Ended { end: End::Again, .. } => drop(ring.receive(&ours, 3)),
            other => panic!("{other:?}"),
        }
    }
    assert!(got == data && starved > 0);
    writer.join().unwrap();
}

#[test]
fn a_dropped_ring_gives_everything_back() {
    let Some(World { mut ring, pool, sent, received }) = world() else { return };
    let (ours, theirs) = pair();
    let listener: OwnedFd = TcpListener::bind("127.0.0.1:0").unwrap().into();
    let (_context, mut queue, mut lane) = lane();
    // One that nobody reads, so that it waits for room; receives and accepts that nothing comes for.
    let block = pattern(250_000);
    for token in 0..4 {
        let segment = noticed(&pool, &mut lane, &block);
        ring.send(&ours, token, segment, Send { zero_copy: token % 2 == 0, ..ZERO_COPY }).unwrap();
    }
    ring.receive(&ours, 8);
    ring.accept(&Arc::new(listener), 9);
    ring.wait(Some(Duration::ZERO)).unwrap();
    // Bytes that the kernel has taken stay its own until the connection is over.
    drop(theirs);
    drop((ours, ring));
    assert_eq!(queue.reap_all().len(), 4);
    assert_eq!((out(&sent), out(&received)), (0, 0));
}

#[test]
fn a_cancelled_receive_says_so() {
    let Some(World { mut ring, .. }) = world() else { return };
    let (ours, _theirs) = pair();
    let key = ring.receive(&ours, 3);
    ring.cancel(key);
    let Event::Ended { token: 3, end: End::Cancelled } = next(&mut ring) else { panic!() };
    assert!(ring.is_idle());
}

#[test]
fn a_reset_behind_the_end_is_told_and_the_end_alone_is_not() {
    let Some(World { mut ring, .. }) = world() else { return };
    let (ours, theirs) = pair();
    let key = ring.hung_up(&ours, 3);
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    ring.receive(&ours, 4);
    assert!(matches!(next(&mut ring), Event::Ended { token: 4, end: End::Stream }));
    rustix::net::sockopt::set_socket_linger(&theirs, Some(Duration::ZERO)).unwrap();
    drop(theirs);
    assert!(matches!(next(&mut ring), Event::HungUp { token: 3, more: true }));
    assert!(rustix::net::sockopt::socket_error(&*ours).unwrap().is_err());
    // Asked behind the end, too.
    let (behind, theirs) = pair();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    ring.receive(&behind, 4);
    assert!(matches!(next(&mut ring), Event::Ended { token: 4, end: End::Stream }));
    let other = ring.hung_up(&behind, 5);
    rustix::net::sockopt::set_socket_linger(&theirs, Some(Duration::ZERO)).unwrap();
    ring.wait(Some(Duration::ZERO)).unwrap();
    drop(theirs);
    assert!(matches!(next(&mut ring), Event::HungUp { token: 5, more: true }));
    ring.cancel(key);
    ring.cancel(other);
    let last = |event| match event {
        Event::HungUp { token, more: false } => token,
        other => panic!("{other:?}"),
    };
    let mut both = [last(next(&mut ring)), last(next(&mut ring))];
    both.sort_unstable();
    assert_eq!(both, [3, 5]);
    assert!(ring.is_idle());
}

#[test]
fn connections_are_made_and_accepted() {
    let Some(World { mut ring, .. }) = world() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let listener: Arc<OwnedFd> = Arc::new(listener.into());
    ring.accept(&listener, 1);
    let stream = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
    let stream = Arc::new(stream.unwrap());
    ring.connect(&stream, 2, to);
    let (mut accepted, mut connected) = (false, false);
    while !(accepted && connected) {
        match next(&mut ring) {
            Event::Accepted { token: 1, result } => accepted = result.is_ok(),
            Event::Connected { token: 2, result } => connected = result.is_ok(),
            other => panic!("{other:?}"),
        }
    }
    drop((ring, listener));
    // Nobody listens there now.
    let Some(World { mut ring, .. }) = world() else { return };
    let stream = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
    ring.connect(&Arc::new(stream.unwrap()), 2, to);
    let Event::Connected { result, .. } = next(&mut ring) else { panic!() };
    assert_eq!(result, Err(rustix::io::Errno::CONNREFUSED));
}

#[test]
fn a_readable_descriptor_wakes_it() {
    let pages = PagePool::new(PoolConfig::new().limit(4), Heap::new()).unwrap();
    let wake = Arc::new(EventFd::new().unwrap());
    let config = Config { entries: 8, buffers: 4, pages, region: None };
    let Ok(mut ring) = Ring::new(config, wake.clone()) else { return println!("lacking: io_uring") };
    for _ in 0..3 {
        let other = wake.clone();
        let thread = std::thread::spawn(move || other.ring());
        while !ring.wait(LIMIT).unwrap() {}
        wake.drain();
        thread.join().unwrap();
    }
}

/// What came back of a send that the kernel took nothing of, and why.
fn refused(ring: &mut Ring) -> (rustix::io::Errno, Segment<Chain>) {
    let Event::Sent { result: Err(errno), more, back, .. } = next(ring) else { panic!() };
    match (more, back) {
        (false, Some(back)) => (errno, back),
        (true, None) => {
            let Event::Notified { bytes: 0, back: Some(back), .. } = next(ring) else { panic!() };
            (errno, back)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_kernel_does_not_take_comes_back_unsent() {
    let Some(World { mut ring, pool, sent, .. }) = world() else { return };
    let (context, mut queue) = Context::new();
    let mut lane = context.lane(LaneConfig::default()).unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect(udp.local_addr().unwrap()).unwrap();
    let udp = Arc::new(OwnedFd::from(udp));
    let (tcp, _theirs) = pair();
    let filler = vec![0; 1 << 20];
    while rustix::net::send(&tcp, &filler, rustix::net::SendFlags::DONTWAIT).is_ok() {}
    for zero_copy in [false, true] {
        let how = Send { zero_copy, whole: false, dont_wait: true, ..ZERO_COPY };
        // Longer than a datagram may be.
        ring.send(&udp, 1, noticed(&pool, &mut lane, &pattern(70_000)), how).unwrap();
        let (errno, back) = refused(&mut ring);
        assert_eq!((errno, back.payload().len()), (rustix::io::Errno::MSGSIZE, 70_000));
        assert!(queue.reap_all().is_empty(), "it is not over");
        // Sent again, in part, it is told of once, and not as dropped.
        let mut back = back;
        let rest = back.divide(1000).unwrap();
        ring.send(&udp, 1, back, how).unwrap();
        rest.free(onecopy_chain::notify::Fate::Sent);
        while queue.reap(|one| assert!(!one.how.dropped, "{one:?}")) == 0 {
            ring.wait(LIMIT).unwrap();
        }
        while ring.event().is_some() {}
        // There is no room.
        ring.send(&tcp, 2, noticed(&pool, &mut lane, &pattern(1000)), how).unwrap();
        let (errno, back) = refused(&mut ring);
        assert_eq!(errno, rustix::io::Errno::AGAIN);
        back.free(onecopy_chain::notify::Fate::Sent);
        assert!(!queue.reap_all()[0].how.dropped);
    }
    assert_eq!(out(&sent), 0);
}

#[test]
fn datagrams_go_to_whom_they_are_for_and_as_trains() {
    use onecopy_sys::datagram::{Control, Said};
    let Some(World { mut ring, pool, .. }) = world() else { return };
    let bind = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (ours, theirs) = (Arc::new(OwnedFd::from(bind())), bind());
    theirs.set_read_timeout(LIMIT).unwrap();
    let data = pattern(2500);
    let control = Control::new(&Said { segment: Some(1000), ..Said::default() }, false).unwrap();
    for zero_copy in [false, true] {
        let mut chain = Chain::new();
        Writer::new(&pool).append(&mut chain, &data).unwrap();
        let to = theirs.local_addr().ok();
        let how = Send { zero_copy, whole: false, to, control: Some(control), ..ZERO_COPY };
        ring.send(&ours, 1, chain.into(), how).unwrap();
        let Event::Sent { result, .. } = next(&mut ring) else { panic!() };
        assert_eq!(result, Ok(2500));
        let mut buffer = [0; 4000];
        for part in data.chunks(1000) {
            let n = theirs.recv(&mut buffer).unwrap();
            assert!(buffer[..n] == *part);
        }
        while !ring.is_idle() {
            ring.wait(LIMIT).unwrap();
        }
        while ring.event().is_some() {}
    }
}

#[test]
fn a_watch_goes_on_where_there_was_no_room_to_tell_of_it() {
    for crowd in 1..24 {
        let pages = PagePool::new(PoolConfig::new().order(3).limit(1), Heap::new()).unwrap();
        // Room for 8 completions.
        let config = Config { entries: 1, buffers: 1, pages, region: None };
        let mut ring = match Ring::new(config, Arc::new(EventFd::new().unwrap())) {
            Ok(ring) => ring,
            Err(refused) => return println!("lacking: io_uring ({refused})"),
        };
        let (watched, peer) = pair();
        ring.hung_up(&watched, 1);
        let mut others: Vec<_> = (0..crowd).map(|_| pair()).collect();
        for (ours, _) in &others {
            ring.readable(ours, 2);
        }
        ring.wait(Some(Duration::ZERO)).unwrap();
        // All of them at once, and behind them the peer's end, which is no hang-up.
        for (_, theirs) in &mut others {
            theirs.write_all(b"x").unwrap();
        }
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        let (mut told, mut readable) = (Vec::new(), 0);
        let mut look = |ring: &mut Ring, until: &dyn Fn(usize, usize) -> bool| {
            while !until(readable, told.len()) {
                ring.wait(Some(Duration::from_millis(20))).unwrap();
                while let Some(event) = ring.event() {
                    match event {
                        Event::HungUp { more, .. } => told.push(more),
                        Event::Readable { .. } => readable += 1,
                        other => panic!("{other:?}"),
                    }
                }
            }
            told.len()
        };
        assert_eq!(look(&mut ring, &|readable, _| readable == crowd), 0, "{crowd} others");
        // The reset is.
        rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        drop(peer);
        look(&mut ring, &|_, told| told > 0);
    }
}
