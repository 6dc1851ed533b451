//! Under the kernel's TCP: the receive's own copy puts bytes into memory that no process maps.

use crate::world::{errno, pattern};
use onecopy_net::devmem::{Binding, Event, Frags, Path, TokenRange};
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{RecvFlags, Stack, Transport};
use onecopy_pool::{DeviceId, DeviceMemory};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

struct Kernel {
    stack: Stack,
    memory: DeviceMemory,
    listener: Listener,
    at: SocketAddr,
}

impl Kernel {
    /// With flows to its port steered to queue 1 of two. None where the kernel cannot do it.
    fn new(pages: u32) -> Option<(Kernel, Binding)> {
        Kernel::of(1, pages)
    }

    /// The same of so many shards.
    fn of(shards: u32, pages: u32) -> Option<(Kernel, Binding)> {
        let stack = match Stack::builder().transport(Transport::Kernel).shards(shards).build() {
            Ok(stack) => stack,
            Err(error) => {
                println!("lacking: io_uring ({error})");
                return None;
            }
        };
        let memory = DeviceMemory::opaque(pages, DeviceId(4)).unwrap();
        let listener = Listener::bind(&stack, "127.0.0.1:0".parse().unwrap()).unwrap();
        let at = listener.local_addr().unwrap();
        stack.set_queues(2).unwrap();
        stack.steer(at, 1).unwrap();
        match stack.bind_rx(&memory, &[1]) {
            Ok(binding) => Some((Kernel { stack, memory, listener, at }, binding)),
            Err(error) => {
                assert_eq!(error.raw_os_error(), 95, "{error}");
                println!("lacking: device memory by io_uring ({error})");
                None
            }
        }
    }

    fn connect(&self) -> (TcpStream, Stream) {
        let sender = TcpStream::connect(self.at).unwrap();
        (sender, self.listener.accept().unwrap().0)
    }

    /// Takes pages until none is free.
    fn fill(&self, mut sender: &TcpStream, receiver: &Stream) -> Vec<Frags> {
        let mut held = Vec::new();
        while self.memory.free() > 0 {
            sender.write_all(&[7]).unwrap();
            held.push(receiver.recv_frags(1).unwrap());
        }
        held
    }

    fn bytes(&self, frags: &Frags) -> Vec<u8> {
        let mut all = Vec::new();
        for frag in frags.device() {
            let begin = all.len();
            all.resize(begin + frag.len as usize, 0);
            self.memory.read_at(frag.offset, &mut all[begin..]).unwrap();
        }
        all
    }
}

#[test]
fn bytes_are_put_into_the_memory_by_the_receives_own_copy() {
    let Some((kernel, binding)) = Kernel::new(256) else { return };
    assert_eq!((binding.path(), binding.id(), binding.promised()), (Path::Direct(None), 1, 0));
    let (mut sender, receiver) = kernel.connect();
    let data = pattern(3_000_001);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for piece in data.chunks(100_003) {
                sender.write_all(piece).unwrap();
            }
            sender.shutdown(Shutdown::Write).unwrap();
        });
        let mut came = 0;
        let mut before = kernel.memory.copied().out;
        loop {
            let frags = receiver.recv_frags(200_000).unwrap();
            if frags.is_empty() {
                break;
            }
            assert!(frags.linear().is_none() && frags.len() <= 200_000);
            assert!(frags.device().iter().all(|frag| frag.binding == binding.id() && frag.token > 0));
            assert_eq!(kernel.memory.copied().out, before, "nobody but this test looks at it");
            assert!(kernel.bytes(&frags) == data[came..came + frags.len()]);
            came += frags.len();
            before = kernel.memory.copied().out;
        }
        assert_eq!(came, data.len());
    });
    let (stats, all) = (receiver.stats(), data.len() as u64);
    assert_eq!(
        (stats.received, stats.referenced, stats.kernel_copied, stats.user_copied_out),
        (all, all, all, 0)
    );
    assert_eq!(kernel.memory.copied().into, 0, "no copy of the device's");
    let queue = kernel.stack.queue_stats(1).unwrap();
    assert_eq!((queue.landed_bytes, queue.placed_bytes, queue.starved), (all, all, 0));
    assert_eq!(receiver.tokens_held(), 0);
    assert_eq!(kernel.memory.free(), kernel.memory.len());
    assert!(receiver.recv_frags(1).unwrap().is_empty(), "the end stays");
}

#[test]
fn what_a_call_does_is_what_it_does_on_a_stack_of_ones_own() {
    let Some((kernel, _binding)) = Kernel::new(64) else { return };
    let (mut sender, receiver) = kernel.connect();
    let mut buffer = [0; 16];
    let frags = |n, most, flags| receiver.recv_frags_with_flags(n, most, flags | RecvFlags::DONTWAIT);
    assert!(frags(10, usize::MAX, RecvFlags::empty()).unwrap_err().would_block());
    sender.write_all(b"hello, device, and goodbye").unwrap();
    // Nothing of it is taken by what is refused.
    assert_eq!(errno(receiver.recv(&mut buffer)), 14);
    assert_eq!(errno(receiver.peek(&mut buffer)), 14);
    assert_eq!(errno(receiver.recv_frags_with_flags(10, 0, RecvFlags::empty())), 525);
    assert_eq!(errno(receiver.recv_frags_with_flags(10, 1, RecvFlags::PEEK)), 95);
    assert_eq!(receiver.readable_bytes().unwrap(), 26);
    let first = receiver.recv_frags(5).unwrap();
    assert_eq!((kernel.bytes(&first), first.device()[0].token), (b"hello".to_vec(), 1));
    assert_eq!(receiver.recv_frags_with_flags(2, 1, RecvFlags::TRUNC).unwrap().len(), 2);
    let second = receiver.recv_frags(6).unwrap();
    assert_eq!(kernel.bytes(&second), b"device");
    assert_eq!(receiver.tokens_held(), 2);
    let kept = second.into_device();
    assert_eq!(receiver.dont_need(&[TokenRange { start: kept[0].token, count: 5 }]).unwrap(), 1);
    assert_eq!(receiver.dont_need(&[TokenRange { start: kept[0].token, count: 1 }]).unwrap(), 0);
    drop(first);
    assert_eq!((receiver.tokens_held(), kernel.memory.free()), (0, kernel.memory.len()));
    // Four pages' worth in at most one piece, which is one run.
    sender.write_all(&pattern(16_384)).unwrap();
    let mut rest = 13 + 16_384;
    while rest > 0 {
        let frags = receiver.recv_frags_with_flags(1 << 20, 1, RecvFlags::empty()).unwrap();
        assert_eq!(frags.device().len(), 1);
        rest -= frags.len();
    }
    // A timeout, and the end.
    receiver.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    assert!(receiver.recv_frags(1).unwrap_err().would_block());
    receiver.set_read_timeout(None).unwrap();
    // The other way is as it was.
    receiver.send(b"and back").unwrap();
    sender.read_exact(&mut buffer[..8]).unwrap();
    assert_eq!(&buffer[..8], b"and back");
    drop(sender);
    assert_eq!(receiver.recv(&mut buffer).unwrap(), 0);
    assert!(receiver.recv_frags(1).unwrap().is_empty());
}

#[test]
fn a_reset_is_told_once_and_then_it_is_the_end() {
    let Some((kernel, _binding)) = Kernel::new(64) else { return };
    let (sender, receiver) = kernel.connect();
    rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::ZERO)).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| receiver.recv_frags(1));
        drop(sender);
        assert_eq!(errno(waits.join().unwrap()), 104);
    });
    assert!(receiver.recv_frags(1).is_err() || receiver.recv_frags(1).unwrap().is_empty());
}

#[test]
fn whoever_waits_hears_of_a_shutdown() {
    let Some((kernel, _binding)) = Kernel::new(64) else { return };
    let (_sender, receiver) = kernel.connect();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| receiver.recv_frags(1));
        receiver.shutdown(Shutdown::Read).unwrap();
        assert!(waits.join().unwrap().unwrap().is_empty());
    });
}

#[test]
fn memory_that_is_full_is_told_and_goes_on_when_tokens_come_back() {
    let Some((kernel, binding)) = Kernel::new(16) else { return };
    let (mut sender, receiver) = kernel.connect();
    sender.write_all(&pattern(100_000)).unwrap();
    let mut held = Vec::new();
    let refused = loop {
        match receiver.recv_frags_with_flags(20_000, usize::MAX, RecvFlags::DONTWAIT) {
            Ok(frags) => held.push(frags),
            Err(error) if error.would_block() => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert_eq!(errno::<()>(Err(refused)), 105);
    assert_eq!(kernel.memory.free(), 0);
    assert_eq!((binding.event(), binding.event()), (Some(Event::Starved), None));
    let mut whole: Vec<u8> = held.iter().flat_map(|frags| kernel.bytes(frags)).collect();
    assert!(whole.len() <= 65_536);
    std::thread::scope(|scope| {
        // It waits until there is room.
        let waits = scope.spawn(|| receiver.recv_frags(20_000).unwrap());
        held.clear();
        whole.extend(kernel.bytes(&waits.join().unwrap()));
    });
    assert_eq!(binding.event(), Some(Event::Fed));
    while whole.len() < 100_000 {
        whole.extend(kernel.bytes(&receiver.recv_frags(20_000).unwrap()));
    }
    assert!(whole == pattern(100_000));
}

#[test]
fn unbound_it_goes_on_in_the_hosts_memory_and_fragments_stay() {
    let Some((kernel, binding)) = Kernel::new(64) else { return };
    let (mut sender, receiver) = kernel.connect();
    sender.write_all(b"device").unwrap();
    let frags = receiver.recv_frags(6).unwrap();
    drop(binding);
    assert_eq!(kernel.bytes(&frags), b"device");
    sender.write_all(b"host").unwrap();
    let mut buffer = [0; 4];
    let view = receiver.recv_frags(4).unwrap();
    assert_eq!(view.linear().unwrap().to_vec(), b"host");
    sender.write_all(b"more").unwrap();
    assert_eq!(receiver.recv(&mut buffer).unwrap(), 4);
    assert_eq!(receiver.tokens_held(), 1);
    // With the socket the last pages come home.
    let _ = frags.into_device();
    drop(receiver);
    assert_eq!(kernel.memory.free(), kernel.memory.len());
    // Its queue can be bound again, and a connection made since comes there.
    let again = kernel.stack.bind_rx(&kernel.memory, &[1]).unwrap();
    assert_eq!(again.id(), 2);
    let (mut sender, receiver) = kernel.connect();
    sender.write_all(b"device").unwrap();
    assert_eq!(kernel.bytes(&receiver.recv_frags(6).unwrap()), b"device");
}

#[test]
fn memory_that_is_full_hides_no_end_and_asks_for_nothing_without_need() {
    let Some((kernel, binding)) = Kernel::new(16) else { return };
    let (sender, receiver) = kernel.connect();
    let held = kernel.fill(&sender, &receiver);
    let dont_wait = || receiver.recv_frags_with_flags(10, usize::MAX, RecvFlags::DONTWAIT);
    assert_eq!(dont_wait().unwrap_err().raw_os_error(), 11);
    assert_eq!(binding.event(), None, "nothing waits for a page");
    drop(sender);
    assert!(receiver.recv_frags(10).unwrap().is_empty());
    assert!(dont_wait().unwrap().is_empty());
    assert_eq!((held.len(), binding.event()), (16, None));
}

#[test]
fn what_came_before_an_error_is_received_before_it() {
    let Some((kernel, _binding)) = Kernel::new(64) else { return };
    let (mut sender, receiver) = kernel.connect();
    sender.write_all(b"last words").unwrap();
    while receiver.readable_bytes().unwrap() < 10 {
        std::thread::yield_now();
    }
    rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::ZERO)).unwrap();
    drop(sender);
    while receiver.send(b"nobody listens").is_ok() {
        std::thread::yield_now();
    }
    assert_eq!(kernel.bytes(&receiver.recv_frags(4).unwrap()), b"last");
    assert_eq!(kernel.bytes(&receiver.recv_frags(100).unwrap()), b" words");
    assert!(receiver.recv_frags(1).is_err() || receiver.recv_frags(1).unwrap().is_empty());
}

#[test]
fn what_came_before_a_shutdown_is_received_before_the_end() {
    let Some((kernel, _binding)) = Kernel::new(64) else { return };
    let (mut sender, receiver) = kernel.connect();
    sender.write_all(b"last words").unwrap();
    while receiver.readable_bytes().unwrap() < 10 {
        std::thread::yield_now();
    }
    receiver.shutdown(Shutdown::Read).unwrap();
    assert_eq!(kernel.bytes(&receiver.recv_frags(100).unwrap()), b"last words");
    assert!(receiver.recv_frags(1).unwrap().is_empty());
    assert!(receiver.recv_frags(1).unwrap().is_empty());
}

#[test]
fn whoever_waits_for_the_device_hears_of_what_comes_to_the_host() {
    for _ in 0..10 {
        let Some((kernel, binding)) = Kernel::new(64) else { return };
        let (mut sender, receiver) = kernel.connect();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| receiver.recv_frags(1).unwrap().len());
            drop(binding);
            // It finds that out, or the other one did.
            let seen = receiver.recv_frags_with_flags(1, usize::MAX, RecvFlags::DONTWAIT);
            assert!(seen.unwrap_err().would_block());
            sender.write_all(b"x").unwrap();
            assert_eq!(waits.join().unwrap(), 1);
        });
    }
}

/// Whether poll(2) says that a descriptor can be read; it waits for that, or does not.
fn is_ready(fd: impl AsFd, wait: bool) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, if wait { None } else { Some(&none) }).unwrap() > 0
}

#[test]
fn whoever_polls_hears_of_nothing_once_all_is_taken() {
    let Some((kernel, _binding)) = Kernel::new(64) else { return };
    let (mut sender, receiver) = kernel.connect();
    for turn in 0..50_u8 {
        sender.write_all(&[turn; 10]).unwrap();
        assert!(is_ready(&receiver, true));
        match turn % 3 {
            // Less than was asked for; all of it; thrown away.
            0 => assert_eq!(receiver.recv_frags(100).unwrap().len(), 10),
            1 => {
                assert_eq!(receiver.recv_frags(4).unwrap().len(), 4);
                assert!(is_ready(&receiver, false), "there is more");
                assert_eq!(receiver.recv_frags(6).unwrap().len(), 6);
            }
            _ => assert_eq!(receiver.recv_frags_with_flags(10, 1, RecvFlags::TRUNC).unwrap().len(), 10),
        }
        assert!(!is_ready(&receiver, false));
    }
    drop(sender);
    assert!(is_ready(&receiver, true));
}

#[test]
fn whoever_polls_hears_of_nothing_where_all_is_taken_and_the_memory_unbound() {
    for _ in 0..10 {
        let Some((kernel, binding)) = Kernel::new(64) else { return };
        let (mut sender, receiver) = kernel.connect();
        sender.write_all(b"device").unwrap();
        assert!(is_ready(&receiver, true));
        assert_eq!(receiver.recv_frags(6).unwrap().device().len(), 1);
        drop(binding);
        let seen = receiver.recv_frags_with_flags(6, usize::MAX, RecvFlags::DONTWAIT);
        assert!(seen.unwrap_err().would_block());
        sender.write_all(b"host").unwrap();
        assert!(is_ready(&receiver, true));
        assert_eq!(receiver.recv_frags(4).unwrap().linear().unwrap().to_vec(), b"host");
        assert!(!is_ready(&receiver, false));
    }
}

#[test]
fn whoever_polls_hears_of_what_comes() {
    let Some((kernel, _binding)) = Kernel::new(64) else { return };
    let (mut sender, receiver) = kernel.connect();
    receiver.set_nonblocking(true).unwrap();
    let ready = |wait| is_ready(&receiver, wait);
    for turn in 0..50_u8 {
        // Empty it, however often it says that there is something.
        while !receiver.recv_frags(100).is_err_and(|error| error.would_block()) {}
        sender.write_all(&[turn; 10]).unwrap();
        assert!(ready(true));
        let mut all = Vec::new();
        while all.len() < 10 {
            match receiver.recv_frags(100) {
                Ok(frags) => all.extend(kernel.bytes(&frags)),
                Err(error) => assert!(error.would_block() && ready(true)),
            }
        }
        assert_eq!(all, [turn; 10]);
    }
    while !receiver.recv_frags(100).is_err_and(|error| error.would_block()) {}
    assert!(!ready(false));
    drop(sender);
    assert!(ready(true));
    while receiver.recv_frags(100).is_err_and(|error| error.would_block()) {
        ready(true);
    }
}

#[test]
fn what_cannot_be_bound_is_refused_as_on_a_stack_of_ones_own() {
    let Some((kernel, binding)) = Kernel::new(64) else { return };
    let other = DeviceMemory::opaque(64, DeviceId(5)).unwrap();
    let refused = |memory: &DeviceMemory, queues: &[u32]| errno(kernel.stack.bind_rx(memory, queues));
    assert_eq!(refused(&other, &[]), 22);
    assert_eq!(refused(&other, &[2]), 34);
    assert_eq!(refused(&other, &[1]), 17);
    assert_eq!(refused(&other, &[0]), 22, "none would be left");
    assert_eq!(refused(&DeviceMemory::opaque(15, DeviceId(5)).unwrap(), &[0]), 22);
    kernel.stack.set_queues(3).unwrap();
    assert_eq!(refused(&DeviceMemory::opaque(1 << 18, DeviceId(5)).unwrap(), &[2]), 95, "more than 1 GiB");
    // The queue is as it was: it may go.
    kernel.stack.set_queues(2).unwrap();
    assert_eq!(errno(kernel.stack.set_queues(1)), 22);
    assert_eq!(errno(kernel.stack.set_header_split(false)), 22);
    assert_eq!(kernel.stack.queues(), 2);
    // Who is not steered there is the host's.
    assert!(kernel.stack.unsteer(kernel.at));
    let (mut sender, receiver) = kernel.connect();
    sender.write_all(b"host").unwrap();
    assert_eq!(receiver.recv_frags(4).unwrap().linear().unwrap().to_vec(), b"host");
    drop(binding);
}

/// Several connections into little memory, in pieces of any size, with tokens that come back late and in any order.
#[test]
fn random_connections_keep_to_the_model() {
    for seed in 1..=8_u64 {
        let Some((kernel, _binding)) = Kernel::new(48) else { return };
        std::thread::scope(|scope| {
            for line in 0..3_u64 {
                let (mut sender, receiver) = kernel.connect();
                let data: Vec<u8> = pattern(200_000).iter().map(|byte| byte ^ line as u8).collect();
                let copy = data.clone();
                let mut state = seed.wrapping_mul(0x9E37_79B9) + line + 1;
                let mut random = move |below: u64| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state % below
                };
                let mut other = random;
                scope.spawn(move || {
                    let mut rest = &copy[..];
                    while !rest.is_empty() {
                        let n = (1 + other(30_000) as usize).min(rest.len());
                        sender.write_all(&rest[..n]).unwrap();
                        rest = &rest[n..];
                    }
                });
                let kernel = &kernel;
                scope.spawn(move || {
                    let (mut at, mut held) = (0, Vec::new());
                    loop {
                        let (n, most) = (1 + random(28_000) as usize, 1 + random(4) as usize);
                        let frags = receiver.recv_frags_with_flags(n, most, RecvFlags::empty()).unwrap();
                        if frags.is_empty() {
                            break;
                        }
                        assert!(frags.len() <= n && frags.device().len() <= most);
                        held.push((at, frags));
                        at = held.last().map_or(0, |(at, frags): &(usize, Frags)| at + frags.len());
                        // At most two are kept by each, of seven pages: all together less than there is.
                        while held.len() > 2 || (!held.is_empty() && random(3) == 0) {
                            let (at, frags) = held.swap_remove(random(held.len() as u64) as usize);
                            assert!(kernel.bytes(&frags) == data[at..at + frags.len()], "seed {seed}");
                        }
                    }
                    for (at, frags) in held {
                        assert!(kernel.bytes(&frags) == data[at..at + frags.len()], "seed {seed}");
                    }
                    assert_eq!((at, receiver.tokens_held()), (200_000, 0), "seed {seed}");
                });
            }
        });
        assert_eq!(kernel.memory.free(), kernel.memory.len(), "seed {seed}");
    }
}

/// Over before the memory is unbound: the ring fetches nothing more then.
#[test]
fn what_came_before_the_end_is_received_where_the_memory_is_unbound_behind_it() {
    for turn in 0..6 {
        let Some((kernel, binding)) = Kernel::new(64) else { return };
        let (mut sender, receiver) = kernel.connect();
        let data = pattern(30_000);
        sender.write_all(&data).unwrap();
        while receiver.readable_bytes().unwrap() < data.len() {
            std::thread::yield_now();
        }
        let (over, told) = (turn % 2 == 0, turn / 2);
        match over {
            true => {
                rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::ZERO)).unwrap();
                drop(sender);
                while receiver.send(b"nobody listens").is_ok() {
                    std::thread::yield_now();
                }
            }
            false => receiver.shutdown(Shutdown::Read).unwrap(),
        }
        assert_eq!(kernel.bytes(&receiver.recv_frags(4).unwrap()), data[..4]);
        drop(binding);
        // Who finds it out is a receive, of either kind, or whoever has the ring look at the connection.
        let mut all = data[..4].to_vec();
        if told == 1 {
            let mut buffer = vec![0; 1000];
            assert_eq!(receiver.recv(&mut buffer).unwrap(), 1000);
            all.extend(buffer);
        } else if told == 2 {
            let _ = receiver.shutdown(Shutdown::Write);
        }
        while all.len() < data.len() {
            let frags = receiver.recv_frags(1 << 20).unwrap();
            all.extend(frags.linear().unwrap().to_vec());
        }
        assert!(all == data, "turn {turn}");
        let end = || receiver.recv_frags(1).map_or(0, |frags| frags.len());
        assert_eq!((end(), end()), (0, 0));
        assert_eq!(receiver.stats().received, data.len() as u64);
    }
}

#[test]
fn a_forks_child_leaves_bytes_and_memory_to_its_parent() {
    onecopy_testing::alone!();
    let Some((kernel, binding)) = Kernel::new(64) else { return };
    let (mut sender, receiver) = kernel.connect();
    sender.write_all(b"the parent's").unwrap();
    while receiver.readable_bytes().unwrap() < 12 {
        std::thread::yield_now();
    }
    let mine = std::cell::RefCell::new(Some((kernel, binding, receiver)));
    let child = onecopy_sys::fork::child(|| {
        let Some((kernel, binding, receiver)) = mine.take() else { return 1 };
        // Read, thrown away, looked at: of all of it nothing is the child's.
        let tries =
            [(1, RecvFlags::empty()), (1, RecvFlags::TRUNC), (1, RecvFlags::PEEK), (0, RecvFlags::empty())];
        for (most, flags) in tries {
            match receiver.recv_frags_with_flags(5, most, flags) {
                Err(error) if error.raw_os_error() == 130 => {}
                other => {
                    eprintln!("{flags:?}: {other:?}");
                    return 2;
                }
            }
        }
        if receiver.recv(&mut [0; 5]).is_ok() {
            return 3;
        }
        // What the child drops is still the parent's.
        drop((receiver, binding, kernel));
        0
    });
    assert_eq!(child.unwrap().wait(), onecopy_sys::fork::Ended::Returned(0));
    let (kernel, binding, receiver) = mine.take().unwrap();
    assert_eq!(kernel.bytes(&receiver.recv_frags(100).unwrap()), b"the parent's");
    sender.write_all(b"and more").unwrap();
    assert_eq!(kernel.bytes(&receiver.recv_frags(100).unwrap()), b"and more");
    drop(binding);
}

/// Nobody has read them, and nobody will: the peer hears so (RFC 2525, 2.17).
#[test]
fn a_close_with_bytes_left_is_a_reset_where_the_memory_is_unbound_before() {
    let Some((kernel, binding)) = Kernel::new(64) else { return };
    let (mut sender, receiver) = kernel.connect();
    sender.write_all(&pattern(30_000)).unwrap();
    while receiver.readable_bytes().unwrap() < 30_000 {
        std::thread::yield_now();
    }
    drop(binding);
    drop(receiver);
    let told = sender.read(&mut [0; 8]).unwrap_err();
    assert_eq!(told.raw_os_error(), Some(Errno::CONNRESET.raw_os_error()));
}

/// How many sockets each shard has.
fn sockets(stack: &Stack) -> Vec<u64> {
    let of = |shard| stack.shard_counters(shard).unwrap().into_iter().find(|(name, _)| *name == "sockets");
    (0..stack.shards()).map(|shard| of(shard).unwrap().1).collect()
}

#[test]
fn memory_is_all_shards_and_comes_home_by_rings_of_connections_of_each() {
    let Some((kernel, binding)) = Kernel::of(3, 64) else { return };
    let (source, data) = crate::tx::filled();
    let tx = kernel.stack.bind_tx(&source).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connections: Vec<_> = (0..6).map(|_| kernel.connect()).collect();
    let senders: Vec<_> = (0..6)
        .map(|_| {
            let sender = Stream::connect(&kernel.stack, listener.local_addr().unwrap()).unwrap();
            (sender, listener.accept().unwrap().0)
        })
        .collect();
    // And the listener.
    wait(|| sockets(&kernel.stack).into_iter().sum::<u64>() == 13);
    assert!(sockets(&kernel.stack).iter().all(|count| (4..=5).contains(count)));
    let (kernel, data, tx) = (&kernel, &data, &tx);
    std::thread::scope(|scope| {
        for (mut sender, receiver) in connections {
            // Six times the memory that all of them have together.
            let bytes = pattern(1_500_000);
            let expected = bytes.clone();
            scope.spawn(move || sender.write_all(&bytes).unwrap());
            scope.spawn(move || {
                let mut ring = receiver.refill_ring(256).unwrap();
                let mut came = 0;
                loop {
                    let frags = receiver.recv_frags(40_000).unwrap();
                    if frags.is_empty() {
                        break;
                    }
                    assert!(kernel.bytes(&frags) == expected[came..came + frags.len()]);
                    came += frags.len();
                    ring.push_all(&frags.into_device());
                }
                assert_eq!(came, expected.len());
                assert_eq!((receiver.tokens_held(), ring.stats().passed_over), (0, 0));
            });
        }
        for (sender, mut receiver) in senders {
            scope.spawn(move || {
                let all = crate::tx::range(0, data.len() as u64);
                assert!(!sender.send_device(tx, &[all]).unwrap().wait().1.dropped);
                sender.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let mut came = Vec::new();
                receiver.read_to_end(&mut came).unwrap();
                assert!(came == *data);
            });
        }
    });
    assert_eq!(kernel.memory.free(), kernel.memory.len());
    let landed = kernel.stack.queue_stats(1).unwrap().landed_bytes;
    assert_eq!(landed, 6 * 1_500_000);
    wait(|| sockets(&kernel.stack).into_iter().sum::<u64>() == 1);
    drop(binding);
}

/// Waits for what the rings' threads do.
fn wait(mut done: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !done() {
        assert!(began.elapsed() < onecopy_testing::LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
}
