//! Who waits: for room, at a descriptor, in several threads; and who drives.

use crate::world::*;
use onecopy_link::Tap;
use onecopy_net::udp::Socket;
use onecopy_net::{Driver, SendFlags, Stack, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// A stack that a thread drives, and one that nobody does until somebody says so.
fn one_asleep() -> (Stack, Stack) {
    let (a, b) = Tap::cable(MTU).unwrap();
    let build =
        |tap, address, driver| Stack::builder().link(tap).address(address).driver(driver).build().unwrap();
    (build(a, "10.0.0.1/24", Driver::Thread), build(b, "10.0.0.2/24", Driver::Caller))
}

fn now(socket: &Socket) -> PollFlags {
    let mut fds = [PollFd::new(socket, PollFlags::IN | PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    fds[0].revents()
}

#[test]
fn who_finds_no_room_is_told_of_it() {
    let (left, right) = one_asleep();
    let (a, b) = pair(&left, &right);
    let to = b.local_addr().unwrap();
    let other = Socket::bind(&left, crate::world::a(0)).unwrap();
    assert_eq!((now(&a), now(&other)), (PollFlags::OUT, PollFlags::OUT));
    let data = pattern(1400);
    let mut sent = 0;
    let error = loop {
        match a.send_to_with_flags(&data, to, SendFlags::DONTWAIT) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(error.would_block() && sent > 4096, "{sent}");
    assert_eq!(now(&a), PollFlags::empty());
    // One that has not tried is not told that it could not: nobody would tell it when it could.
    assert_eq!(other.set_ttl(9).map(|()| now(&other)).unwrap(), PollFlags::OUT);
    a.set_write_timeout(Some(Duration::from_millis(5))).unwrap();
    assert!(a.send_to(&data, to).unwrap_err().would_block());
    a.set_write_timeout(None).unwrap();
    let (done, until) = mpsc::channel::<()>();
    let driver = thread::spawn(move || {
        while let Err(mpsc::TryRecvError::Empty) = until.try_recv() {
            right.drive(Duration::from_millis(10)).unwrap();
        }
    });
    poll(&mut [PollFd::new(&a, PollFlags::OUT)], None).unwrap();
    a.send_to_with_flags(&data, to, SendFlags::DONTWAIT).unwrap();
    // And who waits in the call goes on.
    for _ in 0..sent {
        a.send_to(&data, to).unwrap();
    }
    drop(done);
    driver.join().unwrap();
}

#[test]
fn who_only_sends_hears_the_neighbour() {
    // Nothing but its own calls drives the sender's stack.
    let (left, right) = one_asleep();
    let sender = Socket::bind(&right, b(0)).unwrap();
    let receiver = Socket::bind(&left, a(7000)).unwrap();
    let (heard, until) = mpsc::channel();
    let listening = thread::spawn(move || {
        receiver.set_read_timeout(Some(onecopy_testing::LONG)).unwrap();
        let got = receiver.recv(&mut [0; 10]).map_err(|error| error.to_string());
        heard.send(()).unwrap();
        got
    });
    while let Err(mpsc::TryRecvError::Empty) = until.try_recv() {
        sender.send_to(b"hello", a(7000)).unwrap();
    }
    assert_eq!(listening.join().unwrap(), Ok(5));
}

#[test]
fn several_threads_receive_by_one_socket() {
    for wait in [Wait::Block, Wait::Adaptive] {
        let (left, right) = stacks_with(Driver::Thread, wait);
        let (a, b) = pair(&left, &right);
        b.set_recv_buffer_size(8 << 20).unwrap();
        let to = b.local_addr().unwrap();
        let got: usize = thread::scope(|scope| {
            let workers: Vec<_> = (0..3)
                .map(|_| {
                    let b = b.try_clone().unwrap();
                    scope.spawn(move || {
                        let mut count = 0;
                        // An empty one says that it was the last.
                        while b.recv(&mut [0; 100]).unwrap() > 0 {
                            count += 1;
                        }
                        count
                    })
                })
                .collect();
            for _ in 0..500 {
                a.send_to(b"work", to).unwrap();
            }
            for _ in &workers {
                a.send_to(b"", to).unwrap();
            }
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        assert_eq!((got, b.drops()), (500, 0));
    }
}
