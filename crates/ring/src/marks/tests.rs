//! Tests of what marks mean, and of every way in which a peer can misbehave with them.

use super::*;
use onecopy_sync::atomic::Ordering::Relaxed;

const CAPACITY: usize = 4096;

#[test]
fn marks_come_out_as_they_went_in() {
    let header = Header::default();
    let (mut writer, mut reader) = (MarkWriter::default(), MarkReader::default());
    let all = [
        Mark::Fds { count: 253, len: u64::MAX },
        Mark::Identity { said: true },
        Mark::Identity { said: false },
        Mark::Pool { pool: 7, page_len: 1 << 21, pages: 1 << 20 },
        Mark::Reference { slot: 1023, pool: 65535, page: u32::MAX, offset: 5, len: u32::MAX },
    ];
    for round in 0..200u64 {
        let mark = all[round as usize % all.len()];
        writer.lay(&header, round * 64, mark);
        let seen = header.writer.0.marks.load(Relaxed);
        assert_eq!(reader.next_at(&header, seen, round * 64, CAPACITY), Ok(round * 64));
        assert_eq!(reader.next(), Some(mark));
        reader.take(CAPACITY);
        assert_eq!(reader.next_at(&header, seen, round * 64, CAPACITY), Ok(u64::MAX));
    }
}

#[test]
fn the_latest_mark_is_believed_only_while_it_is_the_last() {
    let header = Header::default();
    let (mut writer, mut reader) = (MarkWriter::default(), MarkReader::default());
    let mark = |count| Mark::Fds { count, len: 1 };
    writer.lay(&header, 0, mark(1));
    // The reader has a count from before the second mark was laid.
    writer.lay(&header, 64, mark(2));
    assert_eq!(reader.next_at(&header, 1, 0, CAPACITY), Ok(0));
    assert_eq!(reader.next(), Some(mark(1)));
    reader.take(CAPACITY);
    // The reader does not look at the queue for the last mark. A mark that is being overwritten does not
    // count as the last.
    header.marks.0[place(1)].kind.store(9, Relaxed);
    let mut other = MarkReader::resume(1, 64);
    assert_eq!(other.next_at(&header, 2, 0, CAPACITY), Ok(64));
    assert_eq!(other.next(), Some(mark(2)));
    header.writer.0.latest_is.store(3, Relaxed);
    let misbehaved = Err(PeerMisbehaved::Mark { position: 64, kind: 9 });
    assert_eq!(MarkReader::resume(1, 64).next_at(&header, 2, 0, CAPACITY), misbehaved);
    // The copy's words are checked as the queue's words are.
    let latest = &header.writer.0.latest;
    for (number, position, kind) in [(2, 63, 1), (2, u64::MAX, 1), (2, 1 << 40, 1), (2, 64, 77)] {
        header.writer.0.latest_is.store(number, Relaxed);
        latest.position.store(position, Relaxed);
        latest.kind.store(kind, Relaxed);
        let misbehaved = Err(PeerMisbehaved::Mark { position, kind: kind as u32 });
        assert_eq!(MarkReader::resume(1, 64).next_at(&header, 2, 0, CAPACITY), misbehaved, "{position}");
    }
}

#[test]
fn as_many_as_the_ring_has_room_for_are_all_kept() {
    let header = Header::default();
    let (mut writer, mut reader) = (MarkWriter::default(), MarkReader::default());
    for i in 0..MARKS as u32 {
        let position = u64::from(i) * stride(CAPACITY) as u64;
        writer.lay(&header, position, Mark::Fds { count: i, len: 1 });
    }
    for i in 0..MARKS as u32 {
        let at = reader.next_at(&header, MARKS as u64, 0, CAPACITY).unwrap();
        assert_eq!(at, u64::from(i) * stride(CAPACITY) as u64);
        assert_eq!(reader.next(), Some(Mark::Fds { count: i, len: 1 }));
        reader.take(CAPACITY);
    }
}

#[test]
fn what_can_be_received_counts_what_marks_stand_for() {
    let header = Header::default();
    let (mut writer, mut reader) = (MarkWriter::default(), MarkReader::default());
    let stride = stride(CAPACITY) as u64;
    // 100 bytes, a page of 3000, descriptors, 50 bytes, a page of 7 whose stride is not published.
    writer.lay(&header, 100, Mark::Reference { slot: 0, pool: 0, page: 0, offset: 0, len: 3000 });
    writer.lay(&header, 100 + stride, Mark::Fds { count: 1, len: 50 });
    writer.lay(&header, 150 + 2 * stride, Mark::Reference { slot: 1, pool: 0, page: 0, offset: 0, len: 7 });
    let published = 150 + 2 * stride as usize;
    let count = |reader: &MarkReader, from: u64| {
        reader.payload(&header, 3, (0, from), published - from as usize, CAPACITY)
    };
    assert_eq!((count(&reader, 0), count(&reader, 40)), (Ok(3150), Ok(3110)));
    // A mark that was fetched already makes no difference.
    assert_eq!(reader.next_at(&header, 3, 0, CAPACITY), Ok(100));
    assert_eq!(count(&reader, 100), Ok(3050));
    reader.take(CAPACITY);
    assert_eq!(count(&reader, 100 + stride), Ok(50));
    assert_eq!(header.unread_payload(0, published as u64, CAPACITY), 3150);
    assert_eq!(header.unread_payload(100 + stride, published as u64, CAPACITY), 50);
    // Whatever the receiver wrote, the result is no more than the ring holds.
    assert!(header.unread_payload(0, u64::MAX, CAPACITY) < CAPACITY as u64 + 3000 + 7);
    assert!(header.unread_payload(u64::MAX, 0, CAPACITY) <= CAPACITY as u64 + 3007);
    assert_eq!(
        reader.payload(&header, 66, (0, 0), published, CAPACITY),
        Err(PeerMisbehaved::Marks { read: 66, seen: 1 })
    );
    header.marks.0[place(1)].kind.store(9, Relaxed);
    assert_eq!(count(&reader, 100 + stride), Err(PeerMisbehaved::Mark { position: 100 + stride, kind: 9 }));
}

#[test]
fn every_impossible_mark_is_a_lie() {
    let told = |count: u64, position: u64, kind: u64, tail: u64| {
        let header = Header::default();
        let mut reader = MarkReader::default();
        header.marks.0[0].position.store(position, Relaxed);
        header.marks.0[0].kind.store(kind, Relaxed);
        reader.next_at(&header, count, tail, CAPACITY)
    };
    assert_eq!(told(1, 4032, 1, 0), Ok(4032));
    for count in [65, u64::MAX, 1 << 63] {
        assert_eq!(told(count, 0, 1, 0), Err(PeerMisbehaved::Marks { read: count, seen: 0 }));
    }
    for (position, tail) in [(4033, 0), (u64::MAX, 0), (99, 100), (0, 100)] {
        assert_eq!(told(1, position, 1, tail), Err(PeerMisbehaved::Mark { position, kind: 1 }), "{position}");
    }
    for kind in [0, 5, 4 | 2 << 32, u64::from(u32::MAX)] {
        assert_eq!(told(1, 0, kind, 0), Err(PeerMisbehaved::Mark { position: 0, kind: kind as u32 }));
    }
}

#[test]
fn marks_neither_overlap_nor_go_back() {
    let header = Header::default();
    let mut reader = MarkReader::default();
    let mut writer = MarkWriter::default();
    writer.lay(&header, 1000, Mark::Fds { count: 1, len: 1 });
    assert_eq!(reader.next_at(&header, 1, 0, CAPACITY), Ok(1000));
    reader.take(CAPACITY);
    writer.lay(&header, 1063, Mark::Fds { count: 1, len: 1 });
    assert!(matches!(
        reader.next_at(&header, 2, 0, CAPACITY),
        Err(PeerMisbehaved::Mark { position: 1063, .. })
    ));
}
