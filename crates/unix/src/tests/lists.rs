//! Hostile records by reference: impossible lists, references and pools.

use crate::ancillary::channel;
use crate::connection::Connection;
use crate::connection::tx::Tx;
use crate::core::kind::Kind;
use crate::{Config, RecvFlags};
use onecopy_chain::Chain;
use onecopy_copy::Hint;
use onecopy_ring::Mark;
use onecopy_ring::record::{Frame, HEADER, Identity, POOL_FRAME, Parts, With};
use onecopy_sys::memfd;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

const PAGE: u64 = 8192;
const PAGES: u64 = 4;

/// A peer that writes arbitrary values by hand.
struct Liar {
    end: Arc<Connection>,
    channel: Option<OwnedFd>,
}

impl Liar {
    fn pair() -> (Liar, Arc<Connection>) {
        let (a, b) = Connection::pair(Kind::SeqPacket, &Config::default()).unwrap();
        (Liar { end: a, channel: None }, b)
    }

    fn with(&self, write: impl FnOnce(&mut onecopy_ring::Producer)) {
        let mut tx = self.end.tx().lock();
        let Tx::Ring(ring) = &mut *tx else { panic!("a pair begins with rings") };
        assert!(ring.producer().room(1 << 15).unwrap() >= 1 << 15);
        write(ring.producer());
    }

    /// Shares a pool that is valid in everything but what `pool` says.
    fn share(&mut self, owned: bool, pool: Mark) {
        let (name, len) = ("onecopy-test-pool", (PAGE * PAGES) as usize);
        let memory =
            if owned { memfd::create_owned(name, len).unwrap().0 } else { memfd::create(name, len).unwrap() };
        if self.channel.is_none() {
            self.channel = Some(channel::open(self.end.fd()).unwrap());
        }
        let channel = self.channel.as_ref().unwrap().as_fd();
        self.with(|producer| {
            channel::send(channel, producer.head(), &[memory.as_fd()], None).unwrap();
            producer.publish_pool(pool);
        });
    }

    fn honest_pool(&mut self) {
        self.share(true, Mark::Pool { pool: 0, page_len: PAGE, pages: PAGES });
    }

    /// Sends a record of `bytes` and references.
    fn list(&self, bytes: &[u8], references: &[Mark]) {
        self.list_with(bytes, references, 0);
    }

    /// Sends as [`Liar::list`], with descriptors that are in the channel.
    fn list_with(&self, bytes: &[u8], references: &[Mark], fds: u8) {
        self.with(|producer| {
            let parts = Parts { bytes: bytes.len(), references: references.len() };
            producer.list(&[IoSlice::new(bytes)], references.len(), Hint::AUTO);
            for (i, reference) in references.iter().enumerate() {
                producer.list_reference(parts, i, *reference);
            }
            let with = With::new(fds, Identity::AsBefore).parts();
            producer.publish_frame(Frame { len: parts.len(), end: true, with });
        });
    }
}

fn reference(slot: u32, pool: u32, page: u32, offset: u32, len: u32) -> Mark {
    Mark::Reference { slot, pool, page, offset, len }
}

/// Returns the results of each kind of receive.
fn receives(end: &Arc<Connection>) -> [crate::Result<usize>; 3] {
    let flags = RecvFlags::DONTWAIT;
    [
        end.recv_record(&mut [IoSliceMut::new(&mut [0; 64])], flags | RecvFlags::PEEK).map(|got| got.full),
        end.borrow_record(usize::MAX, flags).map(|(view, _)| view.len()),
        end.recv_record_chain(&mut [0; 64], flags).map(|(got, _)| got.full),
    ]
}

fn is_lie(end: &Arc<Connection>, what: &str) {
    for result in receives(end) {
        assert_eq!(result.unwrap_err().raw_os_error(), Errno::PROTO.raw_os_error(), "{what}");
    }
    assert_eq!(end.counters().read().protocol_errors, 1, "{what}");
}

#[test]
fn what_no_list_can_say_ends_the_connection() {
    super::alone!();
    let good = reference(0, 0, 0, 0, 10);
    for (what, first, bad) in [
        ("an unknown pool", None, reference(1, 1, 0, 0, 1)),
        ("a page behind the pool", None, reference(1, 0, PAGES as u32, 0, 1)),
        ("a slot that there is not", None, reference(512, 0, 0, 0, 1)),
        ("no bytes", None, reference(1, 0, 0, 0, 0)),
        ("bytes behind the page", None, reference(1, 0, 0, 1, PAGE as u32)),
        ("an offset behind the page", None, reference(1, 0, 0, u32::MAX, 1)),
        ("all lengths at once", None, reference(1, 0, 0, u32::MAX, u32::MAX)),
        ("one slot twice", Some(good), good),
        ("a mark that is no reference", Some(good), Mark::Fds { count: 1, len: 1 }),
        ("a pool in a list", Some(good), Mark::Pool { pool: 1, page_len: PAGE, pages: PAGES }),
    ] {
        let (mut liar, end) = Liar::pair();
        liar.honest_pool();
        let all: Vec<Mark> = first.into_iter().chain([bad]).collect();
        liar.list(b"head", &all);
        is_lie(&end, what);
        // What was adopted before the misbehaviour went back.
        let ring = end.rx_ring().unwrap();
        assert_eq!(ring.header().has_returned(), first.is_some(), "{what}");
    }
    for (what, bytes, references, len) in [
        ("no reference", 0u64, 0u64, 8usize),
        ("more references than there can be", 0, 257, 8 + 257 * 24),
        ("more bytes than the frame", 1 << 31, 1, 32),
        ("fewer bytes than the frame", 0, 1, 64),
        ("a frame too short for a list", 0, 1, 4),
        ("an empty frame", 0, 1, 0),
    ] {
        let (mut liar, end) = Liar::pair();
        liar.honest_pool();
        liar.with(|producer| {
            let word = (bytes | references << 32).to_le_bytes();
            producer.copy_in(HEADER, &word, Hint::AUTO);
            producer.publish_frame(Frame { len, end: true, with: With::default().parts() });
        });
        is_lie(&end, what);
    }
}

#[test]
fn what_no_pool_can_be_ends_the_connection() {
    super::alone!();
    let pool = |pool, page_len, pages| Mark::Pool { pool, page_len, pages };
    for (what, owned, told) in [
        ("a name out of turn", true, pool(1, PAGE, PAGES)),
        ("more pages than there are", true, pool(0, PAGE, PAGES + 1)),
        ("pages of odd sizes", true, pool(0, 5000, 6)),
        ("no pages", true, pool(0, PAGE, 0)),
        ("more than is mapped", true, pool(0, 1 << 30, 1 << 20)),
        ("others may write to it", false, pool(0, PAGE, PAGES)),
        ("a reference", true, reference(0, 0, 0, 0, 1)),
    ] {
        let (mut liar, end) = Liar::pair();
        liar.share(owned, told);
        is_lie(&end, what);
    }
    // The channel is missing, or is empty.
    for open in [false, true] {
        let (liar, end) = Liar::pair();
        let _channel = open.then(|| channel::open(liar.end.fd()).unwrap());
        liar.with(|producer| producer.publish_pool(pool(0, PAGE, PAGES)));
        is_lie(&end, "nothing in the channel");
    }
    // The frame has another length than a pool's frame.
    let (liar, end) = Liar::pair();
    liar.with(|producer| producer.publish_frame(Frame { len: 8, ..POOL_FRAME }));
    is_lie(&end, "a short frame");
}

#[test]
fn who_keeps_parts_or_datagrams_knows_no_lists() {
    super::alone!();
    let stream = Config { records: crate::Records::Stream, ..Config::default() };
    let (a, b) = Connection::pair(Kind::SeqPacket, &stream).unwrap();
    let liar = Liar { end: a, channel: None };
    liar.list(b"", &[reference(0, 0, 0, 0, 1)]);
    let told = b.recv_record(&mut [IoSliceMut::new(&mut [0; 64])], RecvFlags::DONTWAIT);
    assert_eq!(told.unwrap_err().raw_os_error(), Errno::PROTO.raw_os_error());
}

/// A list that was looked at stays as it was, whatever the peer changes in it, and its pages do too.
#[test]
fn a_list_is_read_once() {
    super::alone!();
    let (mut liar, end) = Liar::pair();
    liar.honest_pool();
    let at = std::cell::Cell::new(0);
    liar.with(|producer| at.set(producer.state()[0]));
    liar.list(b"head", &[reference(3, 0, 1, 0, 100), reference(4, 0, 2, 0, 100)]);
    let peek = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let look = |flags| end.recv_record(&mut [IoSliceMut::new(&mut [0; 300])], flags).map(|got| got.full);
    assert_eq!(look(peek).unwrap(), 204);
    // The peer changes all of it except the frame's header, which says where the next frame is.
    let ring = end.rx_ring().unwrap();
    for word in 1..9 {
        ring.set_word((at.get() as usize + word * 8) % ring.capacity(), u64::MAX);
    }
    assert_eq!(look(peek).unwrap(), 204);
    let (got, chain) = end.recv_record_chain(&mut [0; 64], RecvFlags::DONTWAIT).unwrap();
    assert_eq!((got.len, got.full, chain.len()), (4, 204, 200));
    assert!(!ring.header().has_returned());
    drop::<Chain>(chain);
    assert!(ring.header().has_returned());
}

/// A record that no chain can hold keeps its descriptors. A receive into a buffer gets them.
#[test]
fn descriptors_of_a_record_that_is_refused_stay_with_it() {
    super::alone!();
    const LARGE: u64 = 16 << 20;
    let (mut liar, end) = Liar::pair();
    liar.channel = Some(channel::open(liar.end.fd()).unwrap());
    let channel = liar.channel.as_ref().unwrap().as_fd();
    let memory = memfd::create_owned("onecopy-test-pool", LARGE as usize).unwrap().0;
    liar.with(|producer| {
        channel::send(channel, producer.head(), &[memory.as_fd()], None).unwrap();
        producer.publish_pool(Mark::Pool { pool: 0, page_len: LARGE, pages: 1 });
    });
    // 4 GiB of pages, in as many references as are allowed.
    let all: Vec<Mark> = (0..256).map(|slot| reference(slot, 0, 0, 0, 1)).collect();
    liar.with(|producer| channel::send(channel, producer.head(), &[memory.as_fd()], None).unwrap());
    liar.list_with(b"head", &all, 1);
    for _ in 0..2 {
        let refused = end.recv_record_chain(&mut [0; 64], RecvFlags::DONTWAIT).unwrap_err();
        assert_eq!(refused.raw_os_error(), Errno::OVERFLOW.raw_os_error());
    }
    let (got, with) =
        end.recv_record_ancillary(&mut [IoSliceMut::new(&mut [0; 64])], RecvFlags::DONTWAIT).unwrap();
    assert_eq!((got.full, with.fds.len(), with.truncated), (260, 1, false));
}
