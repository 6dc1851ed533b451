//! TUN and TAP devices: a network interface of the kernel's whose other side is a descriptor (tuntap.rst; linux/if_tun.h).
//!
//! Each read(2) or write(2) of the descriptor is one packet ([`crate::spans::read_scattered`], [`crate::spans::write_gathered`]).

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::net::Ipv4Addr;

/// Where such descriptors come from.
pub const PATH: &str = "/dev/net/tun";

/// The longest name of an interface, in bytes: IFNAMSIZ without the NUL.
pub const NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// Checksums may be left to us (TUN_F_CSUM); all others need it.
pub const CHECKSUM: u32 = libc::TUN_F_CSUM;
/// TCP's super-segments over IPv4 may be given to us whole.
pub const TSO4: u32 = libc::TUN_F_TSO4;
/// Over IPv6.
pub const TSO6: u32 = libc::TUN_F_TSO6;
/// Such ones with CWR in them, too.
pub const TSO_ECN: u32 = libc::TUN_F_TSO_ECN;
/// UDP's trains of datagrams over IPv4 (Linux 6.2).
pub const USO4: u32 = libc::TUN_F_USO4;
/// Over IPv6.
pub const USO6: u32 = libc::TUN_F_USO6;

/// What [`send_buffer`] says where there is no limit (TUNSETSNDBUF was not asked for).
pub const NO_LIMIT: u32 = i32::MAX as u32;

/// What is asked of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    /// Packets begin with Ethernet's header (IFF_TAP), else with IP's (IFF_TUN).
    pub ethernet: bool,
    /// It may have more than one descriptor (IFF_MULTI_QUEUE).
    pub multi_queue: bool,
}

/// A descriptor that has no device yet. It does not wait, and is closed on exec.
///
/// # Errors
///
/// What open(2) of [`PATH`] says: ENOENT where there is none, ENODEV without the module, EACCES without the right to.
pub fn open() -> io::Result<OwnedFd> {
    rustix::fs::open(PATH, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

/// Gives it the device called `name`, which is made where there is none, in the network namespace of the thread that opened it; one number
/// may be left to the kernel (`tap%d`). Each packet has a header of virtio's in front (IFF_VNET_HDR, IFF_NO_PI). Returns the device's name.
///
/// # Errors
///
/// What TUNSETIFF says: EPERM without CAP_NET_ADMIN, for a device that is nobody's; EBUSY for one that another descriptor has; EINVAL for
/// one of another kind, or for a name that none can have.
pub fn attach(fd: impl AsFd, name: &str, kind: Kind) -> io::Result<String> {
    let mut request = request(name)?;
    let layer = if kind.ethernet { libc::IFF_TAP } else { libc::IFF_TUN };
    let queues = if kind.multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    request.ifr_ifru.ifru_flags = (layer | queues | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: the request reads and writes one `struct ifreq`, which lives through the call.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    let name = request.ifr_name.map(|c| c as u8);
    let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..len]).into_owned())
}

/// Says what may be left to us in packets that we read ([`CHECKSUM`] and its kin, TUNSETOFFLOAD). That is the device's, whoever else has a
/// descriptor of it, and outlives this one where the device does.
///
/// # Errors
///
/// EINVAL for what this kernel does not know.
pub fn set_offload(fd: impl AsFd, what: u32) -> io::Result<()> {
    // SAFETY: the request takes its argument by value.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(what)) })
}

/// Says how many bytes virtio's header has (TUNSETVNETHDRSZ); 10 at least.
///
/// # Errors
///
/// EINVAL for fewer.
pub fn set_header_len(fd: impl AsFd, len: u32) -> io::Result<()> {
    let len = libc::c_int::try_from(len).map_err(|_| Errno::INVAL)?;
    // SAFETY: the request reads one int, which lives through the call.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) })
}

/// Bytes of packets that were written and that the kernel is not through with, from which on it takes none (TUNGETSNDBUF). That is the device's.
///
/// # Errors
///
/// EBADFD where there is no device.
pub fn send_buffer(fd: impl AsFd) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int, which lives through the call.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TUNGETSNDBUF, &raw mut bytes) })?;
    u32::try_from(bytes).map_err(|_| Errno::RANGE)
}

/// The MTU of an interface of this thread's network namespace, in bytes.
///
/// # Errors
///
/// What SIOCGIFMTU says: ENODEV where there is none of that name.
pub fn mtu(name: &str) -> io::Result<u32> {
    let mut request = request(name)?;
    let socket = socket()?;
    // SAFETY: the request reads and writes one `struct ifreq`, which lives through the call, and fills in the union's int.
    let mtu = unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request))?;
        request.ifr_ifru.ifru_mtu
    };
    u32::try_from(mtu).map_err(|_| Errno::RANGE)
}

/// Changes it.
///
/// # Errors
///
/// What SIOCSIFMTU says: ENODEV, EPERM without CAP_NET_ADMIN, EINVAL for what the device does not take.
pub fn set_mtu(name: &str, mtu: u32) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_mtu = libc::c_int::try_from(mtu).map_err(|_| Errno::INVAL)?;
    let socket = socket()?;
    // SAFETY: the request reads one `struct ifreq`, which lives through the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFMTU as _, &raw mut request) })
}

/// Gives an interface of this thread's network namespace an address, and with it the route to its network; an IPv4 address that it had is
/// gone.
///
/// # Errors
///
/// What SIOCSIFADDR and SIOCSIFNETMASK say: ENODEV, EPERM without CAP_NET_ADMIN; EINVAL for an address that no host can have, or more than
/// 32 bits of a network.
pub fn set_address(name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    if prefix > 32 {
        return Err(Errno::INVAL);
    }
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    let socket = socket()?;
    for (call, address) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, Ipv4Addr::from_bits(mask))] {
        let mut request = request(name)?;
        let there = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: address.to_bits().to_be() },
            sin_zero: [0; 8],
        };
        // SAFETY: both are plain numbers in 16 bytes; the family says which of the two it is.
        request.ifr_ifru.ifru_addr =
            unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(there) };
        // SAFETY: the request reads one `struct ifreq`, which lives through the call.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), call as _, &raw mut request) })?;
    }
    Ok(())
}

/// Sets an interface of this thread's network namespace up.
///
/// # Errors
///
/// What SIOCSIFFLAGS says: ENODEV, EPERM without CAP_NET_ADMIN.
pub fn set_up(name: &str) -> io::Result<()> {
    let mut request = request(name)?;
    let socket = socket()?;
    // SAFETY: the requests read and write one `struct ifreq`, which lives through the calls; the first fills in the union's flags.
    unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut request))?;
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw mut request))
    }
}

pub(crate) fn request(name: &str) -> io::Result<libc::ifreq> {
    if name.is_empty() || name.len() > NAME_MAX || name.bytes().any(|byte| byte == 0) {
        return Err(Errno::INVAL);
    }
    // SAFETY: all zeroes is a valid ifreq: names of no bytes, and a union of plain numbers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = byte as libc::c_char;
    }
    Ok(request)
}

/// One to ask about interfaces.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

pub(crate) fn check(returned: libc::c_int) -> io::Result<()> {
    match returned {
        0.. => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_interface_can_have() {
        for name in ["", "sixteen-letters-", "a\0b"] {
            assert_eq!(mtu(name), Err(Errno::INVAL), "{name:?}");
            assert_eq!(set_mtu(name, 1500), Err(Errno::INVAL), "{name:?}");
            assert_eq!(set_up(name), Err(Errno::INVAL), "{name:?}");
        }
        assert_eq!(mtu("no-such-device"), Err(Errno::NODEV));
        assert_eq!(set_up("no-such-device"), Err(Errno::NODEV));
        assert_eq!(set_address("lo", Ipv4Addr::LOCALHOST, 33), Err(Errno::INVAL));
        assert_eq!(mtu("lo").is_ok(), std::path::Path::new("/sys/class/net/lo").exists());
    }

    #[test]
    fn what_is_no_device_takes_no_device_calls() {
        let file = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()).unwrap();
        let kind = Kind { ethernet: true, multi_queue: false };
        assert_eq!(attach(&file, "none", kind), Err(Errno::NOTTY));
        assert_eq!(set_offload(&file, CHECKSUM), Err(Errno::NOTTY));
        assert_eq!(set_header_len(&file, 10), Err(Errno::NOTTY));
        assert_eq!(set_header_len(&file, u32::MAX), Err(Errno::INVAL));
        assert_eq!(send_buffer(&file), Err(Errno::NOTTY));
    }
}
