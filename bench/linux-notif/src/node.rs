//! Notifications of a context, by number: their references, and the chains that they are in.

use crate::posted::{self, Posted};
use crate::refused::Refused;
use crate::task;
use onecopy_sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
    /// For [`Posted`].
    link: AtomicU32,
    task: AtomicU32,
    user_data: AtomicU64,
}

/// What a context, its notifications and the segments that carry them share.
pub(crate) struct Nodes {
    nodes: Box<[Node]>,
    posted: Posted,
}

impl Nodes {
    pub(crate) fn new(capacity: u32) -> Nodes {
        let node = |index| Node {
            refs: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            head: AtomicU32::new(index),
            next: AtomicU32::new(NONE),
            link: AtomicU32::new(0),
            task: AtomicU32::new(0),
            user_data: AtomicU64::new(0),
        };
        let capacity = capacity.clamp(1, posted::MAX_ITEMS);
        Nodes { nodes: (0..capacity).map(node).collect(), posted: Posted::default() }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.nodes.len() as u32
    }

    #[inline]
    fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    /// Makes a node that nobody has a notification of this thread's, with one reference, its head itself.
    pub(crate) fn open(&self, index: u32, user_data: u64, report_usage: bool) {
        let node = self.node(index);
        // All relaxed: nobody else has it, and what makes others see it publishes this.
        node.refs.store(1, Ordering::Relaxed);
        node.flags.store(if report_usage { REPORT } else { 0 }, Ordering::Relaxed);
        node.head.store(index, Ordering::Relaxed);
        node.next.store(NONE, Ordering::Relaxed);
        node.task.store(task::current(), Ordering::Relaxed);
        node.user_data.store(user_data, Ordering::Relaxed);
    }

    /// `net_zcopy_get`. Only for who holds a reference.
    pub(crate) fn acquire(&self, index: u32) {
        // Relaxed: the caller holds one.
        self.node(index).refs.fetch_add(1, Ordering::Relaxed);
    }

    /// `io_tx_ubuf_complete`: a reference goes; `used` says how, where a segment had it.
    pub(crate) fn complete(&self, index: u32, used: Option<bool>) {
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
        self.posted.push(index, &node.link);
    }

    /// Whether `index` is in a chain with others.
    pub(crate) fn is_linked(&self, index: u32) -> bool {
        let node = self.node(index);
        // All relaxed: written by this task alone.
        node.head.load(Ordering::Relaxed) != index || node.next.load(Ordering::Relaxed) != NONE
    }

    /// Puts `index`, which is in no chain, behind `prev`. The caller's segment keeps the head.
    ///
    /// # Errors
    ///
    /// [`Refused::Foreign`]: they are of two tasks.
    pub(crate) fn chain(&self, prev: u32, index: u32) -> Result<(), Refused> {
        let (before, node) = (self.node(prev), self.node(index));
        // All relaxed: written by this task alone.
        let own = node.task.load(Ordering::Relaxed);
        // The second: in the kernel a request runs in its task; here a notification may have been moved out of it.
        if before.task.load(Ordering::Relaxed) != own || task::current() != own {
            return Err(Refused::Foreign);
        }
        let head = before.head.load(Ordering::Relaxed);
        node.head.store(head, Ordering::Relaxed);
        node.next.store(before.next.load(Ordering::Relaxed), Ordering::Relaxed);
        before.next.store(index, Ordering::Relaxed);
        self.acquire(head);
        Ok(())
    }

    /// Takes the heads that were posted, the newest first.
    pub(crate) fn take(&self, heads: &mut Vec<u32>) {
        let mut next = self.posted.take();
        while let Some(head) = next {
            heads.push(head);
            // Relaxed: acquired with the stack.
            next = posted::item(self.node(head).link.load(Ordering::Relaxed));
        }
    }

    /// `io_notif_tw_complete` of the chain that `head` leads: what each says, and its number, which is free again.
    pub(crate) fn finish(&self, head: u32, mut each: impl FnMut(u32, u64, bool)) {
        let mut at = head;
        while at != NONE {
            let node = self.node(at);
            // All relaxed: published with the references.
            debug_assert_eq!(node.refs.load(Ordering::Relaxed), 0);
            let flags = node.flags.load(Ordering::Relaxed);
            let copied = flags & REPORT != 0 && (flags & COPIED != 0 || flags & USED == 0);
            let (user_data, behind) =
                (node.user_data.load(Ordering::Relaxed), node.next.load(Ordering::Relaxed));
            each(at, user_data, copied);
            at = behind;
        }
    }

    /// Sleeps until a head is posted.
    pub(crate) fn wait(&self) {
        self.posted.wait();
    }
}
