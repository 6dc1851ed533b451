//! What is said of datagrams of UDP beside their bytes: control messages of ip(7), ipv6(7) and udp(7).

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::{self, Errno};
use rustix::net::addr::SocketAddrStorage;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny};
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// UDP_SEGMENT and UDP_GRO (include/uapi/linux/udp.h), which libc does not have for all targets.
pub const UDP_SEGMENT: i32 = 103;
/// See [`UDP_SEGMENT`].
pub const UDP_GRO: i32 = 104;

/// Bytes of room for control messages: more than all of ours take.
const ROOM: usize = 192;

/// Aligned as a control message must be.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Room([u8; ROOM]);

/// What is said of a datagram that is sent. What is none is as the socket has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The bytes are several datagrams, of so many bytes each (UDP_SEGMENT).
    pub segment: Option<u16>,
    /// The type of service (IP_TOS, IPV6_TCLASS).
    pub service: Option<u8>,
    /// From which address (IP_PKTINFO, IPV6_PKTINFO).
    pub source: Option<IpAddr>,
}

/// Control messages, as sendmsg(2) takes them.
#[derive(Clone, Copy)]
pub struct Control {
    room: Room,
    len: usize,
}

impl Control {
    /// What says `said`, on a socket of IPv6 or one of IPv4.
    ///
    /// # Errors
    ///
    /// EAFNOSUPPORT where the source is of the other family.
    pub fn new(said: &Said, ipv6: bool) -> io::Result<Control> {
        let mut control = Control { room: Room([0; ROOM]), len: 0 };
        if let Some(size) = said.segment {
            control.put(libc::SOL_UDP, UDP_SEGMENT, &size.to_ne_bytes());
        }
        if let Some(service) = said.service {
            let value = i32::from(service).to_ne_bytes();
            match ipv6 {
                true => control.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &value),
                false => control.put(libc::IPPROTO_IP, libc::IP_TOS, &value),
            }
        }
        match (said.source, ipv6) {
            (None, _) => {}
            // struct in_pktinfo: interface, ipi_spec_dst, ipi_addr.
            (Some(IpAddr::V4(source)), false) => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&source.octets());
                control.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            // struct in6_pktinfo: address, interface.
            (Some(IpAddr::V6(source)), true) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&source.octets());
                control.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
            _ => return Err(Errno::AFNOSUPPORT),
        }
        Ok(control)
    }

    fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        // struct cmsghdr: length, level, type; then the data, and all aligned to a word (cmsg(3)).
        let (before, word) = (size_of::<libc::cmsghdr>(), size_of::<usize>());
        let len = before + data.len();
        let end = self.len + len;
        let header = &mut self.room.0[self.len..][..before];
        header[..word].copy_from_slice(&len.to_ne_bytes());
        header[word..][..4].copy_from_slice(&level.to_ne_bytes());
        header[word + 4..][..4].copy_from_slice(&kind.to_ne_bytes());
        self.room.0[end - data.len()..end].copy_from_slice(data);
        self.len = end.next_multiple_of(word);
    }

    /// Its bytes, aligned as they must be.
    pub fn bytes(&self) -> &[u8] {
        &self.room.0[..self.len]
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Control({} bytes)", self.len)
    }
}

/// sendmsg(2) of one datagram, to `to` or to whom the socket is connected to, as `control` says.
///
/// # Errors
///
/// What sendmsg(2) says.
pub fn send(
    socket: impl AsFd,
    slices: &[IoSlice<'_>],
    to: Option<SocketAddr>,
    control: &Control,
    flags: SendFlags,
) -> io::Result<usize> {
    // SAFETY: all zeroes is a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    let name = to.map(SocketAddrAny::from);
    if let Some(name) = &name {
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name.addr_len();
    }
    header.msg_iov = slices.as_ptr().cast_mut().cast();
    header.msg_iovlen = slices.len() as _;
    if !control.bytes().is_empty() {
        header.msg_control = control.bytes().as_ptr().cast_mut().cast();
        header.msg_controllen = control.len as _;
    }
    // SAFETY: IoSlice has the layout of iovec (its documentation); it, the name and the control messages are only read, up to the lengths
    // given, and outlast the call.
    let sent =
        unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const header, flags.bits() as libc::c_int) };
    usize::try_from(sent).map_err(|_| last())
}

/// What one recvmsg(2) brought, and what was said of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Got {
    /// Bytes that it has, more than were copied where the buffers were too short.
    pub full: usize,
    /// Who sent it.
    pub from: Option<SocketAddr>,
    /// The address that it was sent to.
    pub to: Option<IpAddr>,
    /// It is several datagrams, of so many bytes each (UDP_GRO).
    pub segment: Option<u16>,
    /// The type of service.
    pub service: u8,
    /// Hops that were left.
    pub hops: u8,
}

/// Has `socket` say all of [`Got`]: to whom a datagram was sent, its type of service and its hops.
///
/// # Errors
///
/// What setsockopt(2) says.
pub fn tell_all(socket: impl AsFd, ipv6: bool) -> std::io::Result<()> {
    let options: [(i32, i32); 3] = match ipv6 {
        true => [
            (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
        ],
        false => [
            (libc::IPPROTO_IP, libc::IP_PKTINFO),
            (libc::IPPROTO_IP, libc::IP_RECVTOS),
            (libc::IPPROTO_IP, libc::IP_RECVTTL),
        ],
    };
    let fd = socket.as_fd();
    options.into_iter().try_for_each(|(level, option)| crate::sockopt::set_int(fd, level, option, 1))
}

/// recvmsg(2) of one datagram, or of several that came as one.
///
/// # Errors
///
/// What recvmsg(2) says.
pub fn recv(socket: impl AsFd, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> io::Result<Got> {
    // SAFETY: all zeroes is a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    let mut name = MaybeUninit::<SocketAddrStorage>::uninit();
    let mut room = Room([0; ROOM]);
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = size_of::<SocketAddrStorage>() as libc::socklen_t;
    header.msg_iov = slices.as_mut_ptr().cast();
    header.msg_iovlen = slices.len() as _;
    header.msg_control = room.0.as_mut_ptr().cast();
    header.msg_controllen = ROOM as _;
    let flags = (flags | RecvFlags::TRUNC).bits() as libc::c_int;
    // SAFETY: IoSliceMut has the layout of iovec (its documentation), and each one's bytes are borrowed mutably; name and room have the lengths
    // given; all of them outlast the call.
    let full = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, flags) };
    let mut got = Got { full: usize::try_from(full).map_err(|_| last())?, ..Got::default() };
    if header.msg_namelen as usize >= size_of::<libc::sa_family_t>() {
        let len = header.msg_namelen.min(size_of::<SocketAddrStorage>() as libc::socklen_t);
        // SAFETY: the kernel has written an address of that length there.
        let from = unsafe { SocketAddrAny::read(name.as_ptr(), len) };
        got.from = SocketAddr::try_from(from).ok();
    }
    let len = (header.msg_controllen as usize).min(ROOM);
    each(&room.0[..len], |level, kind, data| read(&mut got, level, kind, data));
    Ok(got)
}

/// Gives each control message to `with`: level, type, data.
fn each(mut room: &[u8], mut with: impl FnMut(i32, i32, &[u8])) {
    let (header, word) = (size_of::<libc::cmsghdr>(), size_of::<usize>());
    let number = |at: &[u8]| at[..4].try_into().map_or(0, i32::from_ne_bytes);
    while room.len() >= header {
        let len = room[..word].try_into().map_or(0, usize::from_ne_bytes);
        let Some(data) = room.get(header..len) else { return };
        with(number(&room[word..]), number(&room[word + 4..]), data);
        room = room.get(len.next_multiple_of(word)..).unwrap_or_default();
    }
}

fn read(got: &mut Got, level: i32, kind: i32, data: &[u8]) {
    let int = || data.get(..4).and_then(|int| int.try_into().ok()).map_or(0, i32::from_ne_bytes);
    match (level, kind) {
        (libc::SOL_UDP, UDP_GRO) => got.segment = u16::try_from(int()).ok(),
        // One byte, of IPv4 alone (ip_cmsg_recv_tos()).
        (libc::IPPROTO_IP, libc::IP_TOS) => got.service = data.first().copied().unwrap_or_default(),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => got.service = int() as u8,
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
            got.hops = int() as u8
        }
        // The address in the packet's header (ipi_addr).
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            let address = data.get(8..12).and_then(|address| <[u8; 4]>::try_from(address).ok());
            got.to = address.map(|address| Ipv4Addr::from(address).into());
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            let address = data.get(..16).and_then(|address| <[u8; 16]>::try_from(address).ok());
            got.to = address.map(|address| Ipv6Addr::from(address).into());
        }
        _ => {}
    }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    const NOTHING: Said = Said { segment: None, service: None, source: None };

    fn pair(host: &str) -> Option<(UdpSocket, UdpSocket)> {
        let bind = || UdpSocket::bind((host, 0)).ok();
        bind().zip(bind())
    }

    #[test]
    fn what_is_said_of_a_datagram_is_heard() {
        for (host, ipv6) in [("127.0.0.1", false), ("::1", true)] {
            let Some((a, b)) = pair(host) else { continue };
            tell_all(&b, ipv6).unwrap();
            let source = a.local_addr().unwrap().ip();
            let said = Said { service: Some(0x2e << 2 | 1), source: Some(source), ..NOTHING };
            let control = Control::new(&said, ipv6).unwrap();
            let to = b.local_addr().unwrap();
            assert_eq!(send(&a, &[IoSlice::new(b"hello")], Some(to), &control, SendFlags::empty()), Ok(5));
            let mut buffer = [0; 3];
            let got = recv(&b, &mut [IoSliceMut::new(&mut buffer)], RecvFlags::empty()).unwrap();
            assert_eq!((&buffer, got.full, got.from), (b"hel", 5, a.local_addr().ok()));
            assert_eq!(
                (got.to, got.service, got.hops, got.segment),
                (Some(to.ip()), 0x2e << 2 | 1, 64, None)
            );
        }
    }

    #[test]
    fn a_train_is_cut_and_arrives_whole_where_it_may() {
        let (a, b) = pair("127.0.0.1").unwrap();
        let to = Some(b.local_addr().unwrap());
        let control = Control::new(&Said { segment: Some(100), ..NOTHING }, false).unwrap();
        let send = || send(&a, &[IoSlice::new(&[7; 250])], to, &control, SendFlags::empty());
        assert_eq!(send(), Ok(250));
        let mut buffer = [0; 1000];
        for len in [100, 100, 50] {
            let got = recv(&b, &mut [IoSliceMut::new(&mut buffer)], RecvFlags::empty()).unwrap();
            assert_eq!((got.full, got.segment), (len, None));
        }
        crate::sockopt::set_int(b.as_fd(), libc::SOL_UDP, UDP_GRO, 1).unwrap();
        assert_eq!(send(), Ok(250));
        let got = recv(&b, &mut [IoSliceMut::new(&mut buffer)], RecvFlags::empty()).unwrap();
        assert_eq!((got.full, got.segment), (250, Some(100)));
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        let other = Said { source: Some(IpAddr::V6(Ipv6Addr::LOCALHOST)), ..NOTHING };
        assert_eq!(Control::new(&other, false).map(drop), Err(Errno::AFNOSUPPORT));
        let (a, _b) = pair("127.0.0.1").unwrap();
        let nothing = Control::new(&NOTHING, false).unwrap();
        let whom = send(&a, &[IoSlice::new(b"x")], None, &nothing, SendFlags::empty());
        assert_eq!(whom, Err(Errno::DESTADDRREQ));
        let strange = Said { source: Some(Ipv4Addr::new(192, 0, 2, 1).into()), ..NOTHING };
        let strange = Control::new(&strange, false).unwrap();
        let to = Some(a.local_addr().unwrap());
        assert!(send(&a, &[IoSlice::new(b"x")], to, &strange, SendFlags::empty()).is_err());
    }

    #[test]
    fn control_messages_that_are_cut_are_not_read_beyond() {
        let control =
            Control::new(&Said { segment: Some(9), service: Some(3), source: None }, false).unwrap();
        let bytes = control.bytes();
        for len in 0..=bytes.len() {
            let mut count = 0;
            each(&bytes[..len], |_, _, data| {
                assert!(data.len() <= 4);
                count += 1;
            });
            assert!(count <= 2);
        }
        // One that says that it is shorter than its own header.
        let mut wrong = [0; 32];
        wrong[0] = 3;
        each(&wrong, |_, _, _| panic!("it has no data"));
    }
}
