//! Marks at a cut, and what needs no heap.

use crate::memory::host;
use onecopy_chain::{Chain, Credentials, Fragment, Mark, Writer};

fn kinds(chain: &Chain) -> Vec<(usize, &'static str)> {
    let name = |mark: &Mark| match mark {
        Mark::EndOfRecord => "end",
        Mark::Rights(_) => "rights",
        Mark::Credentials(_) => "from",
        _ => "?",
    };
    chain.marks().map(|(at, mark)| (at, name(mark))).collect()
}

fn from() -> Mark {
    Mark::Credentials(Credentials { pid: 1, uid: 2, gid: 3 })
}

#[test]
fn a_cut_parts_the_marks_at_it() {
    let pool = host(8);
    let writer = Writer::new(&pool);
    let make = || {
        let mut chain = Chain::new();
        writer.append(&mut chain, b"first").unwrap();
        chain.end_record();
        chain.end_record(); // a record without bytes
        chain.attach(from());
        writer.append(&mut chain, b"third").unwrap();
        chain.attach(Mark::Rights(Vec::new()));
        chain.end_record();
        chain.attach(from());
        chain
    };
    let all = [(5, "end"), (5, "end"), (5, "from"), (10, "rights"), (10, "end"), (10, "from")];
    for at in 0..=10 {
        let mut chain = make();
        assert_eq!(kinds(&chain), all);
        let mut front = chain.split_to(at).unwrap();
        let in_front = match at {
            0..5 => 0,
            5 => 1,
            6..10 => 3,
            _ => 6,
        };
        assert_eq!(front.mark_count(), in_front, "cut at {at}");
        front.concat(&mut chain).unwrap();
        assert_eq!(kinds(&front), all, "cut at {at} and joined again");
    }

    let mut chain = make();
    let records: Vec<Chain> = std::iter::from_fn(|| chain.split_record().unwrap()).collect();
    let shown: Vec<_> = records.iter().map(|record| (record.len(), kinds(record))).collect();
    let expected =
        [(5, vec![(5, "end")]), (0, vec![(0, "end")]), (5, vec![(0, "from"), (5, "rights"), (5, "end")])];
    assert_eq!(shown, expected);
    assert_eq!(
        (chain.len(), kinds(&chain)),
        (0, vec![(0, "from")]),
        "what comes before bytes that are not here yet"
    );
    assert_eq!(chain.record_len(), None);
    writer.append(&mut chain, b"fourth").unwrap();
    writer.push_header(&mut chain, b"> ").unwrap();
    assert_eq!(kinds(&chain), [(2, "from")], "it keeps its place among the bytes");
    assert!(chain.pop_mark().is_none(), "there are bytes before it");
    chain.advance(2).unwrap();
    assert!(matches!(chain.pop_mark(), Some(Mark::Credentials(who)) if who.pid == 1));
    assert_eq!(chain.mark_count(), 0);
}

#[test]
fn every_place_of_a_long_chain_is_found() {
    let pool = host(1);
    let mut page = pool.alloc().unwrap();
    page.bytes_mut().unwrap().iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 + (i >> 8)) as u8);
    let mut chain = Chain::new();
    let mut expected = Vec::new();
    // Pieces that do not touch, some put in front, so that the list wraps around in its buffer.
    for i in 0..100usize {
        let (offset, len) = (i * 40, 1 + i * 7 % 39);
        let bytes = page.bytes().unwrap()[offset..offset + len].to_vec();
        let fragment = Fragment::new(page.clone(), offset, len).unwrap();
        if i % 3 == 0 {
            chain.prepend(fragment).unwrap();
            expected.splice(0..0, bytes);
        } else {
            chain.append(fragment).unwrap();
            expected.extend(bytes);
        }
    }
    assert_eq!(chain.fragment_count(), 100);
    for at in 0..expected.len() {
        let range = chain.range(at, 1).unwrap();
        assert_eq!(range.host().unwrap().to_vec(), expected[at..=at], "byte {at}");
    }
    let mut at = 0;
    while !chain.is_empty() {
        let n = chain.len().min(1 + at % 50);
        let front = chain.split_to(n).unwrap();
        assert_eq!(front.host().unwrap().to_vec(), expected[at..at + n]);
        at += n;
    }
}

#[test]
fn descriptors_have_one_owner() {
    let pool = host(4);
    let writer = Writer::new(&pool);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut chain = Chain::new();
    chain.attach(Mark::Rights(vec![theirs.into()]));
    writer.append(&mut chain, b"take it").unwrap();
    chain.attach(from());
    chain.end_record();
    let again = chain.share();
    assert_eq!(kinds(&again), [(7, "from"), (7, "end")], "what can be had twice");
    let closed = || {
        use std::io::Read;
        ours.set_nonblocking(true).unwrap();
        (&ours).read(&mut [0]).is_ok_and(|n| n == 0)
    };
    assert!(!closed());
    drop(again);
    assert!(!closed());
    chain.advance(1).unwrap();
    assert!(closed(), "passed over without being taken: closed");
}

#[test]
fn a_chain_is_a_line_and_moves_by_value() {
    assert_eq!(size_of::<Chain>(), 64);
    assert_eq!(size_of::<Fragment>(), 16);
    fn goes_anywhere<T: Send + Sync + 'static>() {}
    goes_anywhere::<Chain>();
    goes_anywhere::<Fragment>();
    let pool = host(4);
    let mut chain = Chain::new();
    Writer::new(&pool).append(&mut chain, &[1; 100]).unwrap();
    let moved = chain.take();
    assert!(chain.is_empty() && chain.kind().is_none() && chain.fragment_count() == 0);
    let there = std::thread::spawn(move || moved.host().unwrap().to_vec()).join().unwrap();
    assert_eq!(there, [1; 100]);
}
