//! What an idle connection costs, after traffic: a test by itself, since it counts all that its process allocates.

use onecopy_chain::Writer;
use onecopy_inet::ip::{self, Cidr};
use onecopy_inet::stack::{Config, Stack};
use onecopy_inet::tcp::{Connection, Error, Received, SendFlags};
use onecopy_inet::wire::Mac;
use onecopy_link::{Capabilities, Medium};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use std::net::{Ipv4Addr, SocketAddr};

const CONNECTIONS: usize = 100_000;
/// So many at once: as many as a listener keeps waiting.
const BATCH: usize = 1000;
/// The bytes of one, of both ends' timers, tables and sockets together, halved.
const MOST: u64 = 800;

fn stack(host: u8) -> Stack {
    let address = Cidr::new(Ipv4Addr::new(10, 0, 0, host), 24).unwrap();
    let ip = ip::Config::new(Capabilities::all(Medium::Ip, 1500), Mac::default(), &[address], [host; 16]);
    Stack::new(Config::new(ip, [host; 16])).unwrap()
}

/// Hands packets over until there are none.
fn exchange(now: u64, a: &mut Stack, b: &mut Stack) {
    loop {
        let mut any = false;
        while let Some(packet) = a.transmit() {
            b.receive(now, packet);
            any = true;
        }
        while let Some(packet) = b.transmit() {
            a.receive(now, packet);
            any = true;
        }
        if !any {
            return;
        }
    }
}

#[test]
fn an_idle_connection_costs_800_bytes_at_most() {
    let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
    let (mut a, mut b) = (stack(1), stack(2));
    let mut now = 1_000_000_000;
    let mut ends = Vec::with_capacity(CONNECTIONS);
    let counted = allocation_counter::measure(|| {
        for batch in 0..CONNECTIONS / BATCH {
            let port = 80 + (batch / 10) as u16;
            let place = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), port);
            let listener = b.tcp_open().unwrap();
            b.tcp_bind(listener, place, true).unwrap();
            b.tcp_listen(listener, BATCH as u32).unwrap();
            let begun: Vec<_> = (0..BATCH)
                .map(|_| {
                    let id = a.tcp_open().unwrap();
                    assert_eq!(a.tcp_connect(now, id, place), Err(Error::InProgress));
                    id
                })
                .collect();
            exchange(now, &mut a, &mut b);
            // A request, its answer, and the ACK of that.
            for id in begun {
                let (child, _) = b.tcp_accept(listener).unwrap();
                a.tcp_send_bytes(now, id, &[7; 3000], &Writer::new(&pool), SendFlags::empty()).unwrap();
                exchange(now, &mut a, &mut b);
                ends.push((id, child));
            }
            for (_, child) in &ends[batch * BATCH..] {
                let mut got = 0;
                while let Ok(Received::Data(data)) = b.tcp_receive(now, *child, usize::MAX) {
                    got += data.payload().len();
                }
                assert_eq!(got, 3000);
                b.tcp_send_bytes(now, *child, &[8; 2000], &Writer::new(&pool), SendFlags::empty()).unwrap();
                exchange(now, &mut a, &mut b);
            }
            for (id, _) in &ends[batch * BATCH..] {
                while let Ok(Received::Data(_)) = a.tcp_receive(now, *id, usize::MAX) {}
            }
            b.tcp_close(now, listener);
            // What waits is over after a second or two: delayed ACKs, probes of the tail, memory that is kept in case that more comes.
            for _ in 0..3 {
                now += 1_000_000_000;
                a.advance(now);
                b.advance(now);
                exchange(now, &mut a, &mut b);
            }
            while a.event().is_some() || b.event().is_some() {}
        }
    });
    assert_eq!((a.len(), b.len()), (CONNECTIONS, CONNECTIONS));
    assert_eq!((a.deadline(), b.deadline()), (None, None), "nobody waits for anything");
    let stats = pool.stats();
    assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring, "no connection keeps a page");
    let each = counted.bytes_current.unsigned_abs() / (2 * CONNECTIONS as u64);
    println!("an idle connection has {each} bytes, {} of them by itself", size_of::<Connection>());
    assert!(each <= MOST, "{each} bytes");
}
