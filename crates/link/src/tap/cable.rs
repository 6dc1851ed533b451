//! Two ends joined without a device: what one transmits, the other receives, through a pair of unix sockets.

use super::receive::{Pools, Receiver};
use super::stats::Stats;
use super::transmit::Transmitter;
use super::{FRAGMENTS, Offloads, Tap, TapConfig};
use crate::capabilities::{Capabilities, Medium};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use std::io;
use std::os::fd::OwnedFd;

/// Bytes that each end asks to have under way: some super-segments. (The kernel caps it by net.core.wmem_max.)
const UNDER_WAY: usize = 1 << 20;

impl Tap {
    /// Two ends of one cable, which takes no privilege: two stacks, of one process or of two, speak as two hosts do. A packet is a record
    /// (SOCK_SEQPACKET), with virtio's header before it, so super-segments go over whole and checksums are left out, as on a TAP. The
    /// kernel copies each byte twice: in and out.
    ///
    /// # Errors
    ///
    /// What socketpair(2) says; no memory for pages.
    pub fn cable(mtu: u32) -> io::Result<(Tap, Tap)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Tap::end(a, mtu)?, Tap::end(b, mtu)?))
    }

    fn end(fd: OwnedFd, mtu: u32) -> io::Result<Tap> {
        sockopt::set_socket_send_buffer_size(&fd, UNDER_WAY)?;
        let pools = Pools::new().map_err(io::Error::other)?;
        let offloads = Offloads { checksum: true, tcp: true, udp: true };
        let medium = Medium::Ethernet;
        let capabilities = Capabilities { fragments: FRAGMENTS, ..offloads.capabilities(medium, mtu) };
        let longest = medium.header_len() + mtu.max(capabilities.super_segment) as usize;
        Ok(Tap {
            receiver: Receiver::new(medium, longest, pools),
            // One by one: while one has to wait, the next one might be taken, and would overtake it.
            transmitter: Transmitter::new(capabilities, 1),
            fd,
            config: TapConfig::new("cable").mtu(mtu),
            stats: Stats::default(),
        })
    }
}
