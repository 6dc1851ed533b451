//! What is lent to the peer of one stream, and how it comes home.

use crate::connection::core::Core;
use crate::doorbell::control;
use crate::multiprocess::generation::generation;
use crate::{Error, Op, SendFlags};
use onecopy_chain::notify::{Fate, NotifRef};
use onecopy_pool::Page;
use onecopy_ring::lend::SLOTS;
use onecopy_ring::{PeerMisbehaved, Ring};
use onecopy_sync::atomic::{AtomicU64, Ordering};
use onecopy_sync::{Filler, Mutex, Taker, shelf};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest sleep for a slot before it is looked whether the peer lives.
const LONGEST_SLEEP: Duration = Duration::from_millis(40);

/// Most pools of one peer on one stream.
pub const MAX_POOLS: usize = 16;

/// How the connection is told that its peer misbehaved.
pub struct Accuse(pub Box<dyn Fn(PeerMisbehaved) + Send + Sync>);

impl fmt::Debug for Accuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Accuse")
    }
}

/// The lending side of one direction of a stream. It outlives the stream while pages are with the peer, who may look at
/// them until it is done: as long as the pool is there to want them back.
#[derive(Debug)]
pub struct Lender {
    /// Where the peer gives pages back.
    ring: Ring,
    /// Hung up once nobody can look at a page any more.
    channel: Arc<OwnedFd>,
    accuse: Accuse,
    /// What was lent, in the hands of who takes it home.
    table: Mutex<Table>,
    /// Slots that are free, a bit each, but for those that [`Slots`] has.
    free: [AtomicU64; SLOTS / 64],
    /// Of the process that made it: what a forked child inherits lends nothing, and takes nothing home.
    generation: u32,
}

#[derive(Debug)]
struct Table {
    /// By slot.
    lent: Taker<Lot>,
    /// Pools that the peer was told of, and their bytes.
    pools: u32,
    bytes: u64,
}

/// The slots, in the hands of who sends: filling one takes no lock but that of the sending side.
#[derive(Debug)]
pub struct Slots {
    lent: Filler<Lot>,
    /// Free ones of one word of [`Lender::free`], and the first of that word. The lowest first, and all of a word before the
    /// next: as few lines as possible are in use.
    free: u64,
    first: usize,
}

impl Slots {
    /// Whether a free one is known.
    #[inline]
    pub fn has_free(&self) -> bool {
        self.free != 0
    }

    /// Takes a free one, if one is known.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let slot = self.first as u32 + self.free.trailing_zeros();
        self.free &= self.free - 1;
        Some(slot)
    }

    /// Fills one that was taken.
    #[inline]
    pub fn put(&mut self, slot: u32, lot: Lot) {
        self.lent.put(slot as usize, lot);
    }
}

/// What lies in a slot.
#[derive(Debug)]
pub struct Lot {
    pub page: Page,
    /// Who waits for it to come home.
    pub notif: Option<NotifRef>,
}

/// Sends to be told that pages are free. That is code of others, and runs when no lock is held; each page is home before.
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
    /// With all slots free, and what fills them.
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

    /// The name for one more pool of that size; None where the peer maps no such one.
    pub fn name_for(&self, bytes: u64) -> Option<u32> {
        use onecopy_sync::atomic::Ordering::Relaxed;
        let table = self.table.lock();
        // The peer's word for what it maps. A wrong one is its own loss.
        let most = self.ring.header().info.0.max_shared.load(Relaxed);
        let fits = table.bytes.checked_add(bytes).is_some_and(|sum| sum <= most);
        (fits && (table.pools as usize) < MAX_POOLS).then_some(table.pools)
    }

    /// The peer is being told of the pool that `name_for` named.
    pub fn announced(&self, bytes: u64) {
        let mut table = self.table.lock();
        table.pools += 1;
        table.bytes += bytes;
    }

    /// Lends as many as `most` pages, those that `next` gives for their slots. How many: fewer where slots are in use, or
    /// `next` has no more.
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

    /// Whether a slot is free. It stays so, for who holds the sending side.
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

    /// Slots that are empty, each with its bit.
    fn freed(&self, slots: &[u64; SLOTS / 64]) {
        for (word, slots) in self.free.iter().zip(slots) {
            if *slots != 0 {
                // Release pairs with the Acquire in `find_free`: they are empty.
                word.fetch_or(*slots, Ordering::Release);
            }
        }
    }

    /// Whether the peer looks into the pages that it gets.
    pub fn is_looked_at(&self) -> bool {
        self.ring.header().looks_at_lent()
    }

    /// Pages that are lent, as far as is known.
    pub fn lent(&self) -> usize {
        self.table.lock().lent.full()
    }

    /// Takes home what the peer has given back. How many pages that were.
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
            // Told by the next call on the socket.
            self.accuse.0(misbehaved);
        }
        collected
    }

    /// Whether nobody has the other end of its channel any more, and so none of its pages.
    pub fn is_left(&self) -> bool {
        control::wait(self.channel.as_fd(), PollFlags::empty(), Some(Duration::ZERO)).is_ok()
    }

    /// If the peer is gone: takes everything home. How many pages that were.
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
                // Whether it was looked at is not known any more.
                told.add(lot.notif, Fate::Dropped);
                freed[slot / 64] |= 1 << (slot % 64);
                count += 1;
            }
        }
        drop(table);
        self.freed(&freed);
        count
    }

    /// Sleeps until a page comes back, at most `limit`. `collect` next, whatever happened.
    pub fn sleep(&self, limit: Duration) {
        let header = self.ring.header();
        header.announce_sleep_for_slots();
        if !header.has_returned() {
            header.sleep_for_slots(limit);
        }
        header.awake_for_slots();
    }

    /// All slots are lent: waits until the peer gives one back.
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
            let left = control::remaining(began, core.settings.write_timeout()).map_err(error)?;
            self.sleep(left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP)));
        }
    }
}
