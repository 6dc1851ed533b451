//! Whether a link should put the next packet's payload into bound memory itself.
//!
//! Whose a packet is shows in its headers, when it has been read and lies somewhere. So it is foreseen: the next packet with much payload belongs
//! where the one before did, and its headers are as long. What was foreseen is compared with what came, whether payload was put by it or not, and
//! it is gone by only while it is right nearly always: a wrong guess costs a copy more than none.

/// Bytes of payload that are worth it, and that fill their pages by half at least, as windows count on
/// ([decision 0059](../../../../docs/decisions/0059-promise-no-more-than-the-memory-holds.md)).
pub(super) const LEAST: usize = 2048;

/// Where payload can be put before its packet is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    /// The memory, by its pool.
    pub memory: u64,
    /// Bytes of the packet's headers.
    pub headers: usize,
}

/// What the next packet will be.
#[derive(Debug, Default)]
pub(super) struct Foresight {
    /// Where the last one with much payload belonged; None: elsewhere.
    last: Option<Expected>,
    trust: u32,
}

/// What is believed, and the most that there is: it takes eight packets to be believed, and at most four that were wrong not to be.
const ENOUGH: u32 = 16;
const MOST: u32 = 64;
/// What packets are worth: one that was foreseen; one that was not, with much payload; one with little, which costs little.
const RIGHT: u32 = 2;
const WRONG: u32 = 16;
const SMALL: u32 = 1;

impl Foresight {
    /// Where the next packet belongs, if that is sure enough.
    pub fn next(&self) -> Option<Expected> {
        self.last.filter(|_| self.trust >= ENOUGH)
    }

    /// A packet with so many bytes of payload belonged there.
    pub fn came(&mut self, place: Option<Expected>, len: usize) {
        if len < LEAST {
            let small = u32::from(len > 0) * SMALL;
            self.trust = self.trust.saturating_sub(small);
            return;
        }
        if self.last.is_some() {
            self.trust = match place == self.last {
                true => (self.trust + RIGHT).min(MOST),
                false => self.trust.saturating_sub(WRONG),
            };
        }
        self.last = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Option<Expected> = Some(Expected { memory: 1, headers: 66 });

    /// How often it foresaw what came, and how often something else.
    fn foresees(packets: impl Iterator<Item = (Option<Expected>, usize)>) -> (u32, u32) {
        let mut foresight = Foresight::default();
        let (mut right, mut wrong) = (0, 0);
        for (place, len) in packets {
            if let Some(next) = foresight.next() {
                *(if Some(next) == place { &mut right } else { &mut wrong }) += 1;
            }
            foresight.came(place, len);
        }
        (right, wrong)
    }

    #[test]
    fn a_flow_by_itself_is_foreseen_and_turns_of_two_are_not() {
        assert_eq!(foresees(std::iter::repeat_n((HERE, 60_000), 100)), (91, 0));
        let other = Some(Expected { memory: 1, headers: 54 });
        for stranger in [None, other] {
            let turns =
                |n: usize| (0..1000).map(move |at| (if at % n == 0 { stranger } else { HERE }, 60_000));
            assert_eq!(foresees(turns(2)), (0, 0));
            assert_eq!(foresees(turns(4)), (0, 0));
            let (right, wrong) = foresees(turns(20));
            // The stranger, and the one behind it.
            assert!(right > 800 && wrong <= 100, "{right} {wrong}");
        }
        // A flow that ends costs some, and no more.
        let ends = std::iter::repeat_n((HERE, 60_000), 100).chain(std::iter::repeat_n((None, 60_000), 100));
        assert_eq!(foresees(ends), (91, 1));
        // So does one of small packets behind it; with such in between it goes on.
        let small = std::iter::repeat_n((HERE, 60_000), 100).chain(std::iter::repeat_n((None, 1448), 100));
        assert_eq!(foresees(small), (91, 49));
        let mixed = (0..1000).map(|at| if at % 2 == 0 { (HERE, 60_000) } else { (HERE, 100) });
        assert!(foresees(mixed).0 > 900);
    }
}
