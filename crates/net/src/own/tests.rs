//! Who drives, seen from inside.

use super::interest::Interest;
use super::wait::{Learnt, Patience};
use super::waiter::Waiter;
use super::{Driver, Owner, Setup, Shard};
use crate::port::Port;
use onecopy_inet::ip::Cidr;
use onecopy_link::Tap;
use onecopy_socket::Wait;
use onecopy_sync::atomic::{AtomicU32, Ordering};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A stack at `port`, which ends without a wait.
fn stack(port: impl Port + 'static, driver: Driver) -> Owner {
    let setup = Setup {
        ports: vec![Box::new(port)],
        addresses: vec![Cidr::new(Ipv4Addr::new(10, 0, 0, 1), 24).unwrap()],
        routes: Vec::new(),
        mac: None,
        seed: None,
        driver,
        wait: Wait::default(),
        linger: Duration::ZERO,
        pages: 1 << 10,
        tcp: Default::default(),
        udp: Default::default(),
        zerocopy: Default::default(),
    };
    Owner::start(setup).unwrap()
}

/// Whose calls come one after another looks at the link himself, though none of them waits.
#[test]
fn calls_that_never_wait_keep_the_link_from_the_stacks_own_thread() {
    let (near, _far) = Tap::cable(1500).unwrap();
    let stack = stack(near, Driver::Thread);
    let inner = stack.first();
    let waiter = Arc::new(Waiter::new(inner.with(|shard, _| shard.inet_mut().tcp_open()).unwrap()));
    let patience = Patience { wait: Wait::Block, none: true, limit: None, eager: false };
    let began = Instant::now();
    let leased = || {
        let call = |shard: &mut Shard, now| Some(shard.lease(now).is_some());
        inner.wait(&waiter, patience, &Learnt::default(), call) == Ok(true)
    };
    // (On a busy machine two of them may be far apart.)
    while !leased() {
        assert!(began.elapsed() < onecopy_testing::LONG, "the stack's own thread had the link all the time");
    }
    // It has the link back when they end.
    while inner.with(|shard, now| shard.lease(now).is_some() || shard.watched == Interest::default()) {
        assert!(began.elapsed() < onecopy_testing::LONG, "nobody looks at the link");
        thread::yield_now();
    }
}

#[test]
fn a_call_that_need_not_wait_looks_after_a_while_or_after_much_was_sent() {
    let stack = stack(Tap::cable(1500).unwrap().0, Driver::Caller);
    stack.first().with(|shard, now| {
        shard.turn(now);
        assert!(!shard.ought_to_look(now));
        assert!(shard.ought_to_look(now + 100_000));
        shard.count_sent(128 << 10);
        assert!(shard.ought_to_look(now));
        shard.turn(now);
        assert!(!shard.ought_to_look(now));
    });
}

/// Who drives and has something to look at each time, as the sender of much has, never sleeps.
#[test]
fn who_drives_and_is_told_again_and_again_keeps_nobody_out() {
    let stack = stack(Tap::cable(1500).unwrap().0, Driver::Caller);
    let inner = stack.first();
    let waiter = Arc::new(Waiter::new(inner.with(|shard, _| shard.inet_mut().tcp_open()).unwrap()));
    let (began, done) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while began.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            inner.with(|_, _| done.store(1, Ordering::SeqCst));
        });
        let limit = Some(Duration::from_secs(10));
        let patience = Patience { wait: Wait::Spin, none: false, limit, eager: true };
        let waited = inner.wait(&waiter, patience, &Learnt::default(), |shard, _| {
            // From here on it drives, and is told each time.
            if shard.leader.is_some() {
                began.store(1, Ordering::SeqCst);
            }
            waiter.tell();
            (done.load(Ordering::SeqCst) == 1).then_some(())
        });
        assert_eq!(waited, Ok(()), "the other thread never had the stack");
    });
}
