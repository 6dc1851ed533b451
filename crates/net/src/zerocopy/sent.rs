//! What comes of a send without a copy.

use onecopy_chain::Chain;
use onecopy_chain::notify::{self, How};
use onecopy_inet::stack::slab::Id;
use onecopy_socket::{Error, Wait};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A send under way: a future of the chain that was sent, and of how it left. It resolves once: when the peer has acknowledged all of it and
/// the link has let go of each packet with bytes of it; or when the connection has ended, however it did; or with the stack, which drops what
/// is left when its last handle has gone ([`Builder::linger`](crate::Builder::linger)). (Where the kernel carries the bytes: when its notification
/// has come.)
///
/// Whoever waits by [`Sent::wait`] drives the stack himself. A task does not: then the stack has a thread of its own
/// ([`Driver::Thread`](crate::Driver::Thread)), or somebody calls [`Stack::drive`](crate::Stack::drive).
///
/// Dropped, it is forgotten: the bytes are delivered all the same, and their pages are free after that.
#[must_use = "the chain comes back by this"]
pub struct Sent {
    /// None: there was nothing to send.
    handle: Option<notify::Sent>,
    /// None once it was given back.
    chain: Option<Chain>,
    /// What the socket has not taken, if there is any.
    rest: Option<Box<Chain>>,
    at: At,
}

/// What is driven by whoever waits for something of it.
pub(crate) trait Drives: Send + Sync {
    /// Calls `poll`, of socket `id`, until it is ready, driving meanwhile if nobody else does, at most for `limit`, and as long as the stack has not
    /// ended. A signal does not end it.
    fn poll_until(
        self: Arc<Self>,
        id: Id,
        wait: Wait,
        limit: Option<Duration>,
        poll: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Waited;
}

/// What a wait came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    Ready,
    /// The limit has come.
    Late,
    /// The stack has ended. Whoever waited was one of those that kept its memory.
    Ended,
}

/// Who brings it to its end.
#[derive(Clone)]
pub(crate) enum At {
    /// Whoever drives a stack of the program's own: who waits does.
    Stack { drives: Weak<dyn Drives>, id: Id, wait: Wait },
    /// The thread of the kernel's ring.
    Ring,
}

impl Sent {
    pub(crate) fn new(handle: Option<notify::Sent>, chain: Chain, rest: Chain, at: At) -> Sent {
        let rest = (!rest.is_empty()).then(|| Box::new(rest));
        Sent { handle, chain: Some(chain), rest, at }
    }

    /// Bytes that are under way: all that were given, but where the socket was not to wait for room, or a limit, a signal or the peer's end
    /// came in between.
    pub fn len(&self) -> usize {
        self.chain.as_ref().map_or(0, Chain::len)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the bytes that were not taken by the socket, which are no part of this send: to be sent by the next one. Empty, where all were.
    pub fn take_rest(&mut self) -> Chain {
        self.rest.take().map_or_else(Chain::new, |rest| *rest)
    }

    /// The chain and how it left, if it has.
    ///
    /// # Errors
    ///
    /// The handle, if it has not.
    pub fn try_wait(mut self) -> Result<(Chain, How), Sent> {
        match self.handle.take().map(notify::Sent::try_wait) {
            Some(Err(handle)) => {
                self.handle = Some(handle);
                Err(self)
            }
            Some(Ok(how)) => Ok(self.back(how)),
            None => Ok(self.back(How::default())),
        }
    }

    /// Waits until the chain is the caller's again, driving the stack meanwhile if nobody else does. A signal does not end it.
    pub fn wait(self) -> (Chain, How) {
        match self.wait_at_most(None) {
            Ok(done) => done,
            Err(_) => unreachable!("there was no limit"),
        }
    }

    /// As [`Sent::wait`], at most for `limit`.
    ///
    /// # Errors
    ///
    /// The handle, if that was not enough.
    pub fn wait_for(self, limit: Duration) -> Result<(Chain, How), Sent> {
        self.wait_at_most(Some(limit))
    }

    fn wait_at_most(mut self, limit: Option<Duration>) -> Result<(Chain, How), Sent> {
        let began = Instant::now();
        if let At::Stack { drives, id, wait } = self.at.clone()
            && let Some(drives) = drives.upgrade()
        {
            let mut done = None;
            let waited = drives
                .poll_until(id, wait, limit, &mut |context| self.look(context).map(|back| done = Some(back)));
            match waited {
                Waited::Ready | Waited::Late => return done.ok_or(self),
                Waited::Ended => {}
            }
        }
        // Somebody else brings it to its end; where the stack has ended, whoever is the last to let go of it drops all that it held.
        let how = match (self.handle.take(), limit) {
            (None, _) => How::default(),
            (Some(handle), None) => handle.wait(),
            (Some(handle), Some(limit)) => match handle.wait_for(limit.saturating_sub(began.elapsed())) {
                Ok(how) => how,
                Err(handle) => {
                    self.handle = Some(handle);
                    return Err(self);
                }
            },
        };
        Ok(self.back(how))
    }

    fn look(&mut self, context: &mut Context<'_>) -> Poll<(Chain, How)> {
        let how = match &mut self.handle {
            Some(handle) => std::task::ready!(Pin::new(handle).poll(context)),
            None => How::default(),
        };
        Poll::Ready(self.back(how))
    }

    fn back(&mut self, how: How) -> (Chain, How) {
        self.handle = None;
        // What nobody took of the rest comes back with it.
        let mut chain = self.chain.take().unwrap_or_default();
        if let Some(mut rest) = self.rest.take() {
            // It was cut there.
            let _ = chain.concat(&mut rest);
        }
        (chain, how)
    }
}

impl Future for Sent {
    type Output = (Chain, How);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<(Chain, How)> {
        self.look(context)
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sent({} bytes)", self.len())
    }
}

/// A send that a notice will tell of.
#[derive(Debug)]
pub struct Numbered {
    /// Its number, as the notice has it: they are counted from 0, for each socket, in 32 bits. `None`: of a send of nothing, nothing is told.
    pub number: Option<u32>,
    /// Bytes that were taken.
    pub len: usize,
    /// Those that were not: to be sent by the next one.
    pub rest: Chain,
}

/// Nothing was sent: why, and the chain.
pub struct NotSent {
    /// The chain.
    pub chain: Chain,
    /// Why.
    pub error: Error,
}

impl fmt::Debug for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotSent({:?}, {} bytes)", self.error, self.chain.len())
    }
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NotSent {}

impl From<NotSent> for Error {
    fn from(not: NotSent) -> Error {
        not.error
    }
}

impl From<NotSent> for std::io::Error {
    fn from(not: NotSent) -> std::io::Error {
        not.error.into()
    }
}
