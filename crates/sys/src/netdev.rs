//! Device memory TCP of the kernel's (Documentation/networking/devmem.rst): what is said to the generic netlink family `netdev`. What comes with
//! fragments is in [`crate::devmem`]. (Documentation/netlink/specs/netdev.yaml, include/uapi/linux/netdev.h.)

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// linux/netlink.h: NLM_F_REQUEST | NLM_F_ACK.
const REQUEST: u16 = 5;
const ERROR: u16 = 2;
/// Of the error's message (NLM_F_ACK_TLVS), where the request is not repeated in it (NLM_F_CAPPED).
const ACK_TLVS: u16 = 0x200;
const CAPPED: u16 = 0x100;
const NLMSGERR_ATTR_MSG: u16 = 1;
/// NLA_F_NESTED.
const NESTED: u16 = 1 << 15;
/// linux/genetlink.h.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// linux/netdev.h.
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_CMD_QUEUE_GET: u8 = 10;
const NETDEV_CMD_BIND_RX: u8 = 13;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_A_DMABUF_IFINDEX: u16 = 1;
const NETDEV_A_DMABUF_QUEUES: u16 = 2;
const NETDEV_A_DMABUF_FD: u16 = 3;
const NETDEV_A_DMABUF_ID: u16 = 4;
const NETDEV_A_QUEUE_ID: u16 = 1;
const NETDEV_A_QUEUE_IFINDEX: u16 = 2;
const NETDEV_A_QUEUE_TYPE: u16 = 3;
const NETDEV_A_QUEUE_DMABUF: u16 = 5;
const NETDEV_A_QUEUE_IO_URING: u16 = 6;
/// Lengths of nlmsghdr and genlmsghdr.
const HEADER: usize = 16;
const GENERIC: usize = 4;
/// linux/net/netlink options.
const SOL_NETLINK: i32 = 270;
const NETLINK_CAP_ACK: i32 = 10;
const NETLINK_EXT_ACK: i32 = 11;
/// The kernel answers at once, or not at all.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why the kernel refused, and what it says beside the errno.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The errno.
    pub errno: Errno,
    /// Its own words (NLMSGERR_ATTR_MSG), if it has some.
    pub says: Option<String>,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal { errno, says: None }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.says {
            Some(says) => write!(f, "{} ({says})", self.errno),
            None => self.errno.fmt(f),
        }
    }
}

/// Which way a queue goes (NETDEV_QUEUE_TYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Receives.
    Rx(u32),
    /// Sends.
    Tx(u32),
}

/// Who gives a queue that receives its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxQueue {
    /// A dma-buf is bound to it ([`Netdev::bind_rx`]).
    pub dmabuf: bool,
    /// A ring is (IORING_REGISTER_ZCRX_IFQ).
    pub io_uring: bool,
}

/// Where to ask. What is bound by it is bound as long as it lives.
#[derive(Debug)]
pub struct Netdev {
    fd: OwnedFd,
    family: u16,
}

impl Netdev {
    /// # Errors
    ///
    /// ENOENT where the kernel has no family `netdev` (before Linux 6.3); what socket(2) says.
    pub fn open() -> Result<Netdev, Refusal> {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::RAW;
        let fd = rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::GENERIC))?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(PATIENCE))?;
        for option in [NETLINK_CAP_ACK, NETLINK_EXT_ACK] {
            crate::sockopt::set_int(fd.as_fd(), SOL_NETLINK, option, 1).map_err(|_| Errno::NOSYS)?;
        }
        let mut netdev = Netdev { fd, family: GENL_ID_CTRL };
        let mut request = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY);
        put(&mut request, CTRL_ATTR_FAMILY_NAME, b"netdev\0");
        let answer = netdev.ask(request)?;
        netdev.family = attribute(&answer, CTRL_ATTR_FAMILY_ID).and_then(half).ok_or(Errno::PROTO)?;
        Ok(netdev)
    }

    /// Binds the dma-buf `fd` to `queues` of the device with that index (NETDEV_CMD_BIND_RX, Linux 6.12): what they receive from here on lies in
    /// it. Returns its number, which comes with each fragment. It takes CAP_NET_ADMIN.
    ///
    /// # Errors
    ///
    /// What the kernel says: ENODEV for no device, EOPNOTSUPP where its driver has no queues with memory of others or it has no DMA, EINVAL
    /// for a queue that does not receive or no queue at all, ERANGE for one that there is not, EEXIST for one that is bound.
    pub fn bind_rx(&self, index: u32, fd: BorrowedFd<'_>, queues: &[Queue]) -> Result<u32, Refusal> {
        let answer = self.ask(bind_rx(self.family, index, fd.as_raw_fd(), queues))?;
        Ok(attribute(&answer, NETDEV_A_DMABUF_ID).and_then(word).ok_or(Errno::PROTO)?)
    }

    /// Who gives that queue of the device with that index its memory (NETDEV_CMD_QUEUE_GET, Linux 6.8; a ring is told of since 6.15).
    ///
    /// # Errors
    ///
    /// What the kernel says: ENODEV for no device, EINVAL or ERANGE for a queue that there is not; EPROTO or ENOENT while the device is down.
    pub fn rx_queue(&self, index: u32, queue: u32) -> Result<RxQueue, Refusal> {
        let answer = self.ask(queue_get(self.family, index, queue))?;
        let id = attribute(&answer, NETDEV_A_QUEUE_ID).and_then(word);
        if id != Some(queue) {
            return Err(Errno::PROTO.into());
        }
        let has = |kind| attribute(&answer, kind).is_some();
        Ok(RxQueue { dmabuf: has(NETDEV_A_QUEUE_DMABUF), io_uring: has(NETDEV_A_QUEUE_IO_URING) })
    }

    /// How many parts a packet of AF_XDP may have that the driver of the device with that index sends without a copy (NETDEV_CMD_DEV_GET, Linux 6.6); None where it does not
    /// say.
    ///
    /// # Errors
    ///
    /// What the kernel says: ENODEV for no device.
    pub fn most_segments(&self, index: u32) -> Result<Option<u32>, Refusal> {
        let answer = self.ask(dev_get(self.family, index))?;
        if attribute(&answer, NETDEV_A_DEV_IFINDEX).and_then(word) != Some(index) {
            return Err(Errno::PROTO.into());
        }
        Ok(attribute(&answer, NETDEV_A_DEV_XDP_ZC_MAX_SEGS).and_then(word))
    }

    /// Sends `message`, and returns the attributes of the answer.
    fn ask(&self, mut message: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        rustix::net::send(&self.fd, &message, SendFlags::empty())?;
        let (mut answer, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
        loop {
            let (got, _) = rustix::net::recv(&self.fd, &mut buffer[..], RecvFlags::empty())?;
            if read(&buffer[..got], &mut answer)? {
                return Ok(answer);
            }
        }
    }
}

/// A message without attributes, its length not set yet.
fn request(family: u16, command: u8) -> Vec<u8> {
    let mut message = vec![0; HEADER + GENERIC];
    message[4..6].copy_from_slice(&family.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    message[HEADER] = command;
    message[HEADER + 1] = 1;
    message
}

fn bind_rx(family: u16, index: u32, fd: i32, queues: &[Queue]) -> Vec<u8> {
    let mut message = request(family, NETDEV_CMD_BIND_RX);
    put(&mut message, NETDEV_A_DMABUF_IFINDEX, &index.to_ne_bytes());
    put(&mut message, NETDEV_A_DMABUF_FD, &fd.to_ne_bytes());
    for queue in queues {
        let (id, kind) = match *queue {
            Queue::Rx(id) => (id, 0u32),
            Queue::Tx(id) => (id, 1u32),
        };
        let mut nested = Vec::new();
        put(&mut nested, NETDEV_A_QUEUE_ID, &id.to_ne_bytes());
        put(&mut nested, NETDEV_A_QUEUE_TYPE, &kind.to_ne_bytes());
        put(&mut message, NETDEV_A_DMABUF_QUEUES | NESTED, &nested);
    }
    message
}

fn dev_get(family: u16, index: u32) -> Vec<u8> {
    let mut message = request(family, NETDEV_CMD_DEV_GET);
    put(&mut message, NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes());
    message
}

fn queue_get(family: u16, index: u32, queue: u32) -> Vec<u8> {
    let mut message = request(family, NETDEV_CMD_QUEUE_GET);
    put(&mut message, NETDEV_A_QUEUE_ID, &queue.to_ne_bytes());
    put(&mut message, NETDEV_A_QUEUE_IFINDEX, &index.to_ne_bytes());
    put(&mut message, NETDEV_A_QUEUE_TYPE, &0_u32.to_ne_bytes());
    message
}

/// Puts an attribute there (struct nlattr), aligned to four bytes.
fn put(message: &mut Vec<u8>, kind: u16, data: &[u8]) {
    message.extend_from_slice(&((data.len() + 4) as u16).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(data);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// Reads one datagram: the attributes of an answer go to `answer`. Whether it was the last.
fn read(mut bytes: &[u8], answer: &mut Vec<u8>) -> Result<bool, Refusal> {
    while bytes.len() >= HEADER {
        let (len, kind, flags) = (word(bytes), half(&bytes[4..]), half(&bytes[6..]));
        let (Some(len), Some(kind), Some(flags)) = (len, kind, flags) else { break };
        let body = bytes.get(HEADER..len as usize).ok_or(Errno::PROTO)?;
        if kind == ERROR {
            let errno = word(body).ok_or(Errno::PROTO)?.cast_signed();
            if errno == 0 {
                return Ok(true);
            }
            // Behind the error the request's header, and the request, unless it is left out.
            let asked = body.get(4..).and_then(word).unwrap_or(0) as usize;
            let skip = 4 + if flags & CAPPED != 0 { HEADER } else { asked.next_multiple_of(4) };
            let said = body.get(skip..).filter(|_| flags & ACK_TLVS != 0);
            let says = said.and_then(|said| attribute(said, NLMSGERR_ATTR_MSG));
            let says = says.map(|says| String::from_utf8_lossy(says).trim_end_matches('\0').to_owned());
            return Err(Refusal { errno: Errno::from_raw_os_error(errno.saturating_neg()), says });
        }
        answer.extend_from_slice(body.get(GENERIC..).unwrap_or_default());
        bytes = bytes.get((len as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// The data of the first attribute of that kind.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (len, kind) = (half(bytes)? as usize, half(bytes.get(2..)?)?);
        let data = bytes.get(4..len)?;
        if kind & !NESTED == wanted {
            return Some(data);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

fn half(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As tools/net/ynl writes {"ifindex": 5, "fd": 9, "queues": [{"id": 2, "type": "rx"}, {"id": 3, "type": "rx"}]} on a machine of this byte
    /// order, its length, family and sequence left out.
    #[cfg(target_endian = "little")]
    #[test]
    fn a_request_has_the_bytes_of_the_uapi() {
        let message = bind_rx(0x1c, 5, 9, &[Queue::Rx(2), Queue::Rx(3)]);
        let expected = [
            0, 0, 0, 0, 0x1c, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, // nlmsghdr
            13, 1, 0, 0, // genlmsghdr: NETDEV_CMD_BIND_RX
            8, 0, 1, 0, 5, 0, 0, 0, // ifindex
            8, 0, 3, 0, 9, 0, 0, 0, // fd
            20, 0, 2, 0x80, 8, 0, 1, 0, 2, 0, 0, 0, 8, 0, 3, 0, 0, 0, 0, 0, // a queue
            20, 0, 2, 0x80, 8, 0, 1, 0, 3, 0, 0, 0, 8, 0, 3, 0, 0, 0, 0, 0, // another one
        ];
        assert_eq!(message, expected);
        let expected = [
            0, 0, 0, 0, 0x1c, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, // nlmsghdr
            10, 1, 0, 0, // genlmsghdr: NETDEV_CMD_QUEUE_GET
            8, 0, 1, 0, 3, 0, 0, 0, // id
            8, 0, 2, 0, 5, 0, 0, 0, // ifindex
            8, 0, 3, 0, 0, 0, 0, 0, // type: rx
        ];
        assert_eq!(queue_get(0x1c, 5, 3), expected);
        let expected = [
            0, 0, 0, 0, 0x1c, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, // nlmsghdr
            1, 1, 0, 0, // genlmsghdr: NETDEV_CMD_DEV_GET
            8, 0, 1, 0, 5, 0, 0, 0, // ifindex
        ];
        assert_eq!(dev_get(0x1c, 5), expected);
        let answer = [8, 0, 4, 0, 7, 0, 0, 0];
        assert_eq!(attribute(&answer, NETDEV_A_DMABUF_ID).and_then(word), Some(7));
    }

    #[test]
    fn a_queue_is_told_of_where_it_is_one() {
        let netdev = match Netdev::open() {
            Ok(netdev) => netdev,
            Err(refusal) => return println!("lacking: the netdev family of generic netlink ({refusal})"),
        };
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        let lo = rustix::net::netdevice::name_to_index(&socket, "lo").unwrap();
        assert_eq!(netdev.most_segments(lo), Ok(None), "it has no sockets without a copy");
        assert_eq!(netdev.most_segments(i32::MAX as u32).unwrap_err().errno, Errno::NODEV);
        match netdev.rx_queue(lo, 0) {
            Ok(queue) => assert_eq!(queue, RxQueue::default()),
            // An unknown command, before Linux 6.8; or the loopback is down.
            Err(refusal) => return println!("lacking: a queue that netlink tells of ({refusal})"),
        }
        assert!([Errno::INVAL, Errno::RANGE].contains(&netdev.rx_queue(lo, 9).unwrap_err().errno));
        assert_eq!(netdev.rx_queue(i32::MAX as u32, 0).unwrap_err().errno, Errno::NODEV);
    }

    #[test]
    fn answers_that_cannot_be_are_refused_and_nothing_beyond_them_is_read() {
        // An error with words, of which the request is left out.
        let mut message = vec![0; HEADER];
        message[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        message[6..8].copy_from_slice(&(ACK_TLVS | CAPPED).to_ne_bytes());
        message.extend_from_slice(&(-95i32).to_ne_bytes());
        message.extend_from_slice(&[0; HEADER]);
        put(&mut message, NLMSGERR_ATTR_MSG, b"no\0");
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        let refusal = read(&message, &mut Vec::new()).unwrap_err();
        assert_eq!(refusal, Refusal { errno: Errno::OPNOTSUPP, says: Some("no".into()) });
        for cut in HEADER..message.len() {
            let mut short = message[..cut].to_vec();
            assert_eq!(read(&short, &mut Vec::new()), Err(Errno::PROTO.into()));
            short[..4].copy_from_slice(&(cut as u32).to_ne_bytes());
            let _ = read(&short, &mut Vec::new());
        }
        for kind in [0, 4, 200] {
            assert_eq!(attribute(&[kind, 0, 9, 0], 1), None);
        }
    }
}
