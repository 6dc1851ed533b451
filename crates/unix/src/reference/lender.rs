//! What is lent to the peer of one stream, and how it comes home.

use crate::end::End;
use crate::holders::generation;
use crate::{Op, control};
use onecopy_chain::notify::{Fate, NotifRef};
use onecopy_pool::Page;
use onecopy_ring::lend::SLOTS;
use onecopy_ring::{Lie, Ring};
use onecopy_sync::Mutex;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The lending side of one direction of a stream. It outlives the stream while pages are with the peer, who may look at
/// them until it is done: as long as the pool is there to want them back.
#[derive(Debug)]
pub struct Lender {
    /// Where the peer gives pages back.
    ring: Ring,
    /// Hung up once nobody can look at a page any more.
    channel: Arc<OwnedFd>,
    end: Weak<End>,
    table: Mutex<Table>,
    /// Of the process that made it: what a forked child inherits lends nothing, and takes nothing home.
    generation: u32,
}

#[derive(Debug)]
struct Table {
    /// By slot. Invariant: a slot is either free or has a page.
    lent: Vec<Option<Lot>>,
    free: Vec<u32>,
    /// Pools that the peer was told of, and their bytes.
    pools: u32,
    bytes: u64,
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
    pub fn new(end: &Arc<End>, ring: Ring, channel: Arc<OwnedFd>) -> Lender {
        let table = Table {
            lent: (0..SLOTS).map(|_| None).collect(),
            // The lowest first: as few lines as possible are in use.
            free: (0..SLOTS as u32).rev().collect(),
            pools: 0,
            bytes: 0,
        };
        Lender { ring, channel, end: Arc::downgrade(end), table: Mutex::new(table), generation: generation() }
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
        (fits && (table.pools as usize) < crate::front::MAX_POOLS).then_some(table.pools)
    }

    /// The peer is being told of the pool that `name_for` named.
    pub fn announced(&self, bytes: u64) {
        let mut table = self.table.lock();
        table.pools += 1;
        table.bytes += bytes;
    }

    /// Whether a slot is free. It stays so, for who holds the sending side.
    #[cold]
    pub fn has_slot(&self) -> bool {
        !self.table.lock().free.is_empty()
    }

    /// Lends as many as `most` pages, those that `next` gives for their slots. How many: fewer where slots are in use, or
    /// `next` has no more.
    #[inline]
    pub fn lend(&self, most: usize, mut next: impl FnMut(u32) -> Option<Lot>) -> usize {
        let mut table = self.table.lock();
        for lent in 0..most {
            let Some(slot) = table.free.pop() else { return lent };
            let lot = next(slot);
            if lot.is_none() {
                table.free.push(slot);
                return lent;
            }
            table.lent[slot as usize] = lot;
        }
        most
    }

    /// Whether the peer looks into the pages that it gets.
    pub fn is_looked_at(&self) -> bool {
        self.ring.header().looks_at_lent()
    }

    /// Pages that are lent, as far as is known.
    pub fn lent(&self) -> usize {
        self.table.lock().lent.iter().flatten().count()
    }

    /// Takes home what the peer has given back. How many pages that were.
    ///
    /// # Errors
    ///
    /// [`Lie::Returned`]: the connection is over.
    pub fn collect(&self, mut home: impl FnMut(Page)) -> Result<usize, Lie> {
        let mut told = Told(Vec::new());
        let mut table = self.table.lock();
        let Table { lent, free, .. } = &mut *table;
        let collected = self.ring.header().collect(|slot| match lent[slot as usize].take() {
            None => false,
            Some(lot) => {
                free.push(slot);
                home(lot.page);
                told.add(lot.notif, Fate::Sent);
                true
            }
        });
        drop(table);
        drop(told);
        if let (Err(lie), Some(end)) = (collected, self.end.upgrade()) {
            // Told by the next call on the socket.
            let _ = end.lie(Op::Send, lie);
        }
        collected
    }

    /// If the peer is gone: takes everything home. How many pages that were.
    #[cold]
    pub fn collect_if_gone(&self) -> usize {
        if control::wait(self.channel.as_fd(), PollFlags::empty(), Some(Duration::ZERO)).is_err() {
            return 0;
        }
        let mut told = Told(Vec::new());
        let mut table = self.table.lock();
        let Table { lent, free, .. } = &mut *table;
        let mut count = 0;
        for (slot, lot) in lent.iter_mut().enumerate() {
            if let Some(lot) = lot.take() {
                drop(lot.page);
                // Whether it was looked at is not known any more.
                told.add(lot.notif, Fate::Dropped);
                free.push(slot as u32);
                count += 1;
            }
        }
        drop(table);
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
}
