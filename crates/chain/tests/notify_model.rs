//! Any interleaving of sending, linking, cloning, splitting, joining, freeing, cancelling and closing, against a model that
//! looks at the fragments themselves: each send completes exactly once, in order, never before its last fragment is free and
//! never later than need be, and learns exactly how its bytes left.
#![cfg(not(loom))]

use onecopy_chain::notify::{Config, Context, Fate, Lane, Limits, Payload, Queue, Refused, Segment};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// In [`Bytes::lane`]: nobody waits for them.
const NOBODY: usize = usize::MAX;

/// Bytes `at..at + len` of a lane, which belong to one send; none where it is an empty one, as an empty datagram's is.
#[derive(Clone, Debug)]
struct Bytes {
    lane: usize,
    id: u64,
    at: u64,
    len: u64,
    /// Alive as long as some fragment of the send is.
    _alive: Arc<()>,
}

impl Payload for Bytes {
    fn size(&self) -> u32 {
        self.len as u32
    }
}

#[derive(Clone, Debug)]
enum Op {
    Send {
        lane: usize,
        segment: usize,
        bytes: u32,
    },
    /// Bytes that are nobody's.
    Copied {
        segment: usize,
        bytes: u32,
    },
    Range {
        segment: usize,
        at: u64,
        len: u64,
    },
    Open {
        lane: usize,
        parts: Vec<(usize, u32)>,
        end: End,
    },
    Clone(usize),
    Split(usize, u64),
    Join(usize, usize),
    Free(usize, Fate),
    Reap(usize),
    Close(usize),
}

#[derive(Clone, Copy, Debug)]
enum End {
    Ok,
    Error,
    Cancel,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![3 => Just(Fate::Sent), 1 => Just(Fate::Copied), 1 => Just(Fate::Dropped)]
}

fn op() -> impl Strategy<Value = Op> {
    let lane = || prop_oneof![3 => Just(0usize), 1 => Just(1usize)];
    // Empty ones, and borders that splits meet, often enough.
    let bytes = || prop_oneof![1 => Just(0u32), 3 => (1u32..4).prop_map(|n| n * 50), 4 => 1u32..200];
    let part = (0usize..4, bytes());
    let end = prop_oneof![4 => Just(End::Ok), 1 => Just(End::Error), 1 => Just(End::Cancel)];
    prop_oneof![
        8 => (lane(), 0usize..4, bytes()).prop_map(|(lane, segment, bytes)| Op::Send { lane, segment, bytes }),
        2 => (0usize..4, bytes()).prop_map(|(segment, bytes)| Op::Copied { segment, bytes }),
        3 => (0usize..4, 0u64..9, 0u64..400).prop_map(|(segment, at, len)| Op::Range { segment, at: at * 50, len }),
        3 => (lane(), prop::collection::vec(part, 0..4), end)
            .prop_map(|(lane, parts, end)| Op::Open { lane, parts, end }),
        2 => (0usize..4).prop_map(Op::Clone),
        3 => ((0usize..4), prop_oneof![(0u64..9).prop_map(|n| n * 50), 0u64..400])
            .prop_map(|(segment, at)| Op::Split(segment, at)),
        3 => ((0usize..4), 0usize..4).prop_map(|(a, b)| Op::Join(a, b)),
        5 => ((0usize..4), fate()).prop_map(|(segment, fate)| Op::Free(segment, fate)),
        4 => (0usize..6).prop_map(Op::Reap),
        1 => lane().prop_map(Op::Close),
    ]
}

/// What is known of a send.
#[derive(Debug)]
struct Sent {
    alive: Weak<()>,
    bytes: u64,
    copied: bool,
    dropped: bool,
    user_data: u64,
}

struct World {
    lanes: Vec<Option<Lane>>,
    queue: Queue,
    segments: Vec<Segment<Vec<Bytes>>>,
    /// Second holders of parts of them.
    ranges: Vec<Segment<Vec<Bytes>>>,
    /// Sends that completion has to tell of, by lane and number.
    sent: Vec<BTreeMap<u64, Sent>>,
    positions: Vec<u64>,
    reaped: Vec<u64>,
    next: u64,
}

const LIMITS: Limits = Limits { bytes: 1000, sends: 8, age: Duration::from_nanos(100) };

impl World {
    fn new() -> World {
        let (context, queue) = Context::new();
        let lane = || Some(context.lane(Config { capacity: 15, limits: LIMITS }).unwrap());
        World {
            lanes: vec![lane(), lane()],
            queue,
            segments: (0..4).map(|_| Segment::default()).collect(),
            ranges: Vec::new(),
            sent: vec![BTreeMap::new(), BTreeMap::new()],
            positions: vec![0, 0],
            reaped: vec![0, 0],
            next: 1000,
        }
    }

    fn note(&mut self, lane: usize, id: u64, alive: &Arc<()>, user_data: u64) -> &mut Sent {
        self.sent[lane].entry(id).or_insert_with(|| Sent {
            alive: Arc::downgrade(alive),
            bytes: 0,
            copied: false,
            dropped: false,
            user_data,
        })
    }

    /// Room is short because completions were not reaped: nothing else may refuse so.
    fn full(&self, lane: usize) {
        let outstanding = self.lanes[lane].as_ref().unwrap().outstanding();
        assert_eq!(outstanding, 15, "refused as full with {outstanding} outstanding");
    }

    fn send(&mut self, lane: usize, segment: usize, bytes: u32) {
        self.next += 1;
        let user_data = self.next;
        let Some(open) = self.lanes[lane].as_mut() else { return };
        let target = &mut self.segments[segment];
        let before = target.notif().map(|notif| (notif.bytes(), notif.sends()));
        match open.send(target, user_data, bytes, 0) {
            Ok(id) => {
                let alive = Arc::new(());
                let at = self.positions[lane];
                self.positions[lane] += u64::from(bytes);
                let piece = Bytes { lane, id, at, len: u64::from(bytes), _alive: alive.clone() };
                self.segments[segment].payload_mut().push(piece);
                self.note(lane, id, &alive, user_data).bytes = u64::from(bytes);
            }
            Err(Refused::Full { .. }) => self.full(lane),
            Err(Refused::Bytes { would_be, .. }) => {
                assert_eq!(would_be, before.unwrap().0 + u64::from(bytes));
                assert!(would_be > 1000);
            }
            Err(Refused::Sends { .. }) => assert!(before.unwrap().1 >= 8),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn open(&mut self, lane: usize, parts: &[(usize, u32)], end: End) {
        self.next += 1;
        let user_data = self.next;
        let Some(open) = self.lanes[lane].as_mut() else { return };
        if open.outstanding() == 15 {
            assert!(matches!(open.open(user_data), Err(Refused::Full { capacity: 15 })));
            return;
        }
        let mut notif = open.open(user_data).unwrap();
        let (id, alive) = (notif.id(), Arc::new(()));
        let (mut total, mut linked) = (0, false);
        // (A part without bytes is the part of an empty send, as an empty datagram is one: it lies nowhere in another.)
        let empty = parts.iter().all(|&(_, bytes)| bytes == 0);
        for &(segment, bytes) in parts.iter().filter(|&&(_, bytes)| empty || bytes > 0) {
            match notif.link(open, &mut self.segments[segment], bytes, 0) {
                Ok(()) => {
                    let at = self.positions[lane];
                    self.positions[lane] += u64::from(bytes);
                    let piece = Bytes { lane, id, at, len: u64::from(bytes), _alive: alive.clone() };
                    self.segments[segment].payload_mut().push(piece);
                    total += u64::from(bytes);
                    linked = true;
                }
                Err(Refused::Bytes { .. } | Refused::Sends { .. }) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        let dropped = match end {
            End::Ok => {
                assert!(notif.finish(Ok::<u64, ()>(total)).more);
                false
            }
            End::Error => {
                assert!(notif.finish(Err::<u64, _>("no route")).more);
                !linked
            }
            End::Cancel => {
                drop(notif);
                true
            }
        };
        let sent = self.note(lane, id, &alive, user_data);
        (sent.bytes, sent.dropped) = (total, dropped);
    }

    fn copied(&mut self, segment: usize, bytes: u32) {
        let piece = Bytes { lane: NOBODY, id: 0, at: 0, len: u64::from(bytes), _alive: Arc::new(()) };
        self.segments[segment].payload_mut().push(piece);
    }

    fn range(&mut self, segment: usize, at: u64, len: u64) {
        let (mut payload, mut begin) = (Vec::new(), 0);
        for piece in self.segments[segment].payload() {
            let (from, to) = (begin.max(at), (begin + piece.len).min(at + len));
            if from < to {
                payload.push(Bytes { at: piece.at + from - begin, len: to - from, ..piece.clone() });
            }
            begin += piece.len;
        }
        let range = self.segments[segment].part(at, len, payload);
        let lent: u64 =
            range.payload().iter().filter(|piece| piece.lane != NOBODY).map(|piece| piece.len).sum();
        assert_eq!(range.notif().map_or(0, |notif| notif.bytes()), lent);
        self.ranges.push(range);
    }

    fn split(&mut self, segment: usize, at: u64) {
        let payload = self.segments[segment].payload();
        let total: u64 = payload.iter().map(|piece| piece.len).sum();
        let at = at.min(total);
        let back = self.segments[segment].split_off(at, |payload| {
            let (mut front, mut back, mut before) = (Vec::new(), Vec::new(), 0);
            for piece in payload.drain(..) {
                let end = before + piece.len;
                if end <= at {
                    front.push(piece);
                } else if before >= at {
                    back.push(piece);
                } else {
                    let cut = at - before;
                    front.push(Bytes { len: cut, ..piece.clone() });
                    back.push(Bytes { at: piece.at + cut, len: piece.len - cut, ..piece });
                }
                before = end;
            }
            *payload = front;
            back
        });
        self.segments.push(back);
    }

    fn join(&mut self, a: usize, b: usize) {
        if a == b {
            return;
        }
        let back = std::mem::take(&mut self.segments[b]);
        let joined = self.segments[a].join(back, |ours, mut theirs| {
            ours.append(&mut theirs);
            Ok(())
        });
        joined.unwrap();
    }

    fn free(&mut self, segment: usize, fate: Fate) {
        let freed = std::mem::take(&mut self.segments[segment]);
        for piece in freed.payload().iter().filter(|piece| piece.lane != NOBODY) {
            let sent = self.sent[piece.lane].get_mut(&piece.id).unwrap();
            sent.copied |= fate == Fate::Copied;
            sent.dropped |= fate == Fate::Dropped;
        }
        freed.free(fate);
        if segment >= 4 {
            self.segments.swap_remove(segment);
        }
    }

    /// The lane's sends that no live segment carries bytes of, and none before them is carried either.
    fn frontier(&self, lane: usize) -> u64 {
        let carried = self.segments.iter().chain(&self.ranges).flat_map(|segment| segment.payload());
        let ids: BTreeSet<u64> = carried.filter(|piece| piece.lane == lane).map(|piece| piece.id).collect();
        let last = self.sent[lane].last_key_value().map_or(0, |(id, _)| id + 1);
        ids.first().copied().unwrap_or(last)
    }

    fn reap(&mut self, most: usize) {
        let (sent, reaped) = (&self.sent, &mut self.reaped);
        self.queue.reap_some(most, |one| {
            let lane = one.lane as usize;
            assert_eq!(one.id, reaped[lane], "out of order");
            reaped[lane] += 1;
            let sent = &sent[lane][&one.id];
            assert_eq!(sent.alive.strong_count(), 0, "complete before its last fragment is free: {one:?}");
            assert_eq!((one.user_data, u64::from(one.bytes)), (sent.user_data, sent.bytes));
            assert_eq!((one.how.copied, one.how.dropped), (sent.copied, sent.dropped), "{one:?} {sent:?}");
        });
    }

    /// All that can complete has completed.
    fn settled(&mut self) {
        self.reap(usize::MAX);
        for lane in 0..2 {
            let frontier = self.frontier(lane);
            assert_eq!(self.reaped[lane], frontier, "lane {lane} completes later than need be");
        }
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Send { lane, segment, bytes } => self.send(*lane, *segment, *bytes),
            Op::Copied { segment, bytes } => self.copied(*segment, *bytes),
            Op::Range { segment, at, len } => self.range(*segment, *at, *len),
            Op::Open { lane, parts, end } => self.open(*lane, parts, *end),
            Op::Clone(segment) => {
                let clone = self.segments[*segment].clone();
                self.segments.push(clone);
            }
            Op::Split(segment, at) => self.split(*segment, *at),
            Op::Join(a, b) => self.join(*a, *b),
            // The oldest one: it says nothing of its bytes.
            Op::Free(3, Fate::Dropped) if !self.ranges.is_empty() => drop(self.ranges.remove(0)),
            Op::Free(segment, fate) => {
                // Now and then one of those that clones and splits left.
                let count = self.segments.len();
                let segment = if count > 6 { count - 1 } else { *segment };
                self.free(segment, *fate);
            }
            Op::Reap(most) if *most == 5 => self.settled(),
            Op::Reap(most) => self.reap(*most),
            Op::Close(lane) => drop(self.lanes[*lane].take()),
        }
    }

    fn end(mut self) {
        while self.segments.len() > 4 {
            self.free(4, Fate::Sent);
        }
        for segment in 0..4 {
            self.free(segment, Fate::Sent);
        }
        self.settled();
        self.ranges.clear();
        self.reap(usize::MAX);
        for lane in 0..2 {
            assert_eq!(
                self.reaped[lane],
                self.sent[lane].len() as u64,
                "a send of lane {lane} never completed"
            );
        }
        self.lanes.clear();
        assert_eq!(self.queue.reap(|one| panic!("completed twice: {one:?}")), 0);
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(400)
}

proptest! {
    // A program that fails is written down beside this file, and tried first from then on.
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::with_cases(cases())
    })]
    #[test]
    fn each_send_completes_once_in_order_and_exactly(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        for op in &ops {
            world.run(op);
        }
        world.end();
    }
}

/// What the model found once: a send without bytes, of another lane, had both halves of the segment keep all sends waiting.
#[test]
fn a_send_without_bytes_of_another_lane_keeps_no_half_waiting() {
    let mut world = World::new();
    let ops = [
        Op::Send { lane: 1, segment: 1, bytes: 65 },
        Op::Send { lane: 1, segment: 1, bytes: 106 },
        Op::Join(0, 2),
        Op::Send { lane: 0, segment: 1, bytes: 0 },
        Op::Split(1, 65),
        Op::Free(1, Fate::Sent),
        Op::Reap(5),
    ];
    for op in &ops {
        world.run(op);
    }
    assert_eq!(world.reaped, [0, 1]);
    world.end();
}

/// What keeps fragments of sends alive; their bytes are not there.
#[derive(Clone, Default)]
struct Kept(Vec<Arc<()>>);

impl Payload for Kept {
    fn size(&self) -> u32 {
        0
    }
}

/// The same with real threads: segments are freed wherever they come by, clones of them too, while sends go on.
#[test]
fn threads_that_free_in_any_order_complete_each_send_once() {
    const SENDS: u64 = 20_000;
    let (context, mut queue) = Context::new();
    let limits = Limits { age: Duration::MAX, ..LIMITS };
    let mut lane = context.lane(Config { capacity: 63, limits }).unwrap();
    let (alive_in, alive_out) = std::sync::mpsc::channel::<Weak<()>>();
    std::thread::scope(|scope| {
        let mut channels = Vec::new();
        for turn in 0..3u64 {
            let (into, from) = std::sync::mpsc::sync_channel::<Segment<Kept>>(4);
            channels.push(into);
            scope.spawn(move || {
                let mut kept = Vec::new();
                for (n, segment) in from.into_iter().enumerate() {
                    kept.push(segment);
                    if !(n as u64 + turn).is_multiple_of(3) {
                        kept.drain(..).rev().for_each(|segment| segment.free(Fate::Sent));
                    }
                }
            });
        }
        scope.spawn(move || {
            let mut segment = Segment::new(Kept::default());
            let hand_over = |segment: Segment<Kept>, n: u64| {
                let thread = n as usize % 3;
                if n.is_multiple_of(5) {
                    channels[(thread + 1) % 3].send(segment.clone()).unwrap();
                }
                channels[thread].send(segment).unwrap();
            };
            let mut n = 0;
            while n < SENDS {
                let alive = Arc::new(());
                let weak = Arc::downgrade(&alive);
                match lane.send(&mut segment, n, 100, 0) {
                    Ok(id) => {
                        assert_eq!(id, n);
                        segment.payload_mut().0.push(alive);
                        alive_in.send(weak).unwrap();
                        n += 1;
                        if n.is_multiple_of(4) {
                            hand_over(std::mem::take(&mut segment), n);
                        }
                    }
                    Err(Refused::Full { .. }) => {
                        hand_over(std::mem::take(&mut segment), n);
                        std::thread::yield_now();
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            hand_over(segment, n);
        });
        let mut next = 0;
        while next < SENDS {
            assert!(queue.wait(Some(Duration::from_secs(20))), "nothing more comes after {next}");
            queue.reap(|one| {
                assert_eq!((one.id, one.user_data), (next, next));
                assert_eq!(alive_out.recv().unwrap().strong_count(), 0, "{next} complete before it is free");
                next += 1;
            });
        }
    });
}
