//! What is made smaller while lent bytes are under way: the peer's window, the path's MTU, the send buffer. Each send is told of once, by the ACK
//! of its last byte and not before, and then its pages are nobody else's.

use crate::hands::{Bytes, Hands, MS, header, packets, supers};
use crate::net::Net;
use onecopy_chain::notify::Fate;
use onecopy_chain::{Chain, Writer};
use onecopy_inet::ip::Cidr;
use onecopy_inet::tcp::{Error, SendFlags};
use onecopy_inet::wire::icmp::{Quoted, Unreachable};
use onecopy_inet::wire::{Icmp, Icmpv6, Ip, Ipv4, Ipv6, Protocol, checksum};
use onecopy_link::pair::{Path, Side};
use onecopy_link::{Capabilities, Packet};
use std::collections::VecDeque;
use std::net::Ipv6Addr;

/// Bytes of a send: more than a segment has, so that ACKs come in its midst.
const EACH: usize = 2000;
/// So many of them leave at once.
const AT_ONCE: usize = 6;

/// A send that is under way, or was.
struct Lent {
    /// Where it ends in the stream.
    end: u64,
    pages: Chain,
    told: bool,
}

/// Sends, and what was told of them.
struct Sends {
    hands: Hands,
    sends: Vec<Lent>,
    /// Bytes that were given, all in all.
    given: u64,
    /// What the link has, as it is on the wire: the oldest first.
    held: VecDeque<(Packet, Bytes)>,
}

impl Sends {
    /// As many are lent.
    fn new(hands: Hands, count: usize) -> Sends {
        let mut new = Sends { hands, sends: Vec::new(), given: 0, held: VecDeque::new() };
        for _ in 0..count {
            let chain = new.hands.lent(EACH);
            let pages = chain.share();
            let (_, sent, rest) = new.hands.zerocopy_of(chain, SendFlags::empty());
            assert_eq!((sent, rest.payload().len()), (Ok(EACH), 0));
            new.given += EACH as u64;
            new.sends.push(Lent { end: new.given, pages, told: false });
        }
        new.look();
        new
    }

    /// The link takes what leaves now, in packets as they are on the wire.
    fn leave(&mut self) {
        for (packet, bytes) in self.hands.leave() {
            if packet.gso().is_none() {
                self.held.push_back((packet, bytes));
                continue;
            }
            let mut at = bytes.start;
            let cut = packet.cut(|part| {
                let end = at + part.payload().payload().len() as u64;
                self.held.push_back((part, at..end));
                at = end;
            });
            cut.unwrap();
            assert_eq!(at, bytes.end);
        }
    }

    /// What is told is told once, and by the ACK of all of it, where no packet that the link holds has bytes of it; the rest is lent.
    fn look(&mut self) {
        // What the stack has made, and still has, is nobody's either.
        self.leave();
        for (number, copied, dropped) in self.hands.told() {
            assert!(!copied && !dropped, "{number}");
            let before = std::mem::replace(&mut self.sends[number as usize].told, true);
            assert!(!before, "{number} is told of twice");
        }
        let acked = self.hands.acked;
        for (number, send) in self.sends.iter().enumerate() {
            let bytes = send.end - EACH as u64..send.end;
            let held = self.held.iter().any(|(_, one)| one.start < bytes.end && bytes.start < one.end);
            let is_over = send.end <= acked && !held;
            assert_eq!(send.told, is_over, "{number} ends at {}, {acked} are acknowledged", send.end);
            let alone = send.pages.fragments().all(|fragment| fragment.page().is_unique());
            assert_eq!(alone, is_over, "{number}: its pages, {acked} are acknowledged");
        }
    }

    /// `b` gets two sends of what has left and a part of the third, and answers as `change` has it. The link holds the others.
    fn begin(&mut self, change: impl FnMut(Packet) -> Packet) {
        while self.held[0].1.start <= 2 * EACH as u64
            && let Some((packet, _)) = self.held.pop_front()
        {
            self.hands.deliver(&packet);
            packet.free(Fate::Sent);
        }
        assert!(self.held.len() > 3, "{} packets", self.held.len());
        self.look();
        assert_eq!(self.hands.acked, 0);
        // The last ACK is delayed.
        self.hands.pass_time(50 * MS);
        self.hands.answer_as(change);
        self.look();
        assert!((2 * EACH + 1..3 * EACH).contains(&(self.hands.acked as usize)), "{}", self.hands.acked);
    }

    /// What the link has is lost.
    fn lose(&mut self) {
        self.held.drain(..).for_each(|(packet, _)| packet.free(Fate::Sent));
        self.look();
    }

    /// Goes on until all is acknowledged, `b` answering as `change` has it. How many packets it took, and the length of the longest.
    fn finish(&mut self, mut change: impl FnMut(Packet) -> Packet) -> (usize, usize) {
        let (mut count, mut longest, mut waits) = (0, 0, 0);
        while self.hands.acked < self.given {
            while let Some((packet, _)) = self.held.pop_front() {
                (count, longest) = (count + 1, longest.max(packet.len()));
                self.hands.deliver(&packet);
                packet.free(Fate::Sent);
                self.look();
                self.hands.answer_as(&mut change);
                self.look();
            }
            self.hands.wait();
            self.hands.answer_as(&mut change);
            self.look();
            waits += 1;
            assert!(waits < 400, "{} of {} came", self.hands.acked, self.given);
        }
        self.lose();
        assert!(self.sends.iter().all(|send| send.told));
        (count, longest)
    }

    fn over(self) {
        drop(self.sends);
        self.hands.over();
    }
}

/// The same packet with another window, its checksum made right.
fn with_window(mut packet: Packet, window: u16) -> Packet {
    packet.finish().unwrap();
    let head = packet.head_mut();
    let tcp = header(head);
    let word = |at: usize| u32::from(u16::from_be_bytes([head[at], head[at + 1]]));
    // RFC 1624, equation 3.
    let mut sum = (!word(tcp + 16) & 0xffff) + (!word(tcp + 14) & 0xffff) + u32::from(window);
    while sum >> 16 > 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    head[tcp + 14..tcp + 16].copy_from_slice(&window.to_be_bytes());
    head[tcp + 16..tcp + 18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    packet
}

#[test]
fn a_window_that_is_taken_back_gives_no_buffer_back() {
    for of in [packets(), supers()] {
        // To nothing; to a part of what is under way; to less than a segment.
        for window in [0, 3000, 700] {
            // Windows are in bytes.
            let net = Net::with(Path::new(), 1, of, |_, config| config.tcp.window_scaling = false);
            let mut sends = Sends::new(Hands::of(net), AT_ONCE);
            sends.begin(|packet| with_window(packet, window));
            sends.lose();
            let acked = sends.hands.acked;
            assert!(acked + u64::from(window) < sends.given, "what has left lies outside of it");
            let now = sends.hands.net.now();
            let said = sends.hands.net.a.stack.tcp_info(now, sends.hands.a).unwrap().snd_wnd;
            assert_eq!(said, u32::from(window), "it was heard of");
            // Probes, and what is sent again, are lost for a while.
            for _ in 0..5 {
                sends.hands.wait();
                sends.look();
                sends.lose();
            }
            assert_eq!(sends.hands.acked, acked);
            // One of nothing opens again; the others stay as small as they are.
            sends.finish(|packet| if window == 0 { packet } else { with_window(packet, window) });
            sends.over();
        }
    }
}

/// Of a router on the way, about a packet of `a`'s: it is too long for the next link.
fn complaint(about: &Packet, mtu: u16) -> Packet {
    let quoted = &about.head()[..header(about.head()) + 8];
    let ip = Quoted::parse(quoted).unwrap().ip;
    let mut packet = Packet::default();
    packet.head_mut().push(quoted.len()).unwrap().copy_from_slice(quoted);
    match ip {
        Ip::V4(ip) => {
            let what = Icmp::Unreachable { code: Unreachable::TOO_LONG, mtu };
            what.write(packet.head_mut()).unwrap();
            checksum::leave_unfinished(&mut packet, 0, Icmp::CHECKSUM).unwrap();
            packet.finish().unwrap();
            let len = packet.len() as u16;
            Ipv4::new(ip.to, ip.from, Protocol::ICMP, len).write(packet.head_mut()).unwrap();
        }
        Ip::V6(ip) => {
            let len = (Icmpv6::LEN + quoted.len()) as u16;
            let sum = checksum::pseudo_v6(ip.to, ip.from, Protocol::ICMPV6, len.into());
            Icmpv6::TooLong { mtu: mtu.into() }.write(packet.head_mut(), sum).unwrap();
            checksum::leave_unfinished(&mut packet, 0, Icmpv6::CHECKSUM).unwrap();
            packet.finish().unwrap();
            Ipv6::new(ip.to, ip.from, Protocol::ICMPV6, len).write(packet.head_mut()).unwrap();
        }
    }
    packet
}

/// Two hosts of IPv6.
fn six(of: Capabilities) -> Net {
    let address = |number| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number);
    let mut net = Net::with(Path::new(), 1, of, |side, config| {
        let own = address(if side == Side::A { 1 } else { 2 });
        config.ip.addresses.push(Cidr::new(own, 64).unwrap());
    });
    net.server = address(2).into();
    net
}

#[test]
fn a_path_that_shrinks_gives_no_buffer_back() {
    for of in [packets(), supers()] {
        for (net, mtu) in [(Net::with(Path::new(), 1, of, |_, _| ()), 600), (six(of), 1280)] {
            let mut sends = Sends::new(Hands::of(net), AT_ONCE);
            sends.begin(|packet| packet);
            let before = sends.held.len();
            let too_long = sends.held.iter().find(|(packet, _)| packet.len() > usize::from(mtu));
            let complaint = complaint(&too_long.unwrap().0, mtu);
            let now = sends.hands.net.now();
            sends.hands.net.a.stack.receive(now, complaint);
            sends.look();
            // Those come nowhere, and what is sent again has left already.
            sends.held.drain(..before).for_each(|(packet, _)| packet.free(Fate::Sent));
            sends.look();
            let (count, longest) = sends.finish(|packet| packet);
            assert!(longest <= usize::from(mtu), "{longest} bytes, of {mtu}");
            assert!(count > before, "{count} packets, and {before} were lost");
            sends.over();
        }
    }
}

#[test]
fn a_send_buffer_that_shrinks_gives_no_buffer_back() {
    for of in [packets(), supers()] {
        let mut hands = Hands::new(of, 1);
        let set = |hands: &mut Hands, bytes| {
            let now = hands.net.now();
            hands.net.a.stack.tcp_set(now, hands.a, |settings| settings.send_buffer = Some(bytes)).unwrap();
        };
        let copy = |hands: &mut Hands, len| {
            let (now, writer) = (hands.net.now(), Writer::new(&hands.net.pool));
            hands.net.a.stack.tcp_send_bytes(now, hands.a, &vec![3; len], &writer, SendFlags::empty())
        };
        set(&mut hands, 1 << 20);
        // More than the first window takes: some are under way, some wait.
        let mut sends = Sends::new(hands, 20);
        sends.begin(|packet| packet);
        sends.lose();
        let now = sends.hands.net.now();
        assert!(sends.hands.net.a.stack.tcp_info(now, sends.hands.a).unwrap().notsent_bytes > 0);
        set(&mut sends.hands, 8192);
        sends.look();
        // A piece that is begun may be filled up, as in the kernel, and no more.
        let filled = copy(&mut sends.hands, 100_000).unwrap_or(0);
        assert!(filled < 1 << 16, "{filled} bytes");
        sends.given += filled as u64;
        assert_eq!(copy(&mut sends.hands, 1), Err(Error::WouldBlock), "it is more than full");
        sends.look();
        sends.finish(|packet| packet);
        // And as large as it was made.
        let taken = copy(&mut sends.hands, 100_000).unwrap();
        assert!(taken > 0 && taken < 100_000, "{taken} bytes");
        sends.over();
    }
}
