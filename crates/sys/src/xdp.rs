//! Sockets of AF_XDP (Documentation/networking/af_xdp.rst, include/uapi/linux/if_xdp.h): packets of one queue of an interface, in memory that the
//! process and the kernel share, told of by four rings.
//!
//! | ring | who fills it | entries |
//! |---|---|---|
//! | fill | the process: frames to receive into | a place, 8 bytes |
//! | RX | the kernel: packets in them | a place, a length and flags, 16 bytes |
//! | TX | the process: packets to send | as of RX |
//! | completion | the kernel: frames of packets that were sent | a place |
//!
//! Frames are [`FRAME`] bytes each, at multiples of that, and places count from the memory's first byte.

use crate::fork::Origin;
use crate::map::Mapping;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_mmap_offsets, xdp_options, xdp_statistics,
};
use rustix::net::xdp::{self, SocketAddrXdp, SocketAddrXdpFlags, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::ptr::NonNull;
use std::sync::Arc;

pub use rustix::net::xdp::XdpStatistics as Statistics;

/// Bytes of a frame: a page of the kernel's at least where it is one of 4 KiB, and the longest that it takes then.
pub const FRAME: usize = 4096;

/// Bytes at the beginning of a frame that the kernel keeps for itself when it receives into it (XDP_PACKET_HEADROOM).
pub const HEADROOM: usize = 256;

/// Of an entry of the RX or TX ring: the packet goes on in the next one (XDP_PKT_CONTD).
pub const CONTINUES: u32 = 1;

/// Of a ring's flags: the kernel sleeps until it is called (XDP_RING_NEED_WAKEUP).
pub const NEED_WAKEUP: u32 = 1;

/// Most entries that one packet has in the TX ring, as the kernel copies it (MAX_SKB_FRAGS by default).
pub const MOST_ENTRIES: usize = 17;

/// One ring: memory that the process and the kernel share, and where in it the words are, in bytes from its beginning.
#[derive(Debug)]
pub struct Ring {
    /// All of it.
    pub memory: Mapping,
    /// How many entries whoever fills it has put there: four bytes, and it wraps.
    pub producer: usize,
    /// How many whoever empties it has taken out, likewise.
    pub consumer: usize,
    /// [`NEED_WAKEUP`]: four bytes.
    pub flags: usize,
    /// The entries.
    pub entries: usize,
    /// How many there are: a power of two.
    pub len: u32,
}

/// The four rings of a socket.
#[derive(Debug)]
pub struct Rings {
    /// Frames for the kernel to receive into.
    pub fill: Ring,
    /// Packets that were received.
    pub rx: Ring,
    /// Packets to be sent.
    pub tx: Ring,
    /// Frames of packets that were sent.
    pub completion: Ring,
    /// The process that has them: a child of it has none of them, and looks at none.
    pub origin: Arc<Origin>,
}

/// How a socket is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The driver's own way without a copy (XDP_ZEROCOPY), or the kernel's copy (XDP_COPY).
    pub zero_copy: bool,
    /// A packet may have several frames (XDP_USE_SG, Linux 6.6).
    pub several: bool,
}

/// A socket that is bound to nothing. It does not wait, and is closed on exec.
///
/// # Errors
///
/// EPERM without CAP_NET_RAW; EAFNOSUPPORT where the kernel has none (CONFIG_XDP_SOCKETS).
pub fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
}

/// Makes memory the socket's, in frames of [`FRAME`] bytes (XDP_UMEM_REG). The kernel has all its pages from then on, mapped or not, until the socket is closed: it
/// reads frames that are in the TX ring, and writes those that were put into the fill ring until they come back. Whoever writes these rings sees to it that nobody
/// else in the process has such a frame.
///
/// # Errors
///
/// EINVAL for what is not whole frames; ENOBUFS where it is more than may be locked (RLIMIT_MEMLOCK); EFAULT for what is not mapped; ENOMEM.
pub fn register(fd: impl AsFd, memory: NonNull<u8>, len: usize) -> io::Result<()> {
    let memory = XdpUmemReg {
        addr: memory.as_ptr().expose_provenance() as u64,
        len: len as u64,
        chunk_size: FRAME as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    set_xdp_umem_reg(fd, memory)
}

impl Rings {
    /// Makes the rings of a socket that has memory: `rx` entries for what is received and for frames to do that into, `tx` for what is sent and has been, each a
    /// power of two.
    ///
    /// # Errors
    ///
    /// EINVAL for what is no power of two; EBUSY where the socket has rings; ENOMEM.
    pub fn new(fd: impl AsFd, rx: u32, tx: u32) -> io::Result<Rings> {
        let fd = fd.as_fd();
        set_xdp_umem_fill_ring_size(fd, rx)?;
        set_xdp_umem_completion_ring_size(fd, tx)?;
        set_xdp_rx_ring_size(fd, rx)?;
        set_xdp_tx_ring_size(fd, tx)?;
        let (offsets, origin) = (xdp_mmap_offsets(fd)?, Arc::new(Origin::new()?));
        let ring = |at: XdpRingOffset, page, len: u32, entry: usize| {
            // (Before Linux 5.4 a ring has no flags, and no packet in several frames either.)
            let place = |offset: u64| usize::try_from(offset).map_err(|_| Errno::RANGE);
            let (entries, flags) = (place(at.desc)?, place(at.flags.ok_or(Errno::NOSYS)?)?);
            let memory = Mapping::of_ring(fd, page, entries + len as usize * entry, &origin)?;
            Ok(Ring {
                memory,
                producer: place(at.producer)?,
                consumer: place(at.consumer)?,
                flags,
                entries,
                len,
            })
        };
        Ok(Rings {
            fill: ring(offsets.fr, xdp::XDP_UMEM_PGOFF_FILL_RING, rx, 8)?,
            rx: ring(offsets.rx, xdp::XDP_PGOFF_RX_RING, rx, 16)?,
            tx: ring(offsets.tx, xdp::XDP_PGOFF_TX_RING, tx, 16)?,
            completion: ring(offsets.cr, xdp::XDP_UMEM_PGOFF_COMPLETION_RING, tx, 8)?,
            origin: Arc::clone(&origin),
        })
    }
}

/// Binds a socket that has rings to a queue of an interface, by its index. It receives nothing until a program leads packets to it ([`crate::bpf`]).
///
/// # Errors
///
/// EOPNOTSUPP where the driver has no such way; EINVAL for a queue that it has not, and for `several` before Linux 6.6; EBUSY where another socket has the queue; ENODEV;
/// ENETDOWN.
pub fn bind(fd: impl AsFd, interface: u32, queue: u32, how: Bind) -> io::Result<()> {
    let way = if how.zero_copy { SocketAddrXdpFlags::XDP_ZEROCOPY } else { SocketAddrXdpFlags::XDP_COPY };
    let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | way;
    flags.set(SocketAddrXdpFlags::XDP_USE_SG, how.several);
    rustix::net::bind(fd, &SocketAddrXdp::new(flags, interface, queue))
}

/// Whether what is received and sent is not copied by the kernel (XDP_OPTIONS).
///
/// # Errors
///
/// What getsockopt(2) says.
pub fn is_zero_copy(fd: impl AsFd) -> io::Result<bool> {
    xdp_options(fd).map(|options| options.contains(xdp::XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
}

/// What the kernel dropped or did not understand (XDP_STATISTICS).
///
/// # Errors
///
/// What getsockopt(2) says.
pub fn statistics(fd: impl AsFd) -> io::Result<Statistics> {
    xdp_statistics(fd)
}

/// Has the socket's send buffer take `bytes` of packets that are on their way, whatever the system's limit is (SO_SNDBUFFORCE, CAP_NET_ADMIN).
///
/// # Errors
///
/// EPERM.
pub fn set_send_buffer(fd: impl AsFd, bytes: usize) -> io::Result<()> {
    // The kernel doubles it, and it is a signed number.
    let bytes = bytes.min(1 << 29) as i32;
    crate::sockopt::set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Has the kernel send what is in the TX ring.
///
/// # Errors
///
/// EAGAIN where more is left than one call sends, or the device takes none now; EBUSY and ENOBUFS likewise; ENETDOWN; ENXIO for a socket that is not bound.
pub fn send(fd: impl AsFd) -> io::Result<()> {
    rustix::net::send(fd, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
}

/// Has a driver that sleeps look at the fill ring.
///
/// # Errors
///
/// As [`send`].
pub fn wake(fd: impl AsFd) -> io::Result<()> {
    rustix::net::recv(fd, &mut [0_u8; 0], RecvFlags::DONTWAIT).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket; not, with what is lacking on stdout, where the machine has not what it takes.
    fn made() -> Option<OwnedFd> {
        match socket() {
            Err(why @ (Errno::PERM | Errno::AFNOSUPPORT)) => {
                println!("lacking: AF_XDP (root, CAP_NET_RAW, CONFIG_XDP_SOCKETS): {why}");
                None
            }
            socket => Some(socket.unwrap()),
        }
    }

    #[test]
    fn rings_have_their_words_and_entries_inside() {
        let Some(fd) = made() else { return };
        let memory = Mapping::inherited(64 * FRAME).unwrap();
        assert_eq!(Rings::new(&fd, 48, 64).unwrap_err(), Errno::INVAL, "48 is no power of two");
        register(&fd, memory.base(), memory.len()).unwrap();
        let rings = Rings::new(&fd, 32, 16);
        let rings = rings.unwrap();
        for (name, ring, len, entry) in [
            ("fill", &rings.fill, 32, 8),
            ("rx", &rings.rx, 32, 16),
            ("tx", &rings.tx, 16, 16),
            ("completion", &rings.completion, 16, 8),
        ] {
            assert_eq!(ring.len, len, "{name}");
            assert_eq!(ring.memory.len(), ring.entries + len as usize * entry, "{name}");
            let words = [ring.producer, ring.consumer, ring.flags];
            assert!(words.iter().all(|word| word % 4 == 0 && word + 4 <= ring.entries), "{name}: {words:?}");
            assert!(ring.entries.is_multiple_of(8), "{name}");
        }
        let none = statistics(&fd).unwrap();
        assert_eq!((none.rx_dropped, none.tx_invalid_descs, none.rx_fill_ring_empty_descs), (0, 0, Some(0)));
        assert!(!is_zero_copy(&fd).unwrap());
        assert_eq!(send(&fd), Err(Errno::NXIO));
    }

    #[test]
    fn memory_that_is_none() {
        let Some(fd) = made() else { return };
        let memory = Mapping::inherited(2 * FRAME).unwrap();
        assert_eq!(register(&fd, memory.base(), 2 * FRAME - 1), Err(Errno::INVAL), "half a frame");
        assert_eq!(register(&fd, NonNull::dangling(), FRAME), Err(Errno::INVAL), "no page");
        let how = Bind { zero_copy: false, several: false };
        assert!(bind(&fd, u32::MAX >> 1, 0, how).is_err(), "no rings and no interface");
    }
}
