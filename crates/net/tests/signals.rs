//! Calls that wait, and signals: EINTR where the handler does not let calls be restarted, nothing where it does (signal(7)). Signals go to a
//! thread of their own, and the handler is the process's: so each case is a process.

use onecopy_link::Tap;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{BuildError, Stack, Transport, udp};
use onecopy_testing::{alone, asleep, wait_asleep};
use rustix::process::{Pid, Signal};
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// Catches SIGUSR1, for the whole process; a byte comes for each.
fn catch(restart: bool) -> &'static UnixStream {
    static TOLD: OnceLock<(UnixStream, UnixStream)> = OnceLock::new();
    let (told, tell) = TOLD.get_or_init(|| {
        let (told, tell) = UnixStream::pair().unwrap();
        tell.set_nonblocking(true).unwrap();
        told.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (told, tell)
    });
    let tell = OwnedFd::from(tell.try_clone().unwrap());
    onecopy_sys::signal::catch(Signal::USR1.as_raw(), tell, restart).unwrap();
    told
}

/// Does `call` on a thread that gets signals once it sleeps: again and again until it returns; or, where calls are restarted, a few, and then
/// does `end`.
fn signalled<T: Send>(restart: bool, call: impl FnOnce() -> T + Send, end: impl FnOnce()) -> T {
    let mut told = catch(restart);
    thread::scope(|scope| {
        let (here, came): (_, Receiver<i32>) = channel();
        let (done, over) = channel();
        let caller = scope.spawn(move || {
            here.send(onecopy_testing::this_thread()).unwrap();
            let result = call();
            let _ = done.send(());
            result
        });
        let thread = came.recv().unwrap();
        // The kernel gives a signal to the thread whose number was named, if that takes it (complete_signal()).
        let signal = || rustix::process::kill_process(Pid::from_raw(thread).unwrap(), Signal::USR1).unwrap();
        wait_asleep(thread);
        if restart {
            for _ in 0..3 {
                signal();
                told.read_exact(&mut [0]).unwrap();
                wait_asleep(thread);
            }
            assert!(over.try_recv().is_err(), "it returned");
            end();
        } else {
            // It may have slept elsewhere.
            signal();
            while over.recv_timeout(Duration::from_millis(100)).is_err() {
                signal();
            }
        }
        caller.join().unwrap()
    })
}

/// The listener's stack, where it listens, and the client's stack.
fn worlds() -> Vec<(Stack, SocketAddr, Stack)> {
    let (a, b) = Tap::cable(1500).unwrap();
    let here = Stack::builder().link(a).address("10.0.0.1/24").build().unwrap();
    let there = Stack::builder().link(b).address("10.0.0.2/24").build().unwrap();
    let mut worlds = vec![(here, SocketAddr::from(([10, 0, 0, 1], 0)), there)];
    match Stack::builder().transport(Transport::Kernel).build() {
        Ok(stack) => worlds.push((stack.clone(), SocketAddr::from(([127, 0, 0, 1], 0)), stack)),
        Err(BuildError::Uring(refused)) => println!("lacking: io_uring ({refused})"),
        Err(error) => panic!("{error}"),
    }
    worlds
}

fn interrupted<T: std::fmt::Debug>(result: onecopy_net::Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Interrupted);
}

#[test]
fn a_signal_ends_a_call_that_waits() {
    alone!();
    for (here, at, there) in worlds() {
        let listener = Listener::bind(&here, at).unwrap();
        interrupted(signalled(false, || listener.accept().map(drop), || ()));
        // With a limit, too, and where another thread drives already.
        listener.set_accept_timeout(Some(Duration::from_secs(60))).unwrap();
        interrupted(signalled(false, || listener.accept().map(drop), || ()));
        listener.set_accept_timeout(None).unwrap();
        let first = listener.try_clone().unwrap();
        thread::scope(|scope| {
            let leader = asleep(scope, move || first.accept().map(drop));
            interrupted(signalled(false, || listener.accept().map(drop), || ()));
            drop(Stream::connect(&there, listener.local_addr().unwrap()).unwrap());
            leader.join().unwrap().unwrap();
        });
        let client = Stream::connect(&there, listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        interrupted(signalled(false, || server.recv(&mut [0; 8]), || ()));
        client.send(b"still there").unwrap();
        assert_eq!(server.recv(&mut [0; 20]).unwrap(), 11);
        let datagrams = udp::Socket::bind(&here, at).unwrap();
        interrupted(signalled(false, || datagrams.recv(&mut [0; 8]), || ()));
    }
}

#[test]
fn a_signal_whose_handler_restarts_calls_ends_none() {
    alone!();
    for (here, at, there) in worlds() {
        let listener = Listener::bind(&here, at).unwrap();
        let to = listener.local_addr().unwrap();
        let connect = || drop(Stream::connect(&there, to).unwrap());
        signalled(true, || listener.accept().map(drop), connect).unwrap();
        let client = Stream::connect(&there, to).unwrap();
        let (server, _) = listener.accept().unwrap();
        let send = || assert_eq!(client.send(b"here").unwrap(), 4);
        assert_eq!(signalled(true, || server.recv(&mut [0; 8]), send).unwrap(), 4);
        let datagrams = udp::Socket::bind(&here, at).unwrap();
        let to = datagrams.local_addr().unwrap();
        let one = udp::Socket::unbound(&there).unwrap();
        let send = || assert_eq!(one.send_to(b"here", to).unwrap(), 4);
        assert_eq!(signalled(true, || datagrams.recv(&mut [0; 8]), send).unwrap(), 4);
    }
}
