//! Packets as a stack makes them, and an eye that checks what arrives, each written for itself.

use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Checksum, Sum, Writer};
use onecopy_link::{Gso, Packet, Train};
use onecopy_pool::{PagePool, PoolConfig, provider::Heap};
use onecopy_testing::internet_sum;

pub const ETHERNET: usize = 14;

pub fn pool() -> PagePool {
    PagePool::new(PoolConfig::new(), Heap::new()).unwrap()
}

pub fn chain(pool: &PagePool, bytes: &[u8]) -> Chain {
    let mut chain = Chain::new();
    Writer::new(pool).append(&mut chain, bytes).unwrap();
    chain
}

/// What a packet's headers say.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub v4: bool,
    pub train: Train,
    pub seq: u32,
    pub flags: u8,
    pub id: u16,
    pub options: usize,
}

pub const TCP: Frame = Frame { v4: true, train: Train::Tcp, seq: 1, flags: 0x10, id: 1, options: 12 };

impl Frame {
    fn transport(&self) -> usize {
        ETHERNET + if self.v4 { 20 } else { 40 }
    }

    fn transport_len(&self) -> usize {
        match self.train {
            Train::Tcp => 20 + self.options,
            Train::Udp => 8,
        }
    }

    pub fn head_len(&self) -> usize {
        self.transport() + self.transport_len()
    }

    fn protocol(&self) -> u8 {
        match self.train {
            Train::Tcp => 6,
            Train::Udp => 17,
        }
    }

    /// The pseudo-header (RFC 9293, section 3.1; RFC 8200, section 8.1).
    fn pseudo(&self, ip: &[u8], len: usize) -> Vec<u8> {
        let mut pseudo = if self.v4 { ip[12..20].to_vec() } else { ip[8..40].to_vec() };
        pseudo.extend((len as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, self.protocol()]);
        pseudo
    }

    fn head(&self, payload: usize) -> Vec<u8> {
        let mut head = vec![0xee; ETHERNET];
        let len = self.transport_len() + payload;
        let ip = if self.v4 {
            let mut ip =
                vec![0x45, 0x02, 0, 0, 0, 0, 0x40, 0, 64, self.protocol(), 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
            ip[2..4].copy_from_slice(&((20 + len) as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&self.id.to_be_bytes());
            let sum = !internet_sum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            ip
        } else {
            let mut ip = vec![0x60, 0x20, 0, 0, 0, 0, self.protocol(), 64];
            ip[4..6].copy_from_slice(&(len as u16).to_be_bytes());
            ip.extend([0xfd; 31]);
            ip.push(1);
            ip
        };
        let mut transport = match self.train {
            Train::Tcp => {
                let mut tcp = vec![0x12, 0x34, 0x56, 0x78];
                tcp.extend(self.seq.to_be_bytes());
                tcp.extend([
                    0,
                    0,
                    0,
                    9,
                    ((20 + self.options) as u8 / 4) << 4,
                    self.flags,
                    0x10,
                    0,
                    0,
                    0,
                    0,
                    0,
                ]);
                tcp.extend(std::iter::repeat_n(1, self.options));
                tcp
            }
            Train::Udp => {
                let mut udp = vec![0x12, 0x34, 0x56, 0x78];
                udp.extend((len as u16).to_be_bytes());
                udp.extend([0, 0]);
                udp
            }
        };
        let field = self.field();
        transport[field..field + 2].copy_from_slice(&internet_sum(&self.pseudo(&ip, len)).to_be_bytes());
        head.extend(ip);
        head.extend(transport);
        head
    }

    fn field(&self) -> usize {
        match self.train {
            Train::Tcp => 16,
            Train::Udp => 6,
        }
    }

    /// With a checksum to be finished, and to be cut to `size` bytes each if that is not 0.
    pub fn packet(&self, payload: impl Into<Segment<Chain>>, size: u16) -> Packet {
        let payload = payload.into();
        let mut packet = Packet::new(&self.head(payload.payload().len()), payload).unwrap();
        let start = self.transport() as u16;
        packet.set_checksum(Checksum::Partial { start, offset: self.field() as u16 }).unwrap();
        let gso = Gso { train: self.train, size, network: ETHERNET as u8 };
        packet.set_gso((size > 0).then_some(gso));
        packet
    }

    /// Looks at all that a receiver could: lengths, both checksums. What the packet says, and its payload.
    pub fn read(packet: &Packet) -> Option<(Frame, Vec<u8>)> {
        let bytes = packet.to_vec().unwrap();
        let ip = bytes.get(ETHERNET..)?;
        let v4 = match ip.first()? >> 4 {
            4 => true,
            6 => false,
            _ => return None,
        };
        let (header, len) = if v4 {
            let header = usize::from(ip[0] & 15) * 4;
            if header < 20 || internet_sum(ip.get(..header)?) != 0xffff {
                return None;
            }
            (header, usize::from(u16::from_be_bytes([ip[2], ip[3]])).checked_sub(header)?)
        } else {
            (40, usize::from(u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?])))
        };
        let train = match ip.get(if v4 { 9 } else { 6 })? {
            6 => Train::Tcp,
            17 => Train::Udp,
            _ => return None,
        };
        let transport = ip.get(header..)?;
        if transport.len() != len || header > ip.len() {
            return None;
        }
        let mut frame = Frame { v4, train, seq: 0, flags: 0, id: 0, options: 0 };
        if v4 {
            frame.id = u16::from_be_bytes([ip[4], ip[5]]);
        }
        let mut whole = frame.pseudo(ip, len);
        whole.extend(transport);
        if internet_sum(&whole) != 0xffff {
            return None;
        }
        let payload = match train {
            Train::Udp => {
                let said = usize::from(u16::from_be_bytes([*transport.get(4)?, *transport.get(5)?]));
                (said == len).then_some(8)?
            }
            Train::Tcp => {
                let header = usize::from(transport.get(12)? >> 4) * 4;
                frame.options = header.checked_sub(20)?;
                frame.seq = u32::from_be_bytes(transport.get(4..8)?.try_into().ok()?);
                frame.flags = transport[13];
                header
            }
        };
        Some((frame, transport.get(payload..)?.to_vec()))
    }
}

/// The sum that the packet knows is that of its bytes.
pub fn is_summed_right(packet: &Packet, from: usize) -> bool {
    let bytes = packet.to_vec().unwrap();
    packet.sum(from).unwrap() == Sum::new(internet_sum(&bytes[from..]))
}
