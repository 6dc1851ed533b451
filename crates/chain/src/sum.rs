//! The internet checksum's arithmetic: one's-complement sums of 16-bit words (RFC 1071), taken apart and put together
//! (RFC 1624).

use std::fmt;

/// The one's-complement sum of a run of bytes, read as 16-bit big-endian words, an odd last byte filled up with a zero
/// (RFC 1071, section 1). What stands in a header is its complement, [`Sum::checksum`].
///
/// Zero has two forms in this arithmetic, 0x0000 and 0xffff; they compare as equal.
#[derive(Clone, Copy, Default, Eq)]
pub struct Sum(u16);

/// Words that one turn of the loop takes.
const LANES: usize = 8;

impl Sum {
    /// Of no bytes.
    pub const ZERO: Sum = Sum(0);

    /// A sum that somebody else made: a device, or a pseudo-header's.
    pub const fn new(folded: u16) -> Sum {
        Sum(folded)
    }

    /// Of `bytes`. Reads them once.
    pub fn of(bytes: &[u8]) -> Sum {
        // Words of 32 bits in this machine's order: the sum does not care for either (RFC 1071, section 2 B and C).
        let (words, rest) = bytes.as_chunks::<4>();
        let (blocks, words) = words.as_chunks::<LANES>();
        // Less than a block, as headers are: a few words, which 64 bits hold.
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        let few = words.iter().map(word).sum::<u64>() + word(&last);
        let sum = if blocks.is_empty() { few } else { add(few, many(blocks)) };
        Sum(u16::from_be(fold(sum)))
    }

    /// The 16 bits, as a big-endian word has them.
    pub const fn folded(self) -> u16 {
        self.0
    }

    /// What is stored in a header's checksum field: the complement.
    pub const fn checksum(self) -> u16 {
        !self.0
    }

    /// Whether a packet is intact whose sum this is, its checksum field and pseudo-header included.
    pub const fn is_valid(self) -> bool {
        self.0 == 0xffff
    }

    /// The sum of what this is the sum of, followed by bytes with the sum `next`; `at` is how many bytes stand before
    /// those. At an odd place each byte of `next` is the other half of its word (RFC 1071, section 2 A and B).
    pub fn then(self, next: Sum, at: usize) -> Sum {
        Sum(fold(u64::from(self.0) + u64::from(next.turned(at))))
    }

    /// The sum of the rest, when the first `at` bytes had the sum `front`. Where the rest is all zeroes this may be
    /// 0xffff instead of 0, which is equal but has another [`Sum::checksum`].
    pub fn without_front(self, front: Sum, at: usize) -> Sum {
        Sum(Sum(fold(u64::from(self.0) + u64::from(!front.0))).turned(at))
    }

    /// The sum after bytes with the sum `old`, `at` bytes from the start, were changed to bytes with the sum `new`
    /// (RFC 1624, section 3, in the form that gets zero right).
    pub fn changed(self, old: Sum, new: Sum, at: usize) -> Sum {
        Sum(fold(u64::from(self.0) + u64::from(!old.turned(at)) + u64::from(new.turned(at))))
    }

    fn turned(self, at: usize) -> u16 {
        if at.is_multiple_of(2) { self.0 } else { self.0.swap_bytes() }
    }
}

fn word(bytes: &[u8; 4]) -> u64 {
    u32::from_ne_bytes(*bytes).into()
}

/// The sum of whole blocks. 2^32 words fit into each lane.
fn many(blocks: &[[[u8; 4]; LANES]]) -> u64 {
    let mut lanes = [0; LANES];
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(lane, bytes)| *lane += word(bytes));
    }
    lanes.into_iter().fold(0, add)
}

/// Adds with the carry coming in at the other end.
fn add(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u64::from(carry)
}

fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

impl PartialEq for Sum {
    fn eq(&self, other: &Sum) -> bool {
        self.0 == other.0 || (self.0 ^ other.0 == 0xffff && (self.0 == 0 || other.0 == 0))
    }
}

impl fmt::Debug for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sum({:#06x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_testing::internet_sum;
    use proptest::prelude::*;

    #[test]
    fn the_example_of_the_rfc() {
        // RFC 1071, section 3: 0001 f203 f4f5 f6f7 sum to ddf2.
        assert_eq!(Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).folded(), 0xddf2);
        // RFC 1624, section 4: a header of checksum dd2f, a word changes from 5555 to 3285.
        let before = Sum::new(!0xdd2f);
        assert_eq!(before.changed(Sum::new(0x5555), Sum::new(0x3285), 0).checksum(), 0x0000);
    }

    #[test]
    fn every_length_and_the_two_zeroes() {
        let bytes: Vec<u8> = (0..400u32).map(|i| ((i * 167) >> 2) as u8 | 0x81).collect();
        for len in 0..bytes.len() {
            assert_eq!(Sum::of(&bytes[..len]).folded(), internet_sum(&bytes[..len]), "{len} bytes");
        }
        assert_eq!(Sum::of(&[0xff; 65536]).folded(), internet_sum(&[0xff; 65536]));
        assert_eq!(Sum::new(0), Sum::new(0xffff));
        assert_ne!(Sum::new(1), Sum::new(0xfffe));
        assert_ne!(Sum::new(0), Sum::new(1));
        let packet = [0x45, 0x00, 0x00, 0x14];
        let mut whole = packet.to_vec();
        whole.extend(Sum::of(&packet).checksum().to_be_bytes());
        assert!(Sum::of(&whole).is_valid());
        whole[0] ^= 1;
        assert!(!Sum::of(&whole).is_valid());
    }

    proptest! {
        #[test]
        fn parts_make_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..300,
                                change in any::<[u8; 3]>()) {
            let cut = cut.min(bytes.len());
            let (front, back) = bytes.split_at(cut);
            let whole = Sum::of(&bytes);
            prop_assert_eq!(whole.folded(), internet_sum(&bytes));
            prop_assert_eq!(Sum::of(front).then(Sum::of(back), cut).folded(), internet_sum(&bytes));
            prop_assert_eq!(whole.without_front(Sum::of(front), cut), Sum::of(back));
            if cut + 3 <= bytes.len() {
                let mut changed = bytes.clone();
                changed[cut..cut + 3].copy_from_slice(&change);
                let sum = whole.changed(Sum::of(&bytes[cut..cut + 3]), Sum::of(&change), cut);
                prop_assert_eq!(sum, Sum::of(&changed));
            }
        }
    }
}
