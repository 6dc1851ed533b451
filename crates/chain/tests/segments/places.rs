//! A reference lies where the bytes of its sends lie.

use crate::memory::device;
use onecopy_chain::notify::{Config, Context, Fate, Lane, Lender, Queue, Refused, Segment};
use onecopy_chain::{Chain, Fragment, Writer};
use onecopy_pool::{PagePool, PoolConfig, provider::Heap};

fn pool() -> PagePool {
    PagePool::new(PoolConfig::new(), Heap::new()).unwrap()
}

fn lane() -> (Lane, Queue) {
    let (context, queue) = Context::new();
    (context.lane(Config::default()).unwrap(), queue)
}

fn reaped(queue: &mut Queue) -> Vec<u64> {
    let mut all = Vec::new();
    queue.reap(|one| {
        assert!(!one.how.dropped && !one.how.copied);
        all.push(one.user_data);
    });
    all
}

/// Bytes that were copied and that nobody waits for.
fn copied(segment: &mut Segment<Chain>, pool: &PagePool, bytes: usize) {
    Writer::new(pool).append(segment.payload_mut(), &vec![b'c'; bytes]).unwrap();
}

/// A send of so many bytes by reference.
fn lent(segment: &mut Segment<Chain>, pool: &PagePool, lane: &mut Lane, number: u64, bytes: usize) {
    lane.send(segment, number, bytes as u32, 0).unwrap();
    segment.payload_mut().append(Fragment::new(pool.alloc().unwrap(), 0, bytes).unwrap()).unwrap();
}

#[test]
fn lent_bytes_behind_copied_ones_wait_for_their_own_ack() {
    let (pool, (mut lane, mut queue)) = (pool(), lane());
    let mut segment = Segment::default();
    copied(&mut segment, &pool, 1000);
    lent(&mut segment, &pool, &mut lane, 1, 1000);
    // The ACK covers the copied bytes alone.
    let rest = segment.divide(1000).unwrap();
    segment.free(Fate::Sent);
    assert_eq!(reaped(&mut queue), [], "the lent bytes are not acknowledged");
    rest.free(Fate::Sent);
    assert_eq!(reaped(&mut queue), [1]);
}

#[test]
fn a_loan_behind_copied_bytes_waits_for_its_own_ack() {
    let pool = pool();
    let mut lender = Lender::new(Config::default()).unwrap();
    let mut segment = Segment::default();
    copied(&mut segment, &pool, 5000);
    let loan = lender.send(&mut segment, pool.alloc().unwrap(), 0).unwrap();
    let rest = segment.divide(5000).unwrap();
    segment.free(Fate::Sent);
    let loan = loan.try_take().expect_err("its bytes are not acknowledged");
    rest.free(Fate::Sent);
    assert!(loan.try_take().unwrap().0.is_unique());
}

#[test]
fn an_ack_anywhere_frees_just_the_sends_before_it() {
    // Copied 100, lent 1 (200), copied 50, lent 2 (100), lent 3 (100), copied 10.
    let build = |pool: &PagePool, lane: &mut Lane| {
        let mut segment = Segment::default();
        copied(&mut segment, pool, 100);
        lent(&mut segment, pool, lane, 1, 200);
        copied(&mut segment, pool, 50);
        lent(&mut segment, pool, lane, 2, 100);
        lent(&mut segment, pool, lane, 3, 100);
        copied(&mut segment, pool, 10);
        segment
    };
    for ack in 0..=560 {
        let (pool, (mut lane, mut queue)) = (pool(), lane());
        let mut segment = build(&pool, &mut lane);
        assert_eq!(segment.notif().unwrap().bytes(), 400);
        segment.advance(ack, Fate::Sent).unwrap();
        let done = [(1, 300), (2, 450), (3, 550)].into_iter().filter(|(_, end)| *end <= ack);
        let done: Vec<u64> = done.map(|(number, _)| number).collect();
        assert_eq!(reaped(&mut queue), done, "after {ack} bytes");
        // The rest in two more steps, as another ACK and the last one.
        let left = segment.payload().len();
        segment.advance(left / 2, Fate::Sent).unwrap();
        segment.advance(left - left / 2, Fate::Sent).unwrap();
        assert!(segment.payload().is_empty() && segment.notif().is_none());
        assert_eq!(reaped(&mut queue), (done.len() as u64 + 1..=3).collect::<Vec<_>>(), "after {ack} bytes");
    }
}

#[test]
fn a_joined_segment_knows_the_places_of_both() {
    let (pool, (mut lane, mut queue)) = (pool(), lane());
    let (mut front, mut back) = (Segment::default(), Segment::default());
    copied(&mut front, &pool, 70);
    copied(&mut back, &pool, 30);
    lent(&mut back, &pool, &mut lane, 1, 10);
    // One that holds nothing in front of one that does, and then the other way round.
    front.concat(back).unwrap();
    let mut tail = Segment::default();
    copied(&mut tail, &pool, 5);
    lent(&mut tail, &pool, &mut lane, 2, 10);
    copied(&mut front, &pool, 5);
    front.concat(tail).unwrap();
    assert_eq!(front.payload().len(), 130);
    for (ack, done) in [(109, vec![]), (1, vec![1]), (19, vec![]), (1, vec![2])] {
        front.advance(ack, Fate::Sent).unwrap();
        assert_eq!(reaped(&mut queue), done);
    }
}

#[test]
fn who_puts_the_bytes_first_says_where_they_are() {
    let (pool, (mut lane, mut queue)) = (pool(), lane());
    let mut segment: Segment<Chain> = Segment::default();
    for number in 0..2 {
        copied(&mut segment, &pool, 100);
        let at = segment.payload().len();
        segment.payload_mut().append(Fragment::new(pool.alloc().unwrap(), 0, 100).unwrap()).unwrap();
        lane.send_at(&mut segment, at as u32, number, 100, 0).unwrap();
    }
    segment.advance(300, Fate::Sent).unwrap();
    assert_eq!(reaped(&mut queue), [0]);
    segment.advance(100, Fate::Sent).unwrap();
    assert_eq!(reaped(&mut queue), [1]);
}

#[test]
fn bytes_that_are_there_are_one_send_and_a_wrong_word_completes_nothing_early() {
    let (pool, (mut lane, mut queue)) = (pool(), lane());
    let mut segment: Segment<Chain> = Segment::default();
    for number in 0..2 {
        segment.payload_mut().append(Fragment::new(pool.alloc().unwrap(), 0, 100).unwrap()).unwrap();
        lane.send_there(&mut segment, number, 0).unwrap();
    }
    segment.advance(150, Fate::Sent).unwrap();
    assert_eq!(reaped(&mut queue), [0]);
    segment.advance(50, Fate::Sent).unwrap();
    assert_eq!(reaped(&mut queue), [1]);
    // It is to be said before the bytes are put there. Said behind that, no part knows its sends: all hold all.
    segment.payload_mut().append(Fragment::new(pool.alloc().unwrap(), 0, 100).unwrap()).unwrap();
    lane.send(&mut segment, 2, 100, 0).unwrap();
    let again = segment.range(0, 10).unwrap();
    segment.advance(100, Fate::Sent).unwrap();
    segment.free(Fate::Sent);
    assert_eq!(reaped(&mut queue), []);
    again.free(Fate::Sent);
    assert_eq!(reaped(&mut queue), [2]);
}

#[test]
fn a_range_that_is_sent_again_keeps_its_sends_and_no_others() {
    let (pool, (mut lane, mut queue)) = (pool(), lane());
    let mut segment = Segment::default();
    copied(&mut segment, &pool, 100);
    for number in 1..=3 {
        lent(&mut segment, &pool, &mut lane, number, 100);
    }
    // Half of the copied bytes: holds nothing. The end of the first one and the beginning of the second. All of the third.
    let nothing = segment.range(0, 50).unwrap();
    assert!(nothing.notif().is_none());
    let lost = segment.range(150, 100).unwrap();
    assert_eq!(lost.notif().map(|notif| (notif.sends(), notif.bytes())), Some((2, 100)));
    let last = segment.range(300, 100).unwrap();
    // All is acknowledged, while what was sent again still waits in the link's queue.
    segment.advance(400, Fate::Sent).unwrap();
    assert_eq!(reaped(&mut queue), []);
    // Never transmitted, and nobody says so: the bytes were acknowledged.
    drop(lost);
    assert_eq!(reaped(&mut queue), [1, 2]);
    last.free(Fate::Copied);
    let mut how = Vec::new();
    queue.reap(|one| how.push((one.user_data, one.how.copied, one.how.dropped)));
    assert_eq!(how, [(3, true, false)]);
}

#[test]
fn a_range_of_a_range_and_its_halves() {
    let (pool, (mut lane, mut queue)) = (pool(), lane());
    let mut segment = Segment::default();
    for number in 0..8 {
        lent(&mut segment, &pool, &mut lane, number, 100);
        copied(&mut segment, &pool, 100);
    }
    // A super-segment, cut to packets of 150 bytes.
    let whole = segment.range(50, 1400).unwrap();
    let packets: Vec<_> =
        (0..1400).step_by(150).map(|at| whole.range(at, 150.min(1400 - at)).unwrap()).collect();
    drop(whole);
    segment.free(Fate::Sent);
    for (packet, until) in packets.into_iter().zip([1, 2, 3, 3, 4, 5, 6, 6, 7, 8]) {
        packet.free(Fate::Sent);
        let (before, after) = (lane.outstanding(), {
            queue.reap(|_| ());
            lane.outstanding()
        });
        assert!(after <= before && 8 - after <= until, "{} of {until} are complete", 8 - after);
    }
    assert_eq!(lane.outstanding(), 0);
}

#[test]
fn what_is_cut_off_says_what_became_of_it() {
    let (pool, (mut lane, mut queue)) = (pool(), lane());
    let mut segment = Segment::default();
    copied(&mut segment, &pool, 100);
    lent(&mut segment, &pool, &mut lane, 1, 100);
    lent(&mut segment, &pool, &mut lane, 2, 100);
    assert!(segment.advance(301, Fate::Sent).is_err() && segment.range(0, 301).is_err());
    segment.truncate(200, Fate::Dropped).unwrap();
    segment.truncate(500, Fate::Dropped).unwrap();
    segment.advance(200, Fate::Sent).unwrap();
    let mut how = Vec::new();
    queue.reap(|one| how.push((one.user_data, one.how.dropped)));
    assert_eq!(how, [(1, false), (2, true)]);
}

#[test]
fn a_send_waits_for_room_and_is_finished_elsewhere() {
    let (pool, (mut lane, mut queue)) = (pool(), lane());
    let mut first: Segment<Chain> = Segment::default();
    copied(&mut first, &pool, 10);
    let mut notif = lane.open(7).unwrap();
    notif.link(&mut lane, &mut first, 100, 0).unwrap();
    first.payload_mut().append(Fragment::new(pool.alloc().unwrap(), 0, 100).unwrap()).unwrap();
    // The socket's other work goes on meanwhile, and the first part is acknowledged.
    first.advance(110, Fate::Sent).unwrap();
    let mut second: Segment<Chain> = Segment::default();
    notif.link(&mut lane, &mut second, 50, 0).unwrap();
    second.payload_mut().append(Fragment::new(pool.alloc().unwrap(), 0, 50).unwrap()).unwrap();
    assert_eq!((notif.id(), notif.bytes()), (0, 150));
    second.free(Fate::Sent);
    assert_eq!(reaped(&mut queue), [], "it is not finished");
    // Another send came between: this one gets no more bytes.
    let mut other = Segment::default();
    lent(&mut other, &pool, &mut lane, 8, 10);
    let refused = notif.link(&mut lane, &mut other, 1, 0).unwrap_err();
    assert_eq!(refused, onecopy_chain::notify::Refused::Passed { id: 0, next: 2 });
    assert!(!refused.wants_fresh_segment() && refused.to_string().contains("open another"));
    drop(lane);
    std::thread::spawn(move || assert!(notif.finish(Ok::<_, ()>(150)).more)).join().unwrap();
    other.free(Fate::Sent);
    assert_eq!(reaped(&mut queue), [7, 8]);
}

/// Number, whether it was copied, whether it was dropped.
fn told(queue: &mut Queue) -> Vec<(u64, bool, bool)> {
    let mut all = Vec::new();
    queue.reap(|one| all.push((one.user_data, one.how.copied, one.how.dropped)));
    all
}

#[test]
fn what_is_known_of_one_half_is_not_said_of_the_other() {
    let pool = pool();
    for copied_is_first in [true, false] {
        let (mut lane, mut queue) = lane();
        let (mut front, mut back) = (Segment::default(), Segment::default());
        lent(&mut front, &pool, &mut lane, 1, 100);
        lent(&mut back, &pool, &mut lane, 2, 100);
        let [first, second] =
            if copied_is_first { [Fate::Copied, Fate::Sent] } else { [Fate::Sent, Fate::Copied] };
        front.set_fate(first);
        back.set_fate(second);
        // Handed on to somebody who gathers them, and drops them.
        front.concat(back).unwrap();
        drop(front);
        assert_eq!(told(&mut queue), [(1, copied_is_first, false), (2, !copied_is_first, false)]);
    }
}

#[test]
fn a_buffer_that_does_not_fit_takes_no_place() {
    let (ours, gpu) = (pool(), device(1, 4, 0));
    let mut lender = Lender::new(Config::default()).unwrap();
    let mut segment = Segment::default();
    // A device's page joins no copied bytes. What is sent behind that lies where it lies.
    copied(&mut segment, &ours, 10);
    let refused = lender.send(&mut segment, gpu.alloc().unwrap(), 0).unwrap_err();
    assert_eq!(refused.why, Refused::Payload);
    assert_eq!(segment.notif().unwrap().bytes(), 0);
    let first = lender.send(&mut segment, ours.alloc().unwrap(), 0).unwrap();
    let second = lender.send(&mut segment, ours.alloc().unwrap(), 0).unwrap();
    let rest = segment.divide(10 + 4096).unwrap();
    segment.free(Fate::Copied);
    let (page, how) = first.try_take().expect("all of its bytes are free");
    assert!(page.is_unique() && how.copied && !how.dropped);
    let second = second.try_take().expect_err("none of its bytes is");
    rest.free(Fate::Sent);
    let (page, how) = second.try_take().unwrap();
    assert!(page.is_unique() && !how.copied && !how.dropped);
}

#[test]
fn places_that_are_lost_once_are_never_found_again() {
    let (pool, (context, mut queue)) = (pool(), Context::new());
    let (mut one, mut two) =
        (context.lane(Config::default()).unwrap(), context.lane(Config::default()).unwrap());
    let page = |len| Fragment::new(pool.alloc().unwrap(), 0, len).unwrap();
    let mut segment: Segment<Chain> = Segment::default();
    one.send(&mut segment, 1, 100, 0).unwrap();
    segment.payload_mut().append(page(100)).unwrap();
    // Somebody takes bytes away behind its back. What is joined then lies elsewhere than the segment would count.
    segment.payload_mut().truncate(40).unwrap();
    let mut behind = Segment::default();
    lent(&mut behind, &pool, &mut two, 2, 100);
    segment.concat(behind).unwrap();
    copied(&mut segment, &pool, 60);
    // All of the second send's bytes are from 40 on.
    let again = segment.range(40, 60).unwrap();
    segment.free(Fate::Sent);
    assert_eq!(told(&mut queue), [], "its bytes are on their way");
    again.free(Fate::Sent);
    assert_eq!(told(&mut queue).len(), 2);
    // The same of a part that was cut off.
    let mut segment: Segment<Chain> = Segment::default();
    one.send(&mut segment, 3, 100, 0).unwrap();
    segment.payload_mut().append(page(100)).unwrap();
    segment.payload_mut().advance(50).unwrap();
    let mut rest = segment.divide(10).unwrap();
    copied(&mut rest, &pool, 60);
    assert_eq!(rest.payload().len(), 100);
    let end = rest.divide(30).unwrap();
    segment.free(Fate::Sent);
    end.free(Fate::Sent);
    assert_eq!(told(&mut queue), [], "30 bytes are left");
    rest.free(Fate::Sent);
    assert_eq!(told(&mut queue), [(3, false, false)]);
}

#[test]
fn a_part_of_a_segment_without_places_says_nothing_unless_told() {
    let (pool, (mut lane, mut queue)) = (pool(), lane());
    let mut segment: Segment<Chain> = Segment::default();
    segment.payload_mut().append(Fragment::new(pool.alloc().unwrap(), 0, 100).unwrap()).unwrap();
    lane.send(&mut segment, 1, 100, 0).unwrap();
    drop(segment.range(0, 10).unwrap());
    segment.advance(100, Fate::Sent).unwrap();
    assert_eq!(told(&mut queue), [(1, false, false)], "it is all acknowledged");
    assert!(segment.notif().is_none());
}

#[test]
fn bytes_that_a_send_puts_are_its_own_whatever_it_said() {
    let (pool, (mut lane, mut queue)) = (pool(), lane());
    let page = |len| Fragment::new(pool.alloc().unwrap(), 0, len).unwrap();
    let mut segment: Segment<Chain> = Segment::default();
    copied(&mut segment, &pool, 100);
    // As many as were said, more, fewer, none.
    for (number, said, there) in [(0, 100, 100), (1, 10, 100), (2, 100, 10), (3, 100, 0), (4, 50, 50)] {
        let put = |chain: &mut Chain| there > 0 && chain.append(page(there)).is_ok();
        assert_eq!(lane.put(&mut segment, number, said, 0, put), Ok(number));
    }
    copied(&mut segment, &pool, 100);
    assert_eq!((segment.payload().len(), segment.notif().unwrap().bytes()), (460, 260));
    for (ack, done) in [(199, 0), (1, 1), (99, 1), (1, 2), (9, 2), (1, 4), (49, 4), (1, 5), (100, 5)] {
        segment.advance(ack, Fate::Sent).unwrap();
        queue.reap(|one| {
            let bytes = [100, 100, 10, 0, 50][one.id as usize];
            assert_eq!((one.bytes, one.how.dropped, one.how.copied), (bytes, one.id == 3, false));
        });
        assert_eq!(lane.sends() - lane.outstanding(), done);
    }
    // A send that is refused puts nothing.
    lane.close();
    assert_eq!(lane.put(&mut segment, 9, 1, 0, |_| panic!("closed")), Err(Refused::Closed));
}

#[test]
fn bytes_that_are_there_are_none_that_are_still_to_come() {
    let (pool, (context, mut queue)) = (pool(), Context::new());
    let (mut one, mut two) =
        (context.lane(Config::default()).unwrap(), context.lane(Config::default()).unwrap());
    let page = |len| Fragment::new(pool.alloc().unwrap(), 0, len).unwrap();
    let mut segment: Segment<Chain> = Segment::default();
    // Said too late, so that it counts 100 bytes that never come.
    segment.payload_mut().append(page(100)).unwrap();
    one.send(&mut segment, 1, 100, 0).unwrap();
    segment.payload_mut().append(page(50)).unwrap();
    two.send_there(&mut segment, 2, 0).unwrap();
    copied(&mut segment, &pool, 100);
    let again = segment.range(100, 50).unwrap();
    segment.free(Fate::Sent);
    assert!(told(&mut queue).iter().all(|(number, ..)| *number != 2), "its bytes are on their way");
    again.free(Fate::Sent);
    assert!(told(&mut queue).iter().any(|(number, ..)| *number == 2));
}
