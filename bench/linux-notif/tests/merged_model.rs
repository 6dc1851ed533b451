//! Any interleaving of opening, linking, finishing and freeing by the rules of Linux 6.10, against a model that knows who is in a
//! chain with whom: each notification is posted exactly once, with its whole chain, head first and then newest first, and
//! neither before the last send is over and the last segment is free nor later; so too after errors and cancelled sends.
#![cfg(not(loom))]

use onecopy_linux_notif::{Context, Fate, Notif, Refused, Segment};
use proptest::prelude::*;

const SEGMENTS: usize = 3;
const CAPACITY: u32 = 6;

#[derive(Clone, Copy, Debug)]
enum Op {
    Open,
    /// A send (of those that are open) and a segment.
    Link(usize, usize),
    /// Whether by an error, or by being dropped.
    Finish(usize, End),
    Free(usize, Fate),
    /// The segment is shared once more, by reference, and its clone freed later.
    Clone(usize),
    FreeClone(usize, Fate),
}

#[derive(Clone, Copy, Debug)]
enum End {
    Ok,
    Error,
    Cancel,
}

fn op() -> impl Strategy<Value = Op> {
    let end = prop_oneof![3 => Just(End::Ok), 1 => Just(End::Error), 1 => Just(End::Cancel)];
    let fate = || prop_oneof![2 => Just(Fate::Sent), 1 => Just(Fate::Copied), 1 => Just(Fate::Dropped)];
    prop_oneof![
        4 => Just(Op::Open),
        6 => (0..8usize, 0..SEGMENTS).prop_map(|(send, segment)| Op::Link(send, segment)),
        3 => (0..8usize, end).prop_map(|(send, end)| Op::Finish(send, end)),
        3 => (0..SEGMENTS, fate()).prop_map(|(segment, fate)| Op::Free(segment, fate)),
        1 => (0..SEGMENTS).prop_map(Op::Clone),
        1 => (0..8usize, fate()).prop_map(|(clone, fate)| Op::FreeClone(clone, fate)),
    ]
}

/// Which notifications complete together, the head first and then the newest first; and what they wait for.
#[derive(Default)]
struct Chain {
    members: Vec<u64>,
    open_sends: usize,
    segments: usize,
}

#[derive(Default)]
struct Model {
    chains: Vec<Chain>,
    posted: Vec<u64>,
}

impl Model {
    fn of(&self, id: u64) -> usize {
        self.chains.iter().position(|chain| chain.members.contains(&id)).expect("not posted yet")
    }

    fn open(&mut self, id: u64) {
        self.chains.push(Chain { members: vec![id], open_sends: 1, segments: 0 });
    }

    /// What linking `id` to a segment with `holds` says, and what the segment holds then.
    fn link(&mut self, id: u64, holds: Option<u64>) -> Result<u64, Refused> {
        let own = self.of(id);
        let Some(prev) = holds else {
            self.chains[own].segments += 1;
            return Ok(id);
        };
        if prev == id {
            return Ok(id);
        }
        if self.chains[own].members.len() > 1 {
            return Err(Refused::Linked);
        }
        let chain = self.chains.swap_remove(own);
        let to = self.of(prev);
        let to = &mut self.chains[to];
        // Right behind the one that the segment holds, which is the head unless the head's segment is another one.
        let at = to.members.iter().position(|&member| member == prev).unwrap();
        to.members.insert(at + 1, id);
        to.open_sends += chain.open_sends;
        to.segments += chain.segments;
        Ok(prev)
    }

    fn let_go(&mut self, id: u64, change: impl Fn(&mut Chain)) {
        let at = self.of(id);
        change(&mut self.chains[at]);
        if self.chains[at].open_sends == 0 && self.chains[at].segments == 0 {
            self.posted.extend(self.chains.swap_remove(at).members);
        }
    }
}

proptest! {
    #[test]
    fn each_is_posted_once_with_its_chain(ops in prop::collection::vec(op(), 1..80)) {
        let mut context = Context::new(CAPACITY);
        let mut model = Model::default();
        let fresh = || (Segment::new(()), None);
        let mut segments: Vec<(Segment<()>, Option<u64>)> = (0..SEGMENTS).map(|_| fresh()).collect();
        let mut clones: Vec<(Segment<()>, Option<u64>)> = Vec::new();
        let mut sends: Vec<(Notif, u64)> = Vec::new();
        let (mut next, mut alive) = (1, 0);
        // Then all that is left is finished and freed.
        let rest = (0..80).map(|i| if i < 40 { Op::Finish(0, End::Cancel) } else { Op::FreeClone(0, Fate::Dropped) });
        let rest = rest.chain((0..SEGMENTS).map(|segment| Op::Free(segment, Fate::Sent)));
        for op in ops.into_iter().chain(rest) {
            match op {
                Op::Open => match context.open(next, true) {
                    Ok(notif) => {
                        prop_assert!(alive < CAPACITY);
                        sends.push((notif, next));
                        model.open(next);
                        (next, alive) = (next + 1, alive + 1);
                    }
                    Err(refused) => {
                        prop_assert_eq!(refused, Refused::Full { capacity: CAPACITY });
                        prop_assert_eq!(alive, CAPACITY);
                    }
                },
                Op::Link(send, segment) if !sends.is_empty() => {
                    let (notif, id) = &sends[send % sends.len()];
                    let expected = model.link(*id, segments[segment].1);
                    prop_assert_eq!(notif.link(&mut segments[segment].0), expected.map(drop));
                    if let Ok(holds) = expected {
                        segments[segment].1 = Some(holds);
                    }
                }
                Op::Finish(send, end) if !sends.is_empty() => {
                    let at = send % sends.len();
                    let (notif, id) = sends.remove(at);
                    match end {
                        End::Ok => prop_assert!(notif.finish(Ok::<_, ()>(1)).more),
                        End::Error => prop_assert!(notif.finish(Err::<(), _>("EPIPE")).more),
                        End::Cancel => drop(notif),
                    }
                    model.let_go(id, |chain| chain.open_sends -= 1);
                }
                Op::Free(segment, fate) => {
                    let (segment, holds) = std::mem::replace(&mut segments[segment], fresh());
                    segment.free(fate);
                    holds.into_iter().for_each(|id| model.let_go(id, |chain| chain.segments -= 1));
                }
                Op::Clone(segment) => {
                    let (segment, holds) = &segments[segment];
                    clones.push((segment.clone(), *holds));
                    holds.iter().for_each(|&id| model.let_go(id, |chain| chain.segments += 1));
                }
                Op::FreeClone(clone, fate) if !clones.is_empty() => {
                    let at = clone % clones.len();
                    let (segment, holds) = clones.remove(at);
                    segment.free(fate);
                    holds.into_iter().for_each(|id| model.let_go(id, |chain| chain.segments -= 1));
                }
                Op::Link(..) | Op::Finish(..) | Op::FreeClone(..) => {}
            }
            let mut told = Vec::new();
            context.reap(|id, _| told.push(id));
            alive -= told.len() as u32;
            prop_assert_eq!(told, std::mem::take(&mut model.posted), "after {:?}", op);
        }
        prop_assert_eq!(alive, 0, "each once");
    }
}
