//! What a case is made of, all of it from its seed.

use std::time::Duration;

use onecopy_conformance::tools::Dice;
use onecopy_inet::tcp::config::EcnUse;
use onecopy_link::pair::Path;
use onecopy_link::{Capabilities, Medium};

/// The fewest bytes of a case, both ways together.
pub const BYTES: u64 = 64 << 10;

/// Of 1, so many packets are lost at least, either way.
pub const LOSS: f64 = 0.01;

/// How an end sends and receives.
#[derive(Clone, Debug)]
pub(super) struct Habits {
    /// Bytes that it sends in all.
    pub bytes: u64,
    /// Bytes of a send, at most.
    pub piece: usize,
    /// So many of 4 sends go by reference.
    pub by_reference: u64,
    /// So many of 4 sends say that more comes.
    pub more: u64,
    /// Bytes that it reads at once.
    pub read: usize,
    /// For how long it does not read after it has read, in nanoseconds.
    pub pause: u64,
    pub nodelay: bool,
    pub cork: bool,
    pub send_buffer: Option<u32>,
    pub receive_buffer: Option<u32>,
    pub low_water: u32,
    pub notsent_lowat: Option<u32>,
    pub window_clamp: Option<u32>,
    /// It closes as soon as all has come, and has been acknowledged, and does not wait for the other end.
    pub hasty: bool,
}

/// A case.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub link: Capabilities,
    /// From the first end to the second one, and back.
    pub paths: [Path; 2],
    /// The ends' seeds, of which their first numbers are made.
    pub seeds: [[u8; 16]; 2],
    /// When it begins, in nanoseconds.
    pub start: u64,
    pub sack: [bool; 2],
    pub timestamps: [bool; 2],
    pub window_scaling: [bool; 2],
    pub ecn: [EcnUse; 2],
    /// Buffers as Linux has them, or small ones.
    pub small: bool,
    pub ends: [Habits; 2],
}

impl Plan {
    /// The case of a seed.
    pub fn new(seed: u64) -> Plan {
        let mut dice = Dice(seed);
        let dice = &mut dice;
        let mtu = if dice.one_in(4) { 576 + (dice.roll() % 8425) as u32 } else { 1500 };
        // (Without neighbours to be asked for: their answers have no checksum, and who believes a damaged one hears nobody for minutes.)
        let medium = Medium::Ip;
        let link =
            if dice.one_in(2) { Capabilities::all(medium, mtu) } else { Capabilities::none(medium, mtu) };
        let whole = dice.one_in(2);
        let rate = 1_000_000 << (dice.roll() % 10);
        let delay = 10_000 << (dice.roll() % 13);
        let paths = [(); 2].map(|()| path(dice, rate, delay, whole));
        let seeds = [(); 2].map(|()| u128::from(dice.roll()).wrapping_mul(u128::MAX / 7).to_le_bytes());
        let mut lacks = || {
            let none = dice.one_in(8);
            [(); 2].map(|()| !(none || dice.one_in(16)))
        };
        let (sack, timestamps, window_scaling, ecn) = (lacks(), lacks(), lacks(), lacks());
        let ecn = ecn.map(|usual| if usual { EcnUse::Accept } else { EcnUse::Ask });
        let more = if dice.one_in(16) { 500_000 } else { 16_000 };
        let total = BYTES + dice.size(more) as u64;
        let first = match dice.roll() % 4 {
            0 => total,
            1 => 0,
            _ => dice.roll() % (total + 1),
        };
        let ends = [first, total - first].map(|bytes| habits(dice, bytes));
        let (start, small) = (dice.roll() >> 14, dice.one_in(4));
        // (Last: what a seed meant before there were marks it means still, but for them.)
        let paths = paths.map(|path| marked(dice, path));
        Plan { link, paths, seeds, start, sack, timestamps, window_scaling, ecn, small, ends }
    }
}

/// A number from `least` to `most`, evenly.
fn between(dice: &mut Dice, least: f64, most: f64) -> f64 {
    least + (most - least) * (dice.roll() >> 11) as f64 / (1u64 << 53) as f64
}

fn path(dice: &mut Dice, rate: u64, delay: u64, whole: bool) -> Path {
    let most = if dice.one_in(4) { 0.05 } else { 0.02 };
    let held_back = Duration::from_nanos(delay / 2 + 100_000);
    Path::new()
        .delay(Duration::from_nanos(delay))
        .jitter(Duration::from_nanos(dice.roll() % (delay / 4 + 1)))
        .rate(rate)
        .queue(if dice.one_in(4) { 20_000 } else { 1 << 20 })
        .loss(between(dice, LOSS, most))
        .duplicate(between(dice, 0.001, 0.05))
        .reorder(between(dice, 0.001, 0.1), held_back)
        .corrupt(between(dice, 0.001, 0.02))
        .whole(whole)
}

/// Half of the ways mark what may bear it while their queue is longer than so many bytes, down to one packet (RFC 3168, section 5; a step as in
/// RFC 8257, section 3.1).
fn marked(dice: &mut Dice, path: Path) -> Path {
    if dice.one_in(2) { path.mark_above(dice.size(40_000) as u64) } else { path }
}

fn habits(dice: &mut Dice, bytes: u64) -> Habits {
    let often = |dice: &mut Dice, one_in| dice.one_in(one_in);
    let some = |dice: &mut Dice, one_in, least: u32, range: u64| {
        dice.one_in(one_in).then(|| least + (dice.roll() % range) as u32)
    };
    Habits {
        bytes,
        // (Many small ones take long.)
        piece: if often(dice, 8) { 400 } else { 3000 } + dice.size(60_000),
        by_reference: dice.roll() % 5,
        more: if often(dice, 4) { dice.roll() % 4 } else { 0 },
        read: 500 + dice.size(200_000),
        pause: if often(dice, 4) { dice.roll() % 50_000_000 } else { 0 },
        nodelay: often(dice, 2),
        cork: often(dice, 8),
        send_buffer: some(dice, 6, 4608, 100_000),
        receive_buffer: some(dice, 6, 4608, 100_000),
        low_water: some(dice, 8, 1, 3000).unwrap_or(1),
        notsent_lowat: some(dice, 8, 1, 20_000),
        window_clamp: some(dice, 8, 2000, 50_000),
        hasty: often(dice, 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_large_enough_and_the_same_each_time() {
        for seed in 0..1000 {
            let plan = Plan::new(seed);
            assert!(plan.ends[0].bytes + plan.ends[1].bytes >= BYTES);
            assert_eq!(format!("{plan:?}"), format!("{:?}", Plan::new(seed)));
        }
    }
}
