//! What a carrier does for sockets of UDP.

use super::common::{Common, Counts};
use super::lend::Taken;
use super::meta::{Message, Meta};
use crate::zerocopy::{At, Lender, NotSent, Range, Small};
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use onecopy_chain::notify::zerocopy::Tell;
use onecopy_inet::stack::Bound;
use onecopy_inet::udp::{Envelope, Settings};
use onecopy_socket::{Carrier, Counters, Error, RecvFlags, Result, SendFlags};
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Weak;
use std::time::Duration;

/// A socket of UDP.
pub(crate) trait Endpoint: fmt::Debug + Send + Sync {
    fn common(&self) -> &Common;
    /// Where it counts, for who may outlive it.
    fn counts(&self) -> Weak<dyn Counts>;
    fn carrier(&self) -> Carrier;

    fn connect(&self, to: SocketAddr) -> Result<()>;
    fn disconnect(&self) -> Result<()>;
    fn addresses(&self) -> Bound;
    /// What was said of an earlier datagram, once.
    fn take_error(&self) -> Option<Error>;
    /// Datagrams for it that were dropped for want of room.
    fn drops(&self) -> u64;
    /// Bytes that may wait to be received.
    fn receive_buffer(&self) -> usize;
    fn change(&self, change: &mut dyn FnMut(&mut Settings)) -> Result<()>;
    fn look(&self, look: &mut dyn FnMut(&Settings));
    /// What poll(2) is asked of.
    fn fd(&self) -> Result<BorrowedFd<'_>>;

    /// Sends the slices as one datagram, or one train, and counts the bytes.
    fn send_slices(&self, slices: &[IoSlice<'_>], envelope: &Envelope, flags: SendFlags) -> Result<usize>;
    /// Sends `data` likewise, by reference; it stays there where it is refused.
    fn send_segment(&self, data: &mut Segment<Chain>, envelope: &Envelope, flags: SendFlags)
    -> Result<usize>;
    /// Sends messages from the first one on, as many as go without an error. Returns how many: one at least.
    fn send_many(&self, messages: &[Message<'_>], flags: SendFlags) -> Result<usize>;
    /// Gives `chain` away to be sent from where it lies.
    fn lend(
        &self,
        chain: Chain,
        tell: Tell,
        envelope: &Envelope,
        flags: SendFlags,
    ) -> std::result::Result<Taken, NotSent>;
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

    /// Receives into the slices, and counts the bytes unless they stay there (MSG_PEEK).
    fn recv_msg(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<Meta>;
    /// Receives where it lies.
    fn recv_segment(&self, dont_wait: bool) -> Result<(Segment<Chain>, Meta)>;
    /// Receives one datagram, and those that came with it, one into each buffer; of both there is one at least.
    fn recv_many(&self, buffers: &mut [IoSliceMut<'_>], meta: &mut [Meta], dont_wait: bool) -> Result<usize>;
}

/// What all have, in the shape that callers want.
impl dyn Endpoint {
    pub fn settings(&self) -> &onecopy_socket::Settings {
        self.common().settings()
    }

    pub fn counters(&self) -> Counters {
        self.common().counters()
    }

    /// Changes its options.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) -> Result<()> {
        let mut change = Some(change);
        self.change(&mut |settings| {
            if let Some(change) = change.take() {
                change(settings);
            }
        })
    }

    /// What `get` says of its options.
    pub fn get<R: Default>(&self, get: impl FnOnce(&Settings) -> R) -> R {
        let (mut get, mut got) = (Some(get), None);
        self.look(&mut |settings| got = get.take().map(|get| get(settings)));
        got.unwrap_or_default()
    }
}
