//! The same sends on our own TCP: what the copy that is saved is worth where there are segments, acknowledgements and a peer.

use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};
use onecopy::advanced::chain::{Chain, Fragment, Writer};
use onecopy::advanced::notify::threshold::Measured;
use onecopy::advanced::notify::zerocopy::Tell;
use onecopy::advanced::notify::{Config, Context as Notify, Lane, Queue, Segment};
use onecopy::advanced::pool::{Page, PagePool};
use onecopy_inet::tcp::{Error, SendFlags};

use super::ends::hot;
use super::line;
use super::world::World;
use crate::rows::bytes;

/// Sends that may wait for their completion: as many of 100 bytes as a send buffer has, and more.
const SENDS: u32 = (1 << 15) - 1;

/// How sends get to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Copied into pages of the stack's.
    Copy,
    /// By reference, and told of; no two share a segment.
    Alone,
    /// By reference, and told of, in segments as they come.
    Stacked,
    /// By reference in segments as they come; nobody is told.
    Bare,
}

/// One engine of one case.
pub struct Stack {
    size: usize,
    way: Way,
    buffer: Page,
    pool: PagePool,
    lane: Lane,
    queue: Queue,
    world: World,
    given: u64,
    told: u64,
}

impl Stack {
    pub fn new(engine: &str, size: usize, pair: bool) -> Result<Stack> {
        let way = match engine {
            "copy" => Way::Copy,
            "zc" => Way::Alone,
            "zc-stacked" => Way::Stacked,
            other => bail!("there is no engine {other}"),
        };
        let (context, queue) = Notify::new();
        let lane = context.lane(Config { capacity: SENDS, ..Config::default() })?;
        let (pool, buffer) = hot(size)?;
        Ok(Stack { size, way, buffer, pool, lane, queue, world: World::new(pair)?, given: 0, told: 0 })
    }

    /// Sends `count` times, waits until all of it is acknowledged, and hears of each that is to be told of.
    fn sends(
        &mut self,
        count: u64,
        way: Way,
        look: &mut dyn FnMut(&Chain) -> Result<()>,
        told: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let flags = if way == Way::Alone { SendFlags::END_OF_RECORD } else { SendFlags::empty() };
        let before = self.told;
        for number in 0..count {
            self.send(number, way, flags, look, told)?;
            self.given += self.size as u64;
        }
        let tells = matches!(way, Way::Alone | Way::Stacked);
        for _ in 0..10_000 {
            let over = self.world.came == self.given && (!tells || self.told - before == count);
            if over {
                // Nothing is left for the next round.
                return self.turn(look, told);
            }
            self.turn(look, told)?;
        }
        bail!(
            "{} of {} bytes came, {} of {count} sends were told of",
            self.world.came,
            self.given,
            self.told - before
        )
    }

    #[inline]
    fn send(
        &mut self,
        number: u64,
        way: Way,
        flags: SendFlags,
        look: &mut dyn FnMut(&Chain) -> Result<()>,
        told: &mut dyn FnMut(u64),
    ) -> Result<()> {
        if way == Way::Copy {
            let mut at = 0;
            while at < self.size {
                let Stack { world, pool, buffer, size, .. } = self;
                let bytes = buffer.bytes().ok_or_else(|| anyhow!("the buffer has no bytes"))?;
                match world.stack.tcp_send_bytes(
                    world.now,
                    world.id,
                    &bytes[at..*size],
                    &Writer::new(pool),
                    flags,
                ) {
                    Ok(sent) => at += sent,
                    Err(Error::WouldBlock) => self.turn(look, told)?,
                    Err(error) => return Err(error.into()),
                }
            }
            return Ok(());
        }
        let mut data = Segment::new(Chain::from(Fragment::new(self.buffer.clone(), 0, self.size)?));
        if way != Way::Bare {
            self.lane.send_there(&mut data, number, 0)?;
        }
        while !data.payload().is_empty() {
            match self.world.stack.tcp_send(self.world.now, self.world.id, &mut data, flags) {
                Ok(_) => {}
                Err(Error::WouldBlock) => self.turn(look, told)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn turn(&mut self, look: &mut dyn FnMut(&Chain) -> Result<()>, told: &mut dyn FnMut(u64)) -> Result<()> {
        self.world.turn(look)?;
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

impl crate::row::Session for Stack {
    fn verify(&mut self) -> Result<()> {
        const SENDS: u64 = 1000;
        let mut all = Vec::new();
        let mut next = 0;
        let mut look = |chain: &Chain| {
            all.extend(chain.host()?.to_vec());
            Ok(())
        };
        let mut told = |number| {
            assert_eq!(number, next, "each is told of once, in order");
            next += 1;
        };
        self.sends(SENDS, self.way, &mut look, &mut told)?;
        ensure!(all.len() == SENDS as usize * self.size, "{} bytes came", all.len());
        ensure!(next == if self.way == Way::Copy { 0 } else { SENDS }, "{next} sends were told of");
        all.chunks(self.size).try_for_each(|send| bytes::check(send, 7, 0))
    }

    fn run(&mut self, work: u64) -> Result<crate::row::Sample> {
        let (way, part) = (self.way, (work / 8).max(1));
        // In turns within the round, so that a machine that changes its speed changes both.
        let (mut seconds, mut bare) = (0.0, 0.0);
        for _ in 0..8 {
            let start = Instant::now();
            self.sends(part, way, &mut |_| Ok(()), &mut |_| ())?;
            seconds += start.elapsed().as_secs_f64();
            if way != Way::Copy {
                let start = Instant::now();
                self.sends(part, Way::Bare, &mut |_| Ok(()), &mut |_| ())?;
                bare += start.elapsed().as_secs_f64();
            }
        }
        let count = (part * 8) as f64;
        let mut values = vec![("send", seconds / count * 1e9)];
        if way != Way::Copy {
            values.push(("notif", (seconds - bare) / count * 1e9));
        }
        let switch = format!("-s{} -z{}", self.size, u8::from(way != Way::Copy));
        let mut settings = vec![(switch, line(part * 8, self.size, seconds))];
        if way == Way::Stacked {
            // What sockets would copy instead, on this machine.
            let below = Measured::here(&self.pool, Tell::Notice).below;
            settings.push(("copied below".to_owned(), format!("{below} bytes")));
        }
        Ok(crate::row::Sample { seconds: seconds + bare, values, settings })
    }
}
