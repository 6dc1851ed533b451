//! The same completions as MSG_ZEROCOPY tells them: ranges of numbers (Documentation/networking/msg_zerocopy.rst).

use super::outcome::Completion;
use super::queue::Queue;

/// Sends that one range tells of at most (net/core/skbuff.c, msg_zerocopy_realloc: USHRT_MAX - 1).
pub const MAX_SENDS: u32 = 65534;
/// Bytes that one range tells of at most, unless a single send is larger (the same place).
pub const MAX_BYTES: u64 = 512 << 10;

/// The sends `lo..=hi` of a lane are complete: what `ee_info` and `ee_data` say in the kernel's `sock_extended_err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The lane.
    pub lane: u32,
    /// The first one: numbers are counted in 32 bits, wrapping.
    pub lo: u32,
    /// The last one.
    pub hi: u32,
    /// Bytes of all of them.
    pub bytes: u64,
    /// SO_EE_CODE_ZEROCOPY_COPIED. The same for each of them: the kernel forgets it of a range that it merges to another one,
    /// here such two are not merged.
    pub copied: bool,
    /// Whether each of them was copied is not known ([`How::unknown`](super::How::unknown)).
    pub unknown: bool,
    /// Bytes of each of them were dropped.
    pub dropped: bool,
}

impl Range {
    pub(super) fn of(one: Completion) -> Range {
        Range {
            lane: one.lane,
            lo: one.id as u32,
            hi: one.id as u32,
            bytes: u64::from(one.bytes),
            copied: one.how.copied,
            unknown: one.how.unknown,
            dropped: one.how.dropped,
        }
    }

    /// Sends in it.
    pub fn sends(&self) -> u32 {
        self.hi.wrapping_sub(self.lo).wrapping_add(1)
    }

    /// Whether `next` went into this one (skb_zerocopy_notify_extend: the new `lo` is the old `hi` plus one).
    pub fn extend(&mut self, next: &Range) -> bool {
        let fits = next.lane == self.lane
            && next.lo == self.hi.wrapping_add(1)
            && (next.copied, next.unknown, next.dropped) == (self.copied, self.unknown, self.dropped)
            && self.sends() + next.sends() <= MAX_SENDS
            && self.bytes + next.bytes <= MAX_BYTES;
        if fits {
            self.hi = next.hi;
            self.bytes += next.bytes;
        }
        fits
    }
}

impl Queue {
    /// As [`Queue::reap`], in ranges. Returns how many sends they tell of.
    pub fn reap_ranges(&mut self, mut each: impl FnMut(Range)) -> usize {
        let mut open: Option<Range> = None;
        let count = self.reap(|one| {
            let next = Range::of(one);
            if !open.as_mut().is_some_and(|range| range.extend(&next))
                && let Some(full) = open.replace(next)
            {
                each(full);
            }
        });
        open.into_iter().for_each(each);
        count
    }
}
