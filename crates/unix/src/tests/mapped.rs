//! A pool of the peer that is unread at a fork. One process maps it, and the others leave the bytes in it to
//! that process.

use super::{PATIENCE, Wire, alone};
use crate::{Config, Result, SeqPacket, SharedPool, Stream};
use onecopy_sys::fork::{Ended, child};
use rustix::io::Errno;
use std::time::Duration;

const KILLED: Ended = Ended::Killed(9);
const LEN: usize = 100;

/// A pair of either kind that can receive from pools.
enum Pair {
    Streams(Stream, Stream),
    Records(SeqPacket, SeqPacket),
}

impl Pair {
    fn new(records: bool) -> Pair {
        let config = Config { max_shared: 1 << 20, ..Config::default() };
        if records {
            let (a, b) = SeqPacket::pair_with(&config).unwrap();
            b.set_read_timeout(Some(PATIENCE)).unwrap();
            Pair::Records(a, b)
        } else {
            let (a, b) = Stream::pair_with(&config).unwrap();
            b.set_read_timeout(Some(PATIENCE)).unwrap();
            Pair::Streams(a, b)
        }
    }

    fn lend(&self, pool: &SharedPool, byte: u8) {
        let mut loan = pool.loan(LEN).unwrap();
        loan.fill(byte);
        let sent = match self {
            Pair::Streams(a, _) => a.send_loan(loan).unwrap(),
            Pair::Records(a, _) => a.send_loan(loan).unwrap(),
        };
        assert_eq!(sent, LEN);
    }

    fn send(&self, byte: u8) {
        let sent = match self {
            Pair::Streams(a, _) => a.send(&[byte; LEN]).unwrap(),
            Pair::Records(a, _) => a.send(&[byte; LEN]).unwrap(),
        };
        assert_eq!(sent, LEN);
    }

    /// Returns the byte that fills the received message.
    fn recv(&self) -> Result<u8> {
        let mut buffer = [0; LEN];
        let n = match self {
            Pair::Streams(_, b) => b.recv(&mut buffer)?,
            Pair::Records(_, b) => b.recv(&mut buffer)?,
        };
        assert!(n == LEN && buffer == [buffer[0]; LEN]);
        Ok(buffer[0])
    }

    fn borrow(&self) -> Result<usize> {
        match self {
            Pair::Streams(_, b) => b.recv_borrowed(LEN).map(|view| view.len()),
            Pair::Records(_, b) => b.recv_borrowed(LEN).map(|(view, _)| view.len()),
        }
    }

    fn chain(&self) -> Result<usize> {
        match self {
            Pair::Streams(_, b) => b.recv_chain(LEN).map(|chain| chain.len()),
            Pair::Records(_, b) => b.recv_chain(&mut [0; LEN]).map(|(got, chain)| got.len + chain.len()),
        }
    }

    fn lies(&self) -> u64 {
        match self {
            Pair::Streams(a, b) => a.stats().protocol_errors + b.stats().protocol_errors,
            Pair::Records(a, b) => a.stats().protocol_errors + b.stats().protocol_errors,
        }
    }

    /// Checks that every way to receive gives that errno.
    fn refuse(&self, errno: Errno) {
        for _ in 0..2 {
            assert_eq!(self.recv().unwrap_err().raw_os_error(), errno.raw_os_error());
            assert_eq!(self.borrow().unwrap_err().raw_os_error(), errno.raw_os_error());
            assert_eq!(self.chain().unwrap_err().raw_os_error(), errno.raw_os_error());
        }
    }
}

fn home(pool: &SharedPool) {
    while pool.lent() > 0 {
        assert!(pool.reclaim_within(PATIENCE).unwrap() > 0, "{} stay away", pool.lent());
    }
}

#[test]
fn what_is_in_a_pool_that_another_process_has_mapped_waits_for_that_one() {
    alone!();
    for records in [false, true] {
        let pair = Pair::new(records);
        let pool = SharedPool::new(4096, 4).unwrap();
        let (go, done) = (Wire::new(), Wire::new());
        (1..=3).for_each(|byte| pair.lend(&pool, byte));
        let without = child(|| {
            go.hear();
            pair.refuse(Errno::BUSY);
            done.tell(0);
            0
        });
        let without = without.unwrap();
        assert_eq!(pair.recv().unwrap(), 1);
        go.tell(0);
        assert!(done.speaks(), "records {records}");
        assert_eq!(without.wait(), Ended::Returned(0));
        assert_eq!(pair.recv().unwrap(), 2, "it was left for this process");
        // A child of the process that mapped the pool has not mapped it either: each page comes back once.
        let heir = child(|| {
            pair.refuse(Errno::BUSY);
            0
        });
        assert_eq!(heir.unwrap().wait(), Ended::Returned(0), "records {records}");
        assert_eq!(pair.recv().unwrap(), 3);
        home(&pool);
        for byte in 4..20 {
            pair.lend(&pool, byte);
            assert_eq!(pair.recv().unwrap(), byte);
        }
        assert_eq!(pair.lies(), 0);
    }
}

#[test]
fn what_is_in_a_pool_that_a_killed_process_had_mapped_is_lost_and_nobody_lied() {
    alone!();
    for records in [false, true] {
        let pair = Pair::new(records);
        let pool = SharedPool::new(4096, 4).unwrap();
        (1..=2).for_each(|byte| pair.lend(&pool, byte));
        let wire = Wire::new();
        let owner = child(|| {
            assert_eq!(pair.recv().unwrap(), 1);
            wire.tell(0);
            std::thread::sleep(PATIENCE);
            0
        });
        let owner = owner.unwrap();
        assert!(wire.speaks(), "records {records}");
        pair.refuse(Errno::BUSY);
        owner.signal(9);
        assert_eq!(owner.wait(), KILLED);
        pair.refuse(Errno::OWNERDEAD);
        assert_eq!(pair.lies(), 0);
    }
}

/// A process that is alone again receives what comes in other pools as copies. It asked for these pools, and
/// could not pass over the lost one.
#[test]
fn what_is_in_pools_that_come_behind_a_lost_one_is_copied() {
    alone!();
    for records in [false, true] {
        let pair = Pair::new(records);
        let pool = SharedPool::new(4096, 4).unwrap();
        pair.lend(&pool, 1);
        let owner = child(|| {
            assert_eq!(pair.recv().unwrap(), 1);
            0
        });
        assert_eq!(owner.unwrap().wait(), Ended::Returned(0));
        // An end looks every 20 ms whether others have it.
        for byte in 0..50 {
            pair.send(byte);
            assert_eq!(pair.recv().unwrap(), byte);
            std::thread::sleep(Duration::from_millis(2));
        }
        let second = SharedPool::new(4096, 4).unwrap();
        for byte in 50..60 {
            pair.lend(&second, byte);
            assert_eq!(pair.recv().unwrap(), byte, "records {records}");
        }
        assert_eq!(pair.lies(), 0);
    }
}
