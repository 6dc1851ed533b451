//! The table of this process, and the rows in which its sockets count.

use super::layout::{
    CHANGING, FREE, LAYOUT, LISTENING, LIVE, MAGIC, NAME, PROTOCOL, PROTOCOLS, Protocol, SIZE, STATE, TYPES,
    Type, USE, WORDS, Words, address_words, header, word,
};
use crate::settings::Settings;
use crate::stats::Counters;
use onecopy_copy::{Policy, Reader};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::Ordering::{Relaxed, Release};
use onecopy_sync::atomic::{AtomicU32, AtomicU64, fence};
use onecopy_sync::spin::Wait;
use onecopy_sys::memfd;
use rustix::fd::{AsFd, OwnedFd};
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::LazyLock;
use std::time::Duration;

/// The place where one socket counts. Dropping it gives it back.
#[derive(Debug)]
pub struct Row {
    words: Words,
    /// Its number in the table, where 0 is the header; None if it is in memory that nobody sees.
    listed: Option<NonZeroU32>,
    /// Forks of this process before the row was made, modulo 2^32.
    forks: u32,
}

/// Each idle socket has one.
const _: () = assert!(size_of::<Row>() == 16);

/// How long a call waits for the lock. In a child whose fork came while the lock was held, it stays locked
/// for ever.
const PATIENCE: Duration = Duration::from_millis(100);

struct Registry {
    /// Forks of this process, and of its ancestors, since the first socket.
    forks: AtomicU32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The process that owns the table.
    pid: u32,
    table: Option<Table>,
    /// Rows that nobody sees, kept for reuse.
    unseen: Vec<Words>,
}

struct Table {
    rows: &'static [[AtomicU64; WORDS]],
    /// Held open for readers, and never closed. A program that closes all descriptors it does not know has
    /// closed it already, and the number may be another file's by now.
    _memfd: ManuallyDrop<OwnedFd>,
    free: Vec<NonZeroU32>,
    /// Rows in use or used before. The header has a copy, which a child could change.
    used: usize,
}

static REGISTRY: LazyLock<Registry> =
    LazyLock::new(|| Registry { forks: AtomicU32::new(0), state: Mutex::new(State::default()) });

pub(super) extern "C" fn before_fork() {
    REGISTRY.forks.fetch_add(1, Relaxed);
}

impl Table {
    fn make() -> Option<Table> {
        let (memfd, mapping) = memfd::create_owned(NAME, SIZE).ok()?;
        let (rows, _) = onecopy_sync::table::words(mapping).as_chunks::<WORDS>();
        rows[0][header::LAYOUT].store(LAYOUT, Relaxed);
        rows[0][header::USED].store(1, Relaxed);
        // Release: a reader that sees the word that makes it a table sees the rest. It reads with pread(2),
        // which copies forward.
        rows[0][header::MAGIC].store(MAGIC, Release);
        Some(Table { rows, _memfd: ManuallyDrop::new(memfd), free: Vec::new(), used: 1 })
    }

    fn claim(&mut self) -> Option<NonZeroU32> {
        if let Some(row) = self.free.pop() {
            return Some(row);
        }
        let header = &self.rows[0];
        if self.used >= self.rows.len() {
            header[header::UNLISTED].fetch_add(1, Relaxed);
            return None;
        }
        let row = NonZeroU32::new(self.used as u32);
        self.used += 1;
        header[header::USED].store(self.used as u64, Relaxed);
        row
    }
}

impl State {
    fn claim(&mut self, pid: u32) -> (Words, Option<NonZeroU32>) {
        if self.pid != pid {
            // This is the first socket of this process, or of a child. A child does not use its parent's
            // table.
            let told = self.pid != 0 || onecopy_sys::fork::before(before_fork).is_ok();
            *self = State { pid, table: told.then(Table::make).flatten(), unseen: Vec::new() };
        }
        let table = self.table.as_mut();
        match table.and_then(|table| table.claim().map(|row| (table, row))) {
            Some((table, row)) => (&table.rows[row.get() as usize], Some(row)),
            None => (self.unseen.pop().unwrap_or_else(unseen), None),
        }
    }
}

/// Makes memory for counters that nobody sees. It is reused and never freed.
fn unseen() -> Words {
    Box::leak(Box::new(std::array::from_fn(|_| AtomicU64::new(0))))
}

impl Row {
    /// Takes a row for `socket`, shown as `kind`. `pid` is the id of this process: with its first row, a
    /// forked child makes its own table. If no row is free, the counters are in memory that nobody sees.
    pub fn claim(pid: u32, socket: impl AsFd, kind: Type, listening: bool) -> Row {
        let inode = rustix::fs::fstat(&socket).map_or(0, |stat| stat.st_ino);
        Row::claim_for(pid, inode, kind, listening)
    }

    /// As [`Row::claim`], for a socket on a stack, which has no descriptor that names it: its inode is 0. [`Row::names`] says more.
    pub fn claim_unnamed(pid: u32, kind: Type, listening: bool) -> Row {
        Row::claim_for(pid, 0, kind, listening)
    }

    fn claim_for(pid: u32, inode: u64, kind: Type, listening: bool) -> Row {
        let registry = &*REGISTRY;
        // The count is read before the lock is taken. After a fork from this line on, the row must not be
        // reused.
        let forks = registry.forks.load(Relaxed);
        let (words, listed) = match registry.state.lock_for(PATIENCE) {
            Some(mut state) => state.claim(pid),
            None => (unseen(), None),
        };
        let uses = (words[word::STATE].load(Relaxed) & !STATE).wrapping_add(USE);
        words[word::STATE].store(uses | CHANGING, Relaxed);
        // The change is announced before it begins. Pairs with the two looks of `read`.
        fence(Release);
        for word in &words[1..] {
            word.store(0, Relaxed);
        }
        let code = TYPES.iter().position(|one| *one == kind).unwrap_or(0) as u64;
        words[word::INODE].store(inode, Relaxed);
        words[word::KIND].store(code | if listening { LISTENING } else { 0 }, Relaxed);
        // Release: a live row is a whole one.
        words[word::STATE].store(uses | LIVE, Release);
        Row { words, listed, forks }
    }

    /// Returns the counters, which are in the row. Use them only while the row lives: later another socket
    /// counts there.
    #[inline]
    pub fn counters(&self) -> Counters {
        Counters::over(&self.words[word::COUNTERS..])
    }

    /// Makes settings that the row shows. Use them only while the row lives.
    pub fn settings(&self, policy: Policy, reader: Reader, wait: Wait) -> Settings {
        Settings::new(self.words, policy, reader, wait)
    }

    /// Shows its protocol and its addresses.
    pub fn names(&self, protocol: Protocol, local: Option<SocketAddr>, remote: Option<SocketAddr>) {
        let code = PROTOCOLS.iter().position(|one| *one == protocol).unwrap_or(0) as u64;
        let kind = self.words[word::KIND].load(Relaxed) & ((1 << PROTOCOL) - 1);
        for (at, address) in [(word::LOCAL, local), (word::REMOTE, remote)] {
            let [high, low] = address_words(address);
            self.words[at].store(high, Relaxed);
            self.words[at + 1].store(low, Relaxed);
        }
        let port = |address: Option<SocketAddr>| address.map_or(0, |address| u64::from(address.port()));
        let there = u64::from(local.is_some()) | u64::from(remote.is_some()) << 1;
        self.words[word::PORTS].store(port(local) | port(remote) << 16 | there << 32, Relaxed);
        self.words[word::KIND].store(kind | code << PROTOCOL, Relaxed);
    }

    /// Shows TCP's state (tcp_states.h), what waits to be received or accepted, and what is not acknowledged yet.
    #[inline]
    pub fn moves(&self, state: u8, queue: u64, unacknowledged: u64) {
        self.words[word::STATE_OF_TCP].store(state.into(), Relaxed);
        self.words[word::QUEUE].store(queue, Relaxed);
        self.words[word::UNACKNOWLEDGED].store(unacknowledged, Relaxed);
    }

    /// Shows the size in bytes of the ring that this socket receives from.
    pub fn receives_into(&self, capacity: usize) {
        self.words[word::RECEIVE_CAPACITY].store(capacity as u64, Relaxed);
    }

    /// Shows the size in bytes of the ring that this socket sends into.
    pub fn sends_into(&self, capacity: usize) {
        self.words[word::SEND_CAPACITY].store(capacity as u64, Relaxed);
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        let registry = &*REGISTRY;
        if self.listed.is_some() {
            if registry.forks.load(Relaxed) != self.forks {
                return; // the other process may still count here
            }
            let uses = self.words[word::STATE].load(Relaxed) & !STATE;
            self.words[word::STATE].store(uses | FREE, Release);
        }
        let Some(mut state) = registry.state.lock_for(PATIENCE) else { return };
        match (self.listed, state.table.as_mut()) {
            (Some(row), Some(table)) => table.free.push(row),
            (Some(_), None) => {}
            (None, _) => state.unseen.push(self.words),
        }
    }
}
