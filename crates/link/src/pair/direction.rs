//! One direction of a pair: what waits to leave, what is on its way, and what it meets there.

use super::path::{Path, Stats};
use super::random::Random;
use crate::capabilities::Capabilities;
use crate::cut::sum_ip;
use crate::packet::Packet;
use onecopy_chain::notify::Fate;
use onecopy_chain::{Checksum, Kind, Writer};
use onecopy_pool::{PagePool, PoolConfig, provider::Heap};
use std::collections::VecDeque;

/// A packet on its way.
#[derive(Debug)]
struct Flying {
    at: u64,
    packet: Packet,
    /// It has one of the path's places: of all that comes of one that was transmitted, one does.
    place: bool,
}

/// Packets to be freed once no lock is held: that runs code of others.
pub(super) type Gone = Vec<Packet>;

#[derive(Debug)]
pub(super) struct Direction {
    pub path: Path,
    random: Random,
    /// Which bit is turned over.
    noise: Random,
    /// When all that was transmitted has left.
    busy_until: u64,
    /// When the last one arrives that none may overtake.
    last: u64,
    /// In the order of arrival.
    queue: VecDeque<Flying>,
    /// How many in there have a place.
    places: usize,
    /// Something of what is being transmitted has a place.
    placed: bool,
    pub stats: Stats,
    /// Somebody receives.
    open: bool,
    /// Pages for bytes that are turned over, made with the first.
    pool: Option<PagePool>,
}

/// What is drawn for a packet.
struct Lot {
    lost: bool,
    twice: bool,
    held: bool,
    corrupt: bool,
    jitter: u64,
    held_for: u64,
}

impl Direction {
    pub fn new(path: Path, seed: u64, number: u64) -> Direction {
        Direction {
            path,
            random: Random::new(seed, number),
            noise: Random::new(seed, number + 2),
            busy_until: 0,
            last: 0,
            queue: VecDeque::new(),
            places: 0,
            placed: false,
            stats: Stats::default(),
            open: true,
            pool: None,
        }
    }

    /// Bytes that wait to leave.
    fn backlog(&self, now: u64) -> u64 {
        let Some(rate) = self.path.rate else { return 0 };
        let wait = u128::from(self.busy_until.saturating_sub(now));
        u64::try_from((wait * u128::from(rate)).div_ceil(BITS)).unwrap_or(u64::MAX)
    }

    /// How long so many bytes take to leave.
    fn time(&self, bytes: u64) -> u64 {
        let Some(rate) = self.path.rate else { return 0 };
        u64::try_from((u128::from(bytes) * BITS).div_ceil(u128::from(rate))).unwrap_or(u64::MAX / 4)
    }

    fn has_room(&self, now: u64) -> bool {
        self.places < self.path.in_flight && self.backlog(now) <= self.path.queue
    }

    pub fn room(&self, now: u64, frame: u64) -> usize {
        if !self.has_room(now) {
            return 0;
        }
        let places = self.path.in_flight - self.places;
        match self.path.rate {
            None => places,
            Some(rate) => {
                // As the backlog counts it: its time is rounded up, and then its bytes.
                let counted = (u128::from(self.time(frame)) * u128::from(rate)).div_ceil(BITS);
                let frame = u64::try_from(counted).unwrap_or(u64::MAX);
                let left = self.path.queue.saturating_sub(self.backlog(now)) / frame.max(1) + 1;
                places.min(usize::try_from(left).unwrap_or(usize::MAX))
            }
        }
    }

    /// When there is room again, if there is none now and that is a matter of time.
    pub fn room_at(&self, now: u64) -> Option<u64> {
        if self.has_room(now) {
            return None;
        }
        if self.places >= self.path.in_flight {
            return self.queue.front().map(|first| first.at).filter(|at| *at > now);
        }
        let queue = u128::from(self.path.queue) * BITS / u128::from(self.path.rate?);
        Some(self.busy_until.saturating_sub(u64::try_from(queue).unwrap_or(u64::MAX)))
    }

    /// When the first packet arrives that nobody has received.
    pub fn first(&self) -> Option<u64> {
        self.queue.front().map(|first| first.at)
    }

    /// When the next one arrives, behind `now`.
    pub fn next(&self, now: u64) -> Option<u64> {
        self.queue.get(self.queue.partition_point(|flying| flying.at <= now)).map(|flying| flying.at)
    }

    pub fn in_flight(&self) -> usize {
        self.queue.len()
    }

    pub fn receive(&mut self, now: u64) -> Option<Packet> {
        self.queue.front().filter(|first| first.at <= now)?;
        let first = self.queue.pop_front()?;
        self.places -= usize::from(first.place);
        self.stats.received += 1;
        Some(first.packet)
    }

    /// Nobody receives any more.
    pub fn close(&mut self) -> Gone {
        self.open = false;
        self.places = 0;
        self.stats.unreceived += self.queue.len() as u64;
        std::mem::take(&mut self.queue).into_iter().map(|flying| flying.packet).collect()
    }

    pub fn transmit(&mut self, now: u64, from: &Capabilities, packet: Packet, gone: &mut Gone) {
        // Asked once: what there is room for is taken whole, whatever it is cut to.
        let room = self.has_room(now);
        self.placed = false;
        if from.takes(&packet).is_err() {
            self.stats.not_taken += 1;
            gone.push(packet);
        } else if self.path.whole {
            self.send(now, from, packet, room, gone);
        } else {
            let is_cut = packet.gso().is_some();
            let cut = packet.cut(|packet| self.send_finished(now, from, packet, room, gone));
            self.stats.cut += u64::from(is_cut && cut.is_ok());
            if let Err((packet, _)) = cut {
                self.stats.not_taken += 1;
                gone.push(packet);
            }
        }
    }

    fn send_finished(
        &mut self,
        now: u64,
        from: &Capabilities,
        mut packet: Packet,
        room: bool,
        gone: &mut Gone,
    ) {
        match packet.finish() {
            Ok(()) => self.send(now, from, packet, room, gone),
            Err(_) => {
                self.stats.not_taken += 1;
                gone.push(packet);
            }
        }
    }

    fn draw(&mut self) -> Lot {
        let (path, random) = (&self.path, &mut self.random);
        Lot {
            lost: random.chance(path.loss),
            twice: random.chance(path.duplicate),
            held: random.chance(path.reorder),
            corrupt: random.chance(path.corrupt),
            jitter: random.below(path.jitter_ns.saturating_add(1)),
            held_for: 1 + random.below(path.reorder_ns),
        }
    }

    fn send(&mut self, now: u64, from: &Capabilities, mut packet: Packet, room: bool, gone: &mut Gone) {
        let (lot, len) = (self.draw(), packet.len() as u64);
        if !room {
            self.stats.full += 1;
            gone.push(packet);
            return;
        }
        self.stats.transmitted += 1;
        self.stats.bytes += len;
        let network = from.medium.header_len();
        if self.path.mark_above.is_some_and(|above| self.backlog(now) > above)
            && mark(packet.head_mut(), network)
        {
            self.stats.marked += 1;
        }
        // It leaves, whatever becomes of it.
        packet.set_fate(Fate::Sent);
        self.busy_until = self.busy_until.max(now).saturating_add(self.time(len));
        if !self.open {
            self.stats.unreceived += 1;
            gone.push(packet);
            return;
        }
        if lot.lost {
            self.stats.lost += 1;
            gone.push(packet);
            return;
        }
        let mut at = self.busy_until.saturating_add(self.path.delay_ns).saturating_add(lot.jitter);
        if lot.held {
            self.stats.reordered += 1;
            at = at.saturating_add(lot.held_for);
        } else {
            at = at.max(self.last);
            self.last = at;
        }
        if lot.twice {
            self.stats.duplicated += 1;
            self.arrive(at, packet.share());
        }
        if lot.corrupt {
            self.damage(at, packet, gone);
        } else {
            self.arrive(at, packet);
        }
    }

    fn arrive(&mut self, at: u64, packet: Packet) {
        // Behind all that arrive no later: the last ones, but for those that are held back.
        let behind = self.queue.iter().rev().take_while(|flying| flying.at > at).count();
        let place = !std::mem::replace(&mut self.placed, true);
        self.places += usize::from(place);
        self.queue.insert(self.queue.len() - behind, Flying { at, packet, place });
    }

    /// Has `packet` arrive with a bit turned over. Of a super-segment it is one of its packets that is hit.
    fn damage(&mut self, at: u64, packet: Packet, gone: &mut Gone) {
        let (mut pieces, len) = (Vec::new(), packet.len() as u64);
        if let Err((packet, _)) = packet.cut(|piece| pieces.push(piece)) {
            pieces.push(packet);
        }
        if pieces.len() > 1 {
            // Each counts, in the place of the whole.
            self.stats.cut += 1;
            self.stats.transmitted += pieces.len() as u64 - 1;
            self.stats.bytes += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>() - len;
        }
        let hit = self.noise.below(pieces.len() as u64) as usize;
        for (number, mut piece) in pieces.into_iter().enumerate() {
            let finished = piece.finish().is_ok();
            if number != hit {
                self.arrive(at, piece);
            } else if finished && self.turn_over(&mut piece) {
                self.stats.corrupted += 1;
                self.arrive(at, piece);
            } else {
                // A card that sums what nobody else can read finds it out.
                self.stats.lost += 1;
                gone.push(piece);
            }
        }
    }

    /// Turns a bit over, in a copy where others have the bytes, too. False where none can be.
    fn turn_over(&mut self, packet: &mut Packet) -> bool {
        let bit = self.noise.next();
        let (mask, place) = (1 << (bit & 7), self.noise.next());
        let below = |len: usize| (place % len.max(1) as u64) as usize;
        // A checksum that was found right before is not right any more.
        let cleared = packet.set_checksum(Checksum::None).is_ok()
            && packet.payload_mut().payload_mut().set_checksum(Checksum::None).is_ok();
        let readable = matches!(packet.payload().payload().kind(), None | Some(Kind::Host));
        let head = packet.head().len();
        let at = if readable { below(packet.len()) } else { below(head) };
        if let Some(byte) = packet.head_mut().get_mut(at) {
            *byte ^= mask;
            return cleared;
        }
        let Some(at) = at.checked_sub(head) else { return false };
        let chain = packet.payload_mut().payload_mut();
        let there =
            chain.host().and_then(|view| view.slices_of(at, 1)).map(|mut slices| slices.next().map(|s| s[0]));
        let Ok(Some(byte)) = there else { return false };
        if self.pool.is_none() {
            self.pool = PagePool::new(PoolConfig::new().order(4).limit(4096), Heap::new()).ok();
        }
        let Some(pool) = &self.pool else { return false };
        Writer::new(pool).overwrite(chain, at, &[byte ^ mask]).is_ok()
    }
}

/// Bits of a byte, in a second's nanoseconds.
const BITS: u128 = 8 * 1_000_000_000;

/// Says that there is congestion (CE), if the network's header at `network` says that it may be (ECT; RFC 3168, section 5). Whether it does
/// now, and did not before.
fn mark(head: &mut [u8], network: usize) -> bool {
    let Some(header) = head.get_mut(network..) else { return false };
    match header.first().map(|byte| byte >> 4) {
        Some(4)
            if header.len() >= 20
                && header.len() >= usize::from(header[0] & 15) * 4
                && header[0] & 15 >= 5 =>
        {
            let able = matches!(header[1] & 3, 1 | 2);
            if able {
                header[1] |= 3;
                sum_ip(header);
            }
            able
        }
        Some(6) if header.len() >= 40 => {
            let able = matches!(header[1] >> 4 & 3, 1 | 2);
            if able {
                header[1] |= 0x30;
            }
            able
        }
        _ => false,
    }
}
