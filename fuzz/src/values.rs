//! Numbers for what a peer may write.

use onecopy_conformance::tools::Dice;

/// A number of the kind that breaks things.
pub fn value(dice: &mut Dice, now: u64, capacity: u64) -> u64 {
    match dice.roll() % 12 {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => capacity,
        4 => capacity + 1,
        5 => capacity - 1,
        6 => now.wrapping_sub(1),
        7 => now.wrapping_add(capacity),
        8 => u64::MAX,
        9 => 1 << 63,
        10 => u64::from(u32::MAX),
        _ => dice.roll() >> (dice.roll() % 64),
    }
}
