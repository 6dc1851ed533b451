//! What both ends of a connection are: their addresses, and what their links do.

use std::net::Ipv4Addr;

use anyhow::{Result, anyhow};
use onecopy::advanced::link::{Capabilities, Medium};
use onecopy::advanced::pool::provider::Heap;
use onecopy::advanced::pool::{Page, PagePool, PoolConfig};

use crate::rows::bytes;

/// Who sends.
pub const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Who receives.
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Ethernet's MTU, and all that a card does: super-segments, checksums.
pub fn capabilities() -> Capabilities {
    Capabilities::all(Medium::Ip, 1500)
}

/// A pool, and a page of it with the bytes that are sent again and again. Pages are the smallest that take a send of `size` bytes whole: few lie in a round trip, so
/// that they stay hot for the copy, and the receiver, who is charged for pages, is charged for little more than bytes.
pub fn hot(size: usize) -> Result<(PagePool, Page)> {
    let order = size.div_ceil(4096).next_power_of_two().trailing_zeros() as u8;
    let pool = PagePool::new(PoolConfig::new().order(order), Heap::new())?;
    let mut buffer = pool.alloc()?;
    bytes::fill(buffer.bytes_mut().ok_or_else(|| anyhow!("a fresh page is shared"))?, 7, 0);
    Ok((pool, buffer))
}
