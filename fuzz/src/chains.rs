//! Chains that go from hand to hand: several threads, each with a pool of its own, cut, join, share, overwrite and pass on
//! chains whose pages the others hold at the same time.
//!
//! [`trade`] is one such market. What must hold: whoever has a chain finds in it, byte for byte and record for record,
//! what went in, whatever others do meanwhile to chains that share its pages; what is refused changes nothing; and in the
//! end every page of every pool is home.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use onecopy::advanced::chain::{Chain, ChainError, Checksum, Fragment, Sum, Writer};
use onecopy::advanced::pool::provider::Heap;
use onecopy::advanced::pool::{Monitor, PagePool, PoolConfig};
use onecopy_conformance::tools::{Dice, Pattern};

/// Threads in a market.
const TRADERS: usize = 3;

/// Chains that a trader keeps at most.
const SHELF: usize = 6;

/// Pages of a pool: few enough to run out.
const PAGES: u32 = 48;

/// Bytes that a chain is not let grow beyond.
const LARGE: usize = 40_000;

/// What many markets came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trades {
    /// Markets.
    pub markets: u64,
    /// Chains that changed hands.
    pub passed: u64,
    /// Bytes that were compared.
    pub compared: u64,
    /// Times that a pool had no page.
    pub exhausted: u64,
    /// Calls that were refused, as they had to be.
    pub refused: u64,
}

/// A chain and what has to be in it.
#[derive(Default)]
struct Parcel {
    chain: Chain,
    /// Seed, place and length of each run of bytes.
    runs: Vec<(u64, usize, usize)>,
    /// Where records end.
    ends: Vec<usize>,
}

/// One market.
///
/// # Errors
///
/// What did not hold.
pub fn trade(seed: u64, steps: u64, trades: &mut Trades) -> Result<(), String> {
    let mut dice = Dice(seed);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..TRADERS).map(|_| channel()).unzip();
    let mut traders = Vec::new();
    let mut monitors: Vec<Monitor> = Vec::new();
    for inbox in receivers {
        let config = PoolConfig::new().limit(PAGES).ring(64);
        let pool = PagePool::new(config, Heap::new()).map_err(|e| e.to_string())?;
        monitors.push(pool.monitor());
        let (dice, outboxes) = (Dice(dice.roll()), senders.clone());
        traders.push(Trader { dice, pool, shelf: Vec::new(), inbox, outboxes, trades: Trades::default() });
    }
    drop(senders);
    let outcomes: Vec<_> = thread::scope(|s| {
        let threads: Vec<_> = traders.into_iter().map(|trader| s.spawn(move || trader.run(steps))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    for outcome in outcomes {
        let one = outcome.map_err(|_| "a trader panicked".to_owned())??;
        trades.passed += one.passed;
        trades.compared += one.compared;
        trades.exhausted += one.exhausted;
        trades.refused += one.refused;
    }
    trades.markets += 1;
    match monitors.iter().map(Monitor::in_flight).sum() {
        0 => Ok(()),
        left => Err(format!("{left} pages are not home")),
    }
}

struct Trader {
    dice: Dice,
    pool: PagePool,
    shelf: Vec<Parcel>,
    inbox: Receiver<Parcel>,
    outboxes: Vec<Sender<Parcel>>,
    trades: Trades,
}

impl Trader {
    fn run(mut self, steps: u64) -> Result<Trades, String> {
        for _ in 0..steps {
            while self.shelf.len() < SHELF
                && let Ok(parcel) = self.inbox.try_recv()
            {
                self.shelf.push(parcel);
            }
            if self.shelf.is_empty() {
                self.shelf.push(Parcel::default());
            }
            self.step()?;
        }
        for parcel in &self.shelf {
            parcel.check()?;
        }
        // Who still has something for us finds that we are gone, and keeps it.
        Ok(self.trades)
    }

    fn pick(&mut self) -> usize {
        (self.dice.roll() % self.shelf.len() as u64) as usize
    }

    /// A place in so many bytes, its ends more often than by chance.
    fn place(&mut self, len: usize) -> usize {
        match self.dice.roll() % 8 {
            0 => 0,
            1 => len,
            _ => (self.dice.roll() % (len as u64 + 1)) as usize,
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let n = self.pick();
        let seed = self.dice.roll();
        let len = self.shelf[n].chain.len();
        match self.dice.roll() % 16 {
            0 | 1 if len < LARGE => self.append(n, seed),
            2 if len < LARGE => self.by_reference(n, seed),
            3 if len < LARGE => self.header(n, seed),
            4 => {
                let at = self.place(len);
                let front = self.shelf[n].split_to(at)?;
                self.shelf.push(front);
                Ok(())
            }
            5 | 6 => {
                let mut other = self.shelf.swap_remove(n);
                let Some(to) = self.shelf.last_mut() else {
                    self.shelf.push(other);
                    return Ok(());
                };
                if to.chain.len() + other.chain.len() > 2 * LARGE {
                    self.shelf.push(other);
                    return Ok(());
                }
                to.concat(&mut other)
            }
            7 | 8 => {
                // A range by reference: to be sent while the rest stays, and maybe written to.
                let at = self.place(len);
                let part = self.place(len - at);
                let range = self.shelf[n].range(at, part)?;
                self.pass(range);
                Ok(())
            }
            9 => self.overwrite(n, seed),
            10 => self.pull_up(n),
            11 => {
                let copy_break = self.dice.size(3000);
                let parcel = &mut self.shelf[n];
                self.trades.exhausted +=
                    out_of_pages(Writer::new(&self.pool).copy_break(copy_break).collapse(&mut parcel.chain))?;
                Ok(())
            }
            12 => {
                self.shelf[n].chain.end_record();
                self.shelf[n].ends.push(len);
                Ok(())
            }
            13 => self.nonsense(n),
            14 => {
                let parcel = self.shelf.swap_remove(n);
                if !self.dice.one_in(3) {
                    self.pass(parcel);
                }
                Ok(())
            }
            _ => {
                self.trades.compared += len as u64;
                self.shelf[n].check()
            }
        }
    }

    /// To somebody, maybe ourselves. One who has gone leaves it with us to be dropped.
    fn pass(&mut self, parcel: Parcel) {
        let to = (self.dice.roll() % TRADERS as u64) as usize;
        self.trades.passed += u64::from(self.outboxes[to].send(parcel).is_ok());
    }

    fn append(&mut self, n: usize, seed: u64) -> Result<(), String> {
        let len = self.dice.size(10_000);
        let headroom = self.dice.size(100);
        let parcel = &mut self.shelf[n];
        let bytes = Pattern(seed).bytes(0, len);
        let answer = Writer::new(&self.pool).headroom(headroom).append(&mut parcel.chain, &bytes);
        if out_of_pages(answer)? == 0 {
            parcel.runs.push((seed, 0, len));
        } else {
            self.trades.exhausted += 1;
        }
        Ok(())
    }

    fn by_reference(&mut self, n: usize, seed: u64) -> Result<(), String> {
        let Ok(mut page) = self.pool.alloc() else {
            self.trades.exhausted += 1;
            return Ok(());
        };
        let page_len = page.len();
        let offset = (self.dice.roll() % page_len as u64) as usize;
        let len = self.dice.size(page_len - offset);
        let bytes = page.bytes_mut().ok_or("a new page that cannot be written")?;
        bytes[offset..][..len].copy_from_slice(&Pattern(seed).bytes(0, len));
        let fragment = Fragment::new(page, offset, len).map_err(|e| e.to_string())?;
        let parcel = &mut self.shelf[n];
        Writer::new(&self.pool).append_fragment(&mut parcel.chain, fragment).map_err(|e| e.to_string())?;
        parcel.runs.push((seed, 0, len));
        Ok(())
    }

    fn header(&mut self, n: usize, seed: u64) -> Result<(), String> {
        let len = self.dice.size(200);
        let parcel = &mut self.shelf[n];
        let answer = Writer::new(&self.pool).push_header(&mut parcel.chain, &Pattern(seed).bytes(0, len));
        if out_of_pages(answer)? == 0 {
            parcel.runs.insert(0, (seed, 0, len));
            parcel.ends.iter_mut().for_each(|end| *end += len);
        } else {
            self.trades.exhausted += 1;
        }
        Ok(())
    }

    fn overwrite(&mut self, n: usize, seed: u64) -> Result<(), String> {
        let all = self.shelf[n].chain.len();
        let at = self.place(all);
        let len = self.place(all - at).min(5000);
        let parcel = &mut self.shelf[n];
        let answer = Writer::new(&self.pool).overwrite(&mut parcel.chain, at, &Pattern(seed).bytes(0, len));
        if out_of_pages(answer)? == 0 {
            let (before, after) = (parcel.runs_of(0, at), parcel.runs_of(at + len, all - at - len));
            parcel.runs = [before, vec![(seed, 0, len)], after].concat();
        } else {
            self.trades.exhausted += 1;
        }
        Ok(())
    }

    fn pull_up(&mut self, n: usize) -> Result<(), String> {
        let most = self.shelf[n].chain.len().min(4096);
        let at = self.place(most);
        let parcel = &mut self.shelf[n];
        let expected = parcel.bytes(at);
        match Writer::new(&self.pool).pull_up(&mut parcel.chain, at) {
            Ok(bytes) if bytes == expected => Ok(()),
            Ok(_) => Err("other bytes after a pull-up".to_owned()),
            Err(error) => {
                self.trades.exhausted += out_of_pages(Err::<(), _>(error))?;
                Ok(())
            }
        }
    }

    /// What cannot be: each has to be refused, and the chain has to be as it was.
    fn nonsense(&mut self, n: usize) -> Result<(), String> {
        let far = self.dice.roll() as usize;
        let parcel = &mut self.shelf[n];
        let len = parcel.chain.len();
        let behind = far.max(len.saturating_add(1));
        let writer = Writer::new(&self.pool);
        let field = Checksum::Partial { start: u16::MAX, offset: u16::MAX };
        let answers = [
            parcel.chain.split_to(behind).map(drop),
            parcel.chain.split_off(behind).map(drop),
            parcel.chain.range(far, behind).map(drop),
            parcel.chain.range(behind, far).map(drop),
            parcel.chain.advance(behind),
            parcel.chain.pull(behind),
            parcel.chain.set_checksum(field),
            writer.pull_up(&mut parcel.chain, behind).map(drop),
            writer.overwrite(&mut parcel.chain, behind, &[0]),
            writer.push_header(&mut parcel.chain, &[0; 5000]),
        ];
        for (i, answer) in answers.iter().enumerate() {
            // The last one has to find out first that a page is too small, for which it needs one.
            let refused = match answer {
                Err(ChainError::BeyondEnd { .. }) => i < 9,
                Err(ChainError::OverPage { .. } | ChainError::NoPage(_)) => i == 9,
                _ => false,
            };
            if !refused {
                return Err(format!("nonsense {i} with {behind} of {len} bytes: {answer:?}"));
            }
        }
        self.trades.refused += answers.len() as u64;
        parcel.check()
    }
}

impl Parcel {
    /// The runs that `len` bytes from byte `at` on are.
    fn runs_of(&self, at: usize, len: usize) -> Vec<(u64, usize, usize)> {
        let mut out = Vec::new();
        let mut start = 0;
        for &(seed, from, n) in &self.runs {
            let (first, last) = (at.max(start), (at + len).min(start + n));
            if first < last {
                out.push((seed, from + first - start, last - first));
            }
            start += n;
        }
        out
    }

    /// The first bytes.
    fn bytes(&self, len: usize) -> Vec<u8> {
        self.runs_of(0, len).into_iter().flat_map(|(seed, from, n)| Pattern(seed).bytes(from, n)).collect()
    }

    fn split_to(&mut self, at: usize) -> Result<Parcel, String> {
        let len = self.chain.len();
        let chain = self.chain.split_to(at).map_err(|e| e.to_string())?;
        let (runs, rest) = (self.runs_of(0, at), self.runs_of(at, len - at));
        self.runs = rest;
        let behind = self.ends.split_off(self.ends_before(at, len));
        let ends = std::mem::replace(&mut self.ends, behind);
        self.ends.iter_mut().for_each(|end| *end -= at);
        Ok(Parcel { chain, runs, ends })
    }

    /// Ends of records in front of a cut at `at`: of several in one place only the first.
    fn ends_before(&self, at: usize, len: usize) -> usize {
        let before = self.ends.partition_point(|end| *end < at);
        match self.ends.get(before) {
            _ if at == 0 => 0,
            _ if at == len => self.ends.len(),
            Some(end) if *end == at => before + 1,
            _ => before,
        }
    }

    fn range(&self, at: usize, len: usize) -> Result<Parcel, String> {
        let chain = self.chain.range(at, len).map_err(|e| e.to_string())?;
        let all = self.chain.len();
        let ends = match len {
            0 => Vec::new(),
            _ => self.ends[self.ends_before(at, all)..self.ends_before(at + len, all)]
                .iter()
                .map(|end| end - at)
                .collect(),
        };
        Ok(Parcel { chain, runs: self.runs_of(at, len), ends })
    }

    fn concat(&mut self, other: &mut Parcel) -> Result<(), String> {
        let len = self.chain.len();
        self.chain.concat(&mut other.chain).map_err(|e| e.to_string())?;
        self.runs.append(&mut other.runs);
        self.ends.extend(other.ends.drain(..).map(|end| end + len));
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let expected = self.bytes(usize::MAX / 2);
        let view = self.chain.host().map_err(|e| e.to_string())?;
        let ends: Vec<usize> = self.chain.marks().map(|(at, _)| at).collect();
        if self.chain.len() != expected.len() || view.to_vec() != expected {
            return Err(format!("other bytes in {:?}", self.chain));
        }
        if view.sum(0, expected.len()) != Ok(Sum::of(&expected)) {
            return Err(format!("another sum of {:?}", self.chain));
        }
        match ends == self.ends {
            true => Ok(()),
            false => Err(format!("records end at {ends:?}, not at {:?}", self.ends)),
        }
    }
}

/// 1 if there was no page, 0 if it went well; anything else is wrong.
fn out_of_pages<T>(answer: Result<T, ChainError>) -> Result<u64, String> {
    match answer {
        Ok(_) => Ok(0),
        Err(ChainError::NoPage(_)) => Ok(1),
        Err(error) => Err(error.to_string()),
    }
}
