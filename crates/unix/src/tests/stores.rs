//! When a sending side learns about stores, and that its bytes are whole while it tries both kinds.

use super::{alone, pair};
use crate::{Config, Policy, SendFlags, Stream};
use onecopy_copy::{Kernel, LEARN_MIN, Learned, Reason, force};
use std::thread;

/// A ring of 8 MiB, which no second level holds.
fn large() -> Config {
    Config { send_buffer: Some(4 << 20), receive_buffer: Some(4 << 20), ..Config::default() }
}

fn learned(stream: &Stream) -> Option<Learned> {
    stream.end().settings().learned()
}

/// Whether this CPU has two kinds of stores to choose from.
fn can_choose() -> bool {
    Kernel::all().any(Kernel::streams)
}

#[test]
fn only_long_copies_into_large_rings_learn_and_only_where_the_policy_asks() {
    alone!();
    let (a, _b) = pair(&large());
    a.send(&[1; LEARN_MIN - 1]).unwrap();
    assert_eq!(learned(&a), None, "a short copy");
    a.set_policy(Policy::Cached);
    a.send(&[1; LEARN_MIN]).unwrap();
    a.set_policy(Policy::Auto);
    a.send_with_flags(&[1; LEARN_MIN], SendFlags::NTCOPY).unwrap();
    assert_eq!(learned(&a), None, "a policy");
    a.send(&[1; LEARN_MIN]).unwrap();
    assert_eq!(learned(&a).map(|learned| learned.reason), can_choose().then_some(Reason::Plan));

    let (small, _peer) = pair(&super::small());
    small.send(&[1; 2048]).unwrap();
    let (middle, _peer) = pair(&Config { send_buffer: Some(64 << 10), ..Config::default() });
    middle.send(&[1; LEARN_MIN]).unwrap();
    assert_eq!((learned(&small), learned(&middle)), (None, None), "a small ring");

    force(Kernel::all().last());
    let (forced, _peer) = pair(&large());
    forced.send(&[1; LEARN_MIN]).unwrap();
    assert_eq!(learned(&forced), None, "a kernel that was named");
}

#[test]
fn bytes_are_whole_while_both_kinds_of_stores_are_tried() {
    alone!();
    let (a, b) = pair(&large());
    // The first comparison is over after six laps, if this machine leaves the two alone for so long.
    const TOTAL: usize = 80 << 20;
    let byte = |at: usize| (at / 4093) as u8;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            while at < TOTAL {
                let piece: Vec<u8> = (at..TOTAL.min(at + (300 << 10))).map(byte).collect();
                at += a.send(&piece).unwrap();
            }
        });
        let (mut buffer, mut at) = (vec![0; 1 << 20], 0);
        while at < TOTAL {
            let n = b.recv(&mut buffer).unwrap();
            assert!(n > 0 && buffer[..n].iter().zip(at..).all(|(&got, at)| got == byte(at)));
            at += n;
        }
    });
    assert_eq!(a.stats().sent, TOTAL as u64);
    assert!(a.stats().explored <= a.stats().user_copied_in);
}
