//! A place of their own for a connection's bytes, which is smaller than the buffer: a device's memory. The window is shut before that is full.

use super::{Is, Receiver};

/// KiB that may still be promised to the peer: each connection has one, so it is small, and no connection is promised more than 64 MiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room(u16);

const ENDLESS: u16 = u16::MAX;

impl Default for Room {
    fn default() -> Room {
        Room(ENDLESS)
    }
}

impl Receiver {
    /// Bytes that the peer may be told of beyond what has come, whatever the buffer allows; `None` for no limit. What it was told
    /// before stays.
    pub fn set_room(&mut self, bytes: Option<u64>) {
        self.room = Room(bytes.map_or(ENDLESS, |bytes| (bytes >> 10).min(u64::from(ENDLESS) - 1) as u16));
        if bytes.is_some() {
            self.windows.begin();
        }
    }

    /// Whether the last window was smaller than the buffer alone would have had it.
    pub fn wants_room(&self) -> bool {
        self.is.contains(Is::NARROWED)
    }

    /// Whether the peer may send no whole segment though the buffer has room for it: for want of room here, or as what answered its SYN said so.
    pub fn is_starved(&self) -> bool {
        let mss = self.acks.mss();
        // (Where the program does not read, more room would change nothing.)
        self.window_left() < mss && self.windows.select(self.held(), mss).0 > 0
    }

    /// The smallest room that a window is said for: a whole segment, in the units that windows and rooms are counted in.
    pub fn least_room(&self) -> u64 {
        let unit = (1_u32 << self.windows.shift()).max(1 << 10);
        u64::from(self.acks.mss().next_multiple_of(unit))
    }

    /// What of `window` there is room for. Less than a segment is none (RFC 9293, section 3.8.6.2.2): it would come in crumbs.
    pub(super) fn limit_to_room(&mut self, window: u32) -> u32 {
        let room = u32::from(self.room.0) << 10;
        let narrowed = self.room.0 != ENDLESS && window > room;
        self.is.set(Is::NARROWED, narrowed);
        if !narrowed {
            return window;
        }
        let unit = 1_u32 << self.windows.shift();
        let whole = room & !(unit - 1);
        if whole < self.acks.mss() { 0 } else { whole }
    }
}
