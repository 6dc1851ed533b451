//! Two stacks that reach each other, whoever carries their bytes: joined by cables, or by the kernel's loopback.

use onecopy_link::Tap;
use onecopy_net::{BuildError, Carrier, Stack, Transport};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub struct World {
    pub a: Stack,
    pub b: Stack,
    pub hosts: (IpAddr, IpAddr),
}

impl World {
    /// Of so many shards each. None where io_uring is forbidden: said, and nothing is tried.
    pub fn new(carrier: Carrier, shards: u32) -> Option<World> {
        if carrier == Carrier::Kernel {
            let build = || Stack::builder().transport(Transport::Kernel).shards(shards).build();
            let (a, b) = match (build(), build()) {
                (Ok(a), Ok(b)) => (a, b),
                (Err(BuildError::Uring(refused)), _) | (_, Err(BuildError::Uring(refused))) => {
                    println!("lacking: io_uring ({refused})");
                    return None;
                }
                (Err(error), _) | (_, Err(error)) => panic!("{error}"),
            };
            return Some(World { a, b, hosts: (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()) });
        }
        // (Each queue of one is joined to one of the other, which seldom is the right one's.)
        let (a, b): (Vec<_>, Vec<_>) = (0..shards).map(|_| Tap::cable(1500).unwrap()).unzip();
        let build = |taps, address| Stack::builder().links::<Tap>(taps).address(address).build().unwrap();
        let (a, b) = (build(a, "10.0.0.1/24"), build(b, "10.0.0.2/24"));
        Some(World { a, b, hosts: ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()) })
    }

    /// At the second one.
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.hosts.1, port)
    }

    /// Whether each shard of the second one has had something to do: one that took connections.
    #[allow(dead_code, reason = "not of every program")]
    pub fn all_took_part(&self) -> bool {
        let ring = |shard| {
            let counters = self.b.shard_counters(shard).unwrap();
            // Its sockets' requests come behind the one to watch what wakes it.
            counters.into_iter().any(|(name, count)| name == "requests" && count > 2)
        };
        (0..self.b.shards()).all(|shard| match self.b.carrier() {
            Carrier::Kernel => ring(shard),
            _ => self.b.with_shard(shard, |inet| inet.tcp_stats().passive_opens) > 0,
        })
    }
}

/// Tests of a runtime's, which take a [`World`]: with each carrier, and with several rings.
#[allow(unused_macros, reason = "not of every program")]
macro_rules! with_each_carrier {
    ($($name:ident),* $(,)?) => {
        with_each_carrier! { @ own onecopy_net::Carrier::Stack, 1, $($name),* }
        with_each_carrier! { @ kernel onecopy_net::Carrier::Kernel, 1, $($name),* }
        with_each_carrier! { @ kernel_shards onecopy_net::Carrier::Kernel, 3, $($name),* }
    };
    (@ $module:ident $carrier:expr, $shards:expr, $($name:ident),*) => {
        mod $module {
            $(#[tokio::test]
            async fn $name() {
                if let Some(world) = crate::carriers::World::new($carrier, $shards) {
                    super::$name(&world).await;
                }
            })*
        }
    };
}
#[allow(unused_imports, reason = "not of every program")]
pub(crate) use with_each_carrier;
