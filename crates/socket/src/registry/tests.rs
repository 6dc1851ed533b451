use super::layout::{LAYOUT, MAGIC, ROWS, WORDS, header};
use super::table::before_fork;
use super::{Entry, Listing, NAME, Protocol, Refused, Row, SIZE, Type, read};
use crate::Stats;
use onecopy_copy::{Policy, Reader};
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sync::spin::Wait;
use onecopy_sys::memfd;
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
