//! Super-segments cut to packets.

use crate::frames::{ETHERNET, Frame, TCP, chain, pool};
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Checksum};
use onecopy_link::{Gso, NotTaken, Packet, Train};
use proptest::prelude::*;

fn cut(packet: Packet) -> Vec<Packet> {
    let mut all = Vec::new();
    packet.cut(|packet| all.push(packet)).unwrap();
    all
}

fn frame() -> impl Strategy<Value = Frame> {
    let train = prop_oneof![Just(Train::Tcp), Just(Train::Udp)];
    // The last one that wraps, and flags of every kind.
    let seq = prop_oneof![any::<u32>(), (0u32..70_000).prop_map(|before| u32::MAX - before)];
    (any::<bool>(), train, seq, any::<u8>(), any::<u16>(), 0usize..=10).prop_map(
        |(v4, train, seq, flags, id, options)| Frame { v4, train, seq, flags, id, options: options * 4 },
    )
}

proptest! {
    #[test]
    fn cut_packets_are_what_a_card_would_send(frame in frame(), len in 0usize..9000, size in 1u16..3000) {
        let size = size.max(len as u16 / 64);
        let pool = pool();
        let bytes: Vec<u8> = (0..len).map(|i| (i * 13 + (i >> 7)) as u8).collect();
        let whole = frame.packet(chain(&pool, &bytes), size);
        let all = cut(whole);
        prop_assert_eq!(all.len(), len.div_ceil(size.into()).max(1));
        let (mut got, last) = (Vec::new(), all.len() - 1);
        for (number, mut packet) in all.into_iter().enumerate() {
            prop_assert!(packet.gso().is_none());
            packet.finish().unwrap();
            let Some((said, payload)) = Frame::read(&packet) else { panic!("damaged: {packet:?}") };
            prop_assert!(payload.len() == usize::from(size) || number == last);
            if frame.train == Train::Tcp {
                prop_assert_eq!(said.seq, frame.seq.wrapping_add(got.len() as u32));
                let mut flags = frame.flags;
                if number < last { flags &= !0x09 }
                if number > 0 { flags &= !0x80 }
                prop_assert_eq!((said.flags, said.options), (flags, frame.options));
            }
            if frame.v4 {
                prop_assert_eq!(said.id, frame.id.wrapping_add(number as u16));
            }
            got.extend(payload);
        }
        prop_assert!(got == bytes);
    }

    /// Whatever the head says, cutting neither panics nor loses a byte.
    #[test]
    fn any_head_is_cut_or_refused(head in prop::collection::vec(any::<u8>(), 0..=128), start in 0u16..140, offset in 0u16..20,
                                  network in any::<u8>(), size in 0u16..50, udp in any::<bool>(), len in 0usize..500) {
        let pool = pool();
        let mut packet = Packet::new(&head, chain(&pool, &vec![1; len])).unwrap();
        let placed = packet.set_checksum(Checksum::Partial { start, offset }).is_ok();
        let train = if udp { Train::Udp } else { Train::Tcp };
        packet.set_gso(Some(Gso { train, size, network }));
        let mut bytes = 0;
        match packet.cut(|packet| bytes += packet.payload().payload().len()) {
            Ok(()) => prop_assert!(placed && bytes == len),
            Err((packet, why)) => {
                prop_assert_eq!((why, packet.payload().payload().len(), bytes), (NotTaken::Malformed, len, 0));
            }
        }
    }

    /// The same with heads that are right but for one byte.
    #[test]
    fn a_damaged_head_is_cut_or_refused(frame in frame(), at in 0usize..128, byte in any::<u8>(), size in 0u16..300) {
        let pool = pool();
        let mut packet = frame.packet(chain(&pool, &[1; 1000]), size.max(1));
        let len = packet.head().len();
        packet.head_mut()[at % len] = byte;
        let mut bytes = 0;
        match packet.cut(|packet| bytes += packet.payload().payload().len()) {
            Ok(()) => prop_assert_eq!(bytes, 1000),
            Err((packet, _)) => prop_assert_eq!((packet.payload().payload().len(), bytes), (1000, 0)),
        }
    }
}

#[test]
fn a_packet_that_is_no_super_segment_is_cut_to_itself() {
    let all = cut(TCP.packet(chain(&pool(), &[1; 3000]), 0));
    assert_eq!((all.len(), all[0].len()), (1, TCP.head_len() + 3000));
    // One that has a checksum of its own to finish in its payload has two.
    let mut payload = chain(&pool(), &[0; 100]);
    payload.set_checksum(Checksum::Partial { start: 0, offset: 2 }).unwrap();
    let refused = TCP.packet(payload, 10).cut(|_| panic!("it cannot be cut"));
    assert_eq!(refused.unwrap_err().1, NotTaken::Malformed);
    assert_eq!(ETHERNET + 20 + 20 + 12, TCP.head_len());
    let empty: Segment<Chain> = Segment::default();
    assert_eq!(cut(TCP.packet(empty, 100)).len(), 1);
}

#[test]
fn a_packet_longer_than_its_headers_can_say_is_refused() {
    let pool = pool();
    for (v4, train) in [(true, Train::Tcp), (false, Train::Tcp), (true, Train::Udp), (false, Train::Udp)] {
        let frame = Frame { v4, train, ..TCP };
        // IPv4 counts its own header, IPv6 does not.
        let most = 65535 - (frame.head_len() - ETHERNET) + if v4 { 0 } else { 40 };
        let bytes = vec![7; 70_000];
        for mut packet in cut(frame.packet(chain(&pool, &bytes), most as u16)) {
            packet.finish().unwrap();
            assert!(Frame::read(&packet).is_some(), "its length is right");
        }
        let long = frame.packet(chain(&pool, &bytes), most as u16 + 1);
        assert_eq!(long.cut(|_| panic!("65536 bytes")).unwrap_err().1, NotTaken::Malformed);
        // What is shorter than such a packet is one.
        assert_eq!(cut(frame.packet(chain(&pool, &bytes[..1000]), u16::MAX)).len(), 1);
    }
}
