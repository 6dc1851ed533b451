//! Whose turn it is, by the numbers of lanes.

/// Lanes that are looked at for each datagram, besides those that are known to have something: a look at each of many that have nothing would cost more than
/// the datagram.
pub(super) const FEW: usize = 8;

/// Whose turn it is. What it knows are guesses: lanes come and go, and whoever asks looks.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The lane whose turn it is, if it has something; else the next one that has.
    next: usize,
    /// From which lane on a few are looked at.
    looked: usize,
    /// A bit for each lane that had something when it was looked at last: there are no more than 64.
    some: u64,
}

/// The lowest `n` bits.
fn low(n: usize) -> u64 {
    1_u64.checked_shl(n as u32).map_or(u64::MAX, |bit| bit - 1)
}

impl Turns {
    /// The lane whose turn it is, of those that had something, and of `lanes` in all.
    #[inline]
    pub fn known(&self, lanes: usize) -> Option<usize> {
        let some = self.some & low(lanes);
        let ahead = some & !low(self.next);
        let of = if ahead != 0 { ahead } else { some };
        (of != 0).then(|| of.trailing_zeros() as usize)
    }

    /// Lane number `i` from the one on whose turn it is.
    pub fn nth(&self, i: usize, lanes: usize) -> usize {
        (self.next + i) % lanes
    }

    /// The few lanes to look at.
    pub fn few(&self, lanes: usize) -> impl Iterator<Item = usize> + use<> {
        let from = self.looked;
        (0..FEW.min(lanes)).map(move |i| (from + i) % lanes)
    }

    /// Lane `at` was looked at.
    #[inline]
    pub fn saw(&mut self, at: usize, some: bool) {
        let bit = 1 << at;
        self.some = if some { self.some | bit } else { self.some & !bit };
    }

    /// Lane `at` has had its turn.
    #[inline]
    pub fn had(&mut self, at: usize, lanes: usize) {
        self.next = (at + 1) % lanes.max(1);
        self.looked = (self.looked + FEW) % lanes.max(1);
    }

    /// It is the turn of lane `at` again: what it has was looked at, and stays.
    pub fn again(&mut self, at: usize) {
        self.next = at;
    }

    /// Lane `at` is closed: those behind it move up.
    pub fn closed(&mut self, at: usize) {
        self.next -= usize::from(self.next > at);
        self.looked -= usize::from(self.looked > at);
        self.some = self.some & low(at) | self.some >> 1 & !low(at);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Receives as often as `times`, with so many lanes of which those in `full` always have something. How often each had its turn.
    fn turns(turns: &mut Turns, lanes: usize, full: &[usize], times: usize) -> Vec<usize> {
        let mut had = vec![0; lanes];
        for _ in 0..times {
            for at in turns.few(lanes) {
                turns.saw(at, full.contains(&at));
            }
            let at = loop {
                match turns.known(lanes) {
                    Some(at) if full.contains(&at) => break at,
                    Some(at) => turns.saw(at, false),
                    None => {
                        break (0..lanes).map(|i| turns.nth(i, lanes)).find(|at| full.contains(at)).unwrap();
                    }
                }
            };
            turns.saw(at, true);
            turns.had(at, lanes);
            had[at] += 1;
        }
        had
    }

    #[test]
    fn all_that_have_something_have_their_turns_alike() {
        for full in [vec![0, 1], vec![3], vec![2, 17, 63], vec![62, 63], (0..64).collect()] {
            let had = turns(&mut Turns::default(), 64, &full, 6400);
            for (at, had) in had.iter().enumerate() {
                let due = if full.contains(&at) { 6400 / full.len() } else { 0 };
                assert!(had.abs_diff(due) <= 9, "{full:?}: {at} had {had}");
            }
        }
    }

    #[test]
    fn who_gets_something_is_found_within_a_round_of_looks() {
        for lanes in [1, 2, 7, 8, 9, 30, 64] {
            let mut state = Turns::default();
            turns(&mut state, lanes, &[0], 100);
            for at in 0..lanes {
                let had = turns(&mut state, lanes, &[0, at], lanes.div_ceil(FEW) + 2);
                assert!(had[at] > 0, "{at} of {lanes}");
                turns(&mut state, lanes, &[0], 3);
            }
        }
    }

    #[test]
    fn lanes_move_up_where_one_is_closed() {
        let mut state = Turns { next: 5, looked: 3, some: 0b1010_1001 };
        state.closed(3);
        assert_eq!((state.next, state.looked, state.some), (4, 3, 0b101_0001));
        state.closed(0);
        assert_eq!((state.next, state.looked, state.some), (3, 2, 0b10_1000));
        assert_eq!(state.known(6), Some(3));
        // Only some are left, and those that are known are none of these.
        assert_eq!((state.known(3), state.nth(0, 2), state.few(1).collect::<Vec<_>>()), (None, 1, vec![0]));
        let mut last = Turns { next: 63, looked: 63, some: 1 << 63 };
        assert_eq!(last.known(64), Some(63));
        last.closed(63);
        assert_eq!((last.next, last.some), (63, 0));
        last.had(63, 0);
        assert_eq!(last.next, 0);
    }
}
