//! Small segments in large pages: they are copied together where the receiver's buffer has no room for as many pages, and none that its window
//! promised to take is dropped. What nobody can read here stays where it is.

use crate::net::{Net, receive, send};
use onecopy_chain::{Chain, Checksum, Fragment};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::{Received, Stats};
use onecopy_link::Link;
use onecopy_link::pair::Path;
use onecopy_pool::provider::{Heap, Opaque};
use onecopy_pool::{DeviceId, PagePool, PoolConfig};
use std::time::Duration;

const LARGE: u64 = 16 << 10;
const MS: u64 = 1_000_000;

/// Host `a` sends at once, from large pages; host `b` has a small buffer.
fn connected(buffer: u32) -> (Net, Id, Id) {
    let mut net = Net::new(Path::new().delay(Duration::from_micros(50)), 1);
    net.pool = PagePool::new(PoolConfig::new().order(2), Heap::new()).unwrap();
    let listener = net.listen(80);
    net.b.stack.tcp_set(0, listener, |set| set.receive_buffer = Some(buffer)).unwrap();
    let (a, b) = net.connect(listener, 80);
    net.a.stack.tcp_set(net.wire.now(), a, |set| set.nodelay = true).unwrap();
    (net, a, b)
}

/// Bytes of pages that somebody holds.
fn kept(pool: &PagePool) -> u64 {
    let stats = pool.stats();
    (stats.in_flight - stats.in_cache - stats.in_ring) * u64::from(pool.page_len())
}

/// Segments that were lost. (Who asks for a delayed ACK sends again, too.)
fn sent_again(stats: &Stats) -> u64 {
    stats.retransmitted.saturating_sub(stats.loss_probes)
}

fn bytes(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

/// Over the wire a payload goes by reference, so each segment keeps the page that it was written to.
#[test]
fn single_bytes_in_large_pages_are_copied_together() {
    const BUFFER: u64 = 64 << 10;
    let (mut net, a, b) = connected(BUFFER as u32);
    let mut most = 0;
    for at in 0..3000 {
        let now = net.now();
        assert_eq!(send(&mut net.a, &net.pool, now, a, &bytes(at, 1)), 1);
        // Until it is acknowledged.
        net.run(50 * MS);
        most = most.max(net.b.stack.tcp_memory());
        assert!(kept(&net.pool) <= BUFFER + LARGE, "{} at {at}", kept(&net.pool));
    }
    assert!(most <= BUFFER + LARGE, "{most} bytes");
    let (tx, rx) = (net.a.stack.tcp_stats(), net.b.stack.tcp_stats());
    assert_eq!((sent_again(tx), rx.no_memory, rx.pruned), (0, 0, 0));
    assert!(rx.collapsed >= 3000 / 8, "{rx:?}");
    let (now, mut got) = (net.now(), Vec::new());
    receive(&mut net.b, now, b, &mut got);
    assert_eq!(got, bytes(0, 3000));
    net.run(1000 * MS);
    assert_eq!((kept(&net.pool), net.b.stack.tcp_memory()), (0, 0));
}

#[test]
fn what_the_window_promised_is_kept_whatever_the_size_of_segments() {
    for buffer in [2304, 4608, 16_384, 100_000] {
        for len in [1, 100, 700, 1460] {
            let (mut net, a, b) = connected(buffer);
            let edge = |net: &Net| net.b.stack.tcp_connection(b).unwrap().receiver().edge();
            let (mut sent, mut told) = (0, edge(&net));
            for _ in 0..500 {
                let now = net.now();
                sent += send(&mut net.a, &net.pool, now, a, &bytes(sent, len));
                net.run(MS / 2);
                assert!(!edge(&net).before(told), "the window of {buffer} goes back, with {len} each");
                told = edge(&net);
            }
            let (tx, rx) = (net.a.stack.tcp_stats(), net.b.stack.tcp_stats());
            assert_eq!((sent_again(tx), rx.no_memory), (0, 0), "{buffer} bytes, {len} each");
            let mut got = Vec::new();
            for _ in 0..20_000 {
                if got.len() >= sent {
                    break;
                }
                let now = net.now();
                receive(&mut net.b, now, b, &mut got);
                net.run(5 * MS);
            }
            assert!(got == bytes(0, sent), "{} of {sent} bytes, {len} each, into {buffer}", got.len());
            assert_eq!(net.b.stack.tcp_stats().no_memory, 0);
        }
    }
}

/// A device's memory cannot be copied here. So there is a limit on its pages, and what comes beyond is dropped, counted, and sent again.
#[test]
fn what_nobody_can_read_stays_where_it_is() {
    const BUFFER: u64 = 64 << 10;
    let gpu = PagePool::new(PoolConfig::new(), Opaque::new(DeviceId(1))).unwrap();
    let (mut net, a, b) = connected(BUFFER as u32);
    let pass = |net: &mut Net, ms: u64| {
        let until = net.now() + ms * MS;
        loop {
            let now = net.now();
            while let Some(mut packet) = net.b.link.receive(now) {
                let len = packet.payload().payload().len();
                if len > 0 {
                    let mut chain = Chain::new();
                    while chain.len() < len {
                        let part = (len - chain.len()).min(4096);
                        chain.append(Fragment::new(gpu.alloc().unwrap(), 0, part).unwrap()).unwrap();
                    }
                    chain.set_checksum(Checksum::Verified).unwrap();
                    *packet.payload_mut() = chain.into();
                    packet.set_checksum(Checksum::Verified).unwrap();
                }
                net.b.stack.receive(now, packet);
            }
            if !net.step(until) {
                break;
            }
        }
        net.wire.advance(until);
    };
    for _ in 0..100 {
        let now = net.now();
        send(&mut net.a, &net.pool, now, a, &[7; 100]);
        pass(&mut net, 1);
        assert!(kept(&gpu) <= BUFFER + 4096, "{} bytes", kept(&gpu));
    }
    let rx = net.b.stack.tcp_stats();
    assert!(rx.no_memory > 0 && rx.collapsed == 0, "{rx:?}");
    let mut got = 0;
    for _ in 0..1000 {
        let now = net.now();
        while let Ok(Received::Data(data)) = net.b.stack.tcp_receive(now, b, usize::MAX) {
            assert!(data.payload().host().is_err());
            got += data.payload().len();
        }
        if got == 10_000 {
            break;
        }
        pass(&mut net, 100);
    }
    assert_eq!((got, kept(&gpu)), (10_000, 0));
}

/// As tcp_sendmsg() does with the last sk_buff: what has not left yet takes more bytes, in its page and in its segment.
#[test]
fn small_sends_behind_a_closed_window_share_pages_and_segments() {
    let (mut net, a, b) = connected(4608);
    let now = net.now();
    assert_eq!(send(&mut net.a, &net.pool, now, a, &bytes(0, 5000)), 5000);
    net.run(10 * MS);
    let now = net.now();
    let (before, left) = (kept(&net.pool), net.a.stack.tcp_stats().segments_out);
    for at in (5000..15_000).step_by(10) {
        assert_eq!(send(&mut net.a, &net.pool, now, a, &bytes(at, 10)), 10);
    }
    assert!(kept(&net.pool) <= before + LARGE, "{} bytes more", kept(&net.pool) - before);
    net.b.stack.tcp_set(now, b, |set| set.receive_buffer = Some(200_000)).unwrap();
    let mut got = Vec::new();
    while got.len() < 15_000 {
        let now = net.now();
        receive(&mut net.b, now, b, &mut got);
        net.run(10 * MS);
    }
    assert!(got == bytes(0, 15_000));
    let segments = net.a.stack.tcp_stats().segments_out - left;
    assert!(segments < 30, "{segments} segments for 1,000 sends");
}
