//! What the processes share that hold one end: its locks, and what each direction is at. It is also what an end is passed
//! on in, from a process that lets go of it to one that takes it up.
//!
//! The peer never maps it; but a holder may be hostile, or may have given the end to somebody who is. So no address lies
//! in it, and what is read is checked by who uses it, as everything that a peer wrote.

use crate::header::Line;
use onecopy_sync::atomic::{AtomicU32, AtomicU64};
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
    /// What its holder is about to do that cannot be told from what it leaves, should it die; 0: nothing.
    pub doing: AtomicU64,
    /// What it is at, as of the last time that somebody unlocked it.
    pub state: Snapshot<WORDS>,
}

/// What holders tell each other without a lock.
#[derive(Debug, Default)]
#[repr(C)]
pub struct AboutPage {
    /// Processes that hold the end, and were not killed.
    pub holders: AtomicU32,
    /// 1 when a sender that does not wait was turned away because another one held the sending side.
    pub turned_away: AtomicU32,
    /// 1 once one of them has shut the end down for sending.
    pub send_shut: AtomicU32,
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

    #[test]
    fn a_child_sees_what_its_parent_writes_and_the_other_way_round() {
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
