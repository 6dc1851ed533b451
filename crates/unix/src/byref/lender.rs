//! What is lent to the peer of one stream, and how it comes home.

use crate::control;
use crate::core::Core;
use crate::generation::generation;
use onecopy_chain::notify::{Fate, NotifRef};
use onecopy_pool::Page;
use onecopy_ring::lend::SLOTS;
use onecopy_ring::{PeerMisbehaved, Ring};
use onecopy_socket::{Error, Op, SendFlags};
use onecopy_sync::atomic::{AtomicU64, Ordering};
use onecopy_sync::{Filler, Mutex, Taker, shelf};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest sleep for a slot before the lender looks whether the peer lives.
const LONGEST_SLEEP: Duration = Duration::from_millis(40);

/// The most pools of one peer on one stream.
pub const MAX_POOLS: usize = 16;

/// Tells the connection that its peer misbehaved.
pub struct Accuse(Box<dyn Fn(PeerMisbehaved) + Send + Sync>);

impl Accuse {
    /// Makes what tells it by calling `tell`.
    pub fn by(tell: impl Fn(PeerMisbehaved) + Send + Sync + 'static) -> Accuse {
        Accuse(Box::new(tell))
    }
}

impl fmt::Debug for Accuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Accuse")
    }
}

/// The lending side of one direction of a stream. It outlives the stream while the peer has pages, which the
/// peer may read until it is done, and while the pool is there to take them back.
#[derive(Debug)]
pub struct Lender {
    /// The ring through which the peer gives pages back.
    ring: Ring,
    /// Hangs up once nobody can read a page any more.
    channel: Arc<OwnedFd>,
    accuse: Accuse,
    /// What was lent, for the thread that takes it home.
    table: Mutex<Table>,
    /// Free slots, a bit each, except for those that [`Slots`] has.
    free: [AtomicU64; SLOTS / 64],
    /// The generation of the process that made it. What a forked child inherits lends nothing, and takes
    /// nothing home.
    generation: u32,
}

#[derive(Debug)]
struct Table {
    /// Indexed by slot.
    lent: Taker<Lot>,
    /// Pools that the peer was told of, and their bytes.
    pools: u32,
    bytes: u64,
}

/// The slots, for the thread that sends. It fills one without any lock but that of the sending side.
#[derive(Debug)]
pub struct Slots {
    lent: Filler<Lot>,
    /// Free slots of one word of [`Lender::free`], and the first slot of that word. The lowest is taken
    /// first, and all of a word before the next, so that as few cache lines as possible are in use.
    free: u64,
    first: usize,
}

impl Slots {
    /// Whether a free slot is known.
    #[inline]
    pub fn has_free(&self) -> bool {
        self.free != 0
    }

    /// Takes a free slot, if one is known.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let slot = self.first as u32 + self.free.trailing_zeros();
        self.free &= self.free - 1;
        Some(slot)
    }

    /// Fills a slot that was taken.
    #[inline]
    pub fn put(&mut self, slot: u32, lot: Lot) {
        self.lent.put(slot as usize, lot);
    }
}

/// What is in a slot.
#[derive(Debug)]
pub struct Lot {
    page: Page,
    /// The notification that waits for the page to come home.
    notif: Option<NotifRef>,
}

impl Lot {
    /// Makes what lends `page`. `notif` waits for it to come home.
    #[inline]
    pub fn new(page: Page, notif: Option<NotifRef>) -> Lot {
        Lot { page, notif }
    }
}

/// Notifications of sends whose pages are free. They run others' code, so they are told with no lock held,
/// after each page is home.
struct Told(Vec<NotifRef>);

impl Told {
    fn add(&mut self, notif: Option<NotifRef>, fate: Fate) {
        if let Some(mut notif) = notif {
            notif.set_fate(fate);
            self.0.push(notif);
        }
    }
}

impl Lender {
    /// Makes a lender with all slots free, and the side that fills them.
    pub fn new(accuse: Accuse, ring: Ring, channel: Arc<OwnedFd>) -> (Lender, Slots) {
        let (filler, taker) = shelf(SLOTS);
        let table = Mutex::new(Table { lent: taker, pools: 0, bytes: 0 });
        let free = std::array::from_fn(|_| AtomicU64::new(u64::MAX));
        let lender = Lender { ring, channel, accuse, table, free, generation: generation() };
        (lender, Slots { lent: filler, free: 0, first: 0 })
    }

    /// Whether this process has made it.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.generation == generation()
    }

    pub fn channel(&self) -> &OwnedFd {
        &self.channel
    }

    /// Returns the name for one more pool of that size; None if the peer does not map such a pool.
    pub fn name_for(&self, bytes: u64) -> Option<u32> {
        use onecopy_sync::atomic::Ordering::Relaxed;
        let table = self.table.lock();
        // The peer says how much it maps. A wrong number is its own loss.
        let most = self.ring.header().info.0.max_shared.load(Relaxed);
        let fits = table.bytes.checked_add(bytes).is_some_and(|sum| sum <= most);
        (fits && (table.pools as usize) < MAX_POOLS).then_some(table.pools)
    }

    /// Notes that the peer is being told of the pool that `name_for` named.
    pub fn announced(&self, bytes: u64) {
        let mut table = self.table.lock();
        table.pools += 1;
        table.bytes += bytes;
    }

    /// Lends up to `most` pages, which `next` gives for their slots. Returns how many: fewer if the slots are
    /// in use, or if `next` has no more.
    #[inline]
    pub fn lend(&self, slots: &mut Slots, most: usize, mut next: impl FnMut(u32) -> Option<Lot>) -> usize {
        for lent in 0..most {
            if slots.free == 0 && !self.find_free(slots) {
                return lent;
            }
            let slot = slots.first + slots.free.trailing_zeros() as usize;
            let Some(lot) = next(slot as u32) else { return lent };
            slots.free &= slots.free - 1;
            slots.lent.put(slot, lot);
        }
        most
    }

    /// Whether a slot is free. It stays free while the caller holds the sending side.
    pub fn find_free(&self, slots: &mut Slots) -> bool {
        for (i, word) in self.free.iter().enumerate() {
            if slots.free == 0 && word.load(Ordering::Relaxed) != 0 {
                // Acquire pairs with the Release in `freed`.
                (slots.free, slots.first) = (word.swap(0, Ordering::Acquire), i * 64);
            }
        }
        slots.free != 0
    }

    /// Frees slots that were taken and not filled.
    #[cold]
    pub fn free_again(&self, slots: &[u32]) {
        let mut freed = [0; SLOTS / 64];
        for slot in slots {
            freed[*slot as usize / 64] |= 1 << (slot % 64);
        }
        self.freed(&freed);
    }

    /// Notes slots that are empty, each with its bit.
    fn freed(&self, slots: &[u64; SLOTS / 64]) {
        for (word, slots) in self.free.iter().zip(slots) {
            if *slots != 0 {
                // Release pairs with the Acquire in `find_free`: the slots are empty.
                word.fetch_or(*slots, Ordering::Release);
            }
        }
    }

    /// Whether the peer reads the pages that it gets.
    pub fn is_looked_at(&self) -> bool {
        self.ring.header().looks_at_lent()
    }

    /// Returns how many pages are lent, as far as is known.
    pub fn lent(&self) -> usize {
        self.table.lock().lent.full()
    }

    /// Takes home what the peer has given back. Returns how many pages that were.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Returned`]: the connection is over.
    pub fn collect(&self, mut home: impl FnMut(Page)) -> Result<usize, PeerMisbehaved> {
        let (mut told, mut freed) = (Told(Vec::new()), [0; SLOTS / 64]);
        let mut table = self.table.lock();
        let collected = self.ring.header().collect(|slot| match table.lent.take(slot as usize) {
            None => false,
            Some(lot) => {
                freed[slot as usize / 64] |= 1 << (slot % 64);
                home(lot.page);
                told.add(lot.notif, Fate::Sent);
                true
            }
        });
        drop(table);
        self.freed(&freed);
        drop(told);
        if let Err(misbehaved) = collected {
            // The next call on the socket tells.
            self.accuse.0(misbehaved);
        }
        collected
    }

    /// Whether nobody has the other end of the channel any more, and so nobody has a page.
    pub fn is_left(&self) -> bool {
        control::wait(self.channel.as_fd(), PollFlags::empty(), Some(Duration::ZERO)).is_ok()
    }

    /// Takes everything home if the peer is gone. Returns how many pages that were.
    #[cold]
    pub fn collect_if_gone(&self) -> usize {
        if !self.is_left() {
            return 0;
        }
        let (mut told, mut freed) = (Told(Vec::new()), [0; SLOTS / 64]);
        let mut table = self.table.lock();
        let mut count = 0;
        for slot in 0..SLOTS {
            if let Some(lot) = table.lent.take(slot) {
                drop(lot.page);
                // It is not known any more whether the peer has read it.
                told.add(lot.notif, Fate::Dropped);
                freed[slot / 64] |= 1 << (slot % 64);
                count += 1;
            }
        }
        drop(table);
        self.freed(&freed);
        count
    }

    /// Sleeps until a page comes back, at most `limit`. The caller calls `collect` next, whatever happened.
    pub fn sleep(&self, limit: Duration) {
        let header = self.ring.header();
        header.announce_sleep_for_slots();
        if !header.has_returned() {
            header.sleep_for_slots(limit);
        }
        header.awake_for_slots();
    }

    /// Waits until the peer gives a slot back, since all are lent.
    #[cold]
    pub fn wait_for_slot(&self, core: &Core, slots: &mut Slots, flags: SendFlags) -> Result<(), Error> {
        let error = |errno| Error::new(Op::Send, errno);
        let (began, mut asked) = (Instant::now(), false);
        loop {
            self.collect(drop).map_err(|_| error(Errno::PROTO))?;
            if self.find_free(slots) {
                return Ok(());
            }
            core.check(Op::Send)?;
            if core.cannot_send() {
                return Err(error(Errno::PIPE));
            }
            if core.must_not_wait(flags, &mut asked) {
                return Err(error(Errno::AGAIN).because(
                    "the peer holds all the pages that may be lent at once; wait until it gives some back",
                ));
            }
            let left = control::remaining(began, core.settings().write_timeout()).map_err(error)?;
            self.sleep(left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP)));
        }
    }
}
