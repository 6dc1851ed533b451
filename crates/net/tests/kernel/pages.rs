//! Pages that many connections share: who finds none waits for some, and who takes many keeps nobody else from going on.

use crate::world::{anywhere, built, counter, pair, pattern, stack, until, with_std};
use onecopy_net::Stack;
use onecopy_net::kernel::ZeroCopy;
use onecopy_net::tcp::{Listener, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

/// A stack with so many pages to send from.
fn with_send_pages(pages: u32) -> Option<Stack> {
    built(Stack::builder().kernel(|config| (config.send_pages, config.zero_copy) = (pages, ZeroCopy::Never)))
}

/// Whether it can be sent, as poll(2) says now.
fn writable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    fds[0].revents().contains(PollFlags::OUT)
}

#[test]
fn who_does_not_wait_is_told_that_it_would_while_all_pages_are_out() {
    let Some(stack) = with_send_pages(8) else { return };
    let ((holds, _peer), (client, server)) = (pair(&stack), pair(&stack));
    let slot = holds.reserve(8 * 4096).unwrap();
    client.set_nonblocking(true).unwrap();
    for _ in 0..3 {
        let error = client.send(b"hello").unwrap_err();
        assert!(error.would_block(), "{error}");
        assert!(!writable(&client));
    }
    drop(slot);
    until(|| writable(&client));
    assert_eq!(client.send(b"hello").unwrap(), 5);
    let mut bytes = [0; 9];
    assert_eq!(server.recv(&mut bytes).unwrap(), 5);
    // With one page it goes on, too, one piece after the other.
    let slot = holds.reserve(7 * 4096).unwrap();
    let data = pattern(9000);
    let mut sent = 0;
    until(|| {
        match client.send(&data[sent..]) {
            Ok(n) => sent += n,
            Err(error) => assert!(error.would_block(), "{error}"),
        }
        sent == data.len()
    });
    let mut back = vec![0; data.len()];
    (&server).read_exact(&mut back).unwrap();
    assert!(back == data);
    drop(slot);
}

#[test]
fn who_waits_for_pages_is_woken_when_they_come_home() {
    let Some(stack) = with_send_pages(8) else { return };
    let ((holds, _peer), (client, server)) = (pair(&stack), pair(&stack));
    let slot = holds.reserve(8 * 4096).unwrap();
    client.set_write_timeout(Some(Duration::from_millis(5))).unwrap();
    let error = client.send(b"hello").unwrap_err();
    assert!(error.would_block(), "{error}");
    client.set_write_timeout(None).unwrap();
    thread::scope(|scope| {
        let sender = onecopy_testing::asleep(scope, || client.send(b"hello"));
        drop(slot);
        assert_eq!(sender.join().unwrap().unwrap(), 5);
    });
    assert_eq!(server.recv(&mut [0; 9]).unwrap(), 5);
}

/// A client of the stack's, and std's end of it, in the kernel's buffers of which little fits.
fn narrow(stack: &Stack, listener: &TcpListener) -> (Stream, TcpStream) {
    let ours = Stream::connect(stack, listener.local_addr().unwrap()).unwrap();
    ours.set(|settings| settings.send_buffer = Some(8192)).unwrap();
    ours.set_nonblocking(true).unwrap();
    (ours, listener.accept().unwrap().0)
}

#[test]
fn a_loop_over_epoll_sends_all_when_connections_hold_all_pages() {
    const CONNECTIONS: usize = 40;
    let Some(stack) = with_send_pages(32) else { return };
    let listener = TcpListener::bind(anywhere()).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let data = &pattern(200_000);
    let all: Vec<_> = (0..CONNECTIONS).map(|_| narrow(&stack, &listener)).collect();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    for (at, (ours, _)) in all.iter().enumerate() {
        let what = epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&epoll, ours.poll_fd().unwrap(), epoll::EventData::new_u64(at as u64), what).unwrap();
    }
    let (ours, theirs): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    let mut sent = [0; CONNECTIONS];
    let mut send = |at: usize| {
        while sent[at] < data.len() {
            match ours[at].send(&data[sent[at]..]) {
                Ok(n) => sent[at] += n,
                Err(error) => {
                    assert!(error.would_block(), "{error}");
                    return false;
                }
            }
        }
        true
    };
    // Nobody reads yet: once the kernel takes no more the pages are all out, before all connections have some.
    until(|| (0..CONNECTIONS).all(|at| !send(at)) && ours.iter().all(|stream| !writable(stream)));
    thread::scope(|scope| {
        for mut theirs in theirs {
            scope.spawn(move || {
                let mut back = Vec::new();
                theirs.read_to_end(&mut back).unwrap();
                assert!(back == *data);
            });
        }
        let mut left = CONNECTIONS;
        let mut over = [false; CONNECTIONS];
        while left > 0 {
            let mut events = [std::mem::MaybeUninit::<epoll::Event>::uninit(); CONNECTIONS];
            let (events, _) = epoll::wait(&epoll, &mut events, None).unwrap();
            for event in events {
                let at = event.data.u64() as usize;
                if !over[at] && send(at) {
                    (over[at], left) = (true, left - 1);
                    ours[at].shutdown(std::net::Shutdown::Write).unwrap();
                }
            }
        }
    });
}

#[test]
fn peers_that_never_read_leave_pages_for_who_is_read() {
    for zero_copy in [ZeroCopy::Never, ZeroCopy::Always] {
        let Some(stack) = built(Stack::builder().kernel(|config| config.zero_copy = zero_copy)) else {
            return;
        };
        let listener = TcpListener::bind(anywhere()).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let data = pattern(1 << 20);
        // Without a copy the kernel keeps pages of what it has taken, too.
        let all: Vec<_> = (0..40).map(|_| narrow(&stack, &listener)).collect();
        for (ours, _) in all.iter().filter(|_| zero_copy == ZeroCopy::Always) {
            ours.set(|settings| settings.send_buffer = Some(200_000)).unwrap();
        }
        let full =
            |ours: &Stream| ours.send(&data).is_err_and(|error| error.would_block()) && !writable(ours);
        until(|| all.iter().all(|(ours, _)| full(ours)));
        let (client, server) = pair(&stack);
        client.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        let data = &data;
        thread::scope(|scope| {
            scope.spawn(move || {
                (&client).write_all(data).unwrap();
            });
            let mut back = Vec::new();
            (&server).read_to_end(&mut back).unwrap();
            assert!(back == *data);
        });
        // Once one is read it goes on.
        let (ours, mut theirs) = all.into_iter().next().unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        let mut back = Vec::new();
        theirs.read_to_end(&mut back).unwrap();
        assert!(back.len() > 4096);
    }
}

/// The inode of the socket of TCP between these ports, 0 where no descriptor of it is open.
fn inode(ports: (u16, u16)) -> u64 {
    let all = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let (local, remote) = (format!(":{:04X}", ports.0), format!(":{:04X}", ports.1));
    let fields = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut own = fields.filter(|fields| fields[1].ends_with(&local) && fields[2].ends_with(&remote));
    own.next().map_or(0, |fields| fields[9].parse().unwrap())
}

#[test]
fn who_is_closed_while_it_waits_for_pages_keeps_no_descriptor() {
    let Some(stack) = with_send_pages(8) else { return };
    let (holds, _peer) = pair(&stack);
    let (client, _theirs) = with_std(&stack);
    let slot = holds.reserve(8 * 4096).unwrap();
    client.set_nonblocking(true).unwrap();
    assert!(client.send(b"hello").unwrap_err().would_block());
    let ports = (client.local_addr().unwrap().port(), client.peer_addr().unwrap().port());
    assert_ne!(inode(ports), 0);
    drop(client);
    until(|| inode(ports) == 0);
    drop(slot);
}

/// A listener's end of a connection of std's, and that, which sends each piece at once.
fn fed(listener: &Listener) -> (Stream, TcpStream) {
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    theirs.set_nodelay(true).unwrap();
    (listener.accept().unwrap().0, theirs)
}

/// Has the peer send `bytes`, and waits until some of them are there.
fn feed(ours: &Stream, theirs: &mut TcpStream, bytes: &[u8]) {
    let before = ours.readable_bytes().unwrap();
    theirs.write_all(bytes).unwrap();
    until(|| ours.readable_bytes().unwrap() > before);
}

/// There and back, again and again.
fn goes_on((ours, theirs): &mut (Stream, TcpStream), rounds: usize) {
    for round in 0..rounds {
        let bytes = pattern(1 + round * 97 % 20_000);
        let mut back = vec![0; bytes.len()];
        theirs.write_all(&bytes).unwrap();
        ours.read_exact(&mut back).unwrap();
        assert!(back == bytes);
        ours.write_all(&back).unwrap();
        theirs.read_exact(&mut back).unwrap();
        assert!(back == bytes);
    }
}

#[test]
fn small_sends_that_nobody_reads_share_pages() {
    let Some(stack) = stack() else { return };
    let listener = Listener::bind(&stack, anywhere()).unwrap();
    let mut read = fed(&listener);
    let mut unread: Vec<_> = (0..64).map(|_| fed(&listener)).collect();
    for (ours, theirs) in &mut unread {
        // Each comes by itself, into a page of its own.
        for _ in 0..12 {
            feed(ours, theirs, &[7; 100]);
        }
        goes_on(&mut read, 3);
    }
    // 64 pages of 512; and of each connection all but the first piece was copied behind it.
    assert_eq!((counter(&stack, "shortages"), counter(&stack, "receives_without_page")), (0, 0));
    for (ours, _) in &mut unread {
        assert_eq!((ours.stats().kernel_copied, ours.stats().user_copied_out), (1200, 1100));
        let mut all = [0; 1300];
        assert_eq!(ours.recv(&mut all).unwrap(), 1200);
        assert!(all[..1200].iter().all(|byte| *byte == 7));
        assert_eq!(ours.stats().user_copied_out, 2300);
    }
}

#[test]
fn one_that_is_read_goes_on_beside_any_number_that_is_not() {
    let mut outside = 0;
    // Fewer pages than connections.
    for pages in [1, 2, 7, 16] {
        let Some(stack) = built(Stack::builder().kernel(|config| config.receive_pages = pages)) else {
            return;
        };
        let listener = Listener::bind(&stack, anywhere()).unwrap();
        let mut read = fed(&listener);
        let mut unread: Vec<_> = (0..64).map(|_| fed(&listener)).collect();
        let data = pattern(40_000);
        for (at, (ours, theirs)) in unread.iter_mut().enumerate() {
            feed(ours, theirs, &data[..if at % 2 == 0 { 50 } else { 20_000 }]);
            goes_on(&mut read, 2);
        }
        goes_on(&mut read, 50);
        assert!(counter(&stack, "shortages") > 0, "{pages} pages");
        outside += counter(&stack, "receives_outside");
        // What waited is what was sent, and so is what comes behind it, up to the end.
        for (at, (ours, mut theirs)) in unread.into_iter().enumerate() {
            let first = if at % 2 == 0 { 50 } else { 20_000 };
            let mut peeked = [0; 50];
            assert_eq!(ours.peek(&mut peeked).unwrap(), 50);
            assert!(peeked == data[..50]);
            theirs.write_all(&data[first..]).unwrap();
            drop(theirs);
            let mut all = Vec::new();
            (&ours).read_to_end(&mut all).unwrap();
            assert!(all == data);
            assert_eq!(ours.stats().received, data.len() as u64);
        }
        goes_on(&mut read, 50);
    }
    // (How many of one stack depends on when its thread is let run.)
    assert!(outside > 0);
}

#[test]
fn who_polls_hears_of_what_comes_while_pages_are_scarce() {
    let Some(stack) = built(Stack::builder().kernel(|config| config.receive_pages = 1)) else { return };
    let listener = Listener::bind(&stack, anywhere()).unwrap();
    let mut unread = fed(&listener);
    let (ours, mut theirs) = fed(&listener);
    ours.set_nonblocking(true).unwrap();
    feed(&unread.0, &mut unread.1, &[7; 20_000]);
    until(|| counter(&stack, "shortages") > 0);
    let ready = || {
        let mut fds = [PollFd::new(&ours, PollFlags::IN | PollFlags::RDHUP)];
        poll(&mut fds, Some(&Timespec::default())).unwrap();
        fds[0].revents()
    };
    let mut bytes = [0; 9];
    for _ in 0..3 {
        assert!(ready().is_empty());
        assert!(ours.recv(&mut bytes).unwrap_err().would_block());
        theirs.write_all(b"hello").unwrap();
        until(|| ready() == PollFlags::IN);
        assert_eq!(ours.recv(&mut bytes[..3]).unwrap(), 3);
        assert_eq!((ready(), ours.readable_bytes().unwrap()), (PollFlags::IN, 2));
        // As much as there is, and not more than that: nothing is left to be told.
        assert_eq!(ours.recv(&mut bytes[..2]).unwrap(), 2);
    }
    theirs.write_all(b"hello").unwrap();
    until(|| ready() == PollFlags::IN);
    assert_eq!(ours.recv_frags(9).unwrap().linear().unwrap().to_vec(), b"hello");
    // The end is told without a receive, and a reset is.
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    until(|| ready().contains(PollFlags::IN | PollFlags::RDHUP));
    assert_eq!(ours.recv(&mut bytes).unwrap(), 0);
    let (ours, theirs) = fed(&listener);
    rustix::net::sockopt::set_socket_linger(&theirs, Some(Duration::ZERO)).unwrap();
    drop(theirs);
    let error = ours.recv(&mut bytes).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    // One that is closed with something unread resets its peer, whoever has that.
    let (ours, mut theirs) = fed(&listener);
    feed(&ours, &mut theirs, b"hello");
    drop(ours);
    let error = theirs.read(&mut bytes).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    // Pages that come home are received into again.
    let mut all = vec![0; 20_000];
    unread.0.read_exact(&mut all).unwrap();
    until(|| {
        let before = counter(&stack, "receives_outside");
        feed(&unread.0, &mut unread.1, b"hello");
        unread.0.read_exact(&mut all[..5]).unwrap();
        counter(&stack, "receives_outside") == before
    });
}

/// Ends the connection with a reset, of which our send hears first; then all that came before is there still, and the error behind it.
fn is_all_there(ours: &Stream, theirs: TcpStream, data: &[u8]) {
    rustix::net::sockopt::set_socket_linger(&theirs, Some(Duration::ZERO)).unwrap();
    drop(theirs);
    let over = || {
        let mut fds = [PollFd::new(ours, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec::default())).unwrap();
        fds[0].revents().contains(PollFlags::HUP)
    };
    let _ = ours.send(b"x");
    until(over);
    let (mut back, mut bytes) = (Vec::new(), vec![0; 1 << 20]);
    let error = loop {
        match ours.recv(&mut bytes) {
            Ok(0) => panic!("the end, where a reset was"),
            Ok(n) => back.extend_from_slice(&bytes[..n]),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(back.len(), data.len());
    assert!(back == data);
    assert_eq!(ours.recv(&mut bytes).unwrap(), 0);
}

#[test]
fn what_came_before_a_reset_is_received_though_pages_were_scarce() {
    let Some(stack) = built(Stack::builder().kernel(|config| config.receive_pages = 1)) else { return };
    let listener = Listener::bind(&stack, anywhere()).unwrap();
    let mut unread = fed(&listener);
    feed(&unread.0, &mut unread.1, &[7; 20_000]);
    until(|| counter(&stack, "shortages") > 0);
    let (ours, mut theirs) = fed(&listener);
    feed(&ours, &mut theirs, b"hello");
    is_all_there(&ours, theirs, b"hello");
}

#[test]
fn what_came_before_a_reset_is_received_though_much_was_unread() {
    let Some(stack) = stack() else { return };
    let listener = Listener::bind(&stack, anywhere()).unwrap();
    listener.set(|settings| settings.receive_buffer = Some(1 << 20)).unwrap();
    let (ours, mut theirs) = fed(&listener);
    // More than the ring receives of what nobody reads.
    let data = pattern((1 << 20) + 200_000);
    theirs.write_all(&data).unwrap();
    until(|| onecopy_sys::socket::unread_memory(theirs.as_fd()).unwrap() == 0);
    is_all_there(&ours, theirs, &data);
}
