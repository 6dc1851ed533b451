//! Packets to addresses of ours: they do not leave, but come in again, by a queue of their own (the kernel's device `lo`).
//!
//! They have no header of IP, and no checksum: nothing on the way damages them. Their payload goes by reference, so a send completes when
//! whoever received its bytes has let go of them, too.

use crate::wire::Ip;
use onecopy_link::Packet;
use std::collections::VecDeque;

/// The longest packet to an address of ours: as long as IP's header can say.
pub const LOCAL_MTU: u32 = u16::MAX as u32;

/// What has not come in again yet.
#[derive(Debug, Default)]
pub(super) struct Local {
    packets: VecDeque<(Ip, Packet)>,
    /// When the first of them was sent.
    since: u64,
}

impl Local {
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    pub fn push(&mut self, now: u64, ip: Ip, packet: Packet) {
        if self.packets.is_empty() {
            self.since = now;
        }
        self.packets.push_back((ip, packet));
    }

    pub fn pop(&mut self, now: u64) -> Option<(Ip, Packet)> {
        let first = self.packets.pop_front()?;
        self.since = now;
        Some(first)
    }

    /// When somebody is to fetch them: at once.
    pub fn deadline(&self) -> Option<u64> {
        (!self.packets.is_empty()).then_some(self.since)
    }

    pub fn rest(&mut self) {
        self.packets.shrink_to_fit();
    }
}
