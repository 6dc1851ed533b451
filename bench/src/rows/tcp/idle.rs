//! What a packet costs where many other connections are open on which nothing happens: two stacks of ours on one thread, in virtual time.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use onecopy::advanced::chain::Writer;
use onecopy::advanced::link::pair::{End, Pair, PairConfig};
use onecopy::advanced::link::{Capabilities, Link, Medium};
use onecopy::advanced::pool::provider::Heap;
use onecopy::advanced::pool::{PagePool, PoolConfig};
use onecopy_inet::ip::{self, Cidr};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Config, Stack};
use onecopy_inet::tcp::{Error, Received, SendFlags, State};
use onecopy_inet::wire::Mac;

use super::plan::{ENGINE, PEER, PREFIX};
use super::{MESSAGE, PACKET};
use crate::row::{Case, Context, Reach, Sample, Scale, Session, Work};
use crate::rows::bytes;
use crate::rows::pinned::pinned;

const PORT: u16 = 80;
/// Nanoseconds that pass with each round trip.
const STEP: u64 = 10_000;
/// Turns in which a connection is made, and a message there and back.
const TURNS: u32 = 100;

/// The case.
pub fn case(scale: Scale) -> Case {
    let idle = if scale == Scale::Smoke { 500 } else { 10_000 };
    Case {
        name: "packet/idle".to_owned(),
        engines: vec!["alone", "idle"],
        baseline: "alone",
        reach: vec![Reach::at_most_times("idle", PACKET.name, 1.25, "alone", 0.0)],
        work: Work { warmup: 1000, least: 10_000, most: 10_000_000, step: 1 },
        open: Box::new(move |context: &Context, engine| {
            let others = match engine {
                "alone" => 0,
                "idle" => idle,
                other => bail!("there is no engine {other}"),
            };
            pinned(context, || Idle::open(others))
        }),
    }
}

/// A stack at its end of the wire.
struct Side {
    stack: Stack,
    link: End,
}

impl Side {
    fn new(link: End, address: Ipv4Addr, number: u8) -> Result<Side> {
        let cidr = Cidr::new(address, PREFIX).context("no such network")?;
        let ip = ip::Config::new(capabilities(), Mac([2, 0, 0, 0, 0, number]), &[cidr], [number; 16]);
        Ok(Side { stack: Stack::new(Config::new(ip, [number; 16]))?, link })
    }

    /// Receives and sends what there is: packets that left.
    fn turn(&mut self, now: u64) -> u64 {
        while let Some(packet) = self.link.receive(now) {
            self.stack.receive(now, packet);
        }
        if self.stack.deadline().is_some_and(|at| at <= now) {
            self.stack.advance(now);
        }
        let mut sent = 0;
        while let Some(packet) = self.stack.transmit() {
            self.link.transmit(now, packet);
            sent += 1;
        }
        while self.stack.event().is_some() {}
        sent
    }

    fn send(&mut self, pool: &PagePool, now: u64, id: Id, message: &[u8]) -> Result<()> {
        let sent = self.stack.tcp_send_bytes(now, id, message, &Writer::new(pool), SendFlags::empty())?;
        ensure!(sent == message.len(), "{sent} bytes were taken");
        Ok(())
    }

    /// What has come of the message, or nothing.
    fn receive(&mut self, now: u64, id: Id, message: &mut [u8]) -> Result<bool> {
        match self.stack.tcp_receive(now, id, message.len()) {
            Ok(Received::Data(data)) => {
                ensure!(data.payload().len() == message.len(), "a message came in parts");
                let mut at = 0;
                for slice in data.payload().host()?.slices() {
                    message[at..at + slice.len()].copy_from_slice(slice);
                    at += slice.len();
                }
                Ok(true)
            }
            Ok(Received::End) => bail!("the connection has ended"),
            Err(Error::WouldBlock) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn capabilities() -> Capabilities {
    Capabilities::all(Medium::Ip, 1500)
}

struct Idle {
    near: Side,
    far: Side,
    pool: PagePool,
    now: u64,
    /// The ends of the connection that something happens on.
    busy: (Id, Id),
    others: usize,
    trips: u64,
}

impl Idle {
    fn open(others: usize) -> Result<Idle> {
        let Pair { a, b, wire: _ } = Pair::new(PairConfig::new().seed(1).capabilities(capabilities()));
        let (mut near, mut far) = (Side::new(a, ENGINE, 1)?, Side::new(b, PEER, 2)?);
        let at = SocketAddrV4::new(PEER, PORT).into();
        let listener = far.stack.tcp_open()?;
        far.stack.tcp_bind(listener, at, false)?;
        far.stack.tcp_listen(listener, 1)?;
        let mut now = STEP;
        let mut connect = || -> Result<(Id, Id)> {
            let id = near.stack.tcp_open()?;
            // Each of them has a timer that is set for the whole time.
            near.stack.tcp_set(now, id, |settings| (settings.keepalive, settings.nodelay) = (true, true))?;
            match near.stack.tcp_connect(now, id, at) {
                Ok(()) | Err(Error::InProgress) => {}
                Err(error) => return Err(error.into()),
            }
            for _ in 0..TURNS {
                near.turn(now);
                far.turn(now);
                now += STEP;
                if near.stack.tcp_state(id) == Some(State::Established)
                    && let Ok((child, _)) = far.stack.tcp_accept(listener)
                {
                    far.stack.tcp_set(now, child, |settings| {
                        (settings.keepalive, settings.nodelay) = (true, true);
                    })?;
                    return Ok((id, child));
                }
            }
            bail!("no connection was made")
        };
        let connections = (0..=others).map(|_| connect()).collect::<Result<Vec<_>>>()?;
        let busy = connections[others / 2];
        let pool = PagePool::new(PoolConfig::new(), Heap::new())?;
        Ok(Idle { near, far, pool, now, busy, others, trips: 0 })
    }

    /// A message there and back: packets that left.
    fn trip(&mut self, message: &mut [u8]) -> Result<u64> {
        let Idle { near, far, pool, now, busy, .. } = self;
        *now += STEP;
        near.send(pool, *now, busy.0, message)?;
        let mut packets = 0;
        for _ in 0..TURNS {
            packets += near.turn(*now);
            packets += far.turn(*now);
            if far.receive(*now, busy.1, message)? {
                far.send(pool, *now, busy.1, message)?;
                packets += far.turn(*now);
            }
            packets += near.turn(*now);
            if near.receive(*now, busy.0, message)? {
                return Ok(packets);
            }
        }
        bail!("nothing came back")
    }
}

impl Session for Idle {
    fn verify(&mut self) -> Result<()> {
        for _ in 0..100 {
            let (mut message, at) = ([0; MESSAGE], self.trips * MESSAGE as u64);
            bytes::fill(&mut message, 7, at);
            self.trip(&mut message)?;
            bytes::check(&message, 7, at)?;
            self.trips += 1;
        }
        let open = self.near.stack.census().connections;
        ensure!(open == self.others + 1, "{open} connections are open");
        Ok(())
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let mut message = [0x5a; MESSAGE];
        let (began, mut packets) = (Instant::now(), 0);
        for _ in 0..work {
            packets += self.trip(&mut message)?;
        }
        let seconds = began.elapsed().as_secs_f64();
        Ok(Sample {
            seconds,
            values: vec![(PACKET.name, seconds * 1e9 / packets as f64)],
            settings: vec![
                ("idle".to_owned(), self.others.to_string()),
                ("packets a trip".to_owned(), format!("{:.2}", packets as f64 / work as f64)),
            ],
        })
    }
}
