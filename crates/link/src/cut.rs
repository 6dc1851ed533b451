//! Cutting a super-segment to packets, as a card does, for where none does (net/ipv4/tcp_offload.c, tcp_gso_segment; net/ipv4/udp_offload.c).

use crate::not_taken::NotTaken;
use crate::packet::{Packet, Train};
use onecopy_chain::{Checksum, Sum};

/// Bits of TCP's flags (RFC 9293, section 3.1).
const FIN_PSH: u8 = 0x01 | 0x08;
const CWR: u8 = 0x80;

/// What is the same in all packets of one super-segment, checked.
#[derive(Clone, Copy, Debug)]
struct Layout {
    train: Train,
    network: usize,
    transport: usize,
    /// Where the checksum is.
    field: usize,
    head: usize,
    size: usize,
    v4: bool,
}

impl Layout {
    /// None where a packet would be longer than its headers can say.
    fn of(packet: &Packet) -> Option<Layout> {
        let gso = packet.gso()?;
        let Checksum::Partial { start, offset } = packet.checksum() else { return None };
        let (head, network, transport) = (packet.head(), usize::from(gso.network), usize::from(start));
        let header = match gso.train {
            Train::Tcp => usize::from(head.get(transport + 12)? >> 4) * 4,
            Train::Udp => 8,
        };
        let v4 = match head.get(network)? >> 4 {
            4 => true,
            6 => false,
            _ => return None,
        };
        let least = if v4 { usize::from(head[network] & 15) * 4 } else { 40 };
        let own = match gso.train {
            Train::Tcp => (20, 16),
            Train::Udp => (8, 6),
        };
        let longest = packet.payload().payload().len().min(gso.size.into());
        let whole = least >= if v4 { 20 } else { 40 }
            && header >= own.0
            && network + least <= transport
            && transport + header == head.len()
            && usize::from(offset) == own.1
            && gso.size > 0
            && head.len() - network - if v4 { 0 } else { 40 } + longest <= usize::from(u16::MAX);
        whole.then_some(Layout {
            train: gso.train,
            network,
            transport,
            field: transport + usize::from(offset),
            head: head.len(),
            size: gso.size.into(),
            v4,
        })
    }

    /// Makes the headers of packet `number`, which has `len` bytes of payload, out of those of the whole, which has `all`.
    fn write(&self, head: &mut [u8], number: usize, len: usize, all: usize, last: bool) {
        let word = |head: &[u8], at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let put =
            |head: &mut [u8], at: usize, value: u16| head[at..at + 2].copy_from_slice(&value.to_be_bytes());
        let transport = self.head - self.transport;
        if self.v4 {
            put(head, self.network + 2, (self.head - self.network + len) as u16);
            // Each one could be fragmented on its way (RFC 6864): no two share an id.
            let id = word(head, self.network + 4).wrapping_add(number as u16);
            put(head, self.network + 4, id);
            sum_ip(&mut head[self.network..]);
        } else {
            put(head, self.network + 4, (self.head - self.network - 40 + len) as u16);
        }
        // The pseudo-header's sum has the length in it.
        let length = |payload: usize| Sum::of(&((transport + payload) as u32).to_be_bytes());
        let pseudo = Sum::new(word(head, self.field)).changed(length(all), length(len), 0);
        put(head, self.field, pseudo.folded());
        match self.train {
            Train::Udp => put(head, self.transport + 4, (8 + len) as u16),
            Train::Tcp => {
                let at = self.transport + 4;
                let first = u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
                let seq = first.wrapping_add((number * self.size) as u32);
                head[at..at + 4].copy_from_slice(&seq.to_be_bytes());
                let flags = &mut head[self.transport + 13];
                *flags &= if last { 0xff } else { !FIN_PSH };
                *flags &= if number == 0 { 0xff } else { !CWR };
            }
        }
    }
}

/// Writes the checksum of an IPv4 header (RFC 791), which `header` begins with, whole.
pub(crate) fn sum_ip(header: &mut [u8]) {
    let len = usize::from(header[0] & 15) * 4;
    header[10..12].fill(0);
    let sum = Sum::of(&header[..len]).checksum();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

impl Packet {
    /// Cuts a super-segment: gives each packet to `each`, with headers of its own, its part of the payload by reference, and its checksum
    /// still to be finished. A packet that is none is given as it is.
    ///
    /// # Errors
    ///
    /// The packet, and [`NotTaken::Malformed`], where the headers are not what it says.
    pub fn cut(mut self, mut each: impl FnMut(Packet)) -> Result<(), (Packet, NotTaken)> {
        if self.gso().is_none() {
            each(self);
            return Ok(());
        }
        let Some(layout) = Layout::of(&self) else { return Err((self, NotTaken::Malformed)) };
        let all = self.payload().payload().len();
        // A checksum that is to be finished is the packet's, and a cut of the payload none of its matter.
        if matches!(self.payload().payload().checksum(), Checksum::Partial { .. }) {
            return Err((self, NotTaken::Malformed));
        }
        self.set_gso(None);
        let (head, checksum) = (self.head().clone(), self.checksum());
        let (_, mut rest) = self.into_parts();
        for number in 0.. {
            let left = rest.payload().len();
            let last = left <= layout.size;
            let len = left.min(layout.size);
            let behind = match last {
                true => Default::default(),
                // Nothing is in the way of it: this was looked at above.
                false => rest.divide(len).unwrap_or_default(),
            };
            let mut packet = Packet::from(std::mem::replace(&mut rest, behind));
            *packet.head_mut() = head.clone();
            layout.write(packet.head_mut(), number, len, all, last);
            let placed = packet.set_checksum(checksum);
            debug_assert!(placed.is_ok(), "the field is in the head");
            each(packet);
            if last {
                break;
            }
        }
        Ok(())
    }
}
