//! When something is due: one time for each key, in O(1) to set, to move and to take back.
//!
//! Time is cut to slots of [`Wheel::SLOT`] ns. Nothing is due before its time, nor later than one slot behind it. What is due in the same
//! slot comes in no promised order; of two that are further apart, the earlier one comes first. (A time that had passed when it was set
//! is as good as that moment.)
//!
//! The wheel has levels of 64 slots, each slot as long as a whole level below it (Varghese and Lauck's hierarchical timing wheels). What is
//! far off lies in a slot of a high level, and moves down when that slot begins. There is no horizon: the levels cover all of 64 bits.

/// Slots of a level; each level has one word that says which of them have something in them.
const SLOTS: u64 = 64;
const BITS: u32 = SLOTS.ilog2();
/// Enough for every slot that 64 bits of time have, the last one rounded up.
const LEVELS: usize = (u64::BITS - Wheel::SLOT.ilog2()).div_ceil(BITS) as usize + 1;
const NONE: u32 = u32::MAX;

/// A key's time, and its neighbours in the ring of those that lie in the same slot.
#[derive(Clone, Copy, Debug)]
struct Node {
    at: u64,
    next: u32,
    /// [`NONE`] for a key without a time.
    prev: u32,
}

const _: () = assert!(size_of::<Node>() == 16);
const IDLE: Node = Node { at: 0, next: NONE, prev: NONE };

/// Times of keys. Keys are small numbers, such as indices of a table: there are 16 bytes for each up to the highest
/// one that ever had a time.
#[derive(Debug)]
pub struct Wheel {
    nodes: Vec<Node>,
    /// The first of each slot's ring; of no meaning where `filled` says that there is none.
    heads: Box<[[u32; SLOTS as usize]; LEVELS]>,
    /// Which slots of each level have something in them.
    filled: [u64; LEVELS],
    /// The slot that time has come to, counted from 0. Invariant: everything lies at or behind it, in the place that [`Wheel::place`] says
    /// as seen from here.
    slot: u64,
    armed: u32,
    work: u64,
}

impl Default for Wheel {
    fn default() -> Wheel {
        Wheel::new()
    }
}

impl Wheel {
    /// Nanoseconds of a slot.
    pub const SLOT: u64 = 1 << 16;

    /// No times.
    pub fn new() -> Wheel {
        Wheel {
            nodes: Vec::new(),
            heads: Box::new([[NONE; SLOTS as usize]; LEVELS]),
            filled: [0; LEVELS],
            slot: 0,
            armed: 0,
            work: 0,
        }
    }

    /// Keys that have a time.
    pub fn len(&self) -> usize {
        self.armed as usize
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// What was done so far: how often a key was put into a slot, or a slot looked at for what is due. What shows that it grows with what happens,
    /// and not with the keys.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// The time of a key, if it has one.
    pub fn get(&self, key: u32) -> Option<u64> {
        self.nodes.get(key as usize).filter(|node| node.prev != NONE).map(|node| node.at)
    }

    /// Gives `key` the time `at`, in place of the one that it has. One that has passed is due at once.
    #[inline]
    pub fn set(&mut self, key: u32, at: u64) {
        debug_assert!(key != NONE, "keys are a slab's, which are smaller");
        let index = key as usize;
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, IDLE);
        }
        let node = self.nodes[index];
        if node.prev != NONE {
            if node.at == at {
                return;
            }
            // A time that only moves a little, as each ACK moves one: it stays where it lies.
            if self.place(node.at) == self.place(at) {
                self.nodes[index].at = at;
                return;
            }
            self.unlink(key);
        }
        self.nodes[index].at = at;
        self.link(key);
    }

    /// Takes the time of `key` away. Whether it had one.
    #[inline]
    pub fn cancel(&mut self, key: u32) -> bool {
        let armed = self.nodes.get(key as usize).is_some_and(|node| node.prev != NONE);
        if armed {
            self.unlink(key);
        }
        armed
    }

    /// When to ask [`Wheel::pop`] again, at the latest: not behind what is due first. (Before it, where that is far off: its slot only
    /// moves down then.)
    #[inline]
    pub fn next(&self) -> Option<u64> {
        let (level, index) = self.first()?;
        Some(self.begin(level, index).saturating_mul(Wheel::SLOT))
    }

    /// A key whose time has come, and which has none from now on; asked again and again until there is none. What is given a time that
    /// has passed meanwhile comes, too: who does so for ever never ends.
    pub fn pop(&mut self, now: u64) -> Option<u32> {
        let now = now / Wheel::SLOT;
        while let Some((level, index)) = self.first() {
            self.work += 1;
            let begin = self.begin(level, index);
            if begin > now {
                break;
            }
            self.slot = begin;
            let head = self.heads[level][index];
            if level == 0 {
                self.unlink(head);
                return Some(head);
            }
            self.spread(level, index);
        }
        // Nothing lies before or in what is passed over.
        self.slot = self.slot.max(now);
        None
    }

    /// Gives back memory that no time needs.
    pub fn rest(&mut self) {
        if self.armed == 0 {
            self.nodes = Vec::new();
        }
    }

    /// Level and index of the slot for a time.
    #[inline]
    fn place(&self, at: u64) -> (usize, usize) {
        let slot = at.div_ceil(Wheel::SLOT).max(self.slot);
        // The highest digit in which it differs from now: below it, all of that level is still to come.
        let level = (slot ^ self.slot | (SLOTS - 1)).ilog2() / BITS;
        (level as usize, (slot >> (level * BITS) & (SLOTS - 1)) as usize)
    }

    /// The first slot that has something in it. What lies in a lower level comes before all of a higher one.
    #[inline]
    fn first(&self) -> Option<(usize, usize)> {
        let level = self.filled.iter().position(|word| *word != 0)?;
        Some((level, self.filled[level].trailing_zeros() as usize))
    }

    /// Where such a slot begins: as now in all higher digits, zero in all lower ones.
    #[inline]
    fn begin(&self, level: usize, index: usize) -> u64 {
        let low = level as u32 * BITS;
        (self.slot >> low & !(SLOTS - 1) | index as u64) << low
    }

    /// Puts all of a slot that begins now where it lies as seen from now, in the same order.
    fn spread(&mut self, level: usize, index: usize) {
        let mut key = self.heads[level][index];
        self.filled[level] &= !(1 << index);
        let last = self.nodes[key as usize].prev;
        loop {
            let next = self.nodes[key as usize].next;
            self.armed -= 1;
            self.link(key);
            if key == last {
                break;
            }
            key = next;
        }
    }

    fn link(&mut self, key: u32) {
        self.work += 1;
        let (level, index) = self.place(self.nodes[key as usize].at);
        let (word, bit) = (&mut self.filled[level], 1 << index);
        let (prev, next) = if *word & bit == 0 {
            *word |= bit;
            self.heads[level][index] = key;
            (key, key)
        } else {
            let head = self.heads[level][index];
            let last = std::mem::replace(&mut self.nodes[head as usize].prev, key);
            self.nodes[last as usize].next = key;
            (last, head)
        };
        let node = &mut self.nodes[key as usize];
        (node.prev, node.next) = (prev, next);
        self.armed += 1;
    }

    fn unlink(&mut self, key: u32) {
        let Node { at, next, prev } = self.nodes[key as usize];
        let (level, index) = self.place(at);
        if next == key {
            self.filled[level] &= !(1 << index);
        } else {
            self.nodes[prev as usize].next = next;
            self.nodes[next as usize].prev = prev;
            if self.heads[level][index] == key {
                self.heads[level][index] = next;
            }
        }
        self.nodes[key as usize].prev = NONE;
        self.armed -= 1;
    }
}
