//! Many datagrams by one call.

use crate::world::*;
use onecopy_net::udp::{Envelope, Message, Meta, Socket};
use onecopy_net::{Driver, RecvFlags, SendFlags, Wait};
use rustix::io::Errno;
use std::io::IoSliceMut;
use std::thread;

/// Receives `count` datagrams by batches of `each`.
fn receive(socket: &Socket, count: usize, each: usize) -> Vec<(Vec<u8>, Meta)> {
    let mut got = Vec::new();
    while got.len() < count {
        let mut storage = vec![[0; 2048]; each];
        let mut buffers: Vec<_> = storage.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        let mut meta = vec![Meta::default(); each];
        let n = socket.recv_many(&mut buffers, &mut meta, RecvFlags::empty()).unwrap();
        assert!(n > 0);
        drop(buffers);
        got.extend(
            storage.iter().zip(&meta).take(n).map(|(bytes, meta)| (bytes[..meta.len].to_vec(), *meta)),
        );
    }
    assert_eq!(got.len(), count);
    got
}

#[test]
fn each_arrives_as_if_it_were_alone() {
    for driver in [Driver::Thread, Driver::Caller] {
        let (left, right) = stacks_with(driver, Wait::Block);
        let (a, b) = pair(&left, &right);
        b.set_recv_buffer_size(8 << 20).unwrap();
        let other = Socket::bind(&right, crate::world::b(0)).unwrap();
        let (to, elsewhere) = (b.local_addr().unwrap(), other.local_addr().unwrap());
        // Alike, shorter, longer, empty, elsewhere, marked, a train of its own: nothing of it may change what arrives.
        let lens = [64, 64, 64, 10, 64, 65, 65, 0, 0, 64, 1472, 1472, 3, 64];
        let data: Vec<_> = lens.iter().map(|len| pattern(*len)).collect();
        let mut messages: Vec<_> = data.iter().map(|bytes| Message::to(bytes, to)).collect();
        messages.insert(2, Message::to(b"elsewhere", elsewhere));
        messages[5].envelope.service = Some(2);
        messages.push(Message { bytes: b"abcde", envelope: Envelope::to(to).gso(2) });
        // More than one train takes.
        let many = pattern(16);
        messages.extend((0..300).map(|_| Message::to(&many, to)));
        let sender = thread::spawn({
            let messages: Vec<_> =
                messages.iter().map(|message| (message.bytes.to_vec(), message.envelope)).collect();
            move || {
                let messages: Vec<_> =
                    messages.iter().map(|(bytes, envelope)| Message { bytes, envelope: *envelope }).collect();
                assert_eq!(a.send_many(&messages, SendFlags::empty()).unwrap(), messages.len());
                a
            }
        });
        let mut expected: Vec<Vec<u8>> = data.clone();
        expected.extend([b"ab".to_vec(), b"cd".to_vec(), b"e".to_vec()]);
        expected.extend((0..300).map(|_| many.clone()));
        let got = receive(&b, expected.len(), 32);
        let a = sender.join().unwrap();
        for (n, ((bytes, meta), expected)) in got.iter().zip(&expected).enumerate() {
            assert!(bytes == expected, "{driver:?} {n}");
            assert_eq!((meta.from, meta.to, meta.datagrams()), (a.local_addr().unwrap(), to, 1));
            assert_eq!(meta.service, if n == 4 { 2 } else { 0 }, "{n}");
        }
        assert_eq!(other.recv(&mut [0; 20]).unwrap(), 9);
        let bytes: usize = messages.iter().map(|message| message.bytes.len()).sum();
        assert_eq!(a.stats().sent, "hello".len() as u64 + bytes as u64);
    }
}

#[test]
fn those_that_are_alike_make_one_pass() {
    let (left, right) = stacks();
    let (a, b) = pair(&left, &right);
    b.set_gro(true).unwrap();
    a.connect(b.local_addr().unwrap()).unwrap();
    let data = pattern(64);
    let messages = [Message::new(&data); 64];
    assert_eq!(a.send_many(&messages, SendFlags::empty()).unwrap(), 64);
    let meta = b.recv_segments(&mut [0; 8192]).unwrap();
    assert_eq!((meta.full, meta.segment_size, meta.datagrams()), (64 * 64, 64, 64));
}

#[test]
fn the_first_that_fails_ends_it() {
    let (left, right) = stacks();
    let (a, b) = pair(&left, &right);
    let to = b.local_addr().unwrap();
    let long = pattern(1473);
    let messages = [Message::to(b"one", to), Message::to(b"two", to), Message::to(&long, to)];
    assert_eq!(a.send_many(&messages, SendFlags::empty()).unwrap(), 2);
    let error = a.send_many(&messages[2..], SendFlags::empty()).unwrap_err();
    assert_eq!(error.raw_os_error(), Errno::MSGSIZE.raw_os_error());
    assert!(error.to_string().contains("1473"), "{error}");
    assert_eq!(a.send_many(&[], SendFlags::empty()).unwrap(), 0);
    let got = receive(&b, 2, 4);
    assert_eq!((&*got[0].0, &*got[1].0), (&b"one"[..], &b"two"[..]));
    assert_eq!(b.recv_many(&mut [], &mut [], RecvFlags::empty()).unwrap(), 0);
    let (mut buffer, mut meta) = ([0; 10], [Meta::default()]);
    let error = b.recv_many(&mut [IoSliceMut::new(&mut buffer)], &mut meta, RecvFlags::DONTWAIT).unwrap_err();
    assert!(error.would_block());
}
