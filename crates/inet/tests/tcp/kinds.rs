//! Payload of several kinds of memory in one stream: none is left out, and none is joined to what it cannot be in one chain with.

use crate::net::Net;
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Fragment, Kind, Writer};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::{Error, Received, SendFlags};
use onecopy_link::pair::Path;
use onecopy_link::{Capabilities, Medium};
use onecopy_pool::provider::Opaque;
use onecopy_pool::{DeviceId, PagePool, PoolConfig};
use std::time::Duration;

fn device(pool: &PagePool, len: usize) -> Segment<Chain> {
    Chain::from(Fragment::new(pool.alloc().unwrap(), 0, len).unwrap()).into()
}

fn host(net: &Net, len: usize) -> Segment<Chain> {
    let mut chain = Chain::new();
    Writer::new(&net.pool).append(&mut chain, &vec![7; len]).unwrap();
    chain.into()
}

/// Kinds and bytes of what b has received, neighbours of a kind as one.
fn got(net: &mut Net, b: Id, runs: &mut Vec<(Kind, usize)>) {
    let now = net.now();
    while let Ok(Received::Data(data)) = net.b.stack.tcp_receive(now, b, usize::MAX) {
        let (kind, len) = (data.payload().kind().unwrap(), data.payload().len());
        match runs.last_mut().filter(|(last, _)| *last == kind) {
            Some((_, sum)) => *sum += len,
            None => runs.push((kind, len)),
        }
    }
}

/// Sends small parts of both kinds in turns, as one write of many while corked, and looks that they come as they were.
fn alternate(path: Path, corked: bool, seed: u64) {
    let mut net = Net::new(Path::new(), seed);
    let gpu = PagePool::new(PoolConfig::new(), Opaque::new(DeviceId(1))).unwrap();
    let listener = net.listen(80);
    let (a, b) = net.connect(listener, 80);
    net.wire.set_path(onecopy_link::pair::Side::A, path);
    let now = net.now();
    net.a.stack.tcp_set(now, a, |settings| (settings.cork, settings.nodelay) = (corked, !corked)).unwrap();
    let parts =
        [(Kind::Host, 100), (Kind::Device, 300), (Kind::Host, 2000), (Kind::Device, 4000), (Kind::Host, 1)];
    for (kind, len) in parts {
        let mut data = if kind == Kind::Device { device(&gpu, len) } else { host(&net, len) };
        assert_eq!(net.a.stack.tcp_send(now, a, &mut data, SendFlags::empty()), Ok(len));
    }
    net.a.stack.tcp_set(now, a, |settings| settings.cork = false).unwrap();
    let mut runs = Vec::new();
    for _ in 0..600 {
        net.run(200_000_000);
        got(&mut net, b, &mut runs);
    }
    assert_eq!(runs, parts, "corked {corked}, seed {seed}");
    let now = net.now();
    net.a.stack.tcp_close(now, a);
    net.b.stack.tcp_close(now, b);
    net.run(1_000_000_000);
    let stats = gpu.stats();
    assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring, "none is kept, seed {seed}");
}

#[test]
fn a_piece_that_begins_in_one_kind_of_memory_and_ends_in_another_comes_whole() {
    alternate(Path::new().delay(Duration::from_millis(1)), true, 1);
    alternate(Path::new().delay(Duration::from_millis(1)), false, 1);
}

#[test]
fn what_is_sent_again_of_both_kinds_comes_whole() {
    for seed in 0..40 {
        let path = Path::new().delay(Duration::from_millis(1)).loss(0.4);
        alternate(path.clone(), true, seed);
        alternate(path, false, seed);
    }
}

#[test]
fn a_link_that_takes_no_device_memory_has_it_refused_at_once() {
    for (unreadable, checksum) in [(false, true), (true, false)] {
        let of = Capabilities { unreadable, checksum, ..Capabilities::all(Medium::Ethernet, 1500) };
        let mut net = Net::with(Path::new(), 1, of, |_, _| ());
        let gpu = PagePool::new(PoolConfig::new(), Opaque::new(DeviceId(1))).unwrap();
        let listener = net.listen(80);
        let (a, b) = net.connect(listener, 80);
        let (now, mut data) = (net.now(), device(&gpu, 300));
        assert_eq!(net.a.stack.tcp_send(now, a, &mut data, SendFlags::empty()), Err(Error::DeviceMemory));
        assert_eq!(
            (data.payload().len(), net.a.stack.tcp_stats().device_memory),
            (300, 1),
            "it is the caller's"
        );
        // The connection goes on with what the link takes.
        assert_eq!(net.a.stack.tcp_send(now, a, &mut host(&net, 300), SendFlags::empty()), Ok(300));
        let mut runs = Vec::new();
        net.run(100_000_000);
        got(&mut net, b, &mut runs);
        assert_eq!(runs, [(Kind::Host, 300)]);
    }
}
