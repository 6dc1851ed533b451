//! The rings of an AF_XDP socket, from the process' side. What the kernel writes there is words: each is looked at for what it can be before it is used.

use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use onecopy_sync::atomic::fence;
use onecopy_sync::table::Table;
use onecopy_sys::xdp::{NEED_WAKEUP, Ring};

/// The kernel's word of how far it is cannot be: more was taken than there was, or more put than there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Astray;

/// An entry of RX or TX (struct xdp_desc).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Where its bytes begin in the memory.
    pub place: u64,
    /// How many.
    pub len: u32,
    /// [`onecopy_sys::xdp::CONTINUES`].
    pub options: u32,
}

impl Entry {
    fn to_words(self) -> [u64; 2] {
        let [a, b, c, d] = self.len.to_ne_bytes();
        let [e, f, g, h] = self.options.to_ne_bytes();
        [self.place, u64::from_ne_bytes([a, b, c, d, e, f, g, h])]
    }

    fn of_words([place, rest]: [u64; 2]) -> Entry {
        let [a, b, c, d, e, f, g, h] = rest.to_ne_bytes();
        Entry { place, len: u32::from_ne_bytes([a, b, c, d]), options: u32::from_ne_bytes([e, f, g, h]) }
    }
}

/// What both kinds have.
#[derive(Debug)]
struct Half {
    table: Table,
    producer: usize,
    consumer: usize,
    flags: usize,
    len: u32,
    /// How far we are: entries put, or taken out, ever. It wraps.
    ours: u32,
}

impl Half {
    fn new(ring: Ring) -> Half {
        let Ring { memory, producer, consumer, flags, entries, len } = ring;
        Half { table: Table::new(memory, entries), producer, consumer, flags, len, ours: 0 }
    }

    /// The number of the entry at `ahead` of ours.
    fn index(&self, ahead: u32) -> usize {
        (self.ours.wrapping_add(ahead) & (self.len - 1)) as usize
    }
}

/// A ring that we fill: fill, or TX.
#[derive(Debug)]
pub(super) struct Filled {
    half: Half,
    /// How many of ours the kernel has been told of.
    told: u32,
}

impl Filled {
    pub fn new(ring: Ring) -> Filled {
        Filled { half: Half::new(ring), told: 0 }
    }

    /// How many entries it has place for.
    pub fn len(&self) -> u32 {
        self.half.len
    }

    /// How many entries the kernel has not taken out yet.
    pub fn left(&self) -> Result<u32, Astray> {
        let half = &self.half;
        // Acquire pairs with the kernel's smp_store_release() in __xskq_cons_release() (net/xdp/xsk_queue.h): it is done with the entries before.
        let taken = half.table.short(half.consumer).load(Acquire);
        let left = half.ours.wrapping_sub(taken);
        if left <= half.len { Ok(left) } else { Err(Astray) }
    }

    /// Room for so many entries.
    pub fn room(&self) -> Result<u32, Astray> {
        self.left().map(|left| self.half.len - left)
    }

    /// Puts a place there, as entries of the fill ring are. There is room ([`Filled::room`]).
    pub fn put_place(&mut self, place: u64) {
        let half = &mut self.half;
        half.table.long(half.index(0)).store(place, Relaxed);
        half.ours = half.ours.wrapping_add(1);
    }

    /// Puts an entry there. There is room.
    pub fn put(&mut self, entry: Entry) {
        let half = &mut self.half;
        let at = half.index(0) * 2;
        let [first, second] = entry.to_words();
        half.table.long(at).store(first, Relaxed);
        half.table.long(at + 1).store(second, Relaxed);
        half.ours = half.ours.wrapping_add(1);
    }

    /// Tells the kernel of what was put. Returns whether there was something.
    pub fn tell(&mut self) -> bool {
        let half = &self.half;
        let new = self.told != half.ours;
        if new {
            // Release pairs with the kernel's smp_load_acquire() in __xskq_cons_peek(): the entries are written before, and so is what lies in frames.
            half.table.short(half.producer).store(half.ours, Release);
            self.told = half.ours;
        }
        new
    }

    /// Whether the kernel sleeps until it is called.
    pub fn needs_wakeup(&self) -> bool {
        // With the driver, which says that it sleeps and then looks at the ring once more, this is Dekker's: store, full fence, load on both sides. (It has its
        // fence in the lock that ends its poll.)
        fence(SeqCst);
        self.half.table.short(self.half.flags).load(Relaxed) & NEED_WAKEUP != 0
    }
}

/// A ring that the kernel fills: RX, or completion.
#[derive(Debug)]
pub(super) struct Emptied(Half);

impl Emptied {
    pub fn new(ring: Ring) -> Emptied {
        Emptied(Half::new(ring))
    }

    /// How many entries there are.
    pub fn there(&self) -> Result<u32, Astray> {
        let half = &self.0;
        // Acquire pairs with the kernel's smp_store_release() in __xskq_prod_submit(): entries, and what lies in their frames, are read behind it.
        let put = half.table.short(half.producer).load(Acquire);
        let there = put.wrapping_sub(half.ours);
        if there <= half.len { Ok(there) } else { Err(Astray) }
    }

    /// The entry at `ahead`, one of those that are there.
    pub fn entry(&self, ahead: u32) -> Entry {
        let (table, at) = (&self.0.table, self.0.index(ahead) * 2);
        Entry::of_words([table.long(at).load(Relaxed), table.long(at + 1).load(Relaxed)])
    }

    /// The place at `ahead`, as entries of the completion ring are.
    pub fn place(&self, ahead: u32) -> u64 {
        self.0.table.long(self.0.index(ahead)).load(Relaxed)
    }

    /// Gives the first `count` of those that are there back to the kernel, read.
    pub fn take(&mut self, count: u32) {
        let half = &mut self.0;
        half.ours = half.ours.wrapping_add(count);
        // Release pairs with the kernel's smp_load_acquire() in xskq_prod_nb_free(): they are read before it writes them again.
        half.table.short(half.consumer).store(half.ours, Release);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use onecopy_sys::map::Mapping;
    use onecopy_sys::memfd;

    const PRODUCER: usize = 0;
    const CONSUMER: usize = 64;
    const FLAGS: usize = 128;
    const ENTRIES: usize = 192;

    /// The kernel's side of a ring that is none of the kernel's: the same file, mapped once more.
    pub struct Other(Table);

    impl Other {
        /// A ring of `len` entries of 16 bytes, or of 8, and its other side.
        pub fn ring(len: u32) -> (Ring, Other) {
            let bytes = (ENTRIES + len as usize * 16).next_multiple_of(4096);
            let file = memfd::create("onecopy-test", bytes).unwrap();
            let memory = Mapping::new(&file, bytes).unwrap();
            let other = Table::new(Mapping::new(&file, bytes).unwrap(), ENTRIES);
            let (producer, consumer, flags) = (PRODUCER, CONSUMER, FLAGS);
            (Ring { memory, producer, consumer, flags, entries: ENTRIES, len }, Other(other))
        }

        pub fn producer(&self) -> u32 {
            self.0.short(PRODUCER).load(Acquire)
        }

        pub fn set_producer(&self, value: u32) {
            self.0.short(PRODUCER).store(value, Release);
        }

        pub fn consumer(&self) -> u32 {
            self.0.short(CONSUMER).load(Acquire)
        }

        pub fn set_consumer(&self, value: u32) {
            self.0.short(CONSUMER).store(value, Release);
        }

        pub fn set_flags(&self, value: u32) {
            self.0.short(FLAGS).store(value, Relaxed);
        }

        pub fn place(&self, at: usize) -> u64 {
            self.0.long(at).load(Relaxed)
        }

        pub fn set_place(&self, at: usize, value: u64) {
            self.0.long(at).store(value, Relaxed);
        }

        pub fn entry(&self, at: usize) -> Entry {
            Entry::of_words([self.place(at * 2), self.place(at * 2 + 1)])
        }

        pub fn set_entry(&self, at: usize, entry: Entry) {
            let [first, second] = entry.to_words();
            self.set_place(at * 2, first);
            self.set_place(at * 2 + 1, second);
        }
    }

    #[test]
    fn an_entry_is_the_kernel_s_struct() {
        // struct xdp_desc: __u64 addr; __u32 len; __u32 options.
        let [first, second] = Entry { place: 0x0102_0304_0506_0708, len: 9, options: 1 }.to_words();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&0x0102_0304_0506_0708_u64.to_ne_bytes());
        bytes[8..12].copy_from_slice(&9_u32.to_ne_bytes());
        bytes[12..].copy_from_slice(&1_u32.to_ne_bytes());
        assert_eq!([first.to_ne_bytes(), second.to_ne_bytes()].concat(), bytes);
    }

    #[test]
    fn what_is_put_is_told_of_at_once_and_wraps() {
        let (ring, other) = Other::ring(4);
        let mut filled = Filled::new(ring);
        // Past the end of 32 bits, too: as far as ever so many packets lead.
        filled.half.ours = u32::MAX - 2;
        filled.told = filled.half.ours;
        other.set_consumer(filled.half.ours);
        for round in 0..5_u64 {
            assert_eq!((filled.room(), filled.left()), (Ok(4), Ok(0)));
            (0..3).for_each(|n| filled.put_place(round * 10 + n));
            let before = other.producer();
            assert!(filled.tell() && !filled.tell());
            assert_eq!(filled.room(), Ok(1), "the kernel has taken none");
            let at = other.producer();
            assert!(round == 0 || at == before.wrapping_add(3));
            let places: Vec<u64> =
                (0..3).map(|n| other.place((at.wrapping_sub(3 - n) & 3) as usize)).collect();
            assert_eq!(places, [round * 10, round * 10 + 1, round * 10 + 2]);
            other.set_consumer(at);
        }
        assert!(!filled.needs_wakeup());
        other.set_flags(NEED_WAKEUP);
        assert!(filled.needs_wakeup());
    }

    #[test]
    fn what_the_kernel_puts_is_there_until_it_is_taken() {
        let (ring, other) = Other::ring(4);
        let mut emptied = Emptied::new(ring);
        assert_eq!(emptied.there(), Ok(0));
        for round in 0..6_u32 {
            let entry = |n| Entry { place: u64::from(round * 100 + n), len: n, options: n % 2 };
            let from = round * 3;
            (0..3).for_each(|n| other.set_entry(((from + n) & 3) as usize, entry(n)));
            other.set_producer(from + 3);
            assert_eq!(emptied.there(), Ok(3));
            assert_eq!([0, 1, 2].map(|n| emptied.entry(n)), [entry(0), entry(1), entry(2)]);
            emptied.take(1);
            assert_eq!((emptied.there(), emptied.entry(0)), (Ok(2), entry(1)));
            emptied.take(2);
            assert_eq!((emptied.there(), other.consumer()), (Ok(0), from + 3));
        }
    }

    #[test]
    fn words_that_cannot_be_are_told_of() {
        let (ring, other) = Other::ring(4);
        let mut filled = Filled::new(ring);
        filled.put(Entry { place: 0, len: 1, options: 0 });
        filled.tell();
        for taken in [2, 5, u32::MAX, u32::MAX - 3, 1 << 31] {
            other.set_consumer(taken);
            // One that is behind leaves room for fewer, and is no lie that could be told from a slow kernel.
            let behind = 1_u32.wrapping_sub(taken) <= 4;
            assert_eq!(filled.room().is_err(), !behind, "{taken}");
        }
        let (ring, other) = Other::ring(4);
        let emptied = Emptied::new(ring);
        for put in [5, u32::MAX, 1 << 31] {
            other.set_producer(put);
            assert_eq!(emptied.there(), Err(Astray), "{put}");
        }
        other.set_producer(4);
        assert_eq!(emptied.there(), Ok(4));
    }
}
