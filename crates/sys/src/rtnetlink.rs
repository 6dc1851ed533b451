//! Addresses of IPv6 for a network interface of this thread's network namespace (rtnetlink(7), include/uapi/linux/if_addr.h). ([`crate::tun::set_address`] has those of IPv4.)

use crate::interface;
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::net::{Ipv6Addr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// linux/netlink.h: NLM_F_REQUEST | NLM_F_ACK | NLM_F_EXCL | NLM_F_CREATE, and NLMSG_ERROR.
const MAKE: u16 = 0x605;
const ERROR: u16 = 2;
/// linux/rtnetlink.h.
const RTM_NEWADDR: u16 = 20;
/// linux/if_addr.h.
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 2;
/// Bytes of nlmsghdr, ifaddrmsg and nlattr.
const HEADER: usize = 16;
const ABOUT: usize = 8;
const ATTRIBUTE: usize = 4;
/// The kernel answers at once; an address is there a moment later.
const PATIENCE: Duration = Duration::from_secs(2);

/// Gives the interface called `name` an address more, and with it the route to its network. Nobody is asked whether he has it (RFC 4862, section 5.4, which would
/// take a second): it is for links whose other end is known. Returns when a socket can have it, if the interface is up.
///
/// # Errors
///
/// What RTM_NEWADDR says: EPERM without CAP_NET_ADMIN, EEXIST for one that it has, EADDRNOTAVAIL for one that no host can have, EINVAL for more than 128 bits of a network; ENODEV for no such interface; EAFNOSUPPORT or EACCES where
/// the kernel, or the interface, has no IPv6.
pub fn add_address(name: &str, address: Ipv6Addr, prefix: u8) -> io::Result<()> {
    let message = message(interface::index(name)?, address, prefix);
    let flags = SocketFlags::CLOEXEC;
    // (No protocol is NETLINK_ROUTE.)
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    rustix::net::send(&socket, &message, SendFlags::empty())?;
    let mut answer = [0; 256];
    let (got, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
    refused(&answer[..got])?;
    let until = Instant::now() + PATIENCE;
    // The kernel finishes it in a thread of its own.
    while interface::is_up(name)?
        && let Err(error) = UdpSocket::bind((address, 0))
    {
        if error.kind() != std::io::ErrorKind::AddrNotAvailable || Instant::now() > until {
            return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// nlmsghdr, ifaddrmsg, and one nlattr.
fn message(index: u32, address: Ipv6Addr, prefix: u8) -> Vec<u8> {
    let len = HEADER + ABOUT + ATTRIBUTE + 16;
    let mut message = Vec::with_capacity(len);
    message.extend_from_slice(&(len as u32).to_ne_bytes());
    message.extend_from_slice(&RTM_NEWADDR.to_ne_bytes());
    message.extend_from_slice(&MAKE.to_ne_bytes());
    message.resize(HEADER, 0);
    message.extend_from_slice(&[AddressFamily::INET6.as_raw() as u8, prefix, IFA_F_NODAD, 0]);
    message.extend_from_slice(&index.to_ne_bytes());
    message.extend_from_slice(&((ATTRIBUTE + 16) as u16).to_ne_bytes());
    message.extend_from_slice(&IFA_LOCAL.to_ne_bytes());
    message.extend_from_slice(&address.octets());
    message
}

/// The errno of an answer (struct nlmsgerr).
fn refused(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|bytes| Some(u16::from_ne_bytes(bytes.try_into().ok()?)));
    let errno =
        answer.get(HEADER..HEADER + 4).and_then(|bytes| Some(i32::from_ne_bytes(bytes.try_into().ok()?)));
    match (kind, errno) {
        (Some(ERROR), Some(0)) => Ok(()),
        (Some(ERROR), Some(errno @ -4095..0)) => Err(Errno::from_raw_os_error(-errno)),
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use crate::tun;

    const OWN: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

    #[test]
    fn a_request_has_the_bytes_of_the_uapi() {
        let bytes = message(7, OWN, 64);
        assert_eq!(bytes.len(), 44);
        assert_eq!(bytes[..4], 44_u32.to_ne_bytes());
        assert_eq!(bytes[4..8], [RTM_NEWADDR.to_ne_bytes(), MAKE.to_ne_bytes()].concat());
        assert_eq!(bytes[16..24], [&[10, 64, 2, 0], &7_u32.to_ne_bytes()[..]].concat());
        assert_eq!(bytes[24..28], [20_u16.to_ne_bytes(), 2_u16.to_ne_bytes()].concat());
        assert_eq!(bytes[28..], OWN.octets());
    }

    #[test]
    fn an_answer_that_is_none_is_refused() {
        let mut answer = [0; 36];
        answer[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        assert_eq!(refused(&answer), Ok(()));
        for len in 0..20 {
            assert_eq!(refused(&answer[..len]), Err(Errno::PROTO), "{len}");
        }
        answer[16..20].copy_from_slice(&(-17_i32).to_ne_bytes());
        assert_eq!(refused(&answer), Err(Errno::EXIST));
        answer[16..20].copy_from_slice(&i32::MIN.to_ne_bytes());
        assert_eq!(refused(&answer), Err(Errno::PROTO));
        answer[4] = 20;
        assert_eq!(refused(&answer), Err(Errno::PROTO));
    }

    #[test]
    fn an_interface_has_what_it_was_given_at_once() {
        let namespace = match Namespace::new() {
            Err(Errno::PERM) => return println!("lacking: a network namespace (root, CAP_SYS_ADMIN)"),
            namespace => namespace.unwrap(),
        };
        let told = namespace.run(|| {
            tun::set_up("lo").unwrap();
            assert_eq!(add_address("no-such-device", OWN, 64), Err(Errno::NODEV));
            match add_address("lo", OWN, 64) {
                Err(errno @ (Errno::AFNOSUPPORT | Errno::ACCESS | Errno::OPNOTSUPP)) => return Some(errno),
                done => done.unwrap(),
            }
            UdpSocket::bind((OWN, 0)).unwrap();
            assert_eq!(add_address("lo", OWN, 64), Err(Errno::EXIST));
            assert_eq!(add_address("lo", Ipv6Addr::UNSPECIFIED, 64), Err(Errno::ADDRNOTAVAIL));
            assert_eq!(add_address("lo", Ipv6Addr::from_bits(OWN.to_bits() + 1), 129), Err(Errno::INVAL));
            None
        });
        if let Some(errno) = told.unwrap() {
            println!("lacking: a kernel that takes addresses of IPv6 ({errno})");
        }
    }
}
