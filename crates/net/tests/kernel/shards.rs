//! Stacks of several shards: a ring and a thread each, and sockets that are one shard's each.

use crate::world::{anywhere, built, pair, pattern, until};
use onecopy_net::kernel::ZeroCopy;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::udp::Envelope;
use onecopy_net::{BuildError, Driver, RecvFlags, SendFlags, Stack, Transport, udp};
use onecopy_testing::{LONG, alone};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

/// None where io_uring is forbidden: said, and nothing is tried.
fn stack(shards: u32, zero_copy: ZeroCopy, linger: Duration) -> Option<Stack> {
    let builder = Stack::builder().shards(shards).linger(linger);
    built(builder.kernel(|config| config.zero_copy = zero_copy))
}

fn counts(stack: &Stack, name: &str) -> Vec<u64> {
    let of = |shard| -> HashMap<_, _> { stack.shard_counters(shard).unwrap().into_iter().collect() };
    (0..stack.shards()).map(|shard| of(shard)[name]).collect()
}

/// What is ready of `fd` now.
fn ready(fd: impl AsFd) -> PollFlags {
    let mut fds = [PollFd::new(&fd, PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP)];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    fds[0].revents()
}

#[test]
fn connections_are_the_shards_in_turn_and_each_ring_works_for_its_own() {
    for shards in [1, 2, 5] {
        let Some(stack) = stack(shards, ZeroCopy::Always, LONG) else { return };
        assert_eq!(stack.shards(), shards);
        let listener = Listener::bind(&stack, anywhere()).unwrap();
        let to = listener.local_addr().unwrap();
        let data = &pattern(300_000);
        let pairs: Vec<_> = (0..4 * shards + 1)
            .map(|_| {
                let client = Stream::connect(&stack, to).unwrap();
                (client, listener.accept().unwrap().0)
            })
            .collect();
        let all = 2 * pairs.len() as u64 + 1;
        let share = all / u64::from(shards);
        until(|| counts(&stack, "sockets").iter().sum::<u64>() == all);
        let sockets = counts(&stack, "sockets");
        assert!(sockets.iter().all(|count| (share..=share + 1).contains(count)), "{sockets:?}");
        thread::scope(|scope| {
            for (client, server) in &pairs {
                for (one, other) in [(client, server), (server, client)] {
                    scope.spawn(move || {
                        assert_eq!(one.send(data).unwrap(), data.len());
                        one.shutdown(Shutdown::Write).unwrap();
                    });
                    scope.spawn(move || {
                        let (mut other, mut back) = (other, Vec::new());
                        other.read_to_end(&mut back).unwrap();
                        assert!(back == *data);
                    });
                }
            }
        });
        // Each end was sent so much by its ring: two requests at least, of which each is told of twice, and stacked or not comes back once.
        // (A ring's thread shows what it has counted behind all else that it does for what has happened.)
        until(|| counts(&stack, "zero_copy_sends").iter().all(|count| *count >= 2 * (share - 1)));
        until(|| counts(&stack, "notifications") == counts(&stack, "zero_copy_sends"));
        for name in ["enters", "requests", "completions"] {
            until(|| counts(&stack, name).iter().all(|count| *count > 0));
            let sum = || counts(&stack, name).iter().sum::<u64>();
            let total = || stack.link_counters().into_iter().find(|(one, _)| *one == name).unwrap().1;
            until(|| total() == sum());
        }
        drop((pairs, listener));
        until(|| counts(&stack, "sockets").iter().sum::<u64>() == 0);
        assert!(stack.shard_counters(shards).is_none());
    }
}

#[test]
fn a_stack_has_up_to_64_shards_and_each_has_its_pages() {
    let builder = || Stack::builder().transport(Transport::Kernel);
    for shards in [0, 65, u32::MAX] {
        let error = builder().shards(shards).build().unwrap_err();
        assert!(matches!(error, BuildError::Shards(_)), "{error}");
        assert!(error.to_string().contains("1 to 64"), "{error}");
    }
    // A send goes in pieces that its shard has pages for.
    let few = builder().shards(64).kernel(|config| (config.send_pages, config.receive_pages) = (2, 3));
    let Some(stack) = built(few) else { return };
    let data = &pattern(200_000);
    for _ in 0..3 {
        let (client, server) = pair(&stack);
        thread::scope(|scope| {
            scope.spawn(move || {
                assert_eq!(client.send(data).unwrap(), data.len());
            });
            let mut back = Vec::new();
            (&server).read_to_end(&mut back).unwrap();
            assert!(back == *data);
        });
    }
    // As many as the memory has: the numbers of pages that wait are 16 bits.
    let many = builder().kernel(|config| config.receive_pages = 1 << 17).build().unwrap();
    let (client, server) = pair(&many);
    client.send(b"hello").unwrap();
    assert_eq!(server.recv(&mut [0; 9]).unwrap(), 5);
}

#[test]
fn a_send_goes_in_pieces_that_there_are_pages_for_while_others_have_some() {
    let Some(stack) = built(Stack::builder().kernel(|config| config.send_pages = 8)) else { return };
    let ((holds, _peer), (client, server)) = (pair(&stack), pair(&stack));
    let slot = holds.reserve(3 * 4096).unwrap();
    let data = &pattern(200_000);
    thread::scope(|scope| {
        scope.spawn(move || {
            assert_eq!(client.send(data).unwrap(), data.len());
        });
        let mut back = Vec::new();
        (&server).read_to_end(&mut back).unwrap();
        assert!(back == *data);
    });
    drop(slot);
}

#[test]
fn a_stack_that_falls_back_keeps_its_shards() {
    let builder = Stack::builder().tap("no/such:device").address("10.9.9.9/24").driver(Driver::Thread);
    match builder.shards(3).transport(Transport::Auto).build() {
        Ok(stack) => assert_eq!(stack.shards(), 3),
        Err(BuildError::Uring(refused)) => println!("lacking: io_uring ({refused})"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn descriptors_of_all_shards_show_what_is_theirs() {
    let Some(stack) = stack(3, ZeroCopy::Never, LONG) else { return };
    let listener = Listener::bind(&stack, anywhere()).unwrap();
    let connect = |_| {
        let client = Stream::connect(&stack, listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    };
    let pairs: Vec<_> = (0..7).map(connect).collect();
    let servers = || pairs.iter().map(|(_, server)| server);
    assert!(servers().all(|server| ready(server) == PollFlags::OUT));
    for (turn, (client, server)) in pairs.iter().enumerate() {
        client.send(b"x").unwrap();
        until(|| ready(server).contains(PollFlags::IN));
        let told: Vec<_> = servers().map(|server| ready(server).contains(PollFlags::IN)).collect();
        assert!(told.iter().enumerate().all(|(at, told)| *told == (at == turn)), "{told:?}");
        assert_eq!(server.recv(&mut [0; 9]).unwrap(), 1);
        assert_eq!(ready(server), PollFlags::OUT);
    }
    for (client, server) in pairs {
        // Full, and then with room again, by the ring of either end.
        until(|| {
            while client.send_with_flags(&[7; 50_000], SendFlags::DONTWAIT).is_ok() {}
            !ready(&client).contains(PollFlags::OUT)
        });
        let mut buffer = vec![0; 1 << 20];
        until(|| {
            let _ = server.recv_with_flags(&mut buffer, RecvFlags::DONTWAIT);
            ready(&client).contains(PollFlags::OUT)
        });
        drop(client);
        // Behind what was sent.
        until(|| {
            let _ = server.recv_with_flags(&mut buffer, RecvFlags::DONTWAIT);
            ready(&server).contains(PollFlags::IN | PollFlags::RDHUP)
        });
    }
}

#[test]
fn what_was_sent_on_all_shards_arrives_after_the_stack_is_gone() {
    let Some(stack) = stack(4, ZeroCopy::Always, LONG) else { return };
    let listener = TcpListener::bind(anywhere()).unwrap();
    let data = &pattern(1 << 20);
    thread::scope(|scope| {
        for _ in 0..8 {
            let ours = Stream::connect(&stack, listener.local_addr().unwrap()).unwrap();
            let mut theirs = listener.accept().unwrap().0;
            scope.spawn(move || (&ours).write_all(data).unwrap());
            scope.spawn(move || {
                let mut all = Vec::new();
                theirs.read_to_end(&mut all).unwrap();
                assert!(all == *data);
            });
        }
        drop(stack);
    });
}

#[test]
fn what_is_left_on_any_shard_when_the_time_is_over_is_reset() {
    alone!();
    let mut left = Vec::new();
    for _ in 0..3 {
        let Some(stack) = stack(3, ZeroCopy::Never, Duration::ZERO) else { return };
        let listener = TcpListener::bind(anywhere()).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 8192).unwrap();
        let connect = |_| {
            let ours = Stream::connect(&stack, listener.local_addr().unwrap()).unwrap();
            ours.set(|settings| settings.send_buffer = Some(16_384)).unwrap();
            let theirs = listener.accept().unwrap().0;
            // 256 KiB, which is more than the kernel takes while nobody reads.
            while ours.send_with_flags(&[7; 60_000], SendFlags::DONTWAIT).is_ok() {}
            theirs
        };
        let theirs: Vec<_> = (0..6).map(connect).collect();
        drop((stack, listener));
        for mut theirs in theirs {
            let all = theirs.read_to_end(&mut Vec::new());
            assert_eq!(all.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        }
        left.push(onecopy_testing::descriptors());
    }
    // Rings, sockets, and what wakes whom. (With the first one come those that the process keeps.)
    assert_eq!((left[1], left[2]), (left[0], left[0]));
}

#[test]
fn datagrams_are_sent_from_where_they_lie_by_the_rings_in_turn() {
    use onecopy_chain::{Chain, Fragment};
    use onecopy_pool::{PagePool, PoolConfig, provider::Heap};
    let Some(stack) = stack(3, ZeroCopy::Always, LONG) else { return };
    let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
    let to = udp::Socket::bind(&stack, anywhere()).unwrap();
    let sockets: Vec<_> = (0..6).map(|_| udp::Socket::bind(&stack, anywhere()).unwrap()).collect();
    // A copy is no ring's.
    sockets[0].send_to(b"copied", to.local_addr().unwrap()).unwrap();
    assert_eq!(to.recv(&mut [0; 9]).unwrap(), 6);
    assert_eq!(counts(&stack, "sockets"), [0; 3]);
    for (at, socket) in sockets.iter().enumerate() {
        for _ in 0..2 {
            let mut page = pool.alloc().unwrap();
            page.bytes_mut().unwrap().fill(at as u8);
            let chain = Chain::from(Fragment::new(page, 0, 4096).unwrap());
            let sent = socket.send_zerocopy(chain, &Envelope::to(to.local_addr().unwrap())).unwrap();
            let mut got = [9; 5000];
            assert_eq!(to.recv(&mut got).unwrap(), 4096);
            assert!(got[..4096].iter().all(|byte| *byte == at as u8));
            let (back, _) = sent.wait();
            assert_eq!(back.len(), 4096);
        }
    }
    // (A ring's thread shows what it has counted behind all else that it does for what has happened.)
    until(|| counts(&stack, "sockets") == [2; 3] && counts(&stack, "zero_copy_sends") == [4; 3]);
    drop(sockets);
    until(|| counts(&stack, "sockets") == [0; 3]);
}
