//! Datagrams out.

use super::super::Stack;
use super::super::demux::Place;
use super::super::slab::Id;
use super::super::socket::Slot;
use super::Attached;
use crate::ip::{self, Interface, Reason};
use crate::udp::{Envelope, Error, MAX_LEN, MAX_SEGMENTS};
use crate::wire::checksum::{leave_unfinished, pseudo};
use crate::wire::{Ip, Protocol, Udp};
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Kind, Writer};
use onecopy_link::{Gso, Packet, Train};
use onecopy_pool::Pages;
use std::net::IpAddr;

/// How a datagram goes, when all is known of it.
struct Way {
    from: Place,
    to: Place,
    /// A train's.
    size: Option<u16>,
    /// IP cuts it to fragments.
    in_parts: bool,
    service: u8,
    ttl: u8,
    dont_fragment: bool,
}

/// From which address it goes to `to`.
pub(super) fn source(
    ip: &Interface,
    attached: &Attached,
    to: IpAddr,
    asked: Option<IpAddr>,
) -> Result<IpAddr, Error> {
    let own = attached.local().or(attached.asked).map(|local| local.ip);
    if own.into_iter().chain(asked).any(|own| own.is_ipv4() != to.is_ipv4()) {
        return Err(Error::AddressFamily);
    }
    let all = ip.is_broadcast(to);
    if all && !attached.socket.settings.broadcast {
        return Err(Error::Access);
    }
    // There are no groups.
    if !all && !ip.is_local(to) && !ip::is_host(to) {
        return Err(Error::NetUnreachable);
    }
    let bound = attached.local().map(|local| local.ip).filter(|local| ip.is_local(*local));
    let routed = ip.source(to).or_else(|| if all { ip.first_like(to) } else { None });
    let routed = routed.ok_or(Error::NetUnreachable)?;
    match asked.or(bound) {
        Some(from) if !ip.is_local(from) || from.is_loopback() && !ip.is_local(to) => Err(Error::Invalid),
        from => Ok(from.unwrap_or(routed)),
    }
}

impl Stack {
    /// Sends `data` as one datagram, or as a train of them, by reference: all of it, and then `data` is empty; how many bytes.
    ///
    /// Sent is what left this stack's hands, or waits for the link or the neighbour: whether it arrives nobody knows.
    ///
    /// # Errors
    ///
    /// What a complaint said of an earlier one, once, or why this cannot be sent: `data` is as it was then, but where packets of it that
    /// the link had to be cut for were dropped after all ([`ip::Stats`] says why). After [`Error::WouldBlock`] an event tells when there
    /// is room.
    pub fn udp_send(
        &mut self,
        now: u64,
        id: Id,
        data: &mut Segment<Chain>,
        envelope: &Envelope,
    ) -> Result<usize, Error> {
        let payload = data.payload();
        let way = self.way(now, id, payload.len(), envelope)?;
        let link = self.ip.capabilities();
        let leaves = !self.ip.is_local(way.to.ip);
        let device = payload.kind() == Some(Kind::Device);
        let refused = if !leaves {
            None
        } else if device && (way.in_parts || !(link.unreadable && link.checksum)) {
            Some(Error::DeviceMemory)
        } else if way.size.is_none() && !way.in_parts && payload.fragment_count() > link.fragments {
            Some(Error::TooLong)
        } else {
            None
        };
        if let Some(error) = refused {
            self.udp.stats.refused += 1;
            return Err(error);
        }
        self.launch(now, &way, std::mem::take(data))
    }

    /// As [`Stack::udp_send`], of a copy in pages that `writer` has.
    ///
    /// # Errors
    ///
    /// The same, and [`Error::NoMemory`] where there is no page: it waits then, as for room, until packets have left, or [`Stack::pages_came`].
    pub fn udp_send_bytes<A: Pages + ?Sized>(
        &mut self,
        now: u64,
        id: Id,
        bytes: &[u8],
        writer: &Writer<'_, A>,
        envelope: &Envelope,
    ) -> Result<usize, Error> {
        self.udp_send_slices(now, id, std::iter::once(bytes), writer, envelope)
    }

    /// As [`Stack::udp_send_bytes`], of several slices, one after the other, as one datagram or one train.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn udp_send_slices<'a, A: Pages + ?Sized>(
        &mut self,
        now: u64,
        id: Id,
        slices: impl Iterator<Item = &'a [u8]> + Clone,
        writer: &Writer<'_, A>,
        envelope: &Envelope,
    ) -> Result<usize, Error> {
        let len = slices.clone().fold(0, |len: usize, slice| len.saturating_add(slice.len()));
        let way = self.way(now, id, len, envelope)?;
        let mut chain = Chain::new();
        for slice in slices {
            if writer.append(&mut chain, slice).is_err() {
                self.udp.stats.refused += 1;
                if let Some(attached) = self.sockets.get_mut(id).and_then(Slot::udp_mut) {
                    self.udp.wait_for_room(id, attached);
                }
                return Err(Error::NoMemory);
            }
        }
        self.launch(now, &way, Segment::new(chain))
    }

    /// Finds out how `len` bytes go; who has no port gets one.
    fn way(&mut self, now: u64, id: Id, len: usize, envelope: &Envelope) -> Result<Way, Error> {
        let attached = self.sockets.get_mut(id).and_then(Slot::udp_mut).ok_or(Error::NoSuchSocket)?;
        let mut find = || {
            if let Some(error) = attached.socket.take_error() {
                return Err(error);
            }
            let to = envelope.to.map(Place::from).or(attached.remote).ok_or(Error::NoAddress)?;
            if to.port == 0 {
                return Err(Error::Invalid);
            }
            let from = source(&self.ip, attached, to.ip, envelope.source)?;
            let gso = envelope.gso.unwrap_or(attached.socket.settings.gso);
            let each = if gso == 0 { len } else { len.min(gso.into()) };
            let in_parts = Ip::header_len(to.ip) + Udp::LEN + each > self.ip.mtu_to(now, to.ip) as usize;
            // A train's are not cut again; others are where they may be.
            if len > MAX_LEN || in_parts && (attached.socket.settings.dont_fragment || each < len) {
                return Err(Error::TooLong);
            }
            if each < len && len > each * MAX_SEGMENTS {
                return Err(Error::Invalid);
            }
            self.udp.autobind(id, attached, to.ip)?;
            let port = attached.local().ok_or(Error::AddressNotAvailable)?.port;
            let settings = &attached.socket.settings;
            Ok(Way {
                from: Place { ip: from, port },
                to,
                size: (each < len).then_some(gso),
                in_parts,
                service: envelope.service.unwrap_or(settings.service),
                ttl: settings.ttl,
                dont_fragment: settings.dont_fragment,
            })
        };
        let way = find().inspect_err(|_| self.udp.stats.refused += 1)?;
        if self.ip.room() == 0 {
            self.udp.stats.no_room += 1;
            self.udp.wait_for_room(id, attached);
            return Err(Error::WouldBlock);
        }
        Ok(way)
    }

    /// Has it leave.
    fn launch(&mut self, now: u64, way: &Way, payload: Segment<Chain>) -> Result<usize, Error> {
        let len = payload.payload().len();
        let (from, to) = (way.from.ip, way.to.ip);
        // Both are within what 16 bits say.
        let sum = pseudo(from, to, Protocol::UDP, (Udp::LEN + len) as u32);
        let header = Udp { from: way.from.port, to: way.to.port, payload_len: len as u16 };
        let mut packet = Packet::from(payload);
        let written = header.write(packet.head_mut(), sum).is_ok()
            && leave_unfinished(&mut packet, 0, Udp::CHECKSUM).is_ok();
        debug_assert!(written, "a header of 8 bytes fits an empty head");
        packet.set_gso(way.size.map(|size| Gso { train: Train::Udp, size, network: 0 }));
        let about = ip::Outgoing {
            service: way.service,
            ttl: way.ttl,
            dont_fragment: way.dont_fragment,
            ..ip::Outgoing::new(from, to, Protocol::UDP)
        };
        match self.ip.output(now, &about, packet) {
            Ok(()) => {
                self.udp.stats.sent += way.size.map_or(1, |size| len.div_ceil(size.into()) as u64);
                Ok(len)
            }
            Err(ip::NotSent(reason)) => {
                self.udp.stats.refused += 1;
                Err(match reason {
                    Reason::NoRoute | Reason::BadAddress => Error::NetUnreachable,
                    Reason::TooLong | Reason::Fragments => Error::TooLong,
                    Reason::DeviceMemory => Error::DeviceMemory,
                    Reason::QueueFull => Error::NoMemory,
                    _ => Error::Invalid,
                })
            }
        }
    }
}
