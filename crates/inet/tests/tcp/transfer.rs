//! Bytes go over, whatever the wire does to packets.

use crate::net::{Net, receive, send};
use onecopy_inet::tcp::{Side, State};
use onecopy_link::pair::Path;
use std::time::Duration;

/// Sends `len` bytes from a to b, closes both ends, and looks that all came.
fn transfer(net: &mut Net, len: usize, limit_s: u64) {
    let bytes: Vec<u8> =
        (0..len).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let listener = net.listen(80);
    let (a, b) = net.connect(listener, 80);
    let (mut sent, mut got, mut over) = (0, Vec::new(), false);
    let limit = net.now() + limit_s * 1_000_000_000;
    let mut goes_on = true;
    loop {
        let now = net.now();
        if sent < len {
            sent += send(&mut net.a, &net.pool, now, a, &bytes[sent..]);
            if sent == len {
                net.a.stack.tcp_shutdown(now, a, Side::Write).unwrap();
            }
        }
        over = over || receive(&mut net.b, now, b, &mut got);
        if over {
            break;
        }
        if !goes_on {
            net.report();
            let info = net.a.stack.tcp_info(now, a);
            panic!("{sent} of {len} sent, {} came, seed {}, {info:#?}", got.len(), net.wire.seed());
        }
        goes_on = net.step(limit);
    }
    assert!(got == bytes, "what came is not what was sent, seed {}", net.wire.seed());
    let now = net.now();
    net.b.stack.tcp_close(now, b);
    net.a.stack.tcp_close(now, a);
    net.run(200_000_000_000);
    let seed = net.wire.seed();
    assert_eq!((net.a.stack.len(), net.b.stack.len()), (0, 1), "only the listener is left, seed {seed}");
    net.b.stack.tcp_close(net.wire.now(), listener);
    assert!(net.b.stack.is_empty());
    assert_eq!(net.a.stack.tcp_state(a), None::<State>);
    drop(got);
    let stats = net.pool.stats();
    assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring, "seed {seed}: {stats:?}");
}

#[test]
fn bytes_cross_a_quiet_wire() {
    let mut net = Net::new(Path::new().delay(Duration::from_micros(50)), 1);
    transfer(&mut net, 3_000_000, 60);
    assert_eq!(net.a.stack.tcp_stats().retransmitted, 0);
}

#[test]
fn bytes_cross_a_wire_that_loses_reorders_and_repeats() {
    for seed in 0..20 {
        let path = Path::new()
            .delay(Duration::from_millis(5))
            .rate(100_000_000)
            .loss(0.02)
            .duplicate(0.02)
            .reorder(0.05, Duration::from_millis(3))
            .corrupt(0.01);
        let mut net = Net::new(path, seed);
        transfer(&mut net, 400_000, 600);
    }
}
