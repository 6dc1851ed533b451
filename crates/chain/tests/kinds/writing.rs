//! Headroom, shared pages, copy-break, pulling up, and the way to the kernel.

use crate::memory::{PAGE, host, in_use};
use onecopy_chain::{Chain, Checksum, Fragment, Placed, Sum, Writer};
use std::io::{IoSlice, Read};
use std::os::unix::net::UnixStream;

#[test]
fn headers_go_into_the_headroom_of_a_page_that_is_ours_alone() {
    let pool = host(8);
    let writer = Writer::new(&pool).headroom(64);
    let mut chain = Chain::new();
    writer.append(&mut chain, b"payload").unwrap();
    assert_eq!((chain.headroom(), chain.tailroom()), (64, PAGE - 71));
    writer.push_header(&mut chain, b"tcp ").unwrap();
    assert_eq!((chain.fragment_count(), chain.headroom(), in_use(&pool)), (1, 60, 1));

    // Somebody else holds it: a page of its own, from whose end the next header grows.
    let queue = chain.share();
    assert_eq!(chain.headroom(), 0);
    writer.push_header(&mut chain, b"ip ").unwrap();
    writer.push_header(&mut chain, b"eth ").unwrap();
    assert_eq!((chain.fragment_count(), in_use(&pool)), (2, 2));
    assert_eq!(chain.headroom(), PAGE - 7);
    assert_eq!(chain.host().unwrap().to_vec(), b"eth ip tcp payload");
    assert_eq!(queue.host().unwrap().to_vec(), b"tcp payload");
    drop(chain);
    assert_eq!((queue.headroom(), in_use(&pool)), (60, 1), "ours alone again");
}

#[test]
fn small_pieces_share_a_page() {
    let pool = host(64);
    let writer = Writer::new(&pool).copy_break(128);
    let piece = |len: usize| {
        let mut page = pool.alloc().unwrap();
        page.bytes_mut().unwrap()[..len].fill(len as u8);
        Fragment::new(page, 0, len).unwrap()
    };
    let mut chain = Chain::new();
    for _ in 0..30 {
        assert_eq!(writer.append_fragment(&mut chain, piece(100)).unwrap(), Placed::Copied);
    }
    assert_eq!((chain.len(), chain.fragment_count(), chain.true_size()), (3000, 1, PAGE));
    assert_eq!(in_use(&pool), 1);
    assert_eq!(writer.append_fragment(&mut chain, piece(128)).unwrap(), Placed::Referenced);
    assert_eq!(in_use(&pool), 2);
    // Contiguous with what is there: by reference, it costs nothing.
    let mut two = Chain::new();
    let whole = piece(100);
    let next = Fragment::new(whole.page().clone(), 100, 20).unwrap();
    two.append(whole).unwrap();
    assert_eq!(writer.append_fragment(&mut two, next).unwrap(), Placed::Referenced);
    assert_eq!(two.fragment_count(), 1);

    // The same by reference holds a page for each, until it is packed.
    let mut queue = Chain::new();
    for _ in 0..30 {
        queue.append(piece(100)).unwrap();
    }
    queue.end_record();
    assert_eq!((queue.true_size(), in_use(&pool)), (30 * PAGE, 33));
    assert_eq!(writer.collapse(&mut queue).unwrap(), 29 * PAGE);
    assert_eq!((queue.fragment_count(), queue.len(), queue.mark_count()), (1, 3000, 1));
    assert_eq!(in_use(&pool), 4);
    assert_eq!(writer.collapse(&mut queue).unwrap(), 0, "there is no more to free");

    // No page to copy into: by reference all the same.
    let tight = host(1);
    let only = Fragment::new(tight.alloc().unwrap(), 0, 10).unwrap();
    let mut chain = Chain::new();
    assert_eq!(Writer::new(&tight).append_fragment(&mut chain, only).unwrap(), Placed::Referenced);
}

#[test]
fn pulling_up_copies_no_more_than_it_has_to() {
    let pool = host(8);
    let writer = Writer::new(&pool).headroom(32);
    let mut chain = Chain::new();
    writer.append(&mut chain, &[1; 10]).unwrap();
    let first = chain.fragments().next().unwrap().page().netmem();
    let mut behind = Chain::new();
    writer.append(&mut behind, &[2; 100]).unwrap();
    chain.concat(&mut behind).unwrap();
    assert_eq!(writer.pull_up(&mut chain, 10).unwrap(), [1; 10]);
    assert_eq!(chain.fragment_count(), 2, "they lay so already");
    assert_eq!(writer.pull_up(&mut chain, 40).unwrap()[9..12], [1, 2, 2]);
    let second = chain.fragments().next().unwrap();
    assert_eq!((second.page().netmem(), second.len()), (first, 40), "behind the first piece, in its page");
    assert_eq!(in_use(&pool), 2);

    let shared = chain.share();
    assert_eq!(writer.pull_up(&mut chain, 110).unwrap().len(), 110);
    assert_eq!(
        (chain.fragment_count(), chain.headroom(), in_use(&pool)),
        (1, 32, 3),
        "into a page of its own"
    );
    assert_eq!(shared.fragment_count(), 2);
    assert_eq!(shared.host().unwrap().to_vec(), chain.host().unwrap().to_vec());
    assert_eq!(chain.host().unwrap().first(111), None);
}

#[test]
fn who_holds_a_page_keeps_what_he_saw() {
    let pool = host(8);
    let writer = Writer::new(&pool);
    let mut chain = Chain::new();
    writer.append(&mut chain, &[1; PAGE + 100]).unwrap();
    chain.set_checksum(Checksum::Known(chain.host().unwrap().sum(0, PAGE + 100).unwrap())).unwrap();
    let sent = chain.range(PAGE - 1, 3).unwrap();
    writer.overwrite(&mut chain, PAGE - 2, &[9; 5]).unwrap();
    assert_eq!(sent.host().unwrap().to_vec(), [1, 1, 1]);
    let now = chain.host().unwrap().to_vec();
    assert_eq!(now[PAGE - 3..PAGE + 4], [1, 9, 9, 9, 9, 9, 1]);
    assert_eq!(chain.checksum(), Checksum::Known(Sum::of(&now)));
    writer.append(&mut chain, &[3; 3]).unwrap();
    assert_eq!(sent.host().unwrap().to_vec(), [1, 1, 1]);
}

#[test]
fn a_checksum_is_finished_as_a_device_would() {
    let pool = host(4);
    let writer = Writer::new(&pool);
    let pseudo = Sum::of(&[10, 0, 0, 1, 10, 0, 0, 2, 0, 17, 0, 12]);
    let mut chain = Chain::new();
    writer.append(&mut chain, &[0x12, 0x34, 0x56, 0x78, 0, 12, 0, 0, 1, 2, 3, 4]).unwrap();
    writer.overwrite(&mut chain, 6, &pseudo.folded().to_be_bytes()).unwrap();
    chain.set_checksum(Checksum::Partial { start: 0, offset: 6 }).unwrap();
    writer.push_header(&mut chain, &[0x45; 20]).unwrap();
    writer.finish(&mut chain).unwrap();
    assert_eq!(chain.checksum(), Checksum::None);
    // What the receiver does: the header off, with the sum that its device gave.
    let sum = chain.host().unwrap().sum(0, 32).unwrap();
    chain.set_checksum(Checksum::Known(sum)).unwrap();
    chain.pull(20).unwrap();
    assert!(chain.verify(pseudo).unwrap());
    assert_eq!(chain.checksum(), Checksum::Verified);
    // A broken byte is found.
    writer.overwrite(&mut chain, 9, &[0]).unwrap();
    assert!(!chain.verify(pseudo).unwrap());
    assert_eq!(chain.checksum(), Checksum::None);
}

#[test]
fn a_chain_of_many_pieces_goes_out_as_it_is() {
    let pool = host(200);
    let mut chain = Chain::new();
    let mut expected = Vec::new();
    for i in 0..150usize {
        let mut page = pool.alloc().unwrap();
        page.bytes_mut().unwrap()[i..i + 50].fill(i as u8);
        chain.append(Fragment::new(page, i, 50).unwrap()).unwrap();
        expected.extend([i as u8; 50]);
    }
    let mut entries = [IoSlice::new(&[]); 200];
    let count = chain.host().unwrap().gather(1, &mut entries).unwrap();
    assert_eq!((count, entries[0].len(), entries[1].len()), (150, 49, 50));
    let mut copy = Vec::new();
    chain.host().unwrap().reader().read_to_end(&mut copy).unwrap();
    assert_eq!(copy, expected);

    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut calls = 0;
    while !chain.is_empty() {
        let n = match calls % 2 {
            0 => chain.write_to(&ours).unwrap(),
            _ => chain.send_to(&ours).unwrap(),
        };
        chain.advance(n).unwrap();
        calls += 1;
    }
    drop(ours);
    assert_eq!(calls, 3, "64 fragments each");
    assert_eq!(in_use(&pool), 0, "what is written is given back");
    let mut received = Vec::new();
    theirs.read_to_end(&mut received).unwrap();
    assert_eq!(received, expected);
    assert!(chain.write_to(&theirs).is_ok_and(|n| n == 0), "nothing to write is no error");
}

#[test]
fn a_file_is_read_straight_into_pages() {
    let pool = host(8);
    let writer = Writer::new(&pool).headroom(100);
    let source: Vec<u8> = (0..10_000u32).map(|i| (i * 31) as u8).collect();
    let mut chain = Chain::new();
    assert_eq!(writer.read_from(&mut chain, &source[..], 9_000).unwrap(), 9_000);
    assert_eq!((chain.headroom(), chain.fragment_count(), in_use(&pool)), (100, 3, 3));
    assert_eq!(writer.read_from(&mut chain, &source[9_000..], 5_000).unwrap(), 1_000);
    assert_eq!(writer.read_from(&mut chain, &b""[..], 5_000).unwrap(), 0);
    assert_eq!(chain.host().unwrap().to_vec(), source);
    assert_eq!(in_use(&pool), 3);
}
