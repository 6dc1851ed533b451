//! The hosts of a scene and the link between them, and messages that the peer makes by hand.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::change::right;
use super::ends::Family;
use onecopy_conformance::tools::Dice;
use onecopy_inet::ip::{self, Cidr};
use onecopy_inet::stack::{Config, Stack};
use onecopy_inet::wire::ndp::{group_mac, solicited};
use onecopy_inet::wire::{Ethernet, Mac};
use onecopy_link::{Capabilities, Medium};

/// Who takes part. His number is the last byte of his addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    Victim = 2,
    Innocent = 3,
    Peer = 66,
}

/// What the hosts stand on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub family: Family,
    pub medium: Medium,
}

impl Link {
    pub fn of(dice: &mut Dice) -> Link {
        let family = if dice.one_in(2) { Family::V6 } else { Family::V4 };
        let medium = if dice.one_in(2) { Medium::Ethernet } else { Medium::Ip };
        Link { family, medium }
    }

    pub fn address(self, host: Host) -> IpAddr {
        match self.family {
            Family::V4 => Ipv4Addr::new(10, 0, 0, host as u8).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host as u16).into(),
        }
    }

    pub fn mac(host: Host) -> Mac {
        Mac([2, 0, 0, 0, 0, host as u8])
    }

    /// Bytes in front of IP's header.
    pub fn header(self) -> usize {
        if self.medium == Medium::Ethernet { Ethernet::LEN } else { 0 }
    }

    pub fn stack(self, host: Host, change: impl FnOnce(&mut Config)) -> Result<Stack, String> {
        let prefix = if self.family == Family::V6 { 64 } else { 24 };
        let cidr = Cidr::new(self.address(host), prefix).ok_or("no address")?;
        let seed = [host as u8; 16];
        let link = Capabilities::none(self.medium, 1500);
        let mut config = Config::new(ip::Config::new(link, Link::mac(host), &[cidr], seed), seed);
        change(&mut config);
        Stack::new(config).map_err(|e| format!("{e:?}"))
    }

    /// Whom a packet is for; none: all but who sends it.
    pub fn goes_to(self, bytes: &[u8]) -> Option<Host> {
        let hosts = [Host::Victim, Host::Innocent, Host::Peer];
        let last = match (self.medium, self.family) {
            (Medium::Ethernet, _) if bytes[0] & 1 == 0 => bytes[5],
            (Medium::Ethernet, _) => return None,
            (_, Family::V4) => bytes[19],
            (_, Family::V6) => bytes[39],
        };
        hosts.into_iter().find(|host| *host as u8 == last)
    }

    /// The link's header, and IP's, of a packet from the peer to `to` of the victim's.
    fn headers(self, to: IpAddr, protocol: u8, hops: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.medium == Medium::Ethernet {
            let mac = match to {
                IpAddr::V6(group) if group.is_multicast() => group_mac(group),
                _ => Link::mac(Host::Victim),
            };
            bytes.extend_from_slice(&mac.0);
            bytes.extend_from_slice(&Link::mac(Host::Peer).0);
        }
        match (self.address(Host::Peer), to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                bytes.extend_from_slice(&[8, 0][..self.header().min(2)]);
                bytes.extend_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, hops, protocol, 0, 0]);
                bytes.extend_from_slice(&from.octets());
                bytes.extend_from_slice(&to.octets());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                bytes.extend_from_slice(&[0x86, 0xdd][..self.header().min(2)]);
                bytes.extend_from_slice(&[0x60, 0, 0, 0, 0, 0, protocol, hops]);
                bytes.extend_from_slice(&from.octets());
                bytes.extend_from_slice(&to.octets());
            }
            _ => {}
        }
        bytes
    }

    /// A message as somebody on the link, or a router, might send it to the victim: one of ICMP, with what is in it from `sent`, packets that the victim has
    /// sent, a question or an answer about who has an address. Some are not quite what they should be.
    pub fn message(self, dice: &mut Dice, sent: &[Vec<u8>]) -> Vec<u8> {
        let (ethernet, victim) = (self.medium == Medium::Ethernet, self.address(Host::Victim));
        let quoted = match sent.len() {
            0 => vec![0; 40],
            len => sent[dice.roll() as usize % len][self.header()..].to_vec(),
        };
        let quoted = &quoted[..quoted.len().min(28 + dice.roll() as usize % 600)];
        let random = dice.roll() as u32;
        let code = if dice.one_in(2) { 0 } else { random as u8 % 16 };
        let mtu = [0, 68, 576, 1000, 1280, 1400, 1500, random as u16][dice.roll() as usize % 8];
        let numbered = [&random.to_be_bytes()[..], &vec![7; random as usize % 1400]].concat();
        let mut bytes = match victim {
            IpAddr::V4(to) if ethernet && dice.one_in(3) => return self.arp(dice, to),
            IpAddr::V4(_) => {
                let [high, low] = mtu.to_be_bytes();
                let body = match dice.roll() % 7 {
                    0 | 1 => [&[3, random as u8 % 16, 0, 0, 0, 0, high, low], quoted].concat(),
                    2 => [&[3, 4, 0, 0, 0, 0, high, low], quoted].concat(),
                    3 => [&[11, code & 1, 0, 0, 0, 0, 0, 0], quoted].concat(),
                    4 => [&[12, code, 0, 0, random as u8 % 40, 0, 0, 0], quoted].concat(),
                    5 => [&[8, 0, 0, 0], &numbered[..]].concat(),
                    _ => [&[[0, 4, 5, 9, 13, 17][random as usize % 6], code, 0, 0, 0, 0, 0, 0], quoted]
                        .concat(),
                };
                [self.headers(victim, 1, 64), body].concat()
            }
            IpAddr::V6(own) => {
                let mut to = victim;
                let mtu = u32::from(mtu).to_be_bytes();
                let body = match dice.roll() % 10 {
                    0 | 1 => [&[1, random as u8 % 8, 0, 0, 0, 0, 0, 0], quoted].concat(),
                    2 => [&[2, 0, 0, 0], &mtu[..], quoted].concat(),
                    3 => [&[3, code & 1, 0, 0, 0, 0, 0, 0], quoted].concat(),
                    4 => [&[4, code & 3, 0, 0, 0, 0, 0, random as u8 % 60], quoted].concat(),
                    5 => [&[128, 0, 0, 0], &numbered[..]].concat(),
                    6 => [
                        &[[129, 130, 131, 133, 134, 137, 143][random as usize % 7], code, 0, 0, 0, 0, 0, 0],
                        quoted,
                    ]
                    .concat(),
                    7 | 8 => {
                        if dice.one_in(2) {
                            to = solicited(own).into();
                        }
                        // A hardware address, and something that is not known.
                        let units = if dice.one_in(8) { random as u8 % 3 } else { 1 };
                        let option = [1, units, 2, 0, 0, 0, 0, Host::Peer as u8, 14, 1, 0, 0, 0, 0, 0, 0];
                        let options = &option[..8 * (random as usize % 3)];
                        [&[135, 0, 0, 0, 0, 0, 0, 0], &own.octets()[..], options].concat()
                    }
                    _ => {
                        let target = self.address(Host::Peer);
                        let IpAddr::V6(target) = target else { return Vec::new() };
                        let units = if dice.one_in(8) { random as u8 % 3 } else { 1 };
                        let option = [2, units, 2, 0, 0, 0, 0, Host::Peer as u8];
                        let options = &option[..8 * (random as usize % 2)];
                        let flags = [0x60, 0x40, 0x20, 0x80, 0][random as usize % 5];
                        [&[136, 0, 0, 0, flags, 0, 0, 0], &target.octets()[..], options].concat()
                    }
                };
                [self.headers(to, 58, if dice.one_in(8) { 64 } else { 255 }), body].concat()
            }
        };
        right(dice, &mut bytes, self.header());
        bytes
    }

    /// Who has the victim's address, or the peer has his own.
    fn arp(self, dice: &mut Dice, to: Ipv4Addr) -> Vec<u8> {
        let operation = [1, 1, 2, 2, 3][dice.roll() as usize % 5];
        let frame = if dice.one_in(2) { Mac([0xff; 6]) } else { Link::mac(Host::Victim) };
        let peer = [&Link::mac(Host::Peer).0[..], &[10, 0, 0, Host::Peer as u8]].concat();
        let rest = [&[8, 6, 0, 1, 8, 0, 6, 4, 0, operation], &peer[..], &[0; 6], &to.octets()].concat();
        [&frame.0[..], &Link::mac(Host::Peer).0, &rest].concat()
    }
}
