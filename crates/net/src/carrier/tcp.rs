//! What a carrier does for streams and listeners.

use super::common::{Common, Counts, Way};
use super::frags::Frags;
use super::lend::Taken;
use super::tokens::Tokens;
use crate::zerocopy::{At, Lender, NotSent, Range, Small};
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use onecopy_chain::notify::zerocopy::Tell;
use onecopy_copy::Hint;
use onecopy_inet::stack::Bound;
use onecopy_inet::tcp::{Info, Settings};
use onecopy_pool::Page;
use onecopy_socket::{Carrier, Counters, Error, Op, RecvFlags, Result, SendFlags};
use std::fmt;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A socket of TCP.
pub(crate) trait Endpoint: fmt::Debug + Send + Sync {
    fn common(&self) -> &Common;
    fn carrier(&self) -> Carrier;
    fn shutdown(&self, how: Shutdown) -> Result<()>;
    fn addresses(&self) -> Bound;
    /// Why it failed, once, as an error of `op`.
    fn take_error(&self, op: Op) -> Option<Error>;
    /// What poll(2) is asked of.
    fn fd(&self) -> Result<BorrowedFd<'_>>;
    fn change(&self, change: &mut dyn FnMut(&mut Settings)) -> Result<()>;
    fn look(&self, look: &mut dyn FnMut(&Settings));
}

/// A listener.
pub(crate) trait Listening: Endpoint {
    /// Waits for the next connection.
    fn accept(&self) -> Result<(Arc<dyn Connection>, SocketAddr)>;
}

/// How bytes are taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taking {
    pub dont_wait: bool,
    /// The same call has bytes already: an error stays for the next one, and nothing is taken.
    pub before: bool,
    /// Bytes in a device's memory are taken, too; else they stay, and it is EFAULT.
    pub device: bool,
    /// Where the first piece of memory has as many bytes, or more, no others are taken.
    pub least: usize,
}

impl Taking {
    /// How many of up to `max` bytes are taken, of which `first` lie in the first piece.
    pub fn cut(self, max: usize, first: usize) -> usize {
        if first > 0 && first >= self.least { max.min(first) } else { max }
    }
}

/// A connection, made or being made.
pub(crate) trait Connection: Endpoint {
    /// Where it counts, for who may outlive it.
    fn counts(&self) -> Weak<dyn Counts>;
    /// Waits until it is made, up to `limit`.
    fn connected(&self, limit: Option<Duration>) -> Result<()>;

    /// Copies `bytes` and sends them, waiting for room until all are taken. Returns how many: fewer only where something came in between. Where
    /// bytes before them were `sent` by the same call, an error stays for the next one.
    fn send_bytes(&self, bytes: &[u8], flags: SendFlags, hint: Hint, sent: bool) -> Result<usize>;
    /// Sends from the front of `data`, which is not empty, by reference, likewise.
    fn send_segment(&self, data: &mut Segment<Chain>, flags: SendFlags) -> Result<usize>;
    /// Gives `chain` away to be sent from where it lies, likewise.
    fn lend(&self, chain: Chain, tell: Tell, flags: SendFlags) -> std::result::Result<Taken, NotSent>;
    /// Who brings such sends to their end.
    fn at(&self) -> At;
    /// What it has for such sends, if it was needed.
    fn lender(&self) -> Option<&Lender>;
    /// The same, made if there is none.
    fn lender_made(&self) -> Result<&Lender>;
    /// Waits for a notice of such sends, up to `limit`.
    fn wait_notice(&self, limit: Option<Duration>) -> Result<Option<Range>>;
    /// Which such sends are copied all the same.
    fn set_small(&self, small: Option<Small>) -> Result<()>;
    /// Pages for `len` bytes, to be filled and sent.
    fn pages(&self, len: usize) -> Result<Vec<Page>>;

    /// Receives as [`Stream::recv_frags_with_flags`](crate::tcp::Stream::recv_frags_with_flags) does.
    fn recv_frags(&self, n: usize, most: usize, flags: RecvFlags) -> Result<Frags>;
    /// Fragments of a device's memory that its program has, if it ever had some.
    fn tokens(&self) -> Option<&Arc<Tokens>>;
    /// The same, made if there are none.
    fn tokens_made(&self) -> &Arc<Tokens>;

    /// Takes up to `max` bytes of one kind of memory; `None` at the end. It counts them as received.
    fn take(&self, max: usize, how: Taking) -> Result<Option<Segment<Chain>>>;
    /// The first `max` bytes, or fewer, which stay there: `all` waits for so many. `None` at the end.
    fn peek(&self, max: usize, all: bool, dont_wait: bool) -> Result<Option<Segment<Chain>>>;
    /// A receive has taken less than it asked for, or a send less than it was given: whoever waits for edges hears of what there is.
    fn fell_short(&self, way: Way);

    /// The peer's address, while there is a connection.
    fn peer(&self) -> Option<SocketAddr>;
    fn info(&self) -> Info;
    /// Bytes that can be received without waiting.
    fn readable_bytes(&self) -> usize;
    /// Bytes that were sent and are not acknowledged.
    fn unacknowledged_bytes(&self) -> usize;
    /// What waits to make a full segment goes.
    fn push(&self);
}

/// What all have, in the shape that callers want.
pub(crate) trait Options: Endpoint {
    fn settings(&self) -> &onecopy_socket::Settings {
        self.common().settings()
    }

    fn counters(&self) -> Counters {
        self.common().counters()
    }

    /// Changes its options.
    fn set(&self, change: impl FnOnce(&mut Settings)) -> Result<()> {
        let mut change = Some(change);
        self.change(&mut |settings| {
            if let Some(change) = change.take() {
                change(settings);
            }
        })
    }

    /// What `get` says of its options.
    fn get<R: Default>(&self, get: impl FnOnce(&Settings) -> R) -> R {
        let (mut get, mut got) = (Some(get), None);
        self.look(&mut |settings| got = get.take().map(|get| get(settings)));
        got.unwrap_or_default()
    }
}

impl<E: Endpoint + ?Sized> Options for E {}
