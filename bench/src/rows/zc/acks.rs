//! A link with the cheapest peer there is: it answers SYN by SYN-ACK, and each packet with bytes by an ACK, and has freed them by then.

use onecopy::advanced::chain::{Chain, Checksum};
use onecopy::advanced::link::{Capabilities, Link, Packet};
use onecopy::advanced::notify::{Fate, Segment};
use onecopy_inet::wire::{Flags, Ipv4, Protocol, Seq, Tcp, checksum};

use super::ends::{PEER, US, capabilities};

/// By how many bits its window is shifted.
const SHIFT: u8 = 7;

pub struct Acks {
    window: u16,
    /// What the stack's next packet is answered with: one ACK for all that was transmitted since.
    answer: Option<Tcp>,
    next: Seq,
}

impl Acks {
    /// With a window of so many bytes.
    pub fn new(window: u32) -> Acks {
        Acks { window: u16::try_from(window >> SHIFT).unwrap_or(u16::MAX), answer: None, next: Seq(0) }
    }
}

impl Link for Acks {
    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn room(&self, _: u64) -> usize {
        usize::MAX
    }

    fn transmit(&mut self, _: u64, packet: Packet) {
        let parsed = packet.head().get(Ipv4::LEN..).and_then(|tcp| Some(Tcp::parse(tcp).ok()?.0));
        let len = packet.payload().payload().len() as u32;
        packet.free(Fate::Sent);
        let Some(tcp) = parsed else { return };
        let mut answer =
            Tcp { from: tcp.to, to: tcp.from, flags: Flags::ACK, window: self.window, ..Tcp::default() };
        if tcp.flags.contains(Flags::SYN) {
            self.next = tcp.seq.plus(1);
            answer.flags |= Flags::SYN;
            answer.window = u16::MAX;
            answer.options.mss = Some(1460);
            answer.options.window_scale = Some(SHIFT);
            answer.options.sack_permitted = true;
        } else if len > 0 {
            // Nothing is lost on the way here, so all comes in order.
            self.next = tcp.seq.plus(len);
            answer.seq = Seq(1);
        } else {
            return;
        }
        answer.ack = self.next;
        self.answer = Some(answer);
    }

    fn receive(&mut self, _: u64) -> Option<Packet> {
        let answer = self.answer.take()?;
        let mut packet = Packet::from(Segment::<Chain>::default());
        let pseudo = checksum::pseudo_v4(PEER, US, Protocol::TCP, answer.len() as u32);
        answer.write(packet.head_mut(), pseudo).ok()?;
        Ipv4::new(PEER, US, Protocol::TCP, answer.len() as u16).write(packet.head_mut()).ok()?;
        // As from a card that has looked.
        packet.set_checksum(Checksum::Verified).ok()?;
        Some(packet)
    }

    fn deadline(&self) -> Option<u64> {
        None
    }
}
