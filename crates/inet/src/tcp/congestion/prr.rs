//! How fast to send while the window is made smaller: Proportional Rate Reduction (RFC 6937, and its successor RFC 9937).
//!
//! Where `cwnd` was cut to `ssthresh` at once, nothing could be sent for half a round trip, and then everything in a burst. Here each
//! acknowledgement lets out as many packets as bring what is in flight down to `ssthresh` in about one round trip; and where losses have
//! brought it below that, as many as were delivered, and one more while there is no further loss.

/// One reduction of the window. All figures are packets.
#[derive(Clone, Copy, Debug)]
pub struct Prr {
    /// The window before it (RecoverFS).
    before: u32,
    /// Delivered since.
    delivered: u32,
    /// Sent since.
    out: u32,
}

impl Prr {
    /// A reduction from a window of `cwnd` begins.
    pub fn new(cwnd: u32) -> Prr {
        Prr { before: cwnd.max(1), delivered: 0, out: 0 }
    }

    /// What the window is after an acknowledgement that delivered `newly_delivered` packets, by number or by SACK, and after which
    /// `newly_lost` more are taken for lost, `in_flight` are out and the window's goal is `ssthresh`. `una_advanced` says whether it
    /// acknowledged more by number. None where it delivered nothing: the window stays as it is.
    ///
    /// What it lets out is what the window has above `in_flight`. It is never nothing before the first packet was sent, so that
    /// recovery begins with a retransmission.
    #[must_use]
    pub fn step(
        &mut self,
        newly_delivered: u32,
        newly_lost: u32,
        in_flight: u32,
        ssthresh: u32,
        una_advanced: bool,
    ) -> Option<u32> {
        if newly_delivered == 0 {
            return None;
        }
        self.delivered = self.delivered.saturating_add(newly_delivered);
        let send = if in_flight > ssthresh {
            // 64 bits: the product of two windows.
            let share = (u64::from(ssthresh) * u64::from(self.delivered)).div_ceil(u64::from(self.before));
            // As many as 32 bits hold, and what was sent may be ahead of its share.
            u32::try_from(share).unwrap_or(u32::MAX).saturating_sub(self.out)
        } else {
            // Below the goal: no faster than the network delivers, but for one packet for an acknowledgement that brought good news alone.
            let good_news = una_advanced && newly_lost == 0;
            let bound = self.delivered.saturating_sub(self.out).max(newly_delivered);
            bound.saturating_add(u32::from(good_news)).min(ssthresh - in_flight)
        };
        let send = send.max(u32::from(self.out == 0));
        Some(in_flight.saturating_add(send).max(1))
    }

    /// `packets` were sent, new ones or again.
    pub fn sent(&mut self, packets: u32) {
        self.out = self.out.saturating_add(packets);
    }
}
