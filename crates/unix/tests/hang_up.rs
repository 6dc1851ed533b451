//! The next call reports that the peer is gone, not the next edge. An edge-triggered caller that gets EAGAIN
//! after the hang-up waits for ever. The peer goes as a killed process does, and writes nothing in shared
//! memory.

use onecopy_unix::{Config, Records, RecvFlags, SendFlags, SeqListener, SeqPacket, Stream};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::Shutdown;

const NOW: SendFlags = SendFlags::DONTWAIT;

fn dies(peer: &impl AsFd) {
    rustix::net::shutdown(peer, Shutdown::Both).unwrap();
}

#[test]
fn who_was_told_to_wait_for_room_hears_that_there_will_be_none() {
    let (a, b) = Stream::pair().unwrap();
    while a.send_with_flags(&[7; 5000], NOW).is_ok() {}
    assert!(a.send_with_flags(&[7], NOW).unwrap_err().would_block());
    dies(&b);
    assert_eq!(a.send_with_flags(&[7], NOW).unwrap_err().raw_os_error(), Errno::PIPE.raw_os_error());
}

#[test]
fn a_sender_of_records_hears_it_too() {
    let (a, b) = SeqPacket::pair().unwrap();
    while a.send_with_flags(&[7; 500], NOW).is_ok() {}
    assert!(a.send_with_flags(&[7; 500], NOW).unwrap_err().would_block());
    dies(&b);
    assert!(!a.send_with_flags(&[7; 500], NOW).unwrap_err().would_block());
}

#[test]
fn what_a_dead_sender_left_in_the_queue_does_not_hide_the_end() {
    let (a, b) = Stream::pair().unwrap();
    let mut sent = 0;
    while let Ok(n) = b.send_with_flags(&[7; 5000], NOW) {
        sent += n;
    }
    // While the bytes are borrowed the sender has no room, and its filler stays.
    let view = a.recv_borrowed(sent).unwrap();
    let mut left = sent - view.len();
    while left > 0 {
        left -= a.recv_with_flags(&mut [0; 5000], RecvFlags::DONTWAIT).unwrap();
    }
    assert!(a.recv_with_flags(&mut [0; 10], RecvFlags::DONTWAIT).unwrap_err().would_block());
    dies(&b);
    assert_eq!(a.recv_with_flags(&mut [0; 10], RecvFlags::DONTWAIT).unwrap(), 0);
    drop(view);
    assert_eq!(a.recv_with_flags(&mut [0; 10], RecvFlags::DONTWAIT).unwrap(), 0);
}

/// The same holds while the other direction is still the kernel's. The peer has left something unread, so an
/// error comes before the end.
#[test]
fn nor_does_it_where_there_is_an_error_before_the_end() {
    let name =
        onecopy_unix::SocketAddr::from_abstract_name(format!("onecopy-hang-up-error-{}", std::process::id()))
            .unwrap();
    let config = Config { records: Records::Stream, ..Config::default() };
    let listener = SeqListener::bind_with(name.clone(), &config).unwrap();
    let a = SeqPacket::connect_with(name, &config).unwrap();
    let (b, _) = listener.accept().unwrap();
    a.send_with_flags(&[7], NOW).unwrap();
    // The socket cannot be passed on; the rings that it was about to use stay where they are.
    let a = a.into_fds().unwrap_err().socket;
    while b.send_with_flags(&[7; 5000], NOW).is_ok() {}
    let (view, _) = a.recv_borrowed_with_flags(1, RecvFlags::DONTWAIT).unwrap();
    while a.recv_with_flags(&mut [0; 5000], RecvFlags::DONTWAIT).is_ok() {}
    drop(b);
    let reset = a.recv_with_flags(&mut [0; 10], RecvFlags::DONTWAIT).unwrap_err();
    assert_eq!(reset.raw_os_error(), Errno::CONNRESET.raw_os_error());
    assert_eq!(a.recv_with_flags(&mut [0; 10], RecvFlags::DONTWAIT).unwrap(), 0);
    drop(view);
}

#[test]
fn a_record_of_no_bytes_from_a_client_that_has_left_is_no_end() {
    let name =
        onecopy_unix::SocketAddr::from_abstract_name(format!("onecopy-hang-up-{}", std::process::id()))
            .unwrap();
    let listener = onecopy_unix::SeqListener::bind(name.clone()).unwrap();
    let client = SeqPacket::connect(name).unwrap();
    for record in [&b"one"[..], b"", b"", b"four"] {
        client.send(record).unwrap();
    }
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let (server, _) = listener.accept().unwrap();
    let mut lengths = Vec::new();
    loop {
        let got = server.recv_record(&mut [0; 10]).unwrap();
        if got.is_end() {
            break;
        }
        lengths.push(got.len);
    }
    assert_eq!(lengths, [3, 0, 0, 4]);
}
