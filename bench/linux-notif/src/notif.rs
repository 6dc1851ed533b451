//! A send's notification, while the send is under way.

use crate::first::First;
use crate::node::Nodes;
use crate::refused::Refused;
use crate::segment::{Ref, Segment, Uarg};
use std::fmt;
use std::sync::Arc;

/// A send's notification, with the reference of who makes the send.
#[must_use = "dropped, it is flushed"]
pub struct Notif {
    nodes: Arc<Nodes>,
    index: u32,
}

impl Notif {
    /// Takes over a reference on the notification.
    pub(crate) fn new(nodes: Arc<Nodes>, index: u32) -> Notif {
        Notif { nodes, index }
    }

    /// `io_link_skb`: the six cases.
    ///
    /// # Errors
    ///
    /// [`Refused::Linked`] in case 3, [`Refused::Foreign`] in cases 4 and 5: the caller opens a fresh segment.
    pub fn link<P>(&self, segment: &mut Segment<P>) -> Result<(), Refused> {
        let uarg = segment.uarg_mut();
        let prev = match uarg {
            None => {
                *uarg = Some(Uarg::Ours(Ref::new(&self.nodes, self.index)));
                return Ok(());
            }
            Some(Uarg::Ours(of)) => of.index_in(&self.nodes),
            Some(Uarg::Foreign { .. }) => None,
        };
        if prev == Some(self.index) {
            return Ok(());
        }
        if self.nodes.is_linked(self.index) {
            return Err(Refused::Linked);
        }
        self.nodes.chain(prev.ok_or(Refused::Foreign)?, self.index)
    }

    /// `io_notif_flush`: the send is over, as far as its maker goes. The notification follows, on an error too.
    pub fn finish<R>(self, result: R) -> First<R> {
        First { result, more: true }
    }
}

impl Drop for Notif {
    fn drop(&mut self) {
        // Without a segment: it says nothing of use.
        self.nodes.complete(self.index, None);
    }
}

impl fmt::Debug for Notif {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Notif({})", self.index)
    }
}
