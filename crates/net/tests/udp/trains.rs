//! Trains, marks and memory: what std's sockets cannot.

use crate::world::*;
use onecopy_net::udp::{Ecn, Envelope, MAX_SEGMENTS, Socket};
use onecopy_net::{RecvFlags, SendFlags};
use rustix::io::Errno;
use std::io::IoSlice;

#[test]
fn a_train_is_received_whole_or_in_parts() {
    let (left, right) = stacks();
    let (a, b) = pair(&left, &right);
    let data = pattern(10_000);
    let to = b.local_addr().unwrap();
    for gro in [false, true] {
        b.set_gro(gro).unwrap();
        assert_eq!(a.send_segments(&data, 1200, Some(to)).unwrap(), 10_000);
        let mut buffer = vec![0; 65_535];
        let mut got = Vec::new();
        let mut count = 0;
        while got.len() < data.len() {
            let meta = b.recv_segments(&mut buffer).unwrap();
            assert!(!meta.is_truncated());
            if gro {
                assert_eq!((meta.len, meta.segment_size, meta.datagrams()), (10_000, 1200, 9));
            } else {
                assert!(meta.datagrams() == 1 && meta.segment_size == meta.len);
            }
            count += meta.datagrams();
            got.extend_from_slice(&buffer[..meta.len]);
        }
        assert!(got == data && count == 9);
    }
}

#[test]
fn a_train_that_cannot_be_is_refused() {
    let (left, right) = stacks();
    let (a, b) = pair(&left, &right);
    let at = b.local_addr().unwrap();
    let (to, data) = (Some(at), pattern(60_000));
    let errno =
        |result: onecopy_net::Result<usize>| Errno::from_raw_os_error(result.unwrap_err().raw_os_error());
    assert_eq!(errno(a.send_segments(&data, 0, to)), Errno::INVAL);
    assert_eq!(errno(a.send_segments(&data[..MAX_SEGMENTS + 1], 1, to)), Errno::INVAL);
    assert_eq!(errno(a.send_segments(&data, 1473, to)), Errno::MSGSIZE);
    assert_eq!(errno(a.send_segments(&data, 1200, None)), Errno::DESTADDRREQ);
    // As long as one datagram, it is none.
    assert_eq!(a.send_segments(&data[..100], 1200, to).unwrap(), 100);
    assert_eq!(b.recv_segments(&mut [0; 2000]).unwrap().datagrams(), 1);
    let error = a.send_to(&data[..1473], at).unwrap_err();
    assert!(error.to_string().contains("1473") && error.to_string().contains("send it in parts"), "{error}");
    assert_eq!(errno(a.send_with_flags(b"x", SendFlags::MORE)), Errno::INVAL);
}

#[test]
fn what_is_said_of_a_datagram_arrives_with_it() {
    let (left, right) = stacks();
    let a = Socket::bind(&left, a(0)).unwrap();
    let b = Socket::bind(&right, ([0, 0, 0, 0], 7000).into()).unwrap();
    let to = crate::world::b(7000);
    a.set_ttl(9).unwrap();
    a.set_tos(0x10).unwrap();
    let mut buffer = [0; 100];
    a.send_to(b"x", to).unwrap();
    let meta = b.recv_msg(&mut [std::io::IoSliceMut::new(&mut buffer)], RecvFlags::empty()).unwrap();
    assert_eq!((meta.service, meta.ttl, meta.ecn()), (0x10, 9, Ecn::NotEct));
    assert_eq!((meta.from, meta.to), (a.local_addr().unwrap(), to));
    for ecn in [Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
        let envelope = Envelope::to(to).service(ecn as u8).source(a.local_addr().unwrap().ip());
        let parts = [IoSlice::new(b"in "), IoSlice::new(b""), IoSlice::new(b"parts")];
        assert_eq!(a.send_msg(&parts, &envelope, SendFlags::empty()).unwrap(), 8);
        let (view, meta) = b.recv_borrowed().unwrap();
        assert_eq!((view.to_vec(), meta.ecn(), meta.len), (b"in parts".to_vec(), ecn, 8));
    }
    // From an address that is not the stack's.
    let foreign = Envelope::to(to).source([192, 0, 2, 1].into());
    let error = a.send_msg(&[IoSlice::new(b"x")], &foreign, SendFlags::empty()).unwrap_err();
    assert_eq!(error.raw_os_error(), Errno::INVAL.raw_os_error());
}

#[test]
fn by_reference_nothing_is_copied() {
    let (left, right) = stacks();
    let (a, b) = pair(&left, &right);
    b.set_gro(true).unwrap();
    let data = pattern(20_000);
    let (a_at, b_at) = (a.local_addr().unwrap(), b.local_addr().unwrap());
    let envelope = Envelope::to(b_at).gso(1000);
    a.send_msg(&[IoSlice::new(&data)], &envelope, SendFlags::NTCOPY).unwrap();
    let sent = a.stats();
    assert_eq!((sent.sent, sent.user_copied_in, sent.user_copied_nt), (20_005, 20_005, 20_000));
    let (view, meta) = b.recv_borrowed().unwrap();
    assert_eq!((meta.full, meta.segment_size), (20_000, 1000));
    assert!(view.slices().flatten().eq(&data));
    // On, by reference: as another train.
    let back = Envelope::to(a_at).gso(500);
    assert_eq!(b.send_segment(view.into_segment(), &back, SendFlags::empty()).unwrap(), 20_000);
    let stats = b.stats();
    assert_eq!((stats.sent, stats.received, stats.referenced), (20_000, 20_005, 40_000));
    assert_eq!((stats.user_copied_in, stats.user_copied_out), (0, 5));
    let mut got = Vec::new();
    let mut buffer = [0; 2000];
    while got.len() < data.len() {
        let n = a.recv(&mut buffer).unwrap();
        assert_eq!(n, 500);
        got.extend_from_slice(&buffer[..n]);
    }
    assert!(got == data);
    assert_eq!((a.stats().received, a.stats().user_copied_out), (20_000, 20_000));
}

#[test]
fn everybody_is_told_only_where_allowed() {
    let (left, right) = stacks();
    let a = Socket::unbound(&left).unwrap();
    let b = Socket::bind(&right, ([0, 0, 0, 0], 7000).into()).unwrap();
    assert_eq!(a.local_addr().unwrap(), ([0, 0, 0, 0], 0).into());
    let all = ([10, 0, 0, 255], 7000).into();
    assert_eq!(a.send_to(b"x", all).unwrap_err().raw_os_error(), Errno::ACCESS.raw_os_error());
    a.set_broadcast(true).unwrap();
    a.send_to(b"x", all).unwrap();
    let (_, meta) = b.recv_borrowed().unwrap();
    assert_eq!(meta.to, all);
    assert_ne!(a.local_addr().unwrap().port(), 0);
}
