//! Views and slots as std's readers and writers, and what is sent on from a view.
#![allow(missing_docs, reason = "a test")]

use onecopy_testing::asleep;
use onecopy_unix::{Carrier, Config, SendFlags, SharedPool, Stream, Transport, View};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;

/// Pairs whose bytes lie in a ring, and in a buffer that the kernel filled.
fn pairs() -> [(Stream, Stream); 2] {
    let kernel = Config { transport: Transport::Kernel, ..Config::default() };
    [Stream::pair().unwrap(), Stream::pair_with(&kernel).unwrap()]
}

fn borrowed(socket: &Stream, len: usize) -> View {
    let view = socket.recv_borrowed(len).unwrap();
    assert_eq!(view.len(), len);
    view
}

#[test]
fn reading_takes_from_the_front_and_is_counted() {
    for (a, b) in pairs() {
        a.send(b"head, body and tail").unwrap();
        let counted = b.stats().user_copied_out;
        let mut view = borrowed(&b, 19);
        let mut head = [0; 6];
        view.read_exact(&mut head).unwrap();
        assert_eq!((&head, view.len()), (b"head, ", 13));
        let mut rest = b"before: ".to_vec();
        assert_eq!(view.read_to_end(&mut rest).unwrap(), 13);
        assert_eq!(rest, b"before: body and tail");
        assert_eq!((view.read(&mut head).unwrap(), view.is_empty()), (0, true));
        assert_eq!(b.stats().user_copied_out - counted, 19);
    }
}

#[test]
fn what_was_read_of_a_view_is_room_for_its_sender() {
    let (a, b) = Stream::pair().unwrap();
    let capacity = a.capacity().0;
    let sent: Vec<u8> = (0..capacity).map(|i| (i % 251) as u8).collect();
    assert_eq!(a.send(&sent).unwrap(), capacity);
    let mut view = borrowed(&b, capacity);
    assert!(a.send_with_flags(b"x", SendFlags::DONTWAIT).unwrap_err().would_block());
    let mut got = vec![0; capacity / 2];
    view.read_exact(&mut got).unwrap();
    let n = a.send_with_flags(&sent, SendFlags::DONTWAIT).unwrap();
    assert!(n > 0 && n <= capacity / 2, "{n}");
    view.read_to_end(&mut got).unwrap();
    assert!(got == sent);
}

#[test]
fn a_view_that_wraps_is_copied_whole() {
    let (a, b) = Stream::pair().unwrap();
    let capacity = a.capacity().0;
    let skip = capacity - 1000;
    a.send(&vec![0; skip]).unwrap();
    drop(borrowed(&b, skip));
    let sent: Vec<u8> = (0..5000).map(|i| (i % 241) as u8).collect();
    a.send(&sent).unwrap();
    assert!(Vec::from(borrowed(&b, 5000)) == sent);
}

#[test]
fn a_vec_has_what_was_left_and_gives_the_room_back() {
    for (a, b) in pairs() {
        a.send(b"gone, and kept").unwrap();
        let mut view = borrowed(&b, 14);
        view.advance(6);
        let counted = b.stats().user_copied_out;
        assert_eq!(view.into_vec(), b"and kept");
        // The kernel's bytes lie in a buffer of this process: it is handed over, not copied.
        let over_memory = b.path().receive == Carrier::SharedMemory;
        assert_eq!(b.stats().user_copied_out - counted, if over_memory { 8 } else { 0 });
        assert_eq!(a.unread_bytes().unwrap(), 0);
        drop(a);
        assert_eq!(b.recv_borrowed(10).unwrap().into_vec(), b"");
    }
}

#[test]
fn a_lent_page_is_read_and_goes_home() {
    let (a, b) = Stream::pair().unwrap();
    let pool = SharedPool::new(4096, 1).unwrap();
    let mut loan = pool.loan(6).unwrap();
    loan.copy_from_slice(b"a page");
    a.send_loan(loan).unwrap();
    let mut view = borrowed(&b, 6);
    let mut first = [0; 2];
    view.read_exact(&mut first).unwrap();
    assert_eq!((&first, view.into_vec()), (b"a ", b"page".to_vec()));
    assert!(b.stats().referenced > 0);
    // There is one page: it must be back.
    pool.loan(1).unwrap();
}

#[test]
fn a_slot_is_a_writer_until_it_is_full() {
    for (a, b) in pairs() {
        let mut slot = a.reserve(10).unwrap();
        write!(slot, "{}-{}", 12, 34).unwrap();
        assert_eq!(slot.write_vectored(&[IoSlice::new(b"abc"), IoSlice::new(b"defgh")]).unwrap(), 5);
        assert_eq!(slot.write(b"x").unwrap(), 0);
        assert_eq!(slot.write_all(b"x").unwrap_err().kind(), ErrorKind::WriteZero);
        slot.flush().unwrap();
        assert_eq!(b.readable_bytes().unwrap(), 0, "a flush sends nothing");
        assert_eq!(slot.commit().unwrap(), 10);
        assert_eq!(borrowed(&b, 10).into_vec(), b"12-34abcde");
        assert_eq!(a.stats().user_copied_in, 10);
    }
}

#[test]
fn a_view_goes_to_a_socket_with_flags_of_ours() {
    for (a, b) in pairs() {
        a.send(b"to be passed on").unwrap();
        let mut view = borrowed(&b, 15);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        assert_eq!(view.send_part_to(&ours, 5).unwrap(), 5);
        view.advance(5);
        let all = SendFlags::all() - SendFlags::SIGPIPE;
        assert_eq!(view.send_part_to_with_flags(&ours, 3, all).unwrap(), 3);
        view.advance(3);
        assert_eq!(view.send_to(&ours).unwrap(), 7);
        drop(ours);
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"to be passed on");
        let error = view.send_to(&theirs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "and the process lives");
    }
}

#[test]
fn a_view_does_not_wait_where_a_flag_says_so() {
    let (a, b) = Stream::pair().unwrap();
    let len = a.capacity().0;
    a.send(&vec![7; len]).unwrap();
    let view = borrowed(&b, len);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let error = loop {
        match view.send_to_with_flags(&ours, SendFlags::DONTWAIT) {
            Ok(n) => assert!(n > 0),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    // Without it, it waits.
    std::thread::scope(|scope| {
        let sender = asleep(scope, || view.send_part_to(&ours, 1));
        assert!(!sender.is_finished());
        // All that is queued, which is less than that.
        assert!((&theirs).read(&mut vec![0; 16 << 20]).unwrap() > 0);
        assert_eq!(sender.join().unwrap().unwrap(), 1);
    });
}
