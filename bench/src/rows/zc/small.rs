//! Sends as sockets make them, through an account: all copied, all lent, or those copied that were measured to be cheaper so.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};
use onecopy::advanced::chain::{Chain, Fragment, Writer};
use onecopy::advanced::notify::threshold::Measured;
use onecopy::advanced::notify::zerocopy::{Account, Allowance, Sent, Small as Rule, Tell, Zerocopy};
use onecopy::advanced::notify::{Config, Fate, Refused};
use onecopy::advanced::pool::provider::Heap;
use onecopy::advanced::pool::{Page, PagePool, PoolConfig};
use onecopy_inet::tcp::{Error, SendFlags};

use super::line;
use super::world::World;
use crate::proc;
use crate::rows::bytes;

/// One engine of one case.
pub struct Small {
    size: usize,
    /// What the program sends from.
    buffer: Page,
    /// Pages of the stack's.
    pool: PagePool,
    account: Account,
    zerocopy: Zerocopy,
    world: World,
    waiting: VecDeque<Sent>,
    given: u64,
}

impl Small {
    pub fn new(engine: &str, size: usize) -> Result<Small> {
        let small = match engine {
            "copy" => Rule::Below(u32::MAX),
            "lend" => Rule::Below(0),
            "auto" => Rule::Measured,
            other => bail!("there is no engine {other}"),
        };
        let account = Account::new(Allowance { small, ..Allowance::default() });
        let zerocopy = account.socket(Config::default())?;
        // The smallest page that takes a send whole.
        let order = size.div_ceil(4096).next_power_of_two().trailing_zeros() as u8;
        let mut buffer = PagePool::new(PoolConfig::new().order(order), Heap::new())?.alloc()?;
        bytes::fill(buffer.bytes_mut().ok_or_else(|| anyhow!("a fresh page is shared"))?, 7, 0);
        Ok(Small {
            size,
            buffer,
            pool: PagePool::new(PoolConfig::new(), Heap::new())?,
            account,
            zerocopy,
            world: World::new(true)?,
            waiting: VecDeque::new(),
            given: 0,
        })
    }

    /// Sends `count` times, each as soon as there is room, and waits until all of it is acknowledged and told of.
    fn sends(&mut self, count: u64, look: &mut dyn FnMut(&Chain) -> Result<()>) -> Result<()> {
        for _ in 0..count {
            self.send(look)?;
            self.given += self.size as u64;
        }
        for _ in 0..10_000 {
            self.turn(look)?;
            if self.world.came == self.given && self.waiting.is_empty() {
                return Ok(());
            }
        }
        bail!("{} of {} bytes came, {} sends wait", self.world.came, self.given, self.waiting.len())
    }

    #[inline]
    fn send(&mut self, look: &mut dyn FnMut(&Chain) -> Result<()>) -> Result<()> {
        let mut chain = Chain::from(Fragment::new(self.buffer.clone(), 0, self.size)?);
        let mut send = loop {
            let now = self.world.now;
            match self.zerocopy.begin_uncopied(chain, Tell::Handle, &Writer::new(&self.pool), now) {
                Ok(send) => break send,
                Err((back, Refused::Full { .. } | Refused::Pinned { .. })) => chain = back,
                Err((_, why)) => return Err(why.into()),
            }
            self.turn(look)?;
        };
        let copied = send.is_copied();
        while !send.data.payload().is_empty() {
            let World { now, id, stack, .. } = &mut self.world;
            let sent = match copied {
                true => {
                    let bytes = send.data.payload().host()?.slices().next().unwrap_or_default();
                    stack.tcp_send_bytes(*now, *id, bytes, &Writer::new(&self.pool), SendFlags::empty())
                }
                false => stack.tcp_send(*now, *id, &mut send.data, SendFlags::empty()),
            };
            match sent {
                Ok(n) if copied => send.data.advance(n, Fate::Sent)?,
                Ok(_) => {}
                Err(Error::WouldBlock) => self.turn(look)?,
                Err(error) => return Err(error.into()),
            }
        }
        self.waiting.extend(self.zerocopy.end(send).0);
        Ok(())
    }

    fn turn(&mut self, look: &mut dyn FnMut(&Chain) -> Result<()>) -> Result<()> {
        self.world.turn(look)?;
        self.account.collect();
        while let Some(first) = self.waiting.pop_front() {
            match first.try_wait() {
                Ok(how) => ensure!(!how.dropped, "{how:?}"),
                Err(first) => {
                    self.waiting.push_front(first);
                    break;
                }
            }
        }
        Ok(())
    }
}

impl crate::row::Session for Small {
    fn verify(&mut self) -> Result<()> {
        const SENDS: u64 = 1000;
        let mut all = Vec::new();
        self.sends(SENDS, &mut |chain| {
            all.extend(chain.host()?.to_vec());
            Ok(())
        })?;
        ensure!(all.len() == SENDS as usize * self.size, "{} bytes came", all.len());
        all.chunks(self.size).try_for_each(|send| bytes::check(send, 7, 0))
    }

    fn run(&mut self, work: u64) -> Result<crate::row::Sample> {
        let (start, before) = (Instant::now(), proc::cpu_seconds());
        self.sends(work, &mut |_| Ok(()))?;
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), proc::cpu_seconds() - before);
        let mut settings = vec![(format!("-s{}", self.size), line(work, self.size, seconds))];
        if self.account.allowance().small == Rule::Measured {
            let below = Measured::here(&self.pool, Tell::Handle).below;
            settings.push(("copied below".to_owned(), format!("{below} bytes")));
        }
        let values = vec![("send", cpu / work as f64 * 1e9)];
        Ok(crate::row::Sample { seconds, values, settings })
    }
}
