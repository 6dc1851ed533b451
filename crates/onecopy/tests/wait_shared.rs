//! A connection that both sides wait for is in shared memory before its first byte, and nobody is told of
//! anything meanwhile.
#![allow(missing_docs, reason = "a test")]

use onecopy::unix::{Config, Listener, Records, SeqListener, SeqPacket, SharedPool, SocketAddr, Stream};
use onecopy::{Op, Transport};
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_testing::{alone, begun, descriptors, wait_asleep};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

const LONG: Option<Duration> = Some(onecopy_testing::LONG);
const NOT: Option<Duration> = Some(Duration::ZERO);
const TIMEDOUT: i32 = 110;
const OPNOTSUPP: i32 = 95;
const PIPE: i32 = 32;

fn name(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("onecopy-wait-{what}-{}", std::process::id())).unwrap()
}

fn connected(what: &str, config: &Config) -> (Listener, Stream, Stream) {
    let listener = Listener::bind_with(name(what), config).unwrap();
    let client = Stream::connect_with(name(what), config).unwrap();
    let (server, _) = listener.accept().unwrap();
    (listener, client, server)
}

fn readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    !fds[0].revents().is_empty()
}

#[test]
fn both_sides_wait_and_no_byte_is_sent() {
    alone!();
    // The first sockets open descriptors that the process keeps.
    drop(connected("first", &Config::default()));
    let before = descriptors();
    for round in 0..20 {
        let (_listener, client, server) = connected(&format!("both-{round}"), &Config::default());
        thread::scope(|scope| {
            let other = scope.spawn(|| client.wait_shared(LONG));
            if round % 2 == 0 {
                // Whatever waits first.
                while !other.is_finished() && server.wait_shared(NOT).is_err() {
                    assert!(!readable(&server), "nothing lies in the queue");
                }
            }
            server.wait_shared(LONG).unwrap();
            other.join().unwrap().unwrap();
        });
        assert!(client.path().is_shared_memory() && server.path().is_shared_memory());
        assert!(!readable(&client) && !readable(&server));
        // A page goes by reference from the first byte on.
        let pool = SharedPool::new(1 << 16, 2).unwrap();
        let mut page = pool.loan(1 << 16).unwrap();
        page.fill(7);
        server.send_loan(page).unwrap();
        let view = client.recv_borrowed(1 << 16).unwrap();
        assert_eq!((view.len(), client.stats().referenced), (1 << 16, 1 << 16));
        drop(view);
        client.send(b"back").unwrap();
        assert_eq!(server.recv(&mut [0; 9]).unwrap(), 4);
        assert_eq!((client.stats().kernel_copied, server.stats().kernel_copied), (0, 0));
        server.wait_shared(NOT).unwrap();
    }
    assert_eq!(descriptors(), before);
}

#[test]
fn records_of_both_kinds_wait_too() {
    alone!();
    for records in [Records::Atomic, Records::Stream] {
        let config = Config { records, ..Config::default() };
        let listener = SeqListener::bind_with(name(&format!("{records:?}")), &config).unwrap();
        let client = SeqPacket::connect_with(name(&format!("{records:?}")), &config).unwrap();
        let (server, _) = listener.accept().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| server.wait_shared(LONG).unwrap());
            client.wait_shared(LONG).unwrap();
        });
        for i in 0..3_u8 {
            client.send_with_flags(&[i; 100], onecopy::SendFlags::EOR).unwrap();
            assert_eq!(server.recv(&mut [0; 200]).unwrap(), 100);
            server.send_with_flags(&[i; 50], onecopy::SendFlags::EOR).unwrap();
            assert_eq!(client.recv(&mut [0; 200]).unwrap(), 50);
        }
    }
}

#[test]
fn larger_rings_than_the_client_has_made_are_brought_at_once() {
    alone!();
    let large = Config { receive_buffer: Some(1 << 20), ..Config::default() };
    let listener = Listener::bind_with(name("larger"), &large).unwrap();
    let client = Stream::connect(name("larger")).unwrap();
    let (server, _) = listener.accept().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| server.wait_shared(LONG).unwrap());
        client.wait_shared(LONG).unwrap();
    });
    assert!(client.capacity().0 >= 2 << 20, "{:?}", client.capacity());
}

/// The rings that a client makes first come twice here, by a visit and with its bytes, and the server has larger ones
/// made only once.
#[test]
fn rings_that_were_too_small_are_not_joined_when_they_come_again() {
    alone!();
    let exchange = |client: &Stream, server: &Stream| {
        for (from, to) in [(server, client), (client, server)].repeat(4) {
            to.set_read_timeout(LONG).unwrap();
            from.send(b"one way").unwrap();
            let mut buffer = [0; 20];
            assert_eq!(to.recv(&mut buffer).unwrap(), 7);
            assert_eq!(&buffer[..7], b"one way");
        }
        client.wait_shared(NOT).unwrap();
        assert!(client.capacity().0 >= 2 << 20, "{:?}", client.capacity());
    };
    let large = Config { receive_buffer: Some(1 << 20), ..Config::default() };
    let listener = Listener::bind_with(name("twice"), &large).unwrap();
    let connected = || {
        let client = Stream::connect(name("twice")).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.wait_shared(NOT).unwrap_err();
        client.send(b"a").unwrap();
        (client, server)
    };
    // First by the visit, then with the first byte.
    let (client, server) = connected();
    server.wait_shared(NOT).unwrap_err();
    client.send(b"b").unwrap();
    std::io::Read::read_exact(&mut &server, &mut [0; 2]).unwrap();
    exchange(&client, &server);
    // First with the byte, then by the visit.
    let (client, server) = connected();
    assert_eq!(server.recv(&mut [0; 9]).unwrap(), 1);
    client.wait_shared(NOT).unwrap_err();
    let _ = server.wait_shared(NOT);
    exchange(&client, &server);
}

#[test]
fn many_connections_of_one_listener_find_their_own_rings() {
    alone!();
    let listener = Listener::bind(name("many")).unwrap();
    thread::scope(|scope| {
        for i in 0..16_u8 {
            scope.spawn(move || {
                let client = Stream::connect(name("many")).unwrap();
                client.wait_shared(LONG).unwrap();
                client.send(&[i; 33]).unwrap();
                let mut buffer = [0; 33];
                std::io::Read::read_exact(&mut &client, &mut buffer).unwrap();
                assert_eq!(buffer, [i; 33]);
            });
        }
        for _ in 0..16 {
            let (server, _) = listener.accept().unwrap();
            scope.spawn(move || {
                server.wait_shared(LONG).unwrap();
                let mut buffer = [0; 33];
                let n = server.recv(&mut buffer).unwrap();
                server.send(&buffer[..n]).unwrap();
            });
        }
    });
}

#[test]
fn one_side_alone_waits_for_what_the_other_sends() {
    alone!();
    let (_listener, client, server) = connected("alone", &Config::default());
    let late = client.wait_shared(Some(Duration::from_millis(30))).unwrap_err();
    assert_eq!((late.raw_os_error(), late.op()), (TIMEDOUT, Op::Wait));
    assert!(late.to_string().contains("both sides"), "{late}");
    assert!(!readable(&client) && !readable(&server));
    assert_eq!(server.wait_shared(NOT).is_ok(), server.path().is_shared_memory());
    // Whatever was brought and not taken, no byte is lost and all goes on.
    for i in 0..5_u8 {
        client.send(&[i; 10]).unwrap();
        let mut buffer = [0; 20];
        assert_eq!(server.recv(&mut buffer).unwrap(), 10);
        assert_eq!(buffer[..10], [i; 10]);
        server.send(&[i; 7]).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), 7);
    }
    client.wait_shared(NOT).unwrap();
    server.wait_shared(NOT).unwrap();

    // A server that waits alone is moved by the client's messages.
    let (_listener, client, server) = connected("server", &Config::default());
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3 {
                client.send(b"x").unwrap();
            }
        });
        let waited = server.wait_shared(Some(Duration::from_millis(50)));
        waited.unwrap_or_else(|error| assert_eq!(error.raw_os_error(), TIMEDOUT));
    });
}

/// A program may look again and again. Each look must not take another place in the rendezvous' queue, nor leave
/// another descriptor on its way: both are few, and of all clients (of all programs of the user).
#[test]
fn looks_that_find_nothing_leave_nothing() {
    alone!();
    let config = Config { records: Records::Stream, ..Config::default() };
    let listener = SeqListener::bind_with(name("looks"), &config).unwrap();
    let client = SeqPacket::connect_with(name("looks"), &config).unwrap();
    let (server, _) = listener.accept().unwrap();
    for _ in 0..6000 {
        assert_eq!(client.wait_shared(NOT).unwrap_err().raw_os_error(), TIMEDOUT);
    }
    SeqPacket::connect_with(name("looks"), &config).unwrap();
    let (a, b) = UnixStream::pair().unwrap();
    let byte = [std::io::IoSlice::new(b"x")];
    onecopy_sys::scm::send(&a, &byte, &[b.as_fd()], None, rustix::net::SendFlags::NOSIGNAL).unwrap();
    // What was brought long ago is taken when the server waits, too.
    assert_eq!(server.wait_shared(NOT).unwrap_err().raw_os_error(), TIMEDOUT);
    client.wait_shared(NOT).unwrap();
    server.wait_shared(NOT).unwrap();
}

const LISTENS: &str = "ONECOPY_TEST_LISTENS";

/// Listens with the socket that is its standard input, for the test below.
#[test]
fn another_process_listens() {
    if std::env::var_os(LISTENS).is_some() {
        rustix::net::listen(std::io::stdin(), 100).unwrap();
    }
}

/// A service manager has listened, and this process has the rendezvous. The client sees two processes, and asks once.
#[test]
fn a_listener_of_another_process_is_brought_nothing() {
    alone!();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let address = name("foreign");
    let text = address.as_abstract_name().unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(text).unwrap()).unwrap();
    let listens = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "another_process_listens"])
        .env(LISTENS, "1")
        .stdin(socket.try_clone().unwrap())
        .output();
    assert!(listens.unwrap().status.success());
    let config = Config { records: Records::Stream, ..Config::default() };
    let listener = SeqListener::from_fds_with(vec![socket], &config).unwrap();
    let client = SeqPacket::connect_with(&address, &config).unwrap();
    let (server, _) = listener.accept().unwrap();
    for _ in 0..6000 {
        assert_eq!(client.wait_shared(NOT).unwrap_err().raw_os_error(), TIMEDOUT);
    }
    SeqPacket::connect_with(&address, &config).unwrap();
    for (from, to) in [(&client, &server), (&server, &client)] {
        from.send_with_flags(b"record", onecopy::SendFlags::EOR).unwrap();
        assert_eq!(to.recv(&mut [0; 9]).unwrap(), 6);
    }
    client.wait_shared(NOT).unwrap();
}

#[test]
fn bytes_that_were_sent_before_come_first() {
    alone!();
    let (_listener, client, server) = connected("before", &Config::default());
    client.send(b"early ").unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            client.wait_shared(LONG).unwrap_or_else(|error| assert_eq!(error.raw_os_error(), TIMEDOUT))
        });
        // The server moves its sending side; what it receives comes over the kernel up to the switch.
        let mut buffer = [0; 9];
        assert_eq!(server.recv(&mut buffer).unwrap(), 6);
        server.wait_shared(LONG).unwrap();
    });
    client.send(b"late").unwrap();
    let mut buffer = [0; 9];
    assert_eq!(server.recv(&mut buffer).unwrap(), 4);
    assert_eq!(&buffer[..4], b"late");
}

#[test]
fn what_stays_with_the_kernel_is_told_or_timed_out() {
    alone!();
    let kernel = Config { transport: Transport::Kernel, ..Config::default() };
    let (a, _b) = Stream::pair_with(&kernel).unwrap();
    assert_eq!(a.wait_shared(LONG).unwrap_err().raw_os_error(), OPNOTSUPP);
    let (a, b) = Stream::pair().unwrap();
    a.wait_shared(NOT).unwrap();
    b.wait_shared(None).unwrap();

    // A plain server: it never says anything of rings.
    let std_name = std::os::unix::net::SocketAddr::try_from(&name("plain")).unwrap();
    let listener = UnixListener::bind_addr(&std_name).unwrap();
    let client = Stream::connect(name("plain")).unwrap();
    let (plain, _) = listener.accept().unwrap();
    assert_eq!(client.wait_shared(Some(Duration::from_millis(5))).unwrap_err().raw_os_error(), TIMEDOUT);
    std::io::Write::write_all(&mut &plain, b"plain").unwrap();
    assert_eq!(client.wait_shared(LONG).unwrap_err().raw_os_error(), OPNOTSUPP);
    assert_eq!(client.recv(&mut [0; 9]).unwrap(), 5);
    // A plain client.
    let listener = Listener::bind(name("plain-client")).unwrap();
    let std_name = std::os::unix::net::SocketAddr::try_from(&name("plain-client")).unwrap();
    let _plain = UnixStream::connect_addr(&std_name).unwrap();
    let (server, _) = listener.accept().unwrap();
    assert_eq!(server.wait_shared(LONG).unwrap_err().raw_os_error(), OPNOTSUPP);
    // A peer that goes.
    let (_listener, client, server) = connected("goes", &Config::default());
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.wait_shared(LONG));
        drop(server);
        assert_eq!(waits.join().unwrap().unwrap_err().raw_os_error(), PIPE);
    });
}

/// A rendezvous that outlived its listener would speak for whoever listens by that name next.
#[test]
fn the_rendezvous_goes_with_its_listener_while_a_server_waits() {
    alone!();
    let text = format!("onecopy-4-at-s@onecopy-wait-leaves-{}", std::process::id());
    let rendezvous = SocketAddr::from_abstract_name(text).unwrap();
    let rendezvous = std::os::unix::net::SocketAddr::try_from(&rendezvous).unwrap();
    for _ in 0..10 {
        let (listener, client, server) = connected("leaves", &Config::default());
        thread::scope(|scope| {
            let (_, waits) = begun(scope, || server.wait_shared(LONG).unwrap_err());
            wait_asleep(waits);
            drop(UnixStream::connect_addr(&rendezvous).unwrap());
            wait_asleep(waits);
            drop(listener);
            let late = UnixStream::connect_addr(&rendezvous);
            drop(client);
            assert_eq!(late.unwrap_err().raw_os_error(), Some(111));
        });
    }
}

#[test]
fn nobody_else_brings_rings_or_is_brought_any() {
    use onecopy_sync::atomic::AtomicU32;
    alone!();
    // Visitors without a message, with a wrong one, and with none that anybody waits for.
    let (_listener, client, server) = connected("strangers", &Config::default());
    let text = format!("onecopy-4-at-s@onecopy-wait-strangers-{}", std::process::id());
    let rendezvous = rustix::net::SocketAddrUnix::new_abstract_name(text.as_bytes()).unwrap();
    // (One that would wait for a place in the queue would wait for ever, once nobody takes visitors any more.)
    let visit = || {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let visit = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        connect(&visit, &rendezvous).map(|()| UnixStream::from(visit))
    };
    let stop = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = std::fs::File::open("/dev/null").unwrap();
            let mut kept = Vec::new();
            for round in 0.. {
                if stop.load(Relaxed) != 0 {
                    break;
                }
                let visit = match visit() {
                    Ok(visit) => visit,
                    Err(rustix::io::Errno::AGAIN) => {
                        thread::yield_now();
                        continue;
                    }
                    Err(_) => break,
                };
                match round % 3 {
                    0 => drop(visit),
                    1 => {
                        let fds = [file.as_fd()];
                        let bytes = [std::io::IoSlice::new(b"v")];
                        let none = rustix::net::SendFlags::NOSIGNAL;
                        let _ = onecopy_sys::scm::send(&visit, &bytes, &fds, None, none);
                    }
                    _ => {
                        kept.push(visit);
                        kept.truncate(20);
                    }
                }
            }
        });
        scope.spawn(|| client.wait_shared(LONG).unwrap());
        server.wait_shared(LONG).unwrap();
        stop.store(1, Relaxed);
    });
    client.send(b"ours").unwrap();
    assert_eq!(server.recv(&mut [0; 9]).unwrap(), 4);
}
