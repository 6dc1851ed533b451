//! Steps of a random program.

use onecopy_chain::notify::Fate;
use proptest::prelude::*;

/// Whose memory bytes are put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Ours, copied: nobody waits for them.
    Copied,
    /// Ours, lent.
    Ours,
    /// A piece of a page of ours, lent.
    Piece,
    /// A peer's.
    Peer,
    /// A device's.
    Device,
}

/// A place in the queue, as thousandths of its length; above 1000 it is so many bytes behind the end.
pub type Place = u64;

#[derive(Clone, Debug)]
pub enum Step {
    /// Sends, one behind the other, on one segment: what cannot be on it begins another.
    Push(Vec<(Memory, usize)>),
    /// Copies so many bytes to the end.
    Write(usize),
    /// A part by reference, kept on its way.
    Range(Place, usize),
    /// What is on its way has gone, or is lost: the one with that number, of those that there are.
    Gone(usize, Option<Fate>),
    Advance(Place, Fate),
    Truncate(Place, Fate),
    Take(usize, Fate),
    Clear(Fate),
    /// Cuts what is on its way in two, joins it again or not.
    Cut(usize, Place, bool),
    Reap(usize),
    Rest,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![4 => Just(Fate::Sent), 1 => Just(Fate::Copied), 1 => Just(Fate::Dropped)]
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![8 => 0u64..=1000, 1 => Just(0), 1 => Just(1000), 1 => 1001u64..1010]
}

pub fn step() -> impl Strategy<Value = Step> {
    let memory = prop_oneof![
        3 => Just(Memory::Copied), 4 => Just(Memory::Ours), 1 => Just(Memory::Piece), 2 => Just(Memory::Peer),
        2 => Just(Memory::Device)
    ];
    let bytes = prop_oneof![1 => Just(0usize), 4 => 1usize..60, 2 => 60usize..4097];
    prop_oneof![
        6 => prop::collection::vec((memory, bytes), 1..5).prop_map(Step::Push),
        3 => (0usize..6000).prop_map(Step::Write),
        6 => (place(), 0usize..3000).prop_map(|(at, len)| Step::Range(at, len)),
        4 => (0usize..8, prop::option::of(fate())).prop_map(|(which, fate)| Step::Gone(which, fate)),
        4 => (place(), fate()).prop_map(|(at, fate)| Step::Advance(at, fate)),
        1 => (place(), fate()).prop_map(|(at, fate)| Step::Truncate(at, fate)),
        2 => (0usize..3000, fate()).prop_map(|(max, fate)| Step::Take(max, fate)),
        1 => fate().prop_map(Step::Clear),
        3 => (0usize..8, 0u64..=1000, any::<bool>()).prop_map(|(which, at, again)| Step::Cut(which, at, again)),
        3 => (0usize..6).prop_map(Step::Reap),
        1 => Just(Step::Rest),
    ]
}
