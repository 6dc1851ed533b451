//! What can go wrong, with the facts and what to do next.

use crate::provider::ProviderError;
use crate::{Netmem, config};
use rustix::io::Errno;
use std::fmt;

/// Why a pool could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Pages of 4096 << order bytes: the order is too large.
    Order(u8),
    /// The limit is zero, or more than descriptors can be numbered.
    Limit(u32),
    /// The ring has no room, or more than [`PoolConfig::MAX_RING`](crate::PoolConfig::MAX_RING).
    Ring(u32),
    /// The provider could not give its memory.
    Provider(ProviderError),
    /// The memory that the provider gave does not fit the pool.
    Area(AreaError),
    /// There is no memory for the descriptors of so many pages, 64 bytes for each.
    Descriptors(u32),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Order(order) => {
                write!(f, "pages of order {order} are too large: {} is the most", config::MAX_ORDER)
            }
            OpenError::Limit(limit) => {
                write!(f, "a limit of {limit} pages: it has to be 1 to {}", config::MAX_PAGES)
            }
            OpenError::Ring(ring) => {
                write!(f, "a ring of {ring} pages: it has to be 1 to {}", crate::PoolConfig::MAX_RING)
            }
            OpenError::Provider(error) => write!(f, "the provider has no memory for the pool: {error}"),
            OpenError::Descriptors(pages) => {
                write!(
                    f,
                    "there is no memory for the descriptors of {pages} pages, 64 bytes each; lower the limit"
                )
            }
            OpenError::Area(error) => write!(f, "the provider's memory does not fit the pool: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl OpenError {
    /// The errno for it.
    pub fn errno(&self) -> Errno {
        match self {
            OpenError::Order(_) | OpenError::Ring(_) => Errno::TOOBIG,
            OpenError::Limit(_) | OpenError::Area(_) => Errno::INVAL,
            OpenError::Provider(error) => error.errno(),
            OpenError::Descriptors(_) => Errno::NOMEM,
        }
    }
}

/// Why an area of memory cannot be cut into pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaError {
    /// It is shorter than one page.
    Short {
        /// Bytes in the area.
        len: usize,
        /// Bytes in a page.
        page_len: u32,
    },
    /// It does not begin at a cache line.
    Misaligned {
        /// The address, or the offset in the mapping.
        at: usize,
    },
    /// It is not inside of the mapping.
    Outside {
        /// First byte behind the area.
        end: usize,
        /// Bytes mapped.
        mapped: usize,
    },
    /// It is not what the provider says of it ([`About`](crate::About)).
    Untrue {
        /// What does not hold.
        what: &'static str,
    },
}

impl fmt::Display for AreaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AreaError::Short { len, page_len } => {
                write!(f, "{len} bytes are not one page of {page_len}; give more, or a lower order")
            }
            AreaError::Misaligned { at } => {
                write!(f, "it begins at {at:#x}, not at a line of 64 bytes; align it")
            }
            AreaError::Outside { end, mapped } => {
                write!(f, "it ends at {end}, of {mapped} bytes mapped; map all of it")
            }
            AreaError::Untrue { what } => {
                write!(f, "it is not what the provider says of it, which has to be mended: {what}")
            }
        }
    }
}

impl std::error::Error for AreaError {}

/// Why there is no page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocError {
    /// All pages that the limit allows are in use: wait until some have come home, or allow more.
    Exhausted {
        /// The pool's limit in pages: the configured one, or what the provider's memory holds.
        limit: u32,
    },
    /// A page has no room for a piece of that size; ask for a smaller one, or make a pool of a higher order.
    Size {
        /// Bytes asked for.
        asked: u32,
        /// Bytes in a page.
        page_len: u32,
    },
    /// The provider gave nothing.
    Provider(ProviderError),
    /// The provider gave nothing but what it must not give.
    Lie(Lie),
    /// Debug mode: somebody wrote to the page while it was free. It is kept out of use; the next call gives another.
    Damaged(Box<Damage>),
}

/// A page that somebody wrote to while it was free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The page's number.
    pub index: u32,
    /// First byte that is not what it was filled with.
    pub offset: usize,
    /// What is there.
    pub found: u8,
    /// What happened to the page, a line for each use, the oldest first.
    pub history: String,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocError::Exhausted { limit } => {
                write!(
                    f,
                    "all {limit} pages of the pool are in use; wait for some to come back, or raise the limit"
                )
            }
            AllocError::Size { asked, page_len } => {
                write!(
                    f,
                    "a piece of {asked} bytes does not fit pages of {page_len} (or is empty); ask for 1 to {page_len}"
                )
            }
            AllocError::Provider(error) => write!(f, "the provider gave no page: {error}"),
            AllocError::Lie(lie) => write!(f, "the provider is broken: {lie}"),
            AllocError::Damaged(damage) => write!(
                f,
                "page {} was written while it was free: byte {} is {:#04x}; its history:\n{}",
                damage.index, damage.offset, damage.found, damage.history
            ),
        }
    }
}

impl std::error::Error for AllocError {}

impl AllocError {
    /// The errno for it.
    pub fn errno(&self) -> Errno {
        match self {
            AllocError::Exhausted { .. } => Errno::NOBUFS,
            AllocError::Size { .. } => Errno::MSGSIZE,
            AllocError::Provider(error) => error.errno(),
            AllocError::Lie(_) | AllocError::Damaged(_) => Errno::IO,
        }
    }
}

/// A page number that a provider must not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// It is not in the pool's area.
    Foreign {
        /// The number.
        index: u32,
        /// Pages in the area.
        pages: u32,
    },
    /// It was given before and has not been released.
    Duplicate {
        /// The number.
        index: u32,
    },
    /// It is one more than was asked for.
    Surplus {
        /// The number.
        index: u32,
        /// Pages asked for.
        asked: u32,
    },
    /// It said that all is well and gave nothing.
    Nothing,
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lie::Foreign { index, pages } => write!(f, "it gave page {index} of an area of {pages}"),
            Lie::Duplicate { index } => write!(f, "it gave page {index}, which is in use"),
            Lie::Surplus { index, asked } => write!(f, "it gave page {index} beyond the {asked} asked for"),
            Lie::Nothing => f.write_str("it reported success and gave no page"),
        }
    }
}

/// Why a plain reference was not taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReturnError {
    /// It is not a page of this pool.
    Foreign(Netmem),
    /// It is a page of this pool, but no reference to it is given out as a plain one: it was returned already, or
    /// never given out.
    NotOut {
        /// What was given back.
        netmem: Netmem,
        /// Debug mode: what happened to the page, a line for each use, the oldest first. Else empty.
        history: String,
    },
}

impl fmt::Display for ReturnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReturnError::Foreign(netmem) => {
                write!(f, "{netmem:?} is not a page of this pool; give it to the pool that it came from")
            }
            ReturnError::NotOut { netmem, history } => {
                write!(f, "{netmem:?} is not out: it was returned already, or never given out; ")?;
                match history.as_str() {
                    "" => f.write_str("a pool in debug mode keeps who returned it"),
                    history => write!(f, "its history:\n{history}"),
                }
            }
        }
    }
}

impl std::error::Error for ReturnError {}

impl ReturnError {
    /// The errno for it.
    pub fn errno(&self) -> Errno {
        Errno::INVAL
    }
}

/// Why a page that another process named was not adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdoptError {
    /// It lies outside of what is shared.
    Outside {
        /// The page's number.
        index: u32,
        /// Pages shared.
        pages: u32,
    },
    /// It was adopted before and has not been released.
    Again {
        /// The page's number, or the slot's.
        index: u32,
    },
    /// There is no such slot.
    NoSlot {
        /// The slot.
        slot: u32,
        /// How many there are.
        slots: u32,
    },
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdoptError::Outside { index, pages } => {
                write!(f, "the peer named page {index} of {pages} shared; end the connection")
            }
            AdoptError::Again { index } => {
                write!(f, "the peer named {index} again before it was released; end the connection")
            }
            AdoptError::NoSlot { slot, slots } => {
                write!(f, "the peer named slot {slot} of {slots}; end the connection")
            }
        }
    }
}

impl std::error::Error for AdoptError {}

impl AdoptError {
    /// The errno for it: the peer broke the protocol.
    pub fn errno(&self) -> Errno {
        Errno::PROTO
    }
}
