//! Records whose bytes are in pages.
#![allow(missing_docs, reason = "a test")]

use onecopy_chain::notify::{Config as LaneConfig, Context, Segment};
use onecopy_chain::{Chain, Kind, Writer};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use onecopy_unix::*;
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

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
    chain.peer().unwrap().copy_to(0, &mut bytes, onecopy_copy::Hint::AUTO).unwrap();
    bytes
}

fn loan(pool: &SharedPool, bytes: &[u8]) -> Loan {
    let mut loan = pool.loan(bytes.len()).unwrap();
    loan.copy_from_slice(bytes);
    loan
}

fn errno(result: std::result::Result<usize, Box<NotSent<Segment<Chain>>>>) -> (i32, usize) {
    let not = result.unwrap_err();
    (not.error.raw_os_error(), not.loan.payload().len())
}

fn home(pool: &SharedPool) {
    while pool.lent() > 0 {
        assert!(pool.reclaim_within(20 * SECOND).unwrap() > 0, "{} pages stay away", pool.lent());
    }
}

#[test]
fn a_page_is_a_record_that_stays_where_it_lies() {
    let (a, b) = SeqPacket::pair().unwrap();
    let pool = SharedPool::new(1 << 20, 2).unwrap();
    assert!(a.max_record() < 1 << 20, "larger than the ring");
    for round in 0..40 {
        let bytes = pattern(round, 1 << 20);
        assert_eq!(a.send_loan(loan(&pool, &bytes)).unwrap(), 1 << 20);
        assert_eq!(b.readable_bytes().unwrap(), 1 << 20);
        let (view, flags) = b.recv_borrowed(usize::MAX).unwrap();
        assert_eq!((view.len(), flags, pool.lent()), (1 << 20, ReceivedFlags::empty(), 1));
        let mut got = vec![0; 1 << 20];
        view.copy_to(&mut got);
        assert!(got == bytes);
        drop(view);
        home(&pool);
    }
    let (sent, received) = (a.stats(), b.stats());
    assert_eq!((sent.user_copied_in, sent.referenced, sent.references_copied), (0, 40 << 20, 0));
    assert_eq!((received.referenced, received.received), (40 << 20, 40 << 20));
}

#[test]
fn a_receive_into_a_buffer_finds_no_difference() {
    let (a, b) = SeqPacket::pair().unwrap();
    let pool = SharedPool::new(4096, 64).unwrap();
    let bytes = pattern(3, 10_000);
    let send = || a.send_chain(b"head: ", chain(pool.writer(), &bytes)).unwrap();
    let whole = [b"head: ", &bytes[..]].concat();
    let mut buffer = vec![0; 20_000];
    assert_eq!(send(), 10_006);
    // A peek, a cut peek, and one that asks for the length.
    let peek = RecvFlags::PEEK;
    assert_eq!(b.recv_with_flags(&mut buffer, peek).unwrap(), 10_006);
    assert!(buffer[..10_006] == whole);
    let cut = b.recv_record_with_flags(&mut buffer[..5_000], peek).unwrap();
    assert_eq!((cut.len, cut.full, cut.flags), (5_000, 10_006, ReceivedFlags::TRUNC));
    assert_eq!(b.recv_with_flags(&mut [], peek | RecvFlags::TRUNC).unwrap(), 10_006);
    assert_eq!(b.readable_bytes().unwrap(), 10_006);
    assert_eq!((pool.lent(), pool.reclaim().unwrap()), (3, 0));
    // The record is received in one piece, in many, cut, and not at all.
    buffer.fill(0);
    assert_eq!(b.recv(&mut buffer).unwrap(), 10_006);
    assert!(buffer[..10_006] == whole);
    home(&pool);
    send();
    let mut small = [[0; 7]; 2_000];
    let mut slices: Vec<_> = small.iter_mut().map(|slice| std::io::IoSliceMut::new(slice)).collect();
    assert_eq!(b.recv_vectored(&mut slices).unwrap(), 10_006);
    assert!(small.as_flattened()[..10_006] == whole);
    send();
    let cut = b.recv_record(&mut buffer[..4_100]).unwrap();
    assert_eq!((cut.len, cut.full, cut.flags), (4_100, 10_006, ReceivedFlags::TRUNC));
    assert!(buffer[..4_100] == whole[..4_100]);
    send();
    assert_eq!(b.recv(&mut []).unwrap(), 0);
    home(&pool);
    // A view of parts that are not next to each other is a copy. A view of one page may be cut.
    send();
    let (view, flags) = b.recv_borrowed(8_000).unwrap();
    let mut got = vec![0; 8_000];
    assert_eq!((view.copy_to(&mut got), flags), (8_000, ReceivedFlags::TRUNC));
    assert!(got == whole[..8_000]);
    home(&pool);
    for len in [10_000, 4_096, 1] {
        let whole = [b"head: ", &bytes[..len]].concat();
        a.send_chain(b"head: ", chain(pool.writer(), &bytes[..len])).unwrap();
        let (view, flags) = b.recv_borrowed(usize::MAX).unwrap();
        let mut got = vec![0; 20_000];
        assert_eq!((view.copy_to(&mut got), flags), (whole.len(), ReceivedFlags::empty()));
        assert!(got[..whole.len()] == whole, "{len} bytes behind a head");
        home(&pool);
    }
    a.send_chain(b"", chain(pool.writer(), &bytes)).unwrap();
    let mut got = vec![0; 20_000];
    assert_eq!(b.recv_borrowed(usize::MAX).unwrap().0.copy_to(&mut got), 10_000);
    assert!(got[..10_000] == bytes, "three pages and no head");
    home(&pool);
    a.send_loan(loan(&pool, &bytes[..4_000])).unwrap();
    let (view, flags) = b.recv_borrowed(100).unwrap();
    assert_eq!((view.len(), flags), (100, ReceivedFlags::TRUNC));
    drop(view);
    assert!(b.recv_with_flags(&mut [0], RecvFlags::DONTWAIT).unwrap_err().would_block());
    home(&pool);
}

#[test]
fn bytes_and_pages_are_one_record_among_others() {
    let (a, b) = SeqPacket::pair().unwrap();
    let pool = SharedPool::new(8192, 64).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    for round in 0..100usize {
        let bytes = pattern(round, 1 + round * 97 % 30_000);
        let head = pattern(round, round % 50);
        a.send(b"before").unwrap();
        assert_eq!(a.send_chain(&head, chain(pool.writer(), &bytes)).unwrap(), head.len() + bytes.len());
        a.send_fds(b"after", &[null.as_fd()]).unwrap();
        assert_eq!(b.readable_bytes().unwrap(), 11 + head.len() + bytes.len());
        let mut buffer = [0; 64];
        let (received, none) = b.recv_chain(&mut buffer).unwrap();
        assert_eq!((&buffer[..received.len], none.len()), (&b"before"[..], 0));
        let (received, pages) = b.recv_chain(&mut buffer).unwrap();
        assert_eq!((received.len, received.full), (head.len(), head.len() + bytes.len()));
        assert_eq!((received.flags, pages.kind()), (ReceivedFlags::empty(), Some(Kind::Peer)));
        assert!(buffer[..head.len()] == head && contents(&pages) == bytes);
        let (received, with) = b.recv_fds(&mut buffer).unwrap();
        assert_eq!((&buffer[..received.len], with.fds.len()), (&b"after"[..], 1));
        // The pages are dropped on another thread, in reverse order.
        let fragments: Vec<_> = pages.into_fragments().collect();
        std::thread::scope(|scope| {
            scope.spawn(|| fragments.into_iter().rev().for_each(drop));
        });
        home(&pool);
    }
    // The bytes that have no room are dropped, but not the pages.
    a.send_chain(b"0123456789", chain(pool.writer(), &[7; 100])).unwrap();
    let mut buffer = [0; 4];
    let (received, pages) = b.recv_chain(&mut buffer).unwrap();
    assert_eq!((&buffer, received.len, received.full), (b"0123", 4, 110));
    assert_eq!((received.flags, contents(&pages)), (ReceivedFlags::TRUNC, vec![7; 100]));
    // An empty chain is an empty record.
    assert_eq!(a.send_chain(b"", Chain::new()).unwrap(), 0);
    assert!(!b.recv_record_with_flags(&mut buffer, RecvFlags::DONTWAIT).unwrap().is_end());
    drop(a);
    let (end, _) = b.recv_chain(&mut buffer).unwrap();
    assert!(end.is_end());
}

#[test]
fn what_cannot_be_lent_is_copied_and_counted() {
    let bytes = pattern(1, 9_000);
    let heap = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
    let kernel = Config { transport: Transport::Kernel, ..Config::default() };
    let unmapped = Config { max_shared: 0, ..Config::default() };
    for config in [&kernel, &unmapped] {
        let (a, b) = SeqPacket::pair_with(config).unwrap();
        let pool = SharedPool::new(4096, 16).unwrap();
        let mut all = chain(Writer::new(&heap), &bytes[..1_000]);
        all.concat(&mut chain(pool.writer(), &bytes[1_000..])).unwrap();
        assert_eq!(a.send_chain(b"+", all).unwrap(), 9_001);
        let mut buffer = vec![0; 10_000];
        let (received, pages) = b.recv_chain(&mut buffer).unwrap();
        assert_eq!((received.len, received.full, pages.len()), (9_001, 9_001, 0));
        assert!(buffer[0] == b'+' && buffer[1..9_001] == bytes);
        assert_eq!((a.stats().references_copied, a.stats().referenced, pool.lent()), (1, 0, 0));
        // This is too long for a copy, so all of it comes back.
        let large = SharedPool::new(8 << 20, 1).unwrap();
        assert_eq!(
            errno(a.send_loan(large.loan(8 << 20).unwrap())),
            (Errno::MSGSIZE.raw_os_error(), 8 << 20)
        );
    }
    // If a page of another pool is in front, it is copied and what follows is not. If it is behind,
    // everything is copied.
    let (a, b) = SeqPacket::pair().unwrap();
    let pool = SharedPool::new(4096, 16).unwrap();
    for pending in [true, false] {
        let (one, other) =
            (chain(Writer::new(&heap), &bytes[..1_000]), chain(pool.writer(), &bytes[1_000..]));
        let (mut all, mut then) = if pending { (one, other) } else { (other, one) };
        all.concat(&mut then).unwrap();
        let referenced = a.stats().referenced;
        a.send_chain(b"", all).unwrap();
        let mut buffer = vec![0; 10_000];
        let (received, pages) = b.recv_chain(&mut buffer).unwrap();
        assert_eq!((received.full, pages.len()), (9_000, if pending { 8_000 } else { 0 }));
        assert_eq!(a.stats().referenced - referenced, pages.len() as u64);
        assert!(if pending {
            buffer[..1_000] == bytes[..1_000] && contents(&pages) == bytes[1_000..]
        } else {
            buffer[..8_000] == bytes[1_000..] && buffer[8_000..9_000] == bytes[..1_000]
        });
    }
    // What was received by reference is passed on as a copy.
    let (c, d) = SeqPacket::pair().unwrap();
    a.send_chain(b"", chain(pool.writer(), &bytes)).unwrap();
    let (_, pages) = b.recv_chain(&mut []).unwrap();
    c.send_chain(b"", pages).unwrap();
    let mut buffer = vec![0; 10_000];
    assert_eq!(d.recv(&mut buffer).unwrap(), 9_000);
    assert!(buffer[..9_000] == bytes);
    home(&pool);
}

#[test]
fn what_cannot_be_sent_comes_back_whole() {
    let (a, b) = SeqPacket::pair().unwrap();
    let pool = SharedPool::new(4096, 600).unwrap();
    a.send_loan(loan(&pool, b"mine")).unwrap();
    // Another socket's pool.
    let (c, _d) = SeqPacket::pair().unwrap();
    assert_eq!(errno(c.send_loan(loan(&pool, b"his"))), (Errno::XDEV.raw_os_error(), 3));
    // These are too many parts.
    let parts = |n: usize| {
        let mut all = Chain::new();
        for _ in 0..n {
            all.concat(&mut Segment::from(loan(&pool, &[1; 10])).into_parts().0).unwrap();
        }
        all
    };
    let flags = SendFlags::DONTWAIT;
    assert_eq!(
        errno(a.send_chain_with_flags(b"head", parts(257), flags)),
        (Errno::MSGSIZE.raw_os_error(), 2_570)
    );
    // More pages than may be lent at once: none of them is lent.
    a.send_chain_with_flags(b"", parts(256), flags).unwrap();
    a.send_chain_with_flags(b"", parts(250), flags).unwrap();
    assert_eq!(pool.lent(), 507);
    assert_eq!(errno(a.send_chain_with_flags(b"", parts(6), flags)), (Errno::AGAIN.raw_os_error(), 60));
    assert_eq!(pool.lent(), 507);
    a.send_chain_with_flags(b"", parts(5), flags).unwrap();
    // All of them arrive, and all come back.
    let mut lens = Vec::new();
    let over = loop {
        match b.recv_chain_with_flags(&mut [], RecvFlags::DONTWAIT) {
            Ok((received, _)) => lens.push(received.full),
            Err(error) => break error,
        }
    };
    assert!(over.would_block(), "{over}");
    assert_eq!(lens, [4, 2_560, 2_500, 50]);
    home(&pool);
    a.send_chain_with_flags(b"", parts(200), flags).unwrap();
    // Stream records are split into parts anyway.
    let config = Config { records: Records::Stream, ..Config::default() };
    let (e, _f) = SeqPacket::pair_with(&config).unwrap();
    let other = SharedPool::new(4096, 1).unwrap();
    assert_eq!(errno(e.send_loan(loan(&other, b"x"))), (Errno::OPNOTSUPP.raw_os_error(), 1));
    drop(b);
    // A peer that leaves without reading everything causes one reset.
    let left = errno(a.send_chain_with_flags(b"", parts(1), flags));
    assert!(
        left == (Errno::CONNRESET.raw_os_error(), 10) || left == (Errno::PIPE.raw_os_error(), 10),
        "{left:?}"
    );
    assert_eq!(errno(a.send_chain_with_flags(b"", parts(1), flags)).0, Errno::PIPE.raw_os_error());
    while pool.lent() > 0 {
        pool.reclaim_within(20 * SECOND).unwrap();
    }
}

#[test]
fn each_send_is_told_once_that_its_pages_are_home() {
    let (a, b) = SeqPacket::pair().unwrap();
    let pool = SharedPool::new(4096, 16).unwrap();
    let heap = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
    let (context, mut queue) = Context::new();
    let mut lane = context.lane(LaneConfig::default()).unwrap();
    let told = |queue: &mut onecopy_chain::notify::Queue| {
        let mut told = Vec::new();
        queue.reap(|done| told.push((done.user_data, done.how.copied, done.how.dropped)));
        told
    };
    let send = |lane: &mut _, chain: Chain, user: u64| {
        let (len, mut segment) = (chain.len() as u32, Segment::from_parts(chain, None));
        onecopy_chain::notify::Lane::send(lane, &mut segment, user, len, 0).unwrap();
        a.send_chain(b"", segment).unwrap();
    };
    send(&mut lane, chain(pool.writer(), &[1; 9_000]), 1);
    assert_eq!(told(&mut queue), []);
    let (_, pages) = b.recv_chain(&mut []).unwrap();
    pool.reclaim().unwrap();
    assert_eq!(told(&mut queue), [], "before its last fragment is free");
    drop(pages);
    home(&pool);
    assert_eq!(told(&mut queue), [(1, false, false)]);
    send(&mut lane, chain(Writer::new(&heap), &[2; 100]), 2);
    assert_eq!(told(&mut queue), [(2, true, false)]);
    assert_eq!(b.recv(&mut [0; 200]).unwrap(), 100);
    // A send that is copied in part counts as copied.
    let mut all = chain(Writer::new(&heap), &[3; 100]);
    all.concat(&mut chain(pool.writer(), &[4; 100])).unwrap();
    send(&mut lane, all, 3);
    assert_eq!(b.recv(&mut [0; 200]).unwrap(), 200);
    home(&pool);
    assert_eq!(told(&mut queue), [(3, true, false)]);
    send(&mut lane, chain(pool.writer(), &[5; 100]), 4);
    drop(b);
    pool.reclaim_within(20 * SECOND).unwrap();
    assert_eq!(told(&mut queue), [(4, false, true)]);
}

#[test]
fn both_ways_between_threads_while_pages_are_few() {
    let (a, b) = SeqPacket::pair().unwrap();
    std::thread::scope(|scope| {
        let side = |socket: SeqPacket, seed: usize| {
            move || {
                let pool = SharedPool::new(4096, 4).unwrap();
                let mut head = [0; 16];
                for round in 0..500usize {
                    let bytes = pattern(seed + round, 1 + round % 4096);
                    let mut page = pool.loan_within(bytes.len(), 20 * SECOND).unwrap();
                    page.copy_from_slice(&bytes);
                    socket.send_chain(&round.to_le_bytes(), page).unwrap();
                    let (received, pages) = socket.recv_chain(&mut head).unwrap();
                    assert_eq!((received.len, &head[..8]), (8, &round.to_le_bytes()[..]));
                    assert!(contents(&pages) == pattern(1_000_000 - seed + round, 1 + round % 4096));
                }
                assert_eq!(socket.stats().references_copied, 0);
                socket
            }
        };
        let one = scope.spawn(side(a, 0));
        let other = scope.spawn(side(b, 1_000_000));
        let _both = (one.join().unwrap(), other.join().unwrap());
    });
}

/// What was told of a pool before the error is no record: nothing says that there is one.
#[test]
fn a_chain_that_is_too_much_leaves_nothing_to_be_received() {
    let (a, b) = SeqPacket::pair().unwrap();
    b.set_nonblocking(true).unwrap();
    let pool = SharedPool::new(4096, 4).unwrap();
    let one = chain(pool.writer(), &pattern(7, 4096));
    let mut many = Chain::new();
    for at in 0..257 {
        many.concat(&mut one.range(at * 2, 1).unwrap()).unwrap();
    }
    assert_eq!(errno(a.send_chain(b"", many)), (Errno::MSGSIZE.raw_os_error(), 257));
    let readable = || {
        let mut fds = [rustix::event::PollFd::new(&b, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0
    };
    assert!(!readable());
    assert_eq!(b.recv(&mut [0; 9]).unwrap_err().raw_os_error(), Errno::AGAIN.raw_os_error());
    assert!(!readable());
    a.send_chain(b"", one.range(5, 1).unwrap()).unwrap();
    assert!(readable());
    assert_eq!(b.recv(&mut [0; 9]).unwrap(), 1);
}

/// Of a pool that the peer maps no more, each part is copied, so that nothing limits how many there are.
#[test]
fn parts_of_one_pool_too_many_are_copied_and_not_counted() {
    let (a, b) = SeqPacket::pair().unwrap();
    let pools: Vec<SharedPool> = (0..16).map(|_| SharedPool::new(4096, 1).unwrap()).collect();
    for pool in &pools {
        a.send_loan(loan(pool, b"mine")).unwrap();
        assert_eq!(b.recv(&mut [0; 9]).unwrap(), 4);
    }
    let pool = SharedPool::new(4096, 1).unwrap();
    let bytes = pattern(3, 4096);
    let one = chain(pool.writer(), &bytes);
    let mut many = Chain::new();
    for at in 0..300 {
        many.concat(&mut one.range(at * 2, 1).unwrap()).unwrap();
    }
    assert_eq!(a.send_chain(b"", many).unwrap(), 300);
    let mut got = [0; 301];
    assert_eq!(b.recv(&mut got).unwrap(), 300);
    assert!(got[..300].iter().eq(bytes.iter().step_by(2).take(300)));
    assert_eq!((a.stats().references_copied, pool.lent()), (1, 0));
}
