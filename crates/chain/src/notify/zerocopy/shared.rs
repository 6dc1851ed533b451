//! What lies under the lock that the sockets of a stack share: who is to be told of what.

use super::pinned::{Charge, Pinned};
use super::wakers;
use super::{Allowance, Counts};
use crate::notify::context::Context as Sends;
use crate::notify::lane::{Config, Lane};
use crate::notify::outcome::{Completion, How};
use crate::notify::queue::Queue;
use crate::notify::ranges::Range;
use crate::notify::refused::Refused;
use onecopy_sync::Mutex;
use onecopy_sync::atomic::AtomicU32;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::Waker;

/// A send that waits to be told of by its handle.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) how: Option<How>,
    pub(super) waker: Option<Waker>,
    /// Nobody has the handle any more.
    pub(super) orphan: bool,
}

/// A socket's notices.
#[derive(Default)]
pub(super) struct Notices {
    pub(super) list: VecDeque<Range>,
    /// Somebody will read them.
    open: bool,
    /// It is among those of [`State::news`].
    told: bool,
    /// Woken once, with the next notice.
    pub(super) waker: Option<Waker>,
    /// Woken with each that comes when there was none.
    pub(super) bell: Option<Waker>,
}

impl Notices {
    /// What is left where nobody reads them any more.
    pub(super) fn closed(&self) -> Notices {
        Notices { told: self.told, ..Notices::default() }
    }
}

pub(super) struct State {
    queue: Queue,
    pub(super) allowance: Allowance,
    pub(super) entries: Vec<Entry>,
    /// Entries that no send has.
    pub(super) free: Vec<u32>,
    /// By the number of their lane.
    pub(super) sockets: Vec<Notices>,
    /// Sockets that have had notices since somebody asked.
    news: Vec<u32>,
    /// Handles and notices that somebody waits for.
    pub(super) wanted: usize,
    pub(super) counts: Counts,
}

pub(super) struct Shared {
    sends: Sends,
    pub(super) state: Mutex<State>,
    /// Pages that are charged. Written under the lock.
    pinned: Pinned,
    /// 1: others look at it before they refuse a send.
    pub(super) listed: AtomicU32,
}

/// What a completion brings back of its send: what is charged for it, and the entry, if it has a handle.
#[derive(Clone, Copy)]
pub(super) struct Tag {
    pub(super) charge: Charge,
    pub(super) entry: Option<u32>,
}

/// What a tag has bits for: 32 GiB.
pub(super) const MOST_PAGES: u32 = u32::MAX >> 9;

impl Tag {
    pub(super) fn pack(self) -> u64 {
        let Charge { pages, limited, forks } = self.charge;
        let entry = self.entry.map_or(0, |entry| u64::from(entry) + 1);
        u64::from(limited) << 63 | u64::from(forks) << 55 | u64::from(pages) << 32 | entry
    }

    pub(super) fn unpack(word: u64) -> Tag {
        let charge = Charge {
            pages: (word >> 32) as u32 & MOST_PAGES,
            limited: word >> 63 != 0,
            forks: (word >> 55) as u8,
        };
        Tag { charge, entry: (word as u32).checked_sub(1) }
    }
}

impl State {
    /// Takes in what has completed. Who is to be woken goes to `wake`: that is code of others, for when the lock is free.
    pub(super) fn collect(&mut self, pinned: &Pinned, wake: &mut Vec<Waker>) -> usize {
        let State { queue, entries, free, sockets, news, wanted, .. } = self;
        queue.reap(|one: Completion| {
            let tag = Tag::unpack(one.user_data);
            pinned.give_back(tag.charge);
            let Some(index) = tag.entry else {
                let socket = &mut sockets[one.lane as usize];
                if socket.open {
                    let range = Range::of(one);
                    if let Some(waker) = socket.waker.take() {
                        *wanted -= 1;
                        wake.push(waker);
                    }
                    if socket.list.is_empty() {
                        wake.extend(socket.bell.clone());
                    }
                    if !socket.list.back_mut().is_some_and(|last| last.extend(&range)) {
                        socket.list.push_back(range);
                    }
                    if !std::mem::replace(&mut socket.told, true) {
                        news.push(one.lane);
                    }
                }
                return;
            };
            let entry = &mut entries[index as usize];
            entry.how = Some(one.how);
            if let Some(waker) = entry.waker.take() {
                *wanted -= 1;
                wake.push(waker);
            }
            if entry.orphan {
                *entry = Entry::default();
                free.push(index);
            }
        })
    }

    /// As [`State::collect`], and has the hook called for what comes next, where somebody waits for it.
    pub(super) fn settle(&mut self, pinned: &Pinned, wake: &mut Vec<Waker>) -> usize {
        let mut count = 0;
        loop {
            count += self.collect(pinned, wake);
            if self.wanted == 0 || self.queue.hook_next() {
                return count;
            }
        }
    }
}

impl Shared {
    /// With nothing charged.
    pub(super) fn new(allowance: Allowance) -> Arc<Shared> {
        let (sends, queue) = Sends::new();
        Arc::new_cyclic(|weak: &Weak<Shared>| {
            // Weak: segments under way hold the queue and its hook, and must not hold the account for that.
            let weak = weak.clone();
            queue.set_hook(Box::new(move || {
                if let Some(shared) = weak.upgrade() {
                    shared.with(State::settle);
                }
            }));
            let state = State {
                queue,
                allowance,
                entries: Vec::new(),
                free: Vec::new(),
                sockets: Vec::new(),
                news: Vec::new(),
                wanted: 0,
                counts: Counts::default(),
            };
            Shared { sends, state: Mutex::new(state), pinned: Pinned::new(), listed: AtomicU32::new(0) }
        })
    }

    /// A lane for a socket, whose notices begin with none.
    ///
    /// # Errors
    ///
    /// As [`Context::lane`](crate::notify::Context::lane).
    pub(super) fn lane(&self, config: Config) -> Result<Lane, Refused> {
        let lane = self.sends.lane(config)?;
        let index = lane.index() as usize;
        let mut state = self.state.lock();
        if state.sockets.len() <= index {
            state.sockets.resize_with(index + 1, Notices::default);
        }
        // Where it is among the news for another socket that had the number, it stays there.
        state.sockets[index] = Notices { open: true, ..state.sockets[index].closed() };
        drop(state);
        Ok(lane)
    }

    /// The numbers of sockets that have had notices since this was last called.
    pub(super) fn news(&self) -> Vec<u32> {
        let mut state = self.state.lock();
        let news = std::mem::take(&mut state.news);
        for index in &news {
            state.sockets[*index as usize].told = false;
        }
        news
    }

    /// Pages that are charged for sends whose completions have not been taken in.
    pub(super) fn pinned_pages(&self) -> u64 {
        self.pinned.pages()
    }

    /// Runs `act` under the lock, and wakes whoever is to be woken outside ([`HoldWakers`](super::HoldWakers)).
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut State, &Pinned, &mut Vec<Waker>) -> R) -> R {
        let mut wake = Vec::new();
        let result = act(&mut self.state.lock(), &self.pinned, &mut wake);
        wakers::wake(wake);
        result
    }

    /// As [`Shared::with`], where nobody holds the lock.
    pub(super) fn try_with<R>(
        &self,
        act: impl FnOnce(&mut State, &Pinned, &mut Vec<Waker>) -> R,
    ) -> Option<R> {
        let mut wake = Vec::new();
        let result = act(&mut *self.state.try_lock()?, &self.pinned, &mut wake);
        wakers::wake(wake);
        Some(result)
    }
}
