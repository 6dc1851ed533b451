//! Streams: beside std's, and beside each other.

use crate::world::{anywhere, counter, pair, pattern, stack, stack_with, until, with_std};
use onecopy_chain::notify::{Config as LaneConfig, Context, Segment};
use onecopy_chain::{Chain, Writer};
use onecopy_inet::wire::Mac;
use onecopy_link::Tap;
use onecopy_net::kernel::ZeroCopy;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{BuildError, Builder, Carrier, Driver, RecvFlags, SendFlags, Stack, Transport, Wait};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn bytes_go_both_ways_and_the_end_is_seen() {
    for zero_copy in [ZeroCopy::Never, ZeroCopy::Auto, ZeroCopy::Always] {
        for wait in [Wait::Block, Wait::Adaptive, Wait::Spin] {
            let Some(stack) = stack_with(zero_copy, wait) else { return };
            let listener = Listener::bind(&stack, anywhere()).unwrap();
            let to = listener.local_addr().unwrap();
            let echo = thread::spawn(move || {
                let (mut server, _) = listener.accept().unwrap();
                let mut buffer = [0; 64 << 10];
                let mut all = 0;
                loop {
                    let n = server.read(&mut buffer).unwrap();
                    if n == 0 {
                        return all;
                    }
                    server.write_all(&buffer[..n]).unwrap();
                    all += n;
                }
            });
            let data = pattern(3 << 20);
            let client = Stream::connect(&stack, to).unwrap();
            let path = client.path();
            assert_eq!(
                (path.send, path.receive, stack.carrier()),
                (Carrier::Kernel, Carrier::Kernel, Carrier::Kernel)
            );
            let received = thread::scope(|scope| {
                scope.spawn(|| {
                    assert_eq!(client.send(&data).unwrap(), data.len());
                    client.shutdown(Shutdown::Write).unwrap();
                });
                let mut received = Vec::new();
                (&client).read_to_end(&mut received).unwrap();
                received
            });
            assert!(received == data, "{zero_copy:?} {wait:?}");
            assert_eq!(echo.join().unwrap(), data.len());
            let stats = client.stats();
            assert_eq!((stats.sent, stats.received), (data.len() as u64, data.len() as u64));
            assert_eq!(stats.user_copied_in, stats.sent);
            // Some short pieces may have been copied behind others that nobody had taken, too.
            assert!((stats.received..2 * stats.received).contains(&stats.user_copied_out), "{stats:?}");
            // The loopback copies what was sent without a copy when it delivers it, and the kernel always copies what is received.
            until(|| client.stats().kernel_copied == stats.sent + stats.received);
            assert_eq!(counter(&stack, "zero_copy_sends") > 0, zero_copy != ZeroCopy::Never);
            until(|| counter(&stack, "zero_copy_sends") == counter(&stack, "notifications"));
        }
    }
}

#[test]
fn std_hears_and_is_heard() {
    let Some(stack) = stack() else { return };
    let (ours, mut theirs) = with_std(&stack);
    let data = pattern(1 << 20);
    let echo = thread::spawn(move || {
        let mut all = Vec::new();
        theirs.read_to_end(&mut all).unwrap();
        theirs.write_all(&all).unwrap();
        all.len()
    });
    (&ours).write_all(&data).unwrap();
    ours.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    (&ours).read_to_end(&mut back).unwrap();
    assert!(back == data);
    assert_eq!(echo.join().unwrap(), data.len());
}

#[test]
fn what_was_sent_arrives_after_the_socket_and_the_stack_are_gone() {
    let Some(stack) = stack_with(ZeroCopy::Always, Wait::Block) else { return };
    let (ours, mut theirs) = with_std(&stack);
    let data = pattern(2 << 20);
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        theirs.read_to_end(&mut all).unwrap();
        all
    });
    (&ours).write_all(&data).unwrap();
    drop((ours, stack));
    assert!(reader.join().unwrap() == data);
}

#[test]
fn a_refused_connection_says_so() {
    let Some(stack) = stack() else { return };
    // A port that somebody had until now.
    let nobody = TcpListener::bind(anywhere()).unwrap().local_addr().unwrap();
    let error = Stream::connect(&stack, nobody).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(error.to_string().contains("start the server"), "{error}");
    let taken = TcpListener::bind(anywhere()).unwrap();
    let error = Listener::bind(&stack, taken.local_addr().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let elsewhere = SocketAddr::from(([192, 0, 2, 1], 0));
    assert_eq!(Listener::bind(&stack, elsewhere).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
}

#[test]
fn what_does_not_wait_says_that_it_would() {
    let Some(stack) = stack() else { return };
    let (client, server) = pair(&stack);
    client.set_nonblocking(true).unwrap();
    let mut buffer = [0; 16];
    assert!(client.recv(&mut buffer).unwrap_err().would_block());
    server.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    assert!(server.recv(&mut buffer).unwrap_err().would_block());
    assert!(server.recv_with_flags(&mut buffer, RecvFlags::DONTWAIT).unwrap_err().would_block());
    server.set_read_timeout(None).unwrap();
    // Until our queue is full, at least.
    let block = pattern(1 << 20);
    let mut sent = 0;
    loop {
        match client.send(&block) {
            Ok(n) => sent += n,
            Err(error) => {
                assert!(error.would_block());
                break;
            }
        }
    }
    assert!(sent > 0);
    let mut left = sent;
    let mut sink = vec![0; 1 << 16];
    while left > 0 {
        left -= server.recv(&mut sink).unwrap();
    }
    assert_eq!(server.readable_bytes().unwrap(), 0);
    until(|| client.unacknowledged_bytes().unwrap() == 0);
}

#[test]
fn peeked_bytes_stay_and_waitall_waits() {
    let Some(stack) = stack() else { return };
    let (client, server) = pair(&stack);
    client.send(b"hello").unwrap();
    let mut buffer = [0; 5];
    let all = RecvFlags::PEEK | RecvFlags::WAITALL;
    assert_eq!(server.recv_with_flags(&mut buffer, all).unwrap(), 5);
    assert_eq!(server.recv(&mut buffer[..2]).unwrap(), 2);
    let writer = thread::spawn(move || {
        client.send(b" wor").unwrap();
        client.send(b"ld").unwrap();
        client
    });
    let mut rest = [0; 9];
    assert_eq!(server.recv_with_flags(&mut rest, RecvFlags::WAITALL).unwrap(), 9);
    assert_eq!(&rest, b"llo world");
    drop(writer.join().unwrap());
    assert_eq!(server.recv(&mut rest).unwrap(), 0);
}

#[test]
fn in_place_nothing_is_copied_in_user_space() {
    let Some(stack) = stack() else { return };
    let (client, server) = pair(&stack);
    let mut slot = client.reserve(100_000).unwrap();
    let file = std::env::current_exe().and_then(std::fs::File::open).unwrap();
    assert_eq!((slot.read_from(&file, 0).unwrap(), slot.filled()), (100_000, 100_000));
    assert_eq!(slot.commit().unwrap(), 100_000);
    let mut received = Vec::new();
    while received.len() < 100_000 {
        let view = server.recv_borrowed(1 << 20).unwrap();
        assert!(!view.is_empty());
        view.slices().for_each(|slice| received.extend_from_slice(slice));
    }
    let mut expected = vec![0; 100_000];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut expected, 0).unwrap();
    assert!(received == expected);
    assert_eq!((client.stats().user_copied_in, server.stats().user_copied_out), (0, 0));
    assert_eq!(server.stats().referenced, 100_000);
}

#[test]
fn what_was_received_is_sent_on_by_reference() {
    let Some(stack) = stack() else { return };
    let (client, server) = pair(&stack);
    client.send_with_flags(&pattern(50_000), SendFlags::NTCOPY).unwrap();
    assert_eq!(client.stats().user_copied_nt, 50_000);
    let mut left = 50_000;
    while left > 0 {
        let view = server.recv_borrowed(left).unwrap();
        left -= view.len();
        server.send_segment(view.into_segment(), SendFlags::empty()).unwrap();
    }
    let mut back = vec![0; 50_000];
    client.recv_with_flags(&mut back, RecvFlags::WAITALL).unwrap();
    assert!(back == pattern(50_000));
    assert_eq!((server.stats().user_copied_in, server.stats().user_copied_out), (0, 0));
}

#[test]
fn each_send_is_told_once_whatever_becomes_of_it() {
    let Some(stack) = stack_with(ZeroCopy::Always, Wait::Block) else { return };
    let pool = PagePool::new(PoolConfig::new().limit(1024), Heap::new()).unwrap();
    let (context, mut queue) = Context::new();
    for end in ["read", "reset", "closed", "stack dropped"] {
        let mut lane = context.lane(LaneConfig::default()).unwrap();
        let own = stack_with(ZeroCopy::Always, Wait::Block).unwrap();
        let (ours, theirs) = with_std(if end == "stack dropped" { &own } else { &stack });
        ours.set_nonblocking(true).unwrap();
        let mut begun = 0;
        for n in 0..20 {
            let mut chain = Chain::new();
            Writer::new(&pool).append(&mut chain, &pattern(30_000)).unwrap();
            let mut segment = Segment::new(chain);
            lane.send_there(&mut segment, n, 0).unwrap();
            begun += 1;
            // What there is no room for is dropped, and told, too.
            let _ = ours.send_segment(segment, SendFlags::empty());
        }
        match end {
            "read" => {
                drop(ours);
                let mut all = Vec::new();
                (&theirs).read_to_end(&mut all).unwrap();
                assert!(all.len() % 30_000 == 0 || all.len() > 200_000);
            }
            "reset" => {
                // Something is unread there: its kernel answers with a reset.
                until(|| theirs.peek(&mut [0]).is_ok());
                drop(theirs);
                drop(ours);
            }
            "closed" => drop((ours, theirs)),
            _ => {
                drop((ours, own));
                drop(theirs);
            }
        }
        let mut told = Vec::new();
        until(|| {
            queue.reap(|completion| told.push(completion.user_data));
            told.len() >= begun
        });
        told.sort_unstable();
        assert_eq!(told, (0..20).collect::<Vec<_>>(), "{end}");
        lane.close();
    }
    until(|| {
        let stats = pool.stats();
        stats.in_flight - stats.in_cache - stats.in_ring == 0
    });
}

#[test]
fn whoever_closes_with_something_unread_resets() {
    let Some(stack) = stack() else { return };
    let (ours, mut theirs) = with_std(&stack);
    theirs.write_all(b"never read").unwrap();
    until(|| ours.readable_bytes().unwrap() == 10);
    drop(ours);
    assert_eq!(theirs.read(&mut [0; 16]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_reset_is_told_once() {
    let Some(stack) = stack() else { return };
    let (ours, theirs) = with_std(&stack);
    ours.send(b"never read").unwrap();
    until(|| theirs.peek(&mut [0]).is_ok());
    drop(theirs);
    let mut buffer = [0; 16];
    assert_eq!(ours.recv(&mut buffer).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(ours.send(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn what_a_reset_leaves_behind_the_end_is_not_waited_for() {
    let Some(stack) = stack() else { return };
    let (ours, theirs) = with_std(&stack);
    drop(theirs);
    assert_eq!(ours.recv(&mut [0; 8]).unwrap(), 0);
    // Nobody is there for it: the answer is a reset, of which the ring, which receives no more, hears nothing.
    ours.send(b"hi").unwrap();
    let mut errors = 0;
    until(|| {
        errors += u32::from(ours.take_error().unwrap().is_some());
        ours.unacknowledged_bytes().unwrap() == 0
    });
    until(|| {
        errors += u32::from(ours.take_error().unwrap().is_some());
        errors > 0
    });
    assert_eq!(errors, 1);
    assert!(ours.take_error().unwrap().is_none());
}

#[test]
fn a_descriptor_shows_what_would_not_wait() {
    let Some(stack) = stack() else { return };
    let ready = |fd: &dyn std::os::fd::AsFd, wanted: PollFlags| {
        let fd = fd.as_fd();
        let mut fds = [PollFd::new(&fd, wanted)];
        poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 })).unwrap();
        fds[0].revents()
    };
    let now = |fd: &dyn std::os::fd::AsFd, wanted: PollFlags| {
        let fd = fd.as_fd();
        let mut fds = [PollFd::new(&fd, wanted)];
        poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        fds[0].revents()
    };
    let listener = Listener::bind(&stack, anywhere()).unwrap();
    assert_eq!(now(&listener, PollFlags::IN), PollFlags::empty());
    let client = Stream::connect_nonblocking(&stack, listener.local_addr().unwrap()).unwrap();
    assert!(ready(&client, PollFlags::OUT).contains(PollFlags::OUT));
    assert!(client.take_error().unwrap().is_none());
    assert!(ready(&listener, PollFlags::IN).contains(PollFlags::IN));
    let (server, _) = listener.accept().unwrap();
    assert_eq!(now(&listener, PollFlags::IN), PollFlags::empty());
    assert_eq!(now(&server, PollFlags::IN), PollFlags::empty());
    client.send(b"x").unwrap();
    assert!(ready(&server, PollFlags::IN).contains(PollFlags::IN));
    server.recv(&mut [0; 8]).unwrap();
    assert_eq!(now(&server, PollFlags::IN), PollFlags::empty());
    drop(client);
    ready(&server, PollFlags::RDHUP);
    assert!(now(&server, PollFlags::IN | PollFlags::RDHUP).contains(PollFlags::IN | PollFlags::RDHUP));
    assert_eq!(server.recv(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn a_shut_down_listener_wakes_who_waits() {
    let Some(stack) = stack() else { return };
    let listener = Listener::bind(&stack, anywhere()).unwrap();
    let other = listener.try_clone().unwrap();
    let waiting = thread::spawn(move || other.accept().unwrap_err().kind());
    // (Whether it waits already or not: it gets the same.)
    listener.shutdown().unwrap();
    assert_eq!(waiting.join().unwrap(), ErrorKind::InvalidInput);
}

/// Segments with data that a socket of the kernel's has received (include/uapi/linux/tcp.h: struct tcp_info, tcpi_data_segs_in).
fn data_segments(of: &TcpStream) -> u32 {
    let mut info = [0; 156];
    onecopy_sys::sockopt::tcp_info(of.as_fd(), &mut info).unwrap();
    u32::from_ne_bytes(*info.last_chunk().unwrap())
}

#[test]
fn what_has_more_behind_it_leaves_with_that() {
    const PIECES: usize = 10;
    let Some(stack) = stack_with(ZeroCopy::Never, Wait::Block) else { return };
    let data = pattern(PIECES * 100);
    // Piece by piece, each when the kernel has the one before: in how many segments it came.
    let segments = |flags: SendFlags| {
        let (ours, mut theirs) = with_std(&stack);
        ours.set_nodelay(true).unwrap();
        let began = Instant::now();
        for (n, piece) in data.chunks(100).enumerate() {
            let last = n + 1 == PIECES;
            let flags = if last { SendFlags::empty() } else { flags };
            assert_eq!(ours.send_with_flags(piece, flags).unwrap(), 100);
            until(|| ours.stats().kernel_copied == (n as u64 + 1) * 100);
        }
        let took = began.elapsed();
        let mut all = vec![0; data.len()];
        theirs.read_exact(&mut all).unwrap();
        assert!(all == data);
        (data_segments(&theirs), took)
    };
    assert_eq!(segments(SendFlags::empty()).0, PIECES as u32);
    loop {
        let (came, took) = segments(SendFlags::MORE);
        if came == 1 {
            return;
        }
        // The kernel waits for 200 ms, no longer (TCP_RTO_MIN): a machine may be that slow.
        assert!(took > Duration::from_millis(150), "{came} segments in {took:?}");
    }
}

#[test]
fn signals_leave_its_thread_alone() {
    let Some(_stack) = stack() else { return };
    let blocked = |task: &Path| {
        let status = fs::read_to_string(task.join("status")).ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    let mut found = 0;
    for task in fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path()) {
        if fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "onecopy-uring\n")
            && let Some(mask) = blocked(&task)
        {
            for signal in [Signal::INT, Signal::HUP, Signal::USR1, Signal::TERM] {
                assert!(mask >> (signal.as_raw() - 1) & 1 == 1, "{signal:?} of {mask:x}");
            }
            assert!(mask >> (Signal::SEGV.as_raw() - 1) & 1 == 0, "{mask:x}");
            found += 1;
        }
    }
    assert!(found > 0);
}

#[test]
fn what_the_kernel_does_not_carry_is_said() {
    let Some(stack) = stack() else { return };
    assert!(stack.addresses().is_empty() && stack.is_up());
    let error = stack.drive(Duration::ZERO).unwrap_err();
    assert!(error.reason().is_some(), "{error}");
}

#[test]
fn a_stack_that_cannot_have_its_link_falls_back_if_it_may() {
    let build = |transport| {
        let builder = Stack::builder().tap("no/such:device").address("10.9.9.9/24").driver(Driver::Thread);
        match transport {
            Some(transport) => builder.transport(transport).build(),
            None => builder.build(),
        }
    };
    assert!(matches!(build(None), Err(BuildError::Tap(_))));
    match build(Some(Transport::Auto)) {
        Ok(stack) => assert_eq!(stack.carrier(), Carrier::Kernel),
        Err(BuildError::Uring(refused)) => println!("lacking: io_uring ({refused})"),
        Err(error) => panic!("{error}"),
    }
}

/// A stack of the kernel's has nothing of what a link has, and nobody is to believe that it has.
#[test]
fn what_only_a_stack_of_the_programs_own_has_is_refused() {
    type Say = fn(Builder) -> Builder;
    let said: [(&str, Say); 12] = [
        ("tap", |builder| builder.tap("onecopy0")),
        ("link", |builder| builder.link(Tap::cable(1500).unwrap().0)),
        ("address", |builder| builder.address("10.9.9.9/24")),
        ("gateway", |builder| builder.gateway(IpAddr::from([10, 9, 9, 1]))),
        ("route", |builder| builder.route("10.1.0.0/16", IpAddr::from([10, 9, 9, 1]))),
        ("mtu", |builder| builder.mtu(1500)),
        ("mac", |builder| builder.mac(Mac([2, 0, 0, 0, 0, 1]))),
        ("driver", |builder| builder.driver(Driver::Thread)),
        ("seed", |builder| builder.seed([0; 16])),
        ("pages", |builder| builder.pages(1 << 16)),
        ("tcp", |builder| builder.tcp(|_| ())),
        ("udp", |builder| builder.udp(|_| ())),
    ];
    for (name, say) in said {
        let error = say(Stack::builder().transport(Transport::Kernel)).build().unwrap_err();
        assert!(matches!(error, BuildError::NotOfKernel(method) if method == name), "{name}: {error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("Builder::{name} ")) && text.contains("do not call it"), "{text}");
        assert_eq!(std::io::Error::from(error).kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn views_that_are_held_stop_nobody_for_ever() {
    let builder = Stack::builder().transport(Transport::Kernel).kernel(|config| config.receive_pages = 4);
    let Ok(stack) = builder.build() else { return println!("lacking: io_uring") };
    let (ours, mut theirs) = with_std(&stack);
    let data = pattern(1 << 20);
    let writer = thread::spawn({
        let data = data.clone();
        move || {
            theirs.write_all(&data).unwrap();
            theirs
        }
    });
    let (mut got, mut held) = (Vec::new(), Vec::new());
    ours.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    while got.len() < data.len() {
        match ours.recv_borrowed(1 << 20) {
            Ok(view) => {
                view.slices().for_each(|slice| got.extend_from_slice(slice));
                held.push(view);
            }
            Err(error) => {
                assert!(error.would_block());
                held.clear();
            }
        }
    }
    assert!(got == data);
    drop(writer.join().unwrap());
}

#[test]
fn many_connections_at_once() {
    let Some(stack) = stack() else { return };
    let listener = Listener::bind(&stack, anywhere()).unwrap();
    let to = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let workers: Vec<_> = (0..32)
            .map(|_| {
                let (mut stream, _) = listener.accept().unwrap();
                thread::spawn(move || {
                    let mut all = Vec::new();
                    stream.read_to_end(&mut all).unwrap();
                    stream.write_all(&all).unwrap();
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    let clients: Vec<_> = (0..32)
        .map(|n| {
            let stack = stack.clone();
            thread::spawn(move || {
                let mut stream = Stream::connect(&stack, to).unwrap();
                let data = pattern(10_000 + n * 1000);
                stream.write_all(&data).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let mut back = Vec::new();
                stream.read_to_end(&mut back).unwrap();
                assert!(back == data);
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    server.join().unwrap();
}
