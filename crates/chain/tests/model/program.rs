//! Steps of a random program.

use proptest::prelude::*;

/// Which chain, of [`CHAINS`].
pub type Slot = usize;

pub const CHAINS: usize = 3;

/// A place in a chain, as thousandths of its length; above 1000 it is so many bytes behind the end.
pub type Place = usize;

#[derive(Clone, Debug)]
pub enum Step {
    Copy { to: Slot, len: usize, seed: u8, headroom: usize },
    Fragment { to: Slot, offset: usize, len: usize, seed: u8, front: bool },
    Again { of: Slot, offset: usize, len: usize, to: Slot },
    Piece { to: Slot, offset: usize, len: usize, seed: u8, copy_break: usize },
    Read { to: Slot, len: usize, max: usize, seed: u8 },
    Concat { to: Slot, from: Slot },
    SplitTo { of: Slot, at: Place, to: Slot },
    SplitOff { of: Slot, at: Place, to: Slot },
    Advance { of: Slot, at: Place },
    Pull { of: Slot, at: Place },
    Truncate { of: Slot, at: Place },
    Range { of: Slot, at: Place, len: Place, to: Slot },
    Share { of: Slot, to: Slot },
    Take { of: Slot, to: Slot },
    Clear { of: Slot },
    EndRecord { of: Slot },
    Rights { of: Slot, at: Place, count: usize },
    From { of: Slot, at: Place, pid: i32 },
    PopMark { of: Slot },
    SplitRecord { of: Slot, to: Slot },
    Header { of: Slot, len: usize, seed: u8 },
    PullUp { of: Slot, at: Place, headroom: usize },
    Overwrite { of: Slot, at: Place, len: usize, seed: u8 },
    Collapse { of: Slot, copy_break: usize },
    Known { of: Slot },
    Checked { of: Slot },
    Partial { of: Slot, start: Place, offset: usize },
    Verify { of: Slot },
    Finish { of: Slot },
}

fn slot() -> std::ops::Range<usize> {
    0..CHAINS
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![8 => 0usize..=1000, 1 => Just(0), 1 => Just(1000), 1 => 1001usize..1100]
}

fn short() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0usize), 4 => 1usize..20, 2 => 20usize..300]
}

pub fn program() -> impl Strategy<Value = Step> {
    let any_len = prop_oneof![3 => 0usize..200, 2 => 1usize..5000, 1 => 4000usize..13000];
    let in_page = (0usize..4200, prop_oneof![3 => 0usize..300, 2 => 0usize..4300]);
    let grow = prop_oneof![
        (slot(), any_len.clone(), any::<u8>(), prop_oneof![3 => 0usize..100, 1 => 4090usize..4100])
            .prop_map(|(to, len, seed, headroom)| Step::Copy { to, len, seed, headroom }),
        (slot(), in_page.clone(), any::<u8>(), any::<bool>())
            .prop_map(|(to, (offset, len), seed, front)| Step::Fragment { to, offset, len, seed, front }),
        (slot(), in_page.clone(), slot()).prop_map(|(of, (offset, len), to)| Step::Again {
            of,
            offset,
            len,
            to
        }),
        (slot(), in_page, any::<u8>(), 0usize..600).prop_map(|(to, (offset, len), seed, copy_break)| {
            Step::Piece { to, offset, len, seed, copy_break }
        }),
        (slot(), 0usize..9000, 0usize..9000, any::<u8>()).prop_map(|(to, len, max, seed)| Step::Read {
            to,
            len,
            max,
            seed
        }),
        (slot(), short(), any::<u8>()).prop_map(|(of, len, seed)| Step::Header { of, len, seed }),
    ];
    let cut = prop_oneof![
        (slot(), slot()).prop_map(|(to, from)| Step::Concat { to, from }),
        (slot(), place(), slot()).prop_map(|(of, at, to)| Step::SplitTo { of, at, to }),
        (slot(), place(), slot()).prop_map(|(of, at, to)| Step::SplitOff { of, at, to }),
        (slot(), place()).prop_map(|(of, at)| Step::Advance { of, at }),
        (slot(), place()).prop_map(|(of, at)| Step::Pull { of, at }),
        (slot(), place()).prop_map(|(of, at)| Step::Truncate { of, at }),
        (slot(), place(), place(), slot()).prop_map(|(of, at, len, to)| Step::Range { of, at, len, to }),
        (slot(), slot()).prop_map(|(of, to)| Step::Share { of, to }),
        (slot(), slot()).prop_map(|(of, to)| Step::Take { of, to }),
        slot().prop_map(|of| Step::Clear { of }),
    ];
    let mark = prop_oneof![
        2 => slot().prop_map(|of| Step::EndRecord { of }),
        1 => (slot(), place(), 0usize..3).prop_map(|(of, at, count)| Step::Rights { of, at, count }),
        1 => (slot(), place(), 1..100).prop_map(|(of, at, pid)| Step::From { of, at, pid }),
        1 => slot().prop_map(|of| Step::PopMark { of }),
        1 => (slot(), slot()).prop_map(|(of, to)| Step::SplitRecord { of, to }),
    ];
    let bytes = prop_oneof![
        (slot(), place(), prop_oneof![0usize..100, 4000usize..4100])
            .prop_map(|(of, at, headroom)| Step::PullUp { of, at, headroom }),
        (slot(), place(), short(), any::<u8>()).prop_map(|(of, at, len, seed)| Step::Overwrite {
            of,
            at,
            len,
            seed
        }),
        (slot(), 0usize..3000).prop_map(|(of, copy_break)| Step::Collapse { of, copy_break }),
        slot().prop_map(|of| Step::Known { of }),
        slot().prop_map(|of| Step::Checked { of }),
        (slot(), place(), 0usize..20).prop_map(|(of, start, offset)| Step::Partial { of, start, offset }),
        slot().prop_map(|of| Step::Verify { of }),
        slot().prop_map(|of| Step::Finish { of }),
    ];
    prop_oneof![4 => grow, 4 => cut, 2 => mark, 3 => bytes]
}
