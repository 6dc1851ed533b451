//! Sends of one socket.

use super::others;
use super::sent::{Sent, Where};
use super::shared::{Entry, MOST_PAGES, Shared, State, Tag};
use super::wakers;
use super::{Allowance, Small, Tell};
use crate::chain::Chain;
use crate::kind::Kind;
use crate::notify::lane::Lane;
use crate::notify::outcome::How;
use crate::notify::ranges::Range;
use crate::notify::refused::Refused;
use crate::notify::segment::Segment;
use crate::notify::threshold::Measured;
use crate::writer::Writer;
use onecopy_pool::Pages;
use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Bytes of a page, as memory is charged.
const PAGE_SHIFT: u32 = 12;
/// Pages that a send is charged beyond those of its bytes (mm_account_pinned_pages: the worst case of where it begins and ends).
const BEYOND: u64 = 2;
/// What the kernel charges for a notice that waits to be read: an sk_buff without data (SKB_TRUESIZE(0)).
const NOTICE: u32 = 768;

/// A send that was begun and is to be [ended](Zerocopy::end), whatever became of it.
#[must_use = "a send is ended, or its bytes are said to be dropped"]
#[derive(Debug)]
pub struct Begun {
    /// What is given to the socket, which takes as much from its front as it has room for.
    pub data: Segment<Chain>,
    tag: u64,
    /// What the caller gave, where `data` is a copy of it.
    original: Option<Chain>,
    tell: Tell,
}

impl Begun {
    /// Whether what goes to the socket is a copy, or is to be copied there ([`Zerocopy::begin_uncopied`]).
    pub fn is_copied(&self) -> bool {
        self.original.is_some()
    }
}

/// What a send is to be.
enum Way {
    Lend,
    Small,
    Fragments,
}

/// One socket's sends without a copy. Dropped: what is under way completes all the same, its memory stays charged until then, and
/// nobody reads its notices.
pub struct Zerocopy {
    lane: Lane,
    shared: Arc<Shared>,
    fragments: usize,
    unreadable: bool,
    /// Which sends are copied, if not those that the account says.
    small: Option<Small>,
}

impl Zerocopy {
    pub(super) fn new(lane: Lane, shared: Arc<Shared>) -> Zerocopy {
        Zerocopy { lane, shared, fragments: usize::MAX, unreadable: true, small: None }
    }

    /// What the link takes: fragments that a packet may have, and whether payload may lie in a device's memory. As much as there is, where
    /// nobody says otherwise.
    pub fn set_link(&mut self, fragments: usize, unreadable: bool) {
        (self.fragments, self.unreadable) = (fragments, unreadable);
    }

    /// Which of its sends are copied, whatever the account says; `None`: what that says. `Small::Below(0)` copies none for its size.
    pub fn set_small(&mut self, small: Option<Small>) {
        self.small = small;
    }

    /// Under which number [`Account::news`](super::Account::news) names it.
    pub fn index(&self) -> u32 {
        self.lane.index()
    }

    /// The number of the next send (of 64 bits; notices have the lower 32 of them).
    pub fn next(&self) -> u64 {
        self.lane.sends()
    }

    /// Begins a send of `chain`: by reference, or as a copy by `writer`, where that costs less or the link asks for it. Whether it is one says
    /// the completion. `now_ns` is any steady clock's.
    ///
    /// # Errors
    ///
    /// The chain, and [`Refused`] with ENOBUFS ([`Refused::errno`]); [`Refused::Unreadable`] where the link does not take such memory.
    pub fn begin<A: Pages + ?Sized>(
        &mut self,
        chain: Chain,
        tell: Tell,
        writer: &Writer<'_, A>,
        now_ns: u64,
    ) -> Result<Begun, (Chain, Refused)> {
        self.begin_by(chain, tell, writer, now_ns, copy)
    }

    /// As [`Zerocopy::begin`], for a socket that makes the copy by itself, behind the bytes that it has: so small sends share pages. What is to
    /// be a copy ([`Begun::is_copied`]) comes by reference, without a notification, and no reference to it may be kept.
    ///
    /// # Errors
    ///
    /// As [`Zerocopy::begin`].
    pub fn begin_uncopied<A: Pages + ?Sized>(
        &mut self,
        chain: Chain,
        tell: Tell,
        writer: &Writer<'_, A>,
        now_ns: u64,
    ) -> Result<Begun, (Chain, Refused)> {
        // Where there are not the pages for a copy, it goes by reference, and is told of.
        self.begin_by(chain, tell, writer, now_ns, |chain, writer| {
            let pages = writer.pages();
            let count = chain.len().div_ceil(pages.page_len().max(1) as usize);
            // (Most often it is one, and there is no list of the others.)
            let _first = pages.alloc().ok()?;
            let _others = (1..count).map(|_| pages.alloc()).collect::<Result<Vec<_>, _>>().ok()?;
            Some(chain.share())
        })
    }

    fn begin_by<A: Pages + ?Sized>(
        &mut self,
        chain: Chain,
        tell: Tell,
        writer: &Writer<'_, A>,
        now_ns: u64,
        copy: impl FnOnce(&Chain, &Writer<'_, A>) -> Option<Chain>,
    ) -> Result<Begun, (Chain, Refused)> {
        let allowance = self.shared.state.lock().allowance;
        let small = match self.small.unwrap_or(allowance.small) {
            Small::Below(bytes) => bytes as usize,
            Small::Measured => Measured::here(writer.pages(), tell).below as usize,
        };
        let readable = matches!(chain.kind(), None | Some(Kind::Host));
        if chain.kind() == Some(Kind::Device) && !self.unreadable {
            self.shared.state.lock().counts.refused_unreadable += 1;
            return Err((chain, Refused::Unreadable));
        }
        let many =
            chain.fragment_count() > self.fragments.max(1) && chain.len() < chain.fragment_count() * 1024;
        let way = match readable {
            true if chain.len() < small => Way::Small,
            true if many => Way::Fragments,
            _ => Way::Lend,
        };
        if matches!(way, Way::Small | Way::Fragments)
            && let Some(data) = copy(&chain, writer)
        {
            if tell == Tell::Notice
                && let Err(why) = self.charge(None, tell, &allowance)
            {
                return Err((chain, self.refused(why)));
            }
            let counts = &mut self.shared.state.lock().counts;
            match way {
                Way::Small => counts.copied_small += 1,
                _ => counts.copied_fragments += 1,
            }
            return Ok(Begun { data: data.into(), tag: 0, original: Some(chain), tell });
        }
        // A device's pages are no pages of the host's (msg_zerocopy_alloc() in net/core/skbuff.c).
        let pinned = if chain.kind() == Some(Kind::Device) { 0 } else { chain.len() };
        match self.charge(Some(pinned), tell, &allowance) {
            Ok(tag) => {
                let mut data = Segment::new(chain);
                match self.lane.send_there(&mut data, tag, now_ns) {
                    Ok(_) => Ok(Begun { data, tag, original: None, tell }),
                    Err(why) => {
                        self.uncharge(tag);
                        Err((data.into_parts().0, self.refused(why)))
                    }
                }
            }
            Err(why) => Err((chain, self.refused(why))),
        }
    }

    /// Ends a send, `data` being what the socket has not taken: the handle, if any was taken and it was to have one, and the bytes that the
    /// caller has still, which are no part of this send.
    pub fn end(&mut self, send: Begun) -> (Option<Sent>, Chain) {
        let Begun { mut data, tag, original, tell } = send;
        if let Some(mut original) = original {
            let taken = original.len() - data.payload().len();
            if taken == 0 {
                return (None, original);
            }
            // Nothing is in the way of a cut: the copy was cut so, too.
            let _ = original.advance(taken);
            let how = How { copied: true, ..How::default() };
            if tell == Tell::Handle {
                // The buffer is the caller's already.
                return (Some(Sent(Where::Here(how))), original);
            }
            // Told of in its turn. There is a slot: it was looked for when this began, and there was no send since.
            let told = self.lane.send_copied(0, taken as u32);
            debug_assert!(told.is_ok() || self.lane.is_closed(), "{told:?}");
            return (None, original);
        }
        let made = self.lane.take_back(&mut data);
        let rest = data.into_parts().0;
        if !made {
            self.uncharge(tag);
            return (None, rest);
        }
        let handle = Tag::unpack(tag).entry;
        (handle.map(|index| Sent(Where::There { shared: self.shared.clone(), index })), rest)
    }

    /// The next notice: of sends whose buffers are the caller's again (recvmsg(2) with MSG_ERRQUEUE).
    pub fn notice(&self) -> Option<Range> {
        let index = self.index() as usize;
        self.shared.with(|state, pinned, wake| {
            state.settle(pinned, wake);
            state.sockets[index].list.pop_front()
        })
    }

    /// Whether there is one (EPOLLERR).
    pub fn has_notice(&self) -> bool {
        let index = self.index() as usize;
        self.shared.with(|state, pinned, wake| {
            state.settle(pinned, wake);
            !state.sockets[index].list.is_empty()
        })
    }

    /// As [`Zerocopy::notice`], for a task that polls: `waker` is woken with the next one, where there is none. Only the last waker is.
    pub fn poll_notice(&self, waker: &Waker) -> Poll<Range> {
        let index = self.index() as usize;
        // Cloning and dropping it is code of others.
        let (waker, mut spare, mut before) = (waker.clone(), None, None);
        let polled = self.shared.with(|state, pinned, wake| {
            state.settle(pinned, wake);
            if let Some(range) = state.sockets[index].list.pop_front() {
                return Poll::Ready(range);
            }
            match &state.sockets[index].waker {
                Some(same) if same.will_wake(&waker) => spare = Some(waker),
                Some(_) => before = state.sockets[index].waker.replace(waker),
                None => {
                    state.sockets[index].waker = Some(waker);
                    state.wanted += 1;
                }
            }
            // Should one come right now, the waker says so.
            state.settle(pinned, wake);
            Poll::Pending
        });
        drop(spare);
        wakers::let_go(before);
        polled
    }

    /// Has `bell` woken each time that there is a notice where there was none, from here on: right now, if there is one.
    pub fn set_bell(&self, bell: Waker) {
        let index = self.index() as usize;
        let before = self.shared.with(|state, pinned, wake| {
            let before = state.sockets[index].bell.replace(bell.clone());
            state.wanted += usize::from(before.is_none());
            state.settle(pinned, wake);
            if !state.sockets[index].list.is_empty() {
                wake.push(bell);
            }
            before
        });
        wakers::let_go(before);
    }

    /// Sends whose completions have not been taken in.
    pub fn outstanding(&self) -> u64 {
        self.lane.outstanding()
    }

    /// Charges a send of so many bytes that are lent, or one that is copied, and gives it an entry if it has a handle. What has completed
    /// is looked at only where it would be refused: of this account first, then of the others.
    fn charge(&self, lent: Option<usize>, tell: Tell, allowance: &Allowance) -> Result<u64, Refused> {
        if lent.is_some() && allowance.pinned.is_some() {
            others::list(&self.shared);
        }
        match self.charge_here(lent, tell, allowance) {
            Err(Refused::Pinned { .. }) => {
                others::settle(&self.shared);
                self.charge_here(lent, tell, allowance)
            }
            charged => charged,
        }
    }

    fn charge_here(&self, lent: Option<usize>, tell: Tell, allowance: &Allowance) -> Result<u64, Refused> {
        let (lane, index) = (&self.lane, self.index() as usize);
        let pages = lent.filter(|bytes| *bytes > 0).map_or(0, |bytes| (bytes as u64 >> PAGE_SHIFT) + BEYOND);
        let pages = u32::try_from(pages).unwrap_or(MOST_PAGES).min(MOST_PAGES);
        let limit = allowance.pinned.map(|bytes| bytes >> PAGE_SHIFT);
        let most = allowance.unread / NOTICE;
        self.shared.with(|state, pinned, wake| {
            let attempt = |state: &State| {
                if lane.outstanding() >= lane.capacity() {
                    Err(Refused::Full { capacity: lane.capacity() as u32 })
                } else if tell == Tell::Notice && state.sockets[index].list.len() >= most as usize {
                    Err(Refused::Unread { limit: most })
                } else {
                    let limit_pages = limit.unwrap_or(u64::MAX);
                    let refused = |would_be| Refused::Pinned { would_be, limit: limit_pages };
                    pinned.charge(pages, limit).map_err(refused)
                }
            };
            // How many notices there are is known once completions are taken in.
            let first = if tell == Tell::Notice { None } else { attempt(state).ok() };
            let charge = match first {
                Some(charge) => charge,
                None => {
                    state.settle(pinned, wake);
                    attempt(state)?
                }
            };
            state.counts.lent += u64::from(lent.is_some());
            let entry = (tell == Tell::Handle && lent.is_some()).then(|| {
                state.free.pop().unwrap_or_else(|| {
                    state.entries.push(Entry::default());
                    state.entries.len() as u32 - 1
                })
            });
            Ok(Tag { charge, entry }.pack())
        })
    }

    /// A send was not made after all.
    fn uncharge(&self, tag: u64) {
        let tag = Tag::unpack(tag);
        self.shared.with(|state, pinned, _| {
            pinned.give_back(tag.charge);
            state.counts.lent -= 1;
            state.free.extend(tag.entry);
        });
    }

    fn refused(&self, why: Refused) -> Refused {
        let counts = &mut self.shared.state.lock().counts;
        match why {
            Refused::Pinned { .. } => counts.refused_pinned += 1,
            Refused::Unread { .. } => counts.refused_unread += 1,
            Refused::Full { .. } => counts.refused_full += 1,
            _ => {}
        }
        why
    }
}

/// A copy of readable bytes in pages of the writer's; `None` where there is none left, so that they go by reference.
fn copy<A: Pages + ?Sized>(chain: &Chain, writer: &Writer<'_, A>) -> Option<Chain> {
    let mut copy = Chain::new();
    if !chain.is_empty() {
        chain.host().ok()?.slices().try_for_each(|slice| writer.append(&mut copy, slice)).ok()?;
    }
    Some(copy)
}

impl Drop for Zerocopy {
    fn drop(&mut self) {
        let index = self.index() as usize;
        let mut state = self.shared.state.lock();
        let closed = state.sockets[index].closed();
        let notices = std::mem::replace(&mut state.sockets[index], closed);
        state.wanted -= usize::from(notices.waker.is_some()) + usize::from(notices.bell.is_some());
        drop(state);
        // Wakers are dropped when the lock is free: they are code of others.
        drop(notices);
    }
}

impl fmt::Debug for Zerocopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Zerocopy").field(&self.lane).finish()
    }
}
