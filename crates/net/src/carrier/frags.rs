//! What was received, by reference.

use super::frag::Frag;
use super::tokens::{Hold, Tokens};
use crate::view::View;
use std::sync::Arc;

/// A piece of what was received.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Bytes in the host's memory, where the link put them (SCM_DEVMEM_LINEAR).
    Linear(&'a View),
    /// Bytes in a device's (SCM_DEVMEM_DMABUF).
    Device(Frag),
}

/// What one call received: bytes in the host's memory, or fragments of a device's; never both. Dropped, it gives its tokens back.
///
/// Where a NIC has put them there ([`Builder::interface`](crate::Builder::interface)), the kernel gets its own tokens back in batches: the thread that drops the 64th fragment that
/// is due, or any of a connection that is closed, makes the call for all of them (SO_DEVMEM_DONTNEED, which does not wait).
#[derive(Debug)]
pub struct Frags {
    len: usize,
    linear: Option<View>,
    device: Vec<Frag>,
    home: Option<Arc<Tokens>>,
}

impl Frags {
    pub(crate) fn of_linear(view: View) -> Frags {
        Frags { len: view.len(), linear: Some(view), device: Vec::new(), home: None }
    }

    pub(crate) fn of_device(device: Vec<Frag>, home: Option<Arc<Tokens>>) -> Frags {
        let len = device.iter().map(|frag| frag.len as usize).sum();
        Frags { len, linear: None, device, home }
    }

    /// Bytes that were thrown away.
    pub(crate) fn of_none(len: usize) -> Frags {
        Frags { len, linear: None, device: Vec::new(), home: None }
    }

    /// Bytes that were received, as recvmsg(2) returns them; those that were thrown away ([`RecvFlags::TRUNC`](crate::RecvFlags::TRUNC)) count.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: the peer sends no more.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes in the host's memory, if it is those.
    pub fn linear(&self) -> Option<&View> {
        self.linear.as_ref()
    }

    /// The fragments of a device's memory, in order.
    pub fn device(&self) -> &[Frag] {
        &self.device
    }

    /// All pieces in order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.linear.iter().map(Piece::Linear).chain(self.device.iter().copied().map(Piece::Device))
    }

    /// The fragments, whose tokens the program gives back itself ([`Stream::dont_need`](crate::tcp::Stream::dont_need)), or leaves until
    /// the socket is closed.
    #[must_use = "what is not given back keeps its page until the socket is closed"]
    pub fn into_device(mut self) -> Vec<Frag> {
        self.home = None;
        std::mem::take(&mut self.device)
    }

    /// The fragments, each with its own token, which is given back when that [`Token`] is dropped: for a program that is done with them at different times.
    /// A fragment that was only looked at has none to give back.
    pub fn into_tokens(mut self) -> Vec<Token> {
        let home = self.home.take();
        let device = std::mem::take(&mut self.device);
        device.into_iter().map(|frag| Token { frag, home: home.clone() }).collect()
    }
}

impl Drop for Frags {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.give_back_all(&self.device);
        }
    }
}

/// A fragment whose token is given back when this is dropped: from [`Frags::into_tokens`].
#[derive(Debug)]
pub struct Token {
    frag: Frag,
    home: Option<Arc<Tokens>>,
}

impl Token {
    /// The fragment.
    pub fn frag(&self) -> Frag {
        self.frag
    }

    /// Gives the token back. Returns whether it was still there; one that was not is counted ([`Refusals::tokens_stale`](crate::devmem::Refusals::tokens_stale)).
    #[must_use = "to drop it gives it back, too"]
    pub fn give_back(mut self) -> bool {
        self.home.take().is_some_and(|home| home.give_back(&[self.frag.into()]) > 0)
    }

    /// Keeps the fragment's page, whatever becomes of the token and of its socket. None where the token was given back before (by number, or as the
    /// socket was closed), and of a fragment that was only looked at: its page may have other bytes by now.
    pub fn hold(&self) -> Option<Hold> {
        self.home.as_ref()?.hold(self.frag.token)
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.give_back_all(&[self.frag]);
        }
    }
}
