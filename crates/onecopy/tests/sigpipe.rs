//! No send raises SIGPIPE unless it asks for it, as std's sockets have it; seqpacket and datagram sockets never do.
#![allow(missing_docs, reason = "a test")]

use onecopy::unix::{Config, Datagram, SeqPacket, Stream};
use onecopy::{SendFlags, Transport};
use onecopy_testing::alone;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

const EPIPE: i32 = 32;

/// How many SIGPIPEs came since it was asked last.
fn raised(mut told: &UnixStream) -> usize {
    told.read(&mut [0; 64]).unwrap_or(0)
}

#[test]
fn sends_raise_no_signal_unless_asked() {
    alone!();
    let (told, tell) = UnixStream::pair().unwrap();
    told.set_nonblocking(true).unwrap();
    tell.set_nonblocking(true).unwrap();
    onecopy_sys::signal::catch(Signal::PIPE.as_raw(), OwnedFd::from(tell), false).unwrap();
    for transport in [Transport::Auto, Transport::Kernel] {
        let config = Config { transport, ..Config::default() };

        let (mut a, b) = Stream::pair_with(&config).unwrap();
        drop(b);
        assert_eq!(a.send(b"x").unwrap_err().raw_os_error(), EPIPE);
        assert_eq!(a.write(b"x").unwrap_err().raw_os_error(), Some(EPIPE));
        assert_eq!(raised(&told), 0, "{transport:?}: a stream that did not ask");
        assert_eq!(a.send_with_flags(b"x", SendFlags::SIGPIPE).unwrap_err().raw_os_error(), EPIPE);
        assert_eq!(raised(&told), 1, "{transport:?}: a stream that asked");

        let (a, b) = Stream::pair_with(&config).unwrap();
        a.send(b"x").unwrap();
        let view = b.recv_borrowed(1).unwrap();
        let (gone, _) = UnixStream::pair().unwrap();
        assert_eq!(view.send_to(&gone).unwrap_err().raw_os_error(), Some(EPIPE));
        assert_eq!(raised(&told), 0, "{transport:?}: a view that did not ask");
        let error = view.send_to_with_flags(&gone, SendFlags::SIGPIPE).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(EPIPE));
        assert_eq!(raised(&told), 1, "{transport:?}: a view that asked");

        let (a, b) = SeqPacket::pair_with(&config).unwrap();
        drop(b);
        assert_eq!(a.send_with_flags(b"x", SendFlags::SIGPIPE).unwrap_err().raw_os_error(), EPIPE);
        let (a, b) = Datagram::pair_with(&config).unwrap();
        b.shutdown(std::net::Shutdown::Read).unwrap();
        assert_eq!(a.send_with_flags(b"x", SendFlags::SIGPIPE).unwrap_err().raw_os_error(), EPIPE);
        assert_eq!(raised(&told), 0, "{transport:?}: records raise none, as on Linux");
    }
}
