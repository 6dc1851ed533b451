//! Earlier errors that needed an event at one certain moment. Each test makes that moment happen.

use super::{PATIENCE, alone, send, small, wait_asleep};
use crate::control::Peek;
use crate::failpoint;
use crate::{Config, RecvFlags, SendFlags, SeqPacket, SocketAddr, Stream, Transport};
use onecopy_sync::atomic::Ordering::Release;
use rustix::io::Errno;
use std::io::IoSliceMut;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Bytes that are published while the first slice is not yet full go into the first slice. Before, they went
/// into the second one, behind a gap.
#[test]
fn what_comes_during_a_vectored_receive_follows_what_was_there() {
    alone!();
    let (sender, receiver) = Stream::pair_with(&small()).unwrap();
    send(&sender, b"abcd");
    failpoint::at("nothing behind", move || send(&sender, b"efgh"));
    let (mut one, mut two) = ([0; 10], [0; 10]);
    let mut got = Vec::new();
    while got.len() < 8 {
        let mut slices = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
        let n = receiver.recv_vectored_with_flags(&mut slices, RecvFlags::DONTWAIT).unwrap();
        got.extend_from_slice(&[one, two].concat()[..n]);
    }
    assert_eq!(String::from_utf8_lossy(&got), "abcdefgh");
}

/// A call reports misbehaviour that it finds after it borrowed a record and before it ends. Before, the view
/// was dropped with the error and wanted the lock that its own call held.
#[test]
fn a_lie_behind_a_borrowed_record_does_not_hang_the_call() {
    alone!();
    let (liar, victim) = SeqPacket::pair_with(&small()).unwrap();
    // A victim that may poll looks at its ring when that seems empty.
    let _ = victim.as_fd();
    for _ in 0..2 {
        liar.send_with_flags(b"a record", SendFlags::DONTWAIT).unwrap();
    }
    // Both records are seen now, so the next look at how much there is comes behind the second.
    assert_eq!(victim.recv_with_flags(&mut [0; 20], RecvFlags::DONTWAIT).unwrap(), 8);
    liar.end().tx_ring().unwrap().header().writer.0.head.store(u64::MAX, Release);
    let (done, said) = mpsc::channel();
    std::thread::spawn(move || {
        let errno =
            victim.recv_borrowed_with_flags(20, RecvFlags::DONTWAIT).map(drop).unwrap_err().raw_os_error();
        let _ = done.send((errno, victim.stats().protocol_errors));
    });
    let (errno, caught) = said.recv_timeout(PATIENCE).expect("it hangs");
    assert_eq!((errno, caught), (Errno::PROTO.raw_os_error(), 1));
}

/// An empty record is no end, even if more records and the end come just after the look at it. Before, the
/// records behind it were never received.
#[test]
fn records_and_the_end_behind_an_empty_record_do_not_make_it_the_end() {
    alone!();
    let config = Config { transport: Transport::Kernel, ..small() };
    let (sender, receiver) = SeqPacket::pair_with(&config).unwrap();
    sender.send_with_flags(b"", SendFlags::DONTWAIT).unwrap();
    failpoint::at("nothing at the head", move || {
        sender.send_with_flags(b"behind it", SendFlags::DONTWAIT).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
    });
    assert_eq!(receiver.end().peek(false), Peek::Byte);
    let lens = [(); 3].map(|()| receiver.recv_with_flags(&mut [0; 20], RecvFlags::DONTWAIT).unwrap());
    assert_eq!(lens, [0, 9, 0]);
}

/// A sender that is stopped, or has no CPU, between a filler and the message about it does not misbehave.
/// Before, it counted as misbehaving after 200 ms.
#[test]
fn a_sender_that_is_stopped_while_it_parks_is_no_liar() {
    alone!();
    let (a, b) = Stream::pair_with(&small()).unwrap();
    is_no_liar(
        move || (0..3).map(|_| a.send_with_flags(&[7; 1500], SendFlags::DONTWAIT).unwrap()).sum(),
        |buffer| b.recv_with_flags(buffer, RecvFlags::DONTWAIT),
    );
    assert_eq!(b.stats().protocol_errors, 0);
    let (a, b) = SeqPacket::pair_with(&small()).unwrap();
    is_no_liar(
        move || (0..3).map(|_| a.send_with_flags(&[7; 1500], SendFlags::DONTWAIT).unwrap()).sum(),
        |buffer| b.recv_with_flags(buffer, RecvFlags::DONTWAIT),
    );
    assert_eq!(b.stats().protocol_errors, 0);
}

/// Sends with `send`, which has too little room for all its bytes, and stops it while it announces that.
fn is_no_liar(
    send: impl FnOnce() -> usize + Send + 'static,
    recv: impl Fn(&mut [u8]) -> crate::Result<usize>,
) {
    let ((stops, stopped), (go, goes)) = (mpsc::channel(), mpsc::channel());
    let sender = std::thread::spawn(move || {
        failpoint::at("filled", move || {
            stops.send(()).unwrap();
            goes.recv().unwrap();
        });
        send()
    });
    stopped.recv_timeout(PATIENCE).expect("it does not park");
    let mut buffer = [0; 5000];
    let mut got = 0;
    let mut receive = || match recv(&mut buffer) {
        Ok(n) => got += n,
        Err(error) => assert!(error.would_block(), "{error}"),
    };
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(400) {
        receive();
        std::thread::sleep(Duration::from_millis(1));
    }
    go.send(()).unwrap();
    while !sender.is_finished() {
        receive();
    }
    receive();
    assert_eq!(sender.join().unwrap(), 4500);
    assert_eq!(got, 4500);
}

/// The end comes after what was sent. A server switches to shared memory and sends there. Another thread
/// shuts it down before its doorbell, while the client looks for bytes. Before, the end came first and the
/// bytes were lost.
#[test]
fn what_was_sent_behind_the_switch_comes_before_the_end() {
    alone!();
    let name = SocketAddr::from_abstract_name(format!("onecopy-test-end-{}", std::process::id())).unwrap();
    let listener = crate::Listener::bind(&name).unwrap();
    let client = Stream::connect(&name).unwrap();
    let server = Rc::new(listener.accept().unwrap().0);
    // The second message brings the rings.
    send(&client, b"?");
    send(&client, b"?");
    failpoint::at("nothing over the kernel", move || {
        assert_eq!(server.recv_with_flags(&mut [0; 8], RecvFlags::DONTWAIT).unwrap(), 2);
        let other = Rc::clone(&server);
        failpoint::at("published", move || other.shutdown(Shutdown::Write).unwrap());
        assert_eq!(server.send(b"hello").unwrap(), 5);
    });
    let mut buffer = [0; 8];
    assert_eq!(client.recv_with_flags(&mut buffer, RecvFlags::DONTWAIT).unwrap(), 5);
    assert_eq!(&buffer[..5], b"hello");
    assert_eq!(client.recv_with_flags(&mut buffer, RecvFlags::DONTWAIT).unwrap(), 0);
}

/// Two threads of a server send their first messages at once. The rings go with the message that is first.
/// Before, they went with the second, and the client's program received a descriptor.
#[test]
fn rings_go_with_the_first_of_two_messages_that_are_sent_at_once() {
    alone!();
    let name = SocketAddr::from_abstract_name(format!("onecopy-test-two-{}", std::process::id())).unwrap();
    let listener = crate::Listener::bind(&name).unwrap();
    let client = Stream::connect(&name).unwrap();
    let server = Arc::new(listener.accept().unwrap().0);
    let other = Arc::clone(&server);
    let (tell, thread) = mpsc::channel();
    failpoint::at("attached", move || {
        let (began, task) = mpsc::channel();
        let sender = std::thread::spawn(move || {
            began.send(onecopy_testing::this_thread()).unwrap();
            send(&other, b"1");
        });
        // The other thread waits for the work that is done here, or has not seen yet that it must wait.
        wait_asleep(task.recv().unwrap());
        tell.send(sender).unwrap();
    });
    send(&server, b"2");
    thread.recv().expect("no rings were made").join().unwrap();
    for _ in 0..2 {
        let (got, with) = client.recv_fds_with_flags(&mut [0], RecvFlags::DONTWAIT).unwrap();
        assert_eq!((got, with.fds.len(), with.truncated), (1, 0, false));
    }
    send(&client, b"!");
    assert_eq!(server.recv_with_flags(&mut [0; 8], RecvFlags::DONTWAIT).unwrap(), 1);
    assert_eq!(client.path().send, crate::Carrier::SharedMemory);
}
