//! The list behind a chain: two fragments without the heap, a deque from the third on until it is drained.

use crate::fragment::Fragment;
use onecopy_pool::drop_parts;
use std::collections::VecDeque;

/// See [`Frags::INLINE`].
const INLINE: usize = 2;

/// Fragments whose lengths are summed at once.
const BLOCK: usize = 8;

/// What a first allocation has room for.
const FIRST: usize = 8;

/// A list of fragments, open at both ends.
///
/// Invariant of `Inline`: the fragments come first, the `None`s after them.
pub(crate) enum Frags {
    Inline([Option<Fragment>; INLINE]),
    Deque(VecDeque<Fragment>),
}

impl Default for Frags {
    fn default() -> Frags {
        Frags::Inline([const { None }; INLINE])
    }
}

impl Drop for Frags {
    #[inline]
    fn drop(&mut self) {
        if let Frags::Deque(list) = self {
            drop_parts(list.drain(..).map(Fragment::into_part));
        }
    }
}

impl Frags {
    /// Fragments that need no allocation: what a send within two pages, or a header and its payload, comes to.
    pub const INLINE: usize = INLINE;

    #[inline]
    pub fn one(fragment: Fragment) -> Frags {
        let mut list = [const { None }; INLINE];
        list[0] = Some(fragment);
        Frags::Inline(list)
    }

    /// Its only fragment, where it has one and nothing on the heap.
    #[inline]
    pub fn only(&self) -> Option<&Fragment> {
        match self {
            Frags::Inline([only, None]) => only.as_ref(),
            _ => None,
        }
    }

    /// Takes [`Frags::only`] out.
    #[inline]
    pub fn take_only(&mut self) -> Option<Fragment> {
        match self {
            Frags::Inline([only, None]) => only.take(),
            _ => None,
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Frags::Inline(list) => list.iter().flatten().count(),
            Frags::Deque(list) => list.len(),
        }
    }

    #[inline]
    pub fn get(&self, index: usize) -> Option<&Fragment> {
        match self {
            Frags::Inline(list) => list.get(index)?.as_ref(),
            Frags::Deque(list) => list.get(index),
        }
    }

    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Fragment> {
        match self {
            Frags::Inline(list) => list.get_mut(index)?.as_mut(),
            Frags::Deque(list) => list.get_mut(index),
        }
    }

    #[inline]
    pub fn first(&self) -> Option<&Fragment> {
        self.get(0)
    }

    #[inline]
    pub fn last(&self) -> Option<&Fragment> {
        match self {
            Frags::Inline(list) => list.iter().rev().flatten().next(),
            Frags::Deque(list) => list.back(),
        }
    }

    #[inline]
    pub fn last_mut(&mut self) -> Option<&mut Fragment> {
        match self {
            Frags::Inline(list) => list.iter_mut().rev().flatten().next(),
            Frags::Deque(list) => list.back_mut(),
        }
    }

    pub fn iter(&self) -> Iter<'_> {
        match self {
            Frags::Inline(list) => Iter(IterOf::Inline(list.iter().flatten())),
            Frags::Deque(list) => Iter(IterOf::Deque(list.iter())),
        }
    }

    /// From fragment `index` on.
    pub fn iter_from(&self, index: usize) -> Iter<'_> {
        match self {
            Frags::Inline(list) => Iter(IterOf::Inline(list[index.min(INLINE)..].iter().flatten())),
            Frags::Deque(list) => Iter(IterOf::Deque(list.range(index.min(list.len())..))),
        }
    }

    /// All of it as slices, one after another. A slice of one fragment each where they need no heap.
    fn slices(&self) -> [&[Fragment]; INLINE] {
        match self {
            Frags::Inline(list) => list.each_ref().map(Option::as_slice),
            Frags::Deque(list) => list.as_slices().into(),
        }
    }

    /// Which fragment the byte after `at` others lies in, and how many of that fragment's come before it. There is such a
    /// byte, or it is the one behind the last.
    pub fn find(&self, at: usize) -> (usize, usize) {
        let (mut index, mut left) = (0, at);
        for part in self.slices() {
            for block in part.chunks(BLOCK) {
                // Summed without a branch for each: in a long list, finding the place is what a range costs.
                let sum = block.iter().map(Fragment::len).sum();
                if left >= sum {
                    (index, left) = (index + block.len(), left - sum);
                    continue;
                }
                for fragment in block {
                    if left < fragment.len() {
                        return (index, left);
                    }
                    (index, left) = (index + 1, left - fragment.len());
                }
            }
        }
        (index, left)
    }

    /// As [`Frags::find`] for the byte that has `behind` bytes from itself on.
    pub fn find_back(&self, behind: usize) -> (usize, usize) {
        let (mut index, mut left) = (self.len(), behind);
        for part in self.slices().into_iter().rev() {
            for block in part.rchunks(BLOCK) {
                let sum = block.iter().map(Fragment::len).sum();
                if left > sum {
                    (index, left) = (index - block.len(), left - sum);
                    continue;
                }
                for fragment in block.iter().rev() {
                    if left == 0 {
                        return (index, 0);
                    }
                    index -= 1;
                    if left <= fragment.len() {
                        return (index, fragment.len() - left);
                    }
                    left -= fragment.len();
                }
            }
        }
        (index, left)
    }

    #[inline]
    pub fn push_back(&mut self, fragment: Fragment) {
        match self {
            Frags::Inline(list) => match list.iter_mut().find(|slot| slot.is_none()) {
                Some(slot) => *slot = Some(fragment),
                None => self.spill(1).push_back(fragment),
            },
            Frags::Deque(list) => list.push_back(fragment),
        }
    }

    pub fn push_front(&mut self, fragment: Fragment) {
        match self {
            Frags::Inline(list) if list[INLINE - 1].is_none() => {
                list.rotate_right(1);
                list[0] = Some(fragment);
            }
            Frags::Inline(_) => self.spill(1).push_front(fragment),
            Frags::Deque(list) => list.push_front(fragment),
        }
    }

    pub fn pop_front(&mut self) -> Option<Fragment> {
        match self {
            Frags::Inline(list) => {
                // The others move up.
                let mut next = None;
                for place in list.iter_mut().rev() {
                    std::mem::swap(place, &mut next);
                }
                next
            }
            Frags::Deque(list) => {
                let first = list.pop_front();
                self.drained();
                first
            }
        }
    }

    /// An empty list has nothing on the heap: what has been used once and is idle costs no more than what was never used.
    #[inline]
    fn drained(&mut self) {
        if matches!(self, Frags::Deque(list) if list.is_empty()) {
            *self = Frags::default();
        }
    }

    /// Drops the first `count`; there are as many. References to one page in a row go at once.
    pub fn drop_front(&mut self, count: usize) {
        match self {
            Frags::Inline(_) => (0..count).for_each(|_| drop(self.pop_front())),
            Frags::Deque(list) => {
                drop_parts(list.drain(..count).map(Fragment::into_part));
                self.drained();
            }
        }
    }

    pub fn pop_back(&mut self) -> Option<Fragment> {
        match self {
            Frags::Inline(list) => list.iter_mut().rev().find_map(Option::take),
            Frags::Deque(list) => {
                let last = list.pop_back();
                self.drained();
                last
            }
        }
    }

    /// How many it has room for on the heap.
    #[cfg(all(test, not(loom)))]
    fn capacity(&self) -> usize {
        match self {
            Frags::Inline(_) => 0,
            Frags::Deque(list) => list.capacity(),
        }
    }

    /// Moves all of `other` behind what is here, or what is here before `other`, whichever is fewer.
    pub fn append(&mut self, other: &mut Frags) {
        if self.len() >= other.len() {
            self.reserve(other.len());
            while let Some(fragment) = other.pop_front() {
                self.push_back(fragment);
            }
        } else {
            std::mem::swap(self, other);
            self.reserve(other.len());
            while let Some(fragment) = other.pop_back() {
                self.push_front(fragment);
            }
        }
    }

    /// Takes the first `count` out, moving the fewer of the two sides.
    pub fn split_front(&mut self, count: usize) -> Frags {
        let behind = self.len() - count;
        let mut other = Frags::default();
        if count <= behind {
            other.reserve(count);
            for _ in 0..count {
                other.push_back(self.pop_front().expect("counted"));
            }
            other
        } else {
            other.reserve(behind);
            for _ in 0..behind {
                other.push_front(self.pop_back().expect("counted"));
            }
            std::mem::replace(self, other)
        }
    }

    /// Room for `more` at either end, so that moving them allocates at most once.
    pub fn reserve(&mut self, more: usize) {
        match self {
            Frags::Inline(list) if list.iter().flatten().count() + more > INLINE => {
                self.spill(more);
            }
            Frags::Inline(_) => {}
            Frags::Deque(list) => list.reserve(more),
        }
    }

    fn spill(&mut self, more: usize) -> &mut VecDeque<Fragment> {
        if let Frags::Inline(list) = self {
            let mut deque = VecDeque::with_capacity((INLINE + more).max(FIRST));
            deque.extend(list.iter_mut().filter_map(Option::take));
            *self = Frags::Deque(deque);
        }
        match self {
            Frags::Deque(list) => list,
            Frags::Inline(_) => unreachable!("just replaced"),
        }
    }
}

/// The fragments of a chain in order.
#[derive(Clone)]
pub struct Iter<'a>(IterOf<'a>);

#[derive(Clone)]
enum IterOf<'a> {
    Inline(std::iter::Flatten<std::slice::Iter<'a, Option<Fragment>>>),
    Deque(std::collections::vec_deque::Iter<'a, Fragment>),
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Fragment;

    #[inline]
    fn next(&mut self) -> Option<&'a Fragment> {
        match &mut self.0 {
            IterOf::Inline(list) => list.next(),
            IterOf::Deque(list) => list.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            IterOf::Inline(list) => list.size_hint(),
            IterOf::Deque(list) => list.size_hint(),
        }
    }
}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            IterOf::Inline(list) => list.next_back(),
            IterOf::Deque(list) => list.next_back(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{Chain, Fragment};
    use onecopy_pool::{PagePool, PoolConfig, provider::Heap};

    /// Of so many fragments, no two of which are one.
    fn chain(count: usize) -> Chain {
        let pool = PagePool::new(PoolConfig::new().limit(1), Heap::new()).unwrap();
        let page = pool.alloc().unwrap();
        let mut chain = Chain::new();
        for i in 0..count {
            chain.append(Fragment::new(page.clone(), i * 20, 10).unwrap()).unwrap();
        }
        chain
    }

    #[test]
    fn a_drained_chain_has_nothing_on_the_heap() {
        let drains: [fn(&mut Chain); 5] = [
            |chain| chain.advance(chain.len()).unwrap(),
            |chain| drop(chain.split_to(chain.len()).unwrap()),
            |chain| Chain::new().concat(chain).unwrap(),
            |chain| {
                while !chain.is_empty() {
                    chain.advance(7.min(chain.len())).unwrap()
                }
            },
            |chain| chain.truncate(0).unwrap(),
        ];
        for drain in drains {
            let mut chain = chain(50);
            assert!(chain.frags.capacity() >= 50);
            drain(&mut chain);
            assert_eq!((chain.frags.capacity(), chain.len(), chain.kind()), (0, 0, None));
        }
    }

    #[test]
    fn a_range_has_room_for_what_it_has_at_once() {
        let chain = chain(100);
        for (at, len, fragments) in [(0, 1000, 100), (5, 985, 99), (200, 500, 50), (15, 20, 3)] {
            let range = chain.range(at, len).unwrap();
            assert_eq!(range.fragment_count(), fragments);
            let room = range.frags.capacity();
            assert!(room <= (fragments + 2).max(super::FIRST), "{room} for {fragments}");
        }
        assert_eq!(chain.range(15, 15).unwrap().frags.capacity(), 0);
    }
}
