//! Lies that only a sender of records can tell: each ends its own connection with EPROTO, counted, and no other.
#![allow(missing_docs, reason = "a test")]

use std::os::fd::AsFd;
use std::time::Duration;

use onecopy::unix::{Config, Name, Records, RecvFlags, SendFlags, SeqListener, SeqPacket};
use onecopy_conformance::impls::{self, Kind};
use onecopy_conformance::liar::{Field, Liar};

const END: u64 = 1 << 32;
const NOW: RecvFlags = RecvFlags::DONTWAIT;

/// A victim that accepted a liar, upgraded honestly.
fn meet(test: &str, records: Records) -> (Liar, SeqPacket) {
    let name = format!("onecopy-liar-{test}-{}", std::process::id());
    let config = Config { records, ..Config::default() };
    let listener = SeqListener::bind_with(Name::abstract_(&name), &config).unwrap();
    let at = impls::Name::Abstract(name.into_bytes());
    let mut liar = match records {
        Records::Atomic => Liar::call(Kind::SeqPacket, &at).unwrap(),
        Records::Stream => Liar::call_for_streams_of_records(&at).unwrap(),
    };
    let victim = listener.accept().unwrap();
    victim.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    liar.upgrade(64 << 10).unwrap();
    let _ = victim.recv(&mut [0; 1], NOW | RecvFlags::PEEK);
    assert!(victim.path().is_shared_memory());
    (liar, victim)
}

fn caught(victim: &SeqPacket, what: &str) {
    let error = victim.recv(&mut [0; 100], RecvFlags::empty()).unwrap_err();
    assert_eq!(error.raw_os_error(), 71, "{what}: {error}");
    assert_eq!(victim.stats().protocol_errors, 1, "{what}");
    assert_eq!(victim.send(b"x", SendFlags::NOSIGNAL).unwrap_err().raw_os_error(), 71, "{what}");
}

#[test]
fn an_honest_hand_made_peer_is_understood() {
    let (mut liar, victim) = meet("honest", Records::Atomic);
    liar.publish_frame(b"to the victim", true).unwrap();
    liar.publish_frame(b"", true).unwrap();
    let mut buffer = [0; 20];
    assert_eq!(victim.recv(&mut buffer, NOW).unwrap(), 13);
    assert_eq!(&buffer[..13], b"to the victim");
    assert!(!victim.recv_record(&mut buffer, NOW).unwrap().is_end());
    assert!(victim.recv(&mut buffer, NOW).unwrap_err().would_block());
    assert_eq!(liar.theirs().unwrap().get(Field::Tail).unwrap(), 24 + 8);
    victim.send(b"to the liar", SendFlags::NOSIGNAL).unwrap();
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
        assert_eq!(victim.recv(&mut [0; 9], NOW).unwrap(), 6);
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
        let file = liar.theirs().unwrap().file.try_clone().unwrap();
        let mut buffer = [0; 64];
        std::thread::scope(|s| {
            s.spawn(move || {
                for word in [56 | END, 0xffff | END, 1 | END, u64::MAX >> (round % 30)] {
                    use std::os::unix::fs::FileExt;
                    let _ = file.write_all_at(&word.to_le_bytes(), 4096 + at);
                }
            });
            // Whatever it sees: a length that fits, or a lie.
            match victim.recv(&mut buffer, NOW) {
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
    let _ = victim.recv(&mut [0; 9], NOW);
    let _ = victim.recv(&mut [0; 9], NOW);
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
    a.send(b"honest", SendFlags::NOSIGNAL).unwrap();
    assert_eq!(b.recv(&mut [0; 9], RecvFlags::empty()).unwrap(), 6);
    let _ = a.as_fd();
}

/// What stands in a frame's flags for so many descriptors, and for who sends.
const WITH: u32 = 40;
const SAID: u64 = 1 << (WITH + 8);
const UNSAID: u64 = 2 << (WITH + 8);

/// A frame with something takes a 64th of the ring at least.
fn publish_with(liar: &mut Liar, flags: u64, bytes: &[u8]) {
    let mut padded = bytes.to_vec();
    padded.resize(liar.theirs().unwrap().capacity as usize / 64 - 8, 0);
    liar.publish_framed(bytes.len() as u64 | END | flags, &padded).unwrap();
}

#[test]
fn an_honest_frame_brings_descriptors_and_nobody() {
    let (mut liar, victim) = meet("with", Records::Atomic);
    victim.set_pass_credentials(true).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    liar.open_channel().unwrap();
    liar.put(&[null.as_fd(), null.as_fd()]).unwrap();
    publish_with(&mut liar, 2 << WITH, b"abc");
    liar.put(&[]).unwrap();
    publish_with(&mut liar, SAID, b"de");
    publish_with(&mut liar, UNSAID, b"");
    for (len, count) in [(3, 2), (2, 0), (0, 0)] {
        let (got, with) = victim.recv_with(&mut [0; 9], NOW).unwrap();
        // Who says nothing of himself is nobody.
        let who = with.credentials.unwrap();
        assert_eq!((got.len, with.fds.len(), who.pid, who.uid), (len, count, 0, 65534));
    }
}

#[test]
fn whatever_a_frame_announces_and_does_not_bring_is_caught() {
    type Lie = fn(&mut Liar);
    let lies: [(&str, Lie); 8] = [
        ("no channel", |liar| publish_with(liar, 1 << WITH, b"x")),
        ("no channel for who", |liar| publish_with(liar, SAID, b"x")),
        ("nothing in it", |liar| {
            liar.open_channel().unwrap();
            publish_with(liar, 1 << WITH, b"x");
        }),
        ("fewer", |liar| {
            liar.open_channel().unwrap();
            liar.put(&[liar.fd.as_fd()]).unwrap();
            publish_with(liar, 2 << WITH, b"x");
        }),
        ("more", |liar| {
            liar.open_channel().unwrap();
            liar.put(&[liar.fd.as_fd(); 3]).unwrap();
            publish_with(liar, 2 << WITH, b"x");
        }),
        ("descriptors for who", |liar| {
            liar.open_channel().unwrap();
            liar.put(&[liar.fd.as_fd()]).unwrap();
            publish_with(liar, SAID, b"x");
        }),
        ("more than there can be", |liar| publish_with(liar, 254 << WITH, b"x")),
        ("a channel that is no socket", |liar| {
            let null = std::fs::File::open("/dev/null").unwrap();
            liar.send_with(&[0], &[null.as_fd()]).unwrap();
            publish_with(liar, 1 << WITH, b"x");
        }),
    ];
    for (i, (what, lie)) in lies.into_iter().enumerate() {
        for peek in [false, true] {
            let (mut liar, victim) = meet(&format!("with{i}{peek}"), Records::Atomic);
            lie(&mut liar);
            if peek {
                let error = victim.recv(&mut [0; 9], NOW | RecvFlags::PEEK).unwrap_err();
                assert_eq!(error.raw_os_error(), 71, "{what}: {error}");
            } else {
                caught(&victim, what);
            }
        }
    }
}
