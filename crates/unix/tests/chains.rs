//! Chains that are sent by reference, and the completions that their senders get.
#![allow(missing_docs, reason = "a test")]

use onecopy_chain::notify::{Config as LaneConfig, Context, Lane, Queue, Segment};
use onecopy_chain::{Chain, Checksum, Fragment, Kind, Mark, Writer};
use onecopy_pool::provider::{Heap, Opaque};
use onecopy_pool::{DeviceId, PagePool, PoolConfig};
use onecopy_testing::{alone, this_thread, wait_asleep};
use onecopy_unix::*;
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::time::Duration;

fn held() -> (usize, usize) {
    // The first socket opens descriptors and mappings that the process then keeps.
    drop(Stream::pair().unwrap());
    (onecopy_testing::descriptors(), onecopy_testing::mappings("/memfd:"))
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed).wrapping_mul(2654435761) >> 13) as u8).collect()
}

fn chain(writer: Writer<'_>, bytes: &[u8]) -> Chain {
    let mut chain = Chain::new();
    writer.append(&mut chain, bytes).unwrap();
    chain
}

fn contents(chain: &Chain) -> Vec<u8> {
    let mut bytes = vec![0; chain.len()];
    let hint = onecopy_copy::Hint::AUTO;
    match chain.kind() {
        Some(Kind::Peer) => chain.peer().unwrap().copy_to(0, &mut bytes, hint).unwrap(),
        _ => chain.host().unwrap().copy_to(0, &mut bytes, hint).unwrap(),
    };
    bytes
}

fn lane() -> (Lane, Queue) {
    let (context, queue) = Context::new();
    (context.lane(LaneConfig::default()).unwrap(), queue)
}

/// Returns what has completed: user data, copied, dropped.
fn told(queue: &mut Queue) -> Vec<(u64, bool, bool)> {
    let mut told = Vec::new();
    queue.reap(|done| told.push((done.user_data, done.how.copied, done.how.dropped)));
    told
}

fn errno<T>(not: impl std::ops::Deref<Target = NotSent<T>>) -> i32 {
    not.error.raw_os_error()
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_chain_arrives_where_it_lies_and_each_page_comes_home_by_itself() {
    alone!();
    let before = held();
    {
        let (a, b) = Stream::pair().unwrap();
        let pool = SharedPool::new(4096, 16).unwrap();
        for round in 0..50 {
            let bytes = pattern(round, 40_000);
            assert_eq!(a.send_chain(chain(pool.writer(), &bytes)).unwrap(), 40_000);
            assert_eq!(pool.lent(), 10);
            let mut got = b.recv_chain(usize::MAX).unwrap();
            assert_eq!((got.len(), got.fragment_count(), got.kind()), (40_000, 10, Some(Kind::Peer)));
            assert!(got.host().is_err(), "no slice");
            assert!(contents(&got) == bytes);
            // Either part may be dropped first, on any thread.
            let last = got.split_off(39_000).unwrap();
            std::thread::spawn(move || drop(last)).join().unwrap();
            got.advance(4096 * 3).unwrap();
            // Both parts of the cut hold the last page.
            assert_eq!(pool.reclaim().unwrap(), 3);
            drop(got);
            assert_eq!(pool.reclaim().unwrap(), 7);
        }
        let (sent, received) = (a.stats(), b.stats());
        assert_eq!((sent.referenced, sent.sent, sent.references_copied), (2_000_000, 2_000_000, 0));
        assert_eq!((received.referenced, received.received), (2_000_000, 2_000_000));
        assert_eq!((sent.user_copied(), received.user_copied()), (0, 0));
    }
    assert_eq!(held(), before, "descriptors and mappings");
}

#[test]
fn parts_of_one_page_go_and_come_home_each_for_itself() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(4096, 1).unwrap();
    let whole = chain(pool.writer(), &pattern(3, 4096));
    // The same bytes come several times, in another order, and with a gap.
    let mut mixed = whole.range(1000, 500).unwrap();
    mixed.concat(&mut whole.range(0, 10).unwrap()).unwrap();
    mixed.concat(&mut whole.share()).unwrap();
    let expected = contents(&mixed);
    a.send_chain(mixed).unwrap();
    drop(whole);
    assert!(pool.loan(1).is_err(), "all of them hold the one page");
    let first = b.recv_chain(700).unwrap();
    assert_eq!(first.fragment_count(), 3);
    let rest = b.recv_chain(usize::MAX).unwrap();
    assert!([contents(&first), contents(&rest)].concat() == expected);
    drop(first);
    assert_eq!(pool.reclaim().unwrap(), 2, "the third part is held by the rest of it");
    assert!(pool.loan(1).is_err());
    drop(rest);
    pool.loan(1).unwrap();
}

#[test]
fn chains_loans_and_bytes_keep_their_order() {
    alone!();
    for config in [
        Config { send_buffer: Some(4096), ..Config::default() },
        Config { max_shared: 0, ..Config::default() },
        Config { transport: Transport::Kernel, ..Config::default() },
    ] {
        let (a, b) = Stream::pair_with(&config).unwrap();
        let expected = pattern(1, 2_000_000);
        let sender = {
            let bytes = expected.clone();
            std::thread::spawn(move || {
                let pool = SharedPool::new(4096, 40).unwrap();
                let heap = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
                let (mut at, mut turn) = (0, 0usize);
                while at < bytes.len() {
                    turn += 1;
                    let n = (turn * 7919 % 30_000 + 1).min(bytes.len() - at);
                    let piece = &bytes[at..at + n];
                    at += n;
                    match turn % 4 {
                        0 => drop(a.send(piece).unwrap()),
                        1 => drop(a.send_chain(chain(Writer::new(&heap), piece)).unwrap()),
                        2 => {
                            let n = piece.len().min(4096);
                            let mut loan = pool.loan_within(n, 20 * SECOND).unwrap();
                            loan.copy_from_slice(&piece[..n]);
                            a.send_loan(loan).unwrap();
                            a.send(&piece[n..]).unwrap();
                        }
                        _ => {
                            let mut shared = Chain::new();
                            while shared.len() < piece.len() {
                                let rest = &piece[shared.len()..];
                                match pool.writer().append(&mut shared, &rest[..rest.len().min(4096)]) {
                                    Ok(()) => {}
                                    Err(_) => assert!(pool.reclaim_within(20 * SECOND).unwrap() > 0),
                                }
                            }
                            a.send_chain(shared).unwrap();
                        }
                    }
                }
            })
        };
        let mut got = Vec::new();
        let (mut buf, mut kept) = (vec![0; 9_000], std::collections::VecDeque::new());
        for turn in 0usize.. {
            let before = got.len();
            match turn % 3 {
                0 => {
                    let n = b.recv(&mut buf).unwrap();
                    got.extend_from_slice(&buf[..n]);
                }
                1 => {
                    let view = b.recv_borrowed(5_000).unwrap();
                    let n = view.copy_to(&mut buf);
                    got.extend_from_slice(&buf[..n]);
                }
                _ => {
                    let chain = b.recv_chain(20_000).unwrap();
                    got.extend(contents(&chain));
                    // The chains are given back later, and out of order.
                    kept.push_front(chain);
                    kept.truncate(3);
                }
            }
            if got.len() == before {
                break;
            }
        }
        sender.join().unwrap();
        assert!(got == expected, "{} of {} bytes", got.len(), expected.len());
    }
}

#[test]
fn what_cannot_go_by_reference_is_copied_and_counted_or_refused() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    let (c, d) = Stream::pair().unwrap();
    let (mine, theirs) = (SharedPool::new(4096, 4).unwrap(), SharedPool::new(4096, 4).unwrap());
    let heap = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
    // Pages of this process alone.
    let bytes = pattern(5, 10_000);
    assert_eq!(a.send_chain(chain(Writer::new(&heap), &bytes)).unwrap(), 10_000);
    assert_eq!((a.stats().references_copied, a.stats().user_copied_in, a.stats().referenced), (3, 10_000, 0));
    let got = b.recv_chain(usize::MAX).unwrap();
    assert_eq!((got.kind(), b.stats().user_copied_out), (Some(Kind::Host), 10_000));
    assert!(contents(&got) == bytes);
    // Pages of another connection's pool, behind some of ours: what was not sent comes back.
    c.send_chain(chain(theirs.writer(), b"bound")).unwrap();
    let mut both = chain(mine.writer(), &bytes[..5000]);
    both.concat(&mut chain(theirs.writer(), b"yours")).unwrap();
    let not = a.send_chain(both).unwrap_err();
    assert_eq!(contents(not.loan.payload()), b"yours");
    assert!(not.to_string().contains("one for each peer"), "{not}");
    assert_eq!(errno(not), Errno::XDEV.raw_os_error());
    // What came by reference is passed on as a copy: the next peer maps no pool of the first one's.
    let got = b.recv_chain(usize::MAX).unwrap();
    assert_eq!((got.kind(), got.len()), (Some(Kind::Peer), 5000));
    d.send_chain(got).unwrap();
    assert_eq!(
        (d.stats().references_copied, d.stats().user_copied_in),
        (2, 10_000),
        "copied twice, and said"
    );
    assert!(contents(&c.recv_chain(usize::MAX).unwrap()) == bytes[..5000]);
    assert_eq!(mine.reclaim().unwrap(), 2);
    // Pages that cannot be sent at all.
    let gpu = PagePool::new(PoolConfig::new(), Opaque::new(DeviceId(0))).unwrap();
    let device = Chain::from(Fragment::whole(gpu.alloc().unwrap()).unwrap());
    assert_eq!(errno(a.send_chain(device).unwrap_err()), Errno::FAULT.raw_os_error());
    let mut unfinished = chain(mine.writer(), &[0; 100]);
    unfinished.set_checksum(Checksum::Partial { start: 0, offset: 16 }).unwrap();
    assert_eq!(errno(a.send_chain(unfinished).unwrap_err()), Errno::INVAL.raw_os_error());
    let mut with = chain(mine.writer(), b"with");
    with.insert_mark(0, Mark::Rights(vec![std::fs::File::open("/dev/null").unwrap().into()])).unwrap();
    let not = a.send_chain(with).unwrap_err();
    assert_eq!((not.loan.payload().len(), not.loan.payload().mark_count()), (4, 1), "it comes back whole");
    assert_eq!(errno(not), Errno::OPNOTSUPP.raw_os_error());
    // None of these did harm.
    a.send_chain(chain(mine.writer(), b"still here")).unwrap();
    assert_eq!(contents(&b.recv_chain(64).unwrap()), b"still here");
}

#[test]
fn descriptors_that_come_with_bytes_are_marks_of_the_chain() {
    alone!();
    for transport in [Transport::Auto, Transport::Kernel] {
        let (a, b) = Stream::pair_with(&Config { transport, ..Config::default() }).unwrap();
        let fd = std::fs::File::open("/dev/null").unwrap();
        a.send_fds(b"with", &[fd.as_fd(), fd.as_fd()]).unwrap();
        let got = b.recv_chain(64).unwrap();
        assert_eq!(contents(&got), b"with");
        let marks: Vec<_> = got.marks().collect();
        assert!(matches!(&marks[..], [(0, Mark::Rights(fds))] if fds.len() == 2), "{marks:?}");
        a.send(b"without").unwrap();
        let got = b.recv_chain(64).unwrap();
        assert_eq!((contents(&got), got.mark_count()), (b"without".to_vec(), 0));
        drop(a);
        assert!(b.recv_chain(64).unwrap().is_empty(), "the end");
    }
}

#[test]
fn each_send_of_a_chain_is_told_once_in_order_and_truly() {
    alone!();
    let (mut lane, mut queue) = lane();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(4096, 16).unwrap();
    // Three sends in one segment: one and a half pages, half a page, two pages.
    let mut segment = Segment::<Chain>::default();
    for (number, len) in [(10, 6144), (11, 2048), (12, 8192)] {
        lane.send(&mut segment, number, len, 0).unwrap();
        pool.writer().append(segment.payload_mut(), &pattern(number as usize, len as usize)).unwrap();
    }
    assert_eq!(segment.payload().fragment_count(), 4);
    a.send_chain(segment).unwrap();
    assert_eq!(told(&mut queue), []);
    let mut pages: Vec<Chain> = (0..4).map(|_| b.recv_chain(4096).unwrap()).collect();
    // The last send's pages come back first, but completions stay in order.
    drop((pages.pop(), pages.pop()));
    assert_eq!((pool.reclaim().unwrap(), told(&mut queue)), (2, vec![]));
    drop(pages.remove(0));
    assert_eq!((pool.reclaim().unwrap(), told(&mut queue)), (1, vec![]), "the second page has bytes of both");
    std::thread::scope(|scope| {
        let waits = this_thread();
        scope.spawn(move || {
            wait_asleep(waits);
            drop(pages);
        });
        assert_eq!(pool.reclaim_within(20 * SECOND).unwrap(), 1);
    });
    assert_eq!(told(&mut queue), [(10, false, false), (11, false, false), (12, false, false)]);
    // The peer goes away. What it has not given back completes with an error, and a waiter is woken.
    let mut segment = Segment::from(chain(pool.writer(), &[1; 5000]));
    lane.send_there(&mut segment, 13, 0).unwrap();
    a.send_chain(segment).unwrap();
    let (kept, lost) = (b.recv_chain(4096).unwrap(), b.recv_chain(usize::MAX).unwrap());
    drop(kept);
    std::thread::scope(|scope| {
        let waits = this_thread();
        scope.spawn(move || {
            wait_asleep(waits);
            // First the socket goes, then the chain that keeps its pages open.
            drop(b);
            drop(lost);
        });
        while pool.lent() > 0 {
            pool.reclaim_within(20 * SECOND).unwrap();
        }
    });
    let last = told(&mut queue);
    assert!(matches!(last[..], [(13, false, _)]), "{last:?}");
    assert_eq!(told(&mut queue), []);
}

#[test]
fn who_is_killed_with_pages_completes_their_sends_as_dropped() {
    alone!();
    let (mut lane, mut queue) = lane();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(4096, 4).unwrap();
    let mut segment = Segment::from(chain(pool.writer(), &[1; 8192]));
    lane.send_there(&mut segment, 1, 0).unwrap();
    a.send_chain(segment).unwrap();
    // The peer never looks at these pages, so only its end gives them back.
    drop(b);
    assert_eq!(pool.reclaim_within(20 * SECOND).unwrap(), 2);
    assert_eq!(told(&mut queue), [(1, false, true)]);
    // Then a send to a peer that is gone.
    let mut segment = Segment::from(chain(pool.writer(), &[1; 100]));
    lane.send_there(&mut segment, 2, 0).unwrap();
    let not = a.send_chain(segment).unwrap_err();
    assert_eq!(told(&mut queue), [], "it came back with what waits for it");
    drop(not);
    assert_eq!(told(&mut queue), [(2, false, true)]);
}

#[test]
fn copied_is_said_of_the_sends_that_were() {
    alone!();
    let (mut lane, mut queue) = lane();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(4096, 4).unwrap();
    let heap = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
    let mut segment = Segment::<Chain>::default();
    for (number, by_reference) in [(1, true), (2, false), (3, true)] {
        lane.send(&mut segment, number, 4096, 0).unwrap();
        let writer = if by_reference { pool.writer() } else { Writer::new(&heap) };
        segment.payload_mut().concat(&mut chain(writer, &pattern(1, 4096))).unwrap();
    }
    a.send_chain(segment).unwrap();
    for _ in 0..3 {
        assert_eq!(b.recv_chain(usize::MAX).unwrap().len(), 4096);
    }
    assert_eq!(pool.reclaim().unwrap(), 2);
    assert_eq!(told(&mut queue), [(1, false, false), (2, true, false), (3, false, false)]);
    // No send accounts for the header in front, so the send is told of when its own page is back.
    let mut segment = Segment::from(chain(pool.writer(), &pattern(2, 4096)));
    lane.send(&mut segment, 4, 100, 0).unwrap();
    segment.payload_mut().concat(&mut chain(pool.writer(), &pattern(3, 100))).unwrap();
    a.send_chain(segment).unwrap();
    let (first, second) = (b.recv_chain(4096).unwrap(), b.recv_chain(4096).unwrap());
    drop(first);
    assert_eq!((pool.reclaim().unwrap(), told(&mut queue)), (1, vec![]));
    drop(second);
    assert_eq!((pool.reclaim().unwrap(), told(&mut queue)), (1, vec![(4, false, false)]));
}

/// The receiver sleeps, and gives pages back once it has what was lent so far.
#[test]
fn who_waits_for_a_slot_has_woken_the_receiver_before() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    a.set_write_timeout(Some(60 * SECOND)).unwrap();
    let pool = SharedPool::new(4096, 4).unwrap();
    let one = chain(pool.writer(), &pattern(7, 4096));
    let mut kept = Vec::new();
    for at in 0..511 {
        a.send_chain(one.range(at, 1).unwrap()).unwrap();
        kept.push(b.recv_chain(1).unwrap());
    }
    let (told, asked) = std::sync::mpsc::channel();
    let receiver = std::thread::spawn(move || {
        told.send(this_thread()).unwrap();
        let first = b.recv_chain(1).unwrap();
        drop(kept);
        (contents(&first), contents(&b.recv_chain(1).unwrap()))
    });
    wait_asleep(asked.recv().unwrap());
    let mut two = one.range(600, 1).unwrap();
    two.concat(&mut one.range(700, 1).unwrap()).unwrap();
    assert_eq!(a.send_chain(two).unwrap(), 2);
    let bytes = pattern(7, 4096);
    assert_eq!(receiver.join().unwrap(), (vec![bytes[600]], vec![bytes[700]]));
}

#[test]
fn what_a_peer_never_gives_back_is_bounded_and_the_rest_comes_back_cut() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(4096, 4).unwrap();
    let one = chain(pool.writer(), &pattern(7, 4096));
    let (mut kept, mut sent) = (Vec::new(), 0);
    let not = loop {
        let mut many = Chain::new();
        for at in 0..100 {
            many.concat(&mut one.range(at * 7, 1).unwrap()).unwrap();
        }
        match a.send_chain_with_flags(many, SendFlags::DONTWAIT) {
            Ok(n) => sent += n,
            Err(not) if sent < 512 && kept.len() < 600 => {
                // The ring has room for 64 references at once.
                sent += 100 - not.loan.payload().len();
                kept.push(b.recv_chain(usize::MAX).unwrap());
                if sent == 512 {
                    break not;
                }
            }
            Err(not) => break not,
        }
    };
    assert!(not.error.would_block(), "{}", not.error);
    assert!(not.to_string().contains("holds all the pages"), "{not}");
    assert_eq!((sent, pool.lent()), (512, 512), "as many as there are slots");
    // For each page given back, one can be sent.
    let first = kept.remove(0);
    let n = first.fragment_count();
    drop(first);
    let left = not.loan.payload().len();
    let again = a.send_chain_with_flags(not.loan, SendFlags::DONTWAIT);
    match again {
        Ok(sent) => assert!(sent == left && left <= n),
        Err(not) => assert_eq!(left - not.loan.payload().len(), n),
    }
    drop(kept);
}

#[test]
fn pages_outlive_whoever_goes_first() {
    alone!();
    let before = held();
    for order in 0..6 {
        let (a, b) = Stream::pair().unwrap();
        let pool = SharedPool::new(4096, 4).unwrap();
        let bytes = pattern(order, 9000);
        a.send_chain(chain(pool.writer(), &bytes)).unwrap();
        let got = b.recv_chain(usize::MAX).unwrap();
        let mut rest: Vec<Box<dyn std::any::Any>> = vec![Box::new(a), Box::new(b), Box::new(pool)];
        for i in [order / 2, order % 2, 0] {
            drop(rest.remove(i));
            assert!(contents(&got) == bytes, "order {order}");
        }
    }
    assert_eq!(held(), before);
}

#[test]
fn a_loan_is_a_chain_with_a_writer() {
    alone!();
    let (mut lane, mut queue) = lane();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(4096, 4).unwrap();
    let loaned = |lane: &mut Lane, number: u64, bytes: &[u8]| {
        let mut loan = pool.loan(bytes.len()).unwrap();
        loan.copy_from_slice(bytes);
        loan.notify(lane, number).unwrap();
        Segment::from(loan)
    };
    let mut both = loaned(&mut lane, 1, b"header ");
    both.concat(loaned(&mut lane, 2, b"payload")).unwrap();
    a.send_chain(both).unwrap();
    let got = b.recv_chain(64).unwrap();
    assert_eq!((contents(&got).as_slice(), got.fragment_count()), (&b"header payload"[..], 2));
    drop(got);
    assert_eq!(pool.reclaim().unwrap(), 2);
    assert_eq!(told(&mut queue), [(1, false, false), (2, false, false)]);
    // An empty send completes at once.
    let empty = loaned(&mut lane, 3, b"");
    assert_eq!(a.send_chain(empty).unwrap(), 0);
    assert_eq!(told(&mut queue), [(3, false, false)]);
}

#[test]
fn counts_of_bytes_count_pages_and_not_their_marks() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(4096, 8).unwrap();
    let counts = || (a.unread_bytes().unwrap(), b.readable_bytes().unwrap());
    assert_eq!(counts(), (0, 0));
    a.send(b"before").unwrap();
    // The first chain brings the pool, which does not count as bytes to receive.
    a.send_chain(chain(pool.writer(), &[1; 10_000])).unwrap();
    a.send(b"after").unwrap();
    assert_eq!(counts(), (10_011, 10_011));
    let mut buf = [0; 6];
    b.recv(&mut buf).unwrap();
    assert_eq!(counts(), (10_005, 10_005));
    // A page is given back as a whole, so its sender counts all of it. The receiver counts what is left of
    // it.
    let mut big = [0; 4096 + 1000];
    b.recv(&mut big).unwrap();
    assert_eq!(counts(), (10_005 - 4096, 10_005 - 5096));
    let view = b.recv_borrowed(96).unwrap();
    assert_eq!(counts(), (10_005 - 4096, 10_005 - 5192));
    assert_eq!(b.recv_chain(usize::MAX).unwrap().len(), 10_005 - 5192 - 5);
    assert_eq!(counts(), (5, 5));
    drop(view);
    b.recv(&mut buf).unwrap();
    assert_eq!(counts(), (0, 0));
}

/// The sender's identity is a mark in front of the bytes: by reference and copied, over shared memory and
/// over the kernel.
#[test]
fn a_chain_says_who_sent_it() {
    alone!();
    for transport in [Transport::Auto, Transport::Kernel] {
        let config = Config { transport, pass_credentials: true, ..Config::default() };
        let (a, b) = Stream::pair_with(&config).unwrap();
        let pool = SharedPool::new(4096, 4).unwrap();
        let mine = |chain: &Chain| {
            chain.marks().any(|(at, mark)| {
                at == 0 && matches!(mark, Mark::Credentials(who) if *who == Credentials::own())
            })
        };
        a.send(b"bytes").unwrap();
        assert!(mine(&b.recv_chain(100).unwrap()));
        a.send_chain(chain(pool.writer(), b"pages")).unwrap();
        let got = b.recv_chain(100).unwrap();
        assert!(mine(&got) && contents(&got) == b"pages");
        b.set_pass_credentials(false).unwrap();
        a.send_chain(chain(pool.writer(), b"pages")).unwrap();
        assert!(!mine(&b.recv_chain(100).unwrap()));
    }
}
