//! The table in which a process shows its sockets. `onecopy ss` reads it from outside.
//!
//! A process that uses onecopy keeps one memfd, [`NAME`], and makes it with its first socket. The memfd holds
//! a header and a row for each socket. The row says what the socket is, and the counters themselves are in
//! it. No copy exists.
//!
//! Only the process can write the table (F_SEAL_FUTURE_WRITE). A process that may open its /proc/PID/fd, so
//! one of the same user, reads it. The table ends with the process. If the memfd is refused or full, a socket
//! counts in memory that nobody sees.
//!
//! A forked child still counts in its parent's table for the sockets that the two share. It makes its own
//! table with its first new socket. The maker of a row that was there at a fork does not use it again, since
//! the child may still count in it. Whether such a row lives is seen from the processes that hold its socket.

use crate::settings::{Settings, Shown};
use crate::stats::{Counters, NAMES, Stats};
use onecopy_copy::{Learned, Policy, Reader};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release};
use onecopy_sync::atomic::{AtomicU64, fence};
use onecopy_sync::spin::Wait;
use onecopy_sys::memfd;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::SealFlags;
use std::fmt;
use std::mem::ManuallyDrop;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

/// Name of the memfd, as /proc/PID/fd shows it after `/memfd:`.
pub const NAME: &str = "onecopy-stats";

/// Words of a row, eight bytes each. A row has four cache lines, so no two sockets share one.
const WORDS: usize = 32;
/// Rows of a table, the header included. Pages of memory are taken as rows are used.
const ROWS: usize = 1 << 15;
/// Bytes of a table.
pub const SIZE: usize = ROWS * WORDS * 8;

/// The words of a row. The header is row 0.
mod word {
    pub const STATE: usize = 0;
    pub const INODE: usize = 1;
    pub const KIND: usize = 2;
    pub const SETTINGS: usize = 3;
    pub const RECEIVE_CAPACITY: usize = 4;
    pub const SEND_CAPACITY: usize = 5;
    /// State of TCP, as tcp_states.h numbers them; 0 of others.
    pub const STATE_OF_TCP: usize = 6;
    /// Bytes that wait to be received, or connections to be accepted.
    pub const QUEUE: usize = 7;
    pub const COUNTERS: usize = 8;
    /// Two words each, an IPv6 address; IPv4 is mapped into it.
    pub const LOCAL: usize = 26;
    pub const REMOTE: usize = 28;
    /// The ports, 16 bits each: the local one, the remote one; above, a bit each: whether there is an address.
    pub const PORTS: usize = 30;
    /// Bytes that were sent and are not acknowledged.
    pub const UNACKNOWLEDGED: usize = 31;
}

/// The words of the header.
mod header {
    pub const MAGIC: usize = 0;
    pub const LAYOUT: usize = 1;
    /// Rows in use or used before, the header included.
    pub const USED: usize = 2;
    /// Sockets that got no row.
    pub const UNLISTED: usize = 3;
}

/// The low bits of a row's state. The bits above count its uses.
const STATE: u64 = 3;
const FREE: u64 = 0;
const CHANGING: u64 = 1;
const LIVE: u64 = 2;
const USE: u64 = 4;

const MAGIC: u64 = u64::from_le_bytes(*b"ONECOPYS");

/// A hash of what the words mean. It changes with the version and with the counters.
const LAYOUT: u64 = {
    let mut sum = 0xCBF2_9CE4_8422_2325 ^ 3; // FNV-1a, and the version
    let mut name = 0;
    while name < NAMES.len() {
        let bytes = NAMES[name].as_bytes();
        let mut i = 0;
        while i < bytes.len() {
            sum = (sum ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01B3);
            i += 1;
        }
        sum = (sum ^ 0xFF).wrapping_mul(0x0100_0000_01B3);
        name += 1;
    }
    sum
};

const _: () = assert!(word::COUNTERS + NAMES.len() <= word::LOCAL);

type Words = &'static [AtomicU64; WORDS];

/// The place where one socket counts. Dropping it gives it back.
#[derive(Debug)]
pub struct Row {
    words: Words,
    /// Its number in the table; None if it is in memory that nobody sees.
    listed: Option<u32>,
    /// Forks of this process before the row was made.
    forks: u64,
}

/// The type of a socket, as its row shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// SOCK_STREAM.
    Stream,
    /// SOCK_SEQPACKET.
    SeqPacket,
    /// SOCK_DGRAM.
    Datagram,
}

const TYPES: [Type; 3] = [Type::Stream, Type::SeqPacket, Type::Datagram];
const LISTENING: u64 = 1 << 8;
/// Where the protocol begins.
const PROTOCOL: u32 = 16;

/// The protocol of a socket, as its row shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// A unix socket.
    #[default]
    Unix,
    /// TCP on a stack of the program's own: it has no descriptor that names it, and its inode is 0.
    Tcp,
    /// UDP on a stack of the program's own, likewise.
    Udp,
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Unix, Protocol::Tcp, Protocol::Udp];

fn address_words(address: Option<SocketAddr>) -> [u64; 2] {
    let bits = match address.map(|address| address.ip()) {
        None => 0,
        Some(IpAddr::V4(ip)) => ip.to_ipv6_mapped().to_bits(),
        Some(IpAddr::V6(ip)) => ip.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

fn address_of(words: &[u64], port: u16) -> SocketAddr {
    let ip = Ipv6Addr::from_bits(u128::from(words[0]) << 64 | u128::from(words[1]));
    SocketAddr::new(ip.to_canonical(), port)
}

/// How long a call waits for the lock. In a child whose fork came while the lock was held, it stays locked
/// for ever.
const PATIENCE: Duration = Duration::from_millis(100);

struct Registry {
    /// Forks of this process, and of its ancestors, since the first socket.
    forks: AtomicU64,
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
    free: Vec<u32>,
    /// Rows in use or used before. The header has a copy, which a child could change.
    used: usize,
}

static REGISTRY: LazyLock<Registry> =
    LazyLock::new(|| Registry { forks: AtomicU64::new(0), state: Mutex::new(State::default()) });

extern "C" fn before_fork() {
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

    fn claim(&mut self) -> Option<u32> {
        if let Some(row) = self.free.pop() {
            return Some(row);
        }
        let header = &self.rows[0];
        if self.used >= self.rows.len() {
            header[header::UNLISTED].fetch_add(1, Relaxed);
            return None;
        }
        self.used += 1;
        header[header::USED].store(self.used as u64, Relaxed);
        Some(self.used as u32 - 1)
    }
}

impl State {
    fn claim(&mut self, pid: u32) -> (Words, Option<u32>) {
        if self.pid != pid {
            // This is the first socket of this process, or of a child. A child does not use its parent's
            // table.
            let told = self.pid != 0 || onecopy_sys::fork::before(before_fork).is_ok();
            *self = State { pid, table: told.then(Table::make).flatten(), unseen: Vec::new() };
        }
        let table = self.table.as_mut();
        match table.and_then(|table| table.claim().map(|row| (table, row))) {
            Some((table, row)) => (&table.rows[row as usize], Some(row)),
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
    pub fn counters(&self) -> Counters {
        Counters::over(&self.words[word::COUNTERS..])
    }

    /// Makes settings that the row shows. Use them only while the row lives.
    pub fn settings(&self, policy: Policy, reader: Reader, wait: Wait) -> Settings {
        Settings::new(&self.words[word::SETTINGS], policy, reader, wait)
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

/// A socket, as its row shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Inode of its descriptor, by which /proc and sock_diag(7) identify it; 0 of a socket on a stack, which has none.
    pub inode: u64,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its own address, of TCP and UDP.
    pub local: Option<SocketAddr>,
    /// The peer's address, of TCP and UDP.
    pub remote: Option<SocketAddr>,
    /// State of TCP, as Linux numbers them (include/net/tcp_states.h).
    pub state: u8,
    /// Bytes that wait to be received, or connections to be accepted: of a socket on a stack.
    pub queue: u64,
    /// Bytes that were sent and are not acknowledged: of a socket on a stack.
    pub unacknowledged: u64,
    /// Its type.
    pub kind: Type,
    /// Whether it accepts connections instead of carrying bytes.
    pub listening: bool,
    /// Its policy for stores.
    pub policy: Policy,
    /// What was learned about the stores of what it sends, where the policy leaves that open.
    pub learned: Option<Learned>,
    /// The reader of what it sends.
    pub reader: Reader,
    /// How its blocking calls wait.
    pub wait: Wait,
    /// Whether its calls fail instead of waiting, as its process last saw it. If another process sets
    /// O_NONBLOCK on the descriptor, the next call that would wait sees it.
    pub nonblocking: bool,
    /// Bytes of the ring that it receives from; 0 while all comes over the kernel.
    pub receive_capacity: u64,
    /// Bytes of the ring that it sends into; 0 while all goes over the kernel.
    pub send_capacity: u64,
    /// Its counters.
    pub stats: Stats,
}

/// The contents of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The live sockets. A process that forked also lists those that another process may hold. Whether such a
    /// socket still exists is seen from the processes that hold its inode.
    pub entries: Vec<Entry>,
    /// Sockets that found no room in the table since it was made.
    pub unlisted: u64,
}

/// Why a file is not accepted as a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is no memfd that stays as it is: see the reason.
    File(memfd::Refused),
    /// A process that opens it could write it.
    Writable,
    /// It does not begin as a table does.
    NoTable,
    /// Another version of onecopy made it.
    OtherVersion,
    /// It claims more rows in use than there are.
    Nonsense,
    /// Reading failed.
    Io(rustix::io::Errno),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::File(why) => why.fmt(f),
            Refused::Writable => f.write_str("the memfd can be written by who opens it"),
            Refused::NoTable => f.write_str("it does not begin as a table of onecopy does"),
            Refused::OtherVersion => f.write_str("it was made by another version of onecopy"),
            Refused::Nonsense => f.write_str("it says that more rows are in use than there are"),
            Refused::Io(errno) => write!(f, "it cannot be read ({errno})"),
        }
    }
}

impl std::error::Error for Refused {}

/// Reads a table, opened for reading through /proc/PID/fd, and checks all its contents.
///
/// # Errors
///
/// [`Refused`], with the first check that fails.
pub fn read(table: impl AsFd) -> Result<Listing, Refused> {
    memfd::verify(&table, SIZE).map_err(Refused::File)?;
    let seals = rustix::fs::fcntl_get_seals(&table).map_err(Refused::Io)?;
    if !seals.contains(SealFlags::FUTURE_WRITE) {
        return Err(Refused::Writable);
    }
    let header = words(&table, WORDS)?;
    if header[header::MAGIC] != MAGIC {
        return Err(Refused::NoTable);
    }
    if header[header::LAYOUT] != LAYOUT {
        return Err(Refused::OtherVersion);
    }
    let used = usize::try_from(header[header::USED]).unwrap_or(usize::MAX);
    if !(1..=ROWS).contains(&used) {
        return Err(Refused::Nonsense);
    }
    // The table is read twice. A row that was live, and in the same use, both times was whole in between.
    let before = words(&table, used * WORDS)?;
    fence(Acquire);
    let after = words(&table, used * WORDS)?;
    let rows = before.as_chunks::<WORDS>().0.iter().zip(after.as_chunks::<WORDS>().0).skip(1);
    let whole = rows.filter(|(a, b)| a[word::STATE] == b[word::STATE] && a[word::STATE] & STATE == LIVE);
    let entries = whole.filter_map(|(row, _)| entry(row)).collect();
    Ok(Listing { entries, unlisted: header[header::UNLISTED] })
}

fn words(table: impl AsFd, count: usize) -> Result<Vec<u64>, Refused> {
    let mut bytes = vec![0; count * 8];
    let mut have = 0;
    while have < bytes.len() {
        match rustix::io::pread(&table, &mut bytes[have..], have as u64) {
            Ok(0) => return Err(Refused::Nonsense),
            Ok(n) => have += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Refused::Io(errno)),
        }
    }
    Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

/// Reads a row. Returns None for one that is impossible.
fn entry(row: &[u64; WORDS]) -> Option<Entry> {
    let settings = Shown::decode(row[word::SETTINGS])?;
    let kind = row[word::KIND];
    let ports = row[word::PORTS];
    Some(Entry {
        inode: row[word::INODE],
        protocol: *PROTOCOLS.get(usize::try_from(kind >> PROTOCOL).ok()?)?,
        local: (ports >> 32 & 1 != 0).then(|| address_of(&row[word::LOCAL..], ports as u16)),
        remote: (ports >> 33 & 1 != 0).then(|| address_of(&row[word::REMOTE..], (ports >> 16) as u16)),
        state: row[word::STATE_OF_TCP] as u8,
        queue: row[word::QUEUE],
        unacknowledged: row[word::UNACKNOWLEDGED],
        kind: *TYPES.get(usize::try_from(kind & ((1 << PROTOCOL) - 1) & !LISTENING).ok()?)?,
        listening: row[word::KIND] & LISTENING != 0,
        policy: settings.policy,
        reader: settings.reader,
        wait: settings.wait,
        nonblocking: settings.nonblocking,
        learned: settings.learned,
        receive_capacity: row[word::RECEIVE_CAPACITY],
        send_capacity: row[word::SEND_CAPACITY],
        stats: Stats::of(&row[word::COUNTERS..]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_testing::alone;
    use rustix::fs::MemfdFlags;
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    /// Returns the tables that this process shows.
    fn shown() -> Vec<Result<Listing, Refused>> {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().map_while(Result::ok);
        let tables: Vec<PathBuf> = links
            .map(|link| link.path())
            .filter(|path| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains(NAME)))
            .collect();
        tables.iter().filter_map(|path| std::fs::File::open(path).ok()).map(read).collect()
    }

    fn entries() -> impl Iterator<Item = Entry> {
        shown().into_iter().filter_map(Result::ok).flat_map(|listing| listing.entries)
    }

    fn find(socket: &UnixStream) -> Option<Entry> {
        let inode = rustix::fs::fstat(socket).unwrap().st_ino;
        entries().find(|entry| entry.inode == inode)
    }

    fn claim(socket: &UnixStream) -> Row {
        Row::claim(std::process::id(), socket, Type::Stream, false)
    }

    #[test]
    fn a_row_is_used_again_from_nothing() {
        alone!();
        let (a, b) = UnixStream::pair().unwrap();
        for _ in 0..ROWS + 100 {
            let row = claim(&a);
            row.counters().sent.add(1);
            row.receives_into(1);
            row.settings(Policy::Auto, Reader::NoCpu, Wait::Spin).set_nonblocking(true);
        }
        let _row = claim(&b);
        let entry = find(&b).unwrap();
        assert_eq!((entry.stats, entry.receive_capacity, entry.nonblocking), (Stats::default(), 0, false));
        assert_eq!(find(&a), None);
    }

    #[test]
    fn addresses_of_both_families_are_shown_as_they_are() {
        alone!();
        let row = Row::claim_unnamed(std::process::id(), Type::Stream, true);
        let entry = || entries().find(|entry| entry.inode == 0).unwrap();
        assert_eq!((entry().protocol, entry().local), (Protocol::Unix, None));
        for (local, remote) in
            [("10.0.0.1:80", None), ("[fe80::1]:65535", Some("[::1]:1")), ("0.0.0.0:0", Some("1.2.3.4:5"))]
        {
            let (local, remote) = (Some(local.parse().unwrap()), remote.map(|text| text.parse().unwrap()));
            row.names(Protocol::Tcp, local, remote);
            row.moves(10, 3, 4);
            let seen = entry();
            assert_eq!((seen.protocol, seen.local, seen.remote), (Protocol::Tcp, local, remote));
            assert_eq!((seen.listening, seen.kind, seen.state, seen.queue), (true, Type::Stream, 10, 3));
            assert_eq!(seen.unacknowledged, 4);
        }
    }

    #[test]
    fn a_row_that_was_live_at_a_fork_is_left_to_the_child() {
        alone!();
        let (a, b) = UnixStream::pair().unwrap();
        let rows = [claim(&a), claim(&b)];
        before_fork();
        rows[0].counters().sent.add(6);
        let (one, other) = (find(&a).unwrap(), find(&b).unwrap());
        assert_eq!((one.stats.sent, other.stats.sent), (6, 0));
        drop((rows, a, b));
        // The rows are still there, and no later socket takes them.
        let sockets: Vec<_> = (0..100).map(|_| UnixStream::pair().unwrap()).collect();
        let _rows: Vec<_> = sockets.iter().map(|(a, b)| [claim(a), claim(b)]).collect();
        let entries: Vec<Entry> = entries().collect();
        assert!(entries.contains(&one) && entries.contains(&other));
        assert!(sockets.iter().all(|(a, b)| find(a).is_some() && find(b).is_some()));
    }

    #[test]
    fn a_child_makes_a_table_of_its_own() {
        alone!();
        let (a, _b) = UnixStream::pair().unwrap();
        let _row = claim(&a);
        let before = shown().len();
        let child = std::process::id() + 1;
        let row = Row::claim(child, &a, Type::Datagram, true);
        assert_eq!(shown().len(), before + 1);
        let entries = shown().into_iter().filter_map(Result::ok).map(|listing| listing.entries);
        let inode = rustix::fs::fstat(&a).unwrap().st_ino;
        let it = |entry: &Entry| (entry.inode, entry.kind) == (inode, Type::Datagram);
        let with_it = entries.filter(|entries| entries.iter().any(it));
        assert!(with_it.map(|entries| entries.len()).eq([1]), "alone in it");
        drop(row);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        alone!();
        let made = memfd::create(NAME, SIZE).unwrap();
        assert_eq!(read(&made), Err(Refused::Writable));
        let (blank, mapping) = memfd::create_owned(NAME, SIZE).unwrap();
        assert_eq!(read(&blank), Err(Refused::NoTable));
        let words = onecopy_sync::table::words(mapping);
        words[header::MAGIC].store(MAGIC, Relaxed);
        assert_eq!(read(&blank), Err(Refused::OtherVersion));
        words[header::LAYOUT].store(LAYOUT, Relaxed);
        for nonsense in [0, ROWS as u64 + 1, u64::MAX] {
            words[header::USED].store(nonsense, Relaxed);
            assert_eq!(read(&blank), Err(Refused::Nonsense));
        }
        // Rows of noise are accepted if they are possible, and left out if not. Nothing worse happens.
        words[header::USED].store(ROWS as u64, Relaxed);
        let mut noise = 0x9E37_79B9_7F4A_7C15_u64;
        for word in &words[WORDS..] {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            word.store(noise, Relaxed);
        }
        read(&blank).unwrap();
        let (small, _mapping) = memfd::create_owned(NAME, 4096).unwrap();
        assert!(matches!(read(&small), Err(Refused::File(memfd::Refused::Size { .. }))));
        let loose = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(matches!(read(&loose), Err(Refused::File(memfd::Refused::Unsealed(_)))));
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        assert!(matches!(read(&pipe), Err(Refused::File(memfd::Refused::NotAMemfd(_)))));
    }
}
