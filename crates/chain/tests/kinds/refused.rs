//! Bad input: each has its error, and leaves everything as it was.

use crate::memory::{PAGE, device, host, in_use};
use onecopy_chain::{Chain, ChainError, Checksum, Fragment, Mark, Sum, Writer};
use onecopy_pool::AllocError;
use std::io::{self, Read};

fn whole(pool: &onecopy_pool::PagePool) -> Fragment {
    Fragment::whole(pool.alloc().unwrap()).unwrap()
}

#[test]
fn fragments_without_bytes_or_outside_of_their_page() {
    let pool = host(2);
    let new = |offset, len| Fragment::new(pool.alloc().unwrap(), offset, len).map(drop);
    assert_eq!(new(0, 0), Err(ChainError::ZeroSize));
    assert_eq!(new(PAGE, 0), Err(ChainError::ZeroSize));
    for (offset, len) in
        [(0, PAGE + 1), (1, PAGE), (PAGE, 1), (usize::MAX, 2), (2, usize::MAX), (usize::MAX, usize::MAX)]
    {
        assert_eq!(new(offset, len), Err(ChainError::OutOfPage { offset, len, page: PAGE }));
    }
    assert_eq!(new(0, PAGE), Ok(()));
    assert_eq!(new(PAGE - 1, 1), Ok(()));
    assert_eq!(in_use(&pool), 0, "refused pages go home");
}

#[test]
fn places_behind_the_end() {
    let pool = host(4);
    let mut chain = Chain::from(Fragment::new(pool.alloc().unwrap(), 10, 100).unwrap());
    chain.end_record();
    let behind = |at| ChainError::BeyondEnd { at, len: 100 };
    assert_eq!(chain.split_to(101).unwrap_err(), behind(101));
    assert_eq!(chain.split_off(usize::MAX).unwrap_err(), behind(usize::MAX));
    assert_eq!(chain.advance(101), Err(behind(101)));
    assert_eq!(chain.pull(101), Err(behind(101)));
    assert_eq!(chain.range(50, 51).unwrap_err(), behind(101));
    assert_eq!(chain.range(101, 0).unwrap_err(), behind(101));
    assert_eq!(chain.range(1, usize::MAX).unwrap_err(), behind(usize::MAX), "an overflow is no small number");
    assert_eq!(chain.insert_mark(101, Mark::EndOfRecord), Err(behind(101)));
    assert_eq!(chain.truncate(1000), Ok(()), "as a vector: already short enough");
    let view = chain.host().unwrap();
    assert_eq!(view.sum(99, 2), Err(behind(101)));
    assert_eq!(view.copy_to(1, &mut [0; 100], Default::default()).unwrap_err(), behind(101));
    assert_eq!(view.gather(101, &mut []), Err(behind(101)));
    let writer = Writer::new(&pool);
    assert_eq!(writer.pull_up(&mut chain, 101), Err(behind(101)));
    assert_eq!(writer.overwrite(&mut chain, 99, b"ab"), Err(behind(101)));
    assert_eq!(writer.overwrite(&mut chain, usize::MAX, b"ab"), Err(behind(usize::MAX)));
    let field_behind = Checksum::Partial { start: 90, offset: 9 };
    assert_eq!(chain.set_checksum(field_behind), Err(behind(101)));
    assert_eq!((chain.len(), chain.mark_count(), chain.checksum()), (100, 1, Checksum::None));
}

#[test]
fn four_gigabytes_are_too_many() {
    // Pages of 1 GiB that nobody has to have: three whole ones are in, the fourth is too much.
    let pool = device(0, 4, 18);
    let giga = 1 << 30;
    let mut chain = Chain::new();
    for _ in 0..3 {
        chain.append(whole(&pool)).unwrap();
    }
    assert_eq!((chain.len(), chain.true_size()), (3 * giga, 3 * giga));
    let too_long = ChainError::TooLong { bytes: 4 << 30 };
    assert_eq!(chain.append(whole(&pool)), Err(too_long.clone()));
    assert_eq!(chain.prepend(whole(&pool)), Err(too_long.clone()));
    let mut other = Chain::from(whole(&pool));
    other.end_record();
    assert_eq!(chain.concat(&mut other), Err(too_long.clone()));
    assert_eq!((other.len(), other.mark_count()), (giga, 1), "the other one is as it was");
    assert_eq!((chain.len(), chain.fragment_count()), (3 * giga, 3));

    // A byte of each of two pages, in turns: few bytes, but by the rule of true_size a page each time.
    let (a, b) = (pool_page(&chain, 0), pool_page(&chain, 1));
    let mut bytes = Chain::new();
    for i in 0..3 {
        bytes.append(Fragment::new([&a, &b][i % 2].clone(), i, 1).unwrap()).unwrap();
    }
    assert_eq!(bytes.append(Fragment::new(b.clone(), 9, 1).unwrap()), Err(too_long));
    assert_eq!((bytes.len(), bytes.true_size()), (3, 3 * giga));
    // A share of the whole, behind it: both together are too long, in bytes and in pages.
    assert!(matches!(chain.concat(&mut chain.share()), Err(ChainError::TooLong { .. })));
}

fn pool_page(chain: &Chain, index: usize) -> onecopy_pool::Page {
    chain.fragments().nth(index).unwrap().page().clone()
}

#[test]
fn an_empty_pool_changes_nothing() {
    let pool = host(2);
    let writer = Writer::new(&pool);
    let mut chain = Chain::new();
    writer.append(&mut chain, &[1; 100]).unwrap();
    chain.set_checksum(Checksum::Known(Sum::of(&[1; 100]))).unwrap();
    let before = chain.checksum();
    let no_page = ChainError::NoPage(AllocError::Exhausted { limit: 2 });
    // The room behind the last byte would do for some of it: all or nothing.
    assert_eq!(writer.append(&mut chain, &[2; 3 * PAGE]), Err(no_page.clone()));
    assert_eq!((chain.len(), chain.checksum(), in_use(&pool)), (100, before, 1));
    let _last = pool.alloc().unwrap();
    assert_eq!(writer.push_header(&mut chain, &[3; 20]), Err(no_page.clone()));
    let shared = chain.share();
    assert_eq!(writer.overwrite(&mut chain, 1, &[4]), Err(no_page.clone()));
    assert_eq!(writer.collapse(&mut shared.share()), Err(no_page.clone()));
    assert_eq!(chain.host().unwrap().to_vec(), [1; 100]);
    let message = no_page.to_string();
    assert!(message.contains("limit"), "it says what to do: {message}");
    assert_eq!(io::Error::from(no_page).kind(), rustix::io::Errno::NOBUFS.kind());
}

#[test]
fn what_does_not_fit_a_page_is_not_made_contiguous() {
    let pool = host(8);
    let writer = Writer::new(&pool);
    let mut chain = Chain::new();
    writer.append(&mut chain, &[1; 2 * PAGE]).unwrap();
    let over = ChainError::OverPage { len: PAGE + 1, page: PAGE };
    assert_eq!(writer.pull_up(&mut chain, PAGE + 1), Err(over.clone()));
    assert_eq!(writer.push_header(&mut chain, &[0; PAGE + 1]), Err(over.clone()));
    let all_headroom = writer.headroom(PAGE);
    assert_eq!(all_headroom.append(&mut Chain::new(), b"x"), Err(over.clone()));
    assert!(all_headroom.read_from(&mut Chain::new(), &b"x"[..], 1).is_err());
    assert_eq!(chain.len(), 2 * PAGE);
    assert_eq!(in_use(&pool), 2);
}

#[test]
fn an_unfinished_checksum_is_not_cut_and_not_doubled() {
    let pool = host(8);
    let writer = Writer::new(&pool);
    let segment = || {
        let mut chain = Chain::new();
        writer.append(&mut chain, &[5; 60]).unwrap();
        chain.set_checksum(Checksum::Partial { start: 20, offset: 16 }).unwrap();
        chain
    };
    let mut chain = segment();
    assert_eq!(chain.split_to(21).unwrap_err(), ChainError::Unfinished { at: 21, start: 20 });
    assert_eq!(chain.truncate(59), Err(ChainError::Unfinished { at: 59, start: 20 }));
    assert_eq!(chain.range(30, 10).unwrap_err(), ChainError::Unfinished { at: 30, start: 20 });
    assert_eq!(chain.range(0, 40).unwrap_err(), ChainError::Unfinished { at: 40, start: 20 });
    assert_eq!(chain.range(10, 50).unwrap().checksum(), Checksum::Partial { start: 10, offset: 16 });
    assert_eq!(chain.concat(&mut segment()), Err(ChainError::Unfinished { at: 60, start: 80 }));
    writer.push_header(&mut chain, &[6; 14]).unwrap();
    assert_eq!(chain.checksum(), Checksum::Partial { start: 34, offset: 16 });
    let mut far = Chain::new();
    writer.append(&mut far, &vec![7; 4 * PAGE]).unwrap();
    for _ in 0..2 {
        let mut again = far.share();
        far.concat(&mut again).unwrap();
    }
    // Its start has 16 bits, as virtio's.
    assert_eq!(far.concat(&mut chain), Err(ChainError::Unfinished { at: 65536, start: 65570 }));
    let front = chain.split_to(34).unwrap();
    assert_eq!(
        (front.checksum(), chain.checksum()),
        (Checksum::None, Checksum::Partial { start: 0, offset: 16 })
    );
    assert!(chain.verify(Sum::ZERO).unwrap(), "made here, and on no wire yet");
}

#[test]
fn a_reader_that_lies_or_fails() {
    struct Liar;
    impl Read for Liar {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            Ok(buffer.len() + 1)
        }
    }
    struct FailsAfter(usize);
    impl Read for FailsAfter {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let n = buffer.len().min(self.0);
            self.0 -= n;
            if n == 0 { Err(io::Error::other("no more")) } else { Ok(n) }
        }
    }
    let pool = host(8);
    let writer = Writer::new(&pool);
    let mut chain = Chain::new();
    assert!(writer.read_from(&mut chain, Liar, 10).unwrap_err().to_string().contains("mend"));
    assert_eq!(writer.read_from(&mut chain, FailsAfter(0), 10).unwrap_err().to_string(), "no more");
    assert!(chain.is_empty() && in_use(&pool) == 0);
    assert_eq!(writer.read_from(&mut chain, FailsAfter(PAGE + 1), 3 * PAGE).unwrap(), PAGE + 1);
    assert!(writer.read_from(&mut chain, Liar, 10).is_err(), "into the room behind the last byte, too");
    assert_eq!((chain.len(), chain.fragment_count()), (PAGE + 1, 2));
}
