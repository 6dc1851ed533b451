//! Connections that are being made.

use crate::world::{anywhere, counter, stack, until};
use onecopy_net::tcp::{Listener, Stream};
use rustix::event::{PollFd, PollFlags, poll};
use std::fs;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Instant;

/// A listener that takes no more connections: who connects waits for an answer to its SYN. With those that fill it.
fn full() -> (rustix::fd::OwnedFd, SocketAddr, Vec<TcpStream>) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with};
    let fd = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&fd, &anywhere()).unwrap();
    listen(&fd, 0).unwrap();
    let to = SocketAddr::try_from(getsockname(&fd).unwrap()).unwrap();
    let filling = vec![TcpStream::connect(to).unwrap()];
    (fd, to, filling)
}

#[test]
fn a_shutdown_while_it_connects_gives_it_up_as_the_kernel_does() {
    let Some(stack) = stack() else { return };
    let (_listener, to, _filling) = full();
    for how in [Shutdown::Read, Shutdown::Write, Shutdown::Both] {
        for at_once in [true, false] {
            let stream = Stream::connect_nonblocking(&stack, to).unwrap();
            if !at_once {
                until(|| stream.local_addr().is_ok_and(|local| local.port() != 0));
            }
            stream.shutdown(how).unwrap();
            let mut fds = [PollFd::new(&stream, PollFlags::IN | PollFlags::OUT)];
            poll(&mut fds, None).unwrap();
            assert!(fds[0].revents().contains(PollFlags::ERR | PollFlags::HUP), "{:?}", fds[0].revents());
            assert_eq!(stream.recv(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert_eq!(stream.send(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
            assert!(stream.take_error().unwrap().is_none());
            assert_eq!(stream.shutdown(how).unwrap_err().kind(), ErrorKind::NotConnected);
        }
    }
    until(|| counter(&stack, "sockets") == 0);
    // Who waits for it hears so.
    thread::scope(|scope| {
        let stream = Stream::connect_nonblocking(&stack, to).unwrap();
        let other = stream.try_clone().unwrap();
        let waits = onecopy_testing::asleep(scope, move || {
            let mut fds = [PollFd::new(&other, PollFlags::OUT)];
            poll(&mut fds, None).unwrap();
            other.take_error().unwrap().unwrap().kind()
        });
        stream.shutdown(Shutdown::Both).unwrap();
        assert_eq!(waits.join().unwrap(), ErrorKind::ConnectionReset);
    });
}

/// SO_ERROR takes what it tells, and the ring that connects asks the kernel by the same: who looks while it does takes nothing away from it.
#[test]
fn a_refusal_is_told_once_to_who_looked_for_it_all_the_time() {
    onecopy_testing::alone!();
    // On one CPU, and before the ring's thread if that may be asked for: so that who looks is there first.
    let mut one = rustix::thread::CpuSet::new();
    one.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    let Some(stack) = stack() else { return };
    let _ = rustix::process::setpriority_process(None, -20);
    let (listener, to, filling) = full();
    let streams: Vec<_> = (0..16).map(|_| Stream::connect_nonblocking(&stack, to).unwrap()).collect();
    for stream in &streams {
        until(|| stream.local_addr().is_ok_and(|local| local.port() != 0));
        assert!(stream.take_error().unwrap().is_none());
    }
    // Nobody is there when the SYNs are sent again, all at once.
    drop((listener, filling));
    let mut told = vec![0; streams.len()];
    let over = |stream: &Stream| {
        let mut fds = [PollFd::new(stream, PollFlags::empty())];
        let now = rustix::event::Timespec::default();
        poll(&mut fds, Some(&now)).unwrap();
        fds[0].revents().contains(PollFlags::HUP)
    };
    let begun = Instant::now();
    // (Without a sleep: it is to be looked for just when it comes.)
    while !streams.iter().all(over) {
        assert!(begun.elapsed() < onecopy_testing::LONG, "{told:?}");
        for (told, stream) in told.iter_mut().zip(&streams) {
            if let Some(error) = stream.take_error().unwrap() {
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
                *told += 1;
            }
        }
    }
    for (told, stream) in told.iter_mut().zip(&streams) {
        *told += u32::from(stream.take_error().unwrap().is_some());
        assert_eq!(*told, 1);
        assert_eq!(stream.recv(&mut [0; 1]).unwrap(), 0);
        assert_eq!(stream.send(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert!(stream.take_error().unwrap().is_none());
    }
}

#[test]
fn who_looks_from_outside_sees_both_ends_of_what_is_begun_without_a_wait() {
    use onecopy_socket::registry;
    onecopy_testing::alone!();
    let Some(stack) = stack() else { return };
    let seen = |to: SocketAddr| {
        let tables = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let listings = tables.filter_map(|path| registry::read(fs::File::open(path).ok()?).ok());
        // (A row that is changed meanwhile is not there.)
        let entries: Vec<_> = listings.flat_map(|listing| listing.entries).collect();
        entries.into_iter().find(|entry| entry.remote == Some(to)).and_then(|entry| entry.local)
    };
    let (_listener, to, _filling) = full();
    let _making = Stream::connect_nonblocking(&stack, to).unwrap();
    until(|| seen(to).is_some());
    let listener = Listener::bind(&stack, anywhere()).unwrap();
    let to = listener.local_addr().unwrap();
    let made = Stream::connect_nonblocking(&stack, to).unwrap();
    let (_server, from) = listener.accept().unwrap();
    until(|| seen(to) == Some(from));
    drop(made);
}
