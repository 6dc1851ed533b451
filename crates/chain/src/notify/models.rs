//! Models of the lock-free parts, with the shipping code, under loom: references and frontier, batches, the word that
//! wakes, and the descriptor.

use super::{Completion, Config, Context, Fate, Lane, Lender, Limits, Queue, Segment};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;
use std::future::Future;

/// With room for three sends: the ring wraps soon.
fn lane() -> (Lane, Queue) {
    let (context, queue) = Context::new();
    let limits = Limits { age: std::time::Duration::MAX, ..Limits::default() };
    (context.lane(Config { capacity: 3, limits }).unwrap(), queue)
}

fn segment(lane: &mut Lane, sends: impl IntoIterator<Item = u64>) -> Segment<()> {
    let mut segment = Segment::new(());
    for user_data in sends {
        lane.send(&mut segment, user_data, 10, 0).unwrap();
    }
    segment
}

fn user_data(all: &[Completion]) -> Vec<u64> {
    all.iter().map(|one| one.user_data).collect()
}

/// Everything there is, until `count` completions came, sleeping where there is nothing.
fn reap_all(queue: &mut Queue, count: usize) -> Vec<Completion> {
    let mut all = Vec::new();
    while all.len() < count {
        if queue.reap(|one| all.push(one)) == 0 {
            queue.wait(None);
        }
    }
    all
}

#[test]
fn segments_freed_by_two_threads_complete_once_each_and_in_order() {
    loom::model(|| {
        let (mut lane, mut queue) = lane();
        let first = segment(&mut lane, [1, 2]);
        let second = segment(&mut lane, [3]);
        let other = thread::spawn(move || first.free(Fate::Copied));
        second.free(Fate::Sent);
        let all = reap_all(&mut queue, 3);
        other.join().unwrap();
        assert_eq!(user_data(&all), [1, 2, 3]);
        let copied: Vec<bool> = all.iter().map(|one| one.how.copied).collect();
        assert_eq!(copied, [true, true, false]);
        assert_eq!(queue.reap(|_| {}), 0);
    });
}

#[test]
fn a_clone_keeps_its_sends_waiting_wherever_it_is_dropped() {
    loom::model(|| {
        let (mut lane, mut queue) = lane();
        let data = Arc::new(AtomicU32::new(0));
        let whole = segment(&mut lane, [7, 8]);
        let clone = whole.clone();
        let seen = data.clone();
        let other = thread::spawn(move || {
            // Relaxed, so that only the references can bring it over.
            seen.store(1, Relaxed);
            clone.free(Fate::Sent);
        });
        whole.free(Fate::Sent);
        assert_eq!(user_data(&reap_all(&mut queue, 2)), [7, 8]);
        // What was done with the segment comes before its completion.
        assert_eq!(data.load(Relaxed), 1);
        other.join().unwrap();
    });
}

#[test]
fn a_slot_that_is_used_again_is_not_passed_by_who_looked_at_it_before() {
    loom::model(|| {
        let (context, mut queue) = Context::new();
        let config = Config { capacity: 1, limits: Limits::default() };
        let mut lane = context.lane(config).unwrap();
        let first = segment(&mut lane, [1]);
        let other = thread::spawn(move || first.free(Fate::Sent));
        assert_eq!(user_data(&reap_all(&mut queue, 1)), [1]);
        let second = segment(&mut lane, [2]);
        assert_eq!(queue.reap(|_| {}), 0, "a send whose segment lives is complete");
        let third = thread::spawn(move || second.free(Fate::Sent));
        assert_eq!(user_data(&reap_all(&mut queue, 1)), [2]);
        other.join().unwrap();
        third.join().unwrap();
        let last = segment(&mut lane, [3]);
        assert_eq!(queue.reap(|_| {}), 0);
        drop(last);
        assert_eq!(user_data(&reap_all(&mut queue, 1)), [3]);
    });
}

#[test]
fn the_halves_of_a_segment_complete_their_own_sends() {
    loom::model(|| {
        let (mut lane, mut queue) = lane();
        let mut front = segment(&mut lane, [1, 2, 3]);
        let back = front.split_off(10, |()| ());
        let other = thread::spawn(move || back.free(Fate::Copied));
        front.free(Fate::Sent);
        let all = reap_all(&mut queue, 3);
        other.join().unwrap();
        assert_eq!(user_data(&all), [1, 2, 3]);
        let copied: Vec<bool> = all.iter().map(|one| one.how.copied).collect();
        assert_eq!(copied, [false, true, true]);
    });
}

/// The second send's first reference goes by a plain store, while another thread moves the frontier up to the first one.
#[test]
fn a_send_that_is_put_behind_another_completes_with_it() {
    loom::model(|| {
        let (mut lane, mut queue) = lane();
        let before = segment(&mut lane, [1]);
        let mut first = segment(&mut lane, [2]);
        let second = segment(&mut lane, [3]);
        let other = thread::spawn(move || before.free(Fate::Sent));
        first.join(second, |(), ()| Ok(())).unwrap();
        first.free(Fate::Sent);
        assert_eq!(user_data(&reap_all(&mut queue, 3)), [1, 2, 3]);
        other.join().unwrap();
    });
}

/// As in a packet that carries both, and is cut: there, too, the second send is held by the first one's reference for a while.
#[test]
fn a_send_that_is_put_behind_another_is_held_by_who_cuts_it_off_elsewhere() {
    loom::model(|| {
        let (mut lane, mut queue) = lane();
        let mut first = segment(&mut lane, [1]);
        let second = segment(&mut lane, [2]);
        let (mut packet, rest) = (first.clone(), second.clone());
        let other = thread::spawn(move || {
            packet.join(rest, |(), ()| Ok(())).unwrap();
            let back = packet.split_off(10, |()| ());
            packet.free(Fate::Sent);
            back
        });
        first.join(second, |(), ()| Ok(())).unwrap();
        first.free(Fate::Sent);
        let back = other.join().unwrap();
        let mut all = queue.reap_all();
        assert_eq!(user_data(&all), [1], "the second is held");
        back.free(Fate::Sent);
        queue.reap(|one| all.push(one));
        assert_eq!(user_data(&all), [1, 2]);
    });
}

/// A range takes a reference on a send that its segment holds by an earlier one only, and is cut while the segment is acknowledged.
#[test]
fn a_range_that_is_on_its_way_keeps_its_buffers_from_their_owner() {
    loom::model(|| {
        let (mut lane, mut queue) = lane();
        let acknowledged = segment(&mut lane, [1, 2, 3]);
        // The second send, and half of the third.
        let again = acknowledged.part(10, 15, ());
        let buffer = Arc::new(AtomicU32::new(0));
        let there = buffer.clone();
        let link = thread::spawn(move || {
            let packet = again.part(10, 5, ());
            assert_eq!(there.load(Relaxed), 0, "the second one's owner has written it anew");
            again.free(Fate::Sent);
            packet.free(Fate::Copied);
        });
        acknowledged.free(Fate::Sent);
        let mut all = reap_all(&mut queue, 2);
        buffer.store(1, Relaxed);
        let left = 3 - all.len();
        all.extend(reap_all(&mut queue, left));
        assert_eq!(user_data(&all), [1, 2, 3]);
        let copied: Vec<bool> = all.iter().map(|one| one.how.copied).collect();
        assert_eq!(copied, [false, false, true]);
        link.join().unwrap();
        assert_eq!(queue.reap(|_| {}), 0);
    });
}

#[test]
fn a_send_that_is_finished_while_its_segments_are_freed_completes_once() {
    loom::model(|| {
        let (mut lane, mut queue) = lane();
        let (mut one, mut two) = (Segment::new(()), Segment::new(()));
        let mut notif = lane.open(5).unwrap();
        notif.link(&mut lane, &mut one, 10, 0).unwrap();
        let other = thread::spawn(move || one.free(Fate::Sent));
        notif.link(&mut lane, &mut two, 10, 0).unwrap();
        notif.finish(Ok::<_, ()>(20));
        two.free(Fate::Sent);
        let all = reap_all(&mut queue, 1);
        assert_eq!((all[0].user_data, all[0].bytes), (5, 20));
        other.join().unwrap();
        assert_eq!(queue.reap(|_| {}), 0);
    });
}

#[test]
fn two_lanes_tell_one_queue() {
    loom::model(|| {
        let (context, mut queue) = Context::new();
        let config = Config { capacity: 1, limits: Limits::default() };
        let (mut a, mut b) = (context.lane(config).unwrap(), context.lane(config).unwrap());
        let (ours, theirs) = (segment(&mut a, [1]), segment(&mut b, [2]));
        let other = thread::spawn(move || {
            theirs.free(Fate::Sent);
            drop(b);
        });
        ours.free(Fate::Sent);
        let mut all = user_data(&reap_all(&mut queue, 2));
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        other.join().unwrap();
        // The closed lane's number is free again.
        queue.reap(|_| {});
        assert_eq!(context.lane(config).unwrap().index(), 1);
    });
}

#[test]
fn a_closed_lane_leaves_the_queue_before_its_number_goes_to_another() {
    loom::model(|| {
        let (context, mut queue) = Context::new();
        let config = Config { capacity: 1, limits: Limits::default() };
        let mut first = context.lane(config).unwrap();
        let other = thread::spawn(move || {
            drop(segment(&mut first, [1]));
            drop(first);
        });
        assert_eq!(user_data(&reap_all(&mut queue, 1)), [1]);
        // Under the same number, or not yet.
        let mut second = context.lane(config).unwrap();
        drop(segment(&mut second, [2]));
        assert_eq!(user_data(&reap_all(&mut queue, 1)), [2]);
        other.join().unwrap();
        segment_after(&mut queue, &mut second);
        drop(second);
        queue.reap(|_| panic!("nothing is left"));
        queue.reap(|_| panic!("nothing is left"));
        let mut numbers = [(); 2].map(|()| context.lane(config).unwrap().index());
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1]);
    });

    /// One more send, once the first one was reaped.
    fn segment_after(queue: &mut Queue, lane: &mut Lane) {
        drop(segment(lane, [3]));
        assert_eq!(user_data(&reap_all(queue, 1)), [3]);
    }
}

#[test]
fn who_polls_the_descriptor_sleeps_over_nothing() {
    loom::model(|| {
        let (mut lane, mut queue) = lane();
        let [one, two, three] = [1, 2, 3].map(|user_data| segment(&mut lane, [user_data]));
        let other = thread::spawn(move || {
            one.free(Fate::Sent);
            two.free(Fate::Sent);
            three.free(Fate::Sent);
        });
        let mut all = Vec::new();
        while all.len() < 3 {
            // As an event loop: polls, reaps once, polls again. loom finds the deadlock where a completion waits and the
            // descriptor does not say so.
            queue.poll_once();
            queue.reap(|one| all.push(one.user_data));
        }
        other.join().unwrap();
        assert_eq!(all, [1, 2, 3]);
    });
}

#[test]
fn a_lane_and_its_queue_live_in_two_threads() {
    loom::model(|| {
        let (context, mut queue) = Context::new();
        let mut lane = context.lane(Config { capacity: 1, limits: Limits::default() }).unwrap();
        let other = thread::spawn(move || {
            for user_data in [10, 20, 30] {
                let mut segment = Segment::new(());
                while lane.send(&mut segment, user_data, 1, 0).is_err() {
                    thread::yield_now();
                }
                drop(segment);
            }
        });
        assert_eq!(user_data(&reap_all(&mut queue, 3)), [10, 20, 30]);
        other.join().unwrap();
    });
}

#[test]
fn who_settles_hands_on_what_others_have_freed() {
    loom::model(|| {
        let (mut lane, mut queue) = lane();
        let consumer = thread::spawn(move || user_data(&reap_all(&mut queue, 2)));
        let (one, two) = (segment(&mut lane, [10]), segment(&mut lane, [20]));
        let other = thread::spawn(move || two.free(Fate::Sent));
        one.free(Fate::Sent);
        other.join().unwrap();
        assert_eq!(consumer.join().unwrap(), [10, 20]);
    });
}

#[test]
fn a_loan_comes_back_to_who_waits_for_it() {
    /// A waker that loom sees.
    #[derive(Default)]
    struct Bell(loom::sync::Mutex<bool>, loom::sync::Condvar);
    impl std::task::Wake for Bell {
        fn wake(self: std::sync::Arc<Self>) {
            *self.0.lock().unwrap() = true;
            self.1.notify_all();
        }
    }
    loom::model(|| {
        let limits = Limits { age: std::time::Duration::MAX, ..Limits::default() };
        let mut lender = Lender::new(Config { capacity: 3, limits }).unwrap();
        let mut segment = Segment::default();
        let buffer = std::sync::Arc::new(vec![1u8; 4]);
        let mut loan = lender.send(&mut segment, buffer, 0).unwrap();
        let other = thread::spawn(move || segment.free(Fate::Sent));
        let bell = std::sync::Arc::new(Bell::default());
        let waker = std::task::Waker::from(bell.clone());
        let (buffer, how) = loop {
            let poll = std::pin::Pin::new(&mut loan).poll(&mut std::task::Context::from_waker(&waker));
            if let std::task::Poll::Ready(back) = poll {
                break back;
            }
            let mut rung = bell.0.lock().unwrap();
            while !*rung {
                rung = bell.1.wait(rung).unwrap();
            }
            *rung = false;
        };
        assert!(!how.copied && !how.dropped);
        assert_eq!(std::sync::Arc::into_inner(buffer).expect("no fragment is left"), [1; 4]);
        other.join().unwrap();
    });
}
