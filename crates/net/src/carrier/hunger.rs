//! What whoever fills pages of a device's memory wants of the programs that have them.

use onecopy_chain::Fragment;
use onecopy_sync::{Mutex, Want};
use std::fmt;
use std::sync::Weak;

/// Whether windows of a stack wait for pages to come home, and the rings that it takes some from when it needs them
/// ([`RefillRing`](super::RefillRing)). Windows are a stack's of the program's own. Under the kernel's TCP somebody counts as starved as long as a NIC receives into
/// memory by itself: the kernel waits for pages then, and never looks into a ring.
#[derive(Default)]
pub(crate) struct Hunger {
    /// A window is smaller for want of pages: one of those who free some tells the stack.
    narrowed: Want,
    /// A peer may send no whole segment: who pushes to a ring does not wait for the stack to look there. (A window that is smaller only is looked
    /// after when the next packet comes.)
    starved: Want,
    rings: Mutex<Vec<Weak<dyn Filled>>>,
}

/// Who has a ring into which a program puts what it gives back.
pub(crate) trait Filled: Send + Sync {
    /// Takes out what lies there: fragments that are free once they are dropped, which nobody was told of.
    fn taken(&self) -> Vec<Fragment>;
}

impl Hunger {
    /// The stack, under its lock: a window is smaller for want of pages. What is free is looked at behind this.
    pub fn narrows(&self) {
        self.narrowed.ask();
    }

    /// Likewise: some peer may send no whole segment, or the kernel has memory bound. [`Hunger::take`] comes behind this, and then a look at what is free.
    pub fn starves(&self) {
        self.starved.ask();
    }

    /// Likewise: all peers may send, and the kernel has none bound any more.
    pub fn is_fed(&self) {
        self.starved.forget();
    }

    /// Pages have come home: whether it falls to the caller to tell the stack.
    pub fn feeds(&self) -> bool {
        self.narrowed.answer()
    }

    /// A token lies in a ring: whether somebody waits for it who will not look there.
    #[inline]
    pub fn is_starved(&self) -> bool {
        self.starved.is_asked()
    }

    /// There is one more from now on.
    pub fn join(&self, ring: Weak<dyn Filled>) {
        self.rings.lock().push(ring);
    }

    /// There is this one no more.
    pub fn leave(&self, ring: &dyn Filled) {
        self.rings.lock().retain(|other| !std::ptr::addr_eq(other.as_ptr(), ring));
    }

    /// Takes what lies in the rings, for who needs pages. They are home when this returns, and nobody is told. Returns how many fragments are free.
    pub fn take(&self) -> usize {
        let mut freed = Vec::new();
        for ring in &*self.rings.lock() {
            if let Some(ring) = ring.upgrade() {
                freed.append(&mut ring.taken());
            }
        }
        freed.len()
    }
}

impl fmt::Debug for Hunger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hunger({:?}, {:?})", self.narrowed, self.starved)
    }
}
