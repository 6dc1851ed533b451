//! Datagrams, beyond what tests/udp/alike.rs asks of all: envelopes, trains, and sends whose buffer comes back.

use crate::world::{anywhere, counter, pattern, stack, stack_with, until};
use onecopy_chain::{Chain, Writer};
use onecopy_net::kernel::ZeroCopy;
use onecopy_net::udp::{Envelope, Message, Meta, Socket};
use onecopy_net::zerocopy::{Allowance, Small};
use onecopy_net::{Carrier, RecvFlags, SendFlags, Stack, Transport, Wait};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

fn pool() -> PagePool {
    PagePool::new(PoolConfig::new().limit(256), Heap::new()).unwrap()
}

fn chain(pool: &PagePool, bytes: &[u8]) -> Chain {
    let mut chain = Chain::new();
    Writer::new(pool).append(&mut chain, bytes).unwrap();
    chain
}

/// Pages that somebody has.
fn out(pool: &PagePool) -> u64 {
    let stats = pool.stats();
    stats.in_flight - stats.in_cache - stats.in_ring
}

/// A socket, and one that it is connected to.
fn pair(stack: &Stack) -> (Socket, Socket) {
    let (a, b) = (Socket::bind(stack, anywhere()).unwrap(), Socket::bind(stack, anywhere()).unwrap());
    b.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    a.connect(b.local_addr().unwrap()).unwrap();
    (a, b)
}

#[test]
fn the_chain_comes_back_after_the_second_step_and_says_who_copied() {
    for zero_copy in [ZeroCopy::Never, ZeroCopy::Auto, ZeroCopy::Always] {
        let Some(stack) = stack_with(zero_copy, Wait::Block) else { return };
        let (a, b) = pair(&stack);
        let path = a.path();
        assert_eq!((path.send, path.receive), (Carrier::Kernel, Carrier::Kernel));
        let (pool, data) = (pool(), pattern(40_000));
        let (back, how) = a.send_zerocopy(chain(&pool, &data), &Envelope::CONNECTED).unwrap().wait();
        // The loopback copies when it delivers; a copying send is over at once.
        assert!(how.copied && !how.unknown && !how.dropped, "{zero_copy:?} {how:?}");
        assert!(back.host().unwrap().to_vec() == data);
        drop(back);
        assert_eq!(out(&pool), 0);
        let mut got = vec![0; 50_000];
        assert_eq!(b.recv(&mut got).unwrap(), data.len());
        assert!(got[..data.len()] == data);
        let stats = a.stats();
        assert_eq!((stats.sent, stats.referenced, stats.user_copied_in), (40_000, 40_000, 0));
        until(|| a.stats().kernel_copied == 40_000);
        until(|| counter(&stack, "zero_copy_sends") == u64::from(zero_copy != ZeroCopy::Never));
        assert_eq!((b.stats().received, b.stats().kernel_copied), (40_000, 40_000));
        assert_eq!((stack.zerocopy_counts().lent, stack.pinned_pages()), (1, 0));
    }
}

#[test]
fn a_socket_that_was_told_of_copies_has_the_kernel_copy_at_once() {
    let Some(stack) = stack() else { return };
    let (a, b) = pair(&stack);
    let pool = pool();
    for n in 0..3 {
        let sent = a.send_numbered(chain(&pool, &pattern(20_000)), &Envelope::CONNECTED, SendFlags::empty());
        assert_eq!(sent.unwrap().number, Some(n));
        let range = a.wait_notice(Some(Duration::from_secs(60))).unwrap().unwrap();
        assert_eq!((range.lo, range.hi, range.bytes, range.copied), (n, n, 20_000, true));
        b.recv(&mut vec![0; 20_000]).unwrap();
        // The chain is ours a moment before the socket knows.
        until(|| a.stats().kernel_copied == u64::from(n + 1) * 20_000);
    }
    until(|| counter(&stack, "zero_copy_sends") == 1);
    // Small ones never were the ring's, unless a program says so.
    let Some(stack) = stack_with(ZeroCopy::Auto, Wait::Spin) else { return };
    let (a, _b) = pair(&stack);
    a.send_chain(chain(&pool, &pattern(1000)), &Envelope::CONNECTED).unwrap();
    assert_eq!(counter(&stack, "zero_copy_sends"), 0);
    a.set_small(Some(Small::Below(500))).unwrap();
    a.send_chain(chain(&pool, &pattern(1000)), &Envelope::CONNECTED).unwrap();
    until(|| counter(&stack, "zero_copy_sends") == 1);
    until(|| out(&pool) == 0);
}

#[test]
fn what_was_not_sent_is_in_the_error_by_either_way() {
    for zero_copy in [ZeroCopy::Never, ZeroCopy::Always] {
        let Some(stack) = stack_with(zero_copy, Wait::Block) else { return };
        let (a, b) = pair(&stack);
        let pool = pool();
        let not = a.send_zerocopy(chain(&pool, &pattern(70_000)), &Envelope::CONNECTED).unwrap_err();
        assert_eq!((not.error.raw_os_error(), not.chain.len()), (90, 70_000), "EMSGSIZE");
        assert!(not.to_string().contains("70000"), "{not}");
        let not = a.send_zerocopy(not.chain, &Envelope::CONNECTED.gso(100)).unwrap_err();
        assert_eq!(not.chain.len(), 70_000, "too many datagrams for a train");
        let v6 = Envelope::to((Ipv6Addr::LOCALHOST, 9).into());
        let not = a.send_zerocopy(not.chain, &v6).unwrap_err();
        assert_eq!((not.error.raw_os_error(), not.chain.len()), (97, 70_000), "EAFNOSUPPORT");
        drop(not);
        // Nobody is there any more, which the next send hears.
        drop(b);
        a.send(b"anybody?").unwrap();
        until(|| {
            let one = chain(&pool, &pattern(20_000));
            match a.send_zerocopy(one, &Envelope::CONNECTED) {
                Ok(sent) => drop(sent.wait()),
                Err(not) => {
                    assert_eq!((not.error.kind(), not.chain.len()), (ErrorKind::ConnectionRefused, 20_000));
                    return true;
                }
            }
            false
        });
        stack.set_zerocopy_allowance(Allowance { pinned: Some(4096), ..Allowance::default() });
        let not = a.send_zerocopy(chain(&pool, &pattern(20_000)), &Envelope::CONNECTED).unwrap_err();
        assert_eq!((not.error.raw_os_error(), not.chain.len()), (105, 20_000), "ENOBUFS");
        drop(not);
        assert_eq!(stack.pinned_pages(), 0);
        until(|| out(&pool) == 0);
    }
}

#[test]
fn more_parts_than_a_request_takes_are_copied() {
    let Some(stack) = stack_with(ZeroCopy::Always, Wait::Block) else { return };
    let (a, b) = pair(&stack);
    let pool = pool();
    let mut many = Chain::new();
    for n in 0..100u8 {
        let mut page = pool.alloc().unwrap();
        page.bytes_mut().unwrap()[..10].fill(n);
        many.append(onecopy_chain::Fragment::new(page, 0, 10).unwrap()).unwrap();
    }
    assert!(a.send_zerocopy(many, &Envelope::CONNECTED).unwrap().wait().1.copied);
    let mut got = [0; 2000];
    assert_eq!(b.recv(&mut got).unwrap(), 1000);
    assert!((0..100u8).all(|n| got[usize::from(n) * 10..][..10] == [n; 10]));
    assert_eq!(counter(&stack, "zero_copy_sends"), 0);
    // And of nothing there is a datagram, too.
    assert!(a.send_zerocopy(Chain::new(), &Envelope::CONNECTED).unwrap().is_empty());
    assert_eq!(b.recv(&mut got).unwrap(), 0);
}

#[test]
fn all_that_an_envelope_says_arrives() {
    for host in [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), SocketAddr::from((Ipv6Addr::LOCALHOST, 0))] {
        for zero_copy in [ZeroCopy::Never, ZeroCopy::Always] {
            let Some(stack) = stack_with(zero_copy, Wait::Block) else { return };
            let Ok(b) = Socket::bind(&stack, host) else {
                println!("lacking: the address {host}");
                continue;
            };
            b.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let a = Socket::unbound(&stack).unwrap();
            assert_eq!(a.local_addr().unwrap().port(), 0);
            a.set_ttl(7).unwrap();
            let to = b.local_addr().unwrap();
            let envelope = Envelope::to(to).service(0x2e << 2 | 1).source(host.ip()).gso(1000);
            let pool = pool();
            let data = pattern(2500);
            a.send_zerocopy(chain(&pool, &data), &envelope).unwrap().wait();
            let mut buffer = vec![0; 3000];
            for part in data.chunks(1000) {
                let meta = b.recv_msg(&mut [IoSliceMut::new(&mut buffer)], RecvFlags::empty()).unwrap();
                assert!(buffer[..meta.len] == *part);
                let from = SocketAddr::new(host.ip(), a.local_addr().unwrap().port());
                assert_eq!((meta.from, meta.to), (from, to));
                assert_eq!((meta.service, meta.ttl, meta.segment_size), (0x2e << 2 | 1, 7, part.len()));
            }
            // Taken whole, and where it lies.
            b.set_gro(true).unwrap();
            let parts = [IoSlice::new(&data[..1700]), IoSlice::new(&data[1700..])];
            assert_eq!(a.send_msg(&parts, &envelope, SendFlags::empty()).unwrap(), 2500);
            let (view, meta) = b.recv_borrowed().unwrap();
            assert_eq!(b.stats().user_copied_out, 0);
            assert!(view.to_vec() == data);
            assert_eq!((meta.len, meta.full, meta.segment_size, meta.datagrams()), (2500, 2500, 1000, 3));
            assert_eq!(b.stats().user_copied_out, 2500, "this was a copy");
        }
    }
}

#[test]
fn datagrams_of_every_length_are_received_where_they_lie() {
    let Some(stack) = stack() else { return };
    let (a, b) = pair(&stack);
    for len in [0, 1, 4095, 4096, 4097, 40_000, 65_507] {
        let data = pattern(len);
        a.send(&data).unwrap();
        let (view, meta) = b.recv_borrowed().unwrap();
        assert!(view.to_vec() == data && (meta.len, meta.full) == (len, len), "{len}");
        // And sent on by reference.
        let back = view.into_segment();
        let envelope = Envelope::to(a.local_addr().unwrap());
        assert_eq!(b.send_segment(back, &envelope, SendFlags::empty()).unwrap(), len);
        let mut got = vec![0; 66_000];
        assert_eq!(a.recv(&mut got).unwrap(), len);
        assert!(got[..len] == data);
    }
    assert_eq!(b.stats().referenced, b.stats().received + b.stats().sent);
    assert!(b.recv_borrowed_with_flags(RecvFlags::DONTWAIT).unwrap_err().would_block());
}

#[test]
fn views_that_are_held_are_charged() {
    let builder = Stack::builder().transport(Transport::Kernel).kernel(|config| config.receive_pages = 1);
    let Ok(stack) = builder.build() else { return println!("lacking: io_uring") };
    let (a, b) = pair(&stack);
    a.send(&pattern(30_000)).unwrap();
    a.send(b"next").unwrap();
    let (held, _) = b.recv_borrowed().unwrap();
    let error = b.recv_borrowed().unwrap_err();
    assert_eq!(error.raw_os_error(), 105, "ENOBUFS");
    assert!(error.to_string().contains("receive_pages"), "{error}");
    drop(held);
    assert_eq!(b.recv_borrowed().unwrap().0.to_vec(), b"next", "it was not lost");
}

#[test]
fn many_go_and_come_by_one_call_each() {
    let Some(stack) = stack() else { return };
    let (a, b) = pair(&stack);
    let data = pattern(40 * 1000);
    // Alike, of two kinds, and one that goes through no train.
    let mut messages: Vec<_> = data.chunks(1000).take(20).map(Message::new).collect();
    messages.extend(data[20_000..].chunks(100).take(10).map(Message::new));
    messages.push(Message::new(&data[..30_000]));
    assert_eq!(a.send_many(&messages, SendFlags::empty()).unwrap(), messages.len());
    assert_eq!(a.send_many(&[], SendFlags::empty()).unwrap(), 0);
    let mut buffers = vec![vec![0; 40_000]; 40];
    let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
    let mut meta = vec![Meta::default(); 40];
    let mut count = 0;
    while count < messages.len() {
        let n = b.recv_many(&mut slices[count..], &mut meta[count..], RecvFlags::empty()).unwrap();
        assert!(n > 0);
        count += n;
    }
    assert!(b.recv_many(&mut slices[..1], &mut meta[..1], RecvFlags::DONTWAIT).unwrap_err().would_block());
    for ((buffer, meta), message) in buffers.iter().zip(&meta).zip(&messages) {
        assert!(buffer[..meta.len] == *message.bytes);
    }
    let too_long = [Message::new(&data[..100]), Message::new(&[0; 65_508])];
    assert_eq!(a.send_many(&too_long, SendFlags::empty()).unwrap(), 1, "those before it went");
    assert_eq!(a.send_many(&too_long[1..], SendFlags::empty()).unwrap_err().raw_os_error(), 90);
}

#[test]
fn options_reach_the_kernel_and_what_it_has_not_is_said() {
    let Some(stack) = stack() else { return };
    // Set before there is a socket of the kernel's, whose family nobody knows yet.
    let socket = Socket::unbound(&stack).unwrap();
    socket.set(|settings| (settings.ttl, settings.service, settings.broadcast) = (9, 0x20, true)).unwrap();
    let there = UdpSocket::bind(anywhere()).unwrap();
    let fd = rustix::fd::AsFd::as_fd(&there);
    rustix::net::sockopt::set_ip_recvtos(fd, true).unwrap();
    socket.connect(there.local_addr().unwrap()).unwrap();
    assert_ne!(socket.local_addr().unwrap().port(), 0);
    let ours = socket.poll_fd().unwrap();
    assert_eq!(rustix::net::sockopt::ip_ttl(ours).unwrap(), 9);
    assert_eq!(rustix::net::sockopt::ip_tos(ours).unwrap(), 0x20);
    assert!(rustix::net::sockopt::socket_broadcast(ours).unwrap());
    let error = socket.set(|settings| settings.all_errors = true).unwrap_err();
    assert!(error.raw_os_error() == 92 && error.reason().is_some(), "{error}");
    let error = socket.connect((Ipv6Addr::LOCALHOST, 1).into()).unwrap_err();
    assert!(error.raw_os_error() == 97 && error.reason().is_some(), "{error}");
    let error = socket.connect((Ipv4Addr::LOCALHOST, 0).into()).unwrap_err();
    assert_eq!(error.raw_os_error(), 22);
    socket.disconnect().unwrap();
    assert_eq!(socket.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
    let reused = Socket::bind_reusing(&stack, anywhere()).unwrap();
    let again = Socket::bind_reusing(&stack, reused.local_addr().unwrap()).unwrap();
    assert_eq!(again.local_addr().unwrap(), reused.local_addr().unwrap());
}

#[test]
fn drops_are_counted() {
    let Some(stack) = stack() else { return };
    let (a, b) = pair(&stack);
    b.set_recv_buffer_size(1).unwrap();
    assert_eq!(b.drops(), 0);
    for _ in 0..100 {
        a.send(&[0; 1000]).unwrap();
    }
    assert!(b.drops() > 50, "{}", b.drops());
}

#[test]
fn a_socket_may_go_before_its_notification() {
    let Some(stack) = stack_with(ZeroCopy::Always, Wait::Block) else { return };
    let pool = pool();
    for _ in 0..20 {
        let (a, b) = pair(&stack);
        let sent = a.send_zerocopy(chain(&pool, &pattern(20_000)), &Envelope::CONNECTED).unwrap();
        drop((a, b));
        assert_eq!(sent.wait().0.len(), 20_000);
    }
    let (a, _b) = pair(&stack);
    let sent = a.send_zerocopy(chain(&pool, &pattern(20_000)), &Envelope::CONNECTED).unwrap();
    drop((a, stack));
    drop(sent.wait());
    until(|| out(&pool) == 0);
}
