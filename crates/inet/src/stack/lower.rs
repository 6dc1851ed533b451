//! How a connection's segments become packets.

use super::demux::Ends;
use crate::ip::{self, Interface};
use crate::tcp::{Config, Context, Emit, Outgoing, Stats, Wake};
use crate::wire::checksum::{leave_unfinished, pseudo_v4};
use crate::wire::{Protocol, Tcp};
use onecopy_link::{Gso, Packet, Train};

/// What lies below one connection.
pub(super) struct Lower<'a> {
    pub ip: &'a mut Interface,
    pub ends: Ends,
    pub now: u64,
}

/// Bytes of the longest packet, and of the longest super-segment, 0 where the link cuts none; and fragments of payload that one may have.
/// `path` is what routers have said of the first one, 0 where they have not.
pub(super) fn lengths(ip: &Interface, path: u16) -> (u32, u32, usize) {
    let link = ip.capabilities();
    let mtu = if path == 0 { link.mtu } else { link.mtu.min(path.into()) };
    let whole = if link.tcp_segmentation { link.super_segment.min(u16::MAX.into()) } else { 0 };
    (mtu, whole, link.fragments)
}

/// What a call on a connection is made with; `lengths` are those of its way.
pub(super) fn context<'a>(
    now: u64,
    config: &'a Config,
    stats: &'a mut Stats,
    out: &'a mut Lower<'_>,
    (mtu, super_segment, fragments): (u32, u32, usize),
) -> Context<'a> {
    Context {
        now,
        config,
        stats,
        out,
        wake: Wake::empty(),
        news: None,
        pages: None,
        mtu,
        super_segment,
        fragments,
    }
}

impl Emit for Lower<'_> {
    fn emit(&mut self, segment: Outgoing) {
        let Outgoing { mut header, payload, cut, service, ttl } = segment;
        let (from, to) = (self.ends.local, self.ends.remote);
        (header.from, header.to) = (from.port(), to.port());
        let len = header.len() + payload.payload().len();
        let pseudo = pseudo_v4(*from.ip(), *to.ip(), Protocol::TCP, len as u32);
        let mut packet = Packet::from(payload);
        let written = header.write(packet.head_mut(), pseudo).is_ok()
            && leave_unfinished(&mut packet, 0, Tcp::CHECKSUM).is_ok();
        debug_assert!(written, "a segment's options fit its header, and that the head");
        packet.set_gso(cut.map(|size| Gso { train: Train::Tcp, size, network: 0 }));
        let about = ip::Outgoing { service, ttl, ..ip::Outgoing::new(*from.ip(), *to.ip(), Protocol::TCP) };
        // What is not sent is lost, and counted there: it will be sent again.
        let _ = self.ip.output(self.now, &about, packet);
    }
}
