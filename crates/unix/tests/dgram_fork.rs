//! A pair of datagram sockets, of which each of two processes keeps one half.

use onecopy_sys::fork::{Ended, child};
use onecopy_unix::{Datagram, RecvFlags, SendFlags};
use std::time::{Duration, Instant};

const DATAGRAMS: u32 = 1000;

fn to_and_fro(half: &Datagram, first: bool) {
    for i in 0..DATAGRAMS {
        let mut buffer = [0; 99];
        for sends in [first, !first] {
            if sends {
                half.send(&i.to_le_bytes(), SendFlags::empty()).unwrap();
            } else {
                assert_eq!(half.recv(&mut buffer, RecvFlags::empty()).unwrap(), 4);
                assert_eq!(buffer[..4], i.to_le_bytes());
            }
        }
        assert!(half.path().is_shared_memory(), "datagram {i}");
    }
}

/// Each closes its copy of the other's half, at once or after all was sent: the other one's half works all the while.
#[test]
fn each_process_keeps_one_half_of_a_pair() {
    for (mine_at_once, theirs_at_once) in [(true, true), (true, false), (false, true), (false, false)] {
        let (a, b) = Datagram::pair().unwrap();
        let (mut a, mut b) = (Some(a), Some(b));
        let child = child(|| {
            let other = a.take();
            let kept = if theirs_at_once { None } else { other };
            to_and_fro(&b.take().unwrap(), false);
            drop(kept);
            7
        })
        .unwrap();
        let other = b.take();
        let kept = if mine_at_once { None } else { other };
        let a = a.take().unwrap();
        to_and_fro(&a, true);
        drop(kept);
        assert_eq!(child.wait(), Ended::Returned(7));
        // Nobody has the other half any more, which a sender with room sees when it looks.
        let start = Instant::now();
        while a.send(b"x", SendFlags::DONTWAIT).is_ok() {
            assert!(start.elapsed() < Duration::from_secs(5));
        }
    }
}
