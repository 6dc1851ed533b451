//! Sending by reference: a loan, or a chain.

use crate::byref::lender::Lender;
use crate::byref::pool::Loan;
use crate::connection::tx::TxRing;
use crate::core::Core;
use onecopy_chain::notify::{Fate, NotifRef, Segment};
use onecopy_chain::{Chain, Checksum, Kind, Mark as ChainMark};
use onecopy_pool::Page;
use onecopy_socket::{Error, Op, Result, SendFlags};
use rustix::io::Errno;
use std::fmt;
use std::io::{self};

/// A loan or a chain that was not sent, or not all of it, and why. It comes back without what was sent of it.
#[derive(Debug)]
pub struct NotSent<T = Loan> {
    /// Why it was not sent.
    pub error: Error,
    /// What was not sent.
    pub loan: T,
}

impl<T> fmt::Display for NotSent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for NotSent<T> {}

impl<T> From<NotSent<T>> for Error {
    fn from(not: NotSent<T>) -> Error {
        not.error
    }
}

impl<T> From<NotSent<T>> for io::Error {
    fn from(not: NotSent<T>) -> io::Error {
        not.error.into()
    }
}

/// Sends return it in a box, since it is large and rare.
impl<T> From<Box<NotSent<T>>> for Error {
    fn from(not: Box<NotSent<T>>) -> Error {
        not.error
    }
}

impl<T> From<Box<NotSent<T>>> for io::Error {
    fn from(not: Box<NotSent<T>>) -> io::Error {
        not.error.into()
    }
}

/// A part of a page, which is lent at one mark.
#[derive(Debug)]
pub struct Part {
    pub(super) page: Page,
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) notif: Option<NotifRef>,
}

/// How the bytes of a page leave.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// By reference, with the name of its pool in references.
    Lent(u32),
    Copied,
}

/// Checks that a chain's bytes can be sent at all.
///
/// # Errors
///
/// EFAULT, EINVAL, EOPNOTSUPP.
pub fn sendable(chain: &Chain) -> Result<()> {
    let error = |errno| Error::new(Op::Send, errno);
    if chain.kind() == Some(Kind::Device) {
        return Err(error(Errno::FAULT));
    }
    if matches!(chain.checksum(), Checksum::Partial { .. }) {
        return Err(error(Errno::INVAL)
            .about("chain")
            .because("it has a checksum that is to be finished, which nobody would; finish it first"));
    }
    if chain.marks().any(|(_, mark)| matches!(mark, ChainMark::Rights(_) | ChainMark::Credentials(_))) {
        return Err(error(Errno::OPNOTSUPP).about("chain").because(
            "descriptors and credentials do not travel with references; take the marks out and send them with `send_with` or \
             `send_as`",
        ));
    }
    Ok(())
}

/// Takes the first fragment out, or its first `max` bytes, with the notification that waits for its page.
/// Returns None if there is no fragment.
pub fn cut(segment: &mut Segment<Chain>, max: usize) -> Option<Part> {
    let whole = segment.payload().len();
    let n = segment.payload().fragments().next()?.len().min(max);
    // Each part holds back just the sends that it has bytes of.
    let (chain, notif) = if n == whole {
        std::mem::take(segment).into_parts()
    } else {
        let rest = segment.divide(n).ok()?;
        std::mem::replace(segment, rest).into_parts()
    };
    let fragment = chain.into_fragments().next()?;
    let (offset, len) = (fragment.offset() as u32, fragment.len() as u32);
    Some(Part { page: fragment.into_page(), offset, len, notif })
}

impl Part {
    /// Drops the page, since its bytes were sent without it, and tells `fate`.
    pub fn free(self, fate: Fate) {
        drop(self.page);
        if let Some(mut notif) = self.notif {
            notif.set_fate(fate);
        }
    }
}

impl Loan {
    pub(crate) fn into_part(self) -> Part {
        let (page, offset, len, notif) = self.into_parts();
        Part { page, offset, len, notif }
    }
}

impl TxRing {
    /// Takes `n` slots, and waits for them. The caller fills them or frees them again.
    ///
    /// # Errors
    ///
    /// As [`TxRing::room`]; then none was taken.
    pub fn take_slots(
        &mut self,
        core: &Core,
        lender: &Lender,
        n: usize,
        flags: SendFlags,
    ) -> Result<Vec<u32>> {
        let Some(slots) = &mut self.slots else { return Err(Error::new(Op::Send, Errno::NOTCONN)) };
        let mut taken = Vec::with_capacity(n);
        while taken.len() < n {
            if slots.has_free() || lender.find_free(slots) {
                taken.extend(slots.take());
            } else if let Err(error) = lender.wait_for_slot(core, slots, flags) {
                lender.free_again(&taken);
                return Err(error);
            }
        }
        Ok(taken)
    }
}
