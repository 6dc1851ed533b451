//! Packets that came in parts (RFC 791, section 3.2; RFC 8200, section 4.5), bounded: by how many are waited for, how many parts each has,
//! what memory they keep, and how long they are waited for. Where there is no room the one goes that is waited for the longest.
//!
//! Parts that overlap have the whole be dropped, in both families, with what of it is to come (RFC 5722; the kernel's
//! inet_frag_queue_insert()): nobody cuts so who means well. One that came twice is dropped alone.

use crate::wire::{Ecn, Ip, Protocol};
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use std::net::IpAddr;

/// Packets that are waited for, at most.
const MOST: usize = 256;
/// Parts of one: a packet of 64 KiB by ways that take 576 bytes.
const PARTS: usize = 128;
/// Bytes of memory that they keep in all: the kernel's ipfrag_high_thresh.
const MEMORY: usize = 4 << 20;
/// What a part costs beside its pages.
const COST: usize = 256;

/// How long the parts of one are waited for: net.ipv4.ipfrag_time, net.ipv6.ip6frag_time.
const WAIT_V4_NS: u64 = 30_000_000_000;
const WAIT_V6_NS: u64 = 60_000_000_000;

/// Which packet a part is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Whole {
    from: IpAddr,
    to: IpAddr,
    id: u32,
    /// IPv4's: one host may have the same number for each.
    protocol: Option<Protocol>,
}

/// A part of a packet.
#[derive(Debug)]
pub(super) struct Part {
    /// Its header.
    pub ip: Ip,
    /// What the parts have in common.
    pub id: u32,
    /// Where its bytes begin.
    pub offset: u16,
    /// It is not the last one.
    pub more: bool,
    /// Its bytes.
    pub data: Segment<Chain>,
}

#[derive(Debug)]
struct Waiting {
    whole: Whole,
    since: u64,
    until: u64,
    /// By place. Invariant: none overlaps another.
    parts: Vec<(u16, Segment<Chain>)>,
    /// The header of the first part.
    ip: Option<Ip>,
    /// Bytes that there are, and that there will be.
    have: usize,
    end: Option<usize>,
    memory: usize,
    /// Which states of congestion were seen, a bit each.
    ecn: u8,
    /// They overlap: what is to come is dropped, too.
    refused: bool,
}

/// What became of a part.
#[derive(Debug)]
pub(super) enum Gathered {
    /// It waits for others.
    Kept,
    /// All are there: the first one's header, and the bytes.
    Whole(Ip, Segment<Chain>),
    /// They overlap, or say different things of where the packet ends; so many others go with it.
    Overlap(u64),
    /// It came before.
    Twice,
    /// More parts than one packet has.
    TooMany(u64),
}

/// A packet whose parts have not all come.
#[derive(Debug)]
pub(super) struct Lost {
    /// Parts that had.
    pub parts: u64,
    /// The header of the first one and its bytes, if it is among them.
    pub first: Option<(Ip, Segment<Chain>)>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    /// Few: they are looked through.
    waiting: Vec<Waiting>,
    memory: usize,
    /// When the first one is not waited for any more.
    next: Option<u64>,
}

impl Reassembly {
    /// Takes a part. `lost` is told of what makes room for it.
    pub fn take(&mut self, now: u64, part: Part, lost: &mut dyn FnMut(Lost)) -> Gathered {
        let v4 = matches!(part.ip, Ip::V4(_));
        let whole = Whole {
            from: part.ip.from(),
            to: part.ip.to(),
            id: part.id,
            protocol: v4.then(|| part.ip.protocol()),
        };
        let at = match self.waiting.iter().position(|waiting| waiting.whole == whole) {
            Some(at) => at,
            None => {
                let until = now.saturating_add(if v4 { WAIT_V4_NS } else { WAIT_V6_NS });
                self.begin(whole, (now, until), lost)
            }
        };
        let (memory, refused) = (self.waiting[at].memory, self.waiting[at].refused);
        if refused {
            return Gathered::Overlap(0);
        }
        let gathered = self.waiting[at].take(part);
        self.memory = self.memory + self.waiting[at].memory - memory;
        match gathered {
            Gathered::Kept if self.waiting[at].is_whole() => {
                let waiting = self.remove(at);
                // Itself is counted as what this says.
                let others = waiting.parts.len() as u64 - 1;
                match waiting.join() {
                    Some((ip, data)) => Gathered::Whole(ip, data),
                    None => Gathered::Overlap(others),
                }
            }
            Gathered::Kept => {
                while self.memory > MEMORY {
                    self.evict(lost);
                }
                Gathered::Kept
            }
            other => other,
        }
    }

    /// The next one that is not waited for any more.
    pub fn overdue(&mut self, now: u64) -> Option<Lost> {
        if self.next? > now {
            return None;
        }
        let at = self.waiting.iter().position(|waiting| waiting.until <= now)?;
        Some(self.remove(at).lost())
    }

    /// When [`Reassembly::overdue`] has something to do.
    #[inline]
    pub fn deadline(&self) -> Option<u64> {
        self.next
    }

    /// Gives back memory that is not needed.
    pub fn rest(&mut self) {
        self.waiting.shrink_to_fit();
    }

    fn begin(&mut self, whole: Whole, (since, until): (u64, u64), lost: &mut dyn FnMut(Lost)) -> usize {
        if self.waiting.len() >= MOST {
            self.evict(lost);
        }
        self.waiting.push(Waiting {
            whole,
            since,
            until,
            parts: Vec::new(),
            ip: None,
            have: 0,
            end: None,
            memory: 0,
            ecn: 0,
            refused: false,
        });
        self.next = Some(self.next.map_or(until, |next| next.min(until)));
        self.waiting.len() - 1
    }

    /// The one goes that is waited for the longest, whatever its family.
    fn evict(&mut self, lost: &mut dyn FnMut(Lost)) {
        let oldest = self.waiting.iter().enumerate().min_by_key(|(_, waiting)| waiting.since);
        if let Some((at, _)) = oldest {
            let mut gone = self.remove(at).lost();
            // Nobody is told of what was not waited for.
            gone.first = None;
            lost(gone);
        }
    }

    fn remove(&mut self, at: usize) -> Waiting {
        let waiting = self.waiting.swap_remove(at);
        self.memory -= waiting.memory;
        self.next = self.waiting.iter().map(|waiting| waiting.until).min();
        waiting
    }
}

impl Waiting {
    fn take(&mut self, part: Part) -> Gathered {
        let Part { ip, offset, more, data, .. } = part;
        let (begins, ends) = (usize::from(offset), usize::from(offset) + data.payload().len());
        let at = self.parts.partition_point(|(at, _)| usize::from(*at) < begins);
        if let Some((there, bytes)) = self.parts.get(at)
            && (*there, bytes.payload().len()) == (offset, ends - begins)
            && (more || self.end == Some(ends))
        {
            return Gathered::Twice;
        }
        let before = at.checked_sub(1).and_then(|at| self.parts.get(at));
        let overlaps = before.is_some_and(|(at, bytes)| usize::from(*at) + bytes.payload().len() > begins)
            || self.parts.get(at).is_some_and(|(at, _)| usize::from(*at) < ends);
        let last = self.parts.last().map_or(0, |(at, bytes)| usize::from(*at) + bytes.payload().len());
        let astray = match (self.end, more) {
            (Some(end), true) => ends > end,
            (Some(end), false) => ends != end,
            (None, false) => last > ends,
            (None, true) => false,
        };
        if overlaps || astray {
            return Gathered::Overlap(self.refuse());
        }
        if self.parts.len() >= PARTS {
            return Gathered::TooMany(self.refuse());
        }
        if !more {
            self.end = Some(ends);
        }
        if begins == 0 {
            self.ip = Some(ip);
        }
        self.ecn |= 1 << (ip.service() & 3);
        self.have += ends - begins;
        self.memory += data.payload().true_size() + COST;
        self.parts.insert(at, (offset, data));
        Gathered::Kept
    }

    /// Drops all, and what is to come. How many there were.
    fn refuse(&mut self) -> u64 {
        let gone = std::mem::take(&mut self.parts).len() as u64;
        (self.refused, self.memory) = (true, 0);
        gone
    }

    fn is_whole(&self) -> bool {
        self.end == Some(self.have)
    }

    /// None where memory of different kinds cannot be in one packet, or what was said of congestion does not go together.
    fn join(self) -> Option<(Ip, Segment<Chain>)> {
        let mut ip = self.ip?;
        let seen = |ecn: Ecn| self.ecn & 1 << ecn as u8 != 0;
        // RFC 3168, section 5.3; ip_frag_ecn_table.
        if seen(Ecn::Ce) {
            if seen(Ecn::NotEct) {
                return None;
            }
            match &mut ip {
                Ip::V4(ip) => ip.service |= 3,
                Ip::V6(ip) => ip.service |= 3,
            }
        }
        let mut all = Segment::default();
        for (_, data) in self.parts {
            all.concat(data).ok()?;
        }
        Some((ip, all))
    }

    fn lost(mut self) -> Lost {
        let parts = self.parts.len() as u64;
        let first = self.ip.filter(|_| !self.parts.is_empty()).map(|ip| (ip, self.parts.swap_remove(0).1));
        Lost { parts, first }
    }
}
