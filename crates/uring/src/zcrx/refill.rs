//! The ring by which pages go back to the device: entries that the kernel takes when its queue wants pages, without a call.
//! (struct io_uring_zcrx_rqe of include/uapi/linux/io_uring.h; io_zcrx_ring_refill() of io_uring/zcrx.c.)

use io_uring::types::io_uring_zcrx_rqe;
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU32, Ordering};
use onecopy_sys::map::Mapping;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt;

/// Entries that a ring may have (IO_RQ_MAX_ENTRIES).
pub const MOST_ENTRIES: u32 = 32768;

/// Where things lie in the memory of the ring, as the kernel says (struct io_uring_zcrx_offsets).
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Of the position up to which the kernel has taken entries.
    pub head: u32,
    /// Of the position up to which there are some.
    pub tail: u32,
    /// Of the entries.
    pub entries: u32,
}

/// The side that puts fragments in: by any thread, and never without room, since what has none waits here.
///
/// Invariant: head, tail and all entries lie in the mapping, aligned. The head and the tail are atomics; entries are written under the lock, and only those that
/// the kernel has taken, or has not been given.
pub struct Refill {
    memory: Mapping,
    /// Whose fragments they are: a fork's child has copies of the lock and of the positions, and what it drops is its parent's still.
    pid: u32,
    places: Places,
    count: u32,
    /// What the kernel calls the memory that is received into (rq_area_token).
    area: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tail: u32,
    /// What found no room.
    waiting: VecDeque<(u64, u32)>,
    /// The kernel looks no more.
    closed: bool,
}

impl Refill {
    /// Over `memory`, where so many entries lie, a power of two.
    ///
    /// # Errors
    ///
    /// EPROTO for places that are not in the memory, or overlap.
    pub fn new(memory: Mapping, places: Places, count: u32, area: u64) -> Result<Refill, Errno> {
        let len = size_of::<io_uring_zcrx_rqe>() * count as usize;
        let word = |at: u32| {
            let at = at as usize;
            (at.is_multiple_of(4) && at + 4 <= memory.len()).then_some(at..at + 4)
        };
        let begin = places.entries as usize;
        let entries = begin.checked_add(len).filter(|end| *end <= memory.len()).map(|end| begin..end);
        let (Some(head), Some(tail), Some(entries)) = (word(places.head), word(places.tail), entries) else {
            return Err(Errno::PROTO);
        };
        let apart = |word: &std::ops::Range<usize>| word.end <= entries.start || word.start >= entries.end;
        let fits = begin.is_multiple_of(align_of::<io_uring_zcrx_rqe>())
            && head != tail
            && apart(&head)
            && apart(&tail);
        if !fits || !count.is_power_of_two() || count > MOST_ENTRIES {
            return Err(Errno::PROTO);
        }
        Ok(Refill { memory, pid: std::process::id(), places, count, area, state: Mutex::default() })
    }

    fn word(&self, at: u32) -> &AtomicU32 {
        // SAFETY: inside of the mapping, aligned, and as long there as `self` (the invariant). The kernel reads and writes it as one word; here nobody does otherwise.
        unsafe { &*self.memory.base().as_ptr().add(at as usize).cast::<AtomicU32>() }
    }

    /// Gives fragments back, each a byte of the memory and its length as it came. Returns whether some have no room: then somebody calls [`Refill::flush`] until none waits, since
    /// the kernel takes entries without a word. In a fork's child nothing happens: they are its parent's.
    #[must_use = "what has no room waits until somebody flushes"]
    pub fn give_back(&self, frags: impl IntoIterator<Item = (u64, u32)>) -> bool {
        if self.is_inherited() {
            return false;
        }
        let mut state = self.state.lock();
        if state.closed {
            // The kernel took all back when its queue was closed (io_zcrx_scrub()).
            return false;
        }
        state.waiting.extend(frags);
        self.put(&mut state);
        !state.waiting.is_empty()
    }

    /// Puts those in that found no room. Returns whether some still have none.
    pub fn flush(&self) -> bool {
        if self.is_inherited() {
            return false;
        }
        let mut state = self.state.lock();
        self.put(&mut state);
        !state.waiting.is_empty()
    }

    /// Whether this is a fork's child, where a thread of the parent's may have had the lock: it is not waited for.
    fn is_inherited(&self) -> bool {
        self.pid != std::process::id()
    }

    /// The kernel looks no more.
    pub fn close(&self) {
        if self.is_inherited() {
            return;
        }
        let mut state = self.state.lock();
        state.closed = true;
        state.waiting.clear();
    }

    fn put(&self, state: &mut State) {
        if state.waiting.is_empty() {
            return;
        }
        // Acquire pairs with the kernel's smp_store_release() of the head (io_zcrx_ring_refill()): it has read the entries before that.
        let head = self.word(self.places.head).load(Ordering::Acquire);
        // A head that is beyond the tail leaves no room.
        let mut room = self.count.saturating_sub(state.tail.wrapping_sub(head));
        let before = state.tail;
        let base = self.memory.base().as_ptr().wrapping_add(self.places.entries as usize);
        while room > 0
            && let Some((at, len)) = state.waiting.pop_front()
        {
            let entry = io_uring_zcrx_rqe { off: at | self.area, len, __pad: 0 };
            let index = (state.tail & (self.count - 1)) as usize;
            // SAFETY: inside of the mapping and aligned (the invariant). The kernel has taken what was there, and reads it again behind the tail's store alone; here
            // only this writes it, under the lock.
            unsafe { base.cast::<io_uring_zcrx_rqe>().add(index).write(entry) };
            state.tail = state.tail.wrapping_add(1);
            room -= 1;
        }
        if state.tail != before {
            // Release pairs with the kernel's smp_load_acquire() of the tail (io_zcrx_rqring_entries()): it sees the entries.
            self.word(self.places.tail).store(state.tail, Ordering::Release);
        }
    }
}

impl fmt::Debug for Refill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refill({} entries)", self.count)
    }
}

/// The kernel's side, for tests: it takes entries as io_zcrx_ring_refill() does.
#[doc(hidden)]
impl Refill {
    /// One over memory of its own, laid out as the kernel lays it out.
    pub fn pretended(count: u32) -> Refill {
        let memory = Mapping::private(1 << 20).unwrap_or_else(|errno| panic!("{errno}"));
        let places = Places { head: 0, tail: 4, entries: 64 };
        Refill::new(memory, places, count, 0).unwrap_or_else(|errno| panic!("{errno}"))
    }

    /// Takes up to `most` entries, each its two words.
    pub fn taken(&self, most: usize) -> Vec<[u64; 2]> {
        let head = self.word(self.places.head);
        let tail = self.word(self.places.tail).load(Ordering::Acquire);
        let mut taken = Vec::new();
        while taken.len() < most && head.load(Ordering::Relaxed) != tail {
            let index = (head.load(Ordering::Relaxed) & (self.count - 1)) as usize;
            let at = self.places.entries as usize + index * size_of::<io_uring_zcrx_rqe>();
            // SAFETY: an entry (the invariant), written before the tail that was read, and by nobody before the head's store below.
            taken.push(unsafe { self.memory.base().as_ptr().add(at).cast::<[u64; 2]>().read() });
            head.store(head.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_sys::fork::{Ended, child};

    #[test]
    fn entries_have_the_bytes_of_the_uapi_and_what_has_no_room_waits_in_order() {
        let memory = Mapping::private(4096).unwrap();
        let places = Places { head: 0, tail: 64, entries: 128 };
        let refill = Refill::new(memory, places, 4, 3 << 48).unwrap();
        assert!(!refill.give_back([(0x5000, 1448)]));
        let bytes: Vec<u8> = (128..144)
            // SAFETY: inside of the mapping, which nobody writes now.
            .map(|at| unsafe { refill.memory.base().as_ptr().add(at).read() })
            .collect();
        let mut golden = [0; 16];
        golden[..8].copy_from_slice(&0x0003_0000_0000_5000_u64.to_ne_bytes());
        golden[8..12].copy_from_slice(&1448_u32.to_ne_bytes());
        assert_eq!(bytes, golden);
        assert!(refill.give_back((1..10).map(|n| (n * 4096, n as u32))), "six have no room");
        assert!(refill.flush());
        let lens = |taken: Vec<[u64; 2]>| taken.iter().map(|words| words[1]).collect::<Vec<_>>();
        assert_eq!(lens(refill.taken(2)), [1448, 1]);
        assert!(refill.flush());
        assert_eq!(lens(refill.taken(9)), [2, 3, 4, 5]);
        assert!(refill.give_back([(0, 10)]));
        assert_eq!(lens(refill.taken(9)), [6, 7, 8, 9]);
        assert!(!refill.flush());
        assert_eq!(lens(refill.taken(9)), [10]);
        assert!(!refill.give_back([(0, 11)]));
        refill.close();
        assert!(!refill.give_back([(0, 12)]));
        assert_eq!(lens(refill.taken(9)), [11], "nothing is written behind the end");
    }

    #[test]
    fn positions_wrap_and_a_head_that_cannot_be_leaves_no_room() {
        let refill = Refill::pretended(4);
        for word in [refill.places.head, refill.places.tail] {
            refill.word(word).store(u32::MAX - 1, Ordering::Relaxed);
        }
        refill.state.lock().tail = u32::MAX - 1;
        assert!(refill.give_back((1..6).map(|n| (0, n))));
        assert_eq!(refill.taken(9).len(), 4);
        assert!(!refill.flush());
        assert_eq!(refill.taken(9).len(), 1);
        // Beyond the tail, and further behind it than there are entries.
        for head in [4, u32::MAX - 9] {
            refill.word(refill.places.head).store(head, Ordering::Relaxed);
            assert!(refill.give_back([(0, 1)]) && refill.flush(), "{head}");
            assert_eq!(refill.word(refill.places.tail).load(Ordering::Relaxed), 3);
        }
    }

    #[test]
    fn a_forks_child_gives_nothing_back_and_waits_for_no_lock() {
        let refill = Refill::pretended(4);
        // Somebody else's lock at the moment of the fork.
        let locked = refill.state.lock();
        let tried = child(|| {
            let full = refill.give_back([(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]);
            let waits = refill.flush();
            refill.close();
            // What it writes itself nobody else sees.
            refill.word(refill.places.tail).store(7, Ordering::Release);
            i32::from(full || waits)
        });
        drop(locked);
        assert_eq!(tried.unwrap().wait(), Ended::Returned(0));
        assert_eq!(refill.word(refill.places.tail).load(Ordering::Acquire), 0);
        assert!(!refill.give_back([(0, 9)]));
        assert_eq!(refill.taken(9), [[0, 9]]);
    }

    #[test]
    fn places_that_cannot_be_are_refused() {
        let bad = |head, tail, entries, count| {
            let memory = Mapping::private(4096).unwrap();
            Refill::new(memory, Places { head, tail, entries }, count, 0).err() == Some(Errno::PROTO)
        };
        assert!(!bad(0, 4, 64, 4) && !bad(4092, 4088, 0, 4));
        for (head, tail, entries, count) in [
            (2, 4, 64, 4),
            (0, 0, 64, 4),
            (4096, 4, 64, 4),
            (0, !3, 64, 4),
            (0, 4, 4, 4),
            (0, 4, 63, 4),
            (0, 4, 4096 - 48, 4),
            (0, 4, !15, 4),
            (64, 4, 64, 4),
            (0, 124, 64, 4),
            (0, 4, 64, 3),
            (0, 4, 64, 0),
            (0, 4, 64, 256),
            (0, 4, 64, MOST_ENTRIES * 2),
        ] {
            assert!(bad(head, tail, entries, count), "{head} {tail} {entries} {count}");
        }
    }
}
