//! The six cases of Linux 6.10, and what comes of them.
#![cfg(not(loom))]

use onecopy_chain::notify as ours;
use onecopy_linux_notif::{Context, Fate, Refused, Segment};
use std::sync::Arc;

fn lane(capacity: u32) -> (ours::Context, ours::Lane, ours::Queue) {
    let (context, queue) = ours::Context::new();
    let lane = context.lane(ours::Config { capacity, ..Default::default() }).unwrap();
    (context, lane, queue)
}

fn reap(context: &mut Context) -> Vec<(u64, bool)> {
    let mut all = Vec::new();
    context.reap(|user_data, copied| all.push((user_data, copied)));
    all
}

// The six cases of io_link_skb, in its order.

#[test]
fn case_1_a_segment_without_a_notification_takes_one_even_if_that_is_linked() {
    let mut context = Context::new(8);
    let (mut one, mut two) = (Segment::new(()), Segment::new(()));
    let (a, b) = (context.open(1, false).unwrap(), context.open(2, false).unwrap());
    a.link(&mut one).unwrap();
    b.link(&mut one).unwrap();
    // b is linked behind a now, and goes on another segment all the same.
    b.link(&mut two).unwrap();
    assert!(a.finish(Ok::<_, ()>(4)).more && b.finish(Ok::<_, ()>(8)).more);
    one.free(Fate::Sent);
    assert_eq!(reap(&mut context), [], "b's second segment lives, and the chain completes as a whole");
    two.free(Fate::Sent);
    assert_eq!(reap(&mut context), [(1, false), (2, false)]);
}

#[test]
fn case_2_the_same_notification_again_is_nothing_new() {
    let mut context = Context::new(8);
    let mut segment = Segment::new(());
    let a = context.open(1, false).unwrap();
    a.link(&mut segment).unwrap();
    a.link(&mut segment).unwrap();
    drop(a);
    segment.free(Fate::Sent);
    assert_eq!(reap(&mut context), [(1, false)]);
}

#[test]
fn case_3_two_links_are_not_joined() {
    let mut context = Context::new(8);
    let (mut one, mut two) = (Segment::new(()), Segment::new(()));
    let notifs: Vec<_> = (1..=4).map(|n| context.open(n, false).unwrap()).collect();
    notifs[0].link(&mut one).unwrap();
    notifs[1].link(&mut one).unwrap();
    notifs[2].link(&mut two).unwrap();
    // A member, and a head that has members.
    assert_eq!(notifs[1].link(&mut two), Err(Refused::Linked));
    assert_eq!(notifs[0].link(&mut two), Err(Refused::Linked));
    // One that is only on a segment of its own is no link yet.
    notifs[3].link(&mut Segment::new(())).unwrap();
    notifs[3].link(&mut two).unwrap();
}

#[test]
fn case_4_providers_are_not_mixed() {
    let mut context = Context::new(8);
    let (_context, mut lane, mut queue) = lane(7);
    // Ours is a provider that the kernel's scheme knows nothing of. (The other way round the types refuse it.)
    let mut ours = ours::Segment::new(());
    lane.send(&mut ours, 1, 1, 0).unwrap();
    let ((), of_ours) = ours.into_parts();
    let mut segment = Segment::foreign((), Arc::new(of_ours));
    let notif = context.open(2, false).unwrap();
    assert_eq!(notif.link(&mut segment), Err(Refused::Foreign));
    // What was refused took nothing, and the other provider's send completes as before.
    assert_eq!(queue.reap(|_| {}), 0);
    segment.free(Fate::Sent);
    assert_eq!(queue.reap_all().iter().map(|one| one.user_data).collect::<Vec<_>>(), [1]);
    notif.finish(());
    assert_eq!(reap(&mut context), [(2, false)]);
}

#[test]
fn case_5_one_context_and_one_task_finish_a_chain() {
    let (mut one, mut two) = (Context::new(8), Context::new(8));
    let mut segment = Segment::new(());
    one.open(1, false).unwrap().link(&mut segment).unwrap();
    assert_eq!(two.open(2, false).unwrap().link(&mut segment), Err(Refused::Foreign));
    // Another task of the same context.
    let mut one = std::thread::spawn(move || {
        assert_eq!(one.open(3, false).unwrap().link(&mut segment), Err(Refused::Foreign));
        segment.free(Fate::Sent);
        one
    })
    .join()
    .unwrap();
    assert_eq!(reap(&mut one), [(3, false), (1, false)]);
    assert_eq!(reap(&mut two), [(2, false)]);
}

#[test]
fn case_6_the_rest_is_a_chain_that_completes_head_first_and_then_newest_first() {
    let mut context = Context::new(8);
    let mut segment = Segment::new(());
    for n in 1..=5 {
        let notif = context.open(n, false).unwrap();
        notif.link(&mut segment).unwrap();
        notif.finish(());
    }
    assert_eq!(reap(&mut context), []);
    segment.free(Fate::Sent);
    let order: Vec<u64> = reap(&mut context).iter().map(|(n, _)| *n).collect();
    assert_eq!(order, [1, 5, 4, 3, 2]);
}

#[test]
fn merged_tells_copied_as_linux_does_rightly_for_the_head_and_wrongly_for_members() {
    let mut context = Context::new(8);
    for (fate, head) in [(Fate::Sent, false), (Fate::Copied, true)] {
        let mut segment = Segment::new(());
        for n in 1..=2 {
            context.open(n, true).unwrap().link(&mut segment).unwrap();
        }
        segment.free(fate);
        // The member was never told how the segment left, and takes that for a copy.
        assert_eq!(reap(&mut context), [(1, head), (2, true)]);
    }
    // Who does not ask hears no.
    context.open(3, false).unwrap().finish(());
    context.open(4, true).unwrap().finish(());
    assert_eq!(reap(&mut context), [(3, false), (4, true)]);
}

#[test]
fn merged_chains_grow_without_bound_where_ours_do_not() {
    // Each segment takes its first bytes before the one before it is free: a queue that is never empty.
    let mut context = Context::new(100);
    let (_context, mut lane, mut queue) = lane(127);
    let (mut before, mut ours_before) = (Segment::new(()), ours::Segment::new(()));
    let (mut done, mut ours_done) = (0, 0);
    for n in 0..50 {
        let (mut next, mut ours_next) = (Segment::new(()), ours::Segment::new(()));
        let notif = context.open(n, false).unwrap();
        notif.link(&mut before).unwrap();
        notif.link(&mut next).unwrap();
        notif.finish(());
        let mut notif = lane.open(n).unwrap();
        notif.link(&mut lane, &mut ours_before, 5, 0).unwrap();
        notif.link(&mut lane, &mut ours_next, 5, 0).unwrap();
        notif.finish(Ok::<_, ()>(10));
        std::mem::replace(&mut before, next).free(Fate::Sent);
        std::mem::replace(&mut ours_before, ours_next).free(ours::Fate::Sent);
        done += context.reap(|_, _| {});
        ours_done += queue.reap(|_| {});
        assert_eq!((done, ours_done as u64), (0, n), "after {n}");
    }
}

#[test]
fn a_full_merged_context_says_so() {
    let mut context = Context::new(1);
    let notif = context.open(1, false).unwrap();
    assert_eq!(context.open(2, false).unwrap_err(), Refused::Full { capacity: 1 });
    notif.finish(Err::<(), _>("no route"));
    assert_eq!(reap(&mut context), [(1, false)]);
    context.open(2, false).unwrap().finish(());
}
