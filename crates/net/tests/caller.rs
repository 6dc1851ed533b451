//! A program that has a poll loop of its own, and drives its stacks from there.

use onecopy_link::Tap;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{Driver, RecvFlags, SendFlags, Stack};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::time::Duration;

fn stacks() -> [Stack; 2] {
    let (a, b) = Tap::cable(1500).unwrap();
    let build = |tap, address| {
        let builder = Stack::builder().link(tap).address(address).driver(Driver::Caller);
        builder.linger(Duration::ZERO).build().unwrap()
    };
    [build(a, "10.0.0.1/24"), build(b, "10.0.0.2/24")]
}

fn polled(fds: &[BorrowedFd<'_>], limit: Duration) -> Vec<bool> {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    poll(&mut fds, Some(&Timespec::try_from(limit).unwrap())).unwrap();
    fds.iter().map(|fd| !fd.revents().is_empty()).collect()
}

/// Sleeps at the stacks' descriptors and drives those that say so, until `done` says that it is.
fn until(stacks: &[Stack; 2], mut done: impl FnMut() -> bool) {
    while !done() {
        let fds = stacks.each_ref().map(|stack| stack.poll_fd().unwrap());
        let ready = polled(&fds, onecopy_testing::LONG);
        assert!(ready.contains(&true), "no descriptor says that there is something to do");
        for (stack, _) in stacks.iter().zip(&ready).filter(|(_, ready)| **ready) {
            while stack.drive(Duration::ZERO).unwrap() {}
        }
    }
}

fn pair(stacks: &[Stack; 2]) -> [Stream; 2] {
    let listener = Listener::bind(&stacks[1], "10.0.0.2:0".parse().unwrap()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let client = Stream::connect_nonblocking(&stacks[0], listener.local_addr().unwrap()).unwrap();
    let mut server = None;
    until(stacks, || {
        server = server.take().or_else(|| listener.accept().ok());
        server.is_some()
    });
    [client, server.unwrap().0]
}

#[test]
fn bytes_go_both_ways() {
    let stacks = stacks();
    let [client, server] = pair(&stacks);
    let data: Vec<u8> = (0..4_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut sent, mut turn, mut back) = (0, Vec::new(), Vec::new());
    let mut buffer = vec![0; 100_000];
    let mut some =
        |end: &Stream, all: &mut Vec<u8>| match end.recv_with_flags(&mut buffer, RecvFlags::DONTWAIT) {
            Ok(n) => all.extend_from_slice(&buffer[..n]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        };
    let mut returned = 0;
    until(&stacks, || {
        let give = |end: &Stream, bytes: &[u8]| match end.send_with_flags(bytes, SendFlags::DONTWAIT) {
            Ok(n) => n,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                0
            }
        };
        sent += give(&client, &data[sent..]);
        some(&server, &mut turn);
        returned += give(&server, &turn[returned..]);
        some(&client, &mut back);
        back.len() == data.len()
    });
    assert!(back == data);
}

#[test]
fn what_is_due_is_told() {
    let stacks = stacks();
    let [client, _server] = pair(&stacks);
    client.send(b"x").unwrap();
    // Nobody answers, so the ACK waits for its timer, and no packet wakes anybody before.
    until(&stacks, || client.unacknowledged_bytes().unwrap() == 0);
}

#[test]
fn nothing_to_do_is_told_too() {
    let stacks = stacks();
    let [client, server] = pair(&stacks);
    client.send(b"x").unwrap();
    until(&stacks, || client.unacknowledged_bytes().unwrap() == 0 && server.readable_bytes().unwrap() == 1);
    // Timers that are over ring once more, at most.
    until(&stacks, || {
        stacks.iter().all(|stack| {
            while stack.drive(Duration::ZERO).unwrap() {}
            stack.next_deadline().is_none() && polled(&[stack.poll_fd().unwrap()], Duration::ZERO) == [false]
        })
    });
    // Another stack's packet is something again.
    client.send(b"y").unwrap();
    let fd = stacks[1].poll_fd().unwrap();
    assert_eq!(polled(&[fd], onecopy_testing::LONG), [true]);
}

#[test]
fn a_link_that_is_gone_is_no_reason_to_drive_for_ever() {
    let [a, b] = stacks();
    let fd = a.poll_fd().unwrap();
    drop(b);
    assert_eq!(polled(&[fd], onecopy_testing::LONG), [true]);
    while a.drive(Duration::ZERO).unwrap() {}
    assert!(!a.is_up());
    assert_eq!(polled(&[fd], Duration::ZERO), [false]);
}

#[test]
fn a_stack_with_a_thread_has_none() {
    let (a, _b) = Tap::cable(1500).unwrap();
    let stack = Stack::builder().link(a).address("10.0.0.1/24").build().unwrap();
    let error = stack.poll_fd().unwrap_err();
    assert_eq!(error.raw_os_error(), Errno::OPNOTSUPP.raw_os_error());
    assert!(error.to_string().contains("Driver::Caller"), "{error}");
}
