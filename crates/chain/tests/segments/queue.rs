//! What a queue of segments does with kinds of memory, with little ones and with big ones.

use crate::memory::{PAGE, device, host, in_use};
use onecopy_chain::notify::{Config, Context, Fate, Segment, SegmentQueue};
use onecopy_chain::{Chain, ChainError, Checksum, Fragment, Kind, Writer};
use onecopy_pool::PagePool;

fn bytes(pool: &PagePool, bytes: &[u8]) -> Segment<Chain> {
    let mut chain = Chain::new();
    Writer::new(pool).append(&mut chain, bytes).unwrap();
    chain.into()
}

fn page(pool: &PagePool, len: usize) -> Segment<Chain> {
    Chain::from(Fragment::new(pool.alloc().unwrap(), 0, len).unwrap()).into()
}

#[test]
fn a_packet_ends_where_a_devices_memory_begins() {
    let (ours, gpu) = (host(4), device(1, 4, 0));
    let mut queue = SegmentQueue::new();
    queue.push(bytes(&ours, b"header: "));
    queue.push(page(&gpu, 4000));
    queue.push(page(&gpu, 2000));
    queue.push(bytes(&ours, b"trailer"));
    assert_eq!((queue.len(), queue.segments().count(), queue.true_size()), (6015, 3, 4 * PAGE as u64));
    let cut = |at, len| {
        let range = queue.range(at, len).unwrap();
        (range.payload().kind().unwrap(), range.payload().len())
    };
    assert_eq!(cut(0, 1460), (Kind::Host, 8));
    assert_eq!(cut(8, 1460), (Kind::Device, 1460));
    assert_eq!(cut(3008, 1460), (Kind::Device, 1460));
    assert_eq!(cut(5900, 115), (Kind::Device, 108));
    assert_eq!(cut(6008, 7), (Kind::Host, 7));
    assert_eq!(queue.range(6015, 0).unwrap().payload().len(), 0);
    assert_eq!(queue.range(6000, 16).unwrap_err(), ChainError::BeyondEnd { at: 6016, len: 6015 });
    assert_eq!(queue.range(u64::MAX, 1).map(drop).unwrap_err().errno(), rustix::io::Errno::INVAL);
    queue.advance(7000, Fate::Sent).unwrap_err();
    queue.advance(6000, Fate::Sent).unwrap();
    assert_eq!((queue.len(), in_use(&gpu)), (15, 1));
}

#[test]
fn what_is_written_bit_by_bit_shares_pages_until_somebody_holds_them() {
    let ours = host(16);
    let (mut queue, writer) = (SegmentQueue::new(), Writer::new(&ours));
    for _ in 0..10 {
        queue.write(&writer, &[1; 100]).unwrap();
    }
    assert_eq!((queue.len(), queue.true_size(), in_use(&ours)), (1000, PAGE as u64, 1));
    // Handed down: what lies behind it may be anybody's.
    let sent = queue.range(0, 1000).unwrap();
    queue.write(&writer, &[2; 100]).unwrap();
    queue.write(&writer, &[3; 100]).unwrap();
    assert_eq!((queue.true_size(), in_use(&ours)), (2 * PAGE as u64, 2));
    drop(sent);
    // Behind bytes that were lent nothing is written.
    queue.push(page(&ours, 100));
    let (context, _completions) = Context::new();
    let mut lane = context.lane(Config::default()).unwrap();
    let mut lent = page(&ours, 100);
    lane.send_there(&mut lent, 0, 0).unwrap();
    queue.push(lent);
    queue.write(&writer, &[4; 100]).unwrap();
    assert_eq!((queue.len(), in_use(&ours)), (1500, 5));
    let all: Vec<u8> =
        queue.segments().flat_map(|segment| segment.payload().host().unwrap().to_vec()).collect();
    assert_eq!((all[999], all[1000], all[1199], all[1400], all.len()), (1, 2, 3, 4, 1500));
}

#[test]
fn small_ones_become_one_and_large_ones_stay_apart() {
    let ours = host(1200);
    let mut queue = SegmentQueue::new();
    for _ in 0..1000 {
        queue.push(bytes(&ours, b"x"));
    }
    assert_eq!(queue.segments().count(), 1);
    assert_eq!(queue.true_size(), 1000 * PAGE as u64, "each came with a page of its own");
    queue.advance(999, Fate::Sent).unwrap();
    for _ in 0..100 {
        queue.push(page(&ours, 4000));
    }
    // 64 KiB are the most that is joined.
    assert_eq!(queue.segments().count(), (1 + 100 * 4000usize).div_ceil(16 * 4000));
    // One checksum to finish is each segment's own.
    let mut open = bytes(&ours, &[0; 40]);
    open.payload_mut().set_checksum(Checksum::Partial { start: 0, offset: 16 }).unwrap();
    let before = queue.segments().count();
    queue.push(open);
    queue.push(bytes(&ours, b"x"));
    assert_eq!(queue.segments().count(), before + 2);
    let first = queue.first().unwrap().payload().len();
    assert_eq!(queue.take(usize::MAX).unwrap().unwrap().payload().len(), first);
    queue.clear(Fate::Dropped);
    queue.rest();
    assert!(queue.take(usize::MAX).unwrap().is_none());
    assert_eq!((queue.len(), queue.true_size(), in_use(&ours)), (0, 0, 0));
}

#[test]
fn a_send_without_bytes_is_over_when_it_is_queued() {
    let (context, mut completions) = Context::new();
    let mut lane = context.lane(Config::default()).unwrap();
    let (mut queue, mut segment) = (SegmentQueue::new(), Segment::<Chain>::default());
    lane.send(&mut segment, 1, 0, 0).unwrap();
    queue.push(segment);
    let all = completions.reap_all();
    assert_eq!((all.len(), all[0].how.dropped, queue.is_empty()), (1, false, true));
}

#[test]
fn notifications_of_two_contexts_stay_two_segments() {
    let ours = host(4);
    let mut queue = SegmentQueue::new();
    let mut all = Vec::new();
    for number in 0..2 {
        let (context, completions) = Context::new();
        let mut lane = context.lane(Config::default()).unwrap();
        let mut segment = bytes(&ours, b"bytes");
        lane.send_there(&mut segment, number, 0).unwrap();
        queue.push(segment);
        all.push(completions);
    }
    assert_eq!(queue.segments().count(), 2);
    assert_eq!(queue.range(0, 10).unwrap().payload().len(), 5, "no packet has both");
    queue.advance(7, Fate::Sent).unwrap();
    assert_eq!(all.iter_mut().map(|queue| queue.reap(|_| ())).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn what_came_out_of_order_is_trimmed_joined_and_collapsed_where_it_can_be_read() {
    let (ours, gpu) = (host(100), device(1, 100, 0));
    // Blocks behind a hole: little packets, each in a page of its own.
    let mut block = SegmentQueue::new();
    for _ in 0..20 {
        block.push(bytes(&ours, &[7; 100]));
    }
    for _ in 0..20 {
        block.push(page(&gpu, 100));
    }
    assert_eq!((block.len(), block.true_size()), (4000, 40 * PAGE as u64));
    let freed = block.collapse(&Writer::new(&ours), u64::MAX).unwrap();
    assert_eq!(freed, 19 * PAGE as u64, "ours lie in one page now");
    assert_eq!((block.true_size(), in_use(&ours), in_use(&gpu)), (21 * PAGE as u64, 1, 20));
    // Nothing helps against what nobody can read but to let go of the last of it.
    block.truncate(3000, Fate::Sent).unwrap();
    assert_eq!((block.true_size(), in_use(&gpu)), (11 * PAGE as u64, 10));
    // The hole is filled, with some of what is there already.
    let mut first = bytes(&ours, &[5; 300]);
    first.truncate(250, Fate::Sent).unwrap();
    let mut received = SegmentQueue::new();
    received.push(first);
    received.append(&mut block);
    assert_eq!(
        (received.len(), block.len(), block.true_size(), received.segments().count()),
        (3250, 0, 0, 2)
    );
    let read = received.take(usize::MAX).unwrap().unwrap();
    assert_eq!(read.payload().host().unwrap().to_vec(), [[5; 250].as_slice(), &[7; 2000]].concat());
    drop((read, received));
    assert_eq!((in_use(&ours), in_use(&gpu)), (0, 0));
}

#[test]
fn collapsing_leaves_full_pages_where_they_lie_and_ends_when_it_is_enough() {
    let ours = host(200);
    let writer = Writer::new(&ours).copy_break(usize::MAX);
    let full = |byte: u8| bytes(&ours, &[byte; PAGE]);
    let mut queue = SegmentQueue::new();
    queue.push(full(1));
    queue.push(bytes(&ours, &[2; 10]));
    let first = queue.first().unwrap().payload().fragments().next().unwrap().page().clone();
    // All lies in as few pages as it can: nothing is copied.
    assert_eq!(queue.collapse(&writer, u64::MAX).unwrap(), 0);
    for byte in 3..6 {
        queue.push(full(byte));
        queue.push(bytes(&ours, &[byte + 10; 10]));
    }
    assert_eq!(queue.true_size(), 8 * PAGE as u64);
    assert_eq!(queue.collapse(&writer, u64::MAX).unwrap(), 3 * PAGE as u64);
    let after = queue.first().unwrap().payload();
    assert!(after.fragments().next().unwrap().page().is_same(&first), "the first one was full");
    let expected: Vec<u8> =
        [(1, PAGE), (2, 10), (3, PAGE), (13, 10), (4, PAGE), (14, 10), (5, PAGE), (15, 10)]
            .iter()
            .flat_map(|&(byte, len)| std::iter::repeat_n(byte, len))
            .collect();
    assert_eq!(after.host().unwrap().to_vec(), expected);
    // Of several segments only those that it takes.
    let mut queue = SegmentQueue::new();
    for byte in 0..4 {
        let mut long = Segment::default();
        (0..40).for_each(|_| long.concat(bytes(&ours, &[byte; 1000])).unwrap());
        queue.push(long);
    }
    assert_eq!(queue.segments().count(), 4);
    let sizes = |queue: &SegmentQueue| -> Vec<usize> {
        queue.segments().map(|segment| segment.payload().true_size() / PAGE).collect()
    };
    assert_eq!(sizes(&queue), [40; 4]);
    assert_eq!(queue.collapse(&writer, 31 * PAGE as u64).unwrap(), 60 * PAGE as u64);
    assert_eq!(sizes(&queue), [10, 10, 40, 40]);
    queue.collapse(&writer, u64::MAX).unwrap();
    assert_eq!((sizes(&queue), queue.true_size()), (vec![10; 4], 40 * PAGE as u64));
}
