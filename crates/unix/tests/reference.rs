//! Pages that are sent by reference.
#![allow(missing_docs, reason = "a test")]

use onecopy_testing::{LONG, alone, this_thread, wait_asleep};
use onecopy_unix::*;
use std::io::Read;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

fn held() -> (usize, usize) {
    // The first socket opens descriptors and mappings that the process then keeps.
    drop(Stream::pair().unwrap());
    (onecopy_testing::descriptors(), onecopy_testing::mappings("/memfd:"))
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed).wrapping_mul(2654435761) >> 13) as u8).collect()
}

fn loaned(pool: &SharedPool, bytes: &[u8]) -> Loan {
    let mut loan = pool.loan_within(bytes.len(), LONG).unwrap();
    loan.copy_from_slice(bytes);
    loan
}

fn errno(error: Error) -> i32 {
    error.raw_os_error()
}

fn contents(view: &View) -> Vec<u8> {
    let mut bytes = vec![0; view.len()];
    assert_eq!(view.copy_to(&mut bytes), bytes.len());
    bytes
}

#[test]
fn a_page_arrives_where_it_lies_and_comes_home() {
    alone!();
    let before = held();
    {
        let (a, b) = Stream::pair().unwrap();
        let pool = SharedPool::new(1 << 20, 2).unwrap();
        for round in 0..100 {
            let bytes = pattern(round, 1 << 20);
            assert_eq!(a.send_loan(loaned(&pool, &bytes)).unwrap(), 1 << 20);
            assert_eq!(pool.lent(), 1);
            let view = b.recv_borrowed(usize::MAX).unwrap();
            assert_eq!(view.len(), 1 << 20);
            if round % 10 == 0 {
                assert!(contents(&view) == bytes);
            }
            drop(view);
            assert_eq!(pool.reclaim().unwrap(), 1);
            assert_eq!(pool.lent(), 0);
        }
        let (sent, received) = (a.stats(), b.stats());
        assert_eq!((sent.referenced, sent.user_copied(), sent.references_copied), (100 << 20, 0, 0));
        assert_eq!((received.referenced, received.received), (100 << 20, 100 << 20));
    }
    assert_eq!(held(), before, "descriptors and mappings");
}

#[test]
fn a_view_is_shown_in_pieces() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(100_000, 1).unwrap();
    let shown = |view: &View| {
        let mut bytes = Vec::new();
        view.for_each_chunk(|chunk| {
            assert!((1..=View::CHUNK).contains(&chunk.len()));
            bytes.extend_from_slice(chunk);
        });
        bytes
    };
    // In a page: all of it, and the part behind its front.
    let bytes = pattern(3, 3 * View::CHUNK + 5);
    a.send_loan(loaned(&pool, &bytes)).unwrap();
    let mut view = b.recv_borrowed(usize::MAX).unwrap();
    assert_eq!(shown(&view), bytes);
    view.advance(1001);
    assert_eq!(shown(&view), bytes[1001..]);
    assert_eq!(b.stats().user_copied_out as usize, 2 * bytes.len() - 1001, "looking is copying");
    view.advance(usize::MAX);
    assert_eq!(shown(&view), b"");
    // In the ring, around its end: all of it, and the part behind its front.
    for round in 0..40 {
        let bytes = pattern(round, 20_000);
        a.send(&bytes).unwrap();
        let mut view = b.recv_borrowed(usize::MAX).unwrap();
        assert_eq!(shown(&view), bytes);
        view.advance(15_000);
        assert_eq!(shown(&view), bytes[15_000..]);
    }
    // Over the kernel.
    let (a, b) = Stream::pair_with(&Config { transport: Transport::Kernel, ..Config::default() }).unwrap();
    a.send(&bytes).unwrap();
    assert_eq!(shown(&b.recv_borrowed(usize::MAX).unwrap()), bytes);
}

/// The contents of a page show whether it was used last.
#[test]
fn pages_are_used_again_while_they_are_warm() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(1 << 20, 8).unwrap();
    for round in 0..20u8 {
        let mut loan = pool.loan(1 << 20).unwrap();
        assert_eq!(loan[0], round.saturating_sub(1), "the page that came back last");
        loan[0] = round;
        a.send_loan(loan).unwrap();
        drop(b.recv_borrowed(usize::MAX).unwrap());
    }
    // Still, all pages can be out at once.
    let out: Vec<Loan> = (0..8).map(|_| pool.loan(1).unwrap()).collect();
    assert!(pool.loan(1).unwrap_err().would_block());
    drop(out);
}

#[test]
fn references_and_bytes_keep_their_order() {
    alone!();
    for peek in [false, true] {
        let (a, b) = Stream::pair_with(&Config { send_buffer: Some(4096), ..Config::default() }).unwrap();
        let expected = pattern(1, 3_000_000);
        let sender = {
            let bytes = expected.clone();
            std::thread::spawn(move || {
                let pool = SharedPool::new(16 << 10, 8).unwrap();
                let (mut at, mut turn) = (0, 0usize);
                while at < bytes.len() {
                    turn += 1;
                    let n = (turn * 7919 % 16_000 + 1).min(bytes.len() - at);
                    if turn.is_multiple_of(3) {
                        a.send(&bytes[at..at + n]).unwrap();
                    } else {
                        a.send_loan(loaned(&pool, &bytes[at..at + n])).unwrap();
                    }
                    at += n;
                }
                assert_eq!(a.stats().references_copied, 0);
            })
        };
        let (mut got, mut buf) = (Vec::new(), vec![0; 9_000]);
        for turn in 0usize.. {
            if peek {
                let mut ahead = vec![0; 5_000];
                let n = b.recv_with_flags(&mut ahead, RecvFlags::PEEK).unwrap();
                assert!(ahead[..n] == expected[got.len()..got.len() + n], "peeked");
            }
            let n = match turn % 4 {
                0 | 2 => {
                    let n = b.recv(&mut buf).unwrap();
                    got.extend_from_slice(&buf[..n]);
                    n
                }
                1 => {
                    // The page is cut in two, and goes back once both views are dropped.
                    let first = b.recv_borrowed(777).unwrap();
                    let second = b.recv_borrowed(5_000).unwrap();
                    got.extend(contents(&first));
                    got.extend(contents(&second));
                    first.len()
                }
                _ => {
                    let n = b.recv_with_flags(&mut buf[..4_000], RecvFlags::WAITALL).unwrap();
                    got.extend_from_slice(&buf[..n]);
                    n
                }
            };
            if n == 0 {
                break;
            }
        }
        sender.join().unwrap();
        assert!(got == expected, "{} of {} bytes", got.len(), expected.len());
    }
}

#[test]
fn one_receive_takes_bytes_and_pages_together() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(4096, 4).unwrap();
    a.send(b"one ").unwrap();
    a.send_loan(loaned(&pool, b"two ")).unwrap();
    a.send_loan(loaned(&pool, b"three ")).unwrap();
    a.send(b"four").unwrap();
    let mut buf = [0; 64];
    let n = b.recv(&mut buf).unwrap();
    assert_eq!(std::str::from_utf8(&buf[..n]).unwrap(), "one two three four");
    assert!(b.recv_with_flags(&mut buf, RecvFlags::DONTWAIT).unwrap_err().would_block());
}

#[test]
fn a_pool_whose_pages_are_all_away_says_so_and_wakes_who_waits() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(4096, 3).unwrap();
    for _ in 0..3 {
        a.send_loan(loaned(&pool, b"x")).unwrap();
    }
    assert!(pool.loan(1).unwrap_err().would_block());
    let began = Instant::now();
    assert!(pool.loan_within(1, Duration::from_millis(30)).unwrap_err().would_block());
    assert!(began.elapsed() >= Duration::from_millis(30));
    std::thread::scope(|scope| {
        let views: Vec<View> = (0..3).map(|_| b.recv_borrowed(8).unwrap()).collect();
        let waits = this_thread();
        scope.spawn(move || {
            wait_asleep(waits);
            drop(views);
        });
        drop(pool.loan_within(1, 2 * LONG).unwrap());
        assert!(began.elapsed() < LONG, "it was not woken");
    });
    assert_eq!(errno(pool.loan(4097).unwrap_err()), rustix::io::Errno::MSGSIZE.raw_os_error());
}

#[test]
fn each_send_is_told_once_and_truly() {
    use onecopy_chain::notify::{Config as LaneConfig, Context};
    alone!();
    let (context, mut queue) = Context::new();
    let mut lane = context.lane(LaneConfig::default()).unwrap();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(4096, 8).unwrap();
    for (number, bytes) in [b"one", b"two", b"six", b"ten"].into_iter().enumerate() {
        let mut loan = loaned(&pool, bytes);
        loan.notify(&mut lane, number as u64).unwrap();
        // The last loan is not sent.
        if number < 3 {
            a.send_loan(loan).unwrap();
        }
    }
    let mut told = Vec::new();
    queue.reap(|done| told.push((done.user_data, done.how.copied, done.how.dropped)));
    assert_eq!(told, [], "completions come in order, and the first page is away");
    let first = b.recv_borrowed(64).unwrap();
    drop(b.recv_borrowed(64).unwrap());
    assert_eq!(pool.reclaim().unwrap(), 1);
    assert_eq!(queue.reap(|_| ()), 0);
    drop(first);
    assert_eq!(pool.reclaim().unwrap(), 1);
    queue.reap(|done| told.push((done.user_data, done.how.copied, done.how.dropped)));
    assert_eq!(told, [(0, false, false), (1, false, false)]);
    drop(b);
    assert_eq!(pool.reclaim_if_gone(), 1);
    // The peer of this stream maps no pools.
    let (c, _d) = Stream::pair_with(&Config { max_shared: 0, ..Config::default() }).unwrap();
    let other = SharedPool::new(4096, 1).unwrap();
    let mut loan = loaned(&other, b"copy");
    loan.notify(&mut lane, 4).unwrap();
    c.send_loan(loan).unwrap();
    told.clear();
    queue.reap(|done| told.push((done.user_data, done.how.copied, done.how.dropped)));
    assert_eq!(told, [(2, false, true), (3, false, true), (4, true, false)]);
}

#[test]
fn a_pool_belongs_to_the_first_stream_it_is_sent_on() {
    alone!();
    let (a, _b) = Stream::pair().unwrap();
    let (c, _d) = Stream::pair().unwrap();
    let pool = SharedPool::new(4096, 4).unwrap();
    a.send_loan(loaned(&pool, b"mine")).unwrap();
    let not = c.send_loan(loaned(&pool, b"yours")).unwrap_err();
    assert_eq!(errno(not.error), rustix::io::Errno::XDEV.raw_os_error());
    assert!(not.to_string().contains("one for each peer"), "{not}");
    assert_eq!(&*not.loan, b"yours", "the loan comes back");
    a.send_loan(not.loan).unwrap();
}

#[test]
fn who_takes_no_references_gets_copies() {
    alone!();
    let pool = || SharedPool::new(64 << 10, 4).unwrap();
    let bytes = pattern(5, 60_000);
    for config in [
        Config { transport: Transport::Kernel, ..Config::default() },
        Config { max_shared: 0, ..Config::default() },
        Config { max_shared: 100_000, ..Config::default() },
    ] {
        let (a, b) = Stream::pair_with(&config).unwrap();
        let pool = pool();
        let mut got = vec![0; 60_000];
        for _ in 0..10 {
            assert_eq!(a.send_loan(loaned(&pool, &bytes)).unwrap(), 60_000);
            assert_eq!(b.recv_with_flags(&mut got, RecvFlags::WAITALL).unwrap(), 60_000);
            assert!(got == bytes);
        }
        assert_eq!((a.stats().references_copied, a.stats().referenced), (10, 0));
        assert_eq!(pool.lent(), 0);
    }
}

#[test]
fn what_does_not_fit_comes_back_cut() {
    alone!();
    let (a, b) =
        Stream::pair_with(&Config { max_shared: 0, send_buffer: Some(4096), ..Config::default() }).unwrap();
    let pool = SharedPool::new(64 << 10, 4).unwrap();
    let bytes = pattern(5, 60_000);
    let mut loan = loaned(&pool, &bytes);
    let (mut got, mut buf) = (Vec::new(), vec![0; 60_000]);
    loop {
        match a.send_loan_with_flags(loan, SendFlags::DONTWAIT) {
            Ok(_) => break,
            Err(not) => {
                assert!(not.error.would_block());
                loan = not.loan;
            }
        }
        let n = b.recv(&mut buf).unwrap();
        got.extend_from_slice(&buf[..n]);
    }
    while got.len() < 60_000 {
        let n = b.recv(&mut buf).unwrap();
        got.extend_from_slice(&buf[..n]);
    }
    assert!(got == bytes);
}

#[test]
fn marks_fill_the_ring_as_bytes_do_and_readiness_mirrors_them() {
    alone!();
    let (a, b) = Stream::pair_with(&Config { send_buffer: Some(4096), ..Config::default() }).unwrap();
    let pool = SharedPool::new(4096, 200).unwrap();
    let ready = |s: &Stream, events| {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(s.as_fd(), events)];
        let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&zero)).unwrap();
        fds[0].revents().contains(events)
    };
    let (input, output) = (rustix::event::PollFlags::IN, rustix::event::PollFlags::OUT);
    a.send_loan(loaned(&pool, b"x")).unwrap();
    drop(b.recv_borrowed(1).unwrap());
    assert!(!ready(&b, input) && ready(&a, output));
    let mut sent = 0;
    let not = loop {
        match a.send_loan_with_flags(loaned(&pool, b"x"), SendFlags::DONTWAIT) {
            Ok(n) => sent += n,
            Err(not) => break not,
        }
    };
    assert!(not.error.would_block());
    assert_eq!(sent, 64, "as many marks as there are");
    assert!(ready(&b, input) && !ready(&a, output));
    for left in (0..sent).rev() {
        assert_eq!(b.recv_borrowed_with_flags(1, RecvFlags::DONTWAIT).unwrap().len(), 1);
        assert_eq!(ready(&b, input), left > 0);
    }
    assert!(ready(&a, output), "there is room");
    a.send_loan_with_flags(not.loan, SendFlags::DONTWAIT).unwrap();
    assert_eq!(b.recv_with_flags(&mut [0; 8], RecvFlags::DONTWAIT).unwrap(), 1);
    assert!(!ready(&b, input));
}

#[test]
fn pages_stay_readable_after_their_sender_closed() {
    alone!();
    let before = held();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(4096, 2).unwrap();
    a.send_loan(loaned(&pool, b"first")).unwrap();
    a.send_loan(loaned(&pool, b"second")).unwrap();
    let first = b.recv_borrowed(64).unwrap();
    drop(a);
    assert!(pool.loan(1).unwrap_err().would_block(), "the peer may still look at both");
    assert_eq!(contents(&b.recv_borrowed(64).unwrap()), b"second");
    drop(pool.loan(1).unwrap());
    assert_eq!(contents(&first), b"first");
    assert_eq!(b.recv(&mut [0; 8]).unwrap(), 0);
    drop(pool);
    assert_eq!(contents(&first), b"first", "even without the pool");
    drop((b, first));
    assert_eq!(held(), before);
}

#[test]
fn pages_come_home_when_the_peer_is_gone_and_no_earlier() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(4096, 2).unwrap();
    a.send_loan(loaned(&pool, b"seen")).unwrap();
    a.send_loan(loaned(&pool, b"unseen")).unwrap();
    let view = b.recv_borrowed(64).unwrap();
    drop(b);
    assert!(pool.loan(1).unwrap_err().would_block(), "a view is held");
    assert_eq!(contents(&view), b"seen");
    drop(view);
    let one = pool.loan(1).unwrap();
    drop((one, pool.loan(1).unwrap()));
    assert_eq!(pool.lent(), 0);
    assert!(a.send_loan(loaned(&pool, b"x")).is_err());
}

#[test]
fn pages_pass_on_without_a_copy() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(64 << 10, 2).unwrap();
    let bytes = pattern(9, 50_000);
    a.send_loan(loaned(&pool, &bytes)).unwrap();
    let mut view = b.recv_borrowed(usize::MAX).unwrap();
    let (mut out, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut got = Vec::new();
    while !view.is_empty() {
        let n = view.send_part_to(&other, 10_000).unwrap();
        let mut part = vec![0; n];
        out.read_exact(&mut part).unwrap();
        got.extend(part);
        view.advance(n);
    }
    assert!(got == bytes);
    assert_eq!(b.stats().user_copied(), 0);
    assert_eq!(pool.reclaim().unwrap(), 1);
}

#[test]
fn descriptors_and_pages_share_the_channel() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    let fd = std::fs::File::open("/dev/null").unwrap();
    let pools: Vec<SharedPool> = (0..20).map(|_| SharedPool::new(4096, 1).unwrap()).collect();
    for (i, pool) in pools.iter().enumerate() {
        a.send_fds(b"fd", &[fd.as_fd()]).unwrap();
        a.send_loan(loaned(pool, &[i as u8; 9])).unwrap();
    }
    for i in 0..pools.len() {
        let (n, with) = b.recv_fds(&mut [0; 2]).unwrap();
        assert_eq!((n, with.fds.len()), (2, 1));
        assert_eq!(contents(&b.recv_borrowed(64).unwrap()), [i as u8; 9]);
    }
    assert_eq!(a.stats().references_copied, 4, "16 pools of one peer are mapped");
}

#[test]
fn thousands_of_pages_from_one_thread_to_another() {
    alone!();
    for wait in [Wait::Adaptive, Wait::Block] {
        let (a, b) = Stream::pair_with(&Config { wait, ..Config::default() }).unwrap();
        a.set_small(Small::Below(0)); // each is a page, and comes as one
        let sender = std::thread::spawn(move || {
            let pool = SharedPool::new(4096, 16).unwrap();
            for i in 0..5_000u32 {
                let mut loan = pool.loan_within(1000, LONG).unwrap();
                loan.fill(i as u8);
                a.send_loan(loan).unwrap();
            }
            pool
        });
        let mut kept = std::collections::VecDeque::new();
        for i in 0..5_000u32 {
            let view = b.recv_borrowed(usize::MAX).unwrap();
            assert_eq!(view.len(), 1000);
            kept.push_back((i, view));
            if kept.len() > 10 {
                let (i, view) = kept.pop_front().unwrap();
                let mut bytes = [0; 1000];
                view.copy_to(&mut bytes);
                assert!(bytes.iter().all(|byte| *byte == i as u8));
            }
        }
        drop(kept);
        let pool = sender.join().unwrap();
        let mut home = Vec::new();
        while let Ok(loan) = pool.loan(1) {
            home.push(loan);
        }
        assert_eq!(home.len(), 16, "all came home");
    }
}

#[test]
fn small_loans_are_copied_where_that_was_asked_for_and_told_of() {
    use onecopy_chain::notify::{Config as LaneConfig, Context};
    alone!();
    let (context, mut queue) = Context::new();
    let mut lane = context.lane(LaneConfig::default()).unwrap();
    let (a, b) = Stream::pair().unwrap();
    assert_eq!(a.small(), Small::Measured);
    a.set_small(Small::Below(100));
    assert_eq!(a.small(), Small::Below(100));
    let pool = SharedPool::new(4096, 2).unwrap();
    let mut told = Vec::new();
    for (number, (len, copied)) in [(99, true), (100, false), (1, true)].into_iter().enumerate() {
        let bytes = pattern(number, len);
        let mut loan = loaned(&pool, &bytes);
        loan.notify(&mut lane, number as u64).unwrap();
        let before = a.stats();
        assert_eq!(a.send_loan(loan).unwrap(), len);
        let after = a.stats();
        assert_eq!(pool.lent(), usize::from(!copied));
        assert_eq!(after.references_copied - before.references_copied, u64::from(copied));
        assert_eq!(after.referenced - before.referenced, if copied { 0 } else { len as u64 });
        let view = b.recv_borrowed(usize::MAX).unwrap();
        assert!(contents(&view) == bytes);
        drop(view);
        pool.reclaim().unwrap();
        queue.reap(|done| told.push((done.user_data, done.how.copied)));
        assert_eq!(told.last(), Some(&(number as u64, copied)));
    }
    // What may not be lent there may not be copied either: to whom a page may go is no matter of its size.
    let (c, _d) = Stream::pair().unwrap();
    c.set_small(Small::Below(u32::MAX));
    let not = c.send_loan(loaned(&pool, b"another's")).unwrap_err();
    assert_eq!(errno(not.error), rustix::io::Errno::XDEV.raw_os_error());
}

#[test]
fn a_small_loan_is_sent_whole_or_not_at_all() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    a.set_small(Small::Below(u32::MAX));
    a.set_nonblocking(true).unwrap();
    let pool = SharedPool::new(4096, 4).unwrap();
    assert_eq!(a.send_loan(loaned(&pool, b"first")).unwrap(), 5);
    assert_eq!(a.stats().references_copied, 1, "all are copied, where there is room");
    while a.send(&[1; 4096]).is_ok() {}
    while a.send(&[1]).is_ok() {}
    // Room for a part of it, however much of what is received is room at once.
    let (mut lent, mut refused) = (false, false);
    for n in [64, 700, 4096] {
        b.recv(&mut vec![0; n]).unwrap();
        let before = a.stats();
        match a.send_loan(loaned(&pool, &[2; 3000])) {
            Ok(sent) => {
                assert_eq!(sent, 3000);
                lent |= a.stats().referenced - before.referenced == 3000;
            }
            Err(not) => {
                assert_eq!(not.loan.len(), 3000, "nothing of it was sent");
                refused = true;
            }
        }
    }
    assert!(lent || refused, "there was never too little room");
}

/// Long enough for the stream to try both ways, and to choose.
#[test]
fn every_byte_arrives_whichever_way_loans_are_found_to_go() {
    alone!();
    const LEN: usize = 64;
    const LOANS: usize = 50_000;
    for (policy, may_copy) in [(Policy::Auto, true), (Policy::Cached, false)] {
        let (a, b) = Stream::pair().unwrap();
        a.set_policy(policy);
        let byte = |number: usize| (number % 251) as u8;
        let sender = std::thread::spawn(move || {
            let pool = SharedPool::new(4096, 64).unwrap();
            for number in 0..LOANS {
                let mut loan = pool.loan_within(LEN, LONG).unwrap();
                loan.fill(byte(number));
                a.send_loan(loan).unwrap();
            }
            (a.stats(), pool)
        });
        let mut buffer = vec![0; 10 * LEN + 7];
        let mut at = 0;
        while at < LOANS * LEN {
            let n = b.recv(&mut buffer).unwrap();
            assert!(n > 0);
            for (offset, came) in buffer[..n].iter().enumerate() {
                assert_eq!(*came, byte((at + offset) / LEN));
            }
            at += n;
        }
        let (sent, pool) = sender.join().unwrap();
        assert_eq!(
            (sent.sent, sent.user_copied_in + sent.referenced),
            ((LOANS * LEN) as u64, (LOANS * LEN) as u64)
        );
        assert_eq!(
            sent.references_copied > 0,
            may_copy,
            "who names stores has nothing copied that could be lent"
        );
        pool.reclaim_within(LONG).unwrap();
        assert_eq!(pool.lent(), 0);
    }
}

/// The receiver is another process, and is killed while it has pages.
#[test]
fn pages_come_home_from_who_was_killed() {
    if let Ok(name) = std::env::var("ONECOPY_TEST_BORROWER") {
        let stream = Stream::connect(SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        // The second message brings the memory.
        for _ in 0..2 {
            stream.send(b"c").unwrap();
        }
        let views: Vec<View> = (0..3).map(|_| stream.recv_borrowed(usize::MAX).unwrap()).collect();
        for view in &views {
            assert_eq!(contents(view), [7; 5000]);
        }
        stream.send(b"held").unwrap();
        std::thread::sleep(LONG);
        return;
    }
    alone!();
    let name = format!("onecopy-test-killed-{}", std::process::id());
    let listener = Listener::bind(SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "pages_come_home_from_who_was_killed", "--nocapture"])
        .env("ONECOPY_TEST_BORROWER", &name)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut said = [0; 5];
    stream.read_exact(&mut said[..2]).unwrap();
    while stream.path().send != Carrier::SharedMemory {
        assert!(stream.recv_with_flags(&mut said, RecvFlags::DONTWAIT).unwrap_err().would_block());
    }
    let pool = SharedPool::new(8192, 4).unwrap();
    let bytes = [7; 5000];
    for _ in 0..3 {
        stream.send_loan(loaned(&pool, &bytes)).unwrap();
    }
    stream.read_exact(&mut said[..4]).unwrap();
    assert_eq!((stream.stats().references_copied, pool.lent()), (0, 3));
    let last = pool.loan(1).unwrap();
    assert!(pool.loan(1).unwrap_err().would_block());
    child.kill().unwrap();
    child.wait().unwrap();
    let home: Vec<Loan> = (0..3).map(|_| pool.loan_within(1, LONG).unwrap()).collect();
    drop((last, home));
}
