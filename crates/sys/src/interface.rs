//! What a network interface of this thread's network namespace is (netdevice(7), include/uapi/linux/ethtool.h).

use crate::tun::{check, request, socket};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// ETHTOOL_GDRVINFO, ETHTOOL_STXCSUM, ETHTOOL_GTXCSUM and ETHTOOL_GCHANNELS.
const GET_DRIVER: u32 = 0x3;
const GET_TX_CHECKSUM: u32 = 0x16;
const SET_TX_CHECKSUM: u32 = 0x17;
const GET_CHANNELS: u32 = 0x3c;

/// Its number, as AF_XDP and bpf(2) want it.
///
/// # Errors
///
/// ENODEV where there is none of that name; EINVAL for a name that none can have.
pub fn index(name: &str) -> io::Result<u32> {
    request(name)?;
    rustix::net::netdevice::name_to_index(socket()?, name)
}

/// Whether it is up (IFF_UP).
///
/// # Errors
///
/// As [`index`].
pub fn is_up(name: &str) -> io::Result<bool> {
    let mut request = request(name)?;
    let socket = socket()?;
    // SAFETY: the request reads and writes one `struct ifreq`, which lives through the call, and fills in the union's flags.
    let flags = unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut request))?;
        request.ifr_ifru.ifru_flags
    };
    Ok(i32::from(flags) & libc::IFF_UP != 0)
}

/// Its hardware address; None where it has none of six bytes, or is no Ethernet's.
///
/// # Errors
///
/// As [`index`].
pub fn hardware_address(name: &str) -> io::Result<Option<[u8; 6]>> {
    let mut request = request(name)?;
    let socket = socket()?;
    // SAFETY: the request reads and writes one `struct ifreq`, which lives through the call, and fills in the union's address.
    let address = unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request))?;
        request.ifr_ifru.ifru_hwaddr
    };
    let mut bytes = [0; 6];
    bytes.iter_mut().zip(address.sa_data).for_each(|(to, from)| *to = from as u8);
    Ok((address.sa_family == libc::ARPHRD_ETHER).then_some(bytes))
}

/// Has the interface with that index pass on all multicast (PACKET_MR_ALLMULTI), or whatever address packets are to (PACKET_MR_PROMISC), as long as what is returned, or a copy
/// of it, is open: a card leaves out what nobody on this host has asked for. The socket itself receives nothing.
///
/// # Errors
///
/// EPERM without CAP_NET_RAW; EAFNOSUPPORT where the kernel has no such sockets (CONFIG_PACKET); ENODEV for no such interface.
pub fn receive_all(index: u32, whatever: bool) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    let kind = if whatever { libc::PACKET_MR_PROMISC } else { libc::PACKET_MR_ALLMULTI };
    // struct packet_mreq: mr_ifindex, mr_type, mr_alen, mr_address.
    let mut request = [0; 16];
    request[..4].copy_from_slice(&index.to_ne_bytes());
    request[4..6].copy_from_slice(&(kind as u16).to_ne_bytes());
    crate::sockopt::set_bytes(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)?;
    Ok(socket)
}

/// The name of its driver, such as `veth`.
///
/// # Errors
///
/// As [`index`]; EOPNOTSUPP where the driver does not say.
pub fn driver(name: &str) -> io::Result<String> {
    /// struct ethtool_drvinfo.
    #[repr(C)]
    struct About {
        command: u32,
        driver: [u8; 32],
        others: [u8; 160],
    }
    const _: () = assert!(size_of::<About>() == 196);
    let mut about = About { command: GET_DRIVER, driver: [0; 32], others: [0; 160] };
    // SAFETY: ETHTOOL_GDRVINFO reads and writes such a structure.
    unsafe { ethtool(name, &mut about)? };
    let len = about.driver.iter().position(|byte| *byte == 0).unwrap_or(about.driver.len());
    Ok(String::from_utf8_lossy(&about.driver[..len]).into_owned())
}

/// How many queues it receives by.
///
/// # Errors
///
/// As [`driver`].
pub fn receive_queues(name: &str) -> io::Result<u32> {
    /// struct ethtool_channels: the most, and how many there are, of those that receive, send, do else, and do both.
    #[repr(C)]
    struct Channels {
        command: u32,
        most: [u32; 4],
        receive: u32,
        send: u32,
        other: u32,
        both: u32,
    }
    let mut channels =
        Channels { command: GET_CHANNELS, most: [0; 4], receive: 0, send: 0, other: 0, both: 0 };
    // SAFETY: ETHTOOL_GCHANNELS reads and writes such a structure.
    unsafe { ethtool(name, &mut channels)? };
    Ok(channels.receive.saturating_add(channels.both))
}

/// Whether what it sends may leave without a finished checksum, which the device, or who receives it, then finishes (NETIF_F_CSUM_MASK).
///
/// # Errors
///
/// As [`driver`].
pub fn tx_checksum(name: &str) -> io::Result<bool> {
    value(name, GET_TX_CHECKSUM, 0).map(|value| value != 0)
}

/// Says so, or that it may not. Without it there is no segmentation by the device either.
///
/// # Errors
///
/// As [`driver`]; EPERM without CAP_NET_ADMIN.
pub fn set_tx_checksum(name: &str, on: bool) -> io::Result<()> {
    value(name, SET_TX_CHECKSUM, on.into()).map(drop)
}

/// A request with one number (struct ethtool_value).
fn value(name: &str, command: u32, value: u32) -> io::Result<u32> {
    #[repr(C)]
    struct Value {
        command: u32,
        value: u32,
    }
    let mut value = Value { command, value };
    // SAFETY: both requests read and write such a structure.
    unsafe { ethtool(name, &mut value)? };
    Ok(value.value)
}

/// SIOCETHTOOL.
///
/// # Safety
///
/// `command` begins with the request's number, and is the structure that this one reads and writes.
unsafe fn ethtool<T>(name: &str, command: &mut T) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_data = std::ptr::from_mut(command).cast();
    let socket = socket()?;
    // SAFETY: as the caller says; the request and what it points to live through the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) } {
        0.. => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use crate::tun;

    #[test]
    fn what_is_no_interface() {
        for (name, errno) in [("", Errno::INVAL), ("a\0b", Errno::INVAL), ("no-such-device", Errno::NODEV)] {
            assert_eq!(index(name), Err(errno), "{name:?}");
            assert_eq!(is_up(name), Err(errno), "{name:?}");
            assert_eq!(hardware_address(name), Err(errno), "{name:?}");
            assert_eq!(driver(name), Err(errno), "{name:?}");
            assert_eq!(receive_queues(name), Err(errno), "{name:?}");
            assert_eq!(set_tx_checksum(name, true), Err(errno), "{name:?}");
        }
    }

    #[test]
    fn a_tap_is_told_of_as_it_is() {
        let namespace = match Namespace::new() {
            Err(Errno::PERM) => return println!("lacking: a network namespace (root, CAP_SYS_ADMIN)"),
            namespace => namespace.unwrap(),
        };
        let told = namespace.run(|| {
            let fd = tun::open().ok()?;
            let kind = tun::Kind { ethernet: true, multi_queue: false };
            let name = tun::attach(&fd, "tap%d", kind).unwrap();
            tun::set_offload(&fd, tun::CHECKSUM).unwrap();
            assert_eq!(driver(&name).unwrap(), "tun");
            assert!(index(&name).unwrap() > 0 && !is_up(&name).unwrap());
            tun::set_up(&name).unwrap();
            assert!(is_up(&name).unwrap());
            let address = hardware_address(&name).unwrap().unwrap();
            assert_eq!(address[0] & 1, 0, "{address:?} is a group's");
            assert_eq!(hardware_address("lo"), Ok(None));
            assert!(tx_checksum(&name).unwrap());
            set_tx_checksum(&name, false).unwrap();
            assert!(!tx_checksum(&name).unwrap());
            Some(())
        });
        if told.unwrap().is_none() {
            println!("lacking: {}", tun::PATH);
        }
    }
}
