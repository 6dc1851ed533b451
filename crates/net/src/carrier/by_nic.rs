//! Why a NIC does not receive into bound memory by itself.

use onecopy_pool::ProviderError;
use rustix::io::Errno;
use std::fmt;

/// Why a NIC does not put payload into bound memory itself, where one was asked ([`Builder::interface`](crate::Builder::interface)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotByNic {
    /// The memory has no dma-buf that the NIC could be told of.
    Memory(ProviderError),
    /// Somebody has pages of the memory: a NIC may write to all of them.
    Shared,
    /// The kernel cannot be asked (the netlink family netdev).
    Unasked(Errno),
    /// The kernel refused to bind the memory (NETDEV_CMD_BIND_RX).
    Refused {
        /// The errno.
        errno: Errno,
        /// Its own words, if it has some.
        says: Option<String>,
    },
    /// There is no memory to receive with.
    NoMemory,
    /// There can be no ring that tells of what the NIC does (io_uring_setup(2)).
    NoRing(Errno),
    /// The kernel refused to have a ring tell of it (IORING_REGISTER_ZCRX_IFQ).
    RingRefused(Errno),
    /// So many queues were named: a ring is of one.
    Queues(usize),
    /// Both ways were tried.
    Neither {
        /// Why not by device memory TCP.
        devmem: Box<NotByNic>,
        /// Why not by io_uring's zero copy Rx.
        ring: Box<NotByNic>,
    },
}

/// What a NIC's driver says to being asked beforehand ([`ask_nic`](crate::devmem::ask_nic)): none where nothing is known against it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NicSays {
    /// Of device memory TCP.
    pub devmem: Option<NotByNic>,
    /// Of io_uring's zero copy Rx.
    pub ring: Option<NotByNic>,
}

impl fmt::Display for NotByNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotByNic::Memory(why) => why.fmt(f),
            NotByNic::Shared => {
                f.write_str("somebody has pages of the memory, or it is bound already; bind memory that nobody has any of")
            }
            NotByNic::Unasked(errno) => {
                write!(f, "the kernel has no netlink family netdev ({errno}); it takes Linux 6.12")
            }
            NotByNic::Refused { errno, says } => {
                write!(f, "the kernel refused: {errno}")?;
                if let Some(says) = says {
                    write!(f, " ({says})")?;
                }
                todo(f, *errno)
            }
            NotByNic::NoMemory => f.write_str("there is no memory to receive with"),
            NotByNic::NoRing(errno) => {
                write!(f, "io_uring gives no ring: {errno}; `onecopy doctor` says what is missing")
            }
            NotByNic::RingRefused(errno) => {
                write!(f, "the kernel refused: {errno}")?;
                match *errno {
                    Errno::INVAL => f.write_str(
                        "; it takes Linux 6.15, and a NIC that splits headers from payload: ethtool -G tcp-data-split on hds-thresh 0",
                    ),
                    Errno::NOMEM => f.write_str("; raise RLIMIT_MEMLOCK, or give less memory"),
                    errno => todo(f, errno),
                }
            }
            NotByNic::Queues(count) => {
                write!(f, "{count} queues were named, and each has memory of its own; bind other memory to each")
            }
            NotByNic::Neither { devmem, ring } => {
                write!(f, "device memory TCP: {devmem}. io_uring's zero copy Rx: {ring}")
            }
        }
    }
}

/// What is to be done where the kernel refuses a queue.
fn todo(f: &mut fmt::Formatter<'_>, errno: Errno) -> fmt::Result {
    let todo = match errno {
        Errno::PERM => "it takes CAP_NET_ADMIN",
        Errno::OPNOTSUPP => {
            "the interface's driver does not receive into memory of others; use a NIC whose driver does"
        }
        Errno::INVAL => "have the NIC split headers from payload: ethtool -G tcp-data-split on hds-thresh 0",
        Errno::RANGE => "the NIC has no queue of that number; make more with ethtool -L",
        Errno::EXIST | Errno::BUSY => {
            "the queue is taken by memory, XDP or AF_XDP; free it, or use another one"
        }
        _ => return Ok(()),
    };
    write!(f, "; {todo}")
}

impl std::error::Error for NotByNic {}
