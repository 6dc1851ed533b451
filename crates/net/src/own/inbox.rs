//! What shards of a stack hand each other.
//!
//! A packet may come by any queue of the device, and so to any shard; the one whose it is not puts it into the inbox of the one whose it is, and
//! rings there. An inbox is bounded: what does not fit is dropped, as by a full queue of the link, and counted.
//!
//! Nobody holds the locks of two shards: an inbox has a lock of its own, inside of which nothing else is locked.

use onecopy_inet::shard::Handed;
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Release},
};
use onecopy_sys::eventfd::EventFd;
use std::collections::VecDeque;
use std::sync::Arc;

/// Packets that wait in an inbox, at most, and bytes of the memory that they keep.
const MOST: usize = 1024;
/// The same with what neighbours said: who floods a link with that keeps no packet out.
const MOST_NEWS: usize = MOST / 4;
const BYTES: usize = 8 << 20;

/// A shard's.
#[derive(Debug)]
pub(super) struct Inbox {
    waits: Mutex<Waits>,
    /// Whether there is something, for who looks without the lock.
    some: AtomicU32,
    /// Readable while there is something, changed under the lock: whoever sleeps for the shard is woken, and who wakes and takes nothing, as
    /// another thread drives by then, has not taken it from that one.
    bell: EventFd,
}

#[derive(Debug, Default)]
struct Waits {
    handed: VecDeque<Handed>,
    bytes: usize,
    put: u64,
    dropped: u64,
}

impl Inbox {
    fn new() -> rustix::io::Result<Inbox> {
        Ok(Inbox { waits: Mutex::default(), some: AtomicU32::new(0), bell: EventFd::new()? })
    }

    /// Puts something in, if there is room; else it is what is returned.
    fn put(&self, handed: Handed) -> Option<Handed> {
        let mut waits = self.waits.lock();
        let bytes = waits.bytes + handed.memory();
        let first = waits.handed.is_empty();
        let most = if handed.is_news() { MOST_NEWS } else { MOST };
        if waits.handed.len() >= most || bytes > BYTES && !first {
            waits.dropped += 1;
            return Some(handed);
        }
        waits.handed.push_back(handed);
        waits.bytes = bytes;
        waits.put += 1;
        if first {
            // Release pairs with the Acquire in `take`.
            self.some.store(1, Release);
            self.bell.ring();
        }
        None
    }

    /// Takes out what is there, up to `most`, in exchange for `empty`.
    fn take(&self, most: usize, empty: &mut VecDeque<Handed>) {
        // Acquire pairs with the Release in `put`. Who does not see it yet is rung for.
        if self.some.load(Acquire) == 0 {
            return;
        }
        let mut waits = self.waits.lock();
        if waits.handed.len() > most {
            empty.extend(waits.handed.drain(..most));
            waits.bytes -= empty.iter().map(Handed::memory).sum::<usize>();
            return;
        }
        std::mem::swap(&mut waits.handed, empty);
        waits.bytes = 0;
        // Release for form's sake: the lock orders it.
        self.some.store(0, Release);
        self.bell.drain();
    }
}

/// All inboxes of a stack, and whose of them is one's own.
#[derive(Clone, Debug)]
pub(super) struct Mesh {
    me: usize,
    inboxes: Arc<[Inbox]>,
}

impl Mesh {
    /// One for each of `count` shards.
    pub fn new(count: usize) -> rustix::io::Result<Vec<Mesh>> {
        let inboxes: Arc<[Inbox]> = (0..count).map(|_| Inbox::new()).collect::<rustix::io::Result<_>>()?;
        Ok((0..count).map(|me| Mesh { me, inboxes: Arc::clone(&inboxes) }).collect())
    }

    /// Hands something to shard `to`. (What its inbox has no room for is dropped out here: that may complete somebody's send.)
    pub fn put(&self, to: usize, handed: Handed) {
        drop(self.inboxes[to].put(handed));
    }

    /// Takes what has come, up to `most`, in exchange for what has no more in it. (What is left wakes who sleeps.)
    pub fn take(&self, most: usize, empty: &mut VecDeque<Handed>) {
        self.inboxes[self.me].take(most, empty);
    }

    /// Readable when something has come.
    pub fn bell(&self) -> &EventFd {
        &self.inboxes[self.me].bell
    }

    /// How much was handed to this shard, how much of it waits, and how much was dropped as there was no room.
    pub fn counters(&self) -> [(&'static str, u64); 3] {
        let Waits { handed, put, dropped, .. } = &*self.inboxes[self.me].waits.lock();
        let waiting = handed.len() as u64;
        [("handed_over", *put), ("handed_over_waiting", waiting), ("handed_over_dropped", *dropped)]
    }
}
