//! `reference-or-copy/tcp`: the same send on our TCP, told to copy, told to lend, and left to what was measured on this machine.
//!
//! The connection is that of `zc`'s `stack/...`: two stacks on this thread, in virtual time. What a socket does to send without a copy
//! is done here as it does it (`crates/net/src/own/tcp.rs: fn lend`), and the choice is the account's own.

use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};
use onecopy::advanced::chain::{Chain, Fragment, Writer};
use onecopy::advanced::notify::threshold::Measured;
use onecopy::advanced::notify::zerocopy::{Account, Allowance, Begun, Small, Tell};
use onecopy::advanced::notify::{Config, Fate, Refused, Zerocopy};
use onecopy::advanced::pool::provider::Heap;
use onecopy::advanced::pool::{PagePool, PoolConfig};
use onecopy_inet::tcp::{Error, SendFlags};

use super::RATE;
use crate::proc;
use crate::row::{CPU_PER_GB, Sample, Session};
use crate::rows::bytes;
use crate::rows::zc::world::World;

/// Sends that may wait for their completion: as many as fit a send buffer, and more.
const SENDS: u32 = (1 << 15) - 1;
/// Sends between two looks at the notices.
const LOOK: u64 = 64;

/// One way of one size.
pub struct Tcp {
    size: usize,
    /// What is sent, again and again: it lies in a cache, where it is not too large for that.
    message: Chain,
    /// Where copies go: pages as a stack has them.
    pages: PagePool,
    account: Account,
    socket: Zerocopy,
    world: World,
    given: u64,
    told: u64,
}

impl Tcp {
    pub fn open(way: &str, size: usize) -> Result<Tcp> {
        let small = match way {
            "copy" => Small::Below(u32::MAX),
            "lend" => Small::Below(0),
            "auto" => Small::Measured,
            other => bail!("there is no way {other}"),
        };
        let account = Account::new(Allowance { pinned: None, unread: u32::MAX, small });
        let socket = account.socket(Config { capacity: SENDS, ..Config::default() })?;
        let (message, pages) = (message(size)?, PagePool::new(PoolConfig::new(), Heap::new())?);
        Ok(Tcp { size, message, pages, account, socket, world: World::new(true)?, given: 0, told: 0 })
    }

    /// Sends `count` times, and waits until all of it has come and all of it is told of.
    fn sends(&mut self, count: u64, look: &mut dyn FnMut(&Chain) -> Result<()>) -> Result<()> {
        let before = self.told;
        for number in 1..=count {
            self.send(look)?;
            self.given += self.size as u64;
            if number % LOOK == 0 {
                self.read_notices()?;
            }
        }
        for _ in 0..10_000 {
            self.turn(look)?;
            if self.world.came == self.given && self.told - before == count {
                return Ok(());
            }
        }
        bail!(
            "{} of {} bytes came, {} of {count} sends were told of",
            self.world.came,
            self.given,
            self.told - before
        )
    }

    fn send(&mut self, look: &mut dyn FnMut(&Chain) -> Result<()>) -> Result<()> {
        let mut chain = self.message.share();
        let mut begun = loop {
            match self.socket.begin_uncopied(chain, Tell::Notice, &Writer::new(&self.pages), self.world.now) {
                Ok(begun) => break begun,
                Err((back, Refused::Full { .. })) => chain = back,
                Err((_, why)) => return Err(why.into()),
            }
            self.turn(look)?;
        };
        while !begun.data.payload().is_empty() {
            match self.give(&mut begun) {
                Ok(()) => {}
                Err(Error::WouldBlock) => self.turn(look)?,
                Err(error) => return Err(error.into()),
            }
        }
        let (_, rest) = self.socket.end(begun);
        ensure!(rest.is_empty(), "{} bytes were left", rest.len());
        Ok(())
    }

    /// Has the connection take what there is room for, from the front.
    #[inline]
    fn give(&mut self, begun: &mut Begun) -> Result<(), Error> {
        let World { stack, id, now, .. } = &mut self.world;
        if !begun.is_copied() {
            return stack.tcp_send(*now, *id, &mut begun.data, SendFlags::empty()).map(drop);
        }
        let host = begun.data.payload().host().map_err(|_| Error::Invalid)?;
        let Some(slice) = host.slices().next() else { return Ok(()) };
        let more = slice.len() < begun.data.payload().len();
        let flags = if more { SendFlags::MORE } else { SendFlags::empty() };
        let n = stack.tcp_send_bytes(*now, *id, slice, &Writer::new(&self.pages), flags)?;
        begun.data.advance(n, Fate::Sent).map_err(|_| Error::Invalid)
    }

    fn turn(&mut self, look: &mut dyn FnMut(&Chain) -> Result<()>) -> Result<()> {
        self.world.turn(look)?;
        self.account.collect();
        self.read_notices()
    }

    fn read_notices(&mut self) -> Result<()> {
        while let Some(range) = self.socket.notice() {
            ensure!(!range.dropped, "{range:?}");
            self.told += u64::from(range.sends());
        }
        Ok(())
    }
}

/// A message in pages of 64 KiB, or in the smallest that takes it whole.
fn message(size: usize) -> Result<Chain> {
    let order = size.div_ceil(4096).next_power_of_two().trailing_zeros().min(4) as u8;
    let pool = PagePool::new(PoolConfig::new().order(order), Heap::new())?;
    let mut message = Chain::new();
    while message.len() < size {
        let mut page = pool.alloc()?;
        let at = message.len();
        let len = page.len().min(size - at);
        let room = page.bytes_mut().ok_or_else(|| anyhow!("a fresh page is shared"))?;
        bytes::fill(&mut room[..len], 7, at as u64);
        message.append(Fragment::new(page, 0, len)?)?;
    }
    Ok(message)
}

impl Session for Tcp {
    fn verify(&mut self) -> Result<()> {
        let count = ((2 << 20) / self.size as u64).clamp(3, 1000);
        let mut all = Vec::new();
        let mut look = |chain: &Chain| {
            all.extend(chain.host()?.to_vec());
            Ok(())
        };
        self.sends(count, &mut look)?;
        ensure!(all.len() as u64 == count * self.size as u64, "{} bytes came", all.len());
        all.chunks(self.size).try_for_each(|send| bytes::check(send, 7, 0))
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let count = work.div_ceil(self.size as u64);
        let (before, cpu, start) = (self.account.counts(), proc::cpu_seconds(), Instant::now());
        self.sends(count, &mut |_| Ok(()))?;
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), proc::cpu_seconds() - cpu);
        let after = self.account.counts();
        let copied = after.copied_small - before.copied_small;
        let gigabytes = (count * self.size as u64) as f64 / 1e9;
        let mut settings = vec![("copied".to_owned(), format!("{copied} of {count} sends"))];
        settings.extend(
            Measured::known(Tell::Notice)
                .map(|here| ("copied below".to_owned(), format!("{} bytes", here.below))),
        );
        let values = vec![(RATE, gigabytes / seconds), (CPU_PER_GB.name, cpu / gigabytes)];
        Ok(Sample { seconds, values, settings })
    }
}
