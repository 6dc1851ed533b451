//! What is known of a connection, under its lock.

use crate::bell::Bell;
use crate::kernel::config::ZeroCopy;
use crate::kernel::landing::Landing;
use crate::kernel::source::Sources;
use onecopy_chain::notify::{Fate, SegmentQueue};
use onecopy_chain::{Chain, Fragment};
use onecopy_inet::tcp::{Readiness, State};
use onecopy_uring::Key;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes that wait to be sent, at most; the kernel's send buffer comes behind.
pub(super) const SEND_ROOM: u64 = 256 << 10;
/// Free bytes of these from which on poll(2) says that it can be sent: a third, as of the kernel's own sockets (sk_stream_is_writeable()).
const WRITABLE: u64 = SEND_ROOM / 3;
/// The most of [`Inner::receive_room`].
pub(super) const RECEIVE_ROOM: u64 = 1 << 20;

/// Bytes of a page that is sent from.
const PAGE: u64 = 4096;

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel) enum Phase {
    /// To be asked of the ring.
    Connect(SocketAddr),
    Connecting,
    Open,
    Failed,
}

/// Whether this side sends no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fin {
    No,
    /// Once all is sent.
    Wanted,
    Done,
}

/// Where what is received goes.
pub(in crate::kernel) enum Goes {
    /// It is found out when there is a connection.
    Undecided,
    Host,
    /// To this memory, by way of this queue. The program's threads read it.
    Device(Arc<Landing>, u32),
}

pub(in crate::kernel) struct Inner {
    pub(super) phase: Phase,
    /// What is not taken by the kernel yet.
    pub send: SegmentQueue,
    /// Where those of its bytes lie that lie in a device's memory.
    pub sources: Sources,
    /// The ring sends the bytes at its front at the moment, or waits for room to send them from a device's memory.
    pub(super) sending: bool,
    /// The last send has begun the connection, and taken nothing: the ring is to ask for room.
    pub(super) unmade: bool,
    /// A send has found no page to put its bytes into, and no other one has since.
    pub short: bool,
    /// The ring's thread knows, and says when there are some ([`Attended::fed`](crate::kernel::submitter::Attended::fed)).
    pub(super) listed: bool,
    /// More comes behind the last of it.
    pub more: bool,
    pub(super) fin: Fin,
    /// Of each send without a copy whose notification has not come, in their order: how many of the shard's pages it keeps.
    pub(super) notifications: VecDeque<u32>,
    /// The same of the send that the ring does at the moment.
    pub(super) asked: u32,
    /// A send has found that it has its share of the shard's pages, and none of them has come home since.
    pub over_share: bool,
    /// Bytes from which on a send is one without a copy.
    pub least: u64,
    /// The kernel copies them after all, or does not take them.
    pub(super) copies: bool,
    pub receive: SegmentQueue,
    pub goes: Goes,
    /// Where it goes to a device, or pages are scarce: there was something when it was looked at last.
    pub readable: bool,
    /// Where it goes to a device: it is over, and what had come before has been taken.
    pub emptied: bool,
    /// A request of the ring's: to receive, or where it goes to a device or pages are scarce, to tell when there is something.
    pub(super) receiving: Option<Key>,
    /// The last such request was to receive.
    pub(super) takes_pages: bool,
    /// Bytes of pages with what has arrived, from which on no more is received, and below half of which again.
    pub(super) receive_room: u64,
    /// It was asked to end.
    pub(super) cancelled: bool,
    pub(super) starves: bool,
    /// The peer sends no more, or this side wants none.
    pub(super) ended: bool,
    /// The peer has said so: an error that comes behind it is for who sends (SOCK_DONE, tcp_recvmsg_locked()).
    pub(super) done: bool,
    /// This side wants none: what comes all the same the kernel keeps, for who asks.
    pub(super) shut: bool,
    /// Behind the end: it was asked to tell of a reset, which no receive does.
    pub(super) watching: Option<Key>,
    /// That was asked for once, and need not be again.
    pub(super) watched: bool,
    /// Something was sent behind the end.
    pub(super) sent_behind: bool,
    pub(super) error: Option<Errno>,
    /// No program has it any more.
    pub(super) closed: bool,
    /// And what is left is not to be sent.
    pub(super) aborted: bool,
    pub(super) bell: Option<Arc<Bell>>,
}

impl Inner {
    /// Of a connection that has come so far; its sends are `copies`.
    pub(super) fn new(phase: Phase, copies: bool) -> Inner {
        Inner {
            phase,
            send: SegmentQueue::default(),
            sources: Sources::default(),
            sending: false,
            unmade: false,
            short: false,
            listed: false,
            more: false,
            fin: Fin::No,
            notifications: VecDeque::new(),
            asked: 0,
            over_share: false,
            least: ZeroCopy::LEAST as u64,
            copies,
            receive: SegmentQueue::default(),
            goes: Goes::Undecided,
            readable: false,
            emptied: false,
            receiving: None,
            takes_pages: false,
            receive_room: RECEIVE_ROOM,
            cancelled: false,
            starves: false,
            ended: false,
            done: false,
            shut: false,
            watching: None,
            watched: false,
            sent_behind: false,
            error: None,
            closed: false,
            aborted: false,
            bell: None,
        }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Bytes that a send may add.
    pub fn room(&self) -> u64 {
        if self.phase == Phase::Open { SEND_ROOM.saturating_sub(self.send.len()) } else { 0 }
    }

    /// Pages of pool `id` that it has, in its queue or the kernel's hands. Where there are more than `enough` by a rough count they are counted one by
    /// one: what was lent to it is not the pool's.
    fn pages(&self, id: u64, enough: u32) -> u32 {
        let kept = self.notifications.iter().sum::<u32>();
        let rough = kept.saturating_add(u32::try_from(self.send.true_size() / PAGE).unwrap_or(u32::MAX));
        if rough <= enough {
            return rough;
        }
        kept + self.send.segments().map(|segment| pages_of(segment.payload(), id)).sum::<u32>()
    }

    /// How many more pages of pool `id` it may take while `spare` of its `limit` are free. The last quarter of them is for those that have none: each may
    /// take one. Of the others a connection has a quarter of what it leaves, so one whose peer does not read stops where there is plenty for the next.
    pub fn share(&self, id: u64, spare: u32, limit: u32) -> u32 {
        let share = spare.saturating_sub(limit / 4) / 4;
        match self.pages(id, share) {
            0 => share.max(1),
            has => share.saturating_sub(has),
        }
    }

    /// Why nothing can be sent.
    pub fn send_error(&mut self) -> Option<Errno> {
        match self.phase {
            Phase::Failed => Some(self.error.take().unwrap_or(Errno::PIPE)),
            Phase::Open => match self.error.take() {
                Some(errno) => Some(errno),
                None => (self.fin != Fin::No).then_some(Errno::PIPE),
            },
            // Whoever waits does so until it is made.
            Phase::Connect(_) | Phase::Connecting => None,
        }
    }

    /// Whether there is an error to be told.
    pub fn has_failed(&self) -> bool {
        self.error.is_some() || self.phase == Phase::Failed
    }

    /// Why nothing can be received, once; nothing where it is the end, as it is behind an error that was told.
    pub fn receive_error(&mut self) -> Option<Result<(), Errno>> {
        match self.error.take_if(|_| !self.done) {
            Some(errno) => Some(Err(errno)),
            None => (self.ended || self.phase == Phase::Failed).then_some(Ok(())),
        }
    }

    /// Whether more may come.
    pub fn is_receiving(&self) -> bool {
        self.phase == Phase::Open && !self.ended && self.error.is_none()
    }

    /// Whether the kernel may have something for a device: it does behind an error of a send, and behind a shutdown, where bytes had come before.
    pub fn may_be_there(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Failed) && !self.aborted && !self.emptied
    }

    /// The peer sends no more.
    pub fn has_ended(&mut self) {
        (self.ended, self.emptied) = (true, true);
    }

    /// Whether the ring is to be asked for more, after something was taken.
    pub fn wants_more(&self) -> bool {
        let little = self.receive.is_empty() || self.receive.true_size() < self.receive_room / 2;
        self.starves || (self.receiving.is_none() && !self.readable && !self.ended && little)
    }

    /// Whether no more is received before something is taken.
    pub fn is_full(&self) -> bool {
        !self.receive.is_empty() && self.receive.true_size() >= self.receive_room
    }

    /// Whether there are bytes for the host: received, or told of to who receives by itself.
    pub fn is_there(&self) -> bool {
        !self.receive.is_empty() || (self.readable && matches!(self.goes, Goes::Host))
    }

    /// Bytes that the kernel has of a connection whose bytes the ring does not receive.
    pub fn left(&self, fd: &OwnedFd) -> u64 {
        match self.goes {
            Goes::Device(..) => rustix::io::ioctl_fionread(fd).unwrap_or(0),
            Goes::Host if !self.takes_pages => rustix::io::ioctl_fionread(fd).unwrap_or(0),
            _ => 0,
        }
    }

    pub fn is_ended(&self) -> bool {
        self.ended
    }

    pub fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }

    pub(super) fn readiness(&self) -> Readiness {
        let mut ready = Readiness::empty();
        let over = self.phase == Phase::Failed;
        let here = !self.receive.is_empty() || self.readable;
        ready.set(Readiness::READ, here || self.ended || over || self.error.is_some());
        let room = self.room() >= WRITABLE && !self.short && !self.over_share;
        ready.set(Readiness::WRITE, room || over || self.fin != Fin::No);
        ready.set(Readiness::PEER_CLOSED, self.ended || over);
        ready.set(Readiness::HUNG_UP, over || (self.ended && self.fin == Fin::Done));
        ready.set(Readiness::ERROR, self.error.is_some());
        ready
    }

    /// As far as it is known without asking the kernel.
    pub fn tcp_state(&self) -> State {
        match (self.phase, self.ended, self.fin) {
            (Phase::Connect(_) | Phase::Connecting, ..) => State::SynSent,
            (Phase::Failed, ..) => State::Closed,
            (Phase::Open, false, Fin::No | Fin::Wanted) => State::Established,
            (Phase::Open, false, Fin::Done) => State::FinWait1,
            (Phase::Open, true, Fin::No | Fin::Wanted) => State::CloseWait,
            (Phase::Open, true, Fin::Done) => State::LastAck,
        }
    }

    pub fn fail(&mut self, errno: Errno) {
        if self.error.is_none() {
            self.error = Some(errno);
        }
        self.ended = true;
        self.drop_unsent();
        self.phase = Phase::Failed;
    }

    /// Sends nothing more, and lets go of the memory that it lay in.
    pub(super) fn drop_unsent(&mut self) {
        self.send.clear(Fate::Dropped);
        self.sources.clear();
    }
}

/// How many pages of pool `id` keep bytes of `chain`; one that comes again behind another is counted again.
pub(super) fn pages_of(chain: &Chain, id: u64) -> u32 {
    let (mut count, mut last) = (0, None);
    for page in chain.fragments().map(Fragment::page).filter(|page| page.pool_id() == id) {
        count += u32::from(last.replace(page.index()) != Some(page.index()));
    }
    count
}
