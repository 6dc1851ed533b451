//! The same sends as datagrams of our own UDP, to a link that frees at transmit.

use std::net::SocketAddrV4;
use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};
use onecopy::advanced::chain::{Chain, Fragment, Writer};
use onecopy::advanced::link::{Capabilities, Link, Packet, Sink};
use onecopy::advanced::notify::{Config, Context as Notify, Lane, Queue, Segment};
use onecopy::advanced::pool::{Page, PagePool};
use onecopy_inet::ip::{self, Cidr};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{self, Stack};
use onecopy_inet::udp::Envelope;
use onecopy_inet::wire::Mac;

use super::ends::{PEER, US, hot};
use super::{LOOK, line};
use crate::rows::bytes;

/// Where the datagrams go: nobody is there.
const PORT: u16 = 9;
/// Sends that may wait for their completion.
const SENDS: u32 = 1023;

/// How a datagram's bytes get to the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Copied into pages of the stack's.
    Copy,
    /// By reference, and told of.
    Lent,
    /// By reference; nobody is told.
    Bare,
}

/// One engine of one case.
pub struct Datagrams {
    size: usize,
    way: Way,
    buffer: Page,
    pool: PagePool,
    lane: Lane,
    queue: Queue,
    stack: Stack,
    id: Id,
    told: u64,
}

impl Datagrams {
    pub fn new(engine: &str, size: usize) -> Result<Datagrams> {
        let way = match engine {
            "copy" => Way::Copy,
            "zc" => Way::Lent,
            other => bail!("there is no engine {other}"),
        };
        let (context, queue) = Notify::new();
        let lane = context.lane(Config { capacity: SENDS, ..Config::default() })?;
        let (pool, buffer) = hot(size)?;
        let network = Cidr::new(US, 24).ok_or_else(|| anyhow!("no such network"))?;
        // (The stack takes no MTU longer than IP's longest packet.)
        let link = Capabilities { mtu: u16::MAX.into(), ..Sink::new().capabilities() };
        let config = ip::Config::new(link, Mac([2, 0, 0, 0, 0, 1]), &[network], [1; 16]);
        let mut stack = Stack::new(stack::Config::new(config, [1; 16]))?;
        let id = stack.udp_open()?;
        stack.udp_connect(id, SocketAddrV4::new(PEER, PORT).into())?;
        Ok(Datagrams { size, way, buffer, pool, lane, queue, stack, id, told: 0 })
    }

    /// Sends `count` datagrams to `link`, and hears of each that is to be told of.
    fn sends(&mut self, count: u64, way: Way, link: &mut impl Link, told: &mut dyn FnMut(u64)) -> Result<()> {
        let before = self.told;
        for number in 0..count {
            self.send(number, way)?;
            while let Some(packet) = self.stack.transmit() {
                link.transmit(0, packet);
            }
            if number % LOOK == LOOK - 1 {
                self.reap(told)?;
            }
        }
        self.reap(told)?;
        let (of, all) = (self.told - before, if way == Way::Lent { count } else { 0 });
        ensure!(of == all, "{of} of {all} sends were told of");
        Ok(())
    }

    #[inline]
    fn send(&mut self, number: u64, way: Way) -> Result<()> {
        let envelope = Envelope::default();
        if way == Way::Copy {
            let bytes = self.buffer.bytes().ok_or_else(|| anyhow!("the buffer has no bytes"))?;
            let writer = Writer::new(&self.pool);
            self.stack.udp_send_bytes(0, self.id, &bytes[..self.size], &writer, &envelope)?;
            return Ok(());
        }
        let mut data = Segment::new(Chain::from(Fragment::new(self.buffer.clone(), 0, self.size)?));
        if way == Way::Lent {
            self.lane.send_there(&mut data, number, 0)?;
        }
        self.stack.udp_send(0, self.id, &mut data, &envelope)?;
        Ok(())
    }

    fn reap(&mut self, told: &mut dyn FnMut(u64)) -> Result<()> {
        let mut wrong = None;
        self.told += self.queue.reap(|one| {
            if one.how.copied || one.how.dropped || one.bytes as usize != self.size {
                wrong = Some(one);
            }
            told(one.user_data);
        }) as u64;
        ensure!(wrong.is_none(), "{wrong:?}");
        Ok(())
    }
}

/// A link that compares the datagrams with what was sent.
struct Checking {
    size: usize,
    came: u64,
    wrong: Option<anyhow::Error>,
    sink: Sink,
}

impl Link for Checking {
    fn capabilities(&self) -> Capabilities {
        self.sink.capabilities()
    }

    fn room(&self, now: u64) -> usize {
        self.sink.room(now)
    }

    fn transmit(&mut self, now: u64, packet: Packet) {
        let all = packet.payload().payload().host().map(|host| host.to_vec());
        let right = all.map_err(anyhow::Error::from).and_then(|all| {
            ensure!(all.len() == self.size, "a datagram of {} bytes", all.len());
            bytes::check(&all, 7, 0)
        });
        self.came += 1;
        self.wrong = self.wrong.take().or(right.err());
        self.sink.transmit(now, packet);
    }

    fn receive(&mut self, now: u64) -> Option<Packet> {
        self.sink.receive(now)
    }

    fn deadline(&self) -> Option<u64> {
        self.sink.deadline()
    }
}

impl crate::row::Session for Datagrams {
    fn verify(&mut self) -> Result<()> {
        const COUNT: u64 = 1000;
        let mut link = Checking { size: self.size, came: 0, wrong: None, sink: Sink::new() };
        let mut next = 0;
        let mut told = |number| {
            assert_eq!(number, next, "each is told of once, in order");
            next += 1;
        };
        self.sends(COUNT, self.way, &mut link, &mut told)?;
        if let Some(error) = link.wrong {
            return Err(error);
        }
        ensure!(link.came == COUNT, "{} of {COUNT} datagrams left", link.came);
        ensure!(next == if self.way == Way::Copy { 0 } else { COUNT }, "{next} sends were told of");
        Ok(())
    }

    fn run(&mut self, work: u64) -> Result<crate::row::Sample> {
        let (way, part) = (self.way, (work / 8).next_multiple_of(LOOK));
        let mut link = Sink::new();
        // In turns within the round, so that a machine that changes its speed changes both.
        let (mut seconds, mut bare) = (0.0, 0.0);
        for _ in 0..8 {
            let start = Instant::now();
            self.sends(part, way, &mut link, &mut |_| ())?;
            seconds += start.elapsed().as_secs_f64();
            if way != Way::Copy {
                let start = Instant::now();
                self.sends(part, Way::Bare, &mut link, &mut |_| ())?;
                bare += start.elapsed().as_secs_f64();
            }
        }
        let count = (part * 8) as f64;
        let mut values = vec![("send", seconds / count * 1e9)];
        if way != Way::Copy {
            values.push(("notif", (seconds - bare) / count * 1e9));
        }
        let switch = format!("-s{} -z{}", self.size, u8::from(way != Way::Copy));
        let settings = vec![(switch, line(part * 8, self.size, seconds))];
        Ok(crate::row::Sample { seconds: seconds + bare, values, settings })
    }
}
