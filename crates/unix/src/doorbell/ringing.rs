//! Where a doorbell is rung: one byte on the control socket, for a receiver that has armed.
//!
//! A sender that nobody shares rings after it has unlocked ([`Core::ring_if_armed`]). It rings under the lock
//! ([`Core::ring_under_lock`]) after each half ring of a long send, and before it waits for room. Where processes share the
//! sending side, whoever holds it always does, so that a killed sender's doorbell can be made up for.

use crate::control;
use crate::core::Core;
use crate::core::kind::Kind;
use crate::members::others::{PARKING, RINGING};
use onecopy_ring::{Header, Ring};
use onecopy_socket::Result;

impl Core {
    /// Rings the doorbell after a send, if the send published something. Otherwise a doorbell would be for
    /// nothing, and a peer that is gone would not even get it.
    #[inline]
    pub fn ring_after(&self, published: bool, result: Result<()>) -> Result<()> {
        if published { self.ring_if_armed().and(result) } else { result }
    }

    /// Rings the doorbell if the receiver armed it. The caller has published and unlocked, and unlocking is
    /// the full fence that this needs.
    #[inline]
    pub fn ring_if_armed(&self) -> Result<()> {
        match self.tx_ring() {
            Some(ring) if ring.header().is_armed() => self.ring_armed(ring),
            _ => Ok(()),
        }
    }

    #[inline(never)]
    fn ring_armed(&self, ring: &Ring) -> Result<()> {
        // Where processes share this side, the unlocking has rung before (`side.rs`).
        if !self.others().send() && ring.header().must_ring() {
            return self.ring_doorbell().map_err(|errno| self.send_failed(errno));
        }
        Ok(())
    }

    /// Rings the doorbell if the receiver armed it. The caller holds the sending side.
    #[inline]
    pub fn ring_under_lock(&self) -> Result<()> {
        match self.tx_ring() {
            Some(ring) if ring.header().is_armed() => self.ring_armed_under_lock(),
            _ => Ok(()),
        }
    }

    /// Rings the doorbell for a filler that the receiver can take by now, and may have met while it was under way.
    /// The caller holds the sending side.
    #[cold]
    pub fn ring_for_filler(&self) -> Result<()> {
        self.ring_expected(Header::must_ring_for_filler)
    }

    fn ring_armed_under_lock(&self) -> Result<()> {
        self.ring_expected(Header::must_ring)
    }

    fn ring_expected(&self, must_ring: impl Fn(&Header) -> bool) -> Result<()> {
        self.others().expect(RINGING);
        point!("ringing");
        let rung = match self.tx_ring() {
            Some(ring) if must_ring(ring.header()) => {
                point!("announced");
                let rung = self.ring_doorbell();
                point!("rung");
                rung.map_err(|errno| self.send_failed(errno))
            }
            _ => Ok(()),
        };
        self.others().expect(0);
        rung
    }

    /// Notes for the other members that a filler is about to be parked. The caller holds the sending side.
    pub fn doing_parking(&self) {
        if self.others().were_there() {
            let unread = onecopy_sys::socket::unread_memory(self.fd()).unwrap_or(0) as u64;
            self.others().expect(PARKING | unread << 8);
        }
    }

    /// Rings the peer's doorbell.
    pub fn ring_doorbell(&self) -> rustix::io::Result<()> {
        self.counters().doorbells.add(1);
        let rung = match self.kind() {
            Kind::Datagram => control::ring_beside(self.fd()),
            Kind::Stream | Kind::SeqPacket => control::ring(self.fd()),
        };
        if let (Some(elsewhere), Ok(())) = (self.elsewhere(), rung) {
            elsewhere.ring();
        }
        rung
    }
}
