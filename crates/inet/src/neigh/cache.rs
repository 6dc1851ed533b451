//! The entries, and what moves them.

use super::{ASK_NS, ASKS, DELAY_NS, LOCK_NS, REACHABLE_NS, WAITING, WAITING_ALL, WAITING_EACH};
use crate::bucket::Bucket;
use crate::key::{Key, Seed, Table};
use crate::timers::Wheel;
use crate::wire::Mac;
use onecopy_link::Packet;
use std::collections::VecDeque;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Incomplete,
    /// Until then.
    Reachable(u64),
    Stale,
    Delayed,
    Probed,
}

#[derive(Debug)]
struct Entry {
    address: IpAddr,
    mac: Mac,
    state: State,
    /// Questions that are open.
    asks: u8,
    /// It was used since the hand came by: it is not the next that goes.
    used: bool,
    /// When its hardware address was changed last.
    changed: u64,
    /// Without the link's header, which has the address in it.
    waiting: VecDeque<Packet>,
}

/// What to do with a packet for a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// Send it there.
    To(Mac),
    /// It waits ([`Cache::wait`]).
    Unknown,
}

/// What was heard of a neighbour by ARP, or by NDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It answered a question: what waited for it can go ([`Cache::ready`]).
    Answer,
    /// A known one said where it is, unasked.
    Known,
    /// It is known, and another hardware address was heard a moment ago.
    TooSoon,
    /// Nobody asked, and it is not known.
    Unknown,
}

/// A question to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub address: IpAddr,
    /// Whom it goes to; everybody who may have the address, where that is not known.
    pub to: Option<Mac>,
}

/// Neighbours on an Ethernet.
#[derive(Debug)]
pub struct Cache {
    entries: Vec<Entry>,
    /// Which of them each address has.
    places: Table<IpAddr, u32>,
    limit: usize,
    /// By place.
    timers: Wheel,
    /// Where it is looked next for one that can go.
    hand: usize,
    /// The one that was looked at last, which the next packet is often for.
    last: usize,
    random: Key,
    questions: Bucket,
    asks: VecDeque<Ask>,
    ready: VecDeque<(Mac, Packet)>,
    failed: VecDeque<Packet>,
    displaced: u64,
    /// Packets that wait, of all entries.
    held: usize,
    evicted: u64,
}

/// Questions in a second, and at once: no more than a subnet of hosts that do not answer needs.
const QUESTIONS: Bucket = Bucket::new(500, 250);

impl Cache {
    /// For at most `limit` neighbours.
    pub fn new(seed: &Seed, limit: usize) -> Cache {
        Cache {
            entries: Vec::new(),
            places: Table::with_hasher(Key::derive(seed, "neighbours")),
            limit: limit.clamp(1, 1 << 20),
            timers: Wheel::new(),
            hand: 0,
            last: 0,
            random: Key::derive(seed, "reachable times"),
            questions: QUESTIONS,
            asks: VecDeque::new(),
            ready: VecDeque::new(),
            failed: VecDeque::new(),
            displaced: 0,
            held: 0,
            evicted: 0,
        }
    }

    /// Where a packet for `address` goes.
    #[inline]
    pub fn hop(&mut self, now: u64, address: IpAddr) -> Hop {
        let Some(place) = self.find(address) else { return Hop::Unknown };
        self.last = place;
        let entry = &mut self.entries[place];
        entry.used = true;
        match entry.state {
            State::Reachable(until) if now < until => {}
            State::Reachable(_) | State::Stale => {
                entry.state = State::Delayed;
                self.timers.set(place as u32, now.saturating_add(DELAY_NS));
            }
            State::Delayed | State::Probed => {}
            State::Incomplete => return Hop::Unknown,
        }
        Hop::To(entry.mac)
    }

    /// Keeps `packet`, which begins with the network's header, until `address` has answered; asks it, if it was not asked. Of those that
    /// wait the oldest goes where there are too many ([`Cache::displaced`]).
    pub fn wait(&mut self, now: u64, address: IpAddr, packet: Packet) {
        let place = self.find(address).unwrap_or_else(|| self.enter(now, address));
        let entry = &mut self.entries[place];
        if entry.state != State::Incomplete {
            self.ready.push_back((entry.mac, packet));
            return;
        }
        let most = if self.held < WAITING_ALL { WAITING } else { WAITING_EACH };
        if entry.waiting.len() >= most {
            entry.waiting.pop_front();
            self.displaced += 1;
        } else {
            self.held += 1;
        }
        entry.waiting.push_back(packet);
    }

    /// A transport heard of `address`: it is reachable (RFC 1122, section 2.3.2.1; RFC 4861, section 7.3.1).
    #[inline]
    pub fn confirm(&mut self, now: u64, address: IpAddr) {
        let Some(place) = self.find(address) else { return };
        match self.entries[place].state {
            // Nothing to ask, nor soon: what each ACK comes to.
            State::Reachable(until) if until.saturating_sub(now) > REACHABLE_NS / 4 => {}
            State::Incomplete => {}
            _ => self.reach(now, place),
        }
    }

    /// `address` said that it is at `mac`; `answer`: to us, as who was asked does.
    pub fn hear(&mut self, now: u64, address: IpAddr, mac: Mac, answer: bool) -> Heard {
        let Some(place) = self.find(address) else { return Heard::Unknown };
        let entry = &mut self.entries[place];
        let asked = answer && entry.asks > 0;
        if entry.state != State::Incomplete && entry.mac != mac {
            // The first answer counts: the second one may be somebody else's.
            if now < entry.changed.saturating_add(LOCK_NS) {
                return Heard::TooSoon;
            }
            // Whoever has moved will tell once more when it is asked there.
            entry.changed = now;
            entry.mac = mac;
            if !asked {
                entry.state = State::Stale;
                entry.asks = 0;
                self.timers.cancel(place as u32);
                return Heard::Known;
            }
        }
        if entry.state == State::Incomplete {
            (entry.mac, entry.changed) = (mac, now);
            // Their memory goes along: nothing waits again for long.
            let waiting = std::mem::take(&mut entry.waiting);
            self.held -= waiting.len();
            self.ready.extend(waiting.into_iter().map(|packet| (mac, packet)));
            if !asked {
                // It is known now, if by hearsay.
                (entry.state, entry.asks) = (State::Stale, 0);
                self.timers.cancel(place as u32);
                return Heard::Known;
            }
        }
        if asked {
            self.reach(now, place);
            return Heard::Answer;
        }
        Heard::Known
    }

    /// Somebody says that `address` is elsewhere than it is known to be, and does not want that to be forgotten: it is asked once it is used
    /// (RFC 4861, section 7.2.5).
    pub fn doubt(&mut self, address: IpAddr) {
        if let Some(place) = self.find(address)
            && let State::Reachable(_) = self.entries[place].state
        {
            self.entries[place].state = State::Stale;
        }
    }

    /// Runs what is due.
    pub fn advance(&mut self, now: u64) {
        while let Some(place) = self.timers.pop(now) {
            let entry = &mut self.entries[place as usize];
            match entry.state {
                State::Delayed => (entry.state, entry.asks) = (State::Probed, 0),
                State::Incomplete | State::Probed => {}
                State::Reachable(_) | State::Stale => continue,
            }
            if entry.asks < ASKS {
                self.ask(now, place as usize);
            } else {
                self.remove(place as usize);
            }
        }
    }

    /// When [`Cache::advance`] has something to do, at the latest.
    pub fn deadline(&self) -> Option<u64> {
        self.timers.next()
    }

    /// The next packet that can go, and where.
    #[inline]
    pub fn ready(&mut self) -> Option<(Mac, Packet)> {
        self.ready.pop_front()
    }

    /// The next packet that waited in vain.
    #[inline]
    pub fn failed(&mut self) -> Option<Packet> {
        self.failed.pop_front()
    }

    /// The next question.
    #[inline]
    pub(crate) fn question(&mut self) -> Option<Ask> {
        self.asks.pop_front()
    }

    /// Where `address` is known to be, whether that is new or not.
    pub fn get(&self, address: IpAddr) -> Option<Mac> {
        let entry = &self.entries[self.find(address)?];
        (entry.state != State::Incomplete).then_some(entry.mac)
    }

    /// Whether `address` was heard of lately.
    pub fn is_reachable(&self, now: u64, address: IpAddr) -> bool {
        let state = self.find(address).map(|place| self.entries[place].state);
        matches!(state, Some(State::Reachable(until)) if now < until)
    }

    /// Neighbours, known or asked for.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Packets that went since newer ones waited for the same neighbour.
    pub fn displaced(&self) -> u64 {
        self.displaced
    }

    /// Neighbours that were forgotten since there were too many.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Gives back memory that is not needed.
    pub fn rest(&mut self) {
        self.entries.shrink_to_fit();
        self.places.shrink_to_fit();
        self.timers.rest();
        self.asks.shrink_to_fit();
        self.ready.shrink_to_fit();
        self.failed.shrink_to_fit();
    }

    #[inline]
    fn find(&self, address: IpAddr) -> Option<usize> {
        if self.entries.get(self.last).is_some_and(|last| last.address == address) {
            return Some(self.last);
        }
        self.places.get(&address).map(|place| *place as usize)
    }

    fn enter(&mut self, now: u64, address: IpAddr) -> usize {
        if self.entries.len() >= self.limit {
            self.evict();
        }
        let place = self.entries.len();
        self.entries.push(Entry {
            address,
            mac: Mac::default(),
            state: State::Incomplete,
            asks: 0,
            used: true,
            changed: 0,
            waiting: VecDeque::new(),
        });
        self.places.insert(address, place as u32);
        self.ask(now, place);
        place
    }

    /// Makes room: of those that were not used since the hand came by last, the first one goes. (It comes by all of them once, at most.)
    fn evict(&mut self) {
        for _ in 0..=self.entries.len() {
            self.hand = (self.hand + 1) % self.entries.len();
            if !std::mem::take(&mut self.entries[self.hand].used) {
                break;
            }
        }
        self.evicted += 1;
        self.remove(self.hand);
    }

    /// Takes an entry out; what waits in it has failed. The last one comes into its place.
    fn remove(&mut self, place: usize) {
        self.timers.cancel(place as u32);
        let entry = self.entries.swap_remove(place);
        self.places.remove(&entry.address);
        self.held -= entry.waiting.len();
        self.failed.extend(entry.waiting);
        if let Some(moved) = self.entries.get(place) {
            self.places.insert(moved.address, place as u32);
            let was = self.entries.len() as u32;
            if let Some(at) = self.timers.get(was) {
                self.timers.cancel(was);
                self.timers.set(place as u32, at);
            }
        }
    }

    fn ask(&mut self, now: u64, place: usize) {
        let entry = &mut self.entries[place];
        // One that there is no room for counts, too: nobody waits for longer.
        entry.asks += 1;
        self.timers.set(place as u32, now.saturating_add(ASK_NS));
        if self.questions.take(now) {
            let to = (entry.state == State::Probed).then_some(entry.mac);
            self.asks.push_back(Ask { address: entry.address, to });
        }
    }

    fn reach(&mut self, now: u64, place: usize) {
        let entry = &mut self.entries[place];
        // Not all at once, and not when a stranger expects it (RFC 4861, section 6.3.2).
        let random = match entry.address {
            IpAddr::V4(address) => self.random_of(&address.octets(), now),
            IpAddr::V6(address) => self.random_of(&address.octets(), now),
        };
        let entry = &mut self.entries[place];
        entry.state = State::Reachable(now.saturating_add(REACHABLE_NS / 2 + random));
        entry.asks = 0;
        self.timers.cancel(place as u32);
    }
    /// Less than [`REACHABLE_NS`].
    fn random_of(&self, address: &[u8], now: u64) -> u64 {
        let mut bytes = [0; 24];
        bytes[..address.len()].copy_from_slice(address);
        bytes[address.len()..][..8].copy_from_slice(&now.to_le_bytes());
        self.random.secret(&bytes[..address.len() + 8]) % REACHABLE_NS
    }
}
