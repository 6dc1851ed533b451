//! The peer's timestamps: which one is echoed, and which segments are older than that (PAWS; RFC 7323, sections 4.3 and 5).

use super::Moment;
use crate::wire::tcp::{Seq, Tcp, Timestamps};
use std::num::NonZeroU32;

/// Seconds after which what was seen says nothing any more: Linux takes the time in which a clock of microseconds wraps its sign
/// (TCP_PAWS_WRAP), RFC 7323 24 days.
const STALE: u32 = i32::MAX as u32 / 1_000_000;
/// A value that is older by so much passes (TCP_PAWS_WINDOW): two hosts in one may count out of step.
const SLACK: i32 = 1;

/// What PAWS says of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paws {
    /// It is not older than what was seen.
    Passed,
    /// An ACK that was overtaken: drop it, and say nothing.
    OldAck,
    /// An old duplicate: drop it, and acknowledge. (A reset is not judged by this: RFC 7323, section 5.2.)
    Rejected,
}

/// TS.Recent.
#[derive(Debug, Default)]
pub(super) struct Recent {
    value: u32,
    /// When it was seen, in seconds from 1 on; none where there are no timestamps.
    at: Option<NonZeroU32>,
}

impl Recent {
    pub fn new(moment: &Moment, value: Option<u32>) -> Recent {
        let mut recent = Recent::default();
        if let Some(value) = value {
            recent.store(moment, value);
        }
        recent
    }

    pub fn on(&self) -> bool {
        self.at.is_some()
    }

    pub fn value(&self) -> u32 {
        self.value
    }

    fn store(&mut self, moment: &Moment, value: u32) {
        self.value = value;
        self.at = Some(seconds(moment));
    }

    /// Whether `value` is not older than what was seen, by more than `slack` (tcp_paws_check).
    fn fits(&self, moment: &Moment, value: u32, slack: i32) -> bool {
        // Some say 0 in their SYN, whatever their clock says.
        self.value.wrapping_sub(value) as i32 <= slack
            || self.at.is_none_or(|at| seconds(moment).get().wrapping_sub(at.get()) >= STALE)
            || self.value == 0
    }

    pub fn paws(&self, moment: &Moment, header: &Tcp, len: u32, nxt: Seq, repeats: bool) -> Paws {
        let Some(Timestamps { value, .. }) = header.options.timestamps.filter(|_| self.on()) else {
            return Paws::Passed;
        };
        if self.fits(moment, value, SLACK) {
            return Paws::Passed;
        }
        if len > 0 {
            return Paws::Rejected;
        }
        // ACKs say the time that they were made at, which is not that of the data: on a path that reorders, they pass for a while.
        // (tcp_disordered_ack_check; a clock of 1200 Hz is the fastest in use.)
        let behind = i64::from(self.value.wrapping_sub(value) as i32);
        let replay = (moment.rto / 1_000_000).saturating_mul(1200) / 1000;
        match header.seq.since(nxt) {
            0 if repeats && u64::try_from(behind).is_ok_and(|behind| behind <= replay) => Paws::Passed,
            before if before < 0 => Paws::OldAck,
            _ => Paws::Rejected,
        }
    }

    /// Takes the value of a segment, if it covers what was acknowledged last (tcp_replace_ts_recent).
    pub fn note(&mut self, moment: &Moment, header: &Tcp, acknowledged: Seq) {
        if let Some(Timestamps { value, .. }) = header.options.timestamps
            && self.on()
            && !header.seq.after(acknowledged)
            && self.fits(moment, value, 0)
        {
            self.store(moment, value);
        }
    }
}

fn seconds(moment: &Moment) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add((moment.now / 1_000_000_000) as u32)
}
