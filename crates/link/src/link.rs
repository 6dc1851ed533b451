//! What a link is.

use crate::capabilities::Capabilities;
use crate::packet::Packet;
use crate::rx::{Queues, Sorted};

/// Where packets leave, and where they arrive.
///
/// It has no clock and no thread: time is what its caller says, in nanoseconds of any steady clock, and never goes back. Whoever drives
/// it asks in this order, again and again:
///
/// 1. [`Link::receive`], until it gives none;
/// 2. [`Link::transmit`], at most as often as [`Link::room`] says; or [`Link::transmit_more`] for several, and [`Link::flush`] behind them;
/// 3. [`Link::deadline`]: when to come back at the latest. (A link with a descriptor is readable then, too.)
///
/// The payload goes by reference with what keeps its sends from completing: [`Packet::free`] says what became of it.
pub trait Link {
    /// What it takes. It may become less while the link is open, where the other side refuses what it agreed to; what was told before is
    /// taken all the same, and done by the link itself.
    fn capabilities(&self) -> Capabilities;

    /// Packets that it takes now. What is transmitted beyond that is dropped.
    fn room(&self, now_ns: u64) -> usize;

    /// Takes `packet`, and frees it once its bytes have left, saying how ([`Fate`](onecopy_chain::notify::Fate)): at that moment, if
    /// nobody else holds it, the sends that it carries bytes of complete. One that it has no room for, or does not take (too long, not
    /// among the [`Capabilities`]), is dropped, and counted.
    fn transmit(&mut self, now_ns: u64, packet: Packet);

    /// As [`Link::transmit`], where more follow at once: it may keep the packet back to have it leave with them, until [`Link::flush`]. What is transmitted
    /// otherwise leaves behind it. (The kernel's drivers know this as netdev_xmit_more().)
    fn transmit_more(&mut self, now_ns: u64, packet: Packet) {
        self.transmit(now_ns, packet);
    }

    /// Has leave what [`Link::transmit_more`] has kept back, as far as there is room for it.
    fn flush(&mut self, _now_ns: u64) {}

    /// The next packet that has arrived; `None` when there is none.
    fn receive(&mut self, now_ns: u64) -> Option<Packet>;

    /// As [`Link::receive`], for who sorts what has arrived by `queues`. A link that can puts payload that belongs in the memory of one of them
    /// there itself.
    fn receive_sorted(&mut self, now_ns: u64, queues: &mut Queues) -> Option<Sorted> {
        self.receive(now_ns).map(|packet| queues.sort(packet))
    }

    /// When [`Link::receive`] gives a packet again, or [`Link::room`] more than none; `None` when nobody knows: no packet is on its way,
    /// or only a descriptor tells.
    fn deadline(&self) -> Option<u64>;
}

impl<L: Link + ?Sized> Link for &mut L {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
    fn room(&self, now_ns: u64) -> usize {
        (**self).room(now_ns)
    }
    fn transmit(&mut self, now_ns: u64, packet: Packet) {
        (**self).transmit(now_ns, packet);
    }
    fn transmit_more(&mut self, now_ns: u64, packet: Packet) {
        (**self).transmit_more(now_ns, packet);
    }
    fn flush(&mut self, now_ns: u64) {
        (**self).flush(now_ns);
    }
    fn receive(&mut self, now_ns: u64) -> Option<Packet> {
        (**self).receive(now_ns)
    }
    fn receive_sorted(&mut self, now_ns: u64, queues: &mut Queues) -> Option<Sorted> {
        (**self).receive_sorted(now_ns, queues)
    }
    fn deadline(&self) -> Option<u64> {
        (**self).deadline()
    }
}
