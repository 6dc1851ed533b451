//! Requests that find the queue full.

use super::*;
use onecopy_pool::PoolConfig;
use onecopy_pool::provider::Heap;
use onecopy_sys::eventfd::EventFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Requests that fit in the queue.
const ENTRIES: u32 = 2;
/// More by far than fit, and than their completions do.
const MANY: u64 = 100;

fn ring() -> Option<Ring> {
    let pages = PagePool::new(PoolConfig::new().limit(1), Heap::new()).unwrap();
    let config = Config { entries: ENTRIES, buffers: 1, pages, region: None };
    let made = Ring::new(config, Arc::new(EventFd::new().unwrap()));
    made.inspect_err(|refused| println!("lacking: io_uring ({refused})")).ok()
}

/// One end of a pair, to which something can be written.
fn writable() -> (Arc<OwnedFd>, OwnedFd) {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    (Arc::new(ours), theirs)
}

/// The tokens of so many requests, in the order in which they were told of.
fn told(ring: &mut Ring) -> Vec<u64> {
    let (mut tokens, began) = (Vec::new(), Instant::now());
    while tokens.len() < MANY as usize {
        assert!(began.elapsed() < onecopy_testing::LONG, "{} of {MANY}", tokens.len());
        ring.wait(Some(Duration::from_secs(20))).unwrap();
        while let Some(event) = ring.event() {
            let Event::Writable { token } = event else { panic!("{event:?}") };
            tokens.push(token);
        }
    }
    tokens
}

#[test]
fn requests_that_find_the_queue_full_are_made_in_their_order() {
    let Some(mut ring) = ring() else { return };
    let (fd, _theirs) = writable();
    for token in 0..MANY {
        ring.writable(&fd, token);
    }
    assert!(told(&mut ring).into_iter().eq(0..MANY));
    assert!(ring.is_idle() && ring.late.is_empty());
    assert_eq!(ring.counters().requests, MANY + 1, "and the descriptor that wakes it");
}

struct Moved(Ring);
// SAFETY: only one thread has it at a time, and the kernel refuses what another one than its maker asks.
unsafe impl std::marker::Send for Moved {}

/// As where the kernel takes no requests at all, and then does: EEXIST, to every thread but one (IORING_SETUP_SINGLE_ISSUER).
#[test]
fn where_the_kernel_takes_none_the_wait_says_why_and_none_is_forgotten() {
    let Some(mut ring) = ring() else { return };
    // This thread is its maker.
    assert!(!ring.wait(Some(Duration::ZERO)).unwrap());
    let moved = Moved(ring);
    let (fd, _theirs) = writable();
    let elsewhere = std::thread::spawn(move || {
        let Moved(mut ring) = { moved };
        for token in 0..MANY {
            ring.writable(&fd, token);
        }
        assert_eq!(ring.late.len() as u64, MANY - u64::from(ENTRIES), "the others are in the queue");
        let failed = ring.wait(Some(Duration::ZERO)).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(Errno::EXIST.raw_os_error()));
        assert!(ring.event().is_none() && !ring.is_idle());
        Moved(ring)
    });
    let Moved(mut ring) = elsewhere.join().unwrap();
    assert!(told(&mut ring).into_iter().eq(0..MANY));
    assert!(ring.is_idle() && ring.late.is_empty());
}
