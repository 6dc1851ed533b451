//! A socket's sends without a copy.

use crate::error::refused;
use onecopy_chain::notify::threshold::Measured;
use onecopy_chain::notify::zerocopy::{Account, Begun, HoldWakers, Small, Tell};
use onecopy_chain::notify::{self, Config, Range, Zerocopy};
use onecopy_chain::{Chain, Writer};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, Pages, PoolConfig};
use onecopy_socket::{Error, Op, Result};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed};
use onecopy_sys::eventfd::EventFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Made with the first such send of a socket: it has memory for its slots.
#[derive(Debug)]
pub(crate) struct Lender {
    zerocopy: Mutex<Zerocopy>,
    account: Account,
    /// What was said of small sends, for who looks without the lock. (Relaxed: nothing else hangs on it.)
    small: AtomicU32,
    fd: OnceLock<Arc<Ring>>,
}

/// What [`Lender::small`] says.
const AS_THE_STACK: u32 = 0;
const AS_MEASURED: u32 = 1;
const BELOW: u32 = 2;

/// Makes the descriptor for notices readable.
#[derive(Debug)]
struct Ring(EventFd);

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.0.ring();
    }
}

/// Wakes a thread that parks.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What a link takes of a send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takes {
    /// Parts of one packet.
    pub fragments: usize,
    /// A device's memory.
    pub unreadable: bool,
    /// Whoever takes it makes the copy of what is to be one, behind the bytes that he has.
    pub appends: bool,
}

impl Lender {
    pub fn new(account: &Account) -> Result<Lender> {
        let zerocopy = account.socket(Config::default()).map_err(|why| refused(Op::Send, why))?;
        Ok(Lender {
            zerocopy: Mutex::new(zerocopy),
            account: account.clone(),
            small: AtomicU32::new(AS_THE_STACK),
            fd: OnceLock::new(),
        })
    }

    /// Calls `act`; what it wakes is woken when the lock is free.
    fn with<R>(&self, act: impl FnOnce(&mut Zerocopy) -> R) -> R {
        let _held = HoldWakers::new();
        act(&mut self.zerocopy.lock())
    }

    /// Sees to it that what is small is known: measuring that takes some milliseconds, and the stack's lock is not held for so long. Returns up to
    /// how many bytes such sends are copied; None where that was not measured.
    pub fn prepare(&self, tell: Tell) -> Option<u32> {
        let measures = match self.small.load(Relaxed) {
            AS_MEASURED => true,
            BELOW => false,
            _ => self.account.allowance().small == Small::Measured,
        };
        if !measures {
            return None;
        }
        let measured = Measured::known(tell).or_else(|| {
            let pool = PagePool::new(PoolConfig::new(), Heap::new()).ok()?;
            Some(Measured::here(&pool, tell))
        });
        measured.map(|measured| measured.below.saturating_sub(1))
    }

    /// Begins a send, under the stack's lock, and says which number it has. Whoever does ends it before another one begins.
    pub fn begin<A: Pages + ?Sized>(
        &self,
        takes: Takes,
        chain: Chain,
        tell: Tell,
        writer: &Writer<'_, A>,
        now: u64,
    ) -> Result<(Begun, u64)> {
        self.with(|zerocopy| {
            zerocopy.set_link(takes.fragments, takes.unreadable);
            let number = zerocopy.next();
            let begun = match takes.appends {
                true => zerocopy.begin_uncopied(chain, tell, writer, now),
                false => zerocopy.begin(chain, tell, writer, now),
            };
            begun.map(|begun| (begun, number)).map_err(|(_, why)| refused(Op::Send, why))
        })
    }

    /// Ends it: its handle, if it has one, and its number, if it was made.
    pub fn end(&self, (begun, number): (Begun, u64)) -> (Option<notify::Sent>, Option<u32>) {
        self.with(|zerocopy| {
            let (sent, _) = zerocopy.end(begun);
            (sent, (zerocopy.next() > number).then_some(number as u32))
        })
    }

    pub fn set_small(&self, small: Option<Small>) {
        let shown = match small {
            None => AS_THE_STACK,
            Some(Small::Measured) => AS_MEASURED,
            Some(Small::Below(_)) => BELOW,
        };
        self.with(|zerocopy| {
            self.small.store(shown, Relaxed);
            zerocopy.set_small(small);
        });
    }

    pub fn notice(&self) -> Option<Range> {
        let range = self.with(|zerocopy| zerocopy.notice());
        self.quiet();
        range
    }

    pub fn poll_notice(&self, context: &mut Context<'_>) -> Poll<Range> {
        let range = self.with(|zerocopy| zerocopy.poll_notice(context.waker()));
        self.quiet();
        range
    }

    /// Waits for the next one where another thread brings sends to their end, up to `limit`.
    pub fn wait_notice(&self, limit: Option<Duration>) -> Option<Range> {
        let (began, waker) = (Instant::now(), Waker::from(Arc::new(Unpark(thread::current()))));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(range) = self.poll_notice(&mut context) {
                return Some(range);
            }
            match limit.map(|limit| limit.saturating_sub(began.elapsed())) {
                None => thread::park(),
                Some(Duration::ZERO) => return None,
                Some(left) => thread::park_timeout(left),
            }
        }
    }

    /// Where there is none left, the descriptor is not readable any more.
    fn quiet(&self) {
        let Some(ring) = self.fd.get() else { return };
        if self.with(|zerocopy| zerocopy.has_notice()) {
            return;
        }
        ring.0.drain();
        // One that came in between may have rung before.
        if self.with(|zerocopy| zerocopy.has_notice()) {
            ring.0.ring();
        }
    }

    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        let ring = match self.fd.get() {
            Some(ring) => ring,
            None => {
                let fresh = Arc::new(Ring(EventFd::new().map_err(|errno| Error::new(Op::Socket, errno))?));
                // Two threads may come at once: both get, and set, the one that is there.
                let ring = self.fd.get_or_init(|| fresh);
                self.with(|zerocopy| zerocopy.set_bell(Waker::from(Arc::clone(ring))));
                ring
            }
        };
        Ok(ring.0.as_fd())
    }
}
