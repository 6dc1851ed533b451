//! Buffers that are lent to a send, and come back with its notification.
#![cfg(not(loom))]

use onecopy_chain::notify::{Config, Fate, How, Lender, Limits, Refused, Segment};
use onecopy_chain::{Chain, Fragment};
use onecopy_pool::{Page, PagePool, PoolConfig, provider::Heap};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn pages(count: usize) -> (PagePool, Vec<Page>) {
    let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
    let pages = (0..count).map(|_| pool.alloc().unwrap()).collect();
    (pool, pages)
}

#[test]
fn a_page_a_chain_and_a_vector_come_back_to_their_owner_alone() {
    let (_pool, mut pages) = pages(3);
    // A page.
    let mut lender = Lender::new(Config::default()).unwrap();
    let mut segment: Segment<Chain> = Segment::default();
    let loan = lender.send(&mut segment, pages.pop().unwrap(), 0).unwrap();
    let loan = loan.try_take().expect_err("its segment lives");
    let again = segment.share();
    segment.free(Fate::Sent);
    let loan = loan.wait_for(Duration::from_millis(2)).expect_err("it may be sent again");
    again.free(Fate::Copied);
    let (page, how) = loan.wait();
    assert!(page.is_unique());
    assert_eq!(how, How { copied: true, ..How::default() });
    // A chain.
    let mut chain = Chain::new();
    for page in pages.drain(..).chain([page]) {
        chain.append(Fragment::whole(page).unwrap()).unwrap();
    }
    let mut lender = Lender::new(Config::default()).unwrap();
    let loan = lender.send(&mut segment_of(), chain, 0).unwrap();
    let (chain, how) = loan.try_take().unwrap();
    assert_eq!((chain.fragment_count(), how.dropped), (3, true));
    assert!(chain.fragments().all(|fragment| fragment.page().is_unique()));
    // Anything on the heap.
    let mut lender = Lender::new(Config::default()).unwrap();
    let mut segment = Segment::default();
    let loan = lender.send(&mut segment, Arc::new(b"any bytes".to_vec()), 0).unwrap();
    assert_eq!(segment.payload()[0].bytes(), b"any bytes");
    segment.free(Fate::Sent);
    let (bytes, _) = loan.try_take().unwrap();
    assert_eq!(Arc::into_inner(bytes).expect("no fragment is left"), b"any bytes");
}

fn segment_of() -> Segment<Chain> {
    Segment::default()
}

#[test]
fn a_dropped_loan_loses_nothing() {
    struct Counted(Vec<u8>, Arc<std::sync::Mutex<u32>>);
    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            *self.1.lock().unwrap() += 1;
        }
    }
    let freed = Arc::new(std::sync::Mutex::new(0));
    let mut lender = Lender::new(Config::default()).unwrap();
    let mut segment = Segment::default();
    for _ in 0..2 {
        drop(lender.send(&mut segment, Arc::new(Counted(vec![1; 8], freed.clone())), 0).unwrap());
    }
    let kept = lender.send(&mut segment, Arc::new(Counted(vec![2; 8], freed.clone())), 0).unwrap();
    assert_eq!((*freed.lock().unwrap(), lender.outstanding()), (0, 3));
    assert_eq!(segment.payload()[1].bytes(), [1; 8]);
    segment.free(Fate::Sent);
    assert_eq!(
        (*freed.lock().unwrap(), lender.outstanding()),
        (2, 0),
        "freed with its last fragment, and counted"
    );
    drop(kept.try_take().unwrap());
    assert_eq!(*freed.lock().unwrap(), 3);
    // Lender and loan gone, bytes still under way.
    let mut segment = Segment::default();
    drop(lender.send(&mut segment, Arc::new(Counted(vec![3; 8], freed.clone())), 0).unwrap());
    drop(lender);
    assert_eq!(*freed.lock().unwrap(), 3);
    assert_eq!(segment.payload()[0].bytes(), [3; 8]);
    drop(segment);
    assert_eq!(*freed.lock().unwrap(), 4);
}

#[test]
fn a_refused_buffer_is_the_callers() {
    let limits = Limits { bytes: 10, ..Limits::default() };
    let mut lender = Lender::new(Config { capacity: 3, limits }).unwrap();
    let mut segment = Segment::default();
    let loan = lender.send(&mut segment, Arc::new(vec![0; 8]), 0).unwrap();
    let rejected = lender.send(&mut segment, Arc::new(vec![1; 8]), 0).unwrap_err();
    assert_eq!((rejected.why, rejected.buffer.len()), (Refused::Bytes { would_be: 16, limit: 10 }, 8));
    drop(segment);
    assert!(loan.wait().1.dropped);
    lender.close();
    let rejected = lender.send(&mut Segment::default(), rejected.buffer, 0).unwrap_err();
    assert_eq!(rejected.why, Refused::Closed);
    assert_eq!(Arc::into_inner(rejected.buffer), Some(vec![1; 8]));
}

#[test]
fn many_loans_are_waited_for_while_another_thread_frees() {
    let mut lender = Lender::new(Config { capacity: 31, ..Config::default() }).unwrap();
    let (to_link, link) = std::sync::mpsc::channel::<Segment<_>>();
    let (to_waiter, loans) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for (n, segment) in link.into_iter().enumerate() {
                if n % 64 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                segment.free(Fate::Sent);
            }
        });
        scope.spawn(move || {
            for n in 0..2000u32 {
                let mut buffer = Arc::new(n.to_ne_bytes());
                let start = Instant::now();
                loop {
                    let mut segment = Segment::default();
                    match lender.send(&mut segment, buffer, 0) {
                        Ok(loan) => {
                            to_waiter.send(loan).unwrap();
                            to_link.send(segment).unwrap();
                            break;
                        }
                        Err(rejected) => {
                            assert_eq!(rejected.why, Refused::Full { capacity: 31 });
                            assert!(start.elapsed() < Duration::from_secs(20));
                            buffer = rejected.buffer;
                            std::thread::yield_now();
                        }
                    }
                }
            }
        });
        for (n, loan) in loans.into_iter().enumerate() {
            let back = if n % 3 == 0 { Ok(loan.wait()) } else { loan.wait_for(Duration::from_secs(20)) };
            let (buffer, _) = back.expect("it comes back in time");
            assert_eq!(Arc::into_inner(buffer), Some((n as u32).to_ne_bytes()));
        }
    });
}

#[test]
fn a_loan_is_a_future() {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Wake, Waker};
    struct Count(std::sync::Mutex<u32>);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            *self.0.lock().unwrap() += 1;
        }
    }
    let count = Arc::new(Count(Default::default()));
    let waker = Waker::from(count.clone());
    let mut context = Context::from_waker(&waker);
    let mut lender = Lender::new(Config::default()).unwrap();
    let mut segment = Segment::default();
    let mut one = pin!(lender.send(&mut segment, Arc::new([1u8]), 0).unwrap());
    let mut two = pin!(lender.send(&mut segment, Arc::new([2u8]), 0).unwrap());
    assert!(one.as_mut().poll(&mut context).is_pending());
    assert!(two.as_mut().poll(&mut context).is_pending());
    segment.free(Fate::Sent);
    assert_eq!(*count.0.lock().unwrap(), 2, "both were woken by the one that freed the segment");
    for future in [one, two] {
        assert!(matches!(
            future.poll(&mut context),
            Poll::Ready((_, How { copied: false, unknown: false, dropped: false }))
        ));
    }
}
