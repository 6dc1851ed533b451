//! What sockets of all protocols are, and how their calls wait.

use super::inner::{Inner, elsewhere};
use super::kept::{Asks, Kept};
use super::shard::Shard;
use super::wait::{Gone, Learnt, Patience};
use crate::carrier::{Common, Counts, Tokens, Way};
use crate::error::{Cause, SILENT, of};
use crate::zerocopy::Lender;
use onecopy_copy::Hint;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{self, Bound};
use onecopy_inet::tcp::Readiness;
use onecopy_socket::registry::{self, Row, Type};
use onecopy_socket::{Counters, Error, Op, Reader, Result, SendFlags, Settings};
use rustix::io::Errno;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// What the stack does for sockets of one protocol, whose calls have names of their own there.
pub(crate) trait Protocol {
    /// Why a call fails.
    type Cause: Cause;
    /// Its options.
    type Settings;
    /// What `onecopy ss` shows.
    const TYPE: Type;
    const NAME: registry::Protocol;
    /// It is a stream, and copies of small sends join what waits.
    const APPENDS: bool;

    fn open(inet: &mut stack::Stack) -> std::result::Result<Id, Self::Cause>;
    fn close(inet: &mut stack::Stack, now: u64, id: Id);
    fn addresses(inet: &stack::Stack, id: Id) -> Bound;
    /// What its descriptor shows.
    fn readiness(inet: &stack::Stack, id: Id) -> Readiness;
    fn take_error(inet: &mut stack::Stack, id: Id) -> Option<Self::Cause>;
    fn settings(inet: &stack::Stack, id: Id) -> Option<&Self::Settings>;
    fn set(
        inet: &mut stack::Stack,
        now: u64,
        id: Id,
        change: impl FnOnce(&mut Self::Settings),
    ) -> std::result::Result<(), Self::Cause>;
    /// TCP's state by number, what waits to be received or accepted, and what is not acknowledged: for `onecopy ss`.
    fn moves(inet: &stack::Stack, id: Id) -> (u8, u64, u64);
    /// What else is worth to be seen of it.
    fn state(inet: &stack::Stack, id: Id) -> impl fmt::Debug;
}

/// A socket of a stack of the program's own; closed with its last handle.
pub(crate) struct Socket<P: Protocol> {
    inner: Arc<Inner>,
    kept: Arc<Kept>,
    common: Common,
    /// What hardly any socket has; made with the first of it.
    rare: OnceLock<Box<Rare>>,
    reads: Learnt,
    writes: Learnt,
    protocol: PhantomData<fn() -> P>,
}

#[derive(Default)]
pub(super) struct Rare {
    /// Fragments of device memory that its program has.
    tokens: OnceLock<Arc<Tokens>>,
    /// Its sends without a copy.
    pub lender: OnceLock<Lender>,
}

impl<P: Protocol> Socket<P> {
    /// A socket of `inner` that is not connected and does not listen.
    pub fn open(inner: &Arc<Inner>, listening: bool) -> Result<Socket<P>> {
        inner.here(Op::Socket)?;
        let id = inner.with(|shard, _| P::open(shard.inet_mut()));
        let id = id.map_err(|cause| of(Op::Socket, cause))?;
        Ok(Socket::of(inner, id, listening))
    }

    /// The socket that `inner` calls `id`.
    pub fn of(inner: &Arc<Inner>, id: Id, listening: bool) -> Socket<P> {
        let row = Row::claim_unnamed(std::process::id(), P::TYPE, listening);
        let asks = const { &Asks { readiness: P::readiness, moves: P::moves } };
        let kept = Arc::new(Kept::new(id, row, asks));
        inner.with(|shard, _| {
            let bound = P::addresses(shard.inet(), id);
            kept.row().names(P::NAME, bound.local, bound.remote);
            shard.attend(&kept);
        });
        Socket {
            common: Common::new(kept.row(), inner.wait_mode(), Reader::NoCpu),
            kept,
            inner: Arc::clone(inner),
            rare: OnceLock::new(),
            reads: Learnt::default(),
            writes: Learnt::default(),
            protocol: PhantomData,
        }
    }

    pub fn id(&self) -> Id {
        self.kept.id()
    }

    pub fn common(&self) -> &Common {
        &self.common
    }

    pub fn settings(&self) -> &Settings {
        self.common.settings()
    }

    pub fn counters(&self) -> Counters {
        self.common.counters()
    }

    /// Fragments that its program has; none, if it never had any.
    pub fn tokens(&self) -> Option<&Arc<Tokens>> {
        self.rare.get()?.tokens.get()
    }

    /// What hardly any socket has, made if there is none.
    pub(super) fn rare_made(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    /// The same, if there is any.
    pub(super) fn rare(&self) -> Option<&Rare> {
        self.rare.get().map(|rare| &**rare)
    }

    /// Where it counts, for who may outlive it.
    pub fn counts(&self) -> Weak<dyn Counts> {
        // (Named first: what is cloned is of this type, and only then of that.)
        let weak: Weak<Kept> = Arc::downgrade(&self.kept);
        weak
    }

    /// The same, made if there are none.
    pub fn tokens_made(&self) -> &Arc<Tokens> {
        self.rare_made().tokens.get_or_init(|| {
            let hunger = self.with(|shard, _, _| shard.rx_mut().0.hunger());
            // What its program still has of them keeps no stack alive.
            let inner = Arc::downgrade(&self.inner);
            Arc::new(Tokens::new(hunger, Arc::clone(self.inner.refused()), move || {
                if let Some(inner) = inner.upgrade() {
                    inner.with_here(|_, _| ());
                }
            }))
        })
    }

    pub fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Its addresses have changed: whoever looks from outside sees them.
    pub fn named(&self) {
        let bound = self.addresses();
        self.kept.row().names(P::NAME, bound.local, bound.remote);
    }

    /// Calls `act` under the stack's lock.
    pub fn with<R>(&self, act: impl FnOnce(&mut Shard, Id, u64) -> R) -> R {
        let id = self.id();
        self.inner().with(|shard, now| {
            let result = act(shard, id, now);
            // (The descriptor is its parent's, too.)
            if self.inner().is_here() {
                shard.mirror(id);
            }
            result
        })
    }

    /// Calls `attempt` until it does not say that it would block, waiting as the socket's settings say.
    pub fn call<R>(
        &self,
        op: Op,
        way: Way,
        dont_wait: bool,
        mut attempt: impl FnMut(&mut Shard, Id, u64) -> std::result::Result<R, P::Cause>,
    ) -> Result<R> {
        let (id, settings) = (self.id(), self.settings());
        let (limit, learnt) = match way {
            Way::Read => (settings.read_timeout(), &self.reads),
            Way::Write => (settings.write_timeout(), &self.writes),
        };
        let patience = Patience {
            wait: settings.wait(),
            none: dont_wait || settings.nonblocking(),
            limit,
            eager: false,
        };
        let done = self.inner().wait(&self.kept, patience, learnt, |shard, now| {
            let result = attempt(shard, id, now);
            shard.mirror(id);
            match result {
                Err(cause) if cause.waits() => None,
                done => Some(done),
            }
        });
        match done {
            Ok(done) => done.map_err(|cause| of(op, cause)),
            Err(Gone::Late) => Err(Error::new(op, Errno::AGAIN)),
            Err(Gone::Signal) => Err(Error::new(op, Errno::INTR)),
            Err(Gone::Elsewhere) => Err(elsewhere(op)),
        }
    }

    /// As [`Socket::call`], waiting up to `limit` whatever the settings say.
    pub fn call_for<R>(
        &self,
        op: Op,
        limit: Option<Duration>,
        mut attempt: impl FnMut(&mut Shard, Id, u64) -> std::result::Result<R, P::Cause>,
    ) -> Result<R> {
        let id = self.id();
        let patience = Patience { wait: self.settings().wait(), none: false, limit, eager: false };
        let done = self.inner().wait(&self.kept, patience, &self.writes, |shard, now| {
            match attempt(shard, id, now) {
                Err(cause) if cause.waits() => None,
                done => Some(done),
            }
        });
        match done {
            Ok(done) => done.map_err(|cause| of(op, cause)),
            Err(Gone::Late) => Err(Error::new(op, Errno::TIMEDOUT).because(SILENT)),
            Err(Gone::Signal) => Err(Error::new(op, Errno::INTR)),
            Err(Gone::Elsewhere) => Err(elsewhere(op)),
        }
    }

    /// Which stores a copy into the stack's pages is to use.
    pub fn hint(&self, flags: SendFlags) -> Hint {
        self.common.hint(flags)
    }

    /// Counts `n` bytes that were sent by a copy with `hint`, under the stack's lock.
    pub fn copied_in(&self, n: usize, hint: Hint, kernel_copies: bool) {
        self.common.copied_in(n, hint);
        if kernel_copies {
            self.common.counters().kernel_copied.add(n);
        }
    }

    /// Counts `n` bytes that were sent by reference, and copied so often by others than this program's code, under the stack's lock.
    pub fn referenced(&self, n: usize, copies: usize) {
        self.common.referenced(n);
        self.common.counters().kernel_copied.add(copies * n);
    }

    /// Its addresses.
    pub fn addresses(&self) -> Bound {
        self.inner().with(|shard, _| P::addresses(shard.inet(), self.id()))
    }

    /// What poll(2) is asked of. Made with the first call: a program that never polls has no descriptor for a socket.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        if self.kept.bell().is_none() {
            let made = self.with(|shard, id, _| shard.make_bell(id));
            made.map_err(|errno| Error::new(Op::Socket, errno))?;
        }
        // (Sockets that show themselves together are polled there, and not asked here.)
        let bell = self.kept.bell().ok_or_else(|| Error::new(Op::Socket, Errno::BADF))?;
        Ok(bell.as_fd())
    }

    /// A receive has taken less than it asked for, or a send less than it was given: whoever waits for edges hears of what there is.
    pub fn fell_short(&self, way: Way) {
        match (self.kept.bell(), way) {
            (Some(bell), Way::Read) => bell.read_again(),
            (Some(bell), Way::Write) => bell.write_again(),
            (None, _) => {}
        }
    }

    /// Why it failed, once.
    pub fn take_error(&self) -> Option<P::Cause> {
        self.with(|shard, id, _| P::take_error(shard.inet_mut(), id))
    }

    /// Changes its options.
    pub fn set(&self, change: impl FnOnce(&mut P::Settings)) -> Result<()> {
        self.inner().here(Op::Option)?;
        self.with(|shard, id, now| P::set(shard.inet_mut(), now, id, change))
            .map_err(|cause| of(Op::Option, cause))
    }

    /// What `get` says of its options.
    pub fn get<R: Default>(&self, get: impl FnOnce(&P::Settings) -> R) -> R {
        self.with(|shard, id, _| P::settings(shard.inet(), id).map(get).unwrap_or_default())
    }
}

impl<P: Protocol> Drop for Socket<P> {
    fn drop(&mut self) {
        let id = self.id();
        if let Some(tokens) = self.tokens().filter(|_| self.inner().is_here()) {
            tokens.close();
        }
        self.inner().with_here(|shard, now| {
            shard.leave(id);
            P::close(shard.inet_mut(), now, id);
        });
    }
}

impl<P: Protocol> fmt::Debug for Socket<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with(|shard, id, _| {
            let addresses = P::addresses(shard.inet(), id);
            f.debug_struct("Socket")
                .field("local", &addresses.local)
                .field("remote", &addresses.remote)
                .field("state", &P::state(shard.inet(), id))
                .finish_non_exhaustive()
        })
    }
}
