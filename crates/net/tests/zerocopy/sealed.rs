//! Memory that nobody can change, lent to a stack page by page.

use crate::world::{NEVER, pair, pattern, stacks};
use onecopy_chain::Chain;
use onecopy_link::Tap;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{Driver, Sealed, Stack};
use onecopy_sys::frozen::Frozen;
use rustix::fs::{MemfdFlags, memfd_create};
use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

/// Of a few pages, so it has as few slots as any.
const SLOTS: usize = 1024;

fn sealed(bytes: &[u8]) -> Sealed {
    let file = memfd_create("onecopy-test", MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(rustix::io::pwrite(&file, bytes, 0), Ok(bytes.len()));
    Sealed::new(&Frozen::read(&file, bytes.len(), &mut 0).unwrap()).unwrap()
}

/// All slots that are free, each with a byte.
fn rest(sealed: &Sealed) -> Vec<Chain> {
    std::iter::from_fn(|| Some(sealed.chain(0, 1)).filter(|chain| !chain.is_empty())).collect()
}

/// Asks until `done`: never longer than a minute.
fn until(mut done: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("a minute was not enough");
}

#[test]
fn pages_come_back_by_the_acknowledgement_and_not_before() {
    let (a, b) = Tap::cable(1500).unwrap();
    let build = |tap, address, driver| {
        let builder = Stack::builder().linger(Duration::from_millis(50)).link(tap).address(address);
        builder.driver(driver).zerocopy(NEVER).build().unwrap()
    };
    let (a, b) = (build(a, "10.0.0.1/24", Driver::Thread), build(b, "10.0.0.2/24", Driver::Caller));
    let listener = Listener::bind(&b, SocketAddr::from(([10, 0, 0, 2], 0))).unwrap();
    let to = listener.local_addr().unwrap();
    let connecting = std::thread::spawn(move || Stream::connect(&a, to).map(|stream| (stream, a)).unwrap());
    let mut server = listener.accept().unwrap().0;
    let (client, _a) = connecting.join().unwrap();
    let data = pattern(4 * 4096);
    let sealed = sealed(&data);
    let chain = sealed.chain(0, data.len());
    assert_eq!(chain.len(), data.len());
    let held = rest(&sealed);
    assert_eq!(held.len(), SLOTS - 4);
    assert_eq!(client.send_chain(chain).unwrap(), data.len());
    // From here on nobody drives the peer, so nothing is acknowledged, whatever has left.
    until(|| client.info().data_segs_out > 0);
    assert!(sealed.chain(0, 1).is_empty());
    let mut all = vec![0; data.len()];
    server.read_exact(&mut all).unwrap();
    assert!(all == data);
    until(|| {
        b.drive(Duration::ZERO).unwrap();
        sealed.chain(0, data.len()).len() == data.len()
    });
    assert_eq!(client.stats().referenced, data.len() as u64);
    drop(held);
    assert_eq!(rest(&sealed).len(), SLOTS);
}

#[test]
fn slots_are_used_again_and_none_is_lost() {
    let (a, b) = stacks();
    let (client, mut server) = pair(&a, &b);
    let data = pattern(3 * 4096 + 77);
    let sealed = sealed(&data);
    // Whole pages, parts of them, and what lies across two.
    let sends: Vec<_> = (0..3 * SLOTS).map(|n| (n * 997 % (data.len() - 700), 1 + n * 31 % 700)).collect();
    let wanted: Vec<u8> = sends.iter().flat_map(|&(at, len)| &data[at..][..len]).copied().collect();
    let count = wanted.len();
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; count];
        server.read_exact(&mut all).unwrap();
        (all, server)
    });
    for (at, len) in sends {
        let mut done = 0;
        until(|| {
            // Of fewer bytes where most slots are under way.
            let chain = sealed.chain(at + done, len - done);
            if !chain.is_empty() {
                done += client.send_chain(chain).unwrap();
            }
            done == len
        });
    }
    let (all, _server) = reader.join().unwrap();
    assert!(all == wanted);
    until(|| rest(&sealed).len() == SLOTS);
}
