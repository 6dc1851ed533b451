//! Lies that only a sender of records can tell: each ends its own connection with EPROTO, counted, and no other.
#![allow(missing_docs, reason = "a test")]

use std::os::fd::AsFd;

use onecopy::unix::{Config, Records, SeqListener, SeqPacket, SocketAddr};
use onecopy::{RecvFlags, SendFlags};
use onecopy_conformance::impls::{self, Kind};
use onecopy_conformance::lender::{
    END, OF_POOL, PARTS, SAID, UNSAID, WITH, Words, honest_memory, list, memory, pool, reference,
};
use onecopy_conformance::liar::{Field, Liar, SEALS};

const NOW: RecvFlags = RecvFlags::DONTWAIT;

/// A victim that accepted a liar, upgraded honestly.
fn meet(test: &str, records: Records) -> (Liar, SeqPacket) {
    let name = format!("onecopy-liar-{test}-{}", std::process::id());
    let config = Config { records, ..Config::default() };
    let listener = SeqListener::bind_with(SocketAddr::from_abstract_name(&name).unwrap(), &config).unwrap();
    let at = impls::Name::Abstract(name.into_bytes());
    let kind = if records == Records::Stream { Kind::Pieces } else { Kind::SeqPacket };
    let mut liar = Liar::call(kind, &at).unwrap();
    let (victim, _) = listener.accept().unwrap();
    victim.set_read_timeout(Some(onecopy_testing::LONG)).unwrap();
    assert_eq!(liar.upgrade(64 << 10, || victim.recv_with_flags(&mut [0; 9], NOW).unwrap()).unwrap(), 1);
    let _ = victim.recv_with_flags(&mut [0; 1], NOW | RecvFlags::PEEK);
    assert!(victim.path().is_shared_memory());
    (liar, victim)
}

fn caught(victim: &SeqPacket, what: &str) {
    let error = victim.recv_with_flags(&mut [0; 100], RecvFlags::empty()).unwrap_err();
    assert_eq!(error.raw_os_error(), 71, "{what}: {error}");
    assert_eq!(victim.stats().protocol_errors, 1, "{what}");
    assert_eq!(victim.send_with_flags(b"x", SendFlags::empty()).unwrap_err().raw_os_error(), 71, "{what}");
}

#[test]
fn an_honest_hand_made_peer_is_understood() {
    let (mut liar, victim) = meet("honest", Records::Atomic);
    liar.publish_frame(b"to the victim", true).unwrap();
    liar.publish_frame(b"", true).unwrap();
    let mut buffer = [0; 20];
    assert_eq!(victim.recv_with_flags(&mut buffer, NOW).unwrap(), 13);
    assert_eq!(&buffer[..13], b"to the victim");
    assert!(!victim.recv_record_with_flags(&mut buffer, NOW).unwrap().is_end());
    assert!(victim.recv_with_flags(&mut buffer, NOW).unwrap_err().would_block());
    assert_eq!(liar.theirs().unwrap().get(Field::Tail).unwrap(), 24 + 8);
    victim.send_with_flags(b"to the liar", SendFlags::empty()).unwrap();
    let frame = liar.take().unwrap();
    assert_eq!(frame[..8], (11 | END).to_le_bytes());
    assert_eq!((&frame[8..19], frame.len()), (&b"to the liar"[..], 24));
}

#[test]
fn every_impossible_frame_is_caught() {
    let words = [
        ("longer than published", 100 | END),
        ("longer than the ring", (1 << 20) | END),
        ("the longest", 0xffff_ffff | END),
        ("an unknown flag", 8 | END | 1 << 40),
        ("garbage", u64::MAX),
        ("no end, where each frame is a record", 8),
    ];
    for (i, (what, word)) in words.into_iter().enumerate() {
        let (mut liar, victim) = meet(&format!("frame{i}"), Records::Atomic);
        liar.publish_frame(b"honest", true).unwrap();
        liar.publish_framed(word, b"eightby.").unwrap();
        assert_eq!(victim.recv_with_flags(&mut [0; 9], NOW).unwrap(), 6);
        caught(&victim, what);
    }
    for bytes in 1..8 {
        let (mut liar, victim) = meet(&format!("part{bytes}"), Records::Atomic);
        liar.publish(&vec![0; bytes]).unwrap();
        caught(&victim, "a part of a header");
    }
    let (mut liar, victim) = meet("stream", Records::Stream);
    liar.publish_framed(9, b"eightby.").unwrap();
    caught(&victim, "a piece longer than published");
}

#[test]
fn a_header_that_changes_is_read_once() {
    let (mut liar, victim) = meet("changes", Records::Atomic);
    for round in 0..300u64 {
        let at = liar.head % liar.theirs().unwrap().capacity;
        liar.publish_frame(&[1; 56], true).unwrap();
        let (ring, mut buffer) = (liar.theirs().unwrap(), [0; 64]);
        std::thread::scope(|s| {
            s.spawn(|| {
                for word in [56 | END, 0xffff | END, 1 | END, u64::MAX >> (round % 30)] {
                    let _ = ring.write(&word.to_le_bytes(), 4096 + at);
                }
            });
            // Whatever it sees: a length that fits, or a lie.
            match victim.recv_with_flags(&mut buffer, NOW) {
                Ok(n) => assert!(n <= 56),
                Err(error) => assert!([71, 11].contains(&error.raw_os_error()), "{error}"),
            }
        });
        if victim.stats().protocol_errors > 0 {
            return;
        }
    }
}

#[test]
fn a_filler_that_is_not_there_and_records_that_are_none() {
    // Parked, but there is no filler.
    let (mut liar, victim) = meet("filler", Records::Atomic);
    liar.theirs().unwrap().set(Field::Filler, 1).unwrap();
    liar.theirs().unwrap().set(Field::Parked, 2).unwrap();
    liar.publish_frame(b"x", true).unwrap();
    let _ = victim.recv_with_flags(&mut [0; 9], NOW);
    let _ = victim.recv_with_flags(&mut [0; 9], NOW);
    // Speaks in the clear on the control socket, and rings without end.
    for (test, record, count) in
        [("text", vec![b'x'; 5000], 1), ("flood", vec![0], 200), ("empty", vec![], 1)]
    {
        let (liar, victim) = meet(test, Records::Atomic);
        for _ in 0..count {
            let _ = liar.send_with(&record, &[]);
        }
        caught(&victim, test);
    }
    // An honest pair beside all that.
    let (a, b) = SeqPacket::pair().unwrap();
    a.send_with_flags(b"honest", SendFlags::empty()).unwrap();
    assert_eq!(b.recv_with_flags(&mut [0; 9], RecvFlags::empty()).unwrap(), 6);
    let _ = a.as_fd();
}

fn publish_with(liar: &mut Liar, flags: u64, bytes: &[u8]) {
    liar.publish_with(flags, bytes).unwrap();
}

#[test]
fn an_honest_frame_brings_descriptors_and_nobody() {
    let (mut liar, victim) = meet("with", Records::Atomic);
    victim.set_pass_credentials(true).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    liar.open_channel().unwrap();
    liar.put(&[null.as_fd(), null.as_fd()]).unwrap();
    publish_with(&mut liar, 2 * WITH, b"abc");
    liar.put(&[]).unwrap();
    publish_with(&mut liar, SAID, b"de");
    publish_with(&mut liar, UNSAID, b"");
    for (len, count) in [(3, 2), (2, 0), (0, 0)] {
        let (got, with) = victim.recv_fds_with_flags(&mut [0; 9], NOW).unwrap();
        // Who says nothing of himself is nobody.
        let who = with.credentials.unwrap();
        assert_eq!((got.len, with.fds.len(), who.pid, who.uid), (len, count, 0, 65534));
    }
}

#[test]
fn whatever_a_frame_announces_and_does_not_bring_is_caught() {
    type Misbehaviour = fn(&mut Liar);
    let lies: [(&str, Misbehaviour); 8] = [
        ("no channel", |liar| publish_with(liar, WITH, b"x")),
        ("no channel for who", |liar| publish_with(liar, SAID, b"x")),
        ("nothing in it", |liar| {
            liar.open_channel().unwrap();
            publish_with(liar, WITH, b"x");
        }),
        ("fewer", |liar| {
            liar.open_channel().unwrap();
            liar.put(&[liar.fd.as_fd()]).unwrap();
            publish_with(liar, 2 * WITH, b"x");
        }),
        ("more", |liar| {
            liar.open_channel().unwrap();
            liar.put(&[liar.fd.as_fd(); 3]).unwrap();
            publish_with(liar, 2 * WITH, b"x");
        }),
        ("descriptors for who", |liar| {
            liar.open_channel().unwrap();
            liar.put(&[liar.fd.as_fd()]).unwrap();
            publish_with(liar, SAID, b"x");
        }),
        ("more than there can be", |liar| publish_with(liar, 254 * WITH, b"x")),
        ("a channel that is no socket", |liar| {
            let null = std::fs::File::open("/dev/null").unwrap();
            liar.send_with(&[0], &[null.as_fd()]).unwrap();
            publish_with(liar, WITH, b"x");
        }),
    ];
    for (i, (what, misbehaviour)) in lies.into_iter().enumerate() {
        for peek in [false, true] {
            let (mut liar, victim) = meet(&format!("with{i}{peek}"), Records::Atomic);
            misbehaviour(&mut liar);
            if peek {
                let error = victim.recv_with_flags(&mut [0; 9], NOW | RecvFlags::PEEK).unwrap_err();
                assert_eq!(error.raw_os_error(), 71, "{what}: {error}");
            } else {
                caught(&victim, what);
            }
        }
    }
}

const PAGE: u64 = 8192;
const PAGES: u64 = 4;

/// A pool, honestly.
fn share(liar: &mut Liar) {
    let memory = honest_memory(PAGE * PAGES).unwrap();
    liar.share_framed(&memory, pool(0, PAGE, PAGES)).unwrap();
}

#[test]
fn an_honest_list_brings_bytes_and_pages() {
    let (mut liar, victim) = meet("list", Records::Atomic);
    share(&mut liar);
    let record = list(b"head:", &[reference(3, 0, 1, 100, 50), reference(9, 0, 3, 8000, 192)]);
    publish_with(&mut liar, PARTS, &record);
    let mut buffer = [0; 300];
    assert_eq!(victim.recv_with_flags(&mut buffer, NOW | RecvFlags::PEEK).unwrap(), 5 + 50 + 192);
    assert_eq!((&buffer[..5], &buffer[5..247]), (&b"head:"[..], &[7; 242][..]));
    let (got, chain) = victim.recv_chain_with_flags(&mut buffer, NOW).unwrap();
    assert_eq!((got.len, got.full, chain.len()), (5, 247, 242));
    let returned = |liar: &Liar| liar.theirs().unwrap().get(Field::Returned).unwrap();
    assert_eq!(returned(&liar), 0, "they are in use");
    drop(chain);
    assert_eq!(returned(&liar), 1 << 3 | 1 << 9);
    // With a list, descriptors: and then a record as any other.
    liar.theirs().unwrap().set(Field::Returned, 0).unwrap();
    liar.put(&[liar.fd.as_fd()]).unwrap();
    publish_with(&mut liar, PARTS | WITH, &list(b"", &[reference(0, 0, 0, 0, 9)]));
    liar.publish_frame(b"plain", true).unwrap();
    let (got, with) = victim.recv_fds_with_flags(&mut buffer, NOW).unwrap();
    assert_eq!((got.len, with.fds.len()), (9, 1));
    assert_eq!(victim.recv_with_flags(&mut buffer, NOW).unwrap(), 5);
}

#[test]
fn whatever_a_list_or_a_pool_says_that_cannot_be_is_caught() {
    type Misbehaviour = (&'static str, fn(&mut Liar));
    const GOOD: Words = [3 | 7 << 48, 0, 10 << 32];
    let lies: [Misbehaviour; 17] = [
        ("a list without a pool", |liar| publish_with(liar, PARTS, &list(b"x", &[reference(0, 0, 0, 0, 1)]))),
        ("a pool without a channel", |liar| publish_with(liar, OF_POOL | WITH, &[0; 24])),
        ("a pool without a descriptor", |liar| publish_with(liar, OF_POOL, &[0; 24])),
        ("a pool in a list", |liar| publish_with(liar, OF_POOL | PARTS | WITH, &[0; 32])),
        ("a pool that others may write to", |liar| {
            let memory = memory(PAGE * PAGES, SEALS).unwrap();
            liar.share_framed(&memory, pool(0, PAGE, PAGES)).unwrap();
        }),
        ("a pool of a name out of turn", |liar| {
            liar.share_framed(&honest_memory(PAGE * PAGES).unwrap(), pool(1, PAGE, PAGES)).unwrap();
        }),
        ("a pool that is larger than its memory", |liar| {
            liar.share_framed(&honest_memory(PAGE * PAGES).unwrap(), pool(0, PAGE, PAGES + 1)).unwrap();
        }),
        ("a pool that is no memory", |liar| {
            let null = std::fs::File::open("/dev/null").unwrap();
            liar.share_framed(&null, pool(0, PAGE, PAGES)).unwrap();
        }),
        ("one slot twice", |liar| {
            share(liar);
            let twice = reference(1, 0, 0, 0, 10);
            publish_with(liar, PARTS, &list(b"", &[twice, twice]));
        }),
        ("a slot that is in use", |liar| {
            share(liar);
            for _ in 0..2 {
                publish_with(liar, PARTS, &list(b"", &[reference(1, 0, 0, 0, 10)]));
            }
        }),
        ("a page behind the pool", |liar| {
            share(liar);
            publish_with(liar, PARTS, &list(b"", &[GOOD, reference(1, 0, PAGES as u32, 0, 1)]));
        }),
        ("bytes behind the page", |liar| {
            share(liar);
            publish_with(liar, PARTS, &list(b"", &[GOOD, reference(1, 0, 3, 1, PAGE as u32)]));
        }),
        ("another kind of mark", |liar| {
            share(liar);
            publish_with(liar, PARTS, &list(b"", &[pool(1, PAGE, PAGES)]));
        }),
        ("more references than lie there", |liar| {
            share(liar);
            let mut record = list(b"", &[GOOD]);
            record[4] = 2;
            publish_with(liar, PARTS, &record);
        }),
        ("more bytes than lie there", |liar| {
            share(liar);
            let mut record = list(b"abc", &[GOOD]);
            record[3] = 0xff;
            publish_with(liar, PARTS, &record);
        }),
        ("no reference", |liar| {
            share(liar);
            publish_with(liar, PARTS, &list(b"abc", &[]));
        }),
        ("too short for a list", |liar| publish_with(liar, PARTS, b"abcd")),
    ];
    for (i, (what, misbehaviour)) in lies.into_iter().enumerate() {
        for how in 0..4 {
            let (mut liar, victim) = meet(&format!("list{i}-{how}"), Records::Atomic);
            misbehaviour(&mut liar);
            let mut buffer = [0; 99];
            // (Of what was sent twice, the first is what it should be, and stays in use.)
            let mut kept = Vec::new();
            let error = loop {
                let result = match how {
                    0 => victim.recv_with_flags(&mut buffer, NOW | RecvFlags::PEEK).map(drop),
                    1 => victim.recv_borrowed_with_flags(99, NOW).map(drop),
                    2 => victim.recv_chain_with_flags(&mut buffer, NOW).map(|(_, chain)| kept.push(chain)),
                    _ => victim.recv_fds_with_flags(&mut buffer, NOW).map(drop),
                };
                match result {
                    Ok(()) if what == "a slot that is in use" && how == 2 && kept.len() == 1 => {}
                    Ok(()) if what == "a slot that is in use" && how != 2 => break None,
                    Ok(()) => panic!("{what}, {how}: received"),
                    Err(error) => break Some(error),
                }
            };
            let Some(error) = error else { continue };
            assert_eq!(error.raw_os_error(), 71, "{what}, {how}: {error}");
            caught(&victim, what);
        }
    }
}

/// Of records that are kept as a stream there are no lists, and no pools.
#[test]
fn a_stream_of_records_knows_no_lists() {
    let (mut liar, victim) = meet("pieces-list", Records::Stream);
    publish_with(&mut liar, PARTS, &list(b"x", &[reference(0, 0, 0, 0, 1)]));
    caught(&victim, "a list");
    let (mut liar, victim) = meet("pieces-pool", Records::Stream);
    share(&mut liar);
    publish_with(&mut liar, PARTS, &list(b"x", &[reference(0, 0, 0, 0, 1)]));
    caught(&victim, "a list, behind a pool");
}
