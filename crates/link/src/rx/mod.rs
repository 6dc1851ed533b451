//! Receive queues: which packets come to which, and where the payload of those that come to a bound one lies.
//!
//! As a card with several queues does it (Documentation/networking/devmem.rst): flows that a rule names come to the rule's queue (ethtool's
//! ntuple filters), all others are spread over the queues that no memory is bound to (RSS). Payload that comes to a bound queue is
//! placed in that memory, if the link has not put it there itself; its headers stay in the host's, and so does what is no TCP, or could not be split. A queue is bound, unbound and
//! restarted by itself, without any other, or the link, noticing it.
//!
//! These queues lie behind one link. What a queue of its own of the card's would be (a descriptor of a TAP each) is not split yet: one thread takes
//! packets from all of them.

mod flow;
mod foresight;
mod place;

use crate::capabilities::Medium;
use crate::counters;
use crate::packet::Packet;
use crate::registered::Registered;
use flow::{Flow, flow};
use foresight::{Expected, Foresight, LEAST};
use onecopy_chain::Checksum;
use onecopy_chain::notify::Fate;
use onecopy_pool::DeviceMemory;
use place::{NotPlaced, place};
use std::fmt;
use std::net::SocketAddr;
use std::time::Instant;

counters! {
    /// What came to one queue.
    pub struct QueueStats {
        /// Packets.
        packets,
        /// Their bytes, headers and all.
        bytes,
        /// Packets whose payload was placed in the memory that is bound.
        placed,
        /// Bytes that were placed: each copied once, by the kernel or the device, from the page that it landed in, but for these:
        placed_bytes,
        /// Of the packets that were placed, those whose payload the link put into the memory itself.
        landed,
        /// Their bytes of payload: nobody copied them after that.
        landed_bytes,
        /// Nanoseconds that the thread which receives spent on these copies.
        placing_ns,
        /// Packets with payload that stayed in the host's memory, though memory is bound: their headers could not be split off.
        unsplit,
        /// Dropped: no page of the bound memory was free. The peer sends it again.
        starved,
        /// Dropped: the payload lies on a device, or in another process' memory, and so cannot be placed.
        foreign,
        /// Dropped: the device refused the copy.
        failed,
        /// Times that the queue was restarted: bound, unbound, or asked to.
        restarts,
    }
}

/// A queue.
#[derive(Debug, Default)]
struct Queue {
    memory: Option<DeviceMemory>,
    stats: QueueStats,
}

/// Flows to this address come to this queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Where they go to; an unspecified address is any of its family.
    pub to: SocketAddr,
    /// Which queue.
    pub queue: u32,
}

/// Queues that there can be at most: a packet's number of its queue has 16 bits (include/linux/skbuff.h: queue_mapping).
const MOST: u32 = u16::MAX as u32;

/// Why queues are not what they were asked to be. [`BadQueue::errno`] is what the kernel says in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadQueue {
    /// No queue was named.
    None,
    /// There is no queue of this number.
    OutOfRange {
        /// The number.
        queue: u32,
        /// How many there are.
        queues: u32,
    },
    /// Memory is bound to it.
    Bound {
        /// The queue.
        queue: u32,
    },
    /// Headers are not split from payload.
    NotSplit,
    /// The memory's pages are not of 4 KiB.
    PageSize {
        /// Bytes of a page.
        bytes: u32,
    },
    /// A queue that there would not be is bound, or flows are steered to it.
    InUse {
        /// The queue.
        queue: u32,
    },
    /// No queue would be left for flows that nobody steers.
    NoneLeft,
    /// There cannot be so many queues.
    TooMany {
        /// How many there can be.
        most: u32,
    },
}

impl BadQueue {
    /// The number (include/uapi/asm-generic/errno.h).
    pub fn errno(self) -> i32 {
        match self {
            BadQueue::None
            | BadQueue::NotSplit
            | BadQueue::InUse { .. }
            | BadQueue::NoneLeft
            | BadQueue::TooMany { .. } => 22,
            BadQueue::OutOfRange { .. } => 34,
            BadQueue::Bound { .. } => 17,
            BadQueue::PageSize { .. } => 7,
        }
    }
}

impl fmt::Display for BadQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadQueue::None => f.write_str("no queue was named; name one at least"),
            BadQueue::OutOfRange { queue, queues } => {
                write!(f, "there is no queue {queue}; there are {queues}, from 0 on")
            }
            BadQueue::Bound { queue } => write!(f, "memory is bound to queue {queue}; unbind that first"),
            BadQueue::NotSplit => f.write_str("headers are not split from payload; switch that on first"),
            BadQueue::PageSize { bytes } => {
                write!(f, "the memory's pages have {bytes} bytes; give one of pages of 4096")
            }
            BadQueue::InUse { queue } => {
                write!(
                    f,
                    "queue {queue} is bound, or flows are steered to it; unbind it and take the rule away first"
                )
            }
            BadQueue::NoneLeft => {
                f.write_str("flows that nobody steers need a queue that is not bound; leave one")
            }
            BadQueue::TooMany { most } => write!(f, "there can be {most} queues; ask for no more"),
        }
    }
}

impl std::error::Error for BadQueue {}

/// Where a packet came to.
#[derive(Debug)]
pub enum Sorted {
    /// A queue without memory of its own.
    Plain(Packet),
    /// This queue, to which memory is bound: the payload, if there is any, lies there, but for what could not be split.
    Bound(u32, Packet),
    /// The same, and the link itself put the payload into the memory: it was copied nowhere after that.
    Landed(u32, Packet),
    /// Nowhere: it was dropped, and counted. `starved`: for want of a page.
    Dropped {
        /// The queue.
        queue: u32,
        /// For want of a page.
        starved: bool,
    },
}

/// The queues of a link. See the [module](self).
#[derive(Debug)]
pub struct Queues {
    medium: Medium,
    list: Vec<Queue>,
    rules: Vec<Rule>,
    /// Queues over which flows are spread: those that are not bound.
    spread: Vec<u32>,
    split: bool,
    /// Bound memory that a link can put payload into itself.
    registered: Vec<Registered>,
    foresight: Foresight,
}

/// The only size that a page of bound memory may have.
const PAGE: u32 = 4096;

impl Queues {
    /// One queue, to which all comes.
    pub fn new(medium: Medium) -> Queues {
        Queues {
            medium,
            list: vec![Queue::default()],
            rules: Vec::new(),
            spread: vec![0],
            split: true,
            registered: Vec::new(),
            foresight: Foresight::default(),
        }
    }

    /// How many there are.
    #[allow(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> u32 {
        self.list.len() as u32
    }

    /// Whether all packets go the same way, so that [`Queues::sort`] need not be asked.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.list.len() == 1 && self.rules.is_empty()
    }

    /// Has `count` queues (ethtool -L).
    ///
    /// # Errors
    ///
    /// A queue that is bound cannot go, nor one that flows are steered to; [`BadQueue::None`] for no queue at all; [`BadQueue::TooMany`].
    pub fn set_len(&mut self, count: u32) -> Result<(), BadQueue> {
        if count == 0 {
            return Err(BadQueue::None);
        }
        if count > MOST {
            return Err(BadQueue::TooMany { most: MOST });
        }
        let bound = |queue: &u32| self.list[*queue as usize].memory.is_some();
        if let Some(queue) = (count..self.len()).find(bound) {
            return Err(BadQueue::InUse { queue });
        }
        if let Some(rule) = self.rules.iter().find(|rule| rule.queue >= count) {
            return Err(BadQueue::InUse { queue: rule.queue });
        }
        if (0..count.min(self.len())).all(|queue| bound(&queue)) && count <= self.len() {
            return Err(BadQueue::NoneLeft);
        }
        self.list.resize_with(count as usize, Queue::default);
        self.respread();
        Ok(())
    }

    /// Whether headers are split from payload (ethtool -G tcp-data-split).
    ///
    /// # Errors
    ///
    /// [`BadQueue::NotSplit`] for switching it off while memory is bound.
    pub fn set_split(&mut self, split: bool) -> Result<(), BadQueue> {
        if !split && self.list.iter().any(|queue| queue.memory.is_some()) {
            return Err(BadQueue::NotSplit);
        }
        self.split = split;
        Ok(())
    }

    /// Has flows to an address come to a queue, whatever rule there was for that address (ethtool -N). A rule with an address goes before one
    /// without.
    ///
    /// # Errors
    ///
    /// [`BadQueue::OutOfRange`].
    pub fn steer(&mut self, rule: Rule) -> Result<(), BadQueue> {
        self.in_range(rule.queue)?;
        self.unsteer(rule.to);
        match rule.to.ip().is_unspecified() {
            true => self.rules.push(rule),
            false => self.rules.insert(0, rule),
        }
        Ok(())
    }

    /// Takes the rule for an address away. Whether there was one.
    pub fn unsteer(&mut self, to: SocketAddr) -> bool {
        let before = self.rules.len();
        self.rules.retain(|rule| rule.to != to);
        self.rules.len() < before
    }

    /// The rules, in the order in which they are asked.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    fn in_range(&self, queue: u32) -> Result<(), BadQueue> {
        match queue < self.len() {
            true => Ok(()),
            false => Err(BadQueue::OutOfRange { queue, queues: self.len() }),
        }
    }

    /// Binds `memory` to `queues`: all of them, or none.
    ///
    /// # Errors
    ///
    /// [`BadQueue`].
    pub fn bind(&mut self, memory: &DeviceMemory, queues: &[u32]) -> Result<(), BadQueue> {
        if queues.is_empty() {
            return Err(BadQueue::None);
        }
        queues.iter().try_for_each(|queue| self.in_range(*queue))?;
        if !self.split {
            return Err(BadQueue::NotSplit);
        }
        if memory.page_len() != PAGE {
            return Err(BadQueue::PageSize { bytes: memory.page_len() });
        }
        for (at, queue) in queues.iter().enumerate() {
            if self.list[*queue as usize].memory.is_some() || queues[..at].contains(queue) {
                return Err(BadQueue::Bound { queue: *queue });
            }
        }
        if self.spread.iter().all(|queue| queues.contains(queue)) {
            return Err(BadQueue::NoneLeft);
        }
        for queue in queues {
            let queue = &mut self.list[*queue as usize];
            queue.memory = Some(memory.clone());
            queue.stats.restarts += 1;
        }
        self.respread();
        Ok(())
    }

    /// Unbinds `queues`: what comes to them from now on lies in ordinary pages. What was placed stays where it is.
    pub fn unbind(&mut self, queues: &[u32]) {
        for queue in queues {
            if let Some(queue) = self.list.get_mut(*queue as usize)
                && queue.memory.take().is_some()
            {
                queue.stats.restarts += 1;
            }
        }
        let is_bound = |memory: &DeviceMemory| {
            self.list.iter().any(|queue| queue.memory.as_ref().is_some_and(|bound| bound.id() == memory.id()))
        };
        self.registered.retain(|registered| is_bound(registered.memory()));
        self.respread();
    }

    /// Has the link put payload into memory that is bound itself, where it can ([`Link::receive_sorted`](crate::Link::receive_sorted)), as long as it is
    /// bound.
    pub fn land(&mut self, memory: Registered) {
        if !self.lands_in(memory.id()) {
            self.registered.push(memory);
        }
    }

    /// Whether the link puts payload into memory itself, by its pool. (It ends where the kernel does not after all.)
    pub fn lands_in(&self, memory: u64) -> bool {
        self.registered.iter().any(|registered| registered.id() == memory)
    }

    fn respread(&mut self) {
        let unbound = |queue: &u32| self.list[*queue as usize].memory.is_none();
        self.spread = (0..self.len()).filter(unbound).collect();
    }

    /// Queues over which flows are spread that no rule names.
    pub fn spread(&self) -> &[u32] {
        &self.spread
    }

    /// What came to a queue.
    pub fn stats(&self, queue: u32) -> Option<&QueueStats> {
        self.list.get(queue as usize).map(|queue| &queue.stats)
    }

    fn rule_of(&self, to: SocketAddr) -> Option<u32> {
        let matches = |rule: &&Rule| {
            let of = rule.to;
            let ip = of.ip() == to.ip() || of.ip().is_unspecified() && of.is_ipv4() == to.is_ipv4();
            ip && of.port() == to.port()
        };
        self.rules.iter().find(matches).map(|rule| rule.queue)
    }

    /// To which queue a flow comes, or what is none.
    fn number(&self, flow: Option<&Flow>) -> u32 {
        let ruled = flow.and_then(|flow| self.rule_of(flow.to));
        ruled.unwrap_or_else(|| {
            let hash = flow.map_or(0, Flow::hash) as usize;
            self.spread.get(hash % self.spread.len().max(1)).copied().unwrap_or(0)
        })
    }

    /// Sees to it that `packet`, which has just been received, lies where its queue says.
    pub fn sort(&mut self, mut packet: Packet) -> Sorted {
        let flow = flow(&packet, self.medium);
        let number = self.number(flow.as_ref());
        if !self.registered.is_empty() {
            let len = packet.payload().payload().len();
            self.foresight.came(self.expected(number, flow.as_ref(), &packet, len), len);
        }
        let Some(queue) = self.list.get_mut(number as usize) else { return Sorted::Plain(packet) };
        queue.stats.packets += 1;
        queue.stats.bytes += packet.len() as u64;
        let (Some(memory), Some(flow)) = (&queue.memory, flow) else { return Sorted::Plain(packet) };
        if packet.payload().payload().is_empty() && packet.head().len() <= flow.headers {
            return Sorted::Bound(number, packet);
        }
        // Ethernet's padding is no payload. (Fewer bytes than IP says are refused above.)
        let kept = flow.whole.saturating_sub(packet.head().len());
        let trimmed = packet.len() <= flow.whole || packet.payload_mut().truncate(kept, Fate::Sent).is_ok();
        if packet.head().len() != flow.headers || !trimmed {
            queue.stats.unsplit += 1;
            return Sorted::Bound(number, packet);
        }
        let (len, began) = (packet.payload().payload().len() as u64, Instant::now());
        if len == 0 {
            return Sorted::Bound(number, packet);
        }
        match place(&mut packet, memory) {
            Ok(()) => {
                queue.stats.placed += 1;
                queue.stats.placed_bytes += len;
                queue.stats.placing_ns += began.elapsed().as_nanos() as u64;
                Sorted::Bound(number, packet)
            }
            Err(why) => {
                let starved = matches!(why, NotPlaced::Full);
                let counter = match why {
                    NotPlaced::Full => &mut queue.stats.starved,
                    NotPlaced::Foreign => &mut queue.stats.foreign,
                    NotPlaced::Failed => &mut queue.stats.failed,
                };
                *counter += 1;
                Sorted::Dropped { queue: number, starved }
            }
        }
    }

    /// Where the payload of a packet of that queue could have been put before it was known: `len` bytes behind its headers, which are all there, with
    /// nothing behind them, and whose sum need not be taken.
    fn expected(&self, number: u32, flow: Option<&Flow>, packet: &Packet, len: usize) -> Option<Expected> {
        let (flow, headers) = (flow?, packet.head().len());
        let memory = self.list.get(number as usize)?.memory.as_ref()?.id();
        let fits = flow.headers == headers && headers + len <= flow.whole && len >= LEAST;
        let known = packet.checksum() != Checksum::None;
        let lands = fits && known && self.lands_in(memory);
        lands.then_some(Expected { memory, headers })
    }

    /// Where the next packet's payload most likely belongs, and how long its headers are.
    pub(crate) fn foreseen(&mut self) -> Option<(&mut Registered, usize)> {
        let Expected { memory, headers } = self.foresight.next()?;
        let registered = self.registered.iter_mut().find(|registered| registered.id() == memory)?;
        Some((registered, headers))
    }

    /// Whether `len` bytes of payload belong where they were put as was foreseen, if these are their packet's headers: the queue.
    pub(crate) fn lands(&self, packet: &Packet, len: usize) -> Option<u32> {
        let flow = flow(packet, self.medium);
        let number = self.number(flow.as_ref());
        let expected = self.expected(number, flow.as_ref(), packet, len)?;
        (self.foresight.next() == Some(expected)).then_some(number)
    }

    /// A packet whose payload belongs where it was put ([`Queues::lands`]).
    pub(crate) fn landed(&mut self, number: u32, packet: Packet) -> Sorted {
        let len = packet.payload().payload().len();
        self.foresight.came(self.foresight.next(), len);
        if let Some(Queue { stats, .. }) = self.list.get_mut(number as usize) {
            stats.packets += 1;
            stats.bytes += packet.len() as u64;
            stats.placed += 1;
            stats.placed_bytes += len as u64;
            stats.landed += 1;
            stats.landed_bytes += len as u64;
        }
        Sorted::Landed(number, packet)
    }

    /// To which queue a flow to `to` comes by a rule, and which memory is bound to that: for who takes bytes of streams, and not packets.
    pub fn ruled(&self, to: SocketAddr) -> Option<(u32, &DeviceMemory)> {
        let queue = self.rule_of(to)?;
        Some((queue, self.list.get(queue as usize)?.memory.as_ref()?))
    }

    /// Bytes of such a stream were put into the memory that is bound to a queue, by the kernel's own copy.
    pub fn count_landed(&mut self, queue: u32, bytes: usize) {
        if let Some(Queue { stats, .. }) = self.list.get_mut(queue as usize) {
            stats.bytes += bytes as u64;
            stats.placed += 1;
            stats.placed_bytes += bytes as u64;
            stats.landed += 1;
            stats.landed_bytes += bytes as u64;
        }
    }

    /// The link cannot put payload into `memory`.
    pub(crate) fn give_up(&mut self, memory: &DeviceMemory) {
        self.registered.retain(|registered| registered.id() != memory.id());
    }
}
