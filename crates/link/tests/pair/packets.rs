//! Heads, and packets of a head and a payload of any memory.

use crate::frames::{TCP, chain, pool};
use onecopy_chain::notify::Segment;
use onecopy_chain::{Checksum, Sum};
use onecopy_link::{Head, HeadTooLong, NotTaken, Packet};
use onecopy_testing::internet_sum;

#[test]
fn headers_are_put_in_front_and_taken_off_in_front() {
    let mut head = Head::new();
    assert!(head.is_empty() && head == Head::of(&[]).unwrap());
    head.push(20).unwrap().fill(3);
    head.push(20).unwrap().fill(2);
    head.push(14).unwrap()[0] = 1;
    assert_eq!((head.len(), head[0], head[1], head[14], head[34]), (54, 1, 0, 2, 3));
    assert!(head.pull(14) && !head.pull(41) && head.pull(20));
    assert_eq!(*head, [3; 20]);
    // What was taken off leaves nothing behind.
    assert_eq!(head.push(108).unwrap(), [0; 108]);
    assert_eq!(head.push(1).unwrap_err(), HeadTooLong { len: 129 });
    assert_eq!(head.len(), Head::MAX);
    assert_eq!(Packet::new(&[0; 129], Segment::default()).unwrap_err(), HeadTooLong { len: 129 });
    assert!(HeadTooLong { len: 129 }.to_string().contains("payload"));
}

#[test]
fn a_packet_is_summed_and_finished_over_both_its_parts() {
    let pool = pool();
    for (head, len) in [(0, 0), (0, 33), (20, 0), (33, 100), (54, 1), (55, 6001)] {
        let bytes: Vec<u8> = (0..head + len).map(|i| (i * 7 + (i >> 8)) as u8).collect();
        let mut packet = Packet::new(&bytes[..head], chain(&pool, &bytes[head..])).unwrap();
        assert_eq!((packet.len(), packet.to_vec().unwrap() == bytes), (head + len, true));
        for from in 0..=head {
            assert_eq!(
                packet.sum(from).unwrap(),
                Sum::new(internet_sum(&bytes[from..])),
                "{head} + {len} from {from}"
            );
        }
        assert!(packet.sum(head + 1).is_err());
        if len > 0 {
            // What is known is not read again.
            packet.set_checksum(Checksum::Known(Sum::of(&bytes[head..]))).unwrap();
            assert_eq!(packet.sum(0).unwrap(), Sum::new(internet_sum(&bytes)));
        }
        assert!(packet.share().to_vec().unwrap() == bytes);
    }
    let mut packet = TCP.packet(chain(&pool, &[5; 1000]), 0);
    let again = packet.share();
    packet.finish().unwrap();
    assert_eq!(packet.checksum(), Checksum::None);
    assert!(crate::frames::Frame::read(&packet).is_some() && crate::frames::Frame::read(&again).is_none());
    let finished = packet.to_vec().unwrap();
    packet.finish().unwrap();
    assert!(packet.to_vec().unwrap() == finished, "once is enough");
    let field_behind = Checksum::Partial { start: 50, offset: 15 };
    assert_eq!(packet.set_checksum(field_behind), Err(NotTaken::Malformed));
}

#[test]
fn a_sum_that_comes_to_zero_is_stored_as_its_other_form() {
    // UDP's zero says that there is none (RFC 768).
    let mut packet = Packet::new(&[0xff, 0xff, 0, 0], Segment::default()).unwrap();
    packet.set_checksum(Checksum::Partial { start: 0, offset: 2 }).unwrap();
    packet.finish().unwrap();
    assert_eq!(**packet.head(), [0xff; 4]);
}

#[test]
fn a_sum_is_known_of_the_payload_that_was_summed() {
    let pool = pool();
    let bytes: Vec<u8> = (0..100).map(|i| i * 2 + 1).collect();
    let known = || {
        let mut packet = Packet::new(&[1; 20], chain(&pool, &bytes)).unwrap();
        packet.set_checksum(Checksum::Known(Sum::of(&bytes))).unwrap();
        packet
    };
    // A short frame's padding is cut off, an option of the transport is taken off in front.
    let changes: [fn(&mut Segment<onecopy_chain::Chain>); 2] = [
        |payload| payload.truncate(60, onecopy_chain::notify::Fate::Sent).unwrap(),
        |payload| payload.advance(40, onecopy_chain::notify::Fate::Sent).unwrap(),
    ];
    for change in changes {
        let mut packet = known();
        change(packet.payload_mut());
        assert_eq!(packet.sum(0).unwrap(), Sum::new(internet_sum(&packet.to_vec().unwrap())));
    }
    // The headers are no part of it.
    let mut packet = known();
    packet.head_mut().pull(20);
    assert_eq!(packet.checksum(), Checksum::Known(Sum::of(&bytes)));
}
