//! Two stacks on a cable, and chains that are known again.

use onecopy_chain::{Chain, Fragment};
use onecopy_link::Tap;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::zerocopy::{Allowance, Small};
use onecopy_net::{Builder, Driver, Stack};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use std::net::SocketAddr;
use std::time::Duration;

pub fn pool() -> PagePool {
    PagePool::new(PoolConfig::new(), Heap::new()).unwrap()
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// A chain of pages of `pool` with these bytes.
pub fn chain(pool: &PagePool, bytes: &[u8]) -> Chain {
    let mut chain = Chain::new();
    for part in bytes.chunks(4096) {
        let mut page = pool.alloc().unwrap();
        page.bytes_mut().unwrap()[..part.len()].copy_from_slice(part);
        chain.append(Fragment::new(page, 0, part.len()).unwrap()).unwrap();
    }
    chain
}

/// Whether nobody else has a reference to any page of it.
pub fn is_ours_alone(chain: &Chain) -> bool {
    chain.fragments().all(|fragment| fragment.page().is_unique())
}

/// Nothing is copied for its size, so that tests do not depend on what this machine measures; and nothing is charged to other tests.
pub const NEVER: Allowance = Allowance { pinned: None, unread: 128 << 10, small: Small::Below(0) };

/// The second one has a thread of its own, so that it answers whoever drives the first.
pub fn stacks_with(driver: Driver, change: impl Fn(Builder) -> Builder) -> (Stack, Stack) {
    let (a, b) = Tap::cable(1500).unwrap();
    let build = |tap, address, driver| {
        let linger = Duration::from_millis(50);
        change(Stack::builder().linger(linger).link(tap).address(address).driver(driver).zerocopy(NEVER))
            .build()
            .unwrap()
    };
    (build(a, "10.0.0.1/24", driver), build(b, "10.0.0.2/24", Driver::Thread))
}

pub fn stacks() -> (Stack, Stack) {
    stacks_with(Driver::Thread, |builder| builder)
}

/// A connection, the client's end first.
pub fn pair(a: &Stack, b: &Stack) -> (Stream, Stream) {
    let listener = Listener::bind(b, SocketAddr::from(([10, 0, 0, 2], 0))).unwrap();
    let client = Stream::connect(a, listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}
