//! What carries bytes of sends: the kernel's skb.

use crate::node::Nodes;
use std::fmt;
use std::sync::Arc;

/// What became of a segment's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They were transmitted from where they lie.
    Sent,
    /// They were transmitted, but copied on the way.
    Copied,
    /// They were freed without having been transmitted.
    Dropped,
}

/// A payload and the notification of the sends that it carries bytes of. A clone shares both.
#[derive(Clone, Debug, Default)]
pub struct Segment<P> {
    // Dropped in this order: a send never completes before its last fragment is free.
    payload: P,
    uarg: Option<Uarg>,
}

impl<P> Segment<P> {
    /// A segment that carries bytes of no send that waits for them.
    pub fn new(payload: P) -> Segment<P> {
        Segment { payload, uarg: None }
    }

    /// One whose notification is of another provider (of MSG_ZEROCOPY, or of a driver), and dropped with it.
    pub fn foreign(payload: P, notification: Arc<dyn Send + Sync>) -> Segment<P> {
        Segment { payload, uarg: Some(Uarg::Foreign { _held: notification }) }
    }

    /// What it carries.
    pub fn payload(&self) -> &P {
        &self.payload
    }

    /// What it carries, to put more there.
    pub fn payload_mut(&mut self) -> &mut P {
        &mut self.payload
    }

    /// Frees it, and says what became of its bytes.
    #[inline]
    pub fn free(mut self, fate: Fate) {
        if let Some(Uarg::Ours(of)) = &mut self.uarg {
            of.set_fate(fate);
        }
    }

    pub(crate) fn uarg_mut(&mut self) -> &mut Option<Uarg> {
        &mut self.uarg
    }
}

/// By provider.
#[derive(Clone)]
pub(crate) enum Uarg {
    Ours(Ref),
    /// Of another one, of which nothing is known: held until the segment is free.
    Foreign {
        _held: Arc<dyn Send + Sync>,
    },
}

impl fmt::Debug for Uarg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Uarg::Ours(of) => of.fmt(f),
            Uarg::Foreign { .. } => f.write_str("Foreign"),
        }
    }
}

/// A segment's reference on a notification.
pub(crate) struct Ref {
    nodes: Arc<Nodes>,
    index: u32,
    /// Whether the segment left without a copy.
    used: bool,
}

impl Ref {
    pub(crate) fn new(nodes: &Arc<Nodes>, index: u32) -> Ref {
        nodes.acquire(index);
        Ref { nodes: nodes.clone(), index, used: true }
    }

    /// Its number, if it is of this context.
    pub(crate) fn index_in(&self, nodes: &Arc<Nodes>) -> Option<u32> {
        Arc::ptr_eq(&self.nodes, nodes).then_some(self.index)
    }

    /// skb_zcopy_clear: freeing an skb that was never transmitted passes for success (`kfree_skb`).
    fn set_fate(&mut self, fate: Fate) {
        self.used = fate != Fate::Copied;
    }
}

impl Clone for Ref {
    fn clone(&self) -> Ref {
        Ref::new(&self.nodes, self.index)
    }
}

impl Drop for Ref {
    fn drop(&mut self) {
        self.nodes.complete(self.index, Some(self.used));
    }
}

impl fmt::Debug for Ref {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ref({})", self.index)
    }
}
