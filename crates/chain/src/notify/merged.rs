//! Stacking as merged in Linux 6.10 (io_uring/notif.c), with the fix of September 2025 for the comparison that looked at
//! the wrong notification: the thing to compare with.
//!
//! Six cases ([`Notif::link`]). The segment
//!
//! 1. has no notification: it takes a reference on this one, wherever that is linked;
//! 2. has this one already: nothing to do;
//! 3. has another one, and this one is linked: refused, two links can't be joined;
//! 4. has one of another provider: refused;
//! 5. has one of another context or task: refused, since one task finishes the whole chain;
//! 6. else this one goes into the chain behind the segment's, and takes a reference on the chain's head.
//!
//! A member without references drops its one on the head; a head without references posts the whole chain. What comes of it is kept
//! as well: the order is head first, then newest first; a chain that always gets a new member before its last segment is
//! free grows without bound; and a member that asks whether it was copied hears yes, since only the notification that a
//! segment has at first hears how the segment left.

use super::ready::{self, Consumer, Ready};
use super::segment::{Fate, Kind, NotifRef, Segment};
use super::{First, Refused};
use onecopy_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// No node: the end of a chain.
const NONE: u32 = u32::MAX;
/// The usage was asked for (IORING_SEND_ZC_REPORT_USAGE).
const REPORT: u32 = 1;
/// A segment left without a copy.
const USED: u32 = 2;
/// A segment was copied.
const COPIED: u32 = 4;

/// A notification: `struct io_notif_data`. All but `refs` and `flags` are written by its task alone, and published with the
/// references.
#[derive(Debug)]
struct Node {
    refs: AtomicU32,
    flags: AtomicU32,
    head: AtomicU32,
    next: AtomicU32,
    /// For [`Ready`].
    link: AtomicU32,
    task: AtomicU32,
    user_data: AtomicU64,
}

struct Shared {
    nodes: Box<[Node]>,
    ready: Ready,
}

impl Shared {
    #[inline]
    fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    /// `io_tx_ubuf_complete`: a reference goes; `used` says how, where a segment had it.
    fn complete(&self, index: u32, used: Option<bool>) {
        let node = self.node(index);
        // Relaxed: published with the reference.
        if let Some(used) = used
            && node.flags.load(Ordering::Relaxed) & REPORT != 0
        {
            node.flags.fetch_or(if used { USED } else { COPIED }, Ordering::Relaxed);
        }
        // AcqRel, as refcount_dec_and_test is used: Release publishes this holder's doings, Acquire lets the last one see all.
        let old = node.refs.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(old > 0, "a reference on a notification was given up twice");
        if old != 1 {
            return;
        }
        let head = node.head.load(Ordering::Relaxed);
        if head != index {
            return self.complete(head, used);
        }
        self.ready.push(index, &node.link);
    }
}

/// What a notification's task is: the thread that makes it.
fn task() -> u32 {
    #[expect(clippy::disallowed_types, reason = "a counter of threads, which no model looks at")]
    static TASKS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    thread_local!(static TASK: Cell<u32> = Cell::new(TASKS.fetch_add(1, Ordering::Relaxed)));
    TASK.with(Cell::get)
}

/// An io_uring context, as far as notifications go: its owner makes them and reaps them.
pub struct Context {
    shared: Arc<Shared>,
    free: Vec<u32>,
    consumer: Consumer,
    heads: Vec<u32>,
}

impl Context {
    /// With room for so many notifications that have not been reaped.
    pub fn new(capacity: u32) -> Context {
        let capacity = capacity.clamp(1, ready::MAX_ITEMS);
        let node = |index| Node {
            refs: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            head: AtomicU32::new(index),
            next: AtomicU32::new(NONE),
            link: AtomicU32::new(0),
            task: AtomicU32::new(0),
            user_data: AtomicU64::new(0),
        };
        let shared = Shared { nodes: (0..capacity).map(node).collect(), ready: Ready::default() };
        Context {
            shared: Arc::new(shared),
            free: (0..capacity).rev().collect(),
            consumer: Consumer::default(),
            heads: Vec::new(),
        }
    }

    /// `io_alloc_notif`: a notification of this thread's, with one reference, its head itself.
    ///
    /// # Errors
    ///
    /// [`Refused::Full`].
    pub fn open(&mut self, user_data: u64, report_usage: bool) -> Result<Notif, Refused> {
        let full = Refused::Full { capacity: self.shared.nodes.len() as u32 };
        let index = self.free.pop().ok_or(full)?;
        let node = self.shared.node(index);
        // All relaxed: nobody else has it, and what makes others see it publishes this.
        node.refs.store(1, Ordering::Relaxed);
        node.flags.store(if report_usage { REPORT } else { 0 }, Ordering::Relaxed);
        node.head.store(index, Ordering::Relaxed);
        node.next.store(NONE, Ordering::Relaxed);
        node.task.store(task(), Ordering::Relaxed);
        node.user_data.store(user_data, Ordering::Relaxed);
        Ok(Notif { shared: self.shared.clone(), index })
    }

    /// Gives all notifications that were posted to `each`: its user data, and the COPIED bit where usage was asked for. Chains
    /// in the order they were posted in, each head first and then newest first. Returns how many.
    pub fn reap(&mut self, mut each: impl FnMut(u64, bool)) -> usize {
        let mut next = self.consumer.take(&self.shared.ready);
        while let Some(head) = next {
            self.heads.push(head);
            // Relaxed: acquired with the stack.
            next = ready::item(self.shared.node(head).link.load(Ordering::Relaxed));
        }
        let mut count = 0;
        while let Some(head) = self.heads.pop() {
            let mut at = head;
            while at != NONE {
                let node = self.shared.node(at);
                // `io_notif_tw_complete`. All relaxed: published with the references.
                debug_assert_eq!(node.refs.load(Ordering::Relaxed), 0);
                let flags = node.flags.load(Ordering::Relaxed);
                let copied = flags & REPORT != 0 && (flags & COPIED != 0 || flags & USED == 0);
                let (user_data, behind) =
                    (node.user_data.load(Ordering::Relaxed), node.next.load(Ordering::Relaxed));
                self.free.push(at);
                each(user_data, copied);
                count += 1;
                at = behind;
            }
        }
        count
    }

    /// Waits until notifications were posted, at most `limit`; whether some were.
    pub fn wait(&mut self, limit: Option<Duration>) -> bool {
        self.consumer.wait(&self.shared.ready, limit)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({} of {} free)", self.free.len(), self.shared.nodes.len())
    }
}

/// A send's notification, with the reference of who makes the send.
#[must_use = "dropped, it is flushed"]
pub struct Notif {
    shared: Arc<Shared>,
    index: u32,
}

impl Notif {
    /// `io_link_skb`: the six cases.
    ///
    /// # Errors
    ///
    /// [`Refused::Linked`] in case 3, [`Refused::Foreign`] in cases 4 and 5: the caller opens a fresh segment.
    pub fn link<P>(&self, segment: &mut Segment<P>) -> Result<(), Refused> {
        let node = self.shared.node(self.index);
        let prev = match segment.notif_mut() {
            none @ None => {
                *none = Some(NotifRef(Kind::Merged(Ref::new(&self.shared, self.index))));
                return Ok(());
            }
            Some(NotifRef(Kind::Merged(of)))
                if Arc::ptr_eq(&of.shared, &self.shared) && of.index == self.index =>
            {
                return Ok(());
            }
            Some(prev) => prev,
        };
        // All relaxed: written by this task alone.
        let is_linked =
            node.head.load(Ordering::Relaxed) != self.index || node.next.load(Ordering::Relaxed) != NONE;
        if is_linked {
            return Err(Refused::Linked);
        }
        let NotifRef(Kind::Merged(prev)) = prev else { return Err(Refused::Foreign) };
        if !Arc::ptr_eq(&prev.shared, &self.shared) {
            return Err(Refused::Foreign);
        }
        let before = self.shared.node(prev.index);
        let own = node.task.load(Ordering::Relaxed);
        // The second: in the kernel a request runs in its task; here a notification may have been moved out of it.
        if before.task.load(Ordering::Relaxed) != own || task() != own {
            return Err(Refused::Foreign);
        }
        let head = before.head.load(Ordering::Relaxed);
        node.head.store(head, Ordering::Relaxed);
        node.next.store(before.next.load(Ordering::Relaxed), Ordering::Relaxed);
        before.next.store(self.index, Ordering::Relaxed);
        // The segment's reference keeps the head.
        self.shared.node(head).refs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// `io_notif_flush`: the send is over, as far as its maker goes. The notification follows, on an error too.
    pub fn finish<R>(self, result: R) -> First<R> {
        First { result, more: true }
    }
}

impl Drop for Notif {
    fn drop(&mut self) {
        // Without a segment: it says nothing of use.
        self.shared.complete(self.index, None);
    }
}

impl fmt::Debug for Notif {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Notif({})", self.index)
    }
}

/// A segment's reference.
pub(super) struct Ref {
    shared: Arc<Shared>,
    index: u32,
    /// Whether the segment left without a copy; None says nothing.
    used: Option<bool>,
}

impl Ref {
    fn new(shared: &Arc<Shared>, index: u32) -> Ref {
        // `net_zcopy_get`. Relaxed: the caller holds one.
        shared.node(index).refs.fetch_add(1, Ordering::Relaxed);
        Ref { shared: shared.clone(), index, used: Some(true) }
    }

    pub(super) fn is_same(&self, other: &Ref) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.index == other.index
    }

    /// skb_zcopy_clear: freeing an skb that was never transmitted passes for success (`kfree_skb`).
    pub(super) fn set_fate(&mut self, fate: Fate) {
        self.used = Some(fate != Fate::Copied);
    }

    /// Goes without a word on the bytes, which live on.
    pub(super) fn forget(mut self) {
        self.used = None;
    }
}

impl Clone for Ref {
    fn clone(&self) -> Ref {
        Ref::new(&self.shared, self.index)
    }
}

impl Drop for Ref {
    fn drop(&mut self) {
        self.shared.complete(self.index, self.used);
    }
}

impl fmt::Debug for Ref {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ref({})", self.index)
    }
}
