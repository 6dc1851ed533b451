//! Chains of page fragments, and the notifications of sends without a copy.
//!
//! A [`Chain`] is how bytes are passed on without being touched: references to parts of pages, one after another, as an
//! skb's frags or an mbuf chain. Records end and descriptors arrive at exact places between the bytes ([`Mark`]), and what
//! is known of the checksum goes along ([`Checksum`]).
//!
//! ```
//! use onecopy_chain::{Chain, Writer};
//! # use onecopy_pool::{PagePool, PoolConfig, provider::Heap};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = PagePool::new(PoolConfig::new(), Heap::new())?;
//! let writer = Writer::new(&pool).headroom(64);
//!
//! let mut queue = Chain::new();
//! writer.append(&mut queue, b"hello, world")?; // the one copy
//! let mut segment = queue.range(7, 5)?; // by reference: what is sent, and sent again if lost
//! writer.push_header(&mut segment, b"> ")?;
//! assert_eq!(segment.host()?.to_vec(), b"> world");
//! queue.advance(7)?; // acknowledged
//! assert_eq!(queue.len(), 5);
//! # Ok(())
//! # }
//! ```
//!
//! Which send's buffer is free when a segment is, and how its owner hears of it, is in [`notify`].
//!
//! # Who may look
//!
//! | memory | [`Kind`] | what there is |
//! |---|---|---|
//! | ours alone | `Host` | [`Chain::host`]: slices, sums, gathering into `IoSlice`s; [`Writer`]: pull-up, headers, overwriting |
//! | another process writes it, too | `Peer` | [`Chain::peer`]: copying out, gathering into views for the kernel; no slice |
//! | a device's | `Device` | its fragments: page, offset, length |
//!
//! A chain is of one kind. There is no slice accessor on a chain, only on the view that exists for the first kind: what
//! the kernel has to check at each place (skb_frags_readable()) is checked once, by who wants to look. What would need
//! to read other memory, or join two kinds, gives a [`ChainError`] that names the fragment.

#![forbid(unsafe_code)]

mod chain;
mod checksum;
mod error;
mod fragment;
mod frags;
mod host;
mod io;
mod kind;
mod marks;
pub mod notify;
mod peer;
mod record;
mod sum;
mod writer;

pub use chain::Chain;
pub use checksum::Checksum;
pub use error::ChainError;
pub use fragment::Fragment;
pub use frags::Iter;
pub use host::{Host, Reader, Slices};
pub use kind::Kind;
pub use marks::{Credentials, Mark};
pub use peer::Peer;
pub use sum::Sum;
pub use writer::{COPY_BREAK, Placed, Writer};
