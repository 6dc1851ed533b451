//! Who waits for a send, and how.

use crate::world::{chain, is_ours_alone, pair, pattern, pool, stacks, stacks_with};
use onecopy_chain::notify::threshold::Measured;
use onecopy_chain::notify::zerocopy::Tell;
use onecopy_net::tcp::Stream;
use onecopy_net::zerocopy::{Allowance, Sent, Small};
use onecopy_net::{Driver, SendFlags, Stack, Wait};
use onecopy_sync::atomic::{AtomicU32, Ordering};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::future::Future;
use std::io::Read;
use std::pin::{Pin, pin};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

#[test]
fn threads_wait_in_every_way_and_several_at_once() {
    for driver in [Driver::Thread, Driver::Caller] {
        for wait in [Wait::Block, Wait::Adaptive, Wait::Spin] {
            let (a, b) = stacks_with(driver, |builder| builder.wait(wait));
            let (client, mut server) = pair(&a, &b);
            let pool = pool();
            let sends: Vec<_> =
                (0..4).map(|_| client.send_zerocopy(chain(&pool, &pattern(20_000))).unwrap()).collect();
            std::thread::scope(|scope| {
                scope.spawn(|| server.read_exact(&mut vec![0; 80_000]).unwrap());
                for sent in sends {
                    scope.spawn(move || assert!(is_ours_alone(&sent.wait().0)));
                }
            });
        }
    }
}

/// Stacks, a connection between them, and a send of as much as there is room for, which is more than the peer's window: it ends once the server reads.
fn cut_off() -> ([Stack; 2], (Stream, Stream), Sent) {
    let (a, b) = stacks();
    let (client, server) = pair(&a, &b);
    let data = chain(&pool(), &pattern(1 << 20));
    let mut sent = client.send_zerocopy_with_flags(data, SendFlags::DONTWAIT).unwrap();
    drop(sent.take_rest());
    ([a, b], (client, server), sent)
}

#[test]
fn a_limit_ends_the_waiting_and_not_the_send() {
    let (_stacks, (_client, mut server), sent) = cut_off();
    let len = sent.len();
    // Nobody reads.
    let sent = sent.wait_for(Duration::from_millis(5)).unwrap_err().try_wait().unwrap_err();
    server.read_exact(&mut vec![0; len]).unwrap();
    let (back, how) = sent.wait();
    assert!(back.len() == len && !how.dropped);
}

/// A waker that calls the stack: whoever wakes it holds no lock.
struct Calls {
    stream: Stream,
    told: Mutex<std::sync::mpsc::Sender<usize>>,
    count: AtomicU32,
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, Ordering::SeqCst);
        let unacknowledged = self.stream.unacknowledged_bytes().unwrap();
        let _ = self.stream.notice();
        let _ = self.told.lock().unwrap().send(unacknowledged);
    }
}

#[test]
fn a_waker_may_call_the_stack() {
    let (_stacks, (client, mut server), sent) = cut_off();
    let len = sent.len();
    let (told, hear) = channel();
    let calls = Arc::new(Calls {
        stream: client.try_clone().unwrap(),
        told: Mutex::new(told),
        count: AtomicU32::new(0),
    });
    let waker = Waker::from(Arc::clone(&calls));
    let mut sent = pin!(sent);
    assert!(sent.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    server.read_exact(&mut vec![0; len]).unwrap();
    assert_eq!(hear.recv().unwrap(), 0);
    let Poll::Ready((back, _)) = sent.as_mut().poll(&mut Context::from_waker(&waker)) else {
        panic!("it was woken for it")
    };
    assert!(back.len() == len && calls.count.load(Ordering::SeqCst) == 1);
}

/// A waker that has the last handles of its stack.
struct Last {
    handles: Option<(Stream, Stack)>,
    told: std::sync::mpsc::Sender<Option<String>>,
}

impl Wake for Last {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Last {
    fn drop(&mut self) {
        drop(self.handles.take());
        let _ = self.told.send(std::thread::current().name().map(str::to_owned));
    }
}

#[test]
fn a_stack_may_end_in_a_waker_that_its_own_thread_calls() {
    let ([a, _b], (client, mut server), sent) = cut_off();
    let len = sent.len();
    let (told, hear) = channel();
    let mut sent = pin!(sent);
    let waker = Waker::from(Arc::new(Last { handles: Some((client, a)), told }));
    assert!(sent.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
    server.read_exact(&mut vec![0; len]).unwrap();
    assert_eq!(hear.recv().unwrap().unwrap(), "onecopy-stack");
    let Poll::Ready((back, how)) = sent.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it was woken for it")
    };
    assert!(back.len() == len && !how.dropped);
}

/// Whoever waits himself takes the place of a task that asked before: what that one's waker had is dropped when no lock is held.
#[test]
fn a_waker_that_is_replaced_may_end_what_it_has() {
    let ([a, _b], (client, mut server), mut sent) = cut_off();
    let len = sent.len();
    let (told, hear) = channel();
    let waker = Waker::from(Arc::new(Last { handles: Some((client, a.clone())), told }));
    assert!(Pin::new(&mut sent).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
    // Nobody reads.
    let sent = sent.wait_for(Duration::from_millis(5)).unwrap_err();
    hear.try_recv().unwrap();
    server.read_exact(&mut vec![0; len]).unwrap();
    let (back, how) = sent.wait();
    assert!(back.len() == len && !how.dropped);
}

#[test]
fn notices_come_in_ranges_and_the_descriptor_shows_them() {
    let (a, b) = stacks();
    let (client, mut server) = pair(&a, &b);
    let pool = pool();
    let readable = |limit: Option<&Timespec>| {
        let fd = client.notices_fd().unwrap();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], limit).unwrap() > 0
    };
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    assert!(!readable(Some(&zero)) && client.notice().is_none());
    for n in 0..3 {
        let sent = client.send_numbered(chain(&pool, &pattern(5000)), SendFlags::empty()).unwrap();
        assert_eq!((sent.number, sent.len, sent.rest.len()), (Some(n), 5000, 0));
    }
    server.read_exact(&mut vec![0; 15_000]).unwrap();
    assert!(readable(None), "it waits until there is one");
    let (mut next, mut bytes) = (0, 0);
    while next < 3 {
        let range = client.wait_notice(None).unwrap().unwrap();
        assert!(range.lo == next && range.copied && !range.dropped);
        (next, bytes) = (range.hi + 1, bytes + range.bytes);
    }
    assert_eq!(bytes, 15_000);
    // There is none left. (Who told of the last one may do so after it was taken: then it is readable once more, for nothing.)
    while readable(Some(&zero)) {
        assert!(client.notice().is_none());
    }
    assert_eq!(client.wait_notice(Some(Duration::from_millis(5))).unwrap(), None);
}

/// What is copied for its size is measured with the first such send, and told; unless the program has said it.
#[test]
fn what_was_measured_is_told() {
    let (a, b) = stacks_with(Driver::Thread, |builder| builder.zerocopy(Allowance::default()));
    let (client, mut server) = pair(&a, &b);
    let pool = pool();
    let mut send = || {
        drop(client.send_zerocopy(chain(&pool, &pattern(100))).unwrap().wait());
        server.read_exact(&mut [0; 100]).unwrap();
    };
    assert_eq!(client.copied_up_to(), None, "nothing was sent");
    send();
    let most = Measured::known(Tell::Handle).unwrap().below.saturating_sub(1);
    assert_eq!(client.copied_up_to(), Some(most));
    client.set_small(Some(Small::Below(5000))).unwrap();
    assert_eq!(client.copied_up_to(), None);
    send();
    assert_eq!(client.copied_up_to(), None);
    client.set_small(Some(Small::Measured)).unwrap();
    send();
    assert_eq!(client.copied_up_to(), Some(most));
}
