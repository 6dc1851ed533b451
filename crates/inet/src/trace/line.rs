//! A packet's line.

use super::relative::Connections;
use super::seen::{Seen, Way};
use super::tcp::{Segment, relative};
use crate::wire::arp::Operation;
use crate::wire::icmp::{Quoted, Unreachable};
use crate::wire::ipv6::{Fragment, Stopped, walk};
use crate::wire::{
    Arp, Ecn, EtherType, Ethernet, Icmp, Icmpv6, Ip, Ipv4, Ipv6, Malformed, Ndp, Protocol, Seq, Tcp, Udp,
};
use onecopy_link::Medium;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

/// Makes lines of packets. It knows where the numbers of each connection began, of the latest 1024.
#[derive(Clone, Debug)]
pub struct Tracer {
    /// None where numbers are written as they are.
    connections: Option<Connections>,
}

impl Default for Tracer {
    fn default() -> Tracer {
        Tracer::new()
    }
}

impl Tracer {
    /// Sequence numbers count from each connection's SYN, or from the first segment that is seen, whose first byte is number 1 then. A reset
    /// to a connection that is not known keeps its own.
    pub fn new() -> Tracer {
        Tracer { connections: Some(Connections::default()) }
    }

    /// Sequence numbers are written as they are.
    pub fn absolute() -> Tracer {
        Tracer { connections: None }
    }

    /// Learns from a packet where its connection's numbers begin, and says nothing.
    pub fn learn(&mut self, seen: &Seen) {
        let Some(connections) = &mut self.connections else { return };
        let ip = match seen.medium() {
            Medium::Ip => seen.front(),
            Medium::Ethernet => match Ethernet::parse(seen.front()) {
                Ok((Ethernet { kind: EtherType::IPV4 | EtherType::IPV6, .. }, rest)) => rest,
                _ => return,
            },
        };
        if let Ok((ip, rest)) = Ip::parse_quoted(ip)
            && ip.protocol() == Protocol::TCP
            && let Ok((tcp, _)) = Tcp::parse(rest)
        {
            connections.of(SocketAddr::new(ip.from(), tcp.from), SocketAddr::new(ip.to(), tcp.to), &tcp);
        }
    }

    /// What a packet says, without an end of line.
    pub fn line(&mut self, seen: &Seen) -> String {
        let mut line = Line { tracer: self, seen, out: String::new(), notes: Vec::new() };
        line.write();
        let Line { mut out, notes, .. } = line;
        if !notes.is_empty() {
            out.push_str(" (");
            out.push_str(&notes.join(", "));
            out.push(')');
        }
        out
    }
}

/// A line that is being written. (A string takes whatever is written to it.)
struct Line<'a> {
    tracer: &'a mut Tracer,
    seen: &'a Seen,
    out: String,
    notes: Vec<String>,
}

macro_rules! say {
    ($line:expr, $($what:tt)*) => { let _ = write!($line.out, $($what)*); };
}

impl Line<'_> {
    fn write(&mut self) {
        let (seconds, ns) = (self.seen.at_ns() / 1_000_000_000, self.seen.at_ns() % 1_000_000_000);
        let way = match self.seen.way() {
            Way::Out => '>',
            Way::In => '<',
        };
        say!(self, "{seconds}.{:06} {way} ", ns / 1000);
        let front = self.seen.front();
        match self.seen.medium() {
            Medium::Ip => match front.first().map(|first| first >> 4) {
                Some(4) => self.ipv4(front, self.seen.packet_len()),
                Some(6) => self.ipv6(front, self.seen.packet_len()),
                Some(version) => say_version(&mut self.out, version, self.seen.packet_len()),
                None => self.out.push_str("[|ip]"),
            },
            Medium::Ethernet => self.ethernet(front),
        }
        if let Some(gso) = self.seen.gso() {
            self.notes.push(format!("gso {}", gso.size));
        }
        if self.seen.is_unreadable() {
            self.notes.push("unreadable".into());
        }
    }

    fn ethernet(&mut self, bytes: &[u8]) {
        let Ok((ethernet, rest)) = Ethernet::parse(bytes) else {
            say!(self, "[|ether], length {}", self.seen.packet_len());
            return;
        };
        let len = self.seen.packet_len().saturating_sub(Ethernet::LEN);
        match ethernet.kind {
            EtherType::IPV4 => self.ipv4(rest, len),
            EtherType::IPV6 => self.ipv6(rest, len),
            EtherType::ARP => self.arp(rest, len),
            EtherType(kind) => {
                say!(self, "{} > {}, ethertype {kind:#06x}, length {len}", ethernet.from, ethernet.to);
            }
        }
    }

    fn ipv6(&mut self, bytes: &[u8], len: usize) {
        let (mut ip, _) = match Ipv6::parse(bytes) {
            Ok(parsed) => parsed,
            Err(why) => {
                let what = bad(why, "ip6");
                say!(self, "IP6, {what}, length {len}");
                return;
            }
        };
        let behind = len.saturating_sub(Ipv6::LEN);
        let said = self.said(ip.payload_len, behind);
        let whole = bytes.get(..Ipv6::LEN + said).unwrap_or(bytes);
        let found = match walk(&ip, whole) {
            Ok(found) => found,
            Err(stopped) => {
                let what = if stopped == Stopped::Short { "[|ip6]" } else { "[bad ip6 extension]" };
                say!(self, "{} > {}: {what}, length {said}", ip.from, ip.to);
                return;
            }
        };
        ip.protocol = found.protocol;
        let said = (Ipv6::LEN + said).saturating_sub(found.at);
        let first = found.fragment.is_none_or(|fragment| fragment.offset == 0);
        if let Some(Fragment { offset, more, id }) = found.fragment {
            let more = if more { "+" } else { "" };
            self.notes.push(format!("fragment {said}@{offset}{more}, id {id}"));
        }
        let rest = whole.get(found.at..).unwrap_or_default();
        self.transport(&Ip::V6(ip), rest, said, first, found.fragment.is_some());
    }

    /// How many bytes a header says that there are behind it, of which `behind` are.
    fn said(&mut self, payload_len: u16, behind: usize) -> usize {
        let said = match self.seen.gso() {
            // What its header can say goes up to 65535.
            Some(_) => behind,
            None => payload_len.into(),
        };
        if said > behind {
            self.notes.push(format!("{} bytes missing", said - behind));
        }
        said
    }

    fn arp(&mut self, bytes: &[u8], len: usize) {
        let arp = match Arp::parse(bytes) {
            Ok((arp, _)) => arp,
            Err(why) => {
                let what = bad(why, "arp");
                say!(self, "ARP, {what}, length {len}");
                return;
            }
        };
        let Arp { sender, target, sender_mac, .. } = arp;
        match arp.operation {
            Operation::REQUEST => {
                say!(self, "ARP, Request who-has {target} tell {sender}, length {len}");
            }
            Operation::REPLY => {
                say!(self, "ARP, Reply {sender} is-at {sender_mac}, length {len}");
            }
            Operation(other) => {
                say!(self, "ARP, operation {other} from {sender} to {target}, length {len}");
            }
        }
    }

    /// `len` bytes there are in truth, of which `bytes` are at hand.
    fn ipv4(&mut self, bytes: &[u8], len: usize) {
        let ip = match Ipv4::parse(bytes) {
            Err(Malformed::Checksum) => {
                self.notes.push("bad ip checksum".into());
                Ipv4::parse_quoted(bytes)
            }
            parsed => parsed,
        };
        let (ip, rest) = match ip {
            Ok(parsed) => parsed,
            Err(why) => {
                let what = bad(why, "ip");
                say!(self, "IP, {what}, length {len}");
                return;
            }
        };
        let behind = len.saturating_sub(Ipv4::LEN + usize::from(ip.options_len));
        let said = self.said(ip.payload_len, behind);
        // What is beyond that is the link's.
        let rest = rest.get(..said).unwrap_or(rest);
        if ip.is_fragment() {
            let more = if ip.more_fragments { "+" } else { "" };
            self.notes.push(format!("fragment {}@{}{more}, id {}", said, ip.offset, ip.id));
        }
        self.transport(&Ip::V4(ip), rest, said, ip.offset == 0, ip.is_fragment());
    }

    /// What is behind IP's header: `first`, it begins there; `part`, it is of one that was cut.
    fn transport(&mut self, ip: &Ip, rest: &[u8], said: usize, first: bool, part: bool) {
        match ip.protocol() {
            Protocol::TCP if first => self.tcp(ip, rest, said),
            Protocol::UDP if first => self.udp(ip, rest, said, part),
            Protocol::ICMP if first => self.icmp(ip, rest, said),
            Protocol::ICMPV6 if first => self.icmpv6(ip, rest, said),
            protocol => {
                say!(self, "{} > {}: {}, length {said}", ip.from(), ip.to(), Name(protocol));
            }
        }
    }

    fn tcp(&mut self, ip: &Ip, bytes: &[u8], len: usize) {
        let (tcp, rest) = match Tcp::parse(bytes) {
            Ok(parsed) => parsed,
            Err(why) => return self.not_transport(ip, bad(why, "tcp"), len),
        };
        let header = bytes.len() - rest.len();
        let options = bytes.get(Tcp::LEN..header).unwrap_or_default();
        let (from, to) = (SocketAddr::new(ip.from(), tcp.from), SocketAddr::new(ip.to(), tcp.to));
        let bases = match &mut self.tracer.connections {
            Some(connections) => connections.of(from, to, &tcp),
            None => Default::default(),
        };
        let ecn = match ip.ecn() {
            Ecn::NotEct => "",
            Ecn::Ect0 => "[ect0] ",
            Ecn::Ect1 => "[ect1] ",
            Ecn::Ce => "[ce] ",
        };
        let segment = Segment { tcp: &tcp, options, len: len.saturating_sub(header), bases };
        say!(self, "{}.{} > {}.{}: {ecn}{segment}", ip.from(), tcp.from, ip.to(), tcp.to);
    }

    fn udp(&mut self, ip: &Ip, bytes: &[u8], len: usize, part: bool) {
        let (udp, _, _) = match Udp::parse(bytes) {
            Ok(parsed) => parsed,
            Err(why) => return self.not_transport(ip, bad(why, "udp"), len),
        };
        let behind = len.saturating_sub(Udp::LEN);
        let said = match self.seen.gso() {
            Some(_) => behind,
            None => udp.payload_len.into(),
        };
        // A fragment's header counts what is in the others, too.
        if said > behind && !part {
            self.notes.push(format!("bad udp length: {behind} are there"));
        }
        say!(self, "{}.{} > {}.{}: UDP, length {said}", ip.from(), udp.from, ip.to(), udp.to);
    }

    fn not_transport(&mut self, ip: &Ip, what: String, len: usize) {
        say!(self, "{} > {}: {what}, length {len}", ip.from(), ip.to());
    }

    fn icmp(&mut self, ip: &Ip, bytes: &[u8], len: usize) {
        let (icmp, rest) = match Icmp::parse(bytes) {
            Ok(parsed) => parsed,
            Err(why) => return self.not_transport(ip, bad(why, "icmp"), len),
        };
        let quoted = icmp.quoted(rest).and_then(Result::ok);
        say!(self, "{} > {}: ICMP ", ip.from(), ip.to());
        match icmp {
            Icmp::Echo { id, seq } => {
                say!(self, "echo request, id {id}, seq {seq}");
            }
            Icmp::EchoReply { id, seq } => {
                say!(self, "echo reply, id {id}, seq {seq}");
            }
            Icmp::Unreachable { code, mtu } => self.unreachable(code, mtu, quoted.as_ref()),
            Icmp::TimeExceeded { code: 0 } => self.out.push_str("time exceeded in-transit"),
            Icmp::TimeExceeded { code: 1 } => self.out.push_str("ip reassembly time exceeded"),
            Icmp::TimeExceeded { code } => {
                say!(self, "time exceeded, code {code}");
            }
            Icmp::ParameterProblem { code, pointer } => {
                say!(self, "parameter problem - octet {pointer}, code {code}");
            }
            Icmp::Other { kind, code, .. } => {
                say!(self, "type {kind}, code {code}");
            }
        }
        say!(self, ", length {len}");
        if let Some(quoted) = quoted {
            self.quoted(&quoted);
        }
    }

    fn icmpv6(&mut self, ip: &Ip, bytes: &[u8], len: usize) {
        let (icmp, rest) = match Icmpv6::parse(bytes) {
            Ok(parsed) => parsed,
            Err(why) => return self.not_transport(ip, bad(why, "icmp6"), len),
        };
        let ndp = || Ndp::parse(rest).map_or("[|ndp]".into(), |ndp| ndp.target.to_string());
        say!(self, "{} > {}: ICMP6 ", ip.from(), ip.to());
        match icmp {
            Icmpv6::Echo { id, seq } => {
                say!(self, "echo request, id {id}, seq {seq}");
            }
            Icmpv6::EchoReply { id, seq } => {
                say!(self, "echo reply, id {id}, seq {seq}");
            }
            Icmpv6::Solicitation => {
                say!(self, "neighbor solicitation, who has {}", ndp());
            }
            Icmpv6::Advertisement { flags } => {
                let flags = ["router", "solicited", "override"]
                    .iter()
                    .enumerate()
                    .filter(|(bit, _)| flags & 0x80 >> bit != 0)
                    .map(|(_, name)| *name);
                let flags: Vec<_> = flags.collect();
                say!(self, "neighbor advertisement, tgt is {} [{}]", ndp(), flags.join(" "));
            }
            Icmpv6::TooLong { mtu } => {
                say!(self, "packet too big, mtu {mtu}");
            }
            Icmpv6::Unreachable(code) => {
                let what = match code.0 {
                    0 => "no route",
                    1 => "administratively prohibited",
                    2 => "beyond scope",
                    3 => "address",
                    4 => "port",
                    _ => "other",
                };
                say!(self, "unreachable, {what}");
            }
            Icmpv6::TimeExceeded { code: 0 } => self.out.push_str("time exceeded in-transit"),
            Icmpv6::TimeExceeded { code: 1 } => self.out.push_str("ip reassembly time exceeded"),
            Icmpv6::TimeExceeded { code } => {
                say!(self, "time exceeded, code {code}");
            }
            Icmpv6::ParameterProblem { code, pointer } => {
                say!(self, "parameter problem - octet {pointer}, code {code}");
            }
            Icmpv6::Other { kind, code, .. } => {
                say!(self, "type {kind}, code {code}");
            }
        }
        say!(self, ", length {len}");
        if icmp.is_error()
            && let Ok(quoted) = Quoted::parse(rest)
        {
            self.quoted(&quoted);
        }
    }

    fn unreachable(&mut self, code: Unreachable, mtu: u16, quoted: Option<&Quoted>) {
        let to = quoted.map_or(IpAddr::from([0, 0, 0, 0]), |quoted| quoted.ip.to());
        match (code, quoted) {
            (Unreachable::NETWORK, _) => {
                say!(self, "net {to} unreachable");
            }
            (Unreachable::HOST, _) => {
                say!(self, "host {to} unreachable");
            }
            (Unreachable::PROTOCOL, Some(Quoted { ip, .. })) => {
                say!(self, "{to} protocol {} unreachable", ip.protocol().0);
            }
            (Unreachable::PORT, Some(Quoted { ip, ports: (_, port), .. })) => {
                say!(self, "{to} {} port {port} unreachable", Name(ip.protocol()));
            }
            (Unreachable::TOO_LONG, _) => {
                say!(self, "{to} unreachable - need to frag (mtu {mtu})");
            }
            (Unreachable(code), _) => {
                say!(self, "{to} unreachable - code {code}");
            }
        }
    }

    /// Whose packet a complaint is about.
    fn quoted(&mut self, quoted: &Quoted) {
        let Quoted { ip, ports: (from, to), seq } = quoted;
        if ![Protocol::TCP, Protocol::UDP].contains(&ip.protocol()) {
            say!(self, " [{} > {}: {}]", ip.from(), ip.to(), Name(ip.protocol()));
            return;
        }
        say!(self, " [{}.{from} > {}.{to}: {}", ip.from(), ip.to(), Name(ip.protocol()));
        if ip.protocol() == Protocol::TCP {
            let ends = (SocketAddr::new(ip.from(), *from), SocketAddr::new(ip.to(), *to));
            let base = self.tracer.connections.as_ref().map(|all| all.known(ends.0, ends.1));
            say!(self, " seq {}", relative(Seq(*seq), base.unwrap_or_default()));
        }
        self.out.push(']');
    }
}

fn say_version(out: &mut String, version: u8, len: usize) {
    let _ = write!(out, "IP version {version}, length {len}");
}

/// Why a header is none.
fn bad(why: Malformed, name: &str) -> String {
    match why {
        Malformed::Short => format!("[|{name}]"),
        Malformed::Version => format!("[bad {name} version]"),
        Malformed::Length => format!("[bad {name} length]"),
        Malformed::Checksum => format!("[bad {name} checksum]"),
        Malformed::Fragment => format!("[{name} fragment]"),
    }
}

/// A protocol's name, or its number.
struct Name(Protocol);

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Protocol::TCP => f.write_str("tcp"),
            Protocol::UDP => f.write_str("udp"),
            Protocol::ICMP => f.write_str("icmp"),
            Protocol::ICMPV6 => f.write_str("icmp6"),
            Protocol(other) => write!(f, "ip-proto-{other}"),
        }
    }
}
