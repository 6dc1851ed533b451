//! Memory that payload lies in before it gets here: a device's, of which there is little.
//!
//! Whoever drives the stack places payload there, says with each packet in which room it lies ([`Stack::receive_in`]), and how much of
//! it is left ([`Stack::set_room`]). A connection whose packets come so is told no larger window than there is room for, what others of
//! the same room were promised taken off. So windows are shut before the room is full, and nothing is dropped; windows that were said are
//! never taken back. Connections whose window was smaller for it are told when there is more.
//!
//! A connection is promised what is left less what it has and nobody has read: so one whose program does not read takes half of a room, two
//! take two thirds, and there is always some for who reads (dynamic thresholds, as switches share their buffers: Choudhury and Hahne, 1998).
//!
//! What was promised may stay so for ever: a peer that sends no more keeps it. So who has read all of his own is always promised a segment,
//! out of the half that is kept back, and goes on with it.
//!
//! What is left is halved before it is promised: segments begin at cache lines and lie in pages, so they take more than their bytes, those
//! of 64 bytes and more at most the double. Who sends smaller ones all the time can fill a room all the same.

use super::Stack;
use super::slab::Id;
use super::socket::{Connected, Slot};

/// A room of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoomId(u32);

/// What became of a room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomStats {
    /// Bytes that connections were told they may send, and that have not come.
    pub promised: u64,
    /// Times that a window was smaller for want of room than the connection's buffer would have had it.
    pub narrowed: u64,
    /// Connections whose window is smaller for want of room now.
    pub waiting: usize,
    /// Of them, those whose peers may send no whole segment.
    pub starved: usize,
}

/// What a connection was promised, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Claim {
    room: Option<RoomId>,
    bytes: u64,
    /// Memory that its unread bytes took when it was looked at last.
    held: u64,
    /// It stands in the list of those that wait.
    waits: bool,
    /// It is counted among those whose peers may send no whole segment.
    starved: bool,
}

#[derive(Debug, Default)]
struct Room {
    /// Bytes that may be promised.
    left: u64,
    /// Somebody who waits may find more than before: a promise was kept, or bytes were read.
    eased: bool,
    stats: RoomStats,
    waiting: Vec<Id>,
}

/// All of them. Numbers are not given out again, so that a connection's late claim on a room that is closed is nobody else's.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    list: Vec<(RoomId, Room)>,
    next: u32,
}

impl Rooms {
    fn get(&self, id: RoomId) -> Option<&Room> {
        self.list.iter().find(|(of, _)| *of == id).map(|(_, room)| room)
    }

    fn get_mut(&mut self, id: RoomId) -> Option<&mut Room> {
        self.list.iter_mut().find(|(of, _)| *of == id).map(|(_, room)| room)
    }

    /// Bytes that may be promised to somebody new.
    pub fn left_in(&self, id: RoomId) -> Option<u64> {
        self.get(id).map(|room| room.left.saturating_sub(room.stats.promised))
    }

    /// Bytes that may be promised to a connection, what it was promised before among them; `None` for no limit.
    #[inline]
    pub fn left(&self, connected: &Connected) -> Option<u64> {
        let claim = &connected.claim;
        let room = self.get(claim.room?)?;
        let receiver = connected.connection.receiver();
        let left = room.left.saturating_sub(room.stats.promised.saturating_sub(claim.bytes));
        let left = left.saturating_sub(receiver.held());
        let least = receiver.least_room();
        // Of what is free half is promised to nobody: who has read all gets a segment of that, though others keep what they were promised.
        let reads = receiver.held() == 0 && room.left >= least;
        Some(if reads { left.max(least) } else { left })
    }

    /// Takes down what a connection was promised.
    #[inline]
    pub fn claim(&mut self, id: Id, connected: &mut Connected) {
        let Connected { connection, claim, .. } = connected;
        let Some(room) = claim.room.and_then(|room| self.get_mut(room)) else { return };
        let receiver = connection.receiver();
        // A connection that is over gets nothing any more.
        let now = if receiver.finished() { 0 } else { u64::from(receiver.window_left()) };
        room.stats.promised = room.stats.promised.saturating_sub(claim.bytes).saturating_add(now);
        room.eased |= now < claim.bytes || receiver.held() < claim.held;
        (claim.bytes, claim.held) = (now, receiver.held());
        let starved = receiver.is_starved() && !receiver.finished();
        room.stats.starved = room.stats.starved + usize::from(starved) - usize::from(claim.starved);
        claim.starved = starved;
        if (receiver.wants_room() || starved) && !claim.waits {
            room.stats.narrowed += 1;
            claim.waits = true;
            room.waiting.push(id);
        }
    }

    /// It is gone, and what it was promised will not come.
    pub fn release(&mut self, claim: &Claim) {
        if let Some(room) = claim.room.and_then(|room| self.get_mut(room)) {
            room.stats.promised = room.stats.promised.saturating_sub(claim.bytes);
            room.stats.starved -= usize::from(claim.starved);
            room.eased = true;
        }
    }
}

impl Stack {
    /// A room, of which nothing is left until [`Stack::set_room`] says so.
    pub fn open_room(&mut self) -> RoomId {
        let id = RoomId(self.rooms.next);
        self.rooms.next += 1;
        self.rooms.list.push((id, Room::default()));
        id
    }

    /// It is none any more: connections are bounded by their buffers alone. Who waited for room is told.
    pub fn close_room(&mut self, now: u64, id: RoomId) {
        let Some(at) = self.rooms.list.iter().position(|(of, _)| *of == id) else { return };
        let (_, room) = self.rooms.list.swap_remove(at);
        self.tell_room(now, room.waiting);
    }

    /// `bytes` of it are free. Who waits is told if there is more, or others were promised less than when it was said last: it is to be said after
    /// each turn.
    pub fn set_room(&mut self, now: u64, id: RoomId, bytes: u64) {
        let Some(room) = self.rooms.get_mut(id) else { return };
        let more = bytes / 2 > room.left || std::mem::take(&mut room.eased);
        room.left = bytes / 2;
        if more && !room.waiting.is_empty() {
            let waiting = std::mem::take(&mut room.waiting);
            self.tell_room(now, waiting);
        }
    }

    fn tell_room(&mut self, now: u64, waiting: Vec<Id>) {
        for id in waiting {
            if let Some(connected) = self.sockets.get_mut(id).and_then(Slot::connected_mut) {
                // Who still finds too little is in the list again behind this.
                connected.claim.waits = false;
                self.with(now, id, |connection, ctx| connection.room_came(ctx));
            }
        }
    }

    /// What is known of it.
    pub fn room_stats(&self, id: RoomId) -> Option<RoomStats> {
        self.rooms.get(id).map(|room| RoomStats { waiting: room.waiting.len(), ..room.stats })
    }

    /// A packet has come whose payload was placed in `room`, or would have been.
    pub fn receive_in(&mut self, now: u64, packet: onecopy_link::Packet, room: RoomId) {
        self.arriving = Some(room);
        self.receive(now, packet);
        self.arriving = None;
    }

    /// The connection's packets come to this room from now on, or to none.
    pub(super) fn comes_to_room(&mut self, id: Id) {
        let Some(connected) = self.sockets.get_mut(id).and_then(Slot::connected_mut) else { return };
        if connected.claim.room != self.arriving {
            self.rooms.release(&connected.claim);
            connected.claim = Claim { room: self.arriving, ..Claim::default() };
        }
    }
}
