//! What the table of a process shows about its sockets.

use onecopy::advanced::registry::{Entry, NAME, Type, read};
use onecopy::unix::*;
use onecopy::{Policy, Reader, SendFlags, Stats};
use onecopy_sys::fork::{Ended, child};
use onecopy_testing::alone;
use std::fs::{File, read_dir, read_link};
use std::os::fd::AsFd;

/// Returns the entries of this process's tables.
fn entries() -> impl Iterator<Item = Entry> {
    let links = read_dir("/proc/self/fd").unwrap().map_while(std::result::Result::ok).map(|link| link.path());
    let tables = links.filter(|path| read_link(path).is_ok_and(|to| to.to_string_lossy().contains(NAME)));
    // All tables are listed before they are opened, since opening one changes this list.
    let tables: Vec<_> = tables.collect();
    let listings = tables.into_iter().filter_map(|path| read(File::open(path).ok()?).ok());
    listings.flat_map(|listing| listing.entries)
}

fn inode(socket: impl AsFd) -> u64 {
    rustix::fs::fstat(socket).unwrap().st_ino
}

fn find(socket: &Stream) -> Option<Entry> {
    let inode = inode(socket);
    entries().find(|entry| entry.inode == inode)
}

#[test]
fn an_end_is_shown_as_it_is_and_gone_when_dropped() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    assert_eq!(find(&a).unwrap().stats, Stats::default());
    a.send_with_flags(&[7; 5000], SendFlags::NTCOPY).unwrap();
    b.recv(&mut [0; 3000]).unwrap();
    a.set_policy(Policy::NonTemporal);
    a.set_reader(Reader::NoCpu);
    a.set_nonblocking(true).unwrap();
    let (one, other) = (find(&a).unwrap(), find(&b).unwrap());
    assert_eq!((one.stats, other.stats), (a.stats(), b.stats()));
    assert_eq!((one.stats.sent, one.stats.user_copied_nt, other.stats.received), (5000, 5000, 3000));
    assert_eq!((one.policy, one.reader, one.nonblocking), (Policy::NonTemporal, Reader::NoCpu, true));
    assert_eq!((other.policy, other.nonblocking), (Policy::Auto, false));
    assert_eq!((one.kind, one.listening), (Type::Stream, false));
    assert!(one.send_capacity > 0 && one.send_capacity == other.receive_capacity);
    drop((a, b));
    assert!(entries().all(|entry| entry.inode != one.inode));
}

#[test]
fn each_kind_is_shown_as_what_it_is() {
    alone!();
    let (a, _b) = SeqPacket::pair().unwrap();
    let (datagram, _other) = Datagram::pair().unwrap();
    let name = SocketAddr::from_abstract_name(format!("onecopy-registry-{}", std::process::id())).unwrap();
    let listener = SeqListener::bind(&name).unwrap();
    let shown = [&a as &dyn AsFd, &datagram, &listener].map(|socket| {
        let inode = inode(socket.as_fd());
        let mut mine = entries().filter(|entry| entry.inode == inode);
        let entry = mine.next().unwrap();
        assert_eq!(mine.next(), None);
        (entry.kind, entry.listening)
    });
    assert_eq!(shown, [(Type::SeqPacket, false), (Type::Datagram, false), (Type::SeqPacket, true)]);
}

/// The socket's row is left to the child, which may still count in it.
#[test]
fn a_socket_that_was_there_at_a_fork_stays_shown() {
    alone!();
    let (a, b) = Stream::pair().unwrap();
    assert_eq!(child(|| 0).unwrap().wait(), Ended::Returned(0));
    a.send(b"since").unwrap();
    let (one, other) = (find(&a).unwrap(), find(&b).unwrap());
    assert_eq!((one.stats.sent, other.stats.sent), (5, 0));
    drop((a, b));
    // Later sockets do not take the row, however many there are.
    let _later: Vec<_> = (0..100).map(|_| Stream::pair().unwrap()).collect();
    let entries: Vec<Entry> = entries().collect();
    assert!(entries.contains(&one) && entries.contains(&other));
}
