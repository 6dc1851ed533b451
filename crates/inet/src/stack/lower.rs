//! How a connection's segments become packets.

use super::demux::Ends;
use super::spare::Spare;
use crate::ip::{self, Interface, NotSent, Reason};
use crate::tcp::memory::Pressure;
use crate::tcp::{Config, Context, Emit, Outgoing, Sent, Stats, Wake};
use crate::wire::checksum::{leave_unfinished, pseudo};
use crate::wire::{Ip, Ipv4, Protocol, Tcp};
use onecopy_link::{Gso, Train};

/// What lies below one connection.
pub(super) struct Lower<'a> {
    pub ip: &'a mut Interface,
    pub ends: Ends,
    pub now: u64,
}

/// Bytes of the longest packet, and of the longest super-segment, 0 where the link cuts none; and fragments of payload that one may have.
/// To an address of ours no packet is cut. TCP knows no addresses, and counts IPv4's header in both: what IPv6's is longer by is taken off.
pub(super) fn lengths(ip: &Interface, now: u64, ends: &Ends) -> (u32, u32, usize) {
    let longer = (Ip::header_len(ends.remote.ip) - Ipv4::LEN) as u32;
    if ip.usual(ends.local.ip, ends.remote.ip).is_none() && ip.is_local(ends.remote.ip) {
        return (ip::LOCAL_MTU - longer, 0, usize::MAX);
    }
    let link = ip.capabilities();
    let mtu = ip.path_mtu(now, ends.remote.ip);
    let whole = if link.tcp_segmentation { link.super_segment.min(u16::MAX.into()) } else { 0 };
    (mtu - longer, whole.saturating_sub(longer), link.fragments)
}

/// What a call on a connection is made with; `lengths` are those of its way.
pub(super) fn context<'a>(
    now: u64,
    config: &'a Config,
    stats: &'a mut Stats,
    out: &'a mut Lower<'_>,
    pages: &'a Spare,
    (mtu, super_segment, fragments): (u32, u32, usize),
) -> Context<'a> {
    Context {
        now,
        config,
        stats,
        out,
        wake: Wake::empty(),
        heard: false,
        news: None,
        pressure: Pressure::None,
        memory_left: u64::MAX,
        memory_share: u64::MAX,
        pages: Some(pages),
        mtu,
        super_segment,
        fragments,
    }
}

impl Emit for Lower<'_> {
    fn emit(&mut self, segment: Outgoing<'_>) -> Sent {
        let Outgoing { header, mut packet, cut, service, ttl } = segment;
        let (from, to) = (self.ends.local, self.ends.remote);
        (header.from, header.to) = (from.port, to.port);
        let len = header.len() + packet.len();
        let sum = pseudo(from.ip, to.ip, Protocol::TCP, len as u32);
        let written = header.write(packet.head_mut(), sum).is_ok()
            && leave_unfinished(&mut packet, 0, Tcp::CHECKSUM).is_ok();
        debug_assert!(written, "a segment's options fit its header, and that the head");
        packet.set_gso(cut.map(|size| Gso { train: Train::Tcp, size, network: 0 }));
        let about = ip::Outgoing { service, ttl, ..ip::Outgoing::new(from.ip, to.ip, Protocol::TCP) };
        match self.ip.output(self.now, &about, packet) {
            Err(NotSent(Reason::QueueFull)) => Sent::Refused,
            // What else is not sent is lost, and counted there: it will be sent again.
            _ => Sent::Left,
        }
    }
}
