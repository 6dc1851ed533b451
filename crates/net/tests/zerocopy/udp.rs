//! Datagrams without a copy.

use crate::world::{chain, is_ours_alone, pattern, pool, stacks};
use onecopy_net::SendFlags;
use onecopy_net::udp::{Envelope, Socket};
use std::net::SocketAddr;

#[test]
fn a_datagram_comes_back_once_the_link_has_it() {
    let (a, b) = stacks();
    let to = SocketAddr::from(([10, 0, 0, 2], 7000));
    let (one, other) = (Socket::unbound(&a).unwrap(), Socket::bind(&b, to).unwrap());
    let pool = pool();
    let data = pattern(1400);
    let sent = one.send_zerocopy(chain(&pool, &data), &Envelope::to(to)).unwrap();
    let mut buffer = [0; 2000];
    let (n, _) = other.recv_from(&mut buffer).unwrap();
    assert!(buffer[..n] == data);
    let (back, how) = sent.wait();
    assert!(how.copied && !how.dropped && is_ours_alone(&back) && back.len() == 1400);
    assert_eq!((one.stats().user_copied_in, one.stats().referenced), (0, 1400));
    one.connect(to).unwrap();
    let sent = one.send_numbered(back, &Envelope::CONNECTED, SendFlags::empty()).unwrap();
    let range = one.wait_notice(None).unwrap().unwrap();
    assert_eq!((Some(range.lo), range.hi, range.copied), (sent.number, range.lo, true));
}

#[test]
fn what_is_too_long_is_in_the_error() {
    let (a, _b) = stacks();
    let one = Socket::unbound(&a).unwrap();
    let to = Envelope::to(SocketAddr::from(([10, 0, 0, 2], 7000)));
    let pool = pool();
    let not = one.send_zerocopy(chain(&pool, &pattern(70_000)), &to).unwrap_err();
    assert_eq!((not.error.raw_os_error(), not.chain.len()), (90, 70_000), "EMSGSIZE");
    let not = one.send_zerocopy_with_flags(not.chain, &to, SendFlags::MORE).unwrap_err();
    assert!(is_ours_alone(&not.chain) && not.error.raw_os_error() == 22, "EINVAL");
    assert_eq!(a.pinned_pages(), 0);
}
