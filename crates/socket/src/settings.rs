//! Settings that may be changed while a socket is in use, and how other processes see them.

use crate::registry::{Words, word};
use crate::stats::Counters;
use onecopy_copy::{Learned, Policy, Reader, Reason, Store};
use onecopy_sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use onecopy_sync::spin::Wait;
use std::time::Duration;

/// Settings that may be changed while the socket is in use. Relaxed everywhere: a setting takes effect at
/// once in the thread that set it, and soon in others.
#[derive(Debug)]
pub struct Settings {
    /// The row of the registry in which the socket counts. One word of it shows the settings to other processes, and is only written here.
    row: Words,
    policy: AtomicU8,
    reader: AtomicU8,
    wait: AtomicU8,
    nonblocking: AtomicU8,
    /// What was learned about stores, as [`Shown`] shows it; 0: nothing is learned.
    learned: AtomicU32,
    /// Loans of fewer bytes are copied; [`FOUND_OUT`]: what is found out decides.
    copied_below: AtomicU64,
    /// Up to how many bytes what could be lent was found faster copied, as [`Shown`] shows it: one more than that; 0: nothing was found out.
    copied_up_to: AtomicU32,
    /// Nanoseconds; 0 for none.
    read_timeout: AtomicU64,
    write_timeout: AtomicU64,
}

/// More than any number of bytes that is set.
const FOUND_OUT: u64 = u64::MAX;

/// The most that [`Settings::copied_up_to`] says, in bytes: 24 bits.
const MOST_COPIED: u32 = (1 << 24) - 2;

const POLICIES: [Policy; 3] = [Policy::Cached, Policy::NonTemporal, Policy::Auto];
const READERS: [Reader; 4] = [Reader::SameCore, Reader::OtherCore, Reader::NoCpu, Reader::Unknown];
const WAITS: [Wait; 3] = [Wait::Adaptive, Wait::Block, Wait::Spin];

fn position<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).unwrap_or(0) as u8
}

const STORES: [Store; 2] = [Store::Cached, Store::NonTemporal];
const REASONS: [Reason; 3] = [Reason::Plan, Reason::Faster, Reason::Tie];
/// Encodes what was learned: a byte for stores and reason, never 0, and two for the percentage.
fn encode(learned: Learned) -> u32 {
    let what = 1 + position(&STORES, &learned.store) + 2 * position(&REASONS, &learned.reason);
    // A percentage that is there is never shown as 0.
    u32::from(what) | learned.percent.map_or(0, |percent| percent.clamp(1, u16::MAX.into())) << 8
}

/// Decodes it. Returns None for an impossible value, and Some(None) where nothing is learned.
fn decode(word: u32) -> Option<Option<Learned>> {
    let Some(what) = (word as u8).checked_sub(1) else { return (word == 0).then_some(None) };
    let percent = word >> 8;
    Some(Some(Learned {
        store: STORES[usize::from(what) % 2],
        reason: *REASONS.get(usize::from(what) / 2)?,
        percent: (percent != 0).then_some(percent),
    }))
}

/// The settings as the registry shows them: two bits each, all in one byte; three bytes for the size up to which is copied what could be lent; four
/// for what was learned about stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub policy: Policy,
    pub reader: Reader,
    pub wait: Wait,
    pub nonblocking: bool,
    pub learned: Option<Learned>,
    pub copied_up_to: Option<u32>,
}

impl Shown {
    /// Reads what another process shows. Returns None for an impossible word.
    pub fn decode(word: u64) -> Option<Shown> {
        let setting = |at: u32| (word >> at) as usize & 3;
        let below = word as u32 >> 8;
        Some(Shown {
            policy: *POLICIES.get(setting(0))?,
            reader: *READERS.get(setting(2))?,
            wait: *WAITS.get(setting(4))?,
            nonblocking: match setting(6) {
                no_or_yes @ (0 | 1) => no_or_yes == 1,
                _ => return None,
            },
            learned: decode((word >> 32) as u32)?,
            copied_up_to: below.checked_sub(1),
        })
    }
}

impl Settings {
    /// Makes settings that are shown in `row`.
    pub(crate) fn new(row: Words, policy: Policy, reader: Reader, wait: Wait) -> Settings {
        let settings = Settings {
            row,
            policy: AtomicU8::default(),
            reader: AtomicU8::default(),
            wait: AtomicU8::default(),
            nonblocking: AtomicU8::default(),
            learned: AtomicU32::default(),
            copied_below: AtomicU64::new(FOUND_OUT),
            copied_up_to: AtomicU32::default(),
            read_timeout: AtomicU64::default(),
            write_timeout: AtomicU64::default(),
        };
        settings.set_policy(policy);
        settings.set_reader(reader);
        settings.set_wait(wait);
        settings
    }

    /// Shows the settings. If two threads change settings at once, the later one may show the earlier one's
    /// old value.
    fn show(&self) {
        let (of, long) =
            (|byte: &AtomicU8| byte.load(Relaxed), |word: &AtomicU32| u64::from(word.load(Relaxed)));
        let settings =
            of(&self.policy) | of(&self.reader) << 2 | of(&self.wait) << 4 | of(&self.nonblocking) << 6;
        let shown = u64::from(settings) | long(&self.copied_up_to) << 8 | long(&self.learned) << 32;
        self.row[word::SETTINGS].store(shown, Relaxed);
    }

    /// Returns the counters of the socket, which are in its row. Use them only while the row lives.
    #[inline]
    pub fn counters(&self) -> Counters {
        Counters::over(&self.row[word::COUNTERS..])
    }

    /// Returns which stores copies use.
    #[inline]
    pub fn policy(&self) -> Policy {
        POLICIES[self.policy.load(Relaxed) as usize]
    }

    /// Sets which stores copies use.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.store(position(&POLICIES, &policy), Relaxed);
        self.show();
    }

    /// Returns what was learned about the stores of what the socket sends, where its policy is [`Policy::Auto`] and its
    /// ring is large enough to learn.
    pub fn learned(&self) -> Option<Learned> {
        decode(self.learned.load(Relaxed)).flatten()
    }

    /// Sets what was learned.
    pub fn set_learned(&self, learned: Option<Learned>) {
        self.learned.store(learned.map_or(0, encode), Relaxed);
        self.show();
    }

    /// Returns who reads what the socket sends.
    #[inline]
    pub fn reader(&self) -> Reader {
        READERS[self.reader.load(Relaxed) as usize]
    }

    /// Sets who reads what the socket sends.
    pub fn set_reader(&self, reader: Reader) {
        self.reader.store(position(&READERS, &reader), Relaxed);
        self.show();
    }

    /// Returns how blocking calls wait.
    #[inline]
    pub fn wait(&self) -> Wait {
        WAITS[self.wait.load(Relaxed) as usize]
    }

    /// Sets how blocking calls wait.
    pub fn set_wait(&self, wait: Wait) {
        self.wait.store(position(&WAITS, &wait), Relaxed);
        self.show();
    }

    /// Takes over the policy and the reader of another socket.
    pub fn follow(&self, other: &Settings) {
        if self.policy.load(Relaxed) != other.policy.load(Relaxed)
            || self.reader.load(Relaxed) != other.reader.load(Relaxed)
        {
            self.set_policy(other.policy());
            self.set_reader(other.reader());
        }
    }

    /// Returns whether O_NONBLOCK is set, as the socket last saw it.
    #[inline]
    pub fn nonblocking(&self) -> bool {
        self.nonblocking.load(Relaxed) != 0
    }

    /// Notes whether O_NONBLOCK is set. Does not touch the descriptor.
    pub fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(u8::from(on), Relaxed);
        self.show();
    }

    /// Returns below how many bytes a loan is copied, as was set; None: it is found out.
    #[inline]
    pub fn copied_below(&self) -> Option<u32> {
        u32::try_from(self.copied_below.load(Relaxed)).ok()
    }

    /// Sets below how many bytes a loan is copied; None: it is found out.
    pub fn set_copied_below(&self, below: Option<u32>) {
        self.copied_below.store(below.map_or(FOUND_OUT, u64::from), Relaxed);
    }

    /// Returns up to how many bytes what could be lent was found faster copied; 0: none was. None: nothing was found out.
    pub fn copied_up_to(&self) -> Option<u32> {
        self.copied_up_to.load(Relaxed).checked_sub(1)
    }

    /// Notes what was found out; of more than 16 MiB it says 16 MiB.
    pub fn set_copied_up_to(&self, most: Option<u32>) {
        let shown = most.map_or(0, |most| most.min(MOST_COPIED) + 1);
        // (Each send asks, and hardly any finds news.)
        if self.copied_up_to.load(Relaxed) != shown {
            self.copied_up_to.store(shown, Relaxed);
            self.show();
        }
    }

    /// Returns how long a receive waits at most; None: for ever.
    #[inline]
    pub fn read_timeout(&self) -> Option<Duration> {
        duration(self.read_timeout.load(Relaxed))
    }

    /// Sets how long a receive waits at most: at least one nanosecond; None: for ever.
    pub fn set_read_timeout(&self, limit: Option<Duration>) {
        self.read_timeout.store(nanoseconds(limit), Relaxed);
    }

    /// Returns how long a send waits at most; None: for ever.
    #[inline]
    pub fn write_timeout(&self) -> Option<Duration> {
        duration(self.write_timeout.load(Relaxed))
    }

    /// Sets how long a send waits at most: at least one nanosecond; None: for ever.
    pub fn set_write_timeout(&self, limit: Option<Duration>) {
        self.write_timeout.store(nanoseconds(limit), Relaxed);
    }
}

fn duration(nanoseconds: u64) -> Option<Duration> {
    (nanoseconds > 0).then(|| Duration::from_nanos(nanoseconds))
}

fn nanoseconds(limit: Option<Duration>) -> u64 {
    limit.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::WORDS;
    use std::sync::LazyLock;

    #[test]
    fn what_was_learned_is_shown_and_an_impossible_word_is_refused() {
        static ROW: LazyLock<[AtomicU64; WORDS]> = LazyLock::new(Default::default);
        let settings = Settings::new(&ROW, Policy::Auto, Reader::NoCpu, Wait::Block);
        let shown = || Shown::decode(ROW[word::SETTINGS].load(Relaxed)).unwrap();
        assert_eq!((settings.learned(), shown().learned), (None, None));
        for store in STORES {
            for reason in REASONS {
                for percent in [None, Some(1), Some(100), Some(u16::MAX.into())] {
                    let learned = Some(Learned { store, reason, percent });
                    settings.set_learned(learned);
                    assert_eq!((settings.learned(), shown().learned), (learned, learned));
                }
            }
        }
        let beyond = Learned { store: Store::Cached, reason: Reason::Faster, percent: Some(u32::MAX) };
        settings.set_learned(Some(beyond));
        assert_eq!(shown().learned.unwrap().percent, Some(u16::MAX.into()));
        for most in [Some(0), Some(512), Some(MOST_COPIED), None] {
            settings.set_copied_up_to(most);
            assert_eq!((settings.copied_up_to(), shown().copied_up_to), (most, most));
        }
        settings.set_copied_up_to(Some(u32::MAX));
        assert_eq!(shown().copied_up_to, Some(MOST_COPIED));
        settings.set_nonblocking(true);
        assert_eq!(
            (shown().policy, shown().reader, shown().wait, shown().nonblocking),
            (Policy::Auto, Reader::NoCpu, Wait::Block, true)
        );
        settings.set_learned(None);
        assert_eq!(shown().learned, None);
        assert_eq!(Shown::decode(7 << 32), None);
        assert_eq!(Shown::decode(3), None, "a policy that there is not");
        assert_eq!(Shown::decode(3 << 6), None, "neither yes nor no");
        assert_eq!(Shown::decode(1 << 40), None, "a percentage of nothing");
    }
}
