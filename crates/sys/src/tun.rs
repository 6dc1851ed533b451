//! Network devices that a process is the wire of (TUN; Documentation/networking/tuntap.rst).

use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Makes a device of IP packets, in the network namespace of the calling thread, which lives as long as the descriptor. Each read and each
/// write is one packet, with a `struct virtio_net_hdr` of 10 bytes before it. The device takes super-segments of TCP over IPv4, and
/// packets whose checksum is not finished.
///
/// # Errors
///
/// open's (ENOENT where there is no /dev/net/tun), and ioctl's: EPERM without CAP_NET_ADMIN, EINVAL for a name that is too long.
pub fn open(name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    // SAFETY: zeroes are a valid ifreq: numbers, addresses, and a pointer that TUNSETIFF does not read.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the kernel reads and writes one ifreq, which lives through the call.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    let offload = libc::c_ulong::from(libc::TUN_F_CSUM | libc::TUN_F_TSO4);
    // SAFETY: the argument is a number, no address.
    let taken = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETOFFLOAD as _, offload) };
    if taken < 0 { Err(io::Error::last_os_error()) } else { Ok(device) }
}
