//! Clones of a socket, sockets made of the kernel's and given back to it, and a client's own name: the shapes
//! that std's users know.
#![allow(missing_docs, reason = "a test")]

use onecopy::Transport;
use onecopy::unix::{Config, Datagram, Listener, NotPassed, SeqPacket, SocketAddr, Stream};
use onecopy_testing::{alone, descriptors};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::time::Duration;

const AGAIN: i32 = 11;
const BUSY: i32 = 16;
const OPNOTSUPP: i32 = 95;

fn name(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("onecopy-handles-{what}-{}", std::process::id())).unwrap()
}

fn kernel() -> Config {
    Config { transport: Transport::Kernel, ..Config::default() }
}

#[test]
fn a_clone_is_the_same_socket_with_a_descriptor_of_its_own() {
    alone!();
    for config in [Config::default(), kernel()] {
        let (a, b) = Stream::pair_with(&config).unwrap();
        let clone = a.try_clone().unwrap();
        assert_ne!(a.as_raw_fd(), clone.as_raw_fd());
        a.send(b"one").unwrap();
        clone.send(b"two").unwrap();
        let mut buffer = [0; 6];
        (&b).read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"onetwo");
        // What is set on one is set on all.
        clone.set_nonblocking(true).unwrap();
        assert!(a.nonblocking().unwrap() && a.recv(&mut buffer).unwrap_err().would_block());
        clone.set_nonblocking(false).unwrap();
        a.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        assert_eq!(clone.read_timeout().unwrap(), Some(Duration::from_millis(1)));
        a.set_read_timeout(None).unwrap();
        assert_eq!(clone.stats().sent, 6);
        // The first handle goes, and the socket stays.
        drop(a);
        b.send(b"more").unwrap();
        assert_eq!(clone.recv(&mut buffer).unwrap(), 4);
        clone.send(b"last").unwrap();
        let again = clone.try_clone().unwrap();
        drop(clone);
        assert_eq!(b.recv(&mut buffer).unwrap(), 4);
        drop(again);
        assert_eq!(b.recv(&mut buffer).unwrap(), 0, "the last handle closes");
    }
}

#[test]
fn clones_of_records_and_datagrams_too() {
    alone!();
    let (a, b) = SeqPacket::pair().unwrap();
    let clone = a.try_clone().unwrap();
    drop(a);
    clone.send(b"record").unwrap();
    drop(clone);
    let mut buffer = [0; 9];
    assert_eq!(b.recv(&mut buffer).unwrap(), 6);
    assert!(b.recv_record(&mut buffer).unwrap().is_end());

    let (a, b) = Datagram::pair().unwrap();
    let clone = a.try_clone().unwrap();
    drop(a);
    clone.send(b"datagram").unwrap();
    assert_eq!(b.recv(&mut buffer).unwrap(), 8);
    b.send(b"back").unwrap();
    assert_eq!(clone.recv(&mut buffer).unwrap(), 4);
    drop(clone);
    assert!(b.send(b"x").is_err());
}

#[test]
fn a_clone_polls_as_the_socket_does_and_leaves_nothing() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    alone!();
    let readable = |fd: &Stream| {
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        fds[0].revents().contains(PollFlags::IN)
    };
    // The first socket opens descriptors that the process keeps.
    drop(Stream::pair().unwrap());
    let before = descriptors();
    {
        let (a, b) = Stream::pair().unwrap();
        let clone = b.try_clone().unwrap();
        assert!(!readable(&clone) && !readable(&b));
        a.send(b"x").unwrap();
        assert!(readable(&clone) && readable(&b));
        drop(b);
        assert!(readable(&clone));
        assert_eq!(clone.recv(&mut [0; 9]).unwrap(), 1);
        assert!(!readable(&clone));
        // Clones in threads: each byte is received once.
        let sum = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    let mine = clone.try_clone().unwrap();
                    scope.spawn(move || {
                        let (mut sum, mut buffer) = (0, [0; 100]);
                        loop {
                            match mine.recv(&mut buffer).unwrap() {
                                0 => return sum,
                                n => sum += buffer[..n].iter().map(|byte| u64::from(*byte)).sum::<u64>(),
                            }
                        }
                    })
                })
                .collect();
            for i in 0..100_u8 {
                a.send(&[i; 77]).unwrap();
            }
            drop(a);
            readers.into_iter().map(|reader| reader.join().unwrap()).sum::<u64>()
        });
        assert_eq!(sum, (0..100).sum::<u64>() * 77);
    }
    assert_eq!(descriptors(), before);
}

#[test]
fn a_socket_with_clones_is_not_given_away() {
    alone!();
    let config = Config { passable: true, ..Config::default() };
    let (a, b) = Stream::pair_with(&config).unwrap();
    let clone = a.try_clone().unwrap();
    let NotPassed { error, socket } = a.into_fds().unwrap_err();
    assert_eq!(error.raw_os_error(), BUSY);
    assert!(error.to_string().contains("try_clone"), "{error}");
    drop(clone);
    let passed = Stream::from_fds(socket.into_fds().unwrap()).unwrap();
    passed.send(b"here").unwrap();
    assert_eq!(b.recv(&mut [0; 9]).unwrap(), 4);
}

#[test]
fn sockets_of_std_stay_with_the_kernel_and_go_back() {
    alone!();
    let (a, mut plain) = UnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    a.set_write_timeout(Some(Duration::from_secs(7))).unwrap();
    let ours = Stream::from(a);
    assert!(ours.nonblocking().unwrap());
    assert_eq!(ours.write_timeout().unwrap(), Some(Duration::from_secs(7)));
    assert!(ours.recv(&mut [0; 1]).unwrap_err().would_block());
    ours.send(b"out").unwrap();
    plain.write_all(b"in").unwrap();
    let mut buffer = [0; 9];
    assert_eq!(plain.read(&mut buffer).unwrap(), 3);
    assert_eq!(ours.recv(&mut buffer[..1]).unwrap(), 1);
    let mut back = UnixStream::try_from(ours).unwrap();
    assert_eq!(back.read(&mut buffer).unwrap(), 1, "what was not received is still there");
    back.write_all(b"x").unwrap();
    drop(back);
    assert_eq!(plain.read(&mut buffer).unwrap(), 1);
    assert_eq!(plain.read(&mut buffer).unwrap(), 0);

    let (a, plain) = UnixDatagram::pair().unwrap();
    let ours = Datagram::from(a);
    ours.send(b"gram").unwrap();
    assert_eq!(plain.recv(&mut buffer).unwrap(), 4);
    plain.send(b"back").unwrap();
    assert_eq!(ours.recv(&mut buffer).unwrap(), 4);
    assert_eq!(UnixDatagram::try_from(ours).unwrap().send(b"z").unwrap(), 1);

    let (a, b) = SeqPacket::pair_with(&kernel()).unwrap();
    let (a, b): (OwnedFd, OwnedFd) = (a.try_into().unwrap(), b.try_into().unwrap());
    assert_eq!(SeqPacket::from(a).send(b"record").unwrap(), 6);
    assert_eq!(SeqPacket::from(b).recv(&mut buffer).unwrap(), 6);
}

#[test]
fn what_is_more_than_a_plain_socket_is_not_given_back() {
    alone!();
    let (a, _b) = Stream::pair().unwrap();
    let NotPassed { error, socket } = UnixStream::try_from(a).unwrap_err();
    assert_eq!(error.raw_os_error(), OPNOTSUPP, "{error}");
    assert!(error.to_string().contains("Transport::Kernel"), "{error}");
    let (d, _e) = Datagram::pair().unwrap();
    assert_eq!(UnixDatagram::try_from(d).unwrap_err().error.raw_os_error(), OPNOTSUPP);

    // Undecided: it may be upgraded by the first bytes.
    let listener = Listener::bind(name("undecided")).unwrap();
    let client = Stream::connect(name("undecided")).unwrap();
    let (server, _) = listener.accept().unwrap();
    let NotPassed { error, socket: client } = OwnedFd::try_from(client).unwrap_err();
    assert_eq!(error.raw_os_error(), AGAIN, "{error}");
    server.send(b"still works").unwrap();
    assert_eq!(client.recv(&mut [0; 20]).unwrap(), 11);

    let clone = socket.try_clone().unwrap();
    assert_eq!(OwnedFd::try_from(socket).unwrap_err().error.raw_os_error(), BUSY);
    drop(clone);
    // Nobody has paired with it.
    UnixDatagram::try_from(Datagram::unbound().unwrap()).unwrap();
}

#[test]
fn a_socket_is_not_given_back_under_a_view() {
    alone!();
    let (a, mut plain) = UnixStream::pair().unwrap();
    let ours = Stream::from(a);
    plain.write_all(b"seen").unwrap();
    let view = ours.recv_borrowed(9).unwrap();
    let NotPassed { error, socket } = UnixStream::try_from(ours).unwrap_err();
    assert_eq!(error.raw_os_error(), BUSY);
    assert!(error.to_string().contains("views"), "{error}");
    assert_eq!(view.into_vec(), b"seen");
    let mut back = UnixStream::try_from(socket).unwrap();
    back.write_all(b"open").unwrap();
    assert_eq!(plain.read(&mut [0; 9]).unwrap(), 4);
}

#[test]
fn listeners_come_from_std_go_back_and_have_clones() {
    alone!();
    let std_name = std::os::unix::net::SocketAddr::try_from(&name("listener")).unwrap();
    let listener = Listener::from(UnixListener::bind_addr(&std_name).unwrap());
    let clone = listener.try_clone().unwrap();
    let client = Stream::connect(name("listener")).unwrap();
    let (server, from) = clone.accept().unwrap();
    assert!(from.is_unnamed());
    // Connections that come in at it can share memory.
    server.send(b"x").unwrap();
    client.recv(&mut [0; 1]).unwrap();
    client.send(b"y").unwrap();
    assert_eq!(server.recv(&mut [0; 1]).unwrap(), 1);
    assert_eq!(client.path().send, onecopy::Carrier::SharedMemory);
    drop(listener);
    let std = UnixListener::from(clone);
    let mut plain = UnixStream::connect_addr(&std_name).unwrap();
    plain.write_all(b"plain").unwrap();
    assert_eq!(std.accept().unwrap().0.read(&mut [0; 9]).unwrap(), 5);
    drop(std);
    assert!(Stream::connect(name("listener")).is_err());
}

#[test]
fn a_listener_is_gone_through() {
    alone!();
    let listener = Listener::bind(name("incoming")).unwrap();
    let clients: Vec<_> = (0..4).map(|_| Stream::connect(name("incoming")).unwrap()).collect();
    for (socket, client) in listener.incoming().take(2).zip(&clients) {
        client.send(b"x").unwrap();
        assert_eq!(socket.unwrap().recv(&mut [0; 9]).unwrap(), 1);
    }
    let mut left = 2;
    for socket in &listener {
        socket.unwrap();
        left -= 1;
        if left == 0 {
            listener.set_nonblocking(true).unwrap();
            assert!(listener.nonblocking().unwrap());
            break;
        }
    }
    assert!(listener.accept().unwrap_err().would_block());
    assert!(listener.take_error().unwrap().is_none());
}

#[test]
fn a_client_may_have_a_name_of_its_own() {
    alone!();
    let listener = Listener::bind(name("named")).unwrap();
    let client = Stream::connect_from(name("client"), name("named")).unwrap();
    let (server, from) = listener.accept().unwrap();
    assert_eq!(from, name("client"));
    assert_eq!((server.peer_addr().unwrap(), client.local_addr().unwrap()), (from.clone(), from));
    for _ in 0..3 {
        client.send(b"to").unwrap();
        assert_eq!(server.recv(&mut [0; 9]).unwrap(), 2);
        server.send(b"fro").unwrap();
        assert_eq!(client.recv(&mut [0; 9]).unwrap(), 3);
    }
    assert_eq!(client.stats().fallbacks, 1, "it stays with the kernel, and says so");
    UnixStream::try_from(client).unwrap();
    let taken = Stream::connect_from(name("named"), name("named")).unwrap_err();
    assert_eq!((taken.raw_os_error(), taken.op()), (98, onecopy::Op::Bind));
}

#[test]
fn setters_have_getters() {
    alone!();
    use onecopy::{Policy, Reader};
    let (a, _b) = Stream::pair().unwrap();
    a.set_policy(Policy::Cached);
    a.set_reader(Reader::SameCore);
    a.set_wait_mode(onecopy::Wait::Block);
    a.set_read_timeout(Some(Duration::from_secs(15410))).unwrap();
    a.set_pass_credentials(true).unwrap();
    assert_eq!((a.policy(), a.reader()), (Policy::Cached, Reader::SameCore));
    assert_eq!(a.wait_mode(), onecopy::Wait::Block);
    assert_eq!(a.read_timeout().unwrap(), Some(Duration::from_secs(15410)));
    assert_eq!(a.write_timeout().unwrap(), None);
    assert!(a.pass_credentials() && !a.pass_pidfd() && !a.nonblocking().unwrap());
    if rustix::process::geteuid().is_root() {
        a.set_mark(7).unwrap();
        assert_eq!(a.mark().unwrap(), 7);
    }
    let _ = a.as_fd();
}
