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
                let todo = match *errno {
                    Errno::PERM => "it takes CAP_NET_ADMIN",
                    Errno::OPNOTSUPP => "the interface's driver does not receive into memory of others; use a NIC whose driver does",
                    Errno::INVAL => "have the NIC split headers from payload: ethtool -G tcp-data-split on hds-thresh 0",
                    Errno::RANGE => "the NIC has no queue of that number; make more with ethtool -L",
                    Errno::EXIST | Errno::BUSY => "the queue is taken by memory, XDP or AF_XDP; free it, or use another one",
                    _ => return Ok(()),
                };
                write!(f, "; {todo}")
            }
            NotByNic::NoMemory => f.write_str("there is no memory to receive with"),
        }
    }
}

impl std::error::Error for NotByNic {}
