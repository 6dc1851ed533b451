//! What the processes share that hold one end: its locks, and what each direction is at. It is also what an end is passed
//! on in, from a process that lets go of it to one that takes it up.
//!
//! The peer never maps it; but a member may be hostile, or may have given the end to somebody who is. So no address lies
//! in it, and what is read is checked by who uses it, as everything that a peer wrote.

use crate::header::Line;
use onecopy_sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use onecopy_sync::atomic::{AtomicU32, AtomicU64, fence};
use onecopy_sync::{HolderLock, Snapshot};
use onecopy_sys::map::Mapping;

/// Bytes of it.
pub const PAGE_LEN: usize = 4096;
/// Words of a direction's state.
pub const WORDS: usize = 96;

/// One direction.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SidePage {
    /// Who uses this direction.
    pub lock: HolderLock,
    /// What its member is about to do that cannot be told from what it leaves, should it die; 0: nothing.
    pub doing: AtomicU64,
    /// What it is at, as of the last time that somebody unlocked it.
    pub state: Snapshot<WORDS>,
}

/// What members tell each other without a lock.
#[derive(Debug, Default)]
#[repr(C)]
pub struct AboutPage {
    /// 1 when a sender that does not wait was turned away because another one held the sending side.
    pub turned_away: AtomicU32,
    /// 1 when a receiver that does not wait was turned away because another one kept the receiving side.
    pub receiver_turned_away: AtomicU32,
    /// 1 once one of them has shut the end down for sending.
    pub send_shut: AtomicU32,
    /// Channels for descriptors that one of them has begun to make, of the sending side: told before, since it may be killed before
    /// it has saved that there is one.
    pub channel: AtomicU32,
}

/// Holders of one end that know of each other.
pub const MEMBERS: usize = if cfg!(loom) { 3 } else { 31 };
/// In an entry of [`MemberPage`]: one that is to come, a child that is being forked by the member of that number, or a guest of
/// that number, who was given what it takes.
const COMING: u32 = 1 << 31;

/// Who holds the end. Whether they live is for the caller to find out ([`onecopy_sys::life`]).
#[derive(Debug, Default)]
#[repr(C)]
pub struct MemberPage {
    numbers: [AtomicU32; MEMBERS],
    /// [`CROWDED`] once there was one that found no place: from then on nobody knows that he is alone. Above, places that were
    /// taken so far: who looks whether he is alone may miss one that is taken where he has looked, by one who then leaves
    /// where he has not.
    taken: AtomicU32,
}

const CROWDED: u32 = 1;
const TAKEN: u32 = 2;

impl MemberPage {
    fn free_place(&self, word: u32, lives: impl Fn(u32) -> bool) -> Option<usize> {
        let place = self.numbers.iter().position(|entry| {
            let was = entry.load(Relaxed);
            let free = was == 0 || was & COMING == 0 && !lives(was);
            // Acquire and release, here as in `arrive` and `claim`: with whoever looks who is there, and then asks the kernel whether
            // he lives, which he has told it before.
            free && entry.compare_exchange(was, word, AcqRel, Relaxed).is_ok()
        });
        if place.is_some() {
            // Release, before its member can leave: pairs with the second look in `has_others`.
            self.taken.fetch_add(TAKEN, Release);
        }
        place
    }

    /// As [`MemberPage::free_place`], for one that comes whether there is one or not.
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

    /// Keeps a place for a child that `me` is about to fork; None where all are taken.
    pub fn expect(&self, me: u32, lives: impl Fn(u32) -> bool) -> Option<usize> {
        self.place(me | COMING, |other| other == me || lives(other))
    }

    /// Keeps a place for whoever takes what will be given away for `guest`, a number of its own; None where all are taken, so that it
    /// is not given.
    pub fn reserve(&self, guest: u32, lives: impl Fn(u32) -> bool) -> Option<usize> {
        self.free_place(guest | COMING, lives)
    }

    /// The child has come, as `child`, to where `parent` kept a place for it.
    pub fn arrive(&self, place: usize, parent: u32, child: u32) {
        // Where it fails the parent has given it up, or somebody lies: then it looks for another one.
        if self.numbers[place].compare_exchange(parent | COMING, child, AcqRel, Relaxed).is_err() {
            self.place(child, |_| true);
        }
    }

    /// As [`MemberPage::arrive`], of one that comes as `me` and is no child: only to the place that was kept. Whether it was.
    pub fn claim(&self, place: usize, guest: u32, me: u32) -> bool {
        let entry = self.numbers.get(place).filter(|_| guest != 0 && guest & COMING == 0);
        entry.is_some_and(|entry| entry.compare_exchange(guest | COMING, me, AcqRel, Relaxed).is_ok())
    }

    /// Nobody has come, or will come, to the place that was kept by, or for, that number.
    pub fn give_up(&self, place: usize, number: u32) {
        let _ = self.numbers[place].compare_exchange(number | COMING, 0, Relaxed, Relaxed);
    }

    /// Holder `me` lets go of the end.
    pub fn leave(&self, me: u32) {
        for entry in &self.numbers {
            // Release: who finds it gone finds what it has placed before (`has_others`).
            let _ = entry.compare_exchange(me, 0, Release, Relaxed);
        }
        // Of two that leave at once one at least sees that the other one has: store, fence, load on both sides.
        fence(SeqCst);
    }

    /// Whether `member` has not left, as far as is known.
    pub fn lists(&self, member: u32) -> bool {
        // Acquire pairs with the Release in `leave`.
        self.taken.load(Relaxed) & CROWDED != 0
            || self.numbers.iter().any(|entry| entry.load(Acquire) == member)
    }

    /// Whether somebody else than `me` holds it, or may be about to.
    pub fn has_others(&self, me: u32, lives: impl Fn(u32) -> bool) -> bool {
        let there = |entry: &AtomicU32| {
            let member = entry.load(Acquire);
            if member == 0 || member == me {
                return false;
            }
            if member & COMING != 0 || lives(member) {
                return true;
            }
            // (Who has taken it meanwhile is there.)
            entry.compare_exchange(member, 0, Relaxed, Relaxed).is_err()
        };
        // Acquire pairs with the Release in `place`; the fence with that in `leave`, for the second look.
        let taken = self.taken.load(Acquire);
        let others = taken & CROWDED != 0 || self.numbers.iter().any(there);
        fence(Acquire);
        others || self.taken.load(Relaxed) != taken
    }
}

/// Words of what is said of an end that is passed on.
pub const PASS_WORDS: usize = 32;

/// What is said of an end that is passed on to a process that is no child, besides what its directions are at.
#[derive(Debug, Default)]
#[repr(C)]
pub struct PassPage {
    /// What the page is, and that all is written: the version of its layout.
    pub magic: AtomicU64,
    /// 0: it waits to be taken up; 1: somebody has done so.
    pub taken: AtomicU32,
    /// The rest.
    pub words: [AtomicU64; PASS_WORDS],
}

/// The page.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Words {
    /// Both directions' business.
    pub about: Line<AboutPage>,
    /// Who they are.
    pub members: Line<MemberPage>,
    /// An end that is on its way from one process to another.
    pub pass: Line<PassPage>,
    /// Receiving.
    pub rx: Line<SidePage>,
    /// Sending.
    pub tx: Line<SidePage>,
}

const _: () = assert!(std::mem::size_of::<Words>() <= PAGE_LEN || cfg!(loom));

/// The mapped page.
#[derive(Debug)]
pub struct EndPage(Mapping);

impl EndPage {
    /// Over a mapping of [`PAGE_LEN`] bytes.
    ///
    /// # Panics
    ///
    /// When it is smaller, or cannot be written.
    pub fn over(mapping: Mapping) -> EndPage {
        assert!(mapping.span(0, PAGE_LEN).is_writable(), "a page of an end is written by all of its holders");
        EndPage(mapping)
    }

    /// What is in it.
    #[inline]
    pub fn words(&self) -> &Words {
        // SAFETY:
        // - the mapping has at least PAGE_LEN bytes, writable, page-aligned, and lives as long as `self` (`over`);
        // - `Words` is repr(C) and all atomics of integers: every bit pattern is valid, and writes of other processes are
        //   races between atomics only.
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
        // Late, where the parent had stopped waiting.
        let place = page.expect(2, all).unwrap();
        page.give_up(place, 2);
        page.arrive(place, 2, 4);
        assert!(page.has_others(2, all));
        // One that is no child comes to its place, or not at all.
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

    /// One that keeps a place for another and leaves, both where somebody is just looking: that one does not think that he is alone.
    #[test]
    fn who_looks_misses_nobody_who_comes_as_another_leaves() {
        for last in [1, 2] {
            loom::model(move || {
                let page = Arc::new(MemberPage::default());
                // One at the front and the other at the back, or next to each other.
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
