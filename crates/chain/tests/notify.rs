//! Notifications case by case: order, errors, ranges, refusals, waiting and polling.
#![cfg(not(loom))]

use onecopy_chain::notify::{
    Completion, Config, Context, Fate, Lane, LazyLane, Limits, Queue, Range, Refused, Segment,
};
use std::time::Duration;

fn lane(capacity: u32) -> (Context, Lane, Queue) {
    let (context, queue) = Context::new();
    let lane = context.lane(Config { capacity, ..Config::default() }).unwrap();
    (context, lane, queue)
}

/// Of ten bytes each: three of the first lane, and one of the second.
fn four_sends() -> ([Lane; 2], Queue, [Segment<()>; 4]) {
    let (context, mut lane, queue) = lane(15);
    let mut other = context.lane(Config::default()).unwrap();
    let mut segments = [(); 4].map(|()| Segment::new(()));
    for (segment, number) in segments.iter_mut().zip(1..) {
        let lane = if number < 4 { &mut lane } else { &mut other };
        lane.send(segment, number, 10, 0).unwrap();
    }
    ([lane, other], queue, segments)
}

#[test]
fn completions_come_in_order_whatever_is_freed_first() {
    let (_context, mut lane, mut queue) = lane(15);
    let mut segments: Vec<Segment<()>> = Vec::new();
    for n in 0..3 {
        let mut segment = Segment::new(());
        for of in 0..2 {
            lane.send(&mut segment, n * 10 + of, 100, 0).unwrap();
        }
        segments.push(segment);
    }
    for segment in segments.drain(1..).rev() {
        segment.free(Fate::Sent);
        assert_eq!(queue.reap_all(), []);
    }
    segments.pop().unwrap().free(Fate::Copied);
    let all = queue.reap_all();
    assert_eq!(all.iter().map(|one| one.user_data).collect::<Vec<_>>(), [0, 1, 10, 11, 20, 21]);
    assert_eq!(
        all.iter().map(|one| one.how.copied).collect::<Vec<_>>(),
        [true, true, false, false, false, false]
    );
    assert!(all.iter().all(|one| one.bytes == 100 && !one.how.dropped));
}

#[test]
fn error_reset_cancel_and_close_all_give_exactly_one_notification() {
    let (_context, mut lane, mut queue) = lane(15);
    // An error before anything was linked.
    assert!(lane.open(1).unwrap().finish(Err::<(), _>("ENETUNREACH")).more);
    // An error after a part was.
    let mut segment = Segment::new(());
    let mut notif = lane.open(2).unwrap();
    notif.link(&mut lane, &mut segment, 7, 0).unwrap();
    assert!(notif.finish(Err::<(), _>("EPIPE")).more);
    // Cancelled after a part was linked.
    let mut notif = lane.open(3).unwrap();
    notif.link(&mut lane, &mut segment, 7, 0).unwrap();
    drop(notif);
    // Reset: the queue of segments is thrown away.
    let mut reset = Segment::new(());
    lane.send(&mut reset, 4, 7, 0).unwrap();
    // Closed with one under way.
    let mut late = Segment::new(());
    lane.send(&mut late, 5, 7, 0).unwrap();
    drop(lane);
    assert_eq!(queue.reap_all().iter().map(|one| one.user_data).collect::<Vec<_>>(), [1]);
    drop(reset);
    segment.free(Fate::Sent);
    late.free(Fate::Sent);
    let all: Vec<_> =
        queue.reap_all().iter().map(|one| (one.user_data, one.bytes, one.how.dropped)).collect();
    assert_eq!(all, [(2, 7, false), (3, 7, true), (4, 7, true), (5, 7, false)]);
    assert_eq!(queue.reap(|_| {}), 0);
}

#[test]
fn a_full_lane_refuses_and_loses_nothing() {
    let (_context, mut lane, mut queue) = lane(3);
    for n in 0..3 {
        lane.send(&mut Segment::new(()), n, 1, 0).unwrap();
    }
    assert_eq!(lane.send(&mut Segment::new(()), 9, 1, 0), Err(Refused::Full { capacity: 3 }));
    assert!(Refused::Full { capacity: 3 }.to_string().contains("reap the queue"));
    assert!(!Refused::Full { capacity: 3 }.wants_fresh_segment());
    assert_eq!(queue.reap_some(2, |_| {}), 2);
    for n in 3..5 {
        lane.send(&mut Segment::new(()), n, 1, 0).unwrap();
    }
    assert_eq!(lane.open(9).unwrap_err(), Refused::Full { capacity: 3 });
    assert_eq!(queue.reap_all().iter().map(|one| one.user_data).collect::<Vec<_>>(), [2, 3, 4]);
}

#[test]
fn use_after_close_is_refused() {
    let (context, mut lane, queue) = lane(3);
    lane.close();
    assert_eq!(lane.send(&mut Segment::new(()), 1, 1, 0), Err(Refused::Closed));
    let mut other = context.lane(Config::default()).unwrap();
    let mut under_way = Segment::new(());
    other.send(&mut under_way, 1, 1, 0).unwrap();
    drop(queue);
    assert_eq!(other.open(2).unwrap_err(), Refused::Closed);
    assert_eq!(context.lane(Config::default()).unwrap_err(), Refused::Closed);
    // What was under way is freed as ever; there is only nobody to tell.
    under_way.free(Fate::Sent);
}

#[test]
fn a_notification_of_another_context_is_refused() {
    let (_a, mut ours, mut ours_queue) = lane(3);
    let (_b, mut theirs, _their_queue) = lane(3);
    let mut segment = Segment::new(());
    theirs.send(&mut segment, 1, 1, 0).unwrap();
    let why = ours.send(&mut segment, 2, 1, 0).unwrap_err();
    assert_eq!(why, Refused::Foreign);
    assert!(why.wants_fresh_segment());
    let mut fresh = Segment::new(());
    ours.send(&mut fresh, 2, 1, 0).unwrap();
    assert!(fresh.join(segment, |(), ()| Ok(())).is_err_and(|(_, why)| why == Refused::Foreign));
    drop(fresh);
    assert_eq!(ours_queue.reap_all().len(), 1);
}

#[test]
fn bytes_sends_and_age_bound_a_segment() {
    let (context, mut queue) = Context::new();
    let limits = Limits { bytes: 1000, sends: 3, age: Duration::from_micros(5) };
    let mut lane = context.lane(Config { capacity: 15, limits }).unwrap();
    let mut segment = Segment::new(());
    // A single send may be larger.
    lane.send(&mut segment, 1, 5000, 0).unwrap();
    assert_eq!(lane.send(&mut segment, 2, 1, 0), Err(Refused::Bytes { would_be: 5001, limit: 1000 }));
    segment = Segment::new(());
    for n in 2..=4 {
        lane.send(&mut segment, n, 10, 1_000_000).unwrap();
    }
    assert_eq!(lane.send(&mut segment, 5, 10, 1_000_000), Err(Refused::Sends { limit: 3 }));
    segment = Segment::new(());
    lane.send(&mut segment, 5, 10, 1_000_000).unwrap();
    assert_eq!(lane.send(&mut segment, 6, 10, 1_006_000), Err(Refused::Age { age: 6000 }));
    drop(segment);
    assert_eq!(queue.reap_all().len(), 5);
}

#[test]
fn two_segments_with_notifications_are_joined() {
    let (_lanes, mut queue, [mut a, b, c, d]) = four_sends();
    // Neighbours; one that leaves a gap; one of another socket.
    let append = |(): &mut (), ()| Ok(());
    a.join(c, append).unwrap();
    a.join(d, append).unwrap();
    assert_eq!(a.notif().unwrap().sends(), 3);
    b.free(Fate::Copied);
    assert_eq!(queue.reap(|_| {}), 0);
    a.free(Fate::Sent);
    let mut all: Vec<_> =
        queue.reap_all().iter().map(|one| (one.lane, one.user_data, one.how.copied)).collect();
    all.sort_unstable();
    assert_eq!(all, [(0, 1, false), (0, 2, true), (0, 3, false), (1, 4, false)]);
}

#[test]
fn a_split_is_exact_where_bytes_do_not_follow_each_other() {
    let ([_, mut other], mut queue, [mut a, b, c, mut d]) = four_sends();
    other.send(&mut d, 5, 0, 0).unwrap();
    let append = |(): &mut (), ()| Ok(());
    // As a segment: 1, 3, 4, the empty 5, and 2.
    for back in [c, d, b] {
        a.join(back, append).unwrap();
    }
    let mut reaped = || {
        let mut all: Vec<_> = queue.reap_all().iter().map(|one| (one.user_data, one.how.copied)).collect();
        all.sort_unstable();
        all
    };
    let last = a.split_off(30, |()| ());
    let middle = a.split_off(15, |()| ());
    assert_eq!([&a, &middle, &last].map(|part| part.notif().unwrap().sends()), [2, 3, 1]);
    assert_eq!([&a, &middle, &last].map(|part| part.notif().unwrap().bytes()), [15, 15, 10]);
    a.free(Fate::Copied);
    assert_eq!(reaped(), [(1, true)]);
    middle.free(Fate::Sent);
    assert_eq!(reaped(), [(4, false), (5, false)], "2 is to come before 3");
    last.free(Fate::Sent);
    assert_eq!(reaped(), [(2, false), (3, true)]);
}

#[test]
fn a_send_without_bytes_where_a_segment_is_split_stays_in_front() {
    let (_context, mut lane, mut queue) = lane(15);
    for (at, front_has, back_has) in [(0, 1, 3), (10, 3, 1), (20, 4, 0)] {
        let mut front: Segment<()> = Segment::default();
        for bytes in [0, 10, 0, 10] {
            lane.send(&mut front, 0, bytes, 0).unwrap();
        }
        let back = front.split_off(at, |()| ());
        let sends = |part: &Segment<()>| part.notif().map_or(0, |notif| notif.sends());
        assert_eq!((sends(&front), sends(&back)), (front_has, back_has), "at {at}");
        front.free(Fate::Sent);
        assert_eq!(queue.reap(|_| {}) as u64, front_has);
        back.free(Fate::Sent);
        assert_eq!(queue.reap(|_| {}) as u64, back_has);
    }
}

#[test]
fn a_train_of_datagrams_stacks() {
    // The payload is a train: each datagram keeps its borders, and all of them one reference.
    let (_context, mut lane, mut queue) = lane(63);
    let mut train: Segment<Vec<Vec<u8>>> = Segment::default();
    for n in 0..32 {
        lane.send(&mut train, n, 1200, 0).unwrap();
        train.payload_mut().push(vec![0; 1200]);
    }
    let back = train.split_off(1200 * 8, |payload| payload.split_off(8));
    train.free(Fate::Sent);
    assert_eq!(queue.reap(|_| {}), 8);
    assert_eq!(back.payload().len(), 24);
    back.free(Fate::Copied);
    assert!(queue.reap_all().iter().all(|one| one.how.copied && one.bytes == 1200));
}

#[test]
fn ranges_are_merged_and_keep_the_copied_bit() {
    let (_context, mut lane, mut queue) = lane(15);
    for n in 0..6 {
        let mut segment = Segment::new(());
        lane.send(&mut segment, n, 10, 0).unwrap();
        segment.free(if n == 3 { Fate::Copied } else { Fate::Sent });
    }
    let mut ranges = Vec::new();
    assert_eq!(queue.reap_ranges(|range| ranges.push(range)), 6);
    let range =
        |lo, hi, bytes, copied| Range { lane: 0, lo, hi, bytes, copied, unknown: false, dropped: false };
    assert_eq!(ranges, [range(0, 2, 30, false), range(3, 3, 10, true), range(4, 5, 20, false)]);
}

#[test]
fn what_is_not_known_to_be_copied_is_said_and_not_merged() {
    let (_context, mut lane, mut queue) = lane(15);
    for (n, fates) in [
        [Fate::Unknown, Fate::Unknown],
        [Fate::Unknown, Fate::Sent],
        [Fate::Unknown, Fate::Copied],
        [Fate::Sent, Fate::Sent],
        [Fate::Unknown, Fate::Dropped],
    ]
    .into_iter()
    .enumerate()
    {
        let mut segment = Segment::new(());
        lane.send(&mut segment, n as u64, 8, 0).unwrap();
        let back = segment.split_off(4, |()| ());
        segment.free(fates[0]);
        back.free(fates[1]);
    }
    let mut ranges = Vec::new();
    assert_eq!(
        queue.reap_ranges(|range| ranges.push((
            range.lo,
            range.hi,
            range.copied,
            range.unknown,
            range.dropped
        ))),
        5
    );
    // Of a send one of whose parts was copied it is known.
    let expected = [
        (0, 1, false, true, false),
        (2, 2, true, false, false),
        (3, 3, false, false, false),
        (4, 4, false, true, true),
    ];
    assert_eq!(ranges, expected);
}

#[test]
fn ranges_have_the_caps_of_msg_zerocopy() {
    let (_context, mut lane, mut queue) = lane(1 << 17);
    let mut ranges = Vec::new();
    let mut reaped = |queue: &mut Queue| {
        ranges.clear();
        queue.reap_ranges(|range| ranges.push((range.sends(), range.bytes)));
        ranges.clone()
    };
    for n in 0..70_000 {
        let mut segment = Segment::new(());
        lane.send(&mut segment, n, 0, 0).unwrap();
    }
    assert_eq!(reaped(&mut queue), [(65534, 0), (70_000 - 65534, 0)]);
    for bytes in [300 << 10, 300 << 10, 100 << 10, 600 << 10] {
        lane.send(&mut Segment::new(()), 0, bytes, 0).unwrap();
    }
    assert_eq!(reaped(&mut queue), [(1, 300 << 10), (2, 400 << 10), (1, 600 << 10)]);
}

#[test]
fn a_closed_lane_leaves_its_number_to_another() {
    let (context, mut lane, mut queue) = lane(3);
    let mut segment = Segment::new(());
    lane.send(&mut segment, 1, 1, 0).unwrap();
    drop(lane);
    assert_eq!(queue.reap(|_| {}), 0);
    assert_eq!(context.lane(Config::default()).unwrap().index(), 1, "sends of lane 0 are under way");
    segment.free(Fate::Sent);
    assert_eq!(queue.reap_all().len(), 1);
    queue.reap(|_| {});
    let numbers = [(); 2].map(|()| context.lane(Config::default()).unwrap());
    let mut numbers = numbers.map(|lane| lane.index());
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1]);
}

#[test]
fn a_lane_is_made_with_the_first_send_and_given_up_when_idle() {
    let (context, mut queue) = Context::new();
    let config = Config { capacity: 3, ..Config::default() };
    let (mut lazy, mut idle) = (LazyLane::new(), LazyLane::new());
    assert!(lazy.made().is_none() && idle.rest());
    for round in 0..3 {
        let mut segment = Segment::new(());
        let id = lazy.get(&context, config).unwrap().send(&mut segment, round, 1, 0).unwrap();
        assert_eq!((id, lazy.made().unwrap().index()), (0, 0), "the number is free again");
        assert!(!lazy.rest(), "a send is under way");
        segment.free(Fate::Sent);
        assert!(!lazy.rest(), "its completion is not reaped");
        assert_eq!(queue.reap_all().iter().map(|one| one.user_data).collect::<Vec<_>>(), [round]);
        assert!(lazy.rest() && lazy.made().is_none());
        // The queue learns that the lane is over.
        assert_eq!(queue.reap(|_| {}), 0);
    }
    drop(queue);
    assert_eq!(idle.get(&context, config).unwrap_err(), Refused::Closed);
}

#[test]
fn a_panic_while_reaping_loses_only_what_was_given() {
    let (_context, mut lane, mut queue) = lane(7);
    let mut segment = Segment::new(());
    for n in 0..4 {
        lane.send(&mut segment, n, 1, 0).unwrap();
    }
    segment.free(Fate::Sent);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        queue.reap(|one| assert!(one.user_data < 1));
    }));
    assert!(caught.is_err());
    assert_eq!(queue.reap_all().iter().map(|one| one.user_data).collect::<Vec<_>>(), [2, 3]);
}

fn is_readable(fd: &impl std::os::fd::AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

#[test]
fn the_descriptor_is_readable_just_while_completions_wait() {
    let (_context, mut lane, mut queue) = lane(63);
    let mut send = |n| lane.send(&mut Segment::new(()), n, 1, 0).map(drop).unwrap();
    // There before it was asked for.
    send(0);
    let fd = queue.fd().unwrap().try_clone_to_owned().unwrap();
    assert!(is_readable(&fd));
    assert_eq!(queue.reap(|_| {}), 1);
    assert_eq!(queue.reap(|_| {}), 0);
    assert!(!is_readable(&fd), "nothing waits");
    for round in 0..3 {
        for n in 0..4 {
            send(n);
            assert!(is_readable(&fd), "round {round}");
        }
        assert_eq!(queue.reap_some(1, |_| {}), 1);
        assert!(is_readable(&fd), "three still wait");
        assert_eq!(queue.reap(|_| {}), 3);
        send(9);
        assert!(is_readable(&fd), "one came before the queue was seen empty");
        assert_eq!(queue.reap(|_| {}), 1);
        assert_eq!(queue.reap(|_| {}), 0);
        assert!(!is_readable(&fd));
    }
}

#[test]
fn a_thread_sleeps_until_a_completion_comes() {
    let (_context, mut lane, mut queue) = lane(63);
    assert!(!queue.wait(Some(Duration::from_millis(2))), "nothing was sent");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..200u64 {
                if n.is_multiple_of(20) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                while lane.send(&mut Segment::new(()), n, 1, 0).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        let mut seen = Vec::new();
        while seen.len() < 200 {
            assert!(queue.wait(Some(Duration::from_secs(20))), "asleep over {} completions", seen.len());
            queue.reap(|one: Completion| seen.push(one.user_data));
        }
        assert!(seen.into_iter().eq(0..200));
    });
}

#[test]
fn a_send_of_more_than_a_completion_can_tell_is_refused() {
    let (context, mut queue) = Context::new();
    let limits = Limits { bytes: u32::MAX, ..Limits::default() };
    let mut lane = context.lane(Config { capacity: 7, limits }).unwrap();
    let (mut one, mut two) = (Segment::new(()), Segment::new(()));
    let mut big = lane.open(1).unwrap();
    big.link(&mut lane, &mut one, 1 << 31, 0).unwrap();
    let refused = big.link(&mut lane, &mut two, 1 << 31, 0).unwrap_err();
    assert_eq!(refused, Refused::TooLong { would_be: 1 << 32 });
    assert!(!refused.wants_fresh_segment() && refused.to_string().contains("make it several"));
    assert!(two.notif().is_none(), "nothing was done");
    big.link(&mut lane, &mut two, (1 << 31) - 1, 0).unwrap();
    assert!(big.finish(Ok::<_, ()>(())).more);
    // The lane's position has wrapped: what is stacked behind is told apart all the same.
    lane.send(&mut one, 2, 100, 0).unwrap();
    lane.send(&mut two, 3, 7, 0).unwrap();
    for segment in [one, two] {
        segment.free(Fate::Sent);
    }
    let bytes: Vec<u32> = queue.reap_all().iter().map(|done| done.bytes).collect();
    assert_eq!(bytes, [u32::MAX, 100, 7]);
}

#[test]
fn a_kept_segment_says_when_it_is_due() {
    let (context, _queue) = Context::new();
    let limits = Limits { age: Duration::from_nanos(500), ..Limits::default() };
    let mut lane = context.lane(Config { capacity: 7, limits }).unwrap();
    let mut segment = Segment::new(());
    assert_eq!(lane.due(&segment), None);
    lane.send(&mut segment, 1, 1, 1000).unwrap();
    lane.send(&mut segment, 2, 1, 1400).unwrap();
    assert_eq!(lane.due(&segment), Some(1500), "the first send's");
    assert_eq!(lane.send(&mut segment, 3, 1, 1501), Err(Refused::Age { age: 501 }));
    // Joined, the older one counts.
    let mut older = Segment::new(());
    lane.send(&mut older, 3, 1, 900).unwrap();
    segment.join(older, |(), ()| Ok(())).unwrap();
    assert_eq!(lane.due(&segment), Some(1400));
}
