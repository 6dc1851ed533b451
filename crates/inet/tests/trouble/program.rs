//! Random programs over random wires.

use crate::net::{A, B};
use crate::world::{PORT, World};
use onecopy_inet::stack::demux::Ends;
use onecopy_inet::stack::isn::Isn;
use onecopy_inet::tcp::config::EcnUse;
use onecopy_inet::tcp::{SendFlags, Side as Way};
use onecopy_link::pair::{Path, Side};
use onecopy_link::{Capabilities, Medium};
use proptest::prelude::*;
use std::net::SocketAddr;
use std::time::Duration;

/// Where the first connection comes from.
const FROM: u16 = 1234;

#[derive(Clone, Debug)]
enum Op {
    Connect(usize),
    Accept(usize),
    Send { link: usize, end: usize, len: usize, by_reference: bool, flags: u8 },
    Receive { link: usize, end: usize, max: usize },
    Peek { link: usize, end: usize, offset: u64, max: usize },
    Shutdown { link: usize, end: usize, way: Way },
    Close { link: usize, end: usize },
    Abort { link: usize, end: usize },
    Set { link: usize, end: usize, which: u8, value: u32 },
    Listen { side: usize, open: bool },
    Wire(Wire),
    Run(u64),
}

#[derive(Clone, Debug)]
struct Wire {
    delay_us: u64,
    rate: Option<u64>,
    loss: f64,
    duplicate: f64,
    reorder: f64,
    corrupt: f64,
    jitter_us: u64,
    queue: u64,
    whole: bool,
}

impl Wire {
    fn path(&self) -> Path {
        let path = Path::new()
            .delay(Duration::from_micros(self.delay_us))
            .jitter(Duration::from_micros(self.jitter_us))
            .queue(self.queue)
            .loss(self.loss)
            .duplicate(self.duplicate)
            .reorder(self.reorder, Duration::from_micros(self.delay_us / 2 + 100))
            .corrupt(self.corrupt)
            .whole(self.whole);
        match self.rate {
            Some(rate) => path.rate(rate),
            None => path,
        }
    }
}

fn wire() -> impl Strategy<Value = Wire> {
    let chance = |most: f64| prop_oneof![2 => Just(0.0), 1 => 0.0..most];
    let rate = prop::option::of(prop_oneof![200_000..2_000_000u64, 10_000_000..1_000_000_000u64]);
    let times = (prop_oneof![0..1_000u64, 1_000..60_000u64], 0..2_000u64);
    let loss = prop_oneof![3 => chance(0.05).boxed(), 1 => (0.0..0.3).boxed()];
    let queue = prop_oneof![1 => 4_000..20_000u64, 3 => Just(1u64 << 20)];
    (times, rate, loss, chance(0.1), chance(0.1), chance(0.03), queue, any::<bool>()).prop_map(
        |((delay_us, jitter_us), rate, loss, duplicate, reorder, corrupt, queue, whole)| Wire {
            delay_us,
            rate,
            loss,
            duplicate,
            reorder,
            corrupt,
            jitter_us,
            queue,
            whole,
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let at = || (0..6usize, 0..2usize);
    let len =
        prop_oneof![1 => Just(0usize), 4 => 1..3000usize, 3 => 3000..40_000usize, 1 => 40_000..300_000usize];
    let time =
        prop_oneof![1 => Just(0u64), 6 => 0..5_000_000u64, 6 => 0..300_000_000u64, 1 => 0..20_000_000_000u64];
    let max = prop_oneof![1..100usize, 100..100_000usize];
    prop_oneof![
        3 => (0..2usize).prop_map(Op::Connect),
        4 => (0..2usize).prop_map(Op::Accept),
        14 => (at(), len, any::<bool>(), 0..4u8).prop_map(|((link, end), len, by_reference, flags)| {
            let flags = if flags < 2 { 0 } else { flags };
            Op::Send { link, end, len, by_reference, flags }
        }),
        8 => (at(), max.clone()).prop_map(|((link, end), max)| Op::Receive { link, end, max }),
        2 => (at(), 0..50_000u64, max).prop_map(|((link, end), offset, max)| Op::Peek { link, end, offset, max }),
        1 => (at(), prop_oneof![1 => Just(Way::Read), 3 => Just(Way::Write), 1 => Just(Way::Both)])
            .prop_map(|((link, end), way)| Op::Shutdown { link, end, way }),
        1 => at().prop_map(|(link, end)| Op::Close { link, end }),
        1 => at().prop_map(|(link, end)| Op::Abort { link, end }),
        3 => (at(), 0..10u8, any::<u32>())
            .prop_map(|((link, end), which, value)| Op::Set { link, end, which, value }),
        1 => (0..2usize, prop::bool::weighted(0.8)).prop_map(|(side, open)| Op::Listen { side, open }),
        1 => wire().prop_map(Op::Wire),
        14 => time.prop_map(Op::Run),
    ]
}

fn run(world: &mut World, op: &Op) {
    let has = |world: &World, link: usize| link < world.links.len();
    match *op {
        Op::Connect(side) if world.links.len() < 6 => world.connect(side, 0),
        Op::Connect(_) => {}
        Op::Accept(side) => world.accept(side),
        Op::Listen { side, open: true } => world.listen(side),
        Op::Listen { side, open: false } => world.close_listener(side),
        Op::Run(ns) => world.run(ns),
        Op::Wire(ref wire) => {
            for side in [Side::A, Side::B] {
                world.net.wire.set_path(side, wire.path());
            }
        }
        Op::Send { link, end, len, by_reference, flags } if has(world, link) => {
            world.send(link, end, len, by_reference, SendFlags::from_bits_truncate(flags));
        }
        Op::Receive { link, end, max } if has(world, link) => {
            world.receive(link, end, max);
        }
        Op::Peek { link, end, offset, max } if has(world, link) => world.peek(link, end, offset, max),
        Op::Shutdown { link, end, way } if has(world, link) => world.shutdown(link, end, way),
        Op::Close { link, end } if has(world, link) => world.close(link, end),
        Op::Abort { link, end } if has(world, link) => world.abort(link, end),
        Op::Set { link, end, which, value } if has(world, link) => {
            world.set(link, end, |settings| match which {
                0 => settings.nodelay = value % 2 == 0,
                1 => settings.cork = value % 2 == 0,
                2 => settings.send_buffer = Some(4608 + value % 100_000),
                3 => settings.receive_buffer = Some(2304 + value % 100_000),
                4 => settings.receive_low_water = 1 + value % 3000,
                5 => settings.notsent_lowat = Some(1 + value % 20_000),
                6 => settings.keepalive = value % 2 == 0,
                7 => settings.window_clamp = Some(1000 + value % 50_000),
                8 => settings.max_segment = Some(88 + (value % 1500) as u16),
                _ => settings.congestion = None,
            });
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 600, failure_persistence: None, ..ProptestConfig::with_cases(
        std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(60)) })]

    /// Bytes come in order and once, each send is told of once and not too early, nothing becomes possible that nobody is told of, no timer
    /// runs wild, and nothing is left.
    #[test]
    fn programs_get_what_they_were_promised(
        first in wire(),
        ops in prop::collection::vec(op(), 1..120),
        seed in any::<u64>(),
        offload in any::<bool>(),
        mtu in prop_oneof![3 => Just(1500u32), 1 => 600..9000u32],
        (wraps, without, small) in (0..2_000_000u32, 0..64u8, any::<bool>()),
    ) {
        let of = if offload { Capabilities::all(Medium::Ethernet, mtu) } else { Capabilities::none(Medium::Ethernet, mtu) };
        // The first one's numbers pass 2^32 after so many bytes.
        let (from, to) = (SocketAddr::new(A.into(), FROM), SocketAddr::new(B.into(), PORT[1]));
        let secret = Isn::new(&[1; 16]).sequence(0, &Ends::new(from, to));
        let start = u64::from(0u32.wrapping_sub(wraps).wrapping_sub(secret.0)) * 4000;
        let mut world = World::new(first.path(), seed, of, start, |side, config| {
            let tcp = &mut config.tcp;
            // Mostly with all that there is; without some of it on one side, or both.
            let lacks = |bit: u8| without & 1 << bit != 0 && (without < 32 || side == Side::A);
            tcp.timestamps = !lacks(0);
            tcp.sack = !lacks(1);
            tcp.window_scaling = !lacks(2);
            tcp.ecn = if lacks(3) { EcnUse::Ask } else { EcnUse::Accept };
            if small {
                tcp.rmem = [4096, 16_384, 65_536];
                tcp.wmem = [4096, 16_384, 65_536];
            }
        });
        world.connect(0, FROM);
        for op in &ops {
            run(&mut world, op);
        }
        for side in [Side::A, Side::B] {
            world.net.wire.set_path(side, Path::new().delay(Duration::from_millis(1)));
        }
        world.drain();
        world.end();
    }
}
