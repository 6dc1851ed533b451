//! Datagrams in, and what others say of ours.

use super::super::Stack;
use super::super::demux::{Ends, Place};
use super::super::slab::Id;
use super::super::socket::Slot;
use super::Attached;
use crate::ip::{Complaint, Trouble};
use crate::shard::What;
use crate::tcp::Wake;
use crate::udp::{Full, MAX_SEGMENTS, Received, meaning};
use crate::wire::icmp::Unreachable;
use crate::wire::{Ip, Udp};
use onecopy_link::{Packet, Train};

impl Stack {
    /// A datagram, or a train, has come, whose header is the packet's head.
    pub(in super::super) fn datagram(&mut self, now: u64, ip: &Ip, packet: Packet) {
        let (size, len) = (packet.gso(), packet.payload().payload().len());
        let size = match size {
            None => None,
            // One that is not longer than its parts is none.
            Some(gso) if gso.train == Train::Udp && len <= gso.size.into() => None,
            Some(gso) if gso.train == Train::Udp && len <= usize::from(gso.size) * MAX_SEGMENTS => {
                Some(gso.size)
            }
            Some(_) => return self.malformed(),
        };
        let Ok((header, ..)) = Udp::parse(packet.head()) else { return self.malformed() };
        let ends = Ends {
            local: Place { ip: ip.to(), port: header.to },
            remote: Place { ip: ip.from(), port: header.from },
        };
        if let Some(other) = self.other_of_port(header.to) {
            return self.hand(other, What::Transport(*ip, packet));
        }
        let received = |packet: Packet| Received {
            data: packet.into_parts().1,
            from: ends.remote.into(),
            to: ends.local.into(),
            size,
            service: ip.service(),
            ttl: ip.ttl(),
        };
        let count = size.map_or(1, |size| len.div_ceil(size.into()) as u64);
        self.udp.stats.arrived += count;
        if !self.ip.is_local(ends.local.ip) {
            return self.spread(ends.local, count, received(packet));
        }
        match self.udp.groups.whose(&ends) {
            Some(id) => self.deliver(id, received(packet)),
            None => {
                self.udp.stats.no_port += count;
                self.ip.complain(now, ip, packet, Unreachable::PORT);
            }
        }
    }

    /// The other stack of this host that has all sockets of a port; none, where it is this one.
    fn other_of_port(&self, port: u16) -> Option<usize> {
        self.ip.others.as_ref()?.other(|share| share.of_port(port))
    }

    fn malformed(&mut self) {
        self.udp.stats.arrived += 1;
        self.udp.stats.malformed += 1;
    }

    /// To everybody: each who listens gets it.
    fn spread(&mut self, to: Place, count: u64, received: Received) {
        let mut ids = std::mem::take(&mut self.udp.heard);
        self.udp.groups.all(to, &mut ids);
        if let Some((last, others)) = ids.split_last() {
            for id in others {
                self.udp.stats.copies += count;
                self.deliver(*id, Received { data: received.data.share(), ..received });
            }
            self.deliver(*last, received);
        } else {
            self.udp.stats.unheard += count;
        }
        ids.clear();
        self.udp.heard = ids;
    }

    /// Puts it where the program fetches it: a train whole where it was asked for, else each datagram of it.
    fn deliver(&mut self, id: Id, mut received: Received) {
        let Some(Slot::Udp(attached)) = self.sockets.get_mut(id) else { return };
        let udp = &mut self.udp;
        let limit = attached.socket.limit(&udp.config);
        // Of a train that is cut each has its part: neighbours share pages, and are fetched one after the other.
        let pages = received.data.payload().true_size() as u64;
        let len = received.data.payload().len().max(1) as u64;
        let mut any = false;
        loop {
            let left = received.datagrams();
            let cut = received.size.filter(|_| !attached.socket.settings.gro);
            let mut rest = None;
            if let Some(size) = cut {
                if received.data.payload().len() > size.into() {
                    let Ok(behind) = received.data.divide(size.into()) else {
                        udp.stats.malformed += left;
                        break;
                    };
                    rest = Some(Received { data: behind, ..received });
                }
                received.size = None;
            }
            let count = received.datagrams();
            let pages = (pages * received.data.payload().len() as u64).div_ceil(len);
            let all = (&mut udp.memory, udp.config.memory);
            match attached.socket.inbox.push(received, pages, limit, all) {
                Ok(()) => {
                    udp.stats.queued += count;
                    any = true;
                }
                // None comes in whose predecessor did not.
                Err(full) => {
                    *match full {
                        Full::Socket => &mut udp.stats.buffer_full,
                        Full::All => &mut udp.stats.no_memory,
                    } += left;
                    attached.socket.drops += left;
                    break;
                }
            }
            match rest {
                Some(rest) => received = rest,
                None => break,
            }
        }
        if any {
            Attached::wake(attached, id, Wake::READ, &mut self.events);
        }
    }

    /// A router, or the peer's host, complains about a datagram of ours. Who is connected is told; others have no way of knowing which
    /// datagram it was.
    pub(in super::super) fn datagram_complaint(&mut self, now: u64, complaint: &Complaint) {
        let ends = Ends::new(complaint.local, complaint.remote);
        if let Some(other) = self.other_of_port(ends.local.port) {
            return self.hand(other, What::Complaint(*complaint));
        }
        // What the way takes is of use to all; a stranger who makes it up has to know a port that somebody has.
        if let Trouble::TooLong { mtu } = complaint.trouble
            && self.udp.groups.whose(&ends).is_some()
        {
            self.ip.path_shrunk(now, ends.remote.ip, mtu);
        }
        let id = self.udp.groups.connected(&ends);
        let attached = id.and_then(|id| Some((id, self.sockets.get_mut(id)?.udp_mut()?)));
        let Some((id, attached)) = attached else {
            self.udp.stats.complaints_ignored += 1;
            return;
        };
        let settings = &attached.socket.settings;
        let (error, hard) = meaning(complaint.trouble);
        let told = match complaint.trouble {
            // Whoever lets routers cut has sent nothing that was too long.
            Trouble::TooLong { .. } => settings.dont_fragment,
            _ => hard || settings.all_errors,
        };
        if !told {
            self.udp.stats.complaints_ignored += 1;
            return;
        }
        self.udp.stats.complaints += 1;
        attached.socket.fail(error);
        Attached::wake(attached, id, Wake::READ | Wake::WRITE | Wake::ERROR, &mut self.events);
    }
}
