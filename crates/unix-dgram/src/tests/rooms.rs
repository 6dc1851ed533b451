//! Room that is not where the next frame of the ring goes.

use crate::Datagram;
use crate::outgoing::{Filled, Terms};
use onecopy_copy::Hint;
use onecopy_ring::Producer;
use onecopy_ring::record::HEADER;
use onecopy_unix::ancillary::attached::SendAncillary;
use onecopy_unix::{Memory, RecvFlags, SendFlags};

/// What was written into another ring is copied out of there: nothing is published that was not written.
#[test]
fn room_in_another_ring_is_copied_from() {
    let (a, b) = Datagram::pair().unwrap();
    let (c, d) = Datagram::pair().unwrap();
    let mut room = Producer::new(a.socket().tx_ring().unwrap().clone());
    room.copy_in(HEADER, b"of another", Hint::default());
    let mut filled = Filled::new(Memory::Ring(room), 10, Terms::of(c.socket()));
    let (attached, now) = (SendAncillary::default(), SendFlags::DONTWAIT);
    c.socket().send_to_peer(&mut filled, None, attached, now).unwrap();
    let mut buffer = [0; 20];
    assert_eq!(d.recv_with_flags(&mut buffer, RecvFlags::DONTWAIT).unwrap(), 10);
    assert_eq!(&buffer[..10], b"of another");
    // One copy out of the other ring, and one into this one.
    assert_eq!(c.stats().user_copied_in, 20);
    assert!(b.recv_with_flags(&mut buffer, RecvFlags::DONTWAIT).unwrap_err().would_block());
}
