//! Packets to addresses of ours: they do not leave, but come in again, by a queue of their own (the kernel's device `lo`).
//!
//! They have no header of IP, and no checksum: nothing on the way damages them. Their payload goes by reference, so a send completes when
//! whoever received its bytes has let go of them, too.

use super::input::Input;
use super::interface::Interface;
use super::output::Outgoing;
use super::stats::Reason;
use crate::wire::Ip;
use onecopy_chain::Checksum;
use onecopy_chain::notify::Fate;
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

    /// When somebody is to fetch them: at once.
    pub fn deadline(&self) -> Option<u64> {
        (!self.packets.is_empty()).then_some(self.since)
    }

    pub fn rest(&mut self) {
        self.packets.shrink_to_fit();
    }
}

impl Interface {
    /// Takes a packet to an address of ours.
    pub(super) fn loop_back(&mut self, now: u64, about: &Outgoing, mut packet: Packet) -> Result<(), Reason> {
        let ip = self.header(about, packet.len(), &packet)?;
        if self.local.len() >= self.queue {
            return Err(Reason::QueueFull);
        }
        packet.set_checksum(Checksum::Verified).map_err(|_| Reason::Malformed)?;
        packet.set_fate(Fate::Sent);
        if self.local.packets.is_empty() {
            self.local.since = now;
        }
        self.local.packets.push_back((ip, packet));
        Ok(())
    }

    /// Packets that were sent to addresses of ours, and have not come in again.
    pub fn looped(&self) -> usize {
        self.local.len()
    }

    /// The next one of them comes in: as [`Interface::input`] has one that came from the link. Whoever drives it takes no more at once than
    /// [`Interface::looped`] said before: each may be answered by another one.
    pub fn input_looped(&mut self, now: u64) -> Option<(Packet, Input)> {
        let (ip, mut packet) = self.local.packets.pop_front()?;
        self.local.since = now;
        self.stats.received += 1;
        self.stats.looped += 1;
        let heard = self.transport(now, ip, &mut packet, false);
        let input = self.heard(heard);
        Some((packet, input))
    }
}
