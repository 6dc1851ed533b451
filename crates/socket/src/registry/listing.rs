//! Reading the table of another process.

use super::layout::{
    LAYOUT, LISTENING, LIVE, MAGIC, PROTOCOL, PROTOCOLS, Protocol, ROWS, SIZE, STATE, TYPES, Type, WORDS,
    address_of, header, word,
};
use crate::settings::Shown;
use crate::stats::Stats;
use onecopy_copy::{Learned, Policy, Reader};
use onecopy_sync::atomic::Ordering::Acquire;
use onecopy_sync::atomic::fence;
use onecopy_sync::spin::Wait;
use onecopy_sys::memfd;
use rustix::fd::AsFd;
use rustix::fs::SealFlags;
use std::fmt;
use std::net::SocketAddr;

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
    /// Up to how many bytes what it could lend was found faster copied, and is; 0: all is lent. None: nothing was found out.
    pub copied_up_to: Option<u32>,
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
        copied_up_to: settings.copied_up_to,
        receive_capacity: row[word::RECEIVE_CAPACITY],
        send_capacity: row[word::SEND_CAPACITY],
        stats: Stats::of(&row[word::COUNTERS..]),
    })
}
