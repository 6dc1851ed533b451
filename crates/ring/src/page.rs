//! The page that the processes share that hold one end: the locks, and the state of each direction. An end is
//! also passed on in such a page, from a process that lets go of it to one that takes it up.
//!
//! The peer never maps the page. But a member may be hostile, or may have given the end to a hostile process.
//! So the page holds no address, and its users check what they read as they check what a peer wrote.

use crate::header::Line;
use onecopy_sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use onecopy_sync::atomic::{AtomicU32, AtomicU64, fence};
use onecopy_sync::{HolderLock, Snapshot};
use onecopy_sys::map::Mapping;

/// Bytes of the page.
pub const PAGE_LEN: usize = 4096;
/// Words of a direction's state.
pub const WORDS: usize = 96;

/// One direction of the end.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SidePage {
    /// The lock of the process that uses this direction.
    pub lock: HolderLock,
    /// What the lock's holder is about to do, where its traces would not show it if it died. 0: nothing.
    pub doing: AtomicU64,
    /// The state of the direction, as of the last unlock.
    pub state: Snapshot<WORDS>,
}

/// What members tell each other without a lock.
#[derive(Debug, Default)]
#[repr(C)]
pub struct AboutPage {
    /// 1 when a sender that does not wait was turned away because another process held the sending side.
    pub turned_away: AtomicU32,
    /// 1 when a receiver that does not wait was turned away because another process kept the receiving side.
    pub receiver_turned_away: AtomicU32,
    /// 1 once a member has shut the end down for sending.
    pub send_shut: AtomicU32,
    /// Channels for descriptors that a member has begun to make, for the sending side. The member says so
    /// first, since it may be killed before it has saved that there is one.
    pub channel: AtomicU32,
}

/// Most members of one end that know of each other.
pub const MEMBERS: usize = if cfg!(loom) { 3 } else { 31 };
/// Set in an entry of [`MemberPage`] whose process is still to come. The number is that of the member that
/// forks a child, or that of a guest to whom the end was given.
const COMING: u32 = 1 << 31;

/// The processes that hold the end. The caller finds out whether they live ([`onecopy_sys::life`]).
#[derive(Debug, Default)]
#[repr(C)]
pub struct MemberPage {
    numbers: [AtomicU32; MEMBERS],
    /// [`CROWDED`] is set once a process found no place: from then on no member knows that it is alone.
    ///
    /// The bits above count the places taken so far. A member looks at one place after the other to see
    /// whether it is alone. Meanwhile a process may take a place behind that look, and another may leave a
    /// place ahead of it. A changed count shows that.
    taken: AtomicU32,
}

const CROWDED: u32 = 1;
const TAKEN: u32 = 2;

impl MemberPage {
    fn free_place(&self, word: u32, lives: impl Fn(u32) -> bool) -> Option<usize> {
        let place = self.numbers.iter().position(|entry| {
            let was = entry.load(Relaxed);
            let free = was == 0 || was & COMING == 0 && !lives(was);
            // Acquire and release, here and in `arrive` and `claim`. They pair with a member that looks who
            // is there and then asks the kernel whether that process lives. The process has told the kernel
            // before.
            free && entry.compare_exchange(was, word, AcqRel, Relaxed).is_ok()
        });
        if place.is_some() {
            // Release, before the member can leave: pairs with the second look in `has_others`.
            self.taken.fetch_add(TAKEN, Release);
        }
        place
    }

    /// Takes a place as [`MemberPage::free_place`] does, for a process that comes even if there is none.
    fn place(&self, word: u32, lives: impl Fn(u32) -> bool) -> Option<usize> {
        let place = self.free_place(word, lives);
        if place.is_none() {
            self.taken.fetch_or(CROWDED, Relaxed);
        }
        place
    }

    /// Enters member `me`, if it is not there yet.
    pub fn enter(&self, me: u32, lives: impl Fn(u32) -> bool) {
        if self.numbers.iter().all(|entry| entry.load(Relaxed) != me) {
            self.place(me, |other| other == me || lives(other));
        }
    }

    /// Keeps a place for a child that `me` is about to fork. Returns None where all places are taken.
    pub fn expect(&self, me: u32, lives: impl Fn(u32) -> bool) -> Option<usize> {
        self.place(me | COMING, |other| other == me || lives(other))
    }

    /// Keeps a place for the process that takes the end up. `guest` is a number for it alone. Returns None
    /// where all places are taken; the end is then not given away.
    pub fn reserve(&self, guest: u32, lives: impl Fn(u32) -> bool) -> Option<usize> {
        self.free_place(guest | COMING, lives)
    }

    /// Enters the child, as `child`, in the place that `parent` kept for it.
    pub fn arrive(&self, place: usize, parent: u32, child: u32) {
        // This fails if the parent gave the place up, or a member misbehaves. The child then looks for
        // another place.
        if self.numbers[place].compare_exchange(parent | COMING, child, AcqRel, Relaxed).is_err() {
            self.place(child, |_| true);
        }
    }

    /// Enters a process that is no child, as `me`, and only in the place that was kept. Returns whether it
    /// was entered.
    pub fn claim(&self, place: usize, guest: u32, me: u32) -> bool {
        let entry = self.numbers.get(place).filter(|_| guest != 0 && guest & COMING == 0);
        entry.is_some_and(|entry| entry.compare_exchange(guest | COMING, me, AcqRel, Relaxed).is_ok())
    }

    /// Gives up the place that was kept by, or for, that number: no process has come or will come.
    pub fn give_up(&self, place: usize, number: u32) {
        let _ = self.numbers[place].compare_exchange(number | COMING, 0, Relaxed, Relaxed);
    }

    /// Removes member `me`, which lets go of the end.
    pub fn leave(&self, me: u32) {
        for entry in &self.numbers {
            // Release: a process that finds the entry gone also finds what the member entered before
            // (`has_others`).
            let _ = entry.compare_exchange(me, 0, Release, Relaxed);
        }
        // If two members leave at once, at least one of them sees that the other has left: store, fence, load
        // on both sides.
        fence(SeqCst);
    }

    /// Returns whether `member` has not left, as far as is known.
    pub fn lists(&self, member: u32) -> bool {
        // Acquire pairs with the Release in `leave`.
        self.taken.load(Relaxed) & CROWDED != 0
            || self.numbers.iter().any(|entry| entry.load(Acquire) == member)
    }

    /// Returns whether another process than `me` holds the end, or may be about to.
    pub fn has_others(&self, me: u32, lives: impl Fn(u32) -> bool) -> bool {
        let there = |entry: &AtomicU32| {
            let member = entry.load(Acquire);
            if member == 0 || member == me {
                return false;
            }
            if member & COMING != 0 || lives(member) {
                return true;
            }
            // A process that has just taken this place is there.
            entry.compare_exchange(member, 0, Relaxed, Relaxed).is_err()
        };
        // Acquire pairs with the Release in `free_place`. The fence pairs with the Release in `leave`, for
        // the second look.
        let taken = self.taken.load(Acquire);
        let others = taken & CROWDED != 0 || self.numbers.iter().any(there);
        fence(Acquire);
        others || self.taken.load(Relaxed) != taken
    }
}

/// Words that describe an end that is passed on.
pub const PASS_WORDS: usize = 32;

/// What is said about an end that is passed on to a process that is no child, besides the state of its
/// directions.
#[derive(Debug, Default)]
#[repr(C)]
pub struct PassPage {
    /// Says that this is such a page and that all of it is written: the version of its layout.
    pub magic: AtomicU64,
    /// 0: the end waits to be taken up. 1: a process has done so.
    pub taken: AtomicU32,
    /// The description of the end.
    pub words: [AtomicU64; PASS_WORDS],
}

/// The contents of the page.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Words {
    /// The words of both directions.
    pub about: Line<AboutPage>,
    /// The processes that hold the end.
    pub members: Line<MemberPage>,
    /// An end that is on its way from one process to another.
    pub pass: Line<PassPage>,
    /// The receiving direction.
    pub rx: Line<SidePage>,
    /// The sending direction.
    pub tx: Line<SidePage>,
}

const _: () = assert!(std::mem::size_of::<Words>() <= PAGE_LEN || cfg!(loom));

/// The mapped page.
#[derive(Debug)]
pub struct EndPage(Mapping);

impl EndPage {
    /// Uses a mapping of [`PAGE_LEN`] bytes as the page.
    ///
    /// # Panics
    ///
    /// If the mapping is smaller, or cannot be written.
    pub fn over(mapping: Mapping) -> EndPage {
        assert!(mapping.span(0, PAGE_LEN).is_writable(), "a page of an end is written by all of its holders");
        EndPage(mapping)
    }

    /// Returns the contents of the page.
    #[inline]
    pub fn words(&self) -> &Words {
        // SAFETY:
        // - the mapping has at least PAGE_LEN bytes, writable, page-aligned, and lives as long as `self`
        //   (`over`);
        // - `Words` is repr(C) and all atomics of integers: every bit pattern is valid, and writes of other
        //   processes are races between atomics only.
        unsafe { &*self.0.base().as_ptr().cast::<Words>() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use onecopy_sys::fork::{Ended, child};
    use onecopy_testing::alone;

    #[test]
    fn the_dead_and_the_unborn_are_counted_as_what_they_are() {
        alone!();
        let page = MemberPage::default();
        let all = |_| true;
        page.enter(1, all);
        page.enter(1, all);
        assert!(!page.has_others(1, all));
        let place = page.expect(1, all).unwrap();
        assert!(page.has_others(1, all) && page.has_others(1, |_| false));
        page.give_up(place, 1);
        assert!(!page.has_others(1, all), "fork failed");
        let place = page.expect(1, all).unwrap();
        page.arrive(place, 1, 2);
        page.give_up(place, 1);
        assert!(page.has_others(1, all) && page.has_others(2, all));
        page.leave(1);
        assert!(!page.has_others(2, all));
        page.enter(3, all);
        assert!(!page.has_others(2, |_| false), "dead");
        assert!(!page.has_others(2, all), "and forgotten");
        // A child that arrives after the parent stopped waiting takes another place.
        let place = page.expect(2, all).unwrap();
        page.give_up(place, 2);
        page.arrive(place, 2, 4);
        assert!(page.has_others(2, all));
        // A process that is no child comes to its place, or not at all.
        let place = page.reserve(2, all).unwrap();
        assert!(!page.claim(place, 3, 5) && !page.claim(MEMBERS, 2, 5) && !page.claim(place, 2 | COMING, 5));
        assert!(page.claim(place, 2, 5) && !page.claim(place, 2, 6));
        page.give_up(place, 2);
        page.leave(4);
        assert!(page.has_others(2, |member| member == 5));
        for member in 10..8 + MEMBERS as u32 {
            page.enter(member, all);
        }
        assert_eq!(page.reserve(2, all), None);
        assert!(!page.has_others(2, |_| false), "who was given nothing does not come");
        for member in 10..10 + MEMBERS as u32 {
            page.enter(member, all);
        }
        assert_eq!(page.expect(2, all), None);
        assert!(page.has_others(2, |_| false), "more than are listed");
    }

    #[test]
    fn a_child_sees_what_its_parent_writes_and_the_other_way_round() {
        alone!();
        let page = EndPage::over(Mapping::inherited(PAGE_LEN).unwrap());
        page.words().tx.0.state.save(&[1, 2, 3]);
        let work = child(|| {
            let (_, words) = page.words().tx.0.state.load();
            page.words().rx.0.state.save(&[words[2]]);
            0
        });
        assert_eq!(work.unwrap().wait(), Ended::Returned(0));
        assert_eq!(page.words().rx.0.state.load().1[..2], [3, 0]);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    /// A member keeps a place for another process and leaves, while a second member looks. The second one
    /// does not think that it is alone.
    #[test]
    fn who_looks_misses_nobody_who_comes_as_another_leaves() {
        for last in [1, 2] {
            loom::model(move || {
                let page = Arc::new(MemberPage::default());
                // The two are at the front and at the back, or next to each other.
                page.enter(1, |_| true);
                if last == 2 {
                    page.enter(7, |_| true);
                }
                page.enter(2, |_| true);
                page.leave(7);
                let other = page.clone();
                let thread = loom::thread::spawn(move || {
                    assert!(other.reserve(2, |_| true).is_some());
                    other.leave(2);
                });
                assert!(page.has_others(1, |_| true));
                thread.join().unwrap();
                assert!(page.has_others(1, |_| true));
            });
        }
    }
}
