//! Pages that many connections share: who finds none waits for some, and who takes many keeps nobody else from going on.

use crate::world::{anywhere, built, pair, pattern, until};
use onecopy_net::Stack;
use onecopy_net::kernel::ZeroCopy;
use onecopy_net::tcp::Stream;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;

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
    client.set_write_timeout(Some(std::time::Duration::from_millis(5))).unwrap();
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
    // Nobody reads yet: the pages are all out before all connections have some.
    assert!((0..CONNECTIONS).all(|at| !send(at)));
    assert!(ours.iter().all(|stream| !writable(stream)));
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
