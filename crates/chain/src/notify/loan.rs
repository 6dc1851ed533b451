//! Buffers on loan: given to a send, and back with its completion.
//!
//! As long as bytes of it are under way, a buffer is in nobody's hands who could change it: the [`Lender`] keeps it, and the
//! [`Loan`] that stands for it is a future and can be waited for without any runtime. A loan that is dropped loses
//! nothing: the buffer is freed when its last fragment is, and the completion is counted.

use super::context::Context as Sends;
use super::lane::{Config, Lane};
use super::outcome::How;
use super::queue::Queue;
use super::refused::Refused;
use super::segment::{Payload, Segment};
use onecopy_sync::Mutex;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A buffer that can put references to its bytes into a payload `P`. The references share its memory: freeing the buffer
/// itself, which happens where a loan is dropped and so is its lender, leaves them whole.
pub trait Lend<P>: Send + 'static {
    /// Its bytes.
    fn size(&self) -> u32;
    /// Puts references to all of them behind what is in `payload`; false, with nothing put there, if it does not take them.
    fn lend(&self, payload: &mut P) -> bool;
}

/// A part of a buffer on the heap, shared.
#[derive(Clone)]
pub struct Piece {
    of: Arc<dyn AsRef<[u8]> + Send + Sync>,
}

impl Piece {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        (*self.of).as_ref()
    }
}

impl Payload for Piece {
    fn size(&self) -> u32 {
        u32::try_from(self.bytes().len()).unwrap_or(u32::MAX)
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} bytes)", self.bytes().len())
    }
}

impl<B: AsRef<[u8]> + Send + Sync + 'static> Lend<Vec<Piece>> for Arc<B> {
    fn size(&self) -> u32 {
        u32::try_from((**self).as_ref().len()).unwrap_or(u32::MAX)
    }

    fn lend(&self, payload: &mut Vec<Piece>) -> bool {
        payload.push(Piece { of: self.clone() });
        true
    }
}

/// What lender, loans and the hook of their queue share.
struct Shared<B>(Mutex<State<B>>);

struct State<B> {
    queue: Queue,
    loans: Vec<Entry<B>>,
    /// Entries that no loan has.
    free: Vec<u32>,
    /// Loans that somebody wants to hear of: waited for, or dropped.
    wanted: usize,
}

struct Entry<B> {
    buffer: Option<B>,
    how: Option<How>,
    waker: Option<Waker>,
    /// Nobody has the loan: the buffer goes when it comes.
    orphan: bool,
}

impl<B> Entry<B> {
    fn is_wanted(&self) -> bool {
        self.how.is_none() && (self.orphan || self.waker.is_some())
    }
}

/// What is to be done once the lock is free: all of it is code of others, which may free segments, and so come back here.
struct News<B> {
    wake: Vec<Waker>,
    drop: Vec<B>,
}

impl<B> News<B> {
    fn new() -> News<B> {
        News { wake: Vec::new(), drop: Vec::new() }
    }

    fn tell(self) {
        drop(self.drop);
        self.wake.into_iter().for_each(Waker::wake);
    }
}

impl<B> State<B> {
    /// Takes in what has completed.
    fn collect(&mut self, news: &mut News<B>) {
        let State { queue, loans, free, wanted } = self;
        queue.reap(|completion| {
            let index = completion.user_data as usize;
            let entry = &mut loans[index];
            if entry.is_wanted() {
                *wanted -= 1;
            }
            entry.how = Some(completion.how);
            news.wake.extend(entry.waker.take());
            if entry.orphan {
                news.drop.extend(entry.buffer.take());
                free.push(index as u32);
            }
        });
    }

    /// Takes in what has completed, and has the hook called for what comes next, where somebody wants to hear of it.
    fn settle(&mut self, news: &mut News<B>) {
        loop {
            self.collect(news);
            if self.wanted == 0 || self.queue.hook_next() {
                return;
            }
        }
    }

    fn entry(&mut self) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.loans.push(Entry { buffer: None, how: None, waker: None, orphan: true });
            self.loans.len() as u32 - 1
        });
        self.loans[index as usize] = Entry { buffer: None, how: None, waker: None, orphan: true };
        self.wanted += 1;
        index
    }
}

impl<B: Send + 'static> Shared<B> {
    /// Runs `act` under the lock, and what came of it outside.
    fn with<R>(&self, act: impl FnOnce(&mut State<B>, &mut News<B>) -> R) -> R {
        let mut news = News::new();
        let result = act(&mut self.0.lock(), &mut news);
        news.tell();
        result
    }
}

/// Submission of one socket's sends, with the buffers that are on loan.
pub struct Lender<B> {
    lane: Lane,
    shared: Arc<Shared<B>>,
}

/// A send was refused: nothing was taken, and the buffer is the caller's.
pub struct Rejected<B> {
    /// The buffer.
    pub buffer: B,
    /// Why.
    pub why: Refused,
}

impl<B> fmt::Debug for Rejected<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rejected({:?})", self.why)
    }
}

impl<B> fmt::Display for Rejected<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl<B> std::error::Error for Rejected<B> {}

impl<B: Send + 'static> Lender<B> {
    /// With a lane of its own.
    ///
    /// # Errors
    ///
    /// As [`Context::lane`](super::Context::lane).
    pub fn new(config: Config) -> Result<Lender<B>, Refused> {
        let (sends, queue) = Sends::new();
        let lane = sends.lane(config)?;
        let shared = Arc::new_cyclic(|weak: &Weak<Shared<B>>| {
            // Weak: segments under way hold the queue and its hook, and must not hold the lender for that.
            let weak = weak.clone();
            queue.set_hook(Box::new(move || {
                if let Some(shared) = weak.upgrade() {
                    shared.with(State::settle);
                }
            }));
            Shared(Mutex::new(State { queue, loans: Vec::new(), free: Vec::new(), wanted: 0 }))
        });
        Ok(Lender { lane, shared })
    }

    /// Sends `buffer` on `segment`: references to its bytes go there, and it goes into the loan. `now_ns` as in
    /// [`Lane::send`].
    ///
    /// # Errors
    ///
    /// The buffer, with the reason; see [`Lane::send`].
    pub fn send<P>(
        &mut self,
        segment: &mut Segment<P>,
        buffer: B,
        now_ns: u64,
    ) -> Result<Loan<B>, Rejected<B>>
    where
        B: Lend<P>,
        P: Payload,
    {
        let bytes = buffer.size();
        // An orphan until the loan is there: should `lend` panic, the entry is freed with its completion.
        let index = self.shared.with(|state, _| state.entry());
        let mut lent = false;
        let mut send = |lane: &mut Lane| {
            lane.put(segment, u64::from(index), bytes, now_ns, |payload| {
                lent = buffer.lend(payload);
                lent
            })
        };
        let mut sent = send(&mut self.lane);
        if let Err(Refused::Full { .. }) = sent {
            self.shared.with(State::settle);
            sent = send(&mut self.lane);
        }
        if let Err(why) = sent {
            self.shared.with(|state, _| {
                state.wanted -= 1;
                state.free.push(index);
            });
            return Err(Rejected { buffer, why });
        }
        if !lent {
            // The send stays an orphan without a buffer and without bytes, and completes with the segment.
            return Err(Rejected { buffer, why: Refused::Payload });
        }
        self.shared.with(|state, _| {
            // The segment is in our hands, so it has not completed.
            let entry = &mut state.loans[index as usize];
            entry.buffer = Some(buffer);
            entry.orphan = false;
            state.wanted -= 1;
        });
        Ok(Loan { shared: Some(self.shared.clone()), index })
    }

    /// Sends whose buffers have not been seen to be back.
    pub fn outstanding(&self) -> u64 {
        self.shared.with(State::settle);
        self.lane.outstanding()
    }

    /// Refuses every send from here on; what is under way still comes back.
    pub fn close(&mut self) {
        self.lane.close();
    }
}

impl<B> fmt::Debug for Lender<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lender").field(&self.lane).finish()
    }
}

/// A buffer under way: resolves to it, and to how its bytes left, once all its fragments are free. That takes somebody who
/// frees the segments: a loan that is waited for by the only thread that would transmit them waits for ever.
#[must_use = "dropped, the buffer is freed once it is back"]
pub struct Loan<B: Send + 'static> {
    /// None once the buffer is back.
    shared: Option<Arc<Shared<B>>>,
    index: u32,
}

impl<B: Send + 'static> Loan<B> {
    /// The buffer, if it is back.
    ///
    /// # Errors
    ///
    /// The loan, if it is not.
    pub fn try_take(mut self) -> Result<(B, How), Loan<B>> {
        self.look(None).ok_or(self)
    }

    /// Waits for the buffer.
    pub fn wait(mut self) -> (B, How) {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            if let Some(back) = self.look(Some(&waker)) {
                return back;
            }
            std::thread::park();
        }
    }

    /// Waits for the buffer, at most `limit`.
    ///
    /// # Errors
    ///
    /// The loan, if that was not enough.
    pub fn wait_for(mut self, limit: Duration) -> Result<(B, How), Loan<B>> {
        let start = Instant::now();
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            if let Some(back) = self.look(Some(&waker)) {
                return Ok(back);
            }
            match onecopy_sync::clock::remaining(start, limit) {
                Some(left) => std::thread::park_timeout(left),
                None => return Err(self),
            }
        }
    }

    /// The buffer, if it is back; else `waker` is woken when it is.
    fn look(&mut self, waker: Option<&Waker>) -> Option<(B, How)> {
        let shared = self.shared.as_ref().expect("a loan is asked no more once its buffer is back");
        let index = self.index as usize;
        // Cloning it is code of others.
        let waker = waker.cloned();
        let back = shared.with(|state, news| {
            state.collect(news);
            let entry = &mut state.loans[index];
            if let Some(how) = entry.how {
                let buffer = entry.buffer.take();
                state.free.push(index as u32);
                return buffer.map(|buffer| (buffer, how));
            }
            if waker.is_some() {
                if !entry.is_wanted() {
                    state.wanted += 1;
                }
                // The old one is dropped outside of the lock; waking it would not hurt, either.
                news.wake.extend(std::mem::replace(&mut entry.waker, waker));
                // Should it complete right now, the waker says so.
                state.settle(news);
            }
            None
        });
        if back.is_some() {
            self.shared = None;
        }
        back
    }
}

impl<B: Send + 'static> Future for Loan<B> {
    type Output = (B, How);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<(B, How)> {
        self.look(Some(context.waker())).map_or(Poll::Pending, Poll::Ready)
    }
}

impl<B: Send + 'static> Drop for Loan<B> {
    fn drop(&mut self) {
        let Some(shared) = &self.shared else { return };
        let index = self.index as usize;
        shared.with(|state, news| {
            state.collect(news);
            let entry = &mut state.loans[index];
            if entry.how.is_some() {
                news.drop.extend(entry.buffer.take());
                state.free.push(index as u32);
                return;
            }
            if !entry.is_wanted() {
                state.wanted += 1;
            }
            entry.orphan = true;
            state.settle(news);
        });
    }
}

impl<B: Send + 'static> fmt::Debug for Loan<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan({})", self.index)
    }
}

/// Wakes a thread that parks.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
